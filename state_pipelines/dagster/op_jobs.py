"""Dagster jobs of a single op."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from state_pipelines.dagster.job import FlinkJob


def make_op_job(job: FlinkJob, name: str, op: dg.OpDefinition, description: str) -> dg.JobDefinition:
    """Make the job of an op, with the prefix and the tags of a Flink job."""

    @dg.job(name=job.prefix(name), description=description, tags=job.tags)
    def run() -> None:
        op()

    return run
