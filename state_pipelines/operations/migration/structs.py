"""Structs of every family as slots that steps on fields can change: POJO, Row, Tuple, PyFlink, RowData, Avro record.

A slot is a field together with the SQL that gives its value. A family knows how its slots are named, which types they
take, and how a serializer is made of them again. In Avro schemas every named type is written out where it is used, so
that a step changes one use.

The signature of a shape is equal for shapes with equal data. Flink matches the fields of a POJO by name, not by
declaring class, and those of SQL rows by position; it lists the subclasses that it has met so far, and takes over the
registrations of Kryo. Versions of snapshot classes and notes in Avro schemas do not change the data either. A signature
leaves all of these out.
Source: `PojoSerializerSnapshotData`, `KryoSerializerSnapshot`, Avro's parsing canonical form.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from state_pipelines.binary.data_views import java_order
from state_pipelines.codecs.programs import variant_fields
from state_pipelines.codecs.serializer_layouts import LayoutContext, contains_opaque, derive_layout, find_subclasses
from state_pipelines.errors import MigrationError, UsageError
from state_pipelines.operations.migration.shapes import adopt_python_type
from state_pipelines.operations.migration.step_types import FieldType, SqlType
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import tuple_of
from state_pipelines.serializers.python_types import PythonType, PythonValue
from state_pipelines.serializers.registry import is_custom
from state_pipelines.serializers.table_runtime import make_column, parse_sql_type
from state_pipelines.serializers.text import describe, describe_type
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from state_pipelines.connectors.registry import ConnectorStateKind
    from state_pipelines.operations.migration.shapes import StateShape

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
    """A node of an Avro schema in which `expand_schema` has replaced references by the named types."""

    node: Any

    def __hash__(self) -> int:
        """Return a hash of the content."""
        return hash(json.dumps(self.node, sort_keys=True))


def expand_schema(schema_json: str) -> Any:
    """Parse an Avro schema, and replace each reference to a named type by the type itself, under its full name.

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
                    raise MigrationError(f"steps cannot change the Avro type {name}, because it contains itself")
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
    """Return the JSON of an Avro schema as Flink stores it: without blanks (`Schema.toString`)."""
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
    """Return the record of a node that is a record, or a union of one with null; None for other nodes."""
    node = of.node
    if isinstance(node, list):
        rest = [each for each in node if each != "null"]
        node = rest[0] if len(rest) == 1 else None
    return node if isinstance(node, dict) and node.get("type") in ("record", "error") else None


def with_record(of: AvroType, record: dict[str, Any]) -> AvroType:
    """Return the node with another record in place of the one that `find_record` finds."""
    if isinstance(of.node, list):
        return AvroType([each if each == "null" else record for each in of.node])
    return AvroType(record)


def make_avro_type(of: FieldType, *, nullable: bool) -> AvroType:
    """Make the Avro type for values of a serializer.

    Raises:
        MigrationError: Avro has no such type.
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


Columns = tuple[tuple[str, str], ...]
"""Name and SQL of each column."""


@dataclass(frozen=True)
class SqlColumn:
    """The type of a field of a `RowData`: the SQL type, its Java-serialized `LogicalType`, its serializer."""

    type: tree.LogicalType
    java: bytes
    serializer: tree.Serializer


SlotType = tree.Serializer | AvroType | SqlColumn
Node = tree.Serializer | AvroType


@dataclass(frozen=True)
class KnownConnector:
    """The connector that wrote a list state.

    Attributes:
        name: such as `kafka`.
        kind: kind of the state.
    """

    name: str
    kind: ConnectorStateKind


@dataclass(frozen=True)
class PlanContext:
    """Planning context: what a plan depends on besides the shapes of the states.

    Attributes:
        layouts: context for layouts of data.
        sql_types: by readable text, the SQL types in the snapshot, whose Java-serialized types can be reused.
        kryos: Kryo serializers in the snapshot.
        declared: serializers in the snapshot whose layouts the user declares.
        connectors: by name of each list state in which steps set columns of a connector, the connector, or the reason
            why none is known.
        permits_null: whether fields that no class declares may be null, because values are carried over, or are
            compared with known ones afterwards.
    """

    layouts: LayoutContext = field(default_factory=LayoutContext)
    sql_types: tuple[tuple[str, SqlColumn], ...] = ()
    kryos: tuple[tree.Kryo, ...] = ()
    declared: tuple[tree.Declared, ...] = ()
    connectors: tuple[tuple[str, KnownConnector | str], ...] = ()
    permits_null: bool = False


@dataclass(frozen=True)
class Slot:
    """A field of a struct, while steps are planned.

    Attributes:
        name: name of its column.
        type: type of its values.
        sql: SQL that computes its values.
        member: name of the field in its class, which differs from the column for some subclasses of POJOs.
        owners: in a POJO, (index, declaring class) of each class that has the field; 0 is the POJO itself, other
            numbers are its subclasses.
    """

    name: str
    type: SlotType
    sql: str
    member: str
    owners: tuple[tuple[int, str | None], ...] = ((0, None),)


class PayloadStruct(ABC):
    """Struct whose fields steps can change; there is a subclass for each kind of serializer.

    Attributes:
        slots: the fields.
        extra: columns that are no fields: the class of a POJO, the row kind of a row.
        class_names: for a POJO, the names of the class and its subclasses; else empty.
        ordered: whether the order of the fields is a property of the serializer.
        named: whether fields have names; otherwise they are called by position, `f0`, `f1` and so on.
    """

    slots: tuple[Slot, ...]
    extra: Columns = ()
    class_names: tuple[str, ...] = ()
    ordered = True
    named = True

    def find(self, name: str) -> Slot:
        """Return the field of a column.

        Raises:
            MigrationError: there is no such field.
        """
        for slot in self.slots:
            if slot.name == name:
                return slot
        names = ", ".join(sorted(slot.name for slot in self.slots))
        raise MigrationError(f"there is no field {name}", hint=f"The fields are {names}" if names else "")

    def add(self, name: str, of: SlotType, sql: str) -> Slot:
        """Make a new field, which `rebuild` can add; refuse a name that is not possible in this struct."""
        if not self.named and name != f"f{len(self.slots)}":
            raise MigrationError(
                f"a new field is named by its position, f{len(self.slots)}, not {name}",
                hint="`reorder` moves it afterwards",
            )
        return Slot(name, of, sql, name)

    def adopt(self, of: FieldType, *, nullable: bool) -> SlotType:
        """Convert a type of a migration file to the type of a field of this struct.

        Raises:
            MigrationError: fields of this struct cannot have the type.
        """
        del nullable
        if isinstance(of, SqlType):
            raise MigrationError(f"{of.text} is a SQL type, which only fields of RowData have")
        return of

    @abstractmethod
    def rebuild(self, slots: Iterable[Slot]) -> tuple[Node, Columns]:
        """Return the serializer of the struct with other fields, and the SQL of all its columns."""


def quote_name(name: str) -> str:
    """Quote a column name for Spark SQL."""
    return f"`{name.replace('`', '``')}`"


_SIMPLE = re.compile(r"\w+(?:\.\w+)*|`(?:[^`]|``)+`|-?\d+(?:\.\d+)?\w?|'[^'\\]*'")


def enclose(expression: str) -> str:
    """Put an expression of a user in brackets, so that it can be used inside of larger SQL.

    After a `--` comment at its end, a line break keeps the comment from including the closing bracket.
    `spark.analysis.require_expressions` makes sure that the text is a single expression.
    """
    if _SIMPLE.fullmatch(expression):
        return expression
    return f"({expression}\n)" if "--" in expression else f"({expression})"


def find_bare(sql: str) -> str | None:
    """Return the name if the SQL is only a name as `quote_name` writes it, else None."""
    match = re.fullmatch(r"`((?:[^`]|``)+)`", sql)
    return None if match is None else match[1].replace("``", "`")


RAW = "__raw"
"""Prefix of raw columns, in which values that cannot be decoded are bytes; alone, the raw column of the payload."""


def name_raw(name: str) -> str:
    """Return the name of the raw column of a field, in which values that cannot be decoded are bytes."""
    return f"{RAW}_{name}"


def find_root(slot: Slot, context: PlanContext) -> str:
    """Return SQL of a struct or collection in a field.

    It is the raw column if the field has values that cannot be decoded, and no step has changed it.
    """
    bare = find_bare(slot.sql)
    if bare is None or not isinstance(slot.type, tree.Serializer) or not contains_opaque(slot.type, context.layouts):
        return slot.sql
    return quote_name(name_raw(bare))


def make_text(text: str) -> str:
    """Make a text literal of Spark SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def make_struct(columns: Iterable[tuple[str, str]]) -> str:
    """Make SQL of a struct from (name, SQL) of its fields."""
    return f"named_struct({', '.join(f'{make_text(name)}, {sql}' for name, sql in columns)})"


def known_sql_types(serializers: Iterable[tree.Serializer]) -> dict[str, SqlColumn]:
    """Collect the types of the fields of `RowData` serializers, by readable text."""
    found: dict[str, SqlColumn] = {}
    for serializer in serializers:
        if isinstance(serializer, tree.RowData):
            for each in map(SqlColumn, serializer.types, serializer.java_types, serializer.fields):
                found.setdefault(describe_type(each.type), each)
    return found


def open_struct(node: Node, base: str, context: PlanContext) -> PayloadStruct:
    """Return the struct that a serializer or Avro type describes, with fields that steps can change.

    Args:
        node: serializer of the struct.
        base: prefix of its columns in SQL, such as `` `address`. ``; empty for the whole value.
        context: planning context.

    Raises:
        MigrationError: values of this serializer have no fields.
    """
    match node:
        case tree.Pojo():
            return _Pojo(node, base, context)
        case tree.PositionalRow() | tree.Tuple():
            return _Positional(node, base)
        case tree.RowData():
            return _RowData(node, base, context)
        case PythonValue(type=PythonType(word="ROW" | "TUPLE")) | PythonType(word="ROW" | "TUPLE"):
            return PythonStruct(node, base)
        case tree.Avro():
            return _Avro(node, base)
        case AvroType():
            return _AvroRecord(node, base)
        case tree.Nullable(inner=inner):
            return _Wrapped(node, open_struct(inner, base, context))
    is_bytes = isinstance(node, tree.Basic) and node.kind == BasicKind.BYTE_PRIMITIVE_ARRAY
    raise MigrationError(
        f"steps on fields need a POJO, Row, Tuple, Avro record or RowData, this is {_describe(node)}",
        hint="State of a Python function has fields once its type is declared (--python-types, option pythonTypes)"
        if is_bytes
        else "`convert` takes values of any serializer",
    )


def _describe(node: Node) -> str:
    return describe(node) if isinstance(node, tree.Serializer) else "an Avro type without fields"


class _Wrapped(PayloadStruct):
    """A struct that may be null: a null flag is written before it."""

    def __init__(self, node: tree.Nullable, inner: PayloadStruct) -> None:
        self._node, self._inner = node, inner
        self.slots, self.extra, self.class_names = inner.slots, inner.extra, inner.class_names
        self.ordered, self.named = inner.ordered, inner.named

    @override
    def add(self, name: str, of: SlotType, sql: str) -> Slot:
        return self._inner.add(name, of, sql)

    @override
    def adopt(self, of: FieldType, *, nullable: bool) -> SlotType:
        return self._inner.adopt(of, nullable=nullable)

    @override
    def rebuild(self, slots: Iterable[Slot]) -> tuple[Node, Columns]:
        inner, columns = self._inner.rebuild(slots)
        assert isinstance(inner, tree.Serializer)
        return replace(self._node, inner=inner), columns


class _Pojo(PayloadStruct):
    """A POJO: its fields, and those of the subclasses that its serializer or the rest of the snapshot lists."""

    ordered = False

    def __init__(self, node: tree.Pojo, base: str, context: PlanContext) -> None:
        self._context = context.layouts
        self._node = replace(node, non_registered=find_subclasses(node, context.layouts))
        self.class_names = tuple(name for name, _ in self._classes(self._node))
        if self.class_names[1:]:
            self.extra = (("class", f"{base}`class`"),)
        found: dict[str, Slot] = {}
        for index, members in enumerate(self._members(self._node)):
            for name, member in members:
                owner = (index, member.declaring_class)
                if name in found:
                    found[name] = replace(found[name], owners=(*found[name].owners, owner))
                    continue
                assert member.serializer is not None
                sql = f"{base}{quote_name(name)}"
                found[name] = Slot(name, member.serializer, sql, member.name, (owner,))
        self.slots = tuple(found.values())

    @staticmethod
    def _classes(node: tree.Pojo) -> list[tuple[str, tree.Serializer]]:
        """Return (name, serializer) of the POJO and its subclasses, in the order of its layout."""
        others = (*node.registered, *node.non_registered)
        return [(node.pojo_class, node), *((each.class_name, each.serializer) for each in others if each.serializer)]

    def _members(self, node: tree.Pojo) -> list[list[tuple[str, tree.PojoField]]]:
        """Return (column, field) of all fields of each class.

        A subclass that is no POJO has a single column for the whole object, with a field of the name ''.
        """
        if len(classes := self._classes(node)) == 1:
            return [[(each.name, self._resolved(node, each)) for each in node.fields]]
        layout = derive_layout(node, self._context)
        result = []
        for (_, serializer), named in zip(classes, variant_fields(layout), strict=True):  # type: ignore[arg-type]
            fields = (tree.PojoField(name="", declaring_class=None, serializer=serializer),)
            if isinstance(serializer, tree.Pojo):
                fields = serializer.fields  # type: ignore[assignment]
            result.append([(name, each) for (name, _), each in zip(named, fields, strict=True)])
        return result

    @staticmethod
    def _resolved(node: tree.Pojo, member: tree.PojoField) -> tree.PojoField:
        if member.serializer is None:
            raise MigrationError(
                f"the type of field {member.name} of {node.pojo_class} was lost before the snapshot was written",
                hint="Restore the snapshot with the class on the class path and take a new one",
            )
        return member

    @override
    def add(self, name: str, of: SlotType, sql: str) -> Slot:
        pojos = [index for index, (_, each) in enumerate(self._classes(self._node)) if isinstance(each, tree.Pojo)]
        return Slot(name, of, sql, name, tuple((index, self._node.pojo_class) for index in pojos))

    @override
    def rebuild(self, slots: Iterable[Slot]) -> tuple[Node, Columns]:
        slots = tuple(slots)
        changed: dict[str, tree.Serializer] = {}
        for index, (name, serializer) in enumerate(self._classes(self._node)):
            if isinstance(serializer, tree.Pojo):
                changed[name] = replace(serializer, fields=_sort(_fields_of(slots, index, name)))
        root = changed.pop(self._node.pojo_class)
        assert isinstance(root, tree.Pojo)
        root = replace(
            root,
            registered=tuple(_with_serializer(each, changed) for each in self._node.registered),
            non_registered=tuple(_with_serializer(each, changed) for each in self._node.non_registered),
        )
        return root, self._columns(root, slots)

    def _columns(self, root: tree.Pojo, slots: tuple[Slot, ...]) -> Columns:
        classes = [name for name, _ in self._classes(root)]
        found: dict[str, dict[str, list[str]]] = {}
        for index, members in enumerate(self._members(root)):
            for name, member in members:
                sql = next(
                    slot.sql
                    for slot in slots
                    if slot.member == member.name and index in (owner for owner, _ in slot.owners)
                )
                found.setdefault(name, {}).setdefault(sql, []).append(classes[index])
        columns = [(name, _choose(each)) for name, each in found.items()]
        return (*columns, *self.extra)


def _choose(candidates: dict[str, list[str]]) -> str:
    """Combine the SQL expressions of a column to one: by class, if subclasses compute it from different fields.

    `candidates` has the names of the classes by expression.
    """
    if len(candidates) == 1:
        return next(iter(candidates))
    cases = (
        f"WHEN `class` IN ({', '.join(make_text(name) for name in names)}) THEN {sql}"
        for sql, names in candidates.items()
    )
    return f"CASE {' '.join(cases)} END"


def _fields_of(slots: tuple[Slot, ...], index: int, class_name: str) -> list[tree.PojoField]:
    found: dict[str, tree.PojoField] = {}
    for slot in slots:
        for owner, declaring in slot.owners:
            if owner != index:
                continue
            if slot.member in found:
                raise MigrationError(
                    f"{class_name} would have two fields {slot.member}", hint="Drop or rename the other one first"
                )
            assert isinstance(slot.type, tree.Serializer)
            found[slot.member] = tree.PojoField(name=slot.member, declaring_class=declaring, serializer=slot.type)
    return list(found.values())


def _with_serializer(subclass: tree.PojoSubclass, changed: dict[str, tree.Serializer]) -> tree.PojoSubclass:
    return replace(subclass, serializer=changed.get(subclass.class_name, subclass.serializer))


def _sort(fields: list[tree.PojoField]) -> tuple[tree.PojoField, ...]:
    return tuple(sorted(fields, key=lambda each: java_order(each.name)))


class _Positional(PayloadStruct):
    """A Row or Tuple, whose fields have no names."""

    named = False

    def __init__(self, node: tree.PositionalRow | tree.Tuple, base: str) -> None:
        self._node = node
        self.slots = _positional(node.fields, base)
        if isinstance(node, tree.PositionalRow) and node.supports_row_kind:
            self.extra = (("row_kind", f"{base}`row_kind`"),)

    @override
    def rebuild(self, slots: Iterable[Slot]) -> tuple[Node, Columns]:
        slots = tuple(slots)
        fields = tuple(slot.type for slot in slots if isinstance(slot.type, tree.Serializer))
        columns = (*((f"f{index}", slot.sql) for index, slot in enumerate(slots)), *self.extra)
        node = self._node
        if isinstance(node, tree.PositionalRow):
            return replace(node, fields=fields), columns
        if len(fields) == len(node.fields):
            return replace(node, fields=fields), columns
        plain = f"org.apache.flink.api.java.tuple.Tuple{len(node.fields)}"
        if node.tuple_class != plain or not fields:
            raise MigrationError(
                f"{node.tuple_class} always has {len(node.fields)} fields", hint="`convert` gives it another class"
            )
        tuple_class = tuple_of(*fields).tuple_class
        return replace(node, tuple_class=tuple_class, fields=fields), columns


class PythonStruct(PayloadStruct):
    """A ROW or TUPLE of PyFlink."""

    def __init__(self, node: PythonValue | PythonType, base: str) -> None:
        self._node = node
        self._type = node.type if isinstance(node, PythonValue) else node
        self.named = bool(self._type.names)
        fields = zip(self._type.field_names, self._type.children, strict=True)
        self.slots = tuple(Slot(name, of, f"{base}{quote_name(name)}", name) for name, of in fields)
        if self._type.word == "ROW":
            self.extra = (("row_kind", f"{base}`row_kind`"),)

    @override
    def adopt(self, of: FieldType, *, nullable: bool) -> SlotType:
        return adopt_python_type(of)

    @override
    def rebuild(self, slots: Iterable[Slot]) -> tuple[Node, Columns]:
        slots = tuple(slots)
        children = tuple(slot.type for slot in slots if isinstance(slot.type, PythonType))
        names = tuple(slot.name for slot in slots) if self.named else ()
        changed = replace(self._type, children=children, names=names)
        columns = (*zip(changed.field_names, (slot.sql for slot in slots), strict=True), *self.extra)
        return (replace(self._node, type=changed) if isinstance(self._node, PythonValue) else changed), columns


def _positional(types: Iterable[SlotType], base: str) -> tuple[Slot, ...]:
    return tuple(Slot(f"f{n}", of, f"{base}`f{n}`", f"f{n}") for n, of in enumerate(types))


class _RowData(PayloadStruct):
    """Row of the table runtime; its fields have the names in the snapshot, or `f0`, `f1` and so on."""

    def __init__(self, node: tree.RowData, base: str, context: PlanContext) -> None:
        self._node = node
        self._known = dict(context.sql_types) | known_sql_types([node])
        self.named = node.columns == node.names
        types = map(SqlColumn, node.types, node.java_types, node.fields)
        self.slots = tuple(
            Slot(name, of, f"{base}{quote_name(name)}", name) for name, of in zip(node.columns, types, strict=True)
        )
        self.extra = (("row_kind", f"{base}`row_kind`"),)

    @override
    def adopt(self, of: FieldType, *, nullable: bool) -> SlotType:
        text = of.text if isinstance(of, SqlType) else describe(of)
        if text in self._known:
            return self._known[text]
        try:
            kind = parse_sql_type(text)
            return self._known.get(describe_type(kind)) or SqlColumn(kind, *make_column(kind))
        except UsageError as error:
            known = ", ".join(sorted(self._known)) or "none"
            raise MigrationError(
                f"{text} is no type of a column: {error.what}", hint=f"The types in the snapshot are {known}"
            ) from None

    @override
    def rebuild(self, slots: Iterable[Slot]) -> tuple[Node, Columns]:
        slots = tuple(slots)
        types = [slot.type for slot in slots if isinstance(slot.type, SqlColumn)]
        node = replace(
            self._node,
            types=tuple(each.type for each in types),
            fields=tuple(each.serializer for each in types),
            java_types=tuple(each.java for each in types),
            names=tuple(slot.name for slot in slots) if self.named else None,
        )
        columns = zip(node.columns, (slot.sql for slot in slots), strict=True)
        return node, (*columns, *self.extra)


class _AvroRecord(PayloadStruct):
    """A record inside an Avro schema."""

    def __init__(self, node: AvroType, base: str) -> None:
        self._node = node
        record = find_record(node)
        if record is None:
            raise MigrationError("the Avro type at this path is no record, so it has no fields")
        self._record = record
        self.slots = tuple(
            Slot(name, AvroType(of), f"{base}{quote_name(name)}", name)
            for name, of in ((str(each["name"]), each["type"]) for each in record["fields"])
        )

    @override
    def adopt(self, of: FieldType, *, nullable: bool) -> SlotType:
        return make_avro_type(of, nullable=nullable)

    @override
    def rebuild(self, slots: Iterable[Slot]) -> tuple[Node, Columns]:
        slots = tuple(slots)
        olds = {str(each["name"]): each for each in self._record["fields"]}
        fields = []
        for slot in slots:
            assert isinstance(slot.type, AvroType)
            # A field keeps its default and doc as long as its type stays the same.
            old: dict[str, Any] = next((each for name, each in olds.items() if slot.member == name), {})
            kept = old if old.get("type") == slot.type.node else {}
            fields.append({**kept, "name": slot.name, "type": slot.type.node})
        return with_record(self._node, {**self._record, "fields": fields}), tuple(
            (each.name, each.sql) for each in slots
        )


class _Avro(PayloadStruct):
    """The record that an Avro serializer writes."""

    def __init__(self, node: tree.Avro, base: str) -> None:
        self._node = node
        self._inner = _AvroRecord(AvroType(expand_schema(node.schema_json)), base)
        self.slots = self._inner.slots

    @override
    def adopt(self, of: FieldType, *, nullable: bool) -> SlotType:
        return self._inner.adopt(of, nullable=nullable)

    @override
    def rebuild(self, slots: Iterable[Slot]) -> tuple[Node, Columns]:
        inner, columns = self._inner.rebuild(slots)
        assert isinstance(inner, AvroType)
        return replace(self._node, schema_json=render_schema(inner.node)), columns


_NOTES = ("doc", "default", "order", "aliases", "namespace")
_ALIKE: Mapping[str, object] = {
    "snapshot_version": 0,
    "outer_version": 0,
    "serializer_class": "",
    "declaring_class": None,
    "java_types": (),
    "labels": None,
}


@dataclass(frozen=True)
class Signature:
    """The shape of a state without properties that have no effect on its data: equal signatures mean the same format.

    Attributes:
        kind: kind of the state, see `StateShape.kind`.
        key: serializer of the keys; None for operator state.
        namespace: serializer of the namespace; None for operator state.
        map_key: serializer of the user keys of a map, or of the keys of broadcast state.
        payload: serializer of the value, element or map value, without TTL.
        ttl: whether values carry the time of their last access.
    """

    kind: str
    key: tree.Serializer | None
    namespace: tree.Serializer | None
    map_key: tree.Serializer | None
    payload: tree.Serializer
    ttl: bool


def sign_shape(shape: StateShape) -> Signature:
    """Return the signature of a shape: equal signatures mean the same format of the data."""
    return Signature(
        kind=shape.kind,
        key=_strip_one(shape.key),
        namespace=strip_serializer(shape.namespace) if shape.is_keyed else None,
        map_key=_strip_one(shape.map_key),
        payload=strip_serializer(shape.payload),
        ttl=shape.ttl,
    )


def sign_shapes(shapes: Iterable[StateShape]) -> dict[str, Signature]:
    """Return the signatures of shapes, by name of the state."""
    return {shape.name: sign_shape(shape) for shape in shapes}


def _strip_one(serializer: tree.Serializer | None) -> tree.Serializer | None:
    return None if serializer is None else strip_serializer(serializer)


def strip_serializer(serializer: tree.Serializer) -> tree.Serializer:
    """Return a serializer without properties that have no effect on the data, such as versions of its snapshot."""
    stripped = _strip(serializer)
    assert isinstance(stripped, tree.Serializer)
    return stripped


def _strip(member: Any) -> Any:
    if isinstance(member, tuple):
        return tuple(map(_strip, member))
    if isinstance(member, tree.TtlAware):
        return _strip(member.inner)
    if not is_dataclass(member) or isinstance(member, type):
        return member
    # Keep the snapshot version of a user's serializer in the result: another version may mean another data format.
    alike = {} if isinstance(member, tree.Serializer) and is_custom(member) else _ALIKE
    changes = {each.name: _strip(getattr(member, each.name)) for each in fields(member) if each.name not in alike}
    changes |= {each.name: alike[each.name] for each in fields(member) if each.name in alike}
    if isinstance(member, tree.Kryo):
        changes |= {"registrations": (), "default_serializers": (), "default_serializer_classes": ()}
    if isinstance(member, tree.RowData):
        changes["names"] = None
    if isinstance(member, tree.Pojo):
        changes["non_registered"] = ()
    if isinstance(member, tree.Avro):
        changes["schema_json"] = json.dumps(strip_schema(expand_schema(member.schema_json)), sort_keys=True)
    return replace(member, **changes)


def strip_schema(node: Any) -> Any:
    """Return an expanded Avro schema without docs, defaults, aliases and sort orders, which do not affect the data."""
    if isinstance(node, list):
        return [strip_schema(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {name: strip_schema(each) for name, each in node.items() if name not in _NOTES}
