"""Flink fails to restore null in a field that the class declares as a primitive, which is why `migrate` refuses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.codecs.kryo import load_classes
from state_pipelines.operations.migration import parse_migration
from state_pipelines.snapshot import open_snapshot
from tests.flink import harness, jobs

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.flink, pytest.mark.spark]

# The class of the job has `int quantity`.
WRONG = "com.acme.orders.Order: [quantity: Integer]"


def test_null_for_a_primitive_does_not_restore(spark: SparkSession, version: str, orders: Path, tmp_path: Path) -> None:
    from state_pipelines.spark import migrate

    (savepoint,) = orders.glob("savepoint-*")
    content = {
        "revision": "1",
        "operator": "orders",
        "state": "order",
        "upgrade": [{"set": {"field": "quantity", "expression": "nullif(quantity, quantity)"}}],
        "downgrade": {"impossible": "the quantities are gone"},
    }
    snapshot = open_snapshot(str(savepoint), uids=["orders"], classes=load_classes(WRONG))
    migrate(snapshot, parse_migration(content), str(tmp_path / "new"))

    result = harness.restore(version, tmp_path / "new", jobs.orders_job("v1"))

    assert not result.ok
    assert "Can not set int field com.acme.orders.Order.quantity to null value" in result.error
