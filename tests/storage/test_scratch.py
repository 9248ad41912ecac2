"""Temporary files of this machine."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
import tempfile
import time
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import StorageError
from state_pipelines.storage.scratch import open_local_scratch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_files_are_gone_at_the_end(temporary: Path) -> None:
    with open_local_scratch() as directory:
        (directory / "spill").touch()
        assert directory.parent == temporary
    assert list(temporary.iterdir()) == []


def test_a_full_disk_is_an_error_of_the_storage() -> None:
    with pytest.raises(StorageError, match="No space left on device"), open_local_scratch():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def die(temporary: str) -> None:
    tempfile.tempdir = temporary
    with open_local_scratch() as directory:
        (directory / "spill").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def test_the_next_one_removes_what_a_killed_process_has_left(temporary: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=die, args=(str(temporary),))
    process.start()
    process.join()
    assert len(list(temporary.iterdir())) == 1
    with open_local_scratch() as directory:
        assert list(temporary.iterdir()) == [directory]


def test_what_another_process_uses_stays(temporary: Path) -> None:
    with open_local_scratch() as one, open_local_scratch() as other:
        assert sorted(temporary.iterdir()) == sorted((one, other))


def test_one_that_another_process_is_about_to_lock_stays(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = fcntl.flock

    def begin_another(*arguments: Any) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        with open_local_scratch():
            pass
        lock(*arguments)

    monkeypatch.setattr(fcntl, "flock", begin_another)
    with open_local_scratch() as directory:
        assert list(temporary.iterdir()) == [directory]


@pytest.mark.parametrize(
    ("age", "content", "stays"),
    [(0, "", True), (7200, "notes", True), (7200, "", False), (7200, ".lock.pending", False)],
)
def test_a_directory_without_a_lock_goes_once_it_is_old_and_has_no_other_files(
    temporary: Path, *, age: int, content: str, stays: bool
) -> None:
    directory = temporary / "state-pipelines-scratch-mine"
    directory.mkdir()
    if content:
        (directory / content).touch()
    os.utime(directory, (time.time() - age, time.time() - age))
    with open_local_scratch():
        pass
    assert directory.exists() == stays
