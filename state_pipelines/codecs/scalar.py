"""The scalar codec: single values between bytes and plain Python, by their layout; self-describing ones too.

Values: bool, int, float, str, bytes and None are themselves (a char is a string of one UTF-16 unit); a list for lists,
sets and arrays; a list of (key, value) for maps; a dict for values with fields. A POJO has the name of its class under
`class`, a row its kind under `row_kind` (None when it has none), an `Either` has `is_left`, `left` and `right`. Date
and time values are those of `codecs.java`, values without a fixed layout those of Kryo, Avro and Java objects.

* `read_value`, `write_value`: values of any layout.
* `read_dynamic`, `write_dynamic`: self-describing values: Kryo, Avro, binary rows, Java objects. A value that cannot be
  read without its class is `Undecoded` if it reaches to the end of the data; elsewhere its end is unknown, which is an
  error.
* `read_writable`, `write_writable`: Hadoop classes that `WritableSerializer` writes, by codecs of their `write`
  methods. Source: `org.apache.hadoop.io`. Other Writables: `codecs.layout.register_class_layout`.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, TypeVar, cast

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.binary.java_stream import JavaContent, JavaEnum, JavaObject
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs import scalar_values as collections
from state_pipelines.codecs.avro import parse_avro_schema, read_avro, write_avro
from state_pipelines.codecs.binary_rows import (
    MAX_UNSCALED,
    BinaryRowValue,
    TimestampValue,
    read_array,
    read_map,
    read_row,
    scaled,
    unscaled_value,
    write_array,
    write_map,
    write_row,
)
from state_pipelines.codecs.java import (
    MessageValue,
    TypedValue,
    Undecoded,
    read_java_object,
    twos_complement,
    write_java_object,
)
from state_pipelines.codecs.kryo import FieldLists, read_kryo, read_kryo_span, write_kryo
from state_pipelines.codecs.layout import Layout, Primitive, PrimitiveKind
from state_pipelines.codecs.messages import decode_described
from state_pipelines.codecs.pickles import Pickled
from state_pipelines.codecs.scalar_values import (
    Value,
    expect,
    expect_fields,
    locate,
    read,
    read_fields,
    write,
    write_fields,
)
from state_pipelines.errors import StateError, UnsupportedError, ValueRangeError
from state_pipelines.serializers import tree
from state_pipelines.serializers.python_types import PythonType
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.codecs.kryo.classes import Version
    from state_pipelines.codecs.layout import Dynamic

_HADOOP = "org.apache.hadoop.io."
WRITABLE_LAYOUTS: dict[str, Layout] = {
    f"{_HADOOP}BooleanWritable": Primitive(PrimitiveKind.BOOL),
    f"{_HADOOP}ByteWritable": Primitive(PrimitiveKind.I8),
    f"{_HADOOP}ShortWritable": Primitive(PrimitiveKind.I16),
    f"{_HADOOP}IntWritable": Primitive(PrimitiveKind.I32),
    f"{_HADOOP}LongWritable": Primitive(PrimitiveKind.I64),
    f"{_HADOOP}FloatWritable": Primitive(PrimitiveKind.F32),
    f"{_HADOOP}DoubleWritable": Primitive(PrimitiveKind.F64),
    f"{_HADOOP}NullWritable": lay.Constant(b""),
    f"{_HADOOP}BytesWritable": lay.Sized(),
}
"""Layouts of Hadoop's classes. Those in `VARIABLE` have none: no layout describes Hadoop's variable-length numbers."""

_TEXT = f"{_HADOOP}Text"
_INTEGERS = {f"{_HADOOP}VIntWritable": 31, f"{_HADOOP}VLongWritable": 63}
VARIABLE = frozenset({_TEXT, *_INTEGERS})

# A first byte of -112 or more is the value itself; a lower one gives the sign and the number of bytes that follow.
_PLAIN = -112
_NEGATIVE = -120


def read_writable(type_class: str, reader: Reader) -> int | str:
    """Read a Hadoop `Text`, `VIntWritable` or `VLongWritable`: the classes with Hadoop's integers of variable length.

    Raises:
        FormatError: the bytes do not fit the class.
    """
    start = reader.position
    number = _read_integer(reader)
    if type_class != _TEXT:
        return number
    if not 0 <= number <= reader.remaining:
        raise reader.error(f"a text of {number} bytes does not fit in the {reader.remaining} bytes left", start)
    try:
        return reader.take(number).decode()
    except UnicodeDecodeError:
        raise reader.error("a text is not UTF-8", start) from None


def write_writable(type_class: str, writer: Writer, value: object) -> None:
    """Write a value as `read_writable` reads it.

    Raises:
        ValueRangeError: the value does not fit the class.
    """
    if type_class == _TEXT:
        if not isinstance(value, str):
            raise ValueRangeError(f"{value!r:.80} is not text")
        try:
            raw = value.encode()
        except UnicodeEncodeError:
            raise ValueRangeError(f"{value!r:.80} holds half of a surrogate pair; UTF-8 has no form for it") from None
        _write_integer(writer, len(raw))
        writer.take(raw)
        return
    bits = _INTEGERS[type_class]
    if not isinstance(value, int) or not -(1 << bits) <= value < 1 << bits:
        raise ValueRangeError(f"{value!r:.80} is not a whole number of {bits + 1} bits")
    _write_integer(writer, value)


def _read_integer(reader: Reader) -> int:
    """Read a variable-length integer of Hadoop (`WritableUtils.readVLong`)."""
    first = reader.i8()
    if first >= _PLAIN:
        return first
    negative = first < _NEGATIVE
    magnitude = int.from_bytes(reader.take((_NEGATIVE if negative else _PLAIN) - first), "big")
    return ~magnitude if negative else magnitude


def _write_integer(writer: Writer, value: int) -> None:
    """Write a variable-length integer of Hadoop (`WritableUtils.writeVLong`)."""
    if _PLAIN <= value <= 127:
        writer.i8(value)
        return
    magnitude = ~value if value < 0 else value
    size = (magnitude.bit_length() + 7) // 8
    writer.i8((_NEGATIVE if value < 0 else _PLAIN) - size)
    writer.take(magnitude.to_bytes(size, "big"))


_COMPACT_DECIMAL = 18
_COMPACT_TIMESTAMP = 3
_NONE_DECLARED = FieldLists()
_Value = TypeVar("_Value")


def read_dynamic(layout: Dynamic, reader: Reader, *, tail: bool) -> object:
    """Read one value whose bytes the serializer alone does not determine (Kryo, Avro, binary rows, Java objects).

    Args:
        layout: serializer of the value, the release line of Kryo, and the field lists of the user's classes.
        reader: the cursor.
        tail: the value reaches to the end of `reader`.

    Returns:
        Kryo: see `codecs.kryo`; Avro: see `codecs.avro`; table runtime: a `BinaryRowValue`, a list, or
        a list of (key, value), and bytes where the types of a binary row are unknown; Java stream: a `TypedValue`;
        `Undecoded` for an undecodable value.

    Raises:
        FormatError: the bytes do not fit the serializer.
        UnsupportedError: the bytes cannot be decoded, and the value does not reach to the end.
    """
    start = reader.position
    try:
        return _read(layout, reader)
    except UnsupportedError as error:
        if not tail:
            raise
        reader.position = start
        if isinstance(layout.serializer, tree.Kryo):
            return read_kryo_span(reader, layout.serializer, _version(layout), _classes(layout), layout.messages)
        return _keep(layout.serializer, reader, error)


def write_dynamic(layout: Dynamic, writer: Writer, value: Any) -> None:
    """Write a value as `read_dynamic` reads it.

    Raises:
        ValueRangeError: the value does not fit the serializer.
        UnsupportedError: the format in which the serializer writes is not known.
    """
    if isinstance(value, Undecoded):
        writer.take(value.raw)
        return
    match layout.serializer:
        case tree.Kryo() as kryo:
            write_kryo(writer, kryo, value, _version(layout), _classes(layout), layout.messages)
        case tree.Avro(schema_json=schema):
            write_avro(writer, parse_avro_schema(schema), value)
        case tree.Protobuf():
            writer.bytes32(_expect(value, MessageValue, "a message of Protobuf").raw)
        case tree.RowData(types=types):
            writer.bytes32(write_row(_expect(value, BinaryRowValue, "a row"), types))
        case tree.BinaryRow():
            writer.bytes32(_expect(value, bytes, "bytes"))
        case PythonType():
            writer.bytes32(_expect(value, Pickled, "a pickle").raw)
        case tree.ArrayData(element_type=element_type):
            writer.bytes32(write_array(_expect(value, list, "a list"), element_type))
        case tree.MapData(key_type=key_type, value_type=value_type):
            writer.bytes32(write_map(_expect(value, list, "a list of (key, value)"), key_type, value_type))
        case tree.Decimal() as decimal:
            _write_decimal(writer, decimal, _expect(value, Decimal, "a decimal number"))
        case tree.TimestampData(precision=precision):
            _write_timestamp(writer, precision, _expect(value, TimestampValue, "a timestamp"))
        case tree.ScalaEnum(constants=constants):
            numbers = dict(constants)
            if value not in numbers:
                raise ValueRangeError(f"{value!r} is not one of the enum's constants {', '.join(numbers)}")
            writer.i32(numbers[value])
        case tree.ClassBound(type_class=name) if name in VARIABLE:
            write_writable(name, writer, value)
        case tree.PythonDecimal() | tree.Basic(kind=BasicKind.PYTHON_BIG_DEC):
            writer.bytes32(str(_expect(value, Decimal, "a decimal number")).encode())
        case tree.Basic(kind=BasicKind.VARIANT):
            _write_variant(writer, value)
        case tree.Basic(kind=BasicKind.STRING_VALUE_ARRAY):
            _write_string_values(writer, _expect(value, list, "a list"))
        case tree.Basic(kind=BasicKind.JAVA_OBJECT):
            write_java_object(writer, cast("JavaContent", value.value if isinstance(value, TypedValue) else value))
        case serializer:
            raise _unknown(serializer)


def _read(layout: Dynamic, reader: Reader) -> object:
    match layout.serializer:
        case tree.Kryo() as kryo:
            return read_kryo(reader, kryo, _version(layout), _classes(layout), layout.messages)
        case tree.Avro(schema_json=schema):
            return read_avro(reader, parse_avro_schema(schema))
        case tree.Protobuf() as message:
            raw = reader.bytes32()
            fields = decode_described(message.descriptors, message.message_name, raw)
            return MessageValue(message.message_class, raw, fields)
        case tree.RowData(types=types):
            return _read_block(reader, lambda raw: read_row(raw, types, reader.name))
        case tree.BinaryRow():
            return reader.bytes32()
        case tree.ArrayData(element_type=element_type):
            return _read_block(reader, lambda raw: read_array(raw, element_type, reader.name))
        case tree.MapData(key_type=key_type, value_type=value_type):
            return _read_block(reader, lambda raw: read_map(raw, key_type, value_type, reader.name))
        case tree.Decimal(precision=precision, scale=scale):
            return scaled(reader.i64() if precision <= _COMPACT_DECIMAL else _read_unscaled(reader), scale)
        case tree.TimestampData(precision=precision):
            return TimestampValue(reader.i64(), reader.i32() if precision > _COMPACT_TIMESTAMP else 0)
        case tree.ScalaEnum(constants=constants):
            start, number = reader.position, reader.i32()
            name = next((name for name, each in constants if each == number), None)
            if name is None:
                raise reader.error(f"the enum has no constant of id {number}", start)
            return name
        case tree.ClassBound(type_class=name) if name in VARIABLE:
            return read_writable(name, reader)
        case tree.PythonDecimal() | tree.Basic(kind=BasicKind.PYTHON_BIG_DEC):
            return _read_decimal_text(reader)
        case PythonType():
            return Pickled(reader.bytes32())
        case tree.Basic(kind=BasicKind.VARIANT):
            return _read_variant(reader)
        case tree.Basic(kind=BasicKind.STRING_VALUE_ARRAY):
            return _read_string_values(reader)
        case tree.Basic(kind=BasicKind.JAVA_OBJECT):
            return _typed(read_java_object(reader))
        case serializer:
            raise _unknown(serializer)


def _read_block(reader: Reader, read: Callable[[bytes], object]) -> object:
    """Read a block of the table runtime with its length prefix; offsets of errors count from the start of the block."""
    raw = reader.bytes32()
    start = reader.position - len(raw)
    try:
        return read(raw)
    except StateError as error:
        error.where = replace(error.where, offset=start + (error.where.offset or 0))
        raise


def _read_unscaled(reader: Reader) -> int:
    start, raw = reader.position, reader.bytes32()
    if not 0 < len(raw) <= MAX_UNSCALED:
        raise reader.error(f"the unscaled value of a decimal has {len(raw)} bytes, not 1 to {MAX_UNSCALED}", start)
    return int.from_bytes(raw, "big", signed=True)


def _write_decimal(writer: Writer, of: tree.Decimal, value: Decimal) -> None:
    unscaled = unscaled_value(value, of.scale)
    if abs(unscaled) >= 10**of.precision:
        raise ValueRangeError(f"{value} does not fit in DECIMAL({of.precision}, {of.scale})")
    if of.precision <= _COMPACT_DECIMAL:
        writer.i64(unscaled)
    else:
        writer.bytes32(twos_complement(unscaled))


def _write_timestamp(writer: Writer, precision: int, value: TimestampValue) -> None:
    writer.i64(value.millis)
    if precision > _COMPACT_TIMESTAMP:
        writer.i32(value.nano_of_milli)
    elif value.nano_of_milli:
        raise ValueRangeError(f"{value} has more digits than TIMESTAMP({precision})")


def _read_decimal_text(reader: Reader) -> Decimal:
    """Read a decimal number of PyFlink, stored as text (`BigDecimal.toString`; Python's format is the same)."""
    start, text = reader.position, reader.bytes32()
    try:
        value = Decimal(text.decode("ascii"))
    except (UnicodeDecodeError, InvalidOperation):
        raise reader.error(f"{text[:40]!r} is not a decimal number", start) from None
    if str(value).encode() != text:
        raise reader.error(f"{text[:40]!r} is not a decimal number in the form of Java", start)
    return value


def _read_variant(reader: Reader) -> dict[str, bytes]:
    """Read a value of `VariantSerializer`: both lengths, then value and metadata, which are kept as bytes."""
    start, sizes = reader.position, (reader.i32(), reader.i32())
    if min(sizes) < 0 or sum(sizes) > reader.remaining:
        raise reader.error(
            f"a VARIANT of {sizes[0]} + {sizes[1]} bytes does not fit in the {reader.remaining} bytes left", start
        )
    return {"value": reader.take(sizes[0]), "metadata": reader.take(sizes[1])}


def _write_variant(writer: Writer, value: Any) -> None:
    if not isinstance(value, dict) or value.keys() != {"value", "metadata"}:
        raise ValueRangeError(f"{value!r:.80} is not a dict of value and metadata")
    blocks = [_expect(value[name], bytes, "bytes") for name in ("value", "metadata")]
    for block in blocks:
        writer.i32(len(block))
    for block in blocks:
        writer.take(block)


def _read_string_values(reader: Reader) -> list[str]:
    """Read a `StringValueArray` of Gelly: the count, the size in bytes of all strings, then the strings."""
    start, count, size = reader.position, reader.i32(), reader.i32()
    if not 0 <= count <= size <= reader.remaining:
        raise reader.error(
            f"{count} strings of {size} bytes in total do not fit in the {reader.remaining} bytes left", start
        )
    inner = Reader(reader.data, reader.name, reader.position, reader.position + size)
    values = [inner.vstr_plain() for _ in range(count)]
    inner.expect_end("the strings")
    reader.skip(size)
    return values


def _write_string_values(writer: Writer, values: list[str]) -> None:
    inner = Writer()
    for value in values:
        inner.vstr_plain(_expect(value, str, "text"))
    writer.i32(len(values))
    writer.bytes32(inner.getvalue())


def _typed(content: JavaContent) -> TypedValue | None:
    if content is None:
        return None
    name = content.class_name if isinstance(content, JavaObject | JavaEnum) else "java.lang.Object"
    return TypedValue(name, content)


def _keep(serializer: tree.Serializer, reader: Reader, error: UnsupportedError) -> Undecoded:
    reason = f"{error.what}. {error.hint}" if error.hint else error.what
    return Undecoded(_class_name(serializer), reader.take(reader.remaining), reason)


def unknown_class(node: tree.Opaque) -> UnsupportedError:
    """Make the error for data of a serializer whose snapshot class this package cannot read."""
    return UnsupportedError(
        node.reason or f"no reader is registered for the serializer snapshot class {node.unknown_class}",
        hint=f"Declare it (`--serializer '{node.unknown_class}=LAYOUT'`, option serializers)",
    )


def _unknown(serializer: tree.Serializer) -> UnsupportedError:
    if isinstance(serializer, tree.Opaque):
        return unknown_class(serializer)
    return UnsupportedError(
        f"values of {_class_name(serializer)} are written by code that the snapshot does not hold",
        hint="their bytes can be kept as they are",
    )


def _class_name(serializer: tree.Serializer) -> str:
    match serializer:
        case tree.Kryo(type_class=name) | tree.ClassBound(type_class=name) | tree.Opaque(unknown_class=name):
            return name
        case _:
            return serializer.snapshot_class


def _version(layout: Dynamic) -> Version:
    return 2 if layout.kryo_version == 2 else 5


def _classes(layout: Dynamic) -> FieldLists:
    return _NONE_DECLARED if layout.classes is None else layout.classes


def _expect(value: object, kind: type[_Value], what: str) -> _Value:
    if isinstance(value, kind):
        return value
    raise ValueRangeError(f"{value!r:.80} is not {what}")


def read_value(layout: lay.Layout, reader: Reader, *, tail: bool = True) -> Value:
    """Read one value of any layout from bytes.

    Args:
        layout: the layout of the bytes.
        reader: the cursor; afterwards at the end of the value.
        tail: the value reaches to the end of `reader`, so that undecodable bytes have a known end and are kept
            (`codecs.java.Undecoded`).

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
    """Write one value as bytes of any layout.

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
            f"the number before a value is {number}, not {layout.present} (a value follows) or {layout.null} (null)",
            start,
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
def _(layout: lay.OpaqueBytes, reader: Reader, tail: bool) -> Value:
    start = reader.position
    read(layout.inner, reader, tail)
    return {lay.OPAQUE_FIELD: bytes(reader.data[start : reader.position])}


@write.register
def _(layout: lay.OpaqueBytes, writer: Writer, value: Value) -> None:
    fields = expect_fields(((lay.OPAQUE_FIELD, lay.Rest()),), value)
    writer.take(expect(fields[lay.OPAQUE_FIELD], bytes, "bytes"))


@read.register
def _(layout: lay.MeasuredKey, reader: Reader, tail: bool) -> Value:
    start = reader.position
    value = read(layout.inner, reader, False)
    end = reader.position
    expected = _length_bytes(end - start)
    if reader.take(len(expected)) != expected:
        raise reader.error(f"the length stored after a key is not its size of {end - start} bytes", end)
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
