"""Kryo: one object graph, without length, in the middle of other data (`KryoSerializer`).

Kryo 2.24 (up to Flink 1.20) and Kryo 5 (from Flink 2.0) write different bytes; the snapshot does not distinguish them.
The version of `_metadata` does: up to 4 it is Kryo 2, from 5 on Kryo 5
(`snapshot.snapshot_files.SnapshotFiles.kryo_version`).

Read are the JDK classes of `classes` and `values`, the classes of field lists, and those that Flink's or Kryo's own
`JavaSerializer` or chill's serializers of Protobuf and Thrift write. Not read are classes with another Kryo serializer
of their own, the additional registrations of the Scala API, a second object by Java serialization in one graph (such as
a second `Locale` of Kryo 2), and in Kryo 2 a collection of arrays of a generic class in a field of that array class,
whose type arguments Kryo's serializer remembers by mistake.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from state_pipelines.codecs.java import Undecoded
from state_pipelines.codecs.kryo.classes import (
    ClassDeclaration,
    FieldLists,
    JavaType,
    Version,
    dump_classes,
    load_classes,
    parse_type,
)
from state_pipelines.codecs.kryo.graphs import GraphReader, GraphWriter
from state_pipelines.codecs.kryo.values import ClassTable
from state_pipelines.errors import UnsupportedError

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader, Writer
    from state_pipelines.codecs.messages import MessageTypes
    from state_pipelines.serializers import tree

__all__ = [
    "ClassDeclaration",
    "FieldLists",
    "JavaType",
    "Version",
    "dump_classes",
    "load_classes",
    "oldest_metadata_version",
    "parse_type",
    "read_kryo",
    "read_kryo_class",
    "read_kryo_span",
    "write_kryo",
]

_NONE_DECLARED = FieldLists()


@lru_cache(maxsize=256)
def _table(serializer: tree.Kryo, version: Version, classes: FieldLists, messages: MessageTypes | None) -> ClassTable:
    return ClassTable(serializer, version, classes, messages)


def oldest_metadata_version(version: int) -> int:
    """Return the oldest `_metadata` version to write for data of a release line of Kryo.

    For Kryo 2 it is 4 (Flink 1.16), because older versions lack the properties of checkpoints.
    """
    return 4 if version == 2 else 5


def read_kryo(
    reader: Reader,
    serializer: tree.Kryo,
    version: Version,
    classes: FieldLists = _NONE_DECLARED,
    messages: MessageTypes | None = None,
) -> object:
    """Read exactly one object graph that Kryo wrote; its end need not be known.

    Args:
        reader: the cursor; afterwards after the last byte of the graph.
        serializer: its registrations assign ids to classes.
        version: release line of Kryo.
        classes: field lists of the user's classes.
        messages: declared messages of Protobuf and Thrift.

    Returns:
        A plain Python value or one of `state_pipelines.codecs.java`.

    Raises:
        FormatError: the bytes are no Kryo graph.
        UnsupportedError: a class without field list, or with a custom serializer: its end is unknown.
    """
    return GraphReader(reader, _table(serializer, version, classes, messages)).any()


def read_kryo_class(reader: Reader, serializer: tree.Kryo, version: Version) -> str | None:
    """Read the class name that is stored in front of an object; None for a null object.

    Raises:
        FormatError: the bytes are no Kryo graph.
    """
    return GraphReader(reader, _table(serializer, version, _NONE_DECLARED, None)).class_header()


def read_kryo_span(
    reader: Reader,
    serializer: tree.Kryo,
    version: Version,
    classes: FieldLists = _NONE_DECLARED,
    messages: MessageTypes | None = None,
) -> object:
    """Read an object graph that reaches to the end of `reader`; an undecodable value becomes `Undecoded`.

    Raises:
        FormatError: the bytes are no Kryo graph, or some are left over.
    """
    start = reader.position
    graph = GraphReader(reader, _table(serializer, version, classes, messages))
    try:
        value = graph.any()
    except UnsupportedError as error:
        reader.position = start
        reason = f"{error.what}. {error.hint}" if error.hint else error.what
        return Undecoded(graph.class_name or serializer.type_class, reader.take(reader.remaining), reason)
    reader.expect_end("a Kryo value")
    return value


def write_kryo(
    writer: Writer,
    serializer: tree.Kryo,
    value: object,
    version: Version,
    classes: FieldLists = _NONE_DECLARED,
    messages: MessageTypes | None = None,
) -> None:
    """Write what `read_kryo` reads: the bytes that Kryo would write for the same graph.

    Raises:
        ValueRangeError: a value has no Java class, or does not fit the declared fields.
        UnsupportedError: a class has no field list, or has a custom Kryo serializer.
    """
    GraphWriter(writer, _table(serializer, version, classes, messages)).any(value)
