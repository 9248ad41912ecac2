"""Values that wrote themselves by Java serialization (`JavaSerializer`), read by structure.

The stream names its classes and fields, so every object can be shown; classes of the JDK that write more than their
fields (collections, dates, big numbers) are turned into the values that they stand for.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import TYPE_CHECKING

from state_pipelines.binary.javastream import read_stream, write_stream
from state_pipelines.binary.javavalues import (
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
)
from state_pipelines.binary.reader import Reader
from state_pipelines.codecs.dynamic import (
    ArrayValue,
    BackReference,
    CollectionValue,
    EnumValue,
    MapValue,
    ObjectValue,
    TypedValue,
)
from state_pipelines.codecs.isodate import epoch_day
from state_pipelines.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.binary.writer import Writer

_BOXED = ("Boolean", "Byte", "Character", "Short", "Integer", "Long", "Float", "Double")
_NATIVE = ("java.lang.Boolean", "java.lang.Integer", "java.lang.Double")
_LISTS = tuple(
    f"java.util.{name}" for name in ("ArrayList", "LinkedList", "ArrayDeque", "concurrent.CopyOnWriteArrayList")
)
_SETS = ("java.util.HashSet", "java.util.LinkedHashSet", "java.util.TreeSet")
_MAPS = tuple(f"java.util.{name}" for name in ("HashMap", "LinkedHashMap", "TreeMap", "Hashtable", "EnumMap"))
_DATES = ("java.util.Date", "java.sql.Date", "java.sql.Time")


def read_java_object(reader: Reader) -> JavaContent:
    """Read one value; `java_value` turns it into one that can be shown.

    Raises:
        FormatError: not a serialization stream.
        UnsupportedError: the stream uses a form that cannot be read without the class.
    """
    return read_stream(reader)


def write_java_object(writer: Writer, content: JavaContent) -> None:
    """Mirror of `read_java_object`."""
    writer.take(write_stream(content))


def java_value(content: JavaValue) -> object:
    """The value that a content of a stream stands for.

    Returns:
        A plain Python value or one of `state_pipelines.codecs.dynamic`; an object of an unknown class goes by the
        fields that it wrote, and what its `writeObject` method added stands in the field `@annotation`.
    """
    match content:
        case JavaString():
            return content.text
        case JavaObject():
            return _object(content)
        case JavaEnum():
            return EnumValue(content.class_name, content.constant)
        case JavaArray():
            return _array(content)
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


def _array(content: JavaArray) -> object:
    if isinstance(content.values, bytes):
        return content.values
    return ArrayValue(content.class_desc.name, tuple(map(java_value, content.values)))


def _object(content: JavaObject) -> object:
    name, fields = content.class_name, content.fields
    if name.startswith("java.lang.") and name.removeprefix("java.lang.") in _BOXED:
        return fields["value"] if name in _NATIVE else TypedValue(name, fields["value"])
    known = _KNOWN.get(name)
    if known is not None:
        try:
            return known(content)
        except (struct.error, IndexError, KeyError, TypeError, ValueError):
            raise FormatError(f"an object of class {name} did not write what its class says") from None
    values = [(member, java_value(value)) for member, value in fields.items()]
    values += [("@annotation", added)] if (added := [java_value(part) for part in _added(content)]) else []
    return ObjectValue(name, tuple(values))


def _added(content: JavaObject) -> list[JavaContent]:
    """What the `writeObject` methods of all classes of an object wrote."""
    return [part for data in content.class_data for part in data.annotation or ()]


def _elements(content: JavaObject) -> list[object]:
    """The contents behind the block that holds the size."""
    return [java_value(part) for part in _added(content) if not isinstance(part, JavaBlock)]


def _sorted_elements(content: JavaObject) -> tuple[object, list[object]]:
    """As `_elements` for sorted collections: `TreeSet` adds its comparator first, `TreeMap` has it as a field."""
    elements = _elements(content)
    if content.class_name == "java.util.TreeSet":
        return elements[0], elements[1:]
    return java_value(content.fields.get("comparator")), elements


def _collection(content: JavaObject) -> CollectionValue:
    kind = "set" if content.class_name in _SETS else "list"
    comparator, elements = _sorted_elements(content)
    return CollectionValue(content.class_name, kind, tuple(elements), comparator)  # type: ignore[arg-type]


def _map(content: JavaObject) -> MapValue:
    comparator, elements = _sorted_elements(content)
    entries = tuple(zip(elements[::2], elements[1::2], strict=True))
    return MapValue(content.class_name, entries, comparator)


def _as_list(content: JavaObject) -> CollectionValue:
    array = java_value(content.fields["a"])
    return CollectionValue(content.class_name, "list", array.items if isinstance(array, ArrayValue) else ())


def _block(content: JavaObject) -> bytes:
    return b"".join(part.data for part in _added(content) if isinstance(part, JavaBlock))


def _date(content: JavaObject) -> TypedValue:
    return TypedValue(content.class_name, struct.unpack(">q", _block(content))[0])


def _timestamp(content: JavaObject) -> TypedValue:
    """`Date` wrote whole seconds, `Timestamp` has the rest as a field."""
    (seconds,) = struct.unpack(">q", _block(content))
    nanos = _integer(content.fields["nanos"])
    return TypedValue(content.class_name, {"millis": seconds + nanos // 1_000_000, "nanos": nanos})


def _big_integer(content: JavaObject) -> TypedValue:
    magnitude = java_value(content.fields["magnitude"])
    number = int.from_bytes(magnitude if isinstance(magnitude, bytes) else b"", "big")
    return TypedValue(content.class_name, number * _integer(content.fields["signum"]))


def _big_decimal(content: JavaObject) -> TypedValue:
    unscaled = java_value(content.fields["intVal"])
    sign, digits, _ = Decimal(_integer(unscaled.value if isinstance(unscaled, TypedValue) else None)).as_tuple()
    return TypedValue(content.class_name, Decimal((sign, digits, -_integer(content.fields["scale"]))))


def _uuid(content: JavaObject) -> TypedValue:
    return TypedValue(content.class_name, {name: content.fields[name] for name in ("mostSigBits", "leastSigBits")})


def _time(content: JavaObject) -> object:
    """`java.time.Ser`: a type byte, then the value."""
    raw = _block(content)
    reader = Reader(raw, "java.time")
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
            return TypedValue(
                "java.time.LocalDateTime", {"date": _local_date(reader), "nano_of_day": _local_time(reader)}
            )
        case code:
            return TypedValue(content.class_name, {"type": code, "data": raw[1:]})


def _local_date(reader: Reader) -> int:
    year, month = reader.i32(), reader.u8()
    return epoch_day(year, month, reader.u8())


def _local_time(reader: Reader) -> int:
    """Parts that are 0 at the end are left out; the last one that is there is complemented."""
    parts = [0, 0, 0]
    for place in range(3):
        part = reader.i8()
        parts[place] = ~part if part < 0 else part
        if part < 0:
            return ((parts[0] * 60 + parts[1]) * 60 + parts[2]) * 1_000_000_000
    return ((parts[0] * 60 + parts[1]) * 60 + parts[2]) * 1_000_000_000 + reader.i32()


def _integer(value: object) -> int:
    if isinstance(value, int):
        return value
    raise TypeError


_KNOWN: dict[str, Callable[[JavaObject], object]] = {
    **dict.fromkeys(_LISTS + _SETS, _collection),
    **dict.fromkeys(_MAPS, _map),
    **dict.fromkeys(_DATES, _date),
    "java.util.Arrays$ArrayList": _as_list,
    "java.sql.Timestamp": _timestamp,
    "java.math.BigInteger": _big_integer,
    "java.math.BigDecimal": _big_decimal,
    "java.util.UUID": _uuid,
    "java.time.Ser": _time,
}
