"""Verification of tables: footer, properties, index, every meta block, the bounds of the MANIFEST, and data blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from state_pipelines.errors import FormatError, Where
from state_pipelines.rocksdb.blocks import decode_blocks, verify_blocks
from state_pipelines.rocksdb.checksums import TRAILER_SIZE
from state_pipelines.rocksdb.kernels import BAD_BLOCK, MESSAGES, count_entries, parse_entries
from state_pipelines.rocksdb.table_checks import check_entries, check_keys
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
        FormatError: a block does not match its checksum, entries are not in order, keys are outside the bounds that
            the MANIFEST has, or blocks or entries are missing.
        MissingFileError: the file does not exist.
        UnsupportedError: the table has a format that this release does not cover.
    """
    table = tables.open(file)
    # Not the properties: an old RocksDB changed them after it had computed their checksum.
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
