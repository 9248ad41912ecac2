"""A compiled plan names the operators and the columns of a SQL snapshot, which holds types alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines import sql
from state_pipelines.binary.data_views import Writer
from state_pipelines.keyed.header import write_keyed_header
from state_pipelines.metadata import write_metadata
from state_pipelines.operations.inspect import ColumnReport, inspect
from state_pipelines.operations.migration.shapes import number_columns
from state_pipelines.serializers.text import describe
from state_pipelines.snapshot import declare, open_snapshot
from state_pipelines.snapshot.checks import check_declared_names
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.storage import read_file
from tests.snapshots import SQL
from tests.sql.small_plans import SOURCE, make_plan, scan

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.snapshot import Snapshot

(CONFLICT,) = (case for case in SQL if case.case == "on-conflict")
ROW = "ROW<`city` VARCHAR(2147483647) NOT NULL, `amount` BIGINT>"
MATERIALIZER = "3_upsert-materialize"


def make_sink(number: int, row: str = ROW) -> dict[str, Any]:
    columns = [{"name": "city", "dataType": "STRING NOT NULL"}, {"name": "amount", "dataType": "BIGINT"}]
    schema = {"columns": columns, "primaryKey": {"name": "PK_city", "type": "PRIMARY_KEY", "columns": ["city"]}}
    return {
        "id": number,
        "type": "stream-exec-sink_2",
        "requireUpsertMaterialize": True,
        "conflictStrategy": {"behavior": "NOTHING"},
        "dynamicTableSink": {
            "table": {
                "identifier": "`cities`",
                "resolvedTable": {"schema": schema},
            }
        },
        "outputType": row,
        "description": "Sink(table=[cities], fields=[city, amount])",
    }


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(make_plan(scan(1, "orders", ROW), make_sink(3)))
    return path


def open_with(plan: Path) -> Snapshot:
    snapshot = CONFLICT.open()
    return snapshot.with_declarations(declare({"plans": [str(plan)]}))


def buffer_of(snapshot: Snapshot) -> KeyedState:
    state = snapshot.operator(MATERIALIZER).state("watermark-buffer")
    assert isinstance(state, KeyedState)
    return state


def test_columns_of_keys_and_values_have_their_names(plan: Path) -> None:
    table = buffer_of(open_with(plan)).to_arrow()
    assert table.num_rows == 5
    assert {name for row in table.column("state_key").to_pylist() for name in row} == {"row_kind", "city"}
    assert {name for rows in table.column("map_value").to_pylist() for row in rows for name in row} == {
        "row_kind",
        "city",
        "amount",
    }
    numbered = buffer_of(CONFLICT.open()).to_arrow()
    assert [[*row.values()] for row in table.column("state_key").to_pylist()] == [
        [*row.values()] for row in numbered.column("state_key").to_pylist()
    ]


def test_one_table_of_all_states_has_the_names(plan: Path) -> None:
    schema = open_with(plan).operator(MATERIALIZER).schema
    assert [each.name for each in schema.field("current-value").type] == ["row_kind", "city", "amount"]


def test_timers_have_the_names_of_the_key(plan: Path) -> None:
    state = open_with(plan).operator(MATERIALIZER).state("_timer_state/event_compaction-timers")
    assert describe(state.serializer).startswith("Timer<RowData(city: VARCHAR")


def test_metadata_and_headers_are_written_without_the_names(plan: Path) -> None:
    snapshot = open_with(plan)
    file = buffer_of(snapshot).subtask_states[0].file

    def write(each: Snapshot) -> bytes:
        writer = Writer()
        write_keyed_header(writer, buffer_of(each).subtask_states[0].file.header)
        return writer.getvalue()

    assert "city" in describe(file.header.key_serializer)
    assert write(snapshot) == write(CONFLICT.open())
    assert write_metadata(snapshot.metadata) == read_file(snapshot.location.metadata)


def test_inspect_reports_node_and_columns(plan: Path) -> None:
    report = inspect(open_with(plan))
    (operator,) = (each for each in report.operators if each.uid == MATERIALIZER)
    assert operator.node == "Sink(table=[cities], fields=[city, amount])"
    assert operator.rows == "orders into cities"
    (state,) = (each for each in operator.states if each.name == "current-value")
    assert state.columns == [
        ColumnReport("city", "VARCHAR(2147483647) NOT NULL", "orders.city"),
        ColumnReport("amount", "BIGINT", "orders.amount"),
    ]
    assert json.loads(json.dumps(report.to_json()))


def test_operators_whose_uid_is_a_hash_are_named(fixtures: Path) -> None:
    folder = fixtures / "flink/sql/stream-exec-group-aggregate_1--group-aggregate-simple"
    (plan,) = (folder / "plan").glob("*.json")
    snapshot = open_snapshot(str(folder / "savepoint"), declare({"plans": [str(plan)]}))
    assert {each.label for each in snapshot.operators} == {
        *("1_source", "2_calc", "4_group-aggregate", "5_calc", "6_constraint-validator", "6_sink")
    }
    table = snapshot.operator("4_group-aggregate").state("accState").to_arrow()
    assert [each.name for each in table.schema.field("value").type] == [
        *("row_kind", "count", "avg_a_filtered_sum", "avg_a_filtered_count", "min_c")
    ]
    assert check_declared_names(snapshot) == []


def test_a_plan_of_another_job_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(make_plan(scan(17)))
    (note,) = check_declared_names(open_with(path))
    assert note.startswith("the plan names no operator of the snapshot")


def test_rows_of_other_types_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(make_plan(scan(1, "orders", SOURCE), make_sink(3, SOURCE)))
    snapshot = open_with(path)
    assert "city" not in describe(buffer_of(snapshot).info.value_serializer)
    notes = check_declared_names(snapshot)
    assert [note.partition(" of ")[0] for note in notes] == [
        f"the plan does not fit state {name}" for name in ("watermark-buffer", "current-value")
    ]
    (operator,) = (each for each in inspect(snapshot).operators if each.uid == MATERIALIZER)
    assert not any(each.columns for each in operator.states)


def test_migrations_number_the_columns_and_keep_the_uids(plan: Path) -> None:
    snapshot = number_columns(open_with(plan))
    assert "city" not in describe(buffer_of(snapshot).info.value_serializer)
    assert MATERIALIZER in snapshot.declarations.uids
    assert number_columns(snapshot) is snapshot


def test_python_gives_plans_by_name(plan: Path) -> None:
    (operator,) = (each for each in sql.list_operators(sql.load_plan(str(plan))) if each.uid == MATERIALIZER)
    assert operator.key is not None
    assert operator.key.names == ("city",)
