"""Real Flink restores the savepoint of a job one of whose functions has run on Spark in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.docs.runner import ROOT, follow
from tests.flink import harness, jobs

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.flink, pytest.mark.spark]

PAGE = ROOT / "docs/how-to/move-a-keyed-function.md"
SAVEPOINT = "examples/orders/savepoints/flink-2.2/savepoint-df4606-efe91b44c091"
PAYMENT_TERM = 30 * 86_400_000
ARCHIVE = 4_922_899_200_000
CANCELLED, NEW = 1_767_300_000_000, 1_767_300_001_000


def keyed(state: str, key: str, **fields: object) -> harness.Entry:
    kinds = {"history": "LIST", "quantities": "MAP"}
    kind = kinds.get(state, "VALUE")
    return {"kind": "keyed", "op": "orders", "state": state, "type": kind, "key": key, "ns": None, **fields}


def timer(domain: str, key: str, timestamp: int) -> harness.Entry:
    named = {"service": "user-timers", "domain": domain, "key": key, "ns": None}
    return {"kind": "timer", "op": "orders", **named, "ts": timestamp}


def order(key: str, status: str, millis: int, **fields: object) -> harness.Entry:
    given = {"@class": "com.acme.orders.Order", "id": key, "status": {"@enum": status}}
    return keyed("order", key, value={**given, "updatedAt": {"@instant": [millis // 1000, 0]}, **fields})


def expect(before: list[harness.Entry]) -> list[harness.Entry]:
    """Entries after the events of the page."""
    old, new = "order-0002", "order-9000"
    address = {"@class": "com.acme.orders.Address", "city": "Berlin", "street": "Main Street 9", "zip": None}
    changed = [
        order(old, "CANCELLED", CANCELLED, address=None, amount=1200, customer="李雷", note=None, quantity=3),
        keyed("history", old, value=["PAID article-8, 李雷", "CANCELLED article-8, 李雷"]),
        keyed("quantities", old, ukey="article-8", value=2),
        keyed("last-seen", old, value={"@instant": [CANCELLED // 1000, 0]}),
        timer("processing", old, ARCHIVE + 10_000),
        timer("event", old, CANCELLED + PAYMENT_TERM),
        order(new, "PAID", NEW + 1_000, address=address, amount=500, customer="ada", note="", quantity=2),
        keyed("history", new, value=["NEW article-1, ada", "PAID article-1, ada"]),
        keyed("quantities", new, ukey="article-1", value=4),
        keyed("last-seen", new, value={"@instant": [NEW // 1000 + 1, 0]}),
        timer("processing", new, ARCHIVE + 10_000),
    ]
    return [*(each for each in before if (each["op"], each.get("key")) != ("orders", old)), *changed]


def test_a_function_moves_from_flink_to_spark_and_back(
    spark: SparkSession, version: str, orders: Path, tmp_path: Path
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert SAVEPOINT in text
    (savepoint,) = orders.glob("savepoint-*")
    page, folder = tmp_path / PAGE.name, tmp_path / "followed"
    folder.mkdir()
    page.write_text(text.replace(SAVEPOINT, str(savepoint)), encoding="utf-8")
    follow(page, folder, lambda: spark)

    result = harness.restore(version, folder / "orders-back", jobs.orders_job("v1"), parallelism=3)

    assert result.ok, result.error
    expected = expect(harness.read_entries(orders / "expected.jsonl.gz"))
    # The entries above do not say key groups; Flink refuses keys outside of the groups of a subtask.
    ignored = (*harness.VOLATILE, "kg")
    difference = harness.diff_entries(expected, result.entries, ignored)
    assert not difference, str(difference)
