"""Values with their own Java type, where the serializer does not know it (Kryo, Java serialization).

Strings, `int` (java.lang.Integer), `bool`, `float` (java.lang.Double), `bytes` (byte[]) and None are themselves; every
other Java value is one of the classes below. An object that a graph mentions twice is the same Python object
twice. `plain` reduces them to lists, dicts and numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class TypedValue:
    """A value without inner structure and its class.

    Attributes:
        class_name: binary name, such as `java.lang.Long` or `java.time.LocalDate`.
        value: the value as the scalar codec gives it for the serializer of that type (`LocalDate` in epoch days,
            `LocalTime` in nanoseconds of the day, dates in epoch milliseconds, `char` as a string of one character); a
            `BitSet` as its 64-bit words; other classes as a dict of their fields (`UUID`, `Duration`, `URI` …).
    """

    class_name: str
    value: object


@dataclass(frozen=True)
class EnumValue:
    """An enum constant.

    Attributes:
        class_name: the enum.
        constant: name of the constant.
        body_class: class of a constant that has a body of its own.
    """

    class_name: str
    constant: str
    body_class: str | None = None


@dataclass(frozen=True)
class ObjectValue:
    """An object as its fields, in the order of the bytes; super classes may repeat a name."""

    class_name: str
    fields: tuple[tuple[str, object], ...]


@dataclass(frozen=True)
class ArrayValue:
    """An array other than byte[]; `class_name` as the JVM spells it (`[J`, `[Ljava.lang.String;`)."""

    class_name: str
    items: tuple[object, ...]


class CollectionKind(StrEnum):
    """Kind of a collection; queues count as lists."""

    LIST = "list"
    SET = "set"
    MAP = "map"


@dataclass(frozen=True)
class CollectionValue:
    """A list, set or queue in the order of the bytes.

    Attributes:
        kind: list or set.
        comparator: of sorted sets and priority queues; None is the natural order.
        element_class: of an `EnumSet`, and of `Arrays.asList` in Kryo 2, which store it.
    """

    class_name: str
    kind: CollectionKind
    items: tuple[object, ...]
    comparator: object = None
    element_class: str | None = None


@dataclass(frozen=True)
class MapValue:
    """A map in the order of the bytes; `comparator` as in `CollectionValue`."""

    class_name: str
    entries: tuple[tuple[object, object], ...]
    comparator: object = None


@dataclass(frozen=True)
class MessageValue:
    """A message of Protobuf or Thrift, which its own library wrote.

    Attributes:
        class_name: its Java class.
        raw: the bytes of the message, written back unchanged.
        fields: its fields by name, where the message is declared; None where it is not.
    """

    class_name: str
    raw: bytes
    fields: Mapping[str, object] | None = field(default=None, compare=False, hash=False)


@dataclass(frozen=True)
class BackReference:
    """A mention of an object that encloses it; `index` counts the objects of the graph from 0."""

    index: int


@dataclass(frozen=True)
class Undecoded:
    """Bytes that could not be decoded, kept as they are.

    Attributes:
        class_name: class of the value, as far as known.
        raw: all bytes of the value.
        reason: why not, and the way out.
    """

    class_name: str
    raw: bytes = field(repr=False)
    reason: str


def plain(value: object) -> object:
    """`value` without its Java types: lists, lists of (key, value), dicts with `class`, numbers, text.

    Sets become lists and enum constants their names, as the scalar codec gives them for serializers that know them.
    """
    match value:
        case TypedValue():
            return value.value
        case EnumValue():
            return value.constant
        case ArrayValue() | CollectionValue():
            return [plain(item) for item in value.items]
        case MapValue():
            return [(plain(key), plain(item)) for key, item in value.entries]
        case MessageValue():
            return value.raw if value.fields is None else {"class": value.class_name, **value.fields}
        case ObjectValue():
            return {"class": value.class_name, **{name: plain(item) for name, item in value.fields}}
        case _:
            return value
