"""One SST file of RocksDB: its blocks with their checksums and compression, its index, properties and entries.

* `find_wrong_crc32c`, `find_wrong_block`: checksums: masked CRC-32C in logs, and in blocks the one that the footer
  names. Source: `util/crc32c.h` (the mask), `ComputeBuiltinChecksum` of `table/format.cc`.
* `BlockFormat`, `decode_blocks`: compressed blocks. All compressions but snappy have the decompressed size in front, as
  a varint (compression format 2, since table format 2). Source: `table/format.cc` and `util/compression.h` of RocksDB.
* `check_blocks`, `check_index_bounds`, `check_entries` and others: a checksum shows that a block is as it was written.
  The checks of a table against itself and the MANIFEST, by its properties, its index and its bounds, show that no block
  and no entry was left out.
* `Table`, `open_table`: the file. Source in RocksDB: `table/format.cc` (footer),
  `table/block_based/block_based_table_reader.cc`, `table/table_properties.cc`, `db/range_tombstone_fragmenter.cc`.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cramjam
import numpy as np
import xxhash

from state_pipelines.binary.compiled import load_i64, load_u8, load_u32, njit
from state_pipelines.errors import FormatError, UnsupportedError, UnsupportedVersionError, Where
from state_pipelines.metadata.streams import read_stream_range
from state_pipelines.rocksdb.kernels import (
    KEY_TRAILER_SIZE,
    RANGE_DELETION,
    decompress_snappy,
    find_misplaced,
    load_varint,
    parse_index,
)
from state_pipelines.rocksdb.manifest import BYTEWISE, Cursor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from state_pipelines.rocksdb.manifest import TableFile

NO_CHECKSUM = 0
CRC32C = 1
XXHASH32 = 2
XXHASH64 = 3
XXH3 = 4
CHECKSUM_TYPES = (NO_CHECKSUM, CRC32C, XXHASH32, XXHASH64, XXH3)

TRAILER_SIZE = 5
"""Bytes after every block: the compression type and the checksum."""

_POLYNOMIAL = 0x82F63B78
_LAST_BYTE_FACTOR = 0x6B9083D9


def _make_tables() -> npt.NDArray[np.int64]:
    tables = np.zeros((8, 256), np.int64)
    crcs = np.arange(256, dtype=np.int64)
    for _ in range(8):
        crcs = (crcs >> 1) ^ np.where(crcs & 1, _POLYNOMIAL, 0)
    tables[0] = crcs
    for row in range(1, 8):
        tables[row] = (tables[row - 1] >> 8) ^ tables[0][tables[row - 1] & 0xFF]
    return tables


# Tables for the CRC by slicing-by-8: table i has the effect of a byte after which i more bytes of its word follow.
_TABLES = _make_tables()


@njit(cache=True, nogil=True)
def _take_word(tables, crc, at):  # type: ignore[no-untyped-def]
    word = crc ^ load_i64(at)
    return (
        tables[7, word & 0xFF]
        ^ tables[6, word >> 8 & 0xFF]
        ^ tables[5, word >> 16 & 0xFF]
        ^ tables[4, word >> 24 & 0xFF]
        ^ tables[3, word >> 32 & 0xFF]
        ^ tables[2, word >> 40 & 0xFF]
        ^ tables[1, word >> 48 & 0xFF]
        ^ tables[0, word >> 56 & 0xFF]
    )


@njit(cache=True, nogil=True)
def _finish(tables, crc, at, end):  # type: ignore[no-untyped-def]
    """Return the masked CRC-32C, after adding the bytes from `at` to `end` to `crc`."""
    while at + 8 <= end:
        crc = _take_word(tables, crc, at)
        at += 8
    while at < end:
        crc = crc >> 8 ^ tables[0, (crc ^ load_u8(at)) & 0xFF]
        at += 1
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


@njit(cache=True, nogil=True)
def find_wrong_crc32c(base, starts, sizes, modifiers):  # type: ignore[no-untyped-def]
    """Check the CRC-32C of blocks, which covers the block and its compression type.

    Args:
        base: address of the data.
        starts: i64[b], first byte of each block relative to `base`; its trailer follows the block.
        sizes: i64[b], bytes of each block without its trailer.
        modifiers: i64[b], number that depends on the offset of each block and is added to its checksum.

    Returns:
        Index of the first block that does not match; -1 if all do.
    """
    tables = _TABLES
    positions = np.empty(3, np.int64)
    crcs = np.empty(3, np.int64)
    for first in range(0, len(starts), 3):
        # Each word needs the result of the previous word. Working on three blocks at once uses the waiting time.
        lanes = min(3, len(starts) - first)
        crcs[:] = 0xFFFFFFFF
        for lane in range(lanes):
            positions[lane] = base + starts[first + lane]
        if lanes == 3:
            words = (min(sizes[first], min(sizes[first + 1], sizes[first + 2])) + 1) // 8
            a, b, c = positions
            crc_a, crc_b, crc_c = crcs
            for at in range(0, 8 * words, 8):
                crc_a = _take_word(tables, crc_a, a + at)
                crc_b = _take_word(tables, crc_b, b + at)
                crc_c = _take_word(tables, crc_c, c + at)
            crcs[0], crcs[1], crcs[2] = crc_a, crc_b, crc_c
            positions += 8 * words
        for lane in range(lanes):
            block = first + lane
            end = base + starts[block] + sizes[block] + 1
            crc = _finish(tables, crcs[lane], positions[lane], end)
            if crc + modifiers[block] & 0xFFFFFFFF != load_u32(end):
                return block
    return -1


def find_wrong_block(
    kind: int,
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    modifiers: npt.NDArray[np.int64],
) -> int:
    """Check blocks against the checksums in their trailers; arguments and result as for `find_wrong_crc32c`.

    Args:
        kind: one of `CHECKSUM_TYPES`.
        data: u8, holds the blocks.
        starts: see `find_wrong_crc32c`.
        sizes: see `find_wrong_crc32c`.
        modifiers: see `find_wrong_crc32c`.
    """
    if kind == NO_CHECKSUM:
        return -1
    if kind == CRC32C:
        return int(find_wrong_crc32c(data.ctypes.data, starts, sizes, modifiers))
    view = data.data
    positions = zip(starts.tolist(), (starts + sizes).tolist(), modifiers.tolist(), strict=True)
    for block, (start, end, modifier) in enumerate(positions):
        stored = int.from_bytes(view[end + 1 : end + TRAILER_SIZE], "little")
        if (_compute_xxhash(kind, view, start, end) + modifier) & 0xFFFFFFFF != stored:
            return block
    return -1


def _compute_xxhash(kind: int, view: memoryview, start: int, end: int) -> int:
    # The two older kinds of checksums cover the compression type as one more byte; for XXH3, it is mixed in afterwards.
    if kind == XXHASH32:
        return xxhash.xxh32_intdigest(view[start : end + 1])
    if kind == XXHASH64:
        return xxhash.xxh64_intdigest(view[start : end + 1]) & 0xFFFFFFFF
    return (xxhash.xxh3_64_intdigest(view[start:end]) ^ view[end] * _LAST_BYTE_FACTOR) & 0xFFFFFFFF


_NONE = 0
_SNAPPY = 1
_ZLIB = 2
_LZ4 = 4
_LZ4HC = 5
_ZSTD = 7
_NAMES = {3: "bzip2", 6: "xpress"}
# Maximum expansion of a compressed byte, so that a wrong size cannot make the reader allocate too much.
_RATIOS = np.ones(256, np.int64)
_RATIOS[[_SNAPPY, _ZLIB, _LZ4, _LZ4HC, _ZSTD]] = (32, 1100, 256, 256, 1 << 16)


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """Properties common to all blocks of a table.

    Attributes:
        name: name of the file, for errors.
        checksum: one of `CHECKSUM_TYPES`.
        base_context: number in the footer since table format 6 that is mixed into every checksum; else 0.
        sized: compressed blocks begin with their decompressed size, as in all tables since format 2.
    """

    name: str
    checksum: int
    base_context: int = 0
    sized: bool = True


@dataclass(frozen=True, slots=True)
class Blocks:
    """Decompressed blocks.

    Attributes:
        data: u8, holds all blocks.
        starts: i64[b], first byte of each block in `data`.
        ends: i64[b], end of each block in `data`.
    """

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


def decode_blocks(
    block_format: BlockFormat,
    data: npt.NDArray[np.uint8],
    offset: int,
    offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
) -> Blocks:
    """Check and decompress blocks.

    Args:
        block_format: format of the blocks of the table.
        data: u8, a range of the file that contains the blocks and their trailers.
        offset: offset of `data` in the file.
        offsets: i64[b], offset of each block in the file.
        sizes: i64[b], size of each block without its trailer.

    Raises:
        FormatError: a block does not match its checksum or cannot be decompressed.
        UnsupportedError: a block is compressed in a way that is not supported.
    """
    verify_blocks(block_format, data, offset, offsets, sizes)
    starts = offsets - offset
    ends = starts + sizes
    kinds = data[ends]
    if not kinds.any():
        return Blocks(data, starts, ends)
    return _decompress(block_format, data, starts, ends, kinds, offsets)


def verify_blocks(
    block_format: BlockFormat,
    data: npt.NDArray[np.uint8],
    offset: int,
    offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
) -> None:
    """Check blocks against their checksums; arguments as for `decode_blocks`.

    Raises:
        FormatError: a block does not match.
    """
    modifiers = _compute_modifiers(block_format.base_context, offsets)
    wrong = find_wrong_block(block_format.checksum, data, offsets - offset, sizes, modifiers)
    if wrong >= 0:
        hint = "The file was changed after RocksDB wrote it"
        raise FormatError("a block does not match its checksum", where=_locate(block_format, offsets[wrong]), hint=hint)


def _compute_modifiers(base: int, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if not base:
        return np.zeros(len(offsets), np.int64)
    return base ^ ((offsets & 0xFFFFFFFF) + (offsets >> 32) & 0xFFFFFFFF)


def _decompress(
    block_format: BlockFormat,
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    kinds: npt.NDArray[np.uint8],
    offsets: npt.NDArray[np.int64],
) -> Blocks:
    for kind in np.unique(kinds).tolist():
        if kind not in (_SNAPPY, *_DECOMPRESSORS) or not (block_format.sized or kind in (_NONE, _SNAPPY)):
            what = f"a block is compressed by {_NAMES.get(kind, f'method {kind}')}"
            hint = "Compact the database with a RocksDB that uses snappy, lz4, zstd, zlib or no compression"
            raise UnsupportedError(what, where=_locate(block_format, offsets[np.argmax(kinds == kind)]), hint=hint)
    plain_sizes, sources = ends - starts, starts.copy()
    read_plain_sizes(data.ctypes.data, ends, kinds, plain_sizes, sources)
    wrong = np.flatnonzero((plain_sizes < 0) | (plain_sizes > (ends - starts) * _RATIOS[kinds]))
    if len(wrong):
        block = wrong[0]
        what = f"a block of {ends[block] - starts[block]} bytes says that it holds {plain_sizes[block]}"
        raise FormatError(what, where=_locate(block_format, offsets[block]))
    plain_ends = np.cumsum(plain_sizes)
    plain_starts = plain_ends - plain_sizes
    plain = np.empty(int(plain_ends[-1]), np.uint8)
    positions = (sources, ends, plain_starts, plain_ends)
    rows = np.flatnonzero(kinds == _SNAPPY)
    starts, ends, *targets = (each[rows] for each in positions)
    wrong_row = decompress_snappy(data.ctypes.data, starts, ends, plain.ctypes.data, *targets)
    if wrong_row >= 0:
        what = "a block cannot be decompressed: it is not what snappy writes"
        raise FormatError(what, where=_locate(block_format, offsets[rows[wrong_row]]))
    rows = np.flatnonzero(kinds != _SNAPPY)
    others = tuple(each[rows] for each in (*positions, kinds, offsets))
    _decompress_into(block_format, data.data, others, plain.data)
    return Blocks(plain, plain_starts, plain_ends)


def _decompress_into(
    block_format: BlockFormat, source: memoryview, positions: tuple[npt.NDArray[Any], ...], target: memoryview
) -> None:
    # Callers prepare all blocks at once before this loop, so that the loop takes little more time than decompression.
    offset = -1
    try:
        for start, end, plain_start, plain_end, kind, offset in zip(
            *(each.tolist() for each in positions), strict=True
        ):
            written = _DECOMPRESSORS[kind](source[start:end], target[plain_start:plain_end])
            if written != plain_end - plain_start:
                what = f"a block has {written} bytes decompressed, and states {plain_end - plain_start}"
                raise FormatError(what, where=_locate(block_format, offset))
    except (cramjam.DecompressionError, zlib.error, ValueError, OSError) as error:
        what = f"a block cannot be decompressed: {error}"
        raise FormatError(what, where=_locate(block_format, offset)) from None


@njit(cache=True, nogil=True)
def read_plain_sizes(base, ends, kinds, sizes, sources):  # type: ignore[no-untyped-def]
    """Read the decompressed sizes with which compressed blocks begin.

    Args:
        base: address of the data.
        ends: i64[b], end of each block relative to `base`.
        kinds: u8[b], compression type of each block.
        sizes: i64[b], stored sizes; for compressed blocks replaced by the decompressed size, -1 if that is invalid.
        sources: i64[b], start of each block; moved to the first byte after the decompressed size, except for snappy,
            whose data include it.
    """
    for block in range(len(ends)):
        if kinds[block] == _NONE:
            continue
        size, end = load_varint(base + sources[block], base + ends[block])
        sizes[block] = size if end >= 0 else -1
        if kinds[block] != _SNAPPY:
            sources[block] = end - base


def _copy(source: memoryview, target: memoryview) -> int:
    target[:] = source
    return len(target)


def _inflate(source: memoryview, target: memoryview) -> int:
    # RocksDB writes zlib data without a header (a negative `window_bits`).
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    data = inflater.decompress(source, len(target) + 1)
    target[: len(data)] = data
    return len(data)


_lz4: Any = cramjam.lz4
_zstd: Any = cramjam.zstd
_DECOMPRESSORS: dict[int, Callable[[memoryview, memoryview], int]] = {
    _NONE: _copy,
    _ZLIB: _inflate,
    _LZ4: _lz4.decompress_block_into,
    _LZ4HC: _lz4.decompress_block_into,
    _ZSTD: _zstd.decompress_into,
}


def _locate(block_format: BlockFormat, offset: int | np.int64) -> Where:
    return Where(file=block_format.name, offset=int(offset))


def read_block(block_format: BlockFormat, data: bytes, offset: int) -> bytes:
    """Check and decompress one block.

    Args:
        block_format: format of the blocks of the table.
        data: the block with its trailer.
        offset: offset of the block in the file.

    Raises:
        FormatError: as for `decode_blocks`.
        UnsupportedError: as for `decode_blocks`.
    """
    size = len(data) - TRAILER_SIZE
    if size < 0:
        raise FormatError("a block is shorter than its trailer", where=_locate(block_format, offset))
    position = np.array([offset], np.int64)
    blocks = decode_blocks(block_format, np.frombuffer(data, np.uint8), offset, position, np.array([size], np.int64))
    return blocks.data[int(blocks.starts[0]) : int(blocks.ends[0])].tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class BlockIndex:
    """Offsets of the data blocks of a table, and the separator key after each block.

    A separator is a user key that no key of its block exceeds, and that is below every key of the next block. Unless
    `has_user_keys`, it may also equal the first key of the next block.

    Attributes:
        keys: u8, holds the separators.
        key_starts: i64[b], start of each separator in `keys`.
        key_ends: i64[b], end of each separator.
        offsets: i64[b], offset of each block in the file, ascending.
        sizes: i64[b], size of each block without its trailer.
        has_user_keys: all versions of a key are in the same block.
    """

    keys: npt.NDArray[np.uint8]
    key_starts: npt.NDArray[np.int64]
    key_ends: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    has_user_keys: bool

    def __len__(self) -> int:
        return len(self.offsets)

    def separator(self, block: int) -> bytes:
        """Return the separator (a user key) after a block."""
        return self.keys[self.key_starts[block] : self.key_ends[block]].tobytes()


_LARGEST_ALIGNMENT = 1 << 12
"""Largest alignment of data blocks with the option `block_align` (`kDefaultPageSize`)."""
_HINT = "The file was changed after RocksDB wrote it"
_OTHER_FILE = "The file is another one than the MANIFEST describes"


def check_column_family(name: bytes, file: TableFile) -> None:
    """Compare the column family for which a table was written with the one in which the MANIFEST lists it.

    Names are compared and not ids, because an import into another database (`createColumnFamilyWithImport`) keeps only
    the name. Tables of an `SstFileWriter` have no name.

    Raises:
        FormatError: the names differ.
    """
    if name and file.column_family and name != file.column_family.encode("utf-8", "surrogateescape"):
        written = name.decode("utf-8", "replace")
        what = f"a table was written for column family {written!r}, the MANIFEST lists it in {file.column_family!r}"
        raise FormatError(what, where=Where(file=file.stream.name), hint=_OTHER_FILE)


def check_blocks(index: BlockIndex, number: int | None, name: str, offset: int) -> None:
    """Check that an index names all data blocks, which fill the file from its start without gaps.

    Args:
        index: the index, whose blocks do not overlap and are inside the file.
        number: number of data blocks according to the properties of the table; None if they do not have it.
        name: name of the file, for errors.
        offset: offset of the index in the file.

    Raises:
        FormatError: the index leaves out blocks.
    """
    expected = np.append(0, index.offsets + index.sizes + TRAILER_SIZE)[:-1]
    if len(index):
        # With `block_align`, zeros fill the file up to the next block, which starts at a multiple of a power of two.
        common = int(np.bitwise_or.reduce(index.offsets))
        alignment = min(common & -common, _LARGEST_ALIGNMENT) if common else 1
        expected = -(-expected // alignment) * alignment
    gaps = np.flatnonzero(index.offsets != expected[: len(index)])
    if len(gaps):
        gap = int(gaps[0])
        size = int(index.offsets[gap] - expected[gap])
        what = f"the index of a table leaves out {size} bytes before its data block {gap}"
        raise FormatError(what, where=Where(file=name, offset=int(expected[gap])), hint=_HINT)
    if number is not None and number != len(index):
        what = f"the index of a table names {len(index)} data blocks, the properties of the table say {number}"
        raise FormatError(what, where=Where(file=name, offset=offset), hint=_HINT)


def check_range_deletions(found: int, number: int | None, name: str) -> None:
    """Compare the number of range tombstones with the number in the properties of the table (None: not there).

    Raises:
        FormatError: the numbers differ.
    """
    if number is not None and number != found:
        what = f"a table holds {found} range tombstones, its properties say {number}"
        raise FormatError(what, where=Where(file=name), hint=_HINT)


def check_index_bounds(index: BlockIndex, file: TableFile) -> None:
    """Check, by the index only, that the bounds in the MANIFEST are in the first and in the last data block.

    Raises:
        FormatError: the bounds leave out a whole block.
    """
    number = len(index)
    if number and (index.separator(0) < file.smallest or (number > 1 and index.separator(number - 2) >= file.end)):
        block = 0 if index.separator(0) < file.smallest else number - 1
        raise _make_bounds_error(file, int(index.offsets[block]))


def check_keys(
    index: BlockIndex,
    file: TableFile,
    blocks: range,
    data: npt.NDArray[np.uint8],
    spans: Sequence[npt.NDArray[np.int64]],
    counts: npt.NDArray[np.int64],
) -> None:
    """Check that the keys of adjacent data blocks are within their separators in the index, and the MANIFEST's bounds.

    A scan finds the blocks to read by separators and bounds, so it would miss keys outside of these.

    Args:
        index: the index of the table.
        file: the table.
        blocks: the data blocks.
        data: u8, holds their keys.
        spans: i64[n] starts and i64[n] ends of the user keys in `data`.
        counts: i64[b], number of entries up to the end of each block.

    Raises:
        FormatError: a key is outside the bounds of the table, or on the wrong side of a separator.
    """
    starts, ends = spans[0], spans[1]
    if blocks.start == 0 and data[starts[0] : ends[0]].tobytes() < file.smallest:
        raise _make_bounds_error(file, int(index.offsets[0]))
    if blocks.stop == len(index) and data[starts[-1] : ends[-1]].tobytes() >= file.end:
        raise _make_bounds_error(file, int(index.offsets[-1]))
    separators = index.keys.ctypes.data, index.key_starts, index.key_ends
    wrong = find_misplaced(data.ctypes.data, starts, ends, counts, *separators, blocks.start)
    if wrong >= 0:
        what = "a table holds keys in other blocks than its index says"
        raise FormatError(
            what, where=Where(file=file.stream.name, offset=int(index.offsets[blocks[wrong]])), hint=_HINT
        )


def check_entries(file: TableFile, found: int, number: int) -> None:
    """Compare the number of entries that were read from a whole table with that in its properties (-1: not there).

    Raises:
        FormatError: the numbers differ.
    """
    if number not in (-1, found):
        what = f"the data blocks of a table hold {found} entries, its properties say {number}"
        raise FormatError(what, where=Where(file=file.stream.name), hint=_HINT)


def _make_bounds_error(file: TableFile, offset: int) -> FormatError:
    what = "a table holds keys outside the bounds that the MANIFEST has of it, or out of order"
    return FormatError(what, where=Where(file=file.stream.name, offset=offset), hint=_OTHER_FILE)


FOOTER_SIZE = 53
MAGIC = 0x88E241B785F4CFF7
FORMAT_VERSIONS = range(1, 7)
# Footer of table format 0, without version and checksum type. Up to Flink 1.12, RocksDB's Java API chooses this format
# if table options are set.
OLD_FOOTER_SIZE = 48
OLD_MAGIC = 0xDB4775248B80FB57

# Size of the first read of a table: it covers a small table, else most often the index. On object storage another
# request costs more than these bytes.
_TAIL_SIZE = 1 << 16
_LARGEST_TAIL = 1 << 20
_TAIL_SHARE = 64
_EXTENDED_MAGIC = b"\x3e\x00\x7a\x00"
_FIRST_EXTENDED = 6
_FIRST_SIZED = 2
_HASH_INDEX = 1 << 31
_TWO_LEVEL_INDEX = 2
_INDEX_TYPES = (0, 1, _TWO_LEVEL_INDEX)
_TABLE_HINT = "Compact the database with the RocksDB that Flink uses and its default table options"
_FILTERS = (b"filter.", b"fullfilter.", b"partitionedfilter.")
_MOST_EXPANSION = 64.0
_GLOBAL_SEQUENCE = b"rocksdb.external_sst_file.global_seqno"


@dataclass(frozen=True, slots=True)
class RangeTombstone:
    """Deletion of entries older than `sequence` whose keys are from `start` up to `end` (exclusive)."""

    start: bytes
    end: bytes
    sequence: int


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """An open table.

    Attributes:
        file: the table file.
        block_format: format of its blocks.
        sequence: sequence number of all entries of an ingested table; -1 for other tables.
        merge_operator: name of the operator that joins its merge operands.
        expansion: approximate bytes of keys and values per byte of data blocks.
        index: index of its data blocks.
        tombstones: range tombstones, cut to the bounds of the table.
        entries: number of entries in its data blocks according to its properties; -1 if they do not have it.
        filters: offsets and sizes (without trailers) of its filter blocks, which scans do not use.
        content: the whole file, if it was read to open the table; else empty.
    """

    file: TableFile
    block_format: BlockFormat
    sequence: int
    merge_operator: str
    expansion: float
    index: BlockIndex
    tombstones: tuple[RangeTombstone, ...]
    entries: int = -1
    filters: tuple[tuple[int, int], ...] = ()
    content: bytes = b""

    @property
    def held(self) -> int:
        """Approximate bytes of memory that the table takes."""
        index = self.index
        return len(self.content) + index.keys.nbytes + 4 * index.offsets.nbytes

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes of the file from `start` up to `end` (exclusive).

        Raises:
            FormatError: the file ends before `end`.
            MissingFileError: the file does not exist.
        """
        return self.content[start:end] if self.content else read_stream_range(self.file.stream, start, end)


@dataclass(frozen=True, slots=True)
class _Tail:
    """The last bytes of a table, read with one request; they contain most blocks that are needed to open it."""

    file: TableFile
    data: bytes

    def read(self, offset: int, size: int) -> bytes:
        if not 0 <= offset <= offset + size <= self.file.size:
            what = f"a block of {size} bytes does not lie inside the {self.file.size} bytes of the table"
            raise FormatError(what, where=Where(file=self.file.stream.name, offset=offset))
        start = offset - (self.file.size - len(self.data))
        if start < 0:
            return read_stream_range(self.file.stream, offset, offset + size)
        return self.data[start : start + size]


def open_table(file: TableFile) -> Table:
    """Open a table: read its footer, properties, index and range tombstones.

    Raises:
        FormatError: the table is damaged.
        MissingFileError: the file does not exist.
        UnsupportedError: the table has a format that this release does not cover.
    """
    name = file.stream.name
    tail = _read_tail(file)
    block_format, metaindex_range, index_range = _read_footer(tail)
    metaindex = {
        key: _read_block_range(Cursor(value, name)) for key, value, _ in _read_meta(tail, block_format, metaindex_range)
    }
    if b"rocksdb.properties" not in metaindex:
        raise FormatError("a table has no properties", where=Where(file=name))
    if b"rocksdb.compression_dict" in metaindex:
        raise UnsupportedError(
            "the blocks of a table are compressed with a dictionary", where=Where(file=name), hint=_TABLE_HINT
        )
    properties = _read_properties(tail, block_format, metaindex[b"rocksdb.properties"])
    index_range = index_range or metaindex.get(b"rocksdb.index")
    if index_range is None:
        raise FormatError("a table has no index", where=Where(file=name))
    _check(properties, name)
    check_column_family(properties.get(b"rocksdb.column.family.name", b""), file)
    sequence = _find_sequence(properties, file)
    deletions: list[tuple[bytes, bytes, int]] = []
    if b"rocksdb.range_del" in metaindex:
        deletions = _read_meta(tail, block_format, metaindex[b"rocksdb.range_del"])
    check_range_deletions(len(deletions), _find_number(properties, b"rocksdb.num.range-deletions", name), name)
    tombstones = tuple(_cut_tombstones(deletions, file, sequence))
    # The number in the properties includes range tombstones.
    entries = _find_number(properties, b"rocksdb.num.entries", name)
    index = _read_index(tail, block_format, properties, index_range)
    check_index_bounds(index, file)
    data_size = _read_number(properties, b"rocksdb.data.size", name)
    raw = _read_number(properties, b"rocksdb.raw.key.size", name)
    raw += _read_number(properties, b"rocksdb.raw.value.size", name)
    return Table(
        file,
        block_format,
        sequence,
        properties.get(b"rocksdb.merge.operator", b"").decode("utf-8", "replace"),
        min(max(raw / data_size, 1.0), _MOST_EXPANSION) if data_size else 1.0,
        index,
        tombstones,
        -1 if entries is None else entries - len(deletions),
        tuple(block_range for key, block_range in metaindex.items() if key.startswith(_FILTERS)),
        tail.data if len(tail.data) == file.size else b"",
    )


def _read_tail(file: TableFile) -> _Tail:
    if file.size < OLD_FOOTER_SIZE:
        raise FormatError(f"a table of {file.size} bytes has no footer", where=Where(file=file.stream.name))
    return _Tail(file, read_stream_range(file.stream, file.size - find_tail_size(file), file.size))


def find_tail_size(file: TableFile) -> int:
    """Return the number of bytes at the end of a table that are read with one request to open it."""
    return min(file.size, max(_TAIL_SIZE, min(file.size // _TAIL_SHARE, _LARGEST_TAIL)))


def _read_footer(tail: _Tail) -> tuple[BlockFormat, tuple[int, int], tuple[int, int] | None]:
    file = tail.file
    start = file.size - OLD_FOOTER_SIZE
    footer = tail.read(start, OLD_FOOTER_SIZE)
    magic = int.from_bytes(footer[-8:], "little")
    if magic == OLD_MAGIC:
        cursor = Cursor(footer[:-8], file.stream.name, start)
        return BlockFormat(file.stream.name, CRC32C, sized=False), _read_block_range(cursor), _read_block_range(cursor)
    start = file.size - FOOTER_SIZE
    where = Where(file=file.stream.name, offset=start)
    if magic != MAGIC or start < 0:
        hint = "Plain and cuckoo tables have another; Flink writes none of them"
        raise FormatError("a table does not end with the magic number of block-based tables", where=where, hint=hint)
    footer = tail.read(start, FOOTER_SIZE)
    version = int.from_bytes(footer[-12:-8], "little")
    if version not in FORMAT_VERSIONS:
        raise UnsupportedVersionError(
            f"tables of format version {version} are not supported", where=where, hint=_TABLE_HINT
        )
    if footer[0] not in CHECKSUM_TYPES:
        raise UnsupportedError(f"block checksums of type {footer[0]} are not supported", where=where, hint=_TABLE_HINT)
    if version < _FIRST_EXTENDED:
        cursor = Cursor(footer[1:-12], file.stream.name, start + 1)
        block_format = BlockFormat(file.stream.name, footer[0], sized=version >= _FIRST_SIZED)
        return block_format, _read_block_range(cursor), _read_block_range(cursor)
    if footer[1:5] != _EXTENDED_MAGIC:
        raise FormatError("the footer of a table lacks its second magic number", where=where)
    context = int.from_bytes(footer[9:13], "little")
    block_format = BlockFormat(file.stream.name, footer[0], context)
    _check_footer(block_format, footer, start)
    size = int.from_bytes(footer[13:17], "little")
    return block_format, (start - size - TRAILER_SIZE, size), None


def _check_footer(block_format: BlockFormat, footer: bytes, start: int) -> None:
    if block_format.checksum == NO_CHECKSUM:
        return
    # The checksum of the footer is computed with zeros instead of the checksum itself; the last byte takes the role of
    # the compression type.
    trailed = np.frombuffer(footer[:5] + bytes(4) + footer[9:] + footer[5:9], np.uint8)
    verify_blocks(block_format, trailed, start, np.array([start], np.int64), np.array([FOOTER_SIZE - 1], np.int64))


def _read_block_range(cursor: Cursor) -> tuple[int, int]:
    return cursor.varint(), cursor.varint()


def _read_meta(tail: _Tail, block_format: BlockFormat, block_range: tuple[int, int]) -> list[tuple[bytes, bytes, int]]:
    offset, size = block_range
    block = read_block(block_format, tail.read(offset, size + TRAILER_SIZE), offset)
    return list(_iter_entries(Cursor(block, block_format.name, offset)))


def _find_entries_end(block: bytes, block_format: BlockFormat, offset: int) -> int:
    end = len(block) - 4
    restarts = int.from_bytes(block[-4:], "little")
    if end < 0 or restarts & _HASH_INDEX or 4 * restarts > end:
        raise FormatError("a block has no restart points", where=Where(file=block_format.name, offset=offset))
    return end - 4 * restarts


def _iter_entries(cursor: Cursor) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield key, value, and offset of the value in the block, for each entry of a block."""
    end = _find_entries_end(cursor.data, BlockFormat(cursor.name, NO_CHECKSUM), cursor.offset)
    key = b""
    while cursor.position < end:
        shared, rest, size = cursor.varint(), cursor.varint(), cursor.varint()
        if shared > len(key):
            raise cursor.error("a key shares more bytes than the key before it has")
        key = key[:shared] + cursor.take(rest)
        yield key, cursor.take(size), cursor.position - size


def _read_properties(tail: _Tail, block_format: BlockFormat, block_range: tuple[int, int]) -> dict[bytes, bytes]:
    try:
        entries = _read_meta(tail, block_format, block_range)
    except FormatError:
        # An old RocksDB wrote the sequence number of an ingested table into the properties after it had computed their
        # checksum with zeros there.
        offset, size = block_range
        block = bytearray(tail.read(offset, size + TRAILER_SIZE))
        plain = bytes(block[:-TRAILER_SIZE])
        found = {key: position for key, _, position in _iter_entries(Cursor(plain, block_format.name, offset))}
        if _GLOBAL_SEQUENCE not in found:
            raise
        block[found[_GLOBAL_SEQUENCE] : found[_GLOBAL_SEQUENCE] + 8] = bytes(8)
        read_block(block_format, bytes(block), offset)
        entries = list(_iter_entries(Cursor(plain, block_format.name, offset)))
    return {key: value for key, value, _ in entries}


def _check(properties: dict[bytes, bytes], name: str) -> None:
    where = Where(file=name)
    comparator = properties.get(b"rocksdb.comparator", BYTEWISE.encode()).decode("utf-8", "replace")
    if comparator != BYTEWISE:
        what = f"the keys of a table are ordered by {comparator}, not by their bytes"
        raise UnsupportedError(what, where=where)
    kind = _read_fixed(properties, b"rocksdb.block.based.table.index.type", 4)
    if kind not in _INDEX_TYPES:
        raise UnsupportedError(f"a table has an index of type {kind}", where=where, hint=_TABLE_HINT)


def _read_fixed(properties: dict[bytes, bytes], key: bytes, size: int) -> int:
    return int.from_bytes(properties.get(key, b"")[:size], "little")


def _read_number(properties: dict[bytes, bytes], key: bytes, name: str) -> int:
    return _find_number(properties, key, name) or 0


def _find_number(properties: dict[bytes, bytes], key: bytes, name: str) -> int | None:
    return Cursor(properties[key], name).varint() if key in properties else None


def _find_sequence(properties: dict[bytes, bytes], file: TableFile) -> int:
    # As in `GetGlobalSequenceNumber`: the MANIFEST has the sequence number of an ingested table. An old RocksDB also
    # wrote it into the table.
    if _read_fixed(properties, b"rocksdb.external_sst_file.version", 4) < 2:
        return -1
    written = _read_fixed(properties, _GLOBAL_SEQUENCE, 8)
    if written not in (0, file.largest_sequence):
        what = f"a table was ingested with sequence {written}, the MANIFEST says {file.largest_sequence}"
        raise FormatError(what, where=Where(file=file.stream.name))
    return file.largest_sequence


def _cut_tombstones(
    entries: list[tuple[bytes, bytes, int]], file: TableFile, sequence: int
) -> Iterator[RangeTombstone]:
    # A table may repeat a tombstone that reaches beyond its bounds. There, newer entries may have lost their sequence
    # numbers to a compaction already, so it must not be applied (`TruncatedRangeDelIterator`).
    for key, end, _ in entries:
        trailer = int.from_bytes(key[-KEY_TRAILER_SIZE:], "little")
        if len(key) < KEY_TRAILER_SIZE or trailer & 0xFF != RANGE_DELETION:
            raise FormatError(
                "an entry among the range tombstones of a table is no range tombstone",
                where=Where(file=file.stream.name),
            )
        start = max(key[:-KEY_TRAILER_SIZE], file.smallest)
        end = min(end, file.end)
        if start < end:
            yield RangeTombstone(start, end, trailer >> 8 if sequence < 0 else sequence)


def _read_index(
    tail: _Tail, block_format: BlockFormat, properties: dict[bytes, bytes], block_range: tuple[int, int]
) -> BlockIndex:
    has_user_keys = _read_number(properties, b"rocksdb.index.key.is.user.key", block_format.name) != 0
    delta = _read_number(properties, b"rocksdb.index.value.is.delta.encoded", block_format.name) != 0
    index = _parse_index(tail, block_format, block_range, has_user_keys, delta)
    if _read_fixed(properties, b"rocksdb.block.based.table.index.type", 4) == _TWO_LEVEL_INDEX:
        ranges = zip(index.offsets.tolist(), index.sizes.tolist(), strict=True)
        index = _join(
            [_parse_index(tail, block_format, partition, has_user_keys, delta) for partition in ranges], has_user_keys
        )
    largest = max(int(index.offsets.max(initial=0)), int(index.sizes.max(initial=0)))
    ends = index.offsets + index.sizes + TRAILER_SIZE
    if (
        largest > tail.file.size
        or (index.sizes < 0).any()
        or (index.offsets < np.append(0, ends)[:-1]).any()
        or (ends > tail.file.size).any()
    ):
        what = "the index of a table names blocks that overlap or lie outside the file"
        raise FormatError(what, where=Where(file=block_format.name, offset=block_range[0]))
    number = _find_number(properties, b"rocksdb.num.data.blocks", block_format.name)
    check_blocks(index, number, block_format.name, block_range[0])
    return index


def _parse_index(
    tail: _Tail, block_format: BlockFormat, block_range: tuple[int, int], has_user_keys: bool, delta: bool
) -> BlockIndex:
    offset, size = block_range
    block = read_block(block_format, tail.read(offset, size + TRAILER_SIZE), offset)
    end = _find_entries_end(block, block_format, offset)
    data = np.frombuffer(block, np.uint8)
    trailer = 0 if has_user_keys else KEY_TRAILER_SIZE
    none = np.empty(0, np.int64)
    count, key_size = parse_index(data.ctypes.data, end, delta, trailer, 0, none, none, none, none)
    if count < 0:
        raise FormatError("a block is not an index", where=Where(file=block_format.name, offset=offset))
    keys = np.empty(key_size, np.uint8)
    starts, ends, offsets, sizes = (np.empty(count, np.int64) for _ in range(4))
    parse_index(data.ctypes.data, end, delta, trailer, keys.ctypes.data, starts, ends, offsets, sizes)
    return BlockIndex(keys, starts, ends, offsets, sizes, has_user_keys)


def _join(partitions: list[BlockIndex], has_user_keys: bool) -> BlockIndex:
    if not partitions:
        none = np.empty(0, np.int64)
        return BlockIndex(np.empty(0, np.uint8), none, none, none, none, has_user_keys)
    bases = np.cumsum([0, *(len(partition.keys) for partition in partitions[:-1])]).tolist()
    return BlockIndex(
        np.concatenate([each.keys for each in partitions]),
        np.concatenate([each.key_starts + base for each, base in zip(partitions, bases, strict=True)]),
        np.concatenate([each.key_ends + base for each, base in zip(partitions, bases, strict=True)]),
        np.concatenate([each.offsets for each in partitions]),
        np.concatenate([each.sizes for each in partitions]),
        has_user_keys,
    )


def find_blocks(table: Table, start: bytes, end: bytes | None) -> range:
    """Return the data blocks of a table that may hold keys from `start` up to `end` (exclusive; None: to the end)."""
    index = table.index
    blocks = range(len(index))
    first = bisect_left(blocks, start, key=index.separator)
    if end is None:
        return blocks[first:]
    # If `end` is the separator of a block and a zero byte, so the next possible key after the separator, that block is
    # the last one to read, unless the next block may have older versions of the separator's key.
    tail = b"\0" if index.has_user_keys else b""
    last = bisect_left(blocks, end, lo=first, key=lambda block: index.separator(block) + tail)
    return blocks[first : last + 1]
