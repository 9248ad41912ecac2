"""Key-group sections of a stream: their offsets and bytes.

The canonical format and the native one of the heap backend both have a header, then a section per key group at the
offset that the handle names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.data_views import Reader
from state_pipelines.binary.snappy_frames import decompress, decompress_into, iter_chunks, measure_chunks
from state_pipelines.errors import EDITED_METADATA, FormatError, StateError, UnsupportedError, Where
from state_pipelines.keyed.header import KeyedHeader, read_keyed_header, settle_keyed_header
from state_pipelines.metadata.streams import StateStream, read_header_bytes, read_stream_range
from state_pipelines.storage.locations import is_local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.serializers.declared_snapshots import DeclaredSerializer

WINDOW = 8 << 20
"""Bytes that are read at once."""

FIRST_READ = 1 << 16
_MOST_KNOWN = 1024
"""Number of beginnings that are kept; of at most `FIRST_READ` bytes each."""
"""Bytes that contain most headers."""

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]

NO_SECTION = 0
"""The offset of a key group without records."""


@dataclass(frozen=True)
class HeaderReading:
    """Knowledge from outside of a header about its serializer snapshots without a reader.

    Attributes:
        declared: snapshot classes that the user declares.
        end: end of the header, from the offsets of all handles over its stream; 0 where these do not give it.
        beginning: first bytes of the stream, as far as they have been read.
        known: beginnings of streams that are not on this machine, which several passes over a snapshot share.
    """

    declared: tuple[DeclaredSerializer, ...] = ()
    end: int = 0
    beginning: bytes = field(default=b"", repr=False)
    known: dict[StateStream, bytes] | None = field(default=None, compare=False, repr=False)

    def read(self, stream: StateStream, end: int) -> bytes:
        """The bytes of the stream up to `end`."""
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
"""Reading of a header of which only its bytes are known."""


@dataclass(frozen=True, slots=True)
class RecordSpan:
    """Adjacent records of one state, a part of a section (see `keyed.key_group_splits`).

    Positions count the bytes of data from the start of the section's bytes; of a compressed file these begin with a
    whole chunk, and data are what the chunks hold.

    Attributes:
        state_id: the state.
        skip: position of the first record.
        stop: end of the last record (exclusive).
        count: how many records; -1 where they say themselves how long they are.
    """

    state_id: int
    skip: int
    stop: int
    count: int = -1


@dataclass(frozen=True)
class Section:
    """The bytes of one key group in a stream.

    Attributes:
        start: first byte in the stream.
        end: first byte of the next section, or the end of the stream.
        is_open: the section ends where its content does, somewhere before `end`.
        span: the part of the section to read; None for all.
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
    """Read the header of a stream, its end, and find its sections, ascending by position.

    The end is -1 where it is not known, because the header holds a snapshot without reader.

    Args:
        stream: the stream of the handle.
        key_groups: range of the handle.
        offsets: position per key group; `NO_SECTION` where there are no records.
        narrowed: the stream may hold other key groups too, with sections before, between and after those that
            the handle names (`KeyGroupsStateHandle.getIntersection`, after a rescale).
        reading: what helps to read the header.

    Raises:
        FormatError: an offset is outside the stream or that of two key groups, or the header is malformed.
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
    # A state without any record still has a header; it then fills the stream.
    header_end = present[0][0] if present else stream.size
    if narrowed:
        header, header_end = read_first_header(stream, header_end, reading)
    else:
        header = parse_header(reading.read(stream, header_end), stream.name, reading.declared)
    ends = [*(offset for offset, _ in present[1:]), stream.size][: len(present)]
    sections = (Section(group, start, end, narrowed) for (start, group), end in zip(present, ends, strict=True))
    return header, header_end, tuple(sections)


def read_first_header(stream: StateStream, end: int, reading: HeaderReading = PLAIN) -> tuple[KeyedHeader, int]:
    """The header at the beginning of a stream, which ends somewhere before `end`, and its end.

    The end is -1 where the header holds a snapshot without reader whose end is not known.

    Raises:
        OpenBodyError: the end of the key serializer is not known, so that nothing is known of the states.
        FormatError: it is not one.
    """
    size = min(end, FIRST_READ)
    while True:
        try:
            reader = Reader(reading.read(stream, size), stream.name)
            return read_keyed_header(reader), reader.position
        except FormatError:
            # Cut off, unless that was all.
            if size == end:
                raise
            size = min(end, 8 * size)
        except UnsupportedError:
            if 0 < reading.end <= end:
                return parse_header(reading.read(stream, reading.end), stream.name, reading.declared), reading.end
            return settle_keyed_header(reading.read(stream, end), stream.name, None, reading.declared)


def parse_header(data: bytes, name: str, declared: tuple[DeclaredSerializer, ...] = ()) -> KeyedHeader:
    """The header that fills `data`; subtasks mostly share its bytes, and then share the header too.

    Raises:
        OpenBodyError: the key serializer has no reader, and its end is not known.
        FormatError: it is not a header.
    """
    try:
        return _parse_header(data, None, declared)
    except StateError:
        # A cached header has no file name; the error needs the one of this file.
        return _parse_header.__wrapped__(data, name, declared)


@lru_cache(maxsize=256)
def _parse_header(data: bytes, name: str | None, declared: tuple[DeclaredSerializer, ...]) -> KeyedHeader:
    header, end = settle_keyed_header(data, name, len(data), declared)
    Reader(data, name, end).expect_end("the header")
    return header


def select_sections(sections: Sequence[Section], key_groups: KeyGroupRange | None) -> list[Section]:
    """The sections of some key groups; of all when `key_groups` is None."""
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
    """Bytes of the sections of a stream, i64[n] over n key groups, and whether an open end makes it an estimate."""
    found = np.zeros(len(key_groups), np.int64)
    estimated = False
    for section in sections:
        estimated |= section.is_open
        if section.key_group in key_groups:
            found[section.key_group - key_groups.start] = section.end - section.start
    return found, estimated


def read_sections(stream: StateStream, start: int, end: int) -> bytes:
    """The bytes of a stream from `start` to `end`.

    Raises:
        FormatError: the stream ends before.
    """
    raw = read_stream_range(stream, start, end)
    if len(raw) < end - start:
        raise FormatError(
            f"the file ends {end - start - len(raw)} bytes before its key groups do",
            where=Where(file=stream.name, offset=start + len(raw)),
        )
    return raw


def decompress_sections(raw: bytes, group: Sequence[Section], name: str, offset: int) -> tuple[Bytes, Positions]:
    """The concatenated data of the snappy streams of sections, and their ends.

    Args:
        raw: holds the sections.
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
    """The data of the snappy streams of a section.

    Args:
        raw: holds the section.
        section: the section; bytes after an open one may be no chunks.
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
