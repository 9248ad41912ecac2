"""Structs of the serializers with fields: POJO, Row, Tuple, struct of PyFlink, RowData, Avro record."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from state_pipelines.binary.data_views import java_order
from state_pipelines.codecs.programs.program import variant_fields
from state_pipelines.codecs.serializer_layouts import derive_layout, find_subclasses
from state_pipelines.errors import MigrationError, UsageError
from state_pipelines.operations.migration.avro_schema import (
    AvroType,
    expand_schema,
    find_record,
    make_avro_type,
    render_schema,
    with_record,
)
from state_pipelines.operations.migration.python_values import adopt_python_type
from state_pipelines.operations.migration.steps import FieldType, SqlType
from state_pipelines.operations.migration.structs import (
    Columns,
    Node,
    PlanContext,
    Slot,
    SlotType,
    SqlColumn,
    Struct,
    known_sql_types,
    make_text,
    quote_name,
)
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import tuple_of
from state_pipelines.serializers.python_types import PythonType, PythonValue
from state_pipelines.serializers.sql_types import make_column, parse_sql_type
from state_pipelines.serializers.text import describe, describe_type
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Iterable


def open_struct(node: Node, base: str, context: PlanContext) -> Struct:
    """The slots of a struct.

    Args:
        node: its serializer.
        base: prefix of a column in SQL, such as `` `address`. ``; empty for the payload itself.
        context: see there.

    Raises:
        MigrationError: values of this family have no fields.
    """
    match node:
        case tree.Pojo():
            return _Pojo(node, base, context)
        case tree.Row() | tree.Tuple():
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
        else "`convert` takes values of any family",
    )


def _describe(node: Node) -> str:
    return describe(node) if isinstance(node, tree.Serializer) else "an Avro type without fields"


class _Wrapped(Struct):
    """A struct after a null flag."""

    def __init__(self, node: tree.Nullable, inner: Struct) -> None:
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


class _Pojo(Struct):
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
        """The POJO and its subclasses, in the order of layouts."""
        others = (*node.registered, *node.non_registered)
        return [(node.pojo_class, node), *((each.class_name, each.serializer) for each in others if each.serializer)]

    def _members(self, node: tree.Pojo) -> list[list[tuple[str, tree.PojoField]]]:
        """Per class: column and field. A subclass that is no POJO has one column for the whole of it, field ''."""
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
    """One SQL, or one per class where subclasses have it from different fields."""
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


class _Positional(Struct):
    """Row and Tuple."""

    named = False

    def __init__(self, node: tree.Row | tree.Tuple, base: str) -> None:
        self._node = node
        self.slots = _positional(node.fields, base)
        if isinstance(node, tree.Row) and node.supports_row_kind:
            self.extra = (("row_kind", f"{base}`row_kind`"),)

    @override
    def rebuild(self, slots: Iterable[Slot]) -> tuple[Node, Columns]:
        slots = tuple(slots)
        fields = tuple(slot.type for slot in slots if isinstance(slot.type, tree.Serializer))
        columns = (*((f"f{index}", slot.sql) for index, slot in enumerate(slots)), *self.extra)
        node = self._node
        if isinstance(node, tree.Row):
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


class PythonStruct(Struct):
    """ROW and TUPLE of PyFlink."""

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


class _RowData(Struct):
    """Rows of the table runtime; their fields have the names that the snapshot holds, else `f0`, `f1` and so on."""

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
                f"{text} is no type of a column: {error.what}", hint=f"The snapshot holds {known}"
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


class _AvroRecord(Struct):
    """A record inside an Avro schema."""

    def __init__(self, node: AvroType, base: str) -> None:
        self._node = node
        record = find_record(node)
        if record is None:
            raise MigrationError("this part of the Avro schema has no fields")
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
            # Defaults and docs of a field stay with it while its type does.
            old: dict[str, Any] = next((each for name, each in olds.items() if slot.member == name), {})
            kept = old if old.get("type") == slot.type.node else {}
            fields.append({**kept, "name": slot.name, "type": slot.type.node})
        return with_record(self._node, {**self._record, "fields": fields}), tuple(
            (each.name, each.sql) for each in slots
        )


class _Avro(Struct):
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
