"""Plans of Flink SQL: nodes, expressions, names of operators, and the states that each node keeps.

plan = sp.sql.load_plan("s3://bucket/plan.json")
for operator in sp.sql.list_operators(plan):
    print(operator.uid, operator.meaning, [state.name for state in operator.states])
    sp.sql.plan("totals.sql", flink_home="flink-2.2.1").json
"""

from state_pipelines.sql.accumulators import PlannedColumn
from state_pipelines.sql.compiled_plans import Plan, PlanNode, load_plan, read_plan
from state_pipelines.sql.node_states import PlannedOperator, PlannedRow, PlannedState, list_operators
from state_pipelines.sql.planner import CompiledScript
from state_pipelines.sql.planner import compile_script as plan

__all__ = [
    "CompiledScript",
    "Plan",
    "PlanNode",
    "PlannedColumn",
    "PlannedOperator",
    "PlannedRow",
    "PlannedState",
    "list_operators",
    "load_plan",
    "plan",
    "read_plan",
]
