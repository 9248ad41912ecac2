from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.flink import harness, jobs

if TYPE_CHECKING:
    from pathlib import Path

# `test_s3_flow` migrates with the same command and restores what it has written too.
pytestmark = [pytest.mark.flink, pytest.mark.slow]

MIGRATION = harness.ORDERS / "migrations" / "0001_amount_as_double.yaml"


@pytest.fixture
def migrated(orders: Path, tmp_path: Path) -> Path:
    (snapshot,) = orders.glob("savepoint-*")
    target = tmp_path / "migrated"
    command = [sys.executable, "-m", "state_pipelines", "migrate", str(snapshot)]
    # Flink 1.20 stores only the hash of an operator's uid
    command += ["--migration", str(MIGRATION), "--uid", "orders", "--out", str(target)]
    done = subprocess.run(command, cwd=harness.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def test_migrated_savepoint_restores_with_evolved_class(
    version: str, orders: Path, migrated: Path, backend: str, parallelism: int
) -> None:
    result = harness.restore(version, migrated, jobs.orders_job("v2"), backend=backend, parallelism=parallelism)

    assert result.ok, result.error
    assert not harness.diff_entries(harness.read_entries(orders / "expected-migrated.jsonl.gz"), result.entries)


def test_flink_refuses_migrated_savepoint_with_old_class(version: str, migrated: Path, backend: str) -> None:
    result = harness.restore(version, migrated, jobs.orders_job("v1"), backend=backend)

    # The heap backend reads every value on restore and fails on the first amount, before it compares serializers.
    refusals = {"hashmap": "Can not set long field", "rocksdb": "must not be incompatible"}
    assert not result.ok
    assert refusals[backend] in result.error
