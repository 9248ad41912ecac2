"""Vectorized conversions between the encoded components of a logical value and one Arrow array, and casts of arrays.

Every conversion keeps all bits: values without an exact Arrow type become structs of their components.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.codecs.layout import LogicalKind
from state_pipelines.errors import FormatError, ValueRangeError, Where

Components = list[npt.NDArray[Any]]
Mask = npt.NDArray[np.bool_] | None

_LONG_MIN = np.iinfo(np.int64).min
_INT_MIN = np.iinfo(np.int32).min
_BYTE_MIN = -128
_NANOS_OF_DAY = 86_400_000_000_000
_NANOS_OF_MILLI = 1_000_000

ARROW_TYPES: dict[LogicalKind, pa.DataType] = {
    LogicalKind.CHAR: pa.string(),
    LogicalKind.DATE_MILLIS: pa.timestamp("ms", tz="UTC"),
    LogicalKind.LOCAL_DATE: pa.date32(),
    LogicalKind.LOCAL_TIME: pa.time64("ns"),
    LogicalKind.LOCAL_DATE_TIME: pa.struct([("date", pa.date32()), ("time", pa.time64("ns"))]),
    LogicalKind.SQL_TIMESTAMP: pa.struct([("millis", pa.int64()), ("nanos", pa.int32())]),
    LogicalKind.INSTANT: pa.struct([("epoch_second", pa.int64()), ("nano", pa.int32())]),
    LogicalKind.ORDERED_I64: pa.int64(),
    LogicalKind.EPOCH_DAY: pa.date32(),
    LogicalKind.MILLI_OF_DAY: pa.time64("ns"),
}


def combine(name: LogicalKind, components: Components, valid: Mask) -> pa.Array:
    """Convert components (an array per `layout.LOGICAL_COMPONENTS`) to an Arrow array; reserved encodings become null.

    Raises:
        FormatError: no day of the calendar, or no time of day.
        ValueRangeError: a value does not fit the Arrow type.
    """
    target = ARROW_TYPES[name]
    if name == LogicalKind.CHAR:
        return _chars(components[0].astype(np.uint16), valid)
    if name == LogicalKind.ORDERED_I64:
        return _array(components[0].astype(np.int64) ^ _LONG_MIN, target, valid)
    first = components[0].astype(np.int64)
    if name == LogicalKind.EPOCH_DAY:
        return _array(first, target, valid)
    if name == LogicalKind.MILLI_OF_DAY:
        nanos = first * _NANOS_OF_MILLI
        if bool(((nanos < 0) | (nanos >= _NANOS_OF_DAY))[slice(None) if valid is None else valid].any()):
            raise FormatError("the milliseconds of a time are not within a day")
        return _array(nanos, target, valid)
    present = first != (_INT_MIN if name in (LogicalKind.LOCAL_DATE, LogicalKind.LOCAL_DATE_TIME) else _LONG_MIN)
    if name == LogicalKind.LOCAL_TIME:
        present = first != _BYTE_MIN
    if valid is not None:
        present &= valid
    if name == LogicalKind.DATE_MILLIS:
        return _array(first, target, present)
    if name == LogicalKind.LOCAL_DATE:
        return _array(_epoch_days(components, present), target, present)
    if name == LogicalKind.LOCAL_TIME:
        return _array(_nano_of_day(components, present), target, present)
    if name == LogicalKind.LOCAL_DATE_TIME:
        if bool((present != (components[3] != _BYTE_MIN))[slice(None) if valid is None else valid].any()):
            raise FormatError("only one of the date and the time of a LocalDateTime is null")
        days = _array(_epoch_days(components[:3], present), pa.date32(), None)
        return _struct([days, _array(_nano_of_day(components[3:], present), pa.time64("ns"), None)], target, present)
    return _struct([pa.array(first), pa.array(components[1].astype(np.int32))], target, present)


def split(name: LogicalKind, array: pa.Array) -> Components:
    """Convert an Arrow array of `ARROW_TYPES[name]` to components, the inverse of `combine`.

    Raises:
        ValueRangeError: a value that the wire format cannot hold, or a null that it cannot encode.
    """
    if name == LogicalKind.CHAR:
        return [_code_units(array)]
    null = np.asarray(array.is_null())
    if name == LogicalKind.ORDERED_I64:
        return [_numbers(array, np.int64) ^ _LONG_MIN]
    if name == LogicalKind.EPOCH_DAY:
        return [_numbers(array, np.int32)]
    if name == LogicalKind.MILLI_OF_DAY:
        nanos = np.where(null, 0, _numbers(array, np.int64))
        if bool((nanos % _NANOS_OF_MILLI).any()):
            raise ValueRangeError("a time of PyFlink has a precision of one millisecond")
        return [(nanos // _NANOS_OF_MILLI).astype(np.int32)]
    if pa.types.is_struct(array.type) and max(array.field(0).null_count, array.field(1).null_count) > 0:
        _check_components(array, ~null)
    if name == LogicalKind.DATE_MILLIS:
        return [np.where(null, _LONG_MIN, _numbers(array, np.int64))]
    if name == LogicalKind.LOCAL_DATE:
        return _calendar(_numbers(array, np.int32), null)
    if name == LogicalKind.LOCAL_TIME:
        return _clock(_numbers(array, np.int64), null)
    if name == LogicalKind.LOCAL_DATE_TIME:
        return [*_calendar(_numbers(array.field(0), np.int32), null), *_clock(_numbers(array.field(1), np.int64), null)]
    reserved = 0 if name == LogicalKind.SQL_TIMESTAMP else _INT_MIN
    return [
        np.where(null, _LONG_MIN, _numbers(array.field(0), np.int64)),
        np.where(null, reserved, _numbers(array.field(1), np.int32)).astype(np.int32),
    ]


def _array(values: npt.NDArray[np.generic], target: pa.DataType, valid: Mask) -> pa.Array:
    values = np.ascontiguousarray(values, dtype=np.int32 if target.bit_width == 32 else np.int64)
    return pa.Array.from_buffers(target, len(values), [bitmap(valid), pa.py_buffer(values)])


def _struct(children: list[pa.Array], target: pa.DataType, valid: Mask) -> pa.Array:
    return pa.Array.from_buffers(target, len(children[0]), [bitmap(valid)], children=children)


def bitmap(valid: Mask) -> pa.Buffer | None:
    """Return an Arrow validity bitmap, or None when everything is valid."""
    if valid is None or bool(valid.all()):
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _numbers(array: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    width = np.dtype(dtype).itemsize
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), dtype)
    values: npt.NDArray[Any] = np.frombuffer(buffer, dtype, len(array), array.offset * width)
    return values


def _check_components(array: pa.StructArray, present: npt.NDArray[np.bool_]) -> None:
    for index in range(array.type.num_fields):
        if bool(np.asarray(array.field(index).is_null())[present].any()):
            raise ValueRangeError(f"{array.type.field(index).name} is null in a value that is not")


def _epoch_days(components: Components, present: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return days since 1970-01-01 in the proleptic ISO calendar (`LocalDate.toEpochDay`)."""
    year, month, day = (each.astype(np.int64) for each in components)
    shifted = year - (month <= 2)
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
    days = era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
    again = _calendar(days, np.zeros(len(days), np.bool_))
    if any(bool((one != other)[present].any()) for one, other in zip(components, again, strict=True)):
        raise FormatError("the year, month and day of a date are no day of the calendar")
    if bool(((days > 2**31 - 1) | (days < -(2**31)))[present].any()):
        raise ValueRangeError("a date is outside the range of Arrow's date32 (years -5,877,641 to 5,881,580)")
    return np.where(present, days, 0)


def _nano_of_day(components: Components, present: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    hour, minute, second, nano = (each.astype(np.int64) for each in components)
    inside = (hour >= 0) & (hour < 24) & (minute >= 0) & (minute < 60) & (second >= 0) & (second < 60)
    if not bool((inside & (nano >= 0) & (nano < 1_000_000_000))[present].all()):
        raise FormatError("the hour, minute, second and nanosecond of a time are no time of day")
    return np.where(present, ((hour * 60 + minute) * 60 + second) * 1_000_000_000 + nano, 0)


def _calendar(days: npt.NDArray[np.generic], null: npt.NDArray[np.bool_]) -> Components:
    z = days.astype(np.int64) + 719468
    era = z // 146097
    of_era = z - era * 146097
    year_of_era = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * of_year + 2) // 153
    day = of_year - (153 * shifted + 2) // 5 + 1
    month = np.where(shifted < 10, shifted + 3, shifted - 9)
    year = year_of_era + era * 400 + (month <= 2)
    # LocalDateSerializer writes a null as Integer.MIN_VALUE and Short.MIN_VALUE: 80 00 in the two bytes.
    return [
        np.where(null, _INT_MIN, year).astype(np.int32),
        np.where(null, _BYTE_MIN, month).astype(np.int8),
        np.where(null, 0, day).astype(np.int8),
    ]


def _clock(nanos: npt.NDArray[np.generic], null: npt.NDArray[np.bool_]) -> Components:
    of_day = nanos.astype(np.int64)
    if bool(((of_day < 0) | (of_day >= _NANOS_OF_DAY))[~null].any()):
        raise ValueRangeError("a time of day is outside 00:00:00 to 23:59:59.999999999")
    seconds = of_day // 1_000_000_000
    # LocalTimeSerializer writes a null as Byte.MIN_VALUE, Short.MIN_VALUE, Integer.MIN_VALUE: 80 80 00 80 00 00 00.
    return [
        np.where(null, _BYTE_MIN, seconds // 3600).astype(np.int8),
        np.where(null, _BYTE_MIN, seconds // 60 % 60).astype(np.int8),
        np.where(null, 0, seconds % 60).astype(np.int8),
        np.where(null, _INT_MIN, of_day % 1_000_000_000).astype(np.int32),
    ]


def _chars(units: npt.NDArray[np.uint16], valid: Mask) -> pa.Array:
    """Convert UTF-16 units, one per value, to strings of one character."""
    surrogate = (units >= 0xD800) & (units <= 0xDFFF)
    if valid is not None:
        surrogate &= valid
        units = np.where(valid, units, 0)
    if bool(surrogate.any()):
        raise ValueRangeError("a Java char is half of a surrogate pair and has no UTF-8 form")
    sizes = 1 + (units >= 0x80) + (units >= 0x800)
    if valid is not None:
        sizes = np.where(valid, sizes, 0)
    offsets = np.zeros(len(units) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    u = units.astype(np.uint32)
    for size in (1, 2, 3):
        rows = np.flatnonzero(sizes == size)
        at = offsets[rows]
        if size == 1:
            data[at] = u[rows]
        elif size == 2:
            data[at] = 0xC0 | u[rows] >> 6
            data[at + 1] = 0x80 | u[rows] & 0x3F
        else:
            data[at] = 0xE0 | u[rows] >> 12
            data[at + 1] = 0x80 | u[rows] >> 6 & 0x3F
            data[at + 2] = 0x80 | u[rows] & 0x3F
    return pa.Array.from_buffers(pa.string(), len(units), [bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(data)])


def _code_units(array: pa.Array) -> npt.NDArray[np.uint16]:
    """Convert strings of one character of the basic plane to UTF-16 units; null becomes 0, since a flag marks nulls."""
    offsets = _numbers_of_offsets(array)
    data = array.buffers()[2]
    raw = np.frombuffer(data, np.uint8).astype(np.uint32) if data is not None else np.zeros(0, np.uint32)
    raw = np.concatenate([raw, np.zeros(3, np.uint32)])
    start, sizes = offsets[:-1], np.diff(offsets)
    valid = np.asarray(array.is_valid())
    first, second, third = raw[start], raw[start + 1], raw[start + 2]
    expected = np.where(first < 0x80, 1, np.where(first < 0xE0, 2, 3))
    if bool(((sizes != expected) | (first >= 0xF0))[valid].any()):
        raise ValueRangeError("a Java char takes strings of exactly one character up to U+FFFF")
    units = np.where(
        sizes == 1,
        first,
        np.where(
            sizes == 2,
            (first & 0x1F) << 6 | second & 0x3F,
            (first & 0xF) << 12 | (second & 0x3F) << 6 | third & 0x3F,
        ),
    )
    return np.where(valid, units, 0).astype(np.uint16)


def _numbers_of_offsets(array: pa.Array) -> npt.NDArray[np.int32]:
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array) + 1, np.int32)
    return np.frombuffer(buffer, np.int32, len(array) + 1, 4 * array.offset)


def conform(array: pa.Array, target: pa.DataType, path: str = "value") -> pa.Array:
    """Convert `array` to `target`: struct fields are matched by name, numbers and times are cast if nothing is lost.

    Raises:
        ValueRangeError: a field is missing or unexpected, or a value does not fit; names the path.
    """
    if array.type == target:
        return array
    array = to_plain(array, path)
    source = array.type
    if source == target:
        return array
    if pa.types.is_null(target):
        if array.null_count < len(array):
            raise ValueRangeError(
                "the serializer has no values but null here, and a value is not null", where=Where(path=path)
            )
        return pa.nulls(len(array))
    if pa.types.is_null(source):
        return pa.nulls(len(array), target)
    if pa.types.is_struct(target) and pa.types.is_struct(source):
        return _conform_struct(array, target, path)
    if pa.types.is_map(target) and (pa.types.is_map(source) or pa.types.is_list(source)):
        keys, items = _flatten_map(array, path)
        keys = conform(keys, target.key_type, f"{path}{{key}}")
        items = conform(items, target.item_type, f"{path}{{value}}")
        fields = [pa.field("key", keys.type, nullable=False), pa.field("value", items.type)]
        return _rebuild(array, target, pa.StructArray.from_arrays([keys, items], fields=fields))
    if pa.types.is_list(target) and (pa.types.is_list(source) or pa.types.is_map(source)):
        return _rebuild(array, target, conform(flatten_entries(array), target.value_type, f"{path}[]"))
    if pa.types.is_temporal(source) and pa.types.is_integer(target):
        raise ValueRangeError(f"{source} does not fit {target}", where=Where(path=path))
    try:
        cast = pc.cast(array, target, safe=True)
        if pa.types.is_floating(target) and not cast.cast(source).equals(array) and _loses(array, cast):
            raise ValueRangeError(f"a value of {source} is not exact as {target}", where=Where(path=path))
        if pa.types.is_timestamp(source) and (pa.types.is_date(target) or pa.types.is_time(target)):
            _require_all_of_time(array, cast, path)
        return cast
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        # ArrowInvalid: a value does not fit. ArrowNotImplementedError: Arrow has no cast between the two types (such as
        # struct to number). PyArrow has no function that says which casts there are.
        raise ValueRangeError(f"{source} does not fit {target}: {error}", where=Where(path=path)) from None


def to_plain(array: pa.Array, path: str = "value") -> pa.Array:
    """Convert large types, lists of fixed size, views of text and dictionaries to plain types, at any depth.

    A cast straight to the final type would lose values: from a large list of structs to a list of structs, Arrow
    fills fields whose names differ with null.

    Raises:
        ValueRangeError: text, bytes or elements exceed 2 GiB in one array, or it has views of lists; names the path.
    """
    try:
        plain = _find_plain(array.type)
        return array if plain == array.type else array.cast(plain)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueRangeError(f"{array.type} cannot be used: {error}", where=Where(path=path)) from None


def _find_plain(of: pa.DataType) -> pa.DataType:
    is_type = pa.types
    if is_type.is_dictionary(of):
        return _find_plain(of.value_type)
    if is_type.is_large_string(of) or is_type.is_string_view(of):
        return pa.string()
    if is_type.is_large_binary(of) or is_type.is_binary_view(of):
        return pa.binary()
    if is_type.is_struct(of):
        return pa.struct([each.with_type(_find_plain(each.type)) for each in of])
    if is_type.is_map(of):
        key, item = (each.with_type(_find_plain(each.type)) for each in (of.key_field, of.item_field))
        return pa.map_(key, item, of.keys_sorted)
    if is_type.is_list_view(of) or is_type.is_large_list_view(of):
        # Arrow 26 makes invalid arrays when it casts list views.
        raise pa.ArrowNotImplementedError("a view of lists; cast it to a list")
    if is_type.is_list(of) or is_type.is_large_list(of) or is_type.is_fixed_size_list(of):
        return pa.list_(of.value_field.with_type(_find_plain(of.value_type)))
    return of


def _conform_struct(array: pa.Array, target: pa.StructType, path: str) -> pa.Array:
    source = array.type
    have = {source.field(i).name for i in range(source.num_fields)}
    want = {target.field(i).name for i in range(target.num_fields)}
    if have != want:
        missing, extra = sorted(want - have), sorted(have - want)
        wrong = [f"missing {', '.join(missing)}" if missing else "", f"unexpected {', '.join(extra)}" if extra else ""]
        raise ValueRangeError(
            f"the fields do not match: {'; '.join(each for each in wrong if each)}", where=Where(path=path)
        )
    children = [
        conform(
            array.field(source.get_field_index(target.field(i).name)),
            target.field(i).type,
            f"{path}.{target.field(i).name}",
        )
        for i in range(target.num_fields)
    ]
    nulls = pc.is_null(array) if array.null_count else None
    if not children:
        return pa.array([{}] * len(array), target, mask=None if nulls is None else nulls.to_numpy(False))
    return pa.StructArray.from_arrays(children, fields=list(target), mask=nulls)


def _rebuild(array: pa.Array, target: pa.DataType, child: pa.Array) -> pa.Array:
    """Return the list or map `array` with `child` as its flattened values."""
    offsets = dense_offsets(array)
    nulls = bitmap(np.asarray(array.is_valid())) if array.null_count else None
    return pa.Array.from_buffers(target, len(array), [nulls, offsets.buffers()[1]], children=[child])


def _flatten_map(array: pa.Array, path: str) -> tuple[pa.Array, pa.Array]:
    """Return the keys and the values of all maps. A map may also be a list of structs of `key` and `value`."""
    entries = flatten_entries(array)
    if not pa.types.is_struct(entries.type) or sorted(each.name for each in entries.type) != ["key", "value"]:
        raise ValueRangeError(
            f"{array.type} is not a map, whose entries are structs of the fields key and value", where=Where(path=path)
        )
    if entries.null_count:
        raise ValueRangeError("an entry of a map is null", where=Where(path=path))
    keys, items = entries.field("key"), entries.field("value")
    if keys.null_count:
        raise ValueRangeError("a key of a map is null, which Arrow does not hold", where=Where(path=f"{path}{{key}}"))
    return keys, items


def flatten_entries(array: pa.Array) -> pa.Array:
    """Return the elements of all lists, or the entries of all maps as structs, except those under null."""
    if not pa.types.is_map(array.type):
        return array.flatten()
    entries = pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
    as_list = pa.Array.from_buffers(
        pa.list_(entries.type), len(array), array.buffers()[:2], -1, array.offset, children=[entries]
    )
    return as_list.flatten()


def dense_offsets(array: pa.Array) -> pa.Array:
    """Return the offsets of lists or maps into their flattened values (see `flatten_entries`); a null has no values."""
    buffer = array.buffers()[1]
    raw = np.zeros(len(array) + 1, np.int32) if buffer is None else np.frombuffer(buffer, np.int32)
    lengths = np.diff(raw[array.offset : array.offset + len(array) + 1])
    if array.null_count:
        lengths = np.where(np.asarray(array.is_valid()), lengths, 0)
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.array(offsets)


def _require_all_of_time(array: pa.Array, cast: pa.Array, path: str) -> None:
    """Raise ValueRangeError if a cast of timestamps to dates (or times of day) dropped a time of day (or date)."""
    if not cast.cast(array.type).equals(array):
        raise ValueRangeError(
            f"a value of {array.type} has a time of day, which {cast.type} does not hold", where=Where(path=path)
        )


def _loses(array: pa.Array, cast: pa.Array) -> bool:
    """Return whether a cast to floating point changed a value (NaN counts as unchanged)."""
    same = pc.equal(cast.cast(array.type), array)
    if pa.types.is_floating(array.type):
        same = pc.or_(same, pc.is_nan(array))
    return not pc.all(same.fill_null(True)).as_py()
