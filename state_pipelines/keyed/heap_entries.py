"""Entries and blocks of the heap backend, and their conversion to canonical records and back.

* `HeapEntries`, `EntryCodec`: entries to canonical records, and back.
* `HeapBlocks`, `BlockReader`: blocks, the entries of one state in one key group. A section has a block per state: `i16`
  state id, `i32` number of entries, the entries. Only parsing finds the end of a block. Flink writes the states of
  every section of a file in the same order, so that the blocks with the same number of many sections are parsed by one
  call of the kernel. Source: `HeapSnapshotStrategy`, `StateTableByKeyGroupReaders`.
* `find_block_end`: ends of blocks whose entries have no known length, because their serializer has no reader. The end
  of such a block is proven when the blocks after it parse, are those of all other states of the section, and end
  exactly where the section does, and when that holds at one offset only.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import walk_layout
from state_pipelines.codecs.kernels.opcodes import MAX_EMPTY_ITEMS
from state_pipelines.codecs.programs import smallest_size
from state_pipelines.errors import FormatError, UnsupportedError, Where, at
from state_pipelines.keyed import kernels
from state_pipelines.keyed.record_layout import (
    KeyedLayout,
    KeyedRecords,
    Measure,
    cut_nulls,
    derive_keyed_layout,
    take_bytes,
)
from state_pipelines.serializers.build import basic
from state_pipelines.serializers.tree import BasicKind, Declared, Opaque, StateKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import RecordContext, Runs
    from state_pipelines.metadata.handles import KeyGroupRange

HEAD = 6
"""Size in bytes of the head of a block: state id and number of entries."""

MAX_ATTEMPTS = 10_000
"""Maximum number of offsets that are tried in one section."""

MAX_WORK = 1 << 30
"""Maximum number of bytes that all tries in one section may parse."""


def find_block_end(
    data: npt.NDArray[np.uint8], start: int, end: int, left: frozenset[int], codecs: Sequence[EntryCodec]
) -> int | None:
    """Find the end of a block whose entries begin at `start`; return None if it cannot be proven.

    Args:
        data: u8, holds the section.
        start: first byte of the entries.
        end: of the section.
        left: ids of the states whose blocks come after this block in the section.
        codecs: of all states.
    """
    if not left:
        return end
    found: int | None = None
    work = 0
    for attempts, head in enumerate(_find_heads(data, start, end, left)[: MAX_ATTEMPTS + 1].tolist()):
        if attempts == MAX_ATTEMPTS or work >= MAX_WORK:
            return None
        fits, stop = _try_blocks(data, head, end, left, codecs)
        work += stop - head
        if fits:
            if found is not None:
                return None
            found = head
    return found


def make_block_record(
    key_group: int, data: npt.NDArray[np.uint8], start: int, end: int, offset: int, name: str
) -> KeyedRecords:
    """Make one record with an empty key, whose value is all entries of a state in a key group."""
    starts, ends = np.array([start], np.int64), np.array([end], np.int64)
    return KeyedRecords(np.array([key_group], np.int32), data, starts, starts, starts, ends, offset, name)


def _find_heads(data: npt.NDArray[np.uint8], start: int, end: int, left: frozenset[int]) -> npt.NDArray[np.int64]:
    """Find the offsets at which the block of one of the states `left`, which are not found yet, can begin."""
    if end - start < HEAD:
        return np.zeros(0, np.int64)
    raw = data[start:end].astype(np.int64)
    count = len(raw) - HEAD + 1
    ids = raw[:count] << 8 | raw[1 : count + 1]
    numbers = raw[2 : count + 2] << 24 | raw[3 : count + 3] << 16 | raw[4 : count + 4] << 8 | raw[5 : count + 5]
    return np.flatnonzero(np.isin(ids, list(left)) & (numbers <= len(raw))) + start


def _try_blocks(
    data: npt.NDArray[np.uint8], position: int, end: int, left: frozenset[int], codecs: Sequence[EntryCodec]
) -> tuple[bool, int]:
    """Return whether blocks of all states `left` fill the bytes from `position` to `end`, and where parsing stopped."""
    missing = set(left)
    while missing:
        if end - position < HEAD:
            return False, position
        head = data[position : position + HEAD].tobytes()
        state_id, count = int.from_bytes(head[:2], "big"), int.from_bytes(head[2:], "big")
        if state_id not in missing:
            return False, position
        missing.remove(state_id)
        position += HEAD
        if count:
            try:
                _, position = codecs[state_id].read(data, position, end, count, 0, "")
            except FormatError as error:
                return False, error.where.offset or position
            except UnsupportedError:
                # The end of this block is not known either, because its entries cannot be measured. Nothing contradicts
                # the blocks before it if it is the last one of the section.
                return not missing, position
    return position == end, position


Spans = npt.NDArray[np.int64]
"""i64[2, n]: starts and ends."""

_NO_OFFSETS = np.zeros(1, np.int64)
_NO_SPANS = np.zeros((2, 0), np.int64)
_NOTHING = KeyedLayout(
    lay.Struct((("state_key", lay.Rest()), ("state_namespace", lay.Rest()))),
    lay.Rest(),
    StateKind.VALUE,
    ttl=False,
    key_serializer=basic(BasicKind.VOID),
    max_parallelism=1,
)


@dataclass(frozen=True)
class HeapEntries:
    """Spans of the fields of entries in a buffer; timers only have `items`.

    Attributes:
        kind: `ONE`, `LIST` or `MAP` of `keyed.kernels`.
        keys: spans of the keys.
        namespaces: spans of the namespaces.
        offsets: i64[n + 1], index in `items` of the first item of each list or map.
        item_keys: spans of the user keys of maps.
        items: spans of the values; of lists their elements, of maps the user values with their null flags.
    """

    kind: int
    keys: Spans
    namespaces: Spans
    offsets: npt.NDArray[np.int64]
    item_keys: Spans
    items: Spans

    def to_records(
        self, key_groups: npt.NDArray[np.int32], codec: EntryCodec, data: npt.NDArray[np.uint8], offset: int, name: str
    ) -> KeyedRecords:
        """Convert the entries to canonical records; empty lists and maps have no record.

        Args:
            key_groups: i32[n], of each entry.
            codec: codec of the state.
            data: u8, holds the entries.
            offset: position of `data` in the file, for errors.
            name: of the file, for errors.
        """
        if codec.is_timer:
            starts, ends = self.items
            return KeyedRecords(key_groups, data, starts, ends, ends, ends, offset, name)
        measured = codec.measured
        repeats: npt.NDArray[np.int64] | int = 1
        if self.kind != kernels.ONE:
            # Empty lists and maps are left out, as in Flink (`HeapKeyValueStateIterator`): in the canonical format the
            # value of an empty list would have no bytes.
            filled = np.diff(self.offsets)
            repeats = filled if self.kind == kernels.MAP else np.minimum(filled, 1)
        sizes = (self.keys[1] - self.keys[0]) + (self.namespaces[1] - self.namespaces[0]) + (16 if measured else 0)
        count = self.keys.shape[1] if isinstance(repeats, int) else int(repeats.sum())
        room = int((sizes * repeats).sum() + _size(self.item_keys) + _size(self.items)) + self.items.shape[1]
        target = np.empty(room, np.uint8)
        spans = np.empty((4, count), np.int64)
        used = kernels.write_records(
            self.kind,
            measured,
            data.ctypes.data,
            self.keys,
            self.namespaces,
            self.offsets,
            self.item_keys,
            self.items,
            target.ctypes.data,
            spans,
        )
        groups = key_groups if isinstance(repeats, int) else np.repeat(key_groups, repeats)
        return KeyedRecords(groups, target[:used], spans[0], spans[1], spans[2], spans[3], 0, name)

    @property
    def count(self) -> int:
        """Number of entries of the heap format; a list or map is one. Entries that were read as timers do not count."""
        return int(self.keys.shape[1])

    def to_bytes(self, data: npt.NDArray[np.uint8]) -> bytes:
        """Write the entries as the heap backend does; `data` is the buffer of the spans."""
        room = sum(map(_size, (self.keys, self.namespaces, self.item_keys, self.items))) + 4 * self.keys.shape[1]
        target = np.empty(room, np.uint8)
        used = kernels.write_entries(
            self.kind,
            data.ctypes.data,
            self.keys,
            self.namespaces,
            self.offsets,
            self.item_keys,
            self.items,
            target.ctypes.data,
        )
        return target[:used].tobytes()


def _size(spans: Spans) -> int:
    return int((spans[1] - spans[0]).sum())


class EntryCodec:
    """Codec between the entries of one state in heap files and its canonical records.

    Args:
        layout: layouts of the records.
    """

    def __init__(self, layout: KeyedLayout) -> None:
        self.is_timer = layout.state_type == StateKind.TIMER
        self.measured = isinstance(layout.key.fields[0][1], lay.MeasuredKey)
        self.kind = {StateKind.LIST: kernels.LIST, StateKind.MAP: kernels.MAP}.get(layout.state_type, kernels.ONE)
        self.entries = Measure(_entry_layout(layout))
        self._smallest = smallest_size(_entry_layout(layout))
        self.keys = Measure(_key_spans(layout))
        self.is_opaque = has_opaque(layout)
        self.elements: Measure | None = None
        if isinstance(layout.value, lay.Delimited):
            self.elements = Measure(lay.Delimited(lay.Span(layout.value.element)))

    def read(
        self, data: npt.NDArray[np.uint8], start: int, end: int, count: int, offset: int, name: str
    ) -> tuple[HeapEntries, int]:
        """Find the fields of `count` entries, and the end of the last one.

        Raises:
            FormatError: the bytes are too few for this number of entries, or do not fit the serializers.
        """
        starts, ends, counts, offsets = (np.array([each], np.int64) for each in (start, end, count, offset))
        entries, stops = self.read_blocks(data, starts, ends, counts, offsets, name)
        return entries, int(stops[0])

    def read_blocks(
        self,
        data: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        name: str,
    ) -> tuple[HeapEntries, npt.NDArray[np.int64]]:
        """Find the fields of the entries of several key groups, and the end of the last entry of each.

        Args:
            data: u8.
            starts: i64[m], first byte of the first entry of each key group.
            ends: i64[m], offsets beyond which no entry of the key group may reach.
            counts: i64[m], entries of each key group.
            offsets: i64[m], position of `data` in the file, for errors.
            name: of the file, for errors.

        Raises:
            FormatError: the bytes are too few for this number of entries, or do not fit the serializers.
        """
        left = ends - starts
        bad = counts * self._smallest > left if self._smallest else counts > MAX_EMPTY_ITEMS
        if bad.any():
            first = int(np.argmax(bad))
            what = f"{counts[first]} entries do not fit in the {left[first]} bytes left"
            raise FormatError(what, where=Where(file=name, offset=int(offsets[first] + starts[first])))
        found, stops = self.entries.sequences(data, starts, ends, counts, offsets=offsets, name=name)
        if self.is_timer:
            return HeapEntries(kernels.ONE, _NO_SPANS, _NO_SPANS, _NO_OFFSETS, _NO_SPANS, found.spans), stops
        keys, namespaces, value = found.field("key").spans, found.field("namespace").spans, found.field("value")
        if self.kind == kernels.ONE:
            return HeapEntries(self.kind, keys, namespaces, _NO_OFFSETS, _NO_SPANS, value.spans), stops
        items = value.elements
        if self.kind == kernels.LIST:
            return HeapEntries(self.kind, keys, namespaces, value.offsets, _NO_SPANS, items.spans), stops
        user_keys, user_values = items.field("key").spans, items.field("value").spans
        return HeapEntries(self.kind, keys, namespaces, value.offsets, user_keys, user_values), stops

    def gather(self, records: KeyedRecords) -> HeapEntries:
        """Convert the records of one key group to entries."""
        data, starts, values = records.data, records.key_starts, np.stack([records.value_starts, records.value_ends])
        if self.is_timer:
            none = np.zeros((2, len(records)), np.int64)
            return HeapEntries(kernels.ONE, none, none, _NO_OFFSETS, _NO_SPANS, np.stack([starts, records.key_ends]))
        found = self.keys.bounds(data, starts, records.key_ends, offset=records.offset, name=records.file)
        keys, namespaces = found.field("state_key").spans, found.field("state_namespace").spans
        if self.elements is not None:
            lists = self.elements.bounds(data, values[0], values[1], offset=records.offset, name=records.file)
            return HeapEntries(self.kind, keys, namespaces, lists.offsets, _NO_SPANS, lists.elements.spans)
        if self.kind == kernels.ONE:
            return HeapEntries(self.kind, keys, namespaces, _NO_OFFSETS, _NO_SPANS, values)
        user_keys = found.field("map_key").spans
        values[1] = cut_nulls(records)
        # Entries of a map become one entry of the heap format, wherever their records are; maps come in the order of
        # their first records.
        owner = take_bytes(data, starts, user_keys[0]).dictionary_encode().indices.to_numpy()
        order = np.argsort(owner, kind="stable")
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(owner))])
        heads = order[offsets[:-1]]
        return HeapEntries(
            self.kind, keys[:, heads], namespaces[:, heads], offsets, user_keys[:, order], values[:, order]
        )

    def require_ends(self, records: KeyedRecords) -> None:
        """Check that records can be read back after they are written as heap entries, which store no lengths.

        Args:
            records: of the state, in any key groups.

        Raises:
            UnsupportedError: a value is of a class for which there is no reader.
            FormatError: the bytes do not fit the serializers.
        """
        entries = self.gather(records)
        data = np.frombuffer(entries.to_bytes(records.data), np.uint8)
        count = entries.items.shape[1] if self.is_timer else entries.count
        self.read(data, 0, len(data), count, 0, records.file)


class UnmeasuredCodec(EntryCodec):
    """Codec of a state whose entries cannot be measured; reading and writing raise an error.

    Args:
        error: the error to raise, which says why.
    """

    def __init__(self, error: UnsupportedError) -> None:
        super().__init__(_NOTHING)
        self.is_opaque = True
        self.error = error

    def read_blocks(  # noqa: D102
        self,
        data: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        name: str,
    ) -> tuple[HeapEntries, npt.NDArray[np.int64]]:
        raise self.error

    def gather(self, records: KeyedRecords) -> HeapEntries:  # noqa: D102
        raise self.error


def has_opaque(layout: KeyedLayout) -> bool:
    """Return whether keys or values hold data of a serializer without a reader or declaration."""
    return find_opaque(layout) is not None


def find_opaque(layout: KeyedLayout) -> Opaque | None:
    """Find the serializer snapshot of a part of keys or values that has neither a reader nor a declaration."""
    layouts = (inner for side in (layout.key, layout.value) for inner in walk_layout(side))
    return next((each for inner in layouts if (each := find_unread_class(inner)) is not None), None)


def find_unread_class(layout: lay.Layout) -> Opaque | None:
    """Return the serializer snapshot of a value if it has neither a reader nor a declaration; else None."""
    node = layout.serializer if isinstance(layout, lay.Dynamic) else None
    return node if isinstance(node, Opaque) and not isinstance(node, Declared) else None


def make_entry_codecs(header: KeyedHeader, context: RecordContext) -> list[EntryCodec]:
    """Make the codecs of all states of a header."""
    codecs: list[EntryCodec] = []
    for info in header.states:
        try:
            with at(state=info.name):
                layout = derive_keyed_layout(info, header.key_serializer, context.max_parallelism, context.layouts)
                codecs.append(EntryCodec(layout))
        except UnsupportedError as error:
            codecs.append(UnmeasuredCodec(error))
    return codecs


def _entry_layout(layout: KeyedLayout) -> lay.Layout:
    """Return the layout of an entry with a span for every field, so that decoding returns the bounds of the fields."""
    if layout.state_type == StateKind.TIMER:
        return lay.Span(layout.key)
    key, namespace = (_unmeasured(each) for _, each in layout.key.fields[:2])
    value: lay.Layout = lay.Span(layout.value)
    if isinstance(layout.value, lay.Delimited):
        value = lay.Sequence(lay.Span(layout.value.element))
    elif layout.state_type == StateKind.MAP and isinstance(layout.value, lay.Optional):
        # The null flag of a map value is part of the value's bytes in a record. In the heap format, a null has its flag
        # only.
        item = lay.Span(lay.Optional(layout.value.inner))
        value = lay.Sequence(lay.Struct((("key", lay.Span(layout.key.fields[2][1])), ("value", item))))
    return lay.Struct((("namespace", lay.Span(namespace)), ("key", lay.Span(key)), ("value", value)))


def _unmeasured(layout: lay.Layout) -> lay.Layout:
    return layout.inner if isinstance(layout, lay.MeasuredKey) else layout


def _key_spans(layout: KeyedLayout) -> lay.Layout:
    """Return the layout of a record's key with a span for every field, without the lengths after key and namespace."""
    return lay.Struct(
        tuple(
            (name, lay.MeasuredKey(lay.Span(each.inner)) if isinstance(each, lay.MeasuredKey) else lay.Span(each))
            for name, each in layout.key.fields
        )
    )


Positions = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]

_STATE, _COUNT, _START, _STOP = range(4)


class HeapBlocks:
    """Cache of the codecs and block positions of a file; a pickled copy is empty.

    The start of a block is only found by parsing all blocks before it, so its position is cached. Codecs are cached
    because making them takes longer than reading a small section.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._codecs: tuple[RecordContext, list[EntryCodec]] | None = None
        self._first = 0
        self._known = np.zeros(0, np.int64)
        self._blocks = np.zeros((0, 4, 0), np.int64)

    def prepare(self, key_groups: KeyGroupRange, states: int) -> None:
        """Allocate the table of block positions at the first call; all positions are unknown then."""
        # Threads may read different sections of a file at the same time.
        with self._lock:
            if len(self._known) != len(key_groups):
                self._first = key_groups.start
                # Pages of zeros take no memory before they are written to.
                self._blocks = np.zeros((states, 4, len(key_groups)), np.int64)
                self._known = np.zeros(len(key_groups), np.int64)

    def find_entry_codecs(self, header: KeyedHeader, context: RecordContext) -> list[EntryCodec]:
        """Return the codecs of all states of the file."""
        if self._codecs is None or self._codecs[0] != context:
            self._codecs = context, make_entry_codecs(header, context)
        return self._codecs[1]

    def count(self, key_groups: npt.NDArray[np.int32]) -> Positions:
        """Return the number of blocks of each key group whose positions are cached, i64[n]."""
        return self._known[key_groups - self._first]

    def find(self, number: int, key_groups: npt.NDArray[np.int32]) -> Positions:
        """Return cached block positions.

        Args:
            number: index of the block in its section, from 0.
            key_groups: i32[n].

        Returns:
            i64[4, n]: state id, number of entries, start and end (exclusive) of the entries, relative to the first
            block of the section.
        """
        found: Positions = self._blocks[number][:, key_groups - self._first]
        return found

    def add(self, number: int, key_groups: npt.NDArray[np.int32], blocks: Positions) -> None:
        """Cache the positions of the next blocks of some key groups, in the format of `find`."""
        rows = key_groups - self._first
        self._blocks[number][:, rows] = blocks
        self._known[rows] = number + 1

    def __reduce__(self) -> tuple[type[HeapBlocks], tuple[()]]:
        return HeapBlocks, ()


@dataclass(frozen=True)
class SectionBytes:
    """Bytes of some sections of a file, decompressed.

    Attributes:
        data: u8.
        key_groups: i32[s], ascending.
        starts: i64[s], offset of the first block of each section in `data`.
        ends: i64[s], end of each section in `data`.
        offsets: i64[s], added to an offset in `data` to get the one that an error names: the offset in the file; in a
            compressed file, the offset in the decompressed section.
        is_open: the end of the section is not known, so other bytes may follow the last block.
        name: of the file.
    """

    data: npt.NDArray[np.uint8]
    key_groups: npt.NDArray[np.int32]
    starts: Positions
    ends: Positions
    offsets: Positions
    is_open: bool
    name: str


@dataclass(frozen=True)
class BlockReader:
    """Reader of blocks, the entries of one state in one key group, from sections of a heap file.

    Attributes:
        header: header of the file.
        codecs: codecs of all states.
        index: cache of block positions.
        wanted: states whose records are wanted.
        by_block: return the entries of a block as one record if they cannot be measured, instead of an error.
    """

    header: KeyedHeader
    codecs: Sequence[EntryCodec]
    index: HeapBlocks
    wanted: frozenset[int]
    by_block: bool

    def read(self, sections: SectionBytes) -> Runs:
        """Read the records of the wanted states, in the order of their blocks; each run ascends by key group.

        Raises:
            FormatError: the bytes do not have the format.
            UnsupportedError: the entries of a wanted state cannot be measured, or a block whose entries cannot be
                measured is before a wanted block, and its end is not known.
        """
        runs: Runs = []
        states = len(self.header.states)
        known = self.index.count(sections.key_groups)
        positions = sections.starts.copy()
        seen = np.zeros((len(positions), states), np.bool_)
        is_wanted = np.isin(np.arange(states), list(self.wanted))
        missing = np.full(len(positions), len(self.wanted), np.int64)
        for number in range(states):
            rows = np.flatnonzero((known > number) | (missing > 0))
            if not len(rows):
                break
            is_new = known[rows] <= number
            blocks = np.empty((4, len(rows)), np.int64)
            groups = sections.key_groups[rows]
            blocks[:, ~is_new] = self.index.find(number, groups[~is_new])
            blocks[:, is_new] = self._read_heads(sections, rows[is_new], positions[rows[is_new]])
            ids = blocks[_STATE]
            chosen = (blocks[_COUNT] > 0) & (is_new | is_wanted[ids])
            for state_id in np.unique(ids[chosen]).tolist():
                own = np.flatnonzero(chosen & (ids == state_id))
                blocks[_STOP, own], found = self._read_state(sections, rows[own], blocks[:, own], seen[rows[own]])
                runs += found
            positions[rows] = sections.starts[rows] + blocks[_STOP]
            self.index.add(number, groups[is_new], blocks[:, is_new])
            missing[rows] -= is_wanted[ids] & ~seen[rows, ids]
            seen[rows, ids] = True
            if number == states - 1 and not sections.is_open:
                self._expect_ends(sections, rows[is_new], positions)
        return runs

    def _read_heads(self, sections: SectionBytes, rows: Rows, positions: Positions) -> Positions:
        """Read the heads of blocks: i64[4, n] as in `HeapBlocks.find`, with the start of the entries also as end."""
        short = sections.ends[rows] - positions < HEAD
        if short.any():
            raise _make_error(
                sections, int(rows[short][0]), positions[short][0], "the section ends before its states do"
            )
        raw = sections.data[positions[:, None] + np.arange(HEAD)].astype(np.int64)
        ids = (raw[:, 0] << 8 | raw[:, 1]) ^ 0x8000
        ids -= 0x8000
        counts = (raw[:, 2] << 24 | raw[:, 3] << 16 | raw[:, 4] << 8 | raw[:, 5]) ^ 0x80000000
        counts -= 0x80000000
        bad = (ids < 0) | (ids >= len(self.header.states)) | (counts < 0)
        if bad.any():
            what = f"{counts[bad][0]} entries of state {ids[bad][0]}, which is not in the header"
            raise _make_error(sections, int(rows[bad][0]), positions[bad][0], what)
        begins = positions + HEAD - sections.starts[rows]
        return np.stack([ids, counts, begins, begins])

    def _read_state(
        self, sections: SectionBytes, rows: Rows, blocks: Positions, seen: npt.NDArray[np.bool_]
    ) -> tuple[Positions, Runs]:
        """Read blocks of one state in several sections.

        Args:
            sections: hold the blocks.
            rows: i64[n], index of the section of each block.
            blocks: i64[4, n], as in `HeapBlocks`; not empty.
            seen: bool[n, states], states whose blocks come before in the section.

        Returns:
            (i64[n] ends of the blocks, relative to the first block of the section; the records if they are wanted).
        """
        state_id = int(blocks[_STATE, 0])
        codec, starts, name = self.codecs[state_id], sections.starts[rows], sections.name
        with at(state=self.header.states[state_id].name):
            try:
                entries, stops = codec.read_blocks(
                    sections.data,
                    starts + blocks[_START],
                    sections.ends[rows],
                    blocks[_COUNT],
                    sections.offsets[rows],
                    name,
                )
            except UnsupportedError as error:
                if len(rows) == 1:
                    return self._read_unmeasured(sections, int(rows[0]), blocks[:, 0], seen[0], error)
                found = [
                    self._read_state(sections, rows[each], blocks[:, each], seen[each])
                    for each in (slice(number, number + 1) for number in range(len(rows)))
                ]
                return np.concatenate([stops for stops, _ in found]), [run for _, runs in found for run in runs]
            if state_id not in self.wanted:
                return stops - starts, []
            groups = np.repeat(sections.key_groups[rows], blocks[_COUNT])
            records = entries.to_records(groups, codec, sections.data, int(sections.offsets[0]), name)
            return stops - starts, [(state_id, records)] if len(records) else []

    def _read_unmeasured(
        self, sections: SectionBytes, row: int, block: Positions, seen: npt.NDArray[np.bool_], error: UnsupportedError
    ) -> tuple[Positions, Runs]:
        """Read a block whose entries cannot be measured, as one record.

        The blocks after it must prove its end, unless its end is cached.

        Args:
            sections: hold the block.
            row: index of its section.
            block: i64[4], as in `HeapBlocks`.
            seen: bool[states], states whose blocks come before in the section.
            error: says why the entries cannot be measured.

        Returns:
            As `_read_state`.

        Raises:
            UnsupportedError: the end cannot be proven, or the state is wanted and its entries may not be one record.
        """
        state_id, _, start, stop = block.tolist()
        first, offset = int(sections.starts[row]), int(sections.offsets[row])
        if stop == start:
            stop = self._find_end(sections, row, state_id, first + start, seen, error) - first
        runs: Runs = []
        if state_id in self.wanted:
            if not self.codecs[state_id].is_opaque:
                raise error
            if not self.by_block:
                raise UnsupportedError(
                    "entries in the native format of the heap backend have no lengths, so that nothing in the file "
                    f"tells where an entry ends: {error.what}",
                    where=error.where,
                    hint=error.hint,
                ) from error
            group = int(sections.key_groups[row])
            record = make_block_record(group, sections.data, first + start, first + stop, offset, sections.name)
            runs.append((state_id, record))
        return np.array([stop], np.int64), runs

    def _find_end(
        self,
        sections: SectionBytes,
        row: int,
        state_id: int,
        start: int,
        seen: npt.NDArray[np.bool_],
        error: UnsupportedError,
    ) -> int:
        """Find the end of a block whose entries cannot be measured; raise if the blocks after it do not prove it."""
        others = frozenset(np.flatnonzero(~seen).tolist()) - {state_id}
        end = int(sections.ends[row])
        found = None if sections.is_open else find_block_end(sections.data, start, end, others, self.codecs)
        if found is None:
            raise UnsupportedError(
                f"the end of the entries of state {self.header.states[state_id].name} in key group "
                f"{sections.key_groups[row]} is not known, so that states after it cannot be found: {error.what}",
                where=error.where,
                hint=error.hint,
            ) from error
        return found

    def _expect_ends(self, sections: SectionBytes, rows: Rows, positions: Positions) -> None:
        """Check that sections end after their last blocks."""
        left = sections.ends[rows] - positions[rows]
        if left.any():
            first = int(np.flatnonzero(left)[0])
            row = int(rows[first])
            raise _make_error(sections, row, positions[row], f"{left[first]} bytes are left over after the last state")


def _make_error(sections: SectionBytes, row: int, position: int, what: str) -> FormatError:
    where = Where(file=sections.name, offset=int(sections.offsets[row] + position))
    return FormatError(f"key group {sections.key_groups[row]}: {what}", where=where)
