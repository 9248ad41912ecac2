"""Real Flink takes savepoints whose state Spark wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.spark import register
from tests.flink import harness, jobs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.flink, pytest.mark.spark]

CHANGES: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "history": ("list_value", "CONCAT('* ', list_value)", lambda value: [f"* {each}" for each in value]),
    "quantities": ("map_value", "map_value + 1000", lambda value: value + 1000),
    "order": (
        "value",
        "NAMED_STRUCT('address', value.address, 'amount', value.amount * 2, 'customer', value.customer, 'id', value.id,"
        " 'note', value.note, 'quantity', value.quantity, 'status', value.status, 'updatedAt', value.updatedAt)",
        lambda value: value | {"amount": value["amount"] * 2},
    ),
}


@pytest.fixture
def written(spark: SparkSession, orders: Path, tmp_path: Path) -> Path:
    """The savepoint of the example with three states written one after the other, each upon the one before."""
    register(spark)
    (snapshot,) = orders.glob("savepoint-*")
    for state, (column, expression, _) in CHANGES.items():
        target = tmp_path / state
        options = {"operatorId": "orders", "stateVarName": state}
        rows = spark.read.format("flink-state").options(**options).load(str(snapshot))
        frame = rows.selectExpr(*(name for name in rows.columns if name != column), f"{expression} AS {column}")
        frame.write.format("flink-state").mode("append").options(base=str(snapshot), **options).save(str(target))
        snapshot = target
    return snapshot


def change(entry: dict[str, Any]) -> dict[str, Any]:
    found = CHANGES.get(entry.get("state", ""))
    return entry if found is None else entry | {"value": found[2](entry["value"])}


def test_flink_restores_what_spark_wrote(version: str, orders: Path, written: Path) -> None:
    result = harness.restore(version, written, jobs.orders_job("v1"), backend="hashmap", parallelism=3)

    assert result.ok, result.error
    expected = map(change, harness.read_entries(orders / "expected.jsonl.gz"))
    difference = harness.diff_entries(expected, result.entries)
    assert not difference, str(difference)
