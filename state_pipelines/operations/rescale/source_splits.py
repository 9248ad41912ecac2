"""Splits that a source knows, so that more subtasks than splits are noticed: those would stay idle.

The readers hold the splits that are assigned, the enumerator (coordinator state) those that are not yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state_pipelines.connectors import AmbiguousState, ConnectorState, read_coordinator
from state_pipelines.connectors.registry import ConnectorStateKind
from state_pipelines.errors import StateError
from state_pipelines.snapshot.operator_state import Detected, OperatorListState, narrow_enumerator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from state_pipelines.snapshot import Operator

READER_STATE = "SourceReaderState"
"""Name of the list state of the splits of each reader (`SourceOperator`)."""

_WITHOUT_SPLITS = ("hybrid",)
"""Connectors whose enumerator holds splits that are not decoded."""

_ASSIGNED = ("assigned", "tombstoned")
"""Statuses of splits of an enumerator that are not left to assign: a reader has them, or they were removed."""


def count_splits(operator: Operator) -> int | None:
    """Count the splits that a source knows; None for other operators, and where the number is not known."""
    found = list(_find_states(operator))
    if not found or any(state.connector in _WITHOUT_SPLITS for state in found):
        return None
    rows = [row for state in found for element in state.rows for row in element]
    return sum(map(_is_left, rows)) or None


def _find_states(operator: Operator) -> Iterator[ConnectorState]:
    """Decoded state of the readers, then of the enumerator; nothing for operators that are no sources."""
    try:
        states = [each.detected.state for each in operator.operator_states if isinstance(each, OperatorListState)]
    except StateError:
        # The number of splits is not known without the elements.
        return
    readers = [state for state in states if state is not None and state.kind is ConnectorStateKind.SPLIT]
    yield from readers
    coordinator = operator.metadata.coordinator_state
    enumerator = None if coordinator is None else read_coordinator(coordinator.data).state
    if isinstance(enumerator, AmbiguousState):
        left = narrow_enumerator(enumerator.connectors, map(Detected, readers))
        enumerator = next((each for each in enumerator.candidates if left == (each.connector,)), None)
    if readers and isinstance(enumerator, ConnectorState):
        yield enumerator


def count_reader_splits(operator: Operator) -> int | None:
    """Count the splits that the readers of a source have, whatever connector it is; None for other operators.

    Each element of the state is a split (`SourceOperator.SPLITS_STATE_DESC`); an enumerator may have more.
    """
    if operator.metadata.coordinator_state is None:
        return None
    try:
        states = [each for each in operator.operator_states if each.name == READER_STATE]
        return states[0].count().entries if states else None
    except StateError:
        return None


def _is_left(row: Mapping[str, Any]) -> bool:
    """Return whether a row is a split that is still to be read, and not one that another row is."""
    return not (row.get("status") in _ASSIGNED or row.get("processed") or row.get("finished"))
