"""Rows of tables as dump lines: back from the Arrow types to values, and from these to JSON.

The inverse of what the columnar codec does with values, written a second time and one value at a time, so that tables
can be held against the entries that Flink itself read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.avro import AvroEnum, AvroMap, AvroRecord, AvroSchema, parse_avro_schema
from state_pipelines.codecs.binary_rows import BinaryRowValue, TimestampValue
from state_pipelines.codecs.columns import find_surrogate
from state_pipelines.codecs.json import to_json
from state_pipelines.codecs.kryo.kryo_columns import find_kryo
from state_pipelines.codecs.serializer_layouts import complete, derive_layout
from state_pipelines.errors import UnsupportedError
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import StateKind
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.snapshot.operator_state import OperatorBroadcastState, OperatorListState

if TYPE_CHECKING:
    from state_pipelines.snapshot import State
    from tests.flink.harness import Entry

Row = dict[str, Any]
_TIMER_PREFIX = "_timer_state/"
_LONG = tree.Basic(snapshot_class="", kind=tree.BasicKind.LONG)


class RawRow(Exception):
    """A row has bytes and a reason in place of a value."""


def to_entries(state: State, table: pa.Table) -> list[Entry]:
    """The entries in a table of the state with all columns and flattened lists.

    Raises:
        RawRow: a row holds bytes and a reason.
    """
    rows = [*_iter_rows(table)]
    for row in rows:
        if row.get("reason") is not None:
            raise RawRow(f"{state.operator.label} {state.name}: {row['reason']}")
    match state:
        case KeyedState():
            return _timers(state, rows) if state.kind == StateKind.TIMER else _keyed(state, rows)
        case OperatorListState():
            return _list(state, rows)
        case OperatorBroadcastState():
            return _broadcast(state, rows)
    raise NotImplementedError(type(state).__name__)  # A new kind of state needs a case above.


def _iter_rows(table: pa.Table) -> Iterator[Row]:
    for batch in table.to_batches():
        columns = [plain(column) for column in batch.columns]
        for values in zip(*columns, strict=True):
            yield dict(zip(table.schema.names, values, strict=True))


def _keyed(state: KeyedState, rows: list[Row]) -> list[Entry]:
    layout, keys = state.layout, dict(state.layout.key.fields)
    serializer, value_layout = complete(state.serializer, state.operator.snapshot.layout_context), layout.value
    user_key = None
    if state.kind == "MAP" and isinstance(serializer, tree.MapOf):
        user_key, serializer = serializer.key, serializer.value
    if state.kind == "LIST":
        assert isinstance(serializer, tree.ListOf)
        assert isinstance(value_layout, lay.Delimited | lay.Sequence)
        serializer, value_layout = serializer.element, value_layout.element
    if layout.ttl:
        assert isinstance(serializer, tree.Ttl)
        value_layout = _inside_ttl(value_layout)
        serializer = serializer.inner
    column = {"LIST": "list_value", "MAP": "map_value"}.get(state.kind, "value")
    entries: list[Entry] = []
    for row in rows:
        value = to_json(serializer, scalar(value_layout, row[column]))
        if row.get("list_index"):
            entries[-1]["value"].append(value)
            continue
        entry: Entry = {"kind": "keyed", "op": state.operator.label, "state": state.name, "type": state.kind}
        entry["kg"] = row["key_group"]
        entry["key"] = to_json(state.key_serializer, scalar(keys["state_key"], row["state_key"]))
        namespace = scalar(keys["state_namespace"], row["state_namespace"])
        entry["ns"] = to_json(state.info.namespace_serializer, namespace)
        if user_key is not None:
            entry["ukey"] = to_json(user_key, scalar(keys["map_key"], row["map_key"]))
        entry["value"] = [value] if state.kind == "LIST" else value
        entries.append(entry)
    return entries


def _inside_ttl(layout: lay.Layout) -> lay.Layout:
    while not isinstance(layout, lay.Struct):
        assert isinstance(layout, lay.Optional)
        layout = layout.inner
    return dict(layout.fields)["value"]


def _timers(state: KeyedState, rows: list[Row]) -> list[Entry]:
    domain, _, service = state.name.removeprefix(_TIMER_PREFIX).partition("_")
    keys, element = dict(state.layout.key.fields), state.info.element
    assert isinstance(element, tree.Timer)
    return [
        {
            "kind": "timer",
            "op": state.operator.label,
            "service": service,
            "domain": domain,
            "kg": row["key_group"],
            "key": to_json(element.key, scalar(keys["state_key"], row["state_key"])),
            "ns": to_json(element.namespace, scalar(keys["state_namespace"], row["state_namespace"])),
            "ts": to_json(_LONG, row["timestamp"]),
        }
        for row in rows
    ]


def _list(state: OperatorListState, rows: list[Row]) -> list[Entry]:
    context = state.operator.snapshot.layout_context
    layout, serializer = derive_layout(state.serializer, context), complete(state.serializer, context)
    common = {"kind": "operator", "op": state.operator.label, "state": state.name, "mode": state.kind}
    return [common | {"value": to_json(serializer, scalar(layout, row["value"]))} for row in rows]


def _broadcast(state: OperatorBroadcastState, rows: list[Row]) -> list[Entry]:
    context = state.operator.snapshot.layout_context
    stored = (state.info.key_serializer, state.info.value_serializer)
    (key, keys), (value, values) = ((derive_layout(each, context), complete(each, context)) for each in stored)
    common = {"kind": "broadcast", "op": state.operator.label, "state": state.name}
    return [
        common
        | {
            "ukey": to_json(keys, scalar(key, row["map_key"])),
            "value": to_json(values, scalar(value, row["map_value"])),
        }
        for row in rows
    ]


def plain(array: pa.Array) -> list[Any]:
    """Values of an array; dates, times and timestamps as integers of their unit, maps as lists of pairs."""
    of = array.type
    valid = array.is_valid().to_pylist()
    if pa.types.is_struct(of):
        names = [each.name for each in of]
        columns = [plain(child) for child in array.flatten()]
        rows = zip(*columns, strict=True) if columns else ((),) * len(array)
        return [dict(zip(names, row, strict=True)) if ok else None for row, ok in zip(rows, valid, strict=True)]
    if pa.types.is_list(of) or pa.types.is_map(of):
        if pa.types.is_map(of):
            items: list[Any] = [*zip(plain(array.keys), plain(array.items), strict=True)]
        else:
            items = plain(array.values)
        offsets = array.offsets.to_pylist()
        spans = zip(offsets, offsets[1:], valid, strict=False)
        return [items[start:end] if ok else None for start, end, ok in spans]
    if pa.types.is_date32(of):
        return array.view(pa.int32()).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_time64(of) or pa.types.is_timestamp(of) or pa.types.is_duration(of):
        return array.view(pa.int64()).to_pylist()  # type: ignore[no-any-return]
    return array.to_pylist()  # type: ignore[no-any-return]


def scalar(layout: lay.Layout, value: Any) -> Any:
    """A value of a column (see `plain`) as the scalar codec has it."""
    return None if value is None else _scalar(layout, value)


@singledispatch
def _scalar(layout: lay.Layout, value: Any) -> Any:
    return value


@_scalar.register
def _(layout: lay.BigInteger, value: Any) -> Any:
    return int(Decimal(value))


@_scalar.register
def _(layout: lay.BigDecimal, value: Any) -> Any:
    return Decimal(value)


@_scalar.register
def _(layout: lay.Logical, value: Any) -> Any:
    return {"date": value["date"], "nano_of_day": value["time"]} if layout.name == "local_date_time" else value


@_scalar.register
def _(layout: lay.Struct, value: Any) -> Any:
    return {name: scalar(child, value[name]) for name, child in layout.fields}


@_scalar.register(lay.Optional)
@_scalar.register(lay.MeasuredKey)
@_scalar.register(lay.Framed)
def _(layout: lay.Optional | lay.MeasuredKey | lay.Framed, value: Any) -> Any:
    return scalar(layout.inner, value)


@_scalar.register(lay.Sequence)
@_scalar.register(lay.Delimited)
@_scalar.register(lay.NullMasked)
def _(layout: lay.Sequence | lay.Delimited | lay.NullMasked, value: Any) -> Any:
    return [scalar(layout.element, each) for each in value]


@_scalar.register
def _(layout: lay.Mapping, value: Any) -> Any:
    return [(scalar(layout.key, key), scalar(layout.value, item)) for key, item in value]


@_scalar.register
def _(layout: lay.Masked, value: Any) -> Any:
    fields = {name: scalar(child, value[name]) for name, child in layout.fields}
    return {"row_kind": value["row_kind"] if layout.kind else None, **fields}


@_scalar.register
def _(layout: lay.Choice, value: Any) -> Any:
    sides = {"left": scalar(layout.left, value["left"]), "right": scalar(layout.right, value["right"])}
    return {"is_left": value["is_left"], **sides}


@_scalar.register
def _(layout: lay.Tagged, value: Any) -> Any:
    child = next(each for _, name, each in layout.cases if name == value["case"])
    return {"case": value["case"], "value": scalar(child, value.get(value["case"]))}


@_scalar.register
def _(layout: lay.PojoObject, value: Any) -> Any:
    name = value.get("class", layout.class_name)
    variants = {each.class_name: each.layout for each in layout.variants}
    of = layout if name == layout.class_name else variants[name]
    if not isinstance(of, lay.PojoObject):
        # A subclass that is no POJO: one column, of the short name of the class.
        return scalar(of, value[name.replace("$", ".").rpartition(".")[2]])
    return {"class": name, **{field: scalar(child, value[field]) for field, child in of.fields}}


@_scalar.register
def _(layout: lay.Dynamic, value: Any) -> Any:
    match layout.serializer:
        case tree.RowData(types=types):
            return BinaryRowValue(
                value["row_kind"], tuple(_sql(of, value[f"f{index}"]) for index, of in enumerate(types))
            )
        case tree.ArrayData(element_type=of):
            return [_sql(of, each) for each in value]
        case tree.MapData(key_type=keys, value_type=values):
            return [(_sql(keys, key), _sql(values, item)) for key, item in value]
        case tree.TimestampData(precision=precision):
            return _timestamp(precision, value)
        case tree.Avro(schema_json=text):
            schema = parse_avro_schema(text)
            return _avro(schema, schema.root, value)
        case tree.Kryo():
            return _kryo(layout, value)
    return value if find_surrogate(layout) is None else json.loads(value)


def _kryo(layout: lay.Dynamic, value: Any) -> Any:
    form = find_kryo(layout)
    try:
        return form.write(scalar(form.layout, value))
    except UnsupportedError:
        # The JSON that `to_json` would make of it; a mapping without a class stays as it is.
        return json.loads(value)


def _sql(of: tree.LogicalType, value: Any) -> Any:
    if value is None:
        return None
    match of.root:
        case "ROW" | "STRUCTURED_TYPE":
            return BinaryRowValue("+I", tuple(map(_sql, of.children, value.values())))
        case "TIMESTAMP_WITHOUT_TIME_ZONE" | "TIMESTAMP_WITH_LOCAL_TIME_ZONE":
            return _timestamp(6 if of.length is None else of.length, value)
        case "TIME_WITHOUT_TIME_ZONE":
            return value // 1_000_000
        case "ARRAY":
            return [_sql(of.children[0], each) for each in value]
        case "MAP":
            return [(_sql(of.children[0], key), _sql(of.children[1], item)) for key, item in value]
        case "MULTISET":
            return [(_sql(of.children[0], key), item) for key, item in value]
        case "DISTINCT_TYPE":
            return _sql(of.children[0], value)
    return value


def _timestamp(precision: int, value: int) -> TimestampValue:
    parts = 1 if precision <= 3 else 1_000 if precision <= 6 else 1_000_000
    millis, rest = divmod(value, parts)
    return TimestampValue(millis, rest * (1_000_000 // parts))


def _avro(schema: AvroSchema, reference: Any, value: Any) -> Any:
    if value is None:
        return None
    node: Any = schema.resolve(reference)
    if isinstance(node, list):
        (branch,) = (each for each in node if each != "null")
        return _avro(schema, branch, value)
    if not isinstance(node, Mapping):
        return value
    match node["type"]:
        case "record":
            fields = ((each["name"], _avro(schema, each["type"], value[each["name"]])) for each in node["fields"])
            return AvroRecord(node["name"], tuple(fields))
        case "enum":
            return AvroEnum(node["name"], value)
        case "array":
            return [_avro(schema, node["items"], each) for each in value]
        case "map":
            return AvroMap(tuple((key, _avro(schema, node["values"], item)) for key, item in value))
        case dict() | list() as inner:
            return _avro(schema, inner, value)
    return value
