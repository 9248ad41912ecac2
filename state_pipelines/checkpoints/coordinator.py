"""Coordinator of the checkpoints of a job: triggers, acknowledgements, failures, schedule, and assignment of state.

* `CheckpointCoordinator`: triggers a checkpoint, publishes the acknowledged state, discards older checkpoints. A run
  takes one checkpoint at a time: its tasks end with their snapshots, so that no second one can be triggered meanwhile.
  Source: the class of that name in Flink.
* `PendingCheckpoint`: a checkpoint that was triggered and is not complete. Source: the class of that name in Flink,
  `DefaultCheckpointPlan`.
* `TaskCheckpoint`, `write_task_checkpoint`, `read_task_checkpoint`: the value with which a subtask acknowledges a
  checkpoint, and its bytes. They travel from a task to the coordinator of the same release; the state inside is in the
  format of `_metadata`. Source: `AcknowledgeCheckpoint`, `CheckpointMetrics`.
* `FailureReason`, `FailureCounter`: reasons for which checkpoints fail, in Flink's words, and the counter that fails a
  job. Source: `CheckpointFailureReason`, `CheckpointFailureManager`, `CheckpointException`.
* `PeriodicSchedule`: the schedule of the checkpoints of a stream: the interval, and the pause after each. Source:
  `CheckpointCoordinator.startCheckpointScheduler`, `CheckpointRequestDecider`.
* `assign_operators`: assignment of the operators of a snapshot to those of a job, by the hash of their uid. Source:
  `Checkpoints.loadAndValidateCheckpoint`, `StateAssignmentOperation`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.checkpoints.completed_checkpoints import (
    CompletedCheckpoint,
    CompletedCheckpoints,
    Disposal,
    SharedFiles,
    claim_snapshot,
    list_subtask_files,
    name_files,
    name_savepoint,
    publish,
    recover_checkpoints,
)
from state_pipelines.checkpoints.options import CheckpointOptions, ClaimMode
from state_pipelines.errors import IncompatibleError, StateError, UsageError, Where
from state_pipelines.keyed.key_groups import compute_default_max_parallelism
from state_pipelines.metadata import CheckpointMetadata, OperatorState, compute_operator_id, with_version
from state_pipelines.metadata.checkpoint import (
    VERSIONS,
    CheckpointType,
    SavepointFormatType,
    SharingFilesStrategy,
    SubtaskState,
    make_checkpoint_properties,
    make_savepoint_properties,
    read_subtask_state,
    write_subtask_state,
)
from state_pipelines.operations.check.check import (
    explain_max_parallelism,
    explain_missing_operator,
    explain_parallelism,
)
from state_pipelines.operations.write.transaction import SnapshotTransaction
from state_pipelines.storage import METADATA_FILE, SnapshotLocation, join
from state_pipelines.storage.files import RecordedFile
from state_pipelines.storage.locations import parent

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from state_pipelines.checkpoints.completed_checkpoints import CheckpointDirectories
    from state_pipelines.metadata.checkpoint import CheckpointProperties
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.storage import Location


def read_monotonic_clock() -> int:
    """Return milliseconds that never decrease."""
    return time.monotonic_ns() // 1_000_000


def wait(millis: int) -> None:
    """Wait for a number of milliseconds."""
    time.sleep(millis / 1000)


@dataclass(frozen=True)
class Clock:
    """A clock; both functions are sent to tasks.

    Attributes:
        read: returns milliseconds that never decrease.
        wait: waits for milliseconds.
    """

    read: Callable[[], int] = read_monotonic_clock
    wait: Callable[[int], None] = wait


SYSTEM_CLOCK = Clock()
"""The clock of the machine."""

_FULL = CheckpointType("Full Checkpoint", SharingFilesStrategy.FORWARD)


def make_properties(*, full: bool = False) -> CheckpointProperties:
    """Make the properties of a checkpoint that stays when its run ends (`forCheckpoint`, `RETAIN_ON_CANCELLATION`).

    Args:
        full: all state is written again.
    """
    return make_checkpoint_properties(_FULL if full else CheckpointType())


def is_full(properties: CheckpointProperties) -> bool:
    """Return whether the checkpoint must write all state again."""
    return properties.checkpoint_type == _FULL


EXCEEDED_MESSAGE = "Exceeded checkpoint tolerable failure threshold."
"""Message of a job that fails because of its checkpoints."""


@dataclass(frozen=True)
class _Explanation:
    message: str
    cause: str
    remedy: str
    preflight: bool = False
    counts: bool = False
    impossible: str = ""


_NO_BARRIERS = "No barriers flow between tasks: Spark runs the whole input of a task before its checkpoint."


class FailureReason(Enum):
    """The reason why a checkpoint failed (`CheckpointFailureReason`), in Flink's order.

    Attributes:
        message: Flink's words.
        cause: the usual cause, one sentence.
        remedy: the usual remedy, one sentence; for a reason that cannot arise here, the remedy in Flink.
        is_preflight: whether the checkpoint failed before any task knew of it.
        counts: whether it counts against the number of tolerable failures (`isCountedAgainstFailureThreshold`).
        impossible: why the reason cannot arise here; empty where it can.
    """

    PERIODIC_SCHEDULER_SHUTDOWN = _Explanation(
        "Periodic checkpoint scheduler is shut down.",
        "In Flink, a periodic checkpoint was asked for after the scheduler had stopped.",
        "Nothing while the job stops or restarts; a job that runs again has its schedule again.",
        preflight=True,
        impossible="The schedule of a stream ends with the stream, after which nothing asks for a checkpoint.",
    )
    TOO_MANY_CHECKPOINT_REQUESTS = _Explanation(
        "The maximum number of queued checkpoint requests exceeded",
        "In Flink, more than 1,000 requests wait because checkpoints take longer than the time between requests.",
        "Ask less often, or raise execution.checkpointing.max-concurrent-checkpoints.",
        preflight=True,
        impossible="No requests queue: a run asks for one checkpoint, a stream for the next one after the last, and "
        "runs of Dagster wait in its own queue, to which schedule and sensor add none while one is there.",
    )
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = _Explanation(
        "The minimum time between checkpoints is still pending. Checkpoint will be triggered after the minimum time.",
        "The last checkpoint ended less than execution.checkpointing.min-pause ago.",
        "Nothing: the checkpoint follows after the pause.",
        preflight=True,
    )
    NOT_ALL_REQUIRED_TASKS_RUNNING = _Explanation(
        "Not all required tasks are currently running.",
        "In Flink, a checkpoint was asked for before all tasks had started, or after some had finished.",
        "Wait until all tasks run, and leave execution.checkpointing.checkpoints-after-tasks-finish at true.",
        preflight=True,
        impossible="A task gets the trigger when it starts, and takes its snapshot before it ends.",
    )
    IO_EXCEPTION = _Explanation(
        "An Exception occurred while triggering the checkpoint. IO-problem detected.",
        "The directory of the checkpoint could not be created.",
        "Check execution.checkpointing.dir: permissions, credentials, free space, and that no other job writes there.",
        preflight=True,
        counts=True,
    )
    BLOCKING_OUTPUT_EXIST = _Explanation(
        "Blocking output edge exists in running tasks.",
        "In Flink, part of the job runs in batch mode.",
        "Run the job in streaming mode.",
        preflight=True,
        impossible="Stages of Spark have no blocking edges inside: a checkpoint belongs to one stage.",
    )
    CHECKPOINT_ASYNC_EXCEPTION = _Explanation(
        "Asynchronous task checkpoint failed.",
        "A task could not upload its state.",
        "Look at the cause that the task gives; mostly the storage refuses or is full.",
        counts=True,
    )
    CHANNEL_STATE_SHARED_STREAM_EXCEPTION = _Explanation(
        "The checkpoint was aborted due to exception of other subtasks sharing the ChannelState file.",
        "In Flink, subtasks share a file of in-flight data and another one failed.",
        "Look at the failure of the other subtasks that shared the file.",
        impossible="Checkpoints hold no in-flight data here.",
    )
    CHECKPOINT_EXPIRED = _Explanation(
        "Checkpoint expired before completing.",
        "The snapshot of the slowest subtask and the publication took longer than execution.checkpointing.timeout.",
        "Raise the timeout, make checkpoints incremental, or look for the slow task in Spark's UI.",
        counts=True,
    )
    CHECKPOINT_SUBSUMED = _Explanation(
        "Checkpoint has been subsumed.",
        "Another run of the same job completed a later checkpoint first.",
        "Run a job once at a time, or give each a job_id; the next run goes on from the later checkpoint.",
    )
    CHECKPOINT_DECLINED = _Explanation(
        "Checkpoint was declined.",
        "A task could not take its snapshot, for example in `snapshot_state` of its function; its message says why.",
        "Repair what the message of the task names.",
        counts=True,
    )
    CHECKPOINT_DECLINED_TASK_NOT_READY = _Explanation(
        "Checkpoint was declined (tasks not ready)",
        "In Flink, a barrier reached a task that was still opening.",
        "Nothing, unless it goes on: then a task takes long to open or to restore.",
        impossible="A task takes its checkpoint after its input, when it has long been open.",
    )
    CHECKPOINT_DECLINED_TASK_CLOSING = _Explanation(
        "Checkpoint was declined (task is closing)",
        "In Flink, a task was closing, or part of the subtasks of an operator with union list state had finished.",
        "Let all subtasks of an operator with union list state finish together, or use split list state.",
        impossible="A task takes its snapshot before it closes, and all of them end with the checkpoint.",
    )
    CHECKPOINT_DECLINED_SUBSUMED = _Explanation(
        "Checkpoint was canceled because a barrier from newer checkpoint was received.",
        "In Flink, a newer barrier overtook.",
        "Nothing, or allow fewer concurrent checkpoints.",
        impossible=_NO_BARRIERS,
    )
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = _Explanation(
        "Task received cancellation from one of its inputs",
        "In Flink, a task before this one cancelled the checkpoint.",
        "Look at the reason of the task that cancelled it.",
        impossible=_NO_BARRIERS,
    )
    CHECKPOINT_DECLINED_INPUT_END_OF_STREAM = _Explanation(
        "Checkpoint was declined because one input stream is finished",
        "In Flink, an input ended while barriers were aligned.",
        "Leave execution.checkpointing.checkpoints-after-tasks-finish at true.",
        impossible=_NO_BARRIERS,
    )
    CHECKPOINT_COORDINATOR_SHUTDOWN = _Explanation(
        "CheckpointCoordinator shutdown.",
        "The driver was interrupted, or Dagster ended the run, while the checkpoint was pending.",
        "Run it again: it goes on from the checkpoint before.",
    )
    CHECKPOINT_COORDINATOR_SUSPEND = _Explanation(
        "Checkpoint Coordinator is suspending.",
        "In Flink, the job was suspended while the checkpoint was pending.",
        "Nothing: checkpoints go on with the job.",
        impossible="Nothing suspends a run: it ends with its checkpoint, or is interrupted.",
    )
    JOB_FAILOVER_REGION = _Explanation(
        "FailoverRegion is restarting.",
        "In Flink, part of the job restarts.",
        "Repair what made the region restart.",
        impossible="Spark restarts single tasks, no regions.",
    )
    TASK_FAILURE = _Explanation(
        "Task has failed.",
        "A task ended with an error while the checkpoint was pending.",
        "Repair what the error of the task names.",
    )
    TASK_CHECKPOINT_FAILURE = _Explanation(
        "Task local checkpoint failure.",
        "In Flink, a trigger reached a worker after its task had ended.",
        "Look at the log of the TaskManager: the task had ended, or its failure follows.",
        impossible="A task gets the trigger when it starts, and no other way.",
    )
    UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE = _Explanation(
        "Unknown task for the checkpoint to notify.",
        "In Flink, a notification reached a worker after its task had ended.",
        "Nothing: the task has ended, and the next checkpoint does without it.",
        impossible="The driver notifies the function itself, after the tasks have ended.",
    )
    FINALIZE_CHECKPOINT_FAILURE = _Explanation(
        "Failure to finalize checkpoint.",
        "All tasks acknowledged, but `_metadata` could not be published.",
        "Look at the cause: mostly the storage refuses or is full, or another job has written to the directory.",
        counts=True,
    )
    TRIGGER_CHECKPOINT_FAILURE = _Explanation(
        "Trigger checkpoint failure.",
        "In Flink, the trigger could not be sent to the tasks.",
        "Look at the cause that follows, in the log of the JobManager.",
        impossible="The trigger is sent with the tasks; if these cannot start, a task has failed.",
    )

    def __init__(self, explanation: _Explanation) -> None:
        self.message, self.cause, self.remedy = explanation.message, explanation.cause, explanation.remedy
        self.is_preflight, self.counts = explanation.preflight, explanation.counts
        self.impossible = explanation.impossible


@dataclass(frozen=True)
class CheckpointFailure:
    """A failed checkpoint.

    Attributes:
        reason: the reason.
        checkpoint_id: its id; None where it failed before it had one.
        detail: text of the error that caused the failure; empty if there is none.
        is_in_doubt: the checkpoint may have been published.
    """

    reason: FailureReason
    checkpoint_id: int | None = None
    detail: str = ""
    is_in_doubt: bool = False

    def __str__(self) -> str:
        """Flink's message for the reason, followed by the detail."""
        return f"{self.reason.message} {self.detail}".rstrip()

    def describe(self) -> dict[str, str]:
        """The failure as metadata for people: reason, message, usual cause and remedy."""
        return {
            "reason": self.reason.name,
            "message": str(self),
            "cause": self.reason.cause,
            "remedy": self.reason.remedy,
        }


class FailureCounter:
    """Counter of the failed checkpoints of a run, which repeats its checkpoint after a tolerable failure.

    The run ends with its first completed checkpoint, so that all its failures are consecutive
    (`CheckpointFailureManager`).

    Args:
        tolerable: number of failures that a run survives.

    Attributes:
        tolerated: the failures that the run has survived so far.
    """

    def __init__(self, tolerable: int) -> None:
        self.tolerated: list[CheckpointFailure] = []
        self._tolerable = tolerable

    def is_tolerable(self, failure: CheckpointFailure) -> bool:
        """Count a failure; return whether the run goes on.

        A failure that Flink does not count ends the run, which has no other checkpoint. So does a failure after which
        the checkpoint may have been published: a repetition could process the same input twice.
        """
        if not failure.reason.counts or failure.is_in_doubt or len(self.tolerated) >= self._tolerable:
            return False
        self.tolerated.append(failure)
        return True


_MAGIC = 0x5443_6870
# Version of `_metadata` in which handles are sent to the driver: only the newest one stores every field.
_VERSION = VERSIONS[-1]


@dataclass(frozen=True, slots=True)
class TaskCheckpoint:
    """The snapshot of one operator in one subtask.

    Attributes:
        checkpoint_id: the checkpoint.
        operator_id: 16 bytes.
        state: handles of the subtask's state, and its index.
        state_size: bytes of all state that the handles name.
        persisted_size: bytes that this checkpoint wrote; less than `state_size` where files are shared.
        millis: duration of the snapshot and its upload, in milliseconds, without the processing of input.
        files: written to the directory of the checkpoint, with their checksums, for its manifest.
        metadata_version: oldest version of `_metadata` that implies the Kryo release of the values; 0 if any does.
    """

    checkpoint_id: int
    operator_id: bytes
    state: SubtaskState
    state_size: int = 0
    persisted_size: int = 0
    millis: int = 0
    files: tuple[RecordedFile, ...] = ()
    metadata_version: int = 0


def write_task_checkpoint(checkpoint: TaskCheckpoint) -> bytes:
    """Write the acknowledgement of a task, which the driver reads with `read_task_checkpoint`.

    Raises:
        ValueRangeError: a handle cannot be stored.
    """
    writer = Writer()
    writer.i32(_MAGIC)
    writer.i64(checkpoint.checkpoint_id)
    writer.bytes32(checkpoint.operator_id)
    for number in (
        checkpoint.state_size,
        checkpoint.persisted_size,
        checkpoint.millis,
        checkpoint.metadata_version,
    ):
        writer.i64(number)
    writer.i32(len(checkpoint.files))
    for file in checkpoint.files:
        writer.utf(file.name)
        writer.i64(file.size)
        writer.utf(file.checksum or "")
    write_subtask_state(writer, checkpoint.state, _VERSION)
    return writer.getvalue()


def read_task_checkpoint(data: bytes, name: str | None = None) -> TaskCheckpoint:
    """Read the acknowledgement of a task, as `write_task_checkpoint` writes it.

    Args:
        data: the bytes.
        name: name of the file or task that the bytes are from, for errors.

    Raises:
        FormatError: the bytes are not an acknowledgement, end early or go on after its end.
    """
    reader = Reader(data, name)
    if reader.remaining < 4 or reader.i32() != _MAGIC:
        raise reader.error("not an acknowledgement of a checkpoint", 0)
    checkpoint_id, operator_id = reader.i64(), reader.bytes32()
    state_size, persisted_size, millis, version = (reader.i64() for _ in range(4))
    files = tuple(RecordedFile(reader.utf(), reader.i64(), reader.utf() or None) for _ in range(reader.count(12)))
    state = read_subtask_state(reader, _VERSION)
    reader.expect_end("the acknowledgement")
    return TaskCheckpoint(
        checkpoint_id,
        operator_id,
        state,
        state_size,
        persisted_size,
        millis,
        files,
        version,
    )


@dataclass(frozen=True)
class CheckpointedOperator:
    """An operator that takes part in checkpoints.

    Attributes:
        operator_id: 16 bytes; the hash of the uid, where there is one.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.
        uid: the uid, or None.
        name: the name, or None.
    """

    operator_id: bytes
    parallelism: int
    max_parallelism: int
    uid: str | None = None
    name: str | None = None

    @property
    def label(self) -> str:
        """The uid, else the id, for messages."""
        return self.uid or self.operator_id.hex()


@dataclass(frozen=True)
class CheckpointTrigger:
    """The call to all tasks to take their snapshots.

    Attributes:
        checkpoint_id: id of the checkpoint or savepoint.
        properties: type of the checkpoint, format of a savepoint.
        directory: where tasks write files that only this checkpoint references, as relative handles.
        shared: where tasks write files that later checkpoints may reference, as absolute handles; None in a savepoint,
            which shares nothing.
    """

    checkpoint_id: int
    properties: CheckpointProperties
    directory: Location
    shared: Location | None


@dataclass(frozen=True)
class PendingCheckpoint:
    """A checkpoint that waits for its subtasks.

    Attributes:
        trigger: the call to the tasks.
        transaction: writer of its directory, whose block was entered.
    """

    trigger: CheckpointTrigger
    transaction: SnapshotTransaction


def list_missing(operators: Collection[CheckpointedOperator], taken: Sequence[TaskCheckpoint]) -> list[str]:
    """Return the subtasks, as texts for messages, of which there is not exactly one snapshot."""
    found = Counter((each.operator_id, each.state.index) for each in taken)
    return [
        f"subtask {subtask} of {operator.label}"
        for operator in operators
        for subtask in range(operator.parallelism)
        if found[operator.operator_id, subtask] != 1
    ]


def make_metadata(
    trigger: CheckpointTrigger,
    operators: Collection[CheckpointedOperator],
    taken: Sequence[TaskCheckpoint],
    version: int,
) -> CheckpointMetadata:
    """Make the metadata of a checkpoint.

    Args:
        trigger: the call to the tasks.
        operators: operators of the job.
        taken: the snapshot of each of their subtasks.
        version: metadata version, unless the values of a subtask need a newer one.
    """
    states = {(each.operator_id, each.state.index): each.state for each in taken}
    made = tuple(
        OperatorState(
            each.operator_id,
            each.parallelism,
            each.max_parallelism,
            tuple(states[each.operator_id, index] for index in range(each.parallelism)),
            each.name,
            each.uid,
        )
        for each in operators
    )
    newest = CheckpointMetadata(7, trigger.checkpoint_id, (), made, trigger.properties)
    return with_version(newest, max([version, *(each.metadata_version for each in taken)]))


_log = logging.getLogger(__name__)


@dataclass
class PeriodicSchedule:
    """Times at which the checkpoints of a stream may start; the first one starts at once.

    Attributes:
        interval: least milliseconds between the starts of two checkpoints; None for no bound.
        min_pause: least milliseconds between the completion of a checkpoint and the start of the next one.
        clock: the clock.
    """

    interval: int | None = None
    min_pause: int = 0
    clock: Clock = SYSTEM_CLOCK
    _last_start: int | None = None
    _last_completion: int | None = None

    def wait_for_start(self) -> int:
        """Wait until a checkpoint may start, and note that it starts.

        Returns:
            milliseconds by which `min_pause` has delayed the start.
        """
        now = self.clock.read()
        due = now
        if self._last_start is not None and self.interval is not None:
            due = max(due, self._last_start + self.interval)
        rested = due if self._last_completion is None else max(due, self._last_completion + self.min_pause)
        if rested > due:
            _log.info("%s", FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS.message)
        if rested > now:
            self.clock.wait(rested - now)
        self._last_start = max(rested, self.clock.read())
        return rested - due

    def note_completion(self) -> None:
        """Note that the checkpoint has completed: `min_pause` counts from now."""
        self._last_completion = self.clock.read()


@dataclass(frozen=True)
class DeclaredOperator:
    """An operator as the job declares it.

    Attributes:
        uid: the uid.
        parallelism: number of subtasks.
        max_parallelism: number of key groups; None for the one in the snapshot, or Flink's default for a new operator.
        name: the name, or None.
    """

    uid: str
    parallelism: int
    max_parallelism: int | None = None
    name: str | None = None

    @property
    def operator_id(self) -> bytes:
        """The hash of the uid."""
        return compute_operator_id(self.uid)


@dataclass(frozen=True)
class AssignedOperator:
    """An operator and the state that it starts with.

    Attributes:
        operator: the operator, with its number of key groups.
        state: its state in the snapshot; None where it starts empty.
    """

    operator: CheckpointedOperator
    state: OperatorState | None


def assign_operators(
    wanted: Sequence[DeclaredOperator], snapshot: Snapshot | None, *, allow_non_restored_state: bool = False
) -> list[AssignedOperator]:
    """Find the state of each operator of a job.

    Args:
        wanted: the operators of the job.
        snapshot: the restored snapshot; None for a job that starts empty.
        allow_non_restored_state: drop the state of operators that the job does not have, instead of raising.

    Raises:
        IncompatibleError: in Flink's words: an operator is missing, its max parallelism differs from the one that the
            job sets, or is lower than its parallelism.
        UsageError: two operators have one uid, or a parallelism is out of bounds.
    """
    by_id = {each.operator_id: each for each in wanted}
    if len(by_id) != len(wanted):
        names = [each.uid for each in wanted]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"the uid {twice!r} occurs twice", hint="Give every operator a uid of its own")
    stored = {} if snapshot is None else {each.operator_id: each for each in snapshot.metadata.operator_states}
    if snapshot is not None and not allow_non_restored_state:
        for state in stored.values():
            if state.operator_id not in by_id and _has_state(state):
                raise IncompatibleError(
                    explain_missing_operator(snapshot.path, state.operator_id.hex()),
                    where=Where(operator=state.uid or state.operator_id.hex()),
                    hint="Give the operator its old uid, or allow its state to be dropped "
                    "(execution.state-recovery.ignore-unclaimed-state)",
                )
    return [_assign(each, stored.get(each.operator_id), snapshot) for each in wanted]


def _assign(wanted: DeclaredOperator, state: OperatorState | None, snapshot: Snapshot | None) -> AssignedOperator:
    where = Where(operator=wanted.uid)
    number = wanted.operator_id.hex()
    if state is not None and snapshot is not None:
        before = state.max_parallelism
        if wanted.max_parallelism not in (None, before):
            raise IncompatibleError(
                explain_max_parallelism(snapshot.path, number, before, wanted.max_parallelism or 0),
                where=where,
                hint=f"Set the max parallelism to {before}, or rescale the snapshot",
            )
        if wanted.parallelism > before:
            raise IncompatibleError(
                explain_parallelism(number, before, wanted.parallelism),
                where=where,
                hint=f"Run with parallelism {before} at most, or rescale the snapshot",
            )
    default = compute_default_max_parallelism(wanted.parallelism) if wanted.max_parallelism is None else 0
    most = state.max_parallelism if state is not None else wanted.max_parallelism or default
    if wanted.parallelism > most:
        raise UsageError(
            f"parallelism {wanted.parallelism} is higher than max parallelism {most}",
            where=where,
            hint="A subtask without key groups could hold no state; lower the parallelism",
        )
    operator = CheckpointedOperator(wanted.operator_id, wanted.parallelism, most, wanted.uid, wanted.name)
    return AssignedOperator(operator, state)


def _has_state(state: OperatorState) -> bool:
    # As `OperatorSubtaskState.hasState`: an operator that has only coordinator state is dropped silently.
    return any(
        each.managed_operator_state is not None
        or each.raw_operator_state is not None
        or each.managed_keyed_state is not None
        or each.raw_keyed_state is not None
        or each.input_channel_state
        or each.result_subpartition_state
        for each in state.subtasks
    )


METADATA_VERSION = 4
"""Version of `_metadata` by default: the one that Flink 1.20 writes and every later release reads."""


class CheckpointCoordinator:
    """Triggers, completes and aborts the checkpoints of one job.

    Args:
        directories: where the checkpoints are written.
        operators: the operators of the job.
        options: Flink's options.
        clock: the clock.
        metadata_version: version of the `_metadata` files that it writes.

    Attributes:
        pending: the checkpoint that was triggered and has not ended, or None.
        completed: the retained checkpoints.
        files: references to files of pending and completed checkpoints.
        failure: why the last checkpoint failed; None if it did not.
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
        """Note the snapshot that the tasks were restored from; new checkpoints get higher ids.

        With CLAIM the job owns the snapshot: references to its files are counted, and a checkpoint that subsumes it
        discards it. With NO_CLAIM its files are never deleted, and the first checkpoint is full.

        Args:
            snapshot: the restored snapshot.
            claim_mode: by default the mode in the options.
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
        """Trigger a savepoint in a new subdirectory of `directory`; savepoints are never discarded.

        Raises:
            StateError: as for `trigger_checkpoint`.
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

    # Completion and failure

    def complete(self, taken: Sequence[TaskCheckpoint]) -> CompletedCheckpoint:
        """Publish the pending checkpoint, and discard those that it replaces.

        Args:
            taken: the snapshot of each subtask.

        Raises:
            StateError: the checkpoint was not published, and its files are removed, or it is in doubt whether it was
                published (`failure.is_in_doubt`); `failure` says why in Flink's words.
        """
        started = self._clock.read()
        pending = self._get_pending()
        trigger, number = pending.trigger, pending.trigger.checkpoint_id
        # A checkpoint takes as long as the slowest subtask and the publication; the processing of input does not count.
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
            # The checkpoint may have been published: keep its references; `recover` sees it after a restart if it was.
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
            detail: text to add to Flink's message.
            cause: the error that caused the failure; it is returned, with Flink's reason among its `details`.

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
