from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import MigrationError, UnsupportedError, UsageError
from state_pipelines.operations.bootstrap.new_states import NewOperator, NewState
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.spark import bootstrap, register
from state_pipelines.spark.bootstrap_run import (
    Aggregate,
    collect_of,
    count_of,
    keyed_aggregate,
    last_of,
    max_of,
    min_of,
    sum_of,
)
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

STATES = {
    "count": count_of(),
    "sum": sum_of("amount"),
    "smallest": min_of("amount"),
    "largest": max_of("amount"),
    "last": last_of("city", "number"),
    "cities": collect_of("city", "number"),
    "flags": Aggregate("1L << (number % 8)", "bit_or({value})", kind="AGGREGATING"),
}
RECORDS = [(number, f"user-{number * 7 % 13}", number * 31 % 97 - 40, f"city-{number % 5}") for number in range(200)]


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def frame(spark: SparkSession, records: list[tuple[int, str, int, str]]) -> DataFrame:
    return spark.createDataFrame(records, "number bigint, user string, amount bigint, city string")


def expect(records: list[tuple[int, str, int, str]]) -> dict[str, dict[str, Any]]:
    states: dict[str, dict[str, Any]] = {name: {} for name in STATES}
    for number, user, amount, city in records:
        states["count"][user] = states["count"].get(user, 0) + 1
        states["sum"][user] = states["sum"].get(user, 0) + amount
        states["smallest"][user] = min(states["smallest"].get(user, amount), amount)
        states["largest"][user] = max(states["largest"].get(user, amount), amount)
        states["last"][user] = city
        states["cities"].setdefault(user, []).append(city)
        states["flags"][user] = states["flags"].get(user, 0) | 1 << number % 8
    return states


def read(snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name in STATES:
        values = found.setdefault(name, {})
        for row in snapshot.operator("users").state(name).to_arrow().to_pylist():
            if "list_value" in row:
                values.setdefault(row["state_key"], []).append(row["list_value"])
            else:
                values[row["state_key"]] = row["value"]
    return found


def aggregate(frame: DataFrame, target: Path, states: dict[str, Aggregate] = STATES, **options: Any) -> Snapshot:
    return keyed_aggregate(frame, str(target), "users", "user", states, **options).snapshot


def test_two_batches_give_what_one_gives(spark: SparkSession, tmp_path: Path) -> None:
    options: dict[str, Any] = {"parallelism": 3, "max_parallelism": 64, "format": "rocksdb"}
    first = aggregate(frame(spark, RECORDS[:120]), tmp_path / "first", **options)
    assert read(first) == expect(RECORDS[:120])
    second = aggregate(frame(spark, RECORDS[120:]), tmp_path / "second", snapshot=first)
    assert read(second) == expect(RECORDS)
    assert second.operator("users").metadata.max_parallelism == 64


def test_types_and_kinds_are_those_of_the_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql("SELECT 'user-1' AS state_key, 5L AS value")
    total = NewState("sum", rows, "REDUCING", "Long")
    base = bootstrap(str(tmp_path / "base"), [NewOperator("users", [total], parallelism=1)]).snapshot
    merged = aggregate(frame(spark, RECORDS), tmp_path / "new", {"sum": sum_of("amount")}, snapshot=base)
    state = merged.operator("users").state("sum")
    assert state.info.state_type == "REDUCING"
    values = {row["state_key"]: row["value"] for row in state.to_arrow().to_pylist()}
    expected = Counter(expect(RECORDS)["sum"])
    expected["user-1"] += 5
    assert values == expected


def test_keys_without_a_result_have_no_state(spark: SparkSession, tmp_path: Path) -> None:
    states = {"count": count_of(), "sum": sum_of("if(user = 'user-1', null, amount)")}
    merged = aggregate(frame(spark, RECORDS), tmp_path / "new", states, parallelism=1).operator("users")
    assert merged.state("count").count().entries == merged.state("sum").count().entries + 1


def test_the_last_value_is_that_of_the_last_record_that_has_one(spark: SparkSession, tmp_path: Path) -> None:
    states = {"last": last_of("city", "number")}
    first = frame(spark, [(5, "a", 0, "five"), (9, "a", 0, "nine"), (7, "a", 0, "seven"), (1, "b", 0, "one")])
    without = first.selectExpr("number", "user", "amount", "IF(number = 9, NULL, city) AS city")
    snapshot = aggregate(without, tmp_path / "first", states, parallelism=1)
    second = frame(spark, [(2, "a", 0, "two"), (3, "b", 0, "three")]).selectExpr(
        "number", "user", "amount", "IF(number = 3, NULL, city) AS city"
    )
    merged = aggregate(second, tmp_path / "second", states, snapshot=snapshot)
    found = [
        {row["state_key"]: row["value"] for row in each.operator("users").state("last").to_arrow().to_pylist()}
        for each in (snapshot, merged)
    ]
    assert found == [{"a": "seven", "b": "one"}, {"a": "two", "b": "one"}]


def test_braces_of_sql_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    states = {"sum": Aggregate("amount", "sum(if('ab' rlike '^[a-z]{2}$', {value}, 0L))")}
    merged = aggregate(frame(spark, RECORDS), tmp_path / "new", states, parallelism=1)
    values = {row["state_key"]: row["value"] for row in merged.operator("users").state("sum").to_arrow().to_pylist()}
    assert values == expect(RECORDS)["sum"]


def test_other_states_are_taken_over(spark: SparkSession, tmp_path: Path) -> None:
    records = spark.sql("SELECT 'order-0001' AS id")
    base = open_snapshot(str(orders("2.2").path))
    merged = keyed_aggregate(records, str(tmp_path / "new"), "orders", "id", {"seen": count_of()}, snapshot=base)
    assert merged.snapshot.operator("orders").state("seen").to_arrow()["value"].to_pylist() == [1]
    for state in base.operator("orders").states:
        assert merged.snapshot.operator("orders").state(state.name).count().entries == state.count().entries


class TestRefused:
    def test_an_aggregate_whose_results_cannot_be_combined(self, spark: SparkSession, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"count\(\{value\}\) gives bigint for values of type string"):
            aggregate(
                frame(spark, RECORDS), tmp_path / "new", {"n": Aggregate("city", "count({value})")}, parallelism=1
            )

    def test_a_record_without_an_order(self, spark: SparkSession, tmp_path: Path) -> None:
        states = {"last": last_of("city", "if(number = 7, null, number)")}
        with pytest.raises(MigrationError, match="state last: the order of a record is null"):
            aggregate(frame(spark, RECORDS), tmp_path / "new", states, parallelism=1)
        assert not (tmp_path / "new").exists()

    @pytest.mark.parametrize(
        "each",
        [Aggregate("amount +", "sum({value})"), Aggregate("amount", "sum({value}"), last_of("city", "number,")],
        ids=["value", "aggregate", "order"],
    )
    def test_an_expression_that_is_no_sql(self, spark: SparkSession, tmp_path: Path, each: Aggregate) -> None:
        with pytest.raises(UsageError, match="cannot be evaluated"):
            aggregate(frame(spark, RECORDS), tmp_path / "new", {"s": each}, parallelism=1)

    def test_no_aggregates(self, spark: SparkSession, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no aggregates"):
            aggregate(frame(spark, RECORDS), tmp_path / "new", {}, parallelism=1)

    def test_another_type_than_in_the_snapshot(self, spark: SparkSession, tmp_path: Path) -> None:
        first = aggregate(frame(spark, RECORDS), tmp_path / "first", {"sum": sum_of("amount")}, parallelism=1)
        states = {"sum": sum_of("CAST(amount AS DOUBLE)")}
        with pytest.raises(UsageError, match=r"is double, and the snapshot has bigint"):
            aggregate(frame(spark, RECORDS), tmp_path / "new", states, snapshot=first)
        assert not (tmp_path / "new").exists()

    @pytest.mark.parametrize(("state", "reason"), [("last-seen", "time to live"), ("quantities", "MAP state")])
    def test_a_state_that_cannot_be_merged(self, spark: SparkSession, tmp_path: Path, state: str, reason: str) -> None:
        base = open_snapshot(str(orders("2.2").path))
        records = spark.sql("SELECT 'order-0001' AS id")
        with pytest.raises(UnsupportedError, match=reason):
            keyed_aggregate(records, str(tmp_path / "new"), "orders", "id", {state: count_of()}, snapshot=base)
