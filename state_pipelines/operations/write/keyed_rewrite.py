"""New files of keyed state: some states encoded again, all others copied as bytes.

Two steps, each of which any number of tasks can share. `spills.write_state_spill` encodes rows of one state into a
spill, in whatever order they come; `merge_spills` writes the final file of one subtask from spills and from the old
file. States whose records keep their keys need no spill: `merge_spills` rewrites them while it copies the old file
(`RecordRewrite`). One block of records is held in memory. Of an old file that is not canonical a key group is held
whole where that is larger.

Canonical files join framed records. For the native formats of the heap and the RocksDB backend (`NativeFiles`), records
of spills and of the old file are written one key group after the other into the files that Flink's backends write.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from state_pipelines.codecs.columns import plan_columns
from state_pipelines.errors import FormatError, IncompatibleError, UnsupportedError, Where, at
from state_pipelines.keyed import kernels
from state_pipelines.keyed.canonical import (
    Block,
    CanonicalWriter,
    FramedRuns,
    KeySet,
    RecordBuffer,
    frame_section,
    gather_runs,
    join_runs,
    size_of_records,
    sum_runs,
)
from state_pipelines.keyed.digests import RecordDigest, sum_digests
from state_pipelines.keyed.heap import HeapWriter, holds_null_timestamp, may_hold_timestamps
from state_pipelines.keyed.record_layout import KeyedRecords, concat_records, derive_keyed_layout
from state_pipelines.keyed.rocksdb import RocksWriter
from state_pipelines.keyed.sections import select_sections
from state_pipelines.metadata.handles import (
    HandleAndLocalPath,
    IncrementalRemoteKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    KeyGroupsSavepointStateHandle,
    KeyGroupsStateHandle,
    RelativeFileStateHandle,
)
from state_pipelines.operations.local_processes import count_kernel_threads
from state_pipelines.operations.write.spills import BATCH, find_blocks, read_spill
from state_pipelines.serializers.tree import StateKind
from state_pipelines.storage import Location, create_file, exists, join, resolve
from state_pipelines.storage.files import copy_file, remove_file
from state_pipelines.storage.locations import parent
from state_pipelines.storage.snapshot_writer import open_local_scratch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import KeyedFile, KeyGroupRecords, RecordContext, Runs
    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.operations.write.spills import StateSpill
    from state_pipelines.snapshot import Operator


def make_file_name() -> str:
    """Make a name for a data file, as Flink does: a random UUID."""
    return str(uuid.uuid4())


LARGE = 2 * BATCH
"""Largest key group, in bytes, that is written as a whole; larger ones are written block by block."""

_SPARSE = 4
"""Records of the old file that wait to be rewritten hold buffers of at most this many times `BATCH` bytes."""


class RecordRewrite(Protocol):
    """Change of the records of a state that leaves their keys as they are; can be sent to other processes."""

    def start(self) -> RecordRewriter:
        """Return the rewriter of one task."""


class RecordRewriter(Protocol):
    """Rewrites the records of a state in one task."""

    def rewrite(self, records: KeyedRecords, subtask: int) -> Iterator[KeyedRecords]:
        """Rewrite records of the old file; the new ones have the same key groups in the same order.

        Raises:
            StateError: a record cannot be decoded, computed or encoded.
        """

    @property
    def result(self) -> Any:
        """Result over all records that were rewritten, such as their digests."""


@dataclass(frozen=True)
class FileRewrite:
    """Task that writes the new file of keyed state of one subtask.

    Attributes:
        subtask: index of the subtask.
        base: the old file; None if there was none.
        header: header of the new file.
        copied: (new state id, old state id) of the states that are copied as bytes.
        encoded: (new state id, spills) of the states with new, encoded records; spills may hold other key groups too.
        key_groups: range of the subtask.
        context: context for finding the records in the old file.
        target: the new file.
        distinct: whether to refuse a key that occurs twice in a state of `encoded`.
        rewritten: (new state id, old state id, change of the records) of the states whose records keep their keys;
            they are read from the old file, changed and written without a spill.
    """

    subtask: int
    base: KeyedFile | None
    header: KeyedHeader
    copied: tuple[tuple[int, int], ...]
    encoded: tuple[tuple[int, tuple[StateSpill, ...]], ...]
    key_groups: KeyGroupRange
    context: RecordContext
    target: Location
    distinct: bool = False
    rewritten: tuple[tuple[int, int, RecordRewrite], ...] = ()

    def run(self) -> WrittenFile:
        """Write the file."""
        return merge_spills(self)


def copy_states(subtask: int, file: KeyedFile, header: KeyedHeader, target: Location) -> FileRewrite:
    """Make the rewrite that copies all states of a subtask as bytes; only the format and the header may change."""
    states = tuple((each, each) for each in range(len(header.states)))
    return FileRewrite(subtask, file, header, states, (), file.key_groups, file.context, target)


def complete_rewrites(operator: Operator, rewrites: Sequence[FileRewrite], directory: Location) -> list[FileRewrite]:
    """Add rewrites of the other subtasks of an operator whose files are not in canonical format.

    Rewrites write the canonical format, and Flink restores only one format per operator: it takes that of the first
    handle (see `HeapKeyedStateBackendBuilder`, `RocksDBKeyedStateBackendBuilder`).

    Args:
        operator: the operator.
        rewrites: at most one per subtask.
        directory: directory of the new files.

    Raises:
        StateError: keyed state cannot be read.
    """
    known = {rewrite.subtask for rewrite in rewrites}
    handles = {subtask.index: subtask.managed_keyed_state for subtask in operator.metadata.subtasks}
    others = [
        copy_states(index, file, file.header, join(directory, make_file_name()))
        for index, file in operator.keyed_files
        # Timers in raw keyed state are not rewritten: every backend restores them as they are.
        if not file.holds_raw_timers
        and index not in known
        and not isinstance(handles[index], KeyGroupsSavepointStateHandle)
    ]
    return [*rewrites, *others] if rewrites else []


@dataclass(frozen=True)
class WrittenFile:
    """A new file of one subtask.

    Attributes:
        offsets: offset of each key group of the range.
        size: size in bytes.
        records: (new state id, number of its records).
        states: digest of the records of each state, by name; empty if they were not counted.
        dropped: digest of the records of each state that were left out by a key filter.
        duplicates: digest of the records of each state that were left out because another snapshot has the same key.
        results: results of the rewriters, by name of the state.
    """

    subtask: int
    offsets: tuple[int, ...]
    size: int
    records: tuple[tuple[int, int], ...]
    states: dict[str, RecordDigest] = field(default_factory=dict)
    dropped: dict[str, RecordDigest] = field(default_factory=dict)
    duplicates: dict[str, RecordDigest] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)


def merge_spills(rewrite: FileRewrite) -> WrittenFile:
    """Write the new file of one subtask from its spills and its old file, some key groups at a time.

    Raises:
        IncompatibleError: a key occurs twice in a state whose keys must be distinct (`FileRewrite.distinct`).
        FormatError: the old file has a key group twice or out of order.
        StateError: the old file cannot be read, or the new one cannot be written.
    """
    merging = Merging(rewrite)
    # `replace` removes leftovers of a failed attempt: nothing else has the random name of the target.
    with create_file(rewrite.target, replace=True) as output:
        writer = CanonicalWriter(output, rewrite.header, rewrite.key_groups, rewrite.context.prefix)
        for key_groups, is_large in _cut_large(merging.sizes, rewrite.key_groups):
            if is_large:
                merging.stream(writer, key_groups)
            else:
                for sections in merging.join(key_groups):
                    writer.write_sections(sections.key_groups, sections.ends, sections.data)
    counts = tuple((number, merging.states[info.name].records) for number, info in enumerate(rewrite.header.states))
    results = {merging.names[new_id]: each.result for new_id, _, each in merging.rewriters}
    return WrittenFile(rewrite.subtask, writer.offsets, writer.size, counts, merging.states, results=results)


def _cut_large(sizes: npt.NDArray[np.int64], key_groups: KeyGroupRange) -> Iterator[tuple[KeyGroupRange, bool]]:
    """Split a range so that each key group of more than `LARGE` bytes is alone, and those between two are together.

    Yields (key groups, whether it is a single large one).
    """
    first = key_groups.start
    for large in (np.flatnonzero(sizes > LARGE) + key_groups.start).tolist():
        if first < large:
            yield KeyGroupRange(first, large - first), False
        yield KeyGroupRange(large, 1), True
        first = large + 1
    if first <= key_groups.end:
        yield KeyGroupRange(first, key_groups.end + 1 - first), False


@dataclass(frozen=True)
class Sections:
    """Whole sections of canonical files, in memory.

    Attributes:
        key_groups: i32[s], key group of each section, ascending.
        ends: i64[s], end of each section in `data`.
        data: u8, bytes of the sections.
        records: number of records in all sections.
    """

    key_groups: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int64]
    data: npt.NDArray[np.uint8]
    records: int


@dataclass
class _WaitingRecords:
    """Records of the old file that are collected, over several key groups, to be rewritten in larger batches.

    Attributes:
        size: bytes of the records.
    """

    size: int = 0
    _batches: dict[tuple[int, int], list[KeyedRecords]] = field(default_factory=dict)
    _held: dict[int, int] = field(default_factory=dict)

    @property
    def held(self) -> int:
        """Bytes of all buffers that the records keep in memory; a buffer may hold more than the collected records."""
        return sum(self._held.values())

    def add(self, state_id: int, records: KeyedRecords) -> None:
        """Collect records of a state."""
        window = id(records.data)
        self._batches.setdefault((state_id, window), []).append(records)
        self.size += size_of_records(records)
        self._held[window] = len(records.data)

    def take(self) -> list[tuple[int, KeyedRecords]]:
        """Remove all records; return them as (state id, records), one pair for each state and buffer."""
        found = [(state_id, concat_records(batches)) for (state_id, _), batches in self._batches.items()]
        self.size, self._batches, self._held = 0, {}, {}
        return found


class Merging:
    """Merges the spills of a subtask with its old file.

    Attributes:
        sizes: i64[key groups of the range], bytes of each key group.
        states: digests of the records that were merged so far, by name of the state.
    """

    def __init__(self, rewrite: FileRewrite) -> None:
        self.rewrite = rewrite
        # New ids by old id: the step `copy_state` of migrations may copy an old state to several new ones.
        self.copied: dict[int, list[int]] = {}
        for new_id, old_id in rewrite.copied:
            self.copied.setdefault(old_id, []).append(new_id)
        self.rewriters = [(new_id, old_id, each.start()) for new_id, old_id, each in rewrite.rewritten]
        self.waiting = _WaitingRecords()
        self.names = {number: info.name for number, info in enumerate(rewrite.header.states)}
        maps = frozenset(
            number for number, info in enumerate(rewrite.header.states) if info.state_type == StateKind.MAP
        )
        self.buffer = RecordBuffer(rewrite.context.prefix, maps, BATCH)
        self.spills = [
            (state_id, each)
            for state_id, spills in rewrite.encoded
            for spill in spills
            if spill.key_groups.intersect(rewrite.key_groups)
            for each in read_spill(spill.location, find_blocks(spill.location), rewrite.key_groups)
        ]
        self.start = rewrite.key_groups.start
        # For each key group, the bytes that all spills have in the key groups before it.
        self.bounds = np.zeros(len(rewrite.key_groups) + 1, np.int64)
        for _, each in self.spills:
            self.bounds += each.bounds - each.bounds[0]
        self.sizes = np.diff(self.bounds)
        if (self.copied or self.rewriters) and rewrite.base is not None and not rewrite.base.lacks_lengths:
            for section in select_sections(rewrite.base.stored_sections(), rewrite.key_groups):
                self.sizes[section.key_group - self.start] += section.size
        self.states = dict.fromkeys(self.names.values(), RecordDigest())

    def join(self, key_groups: KeyGroupRange) -> Iterator[Sections]:
        """Make the sections of some key groups, about `BATCH` bytes at a time."""
        first = key_groups.start
        for key_group, old in align_key_groups(self.rewrite.base, key_groups):
            spilled = self.bounds[key_group - self.start] - self.bounds[first - self.start]
            if first < key_group and self.buffer.size + self.waiting.size + int(spilled) >= BATCH:
                yield self._join(KeyGroupRange(first, key_group - first))
                first = key_group
            for old_id, records in old:
                for new_id in self.copied.get(old_id, ()):
                    self.buffer.add(new_id, records)
                if any(old_id == each for _, each, _ in self.rewriters):
                    self.waiting.add(old_id, records)
            if self.waiting.held >= _SPARSE * BATCH:
                self._rewrite()
        yield self._join(KeyGroupRange(first, key_groups.end + 1 - first))

    def _rewrite(self) -> None:
        """Rewrite the collected records, of many key groups at once."""
        for state_id, old in self.waiting.take():
            for new_id, old_id, rewriter in self.rewriters:
                if old_id == state_id:
                    for records in rewriter.rewrite(old, self.rewrite.subtask):
                        self.buffer.add(new_id, records)

    def _join(self, key_groups: KeyGroupRange) -> Sections:
        self._rewrite()
        blocks = [self.buffer.sort(key_groups), *self._read_spills(key_groups)]
        self._count(blocks)
        runs = gather_runs([(0, block) for block in blocks])
        if self.rewrite.distinct:
            self._require_distinct(runs)
        return Sections(*join_runs(runs), int(runs.records.sum()))

    def _require_distinct(self, runs: FramedRuns) -> None:
        """Make sure that the keys of encoded states differ; `runs` ascend by key group and state."""
        mine = runs.select(np.flatnonzero(np.isin(runs.states, [state_id for state_id, _ in self.rewrite.encoded])))
        if not len(mine.sizes):
            return
        begins = np.ones(len(mine.sizes), np.bool_)
        begins[1:] = (np.diff(mine.key_groups) != 0) | (np.diff(mine.states) != 0)
        most = int(np.add.reduceat(mine.records, np.flatnonzero(begins)).max())
        repeated = KeySet(most).find_repeated(mine.addresses, mine.sizes, begins)
        if repeated is not None:
            run, address = repeated
            block = next(each for each in mine.held if 0 <= address - each.ctypes.data < len(each))
            raise self._refuse_repeated(int(mine.states[run]), block[address - block.ctypes.data :])

    def _refuse_repeated(self, state_id: int, record: npt.NDArray[np.uint8]) -> IncompatibleError:
        """Make the error for a key that occurs twice; `record` begins with a framed record that has the key."""
        info, prefix = self.rewrite.header.states[state_id], self.rewrite.context.prefix
        size = int.from_bytes(record[:4].tobytes(), "big")
        key = record[4 + prefix : 4 + size]
        context = self.rewrite.context
        layout = derive_keyed_layout(info, self.rewrite.header.key_serializer, context.max_parallelism, context.layouts)
        found = plan_columns(layout.key).decode(key, np.zeros(1, np.int64), np.full(1, len(key), np.int64)).array
        shown = {name: value for name, value in found[0].as_py().items() if value is not None}
        return IncompatibleError(
            f"several rows of the state have the key {shown}",
            where=Where(state=info.name),
            hint="State holds one entry per key: aggregate the rows by key first, or leave the others out",
        )

    def stream(self, writer: CanonicalWriter, key_groups: KeyGroupRange) -> None:
        """Write the section of a large key group, block by block; write no section if no state has records."""
        blocks = (block for block in self._find_blocks(key_groups) if len(block.runs))
        first = next(blocks, None)
        if first is not None:
            writer.write_section(key_groups.start, frame_section(self._list_blocks(first, blocks)))

    def _find_blocks(self, key_groups: KeyGroupRange) -> Iterator[Block]:
        """Yield the framed records of one key group, in blocks of a single state; blocks of a state are adjacent."""
        encoded: dict[int, KeySet] = {}
        base = self.rewrite.base
        if base is not None and self.copied:
            for old_id, records in base.scan([*self.copied], key_groups):
                self.buffer.add(self.copied[old_id][0], records)
                yield self.buffer.sort(key_groups)
            # One new state after the other, since the records of a state must be adjacent in the section.
            for old_id, new_id in ((one, other) for one, others in self.copied.items() for other in others[1:]):
                for _, records in base.scan([old_id], key_groups):
                    self.buffer.add(new_id, records)
                    yield self.buffer.sort(key_groups)
        if base is not None:
            # One state after the other, since the records of a state must be adjacent in the section.
            for new_id, old_id, rewriter in self.rewriters:
                for _, old in base.scan([old_id], key_groups):
                    for records in rewriter.rewrite(old, self.rewrite.subtask):
                        self.buffer.add(new_id, records)
                    yield self.buffer.sort(key_groups)
        for block in self._read_spills(key_groups):
            if self.rewrite.distinct and len(block.runs):
                self._require_new(block, encoded)
            yield block

    def _require_new(self, block: Block, known: dict[int, KeySet]) -> None:
        """Make sure that no key of a block of one key group and state occurs twice in it, or is in `known` already.

        `known` has the keys of earlier blocks of the key group, by state; those of the block are added.
        """
        state_id = int(block.runs["state"][0])
        if state_id not in known:
            ranges = (each for number, each in self.spills if number == state_id)
            rows = (each.runs[each.runs["key_group"] == block.runs["key_group"][0]] for each in ranges)
            known[state_id] = KeySet(sum(int(runs["records"].sum()) for runs in rows))
        addresses = block.runs["offset"].astype(np.int64) + block.data.ctypes.data
        sizes = block.runs["size"].astype(np.int64)
        repeated = known[state_id].find_repeated(addresses, sizes, np.zeros(len(sizes), np.bool_))
        if repeated is not None:
            raise self._refuse_repeated(state_id, block.data[repeated[1] - block.data.ctypes.data :])

    def _list_blocks(self, first: Block, rest: Iterator[Block]) -> Iterator[tuple[int, memoryview, int]]:
        """Yield the blocks of one key group for `frame_section`: (state id, data, offset of the state's last record).

        The offset is -1 unless the block is the last one of its state.
        """
        for block, following in pairwise(chain([first], rest, [None])):
            assert block is not None
            self._count([block])
            state, last = int(block.runs["state"][0]), int(block.runs["last"][0])
            ends = following is None or following.runs["state"][0] != state
            yield state, block.data.data, last if ends else -1

    def _read_spills(self, key_groups: KeyGroupRange) -> Iterator[Block]:
        for state_id, spill in self.spills:
            block = spill.read(key_groups)
            block.runs["state"] = state_id
            yield block

    def _count(self, blocks: Sequence[Block]) -> None:
        self.states = sum_digests([self.states, sum_runs([block.runs for block in blocks], self.names)])


def align_key_groups(file: KeyGroupRecords | None, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
    """Yield each key group of a range in ascending order with its records in a file; no records if the file lacks it.

    Raises:
        FormatError: the file has a key group twice, out of order or outside of the range.
        StateError: the file cannot be read.
    """
    found = iter(()) if file is None else file.scan_key_groups(key_groups)
    pending = next(found, None)
    for key_group in key_groups:
        runs: Runs = []
        if pending is not None and pending[0] == key_group:
            runs, pending = pending[1], next(found, None)
        yield key_group, runs
    if file is not None and pending is not None:
        raise FormatError(
            f"key group {pending[0]} comes twice, out of order, or from outside of {key_groups.start} to "
            f"{key_groups.end}",
            where=Where(file=file.name),
            hint="Its records would be lost; please report this",
        )


class MergedRecords:
    """The records that a rewrite would write, for the writers of native formats; see `keyed_file.KeyGroupRecords`.

    Each key group is held in memory as a whole, because native formats sort or rearrange its records.

    Args:
        rewrite: the old file and the spills to merge; its target is not written.
    """

    def __init__(self, rewrite: FileRewrite) -> None:
        self.rewrite = rewrite
        self._merging = Merging(rewrite)

    @property
    def name(self) -> str:
        """Name of the records in errors: the path of the target."""
        return str(self.rewrite.target)

    @property
    def states(self) -> dict[str, RecordDigest]:
        """Digests of the records that were read so far, by name of the state."""
        return self._merging.states

    def scan_key_groups(self, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """Yield all records, one key group after the other.

        Raises:
            IncompatibleError: a key occurs twice.
            StateError: a spill or the old file cannot be read.
        """
        for sections in self._merging.join(key_groups):
            yield from self._cut(sections)

    def _cut(self, sections: Sections) -> Iterator[tuple[int, Runs]]:
        """Yield the records of sections, one key group after the other."""
        starts = np.append(np.int64(0), sections.ends)[:-1]
        wanted = np.ones(len(self.rewrite.header.states), np.bool_)
        cursor, output = np.array([0, -1, 0, 0], np.int64), np.empty((6, sections.records), np.int64)
        status, count = kernels.scan_records(
            sections.data.ctypes.data,
            starts,
            sections.ends,
            sections.key_groups,
            True,
            True,
            self.rewrite.context.prefix,
            wanted,
            cursor,
            output,
        )
        if status != kernels.DONE or count != sections.records:
            raise FormatError(
                "the merged key-group sections do not have the records that were written to them",
                where=Where(file=self.name),
            )
        states, groups = output[0], output[1]
        edges = np.flatnonzero((np.diff(groups) != 0) | (np.diff(states) != 0)) + 1
        runs: Runs = []
        last = -1
        for first, stop in zip([0, *edges.tolist()], [*edges.tolist(), count], strict=True):
            if first == stop:
                return
            group = int(groups[first])
            if runs and group != last:
                yield last, runs
                runs = []
            key_starts, key_ends, value_starts, value_ends = output[2:, first:stop]
            records = KeyedRecords(
                groups[first:stop].astype(np.int32),
                sections.data,
                key_starts,
                key_ends,
                value_starts,
                value_ends,
                0,
                self.name,
            )
            runs.append((int(states[first]), records))
            last = group
        yield last, runs


class Format(Enum):
    """Formats that can be written; the values are the names in options."""

    CANONICAL = "canonical"
    HEAP = "heap"
    ROCKSDB = "rocksdb"
    KEEP = "keep"


NewFormat = Literal["canonical", "heap", "rocksdb"]
"""Values of `Format` for a savepoint that is not made from an old snapshot: it has no format to keep."""


@dataclass(frozen=True)
class NativeFiles:
    """Writes the keyed state of one subtask in a native format.

    Attributes:
        records: the records.
        header: the new header.
        key_groups: range of the subtask.
        context: context of the records of the operator.
        target: directory of the new snapshot.
        name: name of the new file; for RocksDB, the beginning of the names of all new files. It is chosen before the
            task runs, so that a second attempt replaces the files of a failed one.
        checkpoint_id: checkpoint id of the snapshot.
    """

    records: KeyGroupRecords
    header: KeyedHeader
    key_groups: KeyGroupRange
    context: RecordContext
    target: Location
    name: str
    checkpoint_id: int

    def write_heap(self) -> tuple[KeyGroupsStateHandle, int]:
        """Write the file of a `HeapKeyedStateBackend`; returns its handle and its size.

        Raises:
            UnsupportedError: a SQL timestamp is null, which Flink cannot restore from this format.
            StateError: the records cannot be read.
        """
        location = join(self.target, self.name)
        key = self.header.key_serializer
        doubtful = {
            state_id: derive_keyed_layout(info, key, self.context.max_parallelism, self.context.layouts)
            for state_id, info in enumerate(self.header.states)
            if may_hold_timestamps(info, key)
        }
        # `replace` removes leftovers of a failed attempt: nothing else has the random name of the file.
        with create_file(location, replace=True) as output:
            writer = HeapWriter(output, self.header, self.key_groups, self.context)
            for key_group, runs in align_key_groups(self.records, self.key_groups):
                if doubtful and runs:
                    self._refuse_null_timestamps(runs, doubtful)
                writer.write_key_group(key_group, runs)
        stream = RelativeFileStateHandle(location.name, writer.size)
        handle = KeyGroupsStateHandle(self.key_groups, writer.offsets, stream, state_handle_id=str(uuid.uuid4()))
        return handle, writer.size

    def _refuse_null_timestamps(self, runs: Runs, layouts: Mapping[int, KeyedLayout]) -> None:
        for state_id, records in runs:
            if state_id in layouts and holds_null_timestamp(records, layouts[state_id]):
                raise UnsupportedError(
                    "a SQL timestamp is null, and Flink cannot restore that from heap native state "
                    "(SqlTimestampSerializer writes 12 bytes and reads 8)",
                    where=Where(state=self.header.states[state_id].name),
                    hint="Write canonical or rocksdb, which say where a record ends",
                )

    def write_rocksdb(self) -> tuple[IncrementalRemoteKeyedStateHandle, int]:
        """Write the database of a `RocksDBKeyedStateBackend`; returns its handle and its size.

        Raises:
            FormatError: a key occurs twice.
            StateError: the records cannot be read.
        """
        with open_local_scratch() as directory:
            writer = RocksWriter(directory / "db", self.header, self.context)
            writer.write(self.records, self.key_groups)
            meta = _put(join(self.target, f"{self.name}-meta"), writer.meta)
            paths = writer.files
            locations = [join(self.target, f"{self.name}-{number}") for number in range(len(paths))]
            files = tuple(
                HandleAndLocalPath(path.name, _upload(path, location))
                for path, location in zip(paths, locations, strict=True)
            )
        self._remove_rest(len(paths))
        size = meta.size + sum(file.handle.size for file in files if isinstance(file.handle, RelativeFileStateHandle))
        handle = IncrementalRemoteKeyedStateHandle(
            checkpoint_id=self.checkpoint_id,
            backend_identifier=str(uuid.uuid4()),
            key_groups=self.key_groups,
            meta_data_state=meta,
            shared_state=(),
            private_state=files,
            persisted_size=size,
            state_handle_id=str(uuid.uuid4()),
        )
        return handle, size

    def _remove_rest(self, number: int) -> None:
        """Remove the files with the numbers from `number` on: leftovers of a failed attempt that wrote more files.

        An attempt writes files in the order of their numbers, so the first missing number ends them.
        """
        while exists(location := join(self.target, f"{self.name}-{number}")):
            remove_file(location)
            number += 1


def _put(location: Location, data: bytes) -> RelativeFileStateHandle:
    with create_file(location, replace=True) as output:
        output.write(data)
    return RelativeFileStateHandle(location.name, len(data))


def _upload(path: Path, location: Location) -> RelativeFileStateHandle:
    return RelativeFileStateHandle(location.name, copy_file(resolve(str(path)), location, replace=True))


_WORTH_PROCESSES = 30_000_000
"""Records from which starting processes pays off, at about half a microsecond per record in a native format."""


@dataclass(frozen=True)
class WrittenSubtask:
    """New keyed state of one subtask.

    Attributes:
        subtask: index of the subtask.
        handle: handle for the metadata; its paths are relative to the directory of the new snapshot.
        states: digests of the records, by name of the state.
        size: bytes written.
    """

    subtask: int
    handle: KeyedStateHandle
    states: dict[str, RecordDigest]
    size: int


@dataclass(frozen=True)
class SubtaskWriting:
    """Task that merges encoded records with the old state of a subtask, and writes files of one format.

    Attributes:
        operator: label of the operator, for errors.
        rewrite: the old file and the spills to merge. Its target is the new file; for RocksDB, it is the beginning of
            the names of the new files.
        format: format of the new files.
        checkpoint_id: checkpoint id of the snapshot.
    """

    operator: str
    rewrite: FileRewrite
    format: Format
    checkpoint_id: int

    @property
    def threads(self) -> int:
        """Number of these tasks that can run concurrently in threads; see `local_processes.Work`.

        Writing native formats holds the interpreter lock, so processes are faster; but starting them pays off only for
        many records.
        """
        base = self.rewrite.base
        records = sum(spill.records for _, spills in self.rewrite.encoded for spill in spills)
        if self.format is not Format.CANONICAL and records > _WORTH_PROCESSES:
            return 1
        return count_kernel_threads([] if base is None else [base])

    def run(self) -> WrittenSubtask:
        """Write the files.

        Raises:
            IncompatibleError: a key occurs twice in a state.
            StateError: a spill or the old state cannot be read.
        """
        with at(operator=self.operator):
            return self._write_canonical() if self.format is Format.CANONICAL else self._write_native()

    def _write_canonical(self) -> WrittenSubtask:
        rewrite = self.rewrite
        written = rewrite.run()
        stream = RelativeFileStateHandle(rewrite.target.name, written.size)
        handle = KeyGroupsSavepointStateHandle(rewrite.key_groups, written.offsets, stream)
        return WrittenSubtask(rewrite.subtask, handle, written.states, written.size)

    def _write_native(self) -> WrittenSubtask:
        rewrite = self.rewrite
        compressed = rewrite.header.compressed and self.format is not Format.ROCKSDB
        records = MergedRecords(rewrite)
        files = NativeFiles(
            records,
            replace(rewrite.header, compressed=compressed),
            rewrite.key_groups,
            rewrite.context,
            parent(rewrite.target),
            rewrite.target.name,
            self.checkpoint_id,
        )
        handle, size = files.write_heap() if self.format is Format.HEAP else files.write_rocksdb()
        return WrittenSubtask(rewrite.subtask, handle, records.states, size)
