"""Snapshots of the Scala API: case classes, options, either, try, collections.

The classes live in `org.apache.flink.api.scala.typeutils` up to 1.20, in `org.apache.flink.table.api.typeutils` in 2.x.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.serializers.containers import read_tuple, write_tuple
from state_pipelines.serializers.registry import read_nested_list, register, register_composite, write_nested_list
from state_pipelines.serializers.snapshot_frames import (
    CompositeMarks,
    Head,
    read_composite_header,
    write_composite_header,
)
from state_pipelines.serializers.tree import Either, Serializer, VariantKind, Variants

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader, Writer

_PACKAGES = ("org.apache.flink.api.scala.typeutils.", "org.apache.flink.table.api.typeutils.")


def _names(*simple_names: str) -> tuple[str, ...]:
    return tuple(package + name for name in simple_names for package in _PACKAGES)


CASE_CLASSES = _names("ScalaCaseClassSerializerSnapshot", "Tuple2CaseClassSerializerSnapshot")

# A case class is stored as a tuple is: the class, then the fields.
register(*CASE_CLASSES, write=write_tuple)(read_tuple)


@register_composite(*_names("ScalaEitherSerializerSnapshot"), arity=2)
def build_either(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Either:
    """Left and right."""
    return Either(**marks, left=nested[0], right=nested[1])


@register_composite(*_names("ScalaOptionSerializerSnapshot"), arity=1)
def build_option(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return some of the nested serializer, or None."""
    return Variants(**marks, kind=VariantKind.SCALA_OPTION, serializers=nested)


@register_composite(*_names("ScalaTrySerializerSnapshot"), arity=2)
def build_try(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Success, or failure with a throwable."""
    return Variants(**marks, kind=VariantKind.SCALA_TRY, serializers=nested)


def write_traversable(writer: Writer, node: Variants) -> None:
    """Write what `read_traversable` reads."""
    write_composite_header(writer, node.snapshot_version, node.outer_version)
    writer.utf(node.text or "")
    write_nested_list(writer, node.serializers)


@register(*_names("TraversableSerializerSnapshot"), write=write_traversable)
def read_traversable(reader: Reader, head: Head) -> Variants:
    """Read the source text of the builder (never run), and the element serializer."""
    outer_version = read_composite_header(reader, head)
    text = reader.utf()
    marks = head.composite_marks(outer_version)
    return Variants(**marks, kind=VariantKind.TRAVERSABLE, serializers=read_nested_list(reader, 1), text=text)
