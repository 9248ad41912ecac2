"""Steps on rows of SQL: types from text, states that exchange their names, rows that are user keys of maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from state_pipelines.errors import MigrationError
from state_pipelines.operations.migration import Direction, StateShape, dump_migration, load_migration, parse_migration
from state_pipelines.operations.migration import flows as fl
from state_pipelines.operations.migration.history import RevisionDirectory
from state_pipelines.operations.migration.migration_planner import plan_migrations
from state_pipelines.serializers.build import VOID_NAMESPACE
from state_pipelines.serializers.state_meta_info import keyed_state
from state_pipelines.serializers.text import describe, parse

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.operations.migration.flows import OperatorPlan

KEY = parse("RowData(BIGINT)")
GONE = {"impossible": "it is a test"}


def shape(name: str, of: str, kind: str = "VALUE") -> StateShape:
    return StateShape(keyed_state(name, kind, parse(of), VOID_NAMESPACE), KEY)


def plan(content: dict[str, Any], *shapes: StateShape) -> OperatorPlan:
    migration = parse_migration({"operator": "o", "downgrade": GONE, **content})
    assert parse_migration(yaml.safe_load(yaml.safe_dump(dump_migration(migration)))) == migration
    return plan_migrations({each.name: each for each in shapes}, [(migration, Direction.UPGRADE)])


@pytest.mark.parametrize(
    "of", ["DECIMAL(10, 2)", "BIGINT NOT NULL", "ARRAY<INT>", "ROW<a INT, b VARCHAR(20)>", "TIMESTAMP(3)"]
)
def test_columns_get_types_that_the_snapshot_does_not_hold(of: str) -> None:
    made = plan(
        {"state": "s", "upgrade": [{"add": {"field": "f1", "type": of, "expression": "NULL"}}]},
        shape("s", "RowData(BIGINT)"),
    )
    assert describe(made.states["s"].shape.payload) == f"RowData(BIGINT, {of})"
    assert made.states["s"].shape.payload == parse(f"RowData(BIGINT, {of})")


def test_a_type_that_is_none_is_refused_with_the_known_ones() -> None:
    with pytest.raises(MigrationError, match="MULTISET<ROW<a INT>> is no type of a column") as error:
        plan(
            {"state": "s", "upgrade": [{"add": {"field": "f1", "type": "MULTISET<ROW<a INT>>", "expression": "NULL"}}]},
            shape("s", "RowData(BIGINT)"),
        )
    assert error.value.hint == "The types in the snapshot are BIGINT"


def test_a_row_is_converted_to_a_type_from_text_whose_names_do_not_count() -> None:
    step = {"to": "RowData(id: BIGINT, name: VARCHAR(5))", "expression": "named_struct('f0', f0, 'f1', 'a')"}
    made = plan({"state": "s", "upgrade": [{"convert": step}]}, shape("s", "RowData(BIGINT)"))
    assert describe(made.states["s"].shape.payload) == "RowData(BIGINT, VARCHAR(5))"
    assert made.notes == ()


def test_states_exchange_their_names_at_once() -> None:
    one, other = shape("distinctAcc_0", "Map<Long, Long>", "MAP"), shape("distinctAcc_1", "Map<Int, Long>", "MAP")
    content = {"upgrade": [{"rename_state": {"distinctAcc_0": "distinctAcc_1", "distinctAcc_1": "distinctAcc_0"}}]}
    made = plan(content | {"downgrade": content["upgrade"]}, one, other, shape("rest", "Long"))
    reads = {name: flow.state for name, flow in made.states.items() if isinstance(flow, fl.Read)}
    assert reads == {"distinctAcc_1": "distinctAcc_0", "distinctAcc_0": "distinctAcc_1", "rest": "rest"}
    assert made.states["distinctAcc_0"].shape.info.name == "distinctAcc_0"
    assert made.back is not None
    returned = {name: flow.shape for name, flow in made.back.states.items()}
    assert returned["distinctAcc_0"] == one


@pytest.mark.parametrize(
    ("names", "what"),
    [
        ({"a": "b"}, "there is a state b already"),
        ({"a": "c", "b": "c"}, "one new name to several states"),
        ({"x": "y"}, "the operator has no state x"),
    ],
)
def test_names_that_are_taken_are_refused(names: dict[str, str], what: str) -> None:
    with pytest.raises(MigrationError, match=what):
        plan({"upgrade": [{"rename_state": names}]}, shape("a", "Long"), shape("b", "Long"))


def test_rows_that_are_user_keys_become_others_and_equal_ones_are_added_up() -> None:
    map_key = {"type": "RowData(INT)", "expression": "named_struct('f0', map_key.f1)", "on_equal": "SUM(value)"}
    made = plan(
        {"state": "s", "upgrade": [{"kind": {"to": "MAP", "map_key": map_key}}]},
        shape("s", "Map<RowData(BIGINT, INT), Int>", "MAP"),
    )
    flow = made.states["s"]
    assert isinstance(flow, fl.Apply)
    assert isinstance(flow.stage, fl.Regroup)
    assert flow.stage.rule == "SUM(value)"
    assert flow.shape.map_key == parse("RowData(INT)")
    assert "SUM(value)" in tuple(fl.list_sqls(flow))
    with pytest.raises(MigrationError, match="`on_equal` is only for a map whose user keys"):
        plan(
            {"state": "s", "upgrade": [{"kind": {"to": "MAP", "map_key": map_key}}]}, shape("s", "RowData(BIGINT, INT)")
        )


def test_a_single_file_needs_no_revision_but_those_of_a_directory_do(tmp_path: Path) -> None:
    content = {"operator": "o", "state": "s", "upgrade": [{"rename_state": "t"}], "downgrade": [{"rename_state": "s"}]}
    (tmp_path / "other-name.yaml").write_text(yaml.safe_dump(content))
    assert load_migration(tmp_path / "other-name.yaml").revision == "other-name"
    with pytest.raises(MigrationError, match="`revision` is missing"):
        RevisionDirectory(tmp_path)
