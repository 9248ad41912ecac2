"""Location of a snapshot: its directory and its metadata file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from state_pipelines.errors import MissingFileError, NotFoundError, Where
from state_pipelines.storage.faults import NO_BUCKET
from state_pipelines.storage.files import exists, is_directory, read_file
from state_pipelines.storage.locations import Location, join, parent
from state_pipelines.storage.resolution import resolve

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
