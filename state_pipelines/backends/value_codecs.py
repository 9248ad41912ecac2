"""Single values to bytes and back, by functions that are chosen once per state.

The scalar codec walks the layout for every value. Live state handles the same few layouts record by record, so that
numbers, texts and structs of them get functions of their own here; every other layout, and every value that is not
plain, goes through the scalar codec, which also raises the errors.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from state_pipelines.backends.entry_store import DELIMITER
from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.scalar.codec import read_value, write_value
from state_pipelines.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.backends.entry_store import MeasureHead

Value: TypeAlias = Any
Encode: TypeAlias = "Callable[[Value], bytes]"
Decode: TypeAlias = "Callable[[bytes], Value]"

_INTEGERS = {"i8": ">b", "i16": ">h", "i32": ">i", "i64": ">q"}
_SHORT = 127
"""Length + 1 of a text from which on it takes more than one byte."""
_ORDERED = -(1 << 63)


@dataclass(frozen=True)
class ValueCodec:
    """Functions of one layout.

    Attributes:
        encode: value of the scalar codec -> bytes. Raises ValueRangeError for a value that does not fit the layout.
        decode: bytes, all of them -> value. Raises FormatError for other bytes.
        width: bytes of every value; None when they vary.
    """

    encode: Encode
    decode: Decode
    width: int | None


def make_codec(layout: lay.Layout) -> ValueCodec:
    """The functions of a layout."""
    encode, decode = _generic(layout)
    match layout:
        case lay.Primitive(kind=kind) if kind in _INTEGERS:
            encode, decode = _integers(_INTEGERS[kind], encode, decode)
        case lay.Primitive(kind=lay.PrimitiveKind.F64):
            encode, decode = _doubles(encode, decode)
        case lay.Text(nullable=True):
            encode, decode = _texts(encode, decode)
        case lay.Constant(raw=raw, empty=False):
            encode, decode = _constants(raw, encode, decode)
        case lay.Logical(name=lay.LogicalKind.ORDERED_I64):
            encode, decode = _ordered(encode, decode)
        case lay.Struct(fields=fields) if fields:
            encode, decode = _structs([(name, make_codec(field)) for name, field in fields], encode, decode)
        case lay.Optional(inner=inner, padding=0):
            encode, decode = _optionals(layout.null_flag, make_codec(inner), encode, decode)
    return ValueCodec(encode, decode, lay.fixed_width(layout))


def make_list_functions(layout: lay.Layout) -> tuple[Encode, Decode]:
    """Functions that encode one element, and decode all elements of a list (`Delimited`, `Runs`)."""
    whole = make_codec(layout)
    element = layout.written if isinstance(layout, lay.Runs) else layout
    assert isinstance(element, lay.Delimited)
    codec = make_codec(element.element)
    if isinstance(layout, lay.Runs):
        # An element is an array of one; the whole list is decoded array by array.
        return codec.encode, whole.decode
    width, decode_element = codec.width, codec.decode
    if not width:
        return codec.encode, whole.decode
    step = width + len(DELIMITER)

    def decode(data: bytes) -> Value:
        if (len(data) + len(DELIMITER)) % step or data[width::step].strip(DELIMITER):
            return whole.decode(data)
        return [decode_element(data[start : start + width]) for start in range(0, len(data), step)]

    return codec.encode, decode


def make_head_measure(head: lay.Struct, prefix: int) -> MeasureHead:
    """A function that finds the length of the head of a record key of map state.

    Args:
        head: layout of key and namespace.
        prefix: bytes of the key-group prefix.
    """
    (_, key), (_, namespace) = head.fields
    width, rest = lay.fixed_width(key), lay.fixed_width(namespace)

    def measure(record_key: bytes) -> int:
        reader = Reader(record_key, None, prefix)
        read_value(head, reader, tail=False)
        return reader.position

    def measure_text(record_key: bytes) -> int:
        # The first byte of a short text is its length + 1, and every ASCII character is one byte.
        end = prefix + record_key[prefix]
        if prefix < end and record_key[prefix] <= _SHORT and record_key[prefix:end].isascii():
            return end + (rest or 0)
        return measure(record_key)

    if rest is None:
        return measure
    if width is not None:
        fixed = prefix + width + rest
        return lambda record_key: fixed
    return measure_text if key == lay.Text() else measure


def _generic(layout: lay.Layout) -> tuple[Encode, Decode]:
    def encode(value: Value) -> bytes:
        writer = Writer()
        write_value(layout, writer, value)
        return writer.getvalue()

    def decode(data: bytes) -> Value:
        reader = Reader(data)
        value = read_value(layout, reader)
        reader.expect_end("the value")
        return value

    return encode, decode


def _integers(struct_format: str, encode: Encode, decode: Decode) -> tuple[Encode, Decode]:
    packing = struct.Struct(struct_format)
    pack, unpack, size = packing.pack, packing.unpack, packing.size

    def encode_integer(value: Value) -> bytes:
        if type(value) is int:
            try:
                return pack(value)
            except struct.error:
                pass
        return encode(value)

    def decode_integer(data: bytes) -> Value:
        return unpack(data)[0] if len(data) == size else decode(data)

    return encode_integer, decode_integer


def _doubles(encode: Encode, decode: Decode) -> tuple[Encode, Decode]:
    packing = struct.Struct(">d")
    pack, unpack = packing.pack, packing.unpack

    def encode_double(value: Value) -> bytes:
        return pack(value) if type(value) is float else encode(value)

    def decode_double(data: bytes) -> Value:
        return unpack(data)[0] if len(data) == packing.size else decode(data)

    return encode_double, decode_double


def _texts(encode: Encode, decode: Decode) -> tuple[Encode, Decode]:
    heads = [bytes([size]) for size in range(_SHORT + 1)]

    def encode_text(value: Value) -> bytes:
        if type(value) is str and value.isascii() and len(value) < _SHORT:
            return heads[len(value) + 1] + value.encode("ascii")
        return encode(value)

    def decode_text(data: bytes) -> Value:
        # The first byte is the length + 1, and every ASCII character one byte.
        if data and data[0] == len(data) and data[0] <= _SHORT and data.isascii():
            return data[1:].decode("ascii")
        return decode(data)

    return encode_text, decode_text


def _constants(raw: bytes, encode: Encode, decode: Decode) -> tuple[Encode, Decode]:
    def encode_constant(value: Value) -> bytes:
        return raw if value is None else encode(value)

    def decode_constant(data: bytes) -> Value:
        return None if data == raw else decode(data)

    return encode_constant, decode_constant


def _ordered(encode: Encode, decode: Decode) -> tuple[Encode, Decode]:
    packing = struct.Struct(">q")
    pack, unpack = packing.pack, packing.unpack

    def encode_ordered(value: Value) -> bytes:
        if type(value) is int:
            try:
                return pack(value ^ _ORDERED)
            except struct.error:
                pass
        return encode(value)

    def decode_ordered(data: bytes) -> Value:
        return unpack(data)[0] ^ _ORDERED if len(data) == packing.size else decode(data)

    return encode_ordered, decode_ordered


def _structs(fields: list[tuple[str, ValueCodec]], encode: Encode, decode: Decode) -> tuple[Encode, Decode]:
    """All fields but the last have a fixed width; else the scalar codec is as good."""
    if any(codec.width is None for _, codec in fields[:-1]):
        return encode, decode
    count = len(fields)
    writers = [(name, codec.encode) for name, codec in fields]
    spans, start = [], 0
    for name, codec in fields[:-1]:
        spans.append((name, codec.decode, start, start + (codec.width or 0)))
        start += codec.width or 0
    last, decode_last = fields[-1][0], fields[-1][1].decode
    fixed = start

    def encode_struct(value: Value) -> bytes:
        if type(value) is dict and len(value) == count:
            try:
                return b"".join([write(value[name]) for name, write in writers])
            except (KeyError, StateError):
                pass  # The scalar codec names the field.
        return encode(value)

    def decode_struct(data: bytes) -> Value:
        if len(data) < fixed:
            return decode(data)
        try:
            values = {name: read(data[begin:end]) for name, read, begin, end in spans}
            values[last] = decode_last(data[fixed:])
        except StateError:
            return decode(data)
        return values

    return encode_struct, decode_struct


def _optionals(null: int, inner: ValueCodec, encode: Encode, decode: Decode) -> tuple[Encode, Decode]:
    absent, present = bytes([null]), bytes([1 - null])
    encode_inner, decode_inner = inner.encode, inner.decode

    def encode_optional(value: Value) -> bytes:
        return absent if value is None else present + encode_inner(value)

    def decode_optional(data: bytes) -> Value:
        return decode_inner(data[1:]) if data[:1] == present else decode(data)

    return encode_optional, decode_optional
