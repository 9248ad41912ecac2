"""The proof of a rescaling: counts, bytes and digests of every state before and after.

The digests do not depend on the order of records nor on their key groups. Keyed state is read by the readers that all
other code uses, and not by the writers of the new files. Operator state is compared by its stored bytes, and raw keyed
state by the bytes of its sections.

* `StoredElements`: operator state as stored bytes: elements are found by offsets, and nothing is decoded. An element
  ends where the next one begins that any handle names in the same stream. A new handle that leaves out elements of an
  old file does not say where those begin; the old handles do, so that they are given too.
* `CountKeyed`, `CountOperatorState`: the tasks; `compare_sides`, `report_rescaling`: the result.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.data_views import Reader
from state_pipelines.binary.snappy_frames import STREAM_ID, iter_chunks
from state_pipelines.codecs.json import to_json
from state_pipelines.codecs.scalar import read_value
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import FormatError, StateError, UnsupportedError, Where, at
from state_pipelines.keyed.digests import RecordDigest, digest_records, digest_run, digest_sections
from state_pipelines.keyed.key_groups import assign_key_groups, compute_key_group_range
from state_pipelines.keyed.keys import TIMESTAMP
from state_pipelines.metadata.handles import EmptySegmentFileStateHandle, OperatorStateMetaInfo, OperatorStateMode
from state_pipelines.metadata.streams import KeptStreams
from state_pipelines.operations.local_processes import KERNEL_THREADS
from state_pipelines.operations.proofs import (
    AFTER,
    BEFORE,
    EXAMPLES,
    EXPECTED,
    DifferingRecord,
    ProofReport,
    RecordCounts,
    RecordScan,
    StateProof,
    decode_records,
    find_differing_records,
    make_state_check,
)
from state_pipelines.operations.rescale.snapshot_merge import count_threads, is_timer
from state_pipelines.operatorstate import COUNT_SIZE, find_entries
from state_pipelines.serializers.state_meta_info import StateMetaInfo, join_infos
from state_pipelines.serializers.tree import StateKind
from state_pipelines.snapshot.operator_state import RAW_KEYED_NAME, RawKeyedState
from state_pipelines.snapshot.snapshot_files import count_scans
from state_pipelines.storage.reading import do_together

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state_pipelines.keyed.hashing.value_hashes import KeyHasher
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.metadata import OperatorState
    from state_pipelines.metadata.handles import KeyGroupRange, StreamStateHandle
    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.operations.local_processes import Runner
    from state_pipelines.operations.proofs import ProofCheck
    from state_pipelines.operations.rescale.rescale_request import EditedSnapshot
    from state_pipelines.snapshot import Operator
    from state_pipelines.snapshot.handle_readers import RawKeyedSubtaskState
    from state_pipelines.snapshot.operator_state import OperatorBroadcastState

StateDescription = StateMetaInfo | bytes
"""Description of a state in a header. If the header cannot be parsed: its bytes, for every state of the file."""

Named = dict["StreamStateHandle", tuple[OperatorStateMetaInfo, ...]]
"""States and element offsets that all handles over a stream name, by stream."""

_Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class StoredElements:
    """Elements of operator state that one handle names; can be sent to other processes.

    Attributes:
        subtask: index of the subtask.
        stream: the stream of the handle.
        states: states of the handle with the offsets of their elements.
        named: states and offsets that all handles over the stream name. They tell where each element ends.
        infos: descriptions of the states in the header; None if the header cannot be parsed.
        raw: the handle is one of raw operator state, which has no header.
        kept: cache of streams that were read for their headers, so that no file is fetched twice.
    """

    subtask: int
    stream: StateStream
    states: tuple[OperatorStateMetaInfo, ...] = field(repr=False)
    named: tuple[OperatorStateMetaInfo, ...] = field(repr=False)
    infos: tuple[StateMetaInfo, ...] | None
    raw: bool = False
    kept: KeptStreams = field(default_factory=KeptStreams, compare=False, repr=False)

    def digest(self) -> tuple[dict[str, RecordDigest], dict[str, RecordDigest], dict[str, StateDescription]]:
        """Read the stream and digest its states.

        Returns:
            (digests of list and union states; digests of broadcast states: of the stored bytes as a whole, with the
            number of entries as their records; descriptions of the states). All are by name of the state.

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
        """Yield the stored bytes of each element of a list or union state; nothing for a broadcast state.

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
        """Read the stream and find where the elements of the handle start and end.

        Returns:
            (bytes of the stream; offset of its first element; for each state: the state, start offsets of its elements,
            end offsets of its elements).

        Raises:
            FormatError: an offset is outside the stream.
        """
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
            # If several elements of a state have one offset, all but the last are empty.
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
    """Collect the states and offsets that the handles of operators name in each stream, also raw operator state."""
    found: dict[StreamStateHandle, list[OperatorStateMetaInfo]] = {}
    for operator in operators:
        for subtask in operator.metadata.subtasks:
            for handle in (subtask.managed_operator_state, subtask.raw_operator_state):
                if handle is not None:
                    found.setdefault(handle.delegate, []).extend(handle.states)
    return {stream: tuple(states) for stream, states in found.items()}


def find_delegates(state: OperatorState) -> dict[tuple[int, bool], StreamStateHandle]:
    """Return the stream of each operator state handle, by (index of the subtask, whether it is raw operator state)."""
    return {
        (subtask.index, raw): handle.delegate
        for subtask in state.subtasks
        for raw, handle in ((False, subtask.managed_operator_state), (True, subtask.raw_operator_state))
        if handle is not None
    }


def list_stored_elements(
    operator: Operator, named: Named, delegates: Mapping[tuple[int, bool], StreamStateHandle]
) -> Iterator[StoredElements]:
    """Yield the managed and raw operator state of each subtask, to be read by tasks; only headers are read here.

    Args:
        operator: the operator.
        named: from `name_elements`; elements that the handles of `operator` name are added.
        delegates: from `find_delegates`: the old stream handles, by which `named` lists the elements of files that were
            copied under other names since. Handles that are not in it are looked up by their present stream handle.

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
    """Return the bytes of the union state of an operator.

    If a header cannot be parsed, return the bytes of all files that hold union state.
    """
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
    # Read the streams concurrently: each takes a request to the storage, which may take long to answer.
    for lists, _, _ in do_together([each.digest for each in stored], operator.snapshot.location.directory):
        for name, digest in lists.items():
            found[name] = found.get(name, RecordDigest()) + digest
    return found


def digest_pairs(state: OperatorBroadcastState) -> set[RecordDigest]:
    """Digest the copies of a broadcast state in all subtasks, independent of the order of their entries.

    Equal copies have one digest. If the ends of the entries in a copy are not known, the copy is digested as one entry.
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
    """Compute sort keys of the elements of a state: by offset, then by rank of the state.

    If elements of several states have one offset, all but the last of them are empty.
    """
    return np.array(state.offsets, np.int64) * len(ranks) + ranks[state.state_name]


def _digest_spans(data: npt.NDArray[np.uint8], starts: _Positions, ends: _Positions) -> RecordDigest:
    none = np.zeros(len(starts), np.int64)
    total = digest_records(none.astype(np.int32), data.ctypes.data, none, none, starts, ends)
    return RecordDigest(*total.tolist()).without_key_groups


def _read_count(before: npt.NDArray[np.uint8], data: npt.NDArray[np.uint8]) -> int:
    """Read the number of entries of a broadcast state.

    Args:
        before: the last bytes before the first element of the stream; if they are the stream id of Snappy, the state is
            compressed.
        data: stored bytes of the state.
    """
    if before.tobytes() == STREAM_ID:
        data = np.frombuffer(next((chunk.data for chunk in iter_chunks(data.tobytes())), b""), np.uint8)
    return int.from_bytes(data[:COUNT_SIZE].tobytes(), "big")


KEYED_STATE = "keyed state"
"""Name under which keyed state is reported whose states are compared together, by the bytes of their key groups."""

SPLIT_SIZE = 32 << 20
"""Bytes of a file that one `CountKeyed` task reads."""


@dataclass(frozen=True)
class ProofCounts:
    """Result of one task of the proof. All mappings are by name of the state.

    Attributes:
        digests: digests of the entries.
        misplaced: numbers of entries in key groups of other subtasks.
        misfiled: numbers of entries in another key group than the hash of their key gives.
        copies: for broadcast states: digest of the copy of each subtask, by index of the subtask.
        infos: descriptions of the states in the headers.
        sections: for heap native and changelog state: digest of the stored bytes of all key groups.
        unread: why the records of a heap native or changelog file cannot be found, so that only `sections` can be
            compared; else empty.
    """

    digests: Mapping[str, RecordDigest]
    misplaced: Mapping[str, int] = field(default_factory=dict)
    misfiled: Mapping[str, int] = field(default_factory=dict)
    copies: Mapping[str, Mapping[int, RecordDigest]] = field(default_factory=dict)
    infos: Mapping[str, frozenset[StateDescription]] = field(default_factory=dict)
    sections: RecordDigest | None = None
    unread: str = ""


@dataclass(frozen=True)
class CountKeyed:
    """Task that reads one file of keyed state, or a range of it, digests its states and checks their key groups.

    Attributes:
        operator: label of the operator, for errors.
        file: the file, or a range of it.
        key_groups: key groups of the subtask; records in others are counted as misplaced. None does not check that.
        hasher: computes hash codes of keys; records in another key group than these give are counted as misfiled. None
            does not check that.
        in_flight: see `Work`.
    """

    operator: str
    file: KeyedFile
    key_groups: KeyGroupRange | None = None
    hasher: KeyHasher | None = None
    in_flight: int = 1

    @property
    def threads(self) -> int:
        """Number of such tasks that can run in threads; see `Work`."""
        return count_threads(self.hasher, [self.file])

    def run(self) -> ProofCounts:
        """Read the file; digest its records, and check their key groups.

        Raises:
            UnsupportedError: records cannot be found, and the format has no bytes of key groups to compare instead.
        """
        sections = self.file.digest_stored_bytes(self.file.key_groups)
        try:
            return replace(self._read(), sections=sections)
        except UnsupportedError as error:
            if sections is None:
                raise
            return ProofCounts({}, self._count_misplaced(), sections=sections, unread=str(error))

    def _count_misplaced(self) -> dict[str, int]:
        if self.key_groups is None:
            return {}
        if sections := self.file.stored_sections():
            return {KEYED_STATE: sum(each.key_group not in self.key_groups for each in sections)}
        return {KEYED_STATE: self.file.key_groups.number - self.file.key_groups.intersect(self.key_groups).number}

    def _read(self) -> ProofCounts:
        digests: dict[str, RecordDigest] = {}
        misplaced: dict[str, int] = {}
        misfiled: dict[str, int] = {}
        with at(operator=self.operator):
            states = self.file.header.states
            for state_id, records in self.file.scan(range(len(states))):
                info = states[state_id]
                digest = digest_run(records, is_map=info.state_type == StateKind.MAP).without_key_groups
                digests[info.name] = digests.get(info.name, RecordDigest()) + digest
                if self.key_groups is not None:
                    inside = (records.key_groups >= self.key_groups.start) & (records.key_groups <= self.key_groups.end)
                    misplaced[info.name] = misplaced.get(info.name, 0) + int((~inside).sum())
                if self.hasher is not None:
                    codes = self.hasher.hash_keys(records, skip=TIMESTAMP if is_timer(info) else 0)
                    wrong = assign_key_groups(codes, self.file.context.max_parallelism) != records.key_groups
                    misfiled[info.name] = misfiled.get(info.name, 0) + int(wrong.sum())
            infos = {info.name: frozenset([info]) for info in states}
        return ProofCounts(digests, misplaced, misfiled, infos=infos)


@dataclass(frozen=True)
class CountOperatorState:
    """Task that digests the stored bytes of operator state and raw state of one operator.

    Attributes:
        operator: label of the operator.
        elements: the operator state of its subtasks, managed and raw.
        sections: the raw keyed state of its subtasks that is not timers.
        in_flight: see `Work`.
    """

    operator: str
    elements: tuple[StoredElements, ...]
    sections: tuple[RawKeyedSubtaskState, ...] = ()
    in_flight: int = 1
    # Run in threads: this state is small compared with keyed state, so that processes are not worth their start.
    threads: ClassVar[int] = KERNEL_THREADS

    def run(self) -> ProofCounts:
        """Read and digest the states.

        Raises:
            StateError: a stream cannot be read.
        """
        digests: dict[str, RecordDigest] = {}
        copies: dict[str, dict[int, RecordDigest]] = {}
        infos: dict[str, set[StateDescription]] = {}
        with at(operator=self.operator):
            for each in self.elements:
                lists, broadcasts, found = each.digest()
                for name, digest in lists.items():
                    digests[name] = digests.get(name, RecordDigest()) + digest
                for name, digest in broadcasts.items():
                    copies.setdefault(name, {})[each.subtask] = digest
                for name, description in found.items():
                    infos.setdefault(name, set()).add(description)
            if self.sections:
                digests[RAW_KEYED_NAME] = sum(
                    (digest_sections(each.stream, each.sections) for each in self.sections), RecordDigest()
                )
        return ProofCounts(digests, copies=copies, infos={name: frozenset(each) for name, each in infos.items()})


def compare_sides(sides: Sequence[ProofSide], run: Runner) -> tuple[StateProof, ...]:
    """Count and digest the entries of every state in the old and in the new snapshot, and compare.

    Args:
        sides: one for each operator of the new snapshot.
        run: runs tasks and returns their results in order.

    Returns:
        One comparison for each state; it may show differences.

    Raises:
        StateError: old or new state cannot be read.
    """
    tasks: list[CountKeyed | CountOperatorState] = []
    owners: list[tuple[int, bool]] = []
    for number, side in enumerate(sides):
        for is_after, operators in ((False, side.before), (True, (side.after,))):
            for operator in operators:
                for task in _plan_counts(operator, side, is_after=is_after):
                    tasks.append(task)
                    owners.append((number, is_after))
    counted = run(tasks, "the proof cannot read the state")
    rows: list[StateProof] = []
    for number, side in enumerate(sides):
        mine = [
            (is_after, task, result)
            for (owner, is_after), task, result in zip(owners, tasks, counted, strict=True)
            if owner == number
        ]
        if side.found is not None:
            mine += _take_found(side.before[0], side.found)
        rows += _compare(side, mine)
    return tuple(rows)


@dataclass(frozen=True)
class ProofSide:
    """An operator before and after a rescaling.

    Attributes:
        before: the operator in the main snapshot and in the merged ones.
        after: the operator in the new snapshot, read back.
        planned: planned metadata of the new operator, in which files that are copied still have their old names.
        dropped: names of states that the request removes.
        removed: digests, by state, of other entries that had to be left out: of keys that the request removes, and
            duplicates in merged snapshots.
        hasher: computes hash codes, to check the new key groups; None if that is not needed.
        moved: keyed state was written record by record, not copied as bytes.
        found: digests of all keyed state of the old operator, computed while it was moved; None to read it again.
    """

    before: tuple[Operator, ...]
    after: Operator
    planned: OperatorState
    dropped: frozenset[str] = frozenset()
    removed: Mapping[str, RecordDigest] = field(default_factory=dict)
    hasher: KeyHasher | None = None
    moved: bool = False
    found: Mapping[str, RecordDigest] | None = None


def check_sources(edited: EditedSnapshot) -> None:
    """Open all old state that the proof will read, so that errors are found before anything is written.

    Raises:
        StateError: a file cannot be opened.
    """
    for each in edited.operators:
        for operator in (each.operator, *each.merged):
            with at(operator=operator.label):
                _ = operator.files.open_stored(), operator.raw_states
                for _ in list_stored_elements(operator, {}, {}):
                    pass


def count_keyed(
    operator: Operator, file: KeyedFile, hasher: KeyHasher | None = None, key_groups: KeyGroupRange | None = None
) -> Iterator[CountKeyed]:
    """Yield the tasks that count the records of one file of keyed state; arguments as for `CountKeyed`."""
    for split in file.split(SPLIT_SIZE):
        yield CountKeyed(operator.label, split, key_groups, hasher, count_scans(operator))


def _plan_counts(operator: Operator, side: ProofSide, *, is_after: bool) -> Iterator[CountKeyed | CountOperatorState]:
    if is_after:
        for subtask, file in operator.keyed_files:
            wanted = compute_key_group_range(subtask, operator.parallelism, operator.max_parallelism)
            yield from count_keyed(operator, file, side.hasher, wanted)
    elif side.found is None:
        for file in operator.files.open_stored():
            yield from count_keyed(operator, file)
    delegates = find_delegates(side.planned) if is_after else {}
    elements = tuple(list_stored_elements(operator, name_elements(side.before), delegates))
    raw = [state for state in operator.raw_states if isinstance(state, RawKeyedState)]
    sections = tuple(subtask_state for state in raw for subtask_state in state.subtask_states)
    if elements or sections:
        yield CountOperatorState(operator.label, elements, sections, count_scans(operator))


def _take_found(
    operator: Operator, found: Mapping[str, RecordDigest]
) -> Iterator[tuple[bool, CountKeyed | CountOperatorState, ProofCounts]]:
    """Yield results for old keyed state from the digests in `found`, as if a task had read it.

    Yields:
        (False, since it is the old state; a task for the result; the result); nothing without keyed state.
    """
    files = operator.files.open_stored()
    digests = {name: digest.without_key_groups for name, digest in found.items()}
    for file in files[:1]:
        infos = {info for each in files for info in each.header.states}
        named = {name: frozenset[StateDescription](info for info in infos if info.name == name) for name in digests}
        yield False, CountKeyed(operator.label, file), ProofCounts(digests, infos=named)


def _compare(
    side: ProofSide, counted: Iterable[tuple[bool, CountKeyed | CountOperatorState, ProofCounts]]
) -> Iterator[StateProof]:
    results = list(_by_sections(side, list(counted)))
    keyed_names = {name for _, task, result in results if isinstance(task, CountKeyed) for name in result.digests}
    names = dict.fromkeys(name for *_, result in results for name in result.digests)
    label = side.after.label
    old, new = _find_modes(side.before), _find_modes((side.after,))
    remade = {name for name in new if not new[name] <= old.get(name, set())}
    for name in names:
        before, after = (
            [result for is_after, _, result in results if is_after is wanted and name in result.digests]
            for wanted in (False, True)
        )
        expected = sum((each.digests[name] for each in before), RecordDigest())
        if name in side.dropped:
            expected = RecordDigest()
        elif name in side.removed:
            expected -= side.removed[name].without_key_groups
        yield StateProof(
            label,
            name,
            name in keyed_names,
            expected,
            sum((each.digests[name] for each in after), RecordDigest()),
            sum(each.misplaced.get(name, 0) for each in after),
            None if side.hasher is None else sum(each.misfiled.get(name, 0) for each in after),
            _is_reformed(name, before, after) or (name not in keyed_names and name in remade),
        )
    for name in dict.fromkeys(name for *_, result in results for name in result.copies):
        before, after = (
            [result for is_after, _, result in results if is_after is wanted and name in result.copies]
            for wanted in (False, True)
        )
        kinds, copies = (
            {digest for each in found for digest in each.copies[name].values()} for found in (before, after)
        )
        if name in side.dropped:
            expected = RecordDigest()
        else:
            # Old copies of a broadcast state may differ, in the order of their entries, and any of them may be reused.
            # So the new copies are as expected if each of them equals an old one.
            expected = sum(copies if copies and copies <= kinds else kinds, RecordDigest())
        # A handle that names the state without an offset has no copy of it. The digest of such a subtask is empty.
        copied = (pair for each in after for pair in each.copies[name].items())
        present = {subtask for subtask, digest in copied if digest != RecordDigest()}
        missing = side.after.parallelism - len(present) if expected.records else 0
        yield StateProof(
            label,
            name,
            False,
            expected,
            sum(copies, RecordDigest()),
            missing,
            reformed=_is_reformed(name, before, after) or name in remade,
        )


def _find_modes(operators: Iterable[Operator]) -> dict[str, set[OperatorStateMode]]:
    """Collect the distribution modes that the handles of operators give each operator state, by name."""
    found: dict[str, set[OperatorStateMode]] = {}
    for subtask in (each for operator in operators for each in operator.metadata.subtasks):
        for handle in (subtask.managed_operator_state, subtask.raw_operator_state):
            for state in () if handle is None else handle.states:
                found.setdefault(state.state_name, set()).add(state.mode)
    return found


def _by_sections(
    side: ProofSide, results: list[tuple[bool, CountKeyed | CountOperatorState, ProofCounts]]
) -> list[tuple[bool, CountKeyed | CountOperatorState, ProofCounts]]:
    """If records cannot be found in some files, replace the results of keyed state by those for whole key groups.

    The results of heap native and changelog files then have one state, `KEYED_STATE`, with the digest of the stored
    bytes of each key group, including its number. If key groups were copied as bytes, equal digests prove as much as a
    comparison of records.

    Args:
        side: the operator.
        results: (whether it is the new state, the task, its result).

    Raises:
        UnsupportedError: records cannot be found, and were moved one by one, so that bytes cannot be compared.
    """
    unread = next((result.unread for *_, result in results if result.unread), "")
    if not unread:
        return results
    if side.moved:
        raise UnsupportedError(f"the proof cannot find the records: {unread}", where=Where(operator=side.after.label))
    infos = {KEYED_STATE: frozenset[StateDescription]()}
    return [
        (
            is_after,
            task,
            result
            if result.sections is None
            else ProofCounts(
                {KEYED_STATE: result.sections}, {KEYED_STATE: sum(result.misplaced.values())}, infos=infos
            ),
        )
        for is_after, task, result in results
    ]


def _is_reformed(name: str, before: Iterable[ProofCounts], after: Iterable[ProofCounts]) -> bool:
    """Return whether the new headers describe a state differently from the old ones.

    It is no difference if old headers had different lists of POJO subclasses, which a new header joins.
    """
    old, new = ({info for each in found for info in each.infos.get(name, ())} for found in (before, after))
    if new <= old:
        return False
    infos = sorted((info for info in new if isinstance(info, StateMetaInfo)), key=repr)
    if len(infos) < len(new):
        # A new header cannot be parsed. Such headers are only copied, never joined, so every new description should
        # equal an old one; but at least one does not (see above).
        return True
    whole: StateMetaInfo | None = infos[0]
    for info in infos:
        whole = None if whole is None else join_infos(whole, info)
    return whole is None or any(isinstance(info, bytes) or join_infos(whole, info) != whole for info in old)


ENTRIES = "entries_kept"
CONTENTS = "contents_kept"
KEY_GROUPS = "key_groups_in_range"
HASHES = "key_groups_match_key_hash"

DESCRIPTIONS = {
    ENTRIES: "every state has as many entries as before, less those that the request drops",
    CONTENTS: "every entry has the same bytes as before",
    KEY_GROUPS: "every entry is in a key group of its subtask",
    HASHES: "every key is in the key group that its hash gives",
}
"""Description of each check of a rescaling's proof."""

_MOST_ELEMENTS = 64 << 20
"""Largest size of operator state, in bytes, whose elements are compared one by one."""


def report_rescaling(
    states: Sequence[StateProof],
    sides: Sequence[ProofSide],
    run: Runner,
    seconds: float = 0.0,
) -> ProofReport:
    """Make the report of a proof. If states differ, read old and new state again for examples of different entries.

    Args:
        states: results of `compare_sides`.
        sides: arguments of `compare_sides`.
        run: runs tasks and returns their results in order.
        seconds: wall time of the comparison.

    Raises:
        StateError: old or new state cannot be read.
    """
    by_label = {side.after.label: side for side in sides}
    total = sum(row.after.records for row in states)
    changed = [row for row in states if row.before != row.after or row.reformed]
    counts = RecordCounts(total)
    rows: list[Sequence[DifferingRecord]] = []
    for row in changed:
        found, examples = _find_differences(row, by_label[row.operator], run)
        counts += RecordCounts(0, found.differing, found.missing, found.unexpected, found.complete)
        rows.append(examples)
    fewer = [row for row in states if row.before.records != row.after.records]

    def check(
        name: str, failed: Sequence[StateProof], counts: RecordCounts, rows: Sequence[Sequence[DifferingRecord]]
    ) -> ProofCheck:
        return make_state_check(name, DESCRIPTIONS[name], states, failed, counts, rows)

    checks = [
        check(ENTRIES, fewer, counts, [[each for each in few if each.absent or each.note] for few in rows]),
        check(CONTENTS, changed, counts, rows),
    ]
    for name, chosen, asked in (
        (KEY_GROUPS, [row for row in states if row.misplaced], states),
        (HASHES, [row for row in states if row.misfiled], [row for row in states if row.misfiled is not None]),
    ):
        if not asked:
            # Leave out a check that judged no state: hashes of keys are checked only if they were needed for the move.
            continue
        wrong = sum((row.misplaced if name == KEY_GROUPS else row.misfiled) or 0 for row in chosen)
        wrong_rows = [_find_misplaced(row, by_label[row.operator], run, name) for row in chosen]
        checks.append(check(name, chosen, RecordCounts(total, differing=wrong), wrong_rows))
    operators = ", ".join(dict.fromkeys(row.operator for row in states))
    size = sum(row.after.bytes for row in states)
    return ProofReport(operators, f"{len(states)} states", total, 0, tuple(checks), seconds, size)


def _find_differences(row: StateProof, side: ProofSide, run: Runner) -> tuple[RecordCounts, list[DifferingRecord]]:
    if row.keyed and row.state != KEYED_STATE and row.state not in side.dropped:
        before = [file for each in side.before for file in each.files.open_stored()]
        after = [file for _, file in side.after.keyed_files]
        # Missing entries may be those that the request removes: their number is known, but not their keys.
        removed = side.removed.get(row.state)
        may_lack = removed is not None and removed.records > 0
        counts, rows = find_differing_records(row.state, before, after, run, may_lack=may_lack)
        if counts.failed:
            return counts, list(rows)
    elif not row.keyed and row.before.bytes + row.after.bytes <= _MOST_ELEMENTS:
        counts, rows = _compare_elements(row.state, side)
        if counts.failed:
            return counts, list(rows)
    fewer, more = max(0, row.before.records - row.after.records), max(0, row.after.records - row.before.records)
    values = {BEFORE: _show(row.before), AFTER: _show(row.after), EXPECTED: _show(row.before)}
    summary = DifferingRecord(row.state, {"entries": "all together"}, values, note=f"operator {row.operator}")
    return RecordCounts(row.after.records, int(not fewer and not more), fewer, more, complete=False), [summary]


def _show(digest: Any) -> str:
    return f"{digest.records:,} entries of {digest.bytes:,} bytes"


def _compare_elements(state: str, side: ProofSide) -> tuple[RecordCounts, tuple[DifferingRecord, ...]]:
    """Compare the elements of a list state, independent of their order.

    Returns:
        (numbers of elements that the new state lacks, and that it has in addition; examples of them).
    """
    named = name_elements(side.before)
    found: list[Counter[bytes]] = []
    infos: list[StateMetaInfo] = []
    for operators in (side.before, (side.after,)):
        elements: Counter[bytes] = Counter()
        for operator in operators:
            delegates = find_delegates(side.planned) if operator is side.after else {}
            for stored in list_stored_elements(operator, named, delegates):
                infos += [info for info in stored.infos or () if info.name == state]
                elements.update(stored.take(state))
        found.append(elements)
    missing, unexpected = found[0] - found[1], found[1] - found[0]
    counts = RecordCounts(found[1].total(), 0, missing.total(), unexpected.total())

    def show(data: bytes) -> Any:
        layouts = side.after.snapshot.layout_context
        try:
            return to_json(infos[0].element, read_value(derive_layout(infos[0].element, layouts), Reader(data)))
        except (StateError, IndexError):
            return {"@bytes": data.hex()}

    rows = [
        DifferingRecord(state, {"element": index}, {BEFORE: show(data), EXPECTED: show(data)}, (AFTER,))
        for index, data in enumerate(missing)
    ][:EXAMPLES]
    rows += [
        DifferingRecord(state, {"element": index}, {AFTER: show(data)}, (BEFORE, EXPECTED))
        for index, data in enumerate(unexpected)
    ][: EXAMPLES - len(rows)]
    return counts, tuple(rows)


def _find_misplaced(row: StateProof, side: ProofSide, run: Runner, check: str) -> list[DifferingRecord]:
    """Find examples of misplaced or misfiled entries of a state (see `ProofCounts`).

    Args:
        row: comparison of the state.
        side: its operator.
        run: runs tasks.
        check: `HASHES` for misfiled entries, `KEY_GROUPS` for misplaced ones.
    """
    after = side.after
    if not row.keyed:
        return [
            DifferingRecord(row.state, {"subtasks": row.misplaced}, {EXPECTED: "a copy in every subtask"}, (AFTER,))
        ]
    tasks = [
        _FindMisplaced(
            file,
            row.state,
            subtask,
            compute_key_group_range(subtask, after.parallelism, after.max_parallelism),
            side.hasher if check == HASHES else None,
        )
        for subtask, file in after.keyed_files
    ]
    found = run(tasks, "the differing records cannot be read")
    return [each for rows in found for each in rows][:EXAMPLES]


@dataclass(frozen=True)
class _FindMisplaced:
    """Task that finds entries of one state in one file that are in a wrong key group.

    Without a hasher, these are entries outside of `key_groups`; with a hasher, entries in another key group than the
    hash of their key gives.
    """

    file: KeyedFile
    state: str
    subtask: int
    key_groups: KeyGroupRange
    hasher: KeyHasher | None

    @property
    def threads(self) -> int:
        """Number of such tasks that can run in threads; see `Work`."""
        return count_threads(self.hasher, [self.file])

    def run(self) -> list[DifferingRecord]:
        """Read the file until `EXAMPLES` entries are found."""
        found: list[DifferingRecord] = []
        scan = RecordScan(self.file, self.state)
        for state_id, info in enumerate(self.file.header.states):
            if info.name != self.state:
                continue
            for _, records in self.file.scan([state_id]):
                groups = records.key_groups
                if self.hasher is None:
                    rows = np.flatnonzero((groups < self.key_groups.start) | (groups > self.key_groups.end))
                    wanted = [f"{self.key_groups.start} to {self.key_groups.end}"] * len(rows)
                else:
                    codes = self.hasher.hash_keys(records, skip=TIMESTAMP if is_timer(info) else 0)
                    hashed = assign_key_groups(codes, self.file.context.max_parallelism)
                    rows = np.flatnonzero(hashed != groups)
                    wanted = [f"{group}, by the hash of the key" for group in hashed[rows].tolist()]
                rows = rows[: EXAMPLES - len(found)]
                for number, (key, _) in enumerate(decode_records(scan, state_id, records.select(rows))):
                    group = f"key group {groups[rows[number]]} of subtask {self.subtask}"
                    values = {AFTER: group, EXPECTED: f"key group {wanted[number]}"}
                    found.append(DifferingRecord(self.state, key, values))
                if len(found) >= EXAMPLES:
                    return found
        return found
