"""The state that a subtask starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
    from state_pipelines.snapshot import Operator


@dataclass(frozen=True)
class RestoredState:
    """State of an operator of a snapshot, of all its subtasks; a subtask takes what belongs to its key groups.

    Attributes:
        keyed_files: keyed state, of any format and any subtasks.
        context: of the operator of the snapshot: number of key groups, and what layouts depend on.
        checkpoint_id: id of the checkpoint or savepoint.
    """

    keyed_files: tuple[KeyedFile, ...]
    context: RecordContext
    checkpoint_id: int

    @staticmethod
    def of(operator: Operator) -> RestoredState:
        """Take the state of an operator of a snapshot.

        Raises:
            StateError: the state cannot be read.
        """
        return RestoredState(
            tuple(file for _, file in operator.keyed_files),
            operator.record_context,
            operator.snapshot.checkpoint_id,
        )
