"""Avro schemas that steps can change: every named type written out where it is used."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from state_pipelines.errors import MigrationError
from state_pipelines.operations.migration.steps import FieldType, SqlType
from state_pipelines.serializers import tree
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import BasicKind

_NAMED = ("record", "error", "enum", "fixed")
_PRIMITIVES = {
    BasicKind.BOOLEAN: "boolean",
    BasicKind.INT: "int",
    BasicKind.LONG: "long",
    BasicKind.FLOAT: "float",
    BasicKind.DOUBLE: "double",
    BasicKind.STRING: "string",
    BasicKind.BYTE_PRIMITIVE_ARRAY: "bytes",
}


@dataclass(frozen=True, eq=True)
class AvroType:
    """A node of a schema in which nothing is a reference."""

    node: Any

    def __hash__(self) -> int:
        """By content."""
        return hash(json.dumps(self.node, sort_keys=True))


def expand_schema(schema_json: str) -> Any:
    """The schema with every reference to a named type replaced by the type, under its full name.

    Raises:
        MigrationError: a type contains itself.
    """
    return _expand(json.loads(schema_json), {}, "", ())


def _expand(node: Any, named: dict[str, Any], namespace: str, above: tuple[str, ...]) -> Any:
    match node:
        case str():
            full = node if "." in node or not namespace else f"{namespace}.{node}"
            for name in (full, node):
                if name in above:
                    raise MigrationError(f"the Avro type {name} contains itself, which steps do not reach")
                if name in named:
                    return named[name]
            return node
        case list():
            return [_expand(each, named, namespace, above) for each in node]
        case {"type": kind} if kind in _NAMED:
            return _expand_named(node, named, namespace, above)
        case {"type": "array", "items": items}:
            return {**node, "items": _expand(items, named, namespace, above)}
        case {"type": "map", "values": values}:
            return {**node, "values": _expand(values, named, namespace, above)}
        case {"type": dict() | list() as inner}:
            return _expand(inner, named, namespace, above)
        case _:
            return node


def _expand_named(node: dict[str, Any], named: dict[str, Any], namespace: str, above: tuple[str, ...]) -> Any:
    name = str(node["name"])
    full = name if "." in name else ".".join(filter(None, (node.get("namespace", namespace), name)))
    space = full.rpartition(".")[0]
    whole = {key: value for key, value in node.items() if key != "namespace"} | {"name": full}
    if "fields" in node:
        inside = (*above, full)
        whole["fields"] = [{**each, "type": _expand(each["type"], named, space, inside)} for each in node["fields"]]
    named[full] = whole
    return whole


def render_schema(node: Any) -> str:
    """Collapse a schema, the inverse of `expand_schema`: a named type is written out at its first use only.

    Raises:
        MigrationError: two types of one name differ.
    """
    return _print(_render(node, {}))


def compact_schema(schema_json: str) -> str:
    """The schema in the form in which Flink stores it: without blanks (`Schema.toString`)."""
    return _print(json.loads(schema_json))


def _print(node: Any) -> str:
    return json.dumps(node, separators=(",", ":"), ensure_ascii=False)


def _render(node: Any, done: dict[str, Any]) -> Any:
    match node:
        case list():
            return [_render(each, done) for each in node]
        case {"type": kind, "name": name} if kind in _NAMED:
            if name in done:
                if done[name] != node:
                    raise MigrationError(
                        f"the Avro type {name} is used several times and would change in one of them only",
                        hint="Do the same steps on the other uses, or give the type another name",
                    )
                return name
            done[name] = node
            if "fields" not in node:
                return node
            return {**node, "fields": [{**each, "type": _render(each["type"], done)} for each in node["fields"]]}
        case {"type": "array", "items": items}:
            return {**node, "items": _render(items, done)}
        case {"type": "map", "values": values}:
            return {**node, "values": _render(values, done)}
        case _:
            return node


def find_record(of: AvroType) -> dict[str, Any] | None:
    """The record that a node is, or may be beside null."""
    node = of.node
    if isinstance(node, list):
        rest = [each for each in node if each != "null"]
        node = rest[0] if len(rest) == 1 else None
    return node if isinstance(node, dict) and node.get("type") in ("record", "error") else None


def with_record(of: AvroType, record: dict[str, Any]) -> AvroType:
    """Mirror of `find_record`."""
    if isinstance(of.node, list):
        return AvroType([each if each == "null" else record for each in of.node])
    return AvroType(record)


def make_avro_type(of: FieldType, *, nullable: bool) -> AvroType:
    """The Avro type of a serializer.

    Raises:
        MigrationError: Avro has none.
    """
    if isinstance(of, SqlType):
        raise MigrationError(f"{of.text} is a SQL type, which only fields of RowData have")
    node = _make_node(of)
    return AvroType(["null", node] if nullable else node)


def _make_node(of: tree.Serializer) -> Any:
    match of:
        case tree.Basic(kind=kind) if kind in _PRIMITIVES:
            return _PRIMITIVES[kind]
        case tree.Nullable(inner=inner):
            return ["null", _make_node(inner)]
        case tree.ListOf(element=element):
            return {"type": "array", "items": _make_node(element)}
        case tree.MapOf(key=tree.Basic(kind=BasicKind.STRING), value=value):
            return {"type": "map", "values": _make_node(value)}
        case tree.Enum(enum_class=name, constants=constants):
            return {"type": "enum", "name": name.replace("$", "_"), "symbols": list(constants)}
        case tree.Pojo(pojo_class=name, fields=fields):
            members = [{"name": each.name, "type": _make_node(each.serializer)} for each in fields if each.serializer]
            return {"type": "record", "name": name.replace("$", "_"), "fields": members}
        case tree.Avro(schema_json=schema):
            return expand_schema(schema)
    raise MigrationError(f"{describe(of)} is not a type of Avro")
