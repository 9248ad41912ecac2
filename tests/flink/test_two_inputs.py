"""A function of two inputs has the same state on Spark as in real Flink, and goes on in both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import state_pipelines as sp
from state_pipelines.datastream import KeyedCoProcessFunction, ListStateDescriptor, Types, ValueStateDescriptor
from state_pipelines.operations.rescale import OperatorRequest, RescaleRequest, TakeRequest
from state_pipelines.spark import connect, keyed_process
from tests.flink import harness, jobs

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.spark import KeyedProcessResult

pytestmark = [pytest.mark.flink, pytest.mark.spark]

ORDERS, PAYMENTS = 60, 80


class Join(KeyedCoProcessFunction):
    """`join.JoinJob.Join`."""

    def open(self, runtime_context: Any) -> None:
        self.order = runtime_context.get_state(ValueStateDescriptor("order", Types.STRING()))
        self.payments = runtime_context.get_list_state(ListStateDescriptor("payments", Types.LONG()))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
        self.order.update(f"article {value.id}")
        timestamp = ctx.timestamp()
        assert timestamp is not None
        ctx.timer_service().register_event_time_timer(timestamp + 1_000)
        self.payments.clear()

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
        if self.order.value() is None:
            self.payments.add(100 * value.number)


def process(
    spark: SparkSession, orders: range, payments: range, directory: Path, backend: str, start: Path | None = None
) -> KeyedProcessResult:
    first = spark.range(orders.start, orders.stop).selectExpr("id", "id * 10 AS at")
    second = spark.range(payments.start, payments.stop).selectExpr("id AS number", "id * 10 AS at")
    return keyed_process(
        connect(first, second, key="id", second_key="number", timestamp="at"),
        key="id",
        function=Join(),
        uid="join",
        from_snapshot=None if start is None else str(start),
        checkpoint=str(directory),
        timestamp="at",
        parallelism=3,
        options={"state.backend.type": backend, "execution.state-recovery.ignore-unclaimed-state": True},
    )


def take_back(savepoint: Path, result: KeyedProcessResult, target: Path) -> Path:
    """The savepoint of the job, whose sources are at their ends, with the operator as Spark has left it."""
    assert result.snapshot is not None
    request = RescaleRequest(
        operators={"join": OperatorRequest(drop=True)},
        take={"join": TakeRequest(snapshot=result.snapshot.path, operator="join")},
    )
    sp.rescale(str(savepoint), str(target), request)
    return target


def test_the_state_is_that_of_flink_and_goes_on_in_both_directions(
    spark: SparkSession, version: str, backend: str, tmp_path: Path
) -> None:
    savepoint, entries = harness.make_snapshot(version, jobs.join_job(), tmp_path / "flink", backend=backend)
    result = process(spark, range(ORDERS), range(PAYMENTS), tmp_path / "own", backend)
    restored = harness.restore(
        version, take_back(savepoint, result, tmp_path / "same"), jobs.join_job(), backend=backend
    )
    assert restored.ok, restored.error
    difference = harness.diff_entries(entries, restored.entries)
    assert not difference, str(difference)

    # The orders of the payments that wait in Flink's state.
    result = process(spark, range(ORDERS, PAYMENTS), range(0), tmp_path / "next", backend, savepoint)
    restored = harness.restore(
        version, take_back(savepoint, result, tmp_path / "later"), jobs.join_job(), backend=backend
    )
    assert restored.ok, restored.error
    # What it would be if all orders had come from the start.
    whole = process(spark, range(PAYMENTS), range(PAYMENTS), tmp_path / "whole", backend)
    expected = harness.restore(version, take_back(savepoint, whole, tmp_path / "all"), jobs.join_job(), backend=backend)
    difference = harness.diff_entries(expected.entries, restored.entries)
    assert not difference, str(difference)
    kinds = [(each.get("state"), each["kind"]) for each in restored.entries if each.get("op") == "join"]
    assert (kinds.count(("order", "keyed")), kinds.count(("payments", "keyed"))) == (PAYMENTS, 0)
    assert sum(kind == "timer" for _, kind in kinds) == PAYMENTS
