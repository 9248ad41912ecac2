"""Dagster jobs of one Flink job, and its savepoints by schedule."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from state_pipelines.dagster import job_health, ops
from state_pipelines.dagster.assets import retention, savepoints, snapshots, state_tables
from state_pipelines.dagster.assets import savepoints as checkpoint
from state_pipelines.dagster.flink_asset import AssetJob, bind_op, checked_op, flink_schedule, make_op_job
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import list_texts
from state_pipelines.dagster.translation import MIGRATION, PRIORITY_TAG
from state_pipelines.dagster.unexported_names import UnresolvedAssetJobDefinition
from state_pipelines.errors import StateError, UsageError
from state_pipelines.flink.cluster import SavepointFormat
from state_pipelines.flink.connections import connect
from state_pipelines.upgrades.savepoint_policy import (
    SavepointJob,
    choose_policy,
    find_savepoint_records,
    list_due,
    take_due_savepoints,
    take_savepoint,
)

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
        (retention.PLAN_NAME,),
        "Plans which snapshots and files to delete, and why. Deletes nothing.",
    ),
    APPLY_RETENTION: (
        (retention.APPLICATION_NAME,),
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
        ops.PIN,
        ops.pin,
        "Pins a snapshot, so that retention never deletes it, or removes the pin.",
        {"inputs": _INPUT, "config": {"reason": ""}},
    ),
    (
        ops.RESTORE,
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
    # The launchpad shows this configuration; its own default would list the file options before these fields.
    config: Any = {"ops": {job.op(savepoints.RESCALED_SAVEPOINT): {"config": NUMBERS}}} if name == RESCALE else None
    return AssetJob(
        name=job.prefix(name), selection=selection, description=description, tags=tags or None, config=config
    )


# No `from __future__ import annotations`: Dagster reads the annotations of decorated functions as classes.


NAME = "scheduled_savepoints"

CRON = "7 * * * *"
"""Time at which the schedule looks whether a savepoint is due: every hour, so that a failed one is tried again."""


class SavepointConfig(dg.Config):
    """Savepoints that somebody asks for."""

    formats: list[str] = Field(
        default=[],
        description="Formats to take now, canonical or native; by default those that the policy wants and that are not "
        "there yet.",
    )


def make_savepoint_job(job: FlinkJob) -> SavepointJob:
    """Return the `SavepointJob` with which savepoints of a job are taken.

    Raises:
        UsageError: the job names no cluster.
    """
    if job.cluster is None:
        raise UsageError(f"job {job.name} names no cluster", hint="Set cluster (docs/running-jobs.md)")
    return SavepointJob(
        name=job.name,
        cluster=connect(job.cluster, Path.cwd()),
        job=job.job or job.name,
        results=job.results,
        policy=choose_policy(job.savepoints, job.upgrade),
        roots=job.all_roots,
        path_mapping=job.path_mapping,
    )


@checked_op()
def take_scheduled_savepoints(
    context: dg.OpExecutionContext, config: SavepointConfig, flink_job: dg.ResourceParam[FlinkJob]
) -> list[str]:
    """Take the savepoints of the running job that its policy wants, one after the other; fails with Flink's reason."""
    described = make_savepoint_job(flink_job)
    if config.formats:
        known = [each.lower() for each in SavepointFormat]
        if wrong := [each for each in config.formats if each not in known]:
            raise UsageError(f"formats has {', '.join(wrong)}", hint=f"Choose from {', '.join(known)}")
        chosen = [SavepointFormat(each.upper()) for each in config.formats]
        taken = [take_savepoint(described, each, report=context.log.info) for each in chosen]
    else:
        taken = list(take_due_savepoints(described, report=context.log.info))
    paths = [each.path for each in taken]
    context.add_output_metadata(
        {
            "savepoints": list_texts(f"{each.format.lower()} of {each.period}: {each.path}" for each in taken),
            "pinned": sum(bool(each.pinned) for each in taken),
        }
    )
    return paths


def build_savepoint_job(job: FlinkJob) -> dg.JobDefinition:
    """Build the job `scheduled_savepoints` of a job that names its cluster."""
    op = bind_op(job, take_scheduled_savepoints)
    text = "Takes the savepoints that the policy wants, or those of the formats that are asked for; the job runs on."
    return make_op_job(job, NAME, op, text, {"config": {"formats": []}})


def build_savepoint_schedules(job: FlinkJob) -> Iterator[dg.ScheduleDefinition]:
    """Yield the schedule `scheduled_savepoints` of a job with a policy of savepoints."""
    if job.savepoints is None:
        return

    @flink_schedule(job, NAME, runs=NAME, cron=CRON, is_running=True)
    def scheduled_savepoints(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        """Requests a run when a savepoint is due by the policy; one that failed is tried again in the next hour."""
        time = context.scheduled_execution_time.astimezone(UTC)
        try:
            records = find_savepoint_records(job.results, job.name).list_records()
            due = list_due(choose_policy(job.savepoints, job.upgrade), records, time)
        except StateError as error:
            return dg.SkipReason(f"It is unknown which savepoints are due: {error}")
        if not due:
            return dg.SkipReason("The savepoints that the policy wants are there")
        names = ", ".join(f"{each.format.lower()} of {each.period.name_time(time)}" for each in due)
        return dg.RunRequest(run_key=f"{time:%Y-%m-%dT%H:%M}", tags={"state-pipelines/savepoints": names})

    yield scheduled_savepoints
