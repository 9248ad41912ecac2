"""The same function over the same events has the same state here and in real Flink, entry by entry."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.datastream import write_savepoint
from state_pipelines.operations.dump import dump
from tests.datastream.same_jobs import run_jobs
from tests.flink.harness import diff_entries
from tests.snapshots import OWN, Case

if TYPE_CHECKING:
    from pathlib import Path

JOBS = {"types": ("state-kinds", "ttl-states"), "few-states": ("few-states",)}
CASES = [(case, uid) for case in OWN for uid in JOBS.get(case.job, ())]


@pytest.fixture(scope="module")
def read_state(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Entries of the savepoints of all functions, by max parallelism."""
    directory: Path = tmp_path_factory.mktemp("savepoints")

    @cache
    def read(max_parallelism: int) -> list[dict[str, Any]]:
        path = str(directory / str(max_parallelism))
        return list(dump(write_savepoint(path, run_jobs(2, max_parallelism))))

    return read


@pytest.mark.parametrize(("case", "uid"), CASES, ids=[f"{case}-{uid}" for case, uid in CASES])
def test_state_is_that_of_flink(case: Case, uid: str, read_state: Any) -> None:
    expected = [each for each in case.entries() if each["op"] == uid]
    found = [each for each in read_state(case.max_parallelism) if each["op"] == uid]
    difference = diff_entries(expected, found)
    assert expected
    assert not difference, difference
