"""Real Flink restores a savepoint of SQL with `ON CONFLICT` as it is, converted and rescaled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.operations.convert import convert
from state_pipelines.operations.rescale import RescaleRequest, rescale
from state_pipelines.snapshot import open_snapshot
from tests.flink import harness
from tests.flink.make_data import job_of_case
from tests.snapshots import SQL, Case

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.flink, pytest.mark.parametrize("case", SQL, ids=str)]


def check(case: Case, path: Path, *, backend: str = "rocksdb", parallelism: int = 2) -> None:
    result = harness.restore(case.version, path, job_of_case(case), backend=backend, parallelism=parallelism)

    assert result.ok, result.error
    difference = harness.diff_entries(case.entries(), result.entries)
    assert not difference, str(difference)


@pytest.mark.slow
def test_original_restores_entry_by_entry(case: Case, backend: str) -> None:
    check(case, case.path, backend=backend)


@pytest.mark.parametrize(("format", "backend"), [("heap", "hashmap"), ("rocksdb", "rocksdb")])
def test_converted_savepoint_restores_entry_by_entry(case: Case, format: str, backend: str, tmp_path: Path) -> None:
    convert(case.open(), str(tmp_path / "converted"), format)
    check(case, tmp_path / "converted", backend=backend)


def test_rescaled_savepoint_restores_entry_by_entry(case: Case, tmp_path: Path) -> None:
    rescale(open_snapshot(str(case.path)), str(tmp_path / "rescaled"), RescaleRequest(parallelism=3))
    check(case, tmp_path / "rescaled", parallelism=3)
