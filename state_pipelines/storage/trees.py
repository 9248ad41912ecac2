"""Everything below a directory, without following symbolic links."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import MissingFileError, NotFoundError, Where
from state_pipelines.storage.faults import request, translate
from state_pipelines.storage.file_times import make_time
from state_pipelines.storage.files import is_directory, modified_time
from state_pipelines.storage.locations import Location, has_directories, is_local, is_s3
from state_pipelines.storage.s3_listing import list_objects
from state_pipelines.storage.threads import Threads

if TYPE_CHECKING:
    from datetime import datetime

LIST_THREADS = 16
"""Directories of a remote file system that are listed at a time."""


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file, directory or link below a directory.

    Attributes:
        name: path relative to that directory, with slashes.
        size: bytes of a file, else 0.
        is_directory: it is a directory, not a link to one.
        is_link: it is a symbolic link or another special file.
        modified: time of the last change; None when the storage does not say.
        inode: device and number of a local file that has several names (hard links), else None.
        links: number of these names.
    """

    name: str
    size: int
    is_directory: bool = False
    is_link: bool = False
    modified: datetime | None = None
    inode: tuple[int, int] | None = None
    links: int = 1


def list_tree(root: Location) -> list[TreeEntry]:
    """Every file, directory and link below a directory, sorted by name.

    Directories that vanish meanwhile are left out.

    Raises:
        NotFoundError: there is no such directory.
        MissingFileError: a directory cannot be listed.
    """
    if is_local(root):
        entries = _list_local(root)
    elif not has_directories(root.filesystem):
        # One listing by prefix costs a request per 1,000 objects, one by directory a request each.
        entries = _list_flat(root)
    else:
        entries = _list_remote(root)
    return sorted(entries, key=lambda entry: entry.name)


def _list_local(root: Location) -> list[TreeEntry]:
    entries: list[TreeEntry] = []
    directories = [""]
    while directories:
        prefix = directories.pop()
        path = os.path.join(root.path, prefix)  # noqa: PTH118
        try:
            with os.scandir(path) as found:
                for each in found:
                    entry = _read_local(each, prefix)
                    if entry is not None:
                        entries.append(entry)
                        if entry.is_directory:
                            directories.append(entry.name + "/")
        except (FileNotFoundError, NotADirectoryError) as error:
            if not prefix:
                raise _no_directory(root) from error
        except OSError as error:
            raise translate(Location(root.filesystem, path), "list the directory", error) from error
    return entries


def _read_local(found: os.DirEntry[str], prefix: str) -> TreeEntry | None:
    try:
        status = found.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    modified = make_time(status.st_mtime)
    name = prefix + found.name
    if stat.S_ISDIR(status.st_mode):
        return TreeEntry(name, 0, is_directory=True, modified=modified)
    if not stat.S_ISREG(status.st_mode):
        return TreeEntry(name, 0, is_link=True, modified=modified)
    inode = (status.st_dev, status.st_ino) if status.st_nlink > 1 else None
    return TreeEntry(name, status.st_size, modified=modified, inode=inode, links=status.st_nlink)


def _list_flat(root: Location) -> list[TreeEntry]:
    filesystem = root.filesystem
    if is_s3(filesystem):
        begin = len(root.path.rstrip("/")) + 1
        entries = [TreeEntry(each.path[begin:], each.size, modified=each.modified) for each in list_objects(root)]
    else:
        filesystem.invalidate_cache()
        infos = request(root, "list the files", lambda: filesystem.find(root.path, detail=True))
        entries = _to_entries(root, list(infos.values()))
    if not entries and not is_directory(root):
        raise _no_directory(root)
    return entries


def _list_remote(root: Location) -> list[TreeEntry]:
    root.filesystem.invalidate_cache()
    if not is_directory(root):
        raise _no_directory(root)
    entries: list[TreeEntry] = []
    prefix = root.path.rstrip("/") + "/"

    def list_one(path: str) -> list[dict[str, Any]]:
        directory = Location(root.filesystem, path)
        try:
            return request(directory, "list the directory", lambda: list(root.filesystem.ls(path, detail=True)))
        except MissingFileError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return []
            raise

    directories = [root.path]
    with Threads(LIST_THREADS) as threads:
        while directories:
            found = [info for infos in threads.map(list_one, directories) for info in infos]
            level = _to_entries(root, found)
            entries += level
            directories = [prefix + entry.name for entry in level if entry.is_directory]
    return entries


def _to_entries(root: Location, infos: list[dict[str, Any]]) -> list[TreeEntry]:
    prefix = root.path.rstrip("/") + "/"
    entries = []
    for info in infos:
        full = str(info["name"])
        if not full.startswith(prefix) or not full[len(prefix) :].strip("/"):
            # The directory itself, which object stores may list as an empty object.
            continue
        name = full[len(prefix) :]
        is_marker = name.endswith("/") and not info.get("size")
        directory = info["type"] == "directory" or is_marker
        entries.append(
            TreeEntry(
                name.rstrip("/") if directory else name,
                0 if directory else int(info["size"] or 0),
                is_directory=directory,
                is_link=bool(info.get("islink")) or info["type"] not in ("file", "directory"),
                modified=modified_time(info),
            )
        )
    return entries


def _no_directory(root: Location) -> NotFoundError:
    return NotFoundError("there is no such directory", where=Where(file=str(root)), hint="Give an existing directory")
