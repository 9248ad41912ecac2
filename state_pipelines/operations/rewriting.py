"""New files of keyed state: some states encoded anew, all others copied as bytes.

Two steps, each of which any number of tasks can share. `write_part` encodes rows of one state into a part file (a
spill), in whatever order they come; `merge_parts` writes the final file of one subtask from parts and from the old
file. One block of records is held in memory, or one key group where that is larger.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.errors import FormatError, Where
from state_pipelines.keyed.canonical import CanonicalWriter
from state_pipelines.keyed.digest import RecordDigest, sum_digests
from state_pipelines.keyed.raw_timers import RawTimersFile
from state_pipelines.keyed.runs import RecordBuffer, gather_runs, join_runs, join_sides, sum_runs
from state_pipelines.metadata.key_groups import KeyGroupRange
from state_pipelines.metadata.keyed import KeyGroupsSavepointStateHandle
from state_pipelines.operations.publishing import make_file_name
from state_pipelines.operations.spills import BATCH, BLOCK, create_spill, find_blocks, read_spill
from state_pipelines.storage import Location, create_file, join
from state_pipelines.storage.files import remove_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from state_pipelines.keyed.encoding import RecordEncoder
    from state_pipelines.keyed.files import KeyedFile, RecordContext, Runs
    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.snapshot import Operator


@dataclass(frozen=True)
class PartFile:
    """Encoded records of one state that wait to be merged.

    Attributes:
        location: the file, a spill in which the state has the id 0.
        records: how many.
        key_groups: range outside of which none of them lies.
    """

    location: Location
    records: int
    key_groups: KeyGroupRange


@dataclass(frozen=True)
class FileRewrite:
    """The new file of one subtask.

    Attributes:
        subtask: index of the subtask.
        base: the old file; None when there was none.
        header: of the new file.
        copied: (new state id, old state id) of the states that are copied as bytes.
        encoded: (new state id, parts) of the states that are encoded anew; parts may hold other key groups too.
        key_groups: range of the subtask.
        context: what finding the records of the old file takes.
        target: the new file.
    """

    subtask: int
    base: KeyedFile | None
    header: KeyedHeader
    copied: tuple[tuple[int, int], ...]
    encoded: tuple[tuple[int, tuple[PartFile, ...]], ...]
    key_groups: KeyGroupRange
    context: RecordContext
    target: Location

    def run(self) -> WrittenFile:
        """Write it."""
        return merge_parts(self)


def copy_states(
    subtask: int, file: KeyedFile, header: KeyedHeader, context: RecordContext, target: Location
) -> FileRewrite:
    """The rewrite of a subtask that changes nothing but the format and what else `header` says; all states stay."""
    states = tuple((each, each) for each in range(len(header.states)))
    return FileRewrite(subtask, file, header, states, (), file.key_groups, context, target)


def complete_rewrites(operator: Operator, rewrites: Sequence[FileRewrite], directory: Location) -> list[FileRewrite]:
    """The rewrites of some subtasks of an operator, and those that its other subtasks need.

    What is written is canonical, and Flink takes one format per operator only: the first handle chooses (see
    `HeapKeyedStateBackendBuilder`, `RocksDBKeyedStateBackendBuilder`). Subtasks in other formats become canonical too.

    Args:
        operator: the operator.
        rewrites: at most one per subtask.
        directory: of the new files.

    Raises:
        StateError: keyed state cannot be read.
    """
    known = {rewrite.subtask for rewrite in rewrites}
    handles = {subtask.index: subtask.managed_keyed_state for subtask in operator.metadata.subtasks}
    others = [
        copy_states(index, file, file.header, operator.record_context, join(directory, make_file_name()))
        for index, file in operator.keyed_files
        # Timers in raw keyed state stay where they are; every backend restores them.
        if not isinstance(file, RawTimersFile)
        and index not in known
        and not isinstance(handles[index], KeyGroupsSavepointStateHandle)
    ]
    return [*rewrites, *others] if rewrites else []


@dataclass(frozen=True)
class WrittenFile:
    """A new file of one subtask.

    Attributes:
        offsets: position per key group of the range.
        size: bytes.
        records: by new state id.
        states: what it holds of each state, by name, where that was counted.
        dropped: what was left out of each state by choice of keys.
        duplicates: what was left out of each state because another snapshot has the same key.
    """

    subtask: int
    offsets: tuple[int, ...]
    size: int
    records: tuple[tuple[int, int], ...]
    states: dict[str, RecordDigest] = field(default_factory=dict)
    dropped: dict[str, RecordDigest] = field(default_factory=dict)
    duplicates: dict[str, RecordDigest] = field(default_factory=dict)


def write_part(encoder: RecordEncoder, batches: Iterable[pa.RecordBatch], target: Location) -> PartFile:
    """Encode rows of one state into a part file.

    Args:
        encoder: knows the layouts.
        batches: rows in any order; the rows of one list follow each other inside one task.
        target: the file; what an attempt that died has left is replaced.

    Raises:
        ValueRangeError: a value has no place in the state's serializer.
    """
    max_parallelism = encoder.layout.max_parallelism
    maps = frozenset([0] if encoder.layout.state_type == "MAP" else [])
    records, first, last = 0, max_parallelism, -1
    with create_spill(target, RecordBuffer(encoder.prefix, maps, BLOCK), max_parallelism) as spill:
        for rows in encoder.encode(batches):
            spill.add(0, join_sides(rows.key_groups, rows.keys, rows.values))
            records += len(rows.key_groups)
            first, last = min(first, int(rows.key_groups.min())), max(last, int(rows.key_groups.max()))
    return PartFile(target, records, KeyGroupRange(first, last - first + 1) if records else KeyGroupRange(0, 0))


def merge_parts(rewrite: FileRewrite) -> WrittenFile:
    """Write the file of one subtask, some key groups at a time.

    Raises:
        FormatError: the old file gives a key group twice or out of order.
        StateError: the old file cannot be read, or the new one cannot be written.
    """
    merging = _Merging(rewrite)
    copied = {old_id: new_id for new_id, old_id in rewrite.copied}
    # Whatever an attempt that died has left is ours: nobody else knows the name.
    remove_file(rewrite.target)
    with create_file(rewrite.target) as output:
        writer = CanonicalWriter(output, rewrite.header, rewrite.key_groups, rewrite.context.prefix)
        for key_group, old in align_key_groups(rewrite.base, rewrite.context, rewrite.key_groups):
            if merging.is_full(key_group):
                merging.write(writer, key_group)
            for old_id, records in old:
                if old_id in copied:
                    merging.buffer.add(copied[old_id], records)
        merging.write(writer, rewrite.key_groups.end + 1)
    counts = tuple((number, merging.states[info.name].records) for number, info in enumerate(rewrite.header.states))
    return WrittenFile(rewrite.subtask, writer.offsets, writer.size, counts, merging.states)


class _Merging:
    """What `merge_parts` holds."""

    def __init__(self, rewrite: FileRewrite) -> None:
        self.names = {number: info.name for number, info in enumerate(rewrite.header.states)}
        maps = frozenset(number for number, info in enumerate(rewrite.header.states) if info.state_type == "MAP")
        self.buffer = RecordBuffer(rewrite.context.prefix, maps, BATCH)
        self.parts = [
            (state_id, each)
            for state_id, parts in rewrite.encoded
            for part in parts
            if part.key_groups.intersect(rewrite.key_groups)
            for each in read_spill(part.location, find_blocks(part.location), rewrite.key_groups)
        ]
        self.start = self.first = rewrite.key_groups.start
        # Bytes of all parts in front of each key group.
        self.bounds = np.zeros(len(rewrite.key_groups) + 1, np.int64)
        for _, each in self.parts:
            self.bounds += each.bounds - each.bounds[0]
        self.states = dict.fromkeys(self.names.values(), RecordDigest())

    def is_full(self, key_group: int) -> bool:
        """Whether the key groups before this one that are not written yet make a batch."""
        spilled = self.bounds[key_group - self.start] - self.bounds[self.first - self.start]
        return self.first < key_group and self.buffer.size + int(spilled) >= BATCH

    def write(self, writer: CanonicalWriter, end: int) -> None:
        """Write the sections before a key group."""
        key_groups = KeyGroupRange(self.first, end - self.first)
        blocks = [self.buffer.sort(key_groups)]
        for state_id, part in self.parts:
            block = part.read(key_groups)
            block.runs["state"] = state_id
            blocks.append(block)
        self.states = sum_digests([self.states, sum_runs([block.runs for block in blocks], self.names)])
        writer.write_sections(*join_runs(gather_runs([(0, block) for block in blocks])))
        self.first = end


def align_key_groups(
    file: KeyedFile | None, context: RecordContext, key_groups: KeyGroupRange
) -> Iterator[tuple[int, Runs]]:
    """Every key group of a range in ascending order, and what a file has of it: nothing where it has none.

    Raises:
        FormatError: the file gives a key group twice, out of order or from elsewhere.
        StateError: the file cannot be read.
    """
    found = iter(()) if file is None else file.scan_key_groups(context, key_groups)
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
