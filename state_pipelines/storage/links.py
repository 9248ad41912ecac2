"""Second names for files of the local file system."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.errors import TargetExistsError, Where
from state_pipelines.storage.faults import translate, translating
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

    Raises:
        TargetExistsError: the target exists.
        StateError: the file system refuses.
    """
    with translating(target, "link the file", writes=True):
        Path(target.path).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source.path, target.path)
        except FileExistsError:
            raise TargetExistsError("a file of this name exists already", where=Where(file=str(target))) from None
