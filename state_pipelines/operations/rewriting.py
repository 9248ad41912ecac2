"""New files of keyed state: some states encoded anew, all others copied as bytes.

Two steps, each of which any number of tasks can share. `write_part` encodes rows of one state into a part file, in
whatever order they come; `merge_parts` writes the final file of one subtask from parts and from the old file. Nothing
but one key group (and one batch) is held in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state_pipelines.errors import FormatError, Where, at
from state_pipelines.keyed.canonical import CanonicalWriter, frame_run, reframe
from state_pipelines.keyed.framing import FLAG
from state_pipelines.keyed.raw_timers import RawTimersFile
from state_pipelines.metadata.keyed import KeyGroupsSavepointStateHandle
from state_pipelines.operations.publishing import make_file_name
from state_pipelines.storage import Location, create_file, join, read_range
from state_pipelines.storage.files import file_size, remove_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from state_pipelines.codecs.columnar import Encoded
    from state_pipelines.keyed.encoding import RecordEncoder
    from state_pipelines.keyed.files import KeyedFile, RecordContext, Runs
    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.records import KeyedRecords
    from state_pipelines.metadata.key_groups import KeyGroupRange
    from state_pipelines.snapshot import Operator

INDEX_SCHEMA = pa.schema(
    [
        ("key_group", pa.int32()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("last", pa.int64()),
        ("records", pa.int64()),
    ]
)
"""Runs of a part file: key group, position, bytes, position of the last record's first key byte in the run."""

_TRAILER = 8


@dataclass(frozen=True)
class PartFile:
    """Encoded records of one state that wait to be merged.

    Attributes:
        location: the file: runs, then their index, then its size.
        records: how many.
    """

    location: Location
    records: int


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
    """A file that `merge_parts` wrote.

    Attributes:
        offsets: position per key group of the range.
        size: bytes.
        records: by new state id.
    """

    subtask: int
    offsets: tuple[int, ...]
    size: int
    records: tuple[tuple[int, int], ...]


def write_part(encoder: RecordEncoder, batches: Iterable[pa.RecordBatch], target: Location) -> PartFile:
    """Encode rows of one state into a part file.

    Args:
        encoder: knows the layouts.
        batches: rows in any order; the rows of one list follow each other inside one task.
        target: the file, which must not exist.

    Raises:
        ValueRangeError: a value has no place in the state's serializer.
    """
    index: list[tuple[int, int, int, int, int]] = []
    position = total = 0
    with create_file(target) as output:
        for rows in encoder.encode(batches):
            for key_group, run, last in _frame_by_key_group(rows.key_groups, rows.keys, rows.values, encoder.prefix):
                output.write(run.data.data)
                index.append((key_group, position, len(run.data), last, run.records))
                position += len(run.data)
                total += run.records
        columns = list(zip(*index, strict=True)) if index else [()] * len(INDEX_SCHEMA)
        arrays = [pa.array(column, each.type) for column, each in zip(columns, INDEX_SCHEMA, strict=True)]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, INDEX_SCHEMA) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=INDEX_SCHEMA))
        raw = sink.getvalue()
        output.write(memoryview(raw))
        output.write(len(raw).to_bytes(_TRAILER, "big"))
    return PartFile(target, total)


@dataclass(frozen=True)
class _Run:
    data: npt.NDArray[np.uint8]
    records: int


def _frame_by_key_group(
    key_groups: npt.NDArray[np.int32], keys: Encoded, values: Encoded, prefix: int
) -> Iterable[tuple[int, _Run, int]]:
    order = np.argsort(key_groups, kind="stable")
    bounds = np.flatnonzero(np.diff(key_groups[order])) + 1
    for rows in np.split(order, bounds) if len(order) else ():
        key_group = int(key_groups[rows[0]])
        key_spans = (keys.starts[rows], keys.stops[rows])
        value_spans = (values.starts[rows], values.stops[rows])
        run = frame_run(key_group, prefix, keys.data, key_spans, values.data, value_spans, last=False)
        tail = int(key_spans[1][-1] - key_spans[0][-1] + value_spans[1][-1] - value_spans[0][-1]) + 4 + prefix
        yield key_group, _Run(run, len(rows)), len(run) - tail


def read_part_index(part: PartFile) -> pa.Table:
    """The runs of a part file (`INDEX_SCHEMA`)."""
    end = file_size(part.location)
    size = int.from_bytes(read_range(part.location, end - _TRAILER, end), "big")
    if not 0 <= size <= end - _TRAILER:
        raise FormatError("the part file has no index", where=Where(file=str(part.location)))
    raw = read_range(part.location, end - _TRAILER - size, end - _TRAILER)
    return pa.ipc.open_stream(raw).read_all()


def merge_parts(rewrite: FileRewrite) -> WrittenFile:
    """Write the file of one subtask, key group after key group.

    Raises:
        FormatError: the old file gives a key group twice or out of order.
        StateError: the old file cannot be read, or the new one cannot be written.
    """
    runs = _find_runs(rewrite)
    copied = {old_id: new_id for new_id, old_id in rewrite.copied}
    counts: dict[int, int] = dict.fromkeys(range(len(rewrite.header.states)), 0)
    # Whatever an attempt that died has left is ours: nobody else knows the name.
    remove_file(rewrite.target)
    with create_file(rewrite.target) as output:
        writer = CanonicalWriter(output, rewrite.header, rewrite.key_groups, rewrite.context.prefix)
        for key_group, old in align_key_groups(rewrite.base, rewrite.context, rewrite.key_groups):
            sections: list[tuple[int, Sequence[npt.NDArray[np.uint8]]]] = []
            for old_id, pieces in _by_state(old):
                if old_id in copied:
                    framed = reframe_all(pieces, key_group, rewrite.context.prefix)
                    sections.append((copied[old_id], framed))
                    counts[copied[old_id]] += sum(len(piece) for piece in pieces)
            for state_id, found in runs.get(key_group, []):
                sections.append((state_id, _read_runs(found)))
                counts[state_id] += sum(records for *_, records in found)
            writer.write_key_group(key_group, sorted(sections, key=lambda each: each[0]))
        return WrittenFile(rewrite.subtask, writer.offsets, writer.size, tuple(counts.items()))


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


_Found = list[tuple[Location, int, int, int, int]]


def _find_runs(rewrite: FileRewrite) -> dict[int, list[tuple[int, _Found]]]:
    """By key group: (state id, [(file, offset, size, last, records)])."""
    runs: dict[int, dict[int, _Found]] = {}
    for state_id, parts in rewrite.encoded:
        for part in parts:
            index = read_part_index(part)
            for key_group, offset, size, last, records in zip(*(column.to_pylist() for column in index), strict=True):
                if key_group in rewrite.key_groups:
                    found = runs.setdefault(key_group, {}).setdefault(state_id, [])
                    found.append((part.location, offset, size, last, records))
    return {key_group: list(states.items()) for key_group, states in runs.items()}


def _read_runs(found: _Found) -> list[npt.NDArray[np.uint8]]:
    pieces = [
        np.frombuffer(read_range(location, offset, offset + size), np.uint8) for location, offset, size, _, _ in found
    ]
    # Only the very last record of a state in a key group says that another state id follows.
    final = pieces[-1].copy()
    final[found[-1][3]] |= FLAG
    return [*pieces[:-1], final]


def _by_state(pieces: list[tuple[int, KeyedRecords]]) -> Iterable[tuple[int, list[KeyedRecords]]]:
    grouped: dict[int, list[KeyedRecords]] = {}
    for state_id, records in pieces:
        grouped.setdefault(state_id, []).append(records)
    return grouped.items()


def reframe_all(pieces: list[KeyedRecords], key_group: int, prefix: int) -> list[npt.NDArray[np.uint8]]:
    """All records of one state in one key group, framed."""
    with at(file=pieces[0].file):
        return [reframe(piece, key_group, prefix, last=piece is pieces[-1]) for piece in pieces]
