"""Real Flink restores windows that a function on Spark has filled, values of Kryo 2, and raw state beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.datastream import (
    EventTimeSessionWindows,
    PassThroughWindowFunction,
    RestoredState,
    TaskInfo,
    Time,
    TumblingEventTimeWindows,
    Types,
    write_savepoint,
)
from state_pipelines.datastream.keyed_operator import KeyedProcessOperator
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
        restored = harness.restore(version, tmp_path / uid / result.snapshot.location.directory.name, jobs.types_job())
        assert restored.ok, restored.error
        found = [each for each in restored.entries if each["op"] == uid]
        difference = harness.diff_entries(expected, found)
        assert not difference, str(difference)


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
