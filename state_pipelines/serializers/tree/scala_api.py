"""Serializers of flink-scala-api (`org.apache.flinkx.api.serializer`), the Scala API outside of Flink."""

from __future__ import annotations

from dataclasses import dataclass

from state_pipelines.serializers.tree.base import Composite, Serializer


@dataclass(frozen=True, kw_only=True)
class CaseClass(Composite):
    """`CaseClassSerializer`: the number of fields, then the fields.

    Attributes:
        case_class: name of the class.
        immutable: whether all fields are immutable; None in snapshots that do not say.
    """

    case_class: str
    fields: tuple[Serializer, ...]
    immutable: bool | None = None

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The field serializers."""
        return self.fields


@dataclass(frozen=True, kw_only=True)
class Coproduct(Composite):
    """`CoproductSerializer`: the index of a subtype of a sealed trait, then a value of it.

    Attributes:
        classes: names of the subtypes.
        serializers: one for each of them.
    """

    classes: tuple[str, ...]
    serializers: tuple[Serializer, ...]

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The serializers of the subtypes."""
        return self.serializers

    @property
    def cases(self) -> tuple[str, ...]:
        """Names of the subtypes, without package and enclosing classes where that leaves them distinct."""
        short = tuple(each.rstrip("$").replace("$", ".").rpartition(".")[2] for each in self.classes)
        return short if len(set(short)) == len(short) else self.classes


@dataclass(frozen=True, kw_only=True)
class ScalaCollection(Serializer):
    """Serializers of lists, sets, vectors and arrays: a count, then the elements.

    Attributes:
        serializer_class: of the collection, such as `org.apache.flinkx.api.serializer.ListSerializer`.
        element_class: class of the elements.
        element: their serializer.
    """

    serializer_class: str
    element_class: str
    element: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The element serializer."""
        return (self.element,)


@dataclass(frozen=True, kw_only=True)
class ScalaMap(Serializer):
    """`MapSerializer` and `MutableMapSerializer`: a count, then keys and values."""

    key: Serializer
    value: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """Key and value serializer."""
        return (self.key, self.value)


@dataclass(frozen=True, kw_only=True)
class Mapped(Serializer):
    """`MappedSerializer`: values as the values of another type that a mapper of the job makes of them.

    Attributes:
        mapper: class of the mapper.
        inner: serializer of the other type.
    """

    mapper: str
    inner: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The serializer of the other type."""
        return (self.inner,)


@dataclass(frozen=True, kw_only=True)
class CaseObject(Serializer):
    """`ScalaCaseObjectSerializer`: no bytes."""

    object_class: str
