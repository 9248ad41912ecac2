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
        remedy: the usual remedy, one sentence; in Flink where it cannot arise here.
        is_preflight: whether the checkpoint failed before any task knew of it.
        counts: whether the failure counts towards the tolerable ones (`isCountedAgainstFailureThreshold`).
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
        detail: the error that caused the failure, or nothing.
        is_in_doubt: the checkpoint may have been published.
    """

    reason: FailureReason
    checkpoint_id: int | None = None
    detail: str = ""
    is_in_doubt: bool = False

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
    """Failures of the checkpoint of a run, which the run survives by repeating it (`CheckpointFailureManager`).

    A success ends the run, so that all failures are consecutive.

    Args:
        tolerable: failures that a run survives.

    Attributes:
        tolerated: the failures so far.
    """

    def __init__(self, tolerable: int) -> None:
        self.tolerated: list[CheckpointFailure] = []
        self._tolerable = tolerable

    def is_tolerable(self, failure: CheckpointFailure) -> bool:
        """Count a failure; return whether the run goes on.

        Failures that Flink does not count end a run, which has no other checkpoint. So does one after which the
        checkpoint may be there: repeating it could count the input twice.
        """
        if not failure.reason.counts or failure.is_in_doubt or len(self.tolerated) >= self._tolerable:
            return False
        self.tolerated.append(failure)
        return True
