"""Deletion and moves of single files, many at a time, and their state right before it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.arrow import ArrowFSWrapper

from state_pipelines.errors import StateError, TargetExistsError, Where
from state_pipelines.storage.faults import request, translating
from state_pipelines.storage.files import FileEntry, copy_inside, list_directory, make_directory, to_entry
from state_pipelines.storage.locations import Location, has_directories, is_local, parent

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


def stat_files(locations: Sequence[Location]) -> list[FileEntry | StateError | None]:
    """Size and time of every file, read from the storage and not from a cache.

    Returns:
        per location the entry, None for a file that does not exist, or the error of the storage (`StorageError`,
        `MissingFileError`). A directory and a symbolic link are a `StateError`: they are not files.
    """
    return _map(_stat_file, locations)


def is_same_time(first: datetime | None, second: datetime | None) -> bool:
    """Return whether two looks at a file gave the same time; some storages give whole seconds in one of two answers."""
    if first is None or second is None:
        return first is second
    if 0 in (first.microsecond, second.microsecond):
        return first.replace(microsecond=0) == second.replace(microsecond=0)
    return first == second


def delete_files(locations: Sequence[Location]) -> list[StateError | None]:
    """Delete files; a missing file counts as deleted.

    Object stores delete many files per request. What they report about single files differs and is partly dropped by
    their fsspec packages, so the storage is asked afterwards which files are still there.

    Returns:
        per location None, or why the file may still be there.
    """
    bulk: dict[AbstractFileSystem, list[Location]] = {}
    for each in locations:
        if _deletes_in_bulk(each):
            bulk.setdefault(each.filesystem, []).append(each)
    for filesystem, files in bulk.items():
        for start in range(0, len(files), _BULK_SIZE):
            _delete_in_bulk(filesystem, files[start : start + _BULK_SIZE])
    if not bulk:
        return [_delete_file(each) for each in locations]
    left = [state is not None for state in stat_files(locations)]
    errors = iter(_map(_delete_file, [each for each, is_left in zip(locations, left, strict=True) if is_left]))
    return [next(errors) if is_left else None for is_left in left]


def move_file(source: Location, target: Location) -> None:
    """Move a file within a file system: renamed where it is local, else copied and then deleted.

    Raises:
        TargetExistsError: another file is at the target.
        StateError: the storage refuses, or the copy has another size; the source is still there.
    """
    if is_local(source):
        with translating(source, "move the file", writes=True):
            Path(target.path).parent.mkdir(parents=True, exist_ok=True)
            if Path(target.path).exists():
                raise _target_exists(target)
            Path(source.path).rename(target.path)
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


def move_files(pairs: Sequence[tuple[Location, Location]]) -> list[StateError | None]:
    """Move files as `move_file` does; per pair None or the error."""
    return _map(_try_to_move, pairs)


def remove_empty_directory(location: Location) -> bool:
    """Remove a directory if it is empty; return whether it was removed.

    Object stores have no directories. Arrow's file systems remove a directory only with its content, so that a file
    created meanwhile would be lost: there the directory stays.
    """
    filesystem = location.filesystem
    if is_local(location):
        with suppress(OSError):
            os.rmdir(location.path)  # noqa: PTH106
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


def _stat_file(location: Location) -> FileEntry | StateError | None:
    def look() -> dict[str, object] | None:
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


def _delete_in_bulk(filesystem: AbstractFileSystem, files: Sequence[Location]) -> None:
    # A failed request leaves files, which are then deleted one by one with an error for each.
    with suppress(StateError, FileNotFoundError):
        request(files[0], "delete files", lambda: filesystem.rm([each.path for each in files]), writes=True)


def _delete_file(location: Location) -> StateError | None:
    def delete() -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            location.filesystem.rm_file(location.path)

    try:
        request(location, "delete the file", delete, writes=True)
    except StateError as error:
        return error
    return None


def _try_to_move(pair: tuple[Location, Location]) -> StateError | None:
    try:
        move_file(*pair)
    except StateError as error:
        return error
    return None


def _deletes_in_bulk(location: Location) -> bool:
    return isinstance(location.filesystem, AsyncFileSystem) and not _PATTERN_CHARACTERS & set(location.path)


def _map(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    if len(items) < 2 or is_local(_location_of(items[0])):
        return [function(item) for item in items]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(function, items))


def _location_of(item: object) -> Location:
    location = item[0] if isinstance(item, tuple) else item
    assert isinstance(location, Location)
    return location


def _target_exists(target: Location) -> TargetExistsError:
    return TargetExistsError("a file of this name exists already", where=Where(file=str(target)))
