"""Keyed state in the native format of the heap backend: its checkpoints and native savepoints.

Every key group of the range has a section: its number, then every state once, as `i16` state id, `i32` count and the
entries. Nothing says how long an entry is, so that entries are parsed by the layouts of their serializers. With
compression each state of each key group is a snappy framed stream. Source: `HeapSnapshotStrategy`,
`CopyOnWriteStateMapSnapshot`, `HeapPriorityQueueStateSnapshot`, `StateTableByKeyGroupReaders`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.binary.reader import Reader
from state_pipelines.binary.snappyframed import compress
from state_pipelines.binary.writer import Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.errors import FormatError, Where, at
from state_pipelines.keyed import heap_kernels as kernels
from state_pipelines.keyed.header import KeyedHeader, write_keyed_header
from state_pipelines.keyed.measuring import Measure, take_bytes
from state_pipelines.keyed.records import KeyedLayout, KeyedRecords, concat_records, derive_keyed_layout
from state_pipelines.keyed.sections import (
    WINDOW,
    Section,
    decompress_section,
    group_sections,
    open_sections,
    read_sections,
    select_sections,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from state_pipelines.keyed.files import RecordContext, Runs
    from state_pipelines.metadata.key_groups import KeyGroupRange
    from state_pipelines.metadata.streams import StateStream

Spans = npt.NDArray[np.int64]
"""i64[2, n]: starts and ends."""

_NO_OFFSETS = np.zeros(1, np.int64)
_NO_SPANS = np.zeros((2, 0), np.int64)


@dataclass(frozen=True)
class HeapFile:
    """One stream of the heap backend and its handle.

    Attributes:
        key_groups: range of the handle.
        sections: of the key groups, ascending by position.
    """

    stream: StateStream
    header: KeyedHeader
    key_groups: KeyGroupRange
    sections: tuple[Section, ...]

    @property
    def name(self) -> str:
        """Name of the stream."""
        return self.stream.name

    def scan(
        self, state_ids: Sequence[int], context: RecordContext, key_groups: KeyGroupRange | None = None
    ) -> Iterator[tuple[int, KeyedRecords]]:
        """The records of some states (see `KeyedFile.scan`)."""
        ordered = sorted(select_sections(self.sections, key_groups), key=lambda each: each.key_group)
        for group in group_sections(ordered, WINDOW):
            found: dict[int, list[KeyedRecords]] = {}
            for _, runs in self._read(group, state_ids, context):
                for state_id, records in runs:
                    found.setdefault(state_id, []).append(records)
            for state_id, pieces in found.items():
                yield state_id, concat_records(pieces)

    def scan_key_groups(self, context: RecordContext, key_groups: KeyGroupRange) -> Iterator[tuple[int, Runs]]:
        """All records, one key group after the other; the states of a section come in their order."""
        ordered = sorted(select_sections(self.sections, key_groups), key=lambda each: each.key_group)
        for group in group_sections(ordered, WINDOW):
            for key_group, runs in self._read(group, range(len(self.header.states)), context):
                if runs:
                    yield key_group, runs

    def split(self, size: int, context: RecordContext, key_groups: KeyGroupRange | None = None) -> Iterator[HeapFile]:
        """Parts of about `size` bytes."""
        for sections in group_sections(select_sections(self.sections, key_groups), size):
            yield replace(self, sections=sections)

    def _read(
        self, group: tuple[Section, ...], state_ids: Sequence[int], context: RecordContext
    ) -> Iterator[tuple[int, Runs]]:
        forms = _make_forms(self.header, context)
        first = group[0].start
        raw = read_sections(self.stream, first, group[-1].end)
        for section in group:
            with at(file=self.name):
                yield section.key_group, self._read_section(raw, first, section, frozenset(state_ids), forms)

    def _read_section(
        self, raw: bytes, first: int, section: Section, wanted: frozenset[int], forms: Sequence[_Form]
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
            raw, start, offset = decompress_section(raw, start, end, self.name, first), 0, 0
            end = len(raw)
        data = np.frombuffer(raw, np.uint8)
        reader = Reader(raw, self.name, start, end)
        runs: Runs = []
        left = set(wanted)
        seen = 0
        while seen < len(self.header.states) and left:
            place, state_id, count = reader.position, reader.i16(), reader.i32()
            if not 0 <= state_id < len(self.header.states) or count < 0:
                raise FormatError(
                    f"key group {section.key_group}: {count} entries of state {state_id}, which is not in the header",
                    where=Where(file=self.name, offset=offset + place),
                )
            with at(state=self.header.states[state_id].name):
                form = forms[state_id]
                entries, reader.position = form.read(data, reader.position, end, count, offset, self.name)
                if state_id in wanted and count:
                    runs.append((state_id, entries.to_records(section.key_group, form, data, self.name)))
            left.discard(state_id)
            seen += 1
        if seen == len(self.header.states):
            reader.expect_end(f"the states of key group {section.key_group}")
        return runs


_KEY_GROUP = 4
"""Bytes of the number in front of a section."""


def open_heap(stream: StateStream, key_groups: KeyGroupRange, offsets: Sequence[int]) -> HeapFile:
    """Read the header behind a handle and find its sections.

    Args:
        stream: the stream of the handle.
        key_groups: range of the handle.
        offsets: position per key group.

    Raises:
        FormatError: an offset lies outside the stream, or the header is not one.
    """
    header, sections = open_sections(stream, key_groups, offsets)
    return HeapFile(stream, header, key_groups, sections)


@dataclass(frozen=True)
class _Entries:
    """Where the parts of some entries lie; of timers only `items`, the elements.

    Attributes:
        kind: of `heap_kernels`.
        keys: of the entries.
        namespaces: of the entries.
        offsets: i64[n + 1] first item of each entry of a list or map.
        item_keys: user keys of a map.
        items: values; elements of a list; null flags and user values of a map.
    """

    kind: int
    keys: Spans
    namespaces: Spans
    offsets: npt.NDArray[np.int64]
    item_keys: Spans
    items: Spans

    def to_records(self, key_group: int, form: _Form, data: npt.NDArray[np.uint8], name: str) -> KeyedRecords:
        """The entries as records of the canonical form."""
        if form.is_timer:
            starts, ends = self.items
            groups = np.full(len(starts), key_group, np.int32)
            return KeyedRecords(groups, data, starts, ends, ends, ends, 0, name)
        measured = form.measured
        repeats = np.diff(self.offsets) if self.kind == kernels.MAP else 1
        sizes = (self.keys[1] - self.keys[0]) + (self.namespaces[1] - self.namespaces[0]) + (16 if measured else 0)
        count = self.items.shape[1] if self.kind == kernels.MAP else self.keys.shape[1]
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
        return KeyedRecords(
            np.full(count, key_group, np.int32), target[:used], spans[0], spans[1], spans[2], spans[3], 0, name
        )

    @property
    def count(self) -> int:
        """How many entries there are."""
        return int(self.keys.shape[1])

    def to_bytes(self, data: npt.NDArray[np.uint8]) -> bytes:
        """The entries as the heap backend writes them."""
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


class _Form:
    """What the entries of one state look like here, and its records in the canonical form.

    Args:
        layout: layouts of the records.
    """

    def __init__(self, layout: KeyedLayout) -> None:
        self.is_timer = layout.state_type == "TIMER"
        self.measured = isinstance(layout.key.fields[0][1], lay.MeasuredKey)
        self.kind = {"LIST": kernels.LIST, "MAP": kernels.MAP}.get(layout.state_type, kernels.ONE)
        self.entries = Measure(_entry_layout(layout))
        self.keys = Measure(_key_spans(layout))
        self.elements: Measure | None = None
        if isinstance(layout.value, lay.Delimited):
            self.elements = Measure(lay.Delimited(lay.Span(layout.value.element)))

    def read(
        self, data: npt.NDArray[np.uint8], start: int, end: int, count: int, offset: int, name: str
    ) -> tuple[_Entries, int]:
        """Find the parts of `count` entries; the position behind them."""
        found, stop = self.entries.sequence(data, start, end, count, offset=offset, name=name)
        if self.is_timer:
            return _Entries(kernels.ONE, _NO_SPANS, _NO_SPANS, _NO_OFFSETS, _NO_SPANS, _spans(found)), stop
        keys, namespaces, value = _spans(found.field("key")), _spans(found.field("namespace")), found.field("value")
        if self.kind == kernels.ONE:
            return _Entries(self.kind, keys, namespaces, _NO_OFFSETS, _NO_SPANS, _spans(value)), stop
        offsets, items = np.asarray(value.offsets).astype(np.int64), value.values
        if self.kind == kernels.LIST:
            return _Entries(self.kind, keys, namespaces, offsets, _NO_SPANS, _spans(items)), stop
        return _Entries(
            self.kind, keys, namespaces, offsets, _spans(items.field("key")), _spans(items.field("value"))
        ), stop

    def gather(self, records: KeyedRecords) -> _Entries:
        """Records of one key group as entries."""
        data, starts, values = records.data, records.key_starts, np.stack([records.value_starts, records.value_ends])
        if self.is_timer:
            none = np.zeros((2, len(records)), np.int64)
            return _Entries(kernels.ONE, none, none, _NO_OFFSETS, _NO_SPANS, np.stack([starts, records.key_ends]))
        found = self.keys.spans(data, starts, records.key_ends, offset=records.offset, name=records.file)
        keys, namespaces = _spans(found.field("state_key")), _spans(found.field("state_namespace"))
        if self.elements is not None:
            lists = self.elements.spans(data, values[0], values[1], offset=records.offset, name=records.file)
            offsets = np.asarray(lists.offsets).astype(np.int64)
            return _Entries(self.kind, keys, namespaces, offsets, _NO_SPANS, _spans(lists.values))
        if self.kind == kernels.ONE:
            return _Entries(self.kind, keys, namespaces, _NO_OFFSETS, _NO_SPANS, values)
        user_keys = _spans(found.field("map_key"))
        # Entries of one map belong together, wherever their records are; maps in the order of their first entries.
        owner = take_bytes(data, starts, user_keys[0]).dictionary_encode().indices.to_numpy()
        order = np.argsort(owner, kind="stable")
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(owner))])
        heads = order[offsets[:-1]]
        # A null has no bytes behind its flag; those of a canonical savepoint of the heap backend may have some.
        values[1] = np.where(data[values[0]] != 0, values[0] + 1, values[1])
        return _Entries(self.kind, keys[:, heads], namespaces[:, heads], offsets, user_keys[:, order], values[:, order])


def _make_forms(header: KeyedHeader, context: RecordContext) -> list[_Form]:
    """The forms of all states of a header."""
    forms = []
    for info in header.states:
        with at(state=info.name):
            forms.append(
                _Form(derive_keyed_layout(info, header.key_serializer, context.max_parallelism, context.layouts))
            )
    return forms


def _entry_layout(layout: KeyedLayout) -> lay.Layout:
    """Layout of an entry; every part is a span."""
    if layout.state_type == "TIMER":
        return lay.Span(layout.key)
    key, namespace = (_unmeasured(each) for _, each in layout.key.fields[:2])
    value: lay.Layout = lay.Span(layout.value)
    if isinstance(layout.value, lay.Delimited):
        value = lay.Sequence(lay.Span(layout.value.element))
    elif layout.state_type == "MAP" and isinstance(layout.value, lay.Optional):
        # The flag belongs to the value of a record; nothing follows that of a null here.
        item = lay.Span(lay.Optional(layout.value.inner))
        value = lay.Sequence(lay.Struct((("key", lay.Span(layout.key.fields[2][1])), ("value", item))))
    return lay.Struct((("namespace", lay.Span(namespace)), ("key", lay.Span(key)), ("value", value)))


def _unmeasured(layout: lay.Layout) -> lay.Layout:
    return layout.inner if isinstance(layout, lay.MeasuredKey) else layout


def _spans(array: pa.StructArray) -> Spans:
    return np.stack([np.asarray(array.field(0)), np.asarray(array.field(1))])


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
        self._forms = _make_forms(self.header, self.context)

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


def _key_spans(layout: KeyedLayout) -> lay.Layout:
    """The key side of a record; every part is a span, without the lengths behind key and namespace."""
    return lay.Struct(
        tuple(
            (name, lay.MeasuredKey(lay.Span(each.inner)) if isinstance(each, lay.MeasuredKey) else lay.Span(each))
            for name, each in layout.key.fields
        )
    )
