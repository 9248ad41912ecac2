"""Kernels of text: Flink's `StringValue`, Java's modified UTF-8, and decimal text of big numbers.

* `decode_text`, `encode_text`, `decode_java_text`, `encode_java_text`: the encodings of `binary.data_views`, which
  reads and writes one value at a time.
* `format_numbers`, `parse_numbers`: two's complement bytes to decimal text and back, for `java.math.BigInteger` and
  `BigDecimal`. Text is what `BigDecimal.toString` gives: canonical, so that it determines unscaled value and scale.
"""

from __future__ import annotations

import numpy as np

from state_pipelines.binary.compiled import copy, load_i64, load_u8, njit, store_8, store_64
from state_pipelines.codecs.java import MAX_BYTES
from state_pipelines.codecs.kernels import opcodes as op

HALF = -2
"""Result instead of a number of bytes: the text has a lone surrogate, which UTF-8 cannot encode."""

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

    The second number is -1 for a unit that is cut off or too large, and `HALF` for a lone surrogate.
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
        # Modified UTF-8 encodes U+0000 as two bytes; a byte without the high bit is ASCII.
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
    """Write UTF-8 as a Flink string (at most 5 + 3 * size bytes); return the end address, -1 if it is cut off."""
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
    """Convert UTF-8 to modified UTF-8 at `target` (at most 2 * size bytes); return its end, -1 if cut off."""
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


_BILLION = 1_000_000_000
MAX_TEXT = 10_000


@njit(cache=True, inline="never")
def write_digits(limbs, used, digits):  # type: ignore[no-untyped-def]
    """Write the decimal digits (no leading zeros) of little-endian u32 limbs, which are consumed; return the count."""
    count = 0
    while True:
        while used > 0 and limbs[used - 1] == 0:
            used -= 1
        if used == 0:
            break
        rest = np.uint64(0)
        for i in range(used - 1, -1, -1):
            dividend = rest << np.uint64(32) | np.uint64(limbs[i])
            limbs[i] = np.uint32(dividend // np.uint64(_BILLION))
            rest = dividend % np.uint64(_BILLION)
        for _ in range(9):
            digits[count] = np.uint8(rest % np.uint64(10))
            rest //= np.uint64(10)
            count += 1
    while count > 0 and digits[count - 1] == 0:
        count -= 1
    if count == 0:
        digits[0] = 0
        count = 1
    for i in range(count // 2):
        other = digits[count - 1 - i]
        digits[count - 1 - i] = digits[i]
        digits[i] = other
    return count


@njit(cache=True, inline="never")
def write_number(value, at):  # type: ignore[no-untyped-def]
    """Write a small signed integer with its sign (+ or -) as ASCII; return the end address."""
    store_8(at, 43 if value >= 0 else 45)
    at += 1
    rest = abs(value)
    size = 1
    power = 10
    while rest >= power:
        power *= 10
        size += 1
    for i in range(size - 1, -1, -1):
        store_8(at + i, 48 + rest % 10)
        rest //= 10
    return at + size


@njit(cache=True, nogil=True)
def format_numbers(offsets, data, scales, valid, text_offsets, text, capacity):  # type: ignore[no-untyped-def]
    """Convert two's complement bytes (and scales) to decimal text.

    Args:
        offsets: i32[n + 1] into `data`.
        data: address of the big-endian bytes.
        scales: i32[n], or empty for integers.
        valid: u8[n], or empty when nothing is null.
        text_offsets: i32[n + 1], filled.
        text: address of the output.
        capacity: size of the output in bytes.

    Returns:
        Number of records done; less than n when the output is full. No number may be longer than `MAX_BYTES`.
    """
    limbs = np.empty(MAX_BYTES // 4 + 2, np.uint32)
    digits = np.empty(MAX_BYTES * 3, np.uint8)
    at = text
    text_offsets[0] = 0
    for record in range(len(offsets) - 1):
        if len(valid) and valid[record] == 0:
            text_offsets[record + 1] = at - text
            continue
        start = data + offsets[record]
        size = offsets[record + 1] - offsets[record]
        negative = size > 0 and load_u8(start) >= 0x80
        used = 0
        i = size
        while i > 0:
            word = np.uint32(0)
            for shift in range(0, 32, 8):
                i -= 1
                byte = load_u8(start + i) if i >= 0 else (255 if negative else 0)
                word |= np.uint32(byte << shift)
            limbs[used] = word
            used += 1
        if negative:
            carry = np.uint64(1)
            for limb in range(used):
                total = np.uint64(~limbs[limb]) + carry
                limbs[limb] = np.uint32(total & np.uint64(0xFFFFFFFF))
                carry = total >> np.uint64(32)
        count = write_digits(limbs, used, digits)
        scale = np.int64(scales[record]) if len(scales) else 0
        adjusted = count - 1 - scale
        if at - text + count + 40 > capacity:
            return record
        if scale > 0 and adjusted >= -6 and at - text + count + scale + 40 > capacity:
            return record
        if negative:
            store_8(at, 45)
            at += 1
        if scale == 0:
            for j in range(count):
                store_8(at + j, 48 + digits[j])
            at += count
        elif scale > 0 and adjusted >= -6:
            whole = count - scale
            if whole <= 0:
                store_8(at, 48)
                store_8(at + 1, 46)
                at += 2
                for _ in range(-whole):
                    store_8(at, 48)
                    at += 1
                for j in range(count):
                    store_8(at + j, 48 + digits[j])
                at += count
            else:
                for j in range(count):
                    if j == whole:
                        store_8(at, 46)
                        at += 1
                    store_8(at, 48 + digits[j])
                    at += 1
        else:
            store_8(at, 48 + digits[0])
            at += 1
            if count > 1:
                store_8(at, 46)
                at += 1
                for j in range(1, count):
                    store_8(at + j - 1, 48 + digits[j])
                at += count - 1
            if adjusted != 0:
                store_8(at, 69)
                at = write_number(adjusted, at + 1)
        text_offsets[record + 1] = at - text
    return len(offsets) - 1


@njit(cache=True, nogil=True)
def parse_numbers(text_offsets, text, valid, integer, offsets, data, capacity, scales):  # type: ignore[no-untyped-def]
    """Convert text to two's complement bytes (and scales), the inverse of `format_numbers`.

    Returns:
        (records done, whether it stopped because the text is not a number rather than because the output is full).
    """
    limbs = np.empty(MAX_BYTES // 4 + 2, np.uint32)
    at = data
    offsets[0] = 0
    for record in range(len(text_offsets) - 1):
        if len(valid) and valid[record] == 0:
            offsets[record + 1] = at - data
            if not integer:
                scales[record] = 0
            continue
        i = text + text_offsets[record]
        end = text + text_offsets[record + 1]
        if end - i > MAX_TEXT:
            return record, True
        negative = False
        if i < end and (load_u8(i) == 45 or load_u8(i) == 43):
            negative = load_u8(i) == 45
            i += 1
        used = 0
        digits = 0
        scale = 0
        fraction = False
        while i < end:
            byte = load_u8(i)
            if 48 <= byte <= 57:
                carry = np.uint64(byte - 48)
                for limb in range(used):
                    product = np.uint64(limbs[limb]) * np.uint64(10) + carry
                    limbs[limb] = np.uint32(product & np.uint64(0xFFFFFFFF))
                    carry = product >> np.uint64(32)
                if carry:
                    if used >= MAX_BYTES // 4:
                        return record, True
                    limbs[used] = np.uint32(carry)
                    used += 1
                digits += 1
                if fraction:
                    scale += 1
            elif byte == 46 and not fraction:
                fraction = True
            else:
                break
            i += 1
        if digits == 0:
            return record, True
        if i < end and (load_u8(i) == 69 or load_u8(i) == 101):
            i += 1
            minus = False
            if i < end and (load_u8(i) == 45 or load_u8(i) == 43):
                minus = load_u8(i) == 45
                i += 1
            exponent = 0
            first = i
            while i < end and 48 <= load_u8(i) <= 57 and i - first < 10:
                exponent = exponent * 10 + load_u8(i) - 48
                i += 1
            if i == first:
                return record, True
            scale += exponent if minus else -exponent
        if i != end or (integer and (fraction or scale != 0)) or scale > 2147483647 or scale < -2147483648:
            return record, True
        size = 4 * used
        while size > 0 and (limbs[(size - 1) >> 2] >> np.uint32(8 * ((size - 1) & 3))) & np.uint32(0xFF) == 0:
            size -= 1
        if at - data + size + 2 > capacity:
            return record, False
        if negative and size > 0:
            carry = np.uint64(1)
            for limb in range(used):
                product = np.uint64(~limbs[limb]) + carry
                limbs[limb] = np.uint32(product & np.uint64(0xFFFFFFFF))
                carry = product >> np.uint64(32)
        top = np.int64(0)
        if size > 0:
            top = np.int64((limbs[(size - 1) >> 2] >> np.uint32(8 * ((size - 1) & 3))) & np.uint32(0xFF))
        if size == 0:
            store_8(at, 0)
            at += 1
        else:
            if negative and top < 0x80:
                store_8(at, 255)
                at += 1
            elif not negative and top >= 0x80:
                store_8(at, 0)
                at += 1
            for j in range(size - 1, -1, -1):
                store_8(at, np.int64((limbs[j >> 2] >> np.uint32(8 * (j & 3))) & np.uint32(0xFF)))
                at += 1
        offsets[record + 1] = at - data
        if not integer:
            scales[record] = scale
    return len(text_offsets) - 1, False
