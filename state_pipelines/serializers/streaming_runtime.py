"""Snapshots of the streaming runtime: timers, TTL, co-grouping, interval joins, stream elements, two-phase commit.

Source: `TimerSerializerSnapshot`, `TtlStateFactory`, `TtlAwareSerializerSnapshot`, `CoGroupedStreams`,
`IntervalJoinOperator`, `StreamElementSerializer`, `TwoPhaseCommitSinkFunction`.
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
from state_pipelines.serializers.tree import Serializer, Timer, Ttl, TtlAware, VariantKind, Variants

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader, Writer

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
