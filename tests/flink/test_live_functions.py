"""Real Flink restores what functions in Python have left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.datastream import write_savepoint
from tests.datastream.same_jobs import run_jobs
from tests.flink import harness, jobs
from tests.snapshots import select

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.flink


@pytest.mark.parametrize(("format", "backend"), [("canonical", "rocksdb"), ("heap", "hashmap"), ("rocksdb", "rocksdb")])
def test_flink_restores_the_state_of_functions(version: str, tmp_path: Path, format: str, backend: str) -> None:
    operators = run_jobs(2, 128)
    savepoint = tmp_path / "savepoint"
    write_savepoint(str(savepoint), {"few-states": operators["few-states"]}, format=format)
    result = harness.restore(version, savepoint, jobs.few_states_job(), backend=backend, parallelism=3)

    assert result.ok, result.error
    (case,) = select("2.2", "heap-checkpoint")
    expected = [each for each in case.entries() if each["op"] == "few-states"]
    difference = harness.diff_entries(expected, result.entries)
    assert not difference, str(difference)


def test_flink_restores_every_kind_of_state(version: str, tmp_path: Path) -> None:
    (case,) = select(harness.recorded_line(version), "heap")
    operators = run_jobs(2, case.max_parallelism)
    savepoint = tmp_path / "savepoint"
    replaced = {uid: operators[uid] for uid in ("state-kinds", "ttl-states")}
    # The other operators, so that the sources do not start from the beginning.
    write_savepoint(str(savepoint), replaced, base=case.open_told())
    result = harness.restore(version, savepoint, jobs.types_job(), parallelism=3)

    assert result.ok, result.error
    difference = harness.diff_entries(case.entries(), result.entries)
    assert not difference, str(difference)
