"""Snapshots that only name a type class which writes its own bytes: Value, CopyableValue, Writable.

Source: `GenericTypeSerializerSnapshot` and its subclasses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.serializers.registry import register
from state_pipelines.serializers.tree import ClassBound, ClassBoundKind

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader, Writer
    from state_pipelines.serializers.snapshot_frames import Head

VERSION = 2
_RUNTIME = "org.apache.flink.api.java.typeutils.runtime."
_KINDS = {
    f"{_RUNTIME}{kind}Serializer${kind}SerializerSnapshot": kind
    for kind in (ClassBoundKind.VALUE, ClassBoundKind.COPYABLE_VALUE, ClassBoundKind.WRITABLE)
}


def write_class_bound(writer: Writer, node: ClassBound) -> None:
    """Write what `read_class_bound` reads."""
    writer.utf(node.type_class)


@register(*_KINDS, write=write_class_bound)
def read_class_bound(reader: Reader, head: Head) -> ClassBound:
    """Read the type class."""
    head.expect(VERSION)
    return ClassBound(**head.marks, kind=_KINDS[head.snapshot_class], type_class=reader.utf())
