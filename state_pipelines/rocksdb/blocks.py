"""Blocks of a table: checked against their checksums and decompressed.

The checksums of RocksDB's files: masked CRC-32C in logs, and whichever a table's footer names in its blocks. Source:
`util/crc32c.h` (the mask), `ComputeBuiltinChecksum` of `table/format.cc`.

Source: `table/format.cc` and `util/compression.h` of RocksDB. All compressions but snappy have the decompressed size in
front, as a varint (compression format 2, since table format 2).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cramjam
import numpy as np
import xxhash

from state_pipelines.binary.compiled import load_i64, load_u8, load_u32, njit
from state_pipelines.errors import FormatError, UnsupportedError, Where
from state_pipelines.rocksdb.kernels import decompress_snappy, load_varint

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

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


# Slicing by eight: the effect of each byte of a word, by the bytes that follow it in the word.
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
    """The masked CRC-32C when the bytes from `at` to `end` are still to be taken."""
    while at + 8 <= end:
        crc = _take_word(tables, crc, at)
        at += 8
    while at < end:
        crc = crc >> 8 ^ tables[0, (crc ^ load_u8(at)) & 0xFF]
        at += 1
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


@njit(cache=True, nogil=True)
def masked_crc32c(address, size):  # type: ignore[no-untyped-def]
    """The CRC-32C of `size` bytes at an address, rotated and shifted as RocksDB and snappy store it."""
    return _finish(_TABLES, 0xFFFFFFFF, address, address + size)


@njit(cache=True, nogil=True)
def find_wrong_crc32c(base, starts, sizes, modifiers):  # type: ignore[no-untyped-def]
    """Check the CRC-32C of blocks, which covers the block and its compression type.

    Args:
        base: address of the data.
        starts: i64[b] first byte of each block, relative to `base`; `sizes` + `TRAILER_SIZE` bytes are there.
        sizes: i64[b] bytes of each block without its trailer.
        modifiers: i64[b] what the offset of the block adds to its checksum.

    Returns:
        The first block that does not match; -1 if all do.
    """
    tables = _TABLES
    positions = np.empty(3, np.int64)
    crcs = np.empty(3, np.int64)
    for first in range(0, len(starts), 3):
        # Each word waits for the one before it: three blocks at once fill the time.
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
    # The two older kinds cover the compression type as one more byte; XXH3 has it mixed in afterwards.
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
# Most bytes that one compressed byte can stand for, so that a wrong size cannot demand the memory.
_RATIOS = np.ones(256, np.int64)
_RATIOS[[_SNAPPY, _ZLIB, _LZ4, _LZ4HC, _ZSTD]] = (32, 1100, 256, 256, 1 << 16)


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """Properties common to all blocks of a table.

    Attributes:
        name: of the file, for errors.
        checksum: one of `CHECKSUM_TYPES`.
        base_context: of the footer since table format 6, mixed into every checksum; else 0.
        sized: compressed blocks have their decompressed size in front, as all since table format 2.
    """

    name: str
    checksum: int
    base_context: int = 0
    sized: bool = True


@dataclass(frozen=True, slots=True)
class Blocks:
    """Decompressed blocks.

    Attributes:
        data: u8.
        starts: i64[b] first byte of each block in `data`.
        ends: i64[b].
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
        block_format: of the table.
        data: u8, a range of the file.
        offset: position of `data` in the file.
        offsets: i64[b] positions of the blocks in the file; with their trailers they lie inside `data`.
        sizes: i64[b] their sizes without the trailers.

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
    # Everything that can be done for all blocks at once is done before: this loop costs about what decompression does.
    offset = -1
    try:
        for start, end, plain_start, plain_end, kind, offset in zip(
            *(each.tolist() for each in positions), strict=True
        ):
            written = _DECOMPRESSORS[kind](source[start:end], target[plain_start:plain_end])
            if written != plain_end - plain_start:
                what = f"a block holds {written} bytes, it says {plain_end - plain_start}"
                raise FormatError(what, where=_locate(block_format, offset))
    except (cramjam.DecompressionError, zlib.error, ValueError, OSError) as error:
        what = f"a block cannot be decompressed: {error}"
        raise FormatError(what, where=_locate(block_format, offset)) from None


@njit(cache=True, nogil=True)
def read_plain_sizes(base, ends, kinds, sizes, sources):  # type: ignore[no-untyped-def]
    """Read the decompressed sizes that stand in front of compressed blocks.

    Args:
        base: address of the data.
        ends: i64[b] of the blocks, relative to `base`.
        kinds: u8[b] how each block is compressed.
        sizes: i64[b], the sizes of the blocks as they are; replaced where a block is compressed, by -1 if it has none.
        sources: i64[b], the starts of the blocks; moved after the sizes, but for snappy, which has them itself.
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
    # Without a header, as all of RocksDB's (a negative `window_bits`).
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
        block_format: of the table.
        data: the block with its trailer.
        offset: position of the block in the file.

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
