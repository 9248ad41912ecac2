"""Verification of tables: footer, properties, index, every meta block, the bounds of the MANIFEST, and data blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.errors import FormatError, Where
from state_pipelines.rocksdb.blocks import decode_blocks, verify_blocks
from state_pipelines.rocksdb.checksums import TRAILER_SIZE
from state_pipelines.rocksdb.kernels import BAD_BLOCK, MESSAGES, count_entries, parse_entries
from state_pipelines.rocksdb.table_readers import READ_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.rocksdb.cache import TableCache
    from state_pipelines.rocksdb.manifest import TableFile
    from state_pipelines.rocksdb.table import Table


def verify_table(file: TableFile, tables: TableCache, *, whole: bool) -> int:
    """Check a table against its own checksums and the MANIFEST; returns the number of its entries that were read.

    Args:
        file: the table.
        tables: keeps opened tables, so that a small one is read once for this and for its records.
        whole: every data block, not only the first and the last one.

    Raises:
        FormatError: a block does not match its checksum, entries are not in order, or keys are outside the bounds that
            the MANIFEST has.
        MissingFileError: the file does not exist.
        UnsupportedError: the table has a format that this release does not cover.
    """
    table = tables.open(file)
    # Not the properties: an old RocksDB changed them after it had computed their checksum.
    for offset, size in table.filters:
        data = np.frombuffer(table.read(offset, offset + size + TRAILER_SIZE), np.uint8)
        verify_blocks(table.block_format, data, offset, np.array([offset], np.int64), np.array([size], np.int64))
    entries = 0
    last = b""
    for blocks in _group_blocks(table, whole=whole):
        count, smallest, largest = _read_blocks(table, blocks)
        entries += count
        if smallest < max(last, file.smallest) or largest >= file.end:
            what = "a table holds keys outside the bounds that the MANIFEST has of it, or out of order"
            hint = "The file is another one than the MANIFEST describes"
            where = Where(file=file.stream.name, offset=int(table.index.offsets[blocks.start]))
            raise FormatError(what, where=where, hint=hint)
        last = largest
    return entries


def _group_blocks(table: Table, *, whole: bool) -> Iterator[range]:
    """Adjacent data blocks of about `READ_SIZE` bytes together, of the whole table or of its ends."""
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


def _read_blocks(table: Table, blocks: range) -> tuple[int, bytes, bytes]:
    """Number of entries, first and last user key."""
    offsets = table.index.offsets[blocks.start : blocks.stop]
    sizes = table.index.sizes[blocks.start : blocks.stop]
    offset = int(offsets[0])
    raw = table.read(offset, int(offsets[-1] + sizes[-1]) + TRAILER_SIZE)
    plain = decode_blocks(table.block_format, np.frombuffer(raw, np.uint8), offset, offsets, sizes)
    ends = np.empty(len(offsets), np.int64)
    base = plain.data.ctypes.data
    count, total, wrong = count_entries(base, plain.starts, plain.ends, ends)
    if wrong >= 0:
        where = Where(file=table.file.stream.name, offset=int(offsets[wrong]))
        raise FormatError(MESSAGES[BAD_BLOCK], where=where)
    data = np.empty(total, np.uint8)
    spans = [np.empty(count, np.int64) for _ in range(4)]
    flags, wrong = parse_entries(base, plain.starts, ends, table.sequence, data.ctypes.data, *spans)
    if wrong >= 0:
        where = Where(file=table.file.stream.name, offset=int(offsets[wrong]))
        raise FormatError(MESSAGES[flags], where=where)
    keys, stops = spans[0], spans[1]
    return count, data[keys[0] : stops[0]].tobytes(), data[keys[-1] : stops[-1]].tobytes()
