"""`job_health`: reports how the running job is, without a run."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import dagster as dg

from state_pipelines.dagster.assets.job_health import NAME, describe_health, list_results, measure_health, observe_job
from state_pipelines.dagster.flink_asset import documented
from state_pipelines.errors import StateError

if TYPE_CHECKING:
    from state_pipelines.dagster.assets.job_health import Health
    from state_pipelines.dagster.job import FlinkJob

INTERVAL = 300
"""Seconds between two ticks."""

HEARTBEAT = 3600
"""Seconds after which a job that is as it was is reported again, so that its numbers are plotted."""

_SHOWN = 3


def _now() -> datetime:
    return datetime.now(UTC)


def build_job_health_sensor(job: FlinkJob) -> dg.SensorDefinition:
    """Build the sensor `job_health` of a job that names its cluster."""

    @documented(
        job,
        dg.sensor,
        name=job.prefix(NAME),
        target=dg.AssetSelection.assets(job.key(NAME)),
        minimum_interval_seconds=job.interval(NAME, INTERVAL),
        default_status=job.sensor_status,
    )
    def job_health(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Asks the cluster how the job is, and reports it when something has changed, and every hour.

        The cursor holds the time of the last report and what was wrong.
        """
        now = _now()
        try:
            health = measure_health(job, operators=False, now=now)
            mark = _summarise(health)
            stored = _load(context.cursor)
            summary = "; ".join(health.list_lines()[:_SHOWN]) or "The job is well"
            if mark == stored.get("mark") and now.timestamp() - stored.get("at", 0) < HEARTBEAT:
                return dg.SkipReason(f"As reported before: {summary}")
            # Only now: it reads snapshots.
            health = measure_health(job, now=now)
        except StateError as error:
            return dg.SkipReason(f"The job cannot be watched: {error}")
        key = job.key(NAME)
        checks = [
            dg.AssetCheckEvaluation(
                key,
                str(each.check_name),
                each.passed,
                each.metadata,
                severity=each.severity,
                description=each.description,
            )
            for each in list_results(job, health)
        ]
        return dg.SensorResult(
            skip_reason=summary,
            asset_events=[
                observe_job(job, health),
                dg.AssetMaterialization(key, metadata=describe_health(job, health)),
                *checks,
            ],
            cursor=json.dumps({"mark": mark, "at": round(now.timestamp())}),
        )

    return job_health


def _summarise(health: Health) -> str:
    """Digest of what would be news: the outcomes of checks, the newest failed checkpoint, and the status of the job."""
    report = health.report
    outcomes = "".join({True: "1", False: "0", None: "-"}[each.passed] for each in health.checks)
    if report is None:
        return f"no answer {outcomes}"
    failed = next((each.id for each in report.failed), None)
    return f"{report.job.id} {report.job.status} {outcomes} {failed}"


def _load(cursor: str | None) -> dict[str, Any]:
    try:
        content = json.loads(cursor or "{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
