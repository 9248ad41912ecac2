"""The checksums of RocksDB's files: masked CRC-32C in logs, and whichever a table's footer names in its blocks.

Source: `util/crc32c.h` (the mask), `ComputeBuiltinChecksum` of `table/format.cc`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xxhash

from state_pipelines.binary.compiled import njit
from state_pipelines.binary.memory import load_i64, load_u8, load_u32

if TYPE_CHECKING:
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
