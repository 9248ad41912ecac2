"""The entries of a column family, by key, as a reader of the database would see them.

A chunk of the key space after the other: the blocks of all tables in it are read and parsed, their entries merged where
tables overlap, and the versions of a key resolved (`MergeHelper`, `GetContext` and `DBIter` of RocksDB).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.errors import FormatError, UnsupportedError, Where
from state_pipelines.rocksdb.blocks import decode_blocks
from state_pipelines.rocksdb.cache import TableCache
from state_pipelines.rocksdb.checksums import TRAILER_SIZE
from state_pipelines.rocksdb.kernels import (
    BAD_BLOCK,
    HAS_MERGES,
    MESSAGES,
    count_entries,
    find_key,
    parse_entries,
)
from state_pipelines.rocksdb.table import RangeTombstone, Table, find_blocks, open_table
from state_pipelines.rocksdb.table_checks import check_entries, check_keys
from state_pipelines.rocksdb.table_readers import (
    READ_SIZE,
    ColumnFamilyRanges,
    KeyRange,
    TableReader,
    find_blocks_end,
    find_files,
    open_tables,
)
from state_pipelines.rocksdb.versions import merge_runs, resolve_versions, write_resolved

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from state_pipelines.rocksdb.manifest import ColumnFamily, TableFile

WINDOW = 2 << 20
"""Bytes of keys and values that are held at once, roughly; so many stay in the caches of a processor."""
MERGE_OPERATOR = "StringAppendTESTOperator"
"""The operator of Flink's list state: operands are joined by a comma, 0x2C."""

_POINTS_PER_SPLIT = 16


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Keys with their values; ascending by the bytes of the keys, each key once.

    Attributes:
        data: u8, holds keys and values, and bytes that belong to neither.
        key_starts: i64[n].
        key_ends: i64[n].
        value_starts: i64[n].
        value_ends: i64[n].
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
    """Entries of one table, in order; the trailer of a key stands after it."""

    table: Table
    entries: Entries
    flags: int


def scan(
    column_family: ColumnFamily,
    start: bytes = b"",
    end: bytes | None = None,
    *,
    window: int = WINDOW,
    tables: TableCache | None = None,
) -> Iterator[Entries]:
    """The entries with keys from `start` up to `end`; deletions are applied, merge operands joined.

    Only blocks that may hold such keys are read, neighbours with one read.

    Args:
        column_family: the column family.
        start: first key.
        end: after the last key; None: to the last.
        window: bytes of keys and values that are held at once; a single larger entry is held all the same.
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
    """Scans of column families one after the other, which are read ahead on a storage that is not local.

    Use it as a context manager: reading ahead ends with it.

    Args:
        wanted: the column families in the order of the scans, and which keys of them.
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

    def scan(self, number: int) -> Iterator[Entries]:
        """The entries of a column family, by its number in `wanted`; results and errors as for `scan`."""
        column_family, ranges = self._wanted[number]
        for start, end in ranges:
            yield from self._scan_range(number, column_family, start, end)
        for file in column_family.files:
            self._reader.release(number, file)

    def _scan_range(
        self, number: int, column_family: ColumnFamily, start: bytes, end: bytes | None
    ) -> Iterator[Entries]:
        waiting = [file for file in find_files(column_family, start, end) if end is None or start < end]
        waiting.reverse()
        active: list[TableReader] = []
        low = start
        while waiting or active:
            if not active:
                low = max(low, waiting[-1].smallest)
            while waiting and waiting[-1].smallest <= low:
                active.append(self._reader.open(number, waiting.pop(), KeyRange(start, end)))
            # No table starts inside a chunk, so that what overlaps is the same in all of it.
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
    """Bytes of the tables that a scan of the range would read; tables wholly inside the range are not opened.

    Raises:
        FormatError: as for `scan`, like all others.
    """
    return sum(_estimate_file(file, start, end) for file in find_files(column_family, start, end))


def _estimate_file(file: TableFile, start: bytes, end: bytes | None) -> int:
    if start <= file.smallest and (end is None or file.end <= end):
        return file.size
    table = open_table(file)
    blocks = find_blocks(table, start, end)
    return int(table.index.sizes[blocks.start : blocks.stop].sum()) + TRAILER_SIZE * len(blocks)


def split_keys(column_family: ColumnFamily, start: bytes, end: bytes | None, size: int) -> list[bytes]:
    """Keys that cut a range into parts of about `size` bytes of tables each.

    Args:
        column_family: the column family.
        start: first key of the range.
        end: after its last key; None: to the last.
        size: bytes per part, at least 1.

    Returns:
        Ascending keys between `start` and `end`; each starts a part.

    Raises:
        FormatError: as for `scan`, like all others.
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
    # The last key only ends the range.
    last = max((file.end for file in find_files(column_family, start, end)), default=b"")
    return [key for key in dict.fromkeys(keys) if key < last]


def _measure(file: TableFile, start: bytes, end: bytes | None, step: int) -> list[tuple[bytes, int]]:
    """Keys of a table about `step` bytes apart, and the bytes before each."""
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
    """A key above all of a block and not above any of the next one; above all of the table for its last block."""
    if block == len(table.index) - 1:
        return table.file.end
    return table.index.separator(block) + b"\0"


def _choose_end(tables: Sequence[Table], low: bytes, window: int) -> bytes:
    """The end of the chunk that starts at `low`, chosen so that its entries fit into the window."""
    return min(_choose_table_end(table, low, window // len(tables)) for table in tables)


def _choose_table_end(table: Table, low: bytes, share: int) -> bytes:
    blocks = find_blocks(table, low, None)
    if not blocks:
        return table.file.end
    ends_at = np.cumsum(table.index.sizes[blocks.start : blocks.stop]) * table.expansion
    count = max(1, int(np.searchsorted(ends_at, share, "right")))
    end = _find_end(table, blocks[count - 1])
    # A key whose versions fill blocks would not let the chunk advance.
    for block in blocks[count:]:
        if end > low:
            break
        end = _find_end(table, block)
    return end


def _scan_chunk(readers: Sequence[TableReader], low: bytes, high: bytes) -> Iterator[Entries]:
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
    """The entries of a table from `low` up to `high`; None if there are none."""
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
    return _Run(table, Entries(data, *(span[first:last] for span in spans)), flags)


def _damaged(table: Table, what: str, offset: int) -> FormatError:
    return FormatError(what, where=Where(file=table.file.stream.name, offset=offset))


def _find_entry(data: npt.NDArray[np.uint8], spans: list[npt.NDArray[np.int64]], key: bytes) -> int:
    needle = np.frombuffer(key + b"\0", np.uint8)
    return int(find_key(data.ctypes.data, spans[0], spans[1], needle.ctypes.data, len(key)))


def _fragment(tombstones: list[RangeTombstone]) -> list[RangeTombstone]:
    """Tombstones that do not overlap, by start, each with the newest sequence over its range."""
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


def _resolve(runs: list[Entries], erased: list[RangeTombstone]) -> Entries:
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
    return Entries(data, *new)
