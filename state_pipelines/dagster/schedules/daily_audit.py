"""`daily_audit`: a schedule that audits the newest snapshots of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from state_pipelines.dagster.flink_asset import documented
from state_pipelines.dagster.jobs import AUDIT
from state_pipelines.dagster.partitions import find_name_conflict

if TYPE_CHECKING:
    from state_pipelines.dagster.job import FlinkJob

NAME = "daily_audit"

NEWEST = 3
"""Number of snapshots audited each day."""


def build_daily_audit(job: FlinkJob) -> dg.ScheduleDefinition:
    """Build the schedule `daily_audit` of a job."""

    @documented(
        job,
        dg.schedule,
        name=job.prefix(NAME),
        job_name=job.prefix(AUDIT),
        cron_schedule="0 4 * * *",
        execution_timezone="UTC",
    )
    def daily_audit(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        """Requests an audit of the newest snapshots every day, because files can go missing at any time."""
        partitions = context.instance.get_dynamic_partitions(str(job.partitions.name))
        update = job.storage.update_inventory(partitions=partitions)
        for each in update.new:
            if each.unreadable:
                context.log.warning("%s cannot be read: %s", each.path, each.unreadable)
        keys = list(update.inventory.keys[:NEWEST])
        if not keys:
            return dg.SkipReason(f"No readable snapshots below {', '.join(job.all_roots)}")
        if conflict := find_name_conflict(context.instance, job):
            return dg.SkipReason(conflict)
        context.instance.add_dynamic_partitions(str(job.partitions.name), keys)
        day = f"{context.scheduled_execution_time:%Y-%m-%d}"
        return [dg.RunRequest(run_key=f"{key}-{day}", partition_key=key) for key in keys]

    return daily_audit
