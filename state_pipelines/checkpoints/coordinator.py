"""The coordinator: triggers checkpoints, collects acknowledgements, publishes, subsumes, aborts.

Source: `CheckpointCoordinator`. It knows neither Spark nor functions, runs in one thread, and reads time from a clock
that its owner gives. The owner forwards triggers and notifications to the tasks, and calls `run_due` now and then.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from state_pipelines.checkpoints.claims import claim_snapshot, recover_checkpoints
from state_pipelines.checkpoints.completed_checkpoints import (
    CompletedCheckpoint,
    CompletedCheckpoints,
    JobStatus,
)
from state_pipelines.checkpoints.directories import name_savepoint
from state_pipelines.checkpoints.disposal import Disposal
from state_pipelines.checkpoints.failure_handling import FailureHandling
from state_pipelines.checkpoints.failure_reasons import CheckpointFailure, FailureReason
from state_pipelines.checkpoints.options import CheckpointOptions, ClaimMode
from state_pipelines.checkpoints.pending_checkpoint import (
    Acknowledgement,
    CheckpointTrigger,
    PartialFinishingError,
    PendingCheckpoint,
)
from state_pipelines.checkpoints.periodic_schedule import PeriodicSchedule
from state_pipelines.checkpoints.properties import CheckpointKind, is_full, make_properties, make_stop_properties
from state_pipelines.checkpoints.publication import publish
from state_pipelines.checkpoints.requests import CheckpointRequest, RequestQueue, RequestState
from state_pipelines.checkpoints.shared_files import SharedFiles, list_subtask_files, name_files
from state_pipelines.errors import StateError, UsageError
from state_pipelines.metadata.properties import PostCheckpointAction, SavepointFormatType
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.storage import METADATA_FILE, SnapshotLocation, join, resolve
from state_pipelines.storage.locations import parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from state_pipelines.checkpoints.directories import CheckpointDirectories
    from state_pipelines.checkpoints.owner import CheckpointOwner
    from state_pipelines.checkpoints.pending_checkpoint import CheckpointedOperator
    from state_pipelines.checkpoints.task_checkpoint import TaskCheckpoint
    from state_pipelines.metadata import MasterState
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.storage import Location

METADATA_VERSION = 4
"""Version of `_metadata` by default: the one that Flink 1.20 writes and every later release reads."""

_RECENT = 16
"""Ended checkpoints whose late acknowledgements are recognized (`NUM_GHOST_CHECKPOINT_IDS`)."""

_log = logging.getLogger(__name__)


def _read_clock() -> int:
    return time.monotonic_ns() // 1_000_000


class CheckpointCoordinator:
    """Coordinates the checkpoints of one job.

    Args:
        directories: where they are written.
        operators: the operators of the job.
        owner: see `CheckpointOwner`.
        options: Flink's options.
        clock: milliseconds that never decrease.
        master_states: states of master hooks, written into every checkpoint.
        metadata_version: of what is published.

    Attributes:
        pending: the pending checkpoints by id, the oldest first.
        completed: the retained ones.
        files: their files by reference.
        failures: their failures.
        queue: the requests that wait.
    """

    def __init__(
        self,
        directories: CheckpointDirectories,
        operators: Sequence[CheckpointedOperator],
        owner: CheckpointOwner,
        options: CheckpointOptions | None = None,
        *,
        clock: Callable[[], int] = _read_clock,
        master_states: tuple[MasterState, ...] = (),
        metadata_version: int = METADATA_VERSION,
    ) -> None:
        self.options = options or CheckpointOptions()
        self.directories, self.operators = directories, tuple(operators)
        self.pending: dict[int, PendingCheckpoint] = {}
        self.files, self.disposal = SharedFiles(), Disposal()
        self.completed = CompletedCheckpoints(self.options.num_retained, self.files, self.disposal)
        self.failures = FailureHandling(owner, self.options.tolerable_failures)
        self.queue = RequestQueue(self.options.max_concurrent, self.options.min_pause)
        self._owner, self._clock = owner, clock
        self._master_states, self._version = master_states, metadata_version
        self._finished: dict[bytes, frozenset[int]] = {}
        self._beside: set[Location] = {directories.shared, directories.task_owned}
        self._aborted: list[tuple[int, Location]] = []
        self._next_id: int | None = None
        self._schedule = PeriodicSchedule(self.options.interval)
        self._last_completion: int | None = None
        self._full_next, self._is_shut_down, self._is_choosing = False, False, False

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
            properties = make_properties(self.options.retention)
            self._beside |= claim_snapshot(snapshot, self.files, self.completed, properties)
        else:
            self.files.protect(name_files(snapshot.metadata, snapshot.location.directory, snapshot.path_mapping))
            self._full_next = True
        self._next_id = max(snapshot.metadata.checkpoint_id, self.directories.find_last_id()) + 1

    def recover(self) -> Snapshot | None:
        """Take over the completed checkpoints in the directory of the job, after a restart of the same job.

        Returns:
            The newest one, to restore the tasks from; None where there is none.
        """
        properties = make_properties(self.options.retention)
        found = recover_checkpoints(self.directories.job, self.files, self.completed, properties)
        self._beside |= self.files.directories
        last = found[-1].metadata.checkpoint_id if found else 0
        self._next_id = max(last, self.directories.find_last_id()) + 1
        return found[-1] if found else None

    def set_next_id(self, checkpoint_id: int) -> None:
        """Set the id of the next checkpoint (`CheckpointIDCounter.setCount`); no checkpoint of the job may have it."""
        self._next_id = checkpoint_id

    def finish_task(self, operator_id: bytes, subtask: int) -> None:
        """Note that a subtask has no more input and has ended; later checkpoints do not wait for it."""
        self._finished[operator_id] = self._finished.get(operator_id, frozenset()) | {subtask}

    # Time

    def start_scheduler(self) -> None:
        """Trigger periodic checkpoints from now on; the first one follows after the interval.

        Raises:
            UsageError: the options state no interval.
        """
        if self.options.interval is None:
            raise UsageError("there is no interval", hint="Set execution.checkpointing.interval")
        self._schedule.start(self._clock())

    def stop_scheduler(self) -> None:
        """Trigger no more periodic checkpoints, and end pending ones (`stopCheckpointScheduler`)."""
        self._schedule.stop()
        self._abort_all(FailureReason.CHECKPOINT_COORDINATOR_SUSPEND)

    @property
    def next_due(self) -> int | None:
        """Milliseconds of the clock when `run_due` has something to do next; None for never."""
        expiries = [each.trigger.timestamp + self.options.timeout for each in self.pending.values()]
        periodic = [] if self._schedule.next_at is None else [self._schedule.next_at]
        return min([*expiries, *periodic], default=None)

    def run_due(self) -> None:
        """Expire checkpoints whose time is over, and trigger the periodic one if it is due."""
        now = self._clock()
        for each in list(self.pending.values()):
            if each.trigger.timestamp + self.options.timeout <= now:
                self._abort(each, CheckpointFailure(FailureReason.CHECKPOINT_EXPIRED, each.checkpoint_id))
        if self._schedule.take_due(now):
            self.trigger_checkpoint(is_periodic=True)
        self._trigger_queued()

    # Triggers

    def trigger_checkpoint(
        self, kind: CheckpointKind = CheckpointKind.CONFIGURED, *, is_periodic: bool = False
    ) -> CheckpointRequest:
        """Ask for a checkpoint; the request says what happened to it."""
        properties = make_properties(self.options.retention, kind)
        return self._submit(CheckpointRequest(properties, self._clock(), is_periodic))

    def trigger_savepoint(
        self,
        directory: Location | None = None,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
        action: PostCheckpointAction = PostCheckpointAction.NONE,
    ) -> CheckpointRequest:
        """Ask for a savepoint; it ignores pauses and the bound of pending checkpoints, and is never discarded.

        Args:
            directory: directory of savepoints; default that of the options.
            format_type: canonical or native.
            action: what the job does after it.

        Raises:
            UsageError: no directory is stated anywhere.
        """
        if directory is None:
            if self.options.savepoint_directory is None:
                hint = "Set execution.checkpointing.savepoint-dir"
                raise UsageError("there is no directory of savepoints", hint=hint)
            directory = resolve(self.options.savepoint_directory)
        properties = make_stop_properties(format_type, action)
        return self._submit(CheckpointRequest(properties, self._clock(), target=directory))

    def _submit(self, request: CheckpointRequest) -> CheckpointRequest:
        if self._is_shut_down:
            self.failures.fail(request, CheckpointFailure(FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN))
            return request
        if request.is_periodic and self._schedule.next_at is None:
            self.failures.fail(request, CheckpointFailure(FailureReason.PERIODIC_SCHEDULER_SHUTDOWN))
            return request
        dropped = self.queue.add(request)
        if dropped is not None:
            self.failures.fail(dropped, CheckpointFailure(FailureReason.TOO_MANY_CHECKPOINT_REQUESTS))
        self._trigger_queued()
        return request

    def _trigger_queued(self) -> None:
        # An owner may acknowledge while it is called, which ends the checkpoint and comes here again.
        if self._is_choosing:
            return
        with self._hold_queue():
            while (request := self._choose()) is not None:
                self._trigger(request)

    def _choose(self) -> CheckpointRequest | None:
        now = self._clock()
        request = self.queue.choose(len(self.pending), now, self._last_completion)
        if self.queue.postponed_by is not None:
            self._schedule.postpone(now, self.queue.postponed_by)
            self.queue.postponed_by = None
            self.failures.last = CheckpointFailure(FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS)
        return request

    def _trigger(self, request: CheckpointRequest) -> None:
        has_finished = any(self._finished.values())
        if not self._owner.is_running() or (has_finished and not self.options.after_tasks_finish):
            self.failures.fail(request, CheckpointFailure(FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING))
            return
        try:
            pending = self._open(request)
        except StateError as error:
            failure = CheckpointFailure(FailureReason.IO_EXCEPTION, request.checkpoint_id, str(error))
            self.failures.fail(request, failure)
            return
        self.pending[pending.checkpoint_id] = pending
        request.state = RequestState.PENDING
        try:
            self._owner.trigger_checkpoint(pending.trigger)
        except StateError as error:
            if self.pending.get(pending.checkpoint_id) is pending:
                reason = FailureReason.TRIGGER_CHECKPOINT_FAILURE
                self._abort(pending, CheckpointFailure(reason, pending.checkpoint_id, str(error)))
            return
        # Without a subtask to wait for, it is complete.
        if self.pending.get(pending.checkpoint_id) is pending and not pending.awaiting:
            self._complete(pending)

    def _open(self, request: CheckpointRequest) -> PendingCheckpoint:
        if self._next_id is None:
            self._next_id = self.directories.find_last_id() + 1
        number, self._next_id = self._next_id, self._next_id + 1
        request.checkpoint_id = number
        properties = request.properties
        if request.target is None:
            target = self.directories.checkpoint(number)
            if self._full_next:
                properties = make_properties(self.options.retention, CheckpointKind.FULL)
        else:
            target = name_savepoint(request.target, self.directories.job_id)
        refers_back = self.options.incremental or self.options.changelog
        is_incremental = refers_back and not properties.is_savepoint and not is_full(properties)
        base = self.completed.latest_checkpoint if is_incremental else None
        transaction = SnapshotTransaction(target, is_shared=True)
        transaction.__enter__()
        trigger = CheckpointTrigger(
            checkpoint_id=number,
            timestamp=self._clock(),
            properties=properties,
            directory=target,
            shared=None if properties.is_savepoint else self.directories.shared,
            base_id=None if base is None else base.checkpoint_id,
            scratch=transaction.scratch,
        )
        return PendingCheckpoint(trigger, request, self.operators, self._finished, transaction)

    # Answers of tasks

    def acknowledge(self, task: TaskCheckpoint) -> Acknowledgement:
        """Take the snapshot of a subtask; the last one completes the checkpoint.

        Files of a snapshot that comes too late are deleted, unless something references them.

        Raises:
            UsageError: the checkpoint does not wait for this subtask, or no such checkpoint was triggered.
        """
        pending = self.pending.get(task.checkpoint_id)
        if pending is None:
            return self._take_late(task)
        files = list_subtask_files(task.state, pending.trigger.directory, self._beside)
        answer = pending.acknowledge(task)
        if answer is Acknowledgement.DUPLICATE:
            # Its files stay, as in Flink: the attempt that lives on may take them for the base of the next checkpoint.
            return answer
        self.files.register(task.checkpoint_id, files)
        pending.transaction.add_files(task.files)
        if not pending.awaiting:
            self._complete(pending)
        return answer

    def decline(self, checkpoint_id: int, reason: FailureReason, detail: str = "") -> bool:
        """End a checkpoint for which a subtask cannot take its snapshot; return whether it was pending.

        Raises:
            UsageError: the reason is none of a task.
        """
        if reason.is_preflight or reason.impossible:
            raise UsageError(f"{reason.name} is no reason for which a task declines a checkpoint")
        pending = self.pending.get(checkpoint_id)
        if pending is None:
            return False
        self._abort(pending, CheckpointFailure(reason, checkpoint_id, detail), is_from_task=True)
        return True

    def fail_tasks(self, detail: str = "") -> None:
        """End all pending checkpoints, since a task has failed."""
        self._abort_all(FailureReason.TASK_FAILURE, detail)

    def _take_late(self, task: TaskCheckpoint) -> Acknowledgement:
        if self._next_id is None or task.checkpoint_id >= self._next_id:
            raise UsageError(f"checkpoint {task.checkpoint_id} was not triggered")
        for number, directory in self._aborted:
            if number == task.checkpoint_id and not self.files.frozen_by:
                files = list_subtask_files(task.state, directory, self._beside)
                self.disposal.delete(file for file in files if file not in self.files)
        return Acknowledgement.LATE

    # Ends

    def _complete(self, pending: PendingCheckpoint) -> None:
        number = pending.checkpoint_id
        try:
            metadata = pending.make_metadata(self._version, self._master_states)
            doubt = publish(pending.transaction, metadata, self._beside)
        except PartialFinishingError as error:
            reason = FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING
            self._abort(pending, CheckpointFailure(reason, number, str(error)))
            return
        except StateError as error:
            self._abort(pending, CheckpointFailure(FailureReason.FINALIZE_CHECKPOINT_FAILURE, number, str(error)))
            return
        del self.pending[number]
        if doubt is not None:
            # It may have been published: its references stay, and a restart finds out whether it is complete.
            detail = str(doubt)
            self._finish(pending, CheckpointFailure(FailureReason.FINALIZE_CHECKPOINT_FAILURE, number, detail))
            return
        now = self._clock()
        self._last_completion = now
        location = SnapshotLocation(pending.trigger.directory, join(pending.trigger.directory, METADATA_FILE))
        completed = CompletedCheckpoint(
            number,
            location,
            pending.properties,
            state_size=pending.state_size,
            persisted_size=pending.persisted_size,
            duration=now - pending.trigger.timestamp,
        )
        self.failures.counter.succeed(number)
        pending.request.state, pending.request.location = RequestState.COMPLETED, location
        self._full_next = self._full_next and pending.properties.is_savepoint
        with self._hold_queue():
            self._subsume(completed)
        self._trigger_queued()

    def _subsume(self, completed: CompletedCheckpoint) -> None:
        """Discard what a completed checkpoint replaces, and tell the tasks."""
        number, properties = completed.checkpoint_id, completed.properties
        subsumed = self.completed.add(completed, self.pending)
        self.disposal.delete(self.files.settle(number))
        if not properties.is_savepoint or properties.is_synchronous:
            older = [each for each in self.pending.values() if each.checkpoint_id < number]
            for each in older:
                if each.can_be_subsumed:
                    failure = CheckpointFailure(FailureReason.CHECKPOINT_SUBSUMED, each.checkpoint_id)
                    self._abort(each, failure)
            self._owner.notify_complete(number)
            if subsumed is not None and subsumed.properties.discard_subsumed:
                self._owner.notify_subsumed(subsumed.checkpoint_id)

    @contextmanager
    def _hold_queue(self) -> Iterator[None]:
        """Trigger nothing meanwhile: tasks hear of the end of a checkpoint before they hear of the next one."""
        before, self._is_choosing = self._is_choosing, True
        try:
            yield
        finally:
            self._is_choosing = before

    def _abort(self, pending: PendingCheckpoint, failure: CheckpointFailure, *, is_from_task: bool = False) -> None:
        del self.pending[pending.checkpoint_id]
        directory = pending.trigger.directory
        self._aborted = [*self._aborted, (pending.checkpoint_id, directory)][-_RECENT:]
        try:
            pending.transaction.__exit__(None, None, None)
        except StateError as error:
            _log.warning("The remains of checkpoint %s are removed later: %s", pending.checkpoint_id, error)
            self.disposal.directories.append(directory)
        free = self.files.release(pending.checkpoint_id, self.pending)
        self.disposal.delete(file for file in free if parent(file) != directory)
        self._finish(pending, failure, is_from_task=is_from_task)

    def _finish(self, pending: PendingCheckpoint, failure: CheckpointFailure, *, is_from_task: bool = False) -> None:
        self.disposal.delete(self.files.settle(pending.checkpoint_id))
        self._owner.notify_aborted(pending.checkpoint_id)
        self.failures.fail(pending.request, failure, is_from_task=is_from_task)
        self._trigger_queued()

    def _abort_all(self, reason: FailureReason, detail: str = "") -> None:
        for request in self.queue.fail_all(CheckpointFailure(reason, None, detail)):
            self.failures.last = request.failure
        for each in list(self.pending.values()):
            self._abort(each, CheckpointFailure(reason, each.checkpoint_id, detail))

    def shut_down(self, status: JobStatus) -> None:
        """End the job: pending checkpoints fail, completed ones are discarded or kept as their retention says."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        self._schedule.stop()
        self._abort_all(FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
        self.completed.end(status)
