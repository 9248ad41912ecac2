"""The data of one section in order, some of it at a time, plain or out of snappy chunks."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from state_pipelines.binary.snappy_frames import iter_chunks
from state_pipelines.errors import StateError, Where
from state_pipelines.keyed.canonical.sections import WINDOW, read_sections
from state_pipelines.storage.reading import read_ahead

if TYPE_CHECKING:
    from state_pipelines.keyed.canonical.sections import Section
    from state_pipelines.metadata.streams import StateStream

_CHUNK_HEADER = 4


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """A position in the data of a section, and where in the file it is.

    Attributes:
        position: in the data.
        start: position in the stream of the byte, or of the chunk that holds it.
        base: position in the data that corresponds to `start`.
        after: position in the stream after the byte in front of it, or after the chunk that holds that byte.
        share: position in the stream if a chunk were spread evenly over its data; differences are stored sizes.
    """

    position: int
    start: int
    base: int
    after: int
    share: int


class _Chunk(NamedTuple):
    position: int
    size: int
    start: int
    end: int


class SectionReader:
    """Sequential reader of a section, or of its span; on a remote storage it reads ahead (`storage.reading`).

    Memory: what `advance` is asked for, a block of the file, and what is read ahead; of a compressed section as many
    bytes of chunks beside that.

    Attributes:
        data: the bytes in memory.
        position: where it begins in the data of the section (see `RecordSpan`).
        complete: `data` reaches the end of the section.
    """

    def __init__(
        self, stream: StateStream, section: Section, *, compressed: bool, head: int = 0, block: int = WINDOW
    ) -> None:
        """Open a section; nothing is read yet.

        Args:
            stream: of the section.
            section: the section.
            compressed: its bytes are snappy streams.
            head: bytes at its start that are not part of the data, nor compressed.
            block: bytes of the file per request.
        """
        span = section.span
        self.data = b""
        self.position = 0
        self.complete = False
        self._stream = stream
        self._section = section
        self._compressed = compressed
        self._next = self._origin = section.start + (head if span is None else 0)
        self._skip = 0 if span is None else span.skip
        self._stop = None if span is None else span.stop
        if not compressed:
            self._next += self._skip
            self.position, self._skip = self._skip, 0
        self._blocks = read_ahead(
            range(self._next, section.end, block),
            lambda start: read_sections(stream, start, min(start + block, section.end)),
            stream.location,
            lambda start: min(start + block, section.end) - start,
        )
        self._rest = memoryview(b"")
        self._raw = b""
        self._taken = 0
        self._chunks: list[_Chunk] = []

    @property
    def name(self) -> str:
        """Name of the stream."""
        return self._stream.name

    def advance(self, used: int, size: int) -> None:
        """Let the first bytes of `data` go, and hold `size` bytes if the section has so many.

        Args:
            used: how many bytes are not needed any more.
            size: how many are wanted; whole chunks are held, so that more may come.

        Raises:
            FormatError: the stream ends before the section does, or a chunk is damaged.
        """
        buffers: list[bytes | memoryview] = [self.data[used:]]
        self.position += used
        size += self._skip
        held = len(buffers[0])
        while held < size and not self.complete:
            found = self._decompress(size - held) if self._compressed else self._read(size - held)
            held += len(found)
            buffers.append(found)
        self.data = b"".join(buffers)[self._skip :]
        self.position, self._skip = self.position + self._skip, 0
        if self._stop is not None and self.position + len(self.data) >= self._stop:
            self.data = self.data[: self._stop - self.position]
            self.complete = True
        # The chunk before `data` determines where the bytes before `data` end.
        while self._chunks and self._chunks[0].position + self._chunks[0].size < self.position:
            self._chunks.pop(0)

    def locate(self, position: int) -> RecordPosition:
        """The offset in the file of a position inside `data`, or at its end."""
        if not self._compressed:
            start = self._origin + position
            return RecordPosition(position, start, position, start, start)
        index = bisect_right(self._chunks, position, key=lambda chunk: chunk.position) - 1
        chunk = self._chunks[max(index, 0)]
        inside = position - chunk.position
        before = self._chunks[index - 1] if inside == 0 and index > 0 else chunk
        share = chunk.start + (chunk.end - chunk.start) * inside // chunk.size
        return RecordPosition(position, chunk.start, chunk.position, before.end, share)

    def _read(self, size: int) -> memoryview:
        """Take at most `size` bytes from the block at hand, or from the next one."""
        if not self._rest:
            self._rest = self._next_block()
        found, self._rest = self._rest[:size], self._rest[size:]
        self._next += len(found)
        self.complete = self._next == self._section.end
        return found

    def _next_block(self) -> memoryview:
        """The next bytes of the file; none after the end of the section."""
        return memoryview(next((data for _, data in self._blocks), b""))

    def _decompress(self, size: int) -> bytes:
        """The data of chunks, `size` bytes or a little more; reads a block when no whole chunk is there."""
        first = self._next - len(self._raw) + self._taken
        ends = self._taken
        while True:
            head = self._raw[ends : ends + _CHUNK_HEADER]
            end = ends + _CHUNK_HEADER + int.from_bytes(head[1:], "little")
            if len(head) < _CHUNK_HEADER or end > len(self._raw):
                break
            ends = end
            if ends - self._taken >= size:
                break
        if ends == self._taken and self._next < self._section.end:
            block = self._next_block()
            self._raw = b"".join((self._raw[self._taken :], block))
            self._next, self._taken = self._next + len(block), 0
            return b""
        # Bytes left at the end of the section are a truncated chunk, or follow an open section.
        if ends == self._taken:
            ends = len(self._raw)
        found: list[bytes] = []
        held, taken = 0, self._taken
        position = self._chunks[-1].position + self._chunks[-1].size if self._chunks else 0
        try:
            for chunk in iter_chunks(self._raw, self._taken, ends, name=self._stream.name):
                if chunk.data:
                    start, end = (first - self._taken + each for each in (chunk.start, chunk.end))
                    self._chunks.append(_Chunk(position, len(chunk.data), start, end))
                    position += len(chunk.data)
                    found.append(chunk.data)
                    held += len(chunk.data)
                taken = chunk.end
                if held >= size:
                    break
        except StateError as error:
            if self._section.is_open and self._chunks:
                self.complete = True
                return b"".join(found)
            if error.where.offset is not None:
                error.where = Where(file=self._stream.name, offset=error.where.offset + first - self._taken)
            raise
        self._taken = taken
        self.complete = self._next == self._section.end and taken == len(self._raw)
        return b"".join(found)
