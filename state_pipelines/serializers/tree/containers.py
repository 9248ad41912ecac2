"""Lists, sets, maps, arrays, tuples, rows, `Either` and nullable values."""

from __future__ import annotations

from dataclasses import dataclass

from state_pipelines.serializers.tree.base import Composite, Serializer


@dataclass(frozen=True, kw_only=True)
class ListOf(Composite):
    """`ListSerializer` and `ArrayListSerializer`; also the value serializer of LIST state."""

    element: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The element serializer."""
        return (self.element,)


@dataclass(frozen=True, kw_only=True)
class SetOf(Composite):
    """`SetSerializer` (2.x)."""

    element: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The element serializer."""
        return (self.element,)


@dataclass(frozen=True, kw_only=True)
class MapOf(Composite):
    """`MapSerializer`; also the value serializer of MAP state.

    Attributes:
        null_keys: keys have a null flag too (`NullAwareMapSerializer`).
    """

    key: Serializer
    value: Serializer
    null_keys: bool = False

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """Key and value serializer."""
        return (self.key, self.value)


@dataclass(frozen=True, kw_only=True)
class GenericArray(Composite):
    """`GenericArraySerializer`: objects of one component class, each with a present flag."""

    component_class: str
    element: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The element serializer."""
        return (self.element,)


@dataclass(frozen=True, kw_only=True)
class Tuple(Composite):
    """`TupleSerializer` (Tuple1 … Tuple25) and the Scala case classes and tuples."""

    tuple_class: str
    fields: tuple[Serializer, ...]

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The field serializers."""
        return self.fields


@dataclass(frozen=True, kw_only=True)
class Row(Composite):
    """`RowSerializer`; positional, field names are not in the snapshot."""

    fields: tuple[Serializer, ...]
    supports_row_kind: bool = True

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The field serializers."""
        return self.fields


@dataclass(frozen=True, kw_only=True)
class Either(Composite):
    """`JavaEitherSerializer` and the Scala `EitherSerializer`."""

    left: Serializer
    right: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """Left and right serializer."""
        return (self.left, self.right)


@dataclass(frozen=True, kw_only=True)
class Nullable(Composite):
    """`NullableSerializer`: a null flag, padded or not."""

    inner: Serializer
    padding: int = 0

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The wrapped serializer."""
        return (self.inner,)
