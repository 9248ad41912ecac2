"""Assignment of the operators of a snapshot to those of a job, by the hash of their uid.

Source: `Checkpoints.loadAndValidateCheckpoint`, `StateAssignmentOperation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.checkpoints.pending_checkpoint import CheckpointedOperator
from state_pipelines.errors import IncompatibleError, UsageError, Where
from state_pipelines.keyed.key_groups import compute_default_max_parallelism
from state_pipelines.metadata import compute_operator_id
from state_pipelines.operations.check.restore_errors import (
    explain_max_parallelism,
    explain_missing_operator,
    explain_parallelism,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.metadata import OperatorState
    from state_pipelines.snapshot import Snapshot


@dataclass(frozen=True)
class DeclaredOperator:
    """An operator as the job declares it.

    Attributes:
        uid: the uid.
        parallelism: number of subtasks.
        max_parallelism: number of key groups; None for that of the snapshot, or Flink's default without one.
        name: the name, or None.
    """

    uid: str
    parallelism: int
    max_parallelism: int | None = None
    name: str | None = None

    @property
    def operator_id(self) -> bytes:
        """The hash of the uid."""
        return compute_operator_id(self.uid)


@dataclass(frozen=True)
class AssignedOperator:
    """An operator and the state that it starts with.

    Attributes:
        operator: the operator, with its number of key groups.
        state: its state in the snapshot; None where it starts empty.
    """

    operator: CheckpointedOperator
    state: OperatorState | None


def assign_operators(
    wanted: Sequence[DeclaredOperator], snapshot: Snapshot | None, *, allow_non_restored_state: bool = False
) -> list[AssignedOperator]:
    """Find the state of each operator of a job.

    Args:
        wanted: the operators of the job.
        snapshot: the restored snapshot; None for a job that starts empty.
        allow_non_restored_state: state of operators that the job does not have is dropped.

    Raises:
        IncompatibleError: in Flink's words: an operator is missing, its max parallelism differs from the one that the
            job sets, or is lower than its parallelism.
        UsageError: two operators have one uid, or a parallelism is out of bounds.
    """
    by_id = {each.operator_id: each for each in wanted}
    if len(by_id) != len(wanted):
        names = [each.uid for each in wanted]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"the uid {twice!r} occurs twice", hint="Give every operator a uid of its own")
    stored = {} if snapshot is None else {each.operator_id: each for each in snapshot.metadata.operator_states}
    if snapshot is not None and not allow_non_restored_state:
        for state in stored.values():
            if state.operator_id not in by_id and _has_state(state):
                raise IncompatibleError(
                    explain_missing_operator(snapshot.path, state.operator_id.hex()),
                    where=Where(operator=state.uid or state.operator_id.hex()),
                    hint="Give the operator its old uid, or allow its state to be dropped "
                    "(execution.state-recovery.ignore-unclaimed-state)",
                )
    return [_assign(each, stored.get(each.operator_id), snapshot) for each in wanted]


def _assign(wanted: DeclaredOperator, state: OperatorState | None, snapshot: Snapshot | None) -> AssignedOperator:
    where = Where(operator=wanted.uid)
    number = wanted.operator_id.hex()
    if state is not None and snapshot is not None:
        before = state.max_parallelism
        if wanted.max_parallelism not in (None, before):
            raise IncompatibleError(
                explain_max_parallelism(snapshot.path, number, before, wanted.max_parallelism or 0),
                where=where,
                hint=f"Set the max parallelism to {before}, or rescale the snapshot",
            )
        if wanted.parallelism > before:
            raise IncompatibleError(
                explain_parallelism(number, before, wanted.parallelism),
                where=where,
                hint=f"Run with parallelism {before} at most, or rescale the snapshot",
            )
    default = compute_default_max_parallelism(wanted.parallelism) if wanted.max_parallelism is None else 0
    most = state.max_parallelism if state is not None else wanted.max_parallelism or default
    if wanted.parallelism > most:
        raise UsageError(
            f"parallelism {wanted.parallelism} is higher than max parallelism {most}",
            where=where,
            hint="A subtask without key groups could hold no state; lower the parallelism",
        )
    operator = CheckpointedOperator(wanted.operator_id, wanted.parallelism, most, wanted.uid, wanted.name)
    return AssignedOperator(operator, state)


def _has_state(state: OperatorState) -> bool:
    # As `OperatorSubtaskState.hasState`; the coordinator's state alone is dropped silently.
    return any(
        each.managed_operator_state is not None
        or each.raw_operator_state is not None
        or each.managed_keyed_state is not None
        or each.raw_keyed_state is not None
        or each.input_channel_state
        or each.result_subpartition_state
        for each in state.subtasks
    )
