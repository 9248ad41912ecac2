"""Snapshots that a job takes over: their files are counted with those of its own checkpoints.

Source: `SharedStateRegistry.registerAllAfterRestored`. Flink counts only what it restores. Here the other checkpoints
beside a claimed one count as well, so that discarding it never removes a file that they need.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from state_pipelines.checkpoints.completed_checkpoints import CompletedCheckpoint, find_checkpoints
from state_pipelines.checkpoints.shared_files import list_files, name_files
from state_pipelines.storage.locations import parent

if TYPE_CHECKING:
    from state_pipelines.checkpoints.completed_checkpoints import CompletedCheckpoints
    from state_pipelines.checkpoints.shared_files import SharedFiles
    from state_pipelines.metadata import CheckpointProperties
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.storage import Location

_log = logging.getLogger(__name__)


def claim_snapshot(
    snapshot: Snapshot, files: SharedFiles, completed: CompletedCheckpoints, properties: CheckpointProperties
) -> set[Location]:
    """Take over a restored snapshot.

    Args:
        snapshot: the snapshot.
        files: files by reference.
        completed: the retained checkpoints, which it joins.
        properties: of the checkpoints of the job, by which it is discarded.

    Returns:
        Directories whose files new checkpoints may reference.

    Raises:
        OutOfReachError: the snapshot names a file that it may not name; it is not claimed, which could delete the file.
        StorageError: the storage fails.
    """
    listed = list_files(snapshot.metadata, snapshot.location.directory, snapshot.path_mapping)
    files.register(snapshot.metadata.checkpoint_id, listed)
    completed.take_over(
        CompletedCheckpoint(snapshot.metadata.checkpoint_id, snapshot.location, properties, is_own=False)
    )
    if any(parent(file) != snapshot.location.directory for file in listed):
        others, unreadable = find_checkpoints(parent(snapshot.location.directory))
        for other in others:
            if other.location != snapshot.location:
                files.protect(name_files(other.metadata, other.location.directory, snapshot.path_mapping))
        for location, error in unreadable:
            _freeze(files, f"{location.metadata} cannot be read: {error}")
    return {parent(file) for file in listed}


def recover_checkpoints(
    directory: Location, files: SharedFiles, completed: CompletedCheckpoints, properties: CheckpointProperties
) -> list[Snapshot]:
    """Take over all completed checkpoints in the directory of a job that starts again.

    Args:
        directory: of the job.
        files: files by reference; nothing is released any more if a checkpoint cannot be read.
        completed: the retained checkpoints, which they join.
        properties: by which they are discarded.

    Returns:
        The checkpoints by ascending id.

    Raises:
        StorageError: the storage fails.
    """
    found, unreadable = find_checkpoints(directory)
    for snapshot in found:
        number = snapshot.metadata.checkpoint_id
        listed = name_files(snapshot.metadata, snapshot.location.directory, snapshot.path_mapping)
        files.register(number, listed)
        # What an earlier run has claimed elsewhere may be needed by others there.
        files.protect(file for file in listed if not file.path.startswith(f"{directory.path}/"))
        completed.take_over(CompletedCheckpoint(number, snapshot.location, properties))
    for location, error in unreadable:
        _freeze(files, f"{location.metadata} cannot be read: {error}")
    return found


def _freeze(files: SharedFiles, reason: str) -> None:
    files.freeze(reason)
    _log.warning("No file that checkpoints share is deleted in this run: %s", reason)
