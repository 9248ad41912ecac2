"""The step `columns`: a row of the table runtime with other columns, wherever a state holds it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.errors import MigrationError
from state_pipelines.operations.migration import flows
from state_pipelines.operations.migration.struct_serializers import open_struct
from state_pipelines.operations.migration.structs import Columns, PlanContext, Slot, SqlColumn, enclose, make_struct
from state_pipelines.serializers import tree
from state_pipelines.serializers.text import describe

if TYPE_CHECKING:
    from state_pipelines.operations.migration.steps import Columns as ColumnsStep

_ROW = "row"


def plan_columns(
    payload: tree.Serializer, step: ColumnsStep, context: PlanContext
) -> tuple[tree.Serializer, flows.Stage]:
    """The payload with other columns in its row, and the stage that computes them.

    Raises:
        MigrationError: the payload holds no row, or a column has no type.
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
        hint="`convert` takes values of any family",
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
                f"the type of column {each.name} is not said", hint="Only a column of the old row keeps its type"
            )
        assert isinstance(of, SqlColumn)
        sql = old.sql if old is not None else enclose(each.expression)
        slots.append(Slot(f"f{index}", of, sql, f"f{index}"))
    changed, columns = struct.rebuild(slots)
    assert isinstance(changed, tree.RowData)
    return changed, columns
