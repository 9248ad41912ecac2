"""Errors of Flink when operators of a snapshot do not fit the job, word for word.

Source: `Checkpoints.loadAndValidateCheckpoint`, `StateAssignmentOperation.checkParallelismPreconditions`.
"""

from __future__ import annotations


def explain_parallelism(operator_id: str, max_parallelism: int, parallelism: int) -> str:
    """The error of an operator with more subtasks than the snapshot has key groups."""
    return (
        f"The state for task {operator_id} can not be restored. The maximum parallelism ({max_parallelism}) of the "
        f"restored state is lower than the configured parallelism ({parallelism}). Please reduce the parallelism of "
        "the task to be lower or equal to the maximum parallelism."
    )


def explain_max_parallelism(snapshot: str, operator_id: str, before: int, after: int) -> str:
    """The error of an operator whose job sets another max parallelism than the snapshot has."""
    return (
        f"Failed to rollback to checkpoint/savepoint {snapshot}. Max parallelism mismatch between "
        f"checkpoint/savepoint state and new program. Cannot map operator {operator_id} with max parallelism {before} "
        f"to new program with max parallelism {after}. This indicates that the program has been changed in a "
        "non-compatible way after the checkpoint/savepoint."
    )


def explain_missing_operator(snapshot: str, operator_id: str) -> str:
    """The error of an operator with state that the job does not have."""
    return (
        f"Failed to rollback to checkpoint/savepoint {snapshot}. Cannot map checkpoint/savepoint state for "
        f"operator {operator_id} to the new program, because the operator is not available in the new program. If you "
        "want to allow to skip this, you can set the --allowNonRestoredState option on the CLI."
    )
