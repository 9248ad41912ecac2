"""Why no checkpoint of a stream can start now, as Flink decides it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg

from state_pipelines.checkpoints.coordinator import FailureReason
from state_pipelines.dagster.assets import checkpoint
from state_pipelines.dagster.jobs import TAKE_CHECKPOINT

if TYPE_CHECKING:
    from state_pipelines.dagster.job import FlinkJob

_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def find_obstacle(instance: dg.DagsterInstance, job: FlinkJob) -> str:
    """Return why a periodic checkpoint cannot start now, or an empty text if it can.

    As in Flink, it waits while a checkpoint is pending, and for the pause after the last one.
    """
    assert job.stream is not None
    options = job.stream.parsed
    wanted = dg.RunsFilter(job_name=job.prefix(TAKE_CHECKPOINT), statuses=_UNFINISHED)
    pending = instance.get_runs(wanted, limit=1)
    if pending:
        return f"A checkpoint is pending: run {pending[0].run_id}"
    event = instance.get_latest_materialization_event(job.key(checkpoint.NAME))
    if event is not None and options.min_pause:
        passed = (datetime.now(UTC) - datetime.fromtimestamp(event.timestamp, UTC)).total_seconds() * 1000
        if passed < options.min_pause:
            return FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS.message
    return ""
