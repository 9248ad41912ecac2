"""Removing a snapshot that was moved: its own files, and its directory when nothing else is there."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.errors import OutOfReachError, StateError, UnsupportedError, UsageError, Where
from state_pipelines.metadata import list_references
from state_pipelines.metadata.streams import open_stream
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import Location, exists, join, list_directory, parent
from state_pipelines.storage.deletion import delete_files, remove_empty_directory
from state_pipelines.storage.files import remove_directory
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.resolution import MANIFEST_FILE
from state_pipelines.storage.snapshot_listing import find_snapshots

if TYPE_CHECKING:
    from collections.abc import Collection

    from state_pipelines.snapshot import Snapshot

NEIGHBOUR_DEPTH = 2
"""Levels below the parent directory of a snapshot at which other snapshots are looked for that need its files."""


@dataclass(frozen=True)
class Removal:
    """The files that belong to one snapshot alone.

    Attributes:
        directory: of the snapshot, without symbolic links where it is local.
        metadata: its `_metadata`, which goes first: what is left then is no snapshot any more.
        files: its other files, all of them in `directory`.
    """

    directory: Location
    metadata: Location
    files: tuple[Location, ...]

    def run(self) -> int:
        """Remove them, and the directory unless something else is there; how many files were removed.

        Raises:
            StateError: the storage refuses.
        """
        # The directory itself may have been exchanged for a link since it was read.
        root = parent(self.directory)
        for files in ([self.metadata], self.files):
            for error in delete_files(files, [root] * len(files)):
                if error is not None:
                    raise error
        if is_local(self.directory):
            remove_empty_directory(self.directory, root)
        # Object stores have no directories to leave behind.
        elif exists(self.directory) and not list_directory(self.directory):
            remove_directory(self.directory)
        return 1 + len(self.files)


def plan_removal(snapshot: Snapshot, target: Location) -> Removal:
    """List the files that are removed when a snapshot is moved to `target`; nothing is removed yet.

    Raises:
        UnsupportedError: a file lies outside the directory of the snapshot, so that others may need it.
        UsageError: the target is the snapshot itself, or a snapshot near it names one of the files.
        StateError: nobody can tell whether a snapshot near it does, since it cannot be read.
    """
    directory = snapshot.location.directory
    if str(target).rstrip("/") == str(directory).rstrip("/"):
        raise UsageError("a snapshot cannot be moved to where it is", where=Where(file=str(target)))
    files: dict[str, Location] = {}
    for handle in (reference.handle for reference in list_references(snapshot.metadata)):
        location = open_stream(handle, directory, snapshot.path_mapping).location
        if location is None:
            continue
        if str(parent(location)) != str(directory).rstrip("/"):
            raise UnsupportedError(
                "the snapshot has files outside its directory, which other checkpoints may need",
                where=Where(file=str(location)),
                hint="Copy it without moving, and let Flink remove the old one",
            )
        files[str(location)] = location
    manifest = join(directory, MANIFEST_FILE)
    if exists(manifest):
        files[str(manifest)] = manifest
    _refuse_neighbours(snapshot, {_identify(location) for location in files.values()})
    real = replace(directory, path=os.path.realpath(directory.path)) if is_local(directory) else directory
    metadata, *others = (join(real, each.name) for each in (snapshot.location.metadata, *files.values()))
    return Removal(real, metadata, tuple(others))


def _refuse_neighbours(snapshot: Snapshot, files: Collection[str]) -> None:
    """Refuse when a snapshot near this one names one of the files, as those do whose files are referenced."""
    directory = snapshot.location.directory
    try:
        for entry in find_snapshots(parent(directory), depth=NEIGHBOUR_DEPTH):
            if _identify(entry.location.directory) != _identify(directory):
                _refuse_neighbour(snapshot, str(entry.location.directory), files)
    except StateError as error:
        error.hint = error.hint or (
            "Before a snapshot goes, every other one near it is asked whether it needs its files. Copy it without "
            "moving, or put it into a directory of its own first"
        )
        raise


def _refuse_neighbour(snapshot: Snapshot, path: str, files: Collection[str]) -> None:
    other = open_snapshot(path, path_mapping=snapshot.path_mapping, allow_roots=[snapshot.location.directory.url])
    for reference in list_references(other.metadata):
        try:
            location = open_stream(reference.handle, other.location.directory, other.path_mapping).location
        except OutOfReachError:
            # Not below the directory of this snapshot, which is allowed.
            continue
        if location is not None and _identify(location) in files:
            raise UsageError(
                f"the snapshot {path} needs a file that would be removed",
                where=Where(file=str(location)),
                hint="Convert that snapshot with --files copy and remove it first, or copy this one without moving",
            )


def _identify(location: Location) -> str:
    # A local file may be named in several ways.
    return os.path.realpath(location.path) if is_local(location) else str(location).rstrip("/")
