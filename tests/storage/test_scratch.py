"""Temporary files of this machine."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import StorageError
from state_pipelines.storage import resolve
from state_pipelines.storage.snapshot_writer import ScratchDirectory, open_local_scratch

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


@pytest.mark.slow
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


@pytest.mark.parametrize("name", ["open", "rmdir"])
def test_one_call_that_fails_does_not_keep_it(temporary: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    call = getattr(os, name)

    def fail_once(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(os, name, call)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with open_local_scratch() as directory:
        (directory / "spill").touch()
        monkeypatch.setattr(os, name, fail_once)
    assert getattr(os, name) is call
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("fault", [PermissionError(errno.EACCES, "refused"), KeyboardInterrupt()])
def test_one_call_that_fails_does_not_keep_files_beside_a_target(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    remove = shutil.rmtree

    def fail_once(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(shutil, "rmtree", remove)
        raise fault

    interrupts = pytest.raises(KeyboardInterrupt) if isinstance(fault, KeyboardInterrupt) else nullcontext()
    with interrupts, ScratchDirectory(resolve(str(temporary / "new"))) as scratch:
        directory = temporary / scratch.name
        directory.mkdir()
        (directory / "spill").touch()
        monkeypatch.setattr(shutil, "rmtree", fail_once)
    assert shutil.rmtree is remove
    assert list(temporary.iterdir()) == []


def test_files_beside_a_target_that_cannot_be_removed_are_named(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "refused")

    scratches = ScratchDirectory(resolve(str(temporary / "new")))
    scratch = scratches.__enter__()
    (temporary / scratch.name).mkdir()
    monkeypatch.setattr(shutil, "rmtree", fail)
    with pytest.raises(StorageError) as caught:
        scratches.__exit__(None, None, None)
    assert caught.value.__notes__ == [f"Temporary files in {scratch} could not be removed"]


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
