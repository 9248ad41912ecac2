from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from py4j.clientserver import ClientServerConnection
from py4j.protocol import MEMORY_COMMAND_NAME

from state_pipelines.errors import MigrationError
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.keyed.state_table import RecordEncoder
from state_pipelines.operations.dump import dump
from state_pipelines.operations.migration import Direction, Migration, parse_migration
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.spark import migrate, write_state
from state_pipelines.spark.analysis import EmptyReader
from state_pipelines.spark.fieldwise import (
    FieldwiseFlow,
    FieldwiseRows,
    MigratedRows,
    field_column,
    find_fieldwise,
    run_on_rows,
    split_rows,
)
from state_pipelines.spark.flows import FlowRunner, StateFrames, to_rows
from state_pipelines.spark.migration_run import plan_snapshot
from state_pipelines.spark.proof import prove_plan
from state_pipelines.spark.proof_rows import find_types, restore_types
from state_pipelines.spark.record_encoding import RecordSpillWriter, plan_encoding
from state_pipelines.spark.types import hidden
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from state_pipelines.operations.migration.flows import OperatorPlan
    from state_pipelines.operations.proofs import ProofReport
    from state_pipelines.snapshot import Operator

pytestmark = pytest.mark.spark

USER = "Pojo<shop.User>(active: Boolean, age: Int, id: Long, name: String, score: Double)"
ROWS = 300


@pytest.fixture(scope="module")
def users(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    rows = spark.sql(
        f"""SELECT CONCAT('user-', id) AS state_key,
                   IF(id % 50 = 7, NULL, NAMED_STRUCT(
                       'active', id % 2 = 0, 'age', CAST(id % 90 AS INT), 'id', id,
                       'name', IF(id % 3 = 0, NULL, CONCAT('name ', id)), 'score', id * 0.25D)) AS value
            FROM RANGE({ROWS})"""
    )
    target = str(tmp_path_factory.mktemp("users") / "savepoint")
    write_state(
        rows,
        target,
        operatorId="users",
        keySerializer="String",
        parallelism="2",
        stateVarName="profile",
        stateType="VALUE",
        valueSerializer=USER,
    )
    return open_snapshot(target, uids=["users"])


def make(upgrade: list[Any], downgrade: list[Any] | None = None, **entries: Any) -> Migration:
    back = downgrade if downgrade is not None else {"impossible": "it is not needed"}
    content = {"operator": "users", "state": "profile", "upgrade": upgrade, "downgrade": back}
    return parse_migration({"revision": "1", **content, **entries})


def plan(snapshot: Snapshot, migration: Migration) -> tuple[Operator, OperatorPlan]:
    ((operator, whole),) = plan_snapshot(snapshot, [(migration, Direction.UPGRADE)])
    return operator, whole.keyed


def find(spark: SparkSession, users: Snapshot, *steps: Any) -> FieldwiseFlow | None:
    _, found = plan(users, make(list(steps)))
    return find_fieldwise(spark, found.changed["profile"], found.context.layouts)


ADD = {"add": {"field": "points", "type": "double", "expression": "score * 2 + age"}}
RENAME = {"rename": {"id": "user_id"}}
CAST = {"cast": {"field": "age", "to": "long"}}
DROP = {"drop": {"field": "active"}}
TIMES = {"ttl": {"enable": "TIMESTAMP '2026-01-01 00:00:00Z'"}}


def test_fields_are_carried_over_or_computed_of_what_they_need(spark: SparkSession, users: Snapshot) -> None:
    flow = find(spark, users, RENAME, ADD, CAST, DROP)
    assert flow is not None
    assert dict(flow.carried) == {"name": "name", "score": "score", "user_id": "id"}
    assert {name: sorted(each.columns) for name, each in flow.derived} == {
        "age": [field_column("age")],
        "points": [field_column("age"), field_column("score")],
    }
    assert flow.constants is None


def test_fields_that_nothing_computes_need_nothing(spark: SparkSession, users: Snapshot) -> None:
    flow = find(spark, users, RENAME, DROP)
    assert flow is not None
    assert (flow.derived, flow.constants) == ((), None)


def test_what_is_the_same_in_every_row_is_evaluated_once(spark: SparkSession, users: Snapshot) -> None:
    flow = find(
        spark,
        users,
        {"add": {"field": "level", "type": "int", "default": 3}},
        {"add": {"field": "next", "type": "Long", "expression": "level + 1"}},
        {"add": {"field": "note", "type": "String", "default": None}},
    )
    assert flow is not None
    assert flow.constants is not None
    assert flow.constants.as_py() == {"level": 3, "next": 4, "note": None}
    assert flow.derived == ()


def test_a_computed_field_that_is_dropped_needs_nothing(spark: SparkSession, users: Snapshot) -> None:
    half = {"add": {"field": "half", "type": "double", "expression": "score / age"}}
    flow = find(spark, users, half, RENAME, {"drop": {"field": "half"}})
    assert flow is not None
    assert flow.derived == ()


def test_keys_that_expressions_name_are_read(spark: SparkSession, users: Snapshot) -> None:
    flow = find(spark, users, {"add": {"field": "place", "type": "String", "expression": "concat(state_key, '!')"}})
    assert flow is not None
    assert [(name, sorted(each.columns)) for name, each in flow.derived] == [("place", [hidden("state_key")])]


def test_a_field_hides_the_column_of_its_name(spark: SparkSession, users: Snapshot) -> None:
    add = {"add": {"field": "state_key", "type": "String", "expression": "name"}}
    flow = find(spark, users, add, {"add": {"field": "copy", "type": "String", "expression": "concat(state_key, '!')"}})
    assert flow is not None
    assert {column for _, each in flow.derived for column in each.columns} == {field_column("name")}


def test_a_field_of_another_name_hides_the_column_no_more(spark: SparkSession, users: Snapshot) -> None:
    add = {"add": {"field": "state_key", "type": "String", "expression": "concat(name, '!')"}}
    copy = {"add": {"field": "copy", "type": "String", "expression": "concat(state_key, '!')"}}
    flow = find(spark, users, add, {"rename": {"state_key": "nick"}}, copy)
    assert flow is not None
    assert {name: sorted(each.columns) for name, each in flow.derived} == {
        "copy": [hidden("state_key")],
        "nick": [field_column("name")],
    }


@pytest.mark.parametrize(
    "step",
    [
        {"add": {"field": "all", "type": "String", "expression": "to_json(value)"}},
        {"filter": {"keep": "age > 3", "reason": "test"}},
        {"kind": {"to": "LIST", "expression": "named_struct('name', name)", "type": "Pojo<shop.Name>(name: String)"}},
        {"kind": {"to": "MAP", "map_key": {"type": "Long", "expression": "id"}}},
        {"ttl": {"enable": "timestamp_micros(1000 * length(state_key))"}},
        {"add": {"field": "rows", "type": "long", "expression": "count(*) OVER ()"}},
        {"add": {"field": "place", "type": "int", "expression": "row_number() OVER (ORDER BY id)"}},
        {"add": {"field": "most", "type": "long", "expression": "(SELECT max(id) FROM range(7))"}},
        {"add": {"field": "old", "type": "int", "expression": "VALUE.age"}},
        {"add": {"field": "half", "type": "double", "expression": "round(score / age, 2)"}},
        {"add": {"field": "known", "type": "String", "expression": "coalesce('x', name)"}},
        {"add": {"field": "up", "type": "String", "expression": "upper(concat(state_key, name))"}},
    ],
)
def test_other_flows_go_through_spark_as_a_whole(spark: SparkSession, users: Snapshot, step: Any) -> None:
    assert find(spark, users, step) is None


def test_a_payload_that_stays_goes_as_a_whole(spark: SparkSession, users: Snapshot) -> None:
    flow = find(spark, users, {"kind": {"to": "LIST"}}, TIMES)
    assert flow is not None
    assert (flow.whole, flow.carried, flow.after.kind) == (True, (), "LIST")
    assert flow.time is not None
    assert flow.time.as_py().isoformat() == "2026-01-01T00:00:00+00:00"


def test_the_time_may_come_between_fields(spark: SparkSession, users: Snapshot) -> None:
    flow = find(spark, users, RENAME, TIMES, DROP)
    assert flow is not None
    assert (flow.whole, "user_id" in dict(flow.carried), flow.time is None) == (False, True, False)


@pytest.mark.parametrize("column", ["list_index", "ttl_last_access"])
def test_sql_that_names_what_is_new_goes_through_spark(spark: SparkSession, users: Snapshot, column: str) -> None:
    add = {"add": {"field": "seen", "type": "String", "expression": f"CAST({column} AS STRING)"}}
    assert find(spark, users, {"kind": {"to": "LIST"}}, TIMES, add) is None


def test_an_expression_of_a_field_that_is_dropped_again_must_be_sql_all_the_same(
    spark: SparkSession, users: Snapshot
) -> None:
    wrong = {"add": {"field": "points", "type": "double", "expression": "no_such_field + 1"}}
    with pytest.raises(MigrationError, match="no_such_field"):
        find(spark, users, wrong, {"drop": {"field": "points"}})


STEPS = {
    "by Arrow": [RENAME, ADD, CAST, DROP],
    "with a key": [ADD, {"add": {"field": "known", "type": "String", "expression": "concat(state_key, name)"}}],
    "carried": [RENAME, DROP],
    "divided": [RENAME, {"set": {"field": "score", "expression": "score / 3 + coalesce(length(name), 0)"}}, DROP],
    "constant": [{"add": {"field": "level", "type": "int", "default": 3}}, DROP],
    "all new": [
        *({"drop": {"field": name}} for name in ("active", "age", "id", "score")),
        {"set": {"field": "name", "expression": "concat(state_key, '/', coalesce(name, '?'))"}},
    ],
    "in capitals": [
        {"set": {"field": "age", "expression": "AGE + 1"}},
        {"add": {"field": "n", "type": "String", "expression": "CONCAT(NAME, name)"}},
    ],
    "hidden for a while": [
        {"rename": {"name": "state_key"}},
        {"set": {"field": "state_key", "expression": "concat(state_key, '!')"}},
        {"rename": {"state_key": "name"}},
        {"add": {"field": "place", "type": "String", "expression": "concat(state_key, '?')"}},
    ],
    "a list": [{"kind": {"to": "LIST"}}],
    "times": [TIMES],
    "fields of a list with times": [RENAME, ADD, {"kind": {"to": "LIST"}}, DROP, TIMES],
    "times that go again": [TIMES, {"ttl": {"disable": "test"}}],
    "renamed class": [{"rename_class": {"shop.User": "mall.User"}}, RENAME],
}


@dataclass(frozen=True)
class Collect:
    """The new rows."""

    def run(self, rows: Iterator[MigratedRows]) -> list[dict[str, Any]]:
        return [row for each in rows for row in each.new.to_pylist()]


def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def sort(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["key_bytes"])


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_rows_are_the_same_as_by_way_of_spark(spark: SparkSession, users: Snapshot, steps: list[Any]) -> None:
    assert len(compare_with_spark(spark, users, steps)) == ROWS


def compare_with_spark(spark: SparkSession, snapshot: Snapshot, steps: list[Any]) -> list[dict[str, Any]]:
    """The rows that steps give, which both ways must."""
    operator, found = plan(snapshot, make(steps))
    flow, layouts = found.changed["profile"], found.context.layouts
    fieldwise = find_fieldwise(spark, flow, layouts)
    assert fieldwise is not None
    frame = to_rows(FlowRunner(StateFrames(spark, operator), layouts).build(flow), flow.shape)
    assert flow.shape.key is not None
    types = find_types(derive_keyed_layout(flow.shape.info, flow.shape.key, operator.max_parallelism, layouts))
    # As text, the schema says nothing of nulls.
    table = frame.mapInArrow(pass_on, frame.schema.simpleString()).toArrow()
    expected = [row for batch in table.to_batches() for row in restore_types(batch, types).to_pylist()]
    splits = split_rows(operator, "profile")
    found_rows = run_on_rows(spark, FieldwiseRows(fieldwise, layouts), splits, Collect(), "it fails")
    assert sort(row for rows in found_rows for row in rows) == sort(expected)
    return expected


@pytest.fixture(scope="module")
def lists(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """Lists of none to three users; some elements are null."""
    rows = spark.sql(
        f"""SELECT CONCAT('user-', id) AS state_key, TRANSFORM(IF(id % 4 = 0, ARRAY(), SEQUENCE(1, id % 4)), n ->
                   IF(id % 50 = 7, NULL, NAMED_STRUCT(
                       'active', n = 1, 'age', CAST(id % 90 + n AS INT), 'id', id,
                       'name', IF(id % 3 = 0, NULL, CONCAT('name ', n)), 'score', id * 0.25D))) AS value
            FROM RANGE({ROWS})"""
    )
    target = str(tmp_path_factory.mktemp("lists") / "savepoint")
    options = {"operatorId": "users", "keySerializer": "String", "parallelism": "2", "stateVarName": "profile"}
    write_state(rows, target, stateType="LIST", valueSerializer=f"List<{USER}>", **options)
    return open_snapshot(target, uids=["users"])


def to_value(expression: str, type: str | None = None) -> dict[str, Any]:
    return {"kind": {"to": "VALUE", "expression": expression} | ({"type": type} if type else {})}


VALUES_OF_LISTS = {
    "the first": [to_value("values[0]")],
    "the last, then other fields": [to_value("element_at(values, -1)"), RENAME, ADD, CAST, DROP],
    "the second, where there is one": [to_value("get(values, 1)")],
    "a number": [to_value("size(values)", "Long")],
    "a field": [to_value("values[0].name", "String")],
    "a key beside": [to_value("values[0]"), {"set": {"field": "name", "expression": "concat(state_key, name)"}}, TIMES],
}


@pytest.mark.parametrize("steps", VALUES_OF_LISTS.values(), ids=VALUES_OF_LISTS)
def test_values_of_lists_are_the_same_as_by_way_of_spark(
    spark: SparkSession, lists: Snapshot, steps: list[Any]
) -> None:
    # Empty lists have no rows.
    assert len(compare_with_spark(spark, lists, steps)) == ROWS * 3 // 4


@pytest.mark.parametrize(
    "steps",
    [
        [to_value("array_max(transform(values, each -> each.id))", "Long")],
        [to_value("concat(state_key, values[0].name)", "String")],
        [to_value("values[0]"), {"kind": {"to": "LIST"}}],
    ],
)
def test_other_values_of_lists_go_through_spark(spark: SparkSession, lists: Snapshot, steps: list[Any]) -> None:
    assert find(spark, lists, *steps) is None


def test_a_list_without_the_element_is_an_error(spark: SparkSession, lists: Snapshot, tmp_path: Path) -> None:
    with pytest.raises(MigrationError, match="a list of 1 elements has none with the index 2"):
        migrate(lists, make([to_value("values[2]")]), str(tmp_path / "up"), prove=False)


IN_ONE_ROW = "CASE WHEN state_key = 'user-4' THEN {} ELSE {} END"


def test_windows_see_all_rows(spark: SparkSession, users: Snapshot, tmp_path: Path) -> None:
    steps = [{"add": {"field": "rows", "type": "long", "expression": "count(*) OVER ()"}}]
    result = migrate(users, make(steps, [{"drop": {"field": "rows"}}]), str(tmp_path / "up"), allow_sql=True)
    table = result.snapshot.operator("users").state("profile").to_arrow()
    assert set(table.column("value").combine_chunks().field("rows").drop_null().to_pylist()) == {ROWS}


UPGRADE_STEPS = [RENAME, ADD, CAST, DROP]
DOWNGRADE_STEPS = [
    {"add": {"field": "active", "type": "boolean", "default": False}},
    {"cast": {"field": "age", "to": "int"}},
    {"drop": {"field": "points"}},
    {"rename": {"user_id": "id"}},
]
LOSS = [{"field": "active", "reason": "not used"}]


def prove(spark: SparkSession, before: Snapshot, after: Snapshot, migration: Migration, scratch: Path) -> ProofReport:
    """The proof of a migration whose result is `after`, whatever that came from."""
    operator, found = plan(before, migration)
    flow, layouts = found.changed["profile"], found.context.layouts
    assert flow.shape.key is not None
    layout = derive_keyed_layout(flow.shape.info, flow.shape.key, operator.max_parallelism, layouts)
    writer = RecordSpillWriter(RecordEncoder(layout, "profile"), resolve(str(scratch)), operator.label)
    meant = plan_encoding(StateFrames(spark, operator), found, "profile", writer, prove=True).encode().expected
    assert meant is not None
    return prove_plan(spark, operator, after.operator("users"), found, {"profile": meant})


def failed(report: ProofReport) -> dict[str, str]:
    return {each.name: each.observed for each in report.checks if not each.ok}


@pytest.fixture(scope="module")
def migration() -> Migration:
    return make(UPGRADE_STEPS, DOWNGRADE_STEPS, loss=LOSS)


def test_what_was_meant_is_proven(spark: SparkSession, users: Snapshot, migration: Migration, tmp_path: Path) -> None:
    result = migrate(users, migration, str(tmp_path / "up"))
    assert result.proof is not None
    assert result.proof.ok
    assert result.proof.rows == ROWS
    assert not failed(prove(spark, users, result.snapshot, migration, tmp_path))
    values = [line["value"] for line in dump(result.snapshot, state="profile")]
    assert values.count(None) == len(range(7, ROWS, 50))


def test_one_other_value_fails_the_proof(
    spark: SparkSession, users: Snapshot, migration: Migration, tmp_path: Path
) -> None:
    """A field that is computed, one that is carried over and one that is cast, each in one row."""
    wrong = {"points": "points + 1", "name": "'other'", "age": "age + 1"}
    steps = [{"set": {"field": name, "expression": IN_ONE_ROW.format(new, name)}} for name, new in wrong.items()]
    other = migrate(users, make([*UPGRADE_STEPS, *steps]), str(tmp_path / "other"), prove=False).snapshot
    found = failed(prove(spark, users, other, migration, tmp_path))
    assert found.keys() == {"written_reads_back", "round_trip"}
    assert all(f"{name} in key group " in found["written_reads_back"] for name in wrong)
    assert all(f"{name} in key group " in found["round_trip"] for name in ("name", "age"))
    # What is not there any more on the way back says nothing about it.
    assert "points" not in found["round_trip"]


def test_values_that_changed_places_fail_the_proof(
    spark: SparkSession, users: Snapshot, migration: Migration, tmp_path: Path
) -> None:
    # Users 10 and 10 + 128 k need not share a key group; the two names are those of one another.
    swapped = "CASE state_key WHEN 'user-1' THEN 'name 2' WHEN 'user-2' THEN 'name 1' ELSE name END"
    steps = [*UPGRADE_STEPS, {"set": {"field": "name", "expression": swapped}}]
    other = migrate(users, make(steps), str(tmp_path / "other"), prove=False).snapshot
    assert set(failed(prove(spark, users, other, migration, tmp_path))) == {"written_reads_back", "round_trip"}


def test_one_other_time_fails_the_proof(spark: SparkSession, users: Snapshot, tmp_path: Path) -> None:
    later = IN_ONE_ROW.format("TIMESTAMP '2026-01-01 00:00:01Z'", "TIMESTAMP '2026-01-01 00:00:00Z'")
    back = [{"ttl": {"disable": "test"}}]
    wrong = make([{"ttl": {"enable": later}}], back)
    other = migrate(users, wrong, str(tmp_path / "other")).snapshot
    found = failed(prove(spark, users, other, make([TIMES], back), tmp_path))
    assert list(found) == ["written_reads_back"]
    assert "times of the last access in key group " in found["written_reads_back"]


def test_one_other_element_fails_the_proof(spark: SparkSession, users: Snapshot, tmp_path: Path) -> None:
    back = [{"kind": {"to": "VALUE", "expression": "values[0]"}}]
    lists = make([{"drop": {"field": "name"}}, {"kind": {"to": "LIST"}}], back)
    aged = [{"set": {"field": "age", "expression": IN_ONE_ROW.format("age + 1", "age")}}]
    wrong = make([{"drop": {"field": "name"}}, *aged, {"kind": {"to": "LIST"}}])
    other = migrate(users, wrong, str(tmp_path / "other"), prove=False).snapshot
    found = failed(prove(spark, users, other, lists, tmp_path))
    assert "age in key group " in found["written_reads_back"]
    assert "age in key group " in found["round_trip"]


def test_one_row_less_fails_the_proof(
    spark: SparkSession, users: Snapshot, migration: Migration, tmp_path: Path
) -> None:
    steps = [*UPGRADE_STEPS, {"filter": {"keep": "state_key != 'user-5'", "reason": "test"}}]
    other = migrate(users, make(steps), str(tmp_path / "other"), prove=False).snapshot
    found = failed(prove(spark, users, other, migration, tmp_path))
    assert set(found) == {"row_counts_per_key_group", "key_sets", "written_reads_back", "round_trip"}


def make_chain(length: int) -> list[tuple[Migration, Direction]]:
    adds = ({"add": {"field": f"x{each}", "type": "Long", "expression": f"id + {each}"}} for each in range(length))
    steps = ([add, {"rename": {f"x{each}": f"y{each}"}}] for each, add in enumerate(adds))
    return [(make(each), Direction.UPGRADE) for each in steps]


def plan_chain(users: Snapshot, length: int) -> OperatorPlan:
    ((_, whole),) = plan_snapshot(users, make_chain(length))
    return whole.keyed


def test_questions_to_the_jvm_do_not_grow_with_the_square_of_the_revisions(
    spark: SparkSession, users: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    send = ClientServerConnection.send_command

    def count(connection: ClientServerConnection, command: str) -> str:
        nonlocal asked
        # Objects of earlier tests are released whenever Python collects them.
        asked += not command.startswith(MEMORY_COMMAND_NAME)
        answer: str = send(connection, command)
        return answer

    monkeypatch.setattr(ClientServerConnection, "send_command", count)
    counts = []
    for length in (4, 16):
        found, asked = plan_chain(users, length), 0
        flow = find_fieldwise(spark, found.changed["profile"], found.context.layouts)
        assert flow is not None
        assert len(flow.derived) == length
        counts.append(asked)
    assert counts[1] < 10 * counts[0]


def test_plans_that_are_analysed_do_not_grow_with_the_revisions(spark: SparkSession, users: Snapshot) -> None:
    sizes = []
    for length in (1, 6):
        found = plan_chain(users, length)
        (operator, _), *_ = plan_snapshot(users, make_chain(length))
        flow = found.changed["profile"]
        reader = EmptyReader(spark, operator, found.shapes, found.row_layouts)
        frame = FlowRunner(reader, found.row_layouts, folding=True).build(flow)
        sizes.append(frame._jdf.queryExecution().analyzed().toString().count("Project"))
    assert sizes[0] == sizes[1]
