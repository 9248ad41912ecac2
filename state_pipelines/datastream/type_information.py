"""Types of values: the serializer that Java Flink creates for them, and the conversion from and to Python.

A type converts between the values of functions (`Row`, tuples, dicts, dates) and those of the scalar codec
(`codecs.scalar.codec`). Names are those of `pyflink.common.typeinfo`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from state_pipelines.datastream.java_dates import CONVERSIONS
from state_pipelines.errors import UsageError, ValueRangeError
from state_pipelines.serializers import build
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import BasicKind
from state_pipelines.serializers.tree.basic import COMPONENTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.serializers.tree import Enum, Serializer

_JAVA_LANG = {BasicKind.INT: "Integer", BasicKind.CHAR: "Character", BasicKind.VOID: "Void"}
_ARRAY_CODES = {
    BasicKind.BOOLEAN: "Z",
    BasicKind.BYTE: "B",
    BasicKind.SHORT: "S",
    BasicKind.CHAR: "C",
    BasicKind.INT: "I",
    BasicKind.LONG: "J",
    BasicKind.FLOAT: "F",
    BasicKind.DOUBLE: "D",
}
_CLASSES = {
    BasicKind.BIG_INT: "java.math.BigInteger",
    BasicKind.BIG_DEC: "java.math.BigDecimal",
    BasicKind.DATE: "java.util.Date",
    BasicKind.SQL_DATE: "java.sql.Date",
    BasicKind.SQL_TIME: "java.sql.Time",
    BasicKind.SQL_TIMESTAMP: "java.sql.Timestamp",
    BasicKind.INSTANT: "java.time.Instant",
    BasicKind.LOCAL_DATE: "java.time.LocalDate",
    BasicKind.LOCAL_TIME: "java.time.LocalTime",
    BasicKind.LOCAL_DATE_TIME: "java.time.LocalDateTime",
}


TypeDescription: TypeAlias = "TypeInformation | Serializer | str | type"
"""A type, or another description of one (see `Types.of`)."""


class TypeInformation(ABC):
    """The type of values of a state, a key, a namespace or a field."""

    @property
    @abstractmethod
    def serializer(self) -> Serializer:
        """The serializer that Java Flink creates for the type."""

    @property
    @abstractmethod
    def java_class(self) -> str:
        """Binary name of the Java class of the values, which arrays of them store."""

    def need_conversion(self) -> bool:
        """Return whether values in Python differ from those of the scalar codec: of types that convert, all do."""
        return type(self).to_internal_type is not TypeInformation.to_internal_type

    def to_internal_type(self, obj: Any) -> Any:
        """Convert a value of Python to that of the scalar codec.

        Raises:
            ValueRangeError: it is not a value of the type.
        """
        return obj

    def from_internal_type(self, obj: Any) -> Any:
        """Convert a value of the scalar codec to that of Python.

        Raises:
            ValueRangeError: Python has no such value.
        """
        return obj

    def __str__(self) -> str:
        return describe(self.serializer)


@dataclass(frozen=True, repr=False)
class BasicTypeInfo(TypeInformation):
    """Numbers, text, dates, times and arrays of primitive numbers.

    Attributes:
        kind: of the serializer.
    """

    kind: BasicKind

    @cached_property
    def serializer(self) -> Serializer:
        """The serializer of the kind."""
        return build.basic(self.kind)

    @property
    def java_class(self) -> str:
        """The class of the kind; of arrays the class of arrays."""
        if self.kind == BasicKind.STRING_ARRAY:
            return "[Ljava.lang.String;"
        if self.kind in COMPONENTS:
            return f"[{_ARRAY_CODES[COMPONENTS[self.kind]]}"
        return _CLASSES.get(self.kind) or f"java.lang.{_JAVA_LANG.get(self.kind, self.kind)}"

    def need_conversion(self) -> bool:
        """Return whether the kind is a date or a time."""
        return self.kind in CONVERSIONS

    def to_internal_type(self, obj: Any) -> Any:
        """Convert a date or a time; other values are the same in both forms."""
        conversion = CONVERSIONS.get(self.kind)
        return obj if conversion is None or obj is None else conversion.write(obj)

    def from_internal_type(self, obj: Any) -> Any:
        """Convert to a date or a time; other values are the same in both forms."""
        conversion = CONVERSIONS.get(self.kind)
        return obj if conversion is None or obj is None else conversion.read(obj)

    def __repr__(self) -> str:
        return f"{self.kind}TypeInfo"


@dataclass(frozen=True)
class GivenTypeInfo(TypeInformation):
    """A type that is given its serializer.

    Attributes:
        stored: the serializer.
    """

    stored: Serializer

    @property
    def serializer(self) -> Serializer:
        """The serializer itself."""
        return self.stored


@dataclass(frozen=True)
class StoredTypeInfo(GivenTypeInfo):
    """Values of any serializer in the form of the scalar codec, without conversion."""

    @property
    def java_class(self) -> str:
        """The class that the serializer names.

        Raises:
            UsageError: the serializer names none.
        """
        for name in ("pojo_class", "type_class", "runtime_class", "enum_class", "tuple_class"):
            if hasattr(self.stored, name):
                return str(getattr(self.stored, name))
        raise UsageError(
            f"{describe(self.stored)} does not name the class of its values, which an array stores",
            hint="Take the serializer of the whole array from a snapshot",
        )


@dataclass(frozen=True)
class ListTypeInfo(TypeInformation):
    """Lists (`ListTypeInfo` of Java, `ListSerializer`)."""

    elem_type: TypeInformation

    @cached_property
    def serializer(self) -> Serializer:
        """`ListSerializer`."""
        return build.list_of(self.elem_type.serializer)

    @property
    def java_class(self) -> str:
        """`java.util.List`."""
        return "java.util.List"

    def need_conversion(self) -> bool:
        """Return whether elements are converted."""
        return self.elem_type.need_conversion()

    def to_internal_type(self, obj: Any) -> Any:
        """Convert the elements."""
        return None if obj is None else convert_elements(obj, self.elem_type)

    def from_internal_type(self, obj: Any) -> Any:
        """Convert the elements."""
        if obj is None or not self.elem_type.need_conversion():
            return obj
        return [self.elem_type.from_internal_type(each) for each in obj]


@dataclass(frozen=True)
class ArrayTypeInfo(ListTypeInfo):
    """Arrays of objects, which may be null (`GenericArraySerializer`): `BASIC_ARRAY` and `OBJECT_ARRAY`."""

    @cached_property
    def serializer(self) -> Serializer:
        """`GenericArraySerializer`."""
        return build.generic_array(self.elem_type.java_class, self.elem_type.serializer)

    @property
    def java_class(self) -> str:
        """The class of arrays of the elements' class."""
        inner = self.elem_type.java_class
        return f"[{inner}" if inner.startswith("[") else f"[L{inner};"


@dataclass(frozen=True)
class SetTypeInfo(ListTypeInfo):
    """Sets (`SetSerializer`, since Flink 2.0)."""

    java_class = "java.util.Set"

    @cached_property
    def serializer(self) -> Serializer:
        """`SetSerializer`."""
        return build.set_of(self.elem_type.serializer)

    def need_conversion(self) -> bool:
        """Return True: the scalar codec has lists."""
        return True

    def from_internal_type(self, obj: Any) -> Any:
        """Convert a list to a set."""
        return None if obj is None else set(super().from_internal_type(obj))


@dataclass(frozen=True)
class MapTypeInfo(TypeInformation):
    """Maps (`MapSerializer`): dicts in Python, a list of (key, value) in the scalar codec."""

    key_type: TypeInformation
    value_type: TypeInformation

    java_class = "java.util.Map"

    @cached_property
    def serializer(self) -> Serializer:
        """`MapSerializer`."""
        return build.map_of(self.key_type.serializer, self.value_type.serializer)

    def to_internal_type(self, obj: Any) -> Any:
        """Convert a dict to a list of (key, value)."""
        if obj is None:
            return None
        if not isinstance(obj, Mapping):
            raise ValueRangeError(f"{obj!r:.80} is not a dict")
        key, value = self.key_type.to_internal_type, self.value_type.to_internal_type
        return [(key(name), value(item)) for name, item in obj.items()]

    def from_internal_type(self, obj: Any) -> Any:
        """Convert a list of (key, value) to a dict."""
        if obj is None:
            return None
        key, value = self.key_type.from_internal_type, self.value_type.from_internal_type
        try:
            return {key(name): value(item) for name, item in obj}
        except TypeError as error:
            raise ValueRangeError(
                f"keys of {self} cannot be keys of a dict: {error}",
                hint="Types.of(serializer, stored=True) reads maps as lists of (key, value)",
            ) from None


@dataclass(frozen=True)
class EnumTypeInfo(GivenTypeInfo):
    """Java enums (`EnumSerializer`): the names of their constants."""

    stored: Enum

    @property
    def java_class(self) -> str:
        """The class of the enum."""
        return self.stored.enum_class


@dataclass(frozen=True)
class WrappedTypeInfo(GivenTypeInfo):
    """Values of another type in a serializer that adds something: `Nullable` a null flag.

    Attributes:
        stored: the serializer around that of the values.
        inner: type of the values.
    """

    inner: TypeInformation

    @property
    def java_class(self) -> str:
        """The class of the values."""
        return self.inner.java_class

    def need_conversion(self) -> bool:
        """Return whether the values are converted."""
        return self.inner.need_conversion()

    def to_internal_type(self, obj: Any) -> Any:
        """Convert the value; null stays null."""
        return None if obj is None else self.inner.to_internal_type(obj)

    def from_internal_type(self, obj: Any) -> Any:
        """Convert the value; null stays null."""
        return read_nullable(self.inner, obj)


def convert_elements(values: Iterable[Any], element: TypeInformation) -> list[Any]:
    """Convert elements to the scalar codec's.

    Raises:
        ValueRangeError: `values` is no list, or an element is not of the type.
    """
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise ValueRangeError(f"{values!r:.80} is not a list")
    return [element.to_internal_type(each) for each in values] if element.need_conversion() else list(values)


def read_nullable(of: TypeInformation, value: Any) -> Any:
    """Convert a value of the scalar codec to that of Python; null stays null."""
    return None if value is None else of.from_internal_type(value)
