"""Removing a snapshot that was moved: its own files, and its directory when nothing else is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import UnsupportedError, UsageError, Where
from state_pipelines.metadata import stream_handles
from state_pipelines.metadata.streams import open_stream
from state_pipelines.storage import Location, exists, list_directory, parent
from state_pipelines.storage.files import remove_directory, remove_file

if TYPE_CHECKING:
    from state_pipelines.snapshot import Snapshot


@dataclass(frozen=True)
class Removal:
    """The files that belong to one snapshot alone.

    Attributes:
        directory: of the snapshot.
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
        remove_file(self.metadata)
        for file in self.files:
            remove_file(file)
        # Object stores have no directories to leave behind.
        if exists(self.directory) and not list_directory(self.directory):
            remove_directory(self.directory)
        return 1 + len(self.files)


def plan_removal(snapshot: Snapshot, target: Location) -> Removal:
    """What goes when a snapshot is moved to `target`; nothing is removed yet.

    Raises:
        UnsupportedError: a file lies outside the directory of the snapshot, so that others may need it.
        UsageError: the target is the snapshot itself.
    """
    directory = snapshot.location.directory
    if str(target).rstrip("/") == str(directory).rstrip("/"):
        raise UsageError("a snapshot cannot be moved to where it is", where=Where(file=str(target)))
    files: dict[str, Location] = {}
    for handle in (reference.handle for reference in stream_handles(snapshot.metadata)):
        place = open_stream(handle, directory, snapshot.path_mapping).location
        if place is None:
            continue
        if str(parent(place)) != str(directory).rstrip("/"):
            raise UnsupportedError(
                "the snapshot has files outside its directory, which other checkpoints may need",
                where=Where(file=str(place)),
                hint="Copy it without moving, and let Flink or `retain` remove the old one",
            )
        files[str(place)] = place
    return Removal(directory, snapshot.location.metadata, tuple(files.values()))
