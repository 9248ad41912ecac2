"""Snapshots whose subtasks have other key groups than Flink's formula gives, read and migrated by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.operations.dump import dump
from state_pipelines.operations.migration import load_migration, parse_migration
from state_pipelines.snapshot.snapshot_files import follows_formula
from state_pipelines.spark import migrate, register
from tests.flink.harness import ORDERS, diff_entries, read_entries
from tests.operations.test_unclipped_counts import share_databases
from tests.snapshot.older_ranges import make_older_ranges
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.snapshot import Snapshot

pytestmark = pytest.mark.spark


@pytest.fixture(params=["canonical", "rocksdb"])
def older(request: pytest.FixtureRequest, tmp_path: Path) -> Snapshot:
    snapshot = make_older_ranges(orders().open(), tmp_path, request.param)
    assert not follows_formula(snapshot.operator("orders").metadata)
    return snapshot


def test_spark_reads_every_row(spark: SparkSession, older: Snapshot) -> None:
    register(spark)
    reader = spark.read.format("flink-state").option("path", older.path).option("operatorId", "orders")
    rows = reader.option("stateVarName", "order").load()
    keys = [entry["key"] for entry in orders().entries() if entry["op"] == "orders" and entry.get("state") == "order"]
    assert sorted(row.state_key for row in rows.select("state_key").collect()) == sorted(keys)


def test_a_migration_keeps_every_row(spark: SparkSession, older: Snapshot, tmp_path: Path) -> None:
    migration = load_migration(ORDERS / "migrations" / "0001_amount_as_double.yaml")
    up = migrate(older, migration, str(tmp_path / "up"))
    assert up.proof is not None
    assert up.proof.rows == 200
    assert any("its subtasks hold other key groups than Flink assigns today" in note for note in up.notes)
    expected = read_entries(orders().expected.with_name("expected-migrated.jsonl.gz"))
    assert not diff_entries(expected, dump(up.snapshot))


def test_databases_that_subtasks_share_are_counted_where_no_value_changes(spark: SparkSession, tmp_path: Path) -> None:
    step = {"rename_state": "renamed"}
    content = {"revision": "1", "operator": "orders", "state": "order", "upgrade": [step]}
    content["downgrade"] = [{"rename_state": "order"}]
    proof = migrate(share_databases(tmp_path), parse_migration(content), str(tmp_path / "new")).proof
    assert proof is not None
    (check,) = [each for each in proof.checks if each.name == "source_read_whole"]
    assert check.ok
    assert check.counts is not None
    assert check.counts.compared > 200
