"""The scalar codec: single values between bytes and plain Python, by their layout.

Values: bool, int, float, str, bytes and None are themselves (a char is a string of one UTF-16 unit); a list for
lists, sets and arrays; a list of (key, value) for maps; a dict for values with fields. A POJO has the name of its class
under `class`, a row its kind under `row_kind` (None when it has none), an `Either` has `is_left`, `left` and `right`.
Date and time values are those of `java.date_times`, values without a fixed layout those of `self_describing`.
"""

from __future__ import annotations

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.scalar import collections as collections
from state_pipelines.codecs.scalar import objects as objects
from state_pipelines.codecs.scalar.dispatch import expect_fields, locate, read, read_fields, write, write_fields
from state_pipelines.codecs.scalar.leaves import Value, expect
from state_pipelines.codecs.scalar.self_describing import read_dynamic, write_dynamic
from state_pipelines.errors import StateError


def read_value(layout: lay.Layout, reader: Reader, *, tail: bool = True) -> Value:
    """Read one value.

    Args:
        layout: the layout of the bytes.
        reader: the cursor; afterwards at the end of the value.
        tail: the value reaches to the end of `reader`, so that undecodable bytes have a known end and are kept
            (`codecs.java.typed_values.Undecoded`).

    Raises:
        FormatError: the bytes do not fit the layout; names offset and field path.
        UnsupportedError: a nested value cannot be decoded and its size is unknown.
    """
    collections.begin_record()
    try:
        return read(layout, reader, tail)
    except StateError as error:
        locate(error, "value")
        raise


def write_value(layout: lay.Layout, writer: Writer, value: Value) -> None:
    """Write one value.

    Raises:
        ValueRangeError: the value does not fit the layout; names the field path.
        UnsupportedError: values of a node of the layout cannot be written.
    """
    try:
        write(layout, writer, value)
    except StateError as error:
        locate(error, "value")
        raise


@read.register
def _(layout: lay.Struct, reader: Reader, tail: bool) -> Value:
    return read_fields(layout.fields, reader, tail)


@write.register
def _(layout: lay.Struct, writer: Writer, value: Value) -> None:
    write_fields(layout.fields, writer, expect_fields(layout.fields, value))


@read.register
def _(layout: lay.Optional, reader: Reader, tail: bool) -> Value:
    if reader.bool() != bool(layout.null_flag):
        return read(layout.inner, reader, tail)
    reader.skip(reader.remaining if layout.rest_is_null else layout.padding)
    return None


@write.register
def _(layout: lay.Optional, writer: Writer, value: Value) -> None:
    writer.u8(layout.null_flag if value is None else 1 - layout.null_flag)
    if value is None:
        writer.take(bytes(layout.padding))
    else:
        write(layout.inner, writer, value)


@read.register
def _(layout: lay.Marked, reader: Reader, tail: bool) -> Value:
    start, number = reader.position, reader.i32()
    if number == layout.present:
        return read(layout.inner, reader, tail)
    if number != layout.null:
        raise reader.error(
            f"{number} is in front of a value, where it is {layout.present} and in front of null {layout.null}", start
        )
    return None


@write.register
def _(layout: lay.Marked, writer: Writer, value: Value) -> None:
    writer.i32(layout.null if value is None else layout.present)
    if value is not None:
        write(layout.inner, writer, value)


@read.register
def _(layout: lay.Span, reader: Reader, tail: bool) -> Value:
    start = reader.position
    read(layout.inner, reader, tail)
    return {"start": start, "stop": reader.position}


@read.register
def _(layout: lay.Opaque, reader: Reader, tail: bool) -> Value:
    start = reader.position
    read(layout.inner, reader, tail)
    return {lay.OPAQUE_FIELD: bytes(reader.data[start : reader.position])}


@write.register
def _(layout: lay.Opaque, writer: Writer, value: Value) -> None:
    fields = expect_fields(((lay.OPAQUE_FIELD, lay.Rest()),), value)
    writer.take(expect(fields[lay.OPAQUE_FIELD], bytes, "bytes"))


@read.register
def _(layout: lay.MeasuredKey, reader: Reader, tail: bool) -> Value:
    start = reader.position
    value = read(layout.inner, reader, False)
    end = reader.position
    expected = _length_bytes(end - start)
    if reader.take(len(expected)) != expected:
        raise reader.error(f"the length after a key of {end - start} bytes differs", end)
    return value


@write.register
def _(layout: lay.MeasuredKey, writer: Writer, value: Value) -> None:
    start = len(writer)
    write(layout.inner, writer, value)
    writer.take(_length_bytes(len(writer) - start))


def _length_bytes(size: int) -> bytes:
    return size.to_bytes(max(1, (size.bit_length() + 7) // 8), "little")


@read.register
def _(layout: lay.Framed, reader: Reader, tail: bool) -> Value:
    size = reader.count()
    inside = Reader(reader.data, reader.name, reader.position, reader.position + size)
    value = read(layout.inner, inside, True)
    inside.expect_end("the value")
    reader.skip(size)
    return value


@write.register
def _(layout: lay.Framed, writer: Writer, value: Value) -> None:
    inside = Writer()
    write(layout.inner, inside, value)
    writer.bytes32(inside.getvalue())


@read.register
def _(layout: lay.Dynamic, reader: Reader, tail: bool) -> Value:
    return read_dynamic(layout, reader, tail=tail)


@write.register
def _(layout: lay.Dynamic, writer: Writer, value: Value) -> None:
    write_dynamic(layout, writer, value)
