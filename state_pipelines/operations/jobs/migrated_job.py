"""The job that takes over a snapshot once migrations have been applied to it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.operations.jobs.job_state import Job, JobOperator, JobState, StateGroup, list_serializers
from state_pipelines.operations.migration.python_values import number_columns
from state_pipelines.operations.migration.shapes import StateShape, find_shapes
from state_pipelines.operations.migration.snapshot_plans import plan_operator

if TYPE_CHECKING:
    from state_pipelines.operations.migration.migration_plan import OperatorPlan
    from state_pipelines.operations.migration.migration_planner import Chain
    from state_pipelines.snapshot import Snapshot


def migrate_job(job: Job, snapshot: Snapshot, chain: Chain) -> Job:
    """The job with its states as migrations make them.

    Args:
        job: as `describe_job` describes the snapshot.
        snapshot: the snapshot.
        chain: migrations with their directions, in order.

    Raises:
        MigrationError: a migration does not fit.
        NotFoundError: the snapshot has no such operator.
    """
    plans: dict[str, OperatorPlan] = {}
    snapshot = number_columns(snapshot)
    for migration, direction in chain:
        for change in migration.changes:
            operator = snapshot.operator(change.operator)
            change.steps(direction)
            if operator.id not in plans:
                plans[operator.id] = plan_operator(operator, find_shapes(operator), chain)
    operators = (_migrate_operator(each, plans[each.id]) if each.id in plans else each for each in job.operators)
    names = ", ".join(migration.revision for migration, _ in chain)
    return replace(job, name=f"the job of migration {names}", operators=tuple(operators), keeps_classes=True)


def _migrate_operator(operator: JobOperator, plan: OperatorPlan) -> JobOperator:
    states = [_describe(name, flow.shape) for name, flow in plan.states.items()]
    # Operator state that keyed state hides by its name stays as it is.
    others = (
        state for state in operator.states if state.group is not StateGroup.KEYED and plan.shapes[state.name].is_keyed
    )
    return replace(operator, key=plan.key, states=(*states, *others))


def _describe(name: str, shape: StateShape) -> JobState:
    return JobState(name, shape.kind, list_serializers(shape.kind, shape.info))
