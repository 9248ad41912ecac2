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
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import singledispatch
from typing import TypeAlias, TypeVar, cast

from state_pipelines.codecs.java.typed_values import Undecoded
from state_pipelines.codecs.json.json_values import (
    Json,
    big_integer,
    decimal,
    hex_bytes,
    java_date,
    java_date_time,
    java_time,
    number,
    sorted_map,
    sorted_set,
    tagged,
    value_json,
)
from state_pipelines.codecs.json.sql_values import sql_array, sql_map, sql_row, sql_timestamp
from state_pipelines.codecs.sql.binary_rows import BinaryRowValue
from state_pipelines.errors import UsageError
from state_pipelines.serializers import tree
from state_pipelines.serializers.python_types import PythonType, PythonValue
from state_pipelines.serializers.tree import BasicKind

__all__ = ["Json", "access_times", "dumps", "register_json", "to_json", "value_json"]

Node = TypeVar("Node", bound=tree.Serializer)
Render: TypeAlias = Callable[[Node, object], "Json"]
Members: TypeAlias = Mapping[str, object]
Wrapping: TypeAlias = (
    tree.Nullable
    | tree.TtlAware
    | tree.RawValue
    | tree.External
    | tree.ListView
    | tree.MapView
    | tree.RowDataKey
    | tree.Mapped
)
_TABLE_WINDOWS = "org.apache.flink.table.runtime.operators.window."


def dumps(line: Mapping[str, object]) -> str:
    """Return one line of JSON, without a line feed: compact, ASCII, keys in the order given."""
    return json.dumps(line, separators=(",", ":"), allow_nan=False)


def to_json(node: tree.Serializer, value: object) -> Json:
    """Return a decoded value as an object for `json.dumps`.

    Args:
        node: its serializer.
        value: as the scalar codec gives it.
    """
    return None if value is None else _render(node, value)


def access_times(node: tree.Serializer, value: object) -> int | list[int] | None:
    """Return last access in epoch milliseconds of a value with TTL, one per element of a list; None without TTL."""
    if value is None:
        # A map may say that its value is null, although Flink writes none with TTL.
        return None
    if isinstance(node, tree.Ttl):
        return cast("int", _members(value)["last_access"])
    if isinstance(node, tree.ListOf) and isinstance(node.element, tree.Ttl):
        return [cast("int", _members(item)["last_access"]) for item in _items(value)]
    if isinstance(node, tree.TtlAware):
        return access_times(node.inner, value)
    return None


def register_json(node_class: type[Node]) -> Callable[[Render[Node]], Render[Node]]:
    """Register the JSON form of a custom serializer family; decorates a function (node, value).

    Args:
        node_class: subclass of `tree.Serializer`. The function gets values other than null, and calls `to_json` for
            those of nested serializers.

    Raises:
        UsageError: the class is one of Flink's families, whose forms are fixed.
    """
    if tree.is_built_in(node_class):
        raise UsageError(
            f"{node_class.__name__} is not a custom serializer family", hint="Register your own node class"
        )

    def decorate(render: Render[Node]) -> Render[Node]:
        _render.register(node_class, render)
        return render

    return decorate


@singledispatch
def _render(node: tree.Serializer, value: object) -> Json:
    """Convert a value without a rule for its serializer by its Python type."""
    return value_json(value)


@_render.register(tree.Basic)
def _(node: tree.Basic, value: object) -> Json:
    render = _BASIC.get(node.kind)
    return value_json(value) if render is None else render(value)


@_render.register(tree.ListOf)
@_render.register(tree.GenericArray)
@_render.register(tree.LinkedListOf)
@_render.register(tree.PythonArray)
def _(node: tree.ListOf | tree.GenericArray | tree.LinkedListOf | tree.PythonArray, value: object) -> Json:
    return [to_json(node.element, item) for item in _items(value)]


@_render.register(tree.SetOf)
def _(node: tree.SetOf, value: object) -> Json:
    return sorted_set(to_json(node.element, item) for item in _items(value))


@_render.register(tree.MapOf)
@_render.register(tree.SortedMapOf)
@_render.register(tree.PythonMap)
def _(node: tree.MapOf | tree.SortedMapOf | tree.PythonMap, value: object) -> Json:
    return sorted_map((to_json(node.key, key), to_json(node.value, item)) for key, item in _entries(value))


@_render.register(tree.ScalaCollection)
def _(node: tree.ScalaCollection, value: object) -> Json:
    return [to_json(node.element, item) for item in _items(value)]


@_render.register(tree.ScalaMap)
def _(node: tree.ScalaMap, value: object) -> Json:
    return sorted_map((to_json(node.key, key), to_json(node.value, item)) for key, item in _entries(value))


@_render.register(tree.Coproduct)
def _(node: tree.Coproduct, value: object) -> Json:
    members = _members(value)
    case = str(members["case"])
    of = dict(zip(node.cases, node.serializers, strict=True)).get(case)
    return {"case": case, "value": None if of is None else to_json(of, members["value"])}


@_render.register(tree.Tuple)
@_render.register(tree.CaseClass)
def _(node: tree.Tuple | tree.CaseClass, value: object) -> Json:
    return tagged("@tuple", _fields(node.fields, value))


@_render.register(tree.Row)
@_render.register(tree.PythonRow)
def _(node: tree.Row | tree.PythonRow, value: object) -> Json:
    return {"@row": _fields(node.fields, value), "@kind": str(_members(value).get("row_kind") or "+I")}


@_render.register(PythonValue)
def _(node: PythonValue, value: object) -> Json:
    return to_json(node.type, value)


@_render.register(PythonType)
def _(node: PythonType, value: object) -> Json:
    match node.word:
        case "ROW":
            members = _members(value)
            named = {name: to_json(of, members[name]) for name, of in zip(node.field_names, node.children, strict=True)}
            return {"@row": named if node.names else [*named.values()], "@kind": str(members.get("row_kind") or "+I")}
        case "TUPLE":
            return tagged("@tuple", _fields(node.children, value))
        case "ARRAY" | "PRIMITIVE_ARRAY":
            return [to_json(node.children[0], item) for item in _items(value)]
        case "MAP":
            of, inner = node.children
            return sorted_map((to_json(of, key), to_json(inner, item)) for key, item in _entries(value))
        case "TIMESTAMP" if isinstance(value, int):
            return tagged("@ts", [value, 0])
        case "TIMESTAMP":
            return tagged("@ts", [cast("int", each) for each in _members(value).values()])
    render = _PYTHON.get(node.word)
    return value_json(value) if render is None else render(value)


@_render.register(tree.Either)
def _(node: tree.Either, value: object) -> Json:
    members = _members(value)
    if members["is_left"]:
        return tagged("@left", to_json(node.left, members["left"]))
    return tagged("@right", to_json(node.right, members["right"]))


@_render.register(tree.Pojo)
def _(node: tree.Pojo, value: object) -> Json:
    if isinstance(value, Undecoded):
        # An object of a subclass whose serializer nothing reads.
        return value_json(value)
    members = _members(value)
    name = str(members.get("class", node.pojo_class))
    serializers = _field_serializers(node, name)
    rendered: dict[str, Json] = {"@class": name}
    for field in sorted(key for key in members if key != "class"):
        serializer = serializers.get(field)
        rendered[field] = value_json(members[field]) if serializer is None else to_json(serializer, members[field])
    return rendered


@_render.register(tree.Enum)
@_render.register(tree.ScalaEnum)
def _(node: tree.Enum | tree.ScalaEnum, value: object) -> Json:
    return tagged("@enum", str(value))


@_render.register(tree.Nullable)
@_render.register(tree.TtlAware)
@_render.register(tree.RawValue)
@_render.register(tree.External)
@_render.register(tree.ListView)
@_render.register(tree.MapView)
@_render.register(tree.RowDataKey)
@_render.register(tree.Mapped)
def _(node: Wrapping, value: object) -> Json:
    return to_json(node.inner, value)


@_render.register(tree.Ttl)
def _(node: tree.Ttl, value: object) -> Json:
    return to_json(node.inner, _members(value)["value"])


@_render.register(tree.Timer)
def _(node: tree.Timer, value: object) -> Json:
    members = _members(value)
    return {
        "timestamp": value_json(members["timestamp"]),
        "key": to_json(node.key, members["key"]),
        "namespace": to_json(node.namespace, members["namespace"]),
    }


@_render.register(tree.WindowKey)
def _(node: tree.WindowKey, value: object) -> Json:
    members = _members(value)
    return {"window": value_json(members["window"]), "key": to_json(node.key, members["key"])}


@_render.register(tree.Variants)
def _(node: tree.Variants, value: object) -> Json:
    """Convert an object of Flink's runtime to its class and fields, or to its fields alone if the class is unknown."""
    if node.kind not in _VARIANTS:
        return _variant_members(node, value)
    members, (name, field, key) = _members(value), _VARIANTS[node.kind]
    return {
        "@class": name,
        "element": to_json(node.serializers[0], members["element"]),
        key: value_json(members[field]),
    }


def _variant_members(node: tree.Variants, value: object) -> Json:
    match node.kind:
        case (
            tree.VariantKind.SCALA_OPTION
            | tree.VariantKind.SHARED_BUFFER_EDGES
            | tree.VariantKind.SINGLE_THREAD_ACCESS_CHECKING
        ):
            return to_json(node.serializers[0], value)
        case tree.VariantKind.TRAVERSABLE:
            return [to_json(node.serializers[0], item) for item in _items(value)]
        case tree.VariantKind.UNION | tree.VariantKind.SCALA_TRY | tree.VariantKind.STREAM_ELEMENT:
            return _chosen(node, _members(value))
        case tree.VariantKind.TWO_PHASE_COMMIT:
            members = _members(value)
            return {
                "pending": _transaction(node, members["pending"]),
                "committing": [_transaction(node, item) for item in _items(members["committing"])],
                "context": to_json(node.serializers[1], members["context"]),
            }
        case tree.VariantKind.SEQUENCED_NODE | tree.VariantKind.META_SQN_INFO | tree.VariantKind.ROW_SQN_INFO:
            named = zip(_members(value).items(), node.serializers, strict=True)
            return {name: to_json(serializer, item) for (name, item), serializer in named}
        case _:
            return value_json(value)


def _chosen(node: tree.Variants, value: Members) -> Json:
    case, item = str(value["case"]), value["value"]
    if case == "record":
        record = _members(item)
        timed: dict[str, Json] = {"timestamp": value_json(record["timestamp"])}
        return {"case": case, "value": {**timed, "value": to_json(node.serializers[0], record["value"])}}
    indexes = {"one": 0, "two": 1, "success": 0, "failure": 1, "record_without_timestamp": 0}
    shown = to_json(node.serializers[indexes[case]], item) if case in indexes else value_json(item)
    return {"case": case, "value": shown}


def _transaction(node: tree.Variants, value: object) -> Json:
    if value is None:
        return None
    members = _members(value)
    return {
        "transaction": to_json(node.serializers[0], members["transaction"]),
        "started": value_json(members["started"]),
    }


@_render.register(tree.RowData)
def _(node: tree.RowData, value: object) -> Json:
    return sql_row(value, node.types) if isinstance(value, BinaryRowValue) else value_json(value)


@_render.register(tree.ArrayData)
def _(node: tree.ArrayData, value: object) -> Json:
    return sql_array(value, node.element_type)


@_render.register(tree.MapData)
def _(node: tree.MapData, value: object) -> Json:
    return sql_map(value, node.key_type, node.value_type)


@_render.register(tree.BinaryRow)
def _(node: tree.BinaryRow, value: object) -> Json:
    """Return a row of unknown field types as its bytes, including the length prefix."""
    if not isinstance(value, bytes):
        return value_json(value)
    return tagged("@hex", (len(value).to_bytes(4, "big") + value).hex())


@_render.register(tree.TimestampData)
def _(node: tree.TimestampData, value: object) -> Json:
    return sql_timestamp(value)


def _fields(serializers: Sequence[tree.Serializer], value: object) -> list[Json]:
    members = _members(value)
    return [to_json(serializer, members[f"f{index}"]) for index, serializer in enumerate(serializers)]


def _field_serializers(node: tree.Pojo, class_name: str) -> Mapping[str, tree.Serializer | None]:
    """Return the serializers of the fields of a POJO class or of one of its subclasses."""
    subclass = next(
        (each.serializer for each in (*node.registered, *node.non_registered) if each.class_name == class_name), None
    )
    pojo = subclass if class_name != node.pojo_class and isinstance(subclass, tree.Pojo) else node
    return {field.name: field.serializer for field in pojo.fields}


def _members(value: object) -> Members:
    return cast("Members", value)


def _items(value: object) -> Iterable[object]:
    return cast("Iterable[object]", value)


def _entries(value: object) -> Iterable[tuple[object, object]]:
    return cast("Iterable[tuple[object, object]]", value)


def _pair(tag: str, first: str, second: str) -> Callable[[object], Json]:
    return lambda value: tagged(tag, [cast("int", _members(value)[first]), cast("int", _members(value)[second])])


def _table_window(name: str) -> Callable[[object], Json]:
    def render(value: object) -> Json:
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
"""Class of the object, and the name of the member beside its element, in the value and in the class."""

_BASIC: dict[BasicKind, Callable[[object], Json]] = {
    BasicKind.FLOAT: number,
    BasicKind.DOUBLE: number,
    BasicKind.FLOAT_VALUE: number,
    BasicKind.DOUBLE_VALUE: number,
    BasicKind.BIG_INT: big_integer,
    BasicKind.BIG_DEC: decimal,
    BasicKind.DATE: lambda value: tagged("@juDate", cast("int", value)),
    BasicKind.SQL_DATE: lambda value: tagged("@sqlDate", cast("int", value)),
    BasicKind.SQL_TIME: lambda value: tagged("@sqlTime", cast("int", value)),
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
    BasicKind.CHAR_PRIMITIVE_ARRAY: lambda value: [
        chr(item) if isinstance(item, int) else str(item) for item in _items(value)
    ],
    BasicKind.BYTE_PRIMITIVE_ARRAY: hex_bytes,
    BasicKind.BITMAP: hex_bytes,
    BasicKind.UUID: lambda value: {
        "@class": "java.util.UUID",
        **{name: cast("int", _members(value)[name]) for name in ("leastSigBits", "mostSigBits")},
    },
    BasicKind.PYTHON_DATE: java_date,
    BasicKind.BYTE_ARRAY_WRAPPER: hex_bytes,
}

_PYTHON: dict[str, Callable[[object], Json]] = {
    "FLOAT": number,
    "DOUBLE": number,
    "DECIMAL": lambda value: tagged("@dec", str(value)),
    "DATE": java_date,
    "TIME": java_time,
    "INSTANT": _BASIC[BasicKind.INSTANT],
}
