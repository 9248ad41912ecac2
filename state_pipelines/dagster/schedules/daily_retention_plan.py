"""`daily_retention_plan`: a schedule that plans the retention of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from state_pipelines.dagster.jobs import PLAN_RETENTION
from state_pipelines.dagster.retention_settings import PlanApplication

if TYPE_CHECKING:
    from state_pipelines.dagster.job import FlinkJob

NAME = "daily_retention_plan"


def build_retention_schedule(job: FlinkJob) -> dg.ScheduleDefinition:
    """Build the schedule `daily_retention_plan` of a job; running by default only with `apply: scheduled`."""
    settings = job.retention_runs
    is_scheduled = settings.apply is PlanApplication.SCHEDULED
    return dg.ScheduleDefinition(
        name=job.prefix(NAME),
        job_name=job.prefix(PLAN_RETENTION),
        cron_schedule=settings.cron,
        execution_timezone="UTC",
        description="Plans which snapshots and files to delete. Deletes nothing; a check warns until it is applied.",
        default_status=dg.DefaultScheduleStatus.RUNNING if is_scheduled else dg.DefaultScheduleStatus.STOPPED,
    )
