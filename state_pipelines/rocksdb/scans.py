"""Scans of tables: the entries of a column family by key, and the verification of all blocks.

* `DirectTables`, `PlannedTables`, `open_tables`: tables while they are scanned: opened, and their blocks read in the
  order in which scans need them. On this machine a table is opened, and a range of it is read, when a scan needs it. On
  another storage a plan follows from the bounds in the MANIFEST and the indexes of the tables: all ranges of all tables
  by their first key. They are fetched along this plan, some of them ahead (`storage.reading`).
* `scan`, `ColumnFamilyScans`: the entries of a column family, by key, as a reader of the database would see them. A
  chunk of the key space after the other: the blocks of all tables in it are read and parsed, their entries merged where
  tables overlap, and the versions of a key resolved (`MergeHelper`, `GetContext` and `DBIter` of RocksDB).
* `verify_table`: the verification of all blocks.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from state_pipelines.errors import FormatError, StateError, UnsupportedError, Where
from state_pipelines.rocksdb.kernels import (
    BAD_BLOCK,
    HAS_MERGES,
    MESSAGES,
    count_entries,
    find_key,
    merge_runs,
    parse_entries,
    resolve_versions,
    write_resolved,
)
from state_pipelines.rocksdb.table import (
    TRAILER_SIZE,
    RangeTombstone,
    Table,
    check_entries,
    check_keys,
    decode_blocks,
    find_blocks,
    find_tail_size,
    open_table,
    verify_blocks,
)
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.reading import read_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from state_pipelines.rocksdb.manifest import ColumnFamily, TableFile
    from state_pipelines.storage import Location

CAPACITY = 32 << 20
"""Default capacity in bytes of a cache of indexes and small tables; a table of 64 MiB has an index of about 1 MiB."""


class TableCache:
    """Cache of opened tables that drops the least recently used ones. Threads may share it.

    A pickled cache is empty in the other process.

    Args:
        capacity: maximum bytes of the tables in the cache.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._tables: dict[TableFile, Table] = {}
        self._size = 0
        self._lock = Lock()
        self._opening: dict[TableFile, Lock] = {}

    def open(self, file: TableFile) -> Table:
        """Return the table of a file, opening it if necessary; arguments and errors as for `open_table`."""
        with self._lock:
            if (table := self._find(file)) is not None:
                return table
            opening = self._opening.setdefault(file, Lock())
        # If several threads need the table, one opens it and the others wait.
        with opening:
            with self._lock:
                table = self._find(file)
            try:
                return self._keep(file, open_table(file)) if table is None else table
            finally:
                with self._lock:
                    self._opening.pop(file, None)

    def _find(self, file: TableFile) -> Table | None:
        table = self._tables.pop(file, None)
        if table is not None:
            # Move the table to the end of the cache: the least recently used ones, at its beginning, are dropped first.
            self._tables[file] = table
        return table

    def _keep(self, file: TableFile, table: Table) -> Table:
        with self._lock:
            if file not in self._tables:
                self._tables[file] = table
                self._size += table.held
            while self._size > self._capacity:
                oldest = next(iter(self._tables))
                self._size -= self._tables.pop(oldest).held
        return table

    def __reduce__(self) -> tuple[type[TableCache], tuple[int]]:
        return TableCache, (self._capacity,)


READ_SIZE = 4 << 20
"""Bytes that are read ahead of a scan, in all overlapping tables together."""

_LEAST_READ = 1 << 20
"""Minimum bytes of a request for a table on storage that is not local."""

_GAP = 1 << 16
"""Largest gap in bytes between wanted blocks that is read, too, because another request would cost more."""


class KeyRange(NamedTuple):
    """Keys from `start` up to `end` (exclusive; None: to the last)."""

    start: bytes
    end: bytes | None


class ColumnFamilyRanges(NamedTuple):
    """Keys of a column family: ranges in ascending order that do not overlap."""

    column_family: ColumnFamily
    ranges: tuple[KeyRange, ...]


class TableRange(NamedTuple):
    """Adjacent blocks of a table that are read with one request.

    Attributes:
        number: index of the column family among those that are scanned.
        table: the table.
        start: offset of the first byte in the file.
        end: offset after the last byte.
    """

    number: int
    table: Table
    start: int
    end: int


class TableReader(ABC):
    """Reader of a table that is being scanned, with the range of the file that was read last.

    Attributes:
        table: the table.
        entries: number of entries that the scan has found in the table so far.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.entries = 0
        self._start = 0
        self._raw = b""

    def read(self, start: int, end: int, size: int) -> memoryview:
        """Return the bytes of the file from `start` up to `end`, which are whole blocks.

        Args:
            start: offset of the first byte, not below that of earlier calls.
            end: offset after the last byte.
            size: minimum size of a request, if one is needed.

        Raises:
            FormatError: the file ends before `end`.
            MissingFileError: the file does not exist.
        """
        found: list[memoryview] = []
        while True:
            stop = min(end, self._start + len(self._raw))
            if self._start <= start < stop:
                found.append(memoryview(self._raw)[start - self._start : stop - self._start])
                start = stop
            if start >= end:
                # Bytes are copied only if they come from several ranges.
                return found[0] if len(found) == 1 else memoryview(b"".join(found))
            self._start, self._raw = self._fetch(start, end, size)

    @abstractmethod
    def _fetch(self, start: int, end: int, size: int) -> tuple[int, bytes]:
        """Fetch the next range; return its start and its bytes."""


class DirectTableReader(TableReader):
    """Reader of a table whose ranges are read on demand.

    Args:
        table: the table.
        limit: end of the last block that the scan may need.
    """

    def __init__(self, table: Table, limit: int) -> None:
        super().__init__(table)
        self._limit = limit

    def _fetch(self, start: int, end: int, size: int) -> tuple[int, bytes]:
        return start, self.table.read(start, max(end, self._find_end(start + size)))

    def _find_end(self, position: int) -> int:
        """Return the end of the block that contains `position`, so that reads end at blocks."""
        if position >= self._limit:
            return self._limit
        block = int(np.searchsorted(self.table.index.offsets, position, "right")) - 1
        return find_blocks_end(self.table, range(block, block + 1))


def make_direct_reader(table: Table, wanted: KeyRange) -> DirectTableReader:
    """Make the reader of a table for a scan of some keys."""
    blocks = find_blocks(table, *wanted)
    return DirectTableReader(table, find_blocks_end(table, blocks) if blocks else 0)


class PlannedTableReader(TableReader):
    """Reader of a table whose ranges are read in the order of a plan.

    Args:
        table: the table.
        number: index of the column family among those that are scanned.
        tables: executes the plan and returns the ranges.
    """

    def __init__(self, table: Table, number: int, tables: PlannedTables) -> None:
        super().__init__(table)
        self._number = number
        self._tables = tables

    def _fetch(self, start: int, end: int, size: int) -> tuple[int, bytes]:
        return self._tables.take_range(self._number, self.table)


class DirectTables:
    """Tables that are opened and read on demand.

    Args:
        cache: cache of opened tables.
    """

    def __init__(self, cache: TableCache) -> None:
        self._cache = cache

    def open(self, number: int, file: TableFile, wanted: KeyRange) -> TableReader:
        """Open a table of a column family for the scan of a range; errors as for `open_table`."""
        return make_direct_reader(self._cache.open(file), wanted)

    def release(self, number: int, file: TableFile) -> None:
        """Release a table that the rest of the scan of its column family does not need."""

    def close(self) -> None:
        """End all scans of the tables."""


class PlannedTables:
    """Tables that are opened and read ahead, in the order of one plan for all scans.

    Args:
        wanted: the column families in the order of their scans, with the wanted keys.
        cache: cache of opened tables.
        location: location of any of the tables, which says how to read ahead.
    """

    def __init__(self, wanted: Sequence[ColumnFamilyRanges], cache: TableCache, location: Location) -> None:
        self._wanted = wanted
        self._cache = cache
        files = [(number, file) for number, each in enumerate(wanted) for file in find_all_files(each)]
        self._opening = read_ahead(files, self._open, location, lambda each: find_tail_size(each[1]))
        self._opened: dict[tuple[int, int], Table | StateError] = {}
        self._readers: dict[tuple[int, int], PlannedTableReader] = {}
        self._ranges: dict[tuple[int, int], list[tuple[int, bytes | StateError]]] = {}
        self._reading = read_ahead(self._plan(), self._read, location, lambda each: each.end - each.start)

    def open(self, number: int, file: TableFile, wanted: KeyRange) -> TableReader:
        """Open a table of a column family for the scan of a range; errors as for `open_table`."""
        key = number, file.number
        while key not in self._opened and self._advance():
            pass
        table = self._opened[key]
        if isinstance(table, StateError):
            raise table
        if table.content:
            return make_direct_reader(table, wanted)
        # Several key ranges of a scan may need the same range of the file, so all of them use the same reader.
        return self._readers.setdefault(key, PlannedTableReader(table, number, self))

    def take_range(self, number: int, table: Table) -> tuple[int, bytes]:
        """Return the start and the bytes of the next planned range of a table, and forget it."""
        key = number, table.file.number
        while not self._ranges.get(key) and self._advance():
            pass
        start, data = self._ranges[key].pop(0)
        if isinstance(data, StateError):
            raise data
        return start, data

    def release(self, number: int, file: TableFile) -> None:
        """Release a table that the rest of the scan of its column family does not need."""
        key = number, file.number
        self._opened.pop(key, None)
        self._readers.pop(key, None)
        self._ranges.pop(key, None)

    def close(self) -> None:
        """End all scans of the tables."""
        self._reading.close()
        self._opening.close()

    def _advance(self) -> bool:
        """Read the next range of the plan, which also opens tables; return False at the end of the plan."""
        for table_range, data in self._reading:
            self._ranges.setdefault((table_range.number, table_range.table.file.number), []).append(
                (table_range.start, data)
            )
            return True
        return False

    def _open(self, each: tuple[int, TableFile]) -> Table | StateError:
        # Errors while reading ahead are kept, and raised when a scan reaches the table.
        try:
            return self._cache.open(each[1])
        except StateError as error:
            return error

    def _read(self, table_range: TableRange) -> bytes | StateError:
        try:
            return table_range.table.read(table_range.start, table_range.end)
        except StateError as error:
            return error

    def _plan(self) -> Iterator[TableRange]:
        """Yield the ranges of all column families, ordered by first key, which is about the order of the scans."""
        for number, each in enumerate(self._wanted):
            heads: list[tuple[bytes, int, TableRange, Iterator[tuple[bytes, TableRange]]]] = []
            for order, file in enumerate(find_all_files(each)):
                while heads and heads[0][0] < file.smallest:
                    yield _advance_first(heads)
                _, table = next(self._opening)
                self._opened[number, file.number] = table
                if isinstance(table, StateError) or table.content:
                    continue
                table_ranges = plan_ranges(number, table, each.ranges, max(_LEAST_READ, READ_SIZE // (len(heads) + 1)))
                for key, table_range in table_ranges:
                    heapq.heappush(heads, (key, order, table_range, table_ranges))
                    break
            while heads:
                yield _advance_first(heads)


def _advance_first(heads: list[tuple[bytes, int, TableRange, Iterator[tuple[bytes, TableRange]]]]) -> TableRange:
    """Return the first range of a heap, and replace it by the next range of the same table.

    Args:
        heads: heap of the next range of each table: lower bound of its keys, number of the table, the range, and the
            iterator over the following ranges.
    """
    _, order, first, table_ranges = heads[0]
    for key, table_range in table_ranges:
        heapq.heapreplace(heads, (key, order, table_range, table_ranges))
        return first
    heapq.heappop(heads)
    return first


def plan_ranges(number: int, table: Table, ranges: Sequence[KeyRange], size: int) -> Iterator[tuple[bytes, TableRange]]:
    """Plan the ranges of about `size` bytes in which the blocks for some keys are read.

    Yields:
        (a lower bound of the keys in the range, the range), ascending.
    """
    index = table.index
    starts, ends = index.offsets, index.offsets + index.sizes + TRAILER_SIZE
    runs: list[tuple[int, int]] = []
    for wanted in ranges:
        blocks = find_blocks(table, *wanted)
        if not blocks:
            continue
        if runs and starts[blocks.start] <= ends[runs[-1][1] - 1] + _GAP:
            runs[-1] = runs[-1][0], max(runs[-1][1], blocks.stop)
        else:
            runs.append((blocks.start, blocks.stop))
    for first, stop in runs:
        start = first
        while start < stop:
            # A range consists of whole blocks, at least one.
            after = max(start + 1, int(np.searchsorted(ends[:stop], starts[start] + size, "right")))
            key = index.separator(start - 1) if start else table.file.smallest
            yield key, TableRange(number, table, int(starts[start]), int(ends[after - 1]))
            start = after


def open_tables(wanted: Sequence[ColumnFamilyRanges], cache: TableCache) -> DirectTables | PlannedTables:
    """Return the tables for scans: tables on other machines are read ahead by a plan, local ones on demand.

    Args:
        wanted: the column families in the order of their scans, with the wanted keys.
        cache: cache of opened tables.
    """
    for each in wanted:
        for file in each.column_family.files:
            if file.stream.location is not None and not is_local(file.stream.location):
                return PlannedTables(wanted, cache, file.stream.location)
    return DirectTables(cache)


def find_files(column_family: ColumnFamily, start: bytes, end: bytes | None) -> list[TableFile]:
    """Return the tables that may hold keys from `start` up to `end` (exclusive; None: to the last), by smallest key."""
    return [file for file in column_family.files if file.end > start and (end is None or file.smallest < end)]


def find_all_files(wanted: ColumnFamilyRanges) -> list[TableFile]:
    """Return the tables that may hold keys of any of the ranges, by smallest key."""
    ends = [end for _, end in wanted.ranges if end is not None]
    found = []
    for file in wanted.column_family.files:
        number = bisect_right(ends, file.smallest)
        if number < len(wanted.ranges) and wanted.ranges[number].start < file.end:
            found.append(file)
    return found


def find_blocks_end(table: Table, blocks: range) -> int:
    """Return the offset in the file after adjacent blocks and their trailers."""
    return int(table.index.offsets[blocks[-1]] + table.index.sizes[blocks[-1]]) + TRAILER_SIZE


WINDOW = 2 << 20
"""Approximate bytes of keys and values that a scan holds at once; so many fit into the caches of a processor."""
MERGE_OPERATOR = "StringAppendTESTOperator"
"""The operator of Flink's list state: operands are joined by a comma, 0x2C."""

_POINTS_PER_SPLIT = 16


@dataclass(frozen=True, slots=True, eq=False)
class SortedEntries:
    """Keys with their values, ascending by the bytes of the keys; each key occurs once.

    Attributes:
        data: u8, holds keys and values, and bytes that belong to neither.
        key_starts: i64[n], start of each key in `data`.
        key_ends: i64[n], end of each key.
        value_starts: i64[n], start of each value.
        value_ends: i64[n], end of each value.
    """

    data: npt.NDArray[np.uint8]
    key_starts: npt.NDArray[np.int64]
    key_ends: npt.NDArray[np.int64]
    value_starts: npt.NDArray[np.int64]
    value_ends: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.key_starts)


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Entries of one table, in order; each key is followed by its trailer (sequence and type)."""

    table: Table
    entries: SortedEntries
    flags: int


def scan(
    column_family: ColumnFamily,
    start: bytes = b"",
    end: bytes | None = None,
    *,
    window: int = WINDOW,
    tables: TableCache | None = None,
) -> Iterator[SortedEntries]:
    """Yield the entries with keys from `start` up to `end`; deletions are applied, merge operands joined.

    Only blocks that may hold such keys are read, adjacent blocks with one request.

    Args:
        column_family: the column family.
        start: first key.
        end: end of the keys (exclusive); None: to the last.
        window: bytes of keys and values that are held at once; a single entry may be larger.
        tables: keeps the opened tables for later scans.

    Raises:
        FormatError: a table is damaged.
        MissingFileError: a table does not exist.
        UnsupportedError: a table has a format that this release does not cover, or operands of a merge operator other
            than that of Flink's list state.
    """
    with ColumnFamilyScans(
        [ColumnFamilyRanges(column_family, (KeyRange(start, end),))], window=window, tables=tables
    ) as scans:
        yield from scans.scan(0)


class ColumnFamilyScans:
    """Scans of several column families, one after the other; tables that are not local are read ahead.

    It is a context manager, whose end stops reading ahead.

    Args:
        wanted: the column families in the order of the scans, with the wanted keys.
        window: as for `scan`.
        tables: as for `scan`.
    """

    def __init__(
        self, wanted: Sequence[ColumnFamilyRanges], *, window: int = WINDOW, tables: TableCache | None = None
    ) -> None:
        self._wanted = wanted
        self._window = window
        self._reader = open_tables(wanted, tables or TableCache())

    def __enter__(self) -> ColumnFamilyScans:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def scan(self, number: int) -> Iterator[SortedEntries]:
        """Yield the entries of a column family, given its index in `wanted`; results and errors as for `scan`."""
        column_family, ranges = self._wanted[number]
        for start, end in ranges:
            yield from self._scan_range(number, column_family, start, end)
        for file in column_family.files:
            self._reader.release(number, file)

    def _scan_range(
        self, number: int, column_family: ColumnFamily, start: bytes, end: bytes | None
    ) -> Iterator[SortedEntries]:
        waiting = [file for file in find_files(column_family, start, end) if end is None or start < end]
        waiting.reverse()
        active: list[TableReader] = []
        low = start
        while waiting or active:
            if not active:
                low = max(low, waiting[-1].smallest)
            while waiting and waiting[-1].smallest <= low:
                active.append(self._reader.open(number, waiting.pop(), KeyRange(start, end)))
            # The next table that is not active yet starts a new chunk, so that no table starts inside a chunk.
            limits = [limit for limit in (waiting[-1].smallest if waiting else None, end) if limit is not None]
            high = min([_choose_end([each.table for each in active], low, self._window), *limits])
            if high <= low:
                where = Where(file=active[0].table.file.stream.name)
                raise FormatError("the index of a table, or the bounds in the MANIFEST, are not in order", where=where)
            yield from _scan_chunk(active, low, high)
            for reader in active:
                file = reader.table.file
                if file.end <= high:
                    if start <= file.smallest:
                        check_entries(file, reader.entries, reader.table.entries)
                    self._reader.release(number, file)
            if high == end:
                break
            active = [each for each in active if each.table.file.end > high]
            low = high


def estimate(column_family: ColumnFamily, start: bytes = b"", end: bytes | None = None) -> int:
    """Return the bytes of tables that a scan of the range would read; tables wholly inside the range are not opened.

    Raises:
        StateError: a table cannot be read; the errors are those of `scan`.
    """
    return sum(_estimate_file(file, start, end) for file in find_files(column_family, start, end))


def _estimate_file(file: TableFile, start: bytes, end: bytes | None) -> int:
    if start <= file.smallest and (end is None or file.end <= end):
        return file.size
    table = open_table(file)
    blocks = find_blocks(table, start, end)
    return int(table.index.sizes[blocks.start : blocks.stop].sum()) + TRAILER_SIZE * len(blocks)


def split_keys(column_family: ColumnFamily, start: bytes, end: bytes | None, size: int) -> list[bytes]:
    """Return keys that divide a range of keys into subranges with about `size` bytes of tables each.

    Args:
        column_family: the column family.
        start: first key of the range.
        end: end of the range (exclusive); None: to the last key.
        size: bytes per subrange, at least 1.

    Returns:
        Ascending keys between `start` and `end`: the first key of each subrange but the first.

    Raises:
        StateError: a table cannot be read; the errors are those of `scan`.
    """
    points: list[tuple[bytes, int]] = []
    for file in find_files(column_family, start, end):
        points += _measure(file, start, end, max(1, size // _POINTS_PER_SPLIT))
    points.sort()
    keys = []
    filled = 0
    for key, weight in points:
        filled += weight
        if filled >= size and key > start and (end is None or key < end):
            keys.append(key)
            filled = 0
    # A cut at the end of the last table would start an empty range, so it is left out.
    last = max((file.end for file in find_files(column_family, start, end)), default=b"")
    return [key for key in dict.fromkeys(keys) if key < last]


def _measure(file: TableFile, start: bytes, end: bytes | None, step: int) -> list[tuple[bytes, int]]:
    """Return keys of a table about `step` bytes apart, each with the number of bytes since the previous key."""
    if file.size <= step and start <= file.smallest and (end is None or file.end <= end):
        return [(file.end, file.size)]
    table = open_table(file)
    blocks = find_blocks(table, start, end)
    if not blocks:
        return []
    ends_at = np.cumsum(table.index.sizes[blocks.start : blocks.stop])
    cuts = np.unique(np.append(np.searchsorted(ends_at, np.arange(step, ends_at[-1], step)), len(blocks) - 1))
    weights = np.diff(ends_at[cuts], prepend=0)
    return [
        (_find_end(table, blocks[cut]), weight) for cut, weight in zip(cuts.tolist(), weights.tolist(), strict=True)
    ]


def _find_end(table: Table, block: int) -> bytes:
    """Return a key above all keys of a block and not above any key of the next one; for the last block, `file.end`."""
    if block == len(table.index) - 1:
        return table.file.end
    return table.index.separator(block) + b"\0"


def _choose_end(tables: Sequence[Table], low: bytes, window: int) -> bytes:
    """Return the end (exclusive) of the chunk of keys from `low`, so that its entries fit into the window."""
    return min(_choose_table_end(table, low, window // len(tables)) for table in tables)


def _choose_table_end(table: Table, low: bytes, share: int) -> bytes:
    blocks = find_blocks(table, low, None)
    if not blocks:
        return table.file.end
    ends_at = np.cumsum(table.index.sizes[blocks.start : blocks.stop]) * table.expansion
    count = max(1, int(np.searchsorted(ends_at, share, "right")))
    end = _find_end(table, blocks[count - 1])
    # The versions of one key may fill whole blocks, so that `end` is not above `low`. Then take a later block.
    for block in blocks[count:]:
        if end > low:
            break
        end = _find_end(table, block)
    return end


def _scan_chunk(readers: Sequence[TableReader], low: bytes, high: bytes) -> Iterator[SortedEntries]:
    ahead = READ_SIZE // len(readers)
    runs = [run for reader in readers if (run := _read_run(reader, low, high, ahead))]
    if not runs:
        return
    erased = [
        RangeTombstone(max(tombstone.start, low), min(tombstone.end, high), tombstone.sequence)
        for reader in readers
        for tombstone in reader.table.tombstones
        if tombstone.start < high and tombstone.end > low
    ]
    if len(runs) == 1 and not runs[0].flags and not erased:
        yield runs[0].entries
        return
    for run in runs:
        if run.flags & HAS_MERGES and run.table.merge_operator != MERGE_OPERATOR:
            what = f"a table has operands of the merge operator {run.table.merge_operator!r}"
            hint = f"Flink's list state uses {MERGE_OPERATOR}; compact the database with its own operator first"
            raise UnsupportedError(what, where=Where(file=run.table.file.stream.name), hint=hint)
    entries = _resolve([run.entries for run in runs], _fragment(erased))
    if len(entries):
        yield entries


def _read_run(reader: TableReader, low: bytes, high: bytes, ahead: int) -> _Run | None:
    """Read the entries of a table from `low` up to `high` (exclusive); None if there are none."""
    table = reader.table
    blocks = find_blocks(table, low, high)
    if not blocks:
        return None
    offsets = table.index.offsets[blocks.start : blocks.stop]
    sizes = table.index.sizes[blocks.start : blocks.stop]
    offset = int(offsets[0])
    raw = reader.read(offset, find_blocks_end(table, blocks), ahead)
    plain = decode_blocks(table.block_format, np.frombuffer(raw, np.uint8), offset, offsets, sizes)
    ends, counts = np.empty(len(offsets), np.int64), np.empty(len(offsets), np.int64)
    base = plain.data.ctypes.data
    count, total, wrong = count_entries(base, plain.starts, plain.ends, ends, counts)
    if wrong >= 0:
        raise _damaged(table, MESSAGES[BAD_BLOCK], int(offsets[wrong]))
    data = np.empty(total, np.uint8)
    spans = [np.empty(count, np.int64) for _ in range(4)]
    flags, wrong = parse_entries(base, plain.starts, ends, table.sequence, data.ctypes.data, *spans)
    if wrong >= 0:
        raise _damaged(table, MESSAGES[flags], int(offsets[wrong]))
    check_keys(table.index, table.file, blocks, data, spans, counts)
    first, last = _find_entry(data, spans, low), _find_entry(data, spans, high)
    reader.entries += last - first
    if first == last:
        return None
    return _Run(table, SortedEntries(data, *(span[first:last] for span in spans)), flags)


def _damaged(table: Table, what: str, offset: int) -> FormatError:
    return FormatError(what, where=Where(file=table.file.stream.name, offset=offset))


def _find_entry(data: npt.NDArray[np.uint8], spans: list[npt.NDArray[np.int64]], key: bytes) -> int:
    needle = np.frombuffer(key + b"\0", np.uint8)
    return int(find_key(data.ctypes.data, spans[0], spans[1], needle.ctypes.data, len(key)))


def _fragment(tombstones: list[RangeTombstone]) -> list[RangeTombstone]:
    """Split tombstones into ones that do not overlap, by start, each with the newest sequence of its range."""
    bounds = sorted({bound for tombstone in tombstones for bound in (tombstone.start, tombstone.end)})
    pending = sorted(tombstones, key=lambda tombstone: tombstone.start, reverse=True)
    live: list[RangeTombstone] = []
    fragments = []
    for start, end in pairwise(bounds):
        live = [tombstone for tombstone in live if tombstone.end > start]
        while pending and pending[-1].start <= start:
            live.append(pending.pop())
        if live:
            fragments.append(RangeTombstone(start, end, max(tombstone.sequence for tombstone in live)))
    return fragments


def _resolve(runs: list[SortedEntries], erased: list[RangeTombstone]) -> SortedEntries:
    bases = [run.data.ctypes.data for run in runs]
    key_starts, key_ends, value_starts, value_ends = (
        np.concatenate([getattr(run, name) + base for run, base in zip(runs, bases, strict=True)])
        for name in ("key_starts", "key_ends", "value_starts", "value_ends")
    )
    order = np.arange(len(key_starts))
    if len(runs) > 1:
        bounds = np.cumsum([0, *(len(run) for run in runs)])
        merge_runs(key_starts, key_ends, bounds, order)
    text = b"".join(bound for tombstone in erased for bound in (tombstone.start, tombstone.end)) + b"\0"
    texts = np.frombuffer(text, np.uint8)
    edges = np.cumsum([0, *(len(bound) for tombstone in erased for bound in (tombstone.start, tombstone.end))])
    edges += texts.ctypes.data
    spans = np.empty((5, len(erased)), np.int64)
    spans[0], spans[1], spans[2], spans[3] = edges[:-1:2], edges[1::2], edges[1::2], edges[2::2]
    spans[4] = [tombstone.sequence for tombstone in erased]
    firsts, counts = np.empty_like(order), np.empty_like(order)
    number, total = resolve_versions(key_starts, key_ends, value_starts, value_ends, order, spans, firsts, counts)
    data = np.empty(total, np.uint8)
    new = [np.empty(number, np.int64) for _ in range(4)]
    columns = (key_starts, key_ends, value_starts, value_ends, order)
    write_resolved(*columns, firsts[:number], counts[:number], data.ctypes.data, *new)
    return SortedEntries(data, *new)


def verify_table(file: TableFile, tables: TableCache, *, whole: bool) -> int:
    """Check a table against its own checksums and the MANIFEST; returns the number of its entries that were read.

    Args:
        file: the table.
        tables: keeps opened tables, so that a small table is read only once for this check and for its entries.
        whole: check every data block, not only the first and the last one.

    Raises:
        FormatError: a block does not match its checksum, entries are not in order, keys are outside the bounds that
            the MANIFEST has, or blocks or entries are missing.
        MissingFileError: the file does not exist.
        UnsupportedError: the table has a format that this release does not cover.
    """
    table = tables.open(file)
    # The properties are not checked: an old RocksDB changed them after it had computed their checksum.
    for offset, size in table.filters:
        data = np.frombuffer(table.read(offset, offset + size + TRAILER_SIZE), np.uint8)
        verify_blocks(table.block_format, data, offset, np.array([offset], np.int64), np.array([size], np.int64))
    entries = 0
    for blocks in _group_blocks(table, whole=whole):
        entries += _read_blocks(table, blocks)
    if whole:
        check_entries(file, entries, table.entries)
    return entries


def _group_blocks(table: Table, *, whole: bool) -> Iterator[range]:
    """Yield groups of adjacent data blocks of about `READ_SIZE` bytes, of the whole table or of its two ends."""
    count = len(table.index)
    if not whole:
        yield from (range(block, block + 1) for block in sorted({0, count - 1}) if count)
        return
    start = 0
    while start < count:
        limit = int(table.index.offsets[start]) + READ_SIZE
        stop = max(start + 1, int(np.searchsorted(table.index.offsets, limit)))
        yield range(start, stop)
        start = stop


def _read_blocks(table: Table, blocks: range) -> int:
    """Check adjacent data blocks; returns the number of their entries."""
    offsets = table.index.offsets[blocks.start : blocks.stop]
    sizes = table.index.sizes[blocks.start : blocks.stop]
    offset = int(offsets[0])
    raw = table.read(offset, int(offsets[-1] + sizes[-1]) + TRAILER_SIZE)
    plain = decode_blocks(table.block_format, np.frombuffer(raw, np.uint8), offset, offsets, sizes)
    ends, counts = np.empty(len(offsets), np.int64), np.empty(len(offsets), np.int64)
    base = plain.data.ctypes.data
    count, total, wrong = count_entries(base, plain.starts, plain.ends, ends, counts)
    if wrong >= 0:
        where = Where(file=table.file.stream.name, offset=int(offsets[wrong]))
        raise FormatError(MESSAGES[BAD_BLOCK], where=where)
    data = np.empty(total, np.uint8)
    spans = [np.empty(count, np.int64) for _ in range(4)]
    flags, wrong = parse_entries(base, plain.starts, ends, table.sequence, data.ctypes.data, *spans)
    if wrong >= 0:
        where = Where(file=table.file.stream.name, offset=int(offsets[wrong]))
        raise FormatError(MESSAGES[flags], where=where)
    check_keys(table.index, table.file, blocks, data, spans, counts)
    return int(count)
