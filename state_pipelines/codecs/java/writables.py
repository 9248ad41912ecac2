"""Hadoop classes that `WritableSerializer` writes: codecs of their `write` methods.

Source: `org.apache.hadoop.io`. Writables of one's own: `codecs.extensions.register_class_layout`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.layout import Layout, Primitive, PrimitiveKind
from state_pipelines.errors import ValueRangeError

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader, Writer

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
"""Classes of one layout. Those of `VARIABLE` have none, because no layout knows Hadoop's variable integers."""

_TEXT = f"{_HADOOP}Text"
_INTEGERS = {f"{_HADOOP}VIntWritable": 31, f"{_HADOOP}VLongWritable": 63}
VARIABLE = frozenset({_TEXT, *_INTEGERS})

# First bytes from -112 on are the value itself; below, the sign and how many bytes follow.
_PLAIN = -112
_NEGATIVE = -120


def read_writable(type_class: str, reader: Reader) -> int | str:
    """Read a value of one of the classes in `VARIABLE`.

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
    """Write what `read_writable` reads.

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
    """`WritableUtils.readVLong`."""
    first = reader.i8()
    if first >= _PLAIN:
        return first
    negative = first < _NEGATIVE
    magnitude = int.from_bytes(reader.take((_NEGATIVE if negative else _PLAIN) - first), "big")
    return ~magnitude if negative else magnitude


def _write_integer(writer: Writer, value: int) -> None:
    """`WritableUtils.writeVLong`."""
    if _PLAIN <= value <= 127:
        writer.i8(value)
        return
    magnitude = ~value if value < 0 else value
    size = (magnitude.bit_length() + 7) // 8
    writer.i8((_NEGATIVE if value < 0 else _PLAIN) - size)
    writer.take(magnitude.to_bytes(size, "big"))
