"""Kernels of Java's hash codes: numbers in, `i32[n]` filled."""

from __future__ import annotations

from state_pipelines.binary.compiled import load_i32, load_i32_big, load_i64_big, load_u8, njit
from state_pipelines.codecs.kernels.strings import load_unit

MURMUR_SEED = 42
"""Seed of `MurmurHashUtils.hashUnsafeBytesByWords`."""


@njit(cache=True, nogil=True)
def hash_text(offsets, text, codes):  # type: ignore[no-untyped-def]
    """`String.hashCode` over the UTF-16 units of UTF-8 text.

    Args:
        offsets: address of i32[n + 1].
        text: address of the bytes.
        codes: i32[n], filled.

    Returns:
        The first string that is not UTF-8, or -1.
    """
    for row in range(len(codes)):
        position = text + load_i32(offsets + 4 * row)
        end = text + load_i32(offsets + 4 * row + 4)
        code = 0
        while position < end:
            byte = load_u8(position)
            if byte < 0x80:
                code = code * 31 + byte
                position += 1
                continue
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            if byte < 0xC0 or byte > 0xF4 or position + size > end:
                return row
            point = byte & (0x7F >> size)
            for i in range(1, size):
                point = point << 6 | load_u8(position + i) & 0x3F
            if size == 4:
                code = code * 31 + 0xD800 + ((point - 0x10000) >> 10)
                point = 0xDC00 + (point & 0x3FF)
            code = code * 31 + point
            position += size
        codes[row] = code
    return -1


@njit(cache=True, nogil=True)
def hash_numbers(offsets, data, codes):  # type: ignore[no-untyped-def]
    """`BigInteger.hashCode` over big-endian two's complement bytes.

    Args:
        offsets: i32[n + 1] into `data`.
        data: address of the bytes.
        codes: i32[n], filled.
    """
    for row in range(len(codes)):
        start = offsets[row]
        negative = offsets[row + 1] > start and load_u8(data + start) >= 0x80
        flip = 0xFF if negative else 0
        carry = 1 if negative else 0
        code = 0
        power = 1
        # Words of the magnitude from the last to the first, each with 31 times the weight of the next one.
        position = offsets[row + 1]
        while position > start:
            word = 0
            for shift in range(0, 32, 8):
                position -= 1
                if position >= start:
                    word |= (load_u8(data + position) ^ flip) << shift
            word += carry
            carry = word >> 32
            code += (word & 0xFFFFFFFF) * power
            power = power * 31 & 0xFFFFFFFF
        codes[row] = -code if negative else code


@njit(cache=True, nogil=True)
def chain_elements(offsets, elements, start, codes):  # type: ignore[no-untyped-def]
    """`31 * code + element` over each list, from `start`.

    Args:
        offsets: i64[n + 1] into `elements`.
        elements: i32[m], hash codes.
        start: what an empty list gives.
        codes: i32[n], filled.
    """
    for row in range(len(codes)):
        code = start
        for i in range(offsets[row], offsets[row + 1]):
            code = code * 31 + elements[i]
        codes[row] = code


@njit(cache=True, nogil=True)
def hash_utf8(offsets, text, start, codes):  # type: ignore[no-untyped-def]
    """`Utf8.hashCode` of Avro, over signed bytes.

    Args:
        offsets: address of i32[n + 1].
        text: address of the bytes.
        start: what an empty string gives.
        codes: i32[n], filled.
    """
    for row in range(len(codes)):
        code = start
        for position in range(load_i32(offsets + 4 * row), load_i32(offsets + 4 * row + 4)):
            byte = load_u8(text + position)
            code = code * 31 + (byte - 256 if byte >= 0x80 else byte)
        codes[row] = code


@njit(cache=True, nogil=True)
def hash_string_keys(data, starts, ends, codes):  # type: ignore[no-untyped-def]
    """`String.hashCode` over the bytes of `StringSerializer`: varint count plus one, then UTF-16 units as varints.

    Args:
        data: address of the bytes.
        starts: i64[n], first byte of each key.
        ends: i64[n], no key reaches beyond.
        codes: i32[n], filled.

    Returns:
        The first key whose bytes end early, or -1.
    """
    for row in range(len(codes)):
        position = data + starts[row]
        end = data + ends[row]
        count = -1
        code = 0
        done = 0
        while count < 0 or done < count:
            value, position = load_unit(position, end)
            if position < 0:
                return row
            if count < 0:
                count = max(value - 1, 0)
            else:
                code = code * 31 + (value & 0xFFFF)
                done += 1
        codes[row] = code
    return -1


@njit(cache=True, nogil=True)
def hash_long_keys(data, starts, ends, codes):  # type: ignore[no-untyped-def]
    """`Long.hashCode` over eight big-endian bytes; arguments and result as `hash_string_keys`."""
    for row in range(len(codes)):
        if ends[row] - starts[row] < 8:
            return row
        value = load_i64_big(data + starts[row])
        codes[row] = value ^ (value >> 32)
    return -1


@njit(cache=True, nogil=True)
def hash_int_keys(data, starts, ends, codes):  # type: ignore[no-untyped-def]
    """`Integer.hashCode` over four big-endian bytes; arguments and result as `hash_string_keys`."""
    for row in range(len(codes)):
        if ends[row] - starts[row] < 4:
            return row
        codes[row] = load_i32_big(data + starts[row])
    return -1


@njit(cache=True, nogil=True)
def hash_row_keys(data, starts, ends, codes):  # type: ignore[no-untyped-def]
    """`BinaryRowData.hashCode` over an i32 size and the row; arguments and result as `hash_string_keys`.

    Source: `MurmurHashUtils.hashUnsafeBytesByWords`; rows are whole words.
    """
    for row in range(len(codes)):
        position = data + starts[row]
        if ends[row] - starts[row] < 4:
            return row
        size = load_i32_big(position)
        position += 4
        if size < 0 or size % 4 != 0 or ends[row] - starts[row] < 4 + size:
            return row
        code = MURMUR_SEED
        for offset in range(0, size, 4):
            word = (load_i32(position + offset) * 0xCC9E2D51) & 0xFFFFFFFF
            word = (word << 15 | word >> 17) & 0xFFFFFFFF
            code ^= (word * 0x1B873593) & 0xFFFFFFFF
            code = (code << 13 | code >> 19) & 0xFFFFFFFF
            code = (code * 5 + 0xE6546B64) & 0xFFFFFFFF
        code ^= size
        code ^= code >> 16
        code = (code * 0x85EBCA6B) & 0xFFFFFFFF
        code ^= code >> 13
        code = (code * 0xC2B2AE35) & 0xFFFFFFFF
        code ^= code >> 16
        codes[row] = code
    return -1
