"""Java's `DataInput` and `DataOutput` encodings, and Flink's of strings, one value at a time.

Source: `java.io.DataInput`, `org.apache.flink.core.memory.DataInputView`, `DataOutputView`,
`org.apache.flink.types.StringValue`.
"""

from __future__ import annotations

import struct

from state_pipelines.errors import FormatError, ValueRangeError, Where


def read_string(reader: Reader) -> str | None:
    """Read a Flink string or null.

    Raises:
        FormatError: the bytes end first, or a unit is larger than 16 bits.
    """
    start = reader.position
    size = reader.varint()
    return None if size == 0 else _read_units(reader, size - 1, start)


def write_string(writer: Writer, text: str | None) -> None:
    """Write a Flink string or null."""
    if text is None:
        writer.varint(0)
    else:
        _write_units(writer, text, 1)


def read_plain_string(reader: Reader) -> str:
    """Read a Flink string that cannot be null; errors as for `read_string`."""
    start = reader.position
    return _read_units(reader, reader.varint(), start)


def write_plain_string(writer: Writer, text: str) -> None:
    """Write a Flink string that cannot be null."""
    _write_units(writer, text, 0)


def _read_units(reader: Reader, size: int, start: int) -> str:
    if size > reader.remaining:
        raise reader.error(f"a string of {size} characters does not fit in the {reader.remaining} bytes left", start)
    head = bytes(reader.data[reader.position : reader.position + size])
    if head.isascii():
        reader.position += size
        return str(head, "ascii")
    units = bytearray()
    for _ in range(size):
        at = reader.position
        unit = reader.varint()
        if unit > 0xFFFF:
            raise reader.error(f"{unit:#x} is not a UTF-16 unit", at)
        units += unit.to_bytes(2, "little")
    return units.decode("utf-16-le", "surrogatepass")


def _write_units(writer: Writer, text: str, extra: int) -> None:
    if text.isascii():
        writer.varint(len(text) + extra)
        writer.buffer += text.encode("ascii")
        return
    units = split_units(text)
    writer.varint(len(units) + extra)
    for unit in units:
        writer.varint(unit)


def read_modified_utf8(reader: Reader, size: int) -> str:
    """Read modified UTF-8: U+0000 as C0 80, supplementary characters as two surrogates of three bytes each.

    Raises:
        FormatError: the bytes end first, or are not modified UTF-8.
    """
    start = reader.position
    raw = reader.take(size)
    if raw.isascii() and b"\0" not in raw:
        return raw.decode("ascii")
    try:
        text = raw.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise reader.error(f"not modified UTF-8: {error.reason}", start + error.start) from None
    return join_surrogates(text)


def encode_modified_utf8(text: str) -> bytes:
    """Encode a string in modified UTF-8; see `read_modified_utf8`."""
    if text.isascii():
        return text.encode("ascii").replace(b"\0", b"\xc0\x80")
    split = "".join(map(chr, split_units(text)))
    return split.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


def split_units(text: str) -> memoryview:
    """Return the UTF-16 units of a string (u16); a lone surrogate is a unit."""
    return memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")


def java_order(text: str) -> bytes:
    """Return a sort key with the order of `String.compareTo`, which compares UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")


def join_surrogates(text: str) -> str:
    """Join surrogate pairs that were decoded as two characters; lone surrogates stay as they are."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


_I16 = struct.Struct(">h")
_F32 = struct.Struct(">f")
_F64 = struct.Struct(">d")
_unpack_u16 = struct.Struct(">H").unpack_from
_unpack_i32 = struct.Struct(">i").unpack_from
_unpack_i64 = struct.Struct(">q").unpack_from
_LITTLE_I32 = struct.Struct("<i")
_LITTLE_I64 = struct.Struct("<q")


class Reader:
    """A cursor over bytes; every read checks its bounds and moves on.

    Integers are big-endian unless noted otherwise.

    Args:
        data: the bytes.
        name: file or handle name, for errors.
        position: offset at which reading starts.
        end: end of the readable range (default: the end of `data`).

    Raises:
        FormatError: from every method, when the bytes end early or are not a valid encoding.
    """

    __slots__ = ("data", "end", "name", "position")

    def __init__(self, data: bytes, name: str | None = None, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.name = name
        self.position = position
        self.end = len(data) if end is None else end

    @property
    def remaining(self) -> int:
        """Bytes between the cursor and the end."""
        return self.end - self.position

    def error(self, what: str, offset: int | None = None, hint: str = "") -> FormatError:
        """Make a `FormatError` at `offset` (default: the cursor), for the caller to raise."""
        where = Where(file=self.name, offset=self.position if offset is None else offset)
        return FormatError(what, where=where, hint=hint)

    # `u8`, `u16`, `i32`, `i64` and `take` are called most often, so they repeat the code of this method: a call costs
    # time.
    def _advance(self, size: int) -> int:
        start = self.position
        if size < 0:
            raise self.error(f"a length of {size} is negative")
        if start + size > self.end:
            raise self.error(f"{size} bytes expected but only {self.end - start} are left")
        self.position = start + size
        return start

    def take(self, size: int) -> bytes:
        """Read the next `size` bytes."""
        start = self.position
        stop = start + size
        if not start <= stop <= self.end:
            self._advance(size)
        self.position = stop
        return bytes(self.data[start:stop])

    def skip(self, size: int) -> None:
        """Move over `size` bytes."""
        self._advance(size)

    def peek(self) -> int:
        """Read the next byte, unsigned, without moving."""
        if self.position >= self.end:
            raise self.error("1 byte expected but none is left")
        return self.data[self.position]

    def u8(self) -> int:
        """Read one unsigned byte."""
        start = self.position
        if start >= self.end:
            self._advance(1)
        self.position = start + 1
        return self.data[start]

    def i8(self) -> int:
        """Read one signed byte."""
        value = self.data[self._advance(1)]
        return value - 256 if value > 127 else value

    def bool(self) -> bool:
        """Read one byte; anything but 0 is true, as in `DataInputStream.readBoolean`."""
        return self.u8() != 0

    def i16(self) -> int:
        """Read signed 16 bits."""
        return int(_I16.unpack_from(self.data, self._advance(2))[0])

    def u16(self) -> int:
        """Read unsigned 16 bits; also a Java `char`."""
        start = self.position
        if start + 2 > self.end:
            self._advance(2)
        self.position = start + 2
        value: int = _unpack_u16(self.data, start)[0]
        return value

    def i32(self) -> int:
        """Read signed 32 bits."""
        start = self.position
        if start + 4 > self.end:
            self._advance(4)
        self.position = start + 4
        value: int = _unpack_i32(self.data, start)[0]
        return value

    def i64(self) -> int:
        """Read signed 64 bits."""
        start = self.position
        if start + 8 > self.end:
            self._advance(8)
        self.position = start + 8
        value: int = _unpack_i64(self.data, start)[0]
        return value

    def f32(self) -> float:
        """Read an IEEE-754 single."""
        return float(_F32.unpack_from(self.data, self._advance(4))[0])

    def f64(self) -> float:
        """Read an IEEE-754 double."""
        return float(_F64.unpack_from(self.data, self._advance(8))[0])

    def count(self, minimum: int = 1) -> int:
        """Read an i32 count of items; FormatError if the bytes left cannot hold so many items of `minimum` bytes."""
        start = self.position
        value = self.i32()
        if value < 0 or value * minimum > self.remaining:
            raise self.error(f"a count of {value} does not fit in the {self.remaining} bytes left", start)
        return value

    def bytes32(self) -> bytes:
        """Read an i32 length, then that many bytes."""
        return self.take(self.i32())

    def varint(self) -> int:
        """Read an unsigned varint of at most 32 bits: 7-bit groups, low group first (Flink strings, Avro, Kryo)."""
        start = self.position
        value = shift = 0
        while True:
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFF
            shift += 7
            if shift > 28:
                last = self.u8()
                if last > 0x7F:
                    raise self.error("a varint is longer than 5 bytes", start)
                return (value | last << shift) & 0xFFFFFFFF

    def utf(self) -> str:
        """Read modified UTF-8 with a u16 length (`DataInput.readUTF`); lone surrogates stay lone surrogates."""
        return read_modified_utf8(self, self.u16())

    def long_utf(self) -> str:
        """Read modified UTF-8 with an i64 length (`TC_LONGSTRING` of Java serialization)."""
        return read_modified_utf8(self, self.i64())

    def vstr(self) -> str | None:
        """Read a Flink string or null (`StringValue.readString`); see `binary.data_views`."""
        return read_string(self)

    def vstr_plain(self) -> str:
        """Read a Flink string that cannot be null (`StringValue.read`)."""
        return read_plain_string(self)

    def little_i32(self) -> int:
        """Read a little-endian i32, as serializers that go through a `ByteBuffer` write it."""
        return int(_LITTLE_I32.unpack(self.take(4))[0])

    def little_i64(self) -> int:
        """Read a little-endian i64."""
        return int(_LITTLE_I64.unpack(self.take(8))[0])

    def little_text(self, size: int | None = None) -> str:
        """Read UTF-8 text after a little-endian i32 length, or of `size` bytes if that is given."""
        size = self.little_i32() if size is None else size
        start = self.position
        raw = self.take(size)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"not UTF-8: {error.reason}", start + error.start) from None

    def expect_end(self, what: str) -> None:
        """Raise FormatError if bytes are left after `what`."""
        if self.remaining:
            raise self.error(f"{self.remaining} bytes are left over after {what}")


_U16 = struct.Struct(">H")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


class Writer:
    """Collects bytes; each method writes what the method of `Reader` with the same name reads.

    Raises:
        ValueRangeError: from every method, when a value does not fit its encoding.
    """

    __slots__ = ("buffer",)

    def __init__(self) -> None:
        self.buffer = bytearray()

    def __len__(self) -> int:
        return len(self.buffer)

    def getvalue(self) -> bytes:
        """Return all bytes written so far."""
        return bytes(self.buffer)

    def _pack(self, layout: struct.Struct, value: float) -> None:
        try:
            self.buffer += layout.pack(value)
        except (struct.error, OverflowError, TypeError):
            raise ValueRangeError(f"{value!r} does not fit in {layout.size} bytes") from None

    def take(self, data: bytes) -> None:
        """Write bytes unchanged."""
        self.buffer += data

    def u8(self, value: int) -> None:
        """Write one unsigned byte."""
        if not 0 <= value <= 0xFF:
            raise ValueRangeError(f"{value!r} does not fit in an unsigned byte")
        self.buffer.append(value)

    def i8(self, value: int) -> None:
        """Write one signed byte."""
        if not -128 <= value <= 127:
            raise ValueRangeError(f"{value!r} does not fit in a byte")
        self.buffer.append(value & 0xFF)

    def bool(self, value: bool) -> None:
        """Write one byte, 0 or 1."""
        self.buffer.append(1 if value else 0)

    def i16(self, value: int) -> None:
        """Write signed 16 bits."""
        self._pack(_I16, value)

    def u16(self, value: int) -> None:
        """Write unsigned 16 bits; also a Java `char`."""
        self._pack(_U16, value)

    def i32(self, value: int) -> None:
        """Write signed 32 bits."""
        self._pack(_I32, value)

    def i64(self, value: int) -> None:
        """Write signed 64 bits."""
        self._pack(_I64, value)

    def f32(self, value: float) -> None:
        """Write an IEEE-754 single."""
        self._pack(_F32, value)

    def f64(self, value: float) -> None:
        """Write an IEEE-754 double."""
        self._pack(_F64, value)

    def bytes32(self, data: bytes) -> None:
        """Write an i32 length, then the bytes."""
        self.i32(len(data))
        self.buffer += data

    def varint(self, value: int) -> None:
        """Write an unsigned varint of 7-bit groups, low group first, at most 32 bits."""
        if not 0 <= value <= 0xFFFFFFFF:
            raise ValueRangeError(f"{value!r} does not fit in an unsigned 32-bit varint")
        while value > 0x7F:
            self.buffer.append(value & 0x7F | 0x80)
            value >>= 7
        self.buffer.append(value)

    def utf(self, text: str) -> None:
        """Write modified UTF-8 with a u16 length (`DataOutput.writeUTF`)."""
        raw = encode_modified_utf8(text)
        if len(raw) > 0xFFFF:
            raise ValueRangeError(f"a string of {len(raw)} bytes is too long for writeUTF (65535)")
        self.u16(len(raw))
        self.buffer += raw

    def long_utf(self, text: str) -> None:
        """Write modified UTF-8 with an i64 length."""
        raw = encode_modified_utf8(text)
        self.i64(len(raw))
        self.buffer += raw

    def vstr(self, text: str | None) -> None:
        """Write a Flink string or null (`StringValue.writeString`); see `binary.data_views`."""
        write_string(self, text)

    def vstr_plain(self, text: str) -> None:
        """Write a Flink string that cannot be null (`StringValue.write`)."""
        write_plain_string(self, text)

    def little_i32(self, value: int) -> None:
        """Write a little-endian i32."""
        self.take(_LITTLE_I32.pack(value))

    def little_i64(self, value: int) -> None:
        """Write a little-endian i64."""
        self.take(_LITTLE_I64.pack(value))

    def little_text(self, text: str) -> None:
        """Write UTF-8 text after a little-endian i32 length."""
        raw = text.encode()
        self.little_i32(len(raw))
        self.take(raw)
