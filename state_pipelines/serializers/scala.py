"""Snapshots of Flink's Scala API and of flink-scala-api: case classes, options, collections, sealed traits, mappings.

Flink's classes are in `org.apache.flink.api.scala.typeutils` up to 1.20, in `org.apache.flink.table.api.typeutils` in
2.x. Those of flink-scala-api are in `org.apache.flinkx.api.serializer` (repository flink-extended/flink-scala-api). Up
to version 1 of its snapshots that are no composites, nested snapshots are stored without their versions. The library
reads those as the versions that the classes had then, and of a mapped type the class of the nested serializer is stored
in place of its snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import read_string, write_string
from state_pipelines.errors import UnsupportedError, Where
from state_pipelines.serializers import basic
from state_pipelines.serializers.composites import read_tuple, write_tuple
from state_pipelines.serializers.registry import (
    read_nested,
    read_nested_list,
    read_unversioned,
    register,
    register_composite,
    register_composite_with_outer,
    write_nested,
    write_nested_list,
    write_unversioned,
)
from state_pipelines.serializers.snapshot_frames import (
    CompositeMarks,
    Head,
    read_composite_header,
    write_composite_header,
)
from state_pipelines.serializers.tree import (
    Basic,
    CaseClass,
    CaseObject,
    Coproduct,
    Either,
    Mapped,
    Pojo,
    ScalaCollection,
    ScalaMap,
    Serializer,
    VariantKind,
    Variants,
)
from state_pipelines.serializers.tree import Kryo as KryoNode

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


PACKAGE = "org.apache.flinkx.api.serializer."
CASE_CLASS = f"{PACKAGE}ScalaCaseClassSerializerSnapshot"
COPRODUCT = f"{PACKAGE}CoproductSerializer$CoproductSerializerSnapshot"
COLLECTION = f"{PACKAGE}CollectionSerializerSnapshot"
MAP = f"{PACKAGE}MapSerializer$MapSerializerSnapshot"
MUTABLE_MAP = f"{PACKAGE}MutableMapSerializerSnapshot"
MAPPED = f"{PACKAGE}MappedSerializer$MappedSerializerSnapshot"

_UNVERSIONED, _VERSIONED, _COMPOSITE = 1, 2, 3
FIRST_WITH_IMMUTABILITY = 3
_VERSIONS = {
    **dict.fromkeys((COPRODUCT, COLLECTION, MAP, MAPPED), _UNVERSIONED),
    f"{PACKAGE}ScalaCaseObjectSerializer$ScalaCaseObjectSerializerSnapshot": 1,
    **{each.snapshot_class: each.snapshot_version for each in (Pojo, KryoNode)},
}
"""Versions of snapshots that are stored without it; all others are of 3."""


def _read_outer(reader: Reader, version: int) -> tuple[str, bool | None]:
    return reader.utf(), reader.bool() if version >= FIRST_WITH_IMMUTABILITY else None


def _write_outer(writer: Writer, node: CaseClass) -> None:
    writer.utf(node.case_class)
    if node.outer_version >= FIRST_WITH_IMMUTABILITY:
        writer.bool(bool(node.immutable))


@register_composite_with_outer(CASE_CLASS, read_outer=_read_outer, write_outer=_write_outer)
def build_case_class(
    marks: CompositeMarks, nested: tuple[Serializer, ...], outer: tuple[str, bool | None]
) -> CaseClass:
    """Return a case class of the nested serializers."""
    return CaseClass(**marks, case_class=outer[0], fields=nested, immutable=outer[1])


@register_composite(f"{PACKAGE}ScalaEitherSerializerSnapshot", arity=2)
def build_scala_api_either(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Either:
    """Left and right."""
    return Either(**marks, left=nested[0], right=nested[1])


@register_composite(f"{PACKAGE}ScalaOptionSerializerSnapshot", arity=1)
def build_scala_api_option(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return some of the nested serializer, or None."""
    return Variants(**marks, kind=VariantKind.SCALA_OPTION, serializers=nested)


def write_coproduct(writer: Writer, node: Coproduct) -> None:
    """Write what `read_coproduct` reads."""
    if node.snapshot_version == _COMPOSITE:
        write_composite_header(writer, node.snapshot_version, node.outer_version)
        writer.i32(len(node.classes))
        for name in node.classes:
            write_string(writer, name)
        write_nested_list(writer, node.serializers)
        return
    writer.i32(len(node.classes))
    for name in node.classes:
        writer.utf(name)
    for each in node.serializers:
        _write_inner(writer, node, each)


@register(COPRODUCT, write=write_coproduct)
def read_coproduct(reader: Reader, head: Head) -> Coproduct:
    """Read the names of the subtypes and their serializers."""
    head.expect(_UNVERSIONED, _VERSIONED, _COMPOSITE)
    if head.version == _COMPOSITE:
        outer_version = read_composite_header(reader, head)
        classes = tuple(read_string(reader) or "" for _ in range(reader.count()))
        nested = read_nested_list(reader, len(classes))
        return Coproduct(**head.composite_marks(outer_version), classes=classes, serializers=nested)
    classes = tuple(reader.utf() for _ in range(reader.count()))
    nested = tuple(_read_inner(reader, head) for _ in classes)
    return Coproduct(**head.composite_marks(head.version), classes=classes, serializers=nested)


def write_collection(writer: Writer, node: ScalaCollection) -> None:
    """Write what `read_collection` reads."""
    writer.utf(node.serializer_class)
    writer.utf(node.element_class)
    _write_inner(writer, node, node.element)


@register(COLLECTION, write=write_collection)
def read_collection(reader: Reader, head: Head) -> ScalaCollection:
    """Read the classes of the serializer and of the elements, and the element serializer."""
    head.expect(_UNVERSIONED, _VERSIONED)
    names = reader.utf(), reader.utf()
    element = _read_inner(reader, head)
    return ScalaCollection(**head.marks, serializer_class=names[0], element_class=names[1], element=element)


def write_map(writer: Writer, node: ScalaMap) -> None:
    """Write what `read_map` and `read_mutable_map` read."""
    for each in node.nested:
        if node.snapshot_class == MUTABLE_MAP:
            write_nested(writer, each)
        else:
            _write_inner(writer, node, each)


@register(MAP, write=write_map)
def read_map(reader: Reader, head: Head) -> ScalaMap:
    """Read key and value serializer."""
    head.expect(_UNVERSIONED, _VERSIONED)
    return ScalaMap(**head.marks, key=_read_inner(reader, head), value=_read_inner(reader, head))


@register(MUTABLE_MAP, write=write_map)
def read_mutable_map(reader: Reader, head: Head) -> ScalaMap:
    """Read key and value serializer, which always have their versions."""
    head.expect(1)
    return ScalaMap(**head.marks, key=read_nested(reader), value=read_nested(reader))


def write_mapped(writer: Writer, node: Mapped) -> None:
    """Write what `read_mapped` reads."""
    writer.utf(node.mapper)
    if node.snapshot_version == _VERSIONED:
        write_nested(writer, node.inner)
    else:
        writer.utf(node.inner.snapshot_class.partition("$")[0])


@register(MAPPED, write=write_mapped)
def read_mapped(reader: Reader, head: Head) -> Mapped:
    """Read the class of the mapper and the nested serializer."""
    head.expect(_UNVERSIONED, _VERSIONED)
    mapper = reader.utf()
    inner = read_nested(reader) if head.version == _VERSIONED else _find_simple(reader.utf(), head)
    return Mapped(**head.marks, mapper=mapper, inner=inner)


def write_case_object(writer: Writer, node: CaseObject) -> None:
    """Write what `read_case_object` reads."""
    writer.utf(node.object_class)


@register(f"{PACKAGE}ScalaCaseObjectSerializer$ScalaCaseObjectSerializerSnapshot", write=write_case_object)
def read_case_object(reader: Reader, head: Head) -> CaseObject:
    """Read the class of the object."""
    head.expect(1)
    return CaseObject(**head.marks, object_class=reader.utf())


def _read_inner(reader: Reader, head: Head) -> Serializer:
    return read_nested(reader) if head.version == _VERSIONED else read_unversioned(reader, _find_version)


def _write_inner(writer: Writer, outer: Serializer, node: Serializer) -> None:
    if outer.snapshot_version == _VERSIONED:
        write_nested(writer, node)
    else:
        write_unversioned(writer, node)


def _find_version(snapshot_class: str) -> int:
    return _VERSIONS.get(snapshot_class, 3)


def _find_simple(serializer_class: str, head: Head) -> Basic:
    """Return the serializer that has no parameters, by its class.

    Raises:
        UnsupportedError: it is none of Flink's.
    """
    for kind, snapshot_class in basic.SNAPSHOT_CLASSES.items():
        if snapshot_class.partition("$")[0] == serializer_class:
            return Basic(snapshot_class=snapshot_class, kind=kind)
    raise UnsupportedError(
        f"{head.snapshot_class} names the serializer {serializer_class} without its snapshot",
        where=Where(file=head.file, offset=head.offset),
        hint="Take a savepoint with a later release of flink-scala-api",
    )
