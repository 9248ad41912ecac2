"""Distinction of checkpoints that Flink removes while they are read from those of which files are missing."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from state_pipelines.storage.files import exists
from state_pipelines.storage.locations import join, parent
from state_pipelines.storage.snapshot_listing import find_snapshots
from state_pipelines.storage.snapshot_location import METADATA_FILE
from state_pipelines.storage.written_names import CHECKPOINT_DIRECTORY

if TYPE_CHECKING:
    from state_pipelines.storage.locations import Location

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
