from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.flink import harness, jobs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.flink, pytest.mark.slow]


def test_original_savepoint_restores_entry_by_entry(version: str, orders: Path, backend: str, parallelism: int) -> None:
    (snapshot,) = orders.glob("savepoint-*")

    result = harness.restore(version, snapshot, jobs.orders_job("v1"), backend=backend, parallelism=parallelism)

    assert result.ok, result.error
    assert not harness.diff_entries(harness.read_entries(orders / "expected.jsonl.gz"), result.entries)


def test_flink_refuses_original_savepoint_with_evolved_class(version: str, orders: Path, backend: str) -> None:
    (snapshot,) = orders.glob("savepoint-*")

    result = harness.restore(version, snapshot, jobs.orders_job("v2"), backend=backend)

    assert not result.ok
    assert "StateMigrationException" in result.error
    assert "must not be incompatible" in result.error
