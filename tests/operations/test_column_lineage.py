"""Lineage of columns through migrations."""

from __future__ import annotations

from typing import Any

from state_pipelines.operations.migration import Direction, parse_migration
from state_pipelines.operations.migration.flows import trace_columns
from state_pipelines.operations.migration.migration_planner import plan_migrations
from state_pipelines.operations.migration.shapes import find_shapes
from state_pipelines.snapshot import open_snapshot
from tests.snapshot.savepoints import orders


def trace(*steps: Any, state: str = "order") -> dict[str, set[str]]:
    """The old columns of each column of the state `order` after steps, as `state.column`."""
    text = {
        "revision": "1",
        "operator": "orders",
        "state": state,
        "upgrade": list(steps),
        "downgrade": {"impossible": "-"},
    }
    plan = plan_migrations(
        find_shapes(open_snapshot(str(orders().path)).operator("orders")), [(parse_migration(text), Direction.UPGRADE)]
    )
    (flow,) = [each for name, each in plan.states.items() if name in (state, "renamed")]
    return {name: {".".join(each) for each in old} for name, old in trace_columns(flow, plan.context).items()}


def test_renames_casts_and_derived_fields() -> None:
    found = trace(
        {"rename": {"customer": "customerId"}},
        {"add": {"field": "total", "type": "Long", "expression": "amount * quantity"}},
        {"add": {"field": "label", "type": "String", "expression": "concat(total, ' of the note')"}},
        {"add": {"field": "owner", "type": "String", "expression": "state_key"}},
        {"cast": {"field": "amount", "to": "Double"}},
        {"drop": {"field": "note"}},
    )
    assert found["state_key"] == {"order.state_key"}
    assert found["value.customerId"] == {"order.value.customer"}
    assert found["value.total"] == found["value.label"] == {"order.value.amount", "order.value.quantity"}
    assert found["value.owner"] == {"order.state_key"}
    assert found["value.amount"] == {"order.value.amount"}
    assert found["value.status"] == {"order.value.status"}
    assert "value.note" not in found
    assert "value.customer" not in found


def test_a_state_with_another_name_or_key() -> None:
    assert trace({"rename_state": "renamed"})["value.note"] == {"order.value.note"}
    by_note = trace({"filter": {"keep": "amount > 3", "reason": "small ones go"}})
    assert by_note["value.note"] == {"order.value.note"}
