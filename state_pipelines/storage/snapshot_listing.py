"""Snapshots on storages: the location of one, those below a directory, and those that Flink removes meanwhile."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import MissingFileError, NotFoundError, Where
from state_pipelines.storage.faults import NO_BUCKET, translating
from state_pipelines.storage.files import exists, is_directory, list_directory, make_time, read_file
from state_pipelines.storage.listing import LIST_THREADS, list_objects
from state_pipelines.storage.locations import Location, Threads, is_local, is_s3, join, parent
from state_pipelines.storage.resolution import CHECKPOINT_DIRECTORY, resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from fsspec import AbstractFileSystem

METADATA_FILE = "_metadata"
"""Name of the file that makes a directory a snapshot (`AbstractFsCheckpointStorageAccess.METADATA_FILE_NAME`)."""

MOST_METADATA = 2 << 30
"""Bytes that a `_metadata` file may have: 10,000 handles in the state of each of 100 operators take a tenth of it."""


@dataclass(frozen=True)
class SnapshotLocation:
    """Location of a snapshot.

    Attributes:
        directory: the exclusive directory; relative state handles start there.
        metadata: the `_metadata` file.
    """

    directory: Location
    metadata: Location


def resolve_snapshot(path: str, **storage_options: Any) -> SnapshotLocation:
    """The location of a snapshot, given its directory or its metadata file.

    As `AbstractFsCheckpointStorageAccess.resolveCheckpointPointer`: a file is taken for the metadata and its directory
    for the exclusive directory.

    Raises:
        NotFoundError: nothing is there, or a directory without `_metadata`.
        UsageError: see `resolve`.
    """
    location = resolve(path, **storage_options)
    inside = join(location, METADATA_FILE)
    if exists(inside):
        return SnapshotLocation(location, inside)
    where = Where(file=str(location))
    if not exists(location):
        raise NotFoundError("nothing is there", where=where, hint="Give the directory of a snapshot or its _metadata")
    if is_directory(location):
        hint = "Give the directory that holds it (chk-…, savepoint-…); without the file a snapshot was never completed"
        raise NotFoundError("the directory has no _metadata", where=where, hint=hint)
    return SnapshotLocation(parent(location), location)


def read_metadata_file(path: str, **storage_options: Any) -> tuple[SnapshotLocation, bytes]:
    """Find a snapshot and read its metadata file, in one request where `path` is its directory or metadata file.

    Args and errors as of `resolve_snapshot`.
    """
    location = resolve(path, **storage_options)
    if location.name == METADATA_FILE:
        wanted = SnapshotLocation(parent(location), location)
    else:
        wanted = SnapshotLocation(location, join(location, METADATA_FILE))
    try:
        return wanted, read_metadata_bytes(wanted.metadata)
    except MissingFileError as error:
        if not isinstance(error.__cause__, FileNotFoundError | NotADirectoryError | IsADirectoryError):
            raise
        if error.what == NO_BUCKET:
            raise
    found = resolve_snapshot(path, **storage_options)
    return found, read_metadata_bytes(found.metadata)


def read_metadata_bytes(location: Location) -> bytes:
    """Read a `_metadata` file.

    Raises:
        FormatError: it has more than `MOST_METADATA` bytes.
        MissingFileError: there is none, or it is a device, a pipe or a link to one.
        StorageError: the storage fails.
    """
    return read_file(location, most=MOST_METADATA)


RETENTION_DIRECTORY = "_retention"
"""Directory at the top of a root that belongs to retention: pins, audit logs, quarantined files. Holds no snapshots."""

# Directories beside the checkpoints of a job with files of state only, possibly very many of them
# (`AbstractFsCheckpointStorageAccess.CHECKPOINT_SHARED_STATE_DIR`, `CHECKPOINT_TASK_OWNED_STATE_DIR`).
_WITHOUT_SNAPSHOTS = frozenset({"shared", "taskowned", RETENTION_DIRECTORY})


@dataclass(frozen=True)
class SnapshotEntry:
    """A snapshot in a listing; nothing of it has been read.

    Attributes:
        location: where it lies.
        size: bytes of its `_metadata`.
        modified: when `_metadata` was written, None when the storage does not say.
    """

    location: SnapshotLocation
    size: int
    modified: datetime | None


def find_snapshots(root: Location, *, skip: Collection[str] = (), depth: int = 4) -> Iterator[SnapshotEntry]:
    """Find every directory with a `_metadata` file at or below `root`, in the order of names; none inside another one.

    On S3 this is one recursive listing, of which `shared`, `taskowned` and the rest of each snapshot are left out where
    they are longer than a page; on other storages that are not local, the directories of a level are listed
    `LIST_THREADS` at a time.

    Args:
        root: where to start; it need not exist.
        skip: paths, as the file system of `root` writes them, of directories that are not visited.
        depth: levels below `root` that are visited. Flink puts checkpoints at the second (job, checkpoint).

    Raises:
        MissingFileError: a directory below `root` cannot be listed.
        StorageError: the storage fails.
    """
    if is_local(root):
        yield from _find_local(root.filesystem, root.path, frozenset(skip), depth)
    elif is_s3(root.filesystem):
        yield from _find_objects(root, frozenset(skip), depth)
    elif is_directory(root):
        yield from _find_listed(root, frozenset(skip), depth)


def _find_listed(root: Location, skip: frozenset[str], depth: int) -> Iterator[SnapshotEntry]:
    found: list[SnapshotEntry] = []
    level = [root]
    with Threads(LIST_THREADS) as pool:
        while level:
            inner: list[Location] = []
            for directory, entries in zip(level, pool.map(list_directory, level), strict=True):
                files = [each for each in entries if each.location.name == METADATA_FILE and not each.is_directory]
                found += [
                    SnapshotEntry(SnapshotLocation(directory, each.location), each.size, each.modified)
                    for each in files
                ]
                if not files:
                    inner += [each.location for each in entries if each.is_directory]
            level = [each for each in inner if each.name not in _WITHOUT_SNAPSHOTS and each.path not in skip]
            level, depth = level if depth else [], depth - 1
    yield from sorted(found, key=lambda entry: entry.location.directory.path.split("/"))


def _find_local(
    filesystem: AbstractFileSystem, directory: str, skip: frozenset[str], depth: int
) -> Iterator[SnapshotEntry]:
    """Walk directories without asking for the sizes of state files."""
    location = Location(filesystem, directory)
    inner: list[str] = []
    with translating(location, "list the directory"):
        try:
            listed = os.scandir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return
        with listed:
            for entry in listed:
                if entry.is_dir():
                    if entry.name not in _WITHOUT_SNAPSHOTS and entry.path not in skip:
                        inner.append(entry.path)
                elif entry.name == METADATA_FILE:
                    status = entry.stat()
                    metadata = Location(filesystem, entry.path)
                    modified = make_time(status.st_mtime)
                    yield SnapshotEntry(SnapshotLocation(location, metadata), status.st_size, modified)
                    return
    if depth:
        for each in sorted(inner):
            yield from _find_local(filesystem, each, skip, depth - 1)


def _find_objects(root: Location, skip: frozenset[str], depth: int) -> Iterator[SnapshotEntry]:
    base = root.path.rstrip("/") + "/"
    skipped = {path.rstrip("/")[len(base) :] + "/" for path in skip if path.startswith(base)}
    found: set[str] = set()

    def leave_out(key: str) -> str | None:
        directories = key.split("/")[:-1]
        above = ""
        for level, name in enumerate(directories):
            above += name + "/"
            if name in _WITHOUT_SNAPSHOTS or level >= depth or above in skipped:
                return above
            # What comes before `_metadata` must not hide it when a range is listed a second time.
            if above in found and key > above + METADATA_FILE:
                return above
        if key == above + METADATA_FILE:
            found.add(above)
        return None

    # A directory above may turn out to be a snapshot as long as its `_metadata` may still be listed.
    waiting: list[tuple[str, SnapshotEntry]] = []
    last: str | None = None
    for each in list_objects(root, leave_out):
        key = each.path[len(base) :]
        directory, _, name = key.rpartition("/")
        if name == METADATA_FILE and (last is None or not _is_inside(directory, last)):
            last = directory
            location = Location(root.filesystem, f"{base}{directory}".rstrip("/"))
            metadata = Location(root.filesystem, each.path)
            waiting = [(inner, entry) for inner, entry in waiting if not _is_inside(inner, directory)]
            waiting.append((directory, SnapshotEntry(SnapshotLocation(location, metadata), each.size, each.modified)))
            if not directory:
                break
        while waiting and _is_settled(waiting[0][0], key):
            yield waiting.pop(0)[1]
    yield from (entry for _, entry in waiting)


def _is_inside(directory: str, other: str) -> bool:
    return not other or directory.startswith(other + "/")


def _is_settled(directory: str, key: str) -> bool:
    """Return whether no directory above one can have a `_metadata` that comes after `key` in the order of names."""
    above = directory
    while above:
        above = above.rpartition("/")[0]
        if (f"{above}/" if above else "") + METADATA_FILE > key:
            return False
    return True


_RECENT = timedelta(minutes=1)
"""Time after the end of a newer checkpoint in which Flink may still remove what that replaces."""

_LONGEST_WAIT = 2.0
_PAUSE = 0.1


def is_removed(directory: Location) -> bool:
    """Return whether a snapshot, of which a file is missing, is gone as a whole.

    Flink deletes shared files and `_metadata` side by side (`SharedStateRegistry.unregisterUnusedState`,
    `CheckpointsCleaner`). Where a newer checkpoint has just been completed, this waits up to two seconds for the end.

    Args:
        directory: of the snapshot.

    Raises:
        StorageError: the storage fails.
    """
    metadata = join(directory, METADATA_FILE)
    if not exists(metadata):
        # One that is not published yet is read for its proof.
        return not exists(join(directory, f"{METADATA_FILE}.pending"))
    if not _is_just_replaced(directory):
        return False
    until = time.monotonic() + _LONGEST_WAIT
    while time.monotonic() < until:
        time.sleep(_PAUSE)
        if not exists(metadata):
            return True
    return False


def _is_just_replaced(directory: Location) -> bool:
    own = CHECKPOINT_DIRECTORY.fullmatch(directory.name)
    if own is None:
        return False
    for each in find_snapshots(parent(directory), depth=1):
        other = CHECKPOINT_DIRECTORY.fullmatch(each.location.directory.name)
        is_recent = each.modified is not None and datetime.now(UTC) - each.modified < _RECENT
        if other is not None and int(other[1]) > int(own[1]) and is_recent:
            return True
    return False
