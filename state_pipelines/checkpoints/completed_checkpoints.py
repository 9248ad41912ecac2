"""Completed checkpoints of a job: which are retained, subsumed and discarded, their files and their directories.

* `CompletedCheckpoints`: the retained ones, and the disposal of subsumed ones. Source:
  `DefaultCompletedCheckpointStore`, `CheckpointSubsumeHelper`, `CompletedCheckpoint`.
* `SharedFiles`: files of checkpoints, counted by reference; a file that a checkpoint references is never released. A
  file is known by its location, as in Flink since 1.17. Source: `SharedStateRegistryImpl`.
* `claim_snapshot`, `recover_checkpoints`: snapshots that a job takes over; their files are counted with those of its
  own checkpoints. Flink counts only what it restores. Here the other checkpoints beside a claimed one count as well, so
  that discarding it never removes a file that they need. Source: `SharedStateRegistry.registerAllAfterRestored`.
* `Disposal`: deletes checkpoints in an order that a kill may interrupt anywhere: `_metadata` first, then files. Without
  `_metadata` no reader finds the checkpoint; retention calls the remaining files orphans. Source:
  `CompletedCheckpoint.CompletedCheckpointDiscardObject`, `CheckpointsCleaner`.
* `CheckpointDirectories`, `name_savepoint`: directories of the checkpoints and savepoints of a job, with Flink's names.
  Source: `FsCheckpointStorageAccess`, `AbstractFsCheckpointStorageAccess`.
"""

from __future__ import annotations

import logging
import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import (
    FormatError,
    MissingFileError,
    NotFoundError,
    OutOfReachError,
    StateError,
    TargetExistsError,
    UnsupportedError,
    UsageError,
    Where,
)
from state_pipelines.metadata import (
    CheckpointMetadata,
    OperatorState,
    SubtaskState,
    list_references,
    replace_stream_handles,
    write_metadata,
)
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
)
from state_pipelines.metadata.streams import locate_file, name_file, operator_handles
from state_pipelines.operations.retention.decisions import SHARED, TASK_OWNED
from state_pipelines.snapshot.snapshot import open_location
from state_pipelines.storage import METADATA_FILE, Location, PathMapping, exists, join, read_file
from state_pipelines.storage.files import is_directory, list_directory, remove_directory, remove_file
from state_pipelines.storage.locations import parent
from state_pipelines.storage.resolution import CHECKPOINT_DIRECTORY, JOB_DIRECTORY, MANIFEST_FILE
from state_pipelines.storage.snapshot_writer import delete_files, find_snapshots, remove_empty_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from state_pipelines.metadata import CheckpointProperties
    from state_pipelines.metadata.handles import StreamStateHandle
    from state_pipelines.metadata.streams import StreamReference
    from state_pipelines.operations.write.transaction import SnapshotTransaction
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.storage import SnapshotLocation


@dataclass(frozen=True)
class CompletedCheckpoint:
    """A published checkpoint or savepoint.

    Attributes:
        checkpoint_id: its id.
        location: directory and `_metadata`.
        properties: they say whether it is discarded when newer checkpoints subsume it.
        is_own: whether the job wrote it, so that its whole directory may be removed with it.
        state_size: bytes of state.
        persisted_size: bytes that it wrote itself, without files of earlier checkpoints that it references.
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
        files: counts the references to files.
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
        """The newest retained checkpoint or savepoint; None if there is none."""
        return self._retained[-1] if self._retained else None

    @property
    def latest_checkpoint(self) -> CompletedCheckpoint | None:
        """The newest retained checkpoint that is no savepoint; None if there is none."""
        return next((each for each in reversed(self._retained) if not each.properties.is_savepoint), None)

    def take_over(self, checkpoint: CompletedCheckpoint) -> None:
        """Add a checkpoint that was completed before the job started; nothing is subsumed."""
        self._retained.append(checkpoint)

    def add(self, checkpoint: CompletedCheckpoint) -> None:
        """Add a checkpoint that has just been published, and discard those that it subsumes.

        Args:
            checkpoint: the checkpoint, whose files are registered already (`SharedFiles.register`).
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
        """Discard the subsumed checkpoints, and retry the deletions that the storage refused before.

        `_metadata` is deleted first, so that no reader finds the checkpoint any more; only then its references are
        released. If the process is killed in between, files without a checkpoint are left, never a checkpoint without
        files.
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
                # Remove the whole directory: it may hold files of failed task attempts, which no handle names.
                self._disposal.remove([directory])
            else:
                self._disposal.remove_if_empty(directory)
        self._disposal.delete(())
        self._disposal.remove()


def _is_task_owned(file: Location) -> bool:
    # Tasks own the files in `taskowned`, and may use some that no handle names (`FsCheckpointStorageAccess`).
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


def list_files(
    metadata: CheckpointMetadata, directory: Location, path_mapping: PathMapping | None = None
) -> frozenset[Location]:
    """Return the files that a snapshot references, those in its own directory included.

    Args:
        metadata: metadata of the snapshot.
        directory: directory of the snapshot; the paths of relative handles start here.
        path_mapping: where the directories that absolute handles name are now.

    Raises:
        FormatError: a relative path leaves the directory.
        OutOfReachError: a file is outside the directories that the snapshot may name.
        UsageError: the storage of an absolute handle cannot be reached.
    """
    mapping = () if path_mapping is None else (path_mapping,)
    handles = {reference.handle for reference in list_references(metadata) if isinstance(reference.handle, _FILES)}
    return frozenset(locate_file(handle, directory, *mapping) for handle in handles)


def name_files(metadata: CheckpointMetadata, directory: Location, path_mapping: PathMapping) -> frozenset[Location]:
    """Return all files that a snapshot names, even those outside its permitted directories: none may be deleted.

    Files on another storage are left out. Arguments as for `list_files`.
    """
    handles = (reference.handle for reference in list_references(metadata) if isinstance(reference.handle, _FILES))
    named = (name_file(handle, directory, path_mapping) for handle in handles)
    return frozenset(each for each in named if each is not None)


def list_subtask_files(state: SubtaskState, directory: Location, beside: Iterable[Location]) -> frozenset[Location]:
    """Return the files that one subtask references, without those that its checkpoint may not name.

    Args:
        state: state of the subtask.
        directory: directory of the checkpoint.
        beside: other directories whose files it may name.
    """
    allowed = PathMapping().allow(each.url for each in beside)
    operator = OperatorState(bytes(16), 1, 1, (state,))
    found: set[Location] = set()
    for reference in operator_handles(operator):
        if isinstance(reference.handle, _FILES):
            with suppress(OutOfReachError):
                found.add(locate_file(reference.handle, directory, allowed))
    return frozenset(found)


_FILES = (FileStateHandle, RelativeFileStateHandle, SegmentFileStateHandle)


class SharedFiles:
    """The files that pending and completed checkpoints reference.

    Attributes:
        frozen_by: reason why `release` returns no files for deletion any more; empty while it returns them.
    """

    def __init__(self) -> None:
        self.frozen_by = ""
        self._users: dict[Location, set[int]] = {}
        self._files: dict[int, set[Location]] = {}
        self._protected: set[Location] = set()

    def __len__(self) -> int:
        """Return the number of files that are referenced."""
        return len(self._users)

    def __contains__(self, file: object) -> bool:
        """Return whether a file is referenced, or belongs to a snapshot that this job does not own."""
        return file in self._users or file in self._protected

    @property
    def directories(self) -> set[Location]:
        """The directories of the files that are referenced."""
        return {parent(file) for file in self._users}

    def register(self, checkpoint_id: int, files: Iterable[Location]) -> None:
        """Note that a checkpoint references files; they may have been registered before."""
        own = self._files.setdefault(checkpoint_id, set())
        for file in files:
            own.add(file)
            self._users.setdefault(file, set()).add(checkpoint_id)

    def protect(self, files: Iterable[Location]) -> None:
        """Note files that are never released: those of a snapshot that this job does not own."""
        self._protected.update(files)

    def freeze(self, reason: str) -> None:
        """Release no file any more, since not all references are known.

        Args:
            reason: one sentence, for people.
        """
        self.frozen_by = self.frozen_by or reason

    def release(self, checkpoint_id: int) -> list[Location]:
        """Forget the references of a checkpoint that is gone.

        Args:
            checkpoint_id: the checkpoint; its `_metadata` does not exist any more, or never did.

        Returns:
            Files that nothing references any more, for the caller to delete, by path; none after `freeze`.
        """
        free: list[Location] = []
        for file in self._files.pop(checkpoint_id, ()):
            users = self._users[file]
            users.discard(checkpoint_id)
            if not users:
                del self._users[file]
                free.append(file)
        if self.frozen_by:
            return []
        return sorted((file for file in free if file not in self._protected), key=lambda file: file.path)

    def forget(self, checkpoint_id: int) -> None:
        """Forget the references of a checkpoint that is kept, but does not belong to the job any more.

        Files that only this checkpoint references are never released.
        """
        for file in self._files.pop(checkpoint_id, ()):
            self._users[file].discard(checkpoint_id)
            if not self._users[file]:
                del self._users[file]
                self._protected.add(file)


_log = logging.getLogger(__name__)


def claim_snapshot(
    snapshot: Snapshot, files: SharedFiles, completed: CompletedCheckpoints, properties: CheckpointProperties
) -> set[Location]:
    """Take over the ownership of a restored snapshot (CLAIM).

    Args:
        snapshot: the snapshot.
        files: gets the references of the snapshot.
        completed: the retained checkpoints, to which the snapshot is added.
        properties: properties of the job's own checkpoints; the snapshot is discarded by the same rules.

    Returns:
        Directories whose files new checkpoints may reference.

    Raises:
        OutOfReachError: a file is outside the directories that the snapshot may name. The snapshot is not claimed,
            since the job could delete the file.
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
        directory: directory of the job.
        files: gets the references of the checkpoints; if one cannot be read, no file is released any more.
        completed: the retained checkpoints, to which they are added.
        properties: properties of the job's own checkpoints; those taken over are discarded by the same rules.

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
        # Files outside the directory belong to a snapshot that an earlier run claimed; other snapshots may need them.
        files.protect(file for file in listed if not file.path.startswith(f"{directory.path}/"))
        completed.take_over(CompletedCheckpoint(number, snapshot.location, properties))
    for location, error in unreadable:
        _freeze(files, f"{location.metadata} cannot be read: {error}")
    return found


def _freeze(files: SharedFiles, reason: str) -> None:
    files.freeze(reason)
    _log.warning("No file that checkpoints share is deleted in this run: %s", reason)


class Disposal:
    """Deletes files and directories; what the storage refuses is tried again with the next checkpoint.

    Attributes:
        files: files that could not be deleted yet.
        directories: directories that could not be removed yet, with all that is in them.
    """

    def __init__(self) -> None:
        self.files: list[Location] = []
        self.directories: list[Location] = []

    def retire(self, metadata: Location) -> bool:
        """Delete a `_metadata` file; return whether it is gone, so that the files of the checkpoint may be deleted."""
        try:
            remove_file(metadata)
        except StateError as error:
            _log.warning("A checkpoint could not be discarded, which is tried again: %s", error)
            return False
        return True

    def delete(self, files: Iterable[Location]) -> None:
        """Delete files, and those that could not be deleted before."""
        wanted = [*self.files, *files]
        if not wanted:
            return
        self.files = []
        for file, error in zip(wanted, delete_files(wanted), strict=True):
            if error is not None:
                self.files.append(file)
                _log.warning("A file could not be deleted, which is tried again: %s", error)

    def remove(self, directories: Iterable[Location] = ()) -> None:
        """Remove directories with all that is in them, and those that could not be removed before.

        Args:
            directories: directories of checkpoints without `_metadata`.
        """
        wanted = [*self.directories, *directories]
        self.directories = []
        for directory in wanted:
            try:
                remove_directory(directory)
            except StateError as error:
                self.directories.append(directory)
                _log.warning("A directory could not be removed, which is tried again: %s", error)

    def remove_if_empty(self, directory: Location) -> None:
        """Remove a directory unless something other than a manifest is in it; then the manifest stays too."""
        try:
            left = [each.location.name for each in list_directory(directory)] if is_directory(directory) else []
        except StateError as error:
            _log.warning("A directory could not be listed, and stays: %s", error)
            return
        if left == [MANIFEST_FILE]:
            self.delete([join(directory, MANIFEST_FILE)])
        remove_empty_directory(directory)


_SAVEPOINT_ATTEMPTS = 10


def _random_digits() -> str:
    return secrets.token_hex(6)


@dataclass(frozen=True)
class CheckpointDirectories:
    """The directories below the directory of checkpoints of one job.

    Attributes:
        root: the directory of checkpoints (`execution.checkpointing.dir`).
        job_id: 32 hexadecimal digits.
        create_subdirectory: whether checkpoints are in a subdirectory of `root` with the job id as its name
            (`execution.checkpointing.create-subdir`).

    Raises:
        UsageError: the job id is invalid.
    """

    root: Location
    job_id: str
    create_subdirectory: bool = True

    def __post_init__(self) -> None:
        """Refuse an invalid job id, since it becomes the name of a directory."""
        if JOB_DIRECTORY.fullmatch(self.job_id) is None:
            raise UsageError(f"{self.job_id!r} is not a job id", hint="Write 32 hexadecimal digits in lower case")

    @property
    def job(self) -> Location:
        """The directory of the job."""
        return join(self.root, self.job_id) if self.create_subdirectory else self.root

    @property
    def shared(self) -> Location:
        """The directory of files that several checkpoints reference."""
        return join(self.job, SHARED)

    @property
    def task_owned(self) -> Location:
        """The directory of files that belong to tasks, which the coordinator never deletes."""
        return join(self.job, TASK_OWNED)

    def checkpoint(self, checkpoint_id: int) -> Location:
        """The directory of one checkpoint and of the files that only it references."""
        return join(self.job, f"chk-{checkpoint_id}")

    def find_last_id(self) -> int:
        """Return the highest id among the `chk-<id>` directories of the job; 0 if there are none.

        Directories without `_metadata`, which a killed run has left, count too: their ids are not used again.

        Raises:
            StorageError: the storage fails.
        """
        return max(self._list_ids(), default=0)

    def find_completed_after(self, checkpoint_id: int) -> Location | None:
        """Return the directory of a completed checkpoint with a higher id, taken by another run; None if there is none.

        Raises:
            StorageError: the storage fails.
        """
        later = (self.checkpoint(each) for each in self._list_ids() if each > checkpoint_id)
        return next((each for each in later if exists(join(each, METADATA_FILE))), None)

    def _list_ids(self) -> list[int]:
        if not is_directory(self.job):
            return []
        matches = (CHECKPOINT_DIRECTORY.fullmatch(entry.location.name) for entry in list_directory(self.job))
        return [int(match[1]) for match in matches if match]


def name_savepoint(root: Location, job_id: str, random_digits: Callable[[], str] = _random_digits) -> Location:
    """Choose a directory for a savepoint that is not there yet (`initializeLocationForSavepoint`).

    Args:
        root: directory of savepoints.
        job_id: 32 hexadecimal digits, of which the name has the first six.
        random_digits: gives twelve hexadecimal digits.

    Raises:
        TargetExistsError: ten names are all taken.
        StorageError: the storage fails.
    """
    for _ in range(_SAVEPOINT_ATTEMPTS):
        found = join(root, f"savepoint-{job_id[:6]}-{random_digits()}")
        if not exists(found):
            return found
    raise TargetExistsError(
        "no free name was found for a savepoint", where=Where(file=str(root)), hint="Choose another directory"
    )


def publish(
    transaction: SnapshotTransaction,
    metadata: CheckpointMetadata,
    beside: Collection[Location],
    require_time: Callable[[], None],
) -> StateError | None:
    """Write `_metadata` of a checkpoint whose data files are complete.

    Args:
        transaction: writer of the directory of the checkpoint, whose block was entered. After an error the block is not
            left if the checkpoint is or may be published, since leaving it would remove the files.
        metadata: metadata of the checkpoint.
        beside: directories besides its own whose files it may name.
        require_time: raises an error if the checkpoint has expired; called before the commit.

    Returns:
        None if the checkpoint was published, else the error after which it is unknown whether it was.

    Raises:
        StateError: the checkpoint was not published; the caller must exit the transaction.
    """
    try:
        transaction.stage(metadata, None, beside=beside)
        require_time()
        transaction.commit()
    except StateError as error:
        is_published = _find_out(transaction.target, write_metadata(metadata))
        if is_published is False:
            raise
        return None if is_published else error
    transaction.__exit__(None, None, None)
    return None


def _find_out(target: Location, written: bytes) -> bool | None:
    """Return whether `_metadata` exists after an error of writing it; None where that is not certain.

    A storage may have written the file although its response was lost (`PossibleInconsistentStateException`).
    """
    try:
        found = read_file(join(target, METADATA_FILE))
    except MissingFileError as missing:
        # Other causes, such as a missing permission, do not prove that there is no file.
        return False if isinstance(missing.__cause__, FileNotFoundError | NotADirectoryError) else None
    except StateError:
        return None
    return True if found == written else None


def measure_state(state: SubtaskState) -> int:
    """Return the bytes of all streams of a subtask."""
    references = list_references(_wrap(state))
    return sum(
        len(each.handle.data) if isinstance(each.handle, ByteStreamStateHandle) else getattr(each.handle, "size", 0)
        for each in references
    )


def inline_small_files(state: SubtaskState, directory: Location, threshold: int) -> SubtaskState:
    """Inline the small files that a subtask has written to the directory of a checkpoint: move them into their handles.

    Args:
        state: state of the subtask.
        directory: directory of the checkpoint.
        threshold: size of the largest file that is inlined, in bytes.

    Raises:
        StateError: a file cannot be read or removed.
    """

    def inline(reference: StreamReference) -> StreamStateHandle:
        handle = reference.handle
        if not isinstance(handle, RelativeFileStateHandle) or handle.size > threshold:
            return handle
        location = join(directory, handle.relative_path)
        data = read_file(location)
        remove_file(location)
        return ByteStreamStateHandle(location.url, data)

    (operator,) = replace_stream_handles(_wrap(state), inline).operator_states
    return operator.subtasks[0]


def _wrap(state: SubtaskState) -> CheckpointMetadata:
    return CheckpointMetadata(3, 0, (), (OperatorState(bytes(16), 1, 1, (state,)),))
