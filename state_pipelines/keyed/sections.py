"""Key-group sections of a stream: their offsets and bytes, and spans of them.

The canonical format and the native one of the heap backend both have a header, then a section per key group at the
offset that the handle names.

* `Section`, `open_sections`, `read_sections`: the header and the sections of a stream.
* `RecordSpan`, `RunIndex`, `cut_run`: spans of a key group, so that a large one can be read by several tasks. Only a
  walk over a section finds where records begin. It notes a position every so many bytes, for each state the position of
  its records: they are side by side in every format.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.data_views import Reader
from state_pipelines.binary.snappy_frames import decompress, decompress_into, iter_chunks, measure_chunks
from state_pipelines.errors import EDITED_METADATA, FormatError, StateError, UnsupportedError, Where
from state_pipelines.keyed.header import KeyedHeader, read_keyed_header, settle_keyed_header
from state_pipelines.metadata.streams import StateStream, read_header_bytes, read_stream_range
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.reading import read_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.serializers.snapshot_classes import DeclaredSerializer

WINDOW = 8 << 20
"""Number of bytes of a file that are read at once."""

FIRST_READ = 1 << 16
_MOST_KNOWN = 1024
"""Maximum number of cached beginnings of streams, each of at most `FIRST_READ` bytes."""
"""Bytes that contain most headers."""

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

NO_SECTION = 0
"""Offset of a key group without records."""


@dataclass(frozen=True)
class HeaderReading:
    """Information, besides the bytes, for reading a header, such as one with an unknown serializer snapshot.

    Attributes:
        declared: snapshot classes that the user declares.
        end: end of the header, from the offsets of all handles over its stream; 0 if they do not give it.
        beginning: first bytes of the stream, as far as they have been read.
        known: cache of the first bytes of remote streams, shared by several passes over a snapshot.
    """

    declared: tuple[DeclaredSerializer, ...] = ()
    end: int = 0
    beginning: bytes = field(default=b"", repr=False)
    known: dict[StateStream, bytes] | None = field(default=None, compare=False, repr=False)

    def read(self, stream: StateStream, end: int) -> bytes:
        """Read the stream from its beginning up to `end`."""
        if end <= len(self.beginning):
            return self.beginning[:end]
        known = {} if self.known is None else self.known
        content = known.get(stream, b"")
        if end > len(content):
            content = read_header_bytes(stream, end)
            is_elsewhere = stream.location is not None and not is_local(stream.location)
            if is_elsewhere and end <= FIRST_READ and len(known) < _MOST_KNOWN:
                known[stream] = content
        return content[:end]


PLAIN = HeaderReading()
"""Reading of a header without further information."""


@dataclass(frozen=True, slots=True)
class RecordSpan:
    """Adjacent records of one state in a section (see `keyed.sections`).

    Positions are offsets in the data from `Section.start` on. In a compressed file, the data are the decompressed
    chunks, the first of which begins at `Section.start`.

    Attributes:
        state_id: the state.
        skip: position of the first record.
        stop: end of the last record (exclusive).
        count: number of records; -1 if records have stored lengths.
    """

    state_id: int
    skip: int
    stop: int
    count: int = -1


@dataclass(frozen=True)
class Section:
    """The section of one key group in a stream: where its bytes are.

    Attributes:
        start: first byte in the stream.
        end: first byte of the next section, or the end of the stream.
        is_open: the section may end before `end`; only parsing its content finds the end.
        span: the records of the section to read; None for all.
    """

    key_group: int
    start: int
    end: int
    is_open: bool = False
    span: RecordSpan | None = None

    @property
    def size(self) -> int:
        """Bytes of file."""
        return self.end - self.start


def open_sections(
    stream: StateStream,
    key_groups: KeyGroupRange,
    offsets: Sequence[int],
    *,
    narrowed: bool = False,
    reading: HeaderReading = PLAIN,
) -> tuple[KeyedHeader, int, tuple[Section, ...]]:
    """Read the header of a stream; return it, its end offset, and the sections, ascending by position.

    The end offset is -1 if it is not known, because there is no reader for a serializer snapshot in the header.

    Args:
        stream: the stream of the handle.
        key_groups: range of the handle.
        offsets: position per key group; `NO_SECTION` where there are no records.
        narrowed: the stream may hold other key groups too, with sections before, between and after those that the
            handle names (`KeyGroupsStateHandle.getIntersection`, after a rescale).
        reading: declarations and cached bytes with which the header is read.

    Raises:
        FormatError: an offset is outside the stream, two key groups have the same offset, or the header is malformed.
    """
    present = sorted((offset, key_group) for offset, key_group in zip(offsets, key_groups, strict=True) if offset)
    for offset, key_group in present:
        if not 0 < offset < stream.size:
            raise FormatError(
                f"the offset {offset} of key group {key_group} is outside the {stream.size} bytes of the file",
                where=Where(file=stream.name, offset=offset),
            )
    for (offset, before), (other, key_group) in pairwise(present):
        if offset == other:
            raise FormatError(
                f"key groups {before} and {key_group} have the same offset {offset}",
                where=Where(file=stream.name, offset=offset),
                hint=EDITED_METADATA,
            )
    # The stream of a subtask without any record has a header and nothing else.
    header_end = present[0][0] if present else stream.size
    if narrowed:
        header, header_end = read_first_header(stream, header_end, reading)
    else:
        header = parse_header(reading.read(stream, header_end), stream.name, reading.declared)
    ends = [*(offset for offset, _ in present[1:]), stream.size][: len(present)]
    sections = (Section(group, start, end, narrowed) for (start, group), end in zip(present, ends, strict=True))
    return header, header_end, tuple(sections)


def read_first_header(stream: StateStream, end: int, reading: HeaderReading = PLAIN) -> tuple[KeyedHeader, int]:
    """Read the header of a stream; return it and its end offset, which is at most `end`.

    The end offset is -1 if it is not known, because there is no reader for a serializer snapshot in the header.

    Raises:
        OpenBodyError: the end of the key serializer is not known, so that nothing is known of the states.
        FormatError: the bytes are not a header.
    """
    size = min(end, FIRST_READ)
    while True:
        try:
            reader = Reader(reading.read(stream, size), stream.name)
            return read_keyed_header(reader), reader.position
        except FormatError:
            # Parsing failed. The header may be longer than these bytes, unless they reach to `end` already.
            if size == end:
                raise
            size = min(end, 8 * size)
        except UnsupportedError:
            if 0 < reading.end <= end:
                return parse_header(reading.read(stream, reading.end), stream.name, reading.declared), reading.end
            return settle_keyed_header(reading.read(stream, end), stream.name, None, reading.declared)


def parse_header(data: bytes, name: str, declared: tuple[DeclaredSerializer, ...] = ()) -> KeyedHeader:
    """Parse the header that fills `data`. Results are cached, because the headers of subtasks are mostly equal.

    Raises:
        OpenBodyError: the key serializer has no reader, and its end is not known.
        FormatError: the bytes are not a header.
    """
    try:
        return _parse_header(data, None, declared)
    except StateError:
        # The cached function does not know the name of the file; parse again for an error with the name.
        return _parse_header.__wrapped__(data, name, declared)


@lru_cache(maxsize=256)
def _parse_header(data: bytes, name: str | None, declared: tuple[DeclaredSerializer, ...]) -> KeyedHeader:
    header, end = settle_keyed_header(data, name, len(data), declared)
    Reader(data, name, end).expect_end("the header")
    return header


def select_sections(sections: Sequence[Section], key_groups: KeyGroupRange | None) -> list[Section]:
    """Return the sections of some key groups; of all if `key_groups` is None."""
    return [each for each in sections if key_groups is None or each.key_group in key_groups]


def group_sections(sections: Sequence[Section], size: int) -> Iterator[tuple[Section, ...]]:
    """Group adjacent sections into about `size` bytes each."""
    group: list[Section] = []
    for section in sections:
        if group and (section.start != group[-1].end or section.end - group[0].start > size):
            yield tuple(group)
            group = []
        group.append(section)
    if group:
        yield tuple(group)


def measure_sections(sections: Iterable[Section], key_groups: KeyGroupRange) -> tuple[Positions, bool]:
    """Measure the sections of n key groups, i64[n]; also return whether this is an estimate, because an end is open."""
    found = np.zeros(len(key_groups), np.int64)
    estimated = False
    for section in sections:
        estimated |= section.is_open
        if section.key_group in key_groups:
            found[section.key_group - key_groups.start] = section.end - section.start
    return found, estimated


def read_sections(stream: StateStream, start: int, end: int) -> bytes:
    """Read the bytes of a stream from `start` to `end`.

    Raises:
        FormatError: the stream ends before `end`.
    """
    raw = read_stream_range(stream, start, end)
    if len(raw) < end - start:
        raise FormatError(
            f"the file ends {end - start - len(raw)} bytes before its key groups do",
            where=Where(file=stream.name, offset=start + len(raw)),
        )
    return raw


def decompress_sections(raw: bytes, group: Sequence[Section], name: str, offset: int) -> tuple[Bytes, Positions]:
    """Decompress sections; return their concatenated data, and the end of the data of each section.

    Args:
        raw: bytes of the file with the sections.
        group: the sections.
        name: of the file, for errors.
        offset: position of `raw` in the file.

    Raises:
        FormatError: a chunk is damaged.
    """
    sizes = [None if each.is_open else measure_chunks(raw, each.start - offset, each.end - offset) for each in group]
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes):
        data, ends = np.empty(sum(known), np.uint8), np.cumsum(known, dtype=np.int64)
        target = data.data
        spans = zip(group, (ends - known).tolist(), ends.tolist(), strict=True)
        if all(
            decompress_into(raw, each.start - offset, each.end - offset, target[start:end])
            for each, start, end in spans
        ):
            return data, ends
    chunks = [decompress_section(raw, each, each.start - offset, name, offset) for each in group]
    return np.frombuffer(b"".join(chunks), np.uint8), np.cumsum([len(span) for span in chunks], dtype=np.int64)


def decompress_section(raw: bytes, section: Section, start: int, name: str, offset: int) -> bytes:
    """Decompress the snappy streams of a section.

    Args:
        raw: bytes of the file with the section.
        section: the section. If it is open, decompression ends at the first bytes that are no chunk.
        start: position of the first stream in `raw`.
        name: of the file, for errors.
        offset: position of `raw` in the file.

    Raises:
        FormatError: a chunk is damaged.
    """
    chunks: list[bytes] = []
    try:
        if not section.is_open:
            return decompress(raw, start, section.end - offset, name=name)
        chunks.extend(chunk.data for chunk in iter_chunks(raw, start, section.end - offset, name=name))
        return b"".join(chunks)
    except StateError as error:
        if chunks:
            return b"".join(chunks)
        if error.where.offset is not None:
            error.where = Where(file=name, offset=error.where.offset + offset)
        raise


_CHUNK_HEADER = 4


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """A position in the data of a section (see `RecordSpan`), and the bytes of the file that it corresponds to.

    Attributes:
        position: the position in the data.
        start: offset in the file from which to read for the data from `position` on: of the byte itself, or of its
            chunk.
        base: position in the data that corresponds to `start`.
        after: offset in the file up to which to read for the data before `position`: of the byte itself, or the end of
            a chunk.
        share: approximate offset of the position in the file, interpolated inside a chunk. Differences of shares
            estimate stored sizes.
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

    In memory are the bytes requested by `advance`, a block of the file, and the blocks that are read ahead; for a
    compressed section, also the compressed bytes.

    Attributes:
        data: the bytes in memory.
        position: position of `data` in the data of the section (see `RecordSpan`).
        complete: `data` reaches the end of the section.
    """

    def __init__(
        self, stream: StateStream, section: Section, *, compressed: bool, head: int = 0, block: int = WINDOW
    ) -> None:
        """Open a section; nothing is read yet.

        Args:
            stream: stream of the section.
            section: the section.
            compressed: the bytes of the section are snappy streams.
            head: number of bytes at the start of the section that do not belong to the data, and are not compressed.
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
        """Drop the first bytes of `data`, and read on until it has `size` bytes or the section ends.

        Args:
            used: number of bytes that are no longer needed.
            size: number of bytes wanted in `data`; there may be more, because chunks are decompressed as a whole.

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
        # Keep the chunk that ends where `data` begins, because `locate` needs the end of that chunk.
        while self._chunks and self._chunks[0].position + self._chunks[0].size < self.position:
            self._chunks.pop(0)

    def locate(self, position: int) -> RecordPosition:
        """Locate in the file a position that is inside `data` or at its end."""
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
        """Return at most `size` bytes from the rest of the current block, or from the next one if there is no rest."""
        if not self._rest:
            self._rest = self._next_block()
        found, self._rest = self._rest[:size], self._rest[size:]
        self._next += len(found)
        self.complete = self._next == self._section.end
        return found

    def _next_block(self) -> memoryview:
        """Return the next block of the file; empty after the end of the section."""
        return memoryview(next((data for _, data in self._blocks), b""))

    def _decompress(self, size: int) -> bytes:
        """Return the data of chunks, about `size` bytes; read a block and return nothing if no chunk is complete."""
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
        # No block is left: the remaining bytes are a truncated chunk, or follow an open section.
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


_SHARES = 8
"""Number of positions that are noted per wanted span; with several, spans can be cut evenly."""


@dataclass(frozen=True, slots=True)
class StateRun:
    """Span of the records of one state in a key group, with positions at which it can be cut.

    Attributes:
        state_id: the state.
        positions: starts of some records, among them the first.
        end: end of the last record.
        counts: number of records before each position, then their total number; empty if records have stored lengths.
    """

    state_id: int
    positions: tuple[RecordPosition, ...]
    end: RecordPosition
    counts: tuple[int, ...] = ()


class RunIndex:
    """Cache of the runs of sections; a pickled copy is empty.

    One walk over a section finds the runs of all states, while splits ask for one state at a time.
    """

    def __init__(self) -> None:
        self._runs: dict[tuple[Section, int], tuple[StateRun, ...]] = {}

    def find(
        self, section: Section, step: int, walk: Callable[[Section, int], tuple[StateRun, ...]]
    ) -> tuple[StateRun, ...]:
        """Return the runs of a section, with positions about `step` bytes apart; call `walk` if they are not cached."""
        if (section, step) not in self._runs:
            self._runs[section, step] = walk(section, step)
        return self._runs[section, step]

    def __reduce__(self) -> tuple[type[RunIndex], tuple[()]]:
        return RunIndex, ()


def choose_step(size: int) -> int:
    """Return how many bytes of data are between two positions of a `StateRun`, for spans of about `size` bytes."""
    return max(1, size // _SHARES)


def cut_run(section: Section, run: StateRun, size: int) -> Iterator[Section]:
    """Cut the records of a state into spans of about the same size, each of at most about `size` bytes of file."""
    shares = np.array([position.share for position in run.positions], np.int64)
    total = run.end.share - int(shares[0])
    number = max(1, -(-total // size))
    wishes = int(shares[0]) + total * np.arange(1, number) // number
    chosen = np.unique(np.searchsorted(shares, wishes))
    inside = chosen[(chosen > 0) & (chosen < len(shares))].tolist()
    positions = (*run.positions, run.end)
    for first, last in pairwise([0, *inside, len(run.positions)]):
        start, end = positions[first], positions[last]
        count = run.counts[last] - run.counts[first] if run.counts else -1
        span = RecordSpan(run.state_id, start.position - start.base, end.position - start.base, count)
        yield Section(section.key_group, start.start, end.after, span=span)
