"""Spills: framed records in any order on their way to their files, on disk between two stages of work.

The first stage encodes rows of a state (`create_state_spill`) or reads records for other key groups
(`rescale.records`); the second writes the file of a subtask (`write.keyed_rewrite`). Any number of tasks can share
either stage.

A spill is a sequence of blocks (`keyed.canonical.Block`). The data of each block are followed by its index
(`RUN`) and a directory with the offsets of every key group's runs, in the index and in the file. Reading a range of key
groups therefore takes one read of the directory, one of the index and one of the data per block. A spill ends with the
offsets of its blocks and their number.

A task that writes a subtask reads from every block of every spill. Many blocks are therefore merged into one block per
spill (`create_merged_spill`), and spills on other machines are downloaded once (`open_spills`).
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.errors import FormatError, Where
from state_pipelines.keyed.canonical import (
    RUN,
    Block,
    Index,
    RecordBuffer,
    join_blocks,
    join_sides,
    merge_runs,
    size_of_records,
    sum_states,
)
from state_pipelines.keyed.digests import RecordDigest
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.serializers.tree import StateKind
from state_pipelines.storage import Location, create_file, join, read_range, resolve
from state_pipelines.storage.files import file_size
from state_pipelines.storage.locations import Threads, is_local, translating
from state_pipelines.storage.snapshot_writer import open_local_scratch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.keyed.state_table import EncodedRecords, RecordEncoder

_DIRECTORY_ROW = 16
_BLOCK_ROW = 24

TRAILER = 8
"""Bytes of the number of blocks, at the end of a spill."""


@dataclass(frozen=True)
class SpilledBlock:
    """Location of a block in a spill.

    The data of the block are followed by its index (of runs), and that by its directory (of key groups).

    Attributes:
        start: offset of the data.
        size: size of the data in bytes.
        runs: number of runs.
    """

    start: int
    size: int
    runs: int


@dataclass(frozen=True)
class Spill:
    """Temporary file with keyed records of all states, framed and sorted by their new key groups.

    Attributes:
        location: the file.
        max_parallelism: number of the new key groups.
        blocks: the blocks.
        states: by name of the state, digest of its records in the spill, with their new key groups.
        dropped: by name of the state, digest of the records that were left out, with their old key groups.
        found: by name of the state, digest of all records that were read, for the proof; empty unless requested.
    """

    location: Location
    max_parallelism: int
    blocks: tuple[SpilledBlock, ...]
    states: dict[str, RecordDigest] = field(default_factory=dict)
    dropped: dict[str, RecordDigest] = field(default_factory=dict)
    found: dict[str, RecordDigest] = field(default_factory=dict)


@dataclass(frozen=True)
class SpilledRange:
    """The records of a block in a range of key groups: their runs, which say where they are in the file.

    Attributes:
        location: the file.
        key_groups: the range.
        runs: `RUN`[r]; offsets count from the start of the file.
        bounds: i64[key groups + 1], offset in the file at which the data of each key group begin, and the end of all.
    """

    location: Location
    key_groups: KeyGroupRange
    runs: Index
    bounds: npt.NDArray[np.int64]

    @property
    def size(self) -> int:
        """Bytes of the data."""
        return int(self.bounds[-1] - self.bounds[0])

    def read(self, key_groups: KeyGroupRange) -> Block:
        """Read the runs and data of some key groups of the range, which are adjacent in the file.

        In the result, offsets of runs count from the start of the data.
        """
        first, stop = (each - self.key_groups.start for each in (key_groups.start, key_groups.end + 1))
        start, end = int(self.bounds[first]), int(self.bounds[stop])
        low, high = np.searchsorted(self.runs["key_group"], (key_groups.start, key_groups.end + 1))
        runs = self.runs[low:high].copy()
        runs["offset"] -= start
        return Block(np.frombuffer(read_range(self.location, start, end), np.uint8), runs)


def find_blocks(location: Location) -> tuple[SpilledBlock, ...]:
    """Read the locations of the blocks of a spill from the end of the file.

    Raises:
        FormatError: the file is not a spill.
    """
    end = file_size(location) - TRAILER
    count = int.from_bytes(read_range(location, end, end + TRAILER), "little") if end >= 0 else -1
    if not 0 <= count * _BLOCK_ROW <= end:
        raise FormatError(
            "the file is not a spill (a temporary file of sorted records)", where=Where(file=str(location))
        )
    rows = np.frombuffer(read_range(location, end - count * _BLOCK_ROW, end), "<i8").reshape(-1, 3)
    return tuple(SpilledBlock(*row) for row in rows.tolist())


def read_spill(location: Location, blocks: Sequence[SpilledBlock], key_groups: KeyGroupRange) -> Iterator[SpilledRange]:
    """Read the indexes of the blocks of a spill in some key groups; the data are not read yet.

    Raises:
        FormatError: the file is not the spill that was written.
    """
    for block in blocks:
        found = find_range(location, block, key_groups)
        if found is not None:
            yield found


def find_range(location: Location, block: SpilledBlock, key_groups: KeyGroupRange) -> SpilledRange | None:
    """Read the index of a block in some key groups; None if the block has no runs there. Raises as `read_spill`."""
    index = block.start + block.size
    position = index + block.runs * RUN.itemsize + key_groups.start * _DIRECTORY_ROW
    raw = read_range(location, position, position + (len(key_groups) + 1) * _DIRECTORY_ROW)
    directory = np.frombuffer(raw, "<i8").reshape(-1, 2).astype(np.int64)
    rows, bounds = directory[:, 0], directory[:, 1]
    inside = 0 <= rows[0] <= rows[-1] <= block.runs and block.start <= bounds[0] <= bounds[-1] <= index
    if not inside or (np.diff(rows) < 0).any() or (np.diff(bounds) < 0).any():
        raise FormatError("the directory of a spill is damaged", where=Where(file=str(location)))
    if rows[0] == rows[-1]:
        return None
    start, end = (index + int(row) * RUN.itemsize for row in (rows[0], rows[-1]))
    found = SpilledRange(location, key_groups, np.frombuffer(read_range(location, start, end), RUN), bounds)
    if not _is_index(found, rows - rows[0]):
        raise FormatError("the index of a spill is damaged", where=Where(file=str(location), offset=start))
    return found


def _is_index(found: SpilledRange, rows: npt.NDArray[np.int64]) -> bool:
    """Return whether the runs of a block agree with the block's directory, which locates the runs of each key group.

    `rows` has the index of the first run of each key group, then the number of runs. The check is necessary because
    kernels copy the bytes that runs name without checking bounds.
    """
    runs, key_groups = found.runs, found.key_groups
    groups, sizes, lasts = runs["key_group"], runs["size"], runs["last"]
    ordered = np.diff(groups.astype(np.int64) << 32 | runs["state"]) > 0
    offsets = np.append(runs["offset"], found.bounds[-1])
    return bool(
        ordered.all()
        and np.array_equal(np.searchsorted(groups, np.arange(key_groups.start, key_groups.end + 2)), rows)
        and np.array_equal(np.diff(offsets), sizes)
        and np.array_equal(offsets[rows], found.bounds)
        and ((lasts >= 0) & (lasts < sizes)).all()
    )


BLOCK = 32 << 20
"""Bytes of records that are sorted in memory and written as one block."""

BATCH = 16 << 20
"""Bytes of records that are joined to sections at a time, unless one key group has more; see `choose_batch`."""

_MOST = 64 << 20
"""Largest result of `choose_batch`, in bytes."""

_SHARE = 32 << 10
"""Bytes that a batch should read from each block: reading fewer bytes takes as long."""

_READERS = 8
"""Blocks that are read at a time from a storage that is not local; each reader holds up to `BATCH` bytes."""


@dataclass
class BlockWriter:
    """Writes the blocks of a spill.

    Attributes:
        output: file that the bytes are written to.
        max_parallelism: number of the new key groups.
    """

    output: IO[bytes]
    max_parallelism: int
    _blocks: list[SpilledBlock] = field(default_factory=list)
    _position: int = 0
    _start: int = 0

    def write(self, data: bytes | memoryview) -> None:
        """Write some or all data of the current block."""
        self._position += self.output.write(data)

    def end_block(self, runs: Index) -> None:
        """End the current block: write its index and directory after its data.

        Args:
            runs: `RUN`[r], at least one, in the order of the data; their offsets are set here.
        """
        block = SpilledBlock(self._start, self._position - self._start, len(runs))
        ends = block.start + np.cumsum(runs["size"])
        runs["offset"] = ends - runs["size"]
        directory = np.empty((self.max_parallelism + 1, 2), "<i8")
        directory[:, 0] = np.searchsorted(runs["key_group"], np.arange(self.max_parallelism + 1))
        directory[:, 1] = np.append(runs["offset"], ends[-1])[directory[:, 0]]
        self._blocks.append(block)
        self.write(runs.view(np.uint8).data)
        self.write(directory.reshape(-1).view(np.uint8).data)
        self._start = self._position

    def finish(self) -> tuple[SpilledBlock, ...]:
        """Write the table of the blocks at the end of the file, and return it."""
        rows = np.array([(each.start, each.size, each.runs) for each in self._blocks], "<i8").reshape(-1, 3)
        self.write(rows.tobytes() + len(rows).to_bytes(TRAILER, "little"))
        return tuple(self._blocks)


@dataclass
class SpillWriter:
    """Sorts records into the blocks of a spill; see `create_spill`.

    Attributes:
        output: writer of the blocks.
        buffer: records that are not written yet.
        states: digests of the written records, by id of the state.
        blocks: locations of the blocks; empty until the spill is finished.
    """

    output: BlockWriter
    buffer: RecordBuffer
    states: dict[int, RecordDigest] = field(default_factory=dict)
    blocks: tuple[SpilledBlock, ...] = ()

    def add(self, state: int, records: KeyedRecords) -> None:
        """Add records of a state, whose key groups are the new ones."""
        # Add the records in slices: together they may be larger than the buffer, for instance those of a compressed key
        # group, which are read at once.
        batches = size_of_records(records) // self.buffer.limit + 1
        rows = len(records) // batches + 1
        for start in range(0, len(records), rows):
            self.buffer.add(state, records.cut(start, start + rows))
            if self.buffer.is_full:
                self.flush()

    def flush(self) -> None:
        """Write the buffered records as a block."""
        block = self.buffer.sort(KeyGroupRange(0, self.output.max_parallelism))
        if not len(block.runs):
            return
        self.output.write(block.data.data)
        self.output.end_block(block.runs)
        for state, digest in sum_states(block.runs).items():
            self.states[state] = self.states.get(state, RecordDigest()) + digest


@contextmanager
def create_spill(location: Location, buffer: RecordBuffer, max_parallelism: int) -> Iterator[SpillWriter]:
    """Create a spill, replacing leftovers of a failed attempt; it is complete when the context ends without an error.

    Raises:
        StateError: the storage refuses to write.
    """
    with create_file(location, replace=True) as output:
        writer = SpillWriter(BlockWriter(output, max_parallelism), buffer)
        yield writer
        writer.flush()
        writer.blocks = writer.output.finish()


@contextmanager
def create_merged_spill(
    location: Location, buffer: RecordBuffer, max_parallelism: int, batch: int = BATCH
) -> Iterator[SpillWriter]:
    """Create a spill with a single block: blocks are first written to a local temporary file, and merged at the end.

    Args:
        location: the spill.
        buffer: see `create_spill`.
        max_parallelism: see `create_spill`.
        batch: see `merge_blocks`.

    Raises:
        FormatError: the file in the temporary directory has changed.
        StateError: the storage, or the temporary directory, refuses.
    """
    with _make_scratch() as scratch:
        with create_spill(scratch, buffer, max_parallelism) as writer:
            yield writer
        writer.blocks = merge_blocks(scratch, writer.blocks, location, max_parallelism, batch)


def merge_blocks(
    source: Location, blocks: Sequence[SpilledBlock], target: Location, max_parallelism: int, batch: int = BATCH
) -> tuple[SpilledBlock, ...]:
    """Merge the blocks of a spill into a new spill with one block, which has one run for each key group and state.

    Args:
        source: the old spill, which is local, because it is read in many small ranges.
        blocks: blocks of the old spill; in a new run, records of an earlier block come first.
        target: the new spill; leftovers of a failed attempt are replaced.
        max_parallelism: number of the new key groups.
        batch: bytes of records that are joined at a time; a larger key group is copied in chunks of this size.

    Returns:
        The new block in a tuple; an empty tuple if there are no records.

    Raises:
        FormatError: the old file is not the spill that was written.
        StateError: the storage refuses to read or write.
    """
    with create_file(target, replace=True) as output:
        writer = BlockWriter(output, max_parallelism)
        indexes: list[Index] = []
        # With many key groups, even the indexes of all blocks may not fit into memory together.
        count = sum(block.runs for block in blocks) * RUN.itemsize // batch + 1
        step = -(-max_parallelism // count)
        for start in range(0, max_parallelism, step):
            key_groups = KeyGroupRange(start, min(step, max_parallelism - start))
            ranges = list(read_spill(source, blocks, key_groups))
            for window, is_large in cut_windows(ranges, batch):
                if is_large:
                    for run, chunks in stream_runs(ranges, window.start, batch):
                        indexes.append(run)
                        for chunk in chunks:
                            writer.write(chunk)
                else:
                    block = join_blocks([each.read(window) for each in ranges])
                    indexes.append(block.runs)
                    writer.write(block.data.data)
        if indexes:
            writer.end_block(np.concatenate(indexes))
        return writer.finish()


@contextmanager
def open_spills(
    sources: Sequence[Sequence[Spill]], key_groups: KeyGroupRange
) -> Iterator[list[tuple[int, SpilledRange]]]:
    """Open the contents of spills in some key groups, to be read a few key groups at a time.

    Local spills are read in place. Remote storage takes as long to read a few bytes as a few MiB, so the wanted bytes
    of each block are first copied, up to `BATCH` bytes per read, to a local temporary file, which is removed at the
    end.

    Args:
        sources: the spills of each source.
        key_groups: the range.

    Yields:
        One list of (index of the source, runs of a block), in the order of sources, spills and blocks.

    Raises:
        FormatError: a file is not the spill that was written.
        StateError: a spill cannot be read, or the temporary directory has no space.
    """
    blocks = [
        (source, spill.location, block)
        for source, spills in enumerate(sources)
        for spill in spills
        for block in spill.blocks
    ]

    def find(located: tuple[int, Location, SpilledBlock]) -> tuple[int, SpilledRange | None]:
        source, location, block = located
        return source, find_range(location, block, key_groups)

    if all(is_local(location) for _, location, _ in blocks):
        yield [(source, each) for source, each in map(find, blocks) if each is not None]
        return
    with _make_scratch() as scratch:
        with Threads(_READERS) as pool:
            found = [(source, each) for source, each in pool.map(find, blocks) if each is not None]
            ends = np.cumsum([each.size for _, each in found], dtype=np.int64)
            starts = [0, *ends[:-1].tolist()]
            with translating(scratch, "write the file", writes=True):
                Path(scratch.path).touch()
            fetched = list(pool.map(partial(_fetch, scratch), [each for _, each in found], starts))
        yield [(source, each) for (source, _), each in zip(found, fetched, strict=True)]


def _fetch(scratch: Location, wanted: SpilledRange, offset: int) -> SpilledRange:
    """Copy the data of a range to an offset of the existing local file; return the range with its new location."""
    start, end = int(wanted.bounds[0]), int(wanted.bounds[-1])
    with translating(scratch, "write the file", writes=True), Path(scratch.path).open("r+b") as file:
        file.seek(offset)
        for position in range(start, end, BATCH):
            file.write(read_range(wanted.location, position, min(position + BATCH, end)))
    runs = wanted.runs.copy()
    runs["offset"] += offset - start
    return replace(wanted, location=scratch, runs=runs, bounds=wanted.bounds + (offset - start))


@contextmanager
def _make_scratch() -> Iterator[Location]:
    """Yield the location of a file to be created, in a temporary directory that is removed afterwards."""
    with open_local_scratch() as directory:
        yield join(resolve(str(directory)), "spill")


def choose_batch(blocks: int) -> int:
    """Choose how many bytes of records to join at a time: `BATCH`, or more if they come from many blocks.

    Each batch takes one read of each block. With thousands of blocks, each read would be of a few KiB only.
    """
    return min(_MOST, max(BATCH, blocks * _SHARE))


def cut_windows(ranges: Sequence[SpilledRange], size: int) -> Iterator[tuple[KeyGroupRange, bool]]:
    """Cut key groups into windows of about `size` bytes, whose records are joined at a time.

    Args:
        ranges: ranges of blocks, all with the same key groups.
        size: most bytes of a window, unless a single key group has more.

    Yields:
        (key groups, whether it is a single one of more than twice `size`). Some key groups without records are left
        out.
    """
    if not ranges:
        return
    key_groups = ranges[0].key_groups
    sizes = np.zeros(len(key_groups), np.int64)
    for found in ranges:
        sizes += np.diff(found.bounds)
    first = total = 0
    for number, each in enumerate(sizes.tolist()):
        if total and total + each > size:
            yield KeyGroupRange(key_groups.start + first, number - first), total > 2 * size
            total = 0
        if not total:
            # Begin the window at a key group with records, so that one that is too large is alone in its window.
            first = number
        total += each
    if total:
        yield KeyGroupRange(key_groups.start + first, len(key_groups) - first), total > 2 * size


def stream_runs(ranges: Sequence[SpilledRange], key_group: int, size: int) -> Iterator[tuple[Index, Iterator[bytes]]]:
    """Read a key group that is too large to be held in memory; merge the runs of each state into one.

    Args:
        ranges: ranges of blocks, at least one of which has the key group.
        key_group: the key group, which is inside all ranges.
        size: bytes of a chunk.

    Yields:
        (`RUN`[1] of a state, its bytes in chunks), ascending by state.
    """
    found = [each.runs[each.runs["key_group"] == key_group] for each in ranges]
    locations = [each.location for each, runs in zip(ranges, found, strict=True) for _ in runs]
    runs = np.concatenate(found)
    order, merged = merge_runs(runs)
    for number in range(len(merged)):
        run = merged[number : number + 1]
        mine = [each for each in order.tolist() if runs["state"][each] == run["state"][0]]
        yield run, _read_chunks([(locations[each], runs[each]) for each in mine], size)


def _read_chunks(runs: Sequence[tuple[Location, np.void]], size: int) -> Iterator[bytes]:
    for location, run in runs:
        start, end = int(run["offset"]), int(run["offset"] + run["size"])
        for position in range(start, end, size):
            yield read_range(location, position, min(position + size, end))


@dataclass(frozen=True)
class StateSpill:
    """Spill with encoded records of a single state.

    Attributes:
        location: the file, in which the state has the id 0.
        records: number of records.
        key_groups: smallest range that has the key groups of all records.
    """

    location: Location
    records: int
    key_groups: KeyGroupRange


@dataclass
class StateSpillWriter:
    """Writes records of one state into a spill; see `create_state_spill`.

    Attributes:
        encoder: encoder of the state.
        target: the file.
        spill: writer of the spill.
        records: number of records so far.
        first: lowest key group so far.
        last: highest key group so far.
    """

    encoder: RecordEncoder
    target: Location
    spill: SpillWriter
    records: int = 0
    first: int = 0
    last: int = -1

    def add(self, rows: EncodedRecords) -> None:
        """Add encoded rows, at least one."""
        self.spill.add(0, join_sides(rows.key_groups, rows.keys, rows.values))
        lowest, highest = int(rows.key_groups.min()), int(rows.key_groups.max())
        self.first = min(self.first, lowest) if self.records else lowest
        self.last = max(self.last, highest)
        self.records += len(rows.key_groups)

    @property
    def written(self) -> StateSpill:
        """The spill, once it is written."""
        return StateSpill(self.target, self.records, KeyGroupRange(self.first, self.last - self.first + 1))


@contextmanager
def create_state_spill(encoder: RecordEncoder, target: Location, limit: int) -> Iterator[StateSpillWriter]:
    """Create a spill for records of one state, replacing leftovers of a failed attempt.

    Args:
        encoder: encoder of the state.
        target: the file.
        limit: bytes of records that are held in memory.

    Raises:
        StateError: the storage refuses to write.
    """
    maps = frozenset([0] if encoder.layout.state_type == StateKind.MAP else [])
    buffer = RecordBuffer(encoder.prefix, maps, limit)
    with create_spill(target, buffer, encoder.layout.max_parallelism) as spill:
        yield StateSpillWriter(encoder, target, spill)


def write_state_spill(encoder: RecordEncoder, batches: Iterable[pa.RecordBatch], target: Location) -> StateSpill:
    """Encode rows of one state into a spill.

    Args:
        encoder: encoder of the state.
        batches: rows in any order, but all rows of one list are adjacent.
        target: the file; leftovers of a failed attempt are replaced.

    Raises:
        ValueRangeError: a value does not fit the state's serializer.
    """
    with create_state_spill(encoder, target, BLOCK) as writer:
        for rows in encoder.encode(batches):
            writer.add(rows)
    return writer.written
