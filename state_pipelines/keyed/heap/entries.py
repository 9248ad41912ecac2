"""Entries of the heap backend: bounds of their fields, and conversion to records of the canonical form and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import walk_layout
from state_pipelines.codecs.kernels.opcodes import MAX_EMPTY_ITEMS
from state_pipelines.codecs.minimal_sizes import smallest_size
from state_pipelines.errors import FormatError, UnsupportedError, Where, at
from state_pipelines.keyed.heap import kernels as kernels
from state_pipelines.keyed.record_bounds import Measure, take_bytes
from state_pipelines.keyed.record_layout import KeyedLayout, KeyedRecords, cut_nulls, derive_keyed_layout
from state_pipelines.serializers.build import basic
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.tree import BasicKind, Declared, Opaque

if TYPE_CHECKING:
    from state_pipelines.keyed.header import KeyedHeader
    from state_pipelines.keyed.keyed_file import RecordContext

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
class Entries:
    """Bounds of the fields of entries; for timers only `items`, the elements.

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

    def to_records(
        self, key_groups: npt.NDArray[np.int32], codec: EntryCodec, data: npt.NDArray[np.uint8], offset: int, name: str
    ) -> KeyedRecords:
        """The entries as records of the canonical form; lists and maps without anything in them give none.

        Args:
            key_groups: i32[n], of each entry.
            codec: of the state.
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
            # As Flink does (`HeapKeyValueStateIterator`): elsewhere an empty list would be a value without bytes.
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
        """The number of entries."""
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


class EntryCodec:
    """Layout of the entries of one state, and of its records in the canonical form.

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
    ) -> tuple[Entries, int]:
        """Find the fields of `count` entries, and the end of the last one.

        Raises:
            FormatError: so many entries do not fit, or the bytes do not fit the serializers.
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
    ) -> tuple[Entries, npt.NDArray[np.int64]]:
        """Find the fields of the entries of several key groups, and the end of the last entry of each.

        Args:
            data: u8.
            starts: i64[m], first byte of the first entry of each key group.
            ends: i64[m], no entry reaches beyond it.
            counts: i64[m], entries of each key group.
            offsets: i64[m], position of `data` in the file, for errors.
            name: of the file, for errors.

        Raises:
            FormatError: so many entries do not fit, or the bytes do not fit the serializers.
        """
        left = ends - starts
        bad = counts * self._smallest > left if self._smallest else counts > MAX_EMPTY_ITEMS
        if bad.any():
            first = int(np.argmax(bad))
            what = f"{counts[first]} entries do not fit in the {left[first]} bytes left"
            raise FormatError(what, where=Where(file=name, offset=int(offsets[first] + starts[first])))
        found, stops = self.entries.sequences(data, starts, ends, counts, offsets=offsets, name=name)
        if self.is_timer:
            return Entries(kernels.ONE, _NO_SPANS, _NO_SPANS, _NO_OFFSETS, _NO_SPANS, found.spans), stops
        keys, namespaces, value = found.field("key").spans, found.field("namespace").spans, found.field("value")
        if self.kind == kernels.ONE:
            return Entries(self.kind, keys, namespaces, _NO_OFFSETS, _NO_SPANS, value.spans), stops
        items = value.elements
        if self.kind == kernels.LIST:
            return Entries(self.kind, keys, namespaces, value.offsets, _NO_SPANS, items.spans), stops
        user_keys, user_values = items.field("key").spans, items.field("value").spans
        return Entries(self.kind, keys, namespaces, value.offsets, user_keys, user_values), stops

    def gather(self, records: KeyedRecords) -> Entries:
        """Records of one key group as entries."""
        data, starts, values = records.data, records.key_starts, np.stack([records.value_starts, records.value_ends])
        if self.is_timer:
            none = np.zeros((2, len(records)), np.int64)
            return Entries(kernels.ONE, none, none, _NO_OFFSETS, _NO_SPANS, np.stack([starts, records.key_ends]))
        found = self.keys.bounds(data, starts, records.key_ends, offset=records.offset, name=records.file)
        keys, namespaces = found.field("state_key").spans, found.field("state_namespace").spans
        if self.elements is not None:
            lists = self.elements.bounds(data, values[0], values[1], offset=records.offset, name=records.file)
            return Entries(self.kind, keys, namespaces, lists.offsets, _NO_SPANS, lists.elements.spans)
        if self.kind == kernels.ONE:
            return Entries(self.kind, keys, namespaces, _NO_OFFSETS, _NO_SPANS, values)
        user_keys = found.field("map_key").spans
        values[1] = cut_nulls(records)
        # Entries of one map belong together, wherever their records are; maps in the order of their first entries.
        owner = take_bytes(data, starts, user_keys[0]).dictionary_encode().indices.to_numpy()
        order = np.argsort(owner, kind="stable")
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(owner))])
        heads = order[offsets[:-1]]
        return Entries(self.kind, keys[:, heads], namespaces[:, heads], offsets, user_keys[:, order], values[:, order])

    def require_ends(self, records: KeyedRecords) -> None:
        """Require that the ends of records are found where they are entries, which have no lengths.

        Args:
            records: of the state, in any key groups.

        Raises:
            UnsupportedError: a value is of a class that nothing here reads.
            FormatError: the bytes do not fit the serializers.
        """
        entries = self.gather(records)
        data = np.frombuffer(entries.to_bytes(records.data), np.uint8)
        count = entries.items.shape[1] if self.is_timer else entries.count
        self.read(data, 0, len(data), count, 0, records.file)


class UnmeasuredCodec(EntryCodec):
    """Codec of a state whose entries have no known length.

    Args:
        error: why not.
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
    ) -> tuple[Entries, npt.NDArray[np.int64]]:
        raise self.error

    def gather(self, records: KeyedRecords) -> Entries:  # noqa: D102
        raise self.error


def has_opaque(layout: KeyedLayout) -> bool:
    """Return whether keys or values hold data of a serializer without a reader or declaration."""
    return find_opaque(layout) is not None


def find_opaque(layout: KeyedLayout) -> Opaque | None:
    """Find a snapshot class without a reader or declaration that writes a part of keys or values."""
    layouts = (inner for side in (layout.key, layout.value) for inner in walk_layout(side))
    return next((each for inner in layouts if (each := find_unread_class(inner)) is not None), None)


def find_unread_class(layout: lay.Layout) -> Opaque | None:
    """The snapshot class without a reader or declaration that writes a part of a value; None for all others."""
    node = layout.serializer if isinstance(layout, lay.Dynamic) else None
    return node if isinstance(node, Opaque) and not isinstance(node, Declared) else None


def make_entry_codecs(header: KeyedHeader, context: RecordContext) -> list[EntryCodec]:
    """The codecs of all states of a header."""
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
    """Layout of an entry; every part is a span."""
    if layout.state_type == StateKind.TIMER:
        return lay.Span(layout.key)
    key, namespace = (_unmeasured(each) for _, each in layout.key.fields[:2])
    value: lay.Layout = lay.Span(layout.value)
    if isinstance(layout.value, lay.Delimited):
        value = lay.Sequence(lay.Span(layout.value.element))
    elif layout.state_type == StateKind.MAP and isinstance(layout.value, lay.Optional):
        # The flag belongs to the value of a record; nothing follows that of a null here.
        item = lay.Span(lay.Optional(layout.value.inner))
        value = lay.Sequence(lay.Struct((("key", lay.Span(layout.key.fields[2][1])), ("value", item))))
    return lay.Struct((("namespace", lay.Span(namespace)), ("key", lay.Span(key)), ("value", value)))


def _unmeasured(layout: lay.Layout) -> lay.Layout:
    return layout.inner if isinstance(layout, lay.MeasuredKey) else layout


def _key_spans(layout: KeyedLayout) -> lay.Layout:
    """The key side of a record; every field is a span, without the lengths after key and namespace."""
    return lay.Struct(
        tuple(
            (name, lay.MeasuredKey(lay.Span(each.inner)) if isinstance(each, lay.MeasuredKey) else lay.Span(each))
            for name, each in layout.key.fields
        )
    )
