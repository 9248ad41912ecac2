"""Java streams of Beam's serializers, as `CoderTypeSerializer` writes itself."""

from __future__ import annotations

import cramjam

from state_pipelines.binary.java_stream import (
    SERIALIZABLE,
    JavaArray,
    JavaClassData,
    JavaClassDesc,
    JavaClassLiteral,
    JavaFieldDesc,
    JavaObject,
    JavaString,
    JavaValue,
    write_stream,
)
from state_pipelines.serializers.beam import LEGACY, UNVERSIONED
from tests.serializers.literals import i32, versioned

CODERS = "org.apache.beam.sdk.coders."
WINDOWS = "org.apache.beam.sdk.transforms.windowing."
WINDOWED = "org.apache.beam.sdk.util.WindowedValue$"
_CODER = JavaClassDesc("org.apache.beam.sdk.coders.Coder", 1, SERIALIZABLE)
_OBJECT_ARRAY = JavaClassDesc("[Ljava.lang.Object;", 2, SERIALIZABLE)


def java_object(name: str, above: JavaClassDesc | None = None, **fields: JavaValue) -> JavaObject:
    """An object with object fields; the class above has none."""
    members = tuple(JavaFieldDesc("L", each, JavaString("Ljava/lang/Object;")) for each in sorted(fields))
    desc = JavaClassDesc(name, 3, SERIALIZABLE, members, above)
    own = JavaClassData(tuple(fields[each] for each in sorted(fields)))
    return JavaObject(desc, (JavaClassData(), own) if above else (own,))


def coder(name: str, **fields: JavaValue) -> JavaObject:
    """A coder of Beam's SDK, or of the class with that full name."""
    return java_object(name if "." in name else f"{CODERS}{name}", _CODER, **fields)


def coder_map(entries: dict[int, JavaObject]) -> JavaObject:
    """A Guava map of coders by number, as it serializes itself."""
    numbers = tuple(java_object("java.lang.Integer", value=JavaString(str(number))) for number in entries)
    return java_object(
        "com.google.common.collect.ImmutableMap$SerializedForm",
        keys=JavaArray(_OBJECT_ARRAY, numbers),
        values=JavaArray(_OBJECT_ARRAY, tuple(entries.values())),
    )


def class_literal(name: str) -> JavaClassLiteral:
    return JavaClassLiteral(JavaClassDesc(name, 0, 0))


def stream(of: JavaObject) -> bytes:
    """The stream of a serializer with a coder."""
    return write_stream(java_object("org.apache.beam.runners.flink.translation.types.CoderTypeSerializer", coder=of))


def legacy_snapshot(of: JavaObject) -> bytes:
    """Snapshot up to Flink 1.18: versions of Flink's adapter and its proxy, length and stream, Beam's own version."""
    body = stream(of)
    return versioned(LEGACY, 0x7A53C4F0, i32(1) + i32(len(body)) + body + i32(1))


def unversioned_snapshot(of: JavaObject) -> bytes:
    """Snapshot from Flink 1.19 on: length and stream, compressed by snappy-java in blocks, each after its length."""
    block = bytes(cramjam.snappy.compress_raw(stream(of)))
    body = bytes.fromhex("82534e4150505900 00000001 00000001") + i32(len(block)) + block
    return versioned(UNVERSIONED, 1, i32(len(body)) + body)
