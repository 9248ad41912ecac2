"""Kryo's primitive encodings: varints, zig-zag numbers, strings, fixed-width numbers of either byte order.

Source: `com.esotericsoftware.kryo.io.Input` and `Output`, of Kryo 2.24 (Flink 1.x) and Kryo 5 (Flink 2.x).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Literal, TypeAlias

from state_pipelines.binary.data_views import join_surrogates, split_units
from state_pipelines.errors import ValueRangeError

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader, Writer

Version: TypeAlias = Literal[2, 5]
"""Release line of Kryo: 2 (2.24, up to Flink 1.20) or 5 (from Flink 2.0)."""

_SHORT_ASCII = {2: 63, 5: 32}
"""Longest string that is written as plain ASCII with a mark on its last byte."""
_FIXED = {kind: (struct.Struct(">" + kind), struct.Struct("<" + kind)) for kind in "hHiqfdQ"}
_LONG = 1 << 64


def read_varlong(reader: Reader) -> int:
    """Read unsigned 64 bits in at most nine bytes: eight groups of 7 bits, low group first, then a whole byte."""
    value = 0
    for shift in range(0, 56, 7):
        byte = reader.u8()
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
    return value | reader.u8() << 56


def write_varlong(writer: Writer, value: int) -> None:
    """Write what `read_varlong` reads; negative numbers go as their two's complement."""
    value &= _LONG - 1
    for _ in range(8):
        if value < 0x80:
            break
        writer.u8(value & 0x7F | 0x80)
        value >>= 7
    writer.u8(value)


def read_positive_long(reader: Reader) -> int:
    """Read a signed 64-bit number whose encoding favours positive ones (`readLong(true)`)."""
    return signed(read_varlong(reader), 64)


def read_positive_int(reader: Reader) -> int:
    """Read a signed 32-bit number whose encoding favours positive ones (`readInt(true)`)."""
    return signed(reader.varint(), 32)


def write_positive_int(writer: Writer, value: int) -> None:
    """Write what `read_positive_int` reads."""
    _check(value, 32)
    writer.varint(value & 0xFFFFFFFF)


def read_int(reader: Reader) -> int:
    """Read a signed 32-bit number as a zig-zag varint."""
    return _unzigzag(reader.varint())


def write_int(writer: Writer, value: int) -> None:
    """Write what `read_int` reads."""
    _check(value, 32)
    writer.varint((value << 1 ^ value >> 31) & 0xFFFFFFFF)


def read_long(reader: Reader) -> int:
    """Read a signed 64-bit number as a zig-zag varint."""
    return _unzigzag(read_varlong(reader))


def write_long(writer: Writer, value: int) -> None:
    """Write what `read_long` reads."""
    _check(value, 64)
    write_varlong(writer, value << 1 ^ value >> 63)


def write_positive_long(writer: Writer, value: int) -> None:
    """Write what `read_positive_long` reads."""
    _check(value, 64)
    write_varlong(writer, value)


def read_fixed(reader: Reader, kind: str, version: Version) -> int | float:
    """Read a fixed-width number (`struct` code): big-endian in Kryo 2, little-endian in Kryo 5."""
    layout = _FIXED[kind][version == 5]
    value: int | float = layout.unpack(reader.take(layout.size))[0]
    return value


def write_fixed(writer: Writer, kind: str, value: object, version: Version) -> None:
    """Write what `read_fixed` reads."""
    layout = _FIXED[kind][version == 5]
    try:
        writer.take(layout.pack(value))
    except (struct.error, OverflowError):
        raise ValueRangeError(f"{value!r} does not fit in {layout.size} bytes") from None


def read_flagged(reader: Reader) -> tuple[bool, int]:
    """Read a flag in bit 7, then an unsigned number: 6 bits and a mark for more, then a varint (`readVarIntFlag`)."""
    first = reader.u8()
    value = first & 0x3F
    if first & 0x40:
        value |= reader.varint() << 6
    return first > 0x7F, value & 0xFFFFFFFF


def write_flagged(writer: Writer, flag: bool, value: int) -> None:
    """Write what `read_flagged` reads."""
    first = value & 0x3F | flag << 7
    if value > 0x3F:
        writer.u8(first | 0x40)
        writer.varint(value >> 6)
    else:
        writer.u8(first)


def read_string(reader: Reader) -> str | None:
    """Read a string or null: a marked length and UTF-16 units of 1 to 3 bytes, or ASCII with a marked last byte."""
    start = reader.position
    if reader.peek() < 0x80:
        end = start
        while end < reader.end and reader.data[end] < 0x80:
            end += 1
        raw = reader.take(end + 1 - start)
        return raw[:-1].decode("ascii") + chr(raw[-1] & 0x7F)
    _, size = read_flagged(reader)
    if size == 0:
        return None
    if size - 1 > reader.remaining:
        raise reader.error(f"a string of {size - 1} characters does not fit in {reader.remaining} bytes", start)
    return _read_units(reader, size - 1)


def _read_units(reader: Reader, size: int) -> str:
    head = bytes(reader.data[reader.position : reader.position + size])
    if head.isascii():
        reader.skip(size)
        return head.decode("ascii")
    units = []
    for _ in range(size):
        start = reader.position
        first = reader.u8()
        if first < 0x80:
            unit = first
        elif first >> 5 == 0b110:
            unit = (first & 0x1F) << 6 | reader.u8() & 0x3F
        elif first >> 4 == 0b1110:
            unit = (first & 0x0F) << 12 | (reader.u8() & 0x3F) << 6 | reader.u8() & 0x3F
        else:
            raise reader.error(f"{first:#04x} does not begin a character of a Kryo string", start)
        units.append(chr(unit))
    return join_surrogates("".join(units))


def write_string(
    writer: Writer, text: str | None, version: Version, *, short: bool = True, any_length: bool = False
) -> None:
    """Write what `read_string` reads; `short` allows the marked ASCII form, `any_length` for long texts too."""
    if text is None:
        writer.u8(0x80)
        return
    if short and len(text) > 1 and (any_length or len(text) <= _SHORT_ASCII[version]) and text.isascii():
        writer.take(text[:-1].encode("ascii"))
        writer.u8(ord(text[-1]) | 0x80)
        return
    units = split_units(text)
    write_flagged(writer, True, len(units) + 1)
    split = "".join(map(chr, units))
    writer.take(split.encode("utf-8", "surrogatepass"))


def signed(value: int, bits: int) -> int:
    """Return an unsigned number of `bits` bits read as two's complement."""
    return value - (1 << bits) if value >> (bits - 1) else value


def _unzigzag(value: int) -> int:
    return value >> 1 ^ -(value & 1)


def _check(value: int, bits: int) -> None:
    sign = value >> (bits - 1)
    if sign not in (0, -1):
        raise ValueRangeError(f"{value!r} does not fit in {bits} bits")
