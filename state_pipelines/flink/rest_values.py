"""Values of `flink.cluster` from the JSON of Flink's REST endpoint."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload

from state_pipelines.errors import ClusterError
from state_pipelines.flink.checkpoint_failures import list_causes
from state_pipelines.flink.cluster import (
    Checkpoint,
    CheckpointProgress,
    CheckpointSettings,
    CheckpointStatistics,
    CheckpointStatus,
    CheckpointSubtask,
    CheckpointTask,
    JobFailure,
    JobOverview,
    JobStart,
    JobStatus,
    JobVertex,
    SavepointProgress,
    TriggerStatus,
)
from state_pipelines.redaction import is_secret_name, redact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_T = TypeVar("_T")
_HIDDEN = "******"
_REQUIRED: Any = object()


@overload
def take(content: object, name: str, kind: type[_T]) -> _T: ...
@overload
def take(content: object, name: str, kind: type[_T], default: _T) -> _T: ...
def take(content: object, name: str, kind: type[Any], default: Any = _REQUIRED) -> Any:
    """A field of an answer.

    Raises:
        ClusterError: it is missing without a default, or has another type.
    """
    value = content.get(name) if isinstance(content, dict) else None
    if value is None and default is not _REQUIRED:
        return default
    if kind is int and isinstance(value, float):
        value = int(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ClusterError(
            f"the answer has no {name} as Flink's REST endpoint gives it",
            hint="Flink 1.20 to 2.3 are known: look whether the address is that of another service",
        )
    return value


def _number(content: object, name: str) -> int | None:
    value = take(content, name, int, -1)
    return value if value >= 0 else None


def _time(content: object, name: str) -> datetime | None:
    millis = take(content, name, int, -1)
    return datetime.fromtimestamp(millis / 1000, UTC) if 0 < millis < 1 << 47 else None


def read_status(text: str) -> JobStatus:
    """The status of a job."""
    try:
        return JobStatus(text)
    except ValueError:
        raise ClusterError(
            f"the job has the status {text!r}, which is not known", hint="Flink 1.20 to 2.3 are known"
        ) from None


def read_job(content: Mapping[str, Any]) -> JobOverview:
    """A job from `JobDetails` or `JobDetailsInfo`."""
    tasks = content.get("tasks") or content.get("status-counts") or {}
    return JobOverview(
        id=take(content, "jid", str),
        name=take(content, "name", str),
        status=read_status(take(content, "state", str)),
        started=_time(content, "start-time"),
        ended=_time(content, "end-time"),
        tasks={name.upper(): number for name, number in tasks.items() if number and name != "total"},
    )


def read_vertex(content: Mapping[str, Any]) -> JobVertex:
    """A task from `JobDetailsInfo`."""
    maximum = take(content, "maxParallelism", int, -1)
    return JobVertex(
        id=take(content, "id", str),
        name=take(content, "name", str),
        parallelism=take(content, "parallelism", int),
        max_parallelism=maximum if maximum > 0 else None,
        status=take(content, "status", str),
    )


def read_start(tasks: Sequence[Mapping[str, Any]]) -> JobStart | None:
    """Durations of a start from `SubtasksTimesInfo` of each task; None before all subtasks run."""
    scheduled, running, restores = list[int](), list[int](), list[int]()
    subtasks = [take(task, "subtasks", list) for task in tasks]
    for each in (each for task in subtasks for each in task):
        times = take(each, "timestamps", dict)
        begun, restoring, runs = (take(times, name, int, 0) for name in ("SCHEDULED", "INITIALIZING", "RUNNING"))
        if not 0 < begun <= runs:
            return None
        scheduled.append(begun)
        running.append(runs)
        restores.append(runs - restoring if 0 < restoring <= runs else 0)
    if not running:
        return None
    seconds = (max(running) - min(scheduled)) / 1000
    return JobStart(seconds, max(restores) / 1000, max(map(len, subtasks)))


def read_configuration(content: object) -> dict[str, str]:
    """Options by name, without the values of secrets."""
    options: dict[str, str] = {}
    for each in content if isinstance(content, list) else ():
        name, value = take(each, "key", str), str(each.get("value", ""))
        options[name] = _HIDDEN if is_secret_name(name) else redact(value)
    return dict(sorted(options.items()))


def read_checkpoint_settings(content: Mapping[str, Any]) -> CheckpointSettings:
    """Settings from `CheckpointConfigInfo`."""
    interval = _number(content, "interval")
    kept = take(content, "externalization", dict, {})
    return CheckpointSettings(
        mode=take(content, "mode", str, "").lower(),
        # Long.MAX_VALUE: no periodic checkpoints.
        interval_ms=None if interval is None or interval >= (1 << 63) - 1 else interval,
        timeout_ms=_number(content, "timeout"),
        min_pause_ms=_number(content, "min_pause"),
        max_concurrent=_number(content, "max_concurrent"),
        tolerable_failures=_number(content, "tolerable_failed_checkpoints"),
        is_retained=bool(kept.get("enabled")) and not kept.get("delete_on_cancellation", True),
        is_unaligned=take(content, "unaligned_checkpoints", bool, False),
        backend=take(content, "state_backend", str, ""),
        storage=take(content, "checkpoint_storage", str, ""),
    )


def _read_operation(content: Mapping[str, Any]) -> tuple[TriggerStatus, dict[str, Any], str]:
    """Status, result and failure of an asynchronous operation (`AsynchronousOperationResult`)."""
    status = take(take(content, "status", dict), "id", str)
    if status == "IN_PROGRESS":
        return TriggerStatus.IN_PROGRESS, {}, ""
    operation = take(content, "operation", dict)
    # Of `SavepointInfo`, and of `CheckpointInfo`.
    failure = operation.get("failure-cause", operation.get("failureCause"))
    if failure is not None:
        stack = take(failure, "stack-trace", str, "") or take(failure, "class", str, "")
        return TriggerStatus.FAILED, {}, redact("\n".join(list_causes(stack)))
    return TriggerStatus.COMPLETED, operation, ""


def read_savepoint_progress(content: Mapping[str, Any]) -> SavepointProgress:
    """Progress of a savepoint (`SavepointInfo`)."""
    status, operation, failure = _read_operation(content)
    path = take(operation, "location", str) if status is TriggerStatus.COMPLETED else ""
    return SavepointProgress(status, path, failure)


def read_checkpoint_progress(content: Mapping[str, Any]) -> CheckpointProgress:
    """Progress of a checkpoint (`CheckpointInfo`)."""
    status, operation, failure = _read_operation(content)
    number = take(operation, "checkpointId", int) if status is TriggerStatus.COMPLETED else None
    return CheckpointProgress(status, number, failure)


def read_exceptions(content: Mapping[str, Any]) -> tuple[JobFailure, ...]:
    """Failures of a job from `JobExceptionsInfoWithHistory`."""
    history = take(take(content, "exceptionHistory", dict, {}), "entries", list, [])
    failures = [
        JobFailure(
            time=_time(each, "timestamp") or datetime.fromtimestamp(0, UTC),
            exception=take(each, "exceptionName", str, ""),
            stack=redact(take(each, "stacktrace", str, "")),
            task=take(each, "taskName", str, ""),
            location=take(each, "endpoint", str, "") or take(each, "location", str, ""),
        )
        for each in history
    ]
    return tuple(sorted(failures, key=lambda each: each.time, reverse=True))


def read_statistics(content: Mapping[str, Any]) -> CheckpointStatistics:
    """Statistics from `CheckpointingStatistics`."""
    counts = take(content, "counts", dict)
    latest = take(content, "latest", dict, {})
    restored, completed = take(latest, "restored", dict, {}), take(latest, "completed", dict, {})
    savepoint = take(latest, "savepoint", dict, {})
    history = [read_checkpoint(each, {}) for each in take(content, "history", list, [])]
    return CheckpointStatistics(
        completed=take(counts, "completed", int),
        failed=take(counts, "failed", int),
        in_progress=take(counts, "in_progress", int),
        restored=take(counts, "restored", int),
        restored_path=take(restored, "external_path", str, ""),
        restored_id=take(restored, "id", int) if restored else None,
        history=tuple(sorted(history, key=lambda each: each.id, reverse=True)),
        latest_completed=read_checkpoint(completed, {}) if completed else None,
        latest_savepoint=read_checkpoint(savepoint, {}) if savepoint else None,
    )


def read_checkpoint(content: Mapping[str, Any], details: Mapping[str, tuple[CheckpointSubtask, ...]]) -> Checkpoint:
    """A checkpoint from `CheckpointStatistics`, with the subtasks of each task where known."""
    name = take(content, "status", str)
    if name not in CheckpointStatus.__members__:
        raise ClusterError(
            f"a checkpoint has the status {name!r}, which is not known", hint="Flink 1.20 to 2.3 are known"
        )
    return Checkpoint(
        id=take(content, "id", int),
        status=CheckpointStatus(name),
        is_savepoint=take(content, "is_savepoint", bool, False),
        kind=take(content, "checkpoint_type", str, ""),
        triggered=_time(content, "trigger_timestamp") or datetime.fromtimestamp(0, UTC),
        duration_ms=_number(content, "end_to_end_duration"),
        state_size=_number(content, "state_size"),
        written_size=_number(content, "checkpointed_size"),
        processed_data=_number(content, "processed_data"),
        persisted_data=_number(content, "persisted_data"),
        subtasks=take(content, "num_subtasks", int, 0),
        acknowledged=take(content, "num_acknowledged_subtasks", int, 0),
        path=_path(take(content, "external_path", str, "")),
        failed=_time(content, "failure_timestamp"),
        failure=redact(take(content, "failure_message", str, "")),
        is_discarded=take(content, "discarded", bool, False),
        tasks=tuple(
            CheckpointTask(
                vertex_id=vertex,
                status=take(each, "status", str, ""),
                subtasks=take(each, "num_subtasks", int, 0),
                acknowledged=take(each, "num_acknowledged_subtasks", int, 0),
                duration_ms=_number(each, "end_to_end_duration"),
                state_size=_number(each, "state_size"),
                written_size=_number(each, "checkpointed_size"),
                details=details.get(vertex, ()),
            )
            for vertex, each in take(content, "tasks", dict, {}).items()
        ),
    )


def _path(text: str) -> str:
    # `CompletedCheckpointStats` of a checkpoint in memory.
    return "" if text.startswith("<") else text


def read_subtasks(content: Mapping[str, Any]) -> tuple[CheckpointSubtask, ...]:
    """Subtasks from `TaskCheckpointStatisticsWithSubtaskDetails`."""
    subtasks = []
    for each in take(content, "subtasks", list, []):
        durations = take(each, "checkpoint", dict, {})
        alignment = take(each, "alignment", dict, {})
        subtasks.append(
            CheckpointSubtask(
                index=take(each, "index", int),
                is_completed=take(each, "status", str, "") == "completed",
                acknowledged=_time(each, "ack_timestamp"),
                duration_ms=_number(each, "end_to_end_duration"),
                sync_ms=_number(durations, "sync"),
                async_ms=_number(durations, "async"),
                alignment_ms=_number(alignment, "duration"),
                start_delay_ms=_number(each, "start_delay"),
                state_size=_number(each, "state_size"),
                written_size=_number(each, "checkpointed_size"),
                is_unaligned=take(each, "unaligned_checkpoint", bool, False),
                is_aborted=take(each, "aborted", bool, False),
            )
        )
    return tuple(sorted(subtasks, key=lambda each: each.index))
