"""Savepoints of queries that change, migrated: rows of recorded savepoints of Flink."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from state_pipelines.errors import IncompatibleError, MigrationError, ProofError, TargetExistsError
from state_pipelines.operations.migration import Migration, sql_layouts, sql_revisions
from state_pipelines.operations.migration import steps as st
from state_pipelines.operations.migration.migration_files import Change
from state_pipelines.operations.migration.sql_revisions import _OperatorDraft
from state_pipelines.operations.migration.step_types import SqlType
from state_pipelines.operations.proofs import RECOMPUTED, STATES_AGREE, ProofReport
from state_pipelines.operations.sql_recomputation import recompute_columns
from state_pipelines.serializers.text import describe
from state_pipelines.snapshot import open_snapshot
from state_pipelines.spark import NewOperator, NewState, bootstrap, sql_migration
from state_pipelines.spark import migrate as run_migration
from state_pipelines.spark.sql_migration import PLAN_FILE, REVISION_FILE, SqlMigration, migrate_query
from state_pipelines.sql.verdict import Verdict
from tests.sql.recorded_pairs import RecordedPair, unpack
from tests.sql.small_plans import aggregate, call, exchange, join, make_plan, scan

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.snapshot import Snapshot

pytestmark = pytest.mark.spark

BIGINT = SqlType("BIGINT")


def read_rows(snapshot: Snapshot, state: str) -> dict[Any, Any]:
    """Values of a state by key, and by user key of a map."""
    (operator,) = (each for each in snapshot.operators if any(one.name == state for one in each.keyed_states))
    found = {}
    for row in operator.state(state).to_arrow().to_pylist():
        values = {name: value for name, value in (row.get("value") or {}).items() if name != "row_kind"}
        found[tuple(row["state_key"].values())] = tuple(values.values())
    return found


def migrate(pair: RecordedPair, spark: SparkSession, **options: Any) -> SqlMigration:
    return migrate_query(pair.old, pair.new, pair.savepoint, str(pair.folder / "migrated"), spark=spark, **options)


def test_exchanged_aggregates_move_with_their_values(tmp_path: Path, spark: SparkSession) -> None:
    pair = unpack("swap", tmp_path)
    result = migrate(pair, spark)
    before, after = read_rows(pair.open(), "accState"), read_rows(result.snapshot, "accState")
    assert len(before) == result.rows == 20
    assert after == {key: (second, first) for key, (first, second) in before.items()}
    assert result.proof is not None
    assert result.proof.ok
    assert (tmp_path / "swap/migrated" / PLAN_FILE).read_text() == (tmp_path / "swap/new.json").read_text()
    assert "sum_k: f1" in (tmp_path / "swap/migrated" / REVISION_FILE).read_text()
    with pytest.raises(TargetExistsError):
        migrate(pair, spark)


def test_a_new_sum_begins_with_null_or_with_a_table(tmp_path: Path, spark: SparkSession) -> None:
    pair = unpack("add-sum", tmp_path)
    before = read_rows(pair.open(), "accState")
    table = pa.table({"cid": [1, 2, 30], "r2": [100, 200, 300]})
    pq.write_table(table, tmp_path / "sums.parquet")
    result = migrate(pair, spark, backfill={"r2": str(tmp_path / "sums.parquet")})
    given = {("+I", 1): 100, ("+I", 2): 200}
    assert read_rows(result.snapshot, "accState") == {key: (*row, given.get(key)) for key, row in before.items()}


def retype(plan: str, name: str, old: str, new: str) -> str:
    """A plan in which the columns of a name have another type, in both ways in which plans write types."""
    spaced = json.dumps(json.loads(plan))
    spaced = spaced.replace(f"`{name}` {old}", f"`{name}` {new}")
    for key in ("fieldType", "dataType"):
        spaced = spaced.replace(f'"name": "{name}", "{key}": "{old}"', f'"name": "{name}", "{key}": "{new}"')
    return spaced


def edit(pair: RecordedPair, *changes: tuple[str, str, str], ttl: str = "0 ms", base: str = "new") -> RecordedPair:
    """The pair with a new plan whose columns have other types, and with a time to live."""
    target = pair.folder / "new.json"
    plan = (pair.folder / f"{base}.json").read_text()
    for name, old, new in changes:
        plan = retype(plan, name, old, new)
    content = json.loads(plan)
    for node in content["nodes"]:
        for state in node.get("state", ()):
            state["ttl"] = ttl
    target.write_text(json.dumps(content))
    return pair


def test_types_nullability_and_time_to_live_change_at_once(tmp_path: Path, spark: SparkSession) -> None:
    changes = (("amount", "BIGINT", "DECIMAL(20, 0)"), ("id", "BIGINT", "TINYINT NOT NULL"))
    pair = edit(unpack("dedup-swap", tmp_path), *changes, ttl="3600000 ms")
    result = migrate(pair, spark)
    before, after = read_rows(pair.open(), "deduplicate-state"), read_rows(result.snapshot, "deduplicate-state")
    # The old order is id, customer, amount; 115 and others fit one byte.
    assert {key: (row[1], row[0], *row[2:]) for key, row in after.items()} == {
        key: (key[1], *(each for index, each in enumerate(row) if index != 1)) for key, row in before.items()
    }
    (operator,) = (each for each in result.snapshot.operators if each.keyed_states)
    assert describe(operator.state("deduplicate-state").info.value_serializer).startswith("Ttl<RowData(")
    assert "DECIMAL(20, 0)" in describe(operator.state("deduplicate-state").info.value_serializer)
    assert result.proof is not None
    assert {each.name: each.ok for each in result.proof.checks}[RECOMPUTED]


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        (
            "dedup-drop",
            ("note", "VARCHAR(2147483647)", "VARCHAR(5)"),
            r"o.note of key cid = \d+ is note \d+, which does",
        ),
        ("dedup-drop", ("note", "VARCHAR(2147483647)", "VARCHAR(9) NOT NULL"), "is NULL, which does not fit VARCHAR"),
        (
            "dedup-swap",
            ("amount", "BIGINT", "DECIMAL(1, 0)"),
            r"o.amount of key cid = \d+ is -?\d\d, which does not fit",
        ),
    ],
)
def test_values_that_do_not_fit_end_the_migration(
    name: str, change: tuple[str, str, str], text: str, tmp_path: Path, spark: SparkSession
) -> None:
    with pytest.raises(MigrationError, match=text):
        migrate(edit(unpack(name, tmp_path), change), spark)
    assert not (tmp_path / name / "migrated").exists()


def test_a_wrong_derivation_is_found_by_the_proof(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = unpack("sum-and-count-of-avg", tmp_path)
    right = _OperatorDraft._express

    def express(self: Any, verdict: Any, *others: Any) -> str:
        return right(self, verdict, *others).replace("f0", "f1") if verdict.new == 1 else right(self, verdict, *others)

    monkeypatch.setattr(_OperatorDraft, "_express", express)
    with pytest.raises(ProofError) as caught:
        migrate(pair, spark)
    assert isinstance(caught.value.report, ProofReport)
    assert [each.name for each in caught.value.report.failed] == [RECOMPUTED]
    assert not (tmp_path / "sum-and-count-of-avg/migrated").exists()


def test_an_outer_join_that_becomes_an_inner_one_keeps_its_rows(tmp_path: Path, spark: SparkSession) -> None:
    pair, inner = unpack("join-swap-outer", tmp_path), unpack("join-swap", tmp_path)
    result = migrate_query(pair.old, inner.old, pair.savepoint, str(tmp_path / "inner"), spark=spark)
    before, after = (
        {
            (*row["state_key"].values(), *row["map_key"].values()): row["map_value"]
            for operator in each.operators
            for state in operator.keyed_states
            if state.name == "left-records"
            for row in state.to_arrow().to_pylist()
        }
        for each in (pair.open(), result.snapshot)
    )
    assert len(after) > 100
    assert after == {key: value["f0"] for key, value in before.items()}


def test_a_table_fills_rows_by_key_and_user_key(tmp_path: Path, spark: SparkSession) -> None:
    key, columns = "named_struct('row_kind', '+I', 'f0', id % 2)", "'f0', id % 2, 'f1', id"
    rows = spark.range(4).selectExpr(
        f"{key} AS state_key",
        "named_struct('row_kind', '+I', 'f0', id) AS map_key",
        f"named_struct('row_kind', '+I', {columns}) AS map_value",
    )
    types = "Map<RowData(BIGINT), RowData(BIGINT, BIGINT)>"
    operator = NewOperator("join", [NewState("left-records", rows, "MAP", type=types)], "RowData(BIGINT)", 1)
    bootstrap(str(tmp_path / "old"), [operator])
    pq.write_table(pa.table({"cid": [0, 1], "id": [2, 3], "total": [20, 30]}), tmp_path / "totals.parquet")
    columns_of_row = (st.RowColumn("cid", "f0"), st.RowColumn("id", "f1"), st.RowColumn("total", "NULL", BIGINT))
    keys = (("f0", "cid"), ("map_key.f0", "id"))
    steps = (st.Columns(columns_of_row), st.Fill("f2", str(tmp_path / "totals.parquet"), keys, "total"))
    change = Change("join", "left-records", steps, (), impossible="a test")
    migration = Migration("totals", None, "", (change,))
    old = open_snapshot(str(tmp_path / "old"), uids=["join"])
    result = run_migration(old, migration, str(tmp_path / "new"), spark=spark, allow_sql=True)
    (changed,) = result.snapshot.operators
    found = changed.state("left-records").to_arrow().to_pylist()
    assert {each["map_key"]["f0"]: each["map_value"]["f2"] for each in found} == {0: None, 1: None, 2: 20, 3: 30}


def test_renamed_operators_are_metadata_alone(tmp_path: Path) -> None:
    pair = unpack("ids", tmp_path)

    def start() -> Any:
        raise AssertionError("no Spark is needed")

    result = migrate(pair, start)  # type: ignore[arg-type]
    assert result.rows == 0
    assert result.path is not None
    assert read_rows(result.snapshot, "accState") == read_rows(pair.open(), "accState")
    assert {each.uid for each in result.snapshot.operators if each.uid} != {each.uid for each in pair.open().operators}


def test_a_refused_query_leaves_nothing(tmp_path: Path) -> None:
    pair, other = unpack("swap", tmp_path), unpack("retract-swap", tmp_path)
    with pytest.raises(IncompatibleError, match="the input has retractions now"):
        migrate_query(pair.old, other.new, pair.savepoint, str(tmp_path / "refused"))
    assert not (tmp_path / "refused").exists()


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> tuple[Snapshot, SqlMigration]:
    """A savepoint before and after a migration of a join, two ranks and an OVER."""
    pair = unpack("layouts", tmp_path_factory.mktemp("layouts"))
    return pair.open(), migrate(pair, spark)


def list_entries(snapshot: Snapshot, name: str) -> list[tuple[Any, Any, Any]]:
    """Key, user key and value of a state that one operator has."""
    (operator,) = (each for each in snapshot.operators if any(one.name == name for one in each.keyed_states))
    return [
        (str(row["state_key"]), row.get("map_key"), row["map_value"] if "map_value" in row else row["value"])
        for row in operator.state(name).to_arrow().to_pylist()
    ]


def test_other_layouts_are_recomputed(layouts: tuple[Snapshot, SqlMigration]) -> None:
    _, result = layouts
    assert result.proof is not None
    check = next(each for each in result.proof.checks if each.name == RECOMPUTED)
    assert check.ok
    names = ("left-records", "right-records", "data-state-with-append", "Top1-Rank-State")
    assert all(f" / {name}" in check.expected for name in names)


def test_rows_of_an_outer_join_have_the_number_of_their_matches(layouts: tuple[Snapshot, SqlMigration]) -> None:
    _, result = layouts
    left, right = (list_entries(result.snapshot, f"{side}-records") for side in ("left", "right"))
    cities = {key for key, _, _ in right}
    assert {value["f1"] for _, _, value in left} == {0, 1}
    assert all(value["f1"] == (key in cities) for key, _, value in left)
    orders = Counter(key for key, _, _ in left)
    assert all(value["f1"] == orders[key] for key, _, value in right)
    assert max(orders.values()) > 1


def test_a_rank_of_fewer_rows_keeps_the_first_ones(layouts: tuple[Snapshot, SqlMigration]) -> None:
    before, after = (list_entries(each, "data-state-with-append") for each in (layouts[0], layouts[1].snapshot))

    def list_amounts(entries: list[tuple[Any, Any, Any]]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for key, user_key, rows in entries:
            # NULL comes last.
            found.setdefault(key, []).extend([-100 if user_key["f0"] is None else user_key["f0"]] * len(rows))
        return {key: sorted(each, reverse=True) for key, each in found.items()}

    old, new = list_amounts(before), list_amounts(after)
    assert {len(each) for each in old.values()} == {5}
    assert new == {key: each[:2] for key, each in old.items()}
    often = list_entries(layouts[0], "data-state-with-update")
    (first,) = {len(list_entries(layouts[1].snapshot, "Top1-Rank-State"))}
    assert first == len({key for key, _, _ in often}) < len(often)


def test_new_calls_of_an_over_are_added_up_from_its_rows(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = unpack("over-time-rows", tmp_path)
    result = migrate(pair, spark)
    assert result.proof is not None
    assert {each.name: each.ok for each in result.proof.checks}[RECOMPUTED]
    states = {each.name: each for operator in result.comparison.operators for each in operator.states}
    (old,), (new,) = states["inputState"].old.rows, states["accState"].new.rows  # type: ignore[union-attr]
    column, quantity = (
        [each.meaning for each in row.columns].index(text) for row, text in ((old, "o.qty"), (new, "$SUM0(o.qty)"))
    )
    times = {key: value for key, _, value in list_entries(pair.open(), "lastTriggeringTsState")}
    sums: Counter[str] = Counter()
    for key, time, rows in list_entries(pair.open(), "inputState"):
        if time <= times.get(key, 0):
            sums[key] += sum(each[f"f{column}"] for each in rows)
    found = {key: value[f"f{quantity}"] for key, _, value in list_entries(result.snapshot, "accState")}
    assert found == {key: sums[key] for key in found}
    assert sum(found.values()) > 0

    add = sql_layouts._add
    monkeypatch.setattr(sql_layouts, "_add", lambda row, index, of: add(row, index, of).replace("sum, 0)", "sum, 1)"))
    with pytest.raises(ProofError) as caught:
        migrate_query(pair.old, pair.new, pair.savepoint, str(tmp_path / "broken"), spark=spark)
    assert isinstance(caught.value.report, ProofReport)
    assert [each.name for each in caught.value.report.failed] == [RECOMPUTED]


@pytest.mark.parametrize(("name", "last"), [("over-rows-fewer", 2), ("over-time-rows-fewer", 3)])
def test_a_shorter_window_keeps_its_last_rows(name: str, last: int, tmp_path: Path, spark: SparkSession) -> None:
    pair = unpack(name, tmp_path)
    result = migrate(pair, spark)
    assert result.proof is not None
    (check,) = (each for each in result.proof.checks if each.name == RECOMPUTED)
    assert check.ok
    assert all(each in check.expected for each in ("accState", "inputState", "processedCountState"))
    times = {key: value for key, _, value in list_entries(pair.open(), "lastTriggeringTsState")} if last == 3 else {}
    windows: dict[str, list[str]] = {}
    waiting = 0
    for key, time, rows in sorted(list_entries(pair.open(), "inputState"), key=lambda each: each[:2]):
        if times and time > times.get(key, 0):
            waiting += len(rows)
        else:
            windows.setdefault(key, []).extend(json.dumps(each, default=str) for each in rows)
    kept = {key: each[-last:] for key, each in windows.items()}
    assert any(len(kept[key]) < len(windows[key]) for key in kept)
    found: dict[str, list[str]] = {}
    for key, time, rows in sorted(list_entries(result.snapshot, "inputState"), key=lambda each: each[:2]):
        if not times or time <= times.get(key, 0):
            found.setdefault(key, []).extend(json.dumps(each, default=str) for each in rows)
        else:
            waiting -= len(rows)
    assert (found, waiting) == (kept, 0)
    counts = {key: value for key, _, value in list_entries(result.snapshot, "processedCountState")}
    assert counts == {key: len(each) for key, each in kept.items()}


def test_extremes_that_take_back_rows_come_from_the_values_of_others(tmp_path: Path, spark: SparkSession) -> None:
    pair = unpack("retract-extremes-of-distinct", tmp_path)
    result = migrate(pair, spark)
    assert result.proof is not None
    assert {each.name: each.ok for each in result.proof.checks}[RECOMPUTED]
    states = {each.name: each for operator in result.snapshot.operators for each in operator.keyed_states}
    (planned,) = (
        each for operator in result.comparison.operators for each in operator.states if each.name == "agg2$map"
    )
    assert (planned.verdict, planned.exact) == (Verdict.COMPUTED, True)
    values: dict[str, dict[int, int]] = {}
    for key, value, count in list_entries(pair.open(), "distinctAcc_0"):
        values.setdefault(key, {})[value] = count
    for name in ("agg0$map", "agg2$map", "distinctAcc_0"):
        assert states[name].kind == "MAP"
        copied: dict[str, dict[int, int]] = {}
        for key, value, count in list_entries(result.snapshot, name):
            copied.setdefault(key, {})[value] = count
        assert copied == values
    (accumulator,) = (each for each in result.snapshot.operators if any(one.name == "agg0$map" for one in each.states))
    for row in accumulator.state("accState").to_arrow().to_pylist():
        mine = values.get(str(row["state_key"]), {})
        low, high = row["value"]["f0"], row["value"]["f2"]
        assert (low["min"], low["mapSize"]) == (min(mine, default=None), len(mine))
        assert (high["max"], high["mapSize"]) == (max(mine, default=None), len(mine))
        # What Flink writes for a view, whose entries are a state of their own.
        assert low["map"] == high["map"] == b"\0"


def test_a_rank_of_one_row_becomes_one_of_several(tmp_path: Path, spark: SparkSession) -> None:
    pair = unpack("top-to-first", tmp_path)
    first = migrate(pair, spark)
    assert first.path is not None
    back = migrate_query(pair.new, pair.old, first.path, str(tmp_path / "back"), spark=spark)
    assert back.proof is not None
    assert {each.name: each.ok for each in back.proof.checks}[RECOMPUTED]
    assert not back.comparison.exact
    ones = {key: row for key, _, row in list_entries(first.snapshot, "Top1-Rank-State")}
    entries = list_entries(back.snapshot, "data-state-with-append")
    assert len(entries) == len(ones) == 20
    columns = ("amount", "cid", "id")
    for key, sort_key, rows in entries:
        (row,) = rows
        assert Counter(row.values()) == Counter(ones[key].values()), columns
        assert sort_key["f0"] in row.values()


def test_broken_layouts_are_found_by_the_proof_alone(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare, change = sql_layouts._compare, sql_layouts.change_layout
    verdicts: dict[str, set[bool]] = {}

    def count(*arguments: Any) -> sql_layouts.LayoutSteps:
        found = change(*arguments)
        steps = (
            replace(each, expression=each.expression.replace("coalesce(matches", "1 + coalesce(matches"))
            if isinstance(each, st.Merge)
            else each
            for each in found.steps
        )
        return replace(found, steps=tuple(steps))

    def recompute(comparison: Any, *others: Any) -> Any:
        for each in comparison.operators:
            checks = recompute_columns(replace(comparison, operators=(each,)), *others)
            for check in checks:
                verdicts.setdefault(each.old.kind, set()).add(check.ok)
        return recompute_columns(comparison, *others)

    monkeypatch.setattr(sql_layouts, "_compare", lambda *given: f"-({compare(*given)})")
    monkeypatch.setattr(sql_revisions, "change_layout", count)
    monkeypatch.setattr(sql_migration, "recompute_columns", recompute)
    with pytest.raises(ProofError) as caught:
        migrate(unpack("layouts", tmp_path), spark)
    assert isinstance(caught.value.report, ProofReport)
    # The numbers of matches contradict the rows of the other side, which the proof knows of all joins.
    assert {each.name for each in caught.value.report.failed} == {RECOMPUTED, STATES_AGREE}
    assert (verdicts["join"], verdicts["rank"]) == ({False}, {False})


def write_plans(directory: Path, old: str, new: str, of: str, value: str, spark: SparkSession) -> RecordedPair:
    """A pair of plans of an aggregate, with a savepoint of three keys of the old one."""
    (directory / "old.json").write_text(old)
    (directory / "new.json").write_text(new)
    rows = spark.range(3).selectExpr("named_struct('row_kind', '+I', 'f0', id) AS state_key", f"{value} AS value")
    state = NewState("accState", rows, "VALUE", type=of)
    operator = NewOperator("3_group-aggregate", [state], "RowData(BIGINT)", 1)
    bootstrap(str(directory / "savepoint"), [operator])
    return RecordedPair(directory)


def test_a_sum_that_does_not_fit_names_its_key_and_the_way_out(tmp_path: Path, spark: SparkSession) -> None:
    def plan(*calls: dict[str, Any]) -> str:
        return make_plan(scan(1), exchange(2), aggregate(3, [0], *calls), edges=[(1, 2), (2, 3)])

    value = "named_struct('row_kind', '+I', 'f0', id * 1500000000, 'f1', 1L)"
    old, new = plan(call("AVG", 2, of="INT")), plan(call("SUM", 2, of="INT"), call("COUNT", 2, of="BIGINT NOT NULL"))
    pair = write_plans(tmp_path, old, new, "RowData(BIGINT, BIGINT)", value, spark)
    with pytest.raises(MigrationError, match="key id = 2 is 3000000000, which does not fit INT") as caught:
        migrate(pair, spark)
    assert caught.value.where.file == pair.savepoint
    assert (caught.value.where.operator, caught.value.where.state) == ("3_group-aggregate", "accState")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("Cast the column to its old type")
    assert not (tmp_path / "migrated").exists()


def test_equal_rows_of_an_outer_join_are_counted_together(tmp_path: Path, spark: SparkSession) -> None:
    def plan(*columns: str) -> str:
        left = f"ROW<{', '.join(f'`{each}` BIGINT' for each in columns)}>"
        right = "ROW<`id` BIGINT, `city` BIGINT>"
        both = join(5, left, right, kind="LEFT", leftUpsertKeys=[], rightUpsertKeys=[])
        both["state"] = []
        nodes = (scan(1, "l", left), exchange(2, left), scan(3, "r", right), exchange(4, right), both)
        return make_plan(*nodes, edges=[(1, 2), (3, 4), (2, 5), (4, 5)])

    for name, columns in (("old", ("id", "note", "word")), ("new", ("id", "note"))):
        (tmp_path / f"{name}.json").write_text(plan(*columns))
    # Rows (0, 7, 1), (0, 7, 2) and (0, 8, 3), which come 2, 3 and 4 times, and each has 6 matches.
    values = "VALUES (0L, 7L, 1L, 2), (0L, 7L, 2L, 3), (0L, 8L, 3L, 4)"
    left = spark.sql(
        "SELECT named_struct('row_kind', '+I', 'f0', col1) AS state_key, "
        "named_struct('row_kind', '+I', 'f0', col1, 'f1', col2, 'f2', col3) AS map_key, "
        f"named_struct('f0', col4, 'f1', 6) AS map_value FROM {values}"
    )
    right = spark.sql(
        "SELECT named_struct('row_kind', '+I', 'f0', 0L) AS state_key, "
        "named_struct('row_kind', '+I', 'f0', 0L, 'f1', 9L) AS map_key, 6 AS map_value"
    )
    three, two = (f"RowData({', '.join(['BIGINT'] * number)})" for number in (3, 2))
    states = [
        NewState("left-records", left, "MAP", type=f"Map<{three}, Tuple2<Int, Int>>"),
        NewState("right-records", right, "MAP", type=f"Map<{two}, Int>"),
    ]
    bootstrap(str(tmp_path / "savepoint"), [NewOperator("5_join", states, "RowData(BIGINT)", 1)])
    result = migrate(RecordedPair(tmp_path), spark)
    assert result.proof is not None
    assert {each.name: each.ok for each in result.proof.checks}[RECOMPUTED]
    found = {key["f1"]: (value["f0"], value["f1"]) for _, key, value in list_entries(result.snapshot, "left-records")}
    assert found == {7: (5, 6), 8: (4, 6)}
