"""Second names for files of the local file system."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.errors import StateError, TargetExistsError, Where
from state_pipelines.storage.faults import translate, translating
from state_pipelines.storage.files import open_file
from state_pipelines.storage.local_directories import find_path
from state_pipelines.storage.locations import is_local

if TYPE_CHECKING:
    from state_pipelines.storage.locations import Location


def can_link(source: Location, directory: Location) -> bool:
    """Whether a file can have a second name in a directory, which need not be there yet: both lie on one local volume.

    Raises:
        MissingFileError: no such file.
    """
    if not (is_local(source) and is_local(directory)):
        return False
    path = Path(directory.path).absolute()
    while not path.exists():
        path = path.parent
    try:
        return Path(source.path).stat().st_dev == path.stat().st_dev
    except OSError as error:
        raise translate(source, "open the file", error) from None


def link_file(source: Location, target: Location) -> None:
    """Give a file a second name (a hard link): both name the same bytes until one of them is removed.

    Where the source is a symbolic link, the file that it leads to gets the name.

    Raises:
        TargetExistsError: the target exists.
        OutOfReachError: the source is not in reach any more.
        StateError: the file system refuses, or the source was exchanged meanwhile.
    """
    with translating(target, "link the file", writes=True):
        Path(target.path).parent.mkdir(parents=True, exist_ok=True)
        with open_file(source) as file:
            wanted = os.fstat(file.fileno())
            try:
                # Not by the given name: the link itself would get the second one.
                os.link(find_path(file.fileno(), source.path), target.path, follow_symlinks=False)
            except FileExistsError:
                raise TargetExistsError("a file of this name exists already", where=Where(file=str(target))) from None
        found = os.lstat(target.path)
        if (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino):
            os.unlink(target.path)  # noqa: PTH108 - as it was made
            raise StateError("the file was exchanged while it was linked", where=Where(file=str(source)))
