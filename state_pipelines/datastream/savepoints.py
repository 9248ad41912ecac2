"""Savepoints of operators that run in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError, Where
from state_pipelines.metadata import CheckpointMetadata, OperatorState, compute_operator_id, with_version
from state_pipelines.metadata.properties import SavepointFormatType, make_savepoint_properties
from state_pipelines.operations.write.state_formats import Format
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.datastream.function_operator import FunctionOperator
    from state_pipelines.snapshot import Snapshot

METADATA_VERSION = 4
"""Version of `_metadata` that Flink 1.20 and all releases of 2.x read; it has no uids, but their hashes."""


def write_savepoint(
    path: str,
    operators: Mapping[str, Sequence[FunctionOperator]],
    *,
    checkpoint_id: int = 1,
    format: str = "canonical",
    compressed: bool = False,
) -> Snapshot:
    """Write the state of running operators as a savepoint that Flink restores.

    Args:
        path: a directory that does not exist yet or is empty.
        operators: uid -> all subtasks of the operator, open, ascending.
        checkpoint_id: id of the savepoint; the next checkpoint of the job has a larger one.
        format: of the keyed state: canonical, heap or rocksdb.
        compressed: compress the state.

    Returns:
        The savepoint; it knows the uids.

    Raises:
        UsageError: a subtask is missing, or the format has no such name.
        TargetExistsError: the directory holds something.
        StateError: a file cannot be written.
    """
    names = [each.value for each in Format if each is not Format.KEEP]
    if format not in names:
        raise UsageError(f"{format!r} is not a format of savepoints", hint=f"Choose one of {', '.join(names)}")
    for uid, subtasks in operators.items():
        _require_all(uid, subtasks)
    is_canonical = format == Format.CANONICAL.value
    properties = make_savepoint_properties(
        SavepointFormatType.CANONICAL if is_canonical else SavepointFormatType.NATIVE
    )
    with SnapshotTransaction(resolve(path)) as transaction:
        states = tuple(
            OperatorState(
                compute_operator_id(uid),
                len(subtasks),
                subtasks[0].max_parallelism,
                tuple(
                    each.snapshot(
                        transaction.target,
                        f"{compute_operator_id(uid).hex()}-{each.task.index}",
                        checkpoint_id,
                        file_format=Format(format),
                        compressed=compressed,
                    )
                    for each in subtasks
                ),
            )
            for uid, subtasks in operators.items()
        )
        metadata = with_version(CheckpointMetadata(7, checkpoint_id, (), states, properties), METADATA_VERSION)
        transaction.stage(metadata, None)
        transaction.commit()
    return open_snapshot(path, uids=tuple(operators))


def _require_all(uid: str, subtasks: Sequence[FunctionOperator]) -> None:
    wanted = list(range(subtasks[0].task.parallelism)) if subtasks else [0]
    found = [each.task.index for each in subtasks]
    if found != wanted:
        raise UsageError(
            f"a savepoint needs the subtasks {wanted}, and these are {found}",
            where=Where(operator=uid),
            hint="Give all subtasks of the operator, ascending",
        )
