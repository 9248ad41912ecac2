"""Hash codes of basic values, lists of hash codes, and the parts of Arrow arrays that they are made of.

Source: `hashCode` of the Java class of each basic serializer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state_pipelines.codecs import logical_values
from state_pipelines.codecs.arrow_coercion import conform, flatten_entries
from state_pipelines.codecs.kernels.big_numbers import parse_numbers
from state_pipelines.codecs.layout import LogicalKind
from state_pipelines.codecs.programs.program import arrow_type
from state_pipelines.codecs.serializer_layouts import BASIC_LAYOUTS
from state_pipelines.errors import UsageError, ValueRangeError
from state_pipelines.keyed.hashing.hash_kernels import chain_elements, hash_numbers, hash_text, hash_utf8
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

HashCodes = npt.NDArray[np.int32]
"""i32[n]; arithmetic wraps as in Java."""

_LONG_VALUE_SEED = 43
_DOUBLE_VALUE_SEED = 31


def chain(offsets: npt.NDArray[np.int64], elements: HashCodes, start: int) -> HashCodes:
    """`31 * code + element` over each list; `offsets` i64[n + 1] into `elements`, result i32[n]."""
    codes = np.empty(len(offsets) - 1, np.int32)
    chain_elements(np.ascontiguousarray(offsets), np.ascontiguousarray(elements), start, codes)
    return codes


def chain_fields(fields: Iterable[HashCodes], start: int) -> HashCodes:
    """`31 * code + field` over fields, from `start`; i32[n] each.

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
    """The codes, with 0 where `array` is null."""
    if not array.null_count:
        return codes
    return np.where(np.asarray(array.is_valid()), codes, np.int32(0))


def conform_basic(kind: BasicKind, array: pa.Array) -> pa.Array:
    """An array in the Arrow form of a basic type; ValueRangeError when a value does not fit it."""
    try:
        return conform(array, arrow_type(BASIC_LAYOUTS[kind]))
    except ValueRangeError as error:
        raise ValueRangeError(error.what, hint=error.hint) from None


def fields_of(array: pa.Array, *names: str) -> list[pa.Array]:
    """Fields of structs, null wherever the struct is; UsageError when there is no such field."""
    if not pa.types.is_struct(array.type):
        raise UsageError(f"an array of {array.type} is not one of structs with {', '.join(names)}")
    # Null wherever the struct is.
    children: list[pa.Array] = array.flatten()
    indices = [array.type.get_field_index(name) for name in names]
    missing = [name for name, index in zip(names, indices, strict=True) if index < 0]
    if missing:
        raise UsageError(f"an array of {array.type} lacks {', '.join(missing)}")
    return [children[index] for index in indices]


def flatten(array: pa.Array) -> pa.Array:
    """Elements of lists, or entries of maps, one list after the other; those of null lists are left out."""
    if not (pa.types.is_list(array.type) or pa.types.is_map(array.type)):
        raise UsageError(f"an array of {array.type} is not one of lists or maps")
    return flatten_entries(array)


def numbers(array: pa.Array) -> npt.NDArray[np.generic]:
    """Numbers, 0 for null."""
    values: npt.NDArray[np.generic] = (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)
    return values


def fold(values: npt.NDArray[np.int64]) -> HashCodes:
    """`Long.hashCode`."""
    return (values ^ values >> 32).astype(np.int32)


def hash_ints(array: pa.Array) -> HashCodes:
    """`Integer.hashCode` and those of smaller integers."""
    return numbers(array).astype(np.int32)


def hash_longs(array: pa.Array) -> HashCodes:
    """`Long.hashCode`."""
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
    """`String.hashCode`; ValueRangeError when the text is not UTF-8."""
    # The bytes under a null may be anything.
    filled = array.fill_null("") if array.null_count else array
    codes = np.zeros(len(filled), np.int32)
    _, offsets, text = filled.buffers()
    if offsets is not None and text is not None:
        wrong = hash_text(offsets.address + 4 * filled.offset, text.address, codes)
        if wrong >= 0:
            raise ValueRangeError(f"string {wrong} is not UTF-8")
    return codes


def hash_avro_strings(array: pa.Array, start: int) -> HashCodes:
    """`Utf8.hashCode` of Avro: over the bytes, not the characters; `start` is that of an empty one."""
    codes = np.full(len(array), start, np.int32)
    _, offsets, text = array.buffers()
    if offsets is not None and text is not None:
        hash_utf8(offsets.address + 4 * array.offset, text.address, start, codes)
    return codes


def hash_big_numbers(array: pa.Array, *, integer: bool) -> HashCodes:
    """`BigInteger.hashCode` or `BigDecimal.hashCode` of decimal text; ValueRangeError when it is no number."""
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
    """Codes of `ByteArrayWrapper` (PyFlink) and `ByteBuffer` (keys of Beam): from the last byte to the first."""
    offsets, data = bytes_of(array)
    codes = chain(np.flip(len(data) - offsets), np.flip(data), 1)
    return np.flip(codes)


def hash_primitive_array(kind: BasicKind, array: pa.Array) -> HashCodes:
    """`Arrays.hashCode` of numbers, booleans or chars."""
    if kind == BasicKind.BYTE:
        return chain(*bytes_of(array), 1)
    values = flatten(array)
    elements = hash_ints(values) if kind == BasicKind.CHAR else BASIC_HASHES[kind](conform_basic(kind, values))
    return chain(list_offsets(array), elements, 1)


def bytes_of(array: pa.Array) -> tuple[npt.NDArray[np.int64], HashCodes]:
    """Offsets and signed bytes of a binary array."""
    _, offsets, data = conform_basic(BasicKind.BYTE_ARRAY_WRAPPER, array).buffers()
    if offsets is None or data is None:
        return np.zeros(len(array) + 1, np.int64), np.zeros(0, np.int32)
    ends = np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset).astype(np.int64)
    return ends - ends[0], np.frombuffer(data, np.int8, ends[-1] - ends[0], ends[0]).astype(np.int32)


def list_offsets(array: pa.Array) -> npt.NDArray[np.int64]:
    """i64[n + 1], where each list or map begins in the flattened elements."""
    offsets = array.buffers()[1]
    if offsets is None:
        return np.zeros(len(array) + 1, np.int64)
    sizes = np.diff(np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset))
    if array.null_count:
        sizes = np.where(np.asarray(array.is_valid()), sizes, 0)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def sum_list(array: pa.Array, codes: HashCodes) -> HashCodes:
    """Sum of the codes of each list's elements, modulo 2 ** 32."""
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
"""`hashCode` of each kind of `tree.Basic`, of arrays in its Arrow form; what null gives does not matter."""
