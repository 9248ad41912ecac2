from __future__ import annotations

import shutil
import zipfile
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from state_pipelines.keyed.operator_table import OperatorTableOptions
from state_pipelines.metadata.checkpoint import SubtaskState
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.spark import register
from tests.connectors.test_kafka import SPLIT
from tests.connectors.vectors import element
from tests.snapshot.built import build_snapshot, list_operator, write_raw_keyed
from tests.snapshot.built import operator as operator_of
from tests.snapshot.savepoints import Savepoint, orders, types
from tests.snapshots import select

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def load(
    spark: SparkSession, operator: str, state: str, savepoint: Savepoint | None = None, **options: Any
) -> DataFrame:
    reader = spark.read.format("flink-state").option("path", str((savepoint or orders()).path))
    return reader.options(operatorId=operator, stateVarName=state, **options).load()


def collect(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def arrow_rows(operator: str, state: str) -> list[dict[str, Any]]:
    return orders().open().operator(operator).state(state).to_arrow().to_pylist()  # type: ignore[no-any-return]


@pytest.mark.essential
def test_a_state_is_a_table(spark: SparkSession) -> None:
    frame = load(spark, "orders", "quantities")
    assert frame.schema.simpleString() == (
        "struct<key_group:int,subtask:int,state_key:string,state_namespace:string,map_key:string,map_value:bigint>"
    )
    expected = [
        (entry["kg"], entry["subtask"], entry["key"], entry["ukey"], entry["value"])
        for entry in orders().entries()
        if entry.get("state") == "quantities"
    ]
    rows = [(r.key_group, r.subtask, r.state_key, r.map_key, r.map_value) for r in frame.collect()]
    assert sorted(rows) == sorted(expected)


def test_a_small_split_size_gives_many_tasks_and_the_same_rows(spark: SparkSession) -> None:
    whole = load(spark, "orders", "order")
    split = load(spark, "orders", "order", splitSize="2000")
    assert whole.rdd.getNumPartitions() == 2
    assert split.rdd.getNumPartitions() > 10
    assert collect(split) == collect(whole)


def test_a_key_group_much_larger_than_the_split_size_gives_many_tasks_and_the_same_rows(spark: SparkSession) -> None:
    counts = Counter(row["key_group"] for row in arrow_rows("orders", "quantities"))
    ((largest, number),) = counts.most_common(1)
    whole = load(spark, "orders", "quantities", keyGroups=f"{largest}-{largest}")
    split = load(spark, "orders", "quantities", keyGroups=f"{largest}-{largest}", splitSize="60")
    assert whole.rdd.getNumPartitions() == 1
    assert split.rdd.getNumPartitions() > 2
    assert collect(split) == collect(whole)
    assert split.count() == number


def test_an_operator_can_be_named_by_its_id(spark: SparkSession) -> None:
    operator = orders("1.20").open().operator("orders").id
    assert load(spark, operator, "order", orders("1.20")).count() == 200
    assert load(spark, "orders", "order", orders("1.20")).count() == 200


def test_some_key_groups_are_read(spark: SparkSession) -> None:
    rows = collect(load(spark, "orders", "last-seen", keyGroups="60-69").select("key_group", "state_key"))
    expected = [row for row in arrow_rows("orders", "last-seen") if 60 <= row["key_group"] <= 69]
    assert sorted((row["key_group"], row["state_key"]) for row in rows) == sorted(
        (row["key_group"], row["state_key"]) for row in expected
    )


def test_key_groups_that_nobody_has_are_refused(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="there are no key groups 500-600"):
        load(spark, "orders", "order", keyGroups="500-600")


def test_some_columns_are_read(spark: SparkSession) -> None:
    frame = load(spark, "orders", "order", columns="state_key, value.address.zip")
    assert frame.schema.simpleString() == "struct<state_key:string,value:struct<address:struct<zip:string>>>"
    expected = {row["state_key"]: row["value"]["address"] for row in arrow_rows("orders", "order")}
    zips = {key: None if address is None else {"zip": address["zip"]} for key, address in expected.items()}
    assert {row["state_key"]: row["value"]["address"] for row in collect(frame)} == zips


@pytest.mark.essential
@pytest.mark.parametrize("key", ["order-0064", '"order-0064"'])
def test_one_key_is_read(spark: SparkSession, key: str) -> None:
    (row,) = collect(load(spark, "orders", "order", key=key))
    assert row["value"]["id"] == "order-0064"


def test_raw_rows_are_bytes(spark: SparkSession) -> None:
    frame = load(spark, "orders", "order", raw="true")
    assert frame.columns == ["key_group", "subtask", "key_bytes", "value_bytes"]
    assert {bytes(row["key_bytes"])[-1:] for row in collect(frame)} == {b"\x00"}


def test_lists_may_stay_whole(spark: SparkSession) -> None:
    flat = collect(load(spark, "orders", "history"))
    whole = collect(load(spark, "orders", "history", flattenCollectionTypes="false"))
    assert len(whole) == 200
    assert [each for row in whole for each in row["value"]] == [row["list_value"] for row in flat]


@pytest.mark.essential
def test_lists_of_operator_state_are_read(spark: SparkSession) -> None:
    expected = [(e["subtask"], e["value"]) for e in orders().entries() if e.get("state") == "returns"]
    rows = collect(load(spark, "order-counter", "returns"))
    assert Counter((row["subtask"], row["value"]) for row in rows) == Counter(expected)


@pytest.mark.parametrize(("operator", "state"), [("order-counter", "returns"), ("pricing", "prices")])
def test_subtasks_of_operator_state_are_tasks(operator: str, state: str, spark: SparkSession) -> None:
    whole, split = load(spark, operator, state), load(spark, operator, state, splitSize="1")
    assert (whole.rdd.getNumPartitions(), split.rdd.getNumPartitions()) == (1, 2)
    assert collect(split) == collect(whole) == arrow_rows(operator, state)


@pytest.mark.essential
def test_broadcast_state_is_read(spark: SparkSession) -> None:
    expected = [(e["subtask"], e["ukey"], e["value"]) for e in orders().entries() if e.get("state") == "prices"]
    rows = collect(load(spark, "pricing", "prices"))
    assert sorted((row["subtask"], row["map_key"], row["map_value"]) for row in rows) == sorted(expected)


@pytest.mark.essential
def test_timers_are_read(spark: SparkSession) -> None:
    rows = collect(load(spark, "revenue-per-minute", "_timer_state/event_window-timers"))
    assert {(row["state_namespace"]["end"] - 1) for row in rows} == {row["timestamp"] for row in rows}


def test_a_filter_does_not_stay_behind(spark: SparkSession) -> None:
    frame = load(spark, "orders", "order")
    assert frame.filter("key_group = 0").count() < 200
    assert frame.count() == 200


@pytest.mark.parametrize("state", ["tuple", "map-of-lists", "row", "person", "either"])
def test_nested_types_are_read(spark: SparkSession, state: str) -> None:
    assert load(spark, "composite-types", state, types()).count() == 12


def load_operator(spark: SparkSession, operator: str, savepoint: Savepoint | None = None, **options: Any) -> DataFrame:
    reader = spark.read.format("flink-state").option("path", str((savepoint or orders()).path))
    return reader.options(operatorId=operator, **options).load()


@pytest.mark.essential
def test_an_operator_is_a_table(spark: SparkSession) -> None:
    rows = collect(load_operator(spark, "orders"))
    assert len(rows) == 200
    assert "_timer_state/event_user-timers" not in rows[0]
    by_key = {row["state_key"]: row for row in rows}
    assert {key: row["order"]["id"] for key, row in by_key.items()} == {key: key for key in by_key}
    quantities = [(row["state_key"], *entry) for row in rows for entry in (row["quantities"] or {}).items()]
    singles = arrow_rows("orders", "quantities")
    assert sorted(quantities) == sorted((row["state_key"], row["map_key"], row["map_value"]) for row in singles)


def test_a_small_split_size_gives_the_same_rows_of_an_operator(spark: SparkSession) -> None:
    whole = load_operator(spark, "orders", columns="key_group,subtask,state_key,order,history")
    split = load_operator(spark, "orders", columns="key_group,subtask,state_key,order,history", splitSize="2000")
    assert split.rdd.getNumPartitions() > 10
    assert collect(split) == collect(whole)


def test_timers_are_columns_when_asked_for(spark: SparkSession) -> None:
    frame = load_operator(spark, "orders", readRegisteredTimers="true", states="order")
    timers = "_timer_state/event_user-timers"
    assert dict(frame.dtypes)[timers] == "array<bigint>"
    expected = Counter((row["state_key"], row["timestamp"]) for row in arrow_rows("orders", timers))
    assert Counter((row["state_key"], time) for row in collect(frame) for time in row[timers] or ()) == expected


@pytest.mark.parametrize("operator", ["state-kinds", "ttl-states", "tumbling-windows", "session-windows"])
def test_operators_of_every_kind_of_state_are_tables(spark: SparkSession, operator: str) -> None:
    frame = load_operator(spark, operator, types(), readRegisteredTimers="true")
    found = types().open().operator(operator)
    assert frame.columns == found.make_schema(OperatorTableOptions(timers=True)).names
    assert frame.count() == len(found.to_arrow(OperatorTableOptions(timers=True)))
    assert collect(frame)


def test_key_groups_and_a_key_of_an_operator_are_read(spark: SparkSession) -> None:
    (row,) = collect(load_operator(spark, "orders", key='"order-0064"'))
    assert row["order"]["id"] == "order-0064"
    with pytest.raises(PySparkException, match="there are no key groups 500-600"):
        load_operator(spark, "orders", keyGroups="500-600")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stateVarName": "order"}, "operatorId is missing"),
        ({"operatorId": "returns"}, "no operator returns"),
        ({"operatorId": "pricing"}, "no keyed state"),
        ({"operatorId": "orders", "states": "orders"}, "no keyed state orders"),
        ({"operatorId": "orders", "stateVarName": "order", "states": "order"}, "states is for the table of all"),
        ({"operatorId": "orders", "stateVarName": "order", "readRegisteredTimers": "true"}, "for the table of all"),
        ({"operatorId": "orders", "flattenCollectionTypes": "true"}, "for the table of one state"),
        ({"operatorId": "order", "stateVarName": "order"}, "no operator order"),
        ({"operatorId": "orders", "stateVarName": "orders"}, "no state orders"),
        ({"operatorId": "orders", "stateVarName": "order", "splitSize": "many"}, "splitSize"),
        ({"operatorId": "orders", "stateVarName": "order", "splitSize": "0"}, "splitSize"),
        ({"operatorId": "orders", "stateVarName": "order", "raw": "yes"}, "raw is 'yes'"),
        ({"operatorId": "orders", "stateVarName": "order", "keyGroups": "7-"}, "7-"),
        ({"operatorId": "orders", "stateVarName": "order", "keyGroups": "9-7"}, "9-7"),
        ({"operatorId": "orders", "stateVarName": "order", "keyGroups": "-1"}, "-1"),
        ({"operatorId": "orders", "stateVarName": "order", "columns": "price"}, "no column price"),
        ({"operatorId": "pricing", "stateVarName": "prices", "keyGroups": "0-7"}, "keyed state"),
    ],
)
def test_wrong_options_are_told(spark: SparkSession, options: dict[str, str], message: str) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.read.format("flink-state").option("path", str(orders().path)).options(**options).load().collect()
    assert message in str(caught.value)


def test_a_missing_path_is_told(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="path is missing"):
        spark.read.format("flink-state").options(operatorId="a", stateVarName="b").load()


def test_states_of_a_snapshot_are_listed(spark: SparkSession) -> None:
    frame = spark.read.format("flink-state-metadata").load(str(orders().path))
    rows = {(row["operator_uid"], row["state"]): row for row in collect(frame)}
    assert len(rows) == 14
    row = rows["orders", "quantities"]
    assert (row["state_kind"], row["value_serializer"], row["entries"]) == ("MAP", "Map<String, Long>", None)


def test_entries_are_counted_when_asked_for(spark: SparkSession) -> None:
    frame = spark.read.format("flink-state-metadata").option("count", "true").load(str(orders().path))
    assert {row["state"]: row["entries"] for row in collect(frame)}["quantities"] == 383


def test_a_broken_snapshot_does_not_hide_the_others(spark: SparkSession, tmp_path: Path) -> None:
    shutil.copytree(orders("2.2").path, tmp_path / "jobs" / "savepoint-a")
    shutil.copytree(orders("1.20").path, tmp_path / "savepoint-b")
    (tmp_path / "chk-7").mkdir()
    (tmp_path / "chk-7" / "_metadata").write_bytes(b"\x49\x60\x67\x2d")
    rows = collect(spark.read.format("flink-state-metadata").load(str(tmp_path)))
    states = Counter(str(row["snapshot"]).rpartition("/")[2] for row in rows if row["state"])
    assert states == {"savepoint-a": 14, "savepoint-b": 14}
    (broken,) = [row for row in rows if row["snapshot"].endswith("chk-7")]
    assert "_metadata" in broken["error"]


def test_splits_of_a_source_are_columns(spark: SparkSession, tmp_path: Path) -> None:
    build_snapshot(tmp_path, list_operator("source", "SourceReaderState", [element(0, SPLIT)]))
    reader = spark.read.format("flink-state").options(operatorId="source", stateVarName="SourceReaderState")
    (row,) = reader.load(str(tmp_path)).selectExpr("connector", "split.topic", "split.offset").collect()
    assert tuple(row) == ("kafka", "orders", 42)


def test_connectors_and_formats_are_listed(spark: SparkSession, tmp_path: Path) -> None:
    build_snapshot(tmp_path, list_operator("source", "SourceReaderState", [element(0, SPLIT)]))
    (row,) = collect(spark.read.format("flink-state-metadata").load(str(tmp_path)))
    assert (row["connector"], row["connector_kind"], row["connector_summary"], row["format"]) == (
        "kafka",
        "split",
        "1 split of orders",
        None,
    )
    rows = collect(spark.read.format("flink-state-metadata").load(str(orders().path)))
    assert {row["format"] for row in rows if row["operator_uid"] == "orders"} == {"canonical"}


def test_raw_state_is_read(spark: SparkSession, tmp_path: Path) -> None:
    subtask = SubtaskState(0, raw_keyed_state=write_raw_keyed({1: b"one", 9: b"nine"}, KeyGroupRange(0, 128)))
    build_snapshot(tmp_path, operator_of("raw", subtask))
    reader = spark.read.format("flink-state").options(operatorId="raw", stateVarName="_raw_keyed_state")
    assert [(row.key_group, bytes(row.value_bytes)) for row in reader.load(str(tmp_path)).collect()] == [
        (1, b"one"),
        (9, b"nine"),
    ]
    assert [row.key_group for row in reader.option("keyGroups", "2-20").load(str(tmp_path)).collect()] == [9]


def test_data_in_flight_is_read(spark: SparkSession) -> None:
    (case,) = [each for each in select("2.2.1", "unaligned") if "types" in each.name]
    reader = spark.read.format("flink-state").options(operatorId="slow-map", stateVarName="_in_flight_data")
    rows = collect(reader.options(columns="subtask,direction,value_bytes").load(str(case.path)))
    stored = case.open().operator("slow-map").state("_in_flight_data").to_arrow().to_pylist()
    found = sorted((row["subtask"], row["direction"], bytes(row["value_bytes"])) for row in rows)
    assert found == sorted((row["subtask"], row["direction"], row["value_bytes"]) for row in stored)


def test_classes_out_of_a_jar(spark: SparkSession, tmp_path: Path) -> None:
    # public class types.Guest extends types.Person { public int visits; }, without its constructor
    guest = bytes.fromhex(
        "cafebabe0000003d000701000b74797065732f477565737407000101000c74797065732f506572736f6e0700030100067669"
        "736974730100014900210002000400000001000100050006000000000000"
    )
    jar = tmp_path / "job.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("types/Guest.class", guest)
    frame = load(spark, "composite-types", "person-or-guest", types("2.2", "heap"), classes=str(jar))
    assert {row.value["class"] for row in frame.collect() if row.value} == {"types.Guest", "types.Person"}
