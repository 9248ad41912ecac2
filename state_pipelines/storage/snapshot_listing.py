"""The snapshots below a directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.storage.files import is_directory, list_directory
from state_pipelines.storage.snapshot_location import METADATA_FILE, SnapshotLocation

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from datetime import datetime

    from state_pipelines.storage.locations import Location

# Directories beside the checkpoints of a job, in which only files of state lie, possibly very many of them
# (`AbstractFsCheckpointStorageAccess.CHECKPOINT_SHARED_STATE_DIR`, `CHECKPOINT_TASK_OWNED_STATE_DIR`).
_STATE_DIRECTORIES = frozenset({"shared", "taskowned"})


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
    """Every directory with a `_metadata` file at or below `root`, by path; none inside another one.

    Args:
        root: where to start; it need not exist.
        skip: paths, as the file system of `root` writes them, of directories that are not visited.
        depth: levels below `root` that are visited. Flink puts checkpoints at the second (job, checkpoint).

    Raises:
        MissingFileError: a directory below `root` cannot be listed.
    """
    if not is_directory(root):
        return
    entries = list_directory(root)
    for entry in entries:
        if entry.location.name == METADATA_FILE and not entry.is_directory:
            yield SnapshotEntry(SnapshotLocation(root, entry.location), entry.size, entry.modified)
            return
    for entry in entries:
        place = entry.location
        if depth and entry.is_directory and place.name not in _STATE_DIRECTORIES and place.path not in skip:
            yield from find_snapshots(place, skip=skip, depth=depth - 1)
