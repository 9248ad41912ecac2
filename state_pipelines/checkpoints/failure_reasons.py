"""Reasons for which checkpoints fail, in Flink's words, and the counter that fails a job.

Source: `CheckpointFailureReason`, `CheckpointFailureManager`, `CheckpointException`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

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
        remedy: the usual remedy, one sentence.
        is_preflight: whether the checkpoint failed before any task knew of it.
        counts: whether the failure counts towards the tolerable ones (`isCountedAgainstFailureThreshold`).
        impossible: why the reason cannot arise here; empty where it can.
    """

    PERIODIC_SCHEDULER_SHUTDOWN = _Explanation(
        "Periodic checkpoint scheduler is shut down.",
        "A periodic checkpoint was asked for after the scheduler had stopped.",
        "Start the scheduler again, or trigger the checkpoint by hand.",
        preflight=True,
    )
    TOO_MANY_CHECKPOINT_REQUESTS = _Explanation(
        "The maximum number of queued checkpoint requests exceeded",
        "More than 1,000 requests wait because checkpoints take longer than the time between requests.",
        "Ask less often, or raise execution.checkpointing.max-concurrent-checkpoints.",
        preflight=True,
    )
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = _Explanation(
        "The minimum time between checkpoints is still pending. Checkpoint will be triggered after the minimum time.",
        "The last checkpoint ended less than execution.checkpointing.min-pause ago.",
        "Nothing: the checkpoint follows after the pause.",
        preflight=True,
    )
    NOT_ALL_REQUIRED_TASKS_RUNNING = _Explanation(
        "Not all required tasks are currently running.",
        "A checkpoint was asked for before all tasks had started, or after some had finished while "
        "execution.checkpointing.checkpoints-after-tasks-finish is false.",
        "Ask again when the tasks run, or allow checkpoints after tasks finish.",
        preflight=True,
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
        "Nothing: it does not arise here.",
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
        "Nothing: it does not arise here.",
        impossible="Checkpoints hold no in-flight data here.",
    )
    CHECKPOINT_EXPIRED = _Explanation(
        "Checkpoint expired before completing.",
        "A task did not acknowledge within execution.checkpointing.timeout: it is slow, or its worker is gone.",
        "Raise the timeout, make checkpoints incremental, or look for the slow task in Spark's UI.",
        counts=True,
    )
    CHECKPOINT_SUBSUMED = _Explanation(
        "Checkpoint has been subsumed.",
        "A later checkpoint completed first.",
        "Nothing: the later one holds everything.",
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
        "Nothing: it does not arise here.",
        impossible="A task takes its checkpoint after its input, when it has long been open.",
    )
    CHECKPOINT_DECLINED_TASK_CLOSING = _Explanation(
        "Checkpoint was declined (task is closing)",
        "Part of the subtasks of an operator with union list state have finished.",
        "Let all subtasks of that operator finish together, or use split list state.",
    )
    CHECKPOINT_DECLINED_SUBSUMED = _Explanation(
        "Checkpoint was canceled because a barrier from newer checkpoint was received.",
        "In Flink, a newer barrier overtook.",
        "Nothing: it does not arise here.",
        impossible=_NO_BARRIERS,
    )
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = _Explanation(
        "Task received cancellation from one of its inputs",
        "In Flink, a task before this one cancelled the checkpoint.",
        "Nothing: it does not arise here.",
        impossible=_NO_BARRIERS,
    )
    CHECKPOINT_DECLINED_INPUT_END_OF_STREAM = _Explanation(
        "Checkpoint was declined because one input stream is finished",
        "In Flink, an input ended while barriers were aligned.",
        "Nothing: it does not arise here.",
        impossible=_NO_BARRIERS,
    )
    CHECKPOINT_COORDINATOR_SHUTDOWN = _Explanation(
        "CheckpointCoordinator shutdown.",
        "The job ended while the checkpoint was pending.",
        "Nothing, or stop the job with a savepoint.",
    )
    CHECKPOINT_COORDINATOR_SUSPEND = _Explanation(
        "Checkpoint Coordinator is suspending.",
        "The job was suspended while the checkpoint was pending.",
        "Nothing: checkpoints go on with the job.",
    )
    JOB_FAILOVER_REGION = _Explanation(
        "FailoverRegion is restarting.",
        "In Flink, part of the job restarts.",
        "Nothing: it does not arise here.",
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
        "Nothing: it does not arise here.",
        impossible="The owner of the coordinator forwards triggers and knows its tasks.",
    )
    UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE = _Explanation(
        "Unknown task for the checkpoint to notify.",
        "In Flink, a notification reached a worker after its task had ended.",
        "Nothing: it does not arise here.",
        impossible="The owner of the coordinator forwards notifications and knows its tasks.",
    )
    FINALIZE_CHECKPOINT_FAILURE = _Explanation(
        "Failure to finalize checkpoint.",
        "All tasks acknowledged, but `_metadata` could not be published.",
        "Look at the cause: mostly the storage refuses or is full, or another job has written to the directory.",
        counts=True,
    )
    TRIGGER_CHECKPOINT_FAILURE = _Explanation(
        "Trigger checkpoint failure.",
        "The owner of the tasks could not forward the trigger.",
        "Look at the cause that follows the message.",
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
        detail: the error that caused the failure, or nothing.
    """

    reason: FailureReason
    checkpoint_id: int | None = None
    detail: str = ""

    def __str__(self) -> str:
        """Flink's words, with the detail."""
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
    """Consecutive failures of checkpoints (`CheckpointFailureManager`).

    Args:
        tolerable: failures that a job survives.

    Attributes:
        count: failures since the last success.
    """

    def __init__(self, tolerable: int) -> None:
        self.count = 0
        self._tolerable = tolerable
        self._counted: set[int] = set()
        self._last_success = -1

    def fail(self, failure: CheckpointFailure) -> bool:
        """Count a failure; return whether the job fails.

        A checkpoint counts once, one that is older than the last success not at all.
        """
        number = failure.checkpoint_id
        if number is not None and number <= self._last_success:
            return False
        if failure.reason.counts and (number is None or number not in self._counted):
            if number is not None:
                self._counted.add(number)
            self.count += 1
        if self.count <= self._tolerable:
            return False
        self._clear()
        return True

    def succeed(self, checkpoint_id: int) -> None:
        """Note a completed checkpoint; the failures before it are forgotten."""
        if checkpoint_id > self._last_success:
            self._last_success = checkpoint_id
            self._clear()

    def _clear(self) -> None:
        self.count = 0
        self._counted.clear()
