"""Checks whether steps have a meaning for a state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import MigrationError
from state_pipelines.operations.migration import steps as st
from state_pipelines.serializers.registered_states import StateKind

if TYPE_CHECKING:
    from state_pipelines.operations.migration.shapes import StateShape


def require_meaning(step: st.Step, shape: StateShape) -> None:
    """Refuse steps that have no meaning for operator state.

    Raises:
        MigrationError: it is one; says why.
    """
    if shape.is_keyed:
        return
    of = f"{shape.kind} state of the operator" if shape.kind != StateKind.BROADCAST else "broadcast state"
    match step:
        case st.TtlStep():
            raise MigrationError(f"{of} has no TTL: Flink keeps times of the last access with keys only")
        case st.Kind():
            raise MigrationError(
                f"{of} cannot change its kind: the code of the job decides how entries are distributed to subtasks",
                hint="Steps on values, `filter`, `split`, `rename_state` and `drop_state` change it",
            )
        case st.Merge():
            raise MigrationError(
                f"{of} cannot be merged: nothing says which entries of the states belong together",
                hint="Read both states in the new code, and let it merge them",
            )
