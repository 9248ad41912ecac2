"""Scratch directories: temporary files of one operation, removed at its end."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from state_pipelines.errors import StateError
from state_pipelines.storage.files import remove_directory
from state_pipelines.storage.locations import Location, is_local, join, parent
from state_pipelines.storage.resolution import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator


def name_scratch(target: Location, directory: str | None = None) -> Location:
    """Name a new directory for temporary files, beside `target` or in `directory`; nothing is created."""
    # By this form of name, retention recognizes what a process that was killed has left.
    return join(parent(target) if directory is None else resolve(directory), f".{target.name}-{uuid.uuid4()}")


@contextmanager
def open_scratch(target: Location, directory: str | None = None, *, is_shared: bool = False) -> Iterator[Location]:
    """Choose a directory for the temporary files of an operation; it is removed at the end.

    Where none is stated: beside a local target, whose volume has the space; for other targets in the directory for
    temporary files of this machine (`TMPDIR`), so that temporary files never go to an object store; but beside the
    target too where tasks run on other machines, which have nothing else in common.

    Args:
        target: what the operation writes.
        directory: path or URL to use instead; a new directory is made inside.
        is_shared: tasks on other machines must reach the files.

    Raises:
        StateError: the directory cannot be removed.
    """
    if directory is None and not is_shared and not is_local(target):
        with TemporaryDirectory(prefix="state-pipelines-", ignore_cleanup_errors=True) as made:
            yield resolve(made)
        return
    scratch = name_scratch(target, directory)
    try:
        yield scratch
    except BaseException as error:
        try:
            remove_directory(scratch)
        except StateError as failure:
            error.add_note(f"Temporary files in {scratch} could not be removed: {failure}")
        raise
    remove_directory(scratch)
