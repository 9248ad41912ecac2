"""Records of keyed state on both sides: digests per key group first, then only the key groups that differ.

Key groups that differ are read once more, as hashes, and a last time for the examples. Each step is tasks that
processes or threads share; none holds more than a window of records, or the hashes of `BUDGET` records of either side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.codecs.columns import explain
from state_pipelines.errors import StateError, StorageError, at
from state_pipelines.keyed.digests import RecordDigest, digest_key_groups, list_spans
from state_pipelines.keyed.state_table import KeyedTable, TableOptions
from state_pipelines.metadata.handles import MAX_PARALLELISM, KeyGroupRange
from state_pipelines.operations.diff.record_hashes import (
    SUMS,
    Candidate,
    Differences,
    Hashes,
    concat_hashes,
    hash_records,
    join_hashes,
)
from state_pipelines.operations.json_rows import to_rows
from state_pipelines.operations.local_processes import count_kernel_threads
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.snapshot.snapshot import is_unreadable
from state_pipelines.snapshot.snapshot_files import count_scans

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
    from state_pipelines.keyed.record_layout import KeyedLayout, KeyedRecords
    from state_pipelines.operations.json_rows import Row
    from state_pipelines.snapshot.keyed_state import KeyedState, KeyedSubtaskState

SPLIT_SIZE = 32 << 20
"""Bytes of a file that one task digests."""

BUDGET = 2 << 20
"""Records of a side whose hashes a task holds; a key group with more is read several times, in shares."""

_GAP = 8
"""Key groups between two that differ which are rather read in vain than left out by another task."""

_KEY_COLUMNS = ("key_group", "timestamp", "state_key", "state_namespace", "map_key", "key_bytes")


@dataclass(frozen=True)
class GroupSums:
    """Digests of a state by key group.

    Attributes:
        groups: i64[k]; a key group occurs once per window.
        sums: u64[k, 4], records, bytes, digest, content.
    """

    groups: npt.NDArray[np.int64]
    sums: npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Unread:
    """Records of keyed state that cannot be read.

    Attributes:
        reason: why not.
        key_groups: of their file; None: of all of the operator.
        is_damage: bytes are damaged or missing, or the storage fails.
    """

    reason: str
    key_groups: KeyGroupRange | None
    is_damage: bool


@dataclass(frozen=True)
class FileSums:
    """Digests of a file, or of some of its key groups.

    Attributes:
        states: by name.
        failures: why the records of a state cannot be found, by name.
    """

    states: Mapping[str, GroupSums]
    failures: Mapping[str, Unread]


@dataclass(frozen=True)
class DigestFile:
    """Digests of states of one file, or of a part of it.

    Attributes:
        operator: label, for errors.
        file: the file.
        states: (position in the header, name) of the states.
        context: of the operator.
        key_groups: of the whole file.
        in_flight: as `Work` says.
    """

    operator: str
    file: KeyedFile
    states: tuple[tuple[int, str], ...]
    context: RecordContext
    key_groups: KeyGroupRange
    in_flight: int = 1

    @property
    def threads(self) -> int:
        """As `Work` says."""
        return count_kernel_threads([self.file])

    def run(self) -> FileSums:
        """Read it."""
        with at(operator=self.operator):
            try:
                return FileSums(self._sum(self.states), {})
            except StorageError:
                raise
            except StateError as error:
                if len(self.states) == 1:
                    reason = str(error) if is_unreadable(error) else explain(error)
                    return FileSums({}, {self.states[0][1]: Unread(reason, self.key_groups, is_unreadable(error))})
            # One state must not hide the others.
            held = self.file.hold()
            alone = [replace(self, file=held, states=(each,)).run() for each in self.states]
        return FileSums(
            {name: sums for each in alone for name, sums in each.states.items()},
            {name: reason for each in alone for name, reason in each.failures.items()},
        )

    def _sum(self, states: tuple[tuple[int, str], ...]) -> dict[str, GroupSums]:
        names = dict(states)
        found: dict[str, list[GroupSums]] = {name: [] for name in names.values()}
        for state_id, records in self.file.scan(list(names), self.context):
            if not len(records):
                continue
            first, last = int(records.key_groups.min()), int(records.key_groups.max())
            # Only as wide as the window: a file may have all key groups, and many states.
            sums = np.zeros((last - first + 1, SUMS), np.uint64)
            is_map = self.file.header.states[state_id].state_type == StateKind.MAP
            digest_key_groups(first, sums, records.key_groups, *list_spans(records, is_map=is_map))
            present = np.flatnonzero(sums[:, 0])
            found[names[state_id]].append(GroupSums(present + first, sums[present]))
        return {name: _concat(each) for name, each in found.items()}


@dataclass(frozen=True)
class KeyedSide:
    """A state of one snapshot; can be sent to other processes.

    Attributes:
        operator: label, for errors.
        name: of the state.
        subtask_states: files that have it.
        context: of the operator.
        layout: layouts of the records; None when they have none.
        reason: why there are none.
    """

    operator: str
    name: str
    subtask_states: tuple[KeyedSubtaskState, ...]
    context: RecordContext
    layout: KeyedLayout | None
    reason: str

    def scan(self, groups: npt.NDArray[np.int64]) -> Iterator[tuple[KeyedRecords, Hashes]]:
        """The records of some key groups (ascending), and their hashes."""
        covering = KeyGroupRange(int(groups[0]), int(groups[-1] - groups[0]) + 1)
        with at(operator=self.operator, state=self.name):
            for subtask_state in self.subtask_states:
                if not subtask_state.file.key_groups.intersect(covering).number:
                    continue
                is_map = subtask_state.file.header.states[subtask_state.state_id].state_type == StateKind.MAP
                for found in subtask_state.records(self.context, covering):
                    records = found
                    if len(groups) < covering.number:
                        records = found.select(np.flatnonzero(np.isin(found.key_groups, groups)))
                    keys, hashes = (np.empty(len(records), np.uint64) for _ in range(2))
                    hash_records(records.key_groups, *list_spans(records, is_map=is_map), keys, hashes)
                    yield records, Hashes(records.key_groups, keys, hashes)

    def show(self, wanted: Mapping[int, int]) -> dict[int, tuple[Row, Row]]:
        """Some records, decoded as far as that goes.

        Args:
            wanted: by hash of the record its key group.

        Returns:
            By hash of the record the columns of its key and those of its value.
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
                # Of equal records one is enough.
                rows = rows[np.unique(numbers.records[rows], return_index=True)[1]]
                with at(operator=self.operator, state=self.name):
                    try:
                        batch = table.make_batch(records.select(rows), 0)
                    except StateError as error:
                        # Values that cannot be decoded differ all the same.
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
    """Some key groups of a state on both sides, record by record.

    Attributes:
        one: the state in the one.
        other: the state in the other.
        groups: the key groups, ascending.
        share: (number, of how many): keys whose hash leaves this rest.
        limit: how many candidates for examples of each sort are wanted.
    """

    one: KeyedSide
    other: KeyedSide
    groups: tuple[int, ...]
    share: tuple[int, int]
    limit: int

    @property
    def threads(self) -> int:
        """As `Work` says."""
        return count_kernel_threads([each.file for side in (self.one, self.other) for each in side.subtask_states])

    def run(self) -> Differences:
        """Compare them."""
        return join_hashes(self._hash(self.one), self._hash(self.other), self.limit)

    def _hash(self, side: KeyedSide) -> Hashes:
        number, count = self.share
        tasks = (hashes for _, hashes in side.scan(np.array(self.groups)))
        if count > 1:
            tasks = (each.select(each.keys % np.uint64(count) == number) for each in tasks)
        return concat_hashes(tasks)


@dataclass(frozen=True)
class ShowRecords:
    """Decode the records of candidates.

    Attributes:
        one: the state in the one.
        other: the state in the other.
        candidates: the candidates.
    """

    one: KeyedSide
    other: KeyedSide
    candidates: tuple[Candidate, ...]

    def run(self) -> list[tuple[tuple[Row, Row] | None, tuple[Row, Row] | None]]:
        """Columns of key and value on both sides, in the order of the candidates."""
        ones = self.one.show({each.one: each.group for each in self.candidates if each.one is not None})
        others = self.other.show({each.other: each.group for each in self.candidates if each.other is not None})
        return [
            (None if each.one is None else ones[each.one], None if each.other is None else others[each.other])
            for each in self.candidates
        ]


def make_side(state: KeyedState, unread: Sequence[Unread] = ()) -> KeyedSide:
    """A state without the files whose key groups are in `unread`, for other processes."""
    layout, reason = state.find_layout()
    left_out = [each.key_groups for each in unread]
    subtask_states = tuple(each for each in state.subtask_states if each.file.key_groups not in left_out)
    return KeyedSide(state.operator.label, state.name, subtask_states, state.context, layout, reason)


def plan_digests(states: Sequence[KeyedState]) -> list[DigestFile]:
    """The tasks that digest some states of one operator, each file read once."""
    if not states:
        return []
    operator = states[0].operator
    # By identity: files have no cheaper one.
    files: dict[int, tuple[KeyedFile, list[tuple[int, str]]]] = {}
    for state in states:
        for each in state.subtask_states:
            files.setdefault(id(each.file), (each.file, []))[1].append((each.state_id, state.name))
    with at(operator=operator.label):
        return [
            DigestFile(operator.label, split, tuple(wanted), states[0].context, file.key_groups, count_scans(operator))
            for file, wanted in files.values()
            for split in file.split(SPLIT_SIZE, operator.record_context)
        ]


def add_up(found: Sequence[GroupSums], max_parallelism: int) -> npt.NDArray[np.uint64]:
    """Digests of a state by key group, u64[max parallelism, 4].

    A max parallelism that cannot be, or key groups above it, are said elsewhere (`check_held_key_groups`).
    """
    total = np.zeros((min(max(max_parallelism, 1), MAX_PARALLELISM), SUMS), np.uint64)
    for each in found:
        known = each.groups < len(total)
        np.add.at(total, each.groups[known], each.sums[known])
    return total


def total_of(sums: npt.NDArray[np.uint64]) -> RecordDigest:
    """Of all key groups."""
    return RecordDigest(*sums.sum(axis=0, dtype=np.uint64).tolist())


def plan_comparison(
    one: KeyedSide,
    other: KeyedSide,
    sums: tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]],
    limit: int,
    *,
    budget: int = BUDGET,
) -> list[CompareGroups]:
    """The tasks that compare the key groups whose digests differ.

    Args:
        one: the state in the one.
        other: the state in the other.
        sums: of both sides, as `add_up` gives them.
        limit: see `CompareGroups`.
        budget: how many records of a side a task holds.
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
    """Columns of the key, and those of the value, without the subtask, which is no property of a record."""
    key = {name: row[name] for name in _KEY_COLUMNS if row.get(name) is not None}
    skipped = (*_KEY_COLUMNS, "subtask", *(name for name in ("reason", "value_bytes") if row.get(name) is None))
    return key, {name: value for name, value in row.items() if name not in skipped}
