"""What a migration makes of one state: serializers before and after, the way there and the way back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import MigrationError
from state_pipelines.keyed.records import KeyedLayout, derive_keyed_layout
from state_pipelines.keyed.tables import TTL_COLUMN, TableOptions
from state_pipelines.operations.migration import (
    UPGRADE,
    Migration,
    ValuePlan,
    payload_serializer,
    plan_value,
    replace_payload,
)
from state_pipelines.spark.splits import SPLIT_SIZE, StateOptions
from state_pipelines.spark.transforming import VISIBLE

if TYPE_CHECKING:
    from state_pipelines.serializers.metainfo import StateMetaInfo
    from state_pipelines.snapshot.keyed_state import KeyedState


@dataclass(frozen=True)
class Change:
    """A planned change of the values of one state.

    Attributes:
        plan: the way there.
        back: the way back, over the values that `plan` makes.
        info: the new meta info of the state.
        losses: fields that the way there and back together do not bring back, and why that is accepted.
    """

    plan: ValuePlan
    back: ValuePlan
    info: StateMetaInfo
    losses: dict[str, str]


def plan_change(state: KeyedState, migration: Migration, direction: str = UPGRADE) -> Change:
    """What becomes of the values of a state, and the way back."""
    plan = plan_value(payload_serializer(state.info), migration.steps(direction))
    back = plan_value(plan.new, migration.opposite(direction))
    losses = {loss.field: loss.reason for loss in migration.losses}
    known = {each.name for each in (*plan.old.fields, *plan.new.fields)}
    for name in sorted(losses.keys() - known):
        raise MigrationError(f"the declared loss {name} is no field", hint=f"The fields are {', '.join(sorted(known))}")
    return Change(plan, back, replace_payload(state.info, plan.new), losses)


def new_layout(state: KeyedState, info: StateMetaInfo) -> KeyedLayout:
    """Layouts of the records of `state` when `info` describes it."""
    context = state.operator.snapshot.layout_context
    return derive_keyed_layout(info, state.key_serializer, state.operator.max_parallelism, context)


def payload_column(layout: KeyedLayout) -> str:
    """The column whose values the steps of a migration change."""
    return {"LIST": "list_value", "MAP": "map_value"}.get(layout.state_type, "value")


def migration_options(layout: KeyedLayout, plan: ValuePlan, *, key_hash: bool = False) -> StateOptions:
    """What of a state a migration reads; keys stay bytes unless an expression names a part of them."""
    text = " ".join(sql for projection in plan.projections for _, sql in projection.columns)
    keys = {name for name, _ in layout.key.fields}
    named = [name for name in VISIBLE if name in keys and re.search(rf"\b{name}\b", text)]
    columns = ["key_group", "key_bytes", *named]
    if layout.state_type == "LIST":
        columns.append("list_index")
    columns.append(payload_column(layout))
    if layout.ttl:
        columns.append(TTL_COLUMN)
    if key_hash:
        columns.append("hashed_key_group")
    table = TableOptions(columns=tuple(columns), key_bytes=True, key_hash=key_hash)
    return StateOptions("", "", table, None, SPLIT_SIZE)
