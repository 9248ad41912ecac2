"""The keyed states that share the table of an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import NotFoundError, UnsupportedError, UsageError, Where
from state_pipelines.keyed.operator_columns import unmeasured
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.snapshot.survey import find_failures, survey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.keyed.operator_columns import StateLayout
    from state_pipelines.keyed.operator_table import OperatorTableOptions
    from state_pipelines.snapshot.keyed_state import KeyedState
    from state_pipelines.snapshot.operator_files import OperatorFiles


def choose_states(
    operator: OperatorFiles, states: Sequence[KeyedState], options: OperatorTableOptions
) -> list[StateLayout]:
    """Choose the keyed states that take part in one table of all of them.

    Args:
        operator: the operator.
        states: its keyed states and timers, those in files that cannot be read left out.
        options: which of them are wanted.

    Raises:
        StateError: there are none, and files cannot be read.
        UsageError: there are none.
        NotFoundError: `options` names a state that is not there.
        UnsupportedError: the keys of a state are not known, or subtasks have different ones.
    """
    keyed = {state.name: state for state in states}
    names = {state.python_name: state.name for state in states}
    wanted = {names.get(name, name) if name not in keyed else name for name in options.states or ()}
    if options.states is None:
        wanted = set(keyed)
    for name in wanted - set(keyed):
        raise NotFoundError(
            f"the operator has no keyed state {name}",
            where=Where(operator=operator.label),
            hint=f"It has {', '.join(keyed)}" if keyed else "It has none at all",
        )
    timers = {name for name, state in keyed.items() if state.kind == StateKind.TIMER}
    if options.states is None:
        wanted -= timers
    if options.timers:
        wanted |= timers
    chosen = [state for name, state in keyed.items() if name in wanted]
    if not chosen:
        for error in find_failures(operator, None):
            raise error
        hint = "Name one of its other states (--state, stateVarName of Spark)" if survey(operator).states else ""
        if keyed:
            hint = "It has timers, which take part when asked for (--timers, readRegisteredTimers of Spark)"
        raise UsageError("the operator has no keyed state", where=Where(operator=operator.label), hint=hint)
    for state in chosen:
        if state.comes_by_key_group:
            raise UnsupportedError(
                state.find_layout()[1],
                where=Where(operator=operator.label, state=state.name),
                hint="Read this state alone (--state, stateVarName), and the others by name (--states, states)",
            )
    layouts = [state.table_layout for state in chosen]
    if len({unmeasured(dict(each.key.fields)["state_key"]) for each in layouts}) > 1:
        raise UnsupportedError(
            "the subtasks hold keys with different serializers",
            where=Where(operator=operator.label),
            hint="Read its states one by one (--state, stateVarName of Spark), or let the job touch every key once",
        )
    return layouts
