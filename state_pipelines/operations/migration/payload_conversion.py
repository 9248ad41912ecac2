"""Conversion of a payload to another as a whole: by field names, under other class names, collections out of Kryo."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from state_pipelines.codecs.columns import column_type
from state_pipelines.codecs.serializer_layouts import LayoutContext, contains_opaque, derive_layout
from state_pipelines.codecs.value_conversion import find_payload_conversion
from state_pipelines.errors import MigrationError, UnsupportedError
from state_pipelines.operations.migration.structs import (
    RAW,
    Columns,
    PlanContext,
    Slot,
    expand_schema,
    make_struct,
    make_text,
    open_struct,
    quote_name,
    render_schema,
)
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import nullable
from state_pipelines.serializers.compatibility import Outcome, resolve_nested
from state_pipelines.serializers.registry import is_custom
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

EXTRA = ("class", "row_kind")
"""Names of columns of a struct that are no fields: the class of a POJO, the row kind of a row."""


def payload_type(payload: tree.Serializer, context: PlanContext) -> pa.DataType:
    """Return the Arrow type of the value, list element or map value that `payload` serializes.

    Raises:
        UnsupportedError: its values have no Arrow type.
    """
    return column_type(derive_layout(payload, context.layouts))


def list_columns(payload: tree.Serializer, context: PlanContext) -> tuple[str, ...]:
    """List the columns of the value, list element or map value that `payload` serializes; none if it is no struct."""
    kind = payload_type(payload, context)
    return tuple(each.name for each in kind) if pa.types.is_struct(kind) else ()


def convert_by_name(old: tree.Serializer, new: tree.Serializer, context: PlanContext) -> str:
    """Make SQL that computes a new value from the fields of the old one by their names.

    Raises:
        MigrationError: the new value has fields that the old one lacks, or only one of the two has fields.
    """
    return _convert(payload_type(old, context), payload_type(new, context), "value", "", 0)


def convert_fields(old: tree.Serializer, new: tree.Serializer, context: PlanContext) -> Columns | None:
    """Make SQL for each column of a new value from the old column of the same name; None unless both have fields.

    Raises:
        MigrationError: as `convert_by_name`.
    """
    before, after = payload_type(old, context), payload_type(new, context)
    if not all(pa.types.is_struct(each) and each.num_fields for each in (before, after)):
        return None
    return _convert_fields(before, after, "", "", 0)


def _convert_fields(old: pa.StructType, new: pa.StructType, prefix: str, path: str, depth: int) -> Columns:
    known = {each.name: each.type for each in old}
    columns: list[tuple[str, str]] = []
    for each in new:
        if each.name in known:
            inner = f"{prefix}{quote_name(each.name)}"
            columns.append((each.name, _convert(known[each.name], each.type, inner, f"{path}{each.name}.", depth)))
        elif each.name == "row_kind":
            columns.append((each.name, "'+I'"))
        else:
            raise MigrationError(
                f"the new type has a field {path}{each.name}, which the old one lacks",
                hint="Give an expression for the whole value, or `add` the field before",
            )
    return tuple(columns)


def _convert(old: pa.DataType, new: pa.DataType, sql: str, path: str, depth: int) -> str:
    if old == new:
        return sql
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return f"CASE WHEN {sql} IS NOT NULL THEN {make_struct(_convert_fields(old, new, f'{sql}.', path, depth))} END"
    if pa.types.is_list(old) and pa.types.is_list(new):
        element = f"e{depth}"
        inner = _convert(old.value_type, new.value_type, element, path, depth + 1)
        return f"transform({sql}, {element} -> {inner})"
    if pa.types.is_struct(old) or pa.types.is_struct(new):
        what = path.rstrip(".") or "the value"
        raise MigrationError(
            f"either the old or the new type of {what} has no fields, so they cannot be matched by name",
            hint="Give an expression",
        )
    return sql


def follows_protocol(old: tree.Serializer, new: tree.Serializer, context: PlanContext) -> bool:
    """Return whether values are to be converted as Flink migrates state, not by the names of their fields.

    That is so if one of the serializers is a custom one, Flink's compatibility check says that the state needs
    migration, and this package can do the conversion.
    """
    if (
        not any(map(is_custom, (*walk(old), *walk(new))))
        or resolve_nested(old, new).outcome is not Outcome.AFTER_MIGRATION
    ):
        return False
    try:
        find_payload_conversion(old, new, context.layouts)
    except UnsupportedError:
        return False
    return True


def find_lost_fields(
    old: tree.Serializer, new: tree.Serializer, expression: str | None, context: PlanContext
) -> tuple[str, ...]:
    """List the fields of the old value that the new one lacks and the expression does not name, as dotted paths."""
    before, after = payload_type(old, context), payload_type(new, context)
    if expression is None:
        return tuple(_lost(before, after, ""))
    if not pa.types.is_struct(before) or re.search(r"\bvalue\b(?!\s*\.)", expression):
        return ()
    used = set(re.findall(r"\w+", expression))
    return tuple(each.name for each in before if each.name not in used and each.name not in EXTRA)


def _lost(old: pa.DataType, new: pa.DataType, path: str) -> Iterator[str]:
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        known = {each.name: each.type for each in new}
        for each in old:
            if each.name in known:
                yield from _lost(each.type, known[each.name], f"{path}{each.name}.")
            elif each.name not in EXTRA:
                yield f"{path}{each.name}"
    elif pa.types.is_list(old) and pa.types.is_list(new):
        yield from _lost(old.value_type, new.value_type, path)


def resolve_type(of: tree.Serializer, context: PlanContext) -> tree.Serializer:
    """Complete the serializer of a type that a migration file names, from the serializers of the snapshot.

    A Kryo serializer gets the Kryo registrations of the job. For `Declared<CLASS>`, return the serializer of that class
    in the snapshot.

    Raises:
        MigrationError: the snapshot has no serializer of a declared class.
    """
    if isinstance(of, tree.Declared):
        return _find_declared(of, context)
    if not isinstance(of, tree.Kryo):
        return of
    for each in context.kryos:
        if each.type_class == of.type_class:
            return each
    return replace(context.kryos[0], type_class=of.type_class) if context.kryos else of


def _find_declared(of: tree.Declared, context: PlanContext) -> tree.Declared:
    for each in context.declared:
        if each.unknown_class == of.unknown_class:
            if of.layout not in ("", each.layout):
                raise MigrationError(
                    f"the layout of {of.unknown_class} is declared as {each.layout}, not {of.layout}",
                    hint=f"Write `Declared<{of.unknown_class}>`",
                )
            return each
    known = ", ".join(f"Declared<{each.unknown_class}>" for each in context.declared) or "none"
    raise MigrationError(
        f"the operator has no state of the declared serializer {of.unknown_class}, whose snapshot would be needed",
        hint=f"It has {known}; a class is declared by --serializer '{of.unknown_class}=LAYOUT'",
    )


def rename_classes(
    payload: tree.Serializer, names: tuple[tuple[str, str], ...], context: PlanContext
) -> tuple[tree.Serializer, str | None]:
    """Rename classes in the serializer of a value; return the new serializer, and the SQL of the values.

    The SQL is None if the bytes of the values stay the same. Plan later steps with the context of `rename_context`.

    Raises:
        MigrationError: no class has an old name, or Kryo writes the name into the data.
    """
    renaming = _Renaming(dict(names))
    for node in walk(payload):
        if isinstance(node, tree.Kryo):
            listed = (node.type_class, *(each.class_name for each in node.registrations))
            for name in listed:
                if renaming.name(name) != name:
                    raise MigrationError(
                        f"{name} goes through Kryo, which writes class names into the data",
                        hint="`convert` the payload, or keep the class",
                    )
    if isinstance(payload, tree.Pojo):
        # Add the subclasses that only other states of the snapshot list, so that these are renamed too.
        rebuilt, _ = open_struct(payload, "", context).rebuild(open_struct(payload, "", context).slots)
        assert isinstance(rebuilt, tree.Serializer)
        payload = rebuilt
    new = renaming.serializer(payload)
    unused = [old for old, _ in names if old not in renaming.used]
    if unused:
        raise MigrationError(f"the payload has no class {', '.join(unused)}", hint=f"It is {describe(payload)}")
    root = quote_name(RAW) if contains_opaque(payload, context.layouts) else "value"
    sql = _translate(root, payload, new, (context, rename_context(names, context)), 0)
    return new, None if sql == root else sql


def rename_context(names: tuple[tuple[str, str], ...], context: PlanContext) -> PlanContext:
    """Return the planning context with renamed classes in the POJO subclasses that it lists."""
    return replace(context, layouts=_Renaming(dict(names)).layouts(context.layouts))


class _Renaming:
    """Renames classes and packages in names, serializers and layout contexts."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names
        self.used: set[str] = set()

    def name(self, name: str) -> str:
        """Return the new name of a class. In the name of an array class, replace the name of the element class."""
        for old in sorted(self.names, key=len, reverse=True):
            if name == old or name.startswith((f"{old}.", f"{old}$")):
                self.used.add(old)
                return self.names[old] + name[len(old) :]
        if name.startswith("[") and "L" in name:
            mark, _, rest = name.partition("L")
            return f"{mark}L{self.name(rest.rstrip(';'))};"
        return name

    def serializer(self, node: tree.Serializer) -> tree.Serializer:
        """Return a serializer with renamed classes, nested serializers included."""
        changes: dict[str, Any] = {}
        for each in node.__dataclass_fields__:
            value = getattr(node, each)
            if each in ("pojo_class", "enum_class", "tuple_class", "component_class", "runtime_class"):
                changes[each] = self.name(value)
            else:
                changes[each] = self._member(value)
        if isinstance(node, tree.Avro):
            changes["schema_json"] = self._schema(node.schema_json)
        return replace(node, **changes)

    def layouts(self, context: LayoutContext) -> LayoutContext:
        """Return a layout context in which the subclasses that the snapshot lists are renamed."""
        found = tuple((self.name(base), self._member(each)) for base, each in context.subclasses)
        return replace(context, subclasses=found)  # type: ignore[arg-type]

    def _member(self, member: object) -> object:
        match member:
            case tree.Serializer():
                return self.serializer(member)
            case tree.PojoField(declaring_class=owner, serializer=inner):
                inner = inner and self.serializer(inner)
                return replace(member, declaring_class=owner and self.name(owner), serializer=inner)
            case tree.PojoSubclass(class_name=name, serializer=inner):
                return replace(member, class_name=self.name(name), serializer=inner and self.serializer(inner))
            case tuple():
                return tuple(self._member(each) for each in member)
            case _:
                return member

    def _schema(self, schema_json: str) -> str:
        expanded = expand_schema(schema_json)
        changed = self._schema_node(expanded)
        return schema_json if changed == expanded else render_schema(changed)

    def _schema_node(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self._schema_node(each) for each in node]
        if not isinstance(node, dict):
            return node
        changed = {
            key: self._schema_node(each) if key in ("items", "values", "type") else each for key, each in node.items()
        }
        if "name" in node and node.get("type") in ("record", "error", "enum", "fixed"):
            changed["name"] = self.name(node["name"])
        if "fields" in node:
            changed["fields"] = [{**each, "type": self._schema_node(each["type"])} for each in node["fields"]]
        return changed


_Contexts = tuple[PlanContext, PlanContext]
"""Planning contexts before and after classes are renamed."""


def _translate(sql: str, old: tree.Serializer, new: tree.Serializer, contexts: _Contexts, depth: int) -> str:
    """Make SQL that replaces class names in the values; return `sql` itself if the values stay the same."""
    element = f"e{depth}"
    match old, new:
        case tree.Nullable(), tree.Nullable():
            return _translate(sql, old.inner, new.inner, contexts, depth)
        case tree.Pojo(), tree.Pojo():
            return _translate_pojo(sql, old, new, contexts, depth)
        case (
            (tree.ListOf() | tree.SetOf() | tree.GenericArray()),
            (tree.ListOf() | tree.SetOf() | tree.GenericArray()),
        ):
            inner = _translate(element, old.element, new.element, contexts, depth + 1)
            return sql if inner == element else f"transform({sql}, {element} -> {inner})"
        case tree.MapOf(), tree.MapOf():
            key, value = f"k{depth}", f"v{depth}"
            inner = _translate(value, old.value, new.value, contexts, depth + 1)
            return sql if inner == value else f"transform_values({sql}, ({key}, {value}) -> {inner})"
        case ((tree.PositionalRow() | tree.Tuple()), (tree.PositionalRow() | tree.Tuple())):
            members = [
                (f"f{n}", _translate(f"{sql}.`f{n}`", before, after, contexts, depth))
                for n, (before, after) in enumerate(zip(old.fields, new.fields, strict=True))
            ]
            if all(inner == f"{sql}.`{name}`" for name, inner in members):
                return sql
            kind = (
                [("row_kind", f"{sql}.`row_kind`")]
                if isinstance(old, tree.PositionalRow) and old.supports_row_kind
                else []
            )
            return f"CASE WHEN {sql} IS NOT NULL THEN {make_struct([*members, *kind])} END"
    return sql


def _translate_pojo(sql: str, old: tree.Pojo, new: tree.Pojo, contexts: _Contexts, depth: int) -> str:
    befores = open_struct(old, f"{sql}.", contexts[0])
    afters = open_struct(new, f"{sql}.", contexts[1])
    classes = [(old.pojo_class, new.pojo_class)]
    for each, other in zip(
        (*old.registered, *old.non_registered), (*new.registered, *new.non_registered), strict=False
    ):
        classes.append((each.class_name, other.class_name))
    columns = []
    same = True
    for before in befores.slots:
        # Find the same field of the same class by the class's name: a renamed class may have another position in the
        # list of classes, which is sorted by name.
        after = next(
            slot
            for slot in afters.slots
            if slot.member == before.member and _owners(slot, afters) & _owners_after(before, befores, dict(classes))
        )
        assert isinstance(before.type, tree.Serializer)
        assert isinstance(after.type, tree.Serializer)
        inner = _translate(before.sql, before.type, after.type, contexts, depth)
        same = same and inner == before.sql and after.name == before.name
        columns.append((after.name, inner))
    if befores.extra:
        cases = [(name, other) for name, other in classes if name != other]
        text = " ".join(f"WHEN {make_text(name)} THEN {make_text(other)}" for name, other in cases)
        columns.append(("class", f"CASE {sql}.`class` {text} ELSE {sql}.`class` END" if cases else f"{sql}.`class`"))
        same = same and not cases
    return sql if same else f"CASE WHEN {sql} IS NOT NULL THEN {make_struct(columns)} END"


def _owners(slot: Any, struct: Any) -> set[str]:
    return {struct.class_names[index] for index, _ in slot.owners}


def _owners_after(slot: Any, struct: Any, renamed: dict[str, str]) -> set[str]:
    return {renamed.get(name, name) for name in _owners(slot, struct)}


def take_collection(slot: Slot, of: tree.Serializer, context: PlanContext) -> Slot:
    """Convert a field of a POJO that Kryo wrote to the collection that Flink 2.x serializes.

    Raises:
        MigrationError: Kryo does not write the field, or it holds numbers that JSON cannot represent.
    """
    if not isinstance(slot.type, tree.Kryo):
        kind = describe(slot.type) if isinstance(slot.type, tree.Serializer) else "no serializer"
        raise MigrationError(f"field {slot.name} is not written by Kryo: it is {kind}")
    new = _wrap_collection(of)
    return replace(slot, type=new, sql=_read_json(slot.sql, slot.type, new, context))


def _wrap_collection(of: tree.Serializer) -> tree.Serializer:
    """Wrap a serializer as `TypeExtractor` of 2.x wraps fields of collection types."""
    match of:
        case tree.ListOf(element=element):
            return nullable(replace(of, element=nullable(_wrap_collection(element))))
        case tree.SetOf():
            return nullable(of)
        case tree.MapOf(key=key, value=value):
            return nullable(replace(of, key=nullable(key), value=_wrap_collection(value)))
    return of


def _read_json(sql: str, kryo: tree.Kryo, new: tree.Serializer, context: PlanContext) -> str:
    """Make SQL of a collection from the column of a Kryo value.

    The column is a list or map if the classes of the elements are known; otherwise it has JSON text, which is parsed.
    """
    before, after = payload_type(kryo, context), payload_type(new, context)
    if not pa.types.is_string(before):
        return _convert(before, after, sql, "", 0)
    return read_json(sql, after)


def read_json(sql: str, kind: pa.DataType) -> str:
    """Make SQL that parses the JSON of a collection in tables (`codecs.json`) into a list, set or map.

    Raises:
        MigrationError: Spark cannot read elements of this type from JSON.
    """
    failfast = "map('mode', 'FAILFAST')"
    if pa.types.is_map(kind):
        pairs = f"from_json(get_json_object({sql}, '$.@map'), 'array<array<string>>', {failfast})"
        key = f"CAST(e[0] AS {_json_type(kind.key_type)})"
        of = _json_type(kind.item_type)
        value = f"CAST(e[1] AS {of})"
        if pa.types.is_struct(kind.item_type):
            value = f"from_json(e[1], '{of}', {failfast})"
        return f"map_from_entries(transform({pairs}, e -> struct({key}, {value})))"
    inner = f"array<{_json_type(kind.value_type)}>"
    elements = f"if(startswith({sql}, '{{'), get_json_object({sql}, '$.@set'), {sql})"
    return f"from_json({elements}, '{inner}', {failfast})"


_JSON_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
}


def _json_type(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{quote_name(each.name)}: {_json_type(each.type)}' for each in kind)}>"
    if kind not in _JSON_TYPES:
        raise MigrationError(
            f"elements of type {kind} cannot be read from the JSON in which the collection is shown",
            hint="Declare the classes (`--classes`), so that the field is not shown as JSON",
        )
    return _JSON_TYPES[kind]
