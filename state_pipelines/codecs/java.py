"""Java values: serialized objects, dates and times, numbers, typed values; and the limit of what a record expands to.

* `ExpansionBudget`: limit of the values that the bytes of one record expand to. Object graphs (Kryo, Java
  serialization, pickles) name an object again by a reference of a few bytes, and columns and JSON, which are trees,
  repeat the object. Nulls in a row and items without bytes take no bytes at all.
* `read_number`, `twos_complement`, `check_number`: bytes of `java.math.BigInteger` and of unscaled values of
  `BigDecimal`, and the limit of their size. Time to convert them to decimal digits and back grows with the square of
  their size.
* `read_millis` to `write_local_date_time`: single dates and times in the fixed-width encodings of Flink's serializers;
  `logical_values` converts columns. Each has a reserved encoding of null, which is None here. Source: `DateSerializer`,
  `SqlTimestampSerializer`, `InstantSerializer`, `LocalDateSerializer`, `LocalTimeSerializer`,
  `LocalDateTimeSerializer`.
* `TypedValue`, `EnumValue`, `ObjectValue` and others: values with their own Java type, where the serializer does not
  know it (Kryo, Java serialization). Strings, `int` (java.lang.Integer), `bool`, `float` (java.lang.Double), `bytes`
  (byte[]) and None are themselves; every other Java value is one of these classes. An object that a graph mentions
  twice is the same Python object twice. `plain` reduces them to lists, dicts and numbers.
* `read_java_object`, `write_java_object`: values that wrote themselves by Java serialization (`JavaSerializer`), read
  by structure. The stream names its classes and fields, so every object can be shown; classes of the JDK that write
  more than their fields (collections, dates, big numbers) are converted to plain values.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from state_pipelines.binary.data_views import Reader
from state_pipelines.binary.java_stream import (
    MAX_DEPTH,
    JavaAnyDesc,
    JavaArray,
    JavaBlock,
    JavaClassDesc,
    JavaClassLiteral,
    JavaContent,
    JavaEnum,
    JavaObject,
    JavaProxyDesc,
    JavaReference,
    JavaString,
    JavaValue,
    hierarchy,
    read_stream,
    write_stream,
)
from state_pipelines.errors import FormatError, UnsupportedError, ValueRangeError, Where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from state_pipelines.binary.data_views import Writer

SMALL_VALUES, SMALL_PER_BYTE = 4_096, 32
LARGE_VALUES, LARGE_PER_BYTE = 1_000_000, 8
"""A record of n bytes may expand to 4,096 + 32 n values, and to no more than 1,000,000 + 8 n."""

BYTES_PER_VALUE = 16
"""Text and binary data count as one more value for each so many bytes, since references may repeat them."""

HINT = "A value that refers to objects so often or so deeply cannot be shown; its bytes can be copied as they are"


class ExpansionBudget:
    """Limit on the number of values to which one record expands; a record that exceeds it raises an error.

    Args:
        size: bytes of the record.
        name: file name for the error.
        offset: position of the record for the error.

    Attributes:
        count: values so far.
    """

    __slots__ = ("_limit", "_name", "_offset", "count")

    def __init__(self, size: int, name: str | None = None, offset: int | None = None) -> None:
        self.count = 0
        self._limit = min(SMALL_VALUES + SMALL_PER_BYTE * size, LARGE_VALUES + LARGE_PER_BYTE * size)
        self._name = name
        self._offset = offset

    @property
    def left(self) -> int:
        """Number of values that are still allowed."""
        return self._limit - self.count

    def spend(self, values: int) -> None:
        """Count more values of the record against the limit.

        Raises:
            UnsupportedError: the values so far exceed the limit for a record of this size.
        """
        self.count += values
        if self.count > self._limit:
            where = Where(file=self._name, offset=self._offset)
            raise UnsupportedError(f"the value unfolds to more than {self._limit:,} values", where=where, hint=HINT)


class TreeSizes:
    """Number of values in trees of objects. A shared object counts for each reference to it, but is visited once.

    Args:
        inspect: returns the number of values of an object, nested objects excluded, and the nested objects.
        most_levels: maximum depth; an object that contains itself exceeds it.
        what: name of the measured value, for the error.
    """

    def __init__(self, inspect: Callable[[Any], tuple[int, Iterable[Any]]], most_levels: int, what: str) -> None:
        self._inspect = inspect
        self._most_levels = most_levels
        self._what = what
        # By the id of each object: number of values, levels, and the object itself. Keeping the object alive prevents
        # that Python gives its id to another one.
        self._known: dict[int, tuple[int, int, Any]] = {}

    def measure(self, value: Any, depth: int = 0) -> int:
        """Return the number of values in a tree of objects.

        Raises:
            UnsupportedError: the tree has too many levels.
        """
        return self._measure(value, depth)[0]

    def _measure(self, value: Any, depth: int) -> tuple[int, int, Any]:
        found = self._known.get(id(value))
        if depth + (found[1] if found else 1) > self._most_levels:
            raise UnsupportedError(
                f"{self._what} is nested more than {self._most_levels} levels deep, or holds itself", hint=HINT
            )
        if found is None:
            count, inside = self._inspect(value)
            levels = 1
            for each in inside:
                inner_count, inner_levels, _ = self._measure(each, depth + 1)
                count += inner_count
                levels = max(levels, inner_levels + 1)
            found = self._known[id(value)] = count, levels, value
        return found


def count_repeated(data: str | bytes | bytearray) -> int:
    """Return the number of values that a text or bytes count as: 1, and 1 per `BYTES_PER_VALUE`."""
    return 1 + len(data) // BYTES_PER_VALUE


MAX_BYTES = 1 << 12
"""Maximum size of a number, the same for all commands: 9,864 digits."""


def read_number(reader: Reader, size: int) -> int:
    """Read big-endian two's complement of `size` bytes.

    Raises:
        FormatError: the bytes end early.
        UnsupportedError: the number is too long.
    """
    if size > MAX_BYTES:
        check_number(size, Where(file=reader.name, offset=reader.position))
    return int.from_bytes(reader.take(size), "big", signed=True)


def twos_complement(value: int) -> bytes:
    """Return the shortest big-endian two's complement (`BigInteger.toByteArray`)."""
    return value.to_bytes((value + (value < 0)).bit_length() // 8 + 1, "big", signed=True)


def check_number(size: int, where: Where | None = None) -> None:
    """Check the size of a number before its digits are computed.

    Raises:
        UnsupportedError: the number has more than `MAX_BYTES` bytes.
    """
    if size > MAX_BYTES:
        raise UnsupportedError(
            f"a number of {size:,} bytes is longer than the {MAX_BYTES:,} bytes whose digits are computed",
            where=where,
            hint="The bytes can be copied as they are",
        )


def epoch_day(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01 (`java.time.LocalDate.toEpochDay`)."""
    shifted = year - (month <= 2)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return shifted * 365 + shifted // 4 - shifted // 100 + shifted // 400 + of_year - 719468


def calendar_day(days: int) -> tuple[int, int, int]:
    """Return year, month and day of an epoch day (the inverse of `epoch_day`)."""
    era, of_era = divmod(days + 719468, 146097)
    year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year + era * 400 + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1


MAX_YEAR = 999_999_999
"""`java.time.Year.MAX_VALUE`; the smallest year is its negative."""

NANOS_OF_DAY = 86_400_000_000_000
_LONG_MIN = -(1 << 63)
_INT_MIN = -(1 << 31)
_NULL_DATE = bytes.fromhex("80000000 8000")
_NULL_TIME = bytes.fromhex("80 8000 80000000")


def read_millis(reader: Reader) -> int | None:
    """Read epoch milliseconds of a `java.util.Date`, `java.sql.Date` or `java.sql.Time`."""
    millis = reader.i64()
    return None if millis == _LONG_MIN else millis


def write_millis(writer: Writer, value: int | None) -> None:
    """Write a value as `read_millis` reads it."""
    writer.i64(_LONG_MIN if value is None else value)


def read_sql_timestamp(reader: Reader) -> dict[str, int] | None:
    """Read a `java.sql.Timestamp`: epoch milliseconds, and the nanoseconds within the second."""
    millis, nanos = reader.i64(), reader.i32()
    return None if millis == _LONG_MIN else {"millis": millis, "nanos": nanos}


def write_sql_timestamp(writer: Writer, value: dict[str, int] | None) -> None:
    """Write a value as `read_sql_timestamp` reads it."""
    writer.i64(_LONG_MIN if value is None else value["millis"])
    writer.i32(0 if value is None else value["nanos"])


def read_instant(reader: Reader) -> dict[str, int] | None:
    """Read a `java.time.Instant`: epoch seconds, and the nanoseconds within the second."""
    seconds, nano = reader.i64(), reader.i32()
    return None if seconds == _LONG_MIN else {"epoch_second": seconds, "nano": nano}


def write_instant(writer: Writer, value: dict[str, int] | None) -> None:
    """Write a value as `read_instant` reads it."""
    writer.i64(_LONG_MIN if value is None else value["epoch_second"])
    writer.i32(_INT_MIN if value is None else value["nano"])


def read_local_date(reader: Reader) -> int | None:
    """Read epoch days of a `java.time.LocalDate`, for all years of Java.

    Raises:
        FormatError: no day of the calendar.
    """
    start = reader.position
    year, month, day = reader.i32(), reader.i8(), reader.i8()
    if year == _INT_MIN:
        return None
    if 1 <= month <= 12 and 1 <= day <= 31 and abs(year) <= MAX_YEAR:
        days = epoch_day(year, month, day)
        if calendar_day(days) == (year, month, day):
            return days
    raise reader.error(f"{year}-{month}-{day} is no date", start)


def write_local_date(writer: Writer, value: int | None) -> None:
    """Write a value as `read_local_date` reads it.

    Raises:
        ValueRangeError: Java has no such year.
    """
    if value is None:
        writer.take(_NULL_DATE)
        return
    year, month, day = calendar_day(value)
    if abs(year) > MAX_YEAR:
        raise ValueRangeError(f"day {value} since 1970 is in the year {year}, which java.time does not have")
    writer.i32(year)
    writer.i8(month)
    writer.i8(day)


def read_local_time(reader: Reader) -> int | None:
    """Read nanoseconds of the day of a `java.time.LocalTime`.

    Raises:
        FormatError: no time of day.
    """
    start = reader.position
    hour, minute, second, nano = reader.i8(), reader.i8(), reader.i8(), reader.i32()
    if hour == -128:
        return None
    if 0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60 and 0 <= nano < 1_000_000_000:
        return ((hour * 60 + minute) * 60 + second) * 1_000_000_000 + nano
    raise reader.error(f"{hour}:{minute}:{second} and {nano} nanoseconds is no time of day", start)


def write_local_time(writer: Writer, value: int | None) -> None:
    """Write a value as `read_local_time` reads it.

    Raises:
        ValueRangeError: not within a day.
    """
    if value is None:
        writer.take(_NULL_TIME)
        return
    if not 0 <= value < NANOS_OF_DAY:
        raise ValueRangeError(f"{value} nanoseconds are not a time of day")
    seconds, nano = divmod(value, 1_000_000_000)
    writer.i8(seconds // 3600)
    writer.i8(seconds // 60 % 60)
    writer.i8(seconds % 60)
    writer.i32(nano)


def read_local_date_time(reader: Reader) -> dict[str, int] | None:
    """Read a `java.time.LocalDateTime`: `date` as in `read_local_date`, `nano_of_day` as in `read_local_time`.

    Raises:
        FormatError: not a date or time of day, or only one of them is null.
    """
    start = reader.position
    date, time = read_local_date(reader), read_local_time(reader)
    if date is None and time is None:
        return None
    if date is None or time is None:
        raise reader.error("only one of date and time is null", start)
    return {"date": date, "nano_of_day": time}


def write_local_date_time(writer: Writer, value: dict[str, Any] | None) -> None:
    """Write a value as `read_local_date_time` reads it."""
    write_local_date(writer, None if value is None else value["date"])
    write_local_time(writer, None if value is None else value["nano_of_day"])


@dataclass(frozen=True)
class TypedValue:
    """A value that does not contain other objects, with its Java class.

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
    """A constant of a Java enum.

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
    """An object as its fields, in stored order; the same name may occur again as a field of a super class."""

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
    """A list, set or queue, with the items in stored order.

    Attributes:
        kind: list or set.
        comparator: comparator of a sorted set or priority queue; None for the natural order.
        element_class: element class, where it is stored: of an `EnumSet`, and of `Arrays.asList` in Kryo 2.
    """

    class_name: str
    kind: CollectionKind
    items: tuple[object, ...]
    comparator: object = None
    element_class: str | None = None


@dataclass(frozen=True)
class MapValue:
    """A map, with the entries in stored order; `comparator` as in `CollectionValue`."""

    class_name: str
    entries: tuple[tuple[object, object], ...]
    comparator: object = None


@dataclass(frozen=True)
class MessageValue:
    """A message of Protobuf or Thrift, in the format of that library.

    Attributes:
        class_name: Java class of the message.
        raw: the bytes of the message, written back unchanged.
        fields: fields of the message by name; None unless the user has declared the message.
    """

    class_name: str
    raw: bytes
    fields: Mapping[str, object] | None = field(default=None, compare=False, hash=False)


@dataclass(frozen=True)
class BackReference:
    """A reference to an object that contains this reference (a cycle), by the index of the object in its graph."""

    index: int


@dataclass(frozen=True)
class Undecoded:
    """Bytes that could not be decoded, kept as they are.

    Attributes:
        class_name: class of the value, as far as known.
        raw: all bytes of the value.
        reason: reason why the bytes could not be decoded, and what to do.
    """

    class_name: str
    raw: bytes = field(repr=False)
    reason: str


def plain(value: object) -> object:
    """Convert a value to plain Python: lists, lists of (key, value), dicts with `class`, numbers, text.

    Java types are dropped. Sets become lists, and enum constants their names, as the scalar codec returns them for set
    and enum serializers.
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


_NATIVE = ("java.lang.Boolean", "java.lang.Integer", "java.lang.Double")
_IMMUTABLE_SET = 2
_IMMUTABLE_MAP = 3


def read_java_object(reader: Reader) -> JavaContent:
    """Read one object of Java serialization; `java_value` converts the result to a plain value.

    Raises:
        FormatError: not a serialization stream.
        UnsupportedError: the stream has data that cannot be read without the class, or refers to the same objects so
            often that they expand beyond the limit.
    """
    start = reader.position
    content = read_stream(reader)
    budget = ExpansionBudget(reader.position - start, reader.name, start)
    budget.spend(make_sizes().measure(content))
    return content


def make_sizes() -> TreeSizes:
    """Make the `TreeSizes` of the contents of one stream, counted as `java_value` converts them."""
    return TreeSizes(_ContentInspector().inspect, MAX_DEPTH + 1, "a Java object")


class _ContentInspector:
    """Counts the values of objects and arrays. Class and field names count for each object: its value repeats them."""

    def __init__(self) -> None:
        # By the id of the class descriptor. The contents keep the descriptors alive, so Python cannot reuse an id.
        self._names: dict[int, int] = {}

    def inspect(self, content: JavaValue) -> tuple[int, list[JavaValue]]:
        """Return the number of values outside nested objects and arrays of objects, and the list of these."""
        match content:
            case JavaObject():
                values = [value for data in content.class_data for value in (*data.values, *(data.annotation or ()))]
                if content.class_name == "java.util.BitSet":
                    return 1 + sum(_count_bits(value) for value in values), []
                count = 1 + self._count_names(content.class_desc)
            case JavaArray() if isinstance(content.values, tuple):
                if content.class_desc.name[1] not in "L[":
                    return 1 + len(content.values), []
                values, count = [*content.values], 1
            case _:
                return _count_leaf(content), []
        inside: list[JavaValue] = []
        for value in values:
            if isinstance(value, JavaString):
                count += count_repeated(value.text)
            elif isinstance(value, JavaObject | JavaArray):
                inside.append(value)
            else:
                count += _count_leaf(value)
        return count, inside

    def _count_names(self, desc: JavaAnyDesc | None) -> int:
        known = self._names.get(id(desc))
        if known is None:
            texts = [text for each in hierarchy(desc) for text in _names_of(each)]
            known = self._names[id(desc)] = sum(map(len, texts)) // BYTES_PER_VALUE
        return known


def _names_of(desc: JavaAnyDesc) -> tuple[str, ...]:
    if isinstance(desc, JavaClassDesc):
        return (desc.name, *(member.name for member in desc.fields))
    return desc.interfaces


def _count_leaf(value: JavaValue) -> int:
    match value:
        case JavaString():
            return count_repeated(value.text)
        case JavaBlock():
            return count_repeated(value.data)
        case JavaArray() if isinstance(value.values, bytes):
            return count_repeated(value.values)
        case JavaEnum():
            return count_repeated(value.constant)
        case JavaClassLiteral(class_desc=JavaClassDesc() | JavaProxyDesc() as desc) | (
            JavaClassDesc() | JavaProxyDesc() as desc
        ):
            return 1 + sum(map(count_repeated, _names_of(desc)))
    return 1


def _count_bits(value: JavaValue) -> int:
    """Return the number of bits that are set in the words of a BitSet."""
    words = value.values if isinstance(value, JavaArray) else ()
    return sum(word.bit_count() for word in words if isinstance(word, int))


def write_java_object(writer: Writer, content: JavaContent) -> None:
    """Write an object of Java serialization as `read_java_object` reads it."""
    writer.take(write_stream(content))


def java_value(content: JavaValue) -> object:
    """Convert an object of a Java stream to a plain value.

    Returns:
        A plain Python value or a value class of `codecs.java`. An object of an unknown class becomes an `ObjectValue`
        of its stored fields; data that its `writeObject` method added are in the field `@annotation`.

    Raises:
        FormatError: the data of a known class are invalid.
    """
    return _Conversion().value(content)


class _Conversion:
    """Converts one value and all values nested in it, whose number `read_java_object` has limited."""

    def value(self, content: JavaValue) -> object:
        match content:
            case JavaString():
                return content.text
            case JavaObject():
                return self.instance(content)
            case JavaEnum():
                return EnumValue(content.class_name, content.constant)
            case JavaArray():
                if isinstance(content.values, bytes):
                    return content.values
                return ArrayValue(content.class_desc.name, tuple(map(self.value, content.values)))
            case JavaClassLiteral():
                desc = content.class_desc
                return TypedValue("java.lang.Class", desc.name if isinstance(desc, JavaClassDesc) else None)
            case JavaBlock():
                return content.data
            case JavaReference():
                return BackReference(content.index)
            case JavaClassDesc():
                return TypedValue("java.io.ObjectStreamClass", content.name)
            case JavaProxyDesc():
                return TypedValue("java.io.ObjectStreamClass", ", ".join(content.interfaces))
            case _:
                return content

    def instance(self, content: JavaObject) -> object:
        known = _KNOWN.get(content.class_name)
        if known is not None:
            try:
                return known(self, content)
            except (struct.error, IndexError, KeyError, TypeError, ValueError):
                raise FormatError(
                    f"an object of class {content.class_name} has data that do not fit its class"
                ) from None
        values = [(name, self.value(value)) for name, value in content.fields.items()]
        added = [self.value(item) for item in _added(content)]
        return ObjectValue(content.class_name, tuple(values + ([("@annotation", added)] if added else [])))

    def elements(self, content: JavaObject) -> list[object]:
        """Return the elements of a collection: the objects that `writeObject` wrote after the block with the size."""
        return [self.value(item) for item in _added(content) if not isinstance(item, JavaBlock)]

    def boxed(self, content: JavaObject) -> object:
        value = content.fields["value"]
        return value if content.class_name in _NATIVE else TypedValue(content.class_name, value)

    def sequence(self, content: JavaObject) -> CollectionValue:
        return CollectionValue(content.class_name, CollectionKind.LIST, tuple(self.elements(content)))

    def unordered(self, content: JavaObject) -> CollectionValue:
        """Convert a set; `TreeSet` writes its comparator before the elements."""
        elements = self.elements(content)
        comparator = elements.pop(0) if content.class_name == "java.util.TreeSet" else None
        return CollectionValue(content.class_name, CollectionKind.SET, tuple(elements), comparator)

    def mapping(self, content: JavaObject) -> MapValue:
        """Convert a map; `TreeMap` stores its comparator in a field."""
        comparator = self.value(content.fields.get("comparator"))
        return _map(content.class_name, self.elements(content), comparator)

    def immutable(self, content: JavaObject) -> CollectionValue | MapValue:
        """Convert a `CollSer`, the serialized form of `List.of`, `Set.of` and `Map.of`; its field `tag` is the kind."""
        elements, tag = self.elements(content), _integer(content.fields["tag"]) & 0xFF
        if tag == _IMMUTABLE_MAP:
            return _map("java.util.ImmutableCollections$MapN", elements, None)
        if tag == _IMMUTABLE_SET:
            return CollectionValue("java.util.ImmutableCollections$SetN", CollectionKind.SET, tuple(elements))
        return CollectionValue("java.util.ImmutableCollections$ListN", CollectionKind.LIST, tuple(elements))

    def as_list(self, content: JavaObject) -> CollectionValue:
        array = self.value(content.fields["a"])
        return CollectionValue(
            content.class_name, CollectionKind.LIST, array.items if isinstance(array, ArrayValue) else ()
        )

    def empty(self, content: JavaObject) -> CollectionValue | MapValue:
        if content.class_name.endswith("Map"):
            return MapValue(content.class_name, ())
        kind = CollectionKind.SET if content.class_name.endswith("Set") else CollectionKind.LIST
        return CollectionValue(content.class_name, kind, ())

    def bit_set(self, content: JavaObject) -> TypedValue:
        words = content.fields["bits"]
        values = words.values if isinstance(words, JavaArray) else ()
        return TypedValue(content.class_name, tuple(_integer(word) & 0xFFFFFFFFFFFFFFFF for word in values))

    def date(self, content: JavaObject) -> TypedValue:
        return TypedValue(content.class_name, struct.unpack(">q", _block(content))[0])

    def timestamp(self, content: JavaObject) -> TypedValue:
        """Convert a `Timestamp`: its super class `Date` writes the whole seconds, the field `nanos` has the rest."""
        (millis,) = struct.unpack(">q", _block(content))
        nanos = _integer(content.fields["nanos"])
        return TypedValue(content.class_name, {"millis": millis + nanos // 1_000_000, "nanos": nanos})

    def big_integer(self, content: JavaObject) -> TypedValue:
        magnitude = self.value(content.fields["magnitude"])
        raw = magnitude if isinstance(magnitude, bytes) else b""
        check_number(len(raw))
        number = int.from_bytes(raw, "big")
        return TypedValue(content.class_name, number * _integer(content.fields["signum"]))

    def big_decimal(self, content: JavaObject) -> TypedValue:
        unscaled = self.value(content.fields["intVal"])
        sign, digits, _ = Decimal(_integer(unscaled.value if isinstance(unscaled, TypedValue) else None)).as_tuple()
        return TypedValue(content.class_name, Decimal((sign, digits, -_integer(content.fields["scale"]))))

    def uuid(self, content: JavaObject) -> TypedValue:
        names = ("mostSigBits", "leastSigBits")
        return TypedValue(content.class_name, {name: _integer(content.fields[name]) for name in names})

    def time(self, content: JavaObject) -> TypedValue:
        """Convert a `java.time.Ser` (serialized form of the classes of java.time): a type byte, then the value."""
        raw = _block(content)
        reader = Reader(raw, "java.time.Ser")
        match reader.u8():
            case 1:
                return TypedValue("java.time.Duration", {"seconds": reader.i64(), "nanos": reader.i32()})
            case 2:
                return TypedValue("java.time.Instant", {"epoch_second": reader.i64(), "nano": reader.i32()})
            case 3:
                return TypedValue("java.time.LocalDate", _local_date(reader))
            case 4:
                return TypedValue("java.time.LocalTime", _local_time(reader))
            case 5:
                date = _local_date(reader)
                return TypedValue("java.time.LocalDateTime", {"date": date, "nano_of_day": _local_time(reader)})
            case code:
                return TypedValue(content.class_name, {"type": code, "data": raw[1:]})


def _map(name: str, elements: list[object], comparator: object) -> MapValue:
    return MapValue(name, tuple(zip(elements[::2], elements[1::2], strict=True)), comparator)


def _added(content: JavaObject) -> list[JavaContent]:
    """Return the data written by the `writeObject` methods of all classes of an object."""
    return [item for data in content.class_data for item in data.annotation or ()]


def _block(content: JavaObject) -> bytes:
    return b"".join(item.data for item in _added(content) if isinstance(item, JavaBlock))


def _local_date(reader: Reader) -> int:
    year, month = reader.i32(), reader.u8()
    return epoch_day(year, month, reader.u8())


def _local_time(reader: Reader) -> int:
    """Read a `LocalTime` as nanoseconds of the day; if zero fields are left out, the last field is complemented."""
    numbers = [0, 0, 0]
    for index in range(3):
        item = reader.i8()
        numbers[index] = ~item if item < 0 else item
        if item < 0:
            return ((numbers[0] * 60 + numbers[1]) * 60 + numbers[2]) * 1_000_000_000
    return ((numbers[0] * 60 + numbers[1]) * 60 + numbers[2]) * 1_000_000_000 + reader.i32()


def _integer(value: object) -> int:
    if isinstance(value, int):
        return value
    raise TypeError


def _names(package: str, names: str) -> list[str]:
    return [f"{package}.{name}" for name in names.split()]


_KNOWN: dict[str, Callable[[_Conversion, JavaObject], object]] = {
    **dict.fromkeys(_names("java.lang", "Boolean Byte Character Short Integer Long Float Double"), _Conversion.boxed),
    **dict.fromkeys(
        _names("java.util", "ArrayList LinkedList ArrayDeque concurrent.CopyOnWriteArrayList"), _Conversion.sequence
    ),
    **dict.fromkeys(_names("java.util", "HashSet LinkedHashSet TreeSet"), _Conversion.unordered),
    **dict.fromkeys(_names("java.util", "HashMap LinkedHashMap TreeMap Hashtable EnumMap"), _Conversion.mapping),
    **dict.fromkeys(
        _names("java.util", "Collections$EmptyList Collections$EmptySet Collections$EmptyMap"), _Conversion.empty
    ),
    **dict.fromkeys(["java.util.Date", "java.sql.Date", "java.sql.Time"], _Conversion.date),
    "java.util.Arrays$ArrayList": _Conversion.as_list,
    "java.util.CollSer": _Conversion.immutable,
    "java.util.BitSet": _Conversion.bit_set,
    "java.sql.Timestamp": _Conversion.timestamp,
    "java.math.BigInteger": _Conversion.big_integer,
    "java.math.BigDecimal": _Conversion.big_decimal,
    "java.util.UUID": _Conversion.uuid,
    "java.time.Ser": _Conversion.time,
}
