"""Keyed state in the native format of the heap backend: its checkpoints and native savepoints.

Every key group of the range has a section: its number, then every state once, as `i16` state id, `i32` count and the
entries. Nothing says how long an entry is, so that entries are parsed by the layouts of their serializers. With
compression each state of each key group is a snappy framed stream. Source: `HeapSnapshotStrategy`,
`CopyOnWriteStateMapSnapshot`, `HeapPriorityQueueStateSnapshot`, `StateTableByKeyGroupReaders`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING, ClassVar

import numpy as np

from state_pipelines.binary.reader import Reader
from state_pipelines.binary.snappy_frames import compress
from state_pipelines.binary.writer import Writer
from state_pipelines.errors import FormatError, UnsupportedError, Where, at
from state_pipelines.keyed.canonical.sections import (
    PLAIN,
    WINDOW,
    HeaderReading,
    Section,
    decompress_section,
    group_sections,
    open_sections,
    read_sections,
    select_sections,
)
from state_pipelines.keyed.digests.stored_bytes import digest_sections
from state_pipelines.keyed.header import KeyedHeader, write_keyed_header
from state_pipelines.keyed.heap.block_ends import find_block_end, make_block_record
from state_pipelines.keyed.heap.entries import EntryForm, make_forms
from state_pipelines.keyed.heap.entry_splits import find_runs, read_piece
from state_pipelines.keyed.keyed_file import FileFormat
from state_pipelines.keyed.record_layout import KeyedRecords, concat_records
from state_pipelines.keyed.section_file import SectionFile
from state_pipelines.storage.reading import read_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.keyed.digests.record_digests import RecordDigest
    from state_pipelines.keyed.keyed_file import RecordContext, Runs
    from state_pipelines.keyed.section_file import RunFinder
    from state_pipelines.metadata.key_groups import KeyGroupRange
    from state_pipelines.metadata.streams import StateStream


@dataclass(frozen=True, slots=True)
class Block:
    """Span of the entries of one state of one key group, relative to the first state of the section.

    Attributes:
        state_id: the state.
        count: how many entries.
        start: first byte of the first entry.
        stop: end of the last entry (exclusive).
    """

    state_id: int
    count: int
    start: int
    stop: int


class BlockIndex:
    """Blocks that were found, by key group, in the order of the file; a copy in another process starts empty.

    The begin of a state is found only by parsing all states before it, so that it is worth caching.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, list[Block]] = {}

    def of(self, key_group: int) -> list[Block]:
        """The blocks of a key group that are known so far, to be appended to."""
        return self._blocks.setdefault(key_group, [])

    def __reduce__(self) -> tuple[type[BlockIndex], tuple[()]]:
        return BlockIndex, ()


@dataclass(frozen=True)
class HeapFile(SectionFile):
    """One stream of the heap backend and its handle.

    Attributes:
        blocks: cached spans of states, shared by all splits: each state and split is a scan of its own.
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
            return b"" if group[0].piece is not None else self._read_bytes(group)

        for group, raw in read_ahead(group_sections(ordered, WINDOW), read, self.stream.location, _measure):
            if (piece := group[0].piece) is not None:
                if piece.state_id in state_ids:
                    form = make_forms(self.header, context)[piece.state_id]
                    for records in read_piece(self.stream, self.header, group[0], form):
                        yield piece.state_id, records
                continue
            found: dict[int, list[KeyedRecords]] = {}
            for _, runs in self._read(group, raw, state_ids, context):
                for state_id, records in runs:
                    found.setdefault(state_id, []).append(records)
            # The next window takes the memory of this one.
            raw = b""
            for state_id, pieces in found.items():
                yield state_id, concat_records(pieces)

    def scan_key_groups(self, context: RecordContext, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """All records, one key group after the other; the states of a section come in their order."""
        ordered = self.sort_sections(key_groups)
        for group, raw in read_ahead(group_sections(ordered, WINDOW), self._read_bytes, self.stream.location, _measure):
            for key_group, runs in self._read(group, raw, range(len(self.header.states)), context):
                if runs:
                    yield key_group, runs

    def find_runs(self, context: RecordContext) -> RunFinder | None:
        """See `SectionFile`; None where the scalar codec would have to find the entries."""
        forms = make_forms(self.header, context)
        if not all(form.entries.is_compiled for form in forms):
            return None
        return lambda section, step: find_runs(self.stream, self.header, section, _KEY_GROUP, forms, step)

    def digest_stored_bytes(self, context: RecordContext, key_groups: KeyGroupRange) -> RecordDigest | None:
        """See `KeyedFile`."""
        return digest_sections(self.stream, select_sections(self.sections, key_groups))

    def _read_bytes(self, group: tuple[Section, ...]) -> bytes:
        return read_sections(self.stream, group[0].start, group[-1].end)

    def _read(
        self, group: tuple[Section, ...], raw: bytes, state_ids: Sequence[int], context: RecordContext
    ) -> Iterator[tuple[int, Runs]]:
        forms = make_forms(self.header, context)
        first = group[0].start
        for section in group:
            with at(file=self.name):
                wanted = frozenset(state_ids)
                yield (
                    section.key_group,
                    self._read_section(raw, first, section, wanted, forms, by_block=context.by_block),
                )

    def _read_section(
        self,
        raw: bytes,
        first: int,
        section: Section,
        wanted: frozenset[int],
        forms: Sequence[EntryForm],
        *,
        by_block: bool,
    ) -> Runs:
        start, end = section.start - first, section.end - first
        if end - start < _KEY_GROUP or raw[start : start + _KEY_GROUP] != section.key_group.to_bytes(_KEY_GROUP, "big"):
            raise FormatError(
                f"the section of key group {section.key_group} does not begin with its number",
                where=Where(file=self.name, offset=section.start),
            )
        start += _KEY_GROUP
        offset = first
        if self.header.compressed:
            raw, start, offset = decompress_section(raw, section, start, self.name, first), 0, 0
            end = len(raw)
        data = np.frombuffer(raw, np.uint8)
        runs: Runs = []
        left = set(wanted)

        def read(block: Block) -> int:
            """Read the entries of a state, which are wanted or come before wanted ones; the offset after them."""
            with at(state=self.header.states[block.state_id].name):
                form = forms[block.state_id]
                begin = start + block.start
                try:
                    entries, stop = form.read(data, begin, end, block.count, offset, self.name)
                except UnsupportedError as error:
                    after = block.stop + start if block.stop > block.start else find_end(block, error)
                    if block.state_id in wanted:
                        if not form.is_opaque:
                            raise
                        if not by_block:
                            raise UnsupportedError(
                                "entries in the native format of the heap backend have no lengths, so that nothing in "
                                f"the file tells where an entry ends: {error.what}",
                                where=error.where,
                                hint=error.hint,
                            ) from error
                        record = make_block_record(section.key_group, data, begin, after, offset, self.name)
                        runs.append((block.state_id, record))
                    return after
                if block.state_id in wanted:
                    records = entries.to_records(section.key_group, form, data, offset, self.name)
                    if len(records):
                        runs.append((block.state_id, records))
            return stop

        def find_end(block: Block, error: UnsupportedError) -> int:
            """Find the end of a block whose entries have no known length, if the blocks after it prove it."""
            seen = {each.state_id for each in known} | {block.state_id}
            others = frozenset(range(len(self.header.states))) - seen
            found = None if section.is_open else find_block_end(data, start + block.start, end, others, forms)
            if found is None:
                name = self.header.states[block.state_id].name
                raise UnsupportedError(
                    f"the end of the entries of state {name} in key group {section.key_group} is not known, so that "
                    f"states after it cannot be found: {error.what}",
                    where=error.where,
                    hint=error.hint,
                ) from error
            return found

        known = self.blocks.of(section.key_group)
        for block in known:
            left.discard(block.state_id)
            if block.state_id in wanted and block.count:
                read(block)
        reader = Reader(raw, self.name, start + known[-1].stop if known else start, end)
        while len(known) < len(self.header.states) and left:
            place, state_id, count = reader.position, reader.i16(), reader.i32()
            if not 0 <= state_id < len(self.header.states) or count < 0:
                raise FormatError(
                    f"key group {section.key_group}: {count} entries of state {state_id}, which is not in the header",
                    where=Where(file=self.name, offset=offset + place),
                )
            left.discard(state_id)
            block = Block(state_id, count, reader.position - start, reader.position - start)
            if count:
                reader.position = read(block)
            known.append(replace(block, stop=reader.position - start))
            if len(known) == len(self.header.states) and not section.is_open:
                reader.expect_end(f"the states of key group {section.key_group}")
        return runs


_KEY_GROUP = 4
"""Bytes of the number in front of a section."""


def _measure(group: tuple[Section, ...]) -> int:
    """Bytes of adjacent sections that are read at once; none of a piece, which is read as its entries are."""
    return 0 if group[0].piece is not None else group[-1].end - group[0].start


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
        FormatError: an offset is outside the stream, or the header is malformed.
    """
    header, sections = open_sections(stream, key_groups, offsets, narrowed=narrowed, reading=reading)
    return HeapFile(stream, header, key_groups, sections)


@dataclass
class HeapWriter:
    """Writes one stream of the heap backend, key group after key group; the mirror of `open_heap` and `HeapFile`.

    Attributes:
        output: where the bytes go.
        header: written at once.
        key_groups: range of the handle.
        context: of the operator.
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
        self._forms = make_forms(self.header, self.context)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Position per key group, for the handle."""
        return tuple(self._offsets)

    def write_key_group(self, key_group: int, runs: Runs) -> None:
        """Write the section of the next key group of the range, which may have no records.

        Args:
            key_group: the key groups come in order, all of them.
            runs: records of the canonical form by state id.

        Raises:
            FormatError: a record does not fit its serializers.
        """
        expected = self.key_groups.start + len(self._offsets)
        assert key_group == expected, f"key group {key_group} was written where {expected} comes"
        self._offsets.append(self.size)
        self._put(key_group.to_bytes(_KEY_GROUP, "big"))
        by_state: dict[int, list[KeyedRecords]] = {}
        for state_id, records in runs:
            by_state.setdefault(state_id, []).append(records)
        for state_id, (info, form) in enumerate(zip(self.header.states, self._forms, strict=True)):
            count, entries = 0, b""
            if state_id in by_state:
                records = concat_records(by_state[state_id])
                with at(state=info.name):
                    made = form.gather(records)
                count, entries = made.count, made.to_bytes(records.data)
            block = state_id.to_bytes(2, "big") + count.to_bytes(4, "big") + entries
            self._put(compress(block) if self.header.compressed else block)

    def _put(self, raw: bytes) -> None:
        self.size += self.output.write(raw)
