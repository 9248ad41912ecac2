"""Composite snapshots over any nested serializers: containers, tuples, wrappers, timers, TTL, streaming and CEP.

Source: `CompositeTypeSerializerSnapshot` and its subclasses in flink-core, flink-runtime and flink-table-api-java;
`TimerSerializerSnapshot`, `TtlStateFactory`, `TtlAwareSerializerSnapshot`, `CoGroupedStreams`, `IntervalJoinOperator`,
`StreamElementSerializer`, `TwoPhaseCommitSinkFunction`; `org.apache.flink.cep.nfa` and its package `sharedbuffer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.serializers.registry import (
    read_nested,
    read_nested_list,
    register,
    register_composite,
    write_nested,
    write_nested_list,
)
from state_pipelines.serializers.snapshot_frames import (
    CompositeMarks,
    Head,
    read_composite_header,
    write_composite_header,
)
from state_pipelines.serializers.tree import (
    Either,
    GenericArray,
    ListOf,
    ListView,
    MapOf,
    MapView,
    Nullable,
    PositionalRow,
    Serializer,
    SetOf,
    Timer,
    Ttl,
    TtlAware,
    Tuple,
    VariantKind,
    Variants,
)

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader, Writer

_BASE = "org.apache.flink.api.common.typeutils.base."
_RUNTIME = "org.apache.flink.api.java.typeutils.runtime."
_DATAVIEW = "org.apache.flink.table.dataview."

LIST = f"{_BASE}ListSerializerSnapshot"
ARRAY_LIST = "org.apache.flink.runtime.state.ArrayListSerializerSnapshot"
SET = f"{_BASE}SetSerializerSnapshot"
MAP = f"{_BASE}MapSerializerSnapshot"
NULL_AWARE_MAP = f"{_DATAVIEW}NullAwareMapSerializerSnapshot"
GENERIC_ARRAY = f"{_BASE}GenericArraySerializerSnapshot"
TUPLE = f"{_RUNTIME}TupleSerializerSnapshot"
EITHER = f"{_RUNTIME}JavaEitherSerializerSnapshot"
NULLABLE = f"{_RUNTIME}NullableSerializer$NullableSerializerSnapshot"
ROW = f"{_RUNTIME}RowSerializer$RowSerializerSnapshot"

# Rows have a kind since outer version 3, which stores nothing; from 4 on a flag stores it.
FIRST_ROW_WITH_KIND = 3


@register_composite(LIST, ARRAY_LIST, arity=1)
def build_list(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> ListOf:
    """Return a list of the one nested serializer."""
    return ListOf(**marks, element=nested[0])


@register_composite(SET, arity=1)
def build_set(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> SetOf:
    """Return a set of the one nested serializer."""
    return SetOf(**marks, element=nested[0])


@register_composite(MAP, arity=2)
def build_map(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> MapOf:
    """Return a map of key and value serializer."""
    return MapOf(**marks, key=nested[0], value=nested[1])


@register_composite(NULL_AWARE_MAP, arity=2)
def build_null_aware_map(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> MapOf:
    """Return a map whose keys may be null."""
    return MapOf(**marks, key=nested[0], value=nested[1], null_keys=True)


# EitherSerializerSnapshot is the form before 1.8: version 2, no composite header.
@register_composite(EITHER, f"{_RUNTIME}EitherSerializerSnapshot", arity=2)
def build_either(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Either:
    """Left and right."""
    return Either(**marks, left=nested[0], right=nested[1])


@register_composite(f"{_DATAVIEW}ListViewSerializerSnapshot", arity=1)
def build_list_view(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> ListView:
    """Return a view over a list serializer."""
    return ListView(**marks, inner=nested[0])


@register_composite(f"{_DATAVIEW}MapViewSerializerSnapshot", arity=1)
def build_map_view(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> MapView:
    """Return a view over a map serializer."""
    return MapView(**marks, inner=nested[0])


def write_generic_array(writer: Writer, node: GenericArray) -> None:
    """Write what `read_generic_array` reads."""
    write_composite_header(writer, node.snapshot_version, node.outer_version)
    writer.utf(node.component_class)
    write_nested_list(writer, node.nested)


# GenericArraySerializerConfigSnapshot is the form before 1.8: version 2, no composite header, otherwise the same.
@register(GENERIC_ARRAY, f"{_BASE}GenericArraySerializerConfigSnapshot", write=write_generic_array)
def read_generic_array(reader: Reader, head: Head) -> GenericArray:
    """Read the component class and the element serializer."""
    outer_version = read_composite_header(reader, head)
    component_class = reader.utf()
    (element,) = read_nested_list(reader, 1)
    return GenericArray(**head.composite_marks(outer_version), component_class=component_class, element=element)


def write_tuple(writer: Writer, node: Tuple) -> None:
    """Write what `read_tuple` reads."""
    write_composite_header(writer, node.snapshot_version, node.outer_version)
    writer.utf(node.tuple_class)
    write_nested_list(writer, node.fields)


@register(TUPLE, write=write_tuple)
def read_tuple(reader: Reader, head: Head) -> Tuple:
    """Read the tuple class and the field serializers; also case classes of Scala, whose bodies are the same."""
    outer_version = read_composite_header(reader, head)
    tuple_class = reader.utf()
    return Tuple(**head.composite_marks(outer_version), tuple_class=tuple_class, fields=read_nested_list(reader))


def write_nullable(writer: Writer, node: Nullable) -> None:
    """Write what `read_nullable` reads."""
    write_composite_header(writer, node.snapshot_version, node.outer_version)
    writer.i32(node.padding)
    write_nested_list(writer, node.nested)


@register(NULLABLE, write=write_nullable)
def read_nullable(reader: Reader, head: Head) -> Nullable:
    """Read the length of the padding after a null, and the wrapped serializer."""
    outer_version = read_composite_header(reader, head)
    start = reader.position
    padding = reader.i32()
    if padding < 0:
        raise reader.error(f"a padding of {padding} bytes is negative", start)
    (inner,) = read_nested_list(reader, 1)
    return Nullable(**head.composite_marks(outer_version), inner=inner, padding=padding)


def write_row(writer: Writer, node: PositionalRow) -> None:
    """Write what `read_row` reads."""
    write_composite_header(writer, node.snapshot_version, node.outer_version)
    if node.outer_version > FIRST_ROW_WITH_KIND:
        writer.bool(node.supports_row_kind)
    write_nested_list(writer, node.fields)


@register(ROW, write=write_row)
def read_row(reader: Reader, head: Head) -> PositionalRow:
    """Read whether rows have a kind, and the field serializers."""
    outer_version = read_composite_header(reader, head)
    stored = outer_version > FIRST_ROW_WITH_KIND
    supports_row_kind = reader.bool() if stored else outer_version == FIRST_ROW_WITH_KIND
    return PositionalRow(
        **head.composite_marks(outer_version), fields=read_nested_list(reader), supports_row_kind=supports_row_kind
    )


_STREAMING = "org.apache.flink.streaming."
_TWO_PHASE_COMMIT = "TwoPhaseCommitSinkFunction$StateSerializerSnapshot"

# Sink state may hold a null transaction since outer version 3, which stores nothing; from 4 on a flag stores it.
FIRST_WITH_NULL_TRANSACTION = 3
TTL_AWARE_VERSION = 1


@register_composite(f"{_STREAMING}api.operators.TimerSerializerSnapshot", arity=2)
def build_timer(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Timer:
    """Return key and namespace."""
    return Timer(**marks, key=nested[0], namespace=nested[1])


@register_composite(
    "org.apache.flink.runtime.state.ttl.TtlStateFactory$TtlSerializerSnapshot",
    "org.apache.flink.runtime.state.v2.ttl.TtlStateFactory$TtlSerializerSnapshot",
    arity=2,
)
def build_ttl(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Ttl:
    """Timestamp and user value."""
    return Ttl(**marks, timestamp=nested[0], inner=nested[1])


def write_ttl_aware(writer: Writer, node: TtlAware) -> None:
    """Write what `read_ttl_aware` reads."""
    writer.bool(node.ttl_enabled)
    write_nested(writer, node.inner)


@register("org.apache.flink.runtime.state.ttl.TtlAwareSerializerSnapshot", write=write_ttl_aware)
def read_ttl_aware(reader: Reader, head: Head) -> TtlAware:
    """Read whether TTL is on, and the wrapped serializer."""
    head.expect(TTL_AWARE_VERSION)
    return TtlAware(**head.marks, ttl_enabled=reader.bool(), inner=read_nested(reader))


@register_composite(
    "org.apache.flink.api.common.typeutils.SingleThreadAccessCheckingTypeSerializer"
    "$SingleThreadAccessCheckingTypeSerializerSnapshot",
    arity=1,
)
def build_single_thread_access_checking(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return the wrapped serializer, whose data it writes."""
    return Variants(**marks, kind=VariantKind.SINGLE_THREAD_ACCESS_CHECKING, serializers=nested)


@register_composite(f"{_STREAMING}api.datastream.CoGroupedStreams$UnionSerializerSnapshot", arity=2)
def build_union(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return one of two inputs."""
    return Variants(**marks, kind=VariantKind.UNION, serializers=nested)


@register_composite(f"{_STREAMING}api.operators.co.IntervalJoinOperator$BufferEntrySerializerSnapshot", arity=1)
def build_buffer_entry(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return a buffered element and whether it was joined."""
    return Variants(**marks, kind=VariantKind.BUFFER_ENTRY, serializers=nested)


@register_composite(
    f"{_STREAMING}runtime.streamrecord.StreamElementSerializer$StreamElementSerializerSnapshot", arity=1
)
def build_stream_element(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return a record, watermark, latency marker or status."""
    return Variants(**marks, kind=VariantKind.STREAM_ELEMENT, serializers=nested)


def write_two_phase_commit(writer: Writer, node: Variants) -> None:
    """Write what `read_two_phase_commit` reads."""
    write_composite_header(writer, node.snapshot_version, node.outer_version)
    if node.outer_version > FIRST_WITH_NULL_TRANSACTION:
        writer.bool(bool(node.flag))
    write_nested_list(writer, node.serializers)


@register(
    f"{_STREAMING}api.functions.sink.{_TWO_PHASE_COMMIT}",
    f"{_STREAMING}api.functions.sink.legacy.{_TWO_PHASE_COMMIT}",
    write=write_two_phase_commit,
)
def read_two_phase_commit(reader: Reader, head: Head) -> Variants:
    """Read whether a transaction may be null, then transaction and context serializer."""
    outer_version = read_composite_header(reader, head)
    stored = outer_version > FIRST_WITH_NULL_TRANSACTION
    flag = reader.bool() if stored else outer_version == FIRST_WITH_NULL_TRANSACTION
    marks = head.composite_marks(outer_version)
    return Variants(**marks, kind=VariantKind.TWO_PHASE_COMMIT, serializers=read_nested_list(reader, 2), flag=flag)


_NFA = "org.apache.flink.cep.nfa."
_BUFFER = f"{_NFA}sharedbuffer."

# The state remembers the previous timestamp since outer version 2.
FIRST_WITH_PREVIOUS_TIMESTAMP = 2


@register_composite(f"{_BUFFER}NodeId$NodeIdSerializer$NodeIdSerializerSnapshot", arity=1)
def build_node_id(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Event id and page."""
    return Variants(**marks, kind=VariantKind.NODE_ID, serializers=nested)


@register_composite(f"{_BUFFER}SharedBufferEdge$SharedBufferEdgeSerializer$SharedBufferEdgeSerializerSnapshot", arity=2)
def build_shared_buffer_edge(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return target node and Dewey number."""
    return Variants(**marks, kind=VariantKind.SHARED_BUFFER_EDGE, serializers=nested)


@register_composite(f"{_BUFFER}SharedBufferNodeSerializerSnapshotV2", arity=1)
def build_shared_buffer_node(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return the edges of a node, each with its reference count."""
    return Variants(**marks, kind=VariantKind.SHARED_BUFFER_NODE, serializers=nested)


@register_composite(f"{_BUFFER}SharedBufferNode$SharedBufferNodeSerializer$SharedBufferNodeSerializerSnapshot", arity=1)
def build_shared_buffer_edges(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return the edges of a node as a list, without reference counts of their own (before 1.16)."""
    return Variants(**marks, kind=VariantKind.SHARED_BUFFER_EDGES, serializers=nested)


@register_composite(f"{_BUFFER}LockableTypeSerializerSnapshot", arity=1)
def build_lockable(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return an element with a reference count."""
    return Variants(**marks, kind=VariantKind.LOCKABLE, serializers=nested)


def write_nfa_state(writer: Writer, node: Variants) -> None:
    """Write what `read_nfa_state` reads."""
    write_composite_header(writer, node.snapshot_version, node.outer_version)
    if node.outer_version >= FIRST_WITH_PREVIOUS_TIMESTAMP:
        writer.bool(bool(node.flag))
    write_nested_list(writer, node.serializers)


@register(f"{_NFA}NFAStateSerializerSnapshot", write=write_nfa_state)
def read_nfa_state(reader: Reader, head: Head) -> Variants:
    """Read whether previous timestamps are kept, then Dewey number, node id and event id."""
    outer_version = read_composite_header(reader, head)
    flag = reader.bool() if outer_version >= FIRST_WITH_PREVIOUS_TIMESTAMP else False
    marks = head.composite_marks(outer_version)
    return Variants(**marks, kind=VariantKind.NFA_STATE, serializers=read_nested_list(reader, 3), flag=flag)
