"""A checkpoint that was triggered and is not complete.

Source: `PendingCheckpoint`, `DefaultCheckpointPlan`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.metadata import CheckpointMetadata, OperatorState, with_version

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from state_pipelines.checkpoints.task_checkpoint import TaskCheckpoint
    from state_pipelines.metadata import CheckpointProperties
    from state_pipelines.operations.write.transaction import SnapshotTransaction
    from state_pipelines.storage import Location


@dataclass(frozen=True)
class CheckpointedOperator:
    """An operator that takes part in checkpoints.

    Attributes:
        operator_id: 16 bytes; the hash of the uid, where there is one.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.
        uid: the uid, or None.
        name: the name, or None.
    """

    operator_id: bytes
    parallelism: int
    max_parallelism: int
    uid: str | None = None
    name: str | None = None

    @property
    def label(self) -> str:
        """The uid, else the id, for messages."""
        return self.uid or self.operator_id.hex()


@dataclass(frozen=True)
class CheckpointTrigger:
    """The call to all tasks to take their snapshots.

    Attributes:
        checkpoint_id: id of the checkpoint or savepoint.
        properties: type of the checkpoint, format of a savepoint.
        directory: where tasks write files that only this checkpoint references, as relative handles.
        shared: where tasks write files that later checkpoints may reference, as absolute handles; None in a savepoint,
            which shares nothing.
    """

    checkpoint_id: int
    properties: CheckpointProperties
    directory: Location
    shared: Location | None


@dataclass(frozen=True)
class PendingCheckpoint:
    """A checkpoint that waits for its subtasks.

    Attributes:
        trigger: the call to the tasks.
        transaction: the transaction of its directory, entered.
    """

    trigger: CheckpointTrigger
    transaction: SnapshotTransaction


def list_missing(operators: Collection[CheckpointedOperator], taken: Sequence[TaskCheckpoint]) -> list[str]:
    """Return the subtasks, as texts for messages, of which there is not exactly one snapshot."""
    found = Counter((each.operator_id, each.state.index) for each in taken)
    return [
        f"subtask {subtask} of {operator.label}"
        for operator in operators
        for subtask in range(operator.parallelism)
        if found[operator.operator_id, subtask] != 1
    ]


def make_metadata(
    trigger: CheckpointTrigger,
    operators: Collection[CheckpointedOperator],
    taken: Sequence[TaskCheckpoint],
    version: int,
) -> CheckpointMetadata:
    """Make the metadata of a checkpoint.

    Args:
        trigger: the call to the tasks.
        operators: of the job.
        taken: the snapshot of each of their subtasks.
        version: metadata version, unless the values of a subtask need a newer one.
    """
    states = {(each.operator_id, each.state.index): each.state for each in taken}
    made = tuple(
        OperatorState(
            each.operator_id,
            each.parallelism,
            each.max_parallelism,
            tuple(states[each.operator_id, index] for index in range(each.parallelism)),
            each.name,
            each.uid,
        )
        for each in operators
    )
    newest = CheckpointMetadata(7, trigger.checkpoint_id, (), made, trigger.properties)
    return with_version(newest, max([version, *(each.metadata_version for each in taken)]))
