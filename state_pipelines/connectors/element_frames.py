"""Frames around connector data: a version, mostly a length, then the bytes of the connector's serializer.

Sources and sinks hand Flink bytes and the version of the serializer that made them.
Source: `SimpleVersionedSerialization`, `SimpleVersionedListState`, `SerdeUtils`.
"""

from __future__ import annotations

import struct
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.errors import FormatError, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Value = TypeVar("Value")

_LITTLE_I32 = struct.Struct("<i")
_LITTLE_I64 = struct.Struct("<q")
_TAKE_NEWER = "Install a newer release of this package, or read the state as raw bytes"


@dataclass(frozen=True)
class Versioned:
    """Bytes of a `SimpleVersionedSerializer`.

    Attributes:
        version: of the serializer (`getVersion`).
        data: the bytes of the serializer.
        has_length: the frame holds the length too; only arrays of old releases do without.
    """

    version: int
    data: bytes = field(repr=False)
    has_length: bool = True

    def reader(self) -> Reader:
        """Read a cursor over the bytes."""
        return Reader(self.data)

    def expect(self, what: str, *versions: int) -> None:
        """Refuse a version that is not among `versions`.

        Raises:
            UnsupportedVersionError: the version is another one.
        """
        if self.version not in versions:
            known = ", ".join(map(str, versions))
            raise UnsupportedVersionError(
                f"version {self.version} of {what} is not supported (supported: {known})", hint=_TAKE_NEWER
            )

    @contextmanager
    def open(self, what: str, *versions: int) -> Iterator[Reader]:
        """Give a cursor over bytes of one of some versions, which must be at their end after the block.

        Raises:
            UnsupportedVersionError: the version is another one.
            FormatError: bytes are left after the block.
        """
        self.expect(what, *versions)
        reader = self.reader()
        yield reader
        reader.expect_end(what)


def read_versioned(reader: Reader) -> Versioned:
    """Read i32 version, i32 length and the bytes (`writeVersionAndSerialize` into a stream).

    Raises:
        FormatError: the length does not fit.
    """
    return Versioned(reader.i32(), reader.bytes32())


def write_versioned(writer: Writer, value: Versioned) -> None:
    """Write what `read_versioned` reads."""
    writer.i32(value.version)
    writer.bytes32(value.data)


def read_versioned_array(data: bytes) -> Versioned:
    """Read a whole array: version, length and bytes, or, as old releases wrote it, version and bytes.

    A second i32 equal to the number of bytes after it is the length.

    Raises:
        FormatError: there is not even a version.
    """
    reader = Reader(data)
    version = reader.i32()
    if reader.remaining >= 4 and int.from_bytes(data[4:8], "big", signed=True) == len(data) - 8:
        return Versioned(version, data[8:])
    return Versioned(version, data[4:], has_length=False)


def write_versioned_array(value: Versioned) -> bytes:
    """Write what `read_versioned_array` reads."""
    writer = Writer()
    if value.has_length:
        write_versioned(writer, value)
    else:
        writer.i32(value.version)
        writer.take(value.data)
    return writer.getvalue()


def read_versioned_list(reader: Reader) -> tuple[int, tuple[Versioned, ...]]:
    """Read i32 version, i32 count, then i32 length and bytes of each (`writeVersionAndSerializeList`).

    Returns:
        (the version, the elements); the version is that of every element.

    Raises:
        FormatError: count or a length does not fit.
    """
    version = reader.i32()
    return version, tuple(Versioned(version, reader.bytes32()) for _ in range(reader.count(4)))


def write_versioned_list(writer: Writer, version: int, elements: Sequence[bytes]) -> None:
    """Write what `read_versioned_list` reads."""
    writer.i32(version)
    writer.i32(len(elements))
    for element in elements:
        writer.bytes32(element)


def expect_magic(reader: Reader, magic: int, what: str) -> None:
    """Read an i32 that must be `magic`.

    Raises:
        FormatError: it is another one.
    """
    start = reader.position
    found = reader.i32() & 0xFFFFFFFF
    if found != magic:
        raise reader.error(f"{what} begins with {magic:#010x}, not {found:#010x}", start)


def write_magic(writer: Writer, magic: int) -> None:
    """Mirror of `expect_magic`."""
    writer.take(magic.to_bytes(4, "big"))


def write_little_magic(writer: Writer, magic: int) -> None:
    """Write a magic number little-endian; `read_little_i32` reads it with the sign of an i32."""
    writer.take(magic.to_bytes(4, "little"))


def read_little_i32(reader: Reader) -> int:
    """Read a little-endian i32, as serializers that go through a `ByteBuffer` write it."""
    return int(_LITTLE_I32.unpack(reader.take(4))[0])


def read_little_i64(reader: Reader) -> int:
    """Read a little-endian i64."""
    return int(_LITTLE_I64.unpack(reader.take(8))[0])


def read_little_text(reader: Reader, size: int | None = None) -> str:
    """UTF-8, after a little-endian i32 length unless `size` is given.

    Raises:
        FormatError: not UTF-8.
    """
    size = read_little_i32(reader) if size is None else size
    start = reader.position
    raw = reader.take(size)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise reader.error(f"not UTF-8: {error.reason}", start + error.start) from None


def write_little_i32(writer: Writer, value: int) -> None:
    """Write what `read_little_i32` reads."""
    writer.take(_LITTLE_I32.pack(value))


def write_little_i64(writer: Writer, value: int) -> None:
    """Write what `read_little_i64` reads."""
    writer.take(_LITTLE_I64.pack(value))


def write_little_text(writer: Writer, text: str) -> None:
    """Write what `read_little_text` reads with a length."""
    raw = text.encode()
    write_little_i32(writer, len(raw))
    writer.take(raw)


def read_flag(reader: Reader) -> bool:
    """Read a boolean that must be 0 or 1; anything else is a sign that the bytes are something else.

    Raises:
        FormatError: another byte.
    """
    start = reader.position
    value = reader.u8()
    if value > 1:
        raise reader.error(f"{value} is not a boolean", start)
    return value == 1


def write_optional(writer: Writer, value: Value | None, write: Callable[[Value], None]) -> None:
    """Write whether there is a value (the mirror of `read_flag`), and the value with a method of the writer."""
    writer.bool(value is not None)
    if value is not None:
        write(value)


def require(reader: Reader, condition: bool, what: str) -> None:
    """Refuse a value that the connector could not have written.

    Raises:
        FormatError: the condition is false; `what` is the message.
    """
    if not condition:
        raise reader.error(what)


def check_name(text: str | None, what: str) -> str:
    """Return a text that is there and has no control characters.

    Raises:
        FormatError: it is not, or has.
    """
    if not text or not text.isprintable():
        raise FormatError(f"{what} {text!r:.80} is not one")
    return text
