"""Plans of Flink SQL: nodes, expressions, names of operators, and the states that each node keeps.

For example:

    plan = sp.sql.load_plan("s3://bucket/plan.json")
    for operator in sp.sql.list_operators(plan):
        print(operator.uid, operator.meaning, [state.name for state in operator.states])
    sp.sql.plan("totals.sql", flink_home="flink-2.2.1").json
    sp.sql.check("totals.sql", "totals-2.sql", "s3://bucket/savepoint-1a2b").to_markdown()
"""

from importlib import import_module
from typing import Any

from state_pipelines.sql.accumulators import PlannedColumn
from state_pipelines.sql.compiled_plans import Plan, PlanNode, load_plan, read_plan
from state_pipelines.sql.node_states import PlannedOperator, PlannedRow, PlannedState, list_operators
from state_pipelines.sql.planner import CompiledScript
from state_pipelines.sql.planner import compile_script as plan

_ABOVE = {
    "check": ("state_pipelines.operations.sql_check", "check"),
    "migrate": ("state_pipelines.spark.sql_migration", "migrate_query"),
}
"""Functions of layers above this one, by name; they are imported on first use."""


def __getattr__(name: str) -> Any:
    if name not in _ABOVE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, found = _ABOVE[name]
    return getattr(import_module(module), found)


__all__ = [
    "CompiledScript",
    "Plan",
    "PlanNode",
    "PlannedColumn",
    "PlannedOperator",
    "PlannedRow",
    "PlannedState",
    "check",
    "list_operators",
    "load_plan",
    "migrate",
    "plan",
    "read_plan",
]
