"""Operator state at another parallelism: elements are reused or copied, never decoded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.binary.snappy_frames import STREAM_ID
from state_pipelines.errors import FormatError, UnknownSerializerError, UnsupportedError, Where, at
from state_pipelines.metadata.handles import (
    EmptySegmentFileStateHandle,
    OperatorStateHandle,
    OperatorStateMetaInfo,
    OperatorStateMode,
    OperatorStreamStateHandle,
)
from state_pipelines.metadata.streams import KeptStreams, StateStream, StreamRange, read_header_bytes
from state_pipelines.operations.rescale.redistribution import Share, redistribute
from state_pipelines.operatorstate import FIRST_READ, OperatorHeader, read_operator_header, write_operator_header
from state_pipelines.serializers.merged_subclasses import join_infos

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

    from state_pipelines.metadata.handles import StreamStateHandle
    from state_pipelines.operations.rescale.file_ranges import Assembler
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.snapshot.handle_readers import HandleReader

_GROWTH = 8


@dataclass(frozen=True)
class ElementFile:
    """An old stream of operator state, and all that handles name of it.

    Attributes:
        stream: its bytes.
        raw: it is raw operator state, which has no header.
        states: every handle's states.
        kept: streams of the snapshot that have been read.
    """

    stream: StateStream
    raw: bool
    states: tuple[OperatorStateMetaInfo, ...] = field(repr=False)
    kept: KeptStreams = field(default_factory=KeptStreams, compare=False, repr=False)

    @cached_property
    def first(self) -> int:
        """Offset of the first element; the size of the stream when there is none."""
        return min([self.stream.size, *(min(state.offsets) for state in self.states if state.offsets)])

    @cached_property
    def parsed(self) -> tuple[OperatorHeader, bytes]:
        """The header and its bytes, with the stream id of compressed elements after it.

        Raises:
            StateError: it cannot be read.
        """
        size = min(FIRST_READ, self.first)
        while True:
            data = self._read(size)
            reader = Reader(data, self.stream.name)
            try:
                header = read_operator_header(reader)
                end = reader.position + len(STREAM_ID) * header.compressed
                return header, data[:end] if end <= len(data) else self._read(end)
            except FormatError:
                # Cut off, unless that was all.
                if size == self.first:
                    raise
            size = min(size * _GROWTH, self.first)

    @cached_property
    def header(self) -> bytes:
        """The bytes in front of the elements."""
        if self.raw:
            return b""
        try:
            return self.parsed[1]
        except UnknownSerializerError:
            return self._read(self.first)

    def _read(self, end: int) -> bytes:
        small = self.stream.size <= FIRST_READ
        return self.kept.read(self.stream, 0, end) if small else read_header_bytes(self.stream, end)

    @cached_property
    def ranks(self) -> Mapping[str, int]:
        """Names of states in the order in which the file has their elements."""
        names = dict.fromkeys(state.state_name for state in self.states)
        if not self.raw:
            try:
                header = self.parsed[0]
                names = dict.fromkeys([info.name for info in (*header.lists, *header.broadcasts)]) | names
            except UnknownSerializerError:
                pass  # Nothing but elements without bytes depends on it.
        return {name: rank for rank, name in enumerate(names)}

    @cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        """Sorted positions of elements with the rank of their state; of several at one offset the last has bytes."""
        keys = [self._keys(state.state_name, state.offsets) for state in self.states]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *keys]))

    def _keys(self, name: str, offsets: Sequence[int]) -> npt.NDArray[np.int64]:
        return np.array(offsets, np.int64) * len(self.ranks) + self.ranks[name]

    def find_ends(self, share: Share) -> npt.NDArray[np.int64]:
        """i64[n] where elements end: at the next position of any state, or with the stream."""
        bounds = np.append(self._starts // len(self.ranks), self.stream.size)
        starts = np.array(share.offsets, np.int64)
        ends = bounds[np.searchsorted(self._starts, self._keys(share.state_name, share.offsets)) + 1]
        repeated = np.append(starts[1:] == starts[:-1], False)
        return np.where(repeated, starts, ends)


def assemble_operator(
    handles: Sequence[tuple[int, OperatorStateHandle]],
    parallelism: int,
    old_parallelism: int,
    reader: HandleReader,
    assembler: Assembler,
    *,
    raw: bool = False,
    narrow: bool = True,
    dropped: Set[str] = frozenset(),
    left_out: Set[tuple[int, str]] = frozenset(),
) -> list[OperatorStateHandle | None]:
    """Operator state of one operator for new subtasks, distributed as `redistribute` says.

    An old file is reused by the new subtask that has all of its list elements, and by those that have nothing but
    copies of broadcast state from it. Other shares are copied into a new file after a header, so that every list
    element of a file has a handle, and of one state in one file only one: Flink, when it redistributes state, puts the
    handles of a subtask together by stream and state, and would lose all but the last
    (`RoundRobinOperatorStateRepartitioner.repartitionSplitState`).

    Args:
        handles: (old subtask, its handle), ascending.
        parallelism: number of new subtasks.
        old_parallelism: number of old ones.
        reader: of the old snapshot.
        assembler: takes the new files.
        raw: the state is raw operator state.
        narrow: reuse files also where copies of broadcast state in them are left out; otherwise the rest is copied.
        dropped: names of states that go, also out of headers.
        left_out: (old subtask, name) of states of which another file has all.

    Returns:
        The handle of each new subtask, None where it has no state.

    Raises:
        UnsupportedError: old subtasks have states of one name with different serializers, or only some are compressed.
        StateError: a header cannot be read.
    """
    full = {index: each for index, each in handles if not isinstance(each.delegate, EmptySegmentFileStateHandle)}
    states: dict[StreamStateHandle, list[OperatorStateMetaInfo]] = {}
    for handle in full.values():
        states.setdefault(handle.delegate, []).extend(handle.states)
    opened = {
        each: ElementFile(reader.open_stream(each), raw, tuple(found), reader.kept) for each, found in states.items()
    }
    files = {index: opened[each.delegate] for index, each in full.items()}
    changed = {index for index, file in files.items() if not dropped.isdisjoint(file.ranks)} if dropped else set()
    left = [
        (
            index,
            replace(
                each,
                states=tuple(
                    state
                    for state in each.states
                    if state.state_name not in dropped and (index, state.state_name) not in left_out
                ),
            ),
        )
        for index, each in full.items()
    ]
    dealt = redistribute(left, parallelism, old_parallelism=old_parallelism)
    present = [[share for share in shares if share.offsets] for shares in dealt]
    found: list[OperatorStateHandle | None] = [
        None if not changed.isdisjoint(share.subtask for share in shares) else _keep(shares, full, files, narrow=narrow)
        for shares in present
    ]
    whole = {handle.delegate for handle, shares in zip(found, present, strict=True) if handle and _has_lists(shares)}
    copied: dict[tuple[Share, ...], OperatorStateHandle] = {}
    for index, shares in enumerate(present):
        kept = found[index]
        if not shares:
            continue
        if kept and (_has_lists(shares) or _can_share(files[shares[0].subtask], kept.delegate, whole)):
            continue
        if _has_lists(shares):
            found[index] = _assemble(shares, files, assembler, dropped)
            continue
        if tuple(shares) not in copied:
            copied[tuple(shares)] = _assemble(shares, files, assembler, dropped)
        found[index] = copied[tuple(shares)]
    if left and not any(found):
        # There is no element at all, but there are states and their serializers.
        index, handle = left[0]
        empty = [Share(index, state.state_name, state.mode, ()) for state in handle.states]
        if index not in changed:
            found[0] = full[index]
        elif empty:
            found[0] = _assemble(empty, files, assembler, dropped)
    return found


def _keep(
    shares: Sequence[Share],
    handles: Mapping[int, OperatorStateHandle],
    files: Mapping[int, ElementFile],
    *,
    narrow: bool,
) -> OperatorStateHandle | None:
    """A handle over the one old file of some shares; None when they are to be copied."""
    if not shares:
        return None
    first, file = handles[shares[0].subtask], files[shares[0].subtask]
    if any(handles[share.subtask].delegate != first.delegate for share in shares):
        return None
    states = _list_states(shares)
    if _has_lists(shares) and sorted(_select_lists(states)) != sorted(_select_lists(_name_states(file.states))):
        return None
    if sorted(states) == sorted(_name_states(first.states)):
        return first
    if not narrow or file.raw:
        return None
    return replace(first, states=tuple(OperatorStateMetaInfo(*state) for state in states))


def _can_share(file: ElementFile, delegate: StreamStateHandle, whole: Set[StreamStateHandle]) -> bool:
    """Whether copies of broadcast state may stay in a file: its list elements have a handle, or there are none."""
    return delegate in whole or not _select_lists(_name_states(file.states))


def _has_lists(shares: Sequence[Share]) -> bool:
    return any(share.mode is not OperatorStateMode.BROADCAST for share in shares)


def _select_lists(states: Sequence[_State]) -> list[_State]:
    return [state for state in states if state[1] is not OperatorStateMode.BROADCAST]


_State = tuple[str, OperatorStateMode, tuple[int, ...]]


def _name_states(states: Sequence[OperatorStateMetaInfo]) -> list[_State]:
    """States with elements; of several handles over one file, each once."""
    return list(dict.fromkeys((state.state_name, state.mode, state.offsets) for state in states if state.offsets))


def _list_states(shares: Sequence[Share]) -> list[_State]:
    """One entry per state: the offsets of its shares in order."""
    joined: dict[tuple[str, OperatorStateMode], tuple[int, ...]] = {}
    for share in shares:
        joined[share.state_name, share.mode] = joined.get((share.state_name, share.mode), ()) + share.offsets
    return [(name, mode, offsets) for (name, mode), offsets in joined.items()]


def _assemble(
    shares: Sequence[Share], files: Mapping[int, ElementFile], assembler: Assembler, dropped: Set[str]
) -> OperatorStateHandle:
    used = list({id(files[share.subtask]): files[share.subtask] for share in shares}.values())
    header, ranks = _join_headers(used, dropped)
    # In the order in which Flink writes states, so that of elements without bytes it is clear which they are.
    ordered = sorted(shares, key=lambda share: ranks[share.state_name])
    ranges = [StreamRange(StateStream("a header", len(header), data=header), 0, len(header))]
    placed = []
    position = len(header)
    for share in ordered:
        file = files[share.subtask]
        starts, ends = np.array(share.offsets, np.int64), file.find_ends(share)
        if not len(starts):
            placed.append(share)
            continue
        sizes = ends - starts
        new = position + np.cumsum(sizes) - sizes
        position += int(sizes.sum())
        placed.append(replace(share, offsets=tuple(new.tolist())))
        breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
        firsts, lasts = np.insert(breaks, 0, 0), np.append(breaks, len(starts)) - 1
        spans = zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True)
        ranges += [StreamRange(file.stream, start, end) for start, end in spans]
    states = tuple(OperatorStateMetaInfo(*state) for state in _list_states(placed))
    return OperatorStreamStateHandle(states, assembler.make_handle(ranges))


def _join_headers(files: Sequence[ElementFile], dropped: Set[str]) -> tuple[bytes, Mapping[str, int]]:
    """Header bytes that fit the elements of all files, without dropped states, and the order of states in them."""
    if len({file.header for file in files}) == 1 and all(dropped.isdisjoint(file.ranks) for file in files):
        names = dict.fromkeys(name for file in files for name in file.ranks)
        return files[0].header, {name: rank for rank, name in enumerate(names)}
    for file in (file for file in files if not file.raw):
        # What is joined is rewritten, so that the parts must be known to come out as they are.
        with at(file=file.stream.name):
            if _write_header(file.parsed[0]) != file.header:
                raise UnsupportedError(
                    "the header of the operator state cannot be rewritten, which dropping a state and joining "
                    "different states of subtasks take",
                    hint="Keep the states and the parallelism of this operator",
                )
    headers = [file.parsed[0] for file in files if not file.raw]
    if not headers:
        return b"", {
            name: rank for rank, name in enumerate(dict.fromkeys(name for file in files for name in file.ranks))
        }
    if len({header.compressed for header in headers}) > 1:
        raise UnsupportedError(
            "some of the old subtasks have compressed operator state, some have not",
            where=Where(file=files[0].stream.name),
            hint="Take a savepoint with one setting of execution.checkpointing.snapshot-compression",
        )
    joined = OperatorHeader(
        version=max(header.version for header in headers),
        compressed=headers[0].compressed,
        lists=_join_states([header.lists for header in headers], dropped),
        broadcasts=_join_states([header.broadcasts for header in headers], dropped),
    )
    names = dict.fromkeys(info.name for info in (*joined.lists, *joined.broadcasts))
    return _write_header(joined), {name: rank for rank, name in enumerate(names)}


def _write_header(header: OperatorHeader) -> bytes:
    writer = Writer()
    write_operator_header(writer, header)
    return writer.getvalue() + STREAM_ID * header.compressed


def _join_states(headers: Sequence[tuple[StateMetaInfo, ...]], dropped: Set[str]) -> tuple[StateMetaInfo, ...]:
    joined: dict[str, StateMetaInfo] = {}
    for info in (info for infos in headers for info in infos if info.name not in dropped):
        both = join_infos(joined.get(info.name, info), info)
        if both is None:
            raise UnsupportedError(
                "the old subtasks have this operator state with different serializers",
                where=Where(state=info.name),
                hint="Let every subtask write the state once with the new job and take a savepoint then, or keep the "
                "parallelism of this operator",
            )
        joined[info.name] = both
    return tuple(joined.values())
