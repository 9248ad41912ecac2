"""The keyed states of the operators that revisions name, as shapes, and what revisions make of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from state_pipelines.errors import NotFoundError
from state_pipelines.operations.migration.migration_planner import plan_migrations
from state_pipelines.operations.migration.python_values import number_columns
from state_pipelines.operations.migration.shapes import find_shapes
from state_pipelines.operations.migration.signatures import sign_shapes
from state_pipelines.operations.migration.snapshot_plans import make_context
from state_pipelines.operations.migration.structs import PlanContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from state_pipelines.operations.migration.migration_files import Migration
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.operations.migration.steps import Direction
    from state_pipelines.snapshot import Snapshot


@dataclass(frozen=True)
class Schemas:
    """The shapes of a snapshot.

    Attributes:
        operators: shapes by state name, by operator id.
        find: operator id of a name; raises `NotFoundError`.
        context: what planning depends on beyond shapes.
    """

    operators: Mapping[str, Mapping[str, StateShape]]
    find: Callable[[str], str]
    context: PlanContext = field(default_factory=PlanContext)

    def is_like(self, other: Schemas) -> bool:
        """Whether all states have the same signatures."""
        return self.operators.keys() == other.operators.keys() and all(
            sign_shapes(shapes.values()) == sign_shapes(other.operators[name].values())
            for name, shapes in self.operators.items()
        )


def read_schemas(snapshot: Snapshot, migrations: Iterable[Migration]) -> Schemas:
    """The shapes of the operators that migrations name, as far as the snapshot has them.

    Raises:
        StateError: the snapshot cannot be read.
    """
    snapshot = number_columns(snapshot)
    operators = {}
    for name in dict.fromkeys(change.operator for each in migrations for change in each.changes):
        try:
            operator = snapshot.operator(name)
        except NotFoundError:
            continue  # reported when a change of it is applied
        operators[operator.id] = find_shapes(operator)
    together = {f"{each}/{name}": shape for each, shapes in operators.items() for name, shape in shapes.items()}
    return Schemas(operators, lambda name: snapshot.operator(name).id, make_context(snapshot, together))


def apply_migration(schemas: Schemas, migration: Migration, direction: Direction) -> tuple[Schemas, bool]:
    """The shapes after a migration, and whether its opposite leads back to those before (true without an opposite).

    Raises:
        NotFoundError: there is no such operator.
        MigrationError: the migration does not fit.
    """
    called: dict[str, set[str]] = {}
    for change in migration.changes:
        called.setdefault(schemas.find(change.operator), set()).add(change.operator)
    after, exact = dict(schemas.operators), True
    for name, names in called.items():
        chain = [(migration, direction)]
        plan = plan_migrations(schemas.operators[name], chain, operators=names, context=schemas.context)
        after[name] = plan.new_shapes
        if plan.back is not None:
            # States without a way back are not among those that come back.
            before = {state: shape for state, shape in schemas.operators[name].items() if state in plan.back.states}
            exact = exact and sign_shapes(plan.back.new_shapes.values()) == sign_shapes(before.values())
    return replace(schemas, operators=after), exact
