"""Listing all files below a directory, with as few requests and as little memory as the storage allows."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fsspec.asyn import AsyncFileSystem

from state_pipelines.storage.faults import request, translating
from state_pipelines.storage.file_times import make_time
from state_pipelines.storage.files import FileEntry, is_directory, list_directory, to_entry
from state_pipelines.storage.locations import Location, is_local, is_s3
from state_pipelines.storage.s3_listing import list_objects

if TYPE_CHECKING:
    from collections.abc import Iterator


def list_files(root: Location) -> Iterator[FileEntry]:
    """List every file at any depth below a directory, with sizes and times; nothing when there is no directory.

    On S3 pages of one recursive listing, several at a time where there are many; on other object stores one recursive
    listing, which fsspec holds in memory; elsewhere one directory after the other. On S3 in the order of the names.

    Raises:
        MissingFileError: a directory cannot be listed.
        StorageError: the storage fails.
    """
    filesystem = root.filesystem
    if is_local(root):
        yield from _list_local(root)
    elif is_s3(filesystem):
        for found in list_objects(root):
            yield FileEntry(Location(filesystem, found.path), found.size, is_directory=False, modified=found.modified)
    elif isinstance(filesystem, AsyncFileSystem):
        filesystem.invalidate_cache(root.path)
        infos = request(root, "list the files", lambda: filesystem.find(root.path, detail=True))
        filesystem.invalidate_cache(root.path)
        for name in sorted(infos):
            if infos[name]["type"] == "file":
                yield to_entry(filesystem, infos[name])
    elif is_directory(root):
        directories = [root]
        while directories:
            for entry in list_directory(directories.pop()):
                if entry.is_directory:
                    directories.append(entry.location)
                else:
                    yield entry


def _list_local(root: Location) -> Iterator[FileEntry]:
    if not os.path.isdir(root.path):  # noqa: PTH112
        return
    directories = [root.path]
    while directories:
        directory = directories.pop()
        with translating(Location(root.filesystem, directory), "list the directory"), os.scandir(directory) as found:
            entries = sorted(found, key=lambda each: each.name)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.path)
                continue
            try:
                status = entry.stat()
            except FileNotFoundError:
                # Removed since the directory was listed, or a link to nothing.
                continue
            modified = make_time(status.st_mtime)
            yield FileEntry(
                Location(root.filesystem, entry.path), status.st_size, is_directory=False, modified=modified
            )


def list_sizes(directory: Location) -> dict[str, int] | None:
    """List the names in a directory with the sizes of files, -1 for directories; None when there is no such directory.

    Cheaper than `list_directory` for directories of many files.

    Raises:
        MissingFileError: the directory cannot be listed.
        StorageError: the storage fails.
    """
    filesystem = directory.filesystem

    def read() -> list[dict[str, Any]] | None:
        filesystem.invalidate_cache(directory.path)
        try:
            return list(filesystem.ls(directory.path, detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return None

    if is_local(directory):
        return request(directory, "list the directory", lambda: _scan_directory(directory.path))
    infos = request(directory, "list the directory", read)
    # Object stores may list the directory itself as an empty object.
    own = directory.path.rstrip("/")
    return (
        None
        if infos is None
        else {
            name.rpartition("/")[2]: -1 if info["type"] == "directory" else int(info["size"] or 0)
            for info in infos
            if (name := info["name"].rstrip("/")) != own
        }
    )


def _scan_directory(path: str) -> dict[str, int] | None:
    sizes = {}
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                # Links to nothing, and files that were removed since the directory was opened, are not there.
                with suppress(FileNotFoundError):
                    sizes[entry.name] = -1 if entry.is_dir() else entry.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None
    return sizes
