"""Snappy blocks decompressed by a kernel, many with one call.

The blocks of a table have about 4 KiB: a call per block costs about what its decompression does. Source:
`format_description.txt` of snappy: the plain size as a varint, then literals, and copies of what is there already.
"""

from __future__ import annotations

from state_pipelines.binary.compiled import njit
from state_pipelines.binary.memory import copy, load_i64, load_u8, load_u32, store_8, store_64
from state_pipelines.rocksdb.kernels import load_varint

# Lengths of literals up to here stand in the tag; above, in as many bytes after it.
_LONGEST_SHORT = 60


@njit(cache=True, nogil=True)
def decompress_snappy(base, starts, ends, target, plain_starts, plain_ends):  # type: ignore[no-untyped-def]
    """Decompress blocks.

    Args:
        base: address of the blocks.
        starts: i64[b] relative to `base`, of the plain sizes in front.
        ends: i64[b].
        target: address of the output.
        plain_starts: i64[b] relative to `target`.
        plain_ends: i64[b].

    Returns:
        The first block that is not snappy or has another plain size; -1 if all are well.
    """
    for block in range(len(starts)):
        size, at = load_varint(base + starts[block], base + ends[block])
        if at < 0 or size != plain_ends[block] - plain_starts[block]:
            return block
        if not _decompress(at, base + ends[block], target + plain_starts[block], target + plain_ends[block]):
            return block
    return -1


@njit(cache=True, nogil=True)
def _decompress(at, end, target, target_end):  # type: ignore[no-untyped-def]
    to = target
    while at < end:
        tag = load_u8(at)
        kind = tag & 3
        at += 1
        if kind == 0:
            size = (tag >> 2) + 1
            if size <= 16 and end - at >= 16 and target_end - to >= 16:
                # Both sides have room for two words: most literals are short, and need no loop.
                store_64(to, load_i64(at))
                store_64(to + 8, load_i64(at + 8))
                at += size
                to += size
                continue
            if size > _LONGEST_SHORT:
                width = size - _LONGEST_SHORT
                if width > end - at:
                    return False
                size = 1
                for byte in range(width):
                    size += load_u8(at + byte) << 8 * byte
                at += width
            if size > end - at or size > target_end - to:
                return False
            copy(to, at, size)
            at += size
            to += size
            continue
        if end - at < (1 << kind >> 1):
            return False
        if kind == 1:
            size = (tag >> 2 & 7) + 4
            distance = (tag >> 5) << 8 | load_u8(at)
            at += 1
        elif kind == 2:
            size = (tag >> 2) + 1
            distance = load_u8(at) | load_u8(at + 1) << 8
            at += 2
        else:
            size = (tag >> 2) + 1
            distance = load_u32(at)
            at += 4
        if distance == 0 or distance > to - target or size > target_end - to:
            return False
        _repeat(to, distance, size, target_end)
        to += size
    return to == target_end


@njit(cache=True, nogil=True)
def _repeat(to, distance, size, target_end):  # type: ignore[no-untyped-def]
    """Copy `size` bytes from `distance` before; they may overlap what they become."""
    source = to - distance
    stop = to + size
    if target_end - stop < 8:
        while to < stop:
            store_8(to, load_u8(source))
            to += 1
            source += 1
        return
    # Whole words, up to seven bytes too far. A pattern shorter than a word doubles until it is as long as one.
    while to - source < 8 and to < stop:
        store_64(to, load_i64(source))
        to += to - source
    while to < stop:
        store_64(to, load_i64(source))
        to += 8
        source += 8
