"""Steps on the columns of connectors, such as the offsets of a Kafka source, as tables show them in `split`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from state_pipelines.connectors.registry import find_codec
from state_pipelines.errors import MigrationError
from state_pipelines.operations.migration import flows
from state_pipelines.operations.migration import steps as st
from state_pipelines.operations.migration.payload_conversion import list_columns
from state_pipelines.operations.migration.structs import KnownConnector, PlanContext
from state_pipelines.serializers.registered_states import LIST_KINDS
from state_pipelines.snapshot.operator_state import SPLIT_COLUMN, OperatorListState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from state_pipelines.operations.migration.flows import Flow
    from state_pipelines.operations.migration.migration_files import Change
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator

_PREFIX = f"{SPLIT_COLUMN}."


def names_split(step: st.Step) -> bool:
    """Whether a step sets a column of a connector, if the state is one of a connector."""
    return isinstance(step, st.Set) and step.field.startswith(_PREFIX)


def sets_split(step: st.Step, shape: StateShape, context: PlanContext) -> TypeGuard[st.Set]:
    """Whether a step sets a column of a connector, and no field of the elements themselves."""
    if not names_split(step) or shape.kind not in LIST_KINDS:
        return False
    return SPLIT_COLUMN not in list_columns(shape.payload, context)


def find_connectors(operator: Operator, changes: Iterable[Change]) -> Iterator[tuple[str, KnownConnector | str]]:
    """The connectors of the list states whose columns changes set, or why none is known; reads their elements.

    Raises:
        StateError: the elements cannot be read.
    """
    named = {each.state for each in changes if each.state and any(map(names_split, (*each.upgrade, *each.downgrade)))}
    for state in operator.operator_states if named else ():
        if state.name not in named or not isinstance(state, OperatorListState):
            continue
        found = state.detected
        if found.state is not None:
            yield state.name, KnownConnector(found.state.connector, found.state.kind)
        else:
            yield state.name, found.ambiguity or "no known connector wrote it"


def plan_split_edit(flow: Flow, step: st.Set, connectors: Collection[tuple[str, KnownConnector | str]]) -> Flow:
    """The flow with a column of a connector set.

    Raises:
        MigrationError: the state is none of a known connector, or its connector has no such column to be set.
    """
    connector = dict(connectors).get(flows.find_reads(flow)[0])
    if connector is None:
        return flow  # planned on serializers alone, which stay
    if isinstance(connector, str):
        raise MigrationError(f"the state has no column {step.field}: {connector}")
    column, edit = step.field.removeprefix(_PREFIX), find_codec(connector.name, connector.kind).edit
    settable = ", ".join(f"{_PREFIX}{each}" for each in edit.columns) if edit else "none"
    if edit is None or column not in edit.columns:
        raise MigrationError(
            f"{step.field} of the {connector.kind} state of {connector.name} cannot be set",
            hint=f"Columns that can be set: {settable}",
        )
    stage = flows.SetSplit(connector.name, connector.kind, column, step.expression, step.nondeterministic)
    return flows.Apply(flow, stage, flow.shape)
