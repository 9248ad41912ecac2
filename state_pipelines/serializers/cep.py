"""Snapshots of the CEP library: shared buffer and NFA state.

Source: `org.apache.flink.cep.nfa` and its package `sharedbuffer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.serializers.registry import read_nested_list, register, register_composite, write_nested_list
from state_pipelines.serializers.snapshot_frames import (
    CompositeMarks,
    Head,
    read_composite_header,
    write_composite_header,
)
from state_pipelines.serializers.tree import Serializer, VariantKind, Variants

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader, Writer

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
