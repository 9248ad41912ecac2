"""Types of fields as migration files name them, which of them SQL casts, and what new fields hold."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

import pyarrow as pa

from state_pipelines.errors import MigrationError, StateError
from state_pipelines.operations.migration import steps as st
from state_pipelines.operations.migration.avro_schema import AvroType, expand_schema, find_record, make_avro_type
from state_pipelines.operations.migration.payload_conversion import payload_type
from state_pipelines.operations.migration.step_parser import make_literal
from state_pipelines.operations.migration.steps import TODO
from state_pipelines.operations.migration.structs import Node, PlanContext, SlotType, SqlColumn
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import basic, list_of, map_of, pojo
from state_pipelines.serializers.text import describe_type
from state_pipelines.serializers.tree import BasicKind

_WHOLE = frozenset({BasicKind.BYTE, BasicKind.SHORT, BasicKind.INT, BasicKind.LONG})
_AVRO = {
    "boolean": BasicKind.BOOLEAN,
    "int": BasicKind.INT,
    "long": BasicKind.LONG,
    "float": BasicKind.FLOAT,
    "double": BasicKind.DOUBLE,
    "string": BasicKind.STRING,
}


def column_of(of: SlotType, context: PlanContext) -> pa.DataType | None:
    """Arrow type of the values of a slot; None when they have none."""
    try:
        match of:
            case AvroType():
                kind, _ = name_type("", of)
                return payload_type(kind, context) if isinstance(kind, tree.Serializer) else None
            case SqlColumn(serializer=inner):
                return payload_type(inner, context)
            case _:
                return payload_type(of, context)
    except StateError:
        return None


def is_castable(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether SQL's CAST makes one of the other."""
    if old == new:
        return True
    one, other = _group(old), _group(new)
    return None not in (one, other) and (one is other or _TypeGroup.TEXT in (one, other))


class _TypeGroup(Enum):
    NUMBER = auto()
    DATE = auto()
    TEXT = auto()
    BOOLEAN = auto()


def _group(kind: pa.DataType) -> _TypeGroup | None:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _TypeGroup.NUMBER
    if pa.types.is_date32(kind):
        return _TypeGroup.DATE
    return _TypeGroup.TEXT if pa.types.is_string(kind) else _TypeGroup.BOOLEAN if pa.types.is_boolean(kind) else None


def sql_type(kind: pa.DataType) -> str:
    """The word of Spark SQL for a type of basic values.

    Raises:
        MigrationError: it is none.
    """
    names = {pa.bool_(): "BOOLEAN", pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT"}
    names |= {pa.int64(): "BIGINT", pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.string(): "STRING"}
    names |= {pa.date32(): "DATE"}
    if kind not in names:
        raise MigrationError(f"no SQL type is known for {kind}")
    return names[kind]


def name_type(path: str, of: SlotType) -> tuple[st.FieldType, bool]:
    """The type of a slot as a file names it, and whether it is marked as nullable.

    Raises:
        MigrationError: files have no word for it.
    """
    match of:
        case SqlColumn(type=kind):
            return st.SqlType(describe_type(kind)), False
        case AvroType(node=node):
            rest = [each for each in node if each != "null"] if isinstance(node, list) else [node]
            nullable = isinstance(node, list) and len(rest) == 1 and node[0] == "null"
            inner = _from_avro(rest[0] if nullable else node)
            if make_avro_type(inner, nullable=nullable).node != node:
                raise MigrationError(f"no word of a migration names the Avro type of {path}")
            return inner, nullable
        case _:
            return of, False


def _from_avro(node: Any) -> tree.Serializer:
    """Mirror of `make_avro_type`."""
    match node:
        case str() if node in _AVRO:
            return basic(_AVRO[node])
        case "bytes":
            return basic(BasicKind.BYTE_PRIMITIVE_ARRAY)
        case {"type": "array", "items": items}:
            return list_of(_from_avro(items))
        case {"type": "map", "values": values}:
            return map_of(basic(BasicKind.STRING), _from_avro(values))
        case {"type": "record", "name": name, "fields": fields}:
            return pojo(name, {each["name"]: _from_avro(each["type"]) for each in fields})
    raise MigrationError("no word of a migration names this Avro type")


class Defaults:
    """Values of the new fields of a struct."""

    def __init__(self, node: Node) -> None:
        while isinstance(node, tree.Nullable):
            assert isinstance(node.inner, tree.Serializer)
            node = node.inner
        self._node = node
        self._given: dict[str, Any] = {}
        record = None
        if isinstance(node, tree.Avro):
            record = find_record(AvroType(expand_schema(node.schema_json)))
        elif isinstance(node, AvroType):
            record = find_record(node)
        self._types: dict[str, Any] = {}
        for each in (record or {}).get("fields", ()):
            self._types[each["name"]] = each["type"]
            if "default" in each:
                self._given[each["name"]] = each["default"]
        self._strict = isinstance(node, tree.Tuple) or record is not None

    def find(self, name: str) -> str:
        """SQL of the value, or TODO."""
        if name in self._given and not isinstance(self._given[name], list | dict):
            return make_literal(self._given[name], name)
        of: Any = None
        if name in self._types:
            node = self._types[name]
            if isinstance(node, list) and "null" in node:
                return "NULL"
            of = basic(_AVRO[node]) if isinstance(node, str) and node in _AVRO else None
        elif isinstance(self._node, tree.Pojo):
            of = next((each.serializer for each in self._node.fields if each.name == name), None)
        elif isinstance(self._node, tree.Tuple):
            of = self._node.fields[int(name[1:])]
        elif isinstance(self._node, tree.RowData):
            return "NULL" if self._node.types[int(name[1:])].nullable else TODO
        return _default(of, strict=self._strict)


def _default(of: object, *, strict: bool) -> str:
    """A primitive of Java is never null; whether a field is one, serializers do not say."""
    match of:
        case tree.Basic(kind=kind) if kind in _WHOLE:
            return "0"
        case tree.Basic(kind=BasicKind.FLOAT | BasicKind.DOUBLE):
            return "0.0D"
        case tree.Basic(kind=BasicKind.BOOLEAN):
            return "FALSE"
        case tree.Basic(kind=BasicKind.STRING) if strict:
            return "''"
    return TODO if strict and not isinstance(of, tree.Nullable) else "NULL"
