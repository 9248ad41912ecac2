"""Kernels of strings: Flink's `StringValue` and Java's modified UTF-8 to and from Arrow's UTF-8.

The encodings are those of `binary.data_views`, which reads and writes one value at a time.
"""

from __future__ import annotations

import numpy as np

from state_pipelines.binary.compiled import copy, load_i64, load_u8, njit, store_8, store_64
from state_pipelines.codecs.kernels import opcodes as op

HALF = -2
"""Instead of a number of bytes: there is half of a character, for which UTF-8 has no form."""

_HIGH_BITS = np.int64(-0x7F7F7F7F7F7F7F80)


@njit(cache=True, inline="never")
def read_count(position, end):  # type: ignore[no-untyped-def]
    """Read a varint of at most five bytes: (OK, TRUNCATED or BAD_LENGTH, its value, end position)."""
    value = 0
    shift = 0
    while True:
        if position >= end:
            return op.TRUNCATED, value, position
        if shift > 28:
            return op.BAD_LENGTH, value, position
        byte = load_u8(position)
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return op.OK, value, position
        shift += 7


@njit(cache=True, inline="never")
def _load_long_unit(position, end):  # type: ignore[no-untyped-def]
    status, value, position = read_count(position, end)
    return value, position if status == op.OK else -1


@njit(cache=True)
def load_unit(position, end):  # type: ignore[no-untyped-def]
    """Read a varint of at most five bytes: (value, end position or -1)."""
    if position < end:
        byte = load_u8(position)
        if byte < 0x80:
            return byte, position + 1
    return _load_long_unit(position, end)


@njit(cache=True, inline="never")
def decode_text(position, end, units, target):  # type: ignore[no-untyped-def]
    """Convert UTF-16 units (varints) at `position` to UTF-8 at `target`: (end position, bytes written).

    Instead of the bytes -1 where a unit is none, and `HALF` where half of a surrogate pair stands alone.
    """
    start = target
    left = units
    while left >= 8 and position + 8 <= end:
        word = load_i64(position)
        if word & _HIGH_BITS:
            break
        store_64(target, word)
        position += 8
        target += 8
        left -= 8
    high = 0
    while left > 0:
        if position >= end:
            return position, -1
        unit = load_u8(position)
        position += 1
        if unit >= 0x80:
            unit &= 0x7F
            shift = 7
            while True:
                if position >= end or shift > 14:
                    return position, -1
                byte = load_u8(position)
                position += 1
                unit |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
        left -= 1
        if high:
            if unit < 0xDC00 or unit > 0xDFFF:
                return position, HALF
            point = 0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00)
            store_8(target, 0xF0 | point >> 18)
            store_8(target + 1, 0x80 | point >> 12 & 0x3F)
            store_8(target + 2, 0x80 | point >> 6 & 0x3F)
            store_8(target + 3, 0x80 | point & 0x3F)
            target += 4
            high = 0
        elif unit < 0x80:
            store_8(target, unit)
            target += 1
        elif unit < 0x800:
            store_8(target, 0xC0 | unit >> 6)
            store_8(target + 1, 0x80 | unit & 0x3F)
            target += 2
        elif 0xD800 <= unit <= 0xDBFF:
            high = unit
        elif unit > 0xFFFF:
            return position, -1
        elif 0xDC00 <= unit <= 0xDFFF:
            return position, HALF
        else:
            store_8(target, 0xE0 | unit >> 12)
            store_8(target + 1, 0x80 | unit >> 6 & 0x3F)
            store_8(target + 2, 0x80 | unit & 0x3F)
            target += 3
    if high:
        return position, HALF
    return position, target - start


@njit(cache=True, inline="never")
def skip_text(position, end, units):  # type: ignore[no-untyped-def]
    """Return the end position of `units` varints, or -1 when the bytes end first."""
    left = units
    while left >= 8 and position + 8 <= end:
        if load_i64(position) & _HIGH_BITS:
            break
        position += 8
        left -= 8
    while left > 0:
        if position >= end:
            return -1
        if load_u8(position) < 0x80:
            left -= 1
        position += 1
    return position


@njit(cache=True, inline="never")
def decode_java_text(position, end, target):  # type: ignore[no-untyped-def]
    """Convert modified UTF-8 to UTF-8 at `target`; return the bytes written (at most the input size) or -1."""
    start = target
    while position + 8 <= end:
        word = load_i64(position)
        # A zero byte has a form of its own, so that bytes without the high bit are ASCII.
        if word & _HIGH_BITS:
            break
        store_64(target, word)
        position += 8
        target += 8
    high = 0
    while position < end:
        byte = load_u8(position)
        if byte < 0x80:
            size, unit = 1, byte
        elif byte & 0xE0 == 0xC0:
            size, unit = 2, byte & 0x1F
        elif byte & 0xF0 == 0xE0:
            size, unit = 3, byte & 0x0F
        else:
            return -1
        if position + size > end:
            return -1
        for i in range(1, size):
            following = load_u8(position + i)
            if following & 0xC0 != 0x80:
                return -1
            unit = unit << 6 | following & 0x3F
        if (size == 2 and 0 < unit < 0x80) or (size == 3 and unit < 0x800):
            return -1
        position += size
        if high:
            if unit < 0xDC00 or unit > 0xDFFF:
                return -1
            point = 0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00)
            store_8(target, 0xF0 | point >> 18)
            store_8(target + 1, 0x80 | point >> 12 & 0x3F)
            store_8(target + 2, 0x80 | point >> 6 & 0x3F)
            store_8(target + 3, 0x80 | point & 0x3F)
            target += 4
            high = 0
        elif 0xD800 <= unit <= 0xDBFF:
            high = unit
        elif 0xDC00 <= unit <= 0xDFFF:
            return -1
        elif unit < 0x80:
            store_8(target, unit)
            target += 1
        else:
            for i in range(size):
                store_8(target + i, load_u8(position - size + i))
            target += size
    return -1 if high else target - start


@njit(cache=True, inline="never")
def store_varint(target, value):  # type: ignore[no-untyped-def]
    """Write an unsigned varint of at most 32 bits; return the end address."""
    while value > 0x7F:
        store_8(target, value & 0x7F | 0x80)
        target += 1
        value >>= 7
    store_8(target, value)
    return target + 1


@njit(cache=True, inline="never")
def encode_text(source, size, extra, target):  # type: ignore[no-untyped-def]
    """Write UTF-8 as a Flink string (at most 5 + 3 * size bytes); return the end address, or -1."""
    units = 0
    ascii_only = True
    i = 0
    while i + 8 <= size:
        if load_i64(source + i) & _HIGH_BITS:
            ascii_only = False
            break
        i += 8
    while ascii_only and i < size:
        if load_u8(source + i) >= 0x80:
            ascii_only = False
        i += 1
    if ascii_only:
        target = store_varint(target, size + extra)
        copy(target, source, size)
        return target + size
    for i in range(size):
        byte = load_u8(source + i)
        if byte & 0xC0 != 0x80:
            units += 2 if byte >= 0xF0 else 1
    target = store_varint(target, units + extra)
    i = 0
    while i < size:
        byte = load_u8(source + i)
        if byte < 0x80:
            store_8(target, byte)
            target += 1
            i += 1
        elif byte < 0xE0:
            if i + 2 > size:
                return -1
            target = store_varint(target, (byte & 0x1F) << 6 | load_u8(source + i + 1) & 0x3F)
            i += 2
        elif byte < 0xF0:
            if i + 3 > size:
                return -1
            point = (byte & 0xF) << 12 | (load_u8(source + i + 1) & 0x3F) << 6 | load_u8(source + i + 2) & 0x3F
            target = store_varint(target, point)
            i += 3
        else:
            if i + 4 > size:
                return -1
            point = (
                (byte & 7) << 18
                | (load_u8(source + i + 1) & 0x3F) << 12
                | (load_u8(source + i + 2) & 0x3F) << 6
                | load_u8(source + i + 3) & 0x3F
            ) - 0x10000
            target = store_varint(target, 0xD800 + (point >> 10))
            target = store_varint(target, 0xDC00 + (point & 0x3FF))
            i += 4
    return target


@njit(cache=True, inline="never")
def encode_java_text(source, size, target):  # type: ignore[no-untyped-def]
    """UTF-8 at `source` as modified UTF-8 at `target`; at most 2 * size bytes; address after it, or -1."""
    i = 0
    while i < size:
        byte = load_u8(source + i)
        if byte == 0:
            store_8(target, 0xC0)
            store_8(target + 1, 0x80)
            target += 2
            i += 1
        elif byte < 0xF0:
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3
            if i + length > size:
                return -1
            for k in range(length):
                store_8(target + k, load_u8(source + i + k))
            target += length
            i += length
        else:
            if i + 4 > size:
                return -1
            point = (
                (byte & 7) << 18
                | (load_u8(source + i + 1) & 0x3F) << 12
                | (load_u8(source + i + 2) & 0x3F) << 6
                | load_u8(source + i + 3) & 0x3F
            ) - 0x10000
            for unit in (0xD800 + (point >> 10), 0xDC00 + (point & 0x3FF)):
                store_8(target, 0xE0 | unit >> 12)
                store_8(target + 1, 0x80 | unit >> 6 & 0x3F)
                store_8(target + 2, 0x80 | unit & 0x3F)
                target += 3
            i += 4
    return target
