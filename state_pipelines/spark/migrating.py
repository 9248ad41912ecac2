"""Migrating one state of a snapshot in Spark, proven before it is published."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.errors import ProofError, UnsupportedError, UsageError, Where, at
from state_pipelines.keyed.encoding import RecordEncoder
from state_pipelines.metadata import CheckpointMetadata, write_metadata
from state_pipelines.operations.migration import UPGRADE, Migration, ValuePlan
from state_pipelines.operations.publishing import NewFile, make_file_name, place_rewrites, plan_copies
from state_pipelines.operations.rewriting import FileRewrite
from state_pipelines.snapshot import Snapshot
from state_pipelines.snapshot.keyed_state import TIMER, KeyedState
from state_pipelines.spark.change import Change, migration_options, new_layout, payload_column, plan_change
from state_pipelines.spark.encoding import PartWriter, encode_frame
from state_pipelines.spark.proof import ProofReport, prove_change
from state_pipelines.spark.tasks import read_frame, run_tasks
from state_pipelines.spark.transforming import transform_payload
from state_pipelines.storage import METADATA_FILE, SnapshotLocation, SnapshotWriter, join, resolve
from state_pipelines.storage.files import remove_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from state_pipelines.serializers.metainfo import StateMetaInfo

PARTS = "_parts"
"""Directory of part files inside the target while it is being written."""


@dataclass(frozen=True)
class MigrationResult:
    """What a migration did.

    Attributes:
        path: the new savepoint.
        snapshot: the new savepoint, opened.
        rows: records that were encoded anew.
        plan: what became of the values.
        proof: None when it was not asked for.
        seconds: wall time.
    """

    path: str
    snapshot: Snapshot
    rows: int
    plan: ValuePlan
    proof: ProofReport | None
    seconds: float


def migrate(
    spark: SparkSession,
    snapshot: Snapshot,
    migration: Migration,
    target: str,
    *,
    direction: str = UPGRADE,
    prove: bool = True,
) -> MigrationResult:
    """Write a new savepoint in which the values of one state are as the migration says; all else is copied as bytes.

    Args:
        spark: the session.
        snapshot: the old snapshot; it is not touched.
        migration: what to do.
        target: directory of the new savepoint, which must not exist.
        direction: `upgrade` or `downgrade`.
        prove: read the result back and judge it before it is published.

    Raises:
        MigrationError: the migration does not fit the state, or Spark refuses an expression.
        UnsupportedError: the state has no columnar form.
        UsageError: the session does not run ANSI SQL.
        TargetExistsError: there is something at the target.
        ProofError: the proof failed; its `report` says how, and nothing is left at the target.
    """
    if spark.conf.get("spark.sql.ansi.enabled") != "true":
        # Without it a cast that overflows gives null without a word.
        raise UsageError("the session does not run ANSI SQL", hint="Set spark.sql.ansi.enabled to true")
    started = time.monotonic()
    operator = snapshot.operator(migration.operator)
    state = operator.state(migration.state)
    if not isinstance(state, KeyedState) or state.kind == TIMER:
        raise UnsupportedError(
            f"{state.kind} state cannot be migrated", where=Where(operator=operator.label, state=state.name)
        )
    with at(operator=operator.label, state=state.name):
        change = plan_change(state, migration, direction)
    with SnapshotWriter(resolve(target)) as writer:
        new, rows = _write(spark, state, change, writer)
        location = SnapshotLocation(writer.target, writer.locate(METADATA_FILE))
        result = Snapshot(location, new, snapshot.path_mapping, snapshot.uids, snapshot.classes)
        proof = None
        if prove:
            after = result.operator(migration.operator).state(migration.state)
            assert isinstance(after, KeyedState)
            proof = prove_change(spark, state, after, change)
            if not proof.ok:
                failed = ", ".join(check.name for check in proof.checks if not check.ok)
                raise ProofError(
                    f"the proof failed ({failed}); nothing was published",
                    where=Where(operator=operator.label, state=state.name),
                    report=proof,
                )
        writer.publish(write_metadata(new))
    return MigrationResult(result.path, result, rows, change.plan, proof, time.monotonic() - started)


def _write(
    spark: SparkSession, state: KeyedState, change: Change, writer: SnapshotWriter
) -> tuple[CheckpointMetadata, int]:
    snapshot = state.operator.snapshot
    layout = new_layout(state, change.info)
    frame = read_frame(spark, state, migration_options(state.layout, change.plan))
    frame = transform_payload(frame, payload_column(layout), change.plan, snapshot.layout_context)
    directory = join(writer.target, PARTS)
    part_writer = PartWriter(RecordEncoder(layout, state.name), directory, state.operator.label)
    parts = encode_frame(frame, part_writer)
    rewrites = [
        FileRewrite(
            subtask=part.subtask,
            base=part.file,
            header=replace(part.file.header, states=_with_info(part.file.header.states, part.state_id, change.info)),
            copied=tuple((each, each) for each in range(len(part.file.header.states)) if each != part.state_id),
            encoded=((part.state_id, parts),),
            key_groups=part.file.key_groups,
            context=state.context,
            target=join(writer.target, make_file_name()),
        )
        for part in state.parts
    ]
    written = run_tasks(spark, rewrites, "the new files cannot be written")
    files = [NewFile(rewrite, each) for rewrite, each in zip(rewrites, written, strict=True)]
    metadata = place_rewrites(snapshot.metadata, state.operator.metadata.operator_id, files)
    metadata, copies = plan_copies(snapshot, metadata, writer.target)
    run_tasks(spark, copies, "the files that stay cannot be copied")
    remove_directory(directory)
    return metadata, sum(part.records for part in parts)


def _with_info(states: tuple[StateMetaInfo, ...], state_id: int, info: StateMetaInfo) -> tuple[StateMetaInfo, ...]:
    return (*states[:state_id], info, *states[state_id + 1 :])
