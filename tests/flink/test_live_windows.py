"""Real Flink restores windows that a function on Spark has filled, and values of Kryo 2 that a function has added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.datastream import (
    EventTimeSessionWindows,
    ListStateDescriptor,
    PassThroughWindowFunction,
    RestoredState,
    TaskInfo,
    Time,
    TumblingEventTimeWindows,
    Types,
    WindowOperator,
    write_savepoint,
)
from state_pipelines.datastream.operators import KeyedProcessOperator
from state_pipelines.operations.dump import dump
from state_pipelines.snapshot import open_snapshot
from state_pipelines.spark import keyed_process
from tests.datastream import test_kryo_states as kryo
from tests.flink import harness, jobs
from tests.snapshots import select

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.flink


@pytest.mark.spark
def test_windows_that_spark_has_filled_are_those_of_flink(spark: SparkSession, version: str, tmp_path: Path) -> None:
    (case,) = select(harness.recorded_line(version), "heap")
    windows: list[tuple[str, Any, int]] = [
        ("tumbling-windows", TumblingEventTimeWindows.of(Time.seconds(30)), 4),
        ("session-windows", EventTimeSessionWindows.with_gap(Time.seconds(20)), 2),
    ]
    replaced: dict[str, list[WindowOperator]] = {}
    for uid, assigner, modulus in windows:
        expected = [each for each in case.entries() if each["op"] == uid]
        numbers = {n for each in expected if each.get("state") == "window-contents" for n in each["value"]}
        rows = [(number % modulus, number, number * 7000) for number in sorted(numbers)]
        result = keyed_process(
            spark.createDataFrame(rows, "key int, number int, at long"),
            key="key",
            function=PassThroughWindowFunction(),
            uid=uid,
            windows=assigner,
            element="number",
            timestamp="at",
            order_by=["at"],
            parallelism=2,
            max_parallelism=case.max_parallelism,
            savepoint=str(tmp_path / uid),
        )
        assert result.snapshot is not None
        difference = harness.diff_entries(expected, dump(open_snapshot(result.snapshot.path, uids=[uid])))
        assert not difference, str(difference)
        contents = ListStateDescriptor("window-contents", Types.INT())
        replaced[uid] = []
        for index in range(2):
            info = TaskInfo(index=index, parallelism=2, max_parallelism=case.max_parallelism)
            operator = WindowOperator(
                PassThroughWindowFunction(), assigner, contents, lambda number: number, Types.INT(), task=info
            )
            operator.open(RestoredState.of(open_snapshot(result.snapshot.path, uids=[uid]).operator(uid)))
            replaced[uid].append(operator)
    # The other operators, so that the sources do not start from the beginning.
    write_savepoint(str(tmp_path / "savepoint"), replaced, base=case.open_told())
    restored = harness.restore(version, tmp_path / "savepoint", jobs.types_job(), parallelism=3)
    assert restored.ok, restored.error
    difference = harness.diff_entries(case.entries(), restored.entries)
    assert not difference, str(difference)


@pytest.mark.slow
def test_values_of_kryo_2_that_a_function_has_added_go_on_in_flink_1(tmp_path: Path) -> None:
    snapshot = kryo.open_example()
    old = kryo.find_operator(snapshot)
    operators = []
    for index in range(2):
        info = TaskInfo(index=index, parallelism=2, max_parallelism=old.max_parallelism)
        operator = KeyedProcessOperator(kryo.AddVisit(snapshot), lambda value: value, Types.STRING(), task=info)
        operator.open(RestoredState.of(old))
        keys = operator.backend.key_context
        if keys.find_key_group("customer-14", keys.encode("customer-14")) in operator.backend.key_groups:
            operator.process("customer-14")
        operators.append(operator)
    # The other operators stay, so that the source does not start from the beginning.
    write_savepoint(str(tmp_path / "savepoint"), {kryo.UID: operators}, base=snapshot)
    written = open_snapshot(str(tmp_path / "savepoint"), uids=[kryo.UID], classes=snapshot.classes)
    expected = [each for each in dump(written) if each["kind"] == "keyed" and each["op"] == kryo.UID]
    assert sum("page" in str(each) for each in expected) > 1
    result = harness.restore("1.20.5", tmp_path / "savepoint", jobs.shop_job("v1"))
    assert result.ok, result.error
    found = [each for each in result.entries if each["kind"] == "keyed" and each["op"] == kryo.UID]
    difference = harness.diff_entries(expected, found)
    assert not difference, str(difference)
