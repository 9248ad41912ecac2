"""Writing one object graph, the mirror of `reader` (`Kryo.writeClassAndObject`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from state_pipelines.binary.java_stream import StreamWriter, write_stream
from state_pipelines.codecs.java.typed_values import (
    ArrayValue,
    BackReference,
    CollectionKind,
    CollectionValue,
    EnumValue,
    MapValue,
    MessageValue,
    ObjectValue,
    TypedValue,
)
from state_pipelines.codecs.kryo import wire
from state_pipelines.codecs.kryo.classes import WRAPPERS, CollectionVariant, Shape
from state_pipelines.codecs.kryo.field_lists import ARRAY, OBJECT, ClassDeclaration, ClassKind, JavaType
from state_pipelines.codecs.kryo.jdk_values import OBJECTS_5, SCALARS
from state_pipelines.codecs.kryo.table import (
    JAVA_SERIALIZERS,
    Bindings,
    ClassTable,
    class_name,
    component_type,
    resolve,
)
from state_pipelines.codecs.messages.chill_messages import SERIALIZERS
from state_pipelines.codecs.scalar.dispatch import write
from state_pipelines.errors import UnsupportedError, ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from state_pipelines.binary.data_views import Writer

# Names of the module: looking a member up in its enum takes longer, and each value does so.
_EMPTY, _SINGLE, _SORTED = CollectionVariant.EMPTY, CollectionVariant.SINGLE, CollectionVariant.SORTED
_IMMUTABLE, _ENUMS, _ARRAY = CollectionVariant.IMMUTABLE, CollectionVariant.ENUMS, CollectionVariant.ARRAY
_MAP = CollectionKind.MAP
_Value = TypeVar("_Value")
_NATIVE: dict[type, str] = {
    bool: "java.lang.Boolean",
    int: "java.lang.Integer",
    float: "java.lang.Double",
    str: "java.lang.String",
    bytes: "[B",
}
_PRIMITIVE_CLASSES = {primitive: wrapper for wrapper, primitive in WRAPPERS.items()} | {"void": "java.lang.Void"}


def class_of(value: object) -> str:
    """Return the Java class of a value without a declared type.

    Raises:
        ValueRangeError: a Python value without a Java class.
    """
    if isinstance(value, TypedValue | ObjectValue | ArrayValue | CollectionValue | MapValue | MessageValue):
        return value.class_name
    if isinstance(value, EnumValue):
        return value.body_class or value.class_name
    name = _NATIVE.get(type(value))
    if name is None:
        raise ValueRangeError(
            f"{type(value).__name__} {value!r} has no Java class",
            hint="Say it with a TypedValue, CollectionValue, MapValue or ObjectValue",
        )
    return name


class GraphWriter:
    """Writes one graph; an object that it meets again, by identity, becomes a back reference."""

    def __init__(self, writer: Writer, table: ClassTable) -> None:
        self.writer = writer
        self.table = table
        self.version = table.version
        self.names: dict[str, int] = {}
        self.met: dict[int, int] = {}
        self.met_objects: list[object] = []
        self.streams = 0
        self.java_streams: dict[str, StreamWriter] = {}

    def any(self, value: object, arguments: tuple[JavaType, ...] = ()) -> None:
        """Mirror of `GraphReader.any`."""
        if value is None:
            self.class_header(None)
            return
        name = self._class_of(value)
        self.class_header(name)
        self.object_of(value, name, arguments)

    def _class_of(self, value: object) -> str:
        if not isinstance(value, BackReference):
            return class_of(value)
        if not 0 <= value.index < len(self.met_objects):
            raise ValueRangeError(f"back reference {value.index} leads to none of {len(self.met_objects)} objects")
        return class_of(self.met_objects[value.index])

    def class_header(self, name: str | None) -> None:
        """Mirror of `GraphReader.class_header`."""
        writer = self.writer
        if name is None:
            writer.varint(0)
            return
        number = self.table.ids.get(name)
        if number is not None:
            writer.varint(number + 2)
            return
        writer.varint(1)
        known = self.names.get(name)
        writer.varint(len(self.names) if known is None else known)
        if known is None:
            self.names[name] = len(self.names)
            wire.write_string(writer, name, self.version, any_length=self.version == 5)

    def object_of(self, value: object, name: str, arguments: tuple[JavaType, ...], *, nullable: bool = False) -> None:
        """Mirror of `GraphReader.object_of`."""
        writer = self.writer
        if not self.table.uses_references(name):
            if nullable:
                writer.varint(value is not None)
            if value is not None:
                self._content(value, name, arguments)
            return
        if value is None:
            writer.varint(0)
            return
        if isinstance(value, BackReference):
            writer.varint(value.index + 2)
            return
        index = self.met.get(id(value))
        if index is not None:
            writer.varint(index + 2)
            return
        # Python interns short strings, so their identity is meaningless.
        if not isinstance(value, str | bytes) or len(value) > 1:
            self.met[id(value)] = len(self.met_objects)
        # Keeps them alive too, or another object could take the identity of one.
        self.met_objects.append(value)
        writer.varint(1)
        self._content(value, name, arguments)

    def _content(self, value: object, name: str, arguments: tuple[JavaType, ...]) -> None:
        writer, table, version = self.writer, self.table, self.version
        inner = value.value if isinstance(value, TypedValue) else value
        shape = table.shape(name)
        if (serializer := table.find_serializer(name)) is not None:
            self._custom(value, name, serializer)
        elif name == "java.lang.String":
            wire.write_string(writer, _expect(inner, str, name), version)
        elif name in WRAPPERS:
            SCALARS[WRAPPERS[name]].write(writer, inner, version)
        elif name == "java.lang.Void":
            pass
        elif (component := component_type(name)) is not None:
            self._array(inner, name, component, arguments)
        elif shape is not None and shape.kind is _MAP:
            self._map(_expect(value, MapValue, name), shape, arguments)
        elif shape is not None:
            self._collection(_expect(value, CollectionValue, name), shape, arguments)
        elif name == "java.time.LocalDateTime" and version == 2:
            self._date_time(inner)
        elif (leaf := table.leaf(name)) is not None:
            leaf.write(writer, inner, version)
        elif (enum := table.enum(name)) is not None:
            self._constant(value, enum)
        elif name == "java.lang.Class":
            self._class(inner)
        elif version == 5 and name in OBJECTS_5:
            OBJECTS_5[name].write(writer, value, version)
        elif isinstance(value, ObjectValue):
            self._object(value, arguments)
        else:
            self._stream(inner, name)

    def _custom(self, value: object, name: str, serializer: str) -> None:
        """Mirror of `GraphReader._java`, `GraphReader._message` and `GraphReader._declared`."""
        if isinstance(value, MessageValue) and serializer in SERIALIZERS:
            self.writer.varint(len(value.raw))
            self.writer.take(value.raw)
        elif isinstance(value, TypedValue) and serializer in JAVA_SERIALIZERS:
            known = self.java_streams.get(name)
            stream = known or self.java_streams.setdefault(name, StreamWriter())
            start = 0 if known is None else len(stream.out)
            stream.content(value.value)  # type: ignore[arg-type]
            self.writer.take(stream.out.getvalue()[start:])
        elif isinstance(value, TypedValue | ObjectValue) and (layout := self.table.find_own_layout(name)) is not None:
            write(layout, self.writer, dict(value.fields) if isinstance(value, ObjectValue) else value.value)
        else:
            raise UnsupportedError(
                f"class {name} has a Kryo serializer of its own",
                hint=f"Declare what it writes (`--serializer '{name}=LAYOUT'`, option serializers)",
            )

    def _array(self, value: object, name: str, component: JavaType, arguments: tuple[JavaType, ...]) -> None:
        writer = self.writer
        if isinstance(value, bytes):
            writer.varint(len(value) + 1)
            writer.take(value)
            return
        items = _expect(value, ArrayValue, name).items
        writer.varint(len(items) + 1)
        leaf = SCALARS.get(component.name)
        if leaf is not None:
            for item in items:
                leaf.write(writer, item, self.version)
            return
        write = self._element(component, arguments if self.version == 2 else (), final=component.name == ARRAY)
        self._each(items, write)

    def _each(self, items: Iterable[object], write: Callable[[object], None]) -> None:
        for item in items:
            write(item)

    def _element(
        self, of: JavaType, arguments: tuple[JavaType, ...], nullable: bool = True, final: bool = False
    ) -> Callable[[object], None]:
        if not final and not self.table.is_final(of):
            return lambda value: self.any(value, arguments)
        name = class_name(of)
        return lambda value: self.object_of(value, name, arguments, nullable=nullable)

    def _typed(self, arguments: tuple[JavaType, ...], index: int, nullable: bool = True) -> Callable[[object], None]:
        of = arguments[index] if index < len(arguments) else OBJECT
        return self._element(of, self.table.arguments(of) if self.version == 5 else (), nullable)

    def _collection(self, value: CollectionValue, shape: Shape, arguments: tuple[JavaType, ...]) -> None:
        writer, items = self.writer, value.items
        if shape.variant is _EMPTY:
            return
        if shape.variant is _SINGLE:
            self.any(items[0])
        elif shape.variant is _ENUMS:
            self._enum_set(value)
        elif self.version == 5:
            self._collection_5(value, shape, arguments)
        else:
            if shape.variant is _SORTED:
                self.any(value.comparator)
            writer.varint(len(items))
            if shape.variant is _ARRAY:
                self.class_header(value.element_class or "java.lang.Object")
            typed = value.class_name != "java.util.PriorityQueue" and shape.variant is not _ARRAY
            self._each(items, self._typed(arguments if typed else (), 0))

    def _collection_5(self, value: CollectionValue, shape: Shape, arguments: tuple[JavaType, ...]) -> None:
        writer, items = self.writer, value.items
        immutable = shape.variant is _IMMUTABLE
        final = bool(arguments) and self.table.is_final(arguments[0])
        nulls = any(item is None for item in items)
        kinds = {self._class_of(item) for item in items if item is not None}
        same = bool(items) and len(kinds) <= 1 and not final
        if final and immutable:
            writer.varint(len(items) + 1)
        else:
            wire.write_flagged(writer, same or (final and nulls), len(items) + 1)
        if shape.variant is _SORTED:
            self.any(value.comparator)
        if not same:
            self._each(items, self._typed(arguments, 0, nullable=nulls))
            return
        name = kinds.pop() if kinds else None
        self.class_header(name)
        if name is None:
            return
        if not immutable:
            writer.bool(nulls)
        inner = self.table.arguments(arguments[0]) if arguments else ()
        for item in items:
            self.object_of(item, name, inner, nullable=nulls and not immutable)

    def _enum_set(self, value: CollectionValue) -> None:
        first = value.items[0] if value.items else None
        element_class = value.element_class or (first.class_name if isinstance(first, EnumValue) else None)
        self.class_header(element_class)
        self.writer.varint(len(value.items))
        for item in value.items:
            enum = self.table.enum(element_class or "")
            if enum is None:
                raise UnsupportedError(f"the constants of enum {element_class} are not known")
            self._constant(item, enum)

    def _map(self, value: MapValue, shape: Shape, arguments: tuple[JavaType, ...]) -> None:
        if shape.variant is _EMPTY:
            return
        if shape.variant is _SINGLE:
            for each in value.entries[0]:
                self.any(each)
            return
        if self.version == 2:
            if shape.variant is _SORTED:
                self.any(value.comparator)
            self.writer.varint(len(value.entries))
        else:
            self.writer.varint(len(value.entries) + 1)
            if shape.variant is _SORTED:
                self.any(value.comparator)
        nullable = shape.variant is not _IMMUTABLE
        write_key, write_value = (self._typed(arguments, index, nullable) for index in range(2))
        for key, item in value.entries:
            write_key(key)
            write_value(item)

    def _constant(self, value: object, enum: ClassDeclaration) -> None:
        constant = value.constant if isinstance(value, EnumValue) else value
        if constant not in enum.constants:
            raise ValueRangeError(f"{constant!r} is no constant of enum {enum.name}")
        self.writer.varint(enum.constants.index(str(constant)) + 1)

    def _class(self, value: object) -> None:
        name = _expect(value, str, "java.lang.Class")
        wrapper = _PRIMITIVE_CLASSES.get(name, name)
        self.class_header(wrapper)
        if self.version == 2 or wrapper in _PRIMITIVE_CLASSES.values():
            self.writer.bool(wrapper != name)

    def _date_time(self, value: object) -> None:
        members = value if isinstance(value, dict) else {}
        for name, member in (("LocalDate", "date"), ("LocalTime", "nano_of_day")):
            self.object_of(TypedValue(f"java.time.{name}", members.get(member)), f"java.time.{name}", ())

    def _object(self, value: ObjectValue, arguments: tuple[JavaType, ...]) -> None:
        declared = self.table.find(value.class_name)
        if declared is None:
            raise UnsupportedError(
                f"the fields of class {value.class_name} are not declared", hint="Add the class to the field lists"
            )
        names = [name for name, _ in declared.fields]
        if sorted(names) != sorted(name for name, _ in value.fields):
            raise ValueRangeError(f"the fields of {value.class_name} are {', '.join(names)}")
        self._fields(value, declared, self.table.bind(declared, arguments))

    def _fields(self, value: ObjectValue, declared: ClassDeclaration, bindings: Bindings) -> None:
        record = self.version == 5 and declared.kind is ClassKind.RECORD
        values = sorted(value.fields, key=lambda item: item[0])
        for (_, of), (_, item) in zip(declared.fields, values, strict=True):
            leaf = SCALARS.get(of.name)
            if leaf is not None:
                leaf.write(self.writer, item, self.version)
                continue
            of = resolve(of, bindings)
            self._element(of, () if record else self.table.arguments(of))(item)

    def _stream(self, value: object, name: str) -> None:
        if self.streams or value is None or isinstance(value, bool | int | float | str | bytes | dict | tuple):
            raise UnsupportedError(f"nothing is known of the form of class {name} in Kryo {self.version}")
        self.streams += 1
        self.writer.take(write_stream(value))  # type: ignore[arg-type]


def _expect(value: object, kind: type[_Value], name: str) -> _Value:
    if isinstance(value, kind):
        return value
    raise ValueRangeError(f"{value!r} is no value of class {name}")
