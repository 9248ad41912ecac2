"""A keyed function that moves: its state from real Flink to Spark, where its Python twin goes on, and back."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import state_pipelines as sp
from state_pipelines.operations.rescale import OperatorRequest, RescaleRequest, TakeRequest
from state_pipelines.spark import bootstrap, keyed_process
from tests.flink import harness, jobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.spark import KeyedProcessResult

pytestmark = [pytest.mark.flink, pytest.mark.spark]

BOOTSTRAP = runpy.run_path(str(harness.ORDERS / "bootstrap" / "bootstrap_orders.py"))
FUNCTION = runpy.run_path(str(harness.ORDERS / "keyed" / "order_function.py"))["OrderFunction"]


def read_events(spark: SparkSession) -> DataFrame:
    return spark.read.parquet(str(harness.ORDERS / "bootstrap" / "events.parquet"))


def process(events: DataFrame, start: str, directory: Path, backend: str) -> KeyedProcessResult:
    return keyed_process(
        events,
        key="order_id",
        function=FUNCTION(),
        uid="orders",
        from_snapshot=start,
        order_by=["split", "position"],
        checkpoint=str(directory),
        parallelism=3,
        options={"state.backend.type": backend, "execution.state-recovery.ignore-unclaimed-state": True},
    )


def take_back(savepoint: Path, result: KeyedProcessResult, target: Path) -> Path:
    """The savepoint of the job, with the operator as Spark has left it."""
    assert result.snapshot is not None
    request = RescaleRequest(
        operators={"orders": OperatorRequest(drop=True)},
        take={"orders": TakeRequest(snapshot=result.snapshot.path, operator="orders")},
    )
    return Path(sp.rescale(str(savepoint), str(target), request).path)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_ends_with_the_state_of_the_java_function(
    spark: SparkSession, version: str, orders: Path, tmp_path: Path, backend: str
) -> None:
    cut = BOOTSTRAP["CUT"]
    start = bootstrap(str(tmp_path / "start"), BOOTSTRAP["describe_operators"](spark)).path
    rest = read_events(spark).where(f"at.epoch_second >= {cut}")
    assert 0 < rest.count() < 300
    result = process(rest, start, tmp_path / "checkpoints", backend)
    (savepoint,) = orders.glob("savepoint-*")
    back = take_back(savepoint, result, tmp_path / "back")

    restored = harness.restore(version, back, jobs.orders_job("v1"), backend=backend)
    assert restored.ok, restored.error
    difference = harness.diff_entries(harness.read_entries(orders / "expected.jsonl.gz"), restored.entries)
    assert not difference, str(difference)


@pytest.mark.slow
def test_goes_on_from_flink_and_flink_from_it(spark: SparkSession, version: str, orders: Path, tmp_path: Path) -> None:
    (savepoint,) = orders.glob("savepoint-*")
    # The first change of some orders happens once more.
    again = read_events(spark).where("position < 20 and status = 'NEW'")
    changed = sorted(row["order_id"] for row in again.collect())
    assert len(changed) > 5
    result = process(again, str(savepoint), tmp_path / "checkpoints", "hashmap")
    back = take_back(savepoint, result, tmp_path / "back")

    restored = harness.restore(version, back, jobs.orders_job("v1"))
    assert restored.ok, restored.error
    expected = harness.read_entries(orders / "expected.jsonl.gz")
    untouched, found = (
        [each for each in entries if each.get("key") not in changed] for entries in (expected, restored.entries)
    )
    difference = harness.diff_entries(untouched, found)
    assert not difference, str(difference)
    lengths = [
        {each["key"]: len(each["value"]) for each in entries if each.get("state") == "history"}
        for entries in (expected, restored.entries)
    ]
    assert {key for key, length in lengths[0].items() if lengths[1][key] != length} == set(changed)
    assert sum(lengths[1].values()) == sum(lengths[0].values()) + len(changed)
