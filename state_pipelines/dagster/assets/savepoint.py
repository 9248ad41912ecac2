"""`savepoint`: a savepoint of a stream that runs here."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

from collections.abc import Iterator
from functools import partial

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.assets import checkpoint
from state_pipelines.dagster.assets.checkpoint import require_stream
from state_pipelines.dagster.assets.converted_savepoint import CHECKS, describe_conversion
from state_pipelines.dagster.configurations import NewFormatName
from state_pipelines.dagster.expectations import ExpectationsResource
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.dagster.written_savepoints import WrittenSavepoint, materialize_savepoint
from state_pipelines.operations.convert import convert
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import join, parent, resolve

NAME = "savepoint"


class SavepointConfig(dg.Config):
    """The format of the savepoint."""

    format: NewFormatName = Field(
        default="canonical", description="Format of keyed state; every backend of Flink restores canonical."
    )


def build_savepoint(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `savepoint` of a job with a stream."""

    @flink_asset(
        job,
        NAME,
        step=AssetStep.RUN,
        kinds={"flink", "spark"},
        deps=[checkpoint.NAME],
        checks=CHECKS,
        writes=True,
        # A run of the stream removes old checkpoints, also the one that is read here.
        pool=checkpoint.NAME,
        partitioned=False,
    )
    def savepoint(
        context: dg.AssetExecutionContext,
        config: SavepointConfig,
        spark: SparkResource,
        expectations: ExpectationsResource,
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        """A savepoint with the state of the newest checkpoint of the stream, published only if it reads back equal."""
        write = partial(write_savepoint, job, config, spark, context.run.run_id)
        yield from materialize_savepoint(context, job, NAME, expectations, write)

    return savepoint


def write_savepoint(job: FlinkJob, config: SavepointConfig, spark: SparkResource, run_id: str) -> WrittenSavepoint:
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
