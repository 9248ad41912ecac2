"""Kernels between two's complement bytes and decimal text, for `java.math.BigInteger` and `BigDecimal`.

Text is what `BigDecimal.toString` gives: canonical, so that it determines unscaled value and scale.
"""

from __future__ import annotations

import numpy as np

from state_pipelines.binary.compiled import load_u8, njit, store_8
from state_pipelines.codecs.java.big_numbers import MAX_BYTES

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
    """Two's complement bytes (and scales) to text.

    Args:
        offsets: i32[n + 1] into `data`.
        data: address of the big-endian bytes.
        scales: i32[n], or empty for integers.
        valid: u8[n], or empty when nothing is null.
        text_offsets: i32[n + 1], filled.
        text: address of the output.
        capacity: its bytes.

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
