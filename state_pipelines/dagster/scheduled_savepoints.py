"""Savepoints of the running Flink job by its policy: the op, the job and the schedule `scheduled_savepoints`."""

# Without the import of `annotations`: Dagster reads those of the decorated functions.

from collections.abc import Iterator
from datetime import UTC
from pathlib import Path

import dagster as dg
from pydantic import Field

from state_pipelines.dagster.flink_asset import bind_op, checked_op, documented, make_op_job
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import list_texts
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
    """Return the job as its savepoints need it.

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

    @documented(
        job,
        dg.schedule,
        name=job.prefix(NAME),
        job_name=job.prefix(NAME),
        cron_schedule=CRON,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus(job.sensors.upper()),
    )
    def scheduled_savepoints(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        """Requests a run when a savepoint is due by the policy; one that failed is tried again in the next hour."""
        time = context.scheduled_execution_time.astimezone(UTC)
        try:
            records = find_savepoint_records(job.results, job.name).list_records()
            due = list_due(choose_policy(job.savepoints, job.upgrade), records, time)
        except StateError as error:
            return dg.SkipReason(f"It cannot be seen what is due: {error}")
        if not due:
            return dg.SkipReason("The savepoints that the policy wants are there")
        names = ", ".join(f"{each.format.lower()} of {each.period.name_time(time)}" for each in due)
        return dg.RunRequest(run_key=f"{time:%Y-%m-%dT%H:%M}", tags={"state-pipelines/savepoints": names})

    yield scheduled_savepoints
