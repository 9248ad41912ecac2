"""Failed checkpoints of running jobs: Flink's reason among Java causes, its usual cause, and the remedy in Flink.

`checkpoints.coordinator` has the reasons with the causes of checkpoints that are taken here; those that differ in
Flink are below.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.checkpoints.coordinator import FailureReason

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from state_pipelines.flink.cluster import Checkpoint, JobFailure

_FRAME = re.compile(r"\s+(?:at \S|\.\.\. \d+ )")
_PREFIX = re.compile(r"(?:\s*Caused by: |\[?<?Exception on server side:\s*)+")
# Classes of exceptions that wrap another one, and add nothing to its message.
_WRAPPER = re.compile(
    r"(?:java\.util\.concurrent\.(?:CompletionException|ExecutionException)"
    r"|org\.apache\.flink\.util\.SerializedThrowable"
    r"|org\.apache\.flink\.runtime\.rest\.handler\.RestHandlerException): (?=[\w.$]+(?:Exception|Error)\b)"
)
_REMARKS = ("End of exception on server side>", "Internal server error.")
_MOST_TEXT = 1 << 20
_MOST_CAUSE = 2000
_CLASS = re.compile(r"^(?:[\w$]+\.)+([\w$]+)(?:: |$)")


def list_causes(text: str) -> list[str]:
    """List the causes in a stack trace, outermost first, without stack frames and without repetitions."""
    causes: list[str] = []
    for line in text[:_MOST_TEXT].splitlines():
        if _FRAME.match(line) or not line.strip() or line.strip() in _REMARKS:
            continue
        is_new = not causes or _PREFIX.match(line) is not None or _CLASS.match(line) is not None
        words = _PREFIX.sub("", line, count=1).strip()
        while (shorter := _WRAPPER.sub("", words, count=1)) != words:
            words = shorter
        if not words:
            continue
        if is_new:
            causes.append(words[:_MOST_CAUSE])
        elif len(causes[-1]) < _MOST_CAUSE:
            # The message of a cause may have several lines.
            causes[-1] = f"{causes[-1]} {words}"[:_MOST_CAUSE]
    return list(dict.fromkeys(causes))


def find_root_cause(text: str) -> str:
    """Return the innermost cause of a stack trace, without the package of its class; empty if there is no text."""
    causes = list_causes(text)
    return (
        _CLASS.sub(lambda match: f"{match[1]}: " if match[0].endswith(": ") else match[1], causes[-1]) if causes else ""
    )


def find_failure_reason(text: str) -> FailureReason | None:
    """Find Flink's reason of a failed checkpoint in its message; None if the message names none.

    Source: `CheckpointException`, whose message ends with that of its `CheckpointFailureReason`.
    """
    found = [(text.find(each.message), -len(each.message), each) for each in FailureReason if each.message in text]
    return min(found, key=lambda each: each[:2])[2] if found else None


_IN_FLINK: dict[FailureReason, tuple[str, str]] = {
    FailureReason.CHECKPOINT_EXPIRED: (
        "The slowest subtask took longer than execution.checkpointing.timeout: barriers wait for backpressured "
        "records, or its state is slow to upload.",
        "Look at the slowest subtasks: a long alignment or start delay asks for unaligned checkpoints or less "
        "backpressure, a long asynchronous one for incremental checkpoints or a faster storage.",
    ),
    FailureReason.CHECKPOINT_SUBSUMED: (
        "A later checkpoint was completed first.",
        "Nothing, or allow fewer concurrent checkpoints (execution.checkpointing.max-concurrent-checkpoints).",
    ),
    FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN: (
        "The job ended or was cancelled while the checkpoint was pending.",
        "Nothing where that was wanted; otherwise look at the failures of the job.",
    ),
    FailureReason.CHECKPOINT_COORDINATOR_SUSPEND: (
        "The job failed and restarted, or stopped with a savepoint, while the checkpoint was pending.",
        "Repair what made the job fail: see its failures.",
    ),
    FailureReason.IO_EXCEPTION: (
        "The directory of the checkpoint could not be created.",
        "Check execution.checkpointing.dir from the JobManager: permissions, credentials, free space.",
    ),
    FailureReason.FINALIZE_CHECKPOINT_FAILURE: (
        "All tasks acknowledged, but the JobManager could not write `_metadata`.",
        "Check execution.checkpointing.dir from the JobManager: permissions, credentials, free space.",
    ),
    FailureReason.TOO_MANY_CHECKPOINT_REQUESTS: (
        "More than 1,000 requests wait, because checkpoints take longer than the time between requests.",
        "Ask less often, or find out why the pending checkpoint takes so long.",
    ),
    FailureReason.JOB_FAILOVER_REGION: (
        "A region of the job restarts.",
        "Repair what made the region restart: see the failures of the job.",
    ),
}
_BEGINNING = "In Flink, "
_OF_THE_JOB = frozenset(
    {
        FailureReason.CHECKPOINT_COORDINATOR_SUSPEND,
        FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN,
        FailureReason.JOB_FAILOVER_REGION,
        FailureReason.TASK_FAILURE,
        FailureReason.TASK_CHECKPOINT_FAILURE,
    }
)
_SECONDS_APART = 10


@dataclass(frozen=True)
class FailedCheckpoint:
    """A failed checkpoint of a running job.

    Attributes:
        id: its id; None if it failed before it had one.
        is_savepoint: whether it was to be a savepoint.
        failed: time of the failure; None where Flink does not say.
        message: Flink's message.
        reason: name of Flink's failure reason; empty if the message names none.
        cause: usual cause of that reason.
        remedy: what to do about it.
        job_failure: root cause of the failure of the job that ended the checkpoint; empty if there is none.
        acknowledged: number of subtasks that acknowledged the checkpoint.
        subtasks: number of subtasks that had to acknowledge it.
    """

    id: int | None
    is_savepoint: bool
    failed: datetime | None
    message: str
    reason: str
    cause: str
    remedy: str
    job_failure: str = ""
    acknowledged: int = 0
    subtasks: int = 0


def explain_message(message: str) -> tuple[str, str, str]:
    """Return name of the reason, usual cause and remedy of a failed checkpoint or savepoint, by Flink's message."""
    reason = find_failure_reason(message)
    if reason is None:
        return "", "", "Look at the log of the JobManager."
    cause, remedy = _IN_FLINK.get(reason, (reason.cause, reason.remedy))
    if cause.startswith(_BEGINNING):
        cause = cause[len(_BEGINNING) :]
        cause = cause[:1].upper() + cause[1:]
    return reason.name, cause, remedy


def explain_checkpoint(checkpoint: Checkpoint, failures: Iterable[JobFailure] = ()) -> FailedCheckpoint:
    """Explain a failed checkpoint: its cause and remedy.

    Args:
        checkpoint: the checkpoint.
        failures: failures of the job. If Flink's reason is that the job failed or restarted, the failure at the same
            time is given as the cause.
    """
    name, cause, remedy = explain_message(checkpoint.failure)
    nearest = ""
    if name and FailureReason[name] in _OF_THE_JOB and checkpoint.failed is not None:
        failed = checkpoint.failed
        apart = {each: abs((each.time - failed).total_seconds()) for each in failures}
        found = min(apart, key=lambda each: apart[each], default=None)
        if found is not None and apart[found] <= _SECONDS_APART:
            nearest = find_root_cause(found.stack) or found.exception
    return FailedCheckpoint(
        id=checkpoint.id,
        is_savepoint=checkpoint.is_savepoint,
        failed=checkpoint.failed,
        message=checkpoint.failure,
        reason=name,
        cause=cause,
        remedy=remedy,
        job_failure=nearest,
        acknowledged=checkpoint.acknowledged,
        subtasks=checkpoint.subtasks,
    )
