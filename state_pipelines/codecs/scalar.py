"""The scalar codec: one value at a time, bytes to plain Python and back, as its layout says.

Values: bool, int, float, str, bytes and None stand for themselves (a char is a string of one UTF-16 unit); a list for
lists, sets and arrays; a list of (key, value) for maps; a dict for what has fields. A POJO has the name of its class
under `class`, a row its kind under `row_kind` (None when it has none), an `Either` has `is_left`, `left` and `right`.
Date and time values as in `javatime`, families without a fixed layout as in `families`.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from functools import singledispatch
from typing import TYPE_CHECKING, TypeAlias

from state_pipelines.binary.reader import Reader
from state_pipelines.binary.writer import Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.families import read_dynamic, write_dynamic
from state_pipelines.codecs.layout import ROW_KINDS
from state_pipelines.codecs.leaves import Value, expect, read_leaf, write_leaf
from state_pipelines.errors import StateError, UnsupportedError, ValueRangeError, Where

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_EMPTY_ITEMS = 1 << 16
"""How many elements without bytes a list may have."""

Fields: TypeAlias = tuple[tuple[str, lay.Layout], ...]


class _Pojo(IntEnum):
    """The byte in front of a POJO (`PojoSerializer`)."""

    NULL = 1
    EXACT = 2
    BY_NAME = 4
    REGISTERED = 8


def read_value(layout: lay.Layout, reader: Reader, *, tail: bool = True) -> Value:
    """Read one value.

    Args:
        layout: what the bytes look like.
        reader: the cursor; afterwards behind the value.
        tail: the value reaches to the end of `reader`, so that bytes that cannot be decoded can be told from what is
            behind them and are kept (`codecs.dynamic.Undecoded`).

    Raises:
        FormatError: the bytes do not fit the layout; names offset and field path.
        UnsupportedError: a part of the value cannot be decoded and its length is not known.
    """
    try:
        return _read(layout, reader, tail)
    except StateError as error:
        _locate(error, "value")
        raise


def write_value(layout: lay.Layout, writer: Writer, value: Value) -> None:
    """Mirror of `read_value`.

    Raises:
        ValueRangeError: the value does not fit the layout; names the field path.
        UnsupportedError: the layout has a part whose values cannot be written.
    """
    try:
        _write(layout, writer, value)
    except StateError as error:
        _locate(error, "value")
        raise


def _locate(error: StateError, step: str) -> None:
    """Put one more step in front of the field path."""
    error.where = replace(error.where, path=step + (error.where.path or ""))


@singledispatch
def _read(layout: lay.Layout, reader: Reader, tail: bool) -> Value:
    return read_leaf(layout, reader)


@singledispatch
def _write(layout: lay.Layout, writer: Writer, value: Value) -> None:
    write_leaf(layout, writer, value)


read_inner, write_inner = _read, _write
"""For the codecs of layouts that are declared elsewhere (`beam_values`): dispatch by the type of the layout."""


@_read.register
def _(layout: lay.Struct, reader: Reader, tail: bool) -> Value:
    return _read_fields(layout.fields, reader, tail)


@_write.register
def _(layout: lay.Struct, writer: Writer, value: Value) -> None:
    _write_fields(layout.fields, writer, _expect_fields(layout.fields, value))


def _read_fields(fields: Fields, reader: Reader, tail: bool) -> dict[str, Value]:
    values: dict[str, Value] = {}
    last = len(fields) - 1
    name = ""
    try:
        for index, (name, child) in enumerate(fields):
            values[name] = _read(child, reader, tail and index == last)
    except StateError as error:
        _locate(error, f".{name}")
        raise
    return values


def _expect_fields(fields: Fields, value: Value, mark: str = "") -> Value:
    names = {name for name, _ in fields}
    if not isinstance(value, dict) or not names <= value.keys() <= names | {mark}:
        raise ValueRangeError(f"{value!r:.80} is not a dict of {', '.join(sorted(names)) or 'nothing'}")
    return value


def _write_fields(fields: Fields, writer: Writer, value: Value) -> None:
    name = ""
    try:
        for name, child in fields:
            _write(child, writer, value[name])
    except StateError as error:
        _locate(error, f".{name}")
        raise


@_read.register
def _(layout: lay.Optional, reader: Reader, tail: bool) -> Value:
    if reader.bool() != bool(layout.null_flag):
        return _read(layout.inner, reader, tail)
    reader.skip(reader.remaining if layout.rest_is_null else layout.padding)
    return None


@_write.register
def _(layout: lay.Optional, writer: Writer, value: Value) -> None:
    writer.u8(layout.null_flag if value is None else 1 - layout.null_flag)
    if value is None:
        writer.take(bytes(layout.padding))
    else:
        _write(layout.inner, writer, value)


@_read.register
def _(layout: lay.Span, reader: Reader, tail: bool) -> Value:
    start = reader.position
    _read(layout.inner, reader, tail)
    return {"start": start, "stop": reader.position}


@_read.register
def _(layout: lay.Carried, reader: Reader, tail: bool) -> Value:
    start = reader.position
    _read(layout.inner, reader, tail)
    return {lay.CARRIED: bytes(reader.data[start : reader.position])}


@_write.register
def _(layout: lay.Carried, writer: Writer, value: Value) -> None:
    fields = _expect_fields(((lay.CARRIED, lay.Rest()),), value)
    writer.take(expect(fields[lay.CARRIED], bytes, "bytes"))


@_read.register
def _(layout: lay.MeasuredKey, reader: Reader, tail: bool) -> Value:
    start = reader.position
    value = _read(layout.inner, reader, False)
    end = reader.position
    expected = _length_bytes(end - start)
    if reader.take(len(expected)) != expected:
        raise reader.error(f"the length behind a key of {end - start} bytes is another one", end)
    return value


@_write.register
def _(layout: lay.MeasuredKey, writer: Writer, value: Value) -> None:
    start = len(writer)
    _write(layout.inner, writer, value)
    writer.take(_length_bytes(len(writer) - start))


def _length_bytes(size: int) -> bytes:
    return size.to_bytes(max(1, (size.bit_length() + 7) // 8), "little")


@_read.register
def _(layout: lay.Sequence, reader: Reader, tail: bool) -> Value:
    return _read_elements(layout.element, reader, _count(reader))


@_write.register
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
            return [None if null else _read(layout, reader, False) for null in nulls]
        return [_read(layout, reader, False) for _ in range(count)]
    except StateError as error:
        _locate(error, "[]")
        raise


def _write_elements(layout: lay.Layout, writer: Writer, values: Iterable[Value]) -> None:
    try:
        for value in values:
            _write(layout, writer, value)
    except StateError as error:
        _locate(error, "[]")
        raise


@_read.register
def _(layout: lay.Delimited, reader: Reader, tail: bool) -> Value:
    values: list[Value] = []
    while reader.remaining:
        start = reader.position
        if values and layout.delimiter is not None and (reader.u8() != layout.delimiter or not reader.remaining):
            raise reader.error("bytes are left over behind an element of the list", start)
        values += _read_elements(layout.element, reader, 1)
        if layout.delimiter is None and reader.position == start:
            raise reader.error("an element of the list has no bytes, so that nothing says how many there are", start)
    return values


@_write.register
def _(layout: lay.Delimited, writer: Writer, value: Value) -> None:
    for index, each in enumerate(expect(value, (list, tuple), "a list")):
        if index and layout.delimiter is not None:
            writer.u8(layout.delimiter)
        _write_elements(layout.element, writer, (each,))


@_read.register
def _(layout: lay.Runs, reader: Reader, tail: bool) -> Value:
    arrays = _read(layout.stored, reader, tail)
    if not layout.ttl:
        return [value for array in arrays for value in array]
    return [{"last_access": each["last_access"], "value": value} for each in arrays for value in each["value"]]


@_write.register
def _(layout: lay.Runs, writer: Writer, value: Value) -> None:
    _write(layout.written, writer, value)


@_read.register
def _(layout: lay.NullMasked, reader: Reader, tail: bool) -> Value:
    count = _count(reader)
    return _read_elements(layout.element, reader, count, _read_mask(reader, count) if layout.mask else ())


@_write.register
def _(layout: lay.NullMasked, writer: Writer, value: Value) -> None:
    writer.i32(len(expect(value, (list, tuple), "a list")))
    if layout.mask:
        _write_mask(writer, [each is None for each in value])
    _write_elements(layout.element, writer, (each for each in value if each is not None or not layout.mask))


def _read_mask(reader: Reader, size: int) -> list[bool]:
    """Bits packed into bytes, the first in the top bit (`MaskUtils`)."""
    raw = reader.take((size + 7) // 8)
    return [bool(raw[index >> 3] & 0x80 >> (index & 7)) for index in range(size)]


def _write_mask(writer: Writer, bits: Sequence[bool]) -> None:
    raw = bytearray((len(bits) + 7) // 8)
    for index, bit in enumerate(bits):
        raw[index >> 3] |= 0x80 >> (index & 7) if bit else 0
    writer.take(bytes(raw))


@_read.register
def _(layout: lay.Mapping, reader: Reader, tail: bool) -> Value:
    entries: list[tuple[Value, Value]] = []
    step = ""
    try:
        for _ in range(_count(reader)):
            step = "{key}"
            key = _read(layout.key, reader, False)
            step = "{value}"
            entries.append((key, _read(layout.value, reader, False)))
    except StateError as error:
        _locate(error, step)
        raise
    return entries


@_write.register
def _(layout: lay.Mapping, writer: Writer, value: Value) -> None:
    writer.i32(len(expect(value, (list, tuple), "a list of (key, value)")))
    step = ""
    try:
        for key, item in value:
            step = "{key}"
            _write(layout.key, writer, key)
            step = "{value}"
            _write(layout.value, writer, item)
    except StateError as error:
        _locate(error, step)
        raise
    except (TypeError, ValueError):
        raise ValueRangeError(f"{value!r:.80} is not a list of (key, value)") from None


@_read.register
def _(layout: lay.Masked, reader: Reader, tail: bool) -> Value:
    first = 2 if layout.kind else 0
    mask = _read_mask(reader, first + len(layout.fields))
    present = tuple(each for null, each in zip(mask[first:], layout.fields, strict=True) if not null)
    values = _read_fields(present, reader, tail)
    kind = ROW_KINDS[mask[0] | mask[1] << 1] if layout.kind else None
    return {"row_kind": kind, **{name: values.get(name) for name, _ in layout.fields}}


@_write.register
def _(layout: lay.Masked, writer: Writer, value: Value) -> None:
    kind = _expect_fields(layout.fields, value, "row_kind").get("row_kind") or ROW_KINDS[0]
    if kind not in ROW_KINDS or (kind != ROW_KINDS[0] and not layout.kind):
        raise ValueRangeError(f"{kind!r} is not a row kind that is known here")
    number = ROW_KINDS.index(kind)
    kinds = [bool(number & 1), bool(number & 2)] if layout.kind else []
    _write_mask(writer, [*kinds, *(value[name] is None for name, _ in layout.fields)])
    _write_fields(tuple(each for each in layout.fields if value[each[0]] is not None), writer, value)


@_read.register
def _(layout: lay.Choice, reader: Reader, tail: bool) -> Value:
    is_left = reader.bool()
    side = "left" if is_left else "right"
    chosen = _read_fields(((side, layout.left if is_left else layout.right),), reader, tail)
    return {"is_left": is_left, "left": None, "right": None, **chosen}


@_write.register
def _(layout: lay.Choice, writer: Writer, value: Value) -> None:
    sides = (("left", layout.left), ("right", layout.right))
    is_left = expect(_expect_fields(sides, value, "is_left").get("is_left"), bool, "a value of is_left")
    if value["right" if is_left else "left"] is not None:
        raise ValueRangeError("both sides of an Either have a value")
    writer.bool(is_left)
    _write_fields(sides[:1] if is_left else sides[1:], writer, value)


@_read.register
def _(layout: lay.Tagged, reader: Reader, tail: bool) -> Value:
    start, tag = reader.position, reader.u8() if layout.width == 1 else reader.i32()
    for each, name, child in layout.cases:
        if each == tag:
            return {"case": name, "value": _read_fields(((name, child),), reader, tail)[name]}
    raise reader.error(f"{tag} does not say which value follows", start)


@_write.register
def _(layout: lay.Tagged, writer: Writer, value: Value) -> None:
    case = expect(value, dict, "a dict of case and value").get("case")
    for tag, name, child in layout.cases:
        if name == case and value.keys() == {"case", "value"}:
            if layout.width == 1:
                writer.u8(tag)
            else:
                writer.i32(tag)
            _write_fields(((name, child),), writer, {name: value["value"]})
            return
    raise ValueRangeError(f"{case!r:.80} is not one of {', '.join(name for _, name, _ in layout.cases)}")


@_read.register
def _(layout: lay.Framed, reader: Reader, tail: bool) -> Value:
    size = reader.count()
    inside = Reader(reader.data, reader.name, reader.position, reader.position + size)
    value = _read(layout.inner, inside, True)
    inside.expect_end("the value")
    reader.skip(size)
    return value


@_write.register
def _(layout: lay.Framed, writer: Writer, value: Value) -> None:
    inside = Writer()
    _write(layout.inner, inside, value)
    writer.bytes32(inside.getvalue())


@_read.register
def _(layout: lay.PojoObject, reader: Reader, tail: bool) -> Value:
    start, flag = reader.position, reader.u8()
    match flag:
        case _Pojo.NULL:
            return None
        case _Pojo.EXACT:
            optional = tuple((name, lay.Optional(child)) for name, child in layout.fields)
            return {"class": layout.class_name, **_read_fields(optional, reader, tail)}
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
    value = _read(variant.layout, reader, tail)
    if value is None:
        raise reader.error(f"an object of {what} is null", start)
    return value


@_write.register
def _(layout: lay.PojoObject, writer: Writer, value: Value) -> None:
    if value is None:
        writer.u8(_Pojo.NULL)
        return
    own = value.get("class") or layout.class_name if isinstance(value, dict) else None
    name = own or getattr(value, "class_name", None)
    if name == layout.class_name:
        _expect_fields(layout.fields, value, "class")
        writer.u8(_Pojo.EXACT)
        _write_fields(tuple((each, lay.Optional(child)) for each, child in layout.fields), writer, value)
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
    _write(variant.layout, writer, value)


@_read.register
def _(layout: lay.Dynamic, reader: Reader, tail: bool) -> Value:
    return read_dynamic(layout, reader, tail=tail)


@_write.register
def _(layout: lay.Dynamic, writer: Writer, value: Value) -> None:
    write_dynamic(layout, writer, value)
