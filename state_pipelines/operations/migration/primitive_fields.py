"""Null in fields of POJOs that may be primitives of Java: `PojoSerializer` writes it, and Flink fails to restore it.

The serializers of `int` and `Integer` are the same, so that only classes tell them apart. A field whose class is not
declared is taken for a primitive, unless its value was null before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.codecs.serializer_layouts import contains_opaque
from state_pipelines.operations.migration.flows import Project, Replace
from state_pipelines.operations.migration.struct_serializers import open_struct
from state_pipelines.operations.migration.structs import (
    RAW,
    Columns,
    PlanContext,
    Slot,
    Struct,
    find_bare,
    find_root,
    make_struct,
    make_text,
    quote_name,
)
from state_pipelines.serializers import tree
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from state_pipelines.operations.migration.structs import SlotType

_PRIMITIVES = {
    BasicKind.BOOLEAN: ("boolean", "Boolean"),
    BasicKind.BYTE: ("byte", "Byte"),
    BasicKind.SHORT: ("short", "Short"),
    BasicKind.INT: ("int", "Integer"),
    BasicKind.LONG: ("long", "Long"),
    BasicKind.FLOAT: ("float", "Float"),
    BasicKind.DOUBLE: ("double", "Double"),
    BasicKind.CHAR: ("char", "Character"),
}
"""Primitive type and its class, by kind of the serializer."""


def refuse_null(struct: Struct, slot: Slot, sql: str, context: PlanContext, *, old: str | None = None) -> str:
    """New values of a field, without null where Flink cannot or may not restore it.

    Args:
        struct: that has the field.
        slot: the field.
        sql: of its new values.
        context: see there.
        old: SQL of its values before; null stays null where they are, if no class says that the field is a primitive.

    Returns:
        SQL that fails for such nulls; `sql` where null is fine.
    """
    if not struct.class_names or not isinstance(slot.type, tree.Basic) or slot.type.kind not in _PRIMITIVES:
        return sql
    primitive, boxed = _PRIMITIVES[slot.type.kind]
    unknown = None
    for index, declaring in slot.owners:
        name = declaring or struct.class_names[index]
        declared = None if context.layouts.classes is None else context.layouts.classes.find(name)
        found = None if declared is None else dict(declared.fields).get(slot.member)
        if found is None:
            unknown = unknown or name
        elif found.name == primitive:
            message = make_text(f"field {slot.name} is a primitive ({primitive}) of {name} and cannot be null")
            return where_owned(struct, slot, f"coalesce({sql}, raise_error({message}))")
    if unknown is None or context.permits_null:
        return sql
    remedy = f"declare the class (--classes, such as `{unknown}: [{slot.member}: {boxed}]`)"
    if old is not None:
        remedy += f", or `cast` the field to {boxed} in place of `set`"
    message = make_text(
        f"field {slot.name} becomes null, which Flink cannot restore if {unknown} declares it as {primitive}; "
        f"serializers do not tell {primitive} from {boxed}. If it is {boxed}, {remedy}"
    )
    error = f"raise_error({message})"
    refused = f"coalesce({sql}, {error if old is None else f'CASE WHEN {old} IS NOT NULL THEN {error} END'})"
    return where_owned(struct, slot, refused) if old is None else refused


def where_owned(struct: Struct, slot: Slot, sql: str) -> str:
    """Return null for values of classes that lack the field, to which the expression does not apply."""
    owners = {struct.class_names[index] for index, _ in slot.owners} if struct.class_names else set()
    if owners == set(struct.class_names):
        return sql
    names = ", ".join(make_text(name) for name in sorted(owners))
    return f"CASE WHEN {dict(struct.extra)['class']} IN ({names}) THEN {sql} END"


def refuse_nulls_inside(sql: str, of: SlotType, context: PlanContext) -> str:
    """Values of a field that SQL makes, without null in the fields of POJOs inside as `refuse_null` has it."""
    if not isinstance(of, tree.Serializer) or find_bare(sql) or contains_opaque(of, context.layouts):
        return sql
    made = "made"
    checked = _check(of, made, context, 0)
    return sql if checked == made else f"element_at(transform(array({sql}), {made} -> {checked}), 1)"


def find_null_check(payload: tree.Serializer, context: PlanContext) -> Project | Replace | None:
    """The stage after one that makes payloads as a whole: the same payloads, without such nulls; None without any."""
    inner = payload.inner if isinstance(payload, tree.Nullable) else payload
    if isinstance(inner, tree.Pojo | tree.Row | tree.Tuple):
        columns = _check_fields(inner, "", context, 0)
        return None if columns is None else Project(columns)
    root = quote_name(RAW) if contains_opaque(payload, context.layouts) else "value"
    sql = _check(payload, root, context, 0)
    return None if sql == root else Replace(sql)


def _check_fields(node: tree.Serializer, base: str, context: PlanContext, depth: int) -> Columns | None:
    struct = open_struct(node, base, context)
    slots = []
    for slot in struct.slots:
        sql = refuse_null(struct, slot, slot.sql, context)
        if sql == slot.sql and isinstance(slot.type, tree.Serializer):
            root = find_root(slot, context)
            sql = _check(slot.type, root, context, depth)
            sql = slot.sql if sql == root else sql
        slots.append(replace(slot, sql=sql))
    return None if tuple(slots) == struct.slots else struct.rebuild(slots)[1]


def _check(node: tree.Serializer, sql: str, context: PlanContext, depth: int) -> str:
    """SQL of the same values, without null in fields of POJOs inside; `sql` itself without such fields."""
    element, key = f"e{depth}", f"k{depth}"
    match node:
        case tree.Nullable(inner=inner):
            return _check(inner, sql, context, depth)
        case tree.Pojo() | tree.Row() | tree.Tuple():
            columns = _check_fields(node, f"{sql}.", context, depth)
            return sql if columns is None else f"CASE WHEN {sql} IS NOT NULL THEN {make_struct(columns)} END"
        case tree.ListOf(element=value) | tree.SetOf(element=value) | tree.GenericArray(element=value):
            inside = _check(value, element, context, depth + 1)
            return sql if inside == element else f"transform({sql}, {element} -> {inside})"
        case tree.MapOf(value=value) | tree.SortedMapOf(value=value):
            inside = _check(value, element, context, depth + 1)
            return sql if inside == element else f"transform_values({sql}, ({key}, {element}) -> {inside})"
    return sql
