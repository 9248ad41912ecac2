"""`snapshot_inventory`: all snapshots below the roots of a job."""

# Without the import of `annotations`: Dagster compares the annotation of `context` itself, not its text.

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg

from state_pipelines.dagster.assets import flink_job
from state_pipelines.dagster.automation import DATA_VERSION_TAG
from state_pipelines.dagster.flink_asset import AssetStep, flink_asset
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import Cell, expect_none, make_table
from state_pipelines.metadata.checkpoint import SnapshotKind

if TYPE_CHECKING:
    from state_pipelines.operations.inventory import InventoryUpdate, SnapshotSummary

NAME = "snapshot_inventory"

READABLE = "snapshots_are_readable"
ROOTS = "roots_exist"
RECENT = "recent_savepoint"
"""The check of a job with the threshold `max_hours_without_savepoint`."""

SAMPLE = 10
"""Number of snapshots in the table and in the samples of checks; the Parquet file holds all of them."""

HEARTBEAT = 3600
"""Seconds after which the sensor reports an inventory again in which nothing has changed."""

MIN_AGE = 600
"""Seconds that a report lasts, unless a check has another outcome."""

_TEXT_SIZE = 500

_COLUMNS = [
    dg.TableColumn("snapshot", description="partition key"),
    dg.TableColumn("kind"),
    dg.TableColumn("format", description="of savepoints: canonical or native"),
    dg.TableColumn("checkpoint id", "int"),
    dg.TableColumn("written", description="modification time of _metadata"),
    dg.TableColumn("bytes", "int", description="size of all state, including shared files"),
    dg.TableColumn("shared bytes", "int", description="size of files that other checkpoints may reference"),
    dg.TableColumn("operators", "int"),
    dg.TableColumn("max parallelism", "int", description="the highest of all operators"),
    dg.TableColumn("path"),
]


def build_snapshot_inventory(job: FlinkJob) -> dg.AssetsDefinition:
    """Build the asset `snapshot_inventory` of a job."""
    limit = job.thresholds.savepoint_limit

    @flink_asset(
        job,
        NAME,
        step=AssetStep.SEE,
        kinds={"flink", "parquet"},
        deps=[flink_job.NAME],
        partitioned=False,
        freshness=_build_freshness(job),
        check_specs=list(_specify_checks(job, limit)),
    )
    def snapshot_inventory(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        """All checkpoints and savepoints below the roots: a summary in the metadata, a row for each in a Parquet file.

        Reads only the `_metadata` of snapshots that are not in the file yet. The sensor `new_snapshots`, which lists
        the roots anyway, reports the inventory without a run.
        """
        partitions = context.instance.get_dynamic_partitions(str(job.partitions.name))
        update = job.storage.update_inventory(partitions=partitions)
        if update.rebuilt:
            context.log.warning("The stored inventory was replaced: %s", update.rebuilt)
        yield dg.MaterializeResult(
            metadata=describe_inventory(job, update, partitions),
            data_version=dg.DataVersion(_hash_content(update)),
            check_results=_check(job, update),
        )

    return snapshot_inventory


def describe_inventory(job: FlinkJob, update: "InventoryUpdate", partitions: Iterable[str]) -> dict[str, Any]:
    """Return the metadata of the asset."""
    inventory = update.inventory
    readable = [each for each in inventory.head(SAMPLE * 10) if not each.unreadable]
    return {
        **_count(update),
        **_describe_newest(readable[:1]),
        "prunable partitions": len(update.find_prunable(partitions)),
        "newest snapshots": make_table(_COLUMNS, map(_list_cells, readable[:SAMPLE])),
        "inventory": dg.MetadataValue.path(str(job.storage.inventory)),
        "roots": "; ".join(job.storage.roots),
        "dagster/row_count": len(inventory),
    }


class InventoryReports:
    """Reports of the inventory by the sensor that lists the roots: when something has changed, and every hour.

    Args:
        job: the Flink job.
        stored: what `to_json` returned at the last report; empty before the first one.
    """

    def __init__(self, job: FlinkJob, stored: Mapping[str, Any]) -> None:
        self._job = job
        self._reported: Mapping[str, Any] = stored

    def report(
        self, update: "InventoryUpdate", partitions: Iterable[str], now: datetime
    ) -> list[dg.AssetMaterialization | dg.AssetCheckEvaluation]:
        """Return the events to report: none if there is nothing new.

        Args:
            update: of the inventory.
            partitions: keys of the partitions of the job.
            now: time of the evaluation.
        """
        checks = _check(self._job, update)
        content = _hash_content(update)
        outcomes = "".join("01"[each.passed] for each in checks)
        age = now.timestamp() - self._reported.get("at", 0)
        is_due = age >= HEARTBEAT or (age >= MIN_AGE and content != self._reported.get("content"))
        if not is_due and outcomes == self._reported.get("checks"):
            return []
        self._reported = {"at": round(now.timestamp()), "content": content, "checks": outcomes}
        key = self._job.key(NAME)
        metadata = describe_inventory(self._job, update, partitions)
        return [
            dg.AssetMaterialization(key, metadata=metadata, tags={DATA_VERSION_TAG: content}),
            *(
                dg.AssetCheckEvaluation(
                    key,
                    str(each.check_name),
                    each.passed,
                    each.metadata,
                    severity=each.severity,
                    description=each.description,
                )
                for each in checks
            ),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the last report for the cursor."""
        return dict(self._reported)


def _check(job: FlinkJob, update: "InventoryUpdate") -> list[dg.AssetCheckResult]:
    limit = job.thresholds.savepoint_limit
    recent = [] if limit is None else [_check_recent(update, limit)]
    return [_check_readable(update), _check_roots(update), *recent]


def _hash_content(update: "InventoryUpdate") -> str:
    return hashlib.sha256("\n".join(sorted(update.inventory.keys)).encode()).hexdigest()[:16]


def _build_freshness(job: FlinkJob) -> dg.FreshnessPolicy | None:
    hours = job.thresholds.max_hours_without_inventory
    return None if hours is None else dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=hours))


def _specify_checks(job: FlinkJob, limit: timedelta | None) -> Iterator[dg.AssetCheckSpec]:
    key = job.key(NAME)
    yield dg.AssetCheckSpec(READABLE, asset=key, description="The metadata of every snapshot can be read.")
    yield dg.AssetCheckSpec(ROOTS, asset=key, description="The roots of the job exist.")
    if limit is not None:
        text = f"The newest savepoint that can be read is at most {limit} old."
        yield dg.AssetCheckSpec(RECENT, asset=key, description=text)


def _count(update: "InventoryUpdate") -> dict[str, int]:
    """Return numbers, which the UI plots over time."""
    inventory = update.inventory
    kinds = inventory.table["kind"].to_pylist()
    return {
        "snapshots": len(inventory),
        "checkpoints": kinds.count(SnapshotKind.CHECKPOINT),
        "savepoints": kinds.count(SnapshotKind.SAVEPOINT),
        "opened": len(update.new),
        "unreadable": len(inventory.unreadable()),
        "bytes": inventory.sum("bytes"),
        "keyed bytes": inventory.sum("keyed_bytes"),
        "operator bytes": inventory.sum("operator_bytes"),
        "in-flight bytes": inventory.sum("in_flight_bytes"),
        "shared bytes": inventory.sum("shared_bytes"),
    }


def _describe_newest(newest: list["SnapshotSummary"]) -> dict[str, dg.MetadataValue | str | int | float]:
    described: dict[str, dg.MetadataValue | str | int | float] = {}
    for each in newest:
        described = {"newest": each.key, "bytes of the newest": each.bytes}
        if each.modified is not None:
            described["newest written"] = dg.MetadataValue.timestamp(each.modified)
            age = datetime.now(UTC) - each.modified
            described["hours since the newest"] = _to_hours(age)
    return described


def _list_cells(summary: "SnapshotSummary") -> tuple[Cell, ...]:
    """Return the row of a snapshot in `_COLUMNS`."""
    return (
        summary.key,
        str(summary.kind),
        summary.format,
        summary.checkpoint_id,
        "" if summary.modified is None else summary.modified.isoformat(sep=" ", timespec="seconds"),
        summary.bytes,
        summary.shared_bytes,
        len(summary.operators),
        summary.max_parallelism,
        summary.path[:_TEXT_SIZE],
    )


def _check_readable(update: "InventoryUpdate") -> dg.AssetCheckResult:
    unreadable = update.inventory.unreadable()
    sample = {each.path[:_TEXT_SIZE]: each.unreadable[:_TEXT_SIZE] for each in unreadable.head(SAMPLE)}
    return expect_none(READABLE, len(unreadable), {"sample": sample})


def _check_roots(update: "InventoryUpdate") -> dg.AssetCheckResult:
    missing = update.missing_roots
    return expect_none(ROOTS, len(missing), {"sample": list(missing)[:SAMPLE]})


def _check_recent(update: "InventoryUpdate", limit: timedelta) -> dg.AssetCheckResult:
    newest = next((each for each in update.inventory if each.kind is SnapshotKind.SAVEPOINT and each.key), None)
    taken = None if newest is None else newest.modified
    now = datetime.now(UTC)
    metadata: dict[str, dg.MetadataValue | str] = {"expected": dg.MetadataValue.float(_to_hours(limit))}
    if newest is not None:
        metadata["newest savepoint"] = newest.key
        metadata["snapshot"] = dg.MetadataValue.path(newest.path)
    if taken is not None:
        metadata["observed"] = dg.MetadataValue.float(_to_hours(now - taken))
        metadata["taken"] = dg.MetadataValue.timestamp(taken)
    return dg.AssetCheckResult(
        check_name=RECENT,
        passed=taken is not None and now - taken <= limit,
        severity=dg.AssetCheckSeverity.WARN,
        description=None if newest is not None else "There is no savepoint that can be read.",
        metadata=metadata,
    )


def _to_hours(duration: timedelta) -> float:
    return round(duration.total_seconds() / 3600, 3)
