"""Plans of Flink SQL: nodes, expressions, names of operators, and the states that each node keeps.

plan = sp.sql.load_plan("s3://bucket/plan.json")
for operator in sp.sql.list_operators(plan):
    print(operator.uid, operator.meaning, [state.name for state in operator.states])
"""

from state_pipelines.sql.accumulators import PlannedColumn
from state_pipelines.sql.compiled_plans import Plan, PlanNode, load_plan, read_plan
from state_pipelines.sql.node_states import PlannedOperator, PlannedRow, PlannedState, list_operators

__all__ = [
    "Plan",
    "PlanNode",
    "PlannedColumn",
    "PlannedOperator",
    "PlannedRow",
    "PlannedState",
    "list_operators",
    "load_plan",
    "read_plan",
]
