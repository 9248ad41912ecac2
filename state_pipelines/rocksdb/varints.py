"""Scalar reading of RocksDB's encodings: varints and length-prefixed bytes, little-endian (`util/coding.h`)."""

from __future__ import annotations

from state_pipelines.errors import FormatError, Where


class Cursor:
    """A cursor over bytes; every read checks its bounds and moves on.

    Args:
        data: the bytes.
        name: file name, for errors.
        offset: position of `data` in the file, for errors.

    Raises:
        FormatError: from every method, when the bytes end early.
    """

    __slots__ = ("data", "name", "offset", "position")

    def __init__(self, data: bytes, name: str, offset: int = 0) -> None:
        self.data = data
        self.name = name
        self.offset = offset
        self.position = 0

    @property
    def remaining(self) -> int:
        """Bytes between the cursor and the end."""
        return len(self.data) - self.position

    def error(self, what: str) -> FormatError:
        """A `FormatError` at the cursor, for the caller to raise."""
        return FormatError(what, where=Where(file=self.name, offset=self.offset + self.position))

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        if size > self.remaining:
            raise self.error(f"{size} bytes wanted but only {self.remaining} are left")
        start = self.position
        self.position += size
        return self.data[start : self.position]

    def varint(self) -> int:
        """An unsigned varint of at most 64 bits."""
        # Most are of one byte.
        if self.position < len(self.data) and (value := self.data[self.position]) < 0x80:
            self.position += 1
            return value
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        if byte > 0x7F or value >> 64:
            raise self.error("a varint is longer than 64 bits")
        return value

    def prefixed(self) -> bytes:
        """A varint length, then that many bytes."""
        return self.take(self.varint())

    def text(self) -> str:
        """Length-prefixed UTF-8."""
        raw = self.prefixed()
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.error(f"{raw!r} is not UTF-8") from None
