"""The state that a subtask starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from state_pipelines.backends.restored_elements import OldOperatorState
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
    from state_pipelines.snapshot import Operator


@dataclass(frozen=True)
class RestoredState:
    """State of an operator of a snapshot, of all its subtasks; a subtask takes what belongs to its key groups.

    Attributes:
        keyed_files: keyed state, of any format and any subtasks.
        operator_states: operator state of every subtask, by its index; None of those without.
        context: of the operator of the snapshot: number of key groups, and what layouts depend on.
        checkpoint_id: id of the checkpoint or savepoint.
        snapshot: its path, for errors.
    """

    keyed_files: tuple[KeyedFile, ...]
    operator_states: tuple[OldOperatorState, ...]
    context: RecordContext
    checkpoint_id: int
    snapshot: str = ""

    @staticmethod
    def of(operator: Operator) -> RestoredState:
        """Take the state of an operator of a snapshot.

        Raises:
            StateError: the state cannot be read.
        """
        handles = {each.index: each.managed_operator_state for each in operator.metadata.subtasks}
        open_state = operator.snapshot.handles.open_operator
        return RestoredState(
            tuple(file for _, file in operator.keyed_files),
            tuple(open_state(handles.get(index)) for index in range(operator.parallelism)),
            operator.record_context,
            operator.snapshot.checkpoint_id,
            operator.snapshot.path,
        )
