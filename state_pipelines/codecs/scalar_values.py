"""Single values between bytes and plain Python, by the type of their layout.

`read` and `write` handle values of any layout; `read_mask` and `write_mask` null masks, with which some rows begin. A
mask has a bit per field or element, from the high bit of the first byte on; a set bit is null. With a row kind two bits
precede those of the fields. In the kernels these are the instructions `opcodes.MASK` and `opcodes.MASKED_LIST`. Source:
`MaskUtils`.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import replace
from decimal import Decimal
from enum import IntEnum
from functools import singledispatch
from typing import TYPE_CHECKING, Any, TypeAlias

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs import java
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.binary_rows import scaled
from state_pipelines.codecs.java import read_number, twos_complement
from state_pipelines.codecs.kernels.opcodes import MAX_EMPTY_ITEMS
from state_pipelines.codecs.layout import ROW_KINDS
from state_pipelines.errors import StateError, UnsupportedError, ValueRangeError, Where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Value: TypeAlias = Any
_SIGN = 1 << 63
_MILLIS_OF_DAY = 86_400_000
_NANOS_OF_MILLI = 1_000_000
_SHORT_NUMBERS = (None, 0, 1, 10)


@singledispatch
def read_leaf(layout: lay.Layout, reader: Reader) -> Value:
    """Read one value of a layout without nested layouts.

    Raises:
        FormatError: the bytes do not fit the layout.
        UnsupportedError: the layout has nested layouts, or is of an unknown class.
    """
    raise UnsupportedError(f"the layout {type(layout).__name__} has no scalar form")


@singledispatch
def write_leaf(layout: lay.Layout, writer: Writer, value: Value) -> None:
    """Write a value as `read_leaf` reads it.

    Raises:
        ValueRangeError: the value does not fit the layout.
        UnsupportedError: the layout has nested layouts, or is of an unknown class.
    """
    raise UnsupportedError(f"the layout {type(layout).__name__} has no scalar form")


def expect(value: Value, kinds: type | tuple[type, ...], what: str) -> Value:
    """Return `value` if its type is one of `kinds`.

    Raises:
        ValueRangeError: the value has another type; the message says that `what` was expected.
    """
    if not isinstance(value, kinds):
        raise ValueRangeError(f"{value!r:.80} is not {what}")
    return value


# `Reader` and `Writer` have a method for each primitive kind, with the name of the kind.
_READ_PRIMITIVE: dict[str, Callable[[Reader], Value]] = {each: getattr(Reader, each) for each in lay.PrimitiveKind}
_WRITE_PRIMITIVE: dict[str, Callable[..., None]] = {each: getattr(Writer, each) for each in lay.PrimitiveKind}


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


_LOGICAL: dict[lay.LogicalKind, tuple[Callable[[Reader], Value], Callable[[Writer, Value], None]]] = {
    lay.LogicalKind.CHAR: (_read_char, _write_char),
    lay.LogicalKind.ORDERED_I64: (_read_ordered, _write_ordered),
    lay.LogicalKind.EPOCH_DAY: (Reader.i32, _write_days),
    lay.LogicalKind.MILLI_OF_DAY: (_read_clock, _write_clock),
    lay.LogicalKind.DATE_MILLIS: (java.read_millis, java.write_millis),
    lay.LogicalKind.SQL_TIMESTAMP: (java.read_sql_timestamp, java.write_sql_timestamp),
    lay.LogicalKind.INSTANT: (java.read_instant, java.write_instant),
    lay.LogicalKind.LOCAL_DATE: (java.read_local_date, java.write_local_date),
    lay.LogicalKind.LOCAL_TIME: (java.read_local_time, java.write_local_time),
    lay.LogicalKind.LOCAL_DATE_TIME: (java.read_local_date_time, java.write_local_date_time),
}
"""Reader and writer of the values of each kind."""


@read_leaf.register
def _(layout: lay.Logical, reader: Reader) -> Value:
    return _LOGICAL[layout.name][0](reader)


@write_leaf.register
def _(layout: lay.Logical, writer: Writer, value: Value) -> None:
    try:
        _LOGICAL[layout.name][1](writer, value)
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
        raise reader.error(f"the bytes are not {layout.raw.hex()}, the only ones that the serializer writes", start)
    return {} if layout.empty else None


@write_leaf.register
def _(layout: lay.Constant, writer: Writer, value: Value) -> None:
    if value != ({} if layout.empty else None):
        raise ValueRangeError(f"{value!r:.80} is given where the serializer writes no content")
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


Fields: TypeAlias = tuple[tuple[str, lay.Layout], ...]


def locate(error: StateError, step: str) -> None:
    """Prepend a step to the field path of an error."""
    error.where = replace(error.where, path=step + (error.where.path or ""))


@singledispatch
def read(layout: lay.Layout, reader: Reader, tail: bool) -> Value:
    """Read one value; modules register a function for each class of layouts. See `scalar.read_value` for `tail`."""
    return read_leaf(layout, reader)


@singledispatch
def write(layout: lay.Layout, writer: Writer, value: Value) -> None:
    """Write one value; modules register a function for each class of layouts."""
    write_leaf(layout, writer, value)


def read_fields(fields: Fields, reader: Reader, tail: bool) -> dict[str, Value]:
    """Read fields that follow each other in the bytes, to a dict by field name."""
    values: dict[str, Value] = {}
    last = len(fields) - 1
    name = ""
    try:
        for index, (name, child) in enumerate(fields):
            values[name] = read(child, reader, tail and index == last)
    except StateError as error:
        locate(error, f".{name}")
        raise
    return values


def expect_fields(fields: Fields, value: Value, mark: str = "") -> Value:
    """Return `value` if it is a dict of exactly these fields, which may also have the key `mark` (such as `row_kind`).

    Raises:
        ValueRangeError: the value is something else.
    """
    names = {name for name, _ in fields}
    if not isinstance(value, dict) or not names <= value.keys() <= names | {mark}:
        raise ValueRangeError(f"{value!r:.80} is not a dict of {', '.join(sorted(names)) or 'nothing'}")
    return value


def write_fields(fields: Fields, writer: Writer, value: Value) -> None:
    """Write the fields in a dict, one after the other."""
    name = ""
    try:
        for name, child in fields:
            write(child, writer, value[name])
    except StateError as error:
        locate(error, f".{name}")
        raise


def read_mask(reader: Reader, size: int) -> list[bool]:
    """Read bits packed into bytes, the first in the top bit (`MaskUtils`)."""
    raw = reader.take((size + 7) // 8)
    return [bool(raw[index >> 3] & 0x80 >> (index & 7)) for index in range(size)]


def write_mask(writer: Writer, bits: Sequence[bool]) -> None:
    """Write bits packed into bytes as `read_mask` reads them."""
    raw = bytearray((len(bits) + 7) // 8)
    for index, bit in enumerate(bits):
        raw[index >> 3] |= 0x80 >> (index & 7) if bit else 0
    writer.take(bytes(raw))


@read.register
def _(layout: lay.Masked, reader: Reader, tail: bool) -> Value:
    first = 2 if layout.kind else 0
    mask = read_mask(reader, first + len(layout.fields))
    present = tuple(each for null, each in zip(mask[first:], layout.fields, strict=True) if not null)
    values = read_fields(present, reader, tail)
    kind = ROW_KINDS[mask[0] | mask[1] << 1] if layout.kind else None
    return {"row_kind": kind, **{name: values.get(name) for name, _ in layout.fields}}


@write.register
def _(layout: lay.Masked, writer: Writer, value: Value) -> None:
    kind = expect_fields(layout.fields, value, "row_kind").get("row_kind") or ROW_KINDS[0]
    if kind not in ROW_KINDS or (kind != ROW_KINDS[0] and not layout.kind):
        raise ValueRangeError(f"{kind!r} is not a known row kind")
    number = ROW_KINDS.index(kind)
    kinds = [bool(number & 1), bool(number & 2)] if layout.kind else []
    write_mask(writer, [*kinds, *(value[name] is None for name, _ in layout.fields)])
    write_fields(tuple(each for each in layout.fields if value[each[0]] is not None), writer, value)


_EMPTY_ITEMS_LEFT: ContextVar[int] = ContextVar("empty items of a record", default=MAX_EMPTY_ITEMS)


def begin_record() -> None:
    """Start the count of elements without bytes, of which all lists of a record together may have `MAX_EMPTY_ITEMS`."""
    _EMPTY_ITEMS_LEFT.set(MAX_EMPTY_ITEMS)


def claim_empty_items(reader: Reader, count: int) -> None:
    """Count elements that take no bytes, because the size of the record does not limit their number.

    Raises:
        FormatError: the record has more than `MAX_EMPTY_ITEMS`.
    """
    left = _EMPTY_ITEMS_LEFT.get() - count
    _EMPTY_ITEMS_LEFT.set(left)
    if left < 0:
        raise reader.error(f"the lists of a value have more than {MAX_EMPTY_ITEMS} elements without bytes")


@read.register
def _(layout: lay.Sequence, reader: Reader, tail: bool) -> Value:
    return _read_elements(layout.element, reader, _count(reader))


@write.register
def _(layout: lay.Sequence, writer: Writer, value: Value) -> None:
    writer.i32(len(expect(value, (list, tuple), "a list")))
    _write_elements(layout.element, writer, value)


def _count(reader: Reader) -> int:
    start, count = reader.position, reader.i32()
    if not 0 <= count <= max(reader.remaining, MAX_EMPTY_ITEMS):
        raise reader.error(f"a count of {count} does not fit in the {reader.remaining} bytes left", start)
    return count


def _read_elements(layout: lay.Layout, reader: Reader, count: int, nulls: Sequence[bool] = ()) -> list[Value]:
    try:
        if nulls:
            return [None if null else read(layout, reader, False) for null in nulls]
        return read_items(layout, reader, count)
    except StateError as error:
        locate(error, "[]")
        raise


def read_items(layout: lay.Layout, reader: Reader, count: int) -> list[Value]:
    """Read the elements of a list, which follow each other in the bytes.

    Raises:
        FormatError: the bytes do not fit the layout, or there are too many elements without bytes.
    """
    if count == 0:
        return []
    start = reader.position
    items = [read(layout, reader, False)]
    if reader.position == start:
        claim_empty_items(reader, count)
    items += [read(layout, reader, False) for _ in range(count - 1)]
    return items


def _write_elements(layout: lay.Layout, writer: Writer, values: Iterable[Value]) -> None:
    try:
        for value in values:
            write(layout, writer, value)
    except StateError as error:
        locate(error, "[]")
        raise


@read.register
def _(layout: lay.Delimited, reader: Reader, tail: bool) -> Value:
    values: list[Value] = []
    while reader.remaining:
        start = reader.position
        if values and layout.delimiter is not None and (reader.u8() != layout.delimiter or not reader.remaining):
            raise reader.error("bytes are left over after an element of the list", start)
        values += _read_elements(layout.element, reader, 1)
        if layout.delimiter is None and reader.position == start:
            raise reader.error("an element of the list has no bytes, so that the elements cannot be counted", start)
    return values


@write.register
def _(layout: lay.Delimited, writer: Writer, value: Value) -> None:
    for index, each in enumerate(expect(value, (list, tuple), "a list")):
        if index and layout.delimiter is not None:
            writer.u8(layout.delimiter)
        _write_elements(layout.element, writer, (each,))


@read.register
def _(layout: lay.Runs, reader: Reader, tail: bool) -> Value:
    arrays = read(layout.stored, reader, tail)
    if not layout.ttl:
        return [value for array in arrays for value in array]
    return [{"last_access": each["last_access"], "value": value} for each in arrays for value in each["value"]]


@write.register
def _(layout: lay.Runs, writer: Writer, value: Value) -> None:
    write(layout.written, writer, value)


@read.register
def _(layout: lay.NullMasked, reader: Reader, tail: bool) -> Value:
    count = _count(reader)
    return _read_elements(layout.element, reader, count, read_mask(reader, count) if layout.mask else ())


@write.register
def _(layout: lay.NullMasked, writer: Writer, value: Value) -> None:
    writer.i32(len(expect(value, (list, tuple), "a list")))
    if layout.mask:
        write_mask(writer, [each is None for each in value])
    _write_elements(layout.element, writer, (each for each in value if each is not None or not layout.mask))


@read.register
def _(layout: lay.Mapping, reader: Reader, tail: bool) -> Value:
    entries: list[tuple[Value, Value]] = []
    step = ""
    try:
        for _ in range(_count(reader)):
            start, step = reader.position, "{key}"
            key = read(layout.key, reader, False)
            step = "{value}"
            entries.append((key, read(layout.value, reader, False)))
            if reader.position == start:
                claim_empty_items(reader, 1)
    except StateError as error:
        locate(error, step)
        raise
    return entries


@write.register
def _(layout: lay.Mapping, writer: Writer, value: Value) -> None:
    writer.i32(len(expect(value, (list, tuple), "a list of (key, value)")))
    step = ""
    try:
        for key, item in value:
            step = "{key}"
            write(layout.key, writer, key)
            step = "{value}"
            write(layout.value, writer, item)
    except StateError as error:
        locate(error, step)
        raise
    except (TypeError, ValueError):
        raise ValueRangeError(f"{value!r:.80} is not a list of (key, value)") from None


class _Pojo(IntEnum):
    """The flag byte of a POJO (`PojoSerializer`)."""

    NULL = 1
    EXACT = 2
    BY_NAME = 4
    REGISTERED = 8


@read.register
def _(layout: lay.Choice, reader: Reader, tail: bool) -> Value:
    is_left = reader.bool()
    side = "left" if is_left else "right"
    chosen = read_fields(((side, layout.left if is_left else layout.right),), reader, tail)
    return {"is_left": is_left, "left": None, "right": None, **chosen}


@write.register
def _(layout: lay.Choice, writer: Writer, value: Value) -> None:
    sides = (("left", layout.left), ("right", layout.right))
    is_left = expect(expect_fields(sides, value, "is_left").get("is_left"), bool, "a value of is_left")
    if value["right" if is_left else "left"] is not None:
        raise ValueRangeError("both sides of an Either have a value")
    writer.bool(is_left)
    write_fields(sides[:1] if is_left else sides[1:], writer, value)


@read.register
def _(layout: lay.Tagged, reader: Reader, tail: bool) -> Value:
    start, tag = reader.position, reader.u8() if layout.width == 1 else reader.i32()
    for each, name, child in layout.cases:
        if each == tag:
            return {"case": name, "value": read_fields(((name, child),), reader, tail)[name]}
    raise reader.error(f"{tag} is not a known tag", start)


@write.register
def _(layout: lay.Tagged, writer: Writer, value: Value) -> None:
    case = expect(value, dict, "a dict of case and value").get("case")
    for tag, name, child in layout.cases:
        if name == case and value.keys() == {"case", "value"}:
            if layout.width == 1:
                writer.u8(tag)
            else:
                writer.i32(tag)
            write_fields(((name, child),), writer, {name: value["value"]})
            return
    raise ValueRangeError(f"{case!r:.80} is not one of {', '.join(name for _, name, _ in layout.cases)}")


@read.register
def _(layout: lay.PojoObject, reader: Reader, tail: bool) -> Value:
    start, flag = reader.position, reader.u8()
    match flag:
        case _Pojo.NULL:
            return None
        case _Pojo.EXACT:
            optional = tuple((name, lay.Optional(child)) for name, child in layout.fields)
            return {"class": layout.class_name, **read_fields(optional, reader, tail)}
        case _Pojo.REGISTERED:
            tag = reader.u8()
            variant = next((each for each in layout.variants if each.tag == tag), None)
            what = f"registered subclass {tag}"
        case _Pojo.BY_NAME:
            name = reader.utf()
            variant = next((each for each in layout.variants if each.tag is None and each.class_name == name), None)
            what = f"class {name}"
        case _:
            raise reader.error(f"{flag} is not a flag of a POJO", start)
    if variant is None:
        raise UnsupportedError(
            f"an object is of {what}, which the serializer of {layout.class_name} does not list",
            where=Where(file=reader.name, offset=start),
            hint="Declare the class (`--classes`); a snapshot of the RocksDB backend lists every class that occurs",
        )
    value = read(variant.layout, reader, tail)
    if value is None:
        raise reader.error(f"an object of {what} is null", start)
    return value


@write.register
def _(layout: lay.PojoObject, writer: Writer, value: Value) -> None:
    if value is None:
        writer.u8(_Pojo.NULL)
        return
    own = value.get("class") or layout.class_name if isinstance(value, dict) else None
    name = own or getattr(value, "class_name", None)
    if name == layout.class_name:
        expect_fields(layout.fields, value, "class")
        writer.u8(_Pojo.EXACT)
        write_fields(tuple((each, lay.Optional(child)) for each, child in layout.fields), writer, value)
        return
    variant = next((each for each in layout.variants if each.class_name == name), None)
    if variant is None:
        raise ValueRangeError(f"{value!r:.80} is not an object of {layout.class_name} or a subclass that is listed")
    if variant.tag is None:
        writer.u8(_Pojo.BY_NAME)
        writer.utf(variant.class_name)
    else:
        writer.u8(_Pojo.REGISTERED)
        writer.u8(variant.tag)
    write(variant.layout, writer, value)
