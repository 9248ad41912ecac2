"""States and properties of two snapshots, compared: digests first, then only the key groups that differ.

* `Hashes`, `join_hashes`: records as hashes: which of them only one of two snapshots has, and which have another value.
  A record is two numbers, the hash of its key and that of its key and value. So two snapshots of any format are joined
  by sorting numbers, and no more than these is held.
* `DigestFile`, `CompareGroups`, `ShowRecords`: tasks on records of keyed state: digests per key group; then hashes of
  the key groups that differ, which are read once more; then the examples, in a last read. Processes or threads share
  the tasks; none holds more than a window of records, or the hashes of `BUDGET` records of either snapshot.
* `CompareUnkeyed`: operator state, raw state and data in flight. Elements of list state have no keys, so that the
  number of equal elements over all subtasks counts. Pairs of broadcast state are compared by their keys, in one copy,
  since every subtask has the same one. Raw keyed state is compared by key group, network buffers by channel and index.
* `compare_snapshots`, `compare_operators`, `compare_states`: properties besides records. Properties that say where,
  when and in which format a snapshot was taken are shown and do not count: path, kind, checkpoint id, fingerprint,
  sizes, formats of keyed state, names that only some versions of Flink store.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from state_pipelines.binary.compiled import njit
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import explain, plan_columns
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import StateError, StorageError, UnsupportedError, at
from state_pipelines.keyed.digests import (
    MODULUS,
    RecordDigest,
    add_key_group,
    digest_key_groups,
    hash_bytes,
    list_spans,
)
from state_pipelines.keyed.state_table import KeyedTable, TableOptions
from state_pipelines.metadata.handles import MAX_PARALLELISM, KeyGroupRange
from state_pipelines.operations.diff.diff_report import ComparedProperty, ContentsDiff, Example, ExampleKind
from state_pipelines.operations.inspect import find_keyed_formats
from state_pipelines.operations.local_processes import KERNEL_THREADS, count_kernel_threads
from state_pipelines.operations.state_rows import to_rows
from state_pipelines.serializers.state_meta_info import join_infos, join_serializers
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import StateKind, Ttl, TtlAware
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.snapshot.operator_state import BytesState, NonKeyedState, OperatorBroadcastState, OperatorListState
from state_pipelines.snapshot.snapshot import is_unreadable
from state_pipelines.snapshot.snapshot_files import count_scans

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.keyed.record_layout import KeyedLayout, KeyedRecords
    from state_pipelines.operations.state_rows import Row
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Operator, Snapshot, State
    from state_pipelines.snapshot.keyed_state import KeyedSubtaskState

StoredInfo = tuple["Serializer | None", "StateMetaInfo"]
"""(key serializer or None, meta info) of a state, as one subtask stores them."""


def find_obstacle(one: State, other: State) -> str:
    """Return the reason why records of two states cannot be compared as bytes; empty if they can.

    They can be compared if keys and values have the same layouts, even if the kinds differ, or if the serializers are
    the same. The registered subclasses of POJO serializers may differ, because records name their class themselves.
    """
    if type(one) is not type(other):
        return "not compared: the kind differs"
    if not isinstance(one, KeyedState | OperatorListState | OperatorBroadcastState):
        return ""
    layouts = _find_layouts(one), _find_layouts(other)
    if None not in layouts and layouts[0] == layouts[1]:
        return ""
    kryo = [state.operator.snapshot.kryo_version for state in (one, other)]
    stored = _list_stored_infos(one), _list_stored_infos(other)
    if kryo[0] == kryo[1] and (stored[0] == stored[1] or _can_be_joined((*stored[0], *stored[1]))):
        return ""
    what = _find_difference(one, other)
    if what:
        return f"not compared: the {what} differs"
    several = [name for name, found in (("one", stored[0]), ("other", stored[1])) if not _can_be_joined(found)]
    if several:
        return f"not compared: subtasks of the {several[0]} hold the state with different serializers"
    if kryo[0] != kryo[1]:
        return f"not compared: the serializer differs: Kryo {kryo[0]} wrote the one, Kryo {kryo[1]} the other"
    return "not compared: the serializers differ, although they are the same as readable text"


def _find_layouts(state: State) -> tuple[lay.Layout, ...] | None:
    """Return the layouts of the keys and values of a state; None if they are not known, or differ between subtasks."""
    try:
        match state:
            case KeyedState():
                return state.layout.key, state.layout.value
            case NonKeyedState():
                context = state.operator.snapshot.layout_context
                serializers = {tuple(each for _, each in info.serializers) for info in state.infos}
                found = {tuple(derive_layout(each, context) for each in several) for several in serializers}
                return found.pop() if len(found) == 1 else None
    except UnsupportedError:
        pass
    return None


def _list_stored_infos(state: State) -> frozenset[StoredInfo]:
    if isinstance(state, KeyedState):
        # Most subtasks share one header object, which is compared only once.
        headers = {(id(each.file.header), each.state_id): each for each in state.subtask_states}
        return frozenset(
            (each.file.header.key_serializer, each.file.header.states[each.state_id]) for each in headers.values()
        )
    assert isinstance(state, NonKeyedState)
    return frozenset((None, info) for info in state.infos)


def _can_be_joined(stored: Iterable[StoredInfo]) -> bool:
    (key, info), *others = sorted(stored, key=repr)
    for other_key, other_info in others:
        joined = join_infos(info, other_info)
        if joined is None:
            return False
        info = joined
        if key is not None and other_key is not None:
            key = join_serializers(key, other_key)
            if key is None:
                return False
    return True


def _find_difference(one: State, other: State) -> str:
    """Name the first serializer that differs between two states in its readable text; empty if none differs."""
    pairs: list[tuple[str, Serializer, Serializer]] = []
    if isinstance(one, KeyedState) and isinstance(other, KeyedState):
        pairs.append(("key serializer", one.key_serializer, other.key_serializer))
    pairs += (
        (name.lower().replace("_", " "), serializer, dict(other.info.serializers)[name])
        for name, serializer in one.info.serializers
        if name in dict(other.info.serializers)
    )
    return next((name for name, old, new in pairs if describe(old) != describe(new)), "")


SUMS = 4
"""Number of columns of digests in arrays: records, bytes, digest and content, as in `RecordDigest`."""


@dataclass(frozen=True)
class Hashes:
    """Hashes of some records.

    Attributes:
        groups: i32[n], key group of each record; zeros for state without key groups.
        keys: u64[n], hash of key group and key.
        records: u64[n], hash of key group, key and value.
    """

    groups: npt.NDArray[np.int32]
    keys: npt.NDArray[np.uint64]
    records: npt.NDArray[np.uint64]

    def select(self, rows: npt.NDArray[np.bool_]) -> Hashes:
        """Return the hashes of some of the records."""
        return Hashes(self.groups[rows], self.keys[rows], self.records[rows])


@dataclass(frozen=True)
class Candidate:
    """A key whose records differ between two snapshots, `one` and `other`; it may become an example in the report.

    Attributes:
        kind: kind of the difference.
        group: key group.
        key: hash of the key.
        one: hash of a record of the key that only `one` has; None if there is none.
        other: hash of a record of the key that only `other` has; None if there is none.
    """

    kind: ExampleKind
    group: int
    key: int
    one: int | None
    other: int | None


@dataclass(frozen=True)
class RecordDifferences:
    """Numbers of records in which two snapshots, `one` and `other`, differ.

    A record that only one snapshot has is paired with such a record of the same key in the other snapshot.

    Attributes:
        only_in_one: number of records of `one` without a counterpart.
        only_in_other: number of records of `other` without a counterpart.
        changed: number of pairs: the key is the same, and the value differs.
        candidates: some keys for each kind of difference, ascending by key group.
    """

    only_in_one: int = 0
    only_in_other: int = 0
    changed: int = 0
    candidates: tuple[Candidate, ...] = ()


def concat_hashes(batches: Iterable[Hashes]) -> Hashes:
    """Concatenate the hashes of several batches."""
    held = list(batches)
    if not held:
        return Hashes(np.zeros(0, np.int32), np.zeros(0, np.uint64), np.zeros(0, np.uint64))
    return Hashes(
        np.concatenate([each.groups for each in held]),
        np.concatenate([each.keys for each in held]),
        np.concatenate([each.records for each in held]),
    )


def sum_differences(found: Sequence[RecordDifferences], limit: int) -> RecordDifferences:
    """Add up the differences from several tasks; keep at most `limit` candidates, taken from each kind in turn."""
    sorts = [
        [candidate for each in found for candidate in each.candidates if candidate.kind is kind] for kind in ExampleKind
    ]
    chosen: list[Candidate] = []
    while len(chosen) < limit and any(sorts):
        chosen += [each.pop(0) for each in sorts if each]
    return RecordDifferences(
        sum(each.only_in_one for each in found),
        sum(each.only_in_other for each in found),
        sum(each.changed for each in found),
        tuple(chosen[:limit]),
    )


def join_hashes(one: Hashes, other: Hashes, limit: int) -> RecordDifferences:
    """Compare the records of two snapshots as multisets: a key may have several records, which may also be equal.

    Args:
        one: hashes of the records of one snapshot.
        other: hashes of the records of the other snapshot.
        limit: largest number of candidates (for examples) of each kind of difference.
    """
    keys = np.concatenate([one.keys, other.keys])
    if not len(keys):
        return RecordDifferences()
    records = np.concatenate([one.records, other.records])
    order = np.lexsort((records, keys))
    keys, records = keys[order], records[order]
    groups = np.concatenate([one.groups, other.groups])[order]
    signs = np.where(order < len(one.keys), 1, -1)
    # For each distinct record, `net` is its number in `one` minus its number in `other`.
    starts = np.flatnonzero(np.concatenate([[True], (keys[1:] != keys[:-1]) | (records[1:] != records[:-1])]))
    net = np.add.reduceat(signs, starts)
    left = np.flatnonzero(net)
    if not len(left):
        return RecordDifferences()
    keys, records, groups, net = keys[starts][left], records[starts][left], groups[starts][left], net[left]
    firsts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    ones = np.add.reduceat(np.maximum(net, 0), firsts)
    others = np.add.reduceat(np.maximum(-net, 0), firsts)
    changed = np.minimum(ones, others)
    # For each key, the row of its first record that only `one` (or only `other`) has.
    rows = np.arange(len(net))
    none = len(net)
    row_one = np.minimum.reduceat(np.where(net > 0, rows, none), firsts)
    row_other = np.minimum.reduceat(np.where(net < 0, rows, none), firsts)
    candidates: list[Candidate] = []
    for kind, which in (
        (ExampleKind.CHANGED, changed > 0),
        (ExampleKind.ONE, (ones > others) & (others == 0)),
        (ExampleKind.OTHER, (others > ones) & (ones == 0)),
    ):
        found = np.flatnonzero(which)
        found = found[np.argsort(groups[firsts[found]], kind="stable")[:limit]]
        candidates += (
            Candidate(
                kind,
                int(groups[firsts[row]]),
                int(keys[firsts[row]]),
                int(records[row_one[row]]) if ones[row] else None,
                int(records[row_other[row]]) if others[row] else None,
            )
            for row in found
        )
    total = int(changed.sum())
    return RecordDifferences(int(ones.sum()) - total, int(others.sum()) - total, total, tuple(candidates))


@njit(cache=True, nogil=True)
def hash_records(key_groups, base, key_starts, key_ends, value_starts, value_ends, keys, records):  # type: ignore[no-untyped-def]
    """Compute hashes of records, and write them into the arrays `keys` and `records`.

    Args:
        key_groups: i32[n].
        base: address from which starts and ends count, in bytes.
        key_starts: i64[n], starts of the keys.
        key_ends: i64[n], ends of the keys.
        value_starts: i64[n], starts of the values.
        value_ends: i64[n], ends of the values.
        keys: u64[n], output: hash of key group and key.
        records: u64[n], output: hash of key group, key and value.
    """
    for row in range(len(key_groups)):
        key = hash_bytes(np.uint64(0), base + key_starts[row], base + key_ends[row])
        key = add_key_group(key, key_groups[row])
        keys[row] = key
        records[row] = hash_bytes(key, base + value_starts[row], base + value_ends[row])


SPLIT_SIZE = 32 << 20
"""Bytes of a file that one task digests."""

BUDGET = 2 << 20
"""Records of one snapshot whose hashes a task holds in memory; a key group with more is read by several tasks.

Each of these tasks compares the keys in its share of the hashes.
"""

_GAP = 8
"""Largest distance of two differing key groups that one task reads in one scan, with the equal ones between them."""

_KEY_COLUMNS = ("key_group", "timestamp", "state_key", "state_namespace", "map_key", "key_bytes")


@dataclass(frozen=True)
class GroupSums:
    """Digests of a state by key group; a key group may occur several times: its digests must be added up.

    Attributes:
        groups: i64[k], the key groups.
        sums: u64[k, 4], for each key group the numbers of a `RecordDigest`: records, bytes, digest and content.
    """

    groups: npt.NDArray[np.int64]
    sums: npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Unread:
    """Records of keyed state that cannot be read.

    Attributes:
        reason: why they cannot be read.
        key_groups: key groups of their file; None for all key groups of the operator.
        is_damage: whether bytes are damaged or missing, or the storage fails.
    """

    reason: str
    key_groups: KeyGroupRange | None
    is_damage: bool


@dataclass(frozen=True)
class FileSums:
    """Digests of a file, or of some of its key groups.

    Attributes:
        states: digests of each state, by name.
        failures: by name of each state whose records cannot be found, the reason.
    """

    states: Mapping[str, GroupSums]
    failures: Mapping[str, Unread]


@dataclass(frozen=True)
class DigestFile:
    """Task that computes digests of the states in one file, or in some key groups of it.

    Attributes:
        operator: label of the operator, for errors.
        file: the file.
        states: (position in the header, name) of the states.
        key_groups: key groups of the whole file.
        in_flight: see `Work`.
    """

    operator: str
    file: KeyedFile
    states: tuple[tuple[int, str], ...]
    key_groups: KeyGroupRange
    in_flight: int = 1

    @property
    def threads(self) -> int:
        """Number of these tasks that can run concurrently in threads; see `Work`."""
        return count_kernel_threads([self.file])

    def run(self) -> FileSums:
        """Read the file."""
        with at(operator=self.operator):
            try:
                return FileSums(self._sum(self.states), {})
            except StorageError:
                raise
            except StateError as error:
                if len(self.states) == 1:
                    reason = str(error) if is_unreadable(error) else explain(error)
                    return FileSums({}, {self.states[0][1]: Unread(reason, self.key_groups, is_unreadable(error))})
            # After an error, read each state alone, so that the state that fails does not hide the others.
            held = self.file.hold()
            alone = [replace(self, file=held, states=(each,)).run() for each in self.states]
        return FileSums(
            {name: sums for each in alone for name, sums in each.states.items()},
            {name: reason for each in alone for name, reason in each.failures.items()},
        )

    def _sum(self, states: tuple[tuple[int, str], ...]) -> dict[str, GroupSums]:
        names = dict(states)
        found: dict[str, list[GroupSums]] = {name: [] for name in names.values()}
        for state_id, records in self.file.scan(list(names)):
            if not len(records):
                continue
            first, last = int(records.key_groups.min()), int(records.key_groups.max())
            # Allocate sums for the key groups of these records only: the file may have many states and key groups.
            sums = np.zeros((last - first + 1, SUMS), np.uint64)
            is_map = self.file.header.states[state_id].state_type == StateKind.MAP
            digest_key_groups(first, sums, records.key_groups, *list_spans(records, is_map=is_map))
            present = np.flatnonzero(sums[:, 0])
            found[names[state_id]].append(GroupSums(present + first, sums[present]))
        return {name: _concat(each) for name, each in found.items()}


@dataclass(frozen=True)
class KeyedSide:
    """A keyed state of one of the two snapshots; can be sent to other processes.

    Attributes:
        operator: label of the operator, for errors.
        name: name of the state.
        subtask_states: the state in each file that has it.
        layout: layouts of the records; None if they cannot be derived.
        reason: why there are no layouts; empty if there are.
    """

    operator: str
    name: str
    subtask_states: tuple[KeyedSubtaskState, ...]
    layout: KeyedLayout | None
    reason: str

    def scan(self, groups: npt.NDArray[np.int64]) -> Iterator[tuple[KeyedRecords, Hashes]]:
        """Yield the records of some key groups (ascending), with their hashes."""
        covering = KeyGroupRange(int(groups[0]), int(groups[-1] - groups[0]) + 1)
        with at(operator=self.operator, state=self.name):
            for subtask_state in self.subtask_states:
                if not subtask_state.file.key_groups.intersect(covering).number:
                    continue
                is_map = subtask_state.file.header.states[subtask_state.state_id].state_type == StateKind.MAP
                for found in subtask_state.records(covering):
                    records = found
                    if len(groups) < covering.number:
                        records = found.select(np.flatnonzero(np.isin(found.key_groups, groups)))
                    keys, hashes = (np.empty(len(records), np.uint64) for _ in range(2))
                    hash_records(records.key_groups, *list_spans(records, is_map=is_map), keys, hashes)
                    yield records, Hashes(records.key_groups, keys, hashes)

    def show(self, wanted: Mapping[int, int]) -> dict[int, tuple[Row, Row]]:
        """Find records by their hashes, and decode them; a record that cannot be decoded is returned as bytes.

        Args:
            wanted: the key group of each record, by hash of the record.

        Returns:
            The columns of the key and those of the value of each record, by hash of the record.
        """
        if not wanted:
            return {}
        table = KeyedTable(self.layout, TableOptions(flatten=False), self.reason)
        found: dict[int, tuple[Row, Row]] = {}
        hashes = np.array(list(wanted), np.uint64)
        for group in sorted(set(wanted.values())):
            left = sum(each == group for each in wanted.values())
            for records, numbers in self.scan(np.array([group])):
                rows = np.flatnonzero(np.isin(numbers.records, hashes))
                # Equal records have the same hash: show one of them.
                rows = rows[np.unique(numbers.records[rows], return_index=True)[1]]
                with at(operator=self.operator, state=self.name):
                    try:
                        batch = table.make_batch(records.select(rows), 0)
                    except StateError as error:
                        # The difference is known even if the records cannot be decoded: show their bytes.
                        table = KeyedTable(None, TableOptions(flatten=False), explain(error))
                        batch = table.make_batch(records.select(rows), 0)
                    shown = to_rows(batch)
                    found.update(zip(numbers.records[rows].tolist(), map(_split_row, shown), strict=True))
                left -= len(rows)
                if left <= 0:
                    break
        return found


@dataclass(frozen=True)
class CompareGroups:
    """Task that compares some key groups of a state in both snapshots, record by record.

    Attributes:
        one: the state in one snapshot.
        other: the state in the other snapshot.
        groups: the key groups, ascending.
        share: (remainder, divisor); only keys whose hash modulo the divisor is the remainder are compared.
        limit: largest number of candidates (for examples) of each kind of difference.
    """

    one: KeyedSide
    other: KeyedSide
    groups: tuple[int, ...]
    share: tuple[int, int]
    limit: int

    @property
    def threads(self) -> int:
        """Number of these tasks that can run concurrently in threads; see `Work`."""
        return count_kernel_threads([each.file for side in (self.one, self.other) for each in side.subtask_states])

    def run(self) -> RecordDifferences:
        """Read and compare the records."""
        return join_hashes(self._hash(self.one), self._hash(self.other), self.limit)

    def _hash(self, side: KeyedSide) -> Hashes:
        number, count = self.share
        tasks = (hashes for _, hashes in side.scan(np.array(self.groups)))
        if count > 1:
            tasks = (each.select(each.keys % np.uint64(count) == number) for each in tasks)
        return concat_hashes(tasks)


@dataclass(frozen=True)
class ShowRecords:
    """Task that reads and decodes the differing records that a report shows as examples.

    Attributes:
        one: the state in one snapshot.
        other: the state in the other snapshot.
        candidates: keys and hashes of the records.
    """

    one: KeyedSide
    other: KeyedSide
    candidates: tuple[Candidate, ...]

    def run(self) -> list[tuple[tuple[Row, Row] | None, tuple[Row, Row] | None]]:
        """Return the record of each candidate in both snapshots, as (key columns, value columns) or None."""
        ones = self.one.show({each.one: each.group for each in self.candidates if each.one is not None})
        others = self.other.show({each.other: each.group for each in self.candidates if each.other is not None})
        return [
            (None if each.one is None else ones[each.one], None if each.other is None else others[each.other])
            for each in self.candidates
        ]


def make_side(state: KeyedState, unread: Sequence[Unread] = ()) -> KeyedSide:
    """Make the `KeyedSide` of a state, without the files whose key groups are in `unread`."""
    layout, reason = state.find_layout()
    left_out = [each.key_groups for each in unread]
    subtask_states = tuple(each for each in state.subtask_states if each.file.key_groups not in left_out)
    return KeyedSide(state.operator.label, state.name, subtask_states, layout, reason)


def plan_digests(states: Sequence[KeyedState]) -> list[DigestFile]:
    """Make the tasks that compute digests of some states of one operator, so that each file is read once."""
    if not states:
        return []
    operator = states[0].operator
    # States of one file share the file object, so its identity is the cheapest key.
    files: dict[int, tuple[KeyedFile, list[tuple[int, str]]]] = {}
    for state in states:
        for each in state.subtask_states:
            files.setdefault(id(each.file), (each.file, []))[1].append((each.state_id, state.name))
    with at(operator=operator.label):
        return [
            DigestFile(operator.label, split, tuple(wanted), file.key_groups, count_scans(operator))
            for file, wanted in files.values()
            for split in file.split(SPLIT_SIZE)
        ]


def add_up(found: Sequence[GroupSums], max_parallelism: int) -> npt.NDArray[np.uint64]:
    """Add up the digests of a state by key group; return u64[max parallelism, 4].

    A max parallelism beyond Flink's limits is cut to them, and key groups above it are left out. No error is raised,
    because `check_held_key_groups` reports both.
    """
    total = np.zeros((min(max(max_parallelism, 1), MAX_PARALLELISM), SUMS), np.uint64)
    for each in found:
        known = each.groups < len(total)
        np.add.at(total, each.groups[known], each.sums[known])
    return total


def total_of(sums: npt.NDArray[np.uint64]) -> RecordDigest:
    """Add up the digests of all key groups of a state to one digest."""
    return RecordDigest(*sums.sum(axis=0, dtype=np.uint64).tolist())


def plan_comparison(
    one: KeyedSide,
    other: KeyedSide,
    sums: tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]],
    limit: int,
    *,
    budget: int = BUDGET,
) -> list[CompareGroups]:
    """Make the tasks that compare the key groups whose digests differ.

    Args:
        one: the state in one snapshot.
        other: the state in the other snapshot.
        sums: digests by key group in both snapshots, as `add_up` returns them.
        limit: see `CompareGroups`.
        budget: number of records of one snapshot whose hashes a task may hold.
    """
    differing = np.flatnonzero((sums[0] != sums[1]).any(axis=1))
    records = np.maximum(sums[0][:, 0], sums[1][:, 0]).astype(np.int64)
    tasks: list[CompareGroups] = []
    chosen: list[int] = []

    def flush() -> None:
        if chosen:
            tasks.append(CompareGroups(one, other, tuple(chosen), (0, 1), limit))
            chosen.clear()

    for group in differing.tolist():
        if chosen and (group - chosen[-1] > _GAP or records[chosen].sum() + records[group] > budget):
            flush()
        if records[group] > budget:
            count = -(-int(records[group]) // budget)
            tasks += (CompareGroups(one, other, (group,), (number, count), limit) for number in range(count))
        else:
            chosen.append(group)
    flush()
    return tasks


def _concat(found: Sequence[GroupSums]) -> GroupSums:
    if not found:
        return GroupSums(np.zeros(0, np.int64), np.zeros((0, SUMS), np.uint64))
    return GroupSums(np.concatenate([each.groups for each in found]), np.concatenate([each.sums for each in found]))


def _split_row(row: Row) -> tuple[Row, Row]:
    """Split a row into key and value columns; leave out the subtask, which is no property of a record."""
    key = {name: row[name] for name in _KEY_COLUMNS if row.get(name) is not None}
    skipped = (*_KEY_COLUMNS, "subtask", *(name for name in ("reason", "value_bytes") if row.get(name) is None))
    return key, {name: value for name, value in row.items() if name not in skipped}


_BYTES = ("value_bytes", "reason")
# Columns that identify a row of raw keyed state or an in-flight buffer; raw operator state has no such columns.
_POSITIONS = ("key_group", "direction", "gate_or_partition", "channel", "buffer_index")
_SAME_POSITION = ("subtask", *_POSITIONS)

OTHER_COPIES = "not compared one by one: the subtasks of one snapshot hold different copies"
SAME_VALUE = "the same value in other bytes"


@dataclass(frozen=True)
class UnkeyedRecords:
    """Rows of a state that is not keyed, with their hashes.

    Attributes:
        batch: the rows.
        keys: names of the columns that identify a row; empty if there are none.
        hashes: hashes of all rows.
        bytes: size of all keys and values.
    """

    batch: pa.RecordBatch
    keys: tuple[str, ...]
    hashes: Hashes
    bytes: int

    @property
    def digest(self) -> RecordDigest:
        """Digest of all rows."""
        content = int(self.hashes.records.sum(dtype=np.uint64))
        return RecordDigest(len(self.hashes.records), self.bytes, content=content % MODULUS)

    def show(self, rows: npt.NDArray[np.int64]) -> Iterator[tuple[Row, Row]]:
        """Yield (key columns, value columns) of some rows."""
        for row in to_rows(self.batch.take(pa.array(rows))):
            key = {name: row[name] for name in self.keys}
            yield (
                key,
                {
                    name: value
                    for name, value in row.items()
                    if name not in (*self.keys, "subtask") and not (name in _BYTES and value is None)
                },
            )


@dataclass(frozen=True)
class CompareUnkeyed:
    """Task that compares a state that is not keyed in both snapshots.

    Attributes:
        operator: label of the operator, for errors.
        one: the state in one snapshot; None if that does not have it.
        other: the state in the other snapshot; None if that does not have it.
        obstacle: why the two states cannot be compared; empty if they can.
        limit: number of examples that are wanted.
        in_flight: see `Work`.
    """

    operator: str
    one: State | None
    other: State | None
    obstacle: str
    limit: int
    in_flight: int = 1
    # Threads are enough: this state is small compared with keyed state, so starting processes does not pay off.
    threads: ClassVar[int] = KERNEL_THREADS

    def run(self) -> ContentsDiff:
        """Read and compare the states; compare them as bytes if they cannot be decoded."""
        name = next(each.name for each in (self.one, self.other) if each is not None)
        with at(operator=self.operator, state=name):
            try:
                try:
                    return self._compare(raw=False)
                except UnsupportedError as error:
                    reason = explain(error)
                return self._compare(raw=True)
            except UnsupportedError:
                return ContentsDiff(None, None, None, note=f"not compared: {reason}")
            except StorageError:
                raise
            except StateError as error:
                return ContentsDiff(None, None, None, note=f"not compared: {error}", damaged=True)

    def _compare(self, *, raw: bool) -> ContentsDiff:
        (one, ones), (other, others) = (_load(state, raw=raw) for state in (self.one, self.other))
        if one is None or other is None:
            return ContentsDiff(one, other, False)
        if self.obstacle:
            return ContentsDiff(one, other, None, note=self.obstacle)
        if one == other:
            return ContentsDiff(one, other, True, only_in_one=0, only_in_other=0, changed=0)
        if ones is None or others is None:
            return ContentsDiff(one, other, False, note=OTHER_COPIES)
        found = sum_differences([join_hashes(ones, others, self.limit)], self.limit)
        examples = self._show(found.candidates, raw=raw)
        return ContentsDiff(
            one,
            other,
            False,
            only_in_one=found.only_in_one,
            only_in_other=found.only_in_other,
            changed=found.changed,
            examples=tuple(examples),
        )

    def _show(self, candidates: Sequence[Candidate], *, raw: bool) -> Iterator[Example]:
        ones = _find(self.one, [each.one for each in candidates if each.one is not None], raw=raw)
        others = _find(self.other, [each.other for each in candidates if each.other is not None], raw=raw)
        for each in candidates:
            sides = (
                None if each.one is None else ones[each.one],
                None if each.other is None else others[each.other],
            )
            yield make_example(each, *sides)


def make_example(candidate: Candidate, one: tuple[Row, Row] | None, other: tuple[Row, Row] | None) -> Example:
    """Make the example that the report shows for a difference.

    Args:
        candidate: the key whose records differ, with the kind of the difference.
        one: (key columns, value columns) of the record in the first snapshot; None if it has no such record.
        other: likewise in the other snapshot.
    """
    (key, _) = one or other or ({}, {})
    old, new = (None if side is None else side[1] for side in (one, other))
    return Example(candidate.kind, key, old, new, SAME_VALUE if old is not None and old == new else "")


def _load(state: State | None, *, raw: bool) -> tuple[RecordDigest | None, Hashes | None]:
    """Return digest and hashes of a state; both are None if there is no state.

    There are no hashes for a broadcast state of which subtasks have different copies.
    """
    if state is None:
        return None, None
    if not isinstance(state, OperatorBroadcastState):
        tasks = []
        total = RecordDigest()
        for records in _read(state, raw=raw):
            tasks.append(records.hashes)
            total += records.digest
        return total, concat_hashes(tasks)
    copies = {each.digest: each.hashes for each in _read(state, raw=raw)}
    total = sum(copies, RecordDigest())
    return total, concat_hashes(copies.values()) if len(copies) <= 1 else None


def _find(state: State | None, wanted: list[int], *, raw: bool) -> dict[int, tuple[Row, Row]]:
    found: dict[int, tuple[Row, Row]] = {}
    hashes = np.array(wanted, np.uint64)
    if state is None or not wanted:
        return found
    for records in _read(state, raw=raw):
        rows = np.flatnonzero(np.isin(records.hashes.records, hashes))
        found.update(zip(records.hashes.records[rows].tolist(), records.show(rows), strict=True))
        if len(found) == len(set(wanted)):
            break
    return found


def _read(state: State, *, raw: bool) -> Iterator[UnkeyedRecords]:
    """Yield the rows of a state.

    Values of list and broadcast state are decoded and encoded again, because their ends are only found by decoding.
    """
    context = state.operator.snapshot.layout_context
    layouts: dict[str, lay.Layout] = {}
    options = TableOptions()
    columns: tuple[str, ...] = ()
    match state:
        case OperatorListState() | OperatorBroadcastState():
            # Name the columns: otherwise the table would look for columns of connectors, which takes time.
            decoded = not raw and not state.undecoded
            if decoded and isinstance(state, OperatorBroadcastState):
                layouts["map_key"] = derive_layout(state.info.key_serializer, context)
                layouts["map_value"] = derive_layout(state.info.value_serializer, context)
            elif decoded:
                layouts["value"] = derive_layout(state.info.value_serializer, context)
            names = ("subtask", *layouts, *_BYTES) if decoded else ("subtask", "value_bytes")
            options = TableOptions(columns=names, raw=not decoded)
        case _:
            known = state.make_schema().names
            position = _SAME_POSITION if "direction" in known else _POSITIONS
            columns = tuple(name for name in position if name in known)
    for batch in state.batches(options):
        if batch.num_rows:
            yield _hash(batch, layouts, columns)


def _hash(batch: pa.RecordBatch, layouts: dict[str, lay.Layout], columns: tuple[str, ...]) -> UnkeyedRecords:
    count = batch.num_rows
    stored = batch.column("value_bytes").is_valid().to_numpy(zero_copy_only=False)
    keys, values = _Spans(count), _Spans(count)
    values.put(batch.column("value_bytes"), lay.Rest(), np.flatnonzero(stored))
    decoded = np.flatnonzero(~stored)
    for name, layout in layouts.items():
        (keys if name == "map_key" else values).put(batch.column(name), layout, decoded)
    if columns:
        rows = to_rows(batch.select(columns))
        texts = pa.array([json.dumps(list(row.values())).encode() for row in rows], pa.binary())
        keys.put(texts, lay.Rest(), np.arange(count))
    elif "map_key" not in layouts:
        # An element without a key is used as its own key, so it can be missing or added, but not changed.
        keys, values = values, keys
    found = Hashes(np.zeros(count, np.int32), np.empty(count, np.uint64), np.empty(count, np.uint64))
    hash_records(found.groups, 0, keys.starts, keys.ends, values.starts, values.ends, found.keys, found.records)
    names = columns or tuple(name for name in layouts if name == "map_key")
    size = int((keys.ends - keys.starts).sum() + (values.ends - values.starts).sum())
    return UnkeyedRecords(batch, names, found, size)


class _Spans:
    """Addresses in memory of the encoded values of rows; a row without a value has an empty span.

    Attributes:
        starts: i64[n], address of the first byte of each value.
        ends: i64[n], address after the last byte of each value.
    """

    def __init__(self, count: int) -> None:
        self.starts = np.zeros(count, np.int64)
        self.ends = np.zeros(count, np.int64)
        self._held: list[npt.NDArray[np.uint8]] = []

    def put(self, array: pa.Array, layout: lay.Layout, rows: npt.NDArray[np.int64]) -> None:
        """Encode the values that an array has in some rows, and set their addresses."""
        if not len(rows):
            return
        encoded = plan_columns(layout).encode(array.take(pa.array(rows)))
        self._held.append(encoded.data)
        self.starts[rows] = encoded.starts + encoded.data.ctypes.data
        self.ends[rows] = encoded.stops + encoded.data.ctypes.data


Values = dict[str, object]


def compare_snapshots(one: Snapshot, other: Snapshot, *, counts: bool) -> tuple[ComparedProperty, ...]:
    """Compare the properties of two snapshots.

    Args:
        one: one snapshot.
        other: the other snapshot.
        counts: whether differing properties make the snapshots different; False if only some state is compared.
    """
    # These differ between copies with the same state: a copy may have a newer version of the metadata, for example.
    uncounted = ("kind", "metadata version", "checkpoint id", "fingerprint", "bytes")
    return _pair(_describe_snapshot(one), _describe_snapshot(other), uncounted, counts=counts)


def compare_operators(one: Operator | None, other: Operator | None, *, counts: bool) -> tuple[ComparedProperty, ...]:
    """Compare the properties of an operator in two snapshots; see `compare_snapshots`."""
    first, second = ({} if each is None else _describe_operator(each) for each in (one, other))
    return _pair(first, second, ("uid", "name", "keyed formats"), counts=counts and None not in (one, other))


def compare_states(one: State | None, other: State | None) -> tuple[ComparedProperty, ...]:
    """Compare the properties of a state in two snapshots; a snapshot that lacks the state has no values.

    Serializers that differ only in the registered subclasses of POJOs are shown, but do not count as a difference:
    records name their class themselves, and even subtasks of one job often list different subclasses.
    """
    first, second = ({} if each is None else _describe_state(each) for each in (one, other))
    if one is None or other is None:
        return _pair(first, second, (), counts=False)
    known = _list_serializers(other)
    joined = [
        name
        for name, serializer in _list_serializers(one).items()
        if name in known and join_serializers(serializer, known[name]) is not None
    ]
    return _pair(first, second, tuple(joined), counts=True)


def _pair(one: Values, other: Values, uncounted: tuple[str, ...], *, counts: bool) -> tuple[ComparedProperty, ...]:
    names = dict.fromkeys((*one, *other))
    return tuple(
        ComparedProperty(name, one.get(name), other.get(name), counts and name not in uncounted) for name in names
    )


def _describe_snapshot(snapshot: Snapshot) -> Values:
    return {
        "kind": snapshot.kind,
        "metadata version": snapshot.metadata.version,
        "Kryo version": snapshot.kryo_version,
        "checkpoint id": snapshot.checkpoint_id,
        "fingerprint": snapshot.fingerprint,
        "bytes": snapshot.file_size,
        "states of the job master": [
            f"{each.name}, version {each.version}, {_sum_up(each.payload)}" for each in snapshot.metadata.master_states
        ],
    }


def _describe_operator(operator: Operator) -> Values:
    metadata = operator.metadata
    coordinator = metadata.coordinator_state
    return {
        "uid": operator.uid,
        "name": operator.name,
        "parallelism": operator.parallelism,
        "max parallelism": operator.max_parallelism,
        "finished": metadata.fully_finished,
        "finished subtasks": [each.index for each in metadata.subtasks if each.finished],
        "keyed formats": _list_formats(operator),
        "coordinator state": None if coordinator is None else _sum_up(coordinator.data),
    }


def _list_formats(operator: Operator) -> list[str]:
    handles = [(each.index, each.managed_keyed_state) for each in operator.metadata.subtasks]
    try:
        formats = find_keyed_formats(handles, operator.keyed_files, operator.snapshot.handles)
    except StorageError:
        raise
    except StateError:
        # The error is reported when the states are read.
        return []
    return list(dict.fromkeys(each.format for each in formats))


def _describe_state(state: State) -> Values:
    values: Values = {"kind": str(state.kind)}
    values |= {name: describe(serializer) for name, serializer in _list_serializers(state).items()}
    if isinstance(state, KeyedState):
        values["TTL"] = _has_ttl(state.serializer)
    return values


def _list_serializers(state: State) -> dict[str, Serializer]:
    match state:
        case KeyedState() if state.kind == StateKind.TIMER:
            return {"key": state.key_serializer, "value": state.serializer}
        case KeyedState():
            namespace = state.info.namespace_serializer
            return {"key": state.key_serializer, "namespace": namespace, "value": state.serializer}
        case OperatorBroadcastState():
            return {"key": state.info.key_serializer, "value": state.serializer}
        case BytesState():
            return {}
        case _:
            return {"value": state.serializer}


def _has_ttl(serializer: Serializer) -> bool:
    if isinstance(serializer, Ttl) or (isinstance(serializer, TtlAware) and serializer.ttl_enabled):
        return True
    # In list and map state, the serializer of the elements or values is the one with TTL.
    return any(map(_has_ttl, serializer.nested))


def _sum_up(data: bytes) -> str:
    return f"{len(data):,} bytes, SHA-256 {hashlib.sha256(data).hexdigest()[:16]}"
