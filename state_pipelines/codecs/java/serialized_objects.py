"""Values that wrote themselves by Java serialization (`JavaSerializer`), read by structure.

The stream names its classes and fields, so every object can be shown; classes of the JDK that write more than their
fields (collections, dates, big numbers) are converted to plain values.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Reader
from state_pipelines.binary.java_stream import (
    MAX_DEPTH,
    JavaAnyDesc,
    JavaArray,
    JavaBlock,
    JavaClass,
    JavaClassDesc,
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
from state_pipelines.codecs.expansion import BYTES_PER_VALUE, ExpansionBudget, TreeSizes, count_repeated
from state_pipelines.codecs.java.big_numbers import check_number
from state_pipelines.codecs.java.iso_dates import epoch_day
from state_pipelines.codecs.java.typed_values import (
    ArrayValue,
    BackReference,
    CollectionKind,
    CollectionValue,
    EnumValue,
    MapValue,
    ObjectValue,
    TypedValue,
)
from state_pipelines.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.binary.data_views import Writer

_NATIVE = ("java.lang.Boolean", "java.lang.Integer", "java.lang.Double")
_IMMUTABLE_SET = 2
_IMMUTABLE_MAP = 3


def read_java_object(reader: Reader) -> JavaContent:
    """Read one value; `java_value` turns it into one that can be shown.

    Raises:
        FormatError: not a serialization stream.
        UnsupportedError: the stream uses a form that cannot be read without the class, or refers to the same objects
            so often that they expand beyond the limit.
    """
    start = reader.position
    content = read_stream(reader)
    budget = ExpansionBudget(reader.position - start, reader.name, start)
    budget.spend(make_sizes().measure(content))
    return content


def make_sizes() -> TreeSizes:
    """Make the sizes of the contents of one stream as `java_value` converts them."""
    return TreeSizes(_ContentInspector().inspect, MAX_DEPTH + 1, "a Java object")


class _ContentInspector:
    """Counts of the values of objects and arrays; an object shows the names of its class and its fields each time."""

    def __init__(self) -> None:
        # The contents keep their class descriptors, so that the ids stay theirs.
        self._names: dict[int, int] = {}

    def inspect(self, content: JavaValue) -> tuple[int, list[JavaValue]]:
        """Return the number of values without those of the objects and arrays of objects inside, and these."""
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
        case JavaClass(class_desc=JavaClassDesc() | JavaProxyDesc() as desc) | (
            JavaClassDesc() | JavaProxyDesc() as desc
        ):
            return 1 + sum(map(count_repeated, _names_of(desc)))
    return 1


def _count_bits(value: JavaValue) -> int:
    """Return the bits that are set in the words of a BitSet."""
    words = value.values if isinstance(value, JavaArray) else ()
    return sum(word.bit_count() for word in words if isinstance(word, int))


def write_java_object(writer: Writer, content: JavaContent) -> None:
    """Write what `read_java_object` reads."""
    writer.take(write_stream(content))


def java_value(content: JavaValue) -> object:
    """Convert a content of a stream to a plain value.

    Returns:
        A plain Python value or one of `codecs.java.typed_values`; an object of an unknown class is the fields that it
        wrote, with the data added by its `writeObject` method in the field `@annotation`.

    Raises:
        FormatError: the data of a known class are invalid.
    """
    return _Conversion().value(content)


class _Conversion:
    """Conversions of one value and of all inside it; `read_java_object` limits their number."""

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
            case JavaClass():
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
        """Return the contents after the block with the size."""
        return [self.value(item) for item in _added(content) if not isinstance(item, JavaBlock)]

    def boxed(self, content: JavaObject) -> object:
        value = content.fields["value"]
        return value if content.class_name in _NATIVE else TypedValue(content.class_name, value)

    def sequence(self, content: JavaObject) -> CollectionValue:
        return CollectionValue(content.class_name, CollectionKind.LIST, tuple(self.elements(content)))

    def unordered(self, content: JavaObject) -> CollectionValue:
        """`TreeSet` writes its comparator first."""
        elements = self.elements(content)
        comparator = elements.pop(0) if content.class_name == "java.util.TreeSet" else None
        return CollectionValue(content.class_name, CollectionKind.SET, tuple(elements), comparator)

    def mapping(self, content: JavaObject) -> MapValue:
        """`TreeMap` has its comparator as a field."""
        comparator = self.value(content.fields.get("comparator"))
        return _map(content.class_name, self.elements(content), comparator)

    def immutable(self, content: JavaObject) -> CollectionValue | MapValue:
        """Convert a `CollSer`, which `List.of`, `Set.of` and `Map.of` write; its tag gives the kind."""
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
        """`Date` wrote whole seconds, `Timestamp` has the rest as a field."""
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
        """`java.time.Ser`: a type byte, then the value."""
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
    """Read a time of day without its trailing zero fields; the last one stored is complemented."""
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
