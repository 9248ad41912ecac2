"""`bootstrapped_savepoint`: a savepoint with new states, out of tables, from which a Flink job starts."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.configurations import NewFormatName
from state_pipelines.dagster.expectations import ExpectationsResource, describe_numbers
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import list_texts, make_table, round_seconds
from state_pipelines.dagster.python_functions import load_function
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.dagster.written_savepoints import WrittenSavepoint, materialize_savepoint
from state_pipelines.errors import UsageError, Where
from state_pipelines.operations.bootstrap.bootstrap import DESCRIPTIONS, plan_bootstrap
from state_pipelines.operations.bootstrap.new_states import NewOperator
from state_pipelines.operations.bootstrap.parquet_rows import ParquetRows, load_bootstrap
from state_pipelines.operations.choices import parse_choice
from state_pipelines.operations.write.keyed_rewrite import Format
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from state_pipelines.operations.bootstrap.bootstrap import BootstrapResult

NAME = "bootstrapped_savepoint"

_COLUMNS = [dg.TableColumn("operator"), dg.TableColumn("state"), dg.TableColumn("entries", "int")]


class BootstrapConfig(dg.Config):
    """Format of the new savepoint, and the snapshot on top of which it is written."""

    format: NewFormatName = Field(default="canonical", description="Format of keyed state.")
    base: str | None = Field(
        default=None, description="Path or URL of a snapshot that all other state is taken from; none by default."
    )
    flink_version: str | None = Field(
        default=None,
        description="Release that starts from the savepoint, such as 1.20: values of Kryo are those of its line. "
        "Default the line of the base, else 2.x.",
    )


def build_bootstrapped_savepoint(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `bootstrapped_savepoint` of a job with the field `bootstrap`."""

    @flink_asset(
        job, NAME, step=AssetStep.CHANGE, kinds={"flink", "spark"}, checks=DESCRIPTIONS, writes=True, partitioned=False
    )
    def bootstrapped_savepoint(
        context: dg.AssetExecutionContext,
        config: BootstrapConfig,
        spark: SparkResource,
        expectations: ExpectationsResource,
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        """A first savepoint of the job: its states out of tables, published only if they read back equal."""
        write = partial(write_bootstrapped, job, config, spark, context.run.run_id)
        yield from materialize_savepoint(context, job, NAME, expectations, write)

    return bootstrapped_savepoint


def write_bootstrapped(job: FlinkJob, config: BootstrapConfig, spark: SparkResource, run_id: str) -> WrittenSavepoint:
    """Write a savepoint with the states of the field `bootstrap`.

    Raises:
        ProofError: the proof failed, and there is no new savepoint.
        UsageError: the job has no field `bootstrap`, or it does not fit.
    """
    if job.bootstrap is None:
        raise UsageError(f"the job {job.name} has no new states", hint="Set the field bootstrap in the YAML of the job")
    # Each run has its own directory, because a snapshot is never overwritten.
    target = job.storage.name_result("savepoint", "bootstrapped", run_id)
    result = _bootstrap(job, job.bootstrap, target, config, spark)
    return WrittenSavepoint(result.path, _describe(result), result.snapshot.fingerprint, result.notes, result.proof)


def _bootstrap(
    job: FlinkJob, definition: str, target: str, config: BootstrapConfig, spark: SparkResource
) -> "BootstrapResult":
    from state_pipelines.spark import bootstrap  # Importing Spark takes seconds.
    from state_pipelines.spark.tasks import uses_other_machines

    format = parse_choice(Format, config.format, "format")
    base = None if config.base is None else job.storage.open(config.base)
    classes = job.job_classes or job.classes
    if ":" in definition and definition.rpartition(":")[0].endswith(".py"):
        return bootstrap(
            target,
            _load_operators(definition, spark),
            base=base,
            format=format,
            spark=spark.session,
            classes=classes or None,
            flink_version=config.flink_version,
        )
    description = load_bootstrap(definition)
    location = resolve(target)
    plan = plan_bootstrap(
        location,
        description.operators,
        ParquetRows(spark.run_tasks),
        base=base,
        format=format,
        layouts=description.make_layouts(base, classes, config.flink_version),
    )
    with SnapshotTransaction(location, spark.run_tasks, is_shared=uses_other_machines(spark.session)) as transaction:
        return plan.run(transaction)


def _load_operators(definition: str, spark: SparkResource) -> Sequence[NewOperator]:
    operators = load_function(definition)(spark.session)
    if not isinstance(operators, list | tuple) or not all(isinstance(each, NewOperator) for each in operators):
        raise UsageError(
            f"the function returns {type(operators).__name__}, and no list of NewOperator",
            where=Where(file=definition),
            hint="Return [NewOperator(uid, [NewState(…)]), …]",
        )
    return operators


def _describe(result: "BootstrapResult") -> dict[str, Any]:
    rows = [(operator, state, entries) for (operator, state), entries in result.entries.items()]
    return {
        "path": dg.MetadataValue.path(result.path),
        "proof": dg.MetadataValue.md(result.proof.to_markdown() if result.proof else ""),
        "states": make_table(_COLUMNS, rows),
        "notes": list_texts(result.notes),
        "bytes": result.bytes,
        "seconds": round_seconds(result.seconds),
        **describe_numbers(result.proof),
        "dagster/row_count": sum(result.entries.values()),
    }
