"""JSON of values, as `dump` prints them, one entry per line.

Numbers, strings and booleans are plain JSON (float widened to double, NaN and infinities as strings); other
values have a tag: `@bytes` hex, `@dec`, `@bigint`, `@enum`, `@date`, `@time`, `@datetime`, `@instant`, `@juDate`,
`@sqlDate`, `@sqlTime`, `@sqlTimestamp`, `@ts`, `@tuple`, `@row` and `@rowdata` with `@kind`, `@map`, `@set`, `@bitset`,
`@left`, `@right`, `@window`, `@global`, `@avro`. POJOs and objects of Kryo have `@class` and their fields by name.
Entries of maps and elements of sets are sorted by their text. Undecoded values are `@undecoded` hex with its
`@reason`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import singledispatch
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from state_pipelines.binary.data_views import split_units
from state_pipelines.binary.java_stream import (
    JavaArray,
    JavaBlock,
    JavaClassDesc,
    JavaClassLiteral,
    JavaEnum,
    JavaObject,
    JavaReference,
    JavaString,
)
from state_pipelines.codecs.avro import AvroBranch, AvroEnum, AvroMap, AvroRecord, parse_avro_schema
from state_pipelines.codecs.binary_rows import BinaryRowValue, TimestampValue, find_variable, write_row
from state_pipelines.codecs.java import (
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
    calendar_day,
    java_value,
)
from state_pipelines.errors import FormatError, UsageError, ValueRangeError
from state_pipelines.serializers import tree
from state_pipelines.serializers.python_types import PythonType, PythonValue
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from state_pipelines.serializers.tree import LogicalType

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
_TUPLE = "org.apache.flink.api.java.tuple.Tuple"
_GENERIC_RECORD = "org.apache.avro.generic.GenericData$Record"
_ROW = "org.apache.flink.types.Row"
_ROW_KINDS = {"INSERT": "+I", "UPDATE_BEFORE": "-U", "UPDATE_AFTER": "+U", "DELETE": "-D"}
_UNTAGGED = (
    *("Boolean", "Byte", "Character", "Short", "Integer", "Long", "Float", "Double"),
    *("StringBuilder", "StringBuffer", "Void"),
)
_JAVA_CONTENTS = (
    JavaString,
    JavaObject,
    JavaEnum,
    JavaArray,
    JavaClassLiteral,
    JavaClassDesc,
    JavaBlock,
    JavaReference,
)
_MOST_BITS = 14_000
_LONGEST_PLAIN = 1_000


def tagged(tag: str, content: Json) -> Json:
    """Return a JSON object with one member: `tag` with its content."""
    return {tag: content}


def number(value: float) -> Json:
    """Return the JSON of a float or double; non-finite numbers become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def hex_bytes(value: bytes | bytearray) -> Json:
    """Return the JSON of bytes: lower-case hex, tagged `@bytes`."""
    return tagged("@bytes", bytes(value).hex())


def big_integer(value: int) -> Json:
    """Return the JSON of a BigInteger of any size.

    It is formatted as a `Decimal`, because Python limits the number of digits of an int.
    """
    return tagged("@bigint", format(Decimal(value), "f"))


def decimal(value: Decimal) -> Json:
    """Return the JSON of a BigDecimal: `toPlainString`, or `toString` for exponents beyond ±1,000.

    Decimals of PyFlink may also be `NaN`, `sNaN` or `Infinity`, because it stores them as text.
    """
    if not value.is_finite():
        return tagged("@dec", str(value))
    exponent = cast("int", value.as_tuple().exponent)
    if value == 0 and exponent > 0:
        return tagged("@dec", "0")
    return tagged("@dec", format(value, "f") if abs(exponent) <= _LONGEST_PLAIN else str(value))


def date_text(days: int) -> str:
    """Return the ISO text of an epoch day; years beyond 9999 have a plus sign."""
    year, month, day = calendar_day(days)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}"


def time_text(nanos: int) -> str:
    """Return the ISO text of a nanosecond of the day, always with nine decimals."""
    seconds, nano = divmod(nanos, 1_000_000_000)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{nano:09d}"


def java_date(days: int) -> Json:
    """Return the JSON of a LocalDate, given as its epoch day."""
    return tagged("@date", date_text(days))


def java_time(nanos: int) -> Json:
    """Return the JSON of a LocalTime, given as its nanosecond of the day."""
    return tagged("@time", time_text(nanos))


def java_date_time(members: Mapping[str, int]) -> Json:
    """Return the JSON of a LocalDateTime, given as `date` (epoch day) and `nano_of_day`."""
    return tagged("@datetime", f"{date_text(members['date'])}T{time_text(members['nano_of_day'])}")


def sorted_map(entries: Iterable[tuple[Json, Json]]) -> Json:
    """Return the JSON of a map, sorted by key; of entries whose keys have the same text, the last one is kept."""
    unique: dict[str, Json] = {}
    for key, value in entries:
        unique[sort_text(key)] = [key, value]
    return tagged("@map", [unique[text] for text in sorted(unique)])


def sorted_set(items: Iterable[Json]) -> Json:
    """Return the JSON of a set, sorted."""
    return tagged("@set", sorted(items, key=sort_text))


def sort_text(value: Json) -> str:
    """Return the JSON text by which maps and sets are sorted: doubles as in Java, non-ASCII characters escaped."""
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
    """Return a double as `Double.toString` does: decimal between 0.001 and 10,000,000, else with an exponent."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        text = format(Decimal(repr(value)), "f")
        return text if "." in text else f"{text}.0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{cast('int', exponent) + len(text) - 1}"


@singledispatch
def value_json(value: object) -> Json:
    """Return the JSON of a value according to its Python type.

    Raises:
        ValueRangeError: the type is none that decoders return.
    """
    raise ValueRangeError(f"{type(value).__name__} {value!r} has no JSON form")


@value_json.register(type(None))
@value_json.register(bool)
@value_json.register(str)
def _(value: bool | str | None) -> Json:
    return value


@value_json.register(int)
def _(value: int) -> Json:
    # Integers of Beam have any size. Python refuses to convert an int of more than 4,300 digits to text, so larger ones
    # than `_MOST_BITS` bits (fewer digits than that) become tagged text.
    return value if value.bit_length() <= _MOST_BITS else big_integer(value)


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
    """Convert the fields of an object of Avro's `GenericData$Record`; None if its schema and values do not fit."""
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


@value_json.register(CollectionValue)
def _(value: CollectionValue) -> Json:
    items = [value_json(item) for item in value.items]
    return sorted_set(items) if value.kind is CollectionKind.SET else items


@value_json.register(MapValue)
def _(value: MapValue) -> Json:
    return sorted_map((value_json(key), value_json(item)) for key, item in value.entries)


def _list(values: Iterable[object]) -> Json:
    return [value_json(item) for item in values]


_BY_TYPE: dict[type, Callable[[Any], Json]] = {
    float: number,
    bytes: hex_bytes,
    Decimal: decimal,
    list: _list,
    tuple: _list,
    ArrayValue: lambda value: _list(value.items),
    AvroRecord: lambda value: {"@avro": value.name, **{name: value_json(item) for name, item in value.fields}},
    AvroMap: lambda value: sorted_map((key, value_json(item)) for key, item in value.entries),
    AvroBranch: lambda value: value_json(value.value),
    AvroEnum: lambda value: tagged("@enum", value.symbol),
    EnumValue: lambda value: tagged("@enum", value.constant),
    BackReference: lambda value: tagged("@ref", value.index),
    BinaryRowValue: lambda value: {"@rowdata": _list(value.fields), "@kind": value.kind},
    TimestampValue: lambda value: tagged("@ts", [value.millis, value.nano_of_milli]),
    Undecoded: lambda value: {"@class": value.class_name, "@undecoded": value.raw.hex(), "@reason": value.reason},
    **dict.fromkeys(_JAVA_CONTENTS, lambda value: value_json(java_value(value))),
}
for _type, _to_json in _BY_TYPE.items():
    value_json.register(_type, _to_json)


def _bit_set(words: tuple[int, ...]) -> Json:
    return tagged("@bitset", [64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1])


def _pair(tag: str, first: str, second: str) -> Callable[[Any], Json]:
    return lambda value: tagged(tag, [value[first], value[second]])


def _integer(tag: str) -> Callable[[int], Json]:
    return lambda value: tagged(tag, value)


_TYPED: dict[str, Callable[[Any], Json]] = {
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

_BINARY = "org.apache.flink.table.data.binary."
_ARRAY_BASE = 16
"""Offset of the elements of a byte[] in the memory of a 64-bit JVM."""


def sql_row(row: BinaryRowValue, types: Sequence[LogicalType], *, nested: bool = False) -> Json:
    """Return the JSON of a row and its row kind.

    A RAW value is shown as its Java object holds it: as a section of the row's memory. In a `nested` row it is shown
    as its bytes.
    """
    values = [sql_value(value, of) for of, value in zip(types, row.fields, strict=True)]
    raw = [index for index, of in enumerate(types) if of.root == "RAW" and row.fields[index] is not None]
    if raw and not nested:
        block = write_row(row, types)
        for index in raw:
            values[index] = raw_value_json(block, *find_variable(block, len(types), index))
    return {"@rowdata": values, "@kind": row.kind}


def raw_value_json(block: bytes, offset: int, size: int) -> Json:
    """Return the JSON of a RAW value: the fields of the `BinaryRawValueData` in Java, a section of the row's memory.

    Args:
        block: the memory of the row.
        offset: start of the value in `block`.
        size: bytes of the value.
    """
    segment: dict[str, Json] = {
        "@class": "org.apache.flink.core.memory.MemorySegment",
        "address": _ARRAY_BASE,
        "addressLimit": _ARRAY_BASE + len(block),
        "allowWrap": True,
        "cleaner": None,
        "heapMemory": hex_bytes(block),
        "isFreedAtomic": {"@class": "java.util.concurrent.atomic.AtomicBoolean", "value": 0},
        "offHeapBuffer": None,
        "owner": None,
        "size": len(block),
    }
    section: dict[str, Json] = {
        "@class": f"{_BINARY}BinarySection",
        "offset": offset,
        "segments": [segment],
        "sizeInBytes": size,
    }
    return {"@class": f"{_BINARY}BinaryRawValueData", "binarySection": section, "javaObject": None}


def sql_array(value: Iterable[object], of: LogicalType) -> list[Json]:
    """Return the JSON of a SQL array."""
    return [sql_value(item, of) for item in value]


def sql_map(value: Iterable[tuple[object, object]], key_type: LogicalType, value_type: LogicalType | None) -> Json:
    """Return the JSON of a SQL map, or of a multiset if `value_type` is None."""
    return sorted_map(
        (sql_value(key, key_type), value_json(item) if value_type is None else sql_value(item, value_type))
        for key, item in value
    )


def sql_value(value: Any, of: LogicalType) -> Json:
    """Return the JSON of a value of a logical type."""
    if value is None:
        return None
    match of.root:
        case "ROW" | "STRUCTURED_TYPE" if isinstance(value, BinaryRowValue):
            return sql_row(value, of.children, nested=True)
        case "ARRAY":
            return sql_array(value, of.children[0])
        case "MAP":
            return sql_map(value, of.children[0], of.children[1])
        case "MULTISET":
            return sql_map(value, of.children[0], None)
        case "DISTINCT_TYPE" if of.children:
            return sql_value(value, of.children[0])
    return value_json(value)


def sql_timestamp(value: Any) -> Json:
    """Return the JSON of a timestamp, which may be a dict of milliseconds and nanoseconds, or milliseconds only."""
    if isinstance(value, Mapping):
        millis, nanos = (*value.values(), 0)[:2]
        return value_json(TimestampValue(millis, nanos))
    return value_json(TimestampValue(value, 0) if isinstance(value, int) else value)


Node = TypeVar("Node", bound=tree.Serializer)
Render: TypeAlias = Callable[[Node, Any], "Json"]
_TABLE_WINDOWS = "org.apache.flink.table.runtime.operators.window."


def dumps(line: Mapping[str, object]) -> str:
    """Return an object as one line of JSON without a line feed: compact, ASCII, members in the given order."""
    return json.dumps(line, separators=(",", ":"), allow_nan=False)


def to_json(node: tree.Serializer, value: Any) -> Json:
    """Return a decoded value as an object for `json.dumps`.

    Args:
        node: serializer of the value.
        value: the value as the scalar codec returns it.
    """
    return None if value is None else _render(node, value)


def access_times(node: tree.Serializer, value: Any) -> int | list[int] | None:
    """Return the last access of a value with TTL in epoch milliseconds; one number per element for lists with TTL.

    Returns None for values without TTL.
    """
    if value is None:
        # The bytes of a map can mark a value as null, although Flink writes no nulls with TTL.
        return None
    if isinstance(node, tree.Ttl):
        return cast("int", value["last_access"])
    if isinstance(node, tree.ListOf) and isinstance(node.element, tree.Ttl):
        return [item["last_access"] for item in value]
    if isinstance(node, tree.TtlAware):
        return access_times(node.inner, value)
    return None


def register_json(node_class: type[Node]) -> Callable[[Render[Node]], Render[Node]]:
    """Register the JSON of values of a custom serializer; decorates a function that gets (node, value).

    The function is not called for null. It calls `to_json` for values of nested serializers.

    Args:
        node_class: subclass of `tree.Serializer` whose nodes the function gets.

    Raises:
        UsageError: the class is one of Flink's serializers, whose JSON is fixed.
    """
    if tree.is_built_in(node_class):
        raise UsageError(
            f"{node_class.__name__} is not the node class of a custom serializer", hint="Register your own node class"
        )

    def decorate(render: Render[Node]) -> Render[Node]:
        _render.register(node_class, render)
        return render

    return decorate


@singledispatch
def _render(node: tree.Serializer, value: Any) -> Json:
    """Convert a value by its Python type, for serializers without a rule of their own."""
    return value_json(value)


@_render.register(tree.Basic)
def _(node: tree.Basic, value: Any) -> Json:
    render = _BASIC.get(node.kind)
    return value_json(value) if render is None else render(value)


@_render.register(tree.Coproduct)
def _(node: tree.Coproduct, value: Any) -> Json:
    case = str(value["case"])
    of = dict(zip(node.cases, node.serializers, strict=True)).get(case)
    return {"case": case, "value": None if of is None else to_json(of, value["value"])}


@_render.register(PythonType)
def _(node: PythonType, value: Any) -> Json:
    match node.word:
        case "ROW":
            named = {name: to_json(of, value[name]) for name, of in zip(node.field_names, node.children, strict=True)}
            return {"@row": named if node.names else [*named.values()], "@kind": str(value.get("row_kind") or "+I")}
        case "TUPLE":
            return tagged("@tuple", _fields(node.children, value))
        case "ARRAY" | "PRIMITIVE_ARRAY":
            return [to_json(node.children[0], item) for item in value]
        case "MAP":
            of, inner = node.children
            return sorted_map((to_json(of, key), to_json(inner, item)) for key, item in value)
        case "TIMESTAMP" if isinstance(value, int):
            return tagged("@ts", [value, 0])
        case "TIMESTAMP":
            return tagged("@ts", [*value.values()])
    render = _PYTHON.get(node.word)
    return value_json(value) if render is None else render(value)


@_render.register(tree.Either)
def _(node: tree.Either, value: Any) -> Json:
    if value["is_left"]:
        return tagged("@left", to_json(node.left, value["left"]))
    return tagged("@right", to_json(node.right, value["right"]))


@_render.register(tree.Pojo)
def _(node: tree.Pojo, value: Any) -> Json:
    if isinstance(value, Undecoded):
        # The object is of a subclass whose serializer this package cannot read.
        return value_json(value)
    name = str(value.get("class", node.pojo_class))
    serializers = _field_serializers(node, name)
    rendered: dict[str, Json] = {"@class": name}
    for field in sorted(key for key in value if key != "class"):
        serializer = serializers.get(field)
        rendered[field] = value_json(value[field]) if serializer is None else to_json(serializer, value[field])
    return rendered


@_render.register(tree.Timer)
def _(node: tree.Timer, value: Any) -> Json:
    return {
        "timestamp": value_json(value["timestamp"]),
        "key": to_json(node.key, value["key"]),
        "namespace": to_json(node.namespace, value["namespace"]),
    }


@_render.register(tree.Variants)
def _(node: tree.Variants, value: Any) -> Json:
    """Convert an object of Flink's runtime to its class and fields, or to its fields alone if the class is unknown."""
    if node.kind not in _VARIANTS:
        return _variant_members(node, value)
    name, field, key = _VARIANTS[node.kind]
    element = to_json(node.serializers[0], value["element"])
    return {"@class": name, "element": element, key: value_json(value[field])}


def _variant_members(node: tree.Variants, value: Any) -> Json:
    match node.kind:
        case (
            tree.VariantKind.SCALA_OPTION
            | tree.VariantKind.SHARED_BUFFER_EDGES
            | tree.VariantKind.SINGLE_THREAD_ACCESS_CHECKING
        ):
            return to_json(node.serializers[0], value)
        case tree.VariantKind.TRAVERSABLE:
            return [to_json(node.serializers[0], item) for item in value]
        case tree.VariantKind.UNION | tree.VariantKind.SCALA_TRY | tree.VariantKind.STREAM_ELEMENT:
            return _chosen(node, value)
        case tree.VariantKind.TWO_PHASE_COMMIT:
            return {
                "pending": _transaction(node, value["pending"]),
                "committing": [_transaction(node, item) for item in value["committing"]],
                "context": to_json(node.serializers[1], value["context"]),
            }
        case tree.VariantKind.SEQUENCED_NODE | tree.VariantKind.META_SQN_INFO | tree.VariantKind.ROW_SQN_INFO:
            named = zip(value.items(), node.serializers, strict=True)
            return {name: to_json(serializer, item) for (name, item), serializer in named}
        case _:
            return value_json(value)


def _chosen(node: tree.Variants, value: Any) -> Json:
    case, item = str(value["case"]), value["value"]
    if case == "record":
        timed: dict[str, Json] = {"timestamp": value_json(item["timestamp"])}
        return {"case": case, "value": {**timed, "value": to_json(node.serializers[0], item["value"])}}
    indexes = {"one": 0, "two": 1, "success": 0, "failure": 1, "record_without_timestamp": 0}
    shown = to_json(node.serializers[indexes[case]], item) if case in indexes else value_json(item)
    return {"case": case, "value": shown}


def _transaction(node: tree.Variants, value: Any) -> Json:
    if value is None:
        return None
    transaction = to_json(node.serializers[0], value["transaction"])
    return {"transaction": transaction, "started": value_json(value["started"])}


@_render.register(tree.BinaryRow)
def _(node: tree.BinaryRow, value: Any) -> Json:
    """Return the JSON of a row of unknown field types: its bytes in hex, including the length prefix."""
    if not isinstance(value, bytes):
        return value_json(value)
    return tagged("@hex", (len(value).to_bytes(4, "big") + value).hex())


_BY_NODE: dict[tuple[type[tree.Serializer], ...], Callable[[Any, Any], Json]] = {
    (tree.ListOf, tree.GenericArray, tree.LinkedListOf, tree.PythonArray, tree.ScalaCollection): lambda node, value: [
        to_json(node.element, item) for item in value
    ],
    (tree.SetOf,): lambda node, value: sorted_set(to_json(node.element, item) for item in value),
    (tree.MapOf, tree.SortedMapOf, tree.PythonMap, tree.ScalaMap): lambda node, value: sorted_map(
        (to_json(node.key, key), to_json(node.value, item)) for key, item in value
    ),
    (tree.Tuple, tree.CaseClass): lambda node, value: tagged("@tuple", _fields(node.fields, value)),
    (tree.PositionalRow, tree.PythonRow): lambda node, value: {
        "@row": _fields(node.fields, value),
        "@kind": str(value.get("row_kind") or "+I"),
    },
    (tree.Enum, tree.ScalaEnum): lambda node, value: tagged("@enum", str(value)),
    (tree.Nullable, tree.TtlAware, tree.RawValue, tree.External): lambda node, value: to_json(node.inner, value),
    (tree.ListView, tree.MapView, tree.RowDataKey, tree.Mapped): lambda node, value: to_json(node.inner, value),
    (tree.Ttl,): lambda node, value: to_json(node.inner, value["value"]),
    (tree.WindowKey,): lambda node, value: {
        "window": value_json(value["window"]),
        "key": to_json(node.key, value["key"]),
    },
    (tree.ArrayData,): lambda node, value: sql_array(value, node.element_type),
    (tree.MapData,): lambda node, value: sql_map(value, node.key_type, node.value_type),
    (tree.TimestampData,): lambda node, value: sql_timestamp(value),
    (PythonValue,): lambda node, value: to_json(node.type, value),
}
for _nodes, _by_node in _BY_NODE.items():
    for _node in _nodes:
        _render.register(_node, _by_node)


@_render.register(tree.RowData)
def _(node: tree.RowData, value: Any) -> Json:
    return sql_row(value, node.types) if isinstance(value, BinaryRowValue) else value_json(value)


def _fields(serializers: Sequence[tree.Serializer], value: Any) -> list[Json]:
    return [to_json(serializer, value[f"f{index}"]) for index, serializer in enumerate(serializers)]


def _field_serializers(node: tree.Pojo, class_name: str) -> Mapping[str, tree.Serializer | None]:
    """Return the serializers of the fields of a POJO class or of one of its subclasses."""
    subclass = next(
        (each.serializer for each in (*node.registered, *node.non_registered) if each.class_name == class_name), None
    )
    pojo = subclass if class_name != node.pojo_class and isinstance(subclass, tree.Pojo) else node
    return {field.name: field.serializer for field in pojo.fields}


def _table_window(name: str) -> Callable[[object], Json]:
    def render(value: Any) -> Json:
        members = value if isinstance(value, Mapping) else {"id": value}
        return {"@class": f"{_TABLE_WINDOWS}{name}", **{key: value_json(members[key]) for key in sorted(members)}}

    return render


_VARIANTS = {
    tree.VariantKind.BUFFER_ENTRY: (
        "org.apache.flink.streaming.api.operators.co.IntervalJoinOperator$BufferEntry",
        "joined",
        "hasBeenJoined",
    ),
    tree.VariantKind.LOCKABLE: ("org.apache.flink.cep.nfa.sharedbuffer.Lockable", "reference_count", "refCounter"),
}
"""Java class of the object; name of its member other than the element, in the decoded value and in that class."""

_BASIC: dict[BasicKind, Callable[[Any], Json]] = {
    BasicKind.FLOAT: number,
    BasicKind.DOUBLE: number,
    BasicKind.FLOAT_VALUE: number,
    BasicKind.DOUBLE_VALUE: number,
    BasicKind.BIG_INT: big_integer,
    BasicKind.BIG_DEC: decimal,
    BasicKind.DATE: _integer("@juDate"),
    BasicKind.SQL_DATE: _integer("@sqlDate"),
    BasicKind.SQL_TIME: _integer("@sqlTime"),
    BasicKind.SQL_TIMESTAMP: _pair("@sqlTimestamp", "millis", "nanos"),
    BasicKind.INSTANT: _pair("@instant", "epoch_second", "nano"),
    BasicKind.LOCAL_DATE: java_date,
    BasicKind.LOCAL_TIME: java_time,
    BasicKind.LOCAL_DATE_TIME: java_date_time,
    BasicKind.TIME_WINDOW: _pair("@window", "start", "end"),
    BasicKind.TABLE_TIME_WINDOW: _table_window(BasicKind.TIME_WINDOW),
    BasicKind.COUNT_WINDOW: _table_window(BasicKind.COUNT_WINDOW),
    BasicKind.TABLE_GLOBAL_WINDOW: _table_window(BasicKind.GLOBAL_WINDOW),
    BasicKind.GLOBAL_WINDOW: lambda value: tagged("@global", True),
    BasicKind.TUPLE_0: lambda value: tagged("@tuple", []),
    BasicKind.CHAR_PRIMITIVE_ARRAY: lambda value: [chr(item) if isinstance(item, int) else str(item) for item in value],
    BasicKind.BYTE_PRIMITIVE_ARRAY: hex_bytes,
    BasicKind.BITMAP: hex_bytes,
    BasicKind.UUID: lambda value: {
        "@class": "java.util.UUID",
        **{name: value[name] for name in ("leastSigBits", "mostSigBits")},
    },
    BasicKind.PYTHON_DATE: java_date,
    BasicKind.BYTE_ARRAY_WRAPPER: hex_bytes,
}

_PYTHON: dict[str, Callable[[Any], Json]] = {
    "FLOAT": number,
    "DOUBLE": number,
    "DECIMAL": lambda value: tagged("@dec", str(value)),
    "DATE": java_date,
    "TIME": java_time,
    "INSTANT": _BASIC[BasicKind.INSTANT],
}
