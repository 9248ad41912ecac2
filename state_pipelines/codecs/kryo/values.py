"""The class table of a Kryo instance, and the values without inner objects.

* `ClassTable`: ids, finality, references, and propagation of type arguments. Source:
  `com.esotericsoftware.kryo.util.DefaultClassResolver`, `Kryo.isFinal`, `ReferenceResolver.useReferences`,
  `org.apache.flink.api.java.typeutils.runtime.KryoUtils.applyRegistrations`.
* `Leaf`, `find_leaf`: values without inner objects, as Kryo's serializers of JDK classes write them in each release
  line. Source: `com.esotericsoftware.kryo.serializers.DefaultSerializers` and `TimeSerializers`,
  `com.twitter.chill.java` (the serializers that Flink 1.x registers), `FieldSerializer` for JDK classes that have none
  of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.binary.java_stream import JavaObject, read_stream
from state_pipelines.codecs.java import CollectionKind, ObjectValue, TypedValue, calendar_day, epoch_day, read_number
from state_pipelines.codecs.kryo import classes
from state_pipelines.codecs.kryo.classes import (
    ARRAY,
    COLLECTION_KINDS,
    FINAL_CLASSES,
    FINAL_KINDS,
    FLINK_BASE,
    FLINK_IDS,
    OBJECT,
    PRIMITIVES,
    SHAPES,
    USER_BASE,
    WRAPPERS,
    ClassDeclaration,
    CollectionVariant,
    FieldLists,
    JavaType,
    Shape,
    first_ids,
    known_classes,
)
from state_pipelines.codecs.layout import find_class_layout, parse_layout
from state_pipelines.codecs.messages import SERIALIZERS, MessageTypes
from state_pipelines.errors import FormatError, UnsupportedError, ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.codecs.kryo.classes import Version
    from state_pipelines.codecs.layout import Layout
    from state_pipelines.serializers import tree


@dataclass(frozen=True)
class Leaf:
    """Reads and writes the content of a `TypedValue` of one class."""

    read: Callable[[Reader, Version], object]
    write: Callable[[Writer, object, Version], None]


def _fixed(kind: str) -> Leaf:
    return Leaf(
        lambda reader, version: classes.read_fixed(reader, kind, version),
        lambda writer, value, version: classes.write_fixed(writer, kind, value, version),
    )


def _plain(read: Callable[[Reader], object], write: Callable[[Writer, int], None]) -> Leaf:
    return Leaf(lambda reader, _: read(reader), lambda writer, value, _: write(writer, _integer(value)))


def _integer(value: object) -> int:
    if isinstance(value, int):
        return value
    raise ValueRangeError(f"{value!r} is not an integer")


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueRangeError(f"{value!r} is not text")


def _read_text(reader: Reader, _: Version) -> str:
    start = reader.position
    text = classes.read_string(reader)
    if text is None:
        raise reader.error("a text is null where Kryo never writes null", start)
    return text


def _write_boolean(writer: Writer, value: object, _: Version) -> None:
    writer.bool(bool(value))


def _read_char(reader: Reader, version: Version) -> str:
    return chr(int(classes.read_fixed(reader, "H", version)))


def _write_char(writer: Writer, value: object, version: Version) -> None:
    text = _text(value)
    if len(text) != 1:
        raise ValueRangeError(f"{text!r} is not one character")
    classes.write_fixed(writer, "H", ord(text), version)


TEXT = Leaf(_read_text, lambda writer, value, version: classes.write_string(writer, _text(value), version))
INT = _plain(classes.read_int, classes.write_int)
LONG = _plain(classes.read_long, classes.write_long)
POSITIVE = _plain(classes.read_positive_int, classes.write_positive_int)
POSITIVE_LONG = _plain(classes.read_positive_long, classes.write_positive_long)
BYTE = _plain(Reader.i8, Writer.i8)

SCALARS: dict[str, Leaf] = {
    "boolean": Leaf(lambda reader, _: reader.bool(), _write_boolean),
    "byte": BYTE,
    "char": Leaf(_read_char, _write_char),
    "short": _fixed("h"),
    "int": INT,
    "long": LONG,
    "float": _fixed("f"),
    "double": _fixed("d"),
}
"""Primitive types, their wrappers and elements of primitive arrays (int and long are zig-zag in arrays, too)."""


def _record(text: str) -> Leaf:
    """Make the codec of consecutive fields, whose value is a dict.

    Args:
        text: the fields, each as `name:encoding`, separated by spaces.
    """
    encodings = {
        "b": SCALARS["boolean"],
        "y": BYTE,
        "i": INT,
        "l": LONG,
        "p": POSITIVE,
        "pl": POSITIVE_LONG,
        "s": TEXT,
        "q": _fixed("q"),
        "fi": _fixed("i"),
        "d": _fixed("d"),
    }
    leaves = [(name, encodings[code]) for name, code in (each.split(":") for each in text.split())]

    def read(reader: Reader, version: Version) -> dict[str, object]:
        return {name: leaf.read(reader, version) for name, leaf in leaves}

    def write(writer: Writer, value: object, version: Version) -> None:
        if not isinstance(value, dict):
            raise ValueRangeError(f"{value!r} lacks the fields {', '.join(name for name, _ in leaves)}")
        lost = [name for name in value.keys() - {name for name, _ in leaves} if value[name]]
        if lost:
            raise ValueRangeError(f"Kryo {version} cannot store the field {lost[0]} of {value!r}")
        for name, leaf in leaves:
            if name not in value:
                raise ValueRangeError(f"the field {name} is missing in {value!r}")
            leaf.write(writer, value[name], version)

    return Leaf(read, write)


def _read_big_integer(reader: Reader, _: Version) -> int:
    size = reader.varint()
    if size == 0:
        raise reader.error("a BigInteger is null where Kryo never writes null")
    return read_number(reader, size - 1)


def _write_big_integer(writer: Writer, value: object, _: Version) -> None:
    number = _integer(value)
    raw = number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)
    writer.varint(len(raw) + 1)
    writer.take(raw)


def _read_big_decimal(reader: Reader, version: Version) -> Decimal:
    unscaled = _read_big_integer(reader, version)
    # The Decimal is made from the int, not from its text, because Python limits the digits of an int as text.
    sign, digits, _ = Decimal(unscaled).as_tuple()
    return Decimal((sign, digits, -classes.read_int(reader)))


def _write_big_decimal(writer: Writer, value: object, version: Version) -> None:
    if not isinstance(value, Decimal) or not value.is_finite():
        raise ValueRangeError(f"{value!r} is not a finite decimal number")
    sign, digits, exponent = value.as_tuple()
    _write_big_integer(writer, int(Decimal((sign, digits, 0))), version)
    classes.write_int(writer, -int(exponent))


def _read_timestamp(reader: Reader, version: Version) -> dict[str, object]:
    """Read a `java.sql.Timestamp`: milliseconds, then nanoseconds of the second.

    Kryo 2 stores the full epoch milliseconds, Kryo 5 only those of the whole second.
    """
    millis, nanos = classes.read_positive_long(reader), classes.read_positive_int(reader)
    return {"millis": millis if version == 2 else millis + nanos // 1_000_000, "nanos": nanos}


def _write_timestamp(writer: Writer, value: object, version: Version) -> None:
    members = value if isinstance(value, dict) else {}
    millis, nanos = _integer(members.get("millis")), _integer(members.get("nanos"))
    classes.write_positive_long(writer, millis if version == 2 else millis - millis % 1000)
    classes.write_positive_int(writer, nanos)


def _read_bit_set(reader: Reader, version: Version) -> tuple[int, ...]:
    start, size = reader.position, reader.varint()
    if size * 8 > reader.remaining:
        raise reader.error(f"a BitSet of {size} words does not fit in the {reader.remaining} bytes left", start)
    return tuple(int(classes.read_fixed(reader, "Q", version)) for _ in range(size))


def count_bits(value: object) -> int:
    """Return the number of bits that are set in the words of a BitSet."""
    return sum(int(word).bit_count() for word in value) if isinstance(value, tuple) else 0


def _write_bit_set(writer: Writer, value: object, version: Version) -> None:
    words = value if isinstance(value, tuple) else ()
    writer.varint(len(words))
    for word in words:
        classes.write_fixed(writer, "Q", word, version)


def _write_builder(writer: Writer, value: object, version: Version) -> None:
    # Kryo 2 writes a StringBuilder with another method than a String: short ASCII texts have no shorter encoding there.
    classes.write_string(writer, _text(value), version, short=version == 5)


def _read_date(reader: Reader, version: Version) -> int:
    if version == 2:
        day, month = (int(classes.read_fixed(reader, "h", version)) for _ in range(2))
        return epoch_day(classes.read_int(reader), month, day)
    year, month = classes.read_positive_int(reader), reader.u8()
    return epoch_day(year, month, reader.u8())


def _write_date(writer: Writer, value: object, version: Version) -> None:
    year, month, day = calendar_day(_integer(value))
    if version == 2:
        classes.write_fixed(writer, "h", day, version)
        classes.write_fixed(writer, "h", month, version)
        classes.write_int(writer, year)
        return
    classes.write_positive_int(writer, year)
    writer.u8(month)
    writer.u8(day)


def _read_time(reader: Reader, version: Version) -> int:
    """Read a `LocalTime` as nanoseconds of the day.

    Kryo 2 stores hour, minute, nano, second. Kryo 5 leaves out zeros at the end and complements the last stored field.
    """
    if version == 2:
        hour, minute, nano, second = reader.u8(), reader.u8(), classes.read_int(reader), reader.u8()
        return ((hour * 60 + minute) * 60 + second) * 1_000_000_000 + nano
    numbers = [0, 0, 0]
    for index in range(3):
        number = reader.i8()
        numbers[index] = ~number if number < 0 else number
        if number < 0:
            nano = 0
            break
    else:
        nano = classes.read_positive_int(reader)
    return ((numbers[0] * 60 + numbers[1]) * 60 + numbers[2]) * 1_000_000_000 + nano


def _write_time(writer: Writer, value: object, version: Version) -> None:
    seconds, nano = divmod(_integer(value), 1_000_000_000)
    numbers = [seconds // 3600, seconds // 60 % 60, seconds % 60]
    if version == 2:
        writer.u8(numbers[0])
        writer.u8(numbers[1])
        classes.write_int(writer, nano)
        writer.u8(numbers[2])
        return
    while not nano and len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    for number in numbers[:-1]:
        writer.i8(number)
    writer.i8(numbers[-1] if nano else ~numbers[-1])
    if nano:
        classes.write_positive_int(writer, nano)


def _read_date_time(reader: Reader, version: Version) -> dict[str, object]:
    return {"date": _read_date(reader, version), "nano_of_day": _read_time(reader, version)}


def _write_date_time(writer: Writer, value: object, version: Version) -> None:
    members = value if isinstance(value, dict) else {}
    _write_date(writer, members.get("date"), version)
    _write_time(writer, members.get("nano_of_day"), version)


def _read_offset(reader: Reader, version: Version) -> dict[str, object]:
    """Read a `ZoneOffset` of Kryo 5: quarters of an hour in a byte, or 127 and the seconds."""
    quarters = reader.i8()
    return {"totalSeconds": quarters * 900 if quarters != 127 else classes.read_fixed(reader, "i", version)}


def _write_offset(writer: Writer, value: object, version: Version) -> None:
    seconds = _integer(value.get("totalSeconds") if isinstance(value, dict) else None)
    quarters, rest = divmod(seconds, 900)
    writer.i8(127 if rest else quarters)
    if rest:
        classes.write_fixed(writer, "i", seconds, version)


def _optional(code: str) -> Leaf:
    """Make the codec of `OptionalInt` and similar classes in Kryo 5: a flag, then the value if there is one."""
    content = _record(f"value:{code}")

    def read(reader: Reader, version: Version) -> dict[str, object]:
        present = reader.bool()
        return {"isPresent": present, **(dict(_members(content.read(reader, version))) if present else {"value": 0})}

    def write(writer: Writer, value: object, version: Version) -> None:
        members = _members(value)
        writer.bool(bool(members.get("isPresent")))
        if members.get("isPresent"):
            content.write(writer, {"value": members.get("value")}, version)

    return Leaf(read, write)


def _members(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _timed(*named_types: tuple[str, str]) -> Leaf:
    """Make the codec of a java.time class that Kryo 5 writes as consecutive date, time, offset or zone.

    Args:
        named_types: name and class of each of them; they are read as the fields of an `ObjectValue`, as in Kryo 2.
    """

    def read(reader: Reader, version: Version) -> object:
        return tuple((name, TypedValue(of, LEAVES_5[of].read(reader, version))) for name, of in named_types)

    def write(writer: Writer, value: object, version: Version) -> None:
        fields = dict(value.fields) if isinstance(value, ObjectValue) else {}
        for name, of in named_types:
            member = fields.get(name)
            if not isinstance(member, TypedValue) or member.class_name != of:
                raise ValueRangeError(f"the field {name} of {value!r} is not a {of}")
            LEAVES_5[of].write(writer, member.value, version)

    return Leaf(read, write)


_MILLIS = POSITIVE_LONG
_DATE_TIME, _OFFSET, _ZONE = "java.time.LocalDateTime", "java.time.ZoneOffset", "java.time.ZoneRegion"
_LEAVES: dict[str, Leaf] = {
    "java.math.BigInteger": Leaf(_read_big_integer, _write_big_integer),
    "java.math.BigDecimal": Leaf(_read_big_decimal, _write_big_decimal),
    "java.util.Date": _MILLIS,
    "java.sql.Date": _MILLIS,
    "java.sql.Time": _MILLIS,
    "java.sql.Timestamp": Leaf(_read_timestamp, _write_timestamp),
    "java.util.BitSet": Leaf(_read_bit_set, _write_bit_set),
    "java.lang.StringBuilder": Leaf(_read_text, _write_builder),
    "java.lang.StringBuffer": Leaf(_read_text, _write_builder),
    "java.time.LocalDate": Leaf(_read_date, _write_date),
    "java.time.LocalTime": Leaf(_read_time, _write_time),
    "java.net.URI": _record("string:s"),
    "java.net.InetSocketAddress": _record("host:s port:p"),
    "java.util.Currency": _record("currencyCode:s"),
    "java.util.TimeZone": _record("ID:s"),
    "sun.util.calendar.ZoneInfo": _record("ID:s"),
    "java.util.SimpleTimeZone": _record("ID:s"),
    "java.util.GregorianCalendar": _record("zone:s time:pl lenient:b firstDayOfWeek:p minimalDays:p cutover:l"),
    "java.util.concurrent.atomic.AtomicInteger": _record("value:i"),
    "java.util.concurrent.atomic.AtomicBoolean": _record("value:i"),
    "java.util.concurrent.atomic.AtomicLong": _record("value:l"),
}
LEAVES_2: dict[str, Leaf] = {
    **_LEAVES,
    "java.util.UUID": _record("mostSigBits:l leastSigBits:l"),
    "java.util.regex.Pattern": _record("pattern:s"),
    "java.time.Instant": _record("nano:i epoch_second:l"),
    "java.time.Duration": _record("nanos:i seconds:l"),
    "java.time.Period": _record("days:i months:i years:i"),
    "java.time.Year": _record("year:i"),
    "java.time.YearMonth": _record("month:i year:i"),
    "java.time.MonthDay": _record("day:i month:i"),
    _OFFSET: _record("totalSeconds:i"),
    "java.util.OptionalInt": _record("isPresent:b value:i"),
    "java.util.OptionalLong": _record("isPresent:b value:l"),
    "java.util.OptionalDouble": _record("isPresent:b value:d"),
}
LEAVES_5: dict[str, Leaf] = {
    **_LEAVES,
    "java.util.UUID": _record("mostSigBits:q leastSigBits:q"),
    "java.util.regex.Pattern": _record("pattern:s flags:p"),
    "java.util.Locale": _record("language:s country:s variant:s"),
    "java.net.URL": _record("url:s"),
    "java.time.Instant": _record("epoch_second:pl nano:p"),
    "java.time.Duration": _record("seconds:q nanos:p"),
    "java.time.Period": _record("years:p months:p days:p"),
    "java.time.Year": _record("year:p"),
    "java.time.YearMonth": _record("year:p month:y"),
    "java.time.MonthDay": _record("month:y day:y"),
    _DATE_TIME: Leaf(_read_date_time, _write_date_time),
    _OFFSET: Leaf(_read_offset, _write_offset),
    _ZONE: _record("id:s"),
    "java.util.OptionalInt": _optional("fi"),
    "java.util.OptionalLong": _optional("q"),
    "java.util.OptionalDouble": _optional("d"),
}
OBJECTS_5: dict[str, Leaf] = {
    "java.time.OffsetTime": _timed(("time", "java.time.LocalTime"), ("offset", _OFFSET)),
    "java.time.OffsetDateTime": _timed(("dateTime", _DATE_TIME), ("offset", _OFFSET)),
    "java.time.ZonedDateTime": _timed(("dateTime", _DATE_TIME), ("zone", _ZONE)),
}
"""Objects of fields that Kryo 5 writes without references between them; the values are fields of an `ObjectValue`."""


def find_leaf(class_name: str, version: Version) -> Leaf | None:
    """Return the codec of a class whose objects hold no other objects, or None for other classes."""
    if version == 5 and class_name.startswith("sun.nio.cs."):
        return _record("name:s")
    return (LEAVES_2 if version == 2 else LEAVES_5).get(class_name)


_LETTERS = {letter: name for name, letter in PRIMITIVES.items()}
_AVRO_SCHEMA = re.compile(r"org\.apache\.avro\.Schema(\$\w+)?")
_SCHEMA_SERIALIZER = b".AvroKryoSerializerUtils$AvroSchemaSerializer"
_BODY_CLASS = re.compile(r"(.+)\$\d+")
JAVA_SERIALIZERS = (
    "org.apache.flink.api.java.typeutils.runtime.kryo.JavaSerializer",
    "com.esotericsoftware.kryo.serializers.JavaSerializer",
)
"""Kryo serializers that write objects by Java serialization, all of one graph and class into one stream."""
_FLINK_IDS = {name: FLINK_BASE + index for index, name in enumerate(FLINK_IDS)}
Bindings = Mapping[str, JavaType]
"""Type parameters of the current class and their arguments."""


class ClassTable:
    """The classes that one Kryo serializer knows: ids, declarations and layouts.

    Args:
        serializer: the Kryo serializer, whose registrations give ids to classes.
        version: release line of Kryo.
        classes: declarations of the user.
        messages: messages of Protobuf and Thrift that the user declares.
    """

    def __init__(
        self,
        serializer: tree.Kryo,
        version: Version,
        classes: FieldLists,
        messages: MessageTypes | None = None,
    ) -> None:
        self.version = version
        self.classes = classes
        self.known = known_classes(version)
        # A class that Kryo or Flink has registered already keeps its id when a job registers it again.
        self.first = first_ids(version)
        fixed = _FLINK_IDS | {name: index for index, name in enumerate(self.first)}
        self.registered = [each.class_name for each in serializer.registrations if each.class_name not in fixed]
        self.ids = {name: USER_BASE + index for index, name in enumerate(self.registered)} | fixed
        self.messages = messages or MessageTypes()
        named = ((each.class_name, _find_serializer(each)) for each in serializer.registrations)
        self.custom = {name: found for name, found in named if found is not None}
        self.avro = any(map(_writes_schemas, serializer.default_serializer_classes))
        # Kryo uses a default serializer for the subclasses of its class as well. Snapshots do not list these, so
        # `find_serializer` looks for them among the declared messages.
        self.defaults = {each.class_name: _find_instance(each.value) for each in serializer.default_serializers}
        self.defaults |= {each.class_name: _read_name(each.value) for each in serializer.default_serializer_classes}
        self.custom = {**self.defaults, **self.custom}

    def find_serializer(self, name: str) -> str | None:
        """Return the class of the custom Kryo serializer for a class; None if it has none, empty if it is not known."""
        if name in self.custom:
            return self.custom[name]
        for serializer in self.defaults.values():
            format = SERIALIZERS.get(serializer)
            if format is not None and self.messages.knows(format, name):
                return serializer
        return None

    def find_own_layout(self, name: str) -> Layout | None:
        """Return the layout of the data of a class's custom Kryo serializer; None if none is declared or registered."""
        text = next((text for each, text in self.messages.layouts if each == name), None)
        return find_class_layout(name) if text is None else parse_layout(text)

    def class_of_id(self, number: int) -> str | None:
        """Return the class of a registration id, or None."""
        if number < len(self.first):
            return self.first[number]
        if FLINK_BASE <= number < USER_BASE:
            return FLINK_IDS[number - FLINK_BASE]
        index = number - (USER_BASE if number >= USER_BASE else len(self.first))
        return self.registered[index] if index < len(self.registered) else None

    def find(self, name: str) -> ClassDeclaration | None:
        """Return the field list of a class: the user's, or a built-in one; None if there is neither."""
        return self.classes.find(name) or self.known.find(name)

    def shape(self, name: str) -> Shape | None:
        """Return how a collection class is written; None when the class is no collection."""
        declared = self.classes.find(name)
        if declared is not None and declared.kind in COLLECTION_KINDS:
            return Shape(CollectionKind(declared.kind))
        shape = SHAPES.get(name)
        if shape is None and name == "java.util.concurrent.ConcurrentSkipListMap":
            # Kryo 5 writes this class like a TreeMap, with its comparator; Kryo 2 like any other map.
            return Shape(CollectionKind.MAP, CollectionVariant.SORTED if self.version == 5 else CollectionVariant.PLAIN)
        if shape is not None and shape.variant is CollectionVariant.IMMUTABLE and self.version == 2:
            return Shape(shape.kind)
        return shape

    def leaf(self, name: str) -> Leaf | None:
        """Return the codec of a class whose objects hold no other objects; None for all other classes."""
        if self.avro and _AVRO_SCHEMA.fullmatch(name):
            return TEXT
        return find_leaf(name, self.version)

    def enum(self, name: str) -> ClassDeclaration | None:
        """Return the declaration of an enum, given its class or the class of a constant with a body (`Enum$1`).

        Returns None for other classes.
        """
        declared = self.find(name)
        if declared is None and (body := _BODY_CLASS.fullmatch(name)):
            declared = self.find(body[1])
        return declared if declared is not None and declared.constants else None

    def uses_references(self, name: str) -> bool:
        """Return whether objects of a class are numbered so that later mentions refer to them."""
        return not (name in WRAPPERS or (self.version == 5 and self.enum(name) is not None))

    def is_final(self, of: JavaType) -> bool:
        """Return whether values of a declared type are stored without their class.

        Raises:
            UnsupportedError: the type is a class of which nothing is known.
        """
        while of.name == ARRAY:
            of = of.arguments[0]
        if of.name in PRIMITIVES or of.name in FINAL_CLASSES:
            return True
        declared = self.find(of.name)
        if declared is None:
            if of.name.startswith(("java.", "javax.")):
                return False
            raise UnsupportedError(
                f"nothing is known of class {of.name}, which a declared field names",
                hint=f"Declare it in the field lists too: `{of.name}:` or `final {of.name}:` and its fields, "
                f"`enum {of.name}:` and its constants, or `interface {of.name}:`",
            )
        return declared.kind in FINAL_KINDS

    def bind(self, declared: ClassDeclaration, arguments: tuple[JavaType, ...]) -> Bindings:
        """Bind the type parameters of a class to the arguments of its field; without arguments they are Object."""
        if len(arguments) != len(declared.parameters):
            arguments = (OBJECT,) * len(declared.parameters)
        return {name: _erase(of) for name, of in zip(declared.parameters, arguments, strict=True)}

    def arguments(self, of: JavaType) -> tuple[JavaType, ...]:
        """Return the type arguments that Kryo passes to the serializer of a field's value.

        Kryo 2 propagates only classes, one level deep, also to arrays of generic classes. Kryo 5 propagates all levels,
        but not to arrays.
        """
        if self.version == 2:
            while of.name == ARRAY:
                of = of.arguments[0]
            return tuple(OBJECT if each.wildcard else _erase(each) for each in of.arguments)
        if of.name == ARRAY:
            return ()
        return tuple(_erase(each) if each.wildcard else each for each in of.arguments)


def resolve(of: JavaType, bindings: Bindings) -> JavaType:
    """Return a declared type with its type parameters replaced."""
    if of.name in bindings:
        return bindings[of.name]
    if not of.arguments:
        return of
    return JavaType(of.name, tuple(resolve(each, bindings) for each in of.arguments), of.wildcard)


def class_name(of: JavaType) -> str:
    """Return the name of a type's class as the JVM spells it."""
    if of.name != ARRAY:
        return of.name
    component = of.arguments[0]
    if component.name == ARRAY:
        return f"[{class_name(component)}"
    return f"[{PRIMITIVES[component.name]}" if component.name in PRIMITIVES else f"[L{component.name};"


def component_type(name: str) -> JavaType | None:
    """Return the type of the elements of an array class, or None if it is not an array."""
    if name[1:2] in _LETTERS and len(name) == 2:
        return JavaType(_LETTERS[name[1]])
    if name.startswith("[L") and name.endswith(";"):
        return JavaType(name[2:-1])
    if name.startswith("[["):
        inner = component_type(name[1:])
        return None if inner is None else JavaType(ARRAY, (inner,))
    return None


def _erase(of: JavaType) -> JavaType:
    return of if of.name == ARRAY else JavaType(of.name)


def _writes_schemas(default: tree.KryoRegistration) -> bool:
    """Return whether a default serializer is the one that writes Avro schemas as JSON.

    Flink registers it where flink-avro is on the class path.
    """
    return default.class_name == "org.apache.avro.Schema" and (default.value or b"").endswith(_SCHEMA_SERIALIZER)


def _find_serializer(registration: tree.KryoRegistration) -> str | None:
    """Return the class of the Kryo serializer of a registration (kind CLASS or INSTANCE); None if it has none."""
    if registration.value is None:
        return None
    reader = Reader(registration.value, "Kryo registration")
    reader.utf()
    match reader.i32():
        case 0:
            return None
        case 1:
            return reader.utf()
        case _:
            return _find_instance(registration.value[reader.position :])


def _read_name(value: bytes | None) -> str:
    return Reader(value, "Kryo registration").utf() if value else ""


def _find_instance(value: bytes | None) -> str:
    """Return the class of the serializer in a Java-serialized `SerializableSerializer`; empty if it cannot be read."""
    if not value:
        return ""
    try:
        content = read_stream(Reader(value, "Kryo registration"))
    except (FormatError, UnsupportedError):
        return ""
    inner = content.fields.get("serializer") if isinstance(content, JavaObject) else None
    return inner.class_name if isinstance(inner, JavaObject) else ""
