"""Deletion and moves of single files, many at a time, and their state right before it."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.arrow import ArrowFSWrapper

from state_pipelines.errors import OutOfReachError, StateError, TargetExistsError, Where
from state_pipelines.storage.faults import request, translating
from state_pipelines.storage.files import FileEntry, copy_inside, list_directory, make_directory, to_entry
from state_pipelines.storage.locations import Location, Threads, has_directories, is_local, parent
from state_pipelines.storage.resolution import open_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from fsspec import AbstractFileSystem

_THREADS = 16
_BULK_SIZE = 1000
# `rm` of fsspec expands these in paths and would remove every file that matches.
_PATTERN_CHARACTERS = frozenset("*?[")

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def stat_files(
    locations: Sequence[Location], roots: Sequence[Location] | None = None
) -> list[FileEntry | StateError | None]:
    """Size and time of every file, read from the storage and not from a cache.

    Args:
        locations: the files.
        roots: for each file a directory above it, below which no symbolic link is followed; default its own directory.

    Returns:
        per location the entry, None for a file that does not exist, or the error of the storage (`StorageError`,
        `MissingFileError`). A directory and a symbolic link are a `StateError`: they are not files.
    """
    return _map(_stat_file, _with_roots(locations, roots))


def is_same_time(first: datetime | None, second: datetime | None) -> bool:
    """Return whether two looks at a file gave the same time; some storages give whole seconds in one of two answers."""
    if first is None or second is None:
        return first is second
    if 0 in (first.microsecond, second.microsecond):
        return first.replace(microsecond=0) == second.replace(microsecond=0)
    return first == second


def delete_files(locations: Sequence[Location], roots: Sequence[Location] | None = None) -> list[StateError | None]:
    """Delete files; a missing file counts as deleted.

    Object stores delete many files per request. What they report about single files differs and is partly dropped by
    their fsspec packages, so the storage is asked afterwards which files are still there.

    Args:
        locations: the files.
        roots: as for `stat_files`.

    Returns:
        per location None, or why the file may still be there.
    """
    bulk: dict[AbstractFileSystem, list[Location]] = {}
    for each in locations:
        if _deletes_in_bulk(each):
            bulk.setdefault(each.filesystem, []).append(each)
    for filesystem, found in bulk.items():
        for start in range(0, len(found), _BULK_SIZE):
            _delete_in_bulk(filesystem, found[start : start + _BULK_SIZE])
    files = _with_roots(locations, roots)
    if not bulk:
        return [_delete_file(each) for each in files]
    left = [state is not None for state in stat_files(locations, roots)]
    errors = iter(_map(_delete_file, [each for each, is_left in zip(files, left, strict=True) if is_left]))
    return [next(errors) if is_left else None for is_left in left]


def move_file(source: Location, target: Location, root: Location) -> None:
    """Move a file within a file system: renamed where it is local, else copied and then deleted.

    Args:
        source: the file.
        target: where it is to be; missing directories are created.
        root: a directory above both, below which no symbolic link is followed.

    Raises:
        TargetExistsError: another file is at the target.
        OutOfReachError: a symbolic link is between the root and one of them.
        StateError: the storage refuses, or the copy has another size; the source is still there.
    """
    if is_local(source):
        with (
            translating(source, "move the file", writes=True),
            open_parent(source, root) as (old, name),
            open_parent(target, root, make=True) as (new, new_name),
        ):
            if _is_there(new_name, new):
                raise _target_exists(target)
            os.rename(name, new_name, src_dir_fd=old, dst_dir_fd=new)
        return
    wanted, found = stat_files([source, target])
    if not isinstance(wanted, FileEntry):
        raise wanted or StateError("the file does not exist", where=Where(file=str(source)))
    # An interrupted move leaves a copy.
    if isinstance(found, FileEntry) and found.size != wanted.size:
        raise _target_exists(target)
    if has_directories(target.filesystem):
        make_directory(parent(target))
    copy_inside(source, target, wanted.size)
    (copied,) = stat_files([target])
    if not isinstance(copied, FileEntry) or copied.size != wanted.size:
        raise StateError("the copy is not complete", where=Where(file=str(target)), hint="The original was kept")
    (error,) = delete_files([source])
    if error is not None:
        raise error


def move_files(moves: Sequence[tuple[Location, Location, Location]]) -> list[StateError | None]:
    """Move files as `move_file` does with the same three arguments; per file None or the error."""
    return _map(_try_to_move, moves)


def remove_empty_directory(location: Location, root: Location | None = None) -> bool:
    """Remove a directory if it is empty; return whether it was removed.

    Object stores have no directories. Arrow's file systems remove a directory only with its content, so that a file
    created meanwhile would be lost: there the directory stays.

    Args:
        location: the directory.
        root: a directory above it, below which no symbolic link is followed; default the one that holds it.
    """
    filesystem = location.filesystem
    if is_local(location):
        with suppress(OSError, OutOfReachError), open_parent(location, root or parent(location)) as (directory, name):
            os.rmdir(name, dir_fd=directory)
            return True
        return False
    if isinstance(filesystem, ArrowFSWrapper) or not has_directories(filesystem):
        return False
    try:
        if list_directory(location):
            return False
        filesystem.rmdir(location.path)
    except (OSError, StateError):
        return False
    return True


def _with_roots(locations: Sequence[Location], roots: Sequence[Location] | None) -> list[tuple[Location, Location]]:
    return list(zip(locations, map(parent, locations) if roots is None else roots, strict=True))


def _is_there(name: str, directory: int) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _stat_file(file: tuple[Location, Location]) -> FileEntry | StateError | None:
    location, root = file

    def look() -> dict[str, object] | None:
        if is_local(location):
            return _stat_local(location, root)
        location.filesystem.invalidate_cache(parent(location).path)
        try:
            info: dict[str, object] = location.filesystem.info(location.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return info

    try:
        info = request(location, "ask for size and time of the file", look)
    except StateError as error:
        return error
    if info is None:
        return None
    if info["type"] != "file" or info.get("islink"):
        return StateError("this is not a plain file", where=Where(file=str(location)))
    return to_entry(location.filesystem, info)


def _stat_local(location: Location, root: Location) -> dict[str, object] | None:
    """Type, size and time of a local file as fsspec names them; links are not followed."""
    try:
        with open_parent(location, root) as (directory, name):
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    kind = "file" if stat.S_ISREG(status.st_mode) else "other"
    return {"name": location.path, "type": kind, "size": status.st_size, "mtime": status.st_mtime}


def _delete_in_bulk(filesystem: AbstractFileSystem, files: Sequence[Location]) -> None:
    # A failed request leaves files, which are then deleted one by one with an error for each.
    with suppress(StateError, FileNotFoundError):
        request(files[0], "delete files", lambda: filesystem.rm([each.path for each in files]), writes=True)


def _delete_file(file: tuple[Location, Location]) -> StateError | None:
    location, root = file

    def delete() -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            if not is_local(location):
                location.filesystem.rm_file(location.path)
                return
            with open_parent(location, root) as (directory, name):
                os.unlink(name, dir_fd=directory)

    try:
        request(location, "delete the file", delete, writes=True)
    except StateError as error:
        return error
    return None


def _try_to_move(move: tuple[Location, Location, Location]) -> StateError | None:
    try:
        move_file(*move)
    except StateError as error:
        return error
    return None


def _deletes_in_bulk(location: Location) -> bool:
    return isinstance(location.filesystem, AsyncFileSystem) and not _PATTERN_CHARACTERS & set(location.path)


def _map(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    if len(items) < 2 or is_local(_location_of(items[0])):
        return [function(item) for item in items]
    with Threads(_THREADS) as pool:
        return list(pool.map(function, items))


def _location_of(item: object) -> Location:
    location = item[0] if isinstance(item, tuple) else item
    assert isinstance(location, Location)
    return location


def _target_exists(target: Location) -> TargetExistsError:
    return TargetExistsError("a file of this name exists already", where=Where(file=str(target)))
