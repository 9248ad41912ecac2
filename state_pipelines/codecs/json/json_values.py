"""JSON of typed values, and the text by which maps and sets are sorted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import singledispatch
from typing import TypeAlias, cast

from state_pipelines.binary.data_views import split_units
from state_pipelines.binary.java_stream import (
    JavaArray,
    JavaBlock,
    JavaClass,
    JavaClassDesc,
    JavaContent,
    JavaEnum,
    JavaObject,
    JavaReference,
    JavaString,
)
from state_pipelines.codecs.avro.avro_records import AvroBranch, AvroEnum, AvroMap, AvroRecord, parse_avro_schema
from state_pipelines.codecs.java.iso_dates import calendar_day
from state_pipelines.codecs.java.serialized_objects import java_value
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
    Undecoded,
)
from state_pipelines.codecs.sql.binary_rows import BinaryRowValue, TimestampValue
from state_pipelines.errors import FormatError, ValueRangeError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
_TUPLE = "org.apache.flink.api.java.tuple.Tuple"
_GENERIC_RECORD = "org.apache.avro.generic.GenericData$Record"
_ROW = "org.apache.flink.types.Row"
_ROW_KINDS = {"INSERT": "+I", "UPDATE_BEFORE": "-U", "UPDATE_AFTER": "+U", "DELETE": "-D"}
_UNTAGGED = (
    *("Boolean", "Byte", "Character", "Short", "Integer", "Long", "Float", "Double"),
    *("StringBuilder", "StringBuffer", "Void"),
)
_JAVA_CONTENTS = (JavaString, JavaObject, JavaEnum, JavaArray, JavaClass, JavaClassDesc, JavaBlock, JavaReference)
_MOST_BITS = 14_000
_LONGEST_PLAIN = 1_000


def tagged(tag: str, content: Json) -> Json:
    """Return an object of one tag."""
    return {tag: content}


def number(value: object) -> Json:
    """Return a float or double; non-finite numbers are strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return cast("float", value)


def hex_bytes(value: object) -> Json:
    """Return the bytes in lower-case hex."""
    return tagged("@bytes", bytes(cast("bytes", value)).hex())


def big_integer(value: object) -> Json:
    """Return a BigInteger of any size; by way of a decimal number, because Python limits the digits of integers."""
    return tagged("@bigint", format(Decimal(cast("int", value)), "f"))


def decimal(value: object) -> Json:
    """Return a BigDecimal as `toPlainString` has it; beyond 1,000 zeros as `toString` has it.

    PyFlink writes decimals as text, so that they may be `NaN`, `sNaN` or `Infinity`.
    """
    plain = cast("Decimal", value)
    if not plain.is_finite():
        return tagged("@dec", str(plain))
    exponent = cast("int", plain.as_tuple().exponent)
    if plain == 0 and exponent > 0:
        return tagged("@dec", "0")
    return tagged("@dec", format(plain, "f") if abs(exponent) <= _LONGEST_PLAIN else str(plain))


def date_text(days: int) -> str:
    """ISO text of a date; years beyond 9999 have a plus sign."""
    year, month, day = calendar_day(days)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}"


def time_text(nanos: int) -> str:
    """ISO text of a time of day, always with nine decimals."""
    seconds, nano = divmod(nanos, 1_000_000_000)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{nano:09d}"


def java_date(value: object) -> Json:
    """Return a LocalDate from its epoch day."""
    return tagged("@date", date_text(cast("int", value)))


def java_time(value: object) -> Json:
    """Return a LocalTime from its nanosecond of the day."""
    return tagged("@time", time_text(cast("int", value)))


def java_date_time(value: object) -> Json:
    """Return a LocalDateTime from `date` and `nano_of_day`."""
    members = cast("Mapping[str, int]", value)
    return tagged("@datetime", f"{date_text(members['date'])}T{time_text(members['nano_of_day'])}")


def sorted_map(entries: Iterable[tuple[Json, Json]]) -> Json:
    """Return a map; of keys with the same text the last one stays."""
    unique: dict[str, Json] = {}
    for key, value in entries:
        unique[sort_text(key)] = [key, value]
    return tagged("@map", [unique[text] for text in sorted(unique)])


def sorted_set(items: Iterable[Json]) -> Json:
    """Return a set."""
    return tagged("@set", sorted(items, key=sort_text))


def sort_text(value: Json) -> str:
    """Return the JSON text that maps and sets are sorted by: doubles as in Java, non-ASCII characters escaped."""
    match value:
        case str():
            return _quoted(value)
        case float():
            return _double_text(value)
        case list():
            return f"[{','.join(map(sort_text, value))}]"
        case dict():
            return "{" + ",".join(f"{_quoted(key)}:{sort_text(item)}" for key, item in value.items()) + "}"
        case _:
            return json.dumps(value)


def _quoted(text: str) -> str:
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join(map(_escaped, split_units(text))) + '"'


def _escaped(unit: int) -> str:
    if unit in (0x22, 0x5C):
        return f"\\{chr(unit)}"
    return chr(unit) if 0x20 <= unit <= 0x7E else f"\\u{unit:04x}"


def _double_text(value: float) -> str:
    """`Double.toString`: decimal between 0.001 and 10,000,000, else with an exponent."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        text = format(Decimal(repr(value)), "f")
        return text if "." in text else f"{text}.0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{cast('int', exponent) + len(text) - 1}"


@singledispatch
def value_json(value: object) -> Json:
    """Return JSON of a value by its own type.

    Raises:
        ValueRangeError: a Python value that no decoder gives.
    """
    raise ValueRangeError(f"{type(value).__name__} {value!r} has no JSON form")


@value_json.register(type(None))
@value_json.register(bool)
@value_json.register(str)
def _(value: bool | str | None) -> Json:
    return value


@value_json.register(int)
def _(value: int) -> Json:
    # Integers of any size, as Beam has them, are numbers as long as Python writes them.
    return value if value.bit_length() <= _MOST_BITS else big_integer(value)


@value_json.register(float)
def _(value: float) -> Json:
    return number(value)


@value_json.register(bytes)
def _(value: bytes) -> Json:
    return hex_bytes(value)


@value_json.register(Decimal)
def _(value: Decimal) -> Json:
    return decimal(value)


@value_json.register(list)
@value_json.register(tuple)
def _(value: list[object] | tuple[object, ...]) -> Json:
    return [value_json(item) for item in value]


@value_json.register(dict)
def _(value: dict) -> Json:  # type: ignore[type-arg]
    return {str(key): value_json(item) for key, item in value.items()}


@value_json.register(TypedValue)
def _(value: TypedValue) -> Json:
    render = _TYPED.get(value.class_name)
    if isinstance(value.value, _JAVA_CONTENTS):
        return value_json(value.value)
    if render is not None:
        return render(value.value)
    if isinstance(value.value, Mapping):
        return _object(value.class_name, value.value.items())
    return _object(value.class_name, [("value", value.value)])


@value_json.register(EnumValue)
def _(value: EnumValue) -> Json:
    return tagged("@enum", value.constant)


@value_json.register(MessageValue)
def _(value: MessageValue) -> Json:
    if value.fields is None:
        return {"@class": value.class_name, "@bytes": value.raw.hex()}
    return _object(value.class_name, value.fields.items())


@value_json.register(ObjectValue)
def _(value: ObjectValue) -> Json:
    if value.class_name.startswith(_TUPLE) and value.class_name.removeprefix(_TUPLE).isdigit():
        fields = sorted(value.fields, key=lambda item: int(item[0][1:]))
        return tagged("@tuple", [value_json(item) for _, item in fields])
    if value.class_name == _ROW:
        return _row(dict(value.fields))
    if value.class_name == _GENERIC_RECORD and (record := _generic_record(dict(value.fields))) is not None:
        return value_json(record)
    return _object(value.class_name, value.fields)


def _object(class_name: str, fields: Iterable[tuple[str, object]]) -> Json:
    values = sorted(fields, key=lambda item: item[0])
    return {"@class": class_name, **{name: value_json(item) for name, item in values}}


def _row(fields: Mapping[str, object]) -> Json:
    values, kind = fields.get("fieldByPosition"), fields.get("kind")
    if isinstance(by_name := fields.get("fieldByName"), MapValue):
        items = [item for _, item in by_name.entries]
    else:
        items = list(values.items) if isinstance(values, ArrayValue) else []
    constant = kind.constant if isinstance(kind, EnumValue) else "INSERT"
    return {"@row": [value_json(item) for item in items], "@kind": _ROW_KINDS.get(constant, constant)}


def _generic_record(fields: Mapping[str, object]) -> AvroRecord | None:
    """Return the record that an object of Avro's generic class is, by its schema; None when they do not fit."""
    schema, values = fields.get("schema"), fields.get("values")
    if not isinstance(schema, TypedValue) or not isinstance(schema.value, str) or not isinstance(values, ArrayValue):
        return None
    try:
        root = parse_avro_schema(schema.value).root
    except FormatError:
        return None
    declared = cast("dict[str, list[dict[str, object]]]", root if isinstance(root, dict) else {}).get("fields", [])
    if not isinstance(root, dict) or len(declared) != len(values.items):
        return None
    names = (str(each["name"]) for each in declared)
    return AvroRecord(str(root["name"]), tuple(zip(names, values.items, strict=True)))


@value_json.register(ArrayValue)
def _(value: ArrayValue) -> Json:
    return [value_json(item) for item in value.items]


@value_json.register(CollectionValue)
def _(value: CollectionValue) -> Json:
    items = [value_json(item) for item in value.items]
    return sorted_set(items) if value.kind is CollectionKind.SET else items


@value_json.register(MapValue)
def _(value: MapValue) -> Json:
    return sorted_map((value_json(key), value_json(item)) for key, item in value.entries)


@value_json.register(BackReference)
def _(value: BackReference) -> Json:
    return tagged("@ref", value.index)


@value_json.register(Undecoded)
def _(value: Undecoded) -> Json:
    return {"@class": value.class_name, "@undecoded": value.raw.hex(), "@reason": value.reason}


@value_json.register(AvroRecord)
def _(value: AvroRecord) -> Json:
    return {"@avro": value.name, **{name: value_json(item) for name, item in value.fields}}


@value_json.register(AvroEnum)
def _(value: AvroEnum) -> Json:
    return tagged("@enum", value.symbol)


@value_json.register(AvroMap)
def _(value: AvroMap) -> Json:
    return sorted_map((key, value_json(item)) for key, item in value.entries)


@value_json.register(AvroBranch)
def _(value: AvroBranch) -> Json:
    return value_json(value.value)


@value_json.register(BinaryRowValue)
def _(value: BinaryRowValue) -> Json:
    return {"@rowdata": [value_json(item) for item in value.fields], "@kind": value.kind}


@value_json.register(TimestampValue)
def _(value: TimestampValue) -> Json:
    return tagged("@ts", [value.millis, value.nano_of_milli])


@value_json.register(JavaString)
@value_json.register(JavaObject)
@value_json.register(JavaEnum)
@value_json.register(JavaArray)
@value_json.register(JavaClass)
@value_json.register(JavaClassDesc)
@value_json.register(JavaBlock)
@value_json.register(JavaReference)
def _(value: JavaContent) -> Json:
    return value_json(java_value(value))


def _bit_set(value: object) -> Json:
    words = cast("tuple[int, ...]", value)
    return tagged("@bitset", [64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1])


def _pair(tag: str, first: str, second: str) -> Callable[[object], Json]:
    def render(value: object) -> Json:
        members = cast("Mapping[str, int]", value)
        return tagged(tag, [members[first], members[second]])

    return render


def _integer(tag: str) -> Callable[[object], Json]:
    return lambda value: tagged(tag, cast("int", value))


_TYPED: dict[str, Callable[[object], Json]] = {
    **{f"java.lang.{name}": value_json for name in _UNTAGGED},
    "java.math.BigInteger": big_integer,
    "java.math.BigDecimal": decimal,
    "java.util.Date": _integer("@juDate"),
    "java.sql.Date": _integer("@sqlDate"),
    "java.sql.Time": _integer("@sqlTime"),
    "java.sql.Timestamp": _pair("@sqlTimestamp", "millis", "nanos"),
    "java.time.Instant": _pair("@instant", "epoch_second", "nano"),
    "java.time.LocalDate": java_date,
    "java.time.LocalTime": java_time,
    "java.time.LocalDateTime": java_date_time,
    "java.util.BitSet": _bit_set,
}
