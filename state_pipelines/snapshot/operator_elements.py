"""Elements of operator state that handles leave out or name twice: looked for before a snapshot is written.

Files of operator state are copied, and no element of them is decoded, so that nothing else would notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import FormatError, UnsupportedError, at
from state_pipelines.operatorstate import read_list_state
from state_pipelines.snapshot.held_key_groups import check_subtasks
from state_pipelines.snapshot.list_state import NonKeyedState
from state_pipelines.snapshot.survey import survey_operator

if TYPE_CHECKING:
    from state_pipelines.snapshot.list_state import NonKeyedSubtaskState
    from state_pipelines.snapshot.operator import Operator

LARGEST_DECODED = 64 << 20
"""Bytes of a file up to which its elements are decoded; of larger ones only `verify` tells whether some are missing."""


def check_elements(operator: Operator) -> list[str]:
    """Check that the handles of an operator name every element of list state once.

    Returns:
        Notes about states whose elements do not use up the bytes up to the next one, as when some are left out.

    Raises:
        FormatError: as of `check_offsets`.
        StateError: a file cannot be read.
    """
    check_offsets(operator)
    notes = []
    for state in _find_states(operator):
        with at(operator=operator.label, state=state.name):
            for subtask_state in state.subtask_states:
                if (problem := _find_problem(state, subtask_state)) is not None:
                    notes.append(
                        f"operator {operator.label}, state {state.name}: elements may be missing, since `_metadata` "
                        f"does not fit the file: {problem}"
                    )
                    break
    return notes


def check_offsets(operator: Operator) -> None:
    """Check what the handles of operator state say of their files, of which only headers are read.

    Raises:
        FormatError: it does not fit the files (see `operatorstate`).
        StateError: a file cannot be read.
    """
    check_subtasks(operator.metadata, str(operator.snapshot.location.metadata))
    states, failures = survey_operator(operator)
    for failure in failures:
        if not isinstance(failure.error, UnsupportedError):
            # Others are in a form that nothing reads, and are copied as they are.
            raise failure.error
    for state in states:
        assert isinstance(state, NonKeyedState)
        with at(operator=operator.label):
            for subtask_state in state.subtask_states:
                subtask_state.unread.check()


def _find_states(operator: Operator) -> list[NonKeyedState]:
    """Those that can be read; others are copied as they are, or refused elsewhere."""
    return [state for state in survey_operator(operator)[0] if isinstance(state, NonKeyedState)]


def _find_problem(state: NonKeyedState, subtask_state: NonKeyedSubtaskState) -> FormatError | None:
    """The error of list elements that do not use up their bytes."""
    # Copies of broadcast state are as many as subtasks, and any of them does.
    if not subtask_state.unread.header.has_list(subtask_state.info.name):
        return None
    if subtask_state.unread.stream.size > LARGEST_DECODED:
        return None
    try:
        read_list_state(subtask_state.read(), subtask_state.info, state.operator.snapshot.layout_context)
    except UnsupportedError:
        return None
    except FormatError as error:
        return error
    return None
