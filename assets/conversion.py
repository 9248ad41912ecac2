"""`converted_savepoint`: the state of a snapshot in another format, in files of its own."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from assets.checks import specify_checks
from assets.inventory import snapshot_inventory
from assets.partitions import open_partition, snapshots
from resources import SparkResource, StorageResource
from state_pipelines.errors import ProofError
from state_pipelines.operations.converting import Format, InFlight, convert
from state_pipelines.snapshot import open_snapshot

if TYPE_CHECKING:
    from state_pipelines.operations.converting import ConversionResult

KEY = dg.AssetKey("converted_savepoint")

VERIFICATION = {"reads_back_equal": "What was written anew holds the records that were there, state by state."}
"""The check of a conversion."""

_COLUMNS = [
    dg.TableColumn("operator", description="uid, or the id when the uid is not known"),
    dg.TableColumn("state"),
    dg.TableColumn("records", "int"),
    dg.TableColumn("bytes", "int", description="of keys and values"),
]


class ConversionConfig(dg.Config):
    """What the new snapshot is to be."""

    format: str = Field(
        default=Format.CANONICAL.value, description="Format of keyed state: canonical, heap, rocksdb or keep."
    )
    compress: bool | None = Field(
        default=None, description="Snappy compression of canonical and heap files; by default as it was."
    )
    in_flight: str = Field(
        default=InFlight.REFUSE.value, description="In-flight data of unaligned checkpoints: refuse, keep or drop."
    )


@dg.asset(
    key=KEY,
    deps=[snapshot_inventory],
    partitions_def=snapshots,
    check_specs=specify_checks(KEY, VERIFICATION, snapshots),
    pool="converted_savepoint",
    group_name="flink_state",
    kinds={"flink", "spark"},
    owners=["team:streaming"],
    tags={"state-pipelines/step": "change"},
)
def converted_savepoint(
    context: dg.AssetExecutionContext, config: ConversionConfig, storage: StorageResource, spark: SparkResource
) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
    """The same state in another format; when it does not read back equal there is no savepoint."""
    from state_pipelines.spark.tasks import run_tasks  # starting Spark takes seconds, so nobody else pays

    snapshot = open_partition(storage, context.partition_key)
    # Every run writes a savepoint of its own: a snapshot is never overwritten.
    target = storage.place_result(f"{context.partition_key}-{config.format}-{context.run.run_id[:8]}")
    try:
        result = convert(
            snapshot,
            target,
            config.format,
            compress=config.compress,
            in_flight=config.in_flight,
            run=partial(run_tasks, spark.session),
        )
    except ProofError as error:
        yield _check(passed=False, observed=str(error))
        raise dg.Failure(str(error), allow_retries=False) from error
    for note in result.notes:
        context.log.warning(note)
    yield _describe(result, config.format)
    equal = f"{len(result.states)} states written anew, all equal"
    yield _check(passed=True, observed=equal if result.verified else "nothing to compare: files were only copied")


def _check(*, passed: bool, observed: str) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=KEY,
        check_name=next(iter(VERIFICATION)),
        passed=passed,
        severity=dg.AssetCheckSeverity.ERROR,
        metadata={"expected": "the records that were there", "observed": observed},
    )


def _describe(result: "ConversionResult", format: str) -> dg.MaterializeResult[None]:
    rows = [
        dg.TableRecord({"operator": operator, "state": state, "records": digest.records, "bytes": digest.bytes})
        for operator, state, digest in result.states
    ]
    return dg.MaterializeResult(
        asset_key=KEY,
        metadata={
            "path": dg.MetadataValue.path(result.path),
            "format": format,
            "states": dg.MetadataValue.table(rows, dg.TableSchema(_COLUMNS)),
            "notes": dg.MetadataValue.md("\n".join(f"- {note}" for note in result.notes)),
            "subtasks": result.converted,
            "copied files": result.copied,
            "bytes": result.bytes,
            "seconds": result.seconds,
            "dagster/row_count": sum(digest.records for *_, digest in result.states),
        },
        data_version=dg.DataVersion(open_snapshot(result.path).fingerprint),
    )
