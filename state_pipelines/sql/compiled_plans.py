"""Compiled plans of Flink SQL (`COMPILE PLAN`): nodes and edges.

Source: `ExecNodeGraphJsonSerializer`, `ExecNodeBase`, `LogicalTypeJsonSerializer`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from state_pipelines.errors import FormatError, StateError, UnsupportedError, at
from state_pipelines.serializers.table_runtime import parse_sql_type
from state_pipelines.serializers.tree import LogicalType
from state_pipelines.storage import read_file, resolve

MOST_PLAN = 64 << 20
"""Maximum size in bytes of a file with a plan."""

_PREFIX = "stream-exec-"
_HINT = "COMPILE PLAN 'file:///…/plan.json' FOR INSERT INTO … writes one"
_MOST_DEPTH = 200
_NO_CONTENT: Mapping[str, Any] = {}


@dataclass(frozen=True)
class PlanNode:
    """A node of a compiled plan.

    Attributes:
        id: number of the node, unique in the plan.
        kind: its type without prefix and version, such as `group-aggregate`.
        version: version of the type.
        description: as EXPLAIN shows the node.
        inputs: ids of the nodes whose rows it reads, in order.
        row: names and types of the columns that it emits; None where the type is not known.
        content: the fields of the node as in the plan.
    """

    id: int
    kind: str
    version: int
    description: str
    inputs: tuple[int, ...]
    row: LogicalType | None
    content: Mapping[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that the node emits."""
        return () if self.row is None else self.row.names

    def indices(self, name: str) -> tuple[int, ...]:
        """Return a field of the node that is a list of column indices; empty if it is missing."""
        found = self.content.get(name)
        return tuple(each for each in found if isinstance(each, int)) if isinstance(found, list) else ()

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return a field of the node that is an object; empty if it is missing."""
        found = self.content.get(name)
        return found if isinstance(found, Mapping) else _NO_CONTENT

    def mappings(self, name: str) -> tuple[Mapping[str, Any], ...]:
        """Return a field of the node that is a list of objects; empty if it is missing."""
        return list_mappings(self.content.get(name))

    def find_ttl(self, index: int = 0) -> str | None:
        """Return the time to live of a state of the node, such as `1 d`; None if the plan does not have it.

        Args:
            index: index of the state among the states of the node; a join has two.
        """
        for each in self.mappings("state"):
            if each.get("index") == index:
                return str(each.get("ttl"))
        return None


@dataclass(frozen=True)
class Plan:
    """A compiled plan of a SQL job: its nodes, and the options of its script.

    Attributes:
        flink_version: release line that compiled it, such as `2.2`.
        nodes: in the order of the file, sources first.
        settings: options that its script sets; empty where the plan was read from a file.
    """

    flink_version: str
    nodes: tuple[PlanNode, ...]
    settings: Mapping[str, str] = field(compare=False, default_factory=dict)

    @cached_property
    def by_id(self) -> Mapping[int, PlanNode]:
        """Nodes by id."""
        return {each.id: each for each in self.nodes}

    def inputs_of(self, node: PlanNode) -> tuple[PlanNode, ...]:
        """The nodes whose rows a node reads, in order."""
        return tuple(self.by_id[each] for each in node.inputs)


def load_plan(path: str) -> Plan:
    """Read the compiled plan in a file, on any storage.

    Raises:
        FormatError: the file is not a compiled plan.
        UnsupportedError: it is the plan of a batch job.
        MissingFileError: there is no such file.
    """
    with at(file=path):
        try:
            content = read_file(resolve(path), most=MOST_PLAN).decode()
        except UnicodeDecodeError:
            raise FormatError("the file is not text, so it is no compiled plan", hint=_HINT) from None
        return read_plan(content)


def read_plan(text: str) -> Plan:
    """Read a compiled plan from its JSON text.

    Raises:
        FormatError: the text is not a compiled plan; the message names the node.
        UnsupportedError: it is the plan of a batch job.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the plan is not JSON: {error}", hint=_HINT) from None
    if not isinstance(content, dict) or not isinstance(content.get("nodes"), list) or "flinkVersion" not in content:
        raise FormatError("the JSON is no compiled plan: it has no nodes or no flinkVersion", hint=_HINT)
    inputs: dict[int, list[int]] = {}
    for edge in list_mappings(content.get("edges")):
        source, target = edge.get("source"), edge.get("target")
        if not isinstance(source, int) or not isinstance(target, int):
            raise FormatError("an edge of the plan has no source or no target")
        inputs.setdefault(target, []).append(source)
    nodes = tuple(_read_node(each, inputs) for each in list_mappings(content["nodes"]))
    _check_graph(nodes)
    return Plan(str(content["flinkVersion"]), nodes)


def _read_node(content: Mapping[str, Any], inputs: Mapping[int, list[int]]) -> PlanNode:
    number, kind = content.get("id"), content.get("type")
    if not isinstance(number, int) or isinstance(number, bool) or not isinstance(kind, str):
        raise FormatError("a node of the plan has no id or no type")
    if not kind.startswith(_PREFIX):
        if kind.startswith("batch-exec-"):
            raise UnsupportedError(
                f"node {number} of the plan is a {kind}: the plan is that of a batch job, which keeps no state",
                hint="Compile it with SET 'execution.runtime-mode' = 'streaming'",
            )
        raise FormatError(f"node {number} of the plan has the type {kind!r}, which is none of a streaming plan")
    name, underscore, version = kind.removeprefix(_PREFIX).rpartition("_")
    if not underscore or not version.isdigit():
        raise FormatError(f"the type {kind!r} of node {number} of the plan has no version")
    row = None
    if "outputType" in content:
        try:
            row = read_type(content["outputType"])
        except StateError as error:
            raise FormatError(f"the output type of node {number} ({name}) cannot be read: {error.what}") from None
    return PlanNode(
        id=number,
        kind=name,
        version=int(version),
        description=str(content.get("description", "")),
        inputs=tuple(inputs.get(number, ())),
        row=row,
        content=content,
    )


def _check_graph(nodes: Sequence[PlanNode]) -> None:
    """Require that ids are unique, and that every node comes after those that it reads.

    The order makes every walk over the inputs end.
    """
    seen: set[int] = set()
    known = {each.id for each in nodes}
    if len(known) < len(nodes):
        raise FormatError("several nodes of the plan have one id")
    for node in nodes:
        for each in node.inputs:
            if each not in known:
                raise FormatError(f"node {node.id} of the plan reads node {each}, which is not in the plan")
            if each not in seen:
                raise FormatError(f"node {node.id} of the plan comes before node {each}, whose rows it reads")
        seen.add(node.id)


@contextmanager
def reading_fields(node: PlanNode) -> Iterator[None]:
    """Convert errors from missing or mistyped fields of a node into an error that names the node.

    Raises:
        FormatError: the node lacks inputs or fields of its kind.
    """
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"node {node.id} ({node.kind}) of the plan lacks inputs or fields that its kind has: {error}",
            hint=_HINT,
        ) from error


def list_mappings(value: object) -> tuple[Mapping[str, Any], ...]:
    """Return the objects in a list; empty if the value is no list."""
    return tuple(each for each in value if isinstance(each, Mapping)) if isinstance(value, list) else ()


def read_type(value: object) -> LogicalType:
    """Read a SQL type from the JSON of a plan: a text, or an object for types that have no text.

    Raises:
        FormatError: the JSON is no type.
        UsageError: the text is no SQL type.
    """
    return _read_type(value, 0)


def _read_type(value: object, depth: int) -> LogicalType:
    if depth > _MOST_DEPTH:
        raise FormatError("a type of the plan is nested too deep")
    if isinstance(value, str):
        return parse_sql_type(value)
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        raise FormatError(f"{str(value)[:60]!r} is not a SQL type")
    root = str(value["type"])
    nullable = bool(value.get("nullable", True))

    def child(name: str) -> LogicalType:
        return _read_type(value.get(name), depth + 1)

    match root:
        case "ROW":
            members = list_mappings(value.get("fields"))
            return LogicalType(
                root=root,
                nullable=nullable,
                names=tuple(str(each.get("name")) for each in members),
                children=tuple(_read_type(each.get("fieldType"), depth + 1) for each in members),
            )
        case "STRUCTURED_TYPE" | "DISTINCT_TYPE":
            members = list_mappings(value.get("attributes"))
            children = tuple(_read_type(each.get("attributeType"), depth + 1) for each in members)
            return LogicalType(
                root=root,
                nullable=nullable,
                names=tuple(str(each.get("name")) for each in members),
                children=children or ((child("sourceType"),) if "sourceType" in value else ()),
                class_name=_text(value, "implementationClass", "className", "objectIdentifier"),
            )
        case "ARRAY" | "MULTISET":
            return LogicalType(root=root, nullable=nullable, children=(child("elementType"),))
        case "MAP":
            return LogicalType(root=root, nullable=nullable, children=(child("keyType"), child("valueType")))
        case "RAW":
            return LogicalType(root=root, nullable=nullable, class_name=_text(value, "class"))
    length, scale = value.get("length", value.get("precision")), value.get("scale")
    return LogicalType(
        root=root,
        nullable=nullable,
        length=length if isinstance(length, int) else None,
        scale=scale if isinstance(scale, int) else None,
        class_name=_text(value, "class"),
    )


def _text(value: Mapping[str, Any], *names: str) -> str | None:
    return next((str(value[name]) for name in names if value.get(name) is not None), None)
