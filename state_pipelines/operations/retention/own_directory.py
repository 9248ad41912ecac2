"""The directory `_retention` of a root: pins, the audit log and the quarantine.

Whoever can write to a root can put symbolic links there, which would lead retention to the files of somebody else, such
as the quarantine of another root. Links in this directory are refused, wherever they lead.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from state_pipelines.errors import StateError, StorageError, UsageError, Where
from state_pipelines.storage import Location, join
from state_pipelines.storage.files import is_directory
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.snapshot_listing import RETENTION_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterator


def locate_own(root: Location, *names: str) -> Location:
    """Locate something in the directory of retention of a root; it need not exist.

    Args:
        root: the root, which may be a link itself.
        names: names of directories below that of retention, and of a file.

    Raises:
        UsageError: the directory of retention, or something below it on this path, is a symbolic link.
    """
    location = join(root, RETENTION_DIRECTORY)
    require_no_link(location)
    for name in names:
        location = join(location, name)
        require_no_link(location)
    return location


def find_above(root: Location) -> tuple[list[Location], list[str]]:
    """Find the directories above a root that have been roots of retention too.

    Args:
        root: the root; if it is local, also what is above the directory to which its links lead.

    Returns:
        (the directories, the nearest first; notes about those into which the storage does not let us look).

    Raises:
        StorageError: the storage fails for the moment.
    """
    if is_local(root):
        real = os.path.realpath(root.path)
        paths = dict.fromkeys((*_list_above(real), *map(os.path.realpath, _list_above(os.path.abspath(root.path)))))  # noqa: PTH100
        above = (Location(root.filesystem, path) for path in paths)
        return [each for each in above if os.path.lexists(join(each, RETENTION_DIRECTORY).path)], []
    found, notes = [], []
    for path in _list_above(root.path):
        location = Location(root.filesystem, path)
        try:
            if is_directory(join(location, RETENTION_DIRECTORY)):
                found.append(location)
        except StateError as error:
            if isinstance(error, StorageError) and error.transient:
                raise
            # Credentials are often for a part of a bucket only.
            notes.append(f"whether something is pinned above the root cannot be seen: {error}")
    return found, notes


def is_own_above(above: Location, root: Location) -> bool:
    """Return whether the directory of retention above a root belongs to the owner of the root, to us or to the system.

    Others may write to directories such as `/tmp` too; what they put there protects files, but brings none back.
    """
    if not is_local(root):
        return True
    owner = os.lstat(join(above, RETENTION_DIRECTORY).path).st_uid
    return owner in (0, os.getuid(), os.stat(root.path).st_uid)  # noqa: PTH116


def _list_above(path: str) -> Iterator[str]:
    """The directories above a path, the nearest first; those of a bucket end with it."""
    path = path.rstrip("/")
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path or "/"


def require_no_link(location: Location) -> None:
    """Refuse a symbolic link; only local file systems have them.

    Raises:
        UsageError: the location is one.
    """
    if is_local(location) and os.path.islink(location.path):  # noqa: PTH114
        raise refuse_link(str(location))


def refuse_link(path: str) -> UsageError:
    """Make the error about a symbolic link where retention keeps its own files."""
    return UsageError(
        "this is a symbolic link, and retention follows none to its own files",
        where=Where(file=path),
        hint="Nothing was read, moved or deleted through it; remove the link, or put what it leads to in its place",
    )
