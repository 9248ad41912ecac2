"""Completed checkpoints of a job: which are retained, which are subsumed and discarded.

Source: `DefaultCompletedCheckpointStore`, `CheckpointSubsumeHelper`, `CompletedCheckpoint`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import FormatError, MissingFileError, NotFoundError, StateError, UnsupportedError
from state_pipelines.operations.retention.flink_names import TASK_OWNED
from state_pipelines.snapshot.opening import open_location
from state_pipelines.storage.locations import parent
from state_pipelines.storage.snapshot_listing import find_snapshots

if TYPE_CHECKING:
    from state_pipelines.checkpoints.disposal import Disposal
    from state_pipelines.checkpoints.shared_files import SharedFiles
    from state_pipelines.metadata import CheckpointProperties
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.storage import Location, SnapshotLocation


@dataclass(frozen=True)
class CompletedCheckpoint:
    """A published checkpoint or savepoint.

    Attributes:
        checkpoint_id: its id.
        location: directory and `_metadata`.
        properties: they say when it is discarded.
        is_own: the job made it, so that all of its directory belongs to it.
        state_size: bytes of state.
        persisted_size: bytes that it added.
        duration: milliseconds of the longest snapshot of a subtask and of the publication.
    """

    checkpoint_id: int
    location: SnapshotLocation
    properties: CheckpointProperties
    is_own: bool = True
    state_size: int = 0
    persisted_size: int = 0
    duration: int = 0


class CompletedCheckpoints:
    """The retained checkpoints of a job, the oldest first.

    Args:
        num_retained: how many are kept; the newest checkpoint that is no savepoint stays in any case, since later
            incremental ones reference its files.
        files: files by reference.
        disposal: deletes files.
    """

    def __init__(self, num_retained: int, files: SharedFiles, disposal: Disposal) -> None:
        self._retained: list[CompletedCheckpoint] = []
        self._unretired: list[CompletedCheckpoint] = []
        self._num_retained, self._files, self._disposal = num_retained, files, disposal

    @property
    def all(self) -> tuple[CompletedCheckpoint, ...]:
        """The retained checkpoints and savepoints, the oldest first."""
        return tuple(self._retained)

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The newest one."""
        return self._retained[-1] if self._retained else None

    @property
    def latest_checkpoint(self) -> CompletedCheckpoint | None:
        """The newest one that is no savepoint."""
        return next((each for each in reversed(self._retained) if not each.properties.is_savepoint), None)

    def take_over(self, checkpoint: CompletedCheckpoint) -> None:
        """Add a checkpoint that was completed before the job started; nothing is subsumed."""
        self._retained.append(checkpoint)

    def add(self, checkpoint: CompletedCheckpoint) -> None:
        """Add a checkpoint that has just been published, and discard those that it subsumes.

        Args:
            checkpoint: its files are registered.
        """
        self._retained.append(checkpoint)
        kept = self.latest_checkpoint
        for each in self._retained[:-1]:
            if len(self._retained) <= self._num_retained:
                break
            if each is kept:
                continue
            self._retained.remove(each)
            if each.properties.discard_subsumed:
                self._unretired.append(each)
            else:
                self._files.forget(each.checkpoint_id)
        self._discard()

    def _discard(self) -> None:
        """Discard the subsumed checkpoints, and try again what the storage refused before.

        `_metadata` goes first: from then on no reader finds the checkpoint, so that a kill anywhere leaves files
        without a checkpoint, never a checkpoint without files. Only then its references are released.
        """
        waiting, self._unretired = self._unretired, []
        for each in waiting:
            if not self._disposal.retire(each.location.metadata):
                self._unretired.append(each)
                continue
            free = self._files.release(each.checkpoint_id)
            directory = each.location.directory
            self._disposal.delete(
                file for file in free if not _is_task_owned(file) and not (each.is_own and parent(file) == directory)
            )
            if each.is_own:
                # With what attempts of tasks have left that were repeated.
                self._disposal.remove([directory])
            else:
                self._disposal.remove_if_empty(directory)
        self._disposal.delete(())
        self._disposal.remove()


def _is_task_owned(file: Location) -> bool:
    # Such files belong to tasks, and no handle may name all of them (`FsCheckpointStorageAccess`).
    return TASK_OWNED in (parent(file).name, parent(parent(file)).name)


def find_checkpoints(directory: Location) -> tuple[list[Snapshot], list[tuple[SnapshotLocation, StateError]]]:
    """Open the completed checkpoints of a job.

    Args:
        directory: the directory of the job; it need not exist.

    Returns:
        the checkpoints by ascending id, and those that are listed but cannot be read, with the error.

    Raises:
        StorageError: the storage fails.
    """
    found: list[Snapshot] = []
    unreadable: list[tuple[SnapshotLocation, StateError]] = []
    for entry in find_snapshots(directory, depth=1):
        try:
            found.append(open_location(entry.location))
        except (FormatError, UnsupportedError, MissingFileError, NotFoundError) as error:
            unreadable.append((entry.location, error))
    return sorted(found, key=lambda each: each.metadata.checkpoint_id), unreadable


def find_latest_checkpoint(directory: Location) -> Snapshot | None:
    """Open the newest completed checkpoint of a job.

    Args:
        directory: the directory of the job; it need not exist.

    Raises:
        FormatError, UnsupportedError: the newest one cannot be read.
        StorageError: the storage fails.
    """
    found, unreadable = find_checkpoints(directory)
    newest = max((location for location, _ in unreadable), key=_number, default=None)
    if newest is not None and (not found or _number(newest) > found[-1].metadata.checkpoint_id):
        raise next(error for location, error in unreadable if location == newest)
    return found[-1] if found else None


def _number(location: SnapshotLocation) -> int:
    digits = location.directory.name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else -1
