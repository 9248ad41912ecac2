"""Values of Apache Beam's coders: their layouts, and the scalar codec of these.

`lay_beam` and `derive_coder` derive a layout from a coder. All data are in the nested context, in which values are
self-delimiting. Coders of users and those that are not listed here have no layout: their values stay bytes. Source:
repository apache/beam, packages `org.apache.beam.sdk.coders`, `org.apache.beam.sdk.transforms.windowing`,
`org.apache.beam.sdk.util` (`WindowedValue`), `org.apache.beam.runners.core` (`TimerInternals`),
`org.apache.beam.sdk.io.kafka`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

from typing_extensions import override

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.avro import parse_avro_schema, read_avro, write_avro
from state_pipelines.codecs.binary_rows import scaled
from state_pipelines.codecs.java import read_number, twos_complement
from state_pipelines.codecs.kernels.opcodes import MAX_EMPTY_ITEMS
from state_pipelines.codecs.layout import Layout, register_layout
from state_pipelines.codecs.scalar_values import Value, expect, read, read_items, write
from state_pipelines.errors import ValueRangeError
from state_pipelines.serializers import tree
from state_pipelines.serializers.beam import BYTE_BUFFER_CODER, KEY_CODER, BeamSerializer, Coder
from state_pipelines.serializers.build import basic
from state_pipelines.serializers.tree import BasicKind


@dataclass(frozen=True)
class VarNumber(Layout):
    """Beam's `VarInt`: two's complement of 32 or 64 bits as 7-bit groups, low group first."""

    bits: int = 64


@dataclass(frozen=True)
class VarSized(Layout):
    """Bytes or text of Beam: a `VarInt` length, then the bytes (UTF-8 with `text`)."""

    text: bool = False


@dataclass(frozen=True)
class VarFramed(Layout):
    """A `VarInt` length, then a value that uses exactly that many bytes (`LengthPrefixCoder`)."""

    inner: Layout


@dataclass(frozen=True)
class VarInteger(Layout):
    """`BigIntegerCoder`: a `VarInt` length, then two's complement bytes."""


@dataclass(frozen=True)
class VarDecimal(Layout):
    """`BigDecimalCoder`: a `VarInt` scale, then the unscaled `VarInteger`."""


@dataclass(frozen=True)
class Counted(Layout):
    """`IterableLikeCoder`: an i32 count and that many elements, or -1 and blocks of elements.

    A block is a `VarInt` count and that many elements; a count of 0 ends the list.
    """

    element: Layout


@dataclass(frozen=True)
class VarTagged(Layout):
    """A `VarInt` tag and the value that it selects, like `layout.Tagged`."""

    cases: tuple[tuple[int, str, Layout], ...]


@dataclass(frozen=True)
class IntervalWindow(Layout):
    """`IntervalWindowCoder`: end of the window, then length; the value has `start` and `end` in epoch milliseconds."""


@dataclass(frozen=True)
class Pane(Layout):
    """`PaneInfoCoder`: a byte of flags, then zero, one or two indices."""


@dataclass(frozen=True)
class AvroBinary(Layout):
    """Avro's binary encoding (`AvroCoder`), unlike that of Flink's `AvroSerializer`."""

    schema_json: str


_INSTANT = lay.Logical(lay.LogicalKind.ORDERED_I64)
_TEXT, _BYTES = VarSized(text=True), VarSized()
_INT, _LONG = VarNumber(32), VarNumber(64)
_SDK = "org.apache.beam.sdk."
_CODERS = f"{_SDK}coders."
_WINDOWING = f"{_SDK}transforms.windowing."
_TIMERS = "org.apache.beam.runners.core.TimerInternals$"
_TAGGED_KV = "org.apache.beam.runners.flink.translation.wrappers.streaming.DoFnOperator$TaggedKvCoder"
_HEADERS = ("headers", Counted(lay.Struct((("key", _TEXT), ("value", _BYTES)))))

SIMPLE_CODERS: dict[str, Layout] = {
    f"{_CODERS}StringUtf8Coder": _TEXT,
    f"{_CODERS}TextualIntegerCoder": _TEXT,
    f"{_CODERS}StringDelegateCoder": _TEXT,
    f"{_CODERS}ByteArrayCoder": _BYTES,
    f"{_CODERS}BitSetCoder": _BYTES,
    BYTE_BUFFER_CODER: _BYTES,
    f"{_CODERS}VarIntCoder": _INT,
    f"{_CODERS}VarLongCoder": _LONG,
    f"{_CODERS}BigEndianShortCoder": lay.Primitive(lay.PrimitiveKind.I16),
    f"{_CODERS}BigEndianIntegerCoder": lay.Primitive(lay.PrimitiveKind.I32),
    f"{_CODERS}BigEndianLongCoder": lay.Primitive(lay.PrimitiveKind.I64),
    f"{_CODERS}ByteCoder": lay.Primitive(lay.PrimitiveKind.I8),
    f"{_CODERS}BooleanCoder": lay.Primitive(lay.PrimitiveKind.BOOL),
    f"{_CODERS}FloatCoder": lay.Primitive(lay.PrimitiveKind.F32),
    f"{_CODERS}DoubleCoder": lay.Primitive(lay.PrimitiveKind.F64),
    f"{_CODERS}BigIntegerCoder": VarInteger(),
    f"{_CODERS}BigDecimalCoder": VarDecimal(),
    f"{_CODERS}VoidCoder": lay.Constant(b""),
    f"{_CODERS}InstantCoder": _INSTANT,
    f"{_CODERS}DurationCoder": _LONG,
    f"{_WINDOWING}GlobalWindow$Coder": lay.Constant(b"", empty=True),
    f"{_WINDOWING}IntervalWindow$IntervalWindowCoder": IntervalWindow(),
    f"{_WINDOWING}PaneInfo$PaneInfoCoder": Pane(),
    f"{_SDK}io.range.OffsetRange$Coder": lay.Struct((("from", _LONG), ("to", _LONG))),
    f"{_SDK}io.kafka.TopicPartitionCoder": lay.Struct((("topic", _TEXT), ("partition", _INT))),
    f"{_TIMERS}TimerDataCoder": lay.Struct(
        (("timer_id", _TEXT), ("namespace", _TEXT), ("timestamp", _INSTANT), ("domain", _TEXT))
    ),
    f"{_TIMERS}TimerDataCoderV2": lay.Struct(
        (
            ("timer_id", _TEXT),
            ("timer_family_id", _TEXT),
            ("namespace", _TEXT),
            ("timestamp", _INSTANT),
            ("output_timestamp", _INSTANT),
            ("domain", _TEXT),
        )
    ),
}
"""Layouts of the coders without other coders inside."""

Derive: TypeAlias = Callable[[str], Layout]
"""Function that returns the layout of the coder in a field."""
Fields: TypeAlias = tuple[tuple[str, Layout], ...]


def _windowed(inner: Derive) -> Layout:
    fields = (
        ("timestamp", _INSTANT),
        ("windows", inner("windowsCoder")),
        ("pane", Pane()),
        ("value", inner("valueCoder")),
    )
    return lay.Struct(fields)


def _kafka_record(inner: Derive) -> Layout:
    fields = ("topic", _TEXT), ("partition", _INT), ("offset", _LONG), ("timestamp", _LONG), ("timestamp_type", _INT)
    return lay.Struct((*fields, _HEADERS, ("kv", inner("kvCoder"))))


def _producer_record(inner: Derive) -> Layout:
    return lay.Struct((("topic", _TEXT), ("partition", _INT), ("timestamp", _LONG), _HEADERS, ("kv", inner("kvCoder"))))


def _key_value(inner: Derive) -> Layout:
    return lay.Struct((("key", inner("keyCoder")), ("value", inner("valueCoder"))))


def _mapping(inner: Derive) -> Layout:
    return lay.Mapping(inner("keyCoder"), inner("valueCoder"))


def _counted(inner: Derive) -> Layout:
    return Counted(inner("elementCoder"))


COMPOSITE_CODERS: dict[str, Callable[[Derive], Layout]] = {
    f"{_CODERS}KvCoder": _key_value,
    f"{_CODERS}NullableCoder": lambda inner: lay.Optional(inner("valueCoder"), null_flag=0),
    f"{_CODERS}DelegateCoder": lambda inner: inner("coder"),
    f"{_CODERS}LengthPrefixCoder": lambda inner: VarFramed(inner("valueCoder")),
    **{f"{_CODERS}{kind}Coder": _counted for kind in ("Iterable", "Collection", "List", "Set", "Deque")},
    f"{_CODERS}MapCoder": _mapping,
    f"{_CODERS}SortedMapCoder": _mapping,
    f"{_SDK}util.WindowedValue$FullWindowedValueCoder": _windowed,
    f"{_SDK}util.WindowedValue$ParamWindowedValueCoder": lambda inner: inner("valueCoder"),
    f"{_SDK}util.WindowedValue$ValueOnlyWindowedValueCoder": lambda inner: inner("valueCoder"),
    f"{_SDK}values.TimestampedValue$TimestampedValueCoder": lambda inner: lay.Struct(
        (("value", inner("valueCoder")), ("timestamp", _INSTANT))
    ),
    f"{_SDK}values.ValueWithRecordId$ValueWithRecordIdCoder": lambda inner: lay.Struct(
        (("value", inner("valueCoder")), ("id", _BYTES))
    ),
    f"{_SDK}io.kafka.KafkaRecordCoder": _kafka_record,
    f"{_SDK}io.kafka.ProducerRecordCoder": _producer_record,
}
"""Functions that make the layout of a coder from the layouts of the coders nested in it, by coder class."""

_AVRO = re.compile(r"org\.apache\.beam\.sdk\.(extensions\.avro\.)?coders\.Avro(Generic|Specific|Reflect)?Coder(\$\w+)?")
TAGGED_CODERS = frozenset({_TAGGED_KV, f"{_SDK}transforms.join.UnionCoder"})
"""Coders that write a number and then a value with the coder of that number."""


@register_layout(BeamSerializer, fixed_length=False)
def lay_beam(node: BeamSerializer, derive: Callable[[tree.Serializer], Layout]) -> Layout:
    """Return the layout of the data of a Beam serializer."""
    return derive_coder(node.coder, derive)


def derive_coder(coder: Coder, derive: Callable[[tree.Serializer], Layout] = lay.Dynamic) -> Layout:
    """Return the layout of the data that a coder writes.

    Args:
        coder: the coder.
        derive: returns the layout of a serializer, called for values whose bytes depend on their classes.
    """
    if coder.class_name == f"{_CODERS}SerializableCoder":
        return derive(basic(BasicKind.JAVA_OBJECT))
    if coder.is_key_bytes and coder.components:
        # The key bytes are a value of another coder, which `keyed.header` took from the serializers of the states.
        return VarFramed(_inside(coder, KEY_CODER, derive))
    simple = SIMPLE_CODERS.get(coder.class_name)
    if simple is not None:
        return simple
    composite = COMPOSITE_CODERS.get(coder.class_name)
    if composite is not None:
        return composite(lambda name: _inside(coder, name, derive))
    if coder.class_name in TAGGED_CODERS and all(name.isdigit() for name, _ in coder.components):
        cases = ((int(name), f"tag_{name}", derive_coder(each, derive)) for name, each in coder.components)
        return VarTagged(tuple(cases))
    if _AVRO.fullmatch(coder.class_name) and coder.detail:
        return AvroBinary(coder.detail)
    return _bind(coder, derive)


def _inside(coder: Coder, name: str, derive: Callable[[tree.Serializer], Layout]) -> Layout:
    component = coder.component(name)
    return _bind(coder, derive) if component is None else derive_coder(component, derive)


def _bind(coder: Coder, derive: Callable[[tree.Serializer], Layout]) -> Layout:
    kind = tree.ClassBoundKind.CODER
    return derive(tree.ClassBound(snapshot_class="", kind=kind, type_class=coder.class_name))


_TIMINGS = ("EARLY", "ON_TIME", "LATE", "UNKNOWN")
_LITTLE_F32, _LITTLE_F64 = struct.Struct("<f"), struct.Struct("<d")


class BlockList(list[Value]):
    """Elements of an iterable of unknown size, which were written in blocks.

    Attributes:
        blocks: number of elements in each block.
    """

    def __init__(self, items: list[Value], blocks: tuple[int, ...]) -> None:
        super().__init__(items)
        self.blocks = blocks


def read_var_number(reader: Reader, bits: int = 64) -> int:
    """Read a number as 7-bit groups, low group first (`VarInt.decodeLong`, `VarInt.decodeInt`).

    Raises:
        FormatError: the number has more than `bits` bits.
    """
    start, value, shift = reader.position, 0, 0
    while True:
        byte = reader.u8()
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > bits:
            raise reader.error(f"a number has more than {bits} bits", start)
    if value >> bits:
        raise reader.error(f"a number has more than {bits} bits", start)
    return value - (1 << bits) if value >> (bits - 1) else value


def write_var_number(writer: Writer, value: int, bits: int = 64) -> None:
    """Write a number as `read_var_number` reads it.

    Raises:
        ValueRangeError: the number has more than `bits` bits.
    """
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise ValueRangeError(f"{value} does not fit in {bits} bits")
    rest = value & ((1 << bits) - 1)
    while rest > 0x7F:
        writer.u8(rest & 0x7F | 0x80)
        rest >>= 7
    writer.u8(rest)


def _read_sized(reader: Reader) -> bytes:
    return reader.take(read_var_number(reader, 32))


def _write_sized(writer: Writer, raw: bytes) -> None:
    write_var_number(writer, len(raw), 32)
    writer.take(raw)


@read.register
def _(layout: VarNumber, reader: Reader, tail: bool) -> Value:
    return read_var_number(reader, layout.bits)


@write.register
def _(layout: VarNumber, writer: Writer, value: Value) -> None:
    write_var_number(writer, expect(value, int, "a whole number"), layout.bits)


@read.register
def _(layout: VarSized, reader: Reader, tail: bool) -> Value:
    raw, end = _read_sized(reader), reader.position
    if not layout.text:
        return raw
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise reader.error(f"a string is not UTF-8: {error.reason}", end - len(raw) + error.start) from None


@write.register
def _(layout: VarSized, writer: Writer, value: Value) -> None:
    if not layout.text:
        _write_sized(writer, expect(value, bytes, "bytes"))
        return
    try:
        _write_sized(writer, expect(value, str, "text").encode("utf-8"))
    except UnicodeEncodeError:
        raise ValueRangeError(f"{value!r:.80} holds half of a surrogate pair, for which UTF-8 has no form") from None


@read.register
def _(layout: VarFramed, reader: Reader, tail: bool) -> Value:
    size = read_var_number(reader, 32)
    start = reader.position
    reader.skip(size)
    inside = Reader(reader.data, reader.name, start, start + size)
    value = read(layout.inner, inside, True)
    inside.expect_end("the value")
    return value


@write.register
def _(layout: VarFramed, writer: Writer, value: Value) -> None:
    inside = Writer()
    write(layout.inner, inside, value)
    _write_sized(writer, inside.getvalue())


@read.register
def _(layout: VarInteger, reader: Reader, tail: bool) -> Value:
    return read_number(reader, read_var_number(reader, 32))


@write.register
def _(layout: VarInteger, writer: Writer, value: Value) -> None:
    _write_sized(writer, twos_complement(expect(value, int, "a whole number")))


@read.register
def _(layout: VarDecimal, reader: Reader, tail: bool) -> Value:
    scale = read_var_number(reader, 32)
    return scaled(read_number(reader, read_var_number(reader, 32)), scale)


@write.register
def _(layout: VarDecimal, writer: Writer, value: Value) -> None:
    sign, digits, exponent = expect(value, Decimal, "a decimal number").as_tuple()
    if not isinstance(exponent, int):
        raise ValueRangeError(f"{value} is not a finite number")
    write_var_number(writer, -exponent, 32)
    _write_sized(writer, twos_complement(int(Decimal((sign, digits, 0)))))


@read.register
def _(layout: Counted, reader: Reader, tail: bool) -> Value:
    start, count = reader.position, reader.i32()
    if count >= 0:
        return read_items(layout.element, reader, _checked(reader, count, start))
    if count != -1:
        raise reader.error(f"{count} is no number of elements", start)
    blocks: list[int] = []
    items: list[Value] = []
    while size := read_var_number(reader):
        items += read_items(layout.element, reader, _checked(reader, size, start))
        blocks.append(size)
    return BlockList(items, tuple(blocks))


def _checked(reader: Reader, count: int, start: int) -> int:
    if not 0 <= count <= max(reader.remaining, MAX_EMPTY_ITEMS):
        raise reader.error(f"a count of {count} does not fit in the {reader.remaining} bytes left", start)
    return count


@write.register
def _(layout: Counted, writer: Writer, value: Value) -> None:
    items = iter(expect(value, (list, tuple), "a list"))
    blocks = value.blocks if isinstance(value, BlockList) and sum(value.blocks) == len(value) else None
    writer.i32(len(value) if blocks is None else -1)
    for size in (len(value),) if blocks is None else blocks:
        if blocks is not None:
            write_var_number(writer, size)
        for _ in range(size):
            write(layout.element, writer, next(items))
    if blocks is not None:
        write_var_number(writer, 0)


@read.register
def _(layout: VarTagged, reader: Reader, tail: bool) -> Value:
    start, tag = reader.position, read_var_number(reader, 32)
    for each, name, child in layout.cases:
        if each == tag:
            return {"case": name, "value": read(child, reader, tail)}
    raise reader.error(f"{tag} is not a known tag", start)


@write.register
def _(layout: VarTagged, writer: Writer, value: Value) -> None:
    case = expect(value, dict, "a dict of case and value").get("case")
    for tag, name, child in layout.cases:
        if name == case and value.keys() == {"case", "value"}:
            write_var_number(writer, tag, 32)
            write(child, writer, value["value"])
            return
    raise ValueRangeError(f"{case!r:.80} is not one of {', '.join(name for _, name, _ in layout.cases)}")


@read.register
def _(layout: IntervalWindow, reader: Reader, tail: bool) -> Value:
    end = read(_INSTANT, reader, False)
    return {"start": end - read_var_number(reader), "end": end}


@write.register
def _(layout: IntervalWindow, writer: Writer, value: Value) -> None:
    fields = expect(value, dict, "a dict of start and end")
    if fields.keys() != {"start", "end"}:
        raise ValueRangeError(f"{value!r:.80} is not a dict of start and end")
    write(_INSTANT, writer, fields["end"])
    write_var_number(writer, fields["end"] - fields["start"])


_PANE_FIELDS = {"first", "last", "timing", "index", "on_time_index"}


@read.register
def _(layout: Pane, reader: Reader, tail: bool) -> Value:
    start, flags = reader.position, reader.u8()
    indices = flags >> 4
    if indices > 2:
        raise reader.error(f"{flags:#04x} is no pane of Beam", start)
    timing = _TIMINGS[flags >> 2 & 3]
    # If no index is stored, both indices are 0. If only `index` is stored, the on-time index of an early pane is -1,
    # and that of another pane equals `index`.
    index = read_var_number(reader) if indices else 0
    on_time = read_var_number(reader) if indices == 2 else -1 if timing == "EARLY" and indices else index
    return {
        "first": bool(flags & 1),
        "last": bool(flags & 2),
        "timing": timing,
        "index": index,
        "on_time_index": on_time,
    }


@write.register
def _(layout: Pane, writer: Writer, value: Value) -> None:
    fields = expect(value, dict, "a dict")
    if fields.keys() != _PANE_FIELDS or fields["timing"] not in _TIMINGS:
        raise ValueRangeError(f"{value!r:.80} is no pane of Beam")
    timing, index, on_time = fields["timing"], fields["index"], fields["on_time_index"]
    flags = bool(fields["first"]) | bool(fields["last"]) << 1 | _TIMINGS.index(timing) << 2
    stored: tuple[int, ...] = (index, on_time)
    if (index == 0 and on_time == 0) or timing == "UNKNOWN":
        stored = ()
    elif index == on_time or timing == "EARLY":
        stored = (index,)
    writer.u8(flags | len(stored) << 4)
    for each in stored:
        write_var_number(writer, each)


class AvroReader(Reader):
    """Reader whose methods, as far as `codecs.avro` calls them, decode Avro's own binary encoding."""

    @override
    def i32(self) -> int:
        return self._zigzag(32)

    @override
    def i64(self) -> int:
        return self._zigzag(64)

    def _zigzag(self, bits: int) -> int:
        value = read_var_number(self, bits) & ((1 << bits) - 1)
        return value >> 1 ^ -(value & 1)

    @override
    def f32(self) -> float:
        return float(_LITTLE_F32.unpack(self.take(4))[0])

    @override
    def f64(self) -> float:
        return float(_LITTLE_F64.unpack(self.take(8))[0])

    @override
    def bytes32(self) -> bytes:
        return self.take(self.i64())

    @override
    def varint(self) -> int:
        """Read the item count of a block of an Avro array or map; FormatError if negative, which Beam never writes."""
        start, count = self.position, self.i64()
        if count < 0:
            raise self.error("a block of Avro values has a size prefix, which Beam does not write", start)
        return count


class AvroWriter(Writer):
    """Writer of the encoding that `AvroReader` reads."""

    @override
    def i32(self, value: int) -> None:
        self._zigzag(value, 32)

    @override
    def i64(self, value: int) -> None:
        self._zigzag(value, 64)

    def _zigzag(self, value: int, bits: int) -> None:
        if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            raise ValueRangeError(f"{value} does not fit in {bits} bits")
        raw = value << 1 ^ value >> (bits - 1)
        write_var_number(self, raw - (1 << bits) if raw >> (bits - 1) else raw, bits)

    @override
    def f32(self, value: float) -> None:
        self.take(_LITTLE_F32.pack(value))

    @override
    def f64(self, value: float) -> None:
        self.take(_LITTLE_F64.pack(value))

    @override
    def bytes32(self, data: bytes) -> None:
        self.i64(len(data))
        self.take(data)

    @override
    def varint(self, value: int) -> None:
        self.i64(value)


@read.register
def _(layout: AvroBinary, reader: Reader, tail: bool) -> Value:
    inside = AvroReader(reader.data, reader.name, reader.position, reader.end)
    value = read_avro(inside, parse_avro_schema(layout.schema_json))
    reader.position = inside.position
    return value


@write.register
def _(layout: AvroBinary, writer: Writer, value: Value) -> None:
    inside = AvroWriter()
    write_avro(inside, parse_avro_schema(layout.schema_json), value)
    writer.take(inside.getvalue())
