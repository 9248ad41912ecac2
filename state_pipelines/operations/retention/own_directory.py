"""The directory `_retention` of a root: pins, the audit log and the quarantine.

Whoever can write to a root can put symbolic links there, which would lead retention to the files of somebody else, such
as the quarantine of another root. Links in this directory are refused, wherever they lead.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError, Where
from state_pipelines.storage import join
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.snapshot_listing import RETENTION_DIRECTORY

if TYPE_CHECKING:
    from state_pipelines.storage import Location


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
