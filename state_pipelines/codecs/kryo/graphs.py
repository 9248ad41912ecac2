"""Object graphs of Kryo, read and written (`Kryo.readClassAndObject`, `Kryo.writeClassAndObject`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from state_pipelines.binary.java_stream import HEADER, StreamReader, StreamWriter, read_stream, write_stream
from state_pipelines.codecs.java import (
    BYTES_PER_VALUE,
    HINT,
    ArrayValue,
    BackReference,
    CollectionKind,
    CollectionValue,
    EnumValue,
    ExpansionBudget,
    MapValue,
    MessageValue,
    ObjectValue,
    TypedValue,
    make_sizes,
)
from state_pipelines.codecs.kryo import classes
from state_pipelines.codecs.kryo.classes import (
    ARRAY,
    FIELD_KINDS,
    OBJECT,
    WRAPPERS,
    ClassDeclaration,
    ClassKind,
    CollectionVariant,
    JavaType,
    Shape,
)
from state_pipelines.codecs.kryo.values import (
    JAVA_SERIALIZERS,
    OBJECTS_5,
    SCALARS,
    TEXT,
    Bindings,
    ClassTable,
    class_name,
    component_type,
    count_bits,
    resolve,
)
from state_pipelines.codecs.layout import Struct
from state_pipelines.codecs.messages import SERIALIZERS
from state_pipelines.codecs.scalar_values import read, write
from state_pipelines.errors import FormatError, UnsupportedError, ValueRangeError, Where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from state_pipelines.binary.data_views import Reader, Writer
    from state_pipelines.binary.java_stream import JavaContent
    from state_pipelines.codecs.layout import Layout
    from state_pipelines.codecs.messages import MessageFormat

MAX_DEPTH = 64
"""Maximum nesting depth of objects."""
_NULLS_PER_VALUE = 4
_UNMARKED = ("java.lang.Integer", "java.lang.Boolean", "java.lang.Double", "java.lang.String")
_STREAMED = ("java.util.Locale", "java.text.SimpleDateFormat")
# Module-level names for enum members, because looking up a member takes longer and happens for every value.
_EMPTY, _SINGLE, _SORTED = CollectionVariant.EMPTY, CollectionVariant.SINGLE, CollectionVariant.SORTED
_IMMUTABLE, _ENUMS, _ARRAY = CollectionVariant.IMMUTABLE, CollectionVariant.ENUMS, CollectionVariant.ARRAY
_MAP, _SET = CollectionKind.MAP, CollectionKind.SET
_PENDING = object()


class GraphReader:
    """Reads one graph of objects; keeps the class names and objects read so far, to which later bytes refer by number.

    Attributes:
        class_name: class of the root, once known.
    """

    def __init__(self, reader: Reader, table: ClassTable) -> None:
        self.reader = reader
        self.table = table
        self.version = table.version
        self.class_name: str | None = None
        self.names: list[str] = []
        self.objects: list[object] = []
        # Per object: the number of its values with all references expanded, and the number of its levels.
        self.sizes: list[tuple[int, int]] = []
        self.budget = ExpansionBudget(reader.remaining, reader.name, reader.position)
        self.spend = self.budget.spend
        self.depth = 0
        self.deepest = 0
        self.streams = 0
        self.java_sizes = make_sizes()
        self.java_streams: dict[str, StreamReader] = {}

    def any(self, arguments: tuple[JavaType, ...] = ()) -> object:
        """Read a class and an object of it."""
        name = self.class_header()
        if name is None:
            return None
        if self.class_name is None:
            self.class_name = name
        return self.object_of(name, arguments)

    def class_header(self) -> str | None:
        """Read the class of an object: 0 for null, 1 and a name, or its registration id + 2. Return None for null."""
        reader, start = self.reader, self.reader.position
        header = reader.varint()
        if header == 0:
            return None
        if header > 1:
            name = self.table.class_of_id(header - 2)
            if name is None:
                raise reader.error(f"class id {header - 2} is not registered in the snapshot", start)
            return name
        number = reader.varint()
        if number == len(self.names):
            self.names.append(str(TEXT.read(reader, self.version)))
        if number >= len(self.names):
            raise reader.error(f"class name {number} comes before name {len(self.names)}", start)
        return self.names[number]

    def object_of(
        self, name: str, arguments: tuple[JavaType, ...], *, nullable: bool = False, declared: bool = False
    ) -> object:
        """Read an object whose class is known.

        Args:
            name: class of the object.
            arguments: type arguments of the declared type.
            nullable: the object may be null. Without references for its class, a null marker precedes the object; with
                references, the number 0 is null.
            declared: the class follows from the declared type, so it is not stored.
        """
        reader, start = self.reader, self.reader.position
        self.spend(1)
        if not self.table.uses_references(name):
            if nullable and not self._present():
                return None
            return self._body(name, arguments, declared)
        number = reader.varint()
        if number == 0:
            return None
        if number > 1:
            return self._mentioned(number - 2, start)
        index, before, deepest = len(self.objects), self.budget.count, self.deepest
        self.objects.append(_PENDING)
        self.sizes.append((0, 0))
        self.deepest = self.depth
        self.objects[index] = value = self._body(name, arguments, declared)
        repeated = self.budget.count - before + (reader.position - start) // BYTES_PER_VALUE
        self.sizes[index] = repeated, self.deepest - self.depth
        if deepest > self.deepest:
            self.deepest = deepest
        return value

    def _present(self) -> bool:
        start, mark = self.reader.position, self.reader.varint()
        if mark > 1:
            raise self.reader.error(f"the number before an object is {mark}, neither 0 (null) nor 1 (not null)", start)
        return mark == 1

    def _mentioned(self, index: int, start: int) -> object:
        if index >= len(self.objects):
            raise self.reader.error(f"back reference {index} leads to none of {len(self.objects)} objects", start)
        value = self.objects[index]
        if value is _PENDING:
            return BackReference(index)
        size, levels = self.sizes[index]
        self.spend(size)
        self.deepest = max(self.deepest, self.depth + levels)
        if self.deepest > MAX_DEPTH:
            raise UnsupportedError(
                f"references between Kryo objects lead more than {MAX_DEPTH} levels deep",
                where=Where(file=self.reader.name, offset=start),
                hint=HINT,
            )
        return value

    def _body(self, name: str, arguments: tuple[JavaType, ...], declared: bool) -> object:
        start = self.reader.position
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.reader.error(f"Kryo objects are nested more than {MAX_DEPTH} levels deep", start)
        # A comparison is faster than `max`, which matters because it is made for every object.
        if self.depth > self.deepest:
            self.deepest = self.depth
        value = self._content(name, arguments, declared)
        self.depth -= 1
        return value

    def _content(self, name: str, arguments: tuple[JavaType, ...], declared: bool) -> object:
        reader, table, version = self.reader, self.table, self.version
        if (serializer := table.find_serializer(name)) is not None:
            if serializer in JAVA_SERIALIZERS:
                return self._java(name)
            if (format := SERIALIZERS.get(serializer)) is not None:
                return self._message(name, format)
            if (layout := table.find_own_layout(name)) is not None:
                return self._declared(name, layout)
            own = f"by {serializer}" if serializer else "by a Kryo serializer of its own"
            raise UnsupportedError(
                f"class {name} inside a Kryo value was written {own}",
                where=Where(file=self.reader.name, offset=self.reader.position),
                hint=f"Declare what it writes (`--serializer '{name}=LAYOUT'`, option serializers); the bytes can be "
                "copied as they are",
            )
        if name == "java.lang.String":
            return TEXT.read(reader, version)
        if name in WRAPPERS:
            value = SCALARS[WRAPPERS[name]].read(reader, version)
            return value if declared or name in _UNMARKED else TypedValue(name, value)
        if name == "java.lang.Void":
            return TypedValue(name, None)
        if (component := component_type(name)) is not None:
            return self._array(name, component, arguments)
        if (shape := table.shape(name)) is not None:
            return self._collection(name, shape, arguments)
        if (leaf := table.leaf(name)) is not None:
            value = leaf.read(reader, version)
            if name == "java.util.BitSet":
                self.spend(count_bits(value))
            return TypedValue(name, value)
        if (enum := table.enum(name)) is not None:
            return self._constant(name, enum)
        if name == "java.lang.Class":
            return self._class()
        if version == 5 and name in OBJECTS_5:
            return ObjectValue(name, OBJECTS_5[name].read(reader, version))  # type: ignore[arg-type]
        if (fields := table.find(name)) is not None and fields.kind in FIELD_KINDS:
            return self._fields(name, fields, table.bind(fields, arguments))
        return self._stream(name)

    def _declared(self, name: str, layout: Layout) -> TypedValue | ObjectValue:
        """Read an object of a class whose Kryo serializer has a declared or registered layout."""
        start = self.reader.position
        value = read(layout, self.reader, False)
        self.spend(self.reader.position - start)
        return ObjectValue(name, tuple(value.items())) if isinstance(layout, Struct) else TypedValue(name, value)

    def _java(self, name: str) -> TypedValue:
        """Read an object of `JavaSerializer`; all objects of a class in one graph continue the same Java stream."""
        reader, stream = self.reader, self.java_streams.get(name)
        if stream is None:
            start = reader.position
            if reader.take(min(4, reader.remaining)) != HEADER:
                raise reader.error(f"an object of class {name}, written by JavaSerializer, is no Java stream", start)
            stream = self.java_streams[name] = StreamReader(reader)
        return self._java_value(name, stream.content(0))

    def _java_value(self, name: str, content: JavaContent) -> TypedValue:
        self.spend(self.java_sizes.measure(content))
        return TypedValue(name, content)

    def _message(self, name: str, format: MessageFormat) -> MessageValue:
        """Read a message of Protobuf or Thrift: a length, then its bytes."""
        raw = self.reader.take(self._size())
        # Each field takes at least one byte, so the message has at most as many values as bytes.
        self.spend(len(raw))
        try:
            return MessageValue(name, raw, self.table.messages.decode(format, name, raw))
        except FormatError as error:
            raise UnsupportedError(
                f"class {name} inside a Kryo value does not fit its declaration: {error.what}",
                where=Where(file=self.reader.name, offset=self.reader.position),
                hint=f"Give the {format} file that the job was built with",
            ) from None

    def _size(self, minimum: int = 1) -> int:
        """Read a varint count of items; FormatError if the bytes left cannot hold so many items of `minimum` bytes."""
        reader, start = self.reader, self.reader.position
        return self._check_size(reader.varint(), start, minimum)

    def _check_size(self, size: int, start: int, minimum: int = 1) -> int:
        if size * minimum > self.reader.remaining:
            raise self.reader.error(f"a count of {size} does not fit in {self.reader.remaining} bytes", start)
        return size

    def _size_plus_one(self, start: int, number: int) -> int:
        if number == 0:
            raise self.reader.error("a collection is null where Kryo never writes null", start)
        return number - 1

    def _array(self, name: str, component: JavaType, arguments: tuple[JavaType, ...]) -> object:
        reader, start = self.reader, self.reader.position
        size = self._check_size(self._size_plus_one(start, reader.varint()), start)
        if name == "[B":
            return reader.take(size)
        leaf = SCALARS.get(component.name)
        if leaf is not None:
            self.spend(size)
            return ArrayValue(name, tuple(leaf.read(reader, self.version) for _ in range(size)))
        # Kryo's array serializer treats an array as a final class even if it is an array of a class that is not final.
        read = self._element(component, arguments if self.version == 2 else (), final=component.name == ARRAY)
        return ArrayValue(name, tuple(read() for _ in range(size)))

    def _element(
        self, of: JavaType, arguments: tuple[JavaType, ...], nullable: bool = True, final: bool = False
    ) -> Callable[[], object]:
        """Return a function that reads a value of a declared type; its class precedes it unless the type is final."""
        if not final and not self.table.is_final(of):
            return lambda: self.any(arguments)
        name = class_name(of)
        return lambda: self.object_of(name, arguments, nullable=nullable, declared=True)

    def _typed(self, arguments: tuple[JavaType, ...], index: int, nullable: bool = True) -> Callable[[], object]:
        of = arguments[index] if index < len(arguments) else OBJECT
        return self._element(of, self.table.arguments(of) if self.version == 5 else (), nullable)

    def _collection(self, name: str, shape: Shape, arguments: tuple[JavaType, ...]) -> object:
        if shape.kind is _MAP:
            return self._map(name, shape, arguments)
        if shape.variant is _EMPTY:
            return CollectionValue(name, shape.kind, ())
        if shape.variant is _SINGLE:
            return CollectionValue(name, shape.kind, (self.any(),))
        if shape.variant is _ENUMS:
            return self._enum_set(name)
        if self.version == 5:
            return self._collection_5(name, shape, arguments)
        comparator = self.any() if shape.variant is _SORTED else None
        size = self._size()
        element_class = self.class_header() if shape.variant is _ARRAY else None
        # Kryo 2 forgets the type arguments of priority queues and of Arrays.asList.
        typed = name != "java.util.PriorityQueue" and shape.variant is not _ARRAY
        read = self._typed(arguments if typed else (), 0)
        items = tuple(read() for _ in range(size))
        return CollectionValue(name, shape.kind, items, comparator, element_class)

    def _collection_5(self, name: str, shape: Shape, arguments: tuple[JavaType, ...]) -> CollectionValue:
        """Read a collection of Kryo 5: a size, a comparator if sorted, then the elements.

        A class is stored for no element if the declared class is final, once if all elements have the same class, and
        else for each element.
        """
        reader, start = self.reader, self.reader.position
        immutable = shape.variant is _IMMUTABLE
        final = bool(arguments) and self.table.is_final(arguments[0])
        flag, number = (False, reader.varint()) if final and immutable else classes.read_flagged(reader)
        size = self._size_plus_one(start, number)
        comparator = self.any() if shape.variant is _SORTED else None
        items: tuple[object, ...] = ()
        if size == 0:
            pass
        elif final:
            self._check_size(size, start)
            read = self._typed(arguments, 0, nullable=flag)
            items = tuple(read() for _ in range(size))
        elif flag:
            items = self._same_class(size, start, arguments, immutable)
        else:
            self._check_size(size, start)
            read = self._typed(arguments, 0)
            items = tuple(read() for _ in range(size))
        return CollectionValue(name, shape.kind, items, comparator)

    def _same_class(
        self, size: int, start: int, arguments: tuple[JavaType, ...], immutable: bool
    ) -> tuple[object, ...]:
        name = self.class_header()
        if name is None:
            # Nulls take less time and memory than other values, so several count as one value.
            self.spend(size // _NULLS_PER_VALUE)
            return (None,) * size
        self._check_size(size, start)
        nullable = not immutable and self.reader.bool()
        inner = self.table.arguments(arguments[0]) if arguments else ()
        return tuple(self.object_of(name, inner, nullable=nullable) for _ in range(size))

    def _enum_set(self, name: str) -> CollectionValue:
        element_class = self.class_header() or ""
        size = self._size()
        if size == 0:
            return CollectionValue(name, _SET, (), element_class=element_class)
        enum = self.table.enum(element_class)
        if enum is None:
            raise self._unknown(element_class, "its constants are not known")
        items = tuple(self._constant(enum.name, enum) for _ in range(size))
        return CollectionValue(name, _SET, items, element_class=element_class)

    def _map(self, name: str, shape: Shape, arguments: tuple[JavaType, ...]) -> MapValue:
        if shape.variant is _EMPTY:
            return MapValue(name, ())
        if shape.variant is _SINGLE:
            return MapValue(name, ((self.any(), self.any()),))
        start = self.reader.position
        if self.version == 2:
            comparator = self.any() if shape.variant is _SORTED else None
            size = self._size(2)
        else:
            size = self._check_size(self._size_plus_one(start, self.reader.varint()), start)
            comparator = self.any() if shape.variant is _SORTED else None
        nullable = shape.variant is not _IMMUTABLE
        read_key, read_value = (self._typed(arguments, index, nullable) for index in range(2))
        return MapValue(name, tuple((read_key(), read_value()) for _ in range(size)), comparator)

    def _constant(self, name: str, enum: ClassDeclaration) -> EnumValue:
        start, ordinal = self.reader.position, self.reader.varint() - 1
        if not 0 <= ordinal < len(enum.constants):
            raise self.reader.error(f"enum {enum.name} of {len(enum.constants)} constants has no {ordinal}", start)
        return EnumValue(enum.name, enum.constants[ordinal], None if name == enum.name else name)

    def _class(self) -> TypedValue:
        """Read a class literal: a wrapper class or other class, and a flag if it stands for the primitive type.

        Kryo 2 stores the flag for all classes, Kryo 5 only for wrappers and `Void`.
        """
        name = self.class_header()
        primitive = (self.version == 2 or name in WRAPPERS or name == "java.lang.Void") and self.reader.bool()
        return TypedValue("java.lang.Class", WRAPPERS.get(name or "", "void") if primitive else name)

    def _fields(self, name: str, declared: ClassDeclaration, bindings: Bindings) -> object:
        fields = []
        record = self.version == 5 and declared.kind is ClassKind.RECORD
        for member, of in declared.fields:
            leaf = SCALARS.get(of.name)
            if leaf is not None:
                fields.append((member, leaf.read(self.reader, self.version)))
                continue
            of = resolve(of, bindings)
            # Kryo's RecordSerializer ignores type arguments.
            arguments = () if record else self.table.arguments(of)
            fields.append((member, self._element(of, arguments)()))
        if name == "java.time.LocalDateTime":
            date, time = (self._integer(each) for _, each in fields)
            return TypedValue(name, {"date": date, "nano_of_day": time})
        return ObjectValue(name, tuple(fields))

    def _integer(self, value: object) -> int:
        if isinstance(value, TypedValue) and isinstance(value.value, int):
            return value.value
        raise self.reader.error(f"a LocalDateTime consists of a date and a time, not {value!r}")

    def _stream(self, name: str) -> TypedValue:
        """Read a Java-serialized object (exceptions and some other classes), recognized by its first bytes."""
        reader = self.reader
        if bytes(reader.data[reader.position : min(reader.position + 4, reader.end)]) == HEADER:
            self.streams += 1
            return self._java_value(name, read_stream(reader))
        if self.streams and name in _STREAMED:
            raise self._unknown(name, "it goes on in a Java stream that an earlier value of the graph began")
        raise self._unknown(name, self.table.classes.explain(name) or "its fields are not in the snapshot")

    def _unknown(self, name: str, reason: str) -> UnsupportedError:
        return UnsupportedError(
            f"class {name} inside a Kryo value cannot be decoded: {reason}",
            where=Where(file=self.reader.name, offset=self.reader.position),
            hint=f"Give its jar by --classes, or a file of field lists that declares `{name}` and its fields",
        )


# Module-level names for enum members, because looking up a member takes longer and happens for every value.
_WRITER_EMPTY, _WRITER_SINGLE, _WRITER_SORTED = (
    CollectionVariant.EMPTY,
    CollectionVariant.SINGLE,
    CollectionVariant.SORTED,
)
_WRITER_IMMUTABLE, _WRITER_ENUMS, _WRITER_ARRAY = (
    CollectionVariant.IMMUTABLE,
    CollectionVariant.ENUMS,
    CollectionVariant.ARRAY,
)
_WRITER_MAP = CollectionKind.MAP
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
    """Return the Java class of a value, given that no declared type determines it.

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
            hint="Give the value as a TypedValue, CollectionValue, MapValue or ObjectValue, which name the class",
        )
    return name


class GraphWriter:
    """Writes one graph of objects; a Python object that occurs again (by identity) becomes a back reference."""

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
        """Write the class of an object and the object, as `GraphReader.any` reads them."""
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
        """Write the class of an object, or None for null, as `GraphReader.class_header` reads it."""
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
            classes.write_string(writer, name, self.version, any_length=self.version == 5)

    def object_of(self, value: object, name: str, arguments: tuple[JavaType, ...], *, nullable: bool = False) -> None:
        """Write an object of a known class, as `GraphReader.object_of` reads it."""
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
        # Python has only one object for equal strings of one character or none, also where Java had two objects.
        if not isinstance(value, str | bytes) or len(value) > 1:
            self.met[id(value)] = len(self.met_objects)
        # The list also keeps the objects alive: Python could give the id of a freed object to another one.
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
            classes.write_string(writer, _expect(inner, str, name), version)
        elif name in WRAPPERS:
            SCALARS[WRAPPERS[name]].write(writer, inner, version)
        elif name == "java.lang.Void":
            pass
        elif (component := component_type(name)) is not None:
            self._array(inner, name, component, arguments)
        elif shape is not None and shape.kind is _WRITER_MAP:
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
        """Write an object of a class with its own Kryo serializer.

        It reads back with `GraphReader._java`, `GraphReader._message` or `GraphReader._declared`.
        """
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
        if shape.variant is _WRITER_EMPTY:
            return
        if shape.variant is _WRITER_SINGLE:
            self.any(items[0])
        elif shape.variant is _WRITER_ENUMS:
            self._enum_set(value)
        elif self.version == 5:
            self._collection_5(value, shape, arguments)
        else:
            if shape.variant is _WRITER_SORTED:
                self.any(value.comparator)
            writer.varint(len(items))
            if shape.variant is _WRITER_ARRAY:
                self.class_header(value.element_class or "java.lang.Object")
            typed = value.class_name != "java.util.PriorityQueue" and shape.variant is not _WRITER_ARRAY
            self._each(items, self._typed(arguments if typed else (), 0))

    def _collection_5(self, value: CollectionValue, shape: Shape, arguments: tuple[JavaType, ...]) -> None:
        writer, items = self.writer, value.items
        immutable = shape.variant is _WRITER_IMMUTABLE
        final = bool(arguments) and self.table.is_final(arguments[0])
        nulls = any(item is None for item in items)
        kinds = {self._class_of(item) for item in items if item is not None}
        same = bool(items) and len(kinds) <= 1 and not final
        if final and immutable:
            writer.varint(len(items) + 1)
        else:
            classes.write_flagged(writer, same or (final and nulls), len(items) + 1)
        if shape.variant is _WRITER_SORTED:
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
        if shape.variant is _WRITER_EMPTY:
            return
        if shape.variant is _WRITER_SINGLE:
            for each in value.entries[0]:
                self.any(each)
            return
        if self.version == 2:
            if shape.variant is _WRITER_SORTED:
                self.any(value.comparator)
            self.writer.varint(len(value.entries))
        else:
            self.writer.varint(len(value.entries) + 1)
            if shape.variant is _WRITER_SORTED:
                self.any(value.comparator)
        nullable = shape.variant is not _WRITER_IMMUTABLE
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
            raise UnsupportedError(f"it is not known how Kryo {self.version} writes objects of class {name}")
        self.streams += 1
        self.writer.take(write_stream(value))  # type: ignore[arg-type]


def _expect(value: object, kind: type[_Value], name: str) -> _Value:
    if isinstance(value, kind):
        return value
    raise ValueRangeError(f"{value!r} is no value of class {name}")
