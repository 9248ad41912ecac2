"""Lineage of columns through a migration: the old columns that each new one is computed from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from state_pipelines.operations.migration.flows import (
    Apply,
    Flow,
    Follow,
    Keep,
    KeepKeys,
    Merge,
    Project,
    Read,
    Regroup,
    Rekey,
    Reserialize,
    Stamp,
    find_reads,
    walk_flow,
)
from state_pipelines.operations.migration.payload_conversion import list_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.operations.migration.structs import PlanContext

Column = tuple[str, str]
"""A column of a table: name of its state, and its own; fields of the payload are named like `value.amount`."""

_Lineage = dict[str, frozenset[Column]]
_WHOLE = "value"
_KEY = "state_key"
_AROUND = (_KEY, "state_namespace", "map_key", "list_index", "ttl_last_access")


def trace_columns(flow: Flow, context: PlanContext) -> Mapping[str, frozenset[Column]]:
    """Return the old columns of each new column of a state's table.

    SQL is searched for names of fields; where a stage sees the whole payload, its result depends on all fields.

    Args:
        flow: of the new state.
        context: what the plan was made with.
    """
    payload = _trace(flow, context)
    column = flow.shape.column
    named = {f"{column}.{name}" if name else column: old for name, old in payload.items()}
    reads = find_reads(flow)
    if not flow.shape.is_keyed:
        return named
    key = frozenset((state, _KEY) for state in reads)
    for each in walk_flow(flow):
        if isinstance(each, Apply) and isinstance(each.stage, Rekey):
            key |= _find_named(each.stage.sql, _trace(each.input, context), each.input)
    return {_KEY: key, **named}


def _trace(flow: Flow, context: PlanContext) -> _Lineage:
    """Return the old columns by new field of the payload; the empty name stands for a payload without fields."""
    names = _list_fields(flow.shape, context)
    match flow:
        case Read(state=state, shape=shape):
            return {name: frozenset({(state, _name(shape, name))}) for name in names}
        case Merge(inputs=inputs):
            every = [old for _, each in inputs for old in _trace(each, context).values()]
            return dict.fromkeys(names, frozenset().union(*every))
        case Apply(input=inner, stage=Project(columns=columns)):
            before = _trace(inner, context)
            return {name: _find_named(sql, before, inner) for name, sql in columns}
        case Apply(
            input=inner, stage=Keep() | KeepKeys() | Follow() | Stamp() | Rekey() | Reserialize() | Regroup(sql=None)
        ):
            before = _trace(inner, context)
            whole = frozenset().union(*before.values())
            return {name: before.get(name, whole) for name in names}
        case Apply(input=inner):
            return dict.fromkeys(names, frozenset().union(*_trace(inner, context).values()))


def _find_named(sql: str, before: Mapping[str, frozenset[Column]], flow: Flow) -> frozenset[Column]:
    """Return the old columns of the fields that SQL names; `value` is the whole payload unless it is a field."""
    words = set(re.findall(r"\w+", re.sub(r"'[^']*'", "", sql)))
    found = [old for name, old in before.items() if name in words]
    if _WHOLE in words and _WHOLE not in before:
        found += before.values()
    around = {(state, name) for name in _AROUND if name in words and name not in before for state in find_reads(flow)}
    return frozenset(around).union(*found)


def _list_fields(shape: StateShape, context: PlanContext) -> Iterable[str]:
    return list_columns(shape.payload, context) or ("",)


def _name(shape: StateShape, field: str) -> str:
    return f"{shape.column}.{field}" if field else shape.column
