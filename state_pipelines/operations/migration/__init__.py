"""Migrations: changes of states, described in files, and the serializers that result from them.

`migration_files` reads the files, `steps` declares the steps in them, `shapes` describes a state for planning, and
`migration_planner` turns a chain of revisions into one data flow per state (`flows`), which
`state_pipelines.spark` runs.
"""

from __future__ import annotations

from state_pipelines.operations.migration.fields import ValuePlan, plan_value
from state_pipelines.operations.migration.migration_files import (
    Change,
    Loss,
    Migration,
    RowExpectation,
    dump_migration,
    load_migration,
    make_migration_schema,
    parse_migration,
)
from state_pipelines.operations.migration.shapes import StateShape, find_shapes, payload_serializer, replace_payload
from state_pipelines.operations.migration.steps import Add, Cast, Direction, Drop, Rename, Set, Step
from state_pipelines.operations.migration.structs import quote_name

__all__ = [
    "Add",
    "Cast",
    "Change",
    "Direction",
    "Drop",
    "Loss",
    "Migration",
    "Rename",
    "RowExpectation",
    "Set",
    "StateShape",
    "Step",
    "ValuePlan",
    "dump_migration",
    "find_shapes",
    "load_migration",
    "make_migration_schema",
    "parse_migration",
    "payload_serializer",
    "plan_value",
    "quote_name",
    "replace_payload",
]
