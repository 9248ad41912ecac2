"""Writing Java `DataOutput` encodings: the mirror of `reader` (`java.io.DataOutput`, `DataOutputView`)."""

from __future__ import annotations

import struct

from state_pipelines.binary.strings import encode_modified_utf8, write_plain_string, write_string
from state_pipelines.errors import ValueRangeError

_I16 = struct.Struct(">h")
_U16 = struct.Struct(">H")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_F32 = struct.Struct(">f")
_F64 = struct.Struct(">d")


class Writer:
    """Collects bytes; each method is the mirror of the method of `Reader` with the same name.

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
        """IEEE-754 single."""
        self._pack(_F32, value)

    def f64(self, value: float) -> None:
        """IEEE-754 double."""
        self._pack(_F64, value)

    def bytes32(self, data: bytes) -> None:
        """Write an i32 length, then the bytes."""
        self.i32(len(data))
        self.buffer += data

    def varint(self, value: int) -> None:
        """Write unsigned varint of 7-bit groups, low group first, at most 32 bits."""
        if not 0 <= value <= 0xFFFFFFFF:
            raise ValueRangeError(f"{value!r} does not fit in an unsigned 32-bit varint")
        while value > 0x7F:
            self.buffer.append(value & 0x7F | 0x80)
            value >>= 7
        self.buffer.append(value)

    def utf(self, text: str) -> None:
        """Java modified UTF-8 with a u16 length (`DataOutput.writeUTF`)."""
        raw = encode_modified_utf8(text)
        if len(raw) > 0xFFFF:
            raise ValueRangeError(f"a string of {len(raw)} bytes is too long for writeUTF (65535)")
        self.u16(len(raw))
        self.buffer += raw

    def long_utf(self, text: str) -> None:
        """Modified UTF-8 with an i64 length."""
        raw = encode_modified_utf8(text)
        self.i64(len(raw))
        self.buffer += raw

    def vstr(self, text: str | None) -> None:
        """Flink string or null (`StringValue.writeString`); see `binary.strings`."""
        write_string(self, text)

    def vstr_plain(self, text: str) -> None:
        """Flink string without null (`StringValue.write`)."""
        write_plain_string(self, text)
