"""`converted_savepoint`: a new savepoint with the state of a snapshot in another format."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.assets import flink_job
from state_pipelines.dagster.expectations import ExpectationsResource, describe_numbers
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import list_texts, make_table
from state_pipelines.dagster.partitions import open_partition
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.dagster.written_savepoints import WrittenSavepoint, materialize_savepoint
from state_pipelines.operations.convert.conversion import convert
from state_pipelines.operations.convert.conversion_plan import InFlight
from state_pipelines.operations.convert.conversion_proof import DESCRIPTION, READS_BACK
from state_pipelines.operations.proofs.proof_reports import DESCRIPTIONS, SOURCE_WHOLE
from state_pipelines.operations.write.publication import FileMode
from state_pipelines.operations.write.state_formats import Format
from state_pipelines.snapshot import open_snapshot

if TYPE_CHECKING:
    from state_pipelines.operations.convert.conversion import ConversionResult

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

    format: str = Field(
        default=Format.CANONICAL.value, description="Format of keyed state: canonical, heap, rocksdb or keep."
    )
    compress: bool | None = Field(
        default=None, description="Snappy compression of canonical and heap files; by default unchanged."
    )
    in_flight: str = Field(
        default=InFlight.REFUSE.value, description="In-flight data of unaligned checkpoints: refuse, keep or drop."
    )
    files: str = Field(default=FileMode.COPY.value, description="Unchanged files: copy, link or reference.")
    target: str | None = Field(
        default=None,
        description="Directory of the new savepoint, which must not exist; by default one below `results`.",
    )


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
        # Each run has its own directory, because a snapshot is never overwritten.
        target = config.target or job.storage.name_result(context.partition_key, config.format, context.run.run_id)

        def write() -> WrittenSavepoint:
            result = convert(
                snapshot,
                target,
                config.format,
                compress=config.compress,
                in_flight=config.in_flight,
                files=config.files,
                run=spark.run_tasks,
            )
            fingerprint = open_snapshot(result.path).fingerprint
            return WrittenSavepoint(describe_conversion(result, config.format), fingerprint, result.notes, result.proof)

        yield from materialize_savepoint(context, job, NAME, expectations, write)

    return converted_savepoint


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
        "seconds": result.seconds,
        **describe_numbers(result.proof),
        "dagster/row_count": sum(digest.records for *_, digest in result.states),
    }
