"""Columns of Kryo values: a natural type where the class determines it, else the JSON of the value.

| Java | layout | Arrow |
|---|---|---|
| primitives and wrappers, String, StringBuilder, URI, enums of field lists | of their own | numbers, string |
| UUID | text | string |
| BigDecimal, BigInteger | of their own | string |
| LocalDate, LocalTime, LocalDateTime, Instant, Date, java.sql | of their own | as in Flink's serializers |
| Year, Duration | i32; seconds and nanos | int32; struct |
| classes of field lists and Flink's tuples | their fields | struct |
| arrays; List, Set, Map and the like with known elements | of their elements | list, map |
| everything else | text | string: the JSON that `dump` prints |

A value of another class than the declared one (a subclass, where that is possible) does not fit; its row keeps the
bytes. Structs are written back if all their fields can be: not JSON, and not collections declared by an interface
(`List<String>`), because its class is lost; a field list with `ArrayList<String>` keeps it. An object that a graph
mentions twice is written twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.java import (
    ArrayValue,
    CollectionKind,
    CollectionValue,
    EnumValue,
    MapValue,
    ObjectValue,
    TypedValue,
)
from state_pipelines.codecs.json import dumps, value_json
from state_pipelines.codecs.kryo import FieldLists
from state_pipelines.codecs.kryo.classes import (
    ARRAY,
    FIELD_KINDS,
    OBJECT,
    PRIMITIVES,
    WRAPPERS,
    ClassKind,
    CollectionVariant,
    JavaType,
)
from state_pipelines.codecs.kryo.values import ClassTable, class_name, resolve
from state_pipelines.errors import UnsupportedError, ValueRangeError

if TYPE_CHECKING:
    from state_pipelines.codecs.kryo.classes import Version
    from state_pipelines.codecs.messages import MessageTypes
    from state_pipelines.serializers import tree

Change = Callable[[Any], Any]
_MAX_DEPTH = 8
_NUMBERS: dict[str, lay.Layout] = {
    "boolean": lay.Primitive(lay.PrimitiveKind.BOOL),
    "byte": lay.Primitive(lay.PrimitiveKind.I8),
    "short": lay.Primitive(lay.PrimitiveKind.I16),
    "int": lay.Primitive(lay.PrimitiveKind.I32),
    "long": lay.Primitive(lay.PrimitiveKind.I64),
    "float": lay.Primitive(lay.PrimitiveKind.F32),
    "double": lay.Primitive(lay.PrimitiveKind.F64),
    "char": lay.Logical(lay.LogicalKind.CHAR),
}
_NATIVE = ("java.lang.Integer", "java.lang.Boolean", "java.lang.Double")
_TYPED: dict[str, lay.Layout] = {
    "java.math.BigInteger": lay.BigInteger(),
    "java.math.BigDecimal": lay.BigDecimal(),
    "java.time.LocalDate": lay.Logical(lay.LogicalKind.LOCAL_DATE),
    "java.time.LocalTime": lay.Logical(lay.LogicalKind.LOCAL_TIME),
    "java.time.LocalDateTime": lay.Logical(lay.LogicalKind.LOCAL_DATE_TIME),
    "java.time.Instant": lay.Logical(lay.LogicalKind.INSTANT),
    "java.util.Date": lay.Logical(lay.LogicalKind.DATE_MILLIS),
    "java.sql.Date": lay.Logical(lay.LogicalKind.DATE_MILLIS),
    "java.sql.Time": lay.Logical(lay.LogicalKind.DATE_MILLIS),
    "java.sql.Timestamp": lay.Logical(lay.LogicalKind.SQL_TIMESTAMP),
    "java.time.Duration": lay.Struct(
        (("seconds", lay.Primitive(lay.PrimitiveKind.I64)), ("nanos", lay.Primitive(lay.PrimitiveKind.I32)))
    ),
}
_MEMBERS = {"java.net.URI": ("string", lay.Text()), "java.time.Year": ("year", lay.Primitive(lay.PrimitiveKind.I32))}
_INTERFACES = {
    **{f"java.util.{name}": CollectionKind.LIST for name in ("List", "Collection", "Queue", "Deque")},
    "java.lang.Iterable": CollectionKind.LIST,
    **{f"java.util.{name}": CollectionKind.SET for name in ("Set", "SortedSet", "NavigableSet")},
    **{f"java.util.{name}": CollectionKind.MAP for name in ("Map", "SortedMap", "NavigableMap")},
}
_LISTED = (CollectionVariant.PLAIN, CollectionVariant.ARRAY, CollectionVariant.IMMUTABLE)
_NONE_DECLARED = FieldLists()


class Conversion(NamedTuple):
    """The layout of the columns for one Java type, and the conversions from and to values of the scalar codec."""

    layout: lay.Layout
    read: Change
    write: Change


def find_kryo(layout: lay.Dynamic) -> Conversion:
    """Return the conversion between values of a Kryo serializer and columns; the caller handles null."""
    version: Version = 2 if layout.kryo_version == 2 else 5
    serializer: tree.Kryo = layout.serializer  # type: ignore[assignment]
    return _find(serializer, version, layout.classes or _NONE_DECLARED, layout.messages)


@cache
def _find(serializer: tree.Kryo, version: Version, classes: FieldLists, messages: MessageTypes | None) -> Conversion:
    table = ClassTable(serializer, version, classes, messages)
    return _ConversionFinder(table).find(JavaType(serializer.type_class), ())


class _ConversionFinder:
    """Finds the conversions of types for one Kryo serializer."""

    def __init__(self, table: ClassTable) -> None:
        self.table = table

    def find(self, of: JavaType, above: tuple[str, ...]) -> Conversion:
        name = of.name
        if self.table.find_serializer(name) is not None or name in above or len(above) > _MAX_DEPTH:
            return _as_json(name)
        if name in PRIMITIVES or name in WRAPPERS:
            return _number(name)
        if name == "java.lang.String":
            return Conversion(lay.Text(), partial(_expect_native, str, name), lambda value: value)
        if name == ARRAY:
            return self._array(of, above)
        if name in _TYPED:
            return Conversion(_TYPED[name], partial(_expect_typed, name), partial(TypedValue, name))
        if name in _MEMBERS:
            member, inner = _MEMBERS[name]
            return Conversion(
                inner,
                lambda value: _expect_typed(name, value)[member],
                lambda value: TypedValue(name, {member: value}),
            )
        if name == "java.util.UUID":
            return Conversion(lay.Text(), _read_uuid, _write_uuid)
        if (kind := self._kind(name)) is not None:
            # A raw type, such as `List` without arguments, has unknown elements and becomes JSON text.
            return self._collection(of, kind, (*above, name)) if of.arguments else _as_json(name)
        if (
            (enum := self.table.enum(name)) is not None
            and enum.name == name
            and enum.kind is not ClassKind.ABSTRACT_ENUM
        ):
            return Conversion(lay.Constants(enum.constants), partial(_read_constant, name), partial(EnumValue, name))
        return self._object(of, above)

    def _kind(self, name: str) -> CollectionKind | None:
        shape = self.table.shape(name)
        if shape is not None:
            return shape.kind if shape.variant in _LISTED else None
        return _INTERFACES.get(name)

    def _array(self, of: JavaType, above: tuple[str, ...]) -> Conversion:
        element = of.arguments[0]
        if element.name == "byte":
            return Conversion(lay.Sized(), partial(_expect_native, bytes, "byte[]"), lambda value: value)
        inner = self.find(element, (*above, ARRAY))
        primitive = element.name in PRIMITIVES
        layout = lay.Sequence(inner.layout if primitive else lay.Optional(inner.layout))
        read, write = _nullable(inner.read), _nullable(inner.write)
        name = class_name(of)

        def read_array(value: Any) -> Any:
            if not isinstance(value, ArrayValue) or value.class_name != name:
                raise _misfit(name, value)
            return [read(item) for item in value.items]

        return Conversion(layout, read_array, lambda items: ArrayValue(name, tuple(write(item) for item in items)))

    def _collection(self, of: JavaType, kind: CollectionKind, above: tuple[str, ...]) -> Conversion:
        children = [self.find(each, above) for each in of.arguments]
        changes = [(_nullable(each.read), _nullable(each.write)) for each in children]
        open_class = of.name in _INTERFACES

        def check(value: Any, expected: type[MapValue | CollectionValue]) -> None:
            fits = isinstance(value, expected) and (open_class or value.class_name == of.name)
            # A column cannot store a comparator, so a collection with one could not be written back. A value of a field
            # declared as an interface cannot be written back anyway, so there the comparator may be dropped.
            if not fits or (not open_class and value.comparator is not None):
                raise _misfit(of.name, value)

        def refuse(value: Any) -> Any:
            raise UnsupportedError(
                f"a value that is declared as {of.name} cannot be written: its class is not in the column",
                hint="Declare the class that the values have (`ArrayList<String>`) in the field lists",
            )

        if kind is CollectionKind.MAP and len(children) == 2:

            def read_map(value: Any) -> Any:
                check(value, MapValue)
                return [(changes[0][0](key), changes[1][0](item)) for key, item in value.entries]

            def write_map(entries: Any) -> Any:
                return MapValue(of.name, tuple((changes[0][1](key), changes[1][1](item)) for key, item in entries))

            layout = lay.Mapping(lay.Optional(children[0].layout), lay.Optional(children[1].layout))
            return Conversion(layout, read_map, refuse if open_class else write_map)

        def read_items(value: Any) -> Any:
            check(value, CollectionValue)
            return [changes[0][0](item) for item in value.items]

        def write_items(items: Any) -> Any:
            values = tuple(changes[0][1](item) for item in items)
            return CollectionValue(
                of.name, CollectionKind.SET if kind is CollectionKind.SET else CollectionKind.LIST, values
            )

        return Conversion(
            lay.Sequence(lay.Optional(children[0].layout)), read_items, refuse if open_class else write_items
        )

    def _object(self, of: JavaType, above: tuple[str, ...]) -> Conversion:
        declared = self.table.find(of.name)
        names = [] if declared is None else [name for name, _ in declared.fields]
        if declared is None or declared.kind not in FIELD_KINDS or len(set(names)) < len(names):
            return _as_json(of.name)
        if of.name == OBJECT.name:
            return _as_json(of.name)
        bindings = self.table.bind(declared, of.arguments)
        children = {name: self.find(resolve(each, bindings), (*above, of.name)) for name, each in declared.fields}
        plain = {name for name, each in declared.fields if each.name in PRIMITIVES}
        fields = tuple(
            (name, each.layout if name in plain else lay.Optional(each.layout)) for name, each in children.items()
        )
        reads = {name: _nullable(each.read) for name, each in children.items()}
        writes = {name: _nullable(each.write) for name, each in children.items()}

        def read(value: Any) -> Any:
            if not isinstance(value, ObjectValue) or value.class_name != of.name:
                raise _misfit(of.name, value)
            return {name: reads[name](item) for name, item in value.fields}

        def write(value: Any) -> Any:
            return ObjectValue(of.name, tuple((name, writes[name](value[name])) for name in names))

        return Conversion(lay.Struct(fields), read, write)


def _as_json(name: str) -> Conversion:
    def refuse(value: Any) -> Any:
        raise UnsupportedError(
            f"values of {name} are shown as JSON text in tables, from which they cannot be written",
            hint=f"Declare `{name}` with its fields in the field lists (`--classes`), or keep the bytes as they are",
        )

    return Conversion(lay.Text(), lambda value: dumps(value_json(value)), refuse)  # type: ignore[arg-type]


def _nullable(change: Change) -> Change:
    return lambda value: None if value is None else change(value)


def _number(name: str) -> Conversion:
    primitive = WRAPPERS.get(name, name)

    def read(value: Any) -> Any:
        if isinstance(value, TypedValue) and value.class_name == name:
            return value.value
        if isinstance(value, bool | int | float | str):
            return value
        raise _misfit(name, value)

    def write(value: Any) -> Any:
        return TypedValue(name, value) if name in WRAPPERS and name not in _NATIVE else value

    return Conversion(_NUMBERS[primitive], read, write)


def _expect_native(kind: type, name: str, value: Any) -> Any:
    if not isinstance(value, kind):
        raise _misfit(name, value)
    return value


def _expect_typed(name: str, value: Any) -> Any:
    if not isinstance(value, TypedValue) or value.class_name != name:
        raise _misfit(name, value)
    return value.value


def _read_uuid(value: Any) -> str:
    members = _expect_typed("java.util.UUID", value)
    mask = (1 << 64) - 1
    return str(uuid.UUID(int=(members["mostSigBits"] & mask) << 64 | (members["leastSigBits"] & mask)))


def _write_uuid(value: str) -> TypedValue:
    try:
        number = uuid.UUID(value).int
    except ValueError:
        raise ValueRangeError(f"{value!r} is not a UUID") from None
    halves = [half - (1 << 64) if half >> 63 else half for half in (number >> 64, number & ((1 << 64) - 1))]
    return TypedValue("java.util.UUID", {"mostSigBits": halves[0], "leastSigBits": halves[1]})


def _read_constant(name: str, value: Any) -> str:
    if not isinstance(value, EnumValue) or value.class_name != name or value.body_class is not None:
        raise _misfit(name, value)
    return value.constant


def _misfit(name: str, value: Any) -> UnsupportedError:
    found = getattr(value, "class_name", type(value).__name__)
    return UnsupportedError(
        f"a value of class {found} does not fit the column, which has the fields of {name}",
        hint="The row keeps the bytes; `dump` decodes them",
    )
