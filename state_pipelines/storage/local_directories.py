"""Local files by descriptors of their directories, in which a directory exchanged for a symbolic link is noticed.

A path that was checked may lead elsewhere when it is used, because somebody who can write to one of its directories
can exchange the ones below it meanwhile. So a file that is removed or moved is named by the descriptor of its
directory, to which `open_parent` goes one name after the other without following links; and the path of a file that is
read is asked for again when it is open (`find_path`).
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import OutOfReachError, Where
from state_pipelines.storage.locations import is_below

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.storage.locations import Location

# The first exists on Linux only. Elsewhere a directory can be opened by those who may list it.
DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
"""Flags for the descriptor of a directory."""


# As many as Linux follows (`MAXSYMLINKS`).
_MOST_LINKS = 40


@contextmanager
def open_parent(location: Location, root: Location, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """Open the directory of a local file.

    Args:
        location: the file.
        root: a directory above it, which may itself be reached by links.
        make: create missing directories between the two.

    Yields:
        (descriptor of the directory, which is closed afterwards; name of the file in it).

    Raises:
        OutOfReachError: a directory between the two is a symbolic link.
        OSError: the file system refuses; `FileNotFoundError` and `NotADirectoryError` where there is no directory.
    """
    above = root.path.rstrip("/")
    names = [each for each in location.path[len(above) :].split("/") if each not in ("", ".")]
    if not names or not is_below(location.path, above) or ".." in names:
        raise OutOfReachError(f"the path does not lead below {root}", where=Where(file=str(location)))
    last = names.pop()
    descriptor = os.open(root.path, DIRECTORY)
    try:
        for name in names:
            inner = _open_inside(name, descriptor, location, make=make)
            os.close(descriptor)
            descriptor = inner
        yield descriptor, last
    finally:
        os.close(descriptor)


def _open_inside(name: str, directory: int, location: Location, *, make: bool) -> int:
    try:
        return os.open(name, DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    except FileNotFoundError:
        if not make:
            raise
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(name, directory):
            raise OutOfReachError(
                "a directory of this path is a symbolic link",
                where=Where(file=str(location)),
                hint="Nothing was done with what it leads to; find out who has put it there",
            ) from None
        raise
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=directory)
    return _open_inside(name, directory, location, make=False)


def _is_link(name: str, directory: int) -> bool:
    with suppress(FileNotFoundError):
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    return False


def find_path(descriptor: int, path: str) -> str:
    """Path of an open file or directory without symbolic links, as the kernel of Linux knows it.

    Args:
        descriptor: of the file.
        path: by which it was opened; elsewhere than on Linux its links are followed again.
    """
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - of each file that is opened
    except OSError:
        return os.path.realpath(path)


def resolve_directory(path: str) -> str:
    """Path of a directory without symbolic links; resolved by its names where it cannot be opened."""
    try:
        descriptor = os.open(path, DIRECTORY)
    except (OSError, ValueError):
        return os.path.realpath(path)
    try:
        return find_path(descriptor, path)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class FollowedPath:
    """The end of a local path, with all symbolic links followed.

    Attributes:
        path: the file or directory, without links; None where a link leads nowhere or in a circle, or cannot be read.
        directories: all directories that the path and its links go through, without links; the last one is that of the
            file, or the one in which the path ends without having led to a file.
    """

    path: str | None
    directories: tuple[str, ...]


def follow_path(path: str) -> FollowedPath:
    """Follow an absolute local path and the symbolic links in it; nothing is opened."""
    names = path.split("/")[::-1]
    directories = [""]
    current, links = "", 0
    while names:
        name = names.pop()
        if name in ("", "."):
            continue
        if name == "..":
            current = current.rpartition("/")[0]
            directories.append(current)
            continue
        found = f"{current}/{name}"
        try:
            mode = os.lstat(found).st_mode
            target = os.readlink(found) if stat.S_ISLNK(mode) else None  # noqa: PTH115
        except (OSError, ValueError):
            return FollowedPath(None, (*directories, current))
        if target is not None:
            links += 1
            if links > _MOST_LINKS:
                return FollowedPath(None, (*directories, current))
            names += target.split("/")[::-1]
            if target.startswith("/"):
                current = ""
            directories.append(current)
            continue
        if names and not stat.S_ISDIR(mode):
            return FollowedPath(None, (*directories, current))
        current = found
        if names:
            directories.append(current)
    return FollowedPath(current or "/", tuple(directories))
