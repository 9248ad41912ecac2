"""Dagster jobs of one Flink job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg

from state_pipelines.dagster import ops, pinning
from state_pipelines.dagster.assets import (
    applied_retention,
    checkpoint,
    job_health,
    retention_plan,
    savepoints,
    snapshots,
    state_tables,
)
from state_pipelines.dagster.automation import MIGRATION, PRIORITY_TAG
from state_pipelines.dagster.flink_asset import AssetJob, bind_op, make_op_job

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.dagster.job import FlinkJob
    from state_pipelines.dagster.unexported_names import UnresolvedAssetJobDefinition

    AnyJob = dg.JobDefinition | UnresolvedAssetJobDefinition

INVENTORY = "refresh_inventory"
DESCRIBE = "describe_snapshot"
MIGRATE = "migrate_snapshot"
AUDIT = "audit_snapshot"
PLAN_RETENTION = "plan_retention"
APPLY_RETENTION = "apply_retention"
CONVERT = "convert_snapshot"
RESCALE = "rescale_snapshot"
RESCALE_PATH = "rescale_path"
ERASE = "erase_keys"
SEARCH = "search_keys"
TAKE_CHECKPOINT = "take_checkpoint"
TAKE_SAVEPOINT = "take_savepoint"
BOOTSTRAP = "bootstrap_savepoint"
CHECK_HEALTH = "check_health"
CHECK_QUERY = "check_query"

SQL_REPORT = "sql_compatibility_report"
"""The asset of `sql_queries`."""

NUMBERS = {"max_parallelism": None, "parallelism": None}
"""Configuration of a rescaling with which the launchpad begins. It is empty: no run starts with it."""


def build_migrate_snapshot(job: FlinkJob) -> UnresolvedAssetJobDefinition:
    """Build the job `migrate_snapshot`: report, tables and migrated savepoint of one snapshot."""
    names = [snapshots.COMPATIBILITY_REPORT]
    if job.tables is not None:
        names.append(state_tables.STATE_TABLES)
    if job.migrations is not None or job.new_query is not None:
        names.append(savepoints.MIGRATED_SAVEPOINT)
    names += [] if job.new_query is None else [SQL_REPORT]
    text = "Migrates one snapshot: compatibility report, tables, and the new savepoint with its proof."
    return _select(job, MIGRATE, names, text, priority=MIGRATION)


_JOBS: Mapping[str, tuple[tuple[str, ...], str]] = {
    AUDIT: (
        (snapshots.RESTORE_AUDIT,),
        "Audits one snapshot: are all files there and readable, so that it can be restored?",
    ),
    INVENTORY: (
        (snapshots.SNAPSHOT_INVENTORY,),
        "Lists all snapshots below the roots; reads only the `_metadata` of new ones.",
    ),
    DESCRIBE: (
        (snapshots.SNAPSHOT_PROFILE, snapshots.SNAPSHOT_DIFF, snapshots.KEY_GROUP_BALANCE),
        "Describes one snapshot: profile, key groups, and changes since the previous one. Reads all of its state.",
    ),
    PLAN_RETENTION: (
        (retention_plan.NAME,),
        "Plans which snapshots and files to delete, and why. Deletes nothing.",
    ),
    APPLY_RETENTION: (
        (applied_retention.NAME,),
        "Deletes or quarantines the paths of a plan, whose fingerprint is in the run configuration.",
    ),
    CONVERT: (
        (savepoints.CONVERTED_SAVEPOINT,),
        "Converts one snapshot to another format, canonical by default.",
    ),
    RESCALE: (
        (savepoints.RESCALED_SAVEPOINT,),
        "Rescales one snapshot: another parallelism, other key groups or operators.",
    ),
}
"""Assets and descriptions of the jobs that every Flink job has, by name."""


def build_asset_jobs(job: FlinkJob) -> Iterator[UnresolvedAssetJobDefinition]:
    """Yield the jobs that materialise assets."""
    yield build_migrate_snapshot(job)
    for name, (assets, description) in _JOBS.items():
        yield _select(job, name, assets, description)
    if job.stream is not None:
        text = "Processes the input of the stream that is there, and takes a checkpoint after each batch."
        yield _select(job, TAKE_CHECKPOINT, (checkpoint.CHECKPOINT,), text)
        text = "Writes a savepoint with the state of the newest checkpoint of the stream."
        yield _select(job, TAKE_SAVEPOINT, (checkpoint.SAVEPOINT,), text)
    if job.cluster is not None:
        text = "Asks the cluster how the running job is; changes nothing there."
        yield _select(job, CHECK_HEALTH, (job_health.NAME,), text)
    if job.new_query is not None:
        text = "Reports what the new query keeps of the state of one snapshot."
        yield _select(job, CHECK_QUERY, (SQL_REPORT,), text)
    if job.bootstrap is not None:
        text = "Writes a savepoint with new states out of tables, from which a Flink job starts."
        yield _select(job, BOOTSTRAP, (savepoints.BOOTSTRAPPED_SAVEPOINT,), text)


def build_op_jobs(job: FlinkJob) -> Iterator[dg.JobDefinition]:
    """Yield the jobs of a single op, which take any snapshot by its path or name."""
    for name, op, description, launchpad in _OP_JOBS:
        yield make_op_job(job, name, bind_op(job, op), description, launchpad)


_INPUT: Mapping[str, str] = {"snapshot": ""}

_OP_JOBS: tuple[tuple[str, dg.OpDefinition, str, Mapping[str, object]], ...] = (
    (RESCALE_PATH, ops.rescale, "Rescales any snapshot.", {"inputs": _INPUT, "config": NUMBERS}),
    (ERASE, ops.erase, "Erases keys from a copy of a snapshot.", {"inputs": _INPUT, "config": {"keys": []}}),
    (
        SEARCH,
        ops.search,
        "Reports which states and snapshots contain keys.",
        {"inputs": _INPUT, "config": {"keys": []}},
    ),
    (
        pinning.PIN,
        ops.pin,
        "Pins a snapshot, so that retention never deletes it, or removes the pin.",
        {"inputs": _INPUT, "config": {"reason": ""}},
    ),
    (
        pinning.RESTORE,
        ops.restore,
        "Moves a snapshot back from quarantine, and pins it, so that the next plan does not take it again.",
        {"config": {"snapshot": ""}},
    ),
)
"""Name, op and description of the jobs of a single op, and the configuration with which the launchpad begins."""


def _select(
    job: FlinkJob, name: str, assets: Sequence[str], description: str, *, priority: int = 0
) -> UnresolvedAssetJobDefinition:
    selection = dg.AssetSelection.assets(*map(job.key, assets))
    tags = {**({PRIORITY_TAG: str(priority)} if priority else {}), **job.tags}
    # In the launchpad; without it, the fields that matter come after those of files.
    config: Any = {"ops": {job.op(savepoints.RESCALED_SAVEPOINT): {"config": NUMBERS}}} if name == RESCALE else None
    return AssetJob(
        name=job.prefix(name), selection=selection, description=description, tags=tags or None, config=config
    )
