"""The coordinator: triggers a checkpoint, publishes what its tasks acknowledge, discards what it replaces.

Source: `CheckpointCoordinator`. A run takes one checkpoint at a time: its tasks end with their snapshots, so that no
second one can be triggered meanwhile.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from state_pipelines.checkpoints.claims import claim_snapshot, recover_checkpoints
from state_pipelines.checkpoints.clocks import SYSTEM_CLOCK
from state_pipelines.checkpoints.completed_checkpoints import CompletedCheckpoint, CompletedCheckpoints
from state_pipelines.checkpoints.directories import name_savepoint
from state_pipelines.checkpoints.disposal import Disposal
from state_pipelines.checkpoints.failure_reasons import CheckpointFailure, FailureReason
from state_pipelines.checkpoints.options import CheckpointOptions, ClaimMode
from state_pipelines.checkpoints.pending_checkpoint import (
    CheckpointTrigger,
    PendingCheckpoint,
    list_missing,
    make_metadata,
)
from state_pipelines.checkpoints.properties import make_properties
from state_pipelines.checkpoints.publication import publish
from state_pipelines.checkpoints.shared_files import SharedFiles, list_subtask_files, name_files
from state_pipelines.errors import StateError, UsageError
from state_pipelines.metadata.checkpoint import SavepointFormatType, make_savepoint_properties
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.storage import METADATA_FILE, SnapshotLocation, join
from state_pipelines.storage.locations import parent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.checkpoints.clocks import Clock
    from state_pipelines.checkpoints.directories import CheckpointDirectories
    from state_pipelines.checkpoints.pending_checkpoint import CheckpointedOperator
    from state_pipelines.checkpoints.task_checkpoint import TaskCheckpoint
    from state_pipelines.metadata import CheckpointProperties
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.storage import Location

METADATA_VERSION = 4
"""Version of `_metadata` by default: the one that Flink 1.20 writes and every later release reads."""

_log = logging.getLogger(__name__)


class CheckpointCoordinator:
    """Coordinates the checkpoints of one job.

    Args:
        directories: where they are written.
        operators: the operators of the job.
        options: Flink's options.
        clock: the clock.
        metadata_version: of what is published.

    Attributes:
        pending: the checkpoint that was triggered and has not ended, or None.
        completed: the retained ones.
        files: their files by reference.
        failure: why the last checkpoint failed; None where it did not.
    """

    def __init__(
        self,
        directories: CheckpointDirectories,
        operators: Sequence[CheckpointedOperator],
        options: CheckpointOptions | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        metadata_version: int = METADATA_VERSION,
    ) -> None:
        self.options = options or CheckpointOptions()
        self.directories, self.operators = directories, tuple(operators)
        self.pending: PendingCheckpoint | None = None
        self.failure: CheckpointFailure | None = None
        self.files, self.disposal = SharedFiles(), Disposal()
        self.completed = CompletedCheckpoints(self.options.num_retained, self.files, self.disposal)
        self._clock, self._version = clock, metadata_version
        self._beside: set[Location] = {directories.shared, directories.task_owned}
        self._next_id: int | None = None
        self._full_next = False

    # Restore

    def restore(self, snapshot: Snapshot, claim_mode: ClaimMode | None = None) -> None:
        """Note the snapshot that the tasks were restored from; ids of checkpoints follow its id.

        With CLAIM its files are counted and discarded when it is subsumed. With NO_CLAIM they are never deleted, and
        the first checkpoint is full.

        Args:
            snapshot: the restored snapshot.
            claim_mode: default that of the options.
        """
        if (claim_mode or self.options.claim_mode) is ClaimMode.CLAIM:
            self._beside |= claim_snapshot(snapshot, self.files, self.completed, make_properties())
        else:
            self.files.protect(name_files(snapshot.metadata, snapshot.location.directory, snapshot.path_mapping))
            self._full_next = True
        self._next_id = max(snapshot.metadata.checkpoint_id, self.directories.find_last_id()) + 1

    def recover(self) -> Snapshot | None:
        """Take over the completed checkpoints in the directory of the job, after a restart of the same job.

        Returns:
            The newest one, to restore the tasks from; None where there is none.
        """
        found = recover_checkpoints(self.directories.job, self.files, self.completed, make_properties())
        self._beside |= self.files.directories
        last = found[-1].metadata.checkpoint_id if found else 0
        self._next_id = max(last, self.directories.find_last_id()) + 1
        return found[-1] if found else None

    def set_next_id(self, checkpoint_id: int) -> None:
        """Set the id of the next checkpoint (`CheckpointIDCounter.setCount`); no checkpoint of the job may have it."""
        self._next_id = checkpoint_id

    # Triggers

    def trigger_checkpoint(self) -> CheckpointTrigger:
        """Trigger a checkpoint.

        Raises:
            StateError: its directory cannot be made; `failure` says so in Flink's words.
        """
        return self._open(make_properties(full=self._full_next), None)

    def trigger_savepoint(
        self, directory: Location, format_type: SavepointFormatType = SavepointFormatType.CANONICAL
    ) -> CheckpointTrigger:
        """Trigger a savepoint below a directory, which is never discarded.

        Raises:
            StateError: as of `trigger_checkpoint`.
        """
        return self._open(make_savepoint_properties(format_type), directory)

    def _open(self, properties: CheckpointProperties, savepoints: Location | None) -> CheckpointTrigger:
        if self.pending is not None:
            raise UsageError(
                f"checkpoint {self.pending.trigger.checkpoint_id} is pending",
                hint="Complete or abort it before the next one",
            )
        number = self._next_id
        self.failure = None
        try:
            if number is None:
                number = self.directories.find_last_id() + 1
            self._next_id = number + 1
            if savepoints is None:
                target = self.directories.checkpoint(number)
            else:
                target = name_savepoint(savepoints, self.directories.job_id)
            transaction = SnapshotTransaction(target, is_shared=True)
            transaction.__enter__()
        except StateError as error:
            failure = CheckpointFailure(FailureReason.IO_EXCEPTION, number, str(error))
            raise self._note(failure) from error
        trigger = CheckpointTrigger(
            checkpoint_id=number,
            properties=properties,
            directory=target,
            shared=None if properties.is_savepoint else self.directories.shared,
        )
        self.pending = PendingCheckpoint(trigger, transaction)
        return trigger

    # Ends

    def complete(self, taken: Sequence[TaskCheckpoint]) -> CompletedCheckpoint:
        """Publish the pending checkpoint, and discard those that it replaces.

        Args:
            taken: the snapshot of each subtask.

        Raises:
            StateError: it was not published, and nothing of it is left; `failure` says why in Flink's words.
        """
        started = self._clock.read()
        pending = self._get_pending()
        trigger, number = pending.trigger, pending.trigger.checkpoint_id
        # The longest subtask, and the publication so far; processing of input is not part of a checkpoint.
        longest = max((each.millis for each in taken), default=0)
        missing = list_missing(self.operators, taken)
        if missing:
            detail = f"{missing[0]} has not taken its snapshot exactly once"
            raise self.abort(FailureReason.TASK_FAILURE, detail)
        for each in taken:
            self.files.register(number, list_subtask_files(each.state, trigger.directory, self._beside))
            pending.transaction.add_files(each.files)

        def require_time() -> None:
            duration = longest + self._clock.read() - started
            if duration >= self.options.timeout:
                detail = f"It took {duration} ms, of which {longest} ms in the slowest subtask."
                raise self.abort(FailureReason.CHECKPOINT_EXPIRED, detail)

        require_time()
        try:
            newer = None if trigger.properties.is_savepoint else self.directories.find_completed_after(number)
            if newer is not None:
                raise self.abort(FailureReason.CHECKPOINT_SUBSUMED, f"Another run has completed {newer}.")
            metadata = make_metadata(trigger, self.operators, taken, self._version)
            doubt = publish(pending.transaction, metadata, self._beside, require_time)
        except StateError as error:
            if self.failure is not None:
                raise
            raise self.abort(FailureReason.FINALIZE_CHECKPOINT_FAILURE, str(error)) from error
        self.pending = None
        if doubt is not None:
            # It may have been published: its references stay, and a restart finds out whether it is complete.
            reason = FailureReason.FINALIZE_CHECKPOINT_FAILURE
            raise self._note(CheckpointFailure(reason, number, str(doubt), is_in_doubt=True)) from doubt
        completed = CompletedCheckpoint(
            number,
            SnapshotLocation(trigger.directory, join(trigger.directory, METADATA_FILE)),
            trigger.properties,
            state_size=sum(each.state_size for each in taken),
            persisted_size=sum(each.persisted_size for each in taken),
            duration=longest + self._clock.read() - started,
        )
        self._full_next = self._full_next and trigger.properties.is_savepoint
        self.completed.add(completed)
        return completed

    def abort(self, reason: FailureReason, detail: str = "", cause: StateError | None = None) -> StateError:
        """End the pending checkpoint, and remove its files.

        Args:
            reason: why.
            detail: what the failure says besides Flink's words.
            cause: the error that caused the failure, which is returned with Flink's reason among its details.

        Returns:
            The error to raise.
        """
        pending = self._get_pending()
        number, directory = pending.trigger.checkpoint_id, pending.trigger.directory
        self.pending = None
        try:
            pending.transaction.__exit__(None, None, None)
        except StateError as error:
            _log.warning("The remains of checkpoint %s are removed later: %s", number, error)
            self.disposal.directories.append(directory)
        free = self.files.release(number)
        self.disposal.delete(file for file in free if parent(file) != directory)
        return self._note(CheckpointFailure(reason, number, detail), cause)

    def _get_pending(self) -> PendingCheckpoint:
        if self.pending is None:
            raise UsageError("no checkpoint is pending", hint="Trigger it first")
        return self.pending

    def _note(self, failure: CheckpointFailure, cause: StateError | None = None) -> StateError:
        self.failure = failure
        _log.warning("Checkpoint %s failed: %s", failure.checkpoint_id or "without id", failure)
        error = cause or StateError(str(failure), hint=failure.reason.remedy)
        error.details = failure.describe()
        return error
