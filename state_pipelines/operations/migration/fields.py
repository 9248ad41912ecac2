"""Steps on the fields of a payload: the changed serializer, and the SQL of the new columns.

The step `columns` gives a row of the table runtime other columns, wherever a state holds it. Null in fields of POJOs
that may be primitives of Java is refused: `PojoSerializer` writes it, and Flink fails to restore it. The serializers of
`int` and `Integer` are the same, so that only classes tell them apart. A field whose class is not declared is taken for
a primitive, unless its value was null before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.codecs.serializer_layouts import contains_opaque
from state_pipelines.errors import MigrationError
from state_pipelines.operations.migration import flows
from state_pipelines.operations.migration.flows import Project, Replace
from state_pipelines.operations.migration.payload_conversion import list_columns, take_collection
from state_pipelines.operations.migration.steps import Add, Cast, Drop, FieldStep, Rename, Reorder, Set, Step
from state_pipelines.operations.migration.structs import (
    RAW,
    AvroType,
    Columns,
    Node,
    PayloadStruct,
    PlanContext,
    Slot,
    SqlColumn,
    enclose,
    find_bare,
    find_root,
    make_struct,
    make_text,
    open_struct,
    quote_name,
)
from state_pipelines.serializers import tree
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.operations.migration.steps import Columns as ColumnsStep
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


def refuse_null(struct: PayloadStruct, slot: Slot, sql: str, context: PlanContext, *, old: str | None = None) -> str:
    """Make SQL that gives new values of a field, but fails for a null that Flink may not be able to restore.

    In a POJO, null is refused if the class declares the field as a primitive, or if no class says how it is declared.

    Args:
        struct: the struct that has the field.
        slot: the field.
        sql: SQL of the new values.
        context: planning context; with `permits_null`, fields that no class declares may become null.
        old: SQL of the present values; if no class declares the field, a value that is null now may stay null.

    Returns:
        SQL that fails for such nulls; `sql` itself if nulls can be restored.
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


def where_owned(struct: PayloadStruct, slot: Slot, sql: str) -> str:
    """Return SQL that gives `sql` for objects whose class has the field, and null for those of other subclasses."""
    owners = {struct.class_names[index] for index, _ in slot.owners} if struct.class_names else set()
    if owners == set(struct.class_names):
        return sql
    names = ", ".join(make_text(name) for name in sorted(owners))
    return f"CASE WHEN {dict(struct.extra)['class']} IN ({names}) THEN {sql} END"


def refuse_nulls_inside(sql: str, of: SlotType, context: PlanContext) -> str:
    """Return SQL that gives the values of `sql`, but fails if a POJO in them has a null that `refuse_null` refuses."""
    if not isinstance(of, tree.Serializer) or find_bare(sql) or contains_opaque(of, context.layouts):
        return sql
    made = "made"
    checked = _check(of, made, context, 0)
    return sql if checked == made else f"element_at(transform(array({sql}), {made} -> {checked}), 1)"


def find_null_check(payload: tree.Serializer, context: PlanContext) -> Project | Replace | None:
    """Make a stage that refuses nulls in fields of POJOs; it is applied after a stage that computes whole values.

    Return None if the value, list element or map value that `payload` serializes has no field that must not be null.
    """
    inner = payload.inner if isinstance(payload, tree.Nullable) else payload
    if isinstance(inner, tree.Pojo | tree.PositionalRow | tree.Tuple):
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
    """Return SQL that gives the values of `sql`, but fails for refused nulls in POJOs; `sql` if there are none."""
    element, key = f"e{depth}", f"k{depth}"
    match node:
        case tree.Nullable(inner=inner):
            return _check(inner, sql, context, depth)
        case tree.Pojo() | tree.PositionalRow() | tree.Tuple():
            columns = _check_fields(node, f"{sql}.", context, depth)
            return sql if columns is None else f"CASE WHEN {sql} IS NOT NULL THEN {make_struct(columns)} END"
        case tree.ListOf(element=value) | tree.SetOf(element=value) | tree.GenericArray(element=value):
            inside = _check(value, element, context, depth + 1)
            return sql if inside == element else f"transform({sql}, {element} -> {inside})"
        case tree.MapOf(value=value) | tree.SortedMapOf(value=value):
            inside = _check(value, element, context, depth + 1)
            return sql if inside == element else f"transform_values({sql}, ({key}, {element}) -> {inside})"
    return sql


@dataclass(frozen=True)
class TakeCollections:
    """A `collections` step on a struct: fields that Kryo wrote become the collections that Flink 2.x serializes.

    Attributes:
        types: path of each field, and its new type without the flags for null.
        decoded: SQL of the struct with decoded Kryo values, up to the dot, such as `` `address`. ``. The fields in
            `types` are read from it; all others are read from SQL in which Kryo values stay bytes. Empty for the
            whole value.
    """

    types: tuple[tuple[str, tree.Serializer], ...]
    decoded: str = ""


_FieldStep = FieldStep | TakeCollections


@dataclass(frozen=True)
class ValuePlan:
    """The result of a chain of steps on a value.

    Attributes:
        old: serializer of the value, list element or map value before the steps.
        new: its serializer after all steps.
        projections: for each step, all fields after the step with their SQL over the fields before the step.
    """

    old: tree.Serializer
    new: tree.Serializer
    projections: tuple[Columns, ...]


def plan_value(serializer: tree.Serializer, steps: Iterable[Step], context: PlanContext | None = None) -> ValuePlan:
    """Apply `steps` to the fields of values that `serializer` writes.

    Raises:
        MigrationError: the value has no fields, or a step does not fit them.
    """
    node = serializer
    projections = []
    for number, step in enumerate(steps, 1):
        try:
            if not isinstance(step, FieldStep):
                raise MigrationError(f"{type(step).__name__} is no step on fields")
            node, columns = apply_field_step(node, step, context or PlanContext())
        except MigrationError as error:
            error.where = replace(error.where, path=f"step {number}")
            raise
        projections.append(columns)
    return ValuePlan(serializer, node, tuple(projections))


def apply_field_step(node: tree.Serializer, step: FieldStep, context: PlanContext) -> tuple[tree.Serializer, Columns]:
    """Apply one step to the fields of a value; return the new serializer of the value, and the SQL of all its columns.

    Raises:
        MigrationError: the step does not fit.
    """
    if isinstance(step, Add | Cast | Set) and step.expression is not None:
        step = replace(step, expression=enclose(step.expression))
    changed, columns = _apply(node, step, "", context)
    assert isinstance(changed, tree.Serializer)
    return changed, columns


def set_column(payload: tree.Serializer, step: Set, context: PlanContext) -> Columns | None:
    """Apply a `set` step to a value that has columns, but no fields that steps can change.

    Such values are of serializers of Beam, or have a declared layout. Returns the SQL of all columns; None for other
    values, or if there is no column of that name.
    """
    try:
        open_struct(payload, "", context)
    except MigrationError:
        names = list_columns(payload, context)
    else:
        return None
    if step.field not in names:
        return None
    return tuple((name, step.expression if name == step.field else quote_name(name)) for name in names)


def take_collections(
    payload: tree.Serializer, types: tuple[tuple[str, tree.Serializer], ...], context: PlanContext
) -> tuple[tree.Serializer, Columns]:
    """Apply a `collections` step to a value; return the new serializer of the value, and the SQL of all its columns.

    All fields have to be converted by one step: a struct that a step has computed holds its Kryo fields as bytes only,
    which a later step could not decode.

    Raises:
        MigrationError: a path leads through something else than POJOs, Kryo does not write a field, or a field holds
            numbers that JSON cannot represent.
    """
    changed, columns = _apply(payload, TakeCollections(types), "", context)
    return _require_serializer(changed), columns


def _apply(node: Node, step: _FieldStep, base: str, context: PlanContext) -> tuple[Node, Columns]:
    struct = open_struct(node, base, context)
    slots: tuple[Slot, ...]
    match step:
        case Rename(names=names):
            slots = _rename(struct, names, context)
        case Reorder(names=names, path=path):
            slots = _descend(struct, path, step, context) if path else _reorder(struct, names)
        case TakeCollections():
            slots = _take_collections(struct, step, context)
        case Add(field=name) | Cast(field=name) | Drop(field=name) | Set(field=name) if "." in name:
            slots = _descend(struct, name, step, context)
        case Add(field=name):
            if any(slot.name == name for slot in struct.slots):
                raise MigrationError(f"there is a field {name} already", hint="Use `cast` or `set` to change it")
            of = struct.adopt(step.type, nullable=step.nullable)
            sql = refuse_nulls_inside(step.expression, of, context)
            slots = (*struct.slots, struct.add(name, of, _required(sql, step)))
        case Cast(field=name):
            old = struct.find(name)
            of = struct.adopt(step.type, nullable=step.nullable)
            sql = refuse_nulls_inside(step.expression or old.sql, of, context)
            sql = where_owned(struct, old, _required(sql, step))
            slots = _replace(struct, replace(old, type=of, sql=sql))
        case Set(field=name, expression=expression):
            old = struct.find(name)
            sql = refuse_nulls_inside(expression, old.type, context)
            slots = _replace(struct, replace(old, sql=refuse_null(struct, old, sql, context, old=old.sql)))
        case Drop(field=name):
            gone = struct.find(name)
            slots = tuple(slot for slot in struct.slots if slot is not gone)
    return struct.rebuild(slots)


def _replace(struct: PayloadStruct, slot: Slot) -> tuple[Slot, ...]:
    return tuple(slot if each.name == slot.name else each for each in struct.slots)


def _reorder(struct: PayloadStruct, names: tuple[str, ...]) -> tuple[Slot, ...]:
    if not struct.ordered:
        raise MigrationError(
            "the fields of a POJO have no order that `reorder` could change", hint="Leave `reorder` out"
        )
    if sorted(names) != sorted(slot.name for slot in struct.slots):
        have = ", ".join(slot.name for slot in struct.slots)
        raise MigrationError("`reorder` names every field once", hint=f"The fields are {have}")
    return tuple(struct.find(name) for name in names)


def _rename(struct: PayloadStruct, names: tuple[tuple[str, str], ...], context: PlanContext) -> tuple[Slot, ...]:
    here: dict[str, str] = {}
    inside: dict[str, list[tuple[str, str]]] = {}
    for old, new in names:
        head, dot, rest = old.partition(".")
        if dot:
            inside.setdefault(head, []).append((rest, new.removeprefix(f"{head}.")))
        elif "." in new:
            raise MigrationError(
                f"{new} is not a name in the same struct as {old}", hint="`add` and `drop` move a field"
            )
        else:
            here[old] = new
    slots = struct.slots
    for head, pairs in inside.items():
        name = head.rstrip("[]")
        child = next((slot for slot in slots if slot.name == name), None) or struct.find(name)
        changed = _change_child(child, Rename(tuple(pairs)), context, head.removeprefix(name))
        slots = tuple(changed if slot.name == name else slot for slot in slots)
    for old in here:
        struct.find(old)
    if here and not struct.named:
        raise MigrationError(
            "the fields have no names that `rename` could change", hint="`reorder` changes their positions"
        )
    renamed = tuple(
        replace(slot, name=here[slot.name], member=here[slot.name]) if slot.name in here else slot for slot in slots
    )
    if len({slot.name for slot in renamed}) < len(renamed):
        raise MigrationError("two fields would have the same name", hint="Drop or rename the other field first")
    return renamed


def _take_collections(struct: PayloadStruct, step: TakeCollections, context: PlanContext) -> tuple[Slot, ...]:
    if not struct.class_names:
        raise MigrationError("`collections` needs a POJO", hint="`convert` takes values of any serializer")
    changed: dict[str, Slot] = {}
    inside: dict[str, list[tuple[str, tree.Serializer]]] = {}
    for path, of in step.types:
        head, dot, rest = path.partition(".")
        if dot:
            inside.setdefault(head, []).append((rest, of))
            continue
        slot = struct.find(head)
        decoded = f"{step.decoded}{quote_name(head)}" if step.decoded else slot.sql
        changed[head] = take_collection(replace(slot, sql=decoded), of, context)
    for head, types in inside.items():
        name = head.rstrip("[]")
        slot = changed.get(name) or struct.find(name)
        decoded = f"{step.decoded}{quote_name(name)}" if step.decoded else slot.sql
        inner = TakeCollections(tuple(types), decoded)
        changed[name] = _change_child(slot, inner, context, head.removeprefix(name))
    return tuple(changed.get(slot.name, slot) for slot in struct.slots)


def _descend(struct: PayloadStruct, path: str, step: FieldStep, context: PlanContext) -> tuple[Slot, ...]:
    head, _, rest = path.partition(".")
    name = head.rstrip("[]")
    if isinstance(step, Reorder):
        inner: FieldStep = replace(step, path=rest)
    else:
        assert not isinstance(step, Rename)
        inner = replace(step, field=step.field.partition(".")[2])
    return _replace(struct, _change_child(struct.find(name), inner, context, head.removeprefix(name)))


def _change_child(slot: Slot, step: _FieldStep, context: PlanContext, into: str) -> Slot:
    """Apply a step to the struct in a field, or to the structs in its collection.

    Args:
        slot: the field.
        step: the step, with paths that start at the struct.
        context: planning context.
        into: `[]` for each collection between the field and the struct; empty if the field is the struct.
    """
    if not isinstance(slot.type, tree.Serializer | AvroType):
        raise MigrationError(f"steps cannot change what is inside {slot.name}, a field of RowData")
    changed, sql = _change_inside(slot.type, find_root(slot, context), step, context, into)
    return replace(slot, type=changed, sql=sql)


def _change_inside(node: Node, sql: str, step: _FieldStep, context: PlanContext, into: str) -> tuple[Node, str]:
    """Apply a step to the structs in a value; return the new serializer and SQL of the value.

    `into` is explained at `_change_child`.
    """
    if not into:
        if isinstance(step, TakeCollections):
            step = replace(step, decoded=f"{step.decoded}.")
        changed, columns = _apply(node, step, f"{sql}.", context)
        return changed, f"CASE WHEN {sql} IS NOT NULL THEN {make_struct(columns)} END"
    if not into.startswith("[]"):
        raise MigrationError(f"`{into}` is not allowed in a path", hint="`[]` reaches list elements and map values")
    inner = into.removeprefix("[]")
    # Lambdas may be nested: a suffix makes the names of their variables differ from those of the level above.
    suffix = f"_{len(inner) // 2 + 1}" if inner else ""
    element, index, key = (quote_name(f"{each}{suffix}") for each in ("element", "index", "key"))
    arguments, entry = element, f"(`key`, {element})"
    in_list = in_map = step
    if isinstance(step, TakeCollections):
        arguments, entry = f"({element}, {index})", f"({key}, {element})"
        in_list, in_map = (replace(step, decoded=f"{step.decoded}[{each}]") for each in (index, key))
    match node:
        case tree.Nullable(inner=value):
            changed, sql = _change_inside(value, sql, step, context, into)
            return replace(node, inner=_require_serializer(changed)), sql
        case tree.ListOf(element=value) | tree.SetOf(element=value) | tree.GenericArray(element=value):
            changed, inside = _change_inside(value, element, in_list, context, inner)
            return replace(node, element=_require_serializer(changed)), f"transform({sql}, {arguments} -> {inside})"
        case tree.MapOf(value=value) | tree.SortedMapOf(value=value):
            changed, inside = _change_inside(value, element, in_map, context, inner)
            sql = f"transform_values({sql}, {entry} -> {inside})"
            return replace(node, value=_require_serializer(changed)), sql
    what = describe(node) if isinstance(node, tree.Serializer) else "a part of an Avro schema"
    raise MigrationError(
        f"`[]` stands for the elements of a list, set or array, or the values of a map; this is {what}",
        hint="`convert` takes values of any serializer",
    )


def _require_serializer(node: Node) -> tree.Serializer:
    assert isinstance(node, tree.Serializer)
    return node


def _required(sql: str, step: Add | Cast) -> str:
    if not step.required:
        return sql
    message = make_text(f"field {step.field} is a primitive and cannot be null")
    return f"coalesce({sql}, raise_error({message}))"


_ROW = "row"


def plan_columns(
    payload: tree.Serializer, step: ColumnsStep, context: PlanContext
) -> tuple[tree.Serializer, flows.Stage]:
    """Apply a `columns` step to a value; return its new serializer, and the stage that computes the columns.

    Raises:
        MigrationError: the value holds no row, or a column has no type.
    """
    match payload:
        case tree.RowData():
            changed, columns = _change_row(payload, step, "", context)
            return changed, flows.Project(columns)
        case tree.ListOf(element=tree.RowData() as row):
            changed, columns = _change_row(row, step, _ROW, context)
            return replace(payload, element=changed), flows.Replace(f"transform(value, {_ROW} -> {_make_row(columns)})")
        case tree.ListOf(element=tree.Tuple(fields=(tree.RowData() as row, *rest)) as element):
            changed, columns = _change_row(row, step, _ROW, context)
            inner = replace(element, fields=(changed, *rest))
            others = [(f"f{index}", f"element.f{index}") for index in range(1, len(element.fields))]
            first = f"element_at(transform(array(element.f0), {_ROW} -> {_make_row(columns)}), 1)"
            made = make_struct([("f0", first), *others])
            return replace(payload, element=inner), flows.Replace(f"transform(value, element -> {made})")
        case tree.Tuple(fields=(tree.RowData() as row, *rest)):
            changed, columns = _change_row(row, step, _ROW, context)
            first = f"element_at(transform(array(f0), {_ROW} -> {_make_row(columns)}), 1)"
            others = [(f"f{index}", f"f{index}") for index in range(1, len(payload.fields))]
            return replace(payload, fields=(changed, *rest)), flows.Project((("f0", first), *others))
    raise MigrationError(
        f"`columns` needs a row of the table runtime, this is {describe(payload)}",
        hint="`convert` takes values of any serializer",
    )


def _make_row(columns: Columns) -> str:
    return f"CASE WHEN {_ROW} IS NOT NULL THEN {make_struct(columns)} END"


def _change_row(row: tree.RowData, step: ColumnsStep, name: str, context: PlanContext) -> tuple[tree.RowData, Columns]:
    struct = open_struct(row, f"{name}." if name else "", context)
    olds = {slot.sql.replace("`", ""): slot for slot in struct.slots}
    slots = []
    for index, each in enumerate(step.columns):
        old = olds.get(each.expression.strip().replace("`", ""))
        if each.type is not None:
            of = struct.adopt(each.type, nullable=False)
        elif old is not None:
            of = old.type
        else:
            raise MigrationError(
                f"the type of column {each.name} is missing", hint="Only a column of the old row keeps its type"
            )
        assert isinstance(of, SqlColumn)
        sql = old.sql if old is not None else enclose(each.expression)
        slots.append(Slot(f"f{index}", of, sql, f"f{index}"))
    changed, columns = struct.rebuild(slots)
    assert isinstance(changed, tree.RowData)
    return changed, columns
