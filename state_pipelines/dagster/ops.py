"""Ops that take and return snapshots, from which jobs are composed: `erase(rescale(migrate()))`.

Each op is about the Flink job that is the resource `flink_job`. The assets of the job call the same functions.
"""

# Without the import of `annotations`: Dagster reads those of configurations.

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import dagster as dg
from pydantic import Field, model_validator

from state_pipelines.dagster.assets import applied_retention, retention_plan, snapshots
from state_pipelines.dagster.assets.checkpoint import (
    CheckpointConfig,
    SavepointFormatConfig,
    describe_checkpoint,
    get_snapshot,
    take_checkpoints,
    write_savepoint,
)
from state_pipelines.dagster.assets.savepoints import (
    TARGET,
    BootstrapConfig,
    ConversionConfig,
    MigrationRunConfig,
    RescaleConfig,
    write_bootstrapped,
    write_converted,
    write_migrated,
    write_rescaled,
)
from state_pipelines.dagster.assets.snapshots import MigrationConfig, describe_report, judge_snapshot, list_reasons
from state_pipelines.dagster.flink_asset import NON_EMPTY_TEXT, checked_op, make_config
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import list_texts, make_table, round_seconds
from state_pipelines.dagster.partition_jobs import register_paths
from state_pipelines.dagster.partitions import make_partition_key
from state_pipelines.dagster.pinning import change_pin, restore_snapshots
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.dagster.written_savepoints import NameTarget, WrittenSavepoint
from state_pipelines.errors import IncompatibleError, ProofError, StateError, Where
from state_pipelines.keyed.keys import KeyText
from state_pipelines.operations.auditing import Depth, audit_snapshot
from state_pipelines.operations.auditing.report import AuditRequest
from state_pipelines.operations.check.check import CheckVerdict
from state_pipelines.operations.erase import plan_erasure, require_searched, run_erasure, search_below
from state_pipelines.operations.key_search import KeySearch
from state_pipelines.operations.proofs import ProofReport
from state_pipelines.operations.requests import PinRequest, RestoreRequest
from state_pipelines.snapshot import Snapshot

if TYPE_CHECKING:
    from state_pipelines.operations.rescale import RescaleResult
    from state_pipelines.spark import KeyedProcessResult


_COLUMNS = [
    dg.TableColumn("snapshot"),
    dg.TableColumn("operator", description="uid, or the id when the uid is not known"),
    dg.TableColumn("state"),
    dg.TableColumn("key", "int", description="index in `keys` of the run configuration"),
    dg.TableColumn("entries", "int"),
]


class KeysConfig(dg.Config):
    """The keys to look for."""

    keys: list[str] = Field(
        min_length=1,
        description="Keys: plain text for String keys, otherwise JSON, as for `state-pipelines erase --key`.",
    )
    root: str = Field(default="", description="Also search all snapshots below this directory for the keys.")


class ErasureConfig(KeysConfig):
    """The keys to erase."""

    target: str = Field(default="", description=TARGET)
    strict: bool = Field(default=True, description="Fail, and write nothing, if some state cannot be searched.")


def find_keys(job: FlinkJob, snapshot: Snapshot, config: KeysConfig, spark: SparkResource) -> dict[str, Any]:
    """Search a snapshot for keys, and perhaps others; return metadata. Nothing is written."""
    plan = plan_erasure(snapshot, _parse_keys(config), run=spark.run_tasks)
    return _describe([plan.search, *_search_others(job, config, spark)], None)


def erase_keys(
    job: FlinkJob, snapshot: Snapshot, config: ErasureConfig, spark: SparkResource, target: str
) -> tuple[str | None, dict[str, Any]]:
    """Erase keys from every operator keyed by them.

    Args:
        job: the Flink job.
        snapshot: the snapshot.
        config: keys, and the directory whose snapshots are searched too.
        spark: runs the tasks.
        target: directory of the new snapshot.

    Returns:
        the path of the new snapshot, None if no state has the keys; and metadata.

    Raises:
        StateError: some state cannot be searched, or the target exists.
    """
    plan = plan_erasure(snapshot, _parse_keys(config), target, run=spark.run_tasks)
    if config.strict:
        require_searched(plan)
    result = run_erasure(plan, spark.run_tasks)
    searches = [plan.search, *_search_others(job, config, spark)]
    return None if result is None else result.path, _describe(searches, result)


def _parse_keys(config: KeysConfig) -> list[KeyText]:
    return [KeyText(each) for each in config.keys]


def _search_others(job: FlinkJob, config: KeysConfig, spark: SparkResource) -> list[KeySearch]:
    if not config.root:
        return []
    return list(search_below(config.root, _parse_keys(config), open_other=job.storage.open, run=spark.run_tasks))


def _describe(searches: Sequence[KeySearch], result: "RescaleResult | None") -> dict[str, Any]:
    rows = [
        (search.path, found.operator, found.state, found.key, found.entries)
        for search in searches
        for found in search.found
    ]
    metadata: dict[str, Any] = {
        "found": make_table(_COLUMNS, rows),
        "snapshots that hold the keys": [search.path for search in searches if search.found],
        "not searched": [
            f"{search.path}{operator and f', operator {operator}'}: {reason}"
            for search in searches
            for operator, reason in search.unsearched
        ],
    }
    if result is not None:
        metadata |= {
            "path": dg.MetadataValue.path(result.path),
            "files written": result.files_written,
            "files taken over": result.files_taken,
            "bytes": result.bytes,
            "seconds": round_seconds(result.seconds),
        }
    return metadata


_SHOWN = 10


class SnapshotPath(str):
    """Path or URL of a snapshot; as an input also the name of its directory, its partition key, or `latest`."""

    __slots__ = ()


@dg.dagster_type_loader(NON_EMPTY_TEXT)
def _load_path(context: object, text: str) -> SnapshotPath:
    return SnapshotPath(text)


@dg.dagster_type_loader(NON_EMPTY_TEXT)
def _load_text(context: object, text: str) -> str:
    return text


dg.make_python_type_usable_as_dagster_type(
    SnapshotPath,
    dg.DagsterType(
        name="SnapshotPath",
        type_check_fn=lambda _, value: isinstance(value, str) and bool(value.strip()),
        typing_type=SnapshotPath,
        loader=_load_path,
        description="Path or URL of a snapshot; as an input also the name of its directory, its partition key, or "
        "latest.",
    ),
)

FINGERPRINT = dg.DagsterType(
    name="PlanFingerprint",
    type_check_fn=lambda _, value: isinstance(value, str) and bool(value.strip()),
    typing_type=str,
    loader=_load_text,
    description="Fingerprint of a retention plan, as retention_plan shows it.",
)


class VerifyConfig(make_config(AuditRequest)):  # type: ignore[misc]
    """Depth of the audit."""


class PinConfig(make_config(PinRequest)):  # type: ignore[misc]
    """Reason of a pin, or its removal."""

    unpin: bool = Field(default=False, description="Remove the pin.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.unpin and self.reason:
            raise ValueError("reason has no effect with unpin, it is why a snapshot is pinned: leave one out")
        return self


class RestoreConfig(make_config(RestoreRequest)):  # type: ignore[misc]
    """The snapshots that come back from quarantine."""

    snapshot: str = Field(
        min_length=1,
        description="Name or path of the directory of the snapshot, or the fingerprint of the plan that was applied.",
    )


@checked_op()
def check(
    context: dg.OpExecutionContext,
    config: MigrationConfig,
    flink_job: dg.ResourceParam[FlinkJob],
    snapshot: SnapshotPath,
) -> SnapshotPath:
    """Fail if Flink would refuse the state in the new job, with the pending revisions. Returns the snapshot."""
    opened = _open(context, flink_job, snapshot)
    report = judge_snapshot(flink_job, opened, config)
    context.add_output_metadata(describe_report(report, opened))
    verdict = report.migrated.verdict
    if verdict is CheckVerdict.INCOMPATIBLE:
        reasons = "; ".join(list_reasons(report)[:_SHOWN])
        raise IncompatibleError(
            f"Flink would refuse the state in the new job: {reasons}", where=Where(file=opened.path)
        )
    if not report.ok:
        context.log.warning("The verdict is %s", verdict)
    return SnapshotPath(opened.path)


@checked_op()
def verify(
    context: dg.OpExecutionContext, config: VerifyConfig, flink_job: dg.ResourceParam[FlinkJob], snapshot: SnapshotPath
) -> SnapshotPath:
    """Fail if the snapshot is damaged, so that Flink could not restore it. Returns the snapshot."""
    opened = _open(context, flink_job, snapshot)
    report = audit_snapshot(opened, Depth(config.depth))
    context.add_output_metadata(snapshots.describe_audit(report))
    for finding in report.findings[:_SHOWN]:
        context.log.warning("%s: %s", finding.severity, finding)
    if not report.restorable:
        raise snapshots.make_damage_error(report)
    return SnapshotPath(opened.path)


@checked_op()
def migrate(
    context: dg.OpExecutionContext,
    config: MigrationRunConfig,
    flink_job: dg.ResourceParam[FlinkJob],
    spark: SparkResource,
    snapshot: SnapshotPath,
) -> SnapshotPath:
    """Apply the pending revisions of the job. Returns the new savepoint, or the snapshot itself if none are pending."""
    opened = _open(context, flink_job, snapshot)
    name_target = _name_results(context, flink_job, opened)
    return publish_savepoint(context, opened, lambda: write_migrated(flink_job, opened, config, spark, name_target))


@checked_op()
def rescale(
    context: dg.OpExecutionContext,
    config: RescaleConfig,
    flink_job: dg.ResourceParam[FlinkJob],
    spark: SparkResource,
    snapshot: SnapshotPath,
) -> SnapshotPath:
    """Change parallelism, max parallelism or operators. Returns the new savepoint."""
    opened = _open(context, flink_job, snapshot)
    name_target = _name_results(context, flink_job, opened)
    return publish_savepoint(context, opened, lambda: write_rescaled(flink_job, opened, config, spark, name_target))


@checked_op()
def convert(
    context: dg.OpExecutionContext,
    config: ConversionConfig,
    flink_job: dg.ResourceParam[FlinkJob],
    spark: SparkResource,
    snapshot: SnapshotPath,
) -> SnapshotPath:
    """Convert to another format. Returns the new savepoint."""
    opened = _open(context, flink_job, snapshot)
    name_target = _name_results(context, flink_job, opened)
    return publish_savepoint(context, opened, lambda: write_converted(opened, config, spark, name_target))


@checked_op()
def erase(
    context: dg.OpExecutionContext,
    config: ErasureConfig,
    flink_job: dg.ResourceParam[FlinkJob],
    spark: SparkResource,
    snapshot: SnapshotPath,
) -> SnapshotPath:
    """Erase keys from every operator keyed by them. Returns the new snapshot, or the same if no state has the keys."""
    opened = _open(context, flink_job, snapshot)
    target = config.target or _name_results(context, flink_job, opened)("erased")
    path, metadata = erase_keys(flink_job, opened, config, spark, target)
    _report_search(context, metadata)
    if path is None:
        context.log.info("No state contains the keys: nothing was written")
    return SnapshotPath(path or opened.path)


@checked_op()
def search(
    context: dg.OpExecutionContext,
    config: KeysConfig,
    flink_job: dg.ResourceParam[FlinkJob],
    spark: SparkResource,
    snapshot: SnapshotPath,
) -> SnapshotPath:
    """Report which states and snapshots contain keys; nothing is written. Returns the snapshot."""
    opened = _open(context, flink_job, snapshot)
    _report_search(context, find_keys(flink_job, opened, config, spark))
    return SnapshotPath(opened.path)


@checked_op()
def bootstrap(
    context: dg.OpExecutionContext,
    config: BootstrapConfig,
    flink_job: dg.ResourceParam[FlinkJob],
    spark: SparkResource,
) -> SnapshotPath:
    """Write a first savepoint with the states of the field `bootstrap` of the job. Returns it."""
    return publish_savepoint(context, None, lambda: write_bootstrapped(flink_job, config, spark, context.run.run_id))


@checked_op(out=dg.Out(SnapshotPath, is_required=False, description="None without new input."))
def checkpoint(
    context: dg.OpExecutionContext,
    config: CheckpointConfig,
    flink_job: dg.ResourceParam[FlinkJob],
    spark: SparkResource,
) -> Iterator[dg.Output[SnapshotPath]]:
    """Process the input of the stream that is there. Returns the newest checkpoint."""
    taken: list[KeyedProcessResult] = []
    take_checkpoints(flink_job, spark, taken.append)
    if not taken:
        context.log.info("There is no new input: no checkpoint was taken.")
        return
    metadata = describe_checkpoint(taken[-1], config, spark)
    yield dg.Output(SnapshotPath(get_snapshot(taken[-1]).path), metadata=metadata)


@checked_op(ins={"after": dg.In(dg.Nothing)})
def savepoint(
    context: dg.OpExecutionContext,
    config: SavepointFormatConfig,
    flink_job: dg.ResourceParam[FlinkJob],
    spark: SparkResource,
) -> SnapshotPath:
    """Write a savepoint with the state of the newest checkpoint of the stream. Returns it."""
    return publish_savepoint(context, None, lambda: write_savepoint(flink_job, config, spark, context.run.run_id))


@checked_op(ins={"after": dg.In(dg.Nothing)}, out=dg.Out(FINGERPRINT))
def plan_retention(context: dg.OpExecutionContext, flink_job: dg.ResourceParam[FlinkJob]) -> str:
    """Plan which snapshots and files go; nothing is deleted. Returns the fingerprint of the plan."""
    plan, metadata = retention_plan.store_plan(flink_job, context.log)
    context.add_output_metadata(metadata)
    return plan.fingerprint


@checked_op(ins={"fingerprint": dg.In(FINGERPRINT)}, out=dg.Out(dg.Nothing))
def apply_retention(context: dg.OpExecutionContext, flink_job: dg.ResourceParam[FlinkJob], fingerprint: str) -> None:
    """Plan again, and delete or quarantine exactly the paths of the plan, if it has the same fingerprint."""
    result, metadata = applied_retention.apply_fingerprint(flink_job, fingerprint, context.log)
    context.add_output_metadata(metadata)
    if result.finished:
        retention_plan.report_applied(context.instance, flink_job, fingerprint, context.run.run_id)


@checked_op()
def pin(
    context: dg.OpExecutionContext, config: PinConfig, flink_job: dg.ResourceParam[FlinkJob], snapshot: SnapshotPath
) -> SnapshotPath:
    """Pin the snapshot, so that retention never deletes it, or remove the pin. Returns the snapshot."""
    path = _find(context, flink_job, snapshot)
    change_pin(flink_job, path, reason=config.reason, unpin=config.unpin)
    context.log.info("%s is %s", path, "no longer pinned" if config.unpin else "pinned")
    context.add_output_metadata({"snapshot": dg.MetadataValue.path(path), "pinned": not config.unpin})
    return SnapshotPath(path)


@checked_op()
def restore(
    context: dg.OpExecutionContext, config: RestoreConfig, flink_job: dg.ResourceParam[FlinkJob]
) -> list[SnapshotPath]:
    """Move a snapshot, or those of a plan, back from quarantine, and pin them. Returns the snapshots that are back."""
    reason = f"{config.reason} (run {context.run.run_id[:8]})"
    restored = restore_snapshots(flink_job, config.snapshot, reason=reason)
    for doubt in restored.doubts:
        context.log.warning("It cannot be seen whether it is complete: %s", doubt)
    context.add_output_metadata(
        {
            "snapshots": list_texts(restored.snapshots),
            "files": restored.files,
            "bytes": restored.bytes,
            "pinned": len(restored.snapshots),
        }
    )
    if restored.problems:
        raise StateError(
            f"not everything is back: {'; '.join(restored.problems[:_SHOWN])}",
            hint="What is back stays, and is pinned",
        )
    return [SnapshotPath(each) for each in restored.snapshots]


@checked_op()
def register(
    context: dg.OpExecutionContext, flink_job: dg.ResourceParam[FlinkJob], snapshot: SnapshotPath
) -> SnapshotPath:
    """Add a partition for the snapshot, so that assets can be materialised for it. Returns the snapshot."""
    path = _open(context, flink_job, snapshot).path
    (key,) = register_paths(flink_job, context.instance, [path])
    context.log.info("%s has the partition %s", path, key)
    context.add_output_metadata({"partition": key})
    return SnapshotPath(path)


def _find(context: dg.OpExecutionContext, job: FlinkJob, snapshot: str) -> str:
    """Return the path of a snapshot that is given by its path, its name, its partition key, or `latest`."""
    return snapshot if "/" in snapshot else job.storage.find_named(snapshot, warn=context.log.warning)[1]


def _open(context: dg.OpExecutionContext, job: FlinkJob, snapshot: str) -> Snapshot:
    return job.storage.open(_find(context, job, snapshot))


def _report_search(context: dg.OpExecutionContext, metadata: Mapping[str, Any]) -> None:
    for text in metadata["not searched"]:
        context.log.warning("not searched: %s", text)
    context.add_output_metadata(metadata)


def _name_results(context: dg.OpExecutionContext, job: FlinkJob, snapshot: Snapshot) -> NameTarget:
    """Return a function that names the savepoint of an op, below the results of the job; a job may use an op twice."""
    key, alias = make_partition_key(snapshot), context.op_handle.name
    suffix = "" if alias == context.op_def.name else f"-{alias}"
    return lambda purpose: job.storage.name_result(key, f"{purpose}{suffix}", context.run.run_id)


def publish_savepoint(
    context: dg.OpExecutionContext, snapshot: Snapshot | None, write: Callable[[], WrittenSavepoint | None]
) -> SnapshotPath:
    """Write a savepoint; return its path, or that of the snapshot if there is nothing to write.

    Raises:
        ProofError: the proof failed; the failure of the step shows it, the failed checks first.
    """
    try:
        savepoint = write()
    except ProofError as error:
        if isinstance(error.report, ProofReport):
            failed = [f"{each.name}: expected {each.expected}; {each.observed}" for each in error.report.failed]
            error.details["failed checks"] = "\n".join(failed)
            error.details["proof"] = error.report.to_markdown()
        raise
    if savepoint is None:
        assert snapshot is not None
        context.log.info("There is nothing to change: nothing was written.")
        context.add_output_metadata({"path": dg.MetadataValue.path(snapshot.path)})
        return SnapshotPath(snapshot.path)
    for note in savepoint.notes:
        context.log.warning(note)
    context.add_output_metadata(savepoint.metadata)
    return SnapshotPath(savepoint.path)
