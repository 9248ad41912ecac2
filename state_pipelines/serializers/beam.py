"""Apache Beam's serializers on Flink: snapshots hold the Java-serialized coder, which determines the layout.

Source: repository apache/beam, package `org.apache.beam.runners.flink.translation.types`: `CoderTypeSerializer` with
`LegacySnapshot` (through Flink's `TypeSerializerConfigSnapshot`), from Flink 1.19 on with
`UnversionedTypeSerializerSnapshot` (through `org.apache.beam.sdk.util.SerializableUtils`). The objects are read by
structure; no class is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import cramjam

from state_pipelines.binary.data_views import Reader
from state_pipelines.binary.java_stream import (
    JavaArray,
    JavaBlock,
    JavaClassDesc,
    JavaClassLiteral,
    JavaObject,
    hierarchy,
    read_stream,
)
from state_pipelines.errors import FormatError, StateError, Where, unsupported_version
from state_pipelines.serializers.registry import register
from state_pipelines.serializers.tree import Serializer

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Writer
    from state_pipelines.binary.java_stream import JavaValue
    from state_pipelines.serializers.snapshot_classes import Head

_TYPES = "org.apache.beam.runners.flink.translation.types."
LEGACY = f"{_TYPES}CoderTypeSerializer$LegacySnapshot"
UNVERSIONED = f"{_TYPES}UnversionedTypeSerializerSnapshot"
BYTE_BUFFER_CODER = "org.apache.beam.runners.flink.translation.wrappers.streaming.FlinkKeyUtils$ByteBufferCoder"
"""Coder of the keys of Flink's state: a key is the bytes that the key coder of the pipeline wrote."""
KEY_CODER = "keyCoder"
"""Name of the component of a coder that is the coder of keys."""

# Versions that are written by `TypeSerializerConfigSnapshot`, `TypeSerializerSerializationProxy` and the two snapshot
# classes of Beam.
ADAPTER_VERSION = 0x7A53C4F0
PROXY_VERSION = 1
LEGACY_VERSION = 1
UNVERSIONED_VERSION = 1

_CODER = "org.apache.beam.sdk.coders.Coder"
_SERIALIZER = f"{_TYPES}CoderTypeSerializer"
# Fields of the list and map classes of Java and Guava in which a coder holds other coders.
_ELEMENT_FIELDS = ("values", "elements", "array")
_SNAPPY_HEADER = b"\x82SNAPPY\0"
_SNAPPY_START = 16
MAX_CODERS = 10_000
"""Largest number of coders in the tree of one coder: a few shared objects can unfold to a giant tree."""


@dataclass(frozen=True)
class Coder:
    """A coder of Beam, which determines the format of the data, read from its Java serialization.

    Attributes:
        class_name: binary name of the coder's class.
        components: nested coders by field name; coders in a list by index, coders in a map by key.
        detail: other parameters of the data: the schema of an `AvroCoder`, the class of a `SerializableCoder`.
    """

    class_name: str
    components: tuple[tuple[str, Coder], ...] = ()
    detail: str = ""

    @property
    def simple_name(self) -> str:
        """Class name without package and the word `Coder`, such as `FullWindowedValue` or `GlobalWindow`."""
        names = self.class_name.rpartition(".")[2].split("$")
        return names[-1].removesuffix("Coder") or names[-2 if len(names) > 1 else -1]

    @property
    def is_key_bytes(self) -> bool:
        """Whether this is the coder with which Beam writes the keys of Flink's state: encoded keys as bytes."""
        return self.class_name == BYTE_BUFFER_CODER

    def component(self, name: str) -> Coder | None:
        """Return the nested coder in a field; None if there is none."""
        return dict(self.components).get(name)


@dataclass(frozen=True, kw_only=True)
class BeamSerializer(Serializer):
    """`CoderTypeSerializer`: data as a coder writes them, in the nested context.

    Attributes:
        coder: the coder.
        java: the Java-serialized serializer, as stored.
    """

    coder: Coder
    java: bytes = field(repr=False)


def write_beam(writer: Writer, node: BeamSerializer) -> None:
    """Write the body of a serializer snapshot as `read_beam` reads it."""
    if node.snapshot_class == LEGACY:
        writer.i32(PROXY_VERSION)
    writer.bytes32(node.java)
    if node.snapshot_class == LEGACY:
        writer.i32(LEGACY_VERSION)


@register(LEGACY, UNVERSIONED, write=write_beam, java_objects=True)
def read_beam(reader: Reader, head: Head) -> BeamSerializer:
    """Read the Java-serialized serializer after its length; in a `LegacySnapshot`, versions precede and follow it."""
    if head.snapshot_class == UNVERSIONED:
        head.expect(UNVERSIONED_VERSION)
        java = reader.bytes32()
        stream = decompress(java)
    else:
        head.expect(ADAPTER_VERSION)
        _expect(reader, PROXY_VERSION, "the serialized serializer")
        stream = java = reader.bytes32()
        _expect(reader, LEGACY_VERSION, "the snapshot of a coder")
    start = reader.position
    try:
        return BeamSerializer(**head.marks, coder=read_coder(stream), java=java)
    except StateError as error:
        raise reader.error(f"the coder of {head.snapshot_class}: {error.what}", start) from None


def read_coder(stream: bytes) -> Coder:
    """Read the coder in a Java stream of a `CoderTypeSerializer`.

    Raises:
        FormatError: the stream holds something else.
    """
    content = read_stream(Reader(stream))
    if not isinstance(content, JavaObject) or content.class_name != _SERIALIZER:
        raise FormatError(f"the bytes are not a Java stream of {_SERIALIZER}")
    coder = content.fields.get("coder")
    if not isinstance(coder, JavaObject) or not _is_coder(coder):
        raise FormatError("the CoderTypeSerializer in the Java stream has no coder")
    return _Graph().coder(coder)


def decompress(data: bytes) -> bytes:
    """Undo what `SnappyOutputStream` of snappy-java writes: a header of 16 bytes, then blocks with length prefixes.

    Raises:
        FormatError: not such a stream.
    """
    if not data.startswith(_SNAPPY_HEADER):
        raise FormatError("the bytes are not a stream of snappy-java's SnappyOutputStream")
    reader, blocks = Reader(data, position=_SNAPPY_START), []
    while reader.remaining:
        try:
            blocks.append(bytes(cramjam.snappy.decompress_raw(reader.bytes32())))
        except cramjam.DecompressionError as error:
            raise FormatError(f"a block is not compressed with snappy: {error}") from None
    return b"".join(blocks)


class _Graph:
    """Turns Java objects into coders; shared objects become shared coders."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[Coder, int]] = {}

    def coder(self, content: JavaObject) -> Coder:
        return self._sized(content)[0]

    def _sized(self, content: JavaObject) -> tuple[Coder, int]:
        known = self.found.get(id(content))
        if known is None:
            components, size = [], 1
            for name, value in self._inside(content):
                coder, inner = self._sized(value)
                components.append((name, coder))
                size += inner
            if size > MAX_CODERS:
                raise FormatError(f"a coder contains more than {MAX_CODERS} coders")
            known = Coder(content.class_name, tuple(components), _detail(content)), size
            self.found[id(content)] = known
        return known

    def _inside(self, content: JavaObject) -> list[tuple[str, JavaObject]]:
        found = []
        for name, value in content.fields.items():
            if _is_coder(value):
                found.append((name, value))
            elif isinstance(value, JavaObject):
                found += [(key, each) for key, each in _elements(value) if _is_coder(each)]
        return found  # type: ignore[return-value]


def _is_coder(value: JavaValue) -> bool:
    names = (getattr(desc, "name", "") for desc in hierarchy(value.class_desc)) if isinstance(value, JavaObject) else ()
    return _CODER in names


def _elements(content: JavaObject) -> list[tuple[str, JavaValue]]:
    """Return keys and values of a map, or indices and elements of a list; empty for other objects."""
    fields = content.fields
    for name in _ELEMENT_FIELDS:
        array = fields.get(name)
        if isinstance(array, JavaArray) and isinstance(array.values, tuple):
            keys = fields.get("keys")
            labels = keys.values if isinstance(keys, JavaArray) else range(len(array.values))
            return [(_label(key), value) for key, value in zip(labels, array.values, strict=False)]
    added = [each for data in content.class_data for each in data.annotation or () if not isinstance(each, JavaBlock)]
    if content.class_name.endswith("Map"):
        return [(_label(key), value) for key, value in zip(added[::2], added[1::2], strict=False)]
    return [(str(index), value) for index, value in enumerate(added)]


def _label(key: JavaValue) -> str:
    inner = key.fields.get("value") if isinstance(key, JavaObject) else key
    return str(getattr(inner, "text", inner))


def _detail(content: JavaObject) -> str:
    """Return the schema of an `AvroCoder`, or the class of a `SerializableCoder`; empty for other coders."""
    fields = content.fields
    for name in ("schemaSupplier", "schemaStr"):
        supplier = fields.get(name)
        schema = supplier.fields.get("schema") if isinstance(supplier, JavaObject) else supplier
        if isinstance(schema, str):
            return schema
    of = fields.get("type")
    return of.class_desc.name if isinstance(of, JavaClassLiteral) and isinstance(of.class_desc, JavaClassDesc) else ""


def _expect(reader: Reader, version: int, what: str) -> None:
    start, found = reader.position, reader.i32()
    if found != version:
        raise unsupported_version(what, found, version, Where(file=reader.name, offset=start))
