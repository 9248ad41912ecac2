"""A Flink in memory that obeys `FlinkCluster`, with snapshots of the tree as its savepoints.

Time passes only while somebody waits. Programs behave as the name of their jar says: `fails.jar`, `fails-later.jar`,
`restarts.jar`, `stuck.jar` (no checkpoints), `lags.jar`, `rejected.jar`; all others are healthy.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from state_pipelines.errors import ClusterError, NotFoundError
from state_pipelines.flink.cluster import (
    Checkpoint,
    CheckpointKind,
    CheckpointProgress,
    CheckpointStatistics,
    CheckpointStatus,
    ClusterOverview,
    JobDetails,
    JobFailure,
    JobLoad,
    JobOverview,
    JobStart,
    JobStatus,
    JobVertex,
    SavepointProgress,
    SavepointRequest,
    Submission,
    TriggerStatus,
    VertexLoad,
)

START = datetime(2026, 1, 1, tzinfo=UTC)


class Killed(BaseException):
    """The process was killed; nothing may catch it."""


@dataclass
class Fuse:
    """Kills the process at one of the points that it passes.

    Attributes:
        last: number of the point; None to go through all of them.
        passed: labels of the points that were passed.
    """

    last: int | None = None
    passed: list[str] = field(default_factory=list)

    def burn(self, label: str) -> None:
        self.passed.append(label)
        if self.last is not None and len(self.passed) > self.last:
            raise Killed(label)


@dataclass
class MemoryJob:
    """A job.

    Attributes:
        seconds: for which it has run.
    """

    id: str
    name: str
    program: str
    status: JobStatus = JobStatus.RUNNING
    restored: str = ""
    seconds: float = 0.0
    failure: str = ""
    restarts: int = 0
    savepoints: list[Checkpoint] = field(default_factory=list)


class MemoryCluster:
    """A session cluster with one job of the program `old.jar`."""

    endpoint = "memory://cluster"

    def __init__(self, snapshot: Path, fuse: Fuse | None = None, *, seen_as: tuple[str, str] | None = None) -> None:
        self.snapshot = snapshot
        self.fuse = fuse or Fuse()
        self.now = 0.0
        self.jobs: dict[str, MemoryJob] = {"a" * 32: MemoryJob("a" * 32, "orders", "old.jar")}
        self.operations: dict[str, SavepointProgress] = {}
        self.submissions: list[Submission] = []
        self.cancelled: list[str] = []
        self.stopped: list[str] = []
        # Hooks of single tests.
        self.savepoint_failure = ""
        self.is_slow = False
        self.forgets_triggers = False
        self.has_history = True
        self.faults: list[tuple[str, ClusterError, bool]] = []
        self.broken: dict[str, str] = {}
        self.seen_as = seen_as
        self.version = "2.2.1"
        self.can_submit = True
        self.sql_obstacle = ""
        self.timed: JobStart | None = None
        self.restore_seconds = 0.0

    # Time.

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for job in self.jobs.values():
            if job.status is JobStatus.RUNNING:
                job.seconds += seconds
                self._behave(job)

    def clock(self) -> float:
        return self.now

    def _behave(self, job: MemoryJob) -> None:
        program = self.broken.get(job.program, job.program)
        if program == "fails.jar" or (program == "fails-later.jar" and job.seconds > 1):
            job.status = JobStatus.FAILED
            job.failure = "java.lang.RuntimeException: outer\nCaused by: java.lang.IllegalStateException: broken"
        elif program == "restarts.jar" and job.seconds > 1:
            job.restarts = 1

    @property
    def running(self) -> list[MemoryJob]:
        return [each for each in self.jobs.values() if not each.status.is_terminal]

    # Verbs.

    def describe(self) -> ClusterOverview:
        return ClusterOverview(self.endpoint, self.version, 4, 2, 1, self.can_submit, sql_obstacle=self.sql_obstacle)

    def list_jobs(self) -> tuple[JobOverview, ...]:
        self._fail("list_jobs", is_done=False)
        return tuple(JobOverview(each.id, each.name, each.status) for each in self.jobs.values())

    def read_job(self, job_id: str) -> JobDetails:
        job = self._job(job_id)
        status = "RUNNING" if job.seconds >= self.restore_seconds else "INITIALIZING"
        vertex = JobVertex("v", "source", 1, 128, status)
        return JobDetails(JobOverview(job.id, job.name, job.status), (vertex,), 128, {}, None, {})

    def read_status(self, job_id: str) -> JobStatus:
        self._fail("read_status", is_done=False)
        return self._job(job_id).status

    def trigger_savepoint(self, job_id: str, request: SavepointRequest) -> str:
        self._fail("trigger", is_done=False)
        self.fuse.burn("before the trigger")
        job, trigger = self._job(job_id), request.trigger_id or f"trigger-{len(self.operations)}"
        if trigger not in self.operations:
            self.operations[trigger] = self._take(job, request)
        self.fuse.burn("after the trigger")
        self._fail("trigger", is_done=True)
        return trigger

    def _take(self, job: MemoryJob, request: SavepointRequest) -> SavepointProgress:
        if self.savepoint_failure:
            return SavepointProgress(TriggerStatus.FAILED, failure=self.savepoint_failure)
        assert request.directory is not None
        path = f"{request.directory}/savepoint-{len(job.savepoints)}-{job.id[:6]}"
        here = path.replace(*self.seen_as) if self.seen_as else path
        shutil.copytree(self.snapshot, here)
        number = len(job.savepoints) + 1
        job.savepoints.insert(
            0,
            Checkpoint(
                number,
                CheckpointStatus.COMPLETED,
                is_savepoint=True,
                kind="SAVEPOINT",
                triggered=START + timedelta(seconds=self.now),
                duration_ms=1500,
                state_size=1000,
                path=path,
            ),
        )
        if request.stop:
            job.status = JobStatus.FINISHED
            self.stopped.append(job.id)
        return SavepointProgress(TriggerStatus.COMPLETED, path)

    def poll_savepoint(self, job_id: str, trigger_id: str) -> SavepointProgress:
        self._fail("poll", is_done=False)
        if trigger_id not in self.operations or self.forgets_triggers:
            raise NotFoundError("no such trigger")
        return SavepointProgress(TriggerStatus.IN_PROGRESS) if self.is_slow else self.operations[trigger_id]

    def trigger_checkpoint(
        self, job_id: str, kind: CheckpointKind = CheckpointKind.CONFIGURED, trigger_id: str | None = None
    ) -> str:
        raise NotImplementedError

    def poll_checkpoint(self, job_id: str, trigger_id: str) -> CheckpointProgress:
        raise NotImplementedError

    def cancel(self, job_id: str) -> None:
        self._fail("cancel", is_done=False)
        self.fuse.burn("before the cancellation")
        self._job(job_id).status = JobStatus.CANCELED
        self.cancelled.append(job_id)
        self.fuse.burn("after the cancellation")

    def start(self, submission: Submission) -> str:
        self._fail("start", is_done=False)
        self.fuse.burn("before the submission")
        assert submission.job_id is not None
        program = Path(submission.jar or submission.plan or "script").name
        if self.broken.get(program, program) == "rejected.jar":
            raise ClusterError("the jar has no main class")
        if submission.job_id not in self.jobs:
            assert not self.running, "two jobs would run"
            assert submission.savepoint is not None
            here = submission.savepoint.replace(*self.seen_as) if self.seen_as else submission.savepoint
            assert (Path(here.removeprefix("file:")) / "_metadata").is_file()
            self.submissions.append(submission)
            self.jobs[submission.job_id] = MemoryJob(
                submission.job_id, "orders", program, restored=submission.savepoint
            )
        self.fuse.burn("after the submission")
        self._fail("start", is_done=True)
        return submission.job_id

    def read_exceptions(self, job_id: str) -> tuple[JobFailure, ...]:
        job = self._job(job_id)
        return (JobFailure(START, job.failure.partition(":")[0], job.failure),) if job.failure else ()

    def read_checkpoints(self, job_id: str) -> CheckpointStatistics:
        self._fail("read_checkpoints", is_done=False)
        job = self._job(job_id)
        is_stuck = self.broken.get(job.program, job.program) == "stuck.jar"
        completed = 0 if is_stuck else int(job.seconds)
        return CheckpointStatistics(
            completed, 0, 0, 1, job.restored, None, tuple(job.savepoints) if self.has_history else ()
        )

    def read_checkpoint(self, job_id: str, checkpoint_id: int, *, subtasks: bool = False) -> Checkpoint:
        raise NotImplementedError

    def read_load(self, job_id: str) -> JobLoad:
        job = self._job(job_id)
        pending = int(job.seconds * 100) if job.program == "lags.jar" else 0
        vertex = JobVertex("v", "source", 1, 128, "RUNNING")
        return JobLoad(job.restarts, None, (VertexLoad(vertex, pending_records=pending),))

    def read_start(self, job_id: str) -> JobStart | None:
        self._job(job_id)
        return self.timed

    def _job(self, job_id: str) -> MemoryJob:
        if job_id not in self.jobs:
            raise NotFoundError(f"no job {job_id}")
        return self.jobs[job_id]

    def _fail(self, verb: str, *, is_done: bool) -> None:
        for fault in self.faults:
            if fault[0] == verb and fault[2] is is_done:
                self.faults.remove(fault)
                raise fault[1]
