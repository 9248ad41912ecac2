"""Keyed state in the native format of the heap backend: its checkpoints and native savepoints.

Every key group of the range has a section: its number, then every state once, as `i16` state id, `i32` count and the
entries. Nothing says how long an entry is, so that entries are parsed by the layouts of their serializers. With
compression each state of each key group is a snappy framed stream. Source: `HeapSnapshotStrategy`,
`CopyOnWriteStateMapSnapshot`, `HeapPriorityQueueStateSnapshot`, `StateTableByKeyGroupReaders`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from state_pipelines.errors import EDITED_METADATA, FormatError, Where, at
from state_pipelines.keyed.canonical.sections import (
    PLAIN,
    WINDOW,
    HeaderReading,
    Section,
    decompress_sections,
    group_sections,
    open_sections,
    read_sections,
    select_sections,
)
from state_pipelines.keyed.digests.stored_bytes import digest_sections
from state_pipelines.keyed.heap.blocks import BlockIndex, BlockReader, SectionBytes
from state_pipelines.keyed.heap.entry_splits import find_runs, read_span
from state_pipelines.keyed.key_group_memory import require_memory
from state_pipelines.keyed.keyed_file import FileFormat
from state_pipelines.keyed.record_layout import KeyedRecords, concat_records
from state_pipelines.keyed.section_file import SectionFile
from state_pipelines.storage.reading import read_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.keyed.digests.record_digests import RecordDigest
    from state_pipelines.keyed.keyed_file import RecordContext, Runs
    from state_pipelines.keyed.section_file import RunFinder
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.metadata.streams import StateStream


@dataclass(frozen=True)
class HeapFile(SectionFile):
    """One stream of the heap backend and its handle.

    Attributes:
        blocks: cached spans and codecs of states, shared by all splits: each state and split is a scan of its own.
    """

    blocks: BlockIndex = field(default_factory=BlockIndex, compare=False, repr=False)

    format: ClassVar[FileFormat] = FileFormat.HEAP
    lacks_lengths: ClassVar[bool] = True

    def scan(
        self, state_ids: Sequence[int], context: RecordContext, key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[int, KeyedRecords]]:
        """The records of some states (see `KeyedFile.scan`)."""
        ordered = self.sort_sections(key_groups)

        def read(group: tuple[Section, ...]) -> bytes:
            return b"" if group[0].span is not None else self._read_bytes(group)

        for section in ordered:
            require_memory(section.size, section.key_group, self.name)
        for group, raw in read_ahead(group_sections(ordered, WINDOW), read, self.stream.location, _measure):
            if (span := group[0].span) is not None:
                if span.state_id in state_ids:
                    codec = self.blocks.find_entry_codecs(self.header, context)[span.state_id]
                    for records in read_span(self.stream, self.header, group[0], codec):
                        yield span.state_id, records
                continue
            found: dict[int, list[KeyedRecords]] = {}
            for _, runs in self._read(group, raw, state_ids, context):
                for state_id, records in runs:
                    found.setdefault(state_id, []).append(records)
            # The next window takes the memory of this one.
            raw = b""
            for state_id, batches in found.items():
                records = concat_records(batches)
                if (np.diff(records.key_groups) < 0).any():
                    # The states of a section may come in another order than those of the one before.
                    records = records.select(np.argsort(records.key_groups, kind="stable"))
                yield state_id, records

    def scan_key_groups(self, context: RecordContext, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """All records, one key group after the other; the states of a section come in their order."""
        ordered = self.sort_sections(key_groups)
        for group, raw in read_ahead(group_sections(ordered, WINDOW), self._read_bytes, self.stream.location, _measure):
            for sections, runs in self._read(group, raw, range(len(self.header.states)), context):
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

    def find_runs(self, context: RecordContext) -> RunFinder | None:
        """See `SectionFile`; None where the scalar codec would have to find the entries."""
        codecs = self.blocks.find_entry_codecs(self.header, context)
        if not all(codec.entries.is_compiled for codec in codecs):
            return None
        return lambda section, step: find_runs(self.stream, self.header, section, KEY_GROUP, codecs, step)

    def digest_stored_bytes(self, context: RecordContext, key_groups: KeyGroupRange) -> RecordDigest | None:
        """See `KeyedFile`."""
        return digest_sections(self.stream, select_sections(self.sections, key_groups))

    def _read_bytes(self, group: tuple[Section, ...]) -> bytes:
        return read_sections(self.stream, group[0].start, group[-1].end)

    def _read(
        self, group: tuple[Section, ...], raw: bytes, state_ids: Sequence[int], context: RecordContext
    ) -> Iterator[tuple[tuple[Section, ...], Runs]]:
        """Read the sections of a window, some at a time: those, and the runs of wanted states in them."""
        self.blocks.prepare(self.key_groups, len(self.header.states))
        codecs, wanted = self.blocks.find_entry_codecs(self.header, context), frozenset(state_ids)
        reader = BlockReader(self.header, codecs, self.blocks, wanted, context.by_block)
        for sections in group_sections(group, _BATCH):
            with at(file=self.name):
                yield sections, reader.read(self._unpack(sections, raw, group[0].start))

    def _unpack(self, group: tuple[Section, ...], raw: bytes, first: int) -> SectionBytes:
        """The blocks of sections out of a window, which begins at `first` in the file."""
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
"""Bytes of the number in front of a section."""

_BATCH = 1 << 20
"""Bytes of file whose blocks are read by one call of the kernel: enough for many small sections."""


def _measure(group: tuple[Section, ...]) -> int:
    """Bytes of adjacent sections that are read at once; none of a span, which is read as its entries are."""
    return 0 if group[0].span is not None else group[-1].end - group[0].start


def open_heap(
    stream: StateStream,
    key_groups: KeyGroupRange,
    offsets: Sequence[int],
    *,
    narrowed: bool = False,
    reading: HeaderReading = PLAIN,
) -> HeapFile:
    """Read the header of a handle and find its sections.

    Args:
        stream: the stream of the handle.
        key_groups: range of the handle.
        offsets: position per key group.
        narrowed: the stream may hold other key groups too (see `open_sections`).
        reading: what helps to read the header.

    Raises:
        FormatError: an offset is outside the stream or that of two key groups, a key group has none, or the header is
            malformed.
    """
    header, end, sections = open_sections(stream, key_groups, offsets, narrowed=narrowed, reading=reading)
    if len(sections) < len(key_groups):
        # Flink reads the number of each key group of the handle at its offset (`HeapRestoreOperation`).
        missing = min(set(key_groups) - {each.key_group for each in sections})
        raise FormatError(f"key group {missing} has no offset", where=Where(file=stream.name), hint=EDITED_METADATA)
    return HeapFile(stream, header, key_groups, sections, header_end=end)
