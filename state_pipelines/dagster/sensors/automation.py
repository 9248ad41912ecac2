"""`automation` and `table_automation`: evaluate the automation conditions of a job's assets and checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from state_pipelines.dagster.assets import state_tables
from state_pipelines.dagster.automation import DESCRIPTION, PRIORITY_TAG, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.dagster.job import FlinkJob

NAME = "automation"
TABLES_NAME = "table_automation"

INTERVAL = 300
"""Seconds between two evaluations, which cost more than a tick of other sensors; nothing urgent waits for them."""


def build_automation(job: FlinkJob, keys: Sequence[dg.AssetKey]) -> Iterator[dg.AutomationConditionSensorDefinition]:
    """Yield the sensors of a job, so that the automation of each job can be switched separately.

    All assets that one sensor requests for a snapshot are materialised by one run. Tables have a sensor and runs of
    their own, because they take long and use Spark.

    Args:
        job: the Flink job.
        keys: of its assets; they are selected by them, because post-processing may change their groups.
    """
    tables = dg.AssetSelection.assets(job.key(state_tables.NAME))
    selection: dg.AssetSelection = dg.AssetSelection.assets(*keys)
    if job.tables is not None:
        selection -= tables
        yield _build(job, TABLES_NAME, tables, TABLES, "Writes the tables of new snapshots.")
    yield _build(job, NAME, selection, DESCRIPTION, "Describes, checks and audits new snapshots.")


def _build(
    job: FlinkJob, name: str, selection: dg.AssetSelection, priority: int, description: str
) -> dg.AutomationConditionSensorDefinition:
    return dg.AutomationConditionSensorDefinition(
        job.prefix(name),
        target=selection,
        run_tags={PRIORITY_TAG: str(priority), **job.tags},
        minimum_interval_seconds=job.interval(name, INTERVAL),
        default_status=job.sensor_status,
        description=description,
        # A backfill submits its runs in the order of the graph, so that a canceled or failed one takes others with it.
        # Without backfills each snapshot has a run that nothing else can cancel.
        emit_backfills=False,
    )
