"""Reading Java encodings from memory (`java.io.DataInput`, `org.apache.flink.core.memory.DataInputView`)."""

from __future__ import annotations

import struct

from state_pipelines.binary.strings import read_modified_utf8, read_plain_string, read_string
from state_pipelines.errors import FormatError, Where

_I16 = struct.Struct(">h")
_F32 = struct.Struct(">f")
_F64 = struct.Struct(">d")
_unpack_u16 = struct.Struct(">H").unpack_from
_unpack_i32 = struct.Struct(">i").unpack_from
_unpack_i64 = struct.Struct(">q").unpack_from


class Reader:
    """A cursor over bytes; every read checks its bounds and moves on.

    Integers are big-endian unless noted otherwise.

    Args:
        data: the bytes.
        name: file or handle name, for errors.
        position: where to start.
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

    # `u8`, `u16`, `i32`, `i64` and `take`, of which most of reading consists, do as `_advance` does without a call.
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
        """IEEE-754 single."""
        return float(_F32.unpack_from(self.data, self._advance(4))[0])

    def f64(self) -> float:
        """IEEE-754 double."""
        return float(_F64.unpack_from(self.data, self._advance(8))[0])

    def count(self, minimum: int = 1) -> int:
        """Read an i32 count of items of at least `minimum` bytes each; refuse a count that cannot fit."""
        start = self.position
        value = self.i32()
        if value < 0 or value * minimum > self.remaining:
            raise self.error(f"a count of {value} does not fit in the {self.remaining} bytes left", start)
        return value

    def bytes32(self) -> bytes:
        """Read an i32 length, then that many bytes."""
        return self.take(self.i32())

    def varint(self) -> int:
        """Read unsigned varint of 7-bit groups, low group first, at most 32 bits (Flink strings, Avro blocks, Kryo)."""
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
        """Java modified UTF-8 with a u16 length (`DataInput.readUTF`); lone surrogates stay lone surrogates."""
        return read_modified_utf8(self, self.u16())

    def long_utf(self) -> str:
        """Modified UTF-8 with an i64 length (`TC_LONGSTRING` of Java serialization)."""
        return read_modified_utf8(self, self.i64())

    def vstr(self) -> str | None:
        """Flink string or null (`StringValue.readString`); see `binary.strings`."""
        return read_string(self)

    def vstr_plain(self) -> str:
        """Flink string without null (`StringValue.read`)."""
        return read_plain_string(self)

    def expect_end(self, what: str) -> None:
        """Fail when bytes are left over."""
        if self.remaining:
            raise self.error(f"{self.remaining} bytes are left over after {what}")
