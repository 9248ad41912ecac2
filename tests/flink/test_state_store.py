"""Real Flink restores a savepoint one of whose states was in Spark's state store in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.docs.runner import ROOT, follow
from tests.flink import harness, jobs

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.flink, pytest.mark.spark]

PAGE = ROOT / "docs/how-to/spark-state-store.md"
SAVEPOINT = "examples/orders/savepoints/flink-2.2/savepoint-df4606-efe91b44c091"


def find_quantity(entries: list[harness.Entry], order: str, article: str) -> list[object]:
    return [
        each["value"]
        for each in entries
        if (each.get("state"), each.get("key"), each.get("ukey")) == ("quantities", order, article)
    ]


def test_map_state_and_timers_come_back_from_the_state_store(
    spark: SparkSession, version: str, orders: Path, tmp_path: Path
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert SAVEPOINT in text
    (savepoint,) = orders.glob("savepoint-*")
    page, folder = tmp_path / PAGE.name, tmp_path / "followed"
    folder.mkdir()
    # An absolute path; the page puts the directory in which it runs in front of the one of the example.
    page.write_text(text.replace("{here}/{savepoint}", "{savepoint}").replace(SAVEPOINT, str(savepoint)))
    follow(page, folder, lambda: spark)

    result = harness.restore(version, folder / "totals-back", jobs.orders_job("v1"), parallelism=3)

    assert result.ok, result.error
    before = harness.read_entries(orders / "expected.jsonl.gz")
    assert (find_quantity(before, "order-0002", "article-8"), find_quantity(before, "order-9000", "article-1")) == (
        [-1],
        [],
    )
    assert find_quantity(result.entries, "order-0002", "article-8") == [2]
    assert find_quantity(result.entries, "order-9000", "article-1") == [2]
    kept, found = (
        [
            each
            for each in entries
            if (each.get("state"), each.get("key"), each.get("ukey"))
            not in (("quantities", "order-0002", "article-8"), ("quantities", "order-9000", "article-1"))
        ]
        for entries in (before, result.entries)
    )
    difference = harness.diff_entries(kept, found)
    assert not difference, str(difference)
