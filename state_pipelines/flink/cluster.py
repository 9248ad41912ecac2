"""`FlinkCluster`: the verbs of a running Flink, and the values that it answers with, in Flink's terms.

A verb that changes something is called once and never repeated by an implementation unless Flink makes it idempotent:
triggers with a `trigger_id` and submissions with a `job_id` that the caller chooses may be repeated by the caller, also
in another process, and have one effect. Times are UTC, durations and sizes are None where Flink gives none (-1).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from state_pipelines.errors import ClusterError, NotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime


class JobStatus(StrEnum):
    """Status of a job (`org.apache.flink.api.common.JobStatus`)."""

    INITIALIZING = "INITIALIZING"
    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    RESTARTING = "RESTARTING"
    SUSPENDED = "SUSPENDED"
    RECONCILING = "RECONCILING"

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended for good (`isGloballyTerminalState`)."""
        return self in (JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED)


class SavepointFormat(StrEnum):
    """Format of a savepoint (`SavepointFormatType`)."""

    CANONICAL = "CANONICAL"
    NATIVE = "NATIVE"

    @classmethod
    def _missing_(cls, value: object) -> SavepointFormat | None:
        return cls.__members__.get(str(value).upper())


class CheckpointKind(StrEnum):
    """Kind of a checkpoint that is asked for (`org.apache.flink.core.execution.CheckpointType`)."""

    CONFIGURED = "CONFIGURED"
    FULL = "FULL"
    INCREMENTAL = "INCREMENTAL"


class RestoreMode(StrEnum):
    """Ownership of the snapshot that a job starts from (`RecoveryClaimMode`, `RestoreMode` before Flink 2.0)."""

    NO_CLAIM = "NO_CLAIM"
    CLAIM = "CLAIM"
    LEGACY = "LEGACY"


@dataclass(frozen=True)
class ClusterOverview:
    """Version, slots and settings of a cluster.

    Attributes:
        endpoint: its address, without secrets.
        version: version of Flink, such as `2.2.1`; empty where it is not known.
        slots_total: slots of all task managers.
        slots_available: free slots.
        task_managers: number of task managers.
        can_submit: whether jars may be uploaded and run (`web.submit.enable`; an application cluster takes none).
        configuration: configuration of the JobManager; the values of secrets are hidden, by Flink and again here.
        sql_obstacle: reason why no compiled plan and no SQL script can be started there; empty if they can be started.
        stop_directory: directory of the savepoints with which jobs are stopped, if requests cannot choose another one;
            else None.
    """

    endpoint: str
    version: str
    slots_total: int | None
    slots_available: int | None
    task_managers: int | None
    can_submit: bool
    configuration: Mapping[str, str] = field(default_factory=dict)
    sql_obstacle: str = "it has no SQL Gateway"
    stop_directory: str | None = None


@dataclass(frozen=True)
class JobOverview:
    """Name, status and times of a job of a cluster.

    Attributes:
        id: 32 hexadecimal digits.
        name: its name, which is not unique.
        status: its status.
        started: time of its start.
        ended: time of its end; None while it runs.
        tasks: number of tasks by their status.
    """

    id: str
    name: str
    status: JobStatus
    started: datetime | None = None
    ended: datetime | None = None
    tasks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class JobVertex:
    """A task of a job: operators that are chained.

    Attributes:
        id: id of the vertex, which is the id of the operator at its head.
        name: names of its operators.
        parallelism: number of its subtasks.
        max_parallelism: its max parallelism.
        status: status of its subtasks together.
    """

    id: str
    name: str
    parallelism: int
    max_parallelism: int | None
    status: str


@dataclass(frozen=True)
class CheckpointSettings:
    """Settings of the checkpoints of a running job (`CheckpointConfigInfo`).

    Attributes:
        mode: `exactly_once` or `at_least_once`.
        interval_ms: time between checkpoints; None where none are periodic.
        timeout_ms: time after which a checkpoint expires.
        min_pause_ms: pause after a checkpoint.
        max_concurrent: checkpoints at the same time.
        tolerable_failures: failed checkpoints in a row that the job survives.
        is_retained: whether checkpoints outlive a cancelled job.
        is_unaligned: whether checkpoints are unaligned.
        backend: class or name of the state backend.
        storage: class or name of the checkpoint storage.
    """

    mode: str
    interval_ms: int | None
    timeout_ms: int | None
    min_pause_ms: int | None
    max_concurrent: int | None
    tolerable_failures: int | None
    is_retained: bool
    is_unaligned: bool
    backend: str
    storage: str


@dataclass(frozen=True)
class JobDetails:
    """A job with its tasks and settings.

    Attributes:
        job: the job.
        vertices: its tasks in the order of its plan.
        max_parallelism: max parallelism of the job; None where it is derived.
        configuration: execution settings and the job's own parameters, without secrets.
        checkpoints: settings of its checkpoints; None where it takes none.
        plan: Flink's plan as JSON.
    """

    job: JobOverview
    vertices: tuple[JobVertex, ...]
    max_parallelism: int | None
    configuration: Mapping[str, str]
    checkpoints: CheckpointSettings | None
    plan: Mapping[str, object]


@dataclass(frozen=True)
class JobStart:
    """Durations of the last start of a job, of its tasks together (`SubtasksTimesInfo`).

    Attributes:
        seconds: seconds from the scheduling of the first subtask until the last one ran.
        restore_seconds: longest initialization of a subtask, in which it restores its state.
        parallelism: highest number of subtasks of a task.
    """

    seconds: float
    restore_seconds: float
    parallelism: int


@dataclass(frozen=True)
class SavepointRequest:
    """Request for a savepoint.

    Attributes:
        directory: where it is written; by default `execution.checkpointing.savepoint-dir` of the cluster.
        format: its format.
        stop: whether the job stops with it.
        drain: whether windows and timers fire before the job stops. Not for a job that continues from the savepoint.
        trigger_id: 32 hexadecimal digits; a second request with the same id takes no second savepoint.
    """

    directory: str | None = None
    format: SavepointFormat = SavepointFormat.CANONICAL
    stop: bool = False
    drain: bool = False
    trigger_id: str | None = None


class TriggerStatus(StrEnum):
    """Progress of a savepoint or checkpoint that was triggered."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


@dataclass(frozen=True)
class SavepointProgress:
    """Progress of a savepoint.

    Attributes:
        status: progress.
        path: the savepoint, once completed.
        failure: Flink's message if it failed: the chain of causes, one per line, without stack frames.
    """

    status: TriggerStatus
    path: str = ""
    failure: str = ""


@dataclass(frozen=True)
class CheckpointProgress:
    """Progress of a checkpoint that was asked for.

    Attributes:
        status: progress.
        checkpoint_id: its id, once completed.
        failure: Flink's message if it failed, as for a savepoint.
    """

    status: TriggerStatus
    checkpoint_id: int | None = None
    failure: str = ""


@dataclass(frozen=True)
class Submission:
    """Request to start a job: from a jar, a compiled plan, a script, or the description of a deployment.

    Attributes:
        jar: local path of the jar, which is uploaded where its content is not there yet, or the address that a
            deployment fetches it from.
        plan: path or URI of a compiled plan of SQL, as the cluster sees it.
        script: text of a script of SQL that defines one job.
        image: image of the new job's container.
        entry_class: main class; by default that of the jar's manifest.
        arguments: program arguments.
        parallelism: parallelism of the job; by default that of the cluster.
        savepoint: snapshot that the job starts from, as the cluster sees it.
        allow_non_restored_state: whether state of operators that the job does not have is dropped.
        claim_mode: ownership of the snapshot.
        job_id: 32 hexadecimal digits: a second submission with the same id starts no second job. Needed by a caller
            that may have to repeat the submission.
        configuration: options of Flink for this job.
    """

    jar: str | None = None
    plan: str | None = None
    script: str | None = None
    image: str | None = None
    entry_class: str | None = None
    arguments: tuple[str, ...] = ()
    parallelism: int | None = None
    savepoint: str | None = None
    allow_non_restored_state: bool = False
    claim_mode: RestoreMode = RestoreMode.NO_CLAIM
    job_id: str | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobFailure:
    """A failure of a job that made it restart or end (`JobExceptionsInfoWithHistory`).

    Attributes:
        time: when.
        exception: class of the exception.
        stack: Flink's stack trace.
        task: name of the task with its subtask; empty where the job failed as a whole.
        location: host and port of its task manager; empty where it is not known.
    """

    time: datetime
    exception: str
    stack: str
    task: str = ""
    location: str = ""


class CheckpointStatus(StrEnum):
    """Status of a checkpoint (`CheckpointStatsStatus`)."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


@dataclass(frozen=True)
class CheckpointSubtask:
    """A subtask in a checkpoint.

    Attributes:
        index: index of the subtask.
        is_completed: whether it acknowledged.
        acknowledged: when.
        duration_ms: from the trigger to the acknowledgement.
        sync_ms: synchronous duration.
        async_ms: asynchronous duration.
        alignment_ms: duration of the alignment of barriers.
        start_delay_ms: time until the first barrier arrived.
        state_size: bytes of its state, also those that earlier checkpoints wrote.
        written_size: bytes that this checkpoint wrote.
        is_unaligned: whether its barriers overtook in-flight data.
        is_aborted: whether the subtask aborted the checkpoint.
    """

    index: int
    is_completed: bool
    acknowledged: datetime | None = None
    duration_ms: int | None = None
    sync_ms: int | None = None
    async_ms: int | None = None
    alignment_ms: int | None = None
    start_delay_ms: int | None = None
    state_size: int | None = None
    written_size: int | None = None
    is_unaligned: bool = False
    is_aborted: bool = False


@dataclass(frozen=True)
class CheckpointTask:
    """A task in a checkpoint.

    Attributes:
        vertex_id: id of the task.
        status: status of the checkpoint in this task.
        subtasks: number of its subtasks.
        acknowledged: number of subtasks that acknowledged.
        duration_ms: duration of its slowest subtask.
        state_size: bytes of its state.
        written_size: bytes that this checkpoint wrote.
        details: its subtasks; empty unless asked for.
    """

    vertex_id: str
    status: str
    subtasks: int
    acknowledged: int
    duration_ms: int | None
    state_size: int | None
    written_size: int | None
    details: tuple[CheckpointSubtask, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint or savepoint of a running job (`CheckpointStatistics`).

    Attributes:
        id: its id.
        status: its status.
        is_savepoint: whether it is a savepoint.
        kind: Flink's type, such as `CHECKPOINT`, `UNALIGNED_CHECKPOINT`, `SAVEPOINT`, `SYNC_SAVEPOINT`.
        triggered: time of the trigger.
        duration_ms: from the trigger to the last acknowledgement.
        state_size: bytes of its state, also those that earlier checkpoints wrote.
        written_size: bytes that it wrote.
        processed_data: bytes that were processed during the alignment.
        persisted_data: bytes of in-flight data in it.
        subtasks: number of subtasks that have to acknowledge.
        acknowledged: number of subtasks that have acknowledged.
        path: path of a completed one; empty where Flink names no path.
        failed: time of the failure; None if it has not failed.
        failure: Flink's message about the failure; empty if it has not failed.
        is_discarded: whether it was deleted again.
        tasks: its tasks; empty unless asked for.
    """

    id: int
    status: CheckpointStatus
    is_savepoint: bool
    kind: str
    triggered: datetime
    duration_ms: int | None = None
    state_size: int | None = None
    written_size: int | None = None
    processed_data: int | None = None
    persisted_data: int | None = None
    subtasks: int = 0
    acknowledged: int = 0
    path: str = ""
    failed: datetime | None = None
    failure: str = ""
    is_discarded: bool = False
    tasks: tuple[CheckpointTask, ...] = ()


@dataclass(frozen=True)
class CheckpointStatistics:
    """Statistics of the checkpoints of a job since its JobManager started.

    Attributes:
        completed: number of completed checkpoints and savepoints.
        failed: number of failed checkpoints and savepoints.
        in_progress: number of pending checkpoints and savepoints.
        restored: number of restores.
        restored_path: snapshot that the job was last restored from; empty if it was not restored.
        restored_id: id of that snapshot.
        history: the last checkpoints and savepoints (`web.checkpoints.history`), newest first.
        latest_completed: the last completed checkpoint, which may have left the history; savepoints do not count.
        latest_savepoint: the last completed savepoint, which may have left the history.
    """

    completed: int
    failed: int
    in_progress: int
    restored: int
    restored_path: str
    restored_id: int | None
    history: tuple[Checkpoint, ...]
    latest_completed: Checkpoint | None = None
    latest_savepoint: Checkpoint | None = None


@dataclass(frozen=True)
class VertexLoad:
    """Load of a task; a value is None if Flink does not report this metric.

    Attributes:
        vertex: the task.
        busy_ratio: share of time in which its busiest subtask is busy, 0 to 1.
        backpressured_ratio: highest share of time in which a subtask waits for downstream tasks, 0 to 1.
        pending_records: records that its source has not read yet, in all subtasks together (`pendingRecords`).
        watermark_ms: its lowest watermark.
    """

    vertex: JobVertex
    busy_ratio: float | None = None
    backpressured_ratio: float | None = None
    pending_records: int | None = None
    watermark_ms: int | None = None


@dataclass(frozen=True)
class JobLoad:
    """Metrics of a running job.

    Attributes:
        restarts: restarts since its JobManager started (`numRestarts`); None where it is not known.
        uptime_ms: time since the last restart; None where it is not known.
        vertices: load of its tasks.
    """

    restarts: int | None
    uptime_ms: int | None
    vertices: tuple[VertexLoad, ...]

    @property
    def pending_records(self) -> int | None:
        """Number of records that the sources have not read yet; None if no source reports it."""
        pending = [each.pending_records for each in self.vertices if each.pending_records is not None]
        return sum(pending) if pending else None


class FlinkCluster(Protocol):
    """Interface to a Flink cluster: its jobs, savepoints and checkpoints.

    Every method raises `ClusterError` where the cluster cannot be reached or refuses, `NotFoundError` for a job that it
    does not have, and `UnsupportedError` for what this kind of cluster cannot do.
    """

    @property
    def endpoint(self) -> str:
        """The address of the cluster, without secrets, for messages."""
        ...

    def describe(self) -> ClusterOverview:
        """Describe the cluster."""
        ...

    def list_jobs(self) -> tuple[JobOverview, ...]:
        """Return the jobs that the cluster knows, also those that ended, newest first."""
        ...

    def read_job(self, job_id: str) -> JobDetails:
        """Return a job with its tasks and settings."""
        ...

    def read_status(self, job_id: str) -> JobStatus:
        """Return the status of a job."""
        ...

    def trigger_savepoint(self, job_id: str, request: SavepointRequest) -> str:
        """Ask for a savepoint; return the trigger id to poll with."""
        ...

    def poll_savepoint(self, job_id: str, trigger_id: str) -> SavepointProgress:
        """Return the progress of a savepoint; raises `NotFoundError` if the cluster has forgotten the trigger."""
        ...

    def trigger_checkpoint(
        self, job_id: str, kind: CheckpointKind = CheckpointKind.CONFIGURED, trigger_id: str | None = None
    ) -> str:
        """Ask for a checkpoint; return the trigger id to poll with."""
        ...

    def poll_checkpoint(self, job_id: str, trigger_id: str) -> CheckpointProgress:
        """Return the progress of a checkpoint that was asked for."""
        ...

    def cancel(self, job_id: str) -> None:
        """Ask a job to end without a savepoint; it has ended once its status is terminal."""
        ...

    def start(self, submission: Submission) -> str:
        """Start a job; return its id. The job may not run yet, see `read_status`."""
        ...

    def read_exceptions(self, job_id: str) -> tuple[JobFailure, ...]:
        """Return the last failures of a job, newest first."""
        ...

    def read_checkpoints(self, job_id: str) -> CheckpointStatistics:
        """Return statistics of the checkpoints of a job; checkpoints in the history have no tasks."""
        ...

    def read_checkpoint(self, job_id: str, checkpoint_id: int, *, subtasks: bool = False) -> Checkpoint:
        """Return a checkpoint of the history with its tasks, and with their subtasks where asked for."""
        ...

    def read_load(self, job_id: str) -> JobLoad:
        """Return restarts, backpressure and lag of a running job."""
        ...

    def read_start(self, job_id: str) -> JobStart | None:
        """Return the durations of a running job's last start; None if they are unknown, or a task does not run yet."""
        ...


def find_job(cluster: FlinkCluster, name: str) -> JobOverview:
    """Find a job by its id or name; of several jobs of the name, take the one that has not ended, else the newest.

    Raises:
        NotFoundError: there is no such job.
        UsageError: several jobs of this name run.
    """
    jobs = cluster.list_jobs()
    found = [each for each in jobs if each.id == name.lower()] or [each for each in jobs if each.name == name]
    running = [each for each in found if not each.status.is_terminal]
    if len(running) > 1:
        ids = ", ".join(each.id for each in running)
        raise UsageError(
            f"{len(running)} jobs named {name} run at {cluster.endpoint}: {ids}", hint="Name the job by its id"
        )
    if not found:
        known = ", ".join(f"{each.name} ({each.id}, {each.status})" for each in jobs[:10])
        raise NotFoundError(
            f"no job {name} at {cluster.endpoint}",
            hint=f"It has {known}" if known else "It has no jobs: look whether this is the cluster of the job",
        )
    return (running or found)[0]


def runs_all_tasks(details: JobDetails) -> bool:
    """Return whether every task runs or has ended; the job itself is RUNNING already when it is scheduled."""
    return all(each.status in ("RUNNING", "FINISHED") for each in details.vertices)


POLL_SECONDS = 0.5
"""Seconds between two polls."""


def wait_for_savepoint(
    cluster: FlinkCluster,
    job_id: str,
    trigger_id: str,
    *,
    timeout_seconds: float,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> SavepointProgress:
    """Poll a savepoint until it is completed or has failed.

    Raises:
        ClusterError: the savepoint takes longer than the time-out; the cluster continues it.
    """
    deadline = clock() + timeout_seconds
    while (progress := cluster.poll_savepoint(job_id, trigger_id)).status is TriggerStatus.IN_PROGRESS:
        if clock() >= deadline:
            raise ClusterError(
                f"the savepoint of job {job_id} at {cluster.endpoint} is not completed after {timeout_seconds:g} s",
                hint=f"The cluster continues it as trigger {trigger_id}: wait longer, or look at the job's checkpoints",
                transient=True,
            )
        sleep(POLL_SECONDS)
    return progress
