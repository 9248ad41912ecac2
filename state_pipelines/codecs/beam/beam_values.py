"""Scalar codec of the layouts of Beam's coders; `codecs.scalar.codec` reaches it by the type of the layout."""

from __future__ import annotations

import struct
from decimal import Decimal

from typing_extensions import override

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.avro.avro_records import parse_avro_schema, read_avro, write_avro
from state_pipelines.codecs.beam import beam_layouts as beam
from state_pipelines.codecs.java.big_numbers import read_number, twos_complement
from state_pipelines.codecs.kernels.opcodes import MAX_EMPTY_ITEMS
from state_pipelines.codecs.scalar.collections import read_items
from state_pipelines.codecs.scalar.dispatch import read, write
from state_pipelines.codecs.scalar.leaves import Value, expect
from state_pipelines.codecs.sql.binary_rows import scaled
from state_pipelines.errors import ValueRangeError

_TIMINGS = ("EARLY", "ON_TIME", "LATE", "UNKNOWN")
_LITTLE_F32, _LITTLE_F64 = struct.Struct("<f"), struct.Struct("<d")


class BlockList(list[Value]):
    """Elements of an iterable of unknown size, which were written in blocks.

    Attributes:
        blocks: the number of elements of each.
    """

    def __init__(self, items: list[Value], blocks: tuple[int, ...]) -> None:
        super().__init__(items)
        self.blocks = blocks


def read_var_number(reader: Reader, bits: int = 64) -> int:
    """Read a number as 7-bit groups, low group first (`VarInt.decodeLong`, `VarInt.decodeInt`).

    Raises:
        FormatError: it has more bits than that.
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
    """Write what `read_var_number` reads.

    Raises:
        ValueRangeError: the number has more bits than that.
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
def _(layout: beam.VarNumber, reader: Reader, tail: bool) -> Value:
    return read_var_number(reader, layout.bits)


@write.register
def _(layout: beam.VarNumber, writer: Writer, value: Value) -> None:
    write_var_number(writer, expect(value, int, "a whole number"), layout.bits)


@read.register
def _(layout: beam.VarSized, reader: Reader, tail: bool) -> Value:
    raw, end = _read_sized(reader), reader.position
    if not layout.text:
        return raw
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise reader.error(f"a string is not UTF-8: {error.reason}", end - len(raw) + error.start) from None


@write.register
def _(layout: beam.VarSized, writer: Writer, value: Value) -> None:
    if not layout.text:
        _write_sized(writer, expect(value, bytes, "bytes"))
        return
    try:
        _write_sized(writer, expect(value, str, "text").encode("utf-8"))
    except UnicodeEncodeError:
        raise ValueRangeError(f"{value!r:.80} holds half of a surrogate pair, for which UTF-8 has no form") from None


@read.register
def _(layout: beam.VarFramed, reader: Reader, tail: bool) -> Value:
    size = read_var_number(reader, 32)
    start = reader.position
    reader.skip(size)
    inside = Reader(reader.data, reader.name, start, start + size)
    value = read(layout.inner, inside, True)
    inside.expect_end("the value")
    return value


@write.register
def _(layout: beam.VarFramed, writer: Writer, value: Value) -> None:
    inside = Writer()
    write(layout.inner, inside, value)
    _write_sized(writer, inside.getvalue())


@read.register
def _(layout: beam.VarInteger, reader: Reader, tail: bool) -> Value:
    return read_number(reader, read_var_number(reader, 32))


@write.register
def _(layout: beam.VarInteger, writer: Writer, value: Value) -> None:
    _write_sized(writer, twos_complement(expect(value, int, "a whole number")))


@read.register
def _(layout: beam.VarDecimal, reader: Reader, tail: bool) -> Value:
    scale = read_var_number(reader, 32)
    return scaled(read_number(reader, read_var_number(reader, 32)), scale)


@write.register
def _(layout: beam.VarDecimal, writer: Writer, value: Value) -> None:
    sign, digits, exponent = expect(value, Decimal, "a decimal number").as_tuple()
    if not isinstance(exponent, int):
        raise ValueRangeError(f"{value} is not a finite number")
    write_var_number(writer, -exponent, 32)
    _write_sized(writer, twos_complement(int(Decimal((sign, digits, 0)))))


@read.register
def _(layout: beam.Counted, reader: Reader, tail: bool) -> Value:
    start, count = reader.position, reader.i32()
    if count >= 0:
        return _read_elements(layout, reader, _checked(reader, count, start))
    if count != -1:
        raise reader.error(f"{count} is no number of elements", start)
    blocks: list[int] = []
    items: list[Value] = []
    while size := read_var_number(reader):
        items += _read_elements(layout, reader, _checked(reader, size, start))
        blocks.append(size)
    return BlockList(items, tuple(blocks))


def _checked(reader: Reader, count: int, start: int) -> int:
    if not 0 <= count <= max(reader.remaining, MAX_EMPTY_ITEMS):
        raise reader.error(f"a count of {count} does not fit in the {reader.remaining} bytes left", start)
    return count


def _read_elements(layout: beam.Counted, reader: Reader, count: int) -> list[Value]:
    return read_items(layout.element, reader, count)


@write.register
def _(layout: beam.Counted, writer: Writer, value: Value) -> None:
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
def _(layout: beam.VarTagged, reader: Reader, tail: bool) -> Value:
    start, tag = reader.position, read_var_number(reader, 32)
    for each, name, child in layout.cases:
        if each == tag:
            return {"case": name, "value": read(child, reader, tail)}
    raise reader.error(f"{tag} is not a known tag", start)


@write.register
def _(layout: beam.VarTagged, writer: Writer, value: Value) -> None:
    case = expect(value, dict, "a dict of case and value").get("case")
    for tag, name, child in layout.cases:
        if name == case and value.keys() == {"case", "value"}:
            write_var_number(writer, tag, 32)
            write(child, writer, value["value"])
            return
    raise ValueRangeError(f"{case!r:.80} is not one of {', '.join(name for _, name, _ in layout.cases)}")


_INSTANT = lay.Logical(lay.LogicalKind.ORDERED_I64)


@read.register
def _(layout: beam.IntervalWindow, reader: Reader, tail: bool) -> Value:
    end = read(_INSTANT, reader, False)
    return {"start": end - read_var_number(reader), "end": end}


@write.register
def _(layout: beam.IntervalWindow, writer: Writer, value: Value) -> None:
    fields = expect(value, dict, "a dict of start and end")
    if fields.keys() != {"start", "end"}:
        raise ValueRangeError(f"{value!r:.80} is not a dict of start and end")
    write(_INSTANT, writer, fields["end"])
    write_var_number(writer, fields["end"] - fields["start"])


_PANE_FIELDS = {"first", "last", "timing", "index", "on_time_index"}


@read.register
def _(layout: beam.Pane, reader: Reader, tail: bool) -> Value:
    start, flags = reader.position, reader.u8()
    indices = flags >> 4
    if indices > 2:
        raise reader.error(f"{flags:#04x} is no pane of Beam", start)
    timing = _TIMINGS[flags >> 2 & 3]
    # Without indices they are 0; that of the panes on time is -1 for early panes, and equal unless stored.
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
def _(layout: beam.Pane, writer: Writer, value: Value) -> None:
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
    """Reads the primitives of Avro's binary encoding under the names that `codecs.avro.avro_records` calls them by."""

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
        """Return the count of a block; a negative one is followed by the size of the block in bytes."""
        start, count = self.position, self.i64()
        if count < 0:
            raise self.error("a block of Avro values has a size prefix, which Beam does not write", start)
        return count


class AvroWriter(Writer):
    """Mirror of `AvroReader`."""

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
def _(layout: beam.AvroBinary, reader: Reader, tail: bool) -> Value:
    inside = AvroReader(reader.data, reader.name, reader.position, reader.end)
    value = read_avro(inside, parse_avro_schema(layout.schema_json))
    reader.position = inside.position
    return value


@write.register
def _(layout: beam.AvroBinary, writer: Writer, value: Value) -> None:
    inside = AvroWriter()
    write_avro(inside, parse_avro_schema(layout.schema_json), value)
    writer.take(inside.getvalue())
