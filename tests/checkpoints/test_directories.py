"""Directories of checkpoints and savepoints have Flink's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.checkpoints.completed_checkpoints import CheckpointDirectories, name_savepoint
from state_pipelines.errors import TargetExistsError, UsageError
from state_pipelines.storage import resolve
from state_pipelines.storage.resolution import SAVEPOINT_DIRECTORY

if TYPE_CHECKING:
    from pathlib import Path

JOB = "0123456789abcdef0123456789abcdef"


def test_directories_of_a_job(tmp_path: Path) -> None:
    found = CheckpointDirectories(resolve(str(tmp_path)), JOB)
    paths = [found.job, found.checkpoint(7), found.shared, found.task_owned]
    below = [each.path.removeprefix(str(tmp_path)) for each in paths]
    assert below == [f"/{JOB}", f"/{JOB}/chk-7", f"/{JOB}/shared", f"/{JOB}/taskowned"]


def test_without_a_directory_by_job(tmp_path: Path) -> None:
    found = CheckpointDirectories(resolve(str(tmp_path)), JOB, create_subdirectory=False)
    assert found.checkpoint(1).path == f"{tmp_path}/chk-1"


def test_ids_go_on_after_the_remains_of_a_killed_run(tmp_path: Path) -> None:
    found = CheckpointDirectories(resolve(str(tmp_path)), JOB)
    assert found.find_last_id() == 0
    for name in ("chk-2", "chk-10", "shared", "chk-x"):
        (tmp_path / JOB / name).mkdir(parents=True)
    assert found.find_last_id() == 10


@pytest.mark.parametrize("job_id", ["", "0123", JOB.upper(), f"../{JOB[3:]}"])
def test_what_is_no_job_id_is_refused(tmp_path: Path, job_id: str) -> None:
    with pytest.raises(UsageError, match="is not a job id"):
        CheckpointDirectories(resolve(str(tmp_path)), job_id)


def test_a_savepoint_has_digits_of_the_job_and_random_ones(tmp_path: Path) -> None:
    digits = iter(["a" * 12, "b" * 12])
    (tmp_path / f"savepoint-{JOB[:6]}-{'a' * 12}").mkdir()
    found = name_savepoint(resolve(str(tmp_path)), JOB, lambda: next(digits))
    assert found.name == f"savepoint-012345-{'b' * 12}"
    assert SAVEPOINT_DIRECTORY.fullmatch(name_savepoint(resolve(str(tmp_path)), JOB).name)
    with pytest.raises(TargetExistsError, match="no free name"):
        name_savepoint(resolve(str(tmp_path)), JOB, lambda: "a" * 12)
