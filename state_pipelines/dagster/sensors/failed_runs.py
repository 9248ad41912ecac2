"""`failed_runs`: a sensor that reports failed runs of a Flink job in its log and, if configured, to a webhook."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import dagster as dg

from state_pipelines.dagster.run_outcomes import read_outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.dagster.job import FlinkJob
    from state_pipelines.dagster.jobs import AnyJob

NAME = "failed_runs"

_TIMEOUT = 10
"""Timeout of the webhook in seconds."""


def build_failed_runs(job: FlinkJob, jobs: Sequence[AnyJob]) -> dg.SensorDefinition:
    """Build the sensor `failed_runs` of a Flink job.

    Args:
        job: the Flink job.
        jobs: its Dagster jobs.
    """

    @dg.run_failure_sensor(
        name=job.prefix(NAME),
        monitored_jobs=list(jobs),
        default_status=job.sensor_status,
        description="Reports failed runs in its log and, if the job has a `webhook`, as JSON to its URL.",
    )
    def failed_runs(context: dg.RunFailureSensorContext) -> None:
        message = describe_failure(job, context)
        context.log.error("%s", message["text"])
        if job.webhook is not None:
            post(job.webhook, message)

    # The annotation of the decorator with arguments is wider than what it returns.
    assert isinstance(failed_runs, dg.SensorDefinition)
    return failed_runs


def describe_failure(job: FlinkJob, context: dg.RunFailureSensorContext) -> dict[str, object]:
    """Return the message on a failed run: `text` for chat services, the other fields for programs."""
    run = context.dagster_run
    outcome = read_outcome(context.instance, run)
    snapshot = run.tags.get("dagster/partition")
    subject = f"{run.job_name} failed" + (f" for {snapshot}" if snapshot else "")
    return {
        "text": f"{subject}: {outcome.error}",
        "flink_job": job.name,
        "job": run.job_name,
        "run": run.run_id,
        "snapshot": snapshot,
        "error": outcome.error,
        "failed_checks": dict(outcome.failed_checks),
    }


def post(url: str, message: dict[str, object]) -> None:
    """Post a message as JSON.

    Raises:
        dg.Failure: the webhook cannot be reached or rejects the message. The failed tick of the sensor shows the
            reason, without the URL, which may contain a secret.
    """
    data = json.dumps(message, default=str).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT):
            pass
    except urllib.error.HTTPError as error:
        error.close()
        raise _refused(str(error.code)) from None
    except (OSError, ValueError) as error:
        raise _refused(type(error).__name__) from None


def _refused(reason: str) -> dg.Failure:
    # Without the whole error, which may contain the URL.
    return dg.Failure(f"the webhook did not accept the message: {reason}")
