"""`checkpoint` and `savepoint`: the checkpoints and savepoints of a stream that runs here."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from state_pipelines.checkpoints.coordinator import FailureReason
from state_pipelines.dagster.assets.savepoints import (
    CHECKS,
    WrittenSavepoint,
    describe_conversion,
    materialize_savepoint,
)
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.job_settings import StreamSettings, load_function
from state_pipelines.dagster.metadata_values import ExpectationsResource, list_texts, make_table
from state_pipelines.dagster.partitions import make_partition_key
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.datastream.functions import combine_metrics
from state_pipelines.errors import StateError, UsageError, Where
from state_pipelines.operations.auditing import Depth, Property, Severity, audit_snapshot
from state_pipelines.operations.balance import measure_balance
from state_pipelines.operations.convert import convert
from state_pipelines.operations.write.keyed_rewrite import NewFormat
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import join, parent, resolve

if TYPE_CHECKING:
    from state_pipelines.operations.auditing import AuditReport
    from state_pipelines.operations.balance import Balance
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.spark import KeyedProcessResult


CHECKPOINT = "checkpoint"

CHECKPOINT_CHECKS = {
    "restorable": (
        frozenset(Property),
        "The newest checkpoint can be restored, as far as its bytes show; `restore_audit` says more.",
    ),
    "files_present": (
        {Property.FILES, Property.SIZES},
        "Every file that it names exists, with the size that its state handle records.",
    ),
    "key_groups_covered": (
        {Property.KEY_GROUPS, Property.OFFSETS},
        "Every key group is held by exactly one subtask, at an offset inside its file.",
    ),
}
"""The properties of the newest checkpoint of a run that a check is about, and its description."""

_SAMPLE = 10
_FAILURES = [dg.TableColumn(name) for name in ("reason", "message", "cause", "remedy")]
_METRICS = [dg.TableColumn("metric"), dg.TableColumn("kind"), dg.TableColumn("values")]


class CheckpointConfig(dg.Config):
    """The numbers of the checkpoint that are reported."""

    count: bool = Field(default=True, description="Read the newest checkpoint again, to count its entries.")


def build_checkpoint(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `checkpoint` of a job with a stream."""

    @flink_asset(
        job,
        CHECKPOINT,
        step=AssetStep.RUN,
        kinds={"flink", "spark"},
        partitioned=False,
        writes=True,
        pool=CHECKPOINT,
        checks={name: text for name, (_, text) in CHECKPOINT_CHECKS.items()},
        # Without new input there is no checkpoint.
        output_required=False,
    )
    def checkpoint(
        context: dg.AssetExecutionContext, config: CheckpointConfig, spark: SparkResource
    ) -> Iterator[dg.MaterializeResult[None]]:
        """The checkpoints of the stream: a run processes the input that is there, and takes one after each batch.

        If a batch fails, its checkpoint does too: the step shows Flink's reason, and the next run repeats the batch.
        Failures that the options tolerate are shown beside the checkpoint that follows them.
        """
        taken: list[KeyedProcessResult] = []
        try:
            take_checkpoints(job, spark, taken.append)
        except Exception:
            # Those of the batches before are complete.
            yield from _report(job, taken)
            raise
        if not taken:
            context.log.info("There is no new input: no checkpoint was taken.")
            return
        *earlier, last = taken
        yield from _report(job, earlier)
        snapshot = get_snapshot(last)
        yield dg.MaterializeResult(
            asset_key=job.key(CHECKPOINT),
            metadata=describe_checkpoint(last, config, spark),
            data_version=dg.DataVersion(snapshot.fingerprint),
            check_results=list(_check(audit_snapshot(snapshot, Depth.SAMPLE))),
        )

    return checkpoint


def require_stream(job: FlinkJob) -> StreamSettings:
    """Return the stream of a job.

    Raises:
        UsageError: it has none.
    """
    if job.stream is None:
        raise UsageError(f"the job {job.name} has no stream", hint="Set the field stream in the YAML of the job")
    return job.stream


def take_checkpoints(
    job: FlinkJob, spark: SparkResource, on_checkpoint: "Callable[[KeyedProcessResult], None]"
) -> None:
    """Process the input of the stream that is there, and take a checkpoint after each batch.

    Raises:
        UsageError: the job has no stream.
    """
    from state_pipelines.spark.micro_batches import process_available  # Importing Spark takes seconds.

    stream = require_stream(job)
    process_available(
        spark.session,
        load_function(stream.definition),
        checkpoints=stream.checkpoints,
        progress=stream.progress,
        options=stream.options,
        on_checkpoint=on_checkpoint,
        from_snapshot=None if stream.from_snapshot is None else job.storage.open(stream.from_snapshot),
        metrics=stream.metrics,
    )


def describe_checkpoint(result: "KeyedProcessResult", config: CheckpointConfig, spark: SparkResource) -> dict[str, Any]:
    """Return the numbers of the newest checkpoint of a run as metadata."""
    snapshot = get_snapshot(result)
    metadata = _describe(result) | {"snapshot": make_partition_key(snapshot)}
    if config.count:
        metadata["entries"] = _count_entries(measure_balance(snapshot, run=spark.run_tasks))
    return metadata


def _check(report: "AuditReport") -> Iterator[dg.AssetCheckResult]:
    """Yield the results of the checks; what cannot be judged is a warning."""
    grave = [each for each in report.findings if each.severity in (Severity.ERROR, Severity.UNDETERMINED)]
    for name, (properties, _) in CHECKPOINT_CHECKS.items():
        found = [each for each in grave if each.property in properties]
        is_error = any(each.severity is Severity.ERROR for each in found)
        yield dg.AssetCheckResult(
            check_name=name,
            passed=not found,
            severity=dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN,
            metadata={
                "expected": 0,
                "observed": len(found),
                **({"sample": list_texts([str(each) for each in found[:_SAMPLE]], "*")} if found else {}),
            },
        )


def _count_entries(balance: "Balance") -> int:
    for each in balance.operators:
        if each.error:
            raise StateError(
                f"the checkpoint was taken, but cannot be read: {each.error}", where=Where(operator=each.uid)
            )
    return sum(state.records or 0 for each in balance.operators for state in each.states)


def _report(job: FlinkJob, taken: "list[KeyedProcessResult]") -> Iterator[Any]:
    """Yield an event for each of these checkpoints, which later ones may have replaced."""
    for each in taken:
        yield dg.AssetMaterialization(job.key(CHECKPOINT), metadata=_describe(each))


def _describe(result: "KeyedProcessResult") -> dict[str, Any]:
    """Return numbers of a checkpoint, which Dagster plots; none of its run where an earlier run had taken it."""
    snapshot = get_snapshot(result)
    numbers: dict[str, Any] = {"checkpoint id": snapshot.metadata.checkpoint_id}
    if result.state_size:
        numbers |= {
            "duration in ms": result.duration,
            "bytes": result.state_size,
            "new bytes": result.persisted_size,
        }
    if result.postponed:
        numbers["postponed"] = FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS.message
        numbers["postponed by ms"] = result.postponed
    if result.failures:
        rows = [tuple(each.describe().values()) for each in result.failures]
        numbers |= {"failed before": len(rows), "failures": make_table(_FAILURES, rows)}
    return {"path": dg.MetadataValue.path(snapshot.path), **numbers, **_describe_metrics(result)}


def _describe_metrics(result: "KeyedProcessResult") -> dict[str, Any]:
    """Return the metrics of the function over all subtasks: a table, and the counts, which Dagster plots."""
    combined = combine_metrics(result.metrics)
    if not combined:
        return {}
    rows = [
        (
            each.name,
            each.kind,
            each.error or ", ".join(f"{name} {number:,.6g}" for name, number in each.numbers.items()),
        )
        for each in combined
    ]
    counts = {f"metric {each.name}": each.numbers["count"] for each in combined if each.kind in ("counter", "meter")}
    return {"metrics": make_table(_METRICS, rows), **counts}


def get_snapshot(result: "KeyedProcessResult") -> "Snapshot":
    """Return the snapshot of a checkpoint that was taken."""
    assert result.snapshot is not None
    return result.snapshot


SAVEPOINT = "savepoint"


class SavepointFormatConfig(dg.Config):
    """The format of the savepoint."""

    format: NewFormat = Field(
        default="canonical", description="Format of keyed state; every backend of Flink restores canonical."
    )


def build_savepoint(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `savepoint` of a job with a stream."""

    @flink_asset(
        job,
        SAVEPOINT,
        step=AssetStep.RUN,
        kinds={"flink", "spark"},
        deps=[CHECKPOINT],
        checks=CHECKS,
        writes=True,
        # A run of the stream removes old checkpoints, also the one that is read here.
        pool=CHECKPOINT,
        partitioned=False,
    )
    def savepoint(
        context: dg.AssetExecutionContext,
        config: SavepointFormatConfig,
        spark: SparkResource,
        expectations: ExpectationsResource,
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        """A savepoint with the state of the newest checkpoint of the stream, published only if it reads back equal."""
        write = partial(write_savepoint, job, config, spark, context.run.run_id)
        yield from materialize_savepoint(context, job, SAVEPOINT, expectations, write)

    return savepoint


def write_savepoint(
    job: FlinkJob, config: SavepointFormatConfig, spark: SparkResource, run_id: str
) -> WrittenSavepoint:
    """Write a savepoint with the state of the newest checkpoint of the stream.

    Raises:
        ProofError: the proof failed, and there is no new savepoint.
        NotFoundError: there is no checkpoint yet.
        UsageError: the job has no stream.
    """
    stream = require_stream(job)
    newest = job.storage.find_newest(stream.checkpoints)
    flink_id = parent(resolve(newest.path)).name
    # As Flink names them, with digits of the run for its random ones.
    name = f"savepoint-{flink_id[:6]}-{run_id.replace('-', '')[:12]}"
    target = str(join(resolve(stream.savepoints), name))
    result = convert(job.storage.open(newest.path), target, config.format, run=spark.run_tasks)
    metadata = describe_conversion(result, config.format) | {"checkpoint": newest.key}
    return WrittenSavepoint(result.path, metadata, open_snapshot(result.path).fingerprint, result.notes, result.proof)
