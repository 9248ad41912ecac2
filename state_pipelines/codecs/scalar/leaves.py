"""Leaves of the scalar codec: layouts without other layouts inside, one value at a time."""

from __future__ import annotations

from decimal import Decimal
from functools import singledispatch
from typing import TYPE_CHECKING, Any, TypeAlias

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.java import date_times
from state_pipelines.codecs.java.big_numbers import read_number, twos_complement
from state_pipelines.codecs.sql.binary_rows import scaled
from state_pipelines.errors import UnsupportedError, ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Callable

Value: TypeAlias = Any
_SIGN = 1 << 63
_MILLIS_OF_DAY = 86_400_000
_NANOS_OF_MILLI = 1_000_000
_SHORT_NUMBERS = (None, 0, 1, 10)


@singledispatch
def read_leaf(layout: lay.Layout, reader: Reader) -> Value:
    """Read one value of a layout that has no other inside.

    Raises:
        FormatError: the bytes do not fit the layout.
        UnsupportedError: not such a layout.
    """
    raise UnsupportedError(f"the layout {type(layout).__name__} has no scalar form")


@singledispatch
def write_leaf(layout: lay.Layout, writer: Writer, value: Value) -> None:
    """Write what `read_leaf` reads.

    Raises:
        ValueRangeError: the value does not fit the layout.
        UnsupportedError: not such a layout.
    """
    raise UnsupportedError(f"the layout {type(layout).__name__} has no scalar form")


def expect(value: Value, kinds: type | tuple[type, ...], what: str) -> Value:
    """`value`, if it is of one of `kinds`.

    Raises:
        ValueRangeError: it is not.
    """
    if not isinstance(value, kinds):
        raise ValueRangeError(f"{value!r:.80} is not {what}")
    return value


_READ_PRIMITIVE: dict[lay.PrimitiveKind, Callable[[Reader], Value]] = {
    lay.PrimitiveKind.BOOL: Reader.bool,
    lay.PrimitiveKind.I8: Reader.i8,
    lay.PrimitiveKind.I16: Reader.i16,
    lay.PrimitiveKind.U16: Reader.u16,
    lay.PrimitiveKind.I32: Reader.i32,
    lay.PrimitiveKind.I64: Reader.i64,
    lay.PrimitiveKind.F32: Reader.f32,
    lay.PrimitiveKind.F64: Reader.f64,
}
_WRITE_PRIMITIVE: dict[lay.PrimitiveKind, Callable[[Writer, Value], None]] = {
    lay.PrimitiveKind.BOOL: Writer.bool,
    lay.PrimitiveKind.I8: Writer.i8,
    lay.PrimitiveKind.I16: Writer.i16,
    lay.PrimitiveKind.U16: Writer.u16,
    lay.PrimitiveKind.I32: Writer.i32,
    lay.PrimitiveKind.I64: Writer.i64,
    lay.PrimitiveKind.F32: Writer.f32,
    lay.PrimitiveKind.F64: Writer.f64,
}


@read_leaf.register
def _(layout: lay.Primitive, reader: Reader) -> Value:
    return _READ_PRIMITIVE[layout.kind](reader)


@write_leaf.register
def _(layout: lay.Primitive, writer: Writer, value: Value) -> None:
    kinds = (
        bool
        if layout.kind == lay.PrimitiveKind.BOOL
        else (int, float)
        if layout.kind in (lay.PrimitiveKind.F32, lay.PrimitiveKind.F64)
        else int
    )
    _WRITE_PRIMITIVE[layout.kind](writer, expect(value, kinds, f"a value of {layout.kind}"))


def _read_char(reader: Reader) -> str:
    return chr(reader.u16())


def _write_char(writer: Writer, value: str) -> None:
    if len(expect(value, str, "a character")) != 1:
        raise ValueRangeError(f"{value!r:.80} is not one character")
    writer.u16(ord(value))


def _read_ordered(reader: Reader) -> int:
    return reader.i64() ^ -_SIGN


def _write_ordered(writer: Writer, value: int) -> None:
    writer.i64(value ^ -_SIGN)


def _read_days(reader: Reader) -> int:
    return reader.i32()


def _write_days(writer: Writer, value: int) -> None:
    writer.i32(expect(value, int, "a number of days"))


def _read_clock(reader: Reader) -> int:
    start, millis = reader.position, reader.i32()
    if not 0 <= millis < _MILLIS_OF_DAY:
        raise reader.error(f"{millis} milliseconds are not within a day", start)
    return millis * _NANOS_OF_MILLI


def _write_clock(writer: Writer, value: int) -> None:
    millis, nanos = divmod(expect(value, int, "nanoseconds of the day"), _NANOS_OF_MILLI)
    if nanos or not 0 <= millis < _MILLIS_OF_DAY:
        raise ValueRangeError(f"{value!r} is not a whole number of milliseconds within a day")
    writer.i32(millis)


_READ_LOGICAL: dict[lay.LogicalKind, Callable[[Reader], Value]] = {
    lay.LogicalKind.CHAR: _read_char,
    lay.LogicalKind.ORDERED_I64: _read_ordered,
    lay.LogicalKind.EPOCH_DAY: _read_days,
    lay.LogicalKind.MILLI_OF_DAY: _read_clock,
    lay.LogicalKind.DATE_MILLIS: date_times.read_millis,
    lay.LogicalKind.SQL_TIMESTAMP: date_times.read_sql_timestamp,
    lay.LogicalKind.INSTANT: date_times.read_instant,
    lay.LogicalKind.LOCAL_DATE: date_times.read_local_date,
    lay.LogicalKind.LOCAL_TIME: date_times.read_local_time,
    lay.LogicalKind.LOCAL_DATE_TIME: date_times.read_local_date_time,
}
_WRITE_LOGICAL: dict[lay.LogicalKind, Callable[[Writer, Value], None]] = {
    lay.LogicalKind.CHAR: _write_char,
    lay.LogicalKind.ORDERED_I64: _write_ordered,
    lay.LogicalKind.EPOCH_DAY: _write_days,
    lay.LogicalKind.MILLI_OF_DAY: _write_clock,
    lay.LogicalKind.DATE_MILLIS: date_times.write_millis,
    lay.LogicalKind.SQL_TIMESTAMP: date_times.write_sql_timestamp,
    lay.LogicalKind.INSTANT: date_times.write_instant,
    lay.LogicalKind.LOCAL_DATE: date_times.write_local_date,
    lay.LogicalKind.LOCAL_TIME: date_times.write_local_time,
    lay.LogicalKind.LOCAL_DATE_TIME: date_times.write_local_date_time,
}


@read_leaf.register
def _(layout: lay.Logical, reader: Reader) -> Value:
    return _READ_LOGICAL[layout.name](reader)


@write_leaf.register
def _(layout: lay.Logical, writer: Writer, value: Value) -> None:
    try:
        _WRITE_LOGICAL[layout.name](writer, value)
    except (KeyError, TypeError):
        raise ValueRangeError(f"{value!r:.80} is not a value of {layout.name}") from None


@read_leaf.register
def _(layout: lay.Text, reader: Reader) -> Value:
    return reader.vstr() if layout.nullable else reader.vstr_plain()


@write_leaf.register
def _(layout: lay.Text, writer: Writer, value: Value) -> None:
    if layout.nullable:
        writer.vstr(None if value is None else expect(value, str, "text"))
    else:
        writer.vstr_plain(expect(value, str, "text"))


@read_leaf.register
def _(layout: lay.Sized, reader: Reader) -> Value:
    raw, end = reader.bytes32(), reader.position
    if not layout.text:
        return raw
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise reader.error(f"a string is not UTF-8: {error.reason}", end - len(raw) + error.start) from None


@write_leaf.register
def _(layout: lay.Sized, writer: Writer, value: Value) -> None:
    if not layout.text:
        writer.bytes32(expect(value, bytes, "bytes"))
        return
    try:
        writer.bytes32(expect(value, str, "text").encode("utf-8"))
    except UnicodeEncodeError:
        raise ValueRangeError(f"{value!r:.80} holds half of a surrogate pair, for which UTF-8 has no form") from None


@read_leaf.register
def _(layout: lay.JavaText, reader: Reader) -> Value:
    return reader.utf()


@write_leaf.register
def _(layout: lay.JavaText, writer: Writer, value: Value) -> None:
    writer.utf(expect(value, str, "text"))


@read_leaf.register
def _(layout: lay.Rest, reader: Reader) -> Value:
    return reader.take(reader.remaining)


@write_leaf.register
def _(layout: lay.Rest, writer: Writer, value: Value) -> None:
    writer.take(expect(value, bytes, "bytes"))


@read_leaf.register
def _(layout: lay.BigInteger, reader: Reader) -> Value:
    start, size = reader.position, reader.i32()
    if 0 <= size <= 3:
        return _SHORT_NUMBERS[size]
    if size <= 4:
        raise reader.error(f"{size} is no length of a BigInteger", start)
    return read_number(reader, size - 4)


@write_leaf.register
def _(layout: lay.BigInteger, writer: Writer, value: Value) -> None:
    if value is not None:
        expect(value, int, "a whole number")
    if value in _SHORT_NUMBERS:
        writer.i32(_SHORT_NUMBERS.index(value))
        return
    raw = twos_complement(value)
    writer.i32(len(raw) + 4)
    writer.take(raw)


@read_leaf.register
def _(layout: lay.BigDecimal, reader: Reader) -> Value:
    unscaled = read_leaf(lay.BigInteger(), reader)
    return None if unscaled is None else scaled(unscaled, reader.i32())


@write_leaf.register
def _(layout: lay.BigDecimal, writer: Writer, value: Value) -> None:
    if value is None:
        writer.i32(0)
        return
    sign, digits, exponent = expect(value, Decimal, "a decimal number").as_tuple()
    if not isinstance(exponent, int):
        raise ValueRangeError(f"{value} is not a finite number")
    write_leaf(lay.BigInteger(), writer, int(Decimal((sign, digits, 0))))
    writer.i32(-exponent)


@read_leaf.register
def _(layout: lay.Constant, reader: Reader) -> Value:
    start = reader.position
    if reader.take(len(layout.raw)) != layout.raw:
        raise reader.error(f"the bytes are not the {layout.raw.hex()} that the serializer writes", start)
    return {} if layout.empty else None


@write_leaf.register
def _(layout: lay.Constant, writer: Writer, value: Value) -> None:
    if value != ({} if layout.empty else None):
        raise ValueRangeError(f"{value!r:.80} is a value where there must be none")
    writer.take(layout.raw)


@read_leaf.register
def _(layout: lay.Constants, reader: Reader) -> Value:
    start, index = reader.position, reader.i32()
    if not 0 <= index < len(layout.names):
        raise reader.error(f"index {index} is outside the {len(layout.names)} constants of the enum", start)
    return layout.names[index]


@write_leaf.register
def _(layout: lay.Constants, writer: Writer, value: Value) -> None:
    if value not in layout.names:
        raise ValueRangeError(f"{value!r:.80} is not one of the enum's constants {', '.join(layout.names)}")
    writer.i32(layout.names.index(value))
