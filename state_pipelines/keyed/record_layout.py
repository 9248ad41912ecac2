"""Layout of the records of one keyed state, independent of the format of their file.

Keys of every format that Flink writes record by record (canonical, RocksDB) have the same bytes after the key-group
prefix: key, namespace, and the user key of a map. Source: `SerializedCompositeKeyBuilder`, `ListDelimitedSerializer`,
`CompositeKeySerializationUtils`.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.array_builders import ArrayBuilder, ListBuilder, SpanBuilder, StructBuilder
from state_pipelines.codecs.programs import (
    LayoutProgram,
    compile_layout,
    decode_spans,
    fill_columns,
    fill_sequences,
    measure_sequence,
)
from state_pipelines.codecs.scalar import read_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, OpaqueValues, derive_layout, fixed_length
from state_pipelines.errors import FormatError, UnsupportedError, Where
from state_pipelines.keyed.key_groups import key_group_prefix_size
from state_pipelines.serializers import tree
from state_pipelines.serializers.python_types import PythonValue
from state_pipelines.serializers.state_meta_info import BackendStateType, StateMetaInfo
from state_pipelines.serializers.tree import StateKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from state_pipelines.codecs.kernels.buffers import OutputColumns

VOID = lay.Constant(b"\0")


@dataclass(frozen=True)
class KeyedLayout:
    """Layouts of the records of one state.

    Attributes:
        key: struct of `state_key`, `state_namespace` and, for a map, `map_key`; for timers `timestamp` comes first.
        value: layout of the value; timers have an empty one (`Constant`).
        state_type: VALUE, REDUCING, AGGREGATING, LIST, MAP or TIMER.
        ttl: values (elements, map values) carry the time of their last access.
        key_serializer: serializer of the keys.
        max_parallelism: number of key groups.
        is_declared: the user has declared the types of the values, which the snapshot does not have (state of Python
            functions).
    """

    key: lay.Struct
    value: lay.Layout
    state_type: StateKind
    ttl: bool
    key_serializer: tree.Serializer
    max_parallelism: int
    is_declared: bool = False

    @property
    def prefix(self) -> int:
        """Bytes of the key-group prefix, 1 or 2."""
        return key_group_prefix_size(self.max_parallelism)


@contextmanager
def blame_declared(layout: KeyedLayout | None) -> Iterator[None]:
    """Add to errors about bytes that do not fit a declared type the hint that the type may be wrong."""
    try:
        yield
    except FormatError as error:
        if layout is not None and layout.is_declared and not error.hint:
            error.hint = "The declared type may not be that of the state (--python-types, option pythonTypes)"
        raise


@dataclass(frozen=True)
class KeyedRecords:
    """Bytes of some records of one state, in the order of the file.

    Attributes:
        key_groups: i32[n].
        data: u8, holds keys and values.
        key_starts: i64[n] first byte after the key-group prefix.
        key_ends: i64[n].
        value_starts: i64[n].
        value_ends: i64[n].
        offset: position of `data` in its file (in a compressed file: in the section), for errors.
        file: name of the file, for errors.
    """

    key_groups: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]
    key_starts: npt.NDArray[np.int64]
    key_ends: npt.NDArray[np.int64]
    value_starts: npt.NDArray[np.int64]
    value_ends: npt.NDArray[np.int64]
    offset: int
    file: str

    def __len__(self) -> int:
        """Number of records."""
        return len(self.key_groups)

    def cut(self, start: int, stop: int) -> KeyedRecords:
        """Return the records from `start` up to `stop`, without copying bytes."""
        return self._at(slice(start, stop))

    def select(self, rows: npt.NDArray[np.integer]) -> KeyedRecords:
        """Return some of the records."""
        return self._at(rows)

    def _at(self, rows: slice | npt.NDArray[np.integer]) -> KeyedRecords:
        return KeyedRecords(
            self.key_groups[rows],
            self.data,
            self.key_starts[rows],
            self.key_ends[rows],
            self.value_starts[rows],
            self.value_ends[rows],
            self.offset,
            self.file,
        )


def concat_records(batches: Sequence[KeyedRecords]) -> KeyedRecords:
    """Concatenate batches of records of one state.

    If all batches share a buffer, nothing is copied. Otherwise buffers are copied, and offsets in the file are no
    longer known.
    """
    first = batches[0]
    if len(batches) == 1:
        return first
    buffers = {id(each.data): each.data for each in batches}
    sizes = np.cumsum([0, *(len(data) for data in buffers.values())])
    shifts = dict(zip(buffers, sizes.tolist(), strict=False))
    together = len(buffers) == 1

    def shifted(name: str) -> npt.NDArray[np.int64]:
        return np.concatenate([getattr(each, name) + shifts[id(each.data)] for each in batches])

    return KeyedRecords(
        np.concatenate([each.key_groups for each in batches]),
        first.data if together else np.concatenate([*buffers.values()]),
        shifted("key_starts"),
        shifted("key_ends"),
        shifted("value_starts"),
        shifted("value_ends"),
        first.offset if together else 0,
        first.file,
    )


def cut_nulls(records: KeyedRecords) -> npt.NDArray[np.int64]:
    """Return the ends of the values of a map state, i64[n]; a null ends after its flag.

    RocksDB writes nothing else for a null; a canonical savepoint of the heap backend may have bytes after the flag,
    which mean nothing.

    Raises:
        FormatError: a value has no flag.
    """
    empty = np.flatnonzero(records.value_ends <= records.value_starts)
    if len(empty):
        where = Where(file=records.file, offset=records.offset + int(records.value_starts[empty[0]]))
        raise FormatError("an entry of a map has no byte that says whether its value is null", where=where)
    null = records.data[records.value_starts] != 0
    return np.where(null, records.value_starts + 1, records.value_ends)


def derive_keyed_layout(
    info: StateMetaInfo, key_serializer: tree.Serializer, max_parallelism: int, context: LayoutContext
) -> KeyedLayout:
    """Derive the layouts of the records of a state; keys are decoded even where `context` keeps values as bytes.

    Raises:
        UnsupportedError: states of this kind have no records to read here, or a serializer has no layout.
    """
    values, context = context, replace(context, opaque_values=OpaqueValues.NONE)
    if info.backend_type is BackendStateType.PRIORITY_QUEUE:
        return _timer_layout(info, max_parallelism, context)
    if info.backend_type is not BackendStateType.KEY_VALUE:
        raise UnsupportedError(f"a state of type {info.backend_type} is not keyed state", where=Where(state=info.name))
    key = derive_layout(key_serializer, context)
    namespace = derive_layout(info.namespace_serializer, context)
    lengths = [fixed_length(each, context) for each in (key_serializer, info.namespace_serializer)]
    if lengths == [None, None]:
        key, namespace = lay.MeasuredKey(key), lay.MeasuredKey(namespace)
    fields = [("state_key", key), ("state_namespace", namespace)]
    state_type = info.state_type or StateKind.VALUE
    value: tree.Serializer = info.value_serializer
    layout: lay.Layout | None = None
    if state_type == StateKind.LIST:
        value = info.element
        typed = _python_value(value)
        if typed is None:
            layout = lay.Delimited(derive_layout(value, values))
        else:
            # PyFlink keeps a value of a Python function in a list state of Java with one byte array, so that a record
            # has the bytes of the value: the kind is that of the state in Python.
            state_type = typed.kind
            if state_type == StateKind.LIST:
                layout = lay.Runs(derive_layout(typed.type, context), _has_ttl(value))
    elif state_type == StateKind.MAP and isinstance(value, tree.MapOf):
        fields.append(("map_key", derive_layout(value.key, context)))
        value = value.value
        layout = lay.Optional(derive_layout(value, values), rest_is_null=True)
    layout = layout or derive_layout(value, values)
    declared = _python_value(value) is not None
    key_layout = lay.Struct(tuple(fields))
    return KeyedLayout(key_layout, layout, state_type, _has_ttl(value), key_serializer, max_parallelism, declared)


def _timer_layout(info: StateMetaInfo, max_parallelism: int, context: LayoutContext) -> KeyedLayout:
    element = info.element
    if not isinstance(element, tree.Timer):
        raise UnsupportedError("a priority queue that does not hold timers is not read", where=Where(state=info.name))
    fields = (
        ("timestamp", lay.Logical(lay.LogicalKind.ORDERED_I64)),
        ("state_key", derive_layout(element.key, context)),
        ("state_namespace", derive_layout(element.namespace, context)),
    )
    return KeyedLayout(lay.Struct(fields), lay.Constant(b""), StateKind.TIMER, False, element.key, max_parallelism)


def _python_value(serializer: tree.Serializer) -> PythonValue | None:
    """Return the declared type of state of a Python function (see `snapshot.state`); None for other serializers."""
    if isinstance(serializer, tree.Ttl | tree.TtlAware):
        return _python_value(serializer.inner)
    return serializer if isinstance(serializer, PythonValue) else None


def _has_ttl(serializer: tree.Serializer) -> bool:
    if isinstance(serializer, tree.TtlAware):
        return serializer.ttl_enabled
    return isinstance(serializer, tree.Ttl)


if TYPE_CHECKING:
    Bytes = npt.NDArray[np.uint8]
    Positions = npt.NDArray[np.int64]
    Spans = npt.NDArray[np.int64]
    """i64[2, n]: starts and ends (exclusive) of spans."""

SPAN = pa.struct([pa.field("start", pa.int64(), False), pa.field("stop", pa.int64(), False)])


class Bounds(Protocol):
    """Offsets that a `Measure` has found in values: the bounds of each span, by fields and elements of the layout."""

    def field(self, name: str) -> Bounds:
        """Return a field of a struct."""

    @property
    def spans(self) -> Spans:
        """Starts and ends of spans."""

    @property
    def offsets(self) -> Positions:
        """i64[n + 1], first element of each list."""

    @property
    def elements(self) -> Bounds:
        """Bounds of the elements of all lists, one after the other."""


@dataclass(frozen=True)
class KernelBounds:
    """Bounds of values that a kernel measured, in the columns that it filled.

    Attributes:
        builder: builder of the measured values, which knows their columns.
        columns: the columns.
    """

    builder: ArrayBuilder
    columns: OutputColumns

    def field(self, name: str) -> KernelBounds:
        """See `Bounds`."""
        assert isinstance(self.builder, StructBuilder), f"no struct has the field {name} here"
        return KernelBounds(dict(self.builder.fields)[name], self.columns)

    @property
    def spans(self) -> Spans:
        """See `Bounds`."""
        assert isinstance(self.builder, SpanBuilder), "there are no spans here"
        found: Spans = np.stack([self.columns.fixed(each, np.int64) for each in (self.builder.main, self.builder.stop)])
        return found

    @property
    def offsets(self) -> Positions:
        """See `Bounds`."""
        return self.columns.offsets(self.builder.main).astype(np.int64)

    @property
    def elements(self) -> KernelBounds:
        """See `Bounds`."""
        assert isinstance(self.builder, ListBuilder), "there is no list here"
        return KernelBounds(self.builder.element, self.columns)


@dataclass(frozen=True)
class ArrowBounds:
    """Bounds in an Arrow array, made from values that the scalar codec measured.

    Attributes:
        array: array of spans, in structs and lists.
    """

    array: pa.Array

    def field(self, name: str) -> ArrowBounds:
        """See `Bounds`."""
        return ArrowBounds(self.array.field(name))

    @property
    def spans(self) -> Spans:
        """See `Bounds`."""
        found: Spans = np.stack([np.asarray(self.array.field(0)), np.asarray(self.array.field(1))])
        return found

    @property
    def offsets(self) -> Positions:
        """See `Bounds`."""
        return np.asarray(self.array.offsets).astype(np.int64)

    @property
    def elements(self) -> ArrowBounds:
        """See `Bounds`."""
        return ArrowBounds(self.array.values)


class Measure:
    """Finder of the offsets of fields, list elements and spans in values, without decoding them.

    Compiled kernels do this; if only the scalar codec can read the data (Kryo), it reads the values one at a time.

    Args:
        layout: a layout of spans (`codecs.layout.Span`), in structs and lists.

    Raises:
        UnsupportedError: the layout is made of something else.
    """

    def __init__(self, layout: lay.Layout) -> None:
        self._layout = layout
        self._type = _arrow_type(layout)
        self._program: LayoutProgram | None = None
        try:
            self._program = compile_layout(layout)
        except UnsupportedError:
            # Values of this layout can only be read by the scalar codec.
            self._program = None

    def sequences(
        self, data: Bytes, starts: Positions, ends: Positions, counts: Positions, *, offsets: Positions, name: str
    ) -> tuple[Bounds, Positions]:
        """Measure values that follow each other, in several sequences.

        Args:
            data: u8.
            starts: i64[m], first byte of the first value of each sequence.
            ends: i64[m], offsets beyond which no value of the sequence may reach.
            counts: i64[m], values of each sequence.
            offsets: i64[m], position of `data` in the file of the sequence, for errors.
            name: of the file, for errors.

        Returns:
            (bounds of the values of all sequences, i64[m] end of the last value of each sequence).

        Raises:
            FormatError: the bytes do not fit the serializers.
            UnsupportedError: the end of a value is not known, because its serializer has no reader.
        """
        if self._program is not None:
            columns, stops = fill_sequences(self._program, data, starts, ends, counts, offsets)
            lasts, filled = starts.copy(), counts > 0
            lasts[filled] = stops[np.cumsum(counts)[filled] - 1]
            return KernelBounds(self._program.builder, columns), lasts
        values, found = [], []
        raw = _raw(data)
        for start, end, count in zip(starts.tolist(), ends.tolist(), counts.tolist(), strict=True):
            reader = Reader(raw, name, start, end)
            values += [read_value(self._layout, reader, tail=False) for _ in range(count)]
            found.append(reader.position)
        return ArrowBounds(pa.array(values, self._type)), np.array(found, np.int64)

    @property
    def is_compiled(self) -> bool:
        """Whether kernels measure the values."""
        return self._program is not None

    def stops(self, data: Bytes, count: int) -> Positions:
        """Find the ends of consecutive values in `data`, up to the first incomplete one; needs `is_compiled`.

        Args:
            data: u8.
            count: number of values; some may be after the end of `data`.

        Returns:
            i64[n], ends of the first n values; n is at most `count`.
        """
        assert self._program is not None, "only kernels measure values that may be cut off"
        return measure_sequence(self._program, data, 0, len(data), count)

    def bounds(self, data: Bytes, starts: Positions, ends: Positions, *, offset: int, name: str) -> Bounds:
        """Measure values that fill `data[starts[i]:ends[i]]`.

        Returns:
            Bounds of the values, as offsets in `data`.

        Raises:
            FormatError: the bytes do not fit the serializers.
            UnsupportedError: a value cannot be read.
        """
        if self._program is not None:
            columns, _ = fill_columns(self._program, data, starts, ends, offset=offset)
            return KernelBounds(self._program.builder, columns)
        return ArrowBounds(self.spans(data, starts, ends, offset=offset, name=name))

    def spans(self, data: Bytes, starts: Positions, ends: Positions, *, offset: int, name: str) -> pa.Array:
        """Measure values as `bounds` does; return an array of spans, nested as the layout is."""
        if self._program is not None:
            return decode_spans(self._program, data, starts, ends, offset=offset)
        raw = _raw(data)
        values = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            reader = Reader(raw, name, start, end)
            values.append(read_value(self._layout, reader))
            reader.expect_end("the record")
        return pa.array(values, self._type)


def take_bytes(data: Bytes, starts: Positions, ends: Positions) -> pa.Array:
    """Return spans of bytes as a binary array."""
    return decode_spans(compile_layout(lay.Rest()), data, starts, ends)


def _raw(data: Bytes) -> bytes:
    """Return the bytes of an array; they are not copied if the array is a view of a whole `bytes` object."""
    base = data.base
    return base if isinstance(base, bytes) and len(base) == len(data) else data.tobytes()


def _arrow_type(layout: lay.Layout) -> pa.DataType:
    match layout:
        case lay.Span():
            return SPAN
        case lay.Struct(fields=fields):
            return pa.struct([pa.field(name, _arrow_type(each), False) for name, each in fields])
        case lay.Sequence(element=element) | lay.Delimited(element=element):
            return pa.list_(_arrow_type(element))
        case lay.MeasuredKey(inner=inner):
            return _arrow_type(inner)
        case _:
            raise UnsupportedError(f"{type(layout).__name__} is not made of spans")
