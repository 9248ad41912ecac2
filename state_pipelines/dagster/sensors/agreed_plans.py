"""`agreed_plans`: applies plans of retention when the grace period is over."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg

from state_pipelines.dagster.assets import applied_retention, retention_plan
from state_pipelines.dagster.flink_asset import documented
from state_pipelines.dagster.jobs import APPLY_RETENTION
from state_pipelines.dagster.shared_instance import share_instance

if TYPE_CHECKING:
    from state_pipelines.dagster.job import FlinkJob

NAME = "agreed_plans"

INTERVAL = 60
"""Seconds between two ticks."""


def build_agreed_plans(job: FlinkJob) -> dg.SensorDefinition:
    """The sensor `agreed_plans` of a job with `apply: scheduled`."""

    @documented(
        job,
        dg.sensor,
        name=job.prefix(NAME),
        job_name=job.prefix(APPLY_RETENTION),
        minimum_interval_seconds=job.interval(NAME, INTERVAL),
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    def agreed_plans(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        """Requests the application of the newest plan, once, when the grace period is over.

        The run plans again, and deletes nothing unless both plans have the same fingerprint.
        """
        event = share_instance(context).get_latest_materialization_event(job.key(retention_plan.NAME))
        plan = None if event is None else event.asset_materialization
        # A materialization that somebody reports in the UI has no metadata.
        if event is None or plan is None or retention_plan.FINGERPRINT not in plan.metadata:
            return dg.SkipReason("There is no plan yet")
        fingerprint = str(plan.metadata[retention_plan.FINGERPRINT].value)
        has_paths = plan.metadata[retention_plan.PATHS].value
        if not has_paths and not plan.metadata[retention_plan.IN_QUARANTINE].value:
            return dg.SkipReason("By the newest plan nothing goes, and nothing is in quarantine")
        due = datetime.fromtimestamp(event.timestamp, UTC) + job.retention_runs.grace_period
        if datetime.now(UTC) < due:
            return dg.SkipReason(f"The plan {fingerprint} is made again at {due:%Y-%m-%d %H:%M} UTC")
        config = {"fingerprint": fingerprint, "scheduled": True}
        return dg.RunRequest(
            # A plan is applied once; the next night makes another one, also of the same fingerprint.
            run_key=f"{fingerprint}-{event.run_id}",
            run_config={"ops": {job.op(applied_retention.NAME): {"config": config}}},
        )

    return agreed_plans
