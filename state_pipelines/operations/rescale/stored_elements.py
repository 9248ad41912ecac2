"""Operator state as stored bytes, for the proof of a rescaling: elements are found by offsets, and nothing is decoded.

An element ends where the next one begins that any handle names in the same stream. A new handle that leaves out
elements of an old file does not say where those begin; the old handles do, so that they are given too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.snappy_frames import STREAM_ID, iter_chunks
from state_pipelines.errors import FormatError, UnsupportedError, Where
from state_pipelines.keyed.digests import RecordDigest, digest_records
from state_pipelines.metadata.handles import EmptySegmentFileStateHandle, OperatorStateMetaInfo, OperatorStateMode
from state_pipelines.metadata.streams import KeptStreams
from state_pipelines.operatorstate import COUNT_SIZE, find_entries
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.state_meta_info import StateMetaInfo
from state_pipelines.storage.reading import do_together

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.metadata import OperatorState
    from state_pipelines.metadata.handles import StreamStateHandle
    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.snapshot import Operator
    from state_pipelines.snapshot.operator_state import BroadcastState

StateDescription = StateMetaInfo | bytes
"""Description of a state in the header, or the bytes of a header that cannot be read."""

Named = dict["StreamStateHandle", tuple[OperatorStateMetaInfo, ...]]
"""States and offsets that any handle names in a stream, by stream."""

_Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StoredElements:
    """Byte spans that one handle of operator state names; can be sent to other processes.

    Attributes:
        subtask: index of the subtask.
        stream: the stream of the handle.
        states: states of the handle with the offsets of their elements.
        named: everything that any handle names in the stream.
        infos: descriptions of the states in the header; None when the header cannot be read.
        raw: raw operator state, which has no header.
        kept: streams that the header was read from, so that a file is fetched once.
    """

    subtask: int
    stream: StateStream
    states: tuple[OperatorStateMetaInfo, ...] = field(repr=False)
    named: tuple[OperatorStateMetaInfo, ...] = field(repr=False)
    infos: tuple[StateMetaInfo, ...] | None
    raw: bool = False
    kept: KeptStreams = field(default_factory=KeptStreams, compare=False, repr=False)

    def digest(self) -> tuple[dict[str, RecordDigest], dict[str, RecordDigest], dict[str, StateDescription]]:
        """Digests of list states, of broadcast states (whole, with the number of their entries), and the forms.

        Raises:
            FormatError: an offset is outside the stream.
            StateError: the stream cannot be read.
        """
        data, first, spans = self._find_spans()
        lists: dict[str, RecordDigest] = {}
        copies: dict[str, RecordDigest] = {}
        for state, starts, ends in spans:
            found = _digest_spans(data, starts, ends)
            if state.mode is OperatorStateMode.BROADCAST:
                for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
                    found = replace(found, records=_read_count(data[first - len(STREAM_ID) : first], data[start:end]))
                copies[state.state_name] = found
            else:
                lists[state.state_name] = lists.get(state.state_name, RecordDigest()) + found
        return lists, copies, self._find_descriptions(data[:first].tobytes())

    def take(self, name: str) -> Iterator[bytes]:
        """The stored bytes of each element of a list state; broadcast states give none.

        Raises:
            StateError: as for `digest`.
        """
        if all(state.state_name != name for state in self.states):
            return
        data, _, spans = self._find_spans()
        for state, starts, ends in spans:
            if state.state_name == name and state.mode is not OperatorStateMode.BROADCAST:
                for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
                    yield data[start:end].tobytes()

    def _find_spans(
        self,
    ) -> tuple[npt.NDArray[np.uint8], int, list[tuple[OperatorStateMetaInfo, _Positions, _Positions]]]:
        """The stream, the offset of its first element, and start and end offsets of the elements of each state."""
        data = np.frombuffer(self.kept.read_whole(self.stream), np.uint8)
        ranks = {name: rank for rank, name in enumerate(self._order)}
        keys = [_make_keys(state, ranks) for state in self.named]
        offsets = np.unique(np.concatenate([np.zeros(0, np.int64), *keys]))
        first = int(offsets[0]) // len(ranks) if len(offsets) else len(data)
        if len(offsets) and not 0 <= first <= int(offsets[-1]) // len(ranks) <= len(data):
            offset = int(offsets[-1]) // len(ranks) if first >= 0 else first
            raise FormatError(
                f"an element at {offset} is outside its stream of {len(data)} bytes", where=Where(file=self.stream.name)
            )
        bounds = np.append(offsets // max(1, len(ranks)), len(data))
        spans = []
        for state in self.states:
            starts = np.array(state.offsets, np.int64)
            ends = bounds[np.searchsorted(offsets, _make_keys(state, ranks)) + 1]
            # Of elements at one position all but the last are empty.
            ends = np.where(np.append(starts[1:] == starts[:-1], False)[: len(starts)], starts, ends)
            spans.append((state, starts, ends))
        return data, first, spans

    @property
    def _order(self) -> tuple[str, ...]:
        """Names of states in the order in which their elements follow each other in the stream."""
        names = dict.fromkeys(info.name for info in self.infos or ())
        return tuple(names | dict.fromkeys(state.state_name for state in (*self.named, *self.states)))

    def _find_descriptions(self, header: bytes) -> dict[str, StateDescription]:
        if self.raw:
            return {}
        if self.infos is None:
            return {state.state_name: header for state in self.states}
        return {info.name: info for info in self.infos}


def name_elements(operators: Sequence[Operator]) -> Named:
    """Everything that the handles of operators name in each stream, raw operator state included."""
    found: dict[StreamStateHandle, list[OperatorStateMetaInfo]] = {}
    for operator in operators:
        for subtask in operator.metadata.subtasks:
            for handle in (subtask.managed_operator_state, subtask.raw_operator_state):
                if handle is not None:
                    found.setdefault(handle.delegate, []).extend(handle.states)
    return {stream: tuple(states) for stream, states in found.items()}


def find_delegates(state: OperatorState) -> dict[tuple[int, bool], StreamStateHandle]:
    """Stream of each handle of operator state, by index of the subtask and whether the state is raw."""
    return {
        (subtask.index, raw): handle.delegate
        for subtask in state.subtasks
        for raw, handle in ((False, subtask.managed_operator_state), (True, subtask.raw_operator_state))
        if handle is not None
    }


def list_stored_elements(
    operator: Operator, named: Named, delegates: Mapping[tuple[int, bool], StreamStateHandle]
) -> Iterator[StoredElements]:
    """Operator state of each subtask; only headers are read.

    Args:
        operator: the operator.
        named: by stream what handles name in it.
        delegates: by index of the subtask, and whether its state is raw, the stream that `named` knows, where that
            stream has another name now.

    Raises:
        StateError: a header is damaged.
    """
    reader = operator.snapshot.handles
    for subtask in operator.metadata.subtasks:
        for raw, handle in ((False, subtask.managed_operator_state), (True, subtask.raw_operator_state)):
            if handle is None or isinstance(handle.delegate, EmptySegmentFileStateHandle):
                continue
            infos: tuple[StateMetaInfo, ...] | None = ()
            if not raw:
                try:
                    unread = reader.open_operator(handle)
                    infos = () if unread is None else (*unread.header.lists, *unread.header.broadcasts)
                except UnsupportedError:
                    infos = None
            delegate = delegates.get((subtask.index, raw), handle.delegate)
            stream = reader.open_stream(handle.delegate)
            known = (*named.get(delegate, ()), *handle.states)
            yield StoredElements(subtask.index, stream, handle.states, known, infos, raw, reader.kept)


def measure_union(operator: Operator) -> int:
    """Bytes of the union state of an operator; of headers that cannot be read the streams count as a whole."""
    handles = [each.managed_operator_state for each in operator.metadata.subtasks]
    chosen = [
        each
        for each in handles
        if each is not None and any(state.mode is OperatorStateMode.UNION and state.offsets for state in each.states)
    ]
    if not chosen:
        return 0
    try:
        return sum(state.count().bytes for state in operator.operator_states if state.kind == StateKind.UNION)
    except UnsupportedError:
        streams = {each.delegate: operator.snapshot.handles.open_stream(each.delegate) for each in chosen}
        return sum(stream.size for stream in streams.values())


def digest_lists(operator: Operator) -> dict[str, RecordDigest]:
    """Digest the elements of each list and union state of an operator, independent of their order and subtasks.

    Raises:
        StateError: a stream cannot be read.
    """
    found: dict[str, RecordDigest] = {}
    stored = list_stored_elements(operator, name_elements([operator]), find_delegates(operator.metadata))
    # One request for each subtask, on a storage that may take long to answer.
    for lists, _, _ in do_together([each.digest for each in stored], operator.snapshot.location.directory):
        for name, digest in lists.items():
            found[name] = found.get(name, RecordDigest()) + digest
    return found


def digest_pairs(state: BroadcastState) -> set[RecordDigest]:
    """Digest the copies of a broadcast state, independent of the order of their entries.

    Copies whose entries have no known ends count as one entry each.
    """
    found = set()
    for subtask_state in state.subtask_states:
        file = subtask_state.read()
        data, start, end, _ = file.broadcast(subtask_state.info.name)
        try:
            data, starts, ends = find_entries(file, subtask_state.info, state.operator.snapshot.layout_context)
        except UnsupportedError:
            starts, ends = np.array([start], np.int64), np.array([end], np.int64)
        found.add(_digest_spans(data, starts, ends))
    return found


def _make_keys(state: OperatorStateMetaInfo, ranks: Mapping[str, int]) -> _Positions:
    """Offsets that also order the states whose elements begin at one offset: all but the last of these are empty."""
    return np.array(state.offsets, np.int64) * len(ranks) + ranks[state.state_name]


def _digest_spans(data: npt.NDArray[np.uint8], starts: _Positions, ends: _Positions) -> RecordDigest:
    none = np.zeros(len(starts), np.int64)
    total = digest_records(none.astype(np.int32), data.ctypes.data, none, none, starts, ends)
    return RecordDigest(*total.tolist()).without_key_groups


def _read_count(before: npt.NDArray[np.uint8], data: npt.NDArray[np.uint8]) -> int:
    """Number of entries of a broadcast state; `before` are the bytes before the first element of the stream."""
    if before.tobytes() == STREAM_ID:
        data = np.frombuffer(next((chunk.data for chunk in iter_chunks(data.tobytes())), b""), np.uint8)
    return int.from_bytes(data[:COUNT_SIZE].tobytes(), "big")
