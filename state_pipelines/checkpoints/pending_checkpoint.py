"""A checkpoint that was triggered and waits for its subtasks.

Source: `PendingCheckpoint`, `DefaultCheckpointPlan`, `VertexFinishedStateChecker`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from state_pipelines.errors import IncompatibleError, UsageError, Where
from state_pipelines.metadata import CheckpointMetadata, OperatorState, SubtaskState, with_version
from state_pipelines.metadata.operator_handles import OperatorStateMode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.checkpoints.requests import CheckpointRequest
    from state_pipelines.checkpoints.task_checkpoint import TaskCheckpoint
    from state_pipelines.metadata import CheckpointProperties, MasterState
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
        timestamp: milliseconds of the clock.
        properties: type of the checkpoint, format of a savepoint, action after it.
        directory: where tasks write files that only this checkpoint references, as relative handles.
        shared: where tasks write files that later checkpoints may reference, as absolute handles; None in a savepoint,
            which shares nothing.
        base_id: completed checkpoint whose shared files tasks may reference instead of writing them again; None for a
            full snapshot.
        scratch: where tasks may write their acknowledgements; gone when the checkpoint ends.
    """

    checkpoint_id: int
    timestamp: int
    properties: CheckpointProperties
    directory: Location
    shared: Location | None
    base_id: int | None
    scratch: Location


class Acknowledgement(Enum):
    """The result of an acknowledgement (`TaskAcknowledgeResult`)."""

    SUCCESS = "success"
    DUPLICATE = "duplicate"
    """The subtask has acknowledged before, for instance because Spark ran it twice."""
    LATE = "late"
    """The checkpoint has ended before."""


class PartialFinishingError(IncompatibleError):
    """Part of the subtasks of an operator with union list state have finished."""


class PendingCheckpoint:
    """A checkpoint that waits for acknowledgements.

    Args:
        trigger: the call to the tasks.
        request: the request that triggered it.
        operators: the operators of the job.
        finished: subtasks that had finished before, by operator id; they do not acknowledge.
        transaction: the transaction of its directory, entered.

    Attributes:
        awaiting: (operator id, subtask) that have not acknowledged.
    """

    def __init__(
        self,
        trigger: CheckpointTrigger,
        request: CheckpointRequest,
        operators: tuple[CheckpointedOperator, ...],
        finished: Mapping[bytes, frozenset[int]],
        transaction: SnapshotTransaction,
    ) -> None:
        self.trigger, self.request, self.transaction = trigger, request, transaction
        self._operators = {each.operator_id: each for each in operators}
        self._finished = dict(finished)
        self._taken: dict[tuple[bytes, int], TaskCheckpoint] = {}
        self.awaiting = {
            (each.operator_id, subtask)
            for each in operators
            for subtask in range(each.parallelism)
            if subtask not in self._finished.get(each.operator_id, ())
        }

    @property
    def checkpoint_id(self) -> int:
        """Id of the checkpoint."""
        return self.trigger.checkpoint_id

    @property
    def properties(self) -> CheckpointProperties:
        """Properties of the checkpoint."""
        return self.trigger.properties

    @property
    def can_be_subsumed(self) -> bool:
        """Whether a later checkpoint ends it; savepoints are waited for."""
        return not self.properties.is_savepoint

    @property
    def state_size(self) -> int:
        """Bytes of state that was acknowledged."""
        return sum(each.state_size for each in self._taken.values())

    @property
    def persisted_size(self) -> int:
        """Bytes that the tasks added."""
        return sum(each.persisted_size for each in self._taken.values())

    def acknowledge(self, task: TaskCheckpoint) -> Acknowledgement:
        """Take the snapshot of a subtask.

        Raises:
            UsageError: the job has no such operator or subtask, or the subtask is one that had finished.
        """
        key = task.operator_id, task.state.index
        if key in self._taken:
            return Acknowledgement.DUPLICATE
        if key not in self.awaiting:
            known = self._operators.get(task.operator_id)
            raise UsageError(
                f"checkpoint {self.checkpoint_id} does not wait for subtask {task.state.index}",
                where=Where(operator=known.label if known else task.operator_id.hex()),
                hint="Only subtasks that were triggered acknowledge a checkpoint",
            )
        self.awaiting.discard(key)
        self._taken[key] = task
        return Acknowledgement.SUCCESS

    def make_metadata(self, version: int, master_states: tuple[MasterState, ...]) -> CheckpointMetadata:
        """Make the metadata of the completed checkpoint.

        Args:
            version: metadata version, unless the values of a subtask need a newer one.
            master_states: states of master hooks.

        Raises:
            PartialFinishingError: see there.
        """
        states = tuple(self._make_operator(each) for each in self._operators.values())
        newest = CheckpointMetadata(7, self.checkpoint_id, master_states, states, self.properties)
        return with_version(newest, max([version, *(each.metadata_version for each in self._taken.values())]))

    def _make_operator(self, operator: CheckpointedOperator) -> OperatorState:
        finished = self._finished.get(operator.operator_id, frozenset())
        subtasks = tuple(
            SubtaskState(index, finished=True) if index in finished else self._taken[operator.operator_id, index].state
            for index in range(operator.parallelism)
        )
        ended = [each.finished for each in subtasks]
        if any(ended) and not all(ended) and any(map(_has_union_state, subtasks)):
            raise PartialFinishingError(
                f"The vertex {operator.name or operator.label} (id = {operator.operator_id.hex()}) has used "
                "UnionListState, but part of its tasks are FINISHED.",
                where=Where(operator=operator.label),
            )
        is_over = bool(ended) and all(ended)
        return OperatorState(
            operator.operator_id,
            operator.parallelism,
            operator.max_parallelism,
            () if is_over else subtasks,
            operator.name,
            operator.uid,
            fully_finished=is_over,
        )


def _has_union_state(subtask: SubtaskState) -> bool:
    handle = subtask.managed_operator_state
    return handle is not None and any(state.mode is OperatorStateMode.UNION for state in handle.states)
