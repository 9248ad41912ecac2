"""Real Flink starts from savepoints that Spark has made of events, and goes on as if it had seen them."""

from __future__ import annotations

import runpy
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from state_pipelines.spark import bootstrap
from tests.flink import harness, jobs

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.flink, pytest.mark.spark]

FOLDER = harness.ORDERS / "bootstrap"
EXAMPLE = runpy.run_path(str(FOLDER / "bootstrap_orders.py"))


def count_rest() -> int:
    """Events that are left to the job."""
    seconds = pq.read_table(FOLDER / "events.parquet").column("at").combine_chunks().field("epoch_second").to_pylist()
    return sum(second >= EXAMPLE["CUT"] for second in seconds)


def sum_counts(entries: Iterable[harness.Entry]) -> Counter[str]:
    """Events by status: each subtask counts its own, and a restored one has those of all on top."""
    total: Counter[str] = Counter()
    for entry in entries:
        if entry.get("state") == "counts":
            status, count = entry["value"]["@tuple"]
            total[status] += count
    return total


def without_counts(entries: Iterable[harness.Entry]) -> list[harness.Entry]:
    return [entry for entry in entries if entry.get("state") != "counts"]


@pytest.mark.parametrize(("format", "backend"), [("canonical", "rocksdb"), ("heap", "hashmap"), ("rocksdb", "rocksdb")])
def test_a_bootstrapped_job_ends_with_the_state_of_one_that_saw_everything(
    spark: SparkSession, version: str, orders: Path, tmp_path: Path, format: str, backend: str
) -> None:
    start = tmp_path / "bootstrapped"
    result = bootstrap(str(start), EXAMPLE["describe_operators"](spark), format=format)
    assert result.proof is not None
    rest = count_rest()
    assert 0 < rest < 300

    _, entries = harness.make_snapshot(
        version, jobs.orders_job("v1"), tmp_path / "after", backend=backend, start=start, records=rest
    )

    expected = harness.read_entries(orders / "expected.jsonl.gz")
    difference = harness.diff_entries(without_counts(expected), without_counts(entries))
    assert not difference, str(difference)
    assert sum_counts(entries) == sum_counts(expected)
