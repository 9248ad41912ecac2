"""Hash codes of basic values, lists of hash codes, and the parts of Arrow arrays that they are made of.

Source: `hashCode` of the Java class of each basic serializer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state_pipelines.binary.compiled import load_i32, load_i32_big, load_i64_big, load_u8, njit
from state_pipelines.codecs import logical_values
from state_pipelines.codecs.kernels.strings import load_unit, parse_numbers
from state_pipelines.codecs.layout import LogicalKind
from state_pipelines.codecs.logical_values import conform, flatten_entries
from state_pipelines.codecs.programs import arrow_type
from state_pipelines.codecs.serializer_layouts import BASIC_LAYOUTS
from state_pipelines.errors import UsageError, ValueRangeError
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MURMUR_SEED = 42
"""Seed of `MurmurHashUtils.hashUnsafeBytesByWords`."""


@njit(cache=True, nogil=True)
def hash_text(offsets, text, codes):  # type: ignore[no-untyped-def]
    """Compute `String.hashCode` of strings given as UTF-8, over their UTF-16 units.

    Args:
        offsets: address of i32[n + 1].
        text: address of the bytes.
        codes: i32[n], filled.

    Returns:
        The index of the first string that is not UTF-8, or -1.
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
    """Compute `BigInteger.hashCode` of numbers given as big-endian two's complement bytes.

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
        # As `BigInteger.hashCode` (`31 * code + word`), but from the last word of the magnitude to the first: the
        # weight is multiplied by 31 with each step.
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
    """Compute the hash code of each list from those of its elements: `31 * code + element`, from `start`.

    Args:
        offsets: i64[n + 1] into `elements`.
        elements: i32[m], hash codes.
        start: hash code of an empty list.
        codes: i32[n], filled.
    """
    for row in range(len(codes)):
        code = start
        for i in range(offsets[row], offsets[row + 1]):
            code = code * 31 + elements[i]
        codes[row] = code


@njit(cache=True, nogil=True)
def hash_utf8(offsets, text, start, codes):  # type: ignore[no-untyped-def]
    """Compute `Utf8.hashCode` of Avro strings, over their signed bytes.

    Args:
        offsets: address of i32[n + 1].
        text: address of the bytes.
        start: hash code of an empty string.
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
    """Compute `String.hashCode` of keys in the format of `StringSerializer`.

    That is a varint (number of UTF-16 units plus one), then the units as varints.

    Args:
        data: address of the bytes.
        starts: i64[n], first byte of each key.
        ends: i64[n], offset beyond which the key does not reach.
        codes: i32[n], filled.

    Returns:
        The index of the first key whose bytes end early, or -1.
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
    """Compute `Long.hashCode` of keys of eight big-endian bytes; arguments and result as for `hash_string_keys`."""
    for row in range(len(codes)):
        if ends[row] - starts[row] < 8:
            return row
        value = load_i64_big(data + starts[row])
        codes[row] = value ^ (value >> 32)
    return -1


@njit(cache=True, nogil=True)
def hash_int_keys(data, starts, ends, codes):  # type: ignore[no-untyped-def]
    """Compute `Integer.hashCode` of keys of four big-endian bytes; arguments and result as for `hash_string_keys`."""
    for row in range(len(codes)):
        if ends[row] - starts[row] < 4:
            return row
        codes[row] = load_i32_big(data + starts[row])
    return -1


@njit(cache=True, nogil=True)
def hash_row_keys(data, starts, ends, codes):  # type: ignore[no-untyped-def]
    """Compute `BinaryRowData.hashCode` of keys: an i32 size, then the row. Arguments, result: see `hash_string_keys`.

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


HashCodes = npt.NDArray[np.int32]
"""i32[n]; arithmetic wraps as in Java."""

_LONG_VALUE_SEED = 43
_DOUBLE_VALUE_SEED = 31


def chain(offsets: npt.NDArray[np.int64], elements: HashCodes, start: int) -> HashCodes:
    """Return the hash code of each list, i32[n]: `31 * code + element` over its elements, from `start`.

    `offsets`, i64[n + 1], are the bounds of the lists in `elements`.
    """
    codes = np.empty(len(offsets) - 1, np.int32)
    chain_elements(np.ascontiguousarray(offsets), np.ascontiguousarray(elements), start, codes)
    return codes


def chain_fields(fields: Iterable[HashCodes], start: int) -> HashCodes:
    """Return the hash codes of objects, i32[n]: `31 * code + field` over the codes of their fields, from `start`.

    Raises:
        UsageError: there are no fields.
    """
    codes: HashCodes | None = None
    for each in fields:
        codes = (np.full(len(each), start, np.int32) if codes is None else codes) * np.int32(31) + each
    if codes is None:
        raise UsageError("a hash of no fields is the same for every key", hint="Name the fields that it takes")
    return codes


def without_nulls(codes: HashCodes, array: pa.Array) -> HashCodes:
    """Return the hash codes, with 0 where `array` is null."""
    if not array.null_count:
        return codes
    return np.where(np.asarray(array.is_valid()), codes, np.int32(0))


def conform_basic(kind: BasicKind, array: pa.Array) -> pa.Array:
    """Convert an array to the Arrow type of a basic type; ValueRangeError if a value does not fit."""
    try:
        return conform(array, arrow_type(BASIC_LAYOUTS[kind]))
    except ValueRangeError as error:
        raise ValueRangeError(error.what, hint=error.hint) from None


def fields_of(array: pa.Array, *names: str) -> list[pa.Array]:
    """Return fields of structs, null wherever the struct is null; UsageError when there is no such field."""
    if not pa.types.is_struct(array.type):
        raise UsageError(f"an array of {array.type} is not one of structs with {', '.join(names)}")
    # `flatten` makes fields null where the struct is null; `field` would not.
    children: list[pa.Array] = array.flatten()
    indices = [array.type.get_field_index(name) for name in names]
    missing = [name for name, index in zip(names, indices, strict=True) if index < 0]
    if missing:
        raise UsageError(f"an array of {array.type} lacks {', '.join(missing)}")
    return [children[index] for index in indices]


def flatten(array: pa.Array) -> pa.Array:
    """Return the elements of lists, or the entries of maps, one list after the other, without those of null lists."""
    if not (pa.types.is_list(array.type) or pa.types.is_map(array.type)):
        raise UsageError(f"an array of {array.type} is not one of lists or maps")
    return flatten_entries(array)


def numbers(array: pa.Array) -> npt.NDArray[np.generic]:
    """Return the numbers of an array, 0 for null."""
    values: npt.NDArray[np.generic] = (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)
    return values


def fold(values: npt.NDArray[np.int64]) -> HashCodes:
    """Compute `Long.hashCode` of 64-bit values: the upper half XOR the lower half."""
    return (values ^ values >> 32).astype(np.int32)


def hash_ints(array: pa.Array) -> HashCodes:
    """Compute the hash codes of integers of at most 32 bits (`Integer.hashCode`): the numbers themselves."""
    return numbers(array).astype(np.int32)


def hash_longs(array: pa.Array) -> HashCodes:
    """Compute `Long.hashCode` of integers."""
    return fold(numbers(array).astype(np.int64))


def _hash_booleans(array: pa.Array) -> HashCodes:
    return np.where(np.asarray(array.fill_null(False)), np.int32(1231), np.int32(1237))


def _hash_floats(array: pa.Array) -> HashCodes:
    values = numbers(array).astype(np.float32)
    return np.where(np.isnan(values), np.int32(0x7FC00000), values.view(np.int32))


def _hash_doubles(array: pa.Array) -> HashCodes:
    values = numbers(array).astype(np.float64)
    return fold(np.where(np.isnan(values), np.int64(0x7FF8 << 48), values.view(np.int64)))


def _hash_chars(array: pa.Array) -> HashCodes:
    return logical_values.split(LogicalKind.CHAR, array)[0].astype(np.int32)


def hash_strings(array: pa.Array) -> HashCodes:
    """Compute `String.hashCode` of strings; ValueRangeError when the text is not UTF-8."""
    # The bytes of a null string may be anything, even invalid UTF-8.
    filled = array.fill_null("") if array.null_count else array
    codes = np.zeros(len(filled), np.int32)
    _, offsets, text = filled.buffers()
    if offsets is not None and text is not None:
        wrong = hash_text(offsets.address + 4 * filled.offset, text.address, codes)
        if wrong >= 0:
            raise ValueRangeError(f"string {wrong} is not UTF-8")
    return codes


def hash_avro_strings(array: pa.Array, start: int) -> HashCodes:
    """Compute `Utf8.hashCode` of Avro strings: over bytes, not characters; `start` is the hash of an empty string."""
    codes = np.full(len(array), start, np.int32)
    _, offsets, text = array.buffers()
    if offsets is not None and text is not None:
        hash_utf8(offsets.address + 4 * array.offset, text.address, start, codes)
    return codes


def hash_big_numbers(array: pa.Array, *, integer: bool) -> HashCodes:
    """Compute `BigInteger.hashCode` or `BigDecimal.hashCode` of decimal text; ValueRangeError if it is no number."""
    count = len(array)
    _, offset_buffer, text = array.buffers()
    if offset_buffer is None or text is None:
        return np.zeros(count, np.int32)
    text_offsets = np.frombuffer(offset_buffer, np.int32, count + 1, 4 * array.offset)
    valid = np.asarray(array.is_valid()).view(np.uint8)
    offsets, scales = np.zeros(count + 1, np.int32), np.zeros(count, np.int32)
    data = np.empty(int(text_offsets[-1] - text_offsets[0]) + 8 * count + 64, np.uint8)
    done, wrong = parse_numbers(
        text_offsets, text.address, valid, integer, offsets, data.ctypes.data, len(data), scales
    )
    if wrong or done < count:
        raise ValueRangeError(f"{array[done].as_py()!r:.80} is not a number")
    codes = np.empty(count, np.int32)
    hash_numbers(offsets, data.ctypes.data, codes)
    return codes if integer else codes * np.int32(31) + scales


def _hash_dates(array: pa.Array) -> HashCodes:
    return hash_longs(array.cast(pa.int64()))


def _hash_sql_timestamps(array: pa.Array) -> HashCodes:
    return hash_longs(array.field("millis"))


def _hash_instants(array: pa.Array) -> HashCodes:
    return hash_longs(array.field("epoch_second")) + hash_ints(array.field("nano")) * np.int32(51)


def _hash_local_dates(array: pa.Array) -> HashCodes:
    year, month, day = (each.astype(np.int32) for each in logical_values.split(LogicalKind.LOCAL_DATE, array))
    return year & np.int32(~0x7FF) ^ (year << 11) + (month << 6) + day


def _hash_local_times(array: pa.Array) -> HashCodes:
    return hash_longs(array.cast(pa.int64()))


def _hash_local_date_times(array: pa.Array) -> HashCodes:
    return _hash_local_dates(array.field("date")) ^ _hash_local_times(array.field("time"))


def hash_wrapped_bytes(array: pa.Array) -> HashCodes:
    """Compute the hash codes of `ByteArrayWrapper` (PyFlink) and `ByteBuffer` (keys of Beam): from the last byte on."""
    offsets, data = bytes_of(array)
    codes = chain(np.flip(len(data) - offsets), np.flip(data), 1)
    return np.flip(codes)


def hash_primitive_array(kind: BasicKind, array: pa.Array) -> HashCodes:
    """Compute `Arrays.hashCode` of arrays of numbers, booleans or chars."""
    if kind == BasicKind.BYTE:
        return chain(*bytes_of(array), 1)
    values = flatten(array)
    elements = hash_ints(values) if kind == BasicKind.CHAR else BASIC_HASHES[kind](conform_basic(kind, values))
    return chain(list_offsets(array), elements, 1)


def bytes_of(array: pa.Array) -> tuple[npt.NDArray[np.int64], HashCodes]:
    """Return the offsets and the signed bytes of a binary array."""
    _, offsets, data = conform_basic(BasicKind.BYTE_ARRAY_WRAPPER, array).buffers()
    if offsets is None or data is None:
        return np.zeros(len(array) + 1, np.int64), np.zeros(0, np.int32)
    ends = np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset).astype(np.int64)
    return ends - ends[0], np.frombuffer(data, np.int8, ends[-1] - ends[0], ends[0]).astype(np.int32)


def list_offsets(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return where each list or map begins in the elements of `flatten`, and the end of the last one, i64[n + 1]."""
    offsets = array.buffers()[1]
    if offsets is None:
        return np.zeros(len(array) + 1, np.int64)
    sizes = np.diff(np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset))
    if array.null_count:
        sizes = np.where(np.asarray(array.is_valid()), sizes, 0)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def sum_list(array: pa.Array, codes: HashCodes) -> HashCodes:
    """Add up the hash codes of the elements of each list or map, modulo 2 ** 32."""
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(codes, dtype=np.int64)])
    return np.diff(sums[list_offsets(array)]).astype(np.int32)


BASIC_HASHES: dict[BasicKind, Callable[[pa.Array], HashCodes]] = {
    **dict.fromkeys(
        (
            BasicKind.BYTE,
            BasicKind.SHORT,
            BasicKind.INT,
            BasicKind.BYTE_VALUE,
            BasicKind.SHORT_VALUE,
            BasicKind.INT_VALUE,
        ),
        hash_ints,
    ),
    **dict.fromkeys((BasicKind.LONG, BasicKind.LONG_VALUE_WITH_PROPER_HASH_CODE), hash_longs),
    BasicKind.LONG_VALUE: lambda array: hash_longs(array) + np.int32(_LONG_VALUE_SEED),
    BasicKind.BOOLEAN: _hash_booleans,
    BasicKind.BOOLEAN_VALUE: lambda array: np.asarray(array.fill_null(False)).astype(np.int32),
    **dict.fromkeys((BasicKind.CHAR, BasicKind.CHAR_VALUE), _hash_chars),
    **dict.fromkeys((BasicKind.FLOAT, BasicKind.FLOAT_VALUE), _hash_floats),
    BasicKind.DOUBLE: _hash_doubles,
    BasicKind.DOUBLE_VALUE: lambda array: _hash_doubles(array) + np.int32(_DOUBLE_VALUE_SEED),
    **dict.fromkeys((BasicKind.STRING, BasicKind.STRING_VALUE), hash_strings),
    BasicKind.BIG_INT: lambda array: hash_big_numbers(array, integer=True),
    BasicKind.BIG_DEC: lambda array: hash_big_numbers(array, integer=False),
    **dict.fromkeys((BasicKind.DATE, BasicKind.SQL_DATE, BasicKind.SQL_TIME), _hash_dates),
    BasicKind.SQL_TIMESTAMP: _hash_sql_timestamps,
    BasicKind.INSTANT: _hash_instants,
    BasicKind.LOCAL_DATE: _hash_local_dates,
    BasicKind.LOCAL_TIME: _hash_local_times,
    BasicKind.LOCAL_DATE_TIME: _hash_local_date_times,
    BasicKind.TUPLE_0: lambda array: np.zeros(len(array), np.int32),
}
"""`hashCode` of each kind of `tree.Basic`, of arrays in its Arrow form; results for null are ignored."""
