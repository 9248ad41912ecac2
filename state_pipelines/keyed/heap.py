"""The native format of the heap backend (`hashmap`): its checkpoints and native savepoints.

Every key group of the range has a section: its number, then every state once, as `i16` state id, `i32` count and the
entries. Nothing says how long an entry is, so that entries are parsed by the layouts of their serializers. With
compression each state of each key group is a snappy framed stream.

* `may_hold_timestamps`, `holds_null_timestamp`: null SQL timestamps, with which Flink cannot restore native state of
  the heap backend. `SqlTimestampSerializer` writes 12 bytes for null and reads 8. Formats that store the end of a
  record are not affected; heap native state does not store it, and Flink loses its position.
* `find_runs`, `read_span`: spans of a key group (adjacent entries of one state, which one of several tasks reads): the
  offsets at which a key group can be cut, and the records of a span. Entries are measured to find where the next one
  begins; layouts that only the scalar codec reads (Kryo) would take as long to measure as to read, so that their key
  groups are not cut.
* `HeapFile`, `open_heap`: the reader. Source: `HeapSnapshotStrategy`, `CopyOnWriteStateMapSnapshot`,
  `HeapPriorityQueueStateSnapshot`, `StateTableByKeyGroupReaders`.
* `HeapWriter`: the writer. Source: `HeapSnapshotStrategy`, `CopyOnWriteStateTableSnapshot`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import IO, TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from state_pipelines.binary.data_views import Writer
from state_pipelines.binary.snappy_frames import compress, iter_chunks
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.programs import compile_layout, decode_spans
from state_pipelines.errors import EDITED_METADATA, FormatError, UnsupportedError, Where, at
from state_pipelines.keyed.digests import digest_sections
from state_pipelines.keyed.header import KeyedHeader, write_keyed_header
from state_pipelines.keyed.heap_entries import BlockReader, HeapBlocks, SectionBytes, make_entry_codecs
from state_pipelines.keyed.key_groups import decode_prefix, require_memory
from state_pipelines.keyed.keyed_file import FileFormat, SectionFile
from state_pipelines.keyed.record_layout import SPAN, KeyedRecords, concat_records
from state_pipelines.keyed.sections import (
    PLAIN,
    WINDOW,
    HeaderReading,
    RecordPosition,
    Section,
    SectionReader,
    StateRun,
    decompress_sections,
    group_sections,
    open_sections,
    read_sections,
    select_sections,
)
from state_pipelines.metadata.streams import read_stream_range
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import BasicKind
from state_pipelines.storage.reading import do_together, read_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from state_pipelines.keyed.canonical import CanonicalFile
    from state_pipelines.keyed.digests import RecordDigest
    from state_pipelines.keyed.heap_entries import EntryCodec
    from state_pipelines.keyed.keyed_file import RecordContext, RunFinder, Runs
    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.storage import Location

_NULL = bytes([0x80]) + bytes(11)


def may_hold_timestamps(info: StateMetaInfo, key: Serializer) -> bool:
    """Return whether keys, namespaces or values of a state may be written by `SqlTimestampSerializer`."""
    return any(map(_is_mentioned, (key, *(serializer for _, serializer in info.serializers))))


def _is_mentioned(serializer: Serializer) -> bool:
    if isinstance(serializer, tree.Basic):
        return serializer.kind == BasicKind.SQL_TIMESTAMP
    return any(map(_is_mentioned, serializer.nested))


def holds_null_timestamp(records: KeyedRecords, layout: KeyedLayout) -> bool:
    """Return whether a SQL timestamp in records of a state is null.

    For layouts without kernels, such as Kryo's, any bytes that look like a null timestamp count as one.

    Args:
        records: at least one.
        layout: of the records.

    Raises:
        FormatError: the bytes do not fit the serializers.
    """
    keys = (layout.key, records.key_starts, records.key_ends)
    values = (layout.value, records.value_starts, records.value_ends)
    return any(_holds_null(records.data, *side) for side in (keys, values))


def _holds_null(
    data: npt.NDArray[np.uint8], layout: lay.Layout, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> bool:
    # Most data do not contain the bytes of a null timestamp, and searching for them takes less time than decoding.
    if _NULL not in data[int(starts.min()) : int(ends.max())].tobytes():
        return False
    try:
        program = compile_layout(_mark(layout))
    except UnsupportedError:
        return True
    positions = _find_spans(decode_spans(program, data, starts, ends))
    return any(data[position : position + len(_NULL)].tobytes() == _NULL for position in positions.tolist())


def _mark(layout: lay.Layout) -> lay.Layout:
    """Replace each SQL timestamp in a layout by a span, so that decoding returns the positions of timestamps."""
    if isinstance(layout, lay.Logical):
        return lay.Span(layout) if layout.name is lay.LogicalKind.SQL_TIMESTAMP else layout
    changed = {each.name: _mark_within(getattr(layout, each.name)) for each in fields(layout)}
    return replace(layout, **changed)


def _mark_within(value: object) -> object:
    if isinstance(value, lay.Layout):
        return _mark(value)
    return tuple(map(_mark_within, value)) if isinstance(value, tuple) else value


def _find_spans(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return the starts of all spans in a decoded array."""
    if array.type == SPAN:
        return np.asarray(array.drop_null().field(0))
    nested: list[pa.Array] = []
    if pa.types.is_struct(array.type):
        nested = array.flatten()
    elif pa.types.is_map(array.type):
        nested = [array.keys, array.items]
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        nested = [array.flatten()]
    return np.concatenate([np.zeros(0, np.int64), *map(_find_spans, nested)])


_ENTRIES = 1 << 16
"""Maximum number of entries that are measured or read at once."""

_HEAD = 6
"""Size in bytes of the state id and the count before the entries of a state."""


def find_runs(
    stream: StateStream, header: KeyedHeader, section: Section, head: int, codecs: Sequence[EntryCodec], step: int
) -> tuple[StateRun, ...]:
    """Find the run of each state in a section, and where it can be cut. States without entries have no run.

    Args:
        stream: of the file.
        header: of the file.
        section: the whole section of a key group.
        head: size of the key-group number at its start, in bytes.
        codecs: codecs of all states; kernels must be able to measure their entries.
        step: approximate number of bytes between two positions.

    Raises:
        FormatError: the bytes do not have the format.
    """
    if read_sections(stream, section.start, section.start + head) != section.key_group.to_bytes(head, "big"):
        what = f"the section of key group {section.key_group} does not begin with its number"
        raise FormatError(what, where=Where(file=stream.name, offset=section.start))
    reader = SectionReader(stream, section, compressed=header.compressed, head=head)
    runs = []
    for number in range(len(header.states)):
        reader.advance(0, _HEAD)
        state_id, count = (int.from_bytes(each, "big") for each in (reader.data[:2], reader.data[2:_HEAD]))
        if len(reader.data) < _HEAD or state_id >= len(header.states) or count >> 31:
            what = f"key group {section.key_group}: state {number} of the section is cut off, or not in the header"
            raise FormatError(what, where=Where(file=stream.name, offset=section.start + reader.position))
        reader.advance(_HEAD, WINDOW)
        if count:
            with at(file=stream.name, state=header.states[state_id].name):
                runs.append(_find_run(reader, section, state_id, count, codecs[state_id], step))
    reader.advance(0, 1)
    if reader.data and not section.is_open:
        what = f"bytes are left over after the states of key group {section.key_group}"
        raise FormatError(what, where=Where(file=stream.name, offset=section.start + reader.position))
    return tuple(runs)


def _find_run(
    reader: SectionReader, section: Section, state_id: int, count: int, codec: EntryCodec, step: int
) -> StateRun:
    positions: list[RecordPosition] = []
    counts: list[int] = []
    done, size, due = 0, WINDOW, reader.position
    while done < count:
        data = np.frombuffer(reader.data, np.uint8)
        stops = codec.entries.stops(data, min(_ENTRIES, count - done))
        if not len(stops):
            if reader.complete:
                # Read to the end of the section, to raise the error with the offset at which the section is cut off.
                codec.read(data, 0, len(data), count - done, section.start + reader.position, reader.name)
                raise FormatError(
                    f"the section of key group {section.key_group} lacks {count - done} of {count} entries of a state",
                    where=Where(file=reader.name),
                )
            # The next entry is larger than the bytes in memory: read more.
            size *= 2
            reader.advance(0, size)
            continue
        starts = reader.position + np.concatenate([np.zeros(1, np.int64), stops[:-1]])
        row = int(np.searchsorted(starts, due))
        while row < len(starts):
            positions.append(reader.locate(int(starts[row])))
            counts.append(done + row)
            due = int(starts[row]) + step
            row = int(np.searchsorted(starts, due))
        done += len(stops)
        size = WINDOW
        used = int(stops[-1])
        end = reader.locate(reader.position + used)
        reader.advance(used, size if done < count else _HEAD)
    return StateRun(state_id, tuple(positions), end, (*counts, count))


def read_span(stream: StateStream, header: KeyedHeader, section: Section, codec: EntryCodec) -> Iterator[KeyedRecords]:
    """Yield the records of a span (adjacent entries of one state), all of whose bytes are read into memory.

    Raises:
        FormatError: the bytes do not have the format.
    """
    span = section.span
    assert span is not None
    reader = SectionReader(stream, section, compressed=header.compressed)
    reader.advance(0, span.stop - span.skip)
    data, offset = np.frombuffer(reader.data, np.uint8), section.start + reader.position
    position, left = 0, span.count
    with at(file=stream.name, state=header.states[span.state_id].name):
        while left:
            count = min(left, _ENTRIES)
            entries, position = codec.read(data, position, len(data), count, offset, stream.name)
            groups = np.full(count, section.key_group, np.int32)
            records = entries.to_records(groups, codec, data, offset, stream.name)
            if len(records):
                yield records
            left -= count
        if position != len(data):
            what = f"key group {section.key_group}: the bytes read of it do not end where an entry ends"
            hint = "The file was changed while it was read"
            raise FormatError(what, where=Where(file=stream.name, offset=offset + position), hint=hint)


@dataclass(frozen=True)
class HeapFile(SectionFile):
    """A stream of the heap backend with the key groups and offsets of its handle.

    Attributes:
        blocks: cache of the positions of blocks and the codecs of states. All splits share it, because each state of
            each split is scanned separately.
    """

    blocks: HeapBlocks = field(default_factory=HeapBlocks, compare=False, repr=False)

    format: ClassVar[FileFormat] = FileFormat.HEAP
    lacks_lengths: ClassVar[bool] = True

    def scan(
        self, state_ids: Sequence[int], key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[int, KeyedRecords]]:
        """Yield the records of some states (see `KeyedFile.scan`)."""
        ordered = self.sort_sections(key_groups)

        def read(group: tuple[Section, ...]) -> bytes:
            return b"" if group[0].span is not None else self._read_bytes(group)

        for section in ordered:
            require_memory(section.size, section.key_group, self.name)
        for group, raw in read_ahead(group_sections(ordered, WINDOW), read, self.stream.location, _measure):
            if (span := group[0].span) is not None:
                if span.state_id in state_ids:
                    codec = self.blocks.find_entry_codecs(self.header, self.context)[span.state_id]
                    for records in read_span(self.stream, self.header, group[0], codec):
                        yield span.state_id, records
                continue
            found: dict[int, list[KeyedRecords]] = {}
            for _, runs in self._read(group, raw, state_ids):
                for state_id, records in runs:
                    found.setdefault(state_id, []).append(records)
            # Free the bytes of this window before the next one is read.
            raw = b""
            for state_id, batches in found.items():
                records = concat_records(batches)
                if (np.diff(records.key_groups) < 0).any():
                    # Sections may have their states in different orders; then the records of a state are not sorted by
                    # key group yet.
                    records = records.select(np.argsort(records.key_groups, kind="stable"))
                yield state_id, records

    def scan_key_groups(self, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """Yield all records, one key group after the other; the states of a key group in the order of its section."""
        ordered = self.sort_sections(key_groups)
        for group, raw in read_ahead(group_sections(ordered, WINDOW), self._read_bytes, self.stream.location, _measure):
            for sections, runs in self._read(group, raw, range(len(self.header.states))):
                groups = np.array([each.key_group for each in sections], np.int32)
                bounds = [
                    np.searchsorted(records.key_groups, groups, side=side).tolist()
                    for _, records in runs
                    for side in ("left", "right")
                ]
                for number, key_group in enumerate(groups.tolist()):
                    found: Runs = [
                        (state_id, records.cut(first[number], last[number]))
                        for (state_id, records), first, last in zip(runs, bounds[::2], bounds[1::2], strict=True)
                        if first[number] < last[number]
                    ]
                    if found:
                        yield key_group, found

    def find_runs(self) -> RunFinder | None:
        """See `SectionFile`; None if kernels cannot measure the entries of all states."""
        codecs = self.blocks.find_entry_codecs(self.header, self.context)
        if not all(codec.entries.is_compiled for codec in codecs):
            return None
        return lambda section, step: find_runs(self.stream, self.header, section, KEY_GROUP, codecs, step)

    def digest_stored_bytes(self, key_groups: KeyGroupRange) -> RecordDigest | None:
        """See `KeyedFile`."""
        return digest_sections(self.stream, select_sections(self.sections, key_groups))

    def _read_bytes(self, group: tuple[Section, ...]) -> bytes:
        return read_sections(self.stream, group[0].start, group[-1].end)

    def _read(
        self, group: tuple[Section, ...], raw: bytes, state_ids: Sequence[int]
    ) -> Iterator[tuple[tuple[Section, ...], Runs]]:
        """Read the sections of a window in batches; yield the sections of each batch, and their runs of some states."""
        self.blocks.prepare(self.key_groups, len(self.header.states))
        codecs, wanted = self.blocks.find_entry_codecs(self.header, self.context), frozenset(state_ids)
        reader = BlockReader(self.header, codecs, self.blocks, wanted, self.context.by_block)
        for sections in group_sections(group, _BATCH):
            with at(file=self.name):
                yield sections, reader.read(self._unpack(sections, raw, group[0].start))

    def _unpack(self, group: tuple[Section, ...], raw: bytes, first: int) -> SectionBytes:
        """Return the decompressed bytes of sections; `raw` has the stored bytes, from offset `first` of the file on."""
        data = np.frombuffer(raw, np.uint8)
        groups = np.array([each.key_group for each in group], np.int32)
        starts = np.array([each.start - first for each in group], np.int64)
        ends = np.array([each.end - first for each in group], np.int64)
        numbered = ends - starts >= KEY_GROUP
        numbers = data[starts[numbered, None] + np.arange(KEY_GROUP)]
        numbered[numbered] = numbers.view(">i4")[:, 0] == groups[numbered]
        if not numbered.all():
            section = group[int(np.argmin(numbered))]
            raise FormatError(
                f"the section of key group {section.key_group} does not begin with its number",
                where=Where(file=self.name, offset=section.start),
            )
        starts += KEY_GROUP
        offsets = np.full(len(group), first, np.int64)
        if self.header.compressed:
            streams = [replace(each, start=each.start + KEY_GROUP) for each in group]
            data, ends = decompress_sections(raw, streams, self.name, first)
            starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
            offsets = -starts
        return SectionBytes(data, groups, starts, ends, offsets, group[0].is_open, self.name)


KEY_GROUP = 4
"""Size in bytes of the key group number at the beginning of a section."""

_BATCH = 1 << 20
"""Bytes of file whose blocks one call of the kernel reads: enough for many small sections."""


def _measure(group: tuple[Section, ...]) -> int:
    """Return the bytes of adjacent sections to read ahead; 0 for a span, which `read_span` reads itself."""
    return 0 if group[0].span is not None else group[-1].end - group[0].start


def open_heap(
    stream: StateStream,
    key_groups: KeyGroupRange,
    offsets: Sequence[int],
    context: RecordContext,
    *,
    narrowed: bool = False,
    reading: HeaderReading = PLAIN,
) -> HeapFile:
    """Read the header in the stream of a handle, and find the sections of its key groups.

    Args:
        stream: the stream of the handle.
        key_groups: range of the handle.
        offsets: position per key group.
        context: properties of the operator.
        narrowed: the stream may hold other key groups too (see `open_sections`).
        reading: declarations and cached bytes with which the header is read.

    Raises:
        FormatError: an offset is outside the stream, two key groups have the same offset, a key group has none, or the
            header is malformed.
    """
    header, end, sections = open_sections(stream, key_groups, offsets, narrowed=narrowed, reading=reading)
    if len(sections) < len(key_groups):
        # Flink reads the number of each key group of the handle at its offset (`HeapRestoreOperation`), so that
        # each needs an offset, even without records.
        missing = min(set(key_groups) - {each.key_group for each in sections})
        raise FormatError(
            f"the handle has no offset for key group {missing}", where=Where(file=stream.name), hint=EDITED_METADATA
        )
    return HeapFile(stream, header, key_groups, sections, context, header_end=end)


@dataclass
class HeapWriter:
    """Writer of one stream of the heap backend, key group after key group; the mirror of `open_heap` and `HeapFile`.

    Attributes:
        output: where the bytes go.
        header: the header; it is written when the object is made.
        key_groups: range of the handle.
        context: properties of the operator.
    """

    output: IO[bytes]
    header: KeyedHeader
    key_groups: KeyGroupRange
    context: RecordContext

    def __post_init__(self) -> None:
        writer = Writer()
        write_keyed_header(writer, self.header)
        self.size = self.output.write(writer.getvalue())
        self._offsets: list[int] = []
        self._codecs = make_entry_codecs(self.header, self.context)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Offsets of the sections by key group, as the handle stores them."""
        return tuple(self._offsets)

    def write_key_group(self, key_group: int, runs: Runs) -> None:
        """Write the section of the next key group of the range, which may have no records.

        Args:
            key_group: the next key group; all of the range must be written in order.
            runs: (state id, canonical records).

        Raises:
            FormatError: the bytes of a record do not fit the serializers.
        """
        expected = self.key_groups.start + len(self._offsets)
        assert key_group == expected, f"key group {key_group} was written where {expected} comes"
        self._offsets.append(self.size)
        self._put(key_group.to_bytes(KEY_GROUP, "big"))
        by_state: dict[int, list[KeyedRecords]] = {}
        for state_id, records in runs:
            by_state.setdefault(state_id, []).append(records)
        for state_id, (info, codec) in enumerate(zip(self.header.states, self._codecs, strict=True)):
            count, entries = 0, b""
            if state_id in by_state:
                records = concat_records(by_state[state_id])
                with at(state=info.name):
                    made = codec.gather(records)
                count, entries = made.count, made.to_bytes(records.data)
            head = state_id.to_bytes(2, "big") + count.to_bytes(4, "big")
            for content in (compress(head + entries),) if self.header.compressed else (head, entries):
                self._put(content)

    def _put(self, raw: bytes) -> None:
        self.size += self.output.write(raw)


_SMALL = 1 << 20
"""Size in bytes up to which a file is read by one request; of larger files, only the beginnings of sections are
read."""

_CHUNK = 1 << 17
"""Size in bytes of the first chunk of a snappy stream at most: snappy may make 64 KiB of data a little longer."""

_RECORD = 6
"""Bytes in front of the first key of a canonical section: the state id and the length of the key."""

_NO_RECORD = b"\xff\xff"
"""State id that ends a section (`FullSnapshotUtil.END_OF_KEY_GROUP_MARK`)."""

_LAST_OF_STATE = 0x80
"""Bit of the first byte of a key that ends the records of a state (`FullSnapshotUtil.FIRST_BIT_IN_BYTE_MASK`)."""


def check_section_starts(files: Sequence[SectionFile], prefix: int, location: Location) -> None:
    """Check that each section begins with its key group; neither the other bytes nor the ends are read.

    Args:
        files: the files of an operator.
        prefix: bytes of the key group in front of each key of a canonical file.
        location: location of the files; if their storage takes long to answer, many are read at the same time.

    Raises:
        FormatError: an offset leads to the section of another key group, or to no section.
        StateError: a file cannot be read.
    """
    works = [
        partial(_check, file, sections, prefix)
        for file in files
        # A small file is read by one request.
        for sections in ([file.sections] if file.stream.size <= _SMALL else ((each,) for each in file.sections))
        if sections
    ]
    do_together(works, location)


def check_first_section(file: CanonicalFile, prefix: int) -> None:
    """Check that the handle has an offset for the first section after the header if that is of its key groups.

    After `rescale`, several subtasks share a file, so it may have sections of key groups outside the handle. Later
    sections are not checked. (In files of the heap backend each key group has an offset.)

    Raises:
        FormatError: the section belongs to a key group of the handle, which has no offset for it.
        StateError: the file cannot be read.
    """
    if not file.sections or not 0 < file.header_end < file.sections[0].start:
        return
    size = _CHUNK if file.header.compressed else _RECORD + prefix
    begin = read_stream_range(file.stream, file.header_end, min(file.sections[0].start, file.header_end + size))
    with at(file=file.name):
        found = _read_prefix(file, prefix, begin)
    if found is not None and found in file.key_groups:
        raise FormatError(
            f"the handle has no offset for key group {found}, whose records begin right after the header",
            where=Where(file=file.name, offset=file.header_end),
            hint=EDITED_METADATA,
        )


def _check(file: SectionFile, sections: Sequence[Section], prefix: int) -> None:
    size = _CHUNK if file.header.compressed else _RECORD + prefix
    if isinstance(file, HeapFile):
        size = KEY_GROUP
    first = sections[0].start
    last = sections[-1]
    data = read_stream_range(file.stream, first, min(last.end, last.start + size))
    for section in sections:
        start = section.start - first
        begin = data[start : min(start + size, section.end - first)]
        with at(file=file.name):
            found = _read_number(begin) if isinstance(file, HeapFile) else _read_prefix(file, prefix, begin)
        if found is not None and found != section.key_group:
            raise FormatError(
                f"the offset of key group {section.key_group} is not that of its section",
                where=Where(file=file.name, offset=section.start),
                hint=EDITED_METADATA,
            )


def _read_number(data: bytes) -> int:
    """Return the key group with which a section of the heap backend begins; -1 if the section is too short."""
    return int.from_bytes(data, "big", signed=True) if len(data) == KEY_GROUP else -1


def _read_prefix(file: SectionFile, prefix: int, data: bytes) -> int | None:
    """Return the key group in the first key of a canonical section; None without a record, -1 if it is no section."""
    if file.header.compressed:
        data = _decompress_first(data, _RECORD + prefix, file.name)
    if data.startswith(_NO_RECORD):
        return None
    key = data[_RECORD : _RECORD + prefix]
    if len(key) < prefix or not int.from_bytes(data[:2], "big") < len(file.header.states):
        return -1
    return decode_prefix(bytes([key[0] & ~_LAST_OF_STATE & 0xFF]) + key[1:], prefix)


def _decompress_first(data: bytes, size: int, name: str) -> bytes:
    """Decompress the first `size` bytes, or more, of a stream whose end may be missing."""
    found = b""
    for chunk in iter_chunks(data, 0, len(data), name=name):
        found += chunk.data
        if len(found) >= size:
            break
    return found
