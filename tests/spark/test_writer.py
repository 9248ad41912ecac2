from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from state_pipelines.errors import StateError, TargetExistsError, UsageError
from state_pipelines.operations.dump import dump
from state_pipelines.snapshot import Snapshot, open_snapshot
from state_pipelines.spark import register, write_state
from tests.flink.harness import diff_entries
from tests.snapshot.savepoints import RELEASES, orders

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TOTALS = {
    "operatorId": "totals",
    "stateVarName": "total",
    "stateType": "VALUE",
    "keySerializer": "String",
    "valueSerializer": "Long",
    "parallelism": "2",
}


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


@pytest.fixture
def totals(spark: SparkSession) -> DataFrame:
    return spark.sql("SELECT CONCAT('key-', id) AS state_key, id * 7 AS value FROM RANGE(1000)")


def load(spark: SparkSession, state: str, release: str = "2.2") -> DataFrame:
    reader = spark.read.format("flink-state").options(operatorId="orders", stateVarName=state)
    return reader.load(str(orders(release).path))


def save(frame: DataFrame, target: Path, **options: str) -> Snapshot:
    frame.write.format("flink-state").mode("append").options(**options).save(str(target))
    return open_snapshot(str(target), uids=orders().uids)


def rows(snapshot: Snapshot, operator: str, state: str) -> list[dict[str, Any]]:
    return snapshot.operator(operator).state(state).to_arrow().to_pylist()  # type: ignore[no-any-return]


@pytest.mark.essential
def test_a_savepoint_is_made_from_nothing(totals: DataFrame, tmp_path: Path) -> None:
    snapshot = save(totals, tmp_path / "new", **TOTALS)
    (operator,) = snapshot.operators
    assert (operator.id, operator.parallelism, operator.max_parallelism) == (snapshot.operator("totals").id, 2, 128)
    found = rows(snapshot, "totals", "total")
    assert Counter((row["state_key"], row["value"]) for row in found) == Counter(
        (f"key-{i}", i * 7) for i in range(1000)
    )
    assert {row["key_group"] // 64 == row["subtask"] for row in found} == {True}


def test_nothing_but_the_savepoint_is_left(totals: DataFrame, tmp_path: Path) -> None:
    save(totals, tmp_path / "new", **TOTALS)
    assert [each.name for each in tmp_path.iterdir()] == ["new"]
    assert len([*(tmp_path / "new").glob("[!_]*")]) == 2


def test_a_frame_without_rows_gives_a_state_without_entries(totals: DataFrame, tmp_path: Path) -> None:
    snapshot = save(totals.limit(0), tmp_path / "new", **TOTALS)
    assert snapshot.operator("totals").state("total").count().entries == 0


def test_maps_are_written(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql(
        "SELECT CAST(id % 10 AS INT) AS state_key, id AS map_key, CONCAT('v', id) AS map_value FROM RANGE(99)"
    )
    options = TOTALS | {"stateType": "MAP", "keySerializer": "Int", "valueSerializer": "Map<Long, String>"}
    found = rows(save(frame, tmp_path / "new", **options), "totals", "total")
    assert sorted((row["map_key"], row["state_key"], row["map_value"]) for row in found) == [
        (each, each % 10, f"v{each}") for each in range(99)
    ]


def test_lists_are_written_whole(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("SELECT id AS state_key, ARRAY(id, id + 1) AS value FROM RANGE(50)").orderBy(F.rand(1))
    options = TOTALS | {"stateType": "LIST", "keySerializer": "Long", "valueSerializer": "List<Long>"}
    found = rows(save(frame, tmp_path / "new", **options), "totals", "total")
    assert sorted((row["state_key"], row["list_index"], row["list_value"]) for row in found) == [
        (key, index, key + index) for key in range(50) for index in range(2)
    ]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("state", ["quantities", "order"])
def test_shuffled_rows_give_the_state_again(spark: SparkSession, tmp_path: Path, state: str, release: str) -> None:
    frame = load(spark, state, release).orderBy(F.rand(1)).repartition(3)
    base = str(orders(release).path)
    snapshot = save(frame, tmp_path / "new", base=base, operatorId="orders", stateVarName=state)
    difference = diff_entries(orders(release).entries(), dump(snapshot))
    assert not difference, str(difference)


def test_key_groups_are_computed_when_they_are_missing(spark: SparkSession, tmp_path: Path) -> None:
    frame = load(spark, "history").drop("key_group", "subtask", "state_namespace")
    snapshot = save(frame, tmp_path / "new", base=str(orders().path), operatorId="orders", stateVarName="history")
    difference = diff_entries(orders().entries(), dump(snapshot))
    assert not difference, str(difference)


@pytest.mark.essential
def test_a_state_is_added_to_those_of_the_base(spark: SparkSession, tmp_path: Path) -> None:
    frame = load(spark, "order").select("state_key", F.col("value.amount").alias("value"))
    options = {"operatorId": "orders", "stateVarName": "amount", "stateType": "VALUE", "valueSerializer": "Long"}
    snapshot = save(frame, tmp_path / "new", base=str(orders().path), **options)
    amounts = {row["state_key"]: row["value"] for row in rows(snapshot, "orders", "amount")}
    assert amounts == {row["state_key"]: row["value"]["amount"] for row in rows(snapshot, "orders", "order")}
    others = [line for line in dump(snapshot) if line.get("state") != "amount"]
    assert not diff_entries(orders().entries(), others)


def test_an_operator_is_added_to_those_of_the_base(totals: DataFrame, tmp_path: Path) -> None:
    snapshot = save(totals, tmp_path / "new", base=str(orders().path), **TOTALS)
    assert snapshot.operator("totals").state("total").count().entries == 1000
    assert not diff_entries(orders().entries(), [line for line in dump(snapshot) if line.get("state") != "total"])


def test_files_can_be_written_by_tasks(totals: DataFrame, tmp_path: Path) -> None:
    target = str(tmp_path / "new")
    assert write_state(totals, target, base=str(orders().path), **TOTALS) == target
    snapshot = open_snapshot(target, uids=orders().uids)
    assert snapshot.operator("totals").state("total").count().entries == 1000
    assert not [each for each in (tmp_path / "new").iterdir() if each.is_dir()]


def test_overwriting_is_refused(totals: DataFrame, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="never overwritten"):
        totals.write.format("flink-state").mode("overwrite").options(**TOTALS).save(str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_what_is_at_the_target_stays(totals: DataFrame, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").write_text("mine")
    with pytest.raises(PySparkException, match="the target holds something already"):
        save(totals, tmp_path / "new", **TOTALS)
    with pytest.raises(TargetExistsError):
        write_state(totals, str(tmp_path / "new"), **TOTALS)
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("operatorId", "operatorId is missing"),
        ("stateVarName", "stateVarName is missing"),
        ("stateType", "the state type"),
        ("keySerializer", "serializer of the keys"),
        ("valueSerializer", "serializer of the value"),
        ("parallelism", "the parallelism"),
    ],
)
def test_missing_options_are_told(totals: DataFrame, tmp_path: Path, missing: str, message: str) -> None:
    options = {name: value for name, value in TOTALS.items() if name != missing}
    with pytest.raises(UsageError, match=message):
        write_state(totals, str(tmp_path / "new"), **options)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"parallelism": "two"},
        {"parallelism": "300", "maxParallelism": "128"},
        {"maxParallelism": "99999"},
        {"stateType": "VALUES"},
        {"stateType": "MAP"},
        {"stateType": "LIST"},
        {"valueSerializer": "Lnog"},
    ],
    ids=str,
)
def test_wrong_options_are_told(totals: DataFrame, tmp_path: Path, wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        write_state(totals, str(tmp_path / "new"), **(TOTALS | wrong))
    assert not (tmp_path / "new").exists()


def test_the_parallelism_of_the_base_cannot_change(totals: DataFrame, tmp_path: Path) -> None:
    options = {"base": str(orders().path), "operatorId": "orders", "stateVarName": "order", "parallelism": "3"}
    with pytest.raises(UsageError, match="parallelism 2 in the base, not 3"):
        write_state(totals, str(tmp_path / "new"), **options)


def test_rows_that_do_not_fit_leave_nothing(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("SELECT 'a' AS state_key, CAST(NULL AS BIGINT) AS value")
    with pytest.raises(StateError, match="null"):
        write_state(frame, str(tmp_path / "new"), **TOTALS)
    with pytest.raises(PySparkException, match="null"):
        save(frame, tmp_path / "new", **TOTALS)
    assert list(tmp_path.iterdir()) == []
