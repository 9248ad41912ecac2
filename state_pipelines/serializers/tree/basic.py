"""Serializers without nested serializers: basic types, enums and classes that write themselves."""

from __future__ import annotations

from dataclasses import dataclass

from state_pipelines.serializers.tree.base import Serializer


@dataclass(frozen=True, kw_only=True)
class Basic(Serializer):
    """A serializer without parameters over one basic type.

    Attributes:
        kind: the word before `Serializer` in the class name: Boolean, Byte, Short, Char, Int, Long, Float, Double,
            String, BigInt, BigDec, Date, SqlDate, SqlTime, SqlTimestamp, Instant, LocalDate, LocalTime,
            LocalDateTime, Void, the Value types (BooleanValue … StringValue, NullValue), the primitive arrays
            (`BooleanPrimitiveArray` … ), `StringArray`, `Tuple0`, and the namespaces `VoidNamespace`, `TimeWindow`,
            `GlobalWindow`, `TableTimeWindow`, `CountWindow`; `StringData`, `Null`, `Unit`, `ByteArrayWrapper`,
            `DeweyNumber`, `EventId`, `JavaObject` (Java serialization); `Variant`, `TableGlobalWindow`, `Nothing`,
            and the value arrays of Gelly (`LongValueArray` …); `Uuid`, `Bitmap` (newer 2.x); `PythonString`,
            `PythonBigDec`, `PythonDate`, `PythonTime`.
        serializer_class: serializer class that snapshots of version 2 (1.6 and 1.7) name; empty in later ones.
    """

    kind: str
    serializer_class: str = ""


@dataclass(frozen=True, kw_only=True)
class Enum(Serializer):
    """`EnumSerializer`: data are indices into `constants`."""

    enum_class: str
    constants: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ScalaEnum(Serializer):
    """`ScalaEnumSerializer`: data are ids of `constants` (name, id)."""

    enum_class: str
    constants: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class ClassBound(Serializer):
    """A serializer that only names its type class, which writes the data itself.

    Attributes:
        kind: Value, CopyableValue or Writable.
        type_class: the class.
    """

    kind: str
    type_class: str
