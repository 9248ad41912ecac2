"""Savepoints of operators that run in this process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.codecs.kryo import oldest_metadata_version
from state_pipelines.errors import UsageError, Where
from state_pipelines.metadata import CheckpointMetadata, OperatorState, compute_operator_id, with_version
from state_pipelines.metadata.checkpoint import SavepointFormatType, make_savepoint_properties
from state_pipelines.operations.write.keyed_rewrite import Format, make_file_name
from state_pipelines.operations.write.savepoint_plan import KRYO_OF_FLINK_1, has_kryo
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import resolve
from state_pipelines.storage.files import record_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.datastream.operators import FunctionOperator
    from state_pipelines.metadata import CheckpointProperties
    from state_pipelines.snapshot import Snapshot


def write_savepoint(
    path: str,
    operators: Mapping[str, Sequence[FunctionOperator]],
    *,
    base: Snapshot | None = None,
    checkpoint_id: int | None = None,
    format: str = "canonical",
    compressed: bool = False,
) -> Snapshot:
    """Write the state of running operators as a savepoint that Flink restores.

    Args:
        path: a directory that does not exist yet or is empty.
        operators: uid -> all subtasks of the operator, open, by ascending index.
        base: a snapshot whose other operators are copied; operators of the same uid are replaced.
        checkpoint_id: id of the savepoint; the next checkpoint of the job gets a larger one. Default the id of the
            base plus 1, or 1 without a base.
        format: of the keyed state: canonical, heap or rocksdb.
        compressed: compress the state.

    Returns:
        The savepoint, opened with the uids.

    Raises:
        UsageError: a subtask is missing, `format` is unknown, or Kryo values are of both Kryo 2 and 5.
        TargetExistsError: the directory is not empty.
        StateError: a file cannot be written.
    """
    names = [each.value for each in Format if each is not Format.KEEP]
    if format not in names:
        raise UsageError(f"{format!r} is not a format of savepoints", hint=f"Choose one of {', '.join(names)}")
    for uid, subtasks in operators.items():
        _require_all(uid, subtasks)
    if checkpoint_id is None:
        checkpoint_id = 1 if base is None else base.checkpoint_id + 1
    is_canonical = format == Format.CANONICAL.value
    properties = make_savepoint_properties(
        SavepointFormatType.CANONICAL if is_canonical else SavepointFormatType.NATIVE
    )
    with SnapshotTransaction(resolve(path)) as transaction, record_files(transaction.target) as recorder:
        states = tuple(
            OperatorState(
                compute_operator_id(uid),
                len(subtasks),
                subtasks[0].max_parallelism,
                tuple(
                    each.snapshot(
                        transaction.target,
                        make_file_name(),
                        checkpoint_id,
                        file_format=Format(format),
                        compressed=compressed,
                    )
                    for each in subtasks
                ),
            )
            for uid, subtasks in operators.items()
        )
        transaction.add_files(recorder.files.values())
        version = oldest_metadata_version(_require_one_kryo(operators, base))
        metadata = _make_metadata(base, checkpoint_id, states, properties, version)
        transaction.stage(metadata, base, properties, changed={each.operator_id for each in states})
        transaction.commit()
    return open_snapshot(path, uids=(*operators, *(base.uids if base is not None else ())))


def _make_metadata(
    base: Snapshot | None,
    checkpoint_id: int,
    states: tuple[OperatorState, ...],
    properties: CheckpointProperties,
    version: int,
) -> CheckpointMetadata:
    if base is None:
        return with_version(CheckpointMetadata(7, checkpoint_id, (), states, properties), version)
    own = {each.operator_id for each in states}
    kept = tuple(each for each in base.metadata.operator_states if each.operator_id not in own)
    made = replace(base.metadata, checkpoint_id=checkpoint_id, operator_states=(*kept, *states), properties=properties)
    return with_version(made, base.metadata.version)


def _require_one_kryo(operators: Mapping[str, Sequence[FunctionOperator]], base: Snapshot | None) -> int:
    """Return the major version of Kryo of a savepoint: 2 (Flink 1.x) or 5 (2.x), for its metadata implies only one.

    Raises:
        UsageError: an operator has Kryo values of another version than the base or another operator.
    """
    written = {
        (uid, each.layouts.kryo_version)
        for uid, subtasks in operators.items()
        for each in subtasks
        if has_kryo(each.list_serializers())
    }
    lines = {line for _, line in written} | (set() if base is None else {base.kryo_version})
    if len(lines) > 1:
        found = ", ".join(f"{uid}: Kryo {line}" for uid, line in sorted(written))
        what = "" if base is None else f"; the base is of Flink {1 if base.kryo_version == KRYO_OF_FLINK_1 else 2}.x"
        raise UsageError(
            f"operators write their values with different versions of Kryo (2: Flink 1.x, 5: Flink 2.x): {found}{what}",
            hint="Make all operators with layouts=make_layouts(flink_version=…) of one release",
        )
    return max((each.kryo_version for subtasks in operators.values() for each in subtasks), default=KRYO_OF_FLINK_1)


def _require_all(uid: str, subtasks: Sequence[FunctionOperator]) -> None:
    wanted = list(range(subtasks[0].task.parallelism)) if subtasks else [0]
    found = [each.task.index for each in subtasks]
    if found != wanted:
        raise UsageError(
            f"the subtasks {found} are given, and a savepoint needs {wanted}",
            where=Where(operator=uid),
            hint="Give all subtasks of the operator, ascending",
        )
