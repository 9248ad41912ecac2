"""`automation`: evaluates the automation conditions of a job's assets and checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from state_pipelines.dagster.job import FlinkJob

NAME = "automation"


def build_automation(job: FlinkJob) -> dg.AutomationConditionSensorDefinition:
    """Build the sensor `automation` of a job, so that the automation of each job can be switched separately."""
    return dg.AutomationConditionSensorDefinition(
        job.prefix(NAME),
        target=dg.AssetSelection.groups(job.name),
        run_tags=job.tags,
        minimum_interval_seconds=30,
        default_status=job.sensor_status,
    )
