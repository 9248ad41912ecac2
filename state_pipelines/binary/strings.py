"""Encodings of strings: Flink's `StringValue` and Java's modified UTF-8, one value at a time.

Flink's string is the number of UTF-16 units as a varint, then each unit as a varint; with null, the number is one more
and 0 is null. The compiled counterparts are in `codecs.kernels.strings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from state_pipelines.errors import FormatError


class StringInput(Protocol):
    """The methods of `Reader` that strings are read with."""

    data: bytes
    position: int

    @property
    def remaining(self) -> int:
        """Bytes up to the end."""
        ...

    def varint(self) -> int:
        """Unsigned varint."""
        ...

    def take(self, size: int) -> bytes:
        """The next bytes."""
        ...

    def error(self, what: str, offset: int | None = None) -> FormatError:
        """The error for malformed bytes."""
        ...


class StringOutput(Protocol):
    """The methods of `Writer` that strings are written with."""

    buffer: bytearray

    def varint(self, value: int) -> None:
        """Unsigned varint."""
        ...


def read_string(reader: StringInput) -> str | None:
    """Read a Flink string or null.

    Raises:
        FormatError: the bytes end first, or a unit is larger than 16 bits.
    """
    start = reader.position
    size = reader.varint()
    return None if size == 0 else _read_units(reader, size - 1, start)


def write_string(writer: StringOutput, text: str | None) -> None:
    """Write a Flink string or null."""
    if text is None:
        writer.varint(0)
    else:
        _write_units(writer, text, 1)


def read_plain_string(reader: StringInput) -> str:
    """Read a Flink string that cannot be null; errors as `read_string`."""
    start = reader.position
    return _read_units(reader, reader.varint(), start)


def write_plain_string(writer: StringOutput, text: str) -> None:
    """Write a Flink string that cannot be null."""
    _write_units(writer, text, 0)


def _read_units(reader: StringInput, size: int, start: int) -> str:
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


def _write_units(writer: StringOutput, text: str, extra: int) -> None:
    if text.isascii():
        writer.varint(len(text) + extra)
        writer.buffer += text.encode("ascii")
        return
    units = split_units(text)
    writer.varint(len(units) + extra)
    for unit in units:
        writer.varint(unit)


def read_modified_utf8(reader: StringInput, size: int) -> str:
    """Read modified UTF-8: U+0000 as C0 80, supplementary characters as two surrogates of three bytes each.

    Raises:
        FormatError: the bytes end first, or are something else.
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
    """The UTF-16 units of a string, u16; a lone surrogate is a unit."""
    return memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")


def java_order(text: str) -> bytes:
    """The sort key of `String.compareTo`, which compares UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")


def join_surrogates(text: str) -> str:
    """Join pairs of surrogates that were decoded one by one; lone ones stay as they are."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
