"""`periodic_checkpoint`: a schedule that runs a stream every checkpoint interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from state_pipelines.dagster.flink_asset import documented
from state_pipelines.dagster.jobs import TAKE_CHECKPOINT
from state_pipelines.dagster.pending_checkpoints import find_obstacle

if TYPE_CHECKING:
    from state_pipelines.dagster.job import FlinkJob

NAME = "periodic_checkpoint"


def build_periodic_checkpoint(job: FlinkJob, cron: str) -> dg.ScheduleDefinition:
    """Build the schedule `periodic_checkpoint` of a job whose stream has a checkpoint interval.

    Args:
        job: the Flink job.
        cron: cron expression of the interval.
    """

    @documented(
        job,
        dg.schedule,
        name=job.prefix(NAME),
        job_name=job.prefix(TAKE_CHECKPOINT),
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus(job.sensors.upper()),
    )
    def periodic_checkpoint(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        """Requests a run of the stream, unless one is pending or the pause after the last checkpoint is not over."""
        obstacle = find_obstacle(context.instance, job)
        return dg.SkipReason(obstacle) if obstacle else dg.RunRequest()

    return periodic_checkpoint
