"""Tables while they are scanned: opened, and their blocks read in the order in which scans need them.

On this machine a table is opened, and a range of it is read, when a scan needs it. On another storage a plan follows
from the bounds in the MANIFEST and the indexes of the tables: all ranges of all tables by their first key. They are
fetched along this plan, some of them ahead (`storage.reading`).
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from state_pipelines.errors import StateError
from state_pipelines.rocksdb.checksums import TRAILER_SIZE
from state_pipelines.rocksdb.table import find_blocks, find_tail_size
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.reading import read_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.rocksdb.cache import TableCache
    from state_pipelines.rocksdb.manifest import ColumnFamily, TableFile
    from state_pipelines.rocksdb.table import Table
    from state_pipelines.storage import Location

READ_SIZE = 4 << 20
"""Bytes of tables that are read at once where they are wanted, all tables that overlap together."""

_LEAST_READ = 1 << 20
"""Bytes of a table that are read at once at least on a storage that is not local, where a request costs more."""

_GAP = 1 << 16
"""Bytes between wanted blocks that are rather read in vain than skipped by another request."""


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
        number: of the column family among those that are scanned.
        table: the table.
        start: first byte in the file.
        end: after the last byte.
    """

    number: int
    table: Table
    start: int
    end: int


class TableReader(ABC):
    """A table that is being scanned, and a range of it that was read.

    Attributes:
        table: the table.
        entries: those that the scan has found in it so far.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.entries = 0
        self._start = 0
        self._raw = b""

    def read(self, start: int, end: int, size: int) -> memoryview:
        """Read blocks, from `start` up to `end` in the file; a later call does not begin before an earlier one.

        Args:
            start: first byte.
            end: after the last byte.
            size: bytes that are read at least, where something has to be read.

        Raises:
            FormatError: the file ends before.
            MissingFileError: the file does not exist.
        """
        found: list[memoryview] = []
        while True:
            stop = min(end, self._start + len(self._raw))
            if self._start <= start < stop:
                found.append(memoryview(self._raw)[start - self._start : stop - self._start])
                start = stop
            if start >= end:
                # Of the range before only the little that goes with these blocks is copied.
                return found[0] if len(found) == 1 else memoryview(b"".join(found))
            self._start, self._raw = self._fetch(start, end, size)

    @abstractmethod
    def _fetch(self, start: int, end: int, size: int) -> tuple[int, bytes]:
        """Fetch the next range: where it begins, and its bytes."""


class DirectTableReader(TableReader):
    """A table whose ranges are read when they are wanted.

    Args:
        table: the table.
        limit: after the last byte that the scan may want.
    """

    def __init__(self, table: Table, limit: int) -> None:
        super().__init__(table)
        self._limit = limit

    def _fetch(self, start: int, end: int, size: int) -> tuple[int, bytes]:
        return start, self.table.read(start, max(end, self._find_end(start + size)))

    def _find_end(self, position: int) -> int:
        """Find where the block ends that `position` is in; so the next read starts with a whole block."""
        if position >= self._limit:
            return self._limit
        block = int(np.searchsorted(self.table.index.offsets, position, "right")) - 1
        return find_blocks_end(self.table, range(block, block + 1))


def make_direct_reader(table: Table, wanted: KeyRange) -> DirectTableReader:
    """Make the reader of a table for a scan of some keys."""
    blocks = find_blocks(table, *wanted)
    return DirectTableReader(table, find_blocks_end(table, blocks) if blocks else 0)


class PlannedTableReader(TableReader):
    """A table whose ranges come by a plan.

    Args:
        table: the table.
        number: of the column family among those that are scanned.
        tables: gives the ranges.
    """

    def __init__(self, table: Table, number: int, tables: PlannedTables) -> None:
        super().__init__(table)
        self._number = number
        self._tables = tables

    def _fetch(self, start: int, end: int, size: int) -> tuple[int, bytes]:
        return self._tables.take_range(self._number, self.table)


class DirectTables:
    """Tables that are opened and read when they are wanted.

    Args:
        cache: of opened tables.
    """

    def __init__(self, cache: TableCache) -> None:
        self._cache = cache

    def open(self, number: int, file: TableFile, wanted: KeyRange) -> TableReader:
        """Open a table of a column family for the scan of a range; errors as for `open_table`."""
        return make_direct_reader(self._cache.open(file), wanted)

    def release(self, number: int, file: TableFile) -> None:
        """Let go of a table that no range of the scan of a column family needs any more."""

    def close(self) -> None:
        """End all scans."""


class PlannedTables:
    """Tables that are opened, and read, by a plan for all scans, some of it ahead.

    Args:
        wanted: the column families in the order of their scans, and which keys of them.
        cache: of opened tables.
        location: of a table.
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
        # Ranges of keys may share a range.
        return self._readers.setdefault(key, PlannedTableReader(table, number, self))

    def take_range(self, number: int, table: Table) -> tuple[int, bytes]:
        """Take the next range of a table: where it begins, and its bytes."""
        key = number, table.file.number
        while not self._ranges.get(key) and self._advance():
            pass
        start, data = self._ranges[key].pop(0)
        if isinstance(data, StateError):
            raise data
        return start, data

    def release(self, number: int, file: TableFile) -> None:
        """Let go of a table that no range of the scan of a column family needs any more."""
        key = number, file.number
        self._opened.pop(key, None)
        self._readers.pop(key, None)
        self._ranges.pop(key, None)

    def close(self) -> None:
        """End all scans."""
        self._reading.close()
        self._opening.close()

    def _advance(self) -> bool:
        """Take the next range of the plan, which opens tables as it goes; return whether there was one."""
        for table_range, data in self._reading:
            self._ranges.setdefault((table_range.number, table_range.table.file.number), []).append(
                (table_range.start, data)
            )
            return True
        return False

    def _open(self, each: tuple[int, TableFile]) -> Table | StateError:
        # An error is raised when a scan comes to the table.
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
        """Plan the ranges of all column families by their first keys: scans need them in about this order."""
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
    """Take the first of the next ranges of some tables, and put the range after it instead."""
    _, order, first, table_ranges = heads[0]
    for key, table_range in table_ranges:
        heapq.heapreplace(heads, (key, order, table_range, table_ranges))
        return first
    heapq.heappop(heads)
    return first


def plan_ranges(number: int, table: Table, ranges: Sequence[KeyRange], size: int) -> Iterator[tuple[bytes, TableRange]]:
    """Plan the ranges of about `size` bytes in which the blocks for some keys are read.

    Yields:
        (a key that no key of the range is below, the range), ascending.
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
            # Whole blocks, one at least.
            after = max(start + 1, int(np.searchsorted(ends[:stop], starts[start] + size, "right")))
            key = index.separator(start - 1) if start else table.file.smallest
            yield key, TableRange(number, table, int(starts[start]), int(ends[after - 1]))
            start = after


def open_tables(wanted: Sequence[ColumnFamilyRanges], cache: TableCache) -> DirectTables | PlannedTables:
    """Make what opens and reads the tables of scans: by a plan where they are not on this machine.

    Args:
        wanted: the column families in the order of their scans, and which keys of them.
        cache: of opened tables.
    """
    for each in wanted:
        for file in each.column_family.files:
            if file.stream.location is not None and not is_local(file.stream.location):
                return PlannedTables(wanted, cache, file.stream.location)
    return DirectTables(cache)


def find_files(column_family: ColumnFamily, start: bytes, end: bytes | None) -> list[TableFile]:
    """The tables that may hold keys from `start` up to `end` (exclusive; None: to the last), by smallest key."""
    return [file for file in column_family.files if file.end > start and (end is None or file.smallest < end)]


def find_all_files(wanted: ColumnFamilyRanges) -> list[TableFile]:
    """The tables that may hold keys of any of the ranges, by smallest key."""
    ends = [end for _, end in wanted.ranges if end is not None]
    found = []
    for file in wanted.column_family.files:
        number = bisect_right(ends, file.smallest)
        if number < len(wanted.ranges) and wanted.ranges[number].start < file.end:
            found.append(file)
    return found


def find_blocks_end(table: Table, blocks: range) -> int:
    """The position in the file after blocks and their trailers."""
    return int(table.index.offsets[blocks[-1]] + table.index.sizes[blocks[-1]]) + TRAILER_SIZE
