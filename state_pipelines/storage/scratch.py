"""Scratch directories: temporary files of one operation, removed at its end."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.errors import StateError
from state_pipelines.storage.faults import translating
from state_pipelines.storage.files import remove_directory
from state_pipelines.storage.locations import Location, is_local, join, parent
from state_pipelines.storage.resolution import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType


_PREFIX = "state-pipelines-scratch-"
_LOCK = ".lock"
"""File that the process locks to which a directory belongs; the lock ends with the process, however that ends."""

_PENDING_LOCK = ".lock.pending"
"""Its name before it is locked."""

_UNLOCKED_SECONDS = 3600
"""Age from which a directory without a lock, and without other files, counts as left over."""


@contextmanager
def open_local_scratch() -> Iterator[Path]:
    """Make a directory for temporary files of this machine, below `TMPDIR`; it is removed at the end.

    Those that processes have left that were killed are removed first.

    Raises:
        StorageError: this machine does not let the directory be made, or files be written in the block.
    """
    with translating(resolve(tempfile.gettempdir()), "write temporary files", writes=True):
        _remove_abandoned(Path(tempfile.gettempdir()))
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            lock = os.open(directory / _PENDING_LOCK, os.O_CREAT | os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                # Only now: other processes take a directory whose lock file is not locked for one that is left over.
                (directory / _PENDING_LOCK).rename(directory / _LOCK)
                yield directory
            finally:
                os.close(lock)
        finally:
            _remove(directory)


def _remove(directory: Path) -> None:
    try:
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        # Once more, after an interrupt or a call that has failed; what stays goes with a later command.
        shutil.rmtree(directory, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    for directory in parent.glob(f"{_PREFIX}*"):
        # Those of other users stay, and those of processes that run.
        with suppress(OSError):
            if not (directory / _LOCK).exists():
                # Its process was killed before it had a lock, or is about to make one.
                if time.time() - directory.stat().st_mtime > _UNLOCKED_SECONDS:
                    (directory / _PENDING_LOCK).unlink(missing_ok=True)
                    directory.rmdir()
                continue
            lock = os.open(directory / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(lock)


def name_scratch(target: Location, directory: str | None = None) -> Location:
    """Name a new directory for temporary files, beside `target` or in `directory`; nothing is created."""
    # By this form of name, retention recognizes what a process that was killed has left.
    return join(parent(target) if directory is None else resolve(directory), f".{target.name}-{uuid.uuid4()}")


class ScratchDirectory:
    """A directory for the temporary files of an operation; leaving the block removes it.

    Where none is stated: beside a local target, whose volume has the space; for other targets in the directory for
    temporary files of this machine (`TMPDIR`), so that temporary files never go to an object store; but beside the
    target too where tasks run on other machines, which have nothing else in common.

    This is a class because the garbage collector closes a generator that was abandoned, for example by a job that
    died. Closing it would delete files in the middle of an unrelated call, and CPython 3.11 crashes when that call is
    `ContextVar.set`.

    Args:
        target: what the operation writes.
        directory: path or URL to use instead; a new directory is made inside.
        is_shared: tasks on other machines must reach the files.

    Raises:
        StateError: on leaving, when the directory cannot be removed.
    """

    def __init__(self, target: Location, directory: str | None = None, *, is_shared: bool = False) -> None:
        """Nothing is created before a file is."""
        is_here = directory is None and not is_shared and not is_local(target)
        self._local = open_local_scratch() if is_here else None
        self._beside = name_scratch(target, directory)

    def __enter__(self) -> Location:
        """Return the directory."""
        return self._beside if self._local is None else resolve(str(self._local.__enter__()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove the directory."""
        if self._local is not None:
            self._local.__exit__(kind, error, traceback)
            return
        try:
            _remove_scratch(self._beside)
        except StateError as failure:
            if error is None:
                failure.add_note(f"Temporary files in {self._beside} could not be removed")
                raise
            error.add_note(f"Temporary files in {self._beside} could not be removed: {failure}")


def _remove_scratch(scratch: Location) -> None:
    try:
        remove_directory(scratch)
    except StateError:
        # Once more: one call may have failed that would not fail again.
        remove_directory(scratch)
    except BaseException:
        remove_directory(scratch)
        raise
