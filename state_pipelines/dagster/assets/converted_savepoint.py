"""`converted_savepoint`: a new savepoint with the state of a snapshot in another format."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.assets import flink_job
from state_pipelines.dagster.assets.rescaled_savepoint import TARGET
from state_pipelines.dagster.configurations import FileModeName, FormatName, InFlightName
from state_pipelines.dagster.expectations import ExpectationsResource, describe_numbers
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import list_texts, make_table, round_seconds
from state_pipelines.dagster.partitions import open_partition
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.dagster.written_savepoints import (
    NameTarget,
    WrittenSavepoint,
    materialize_savepoint,
    name_results,
)
from state_pipelines.operations.convert import DESCRIPTION, READS_BACK, convert
from state_pipelines.operations.proofs import DESCRIPTIONS, SOURCE_WHOLE
from state_pipelines.snapshot import Snapshot, open_snapshot

if TYPE_CHECKING:
    from state_pipelines.operations.convert import ConversionResult

NAME = "converted_savepoint"

CHECKS = {READS_BACK: DESCRIPTION, SOURCE_WHOLE: DESCRIPTIONS[SOURCE_WHOLE]}
"""Descriptions of the checks by name; a conversion that only copies files has none."""

_COLUMNS = [
    dg.TableColumn("operator", description="uid, or the id when the uid is not known"),
    dg.TableColumn("state"),
    dg.TableColumn("records", "int"),
    dg.TableColumn("bytes", "int", description="of keys and values"),
]


class ConversionConfig(dg.Config):
    """Format and location of the new savepoint."""

    format: FormatName = Field(default="canonical", description="Format of keyed state.")
    compress: bool | None = Field(
        default=None, description="Snappy compression of canonical and heap files; by default unchanged."
    )
    in_flight: InFlightName = Field(default="refuse", description="In-flight data of unaligned checkpoints.")
    files: FileModeName = Field(default="copy", description="Treatment of unchanged files.")
    target: str = Field(default="", description=TARGET)


def build_converted_savepoint(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `converted_savepoint` of a job."""

    @flink_asset(
        job,
        NAME,
        step=AssetStep.CHANGE,
        kinds={"flink", "spark"},
        deps=[flink_job.NAME],
        checks=CHECKS,
        writes=True,
    )
    def converted_savepoint(
        context: dg.AssetExecutionContext,
        config: ConversionConfig,
        spark: SparkResource,
        expectations: ExpectationsResource,
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        """A savepoint with the same state in another format, published only if it reads back equal."""
        snapshot = open_partition(context, job)
        write = partial(write_converted, snapshot, config, spark, name_results(context, job))
        yield from materialize_savepoint(context, job, NAME, expectations, write)

    return converted_savepoint


def write_converted(
    snapshot: Snapshot, config: ConversionConfig, spark: SparkResource, name_target: NameTarget
) -> WrittenSavepoint:
    """Convert a snapshot to another format.

    Raises:
        ProofError: the proof failed, and there is no new savepoint.
        UsageError: the options do not fit the snapshot.
    """
    result = convert(
        snapshot,
        config.target or name_target(config.format),
        config.format,
        compress=config.compress,
        in_flight=config.in_flight,
        files=config.files,
        run=spark.run_tasks,
    )
    metadata = describe_conversion(result, config.format)
    return WrittenSavepoint(result.path, metadata, open_snapshot(result.path).fingerprint, result.notes, result.proof)


def describe_conversion(result: "ConversionResult", format: str) -> dict[str, Any]:
    """Return the numbers, states and notes of a conversion as metadata."""
    rows = [(operator, state, digest.records, digest.bytes) for operator, state, digest in result.states]
    return {
        "path": dg.MetadataValue.path(result.path),
        "format": format,
        "states": make_table(_COLUMNS, rows),
        "notes": list_texts(result.notes),
        "subtasks": result.converted,
        "copied files": result.copied,
        "bytes": result.bytes,
        "seconds": round_seconds(result.seconds),
        **describe_numbers(result.proof),
        "dagster/row_count": sum(digest.records for *_, digest in result.states),
    }
