"""`new_input`: runs a stream when files appear in its input."""

from __future__ import annotations

import hashlib
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import dagster as dg

from state_pipelines.dagster.flink_asset import documented
from state_pipelines.dagster.jobs import TAKE_CHECKPOINT
from state_pipelines.dagster.pending_checkpoints import find_obstacle
from state_pipelines.dagster.shared_instance import share_instance
from state_pipelines.storage import list_files, resolve

if TYPE_CHECKING:
    from state_pipelines.dagster.job import FlinkJob

NAME = "new_input"

INTERVAL = 30
"""Seconds between two ticks."""

_WILDCARDS = ("*", "?", "[")


def build_new_input(job: FlinkJob, pattern: str) -> dg.SensorDefinition:
    """Build the sensor `new_input` of a job whose stream names its input.

    Args:
        job: the Flink job.
        pattern: directory, or pattern of files in one.
    """

    @documented(
        job,
        dg.sensor,
        name=job.prefix(NAME),
        job_name=job.prefix(TAKE_CHECKPOINT),
        minimum_interval_seconds=job.interval(NAME, INTERVAL),
        default_status=job.sensor_status,
    )
    def new_input(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Requests a run of the stream when files of its input are new or have changed; the cursor is their digest."""
        count, digest = _digest_files(pattern)
        if not count:
            return dg.SkipReason(f"There are no files in {pattern}")
        if digest == context.cursor:
            return dg.SkipReason(f"Nothing is new in the {count} files in {pattern}")
        # The cursor stays, so that the next tick looks again.
        if obstacle := find_obstacle(share_instance(context), job):
            return dg.SkipReason(obstacle)
        return dg.SensorResult(run_requests=[dg.RunRequest()], cursor=digest)

    return new_input


def _digest_files(pattern: str) -> tuple[int, str]:
    """Return the number of files and a digest of their names, sizes and times; hidden files, as for Spark, are none."""
    directory, slash, names = pattern.rpartition("/")
    if not slash or not any(each in names for each in _WILDCARDS):
        directory, names = pattern, "*"
    lines = []
    for each in list_files(resolve(directory)):
        name = each.location.name
        if fnmatchcase(name, names) and not name.startswith(("_", ".")):
            lines.append(f"{each.location.path}\n{each.size}\n{each.modified}")
    return len(lines), hashlib.sha256("\n".join(sorted(lines)).encode(errors="surrogateescape")).hexdigest()[:32]
