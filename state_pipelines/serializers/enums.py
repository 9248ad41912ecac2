"""Enum snapshots of Java and Scala: the class and its constants, in the order that the data refer to.

Source: `EnumSerializer.EnumSerializerSnapshot`, `ScalaEnumSerializerSnapshot`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.serializers.registry import register
from state_pipelines.serializers.tree import Enum, ScalaEnum

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader, Writer
    from state_pipelines.serializers.snapshot_frames import Head

ENUM = "org.apache.flink.api.common.typeutils.base.EnumSerializer$EnumSerializerSnapshot"
VERSION = 3


def write_enum(writer: Writer, node: Enum) -> None:
    """Write what `read_enum` reads."""
    writer.utf(node.enum_class)
    writer.i32(len(node.constants))
    for constant in node.constants:
        writer.utf(constant)


@register(ENUM, write=write_enum)
def read_enum(reader: Reader, head: Head) -> Enum:
    """Read the class and the names of the constants."""
    head.expect(VERSION)
    enum_class = reader.utf()
    constants = tuple(reader.utf() for _ in range(reader.count(2)))
    return Enum(**head.marks, enum_class=enum_class, constants=constants)


def write_scala_enum(writer: Writer, node: ScalaEnum) -> None:
    """Write what `read_scala_enum` reads."""
    writer.utf(node.enum_class)
    writer.i32(len(node.constants))
    for name, number in node.constants:
        writer.utf(name)
        writer.i32(number)


@register(
    "org.apache.flink.api.scala.typeutils.ScalaEnumSerializerSnapshot",
    "org.apache.flink.table.api.typeutils.ScalaEnumSerializerSnapshot",
    write=write_scala_enum,
)
def read_scala_enum(reader: Reader, head: Head) -> ScalaEnum:
    """Read the class and the constants with their ids."""
    head.expect(VERSION)
    enum_class = reader.utf()
    constants = tuple((reader.utf(), reader.i32()) for _ in range(reader.count(6)))
    return ScalaEnum(**head.marks, enum_class=enum_class, constants=constants)
