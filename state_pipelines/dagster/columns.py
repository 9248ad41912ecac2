"""Columns of a new savepoint for Dagster: their types, and the columns of the old snapshot that they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from state_pipelines.dagster.assets import flink_job, state_tables
from state_pipelines.operations.migration.flows import trace_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.dagster.job import FlinkJob
    from state_pipelines.spark import MigrationResult


def describe_columns(job: FlinkJob, result: MigrationResult) -> dict[str, object]:
    """Return schema and lineage of the columns of a migrated savepoint, named `operator.state.column`.

    The columns before are those of `state_tables`, or of `flink_job` where the job has no tables.
    """
    columns = [
        column
        for operator in result.snapshot.operators
        for state in operator.survey().states
        for column in state_tables.name_columns(f"{operator.label}.{state.name}", state.schema)
    ]
    source = job.key(flink_job.NAME if job.tables is None else state_tables.NAME)
    lineage = {new: [dg.TableColumnDep(source, name) for name in old] for new, old in _trace(result)}
    changed = tuple(f"{operator}.{state}." for operator, plan in result.plans.items() for state in plan.changed)
    for column in columns:
        if not column.name.startswith(changed):
            lineage[column.name] = [dg.TableColumnDep(source, column.name)]
    return {
        "dagster/column_schema": dg.TableSchema(columns),
        "dagster/column_lineage": dg.TableColumnLineage(lineage),
    }


def _trace(result: MigrationResult) -> Iterator[tuple[str, list[str]]]:
    for operator, plan in result.plans.items():
        for state, flow in plan.changed.items():
            for new, old in trace_columns(flow, plan.context).items():
                yield f"{operator}.{state}.{new}", sorted(f"{operator}.{'.'.join(each)}" for each in old)
