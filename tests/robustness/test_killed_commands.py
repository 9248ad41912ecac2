"""Commands are killed, or their local calls fail; `python -m tests.robustness.killed_commands` does it at each call."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.robustness.faulty_migration import FaultyMigration

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_a_command_that_is_killed_or_has_no_disk_leaves_the_input_and_no_half_snapshot() -> None:
    # In a process without threads, which can be forked.
    options = ("--command", "convert to heap", "--points", "1")
    command = [sys.executable, "-m", "tests.robustness.killed_commands", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    _, row = done.stdout.splitlines()
    calls, attempts, *outcomes, _, _, findings = map(int, row.removeprefix("convert to heap").split())
    assert (attempts, findings) == (6, 0)
    assert calls > 20
    assert sum(outcomes) == attempts


@pytest.mark.spark
def test_a_migration_whose_driver_has_no_disk_leaves_the_input_and_no_half_snapshot(
    spark: SparkSession, tmp_path: Path
) -> None:
    migration = FaultyMigration(spark, tmp_path)
    migration.fail("full", [0])
    migration.fail("broken", [migration.removal])
    migration.fail("kill", [migration.count - 1])
    assert migration.findings == []
    # The removal is tried again.
    assert migration.outcomes == {"refused": 1, "finished": 1, "ended": 1}
    assert (migration.scratch, migration.discarded) == (0, 1)
