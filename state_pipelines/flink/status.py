"""`status`: a running job with its checkpoints, their failures, what is wrong, and a picture.

Nothing is changed at the cluster. What a cluster cannot answer is a note, not an error.
"""

from __future__ import annotations

import io
import shlex
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from state_pipelines.errors import ClusterError, NotFoundError, StateError, UnsupportedError, UsageError
from state_pipelines.flink.checkpoint_failures import explain_checkpoint, find_root_cause
from state_pipelines.flink.cluster import CheckpointStatus, JobLoad, JobStatus, find_job
from state_pipelines.flink.connections import open_described
from state_pipelines.flink.health import (
    JOB_RUNS,
    STATE_HAS_ROOM,
    HealthCheck,
    HealthLimits,
    Level,
    StateGrowth,
    check_age,
    check_duration,
    check_failures,
    check_savepoint,
    check_state,
    measure_total,
    parse_limits,
    select_alike,
)
from state_pipelines.operations.inspect import inspect
from state_pipelines.snapshot import open_snapshot
from state_pipelines.snapshot.representation import format_bytes
from state_pipelines.storage import parse_path_mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.axes import Axes

    from state_pipelines.flink.checkpoint_failures import FailedCheckpoint
    from state_pipelines.flink.cluster import (
        Checkpoint,
        CheckpointSettings,
        CheckpointStatistics,
        FlinkCluster,
        JobDetails,
        JobFailure,
        JobOverview,
        JobVertex,
    )
    from state_pipelines.snapshot import Snapshot

_T = TypeVar("_T")
SLOWEST = 5
"""Number of subtasks that are listed as the slowest ones."""

_FAILED_IN_A_ROW = 2
_BUSY = 0.9
# Texts of Flink's errors for state that does not fit the program (`StateMigrationException`,
# `Checkpoints.loadAndValidateCheckpoint`).
_MISFITS = ("StateMigrationException", "serializer must", "There is no operator for the state")
# Texts of Flink's errors for state that cannot be read, such as missing or damaged files
# (`StreamTaskStateInitializerImpl`, `BackendRestorerProcedure`).
_RESTORES = ("Could not restore keyed state backend", "Could not restore operator state backend")


@dataclass(frozen=True)
class JobFinding:
    """A problem of a job, and its remedy.

    Attributes:
        level: its severity.
        what: what is wrong.
        remedy: what to do.
        command: the command that repairs it; empty if there is none.
    """

    level: Level
    what: str
    remedy: str = ""
    command: str = ""


@dataclass(frozen=True)
class CheckpointDurations:
    """Durations and sizes of the completed checkpoints of the history; savepoints do not count.

    Attributes:
        number: number of checkpoints.
        last_ms: duration of the last one.
        median_ms: the median.
        longest_ms: the longest.
        last_size: bytes of state of the last one.
        last_written: bytes that the last one wrote.
        last_persisted: bytes of in-flight data in the last one.
    """

    number: int
    last_ms: int | None
    median_ms: int | None
    longest_ms: int | None
    last_size: int | None
    last_written: int | None
    last_persisted: int | None


@dataclass(frozen=True)
class SlowSubtask:
    """A subtask in the newest checkpoint for which Flink has the subtasks.

    Attributes:
        task: name of its task.
        index: index of the subtask.
        is_completed: whether it acknowledged.
        duration_ms: from the trigger to the acknowledgement; None if it has not acknowledged.
        sync_ms: synchronous duration.
        async_ms: asynchronous duration.
        alignment_ms: duration of the alignment of barriers.
        start_delay_ms: time until the first barrier arrived.
        state_size: bytes of its state.
    """

    task: str
    index: int
    is_completed: bool
    duration_ms: int | None
    sync_ms: int | None
    async_ms: int | None
    alignment_ms: int | None
    start_delay_ms: int | None
    state_size: int | None


@dataclass(frozen=True)
class FailureCount:
    """Failures of a job that have the same root cause.

    Attributes:
        cause: the root cause.
        number: how many of the failures that Flink lists have it.
        last: time of the last one.
        task: the task that failed last with it; empty where the job failed as a whole.
        misfits: whether the cause is that the state does not fit the program.
        cannot_restore: whether the cause is that the state could not be restored for another reason.
    """

    cause: str
    number: int
    last: datetime
    task: str
    misfits: bool
    cannot_restore: bool


@dataclass(frozen=True)
class JobReport:
    """State of a job at one moment: load, checkpoints, failures, and what is wrong.

    Attributes:
        endpoint: address of the cluster.
        measured: time of the report.
        job: the job.
        vertices: its tasks.
        load: its restarts, backpressure and lag; None where the cluster does not say.
        settings: settings of its checkpoints; None if it takes none, or they are not known.
        counts: number of checkpoints by status; empty if they are not known.
        restored_path: snapshot that the job was last restored from; empty if it was not restored.
        newest: the newest completed checkpoint or savepoint; None without one.
        durations: durations of its checkpoints.
        failed: failed checkpoints of the history, newest first.
        failures: its last failures by root cause, newest first.
        slowest: subtasks of the newest checkpoint, slowest first.
        growth: growth of the state of each task since the oldest checkpoint of the history.
        operators: growth of the state of each operator, largest first, between the oldest and the newest checkpoint
            that still exist; empty unless asked for.
        total: growth of all state together; None without two checkpoints.
        history: checkpoints and savepoints that Flink still has, newest first.
        checks: limits of the job, and whether it keeps them.
        findings: what is wrong, most severe first.
        notes: what could not be found out, and why.
    """

    endpoint: str
    measured: datetime
    job: JobOverview
    vertices: tuple[JobVertex, ...]
    load: JobLoad | None
    settings: CheckpointSettings | None
    counts: dict[str, int]
    restored_path: str
    newest: Checkpoint | None
    durations: CheckpointDurations
    failed: tuple[FailedCheckpoint, ...]
    failures: tuple[FailureCount, ...]
    slowest: tuple[SlowSubtask, ...]
    growth: tuple[StateGrowth, ...]
    operators: tuple[StateGrowth, ...]
    total: StateGrowth | None
    history: tuple[Checkpoint, ...]
    checks: tuple[HealthCheck, ...]
    findings: tuple[JobFinding, ...]
    notes: tuple[str, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether no finding is an error."""
        return not any(each.level is Level.ERROR for each in self.findings)

    @property
    def newest_age(self) -> timedelta | None:
        """Time since the newest completed checkpoint was triggered; None without one."""
        return None if self.newest is None else max(timedelta(), self.measured - self.newest.triggered)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON; times in ISO 8601."""
        content = _to_json(asdict(self))
        assert isinstance(content, dict)
        age = self.newest_age
        return {
            **content,
            "is_healthy": self.is_healthy,
            "newest_age_seconds": None if age is None else age.total_seconds(),
        }


def status(
    job: str | FlinkCluster,
    name: str | None = None,
    *,
    operators: bool = False,
    open: Callable[[str], Snapshot] = open_snapshot,
    path_mapping: Sequence[str] = (),
    limits: HealthLimits | None = None,
    savepoint: datetime | None = None,
    now: datetime | None = None,
) -> JobReport:
    """Report the health of a running job: its checkpoints, failures, backpressure and limits.

    Args:
        job: the description of a job with its `cluster`, the address of a REST endpoint, or a cluster.
        name: name or id of the job at the cluster; by default that of the description, or the only one that runs.
        operators: also compare the oldest and the newest checkpoint that are still there, operator by operator.
        open: function that opens these two checkpoints.
        path_mapping: texts `FROM=TO`: a directory as the cluster names it, and its path from here; those of the
            description count as well.
        limits: limits beyond which the job is not well; by default `thresholds` of the description.
        savepoint: time of the newest known savepoint, which the cluster may not know any more.
        now: time from which ages are counted; by default the current time.

    Raises:
        ClusterError: the cluster cannot be reached or refuses.
        NotFoundError: the cluster has no such job.
        UsageError: the description names no cluster, or several jobs fit.
    """
    cluster, described = open_described(job) if isinstance(job, str) else (job, {})
    known = described.get("job") or described.get("name")
    found = _choose_job(cluster, name or (str(known) if known else None))
    kept = limits or parse_limits(described.get("thresholds"))
    mapped = (*_list_mappings(described), *path_mapping)
    revisions = _find_revisions(job, described)
    watcher = _Watcher(cluster, found, kept, savepoint, mapped, revisions, now or datetime.now(UTC))
    return watcher.report(open if operators else None)


def _list_mappings(described: Mapping[str, Any]) -> tuple[str, ...]:
    mapped = described.get("path_mapping") or ()
    return tuple(str(each) for each in ([mapped] if isinstance(mapped, str) else mapped))


def _find_revisions(job: str | FlinkCluster, described: Mapping[str, Any]) -> str:
    """Return the directory of revisions of a job, for use in a command line; empty without one."""
    revisions = described.get("migrations")
    if not isinstance(job, str) or not isinstance(revisions, str) or not revisions:
        return ""
    return revisions if ":/" in revisions else str(Path(job).parent / revisions)


def _choose_job(cluster: FlinkCluster, name: str | None) -> JobOverview:
    if name is not None:
        return find_job(cluster, name)
    jobs = cluster.list_jobs()
    running = [each for each in jobs if not each.status.is_terminal]
    if len(running) == 1 or (not running and len(jobs) == 1):
        return (running or jobs)[0]
    known = ", ".join(f"{each.name} ({each.id}, {each.status})" for each in (running or jobs)[:10])
    raise UsageError(
        f"{len(running)} jobs run at {cluster.endpoint}",
        hint=f"Name one with --job: {known}" if known else "Look whether this is the cluster of the job",
    )


class _Watcher:
    def __init__(
        self,
        cluster: FlinkCluster,
        job: JobOverview,
        limits: HealthLimits,
        savepoint: datetime | None,
        path_mapping: Sequence[str],
        revisions: str,
        now: datetime,
    ) -> None:
        self.cluster = cluster
        self.job = job
        self.limits = limits
        self.savepoint = savepoint
        self.path_mapping = path_mapping
        self.mapping = parse_path_mapping(path_mapping)
        self.revisions = revisions
        self.now = now
        self.notes: list[str] = []

    def attempt(self, what: str, call: Callable[[], _T]) -> _T | None:
        """Return the answer of a call; if it fails, note why, and return None."""
        try:
            return call()
        except UnsupportedError as error:
            self.notes.append(f"{what}: {error.what}")
        except NotFoundError:
            self.notes.append(f"{what}: the cluster has none")
        except ClusterError as error:
            # The job itself was found, so a later failure must not hide what is known of it.
            self.notes.append(f"{what}: {error.what}")
        return None

    def report(self, open: Callable[[str], Snapshot] | None) -> JobReport:
        identity = self.job.id
        details = self.attempt("tasks", lambda: self.cluster.read_job(identity))
        statistics = self.attempt("checkpoints", lambda: self.cluster.read_checkpoints(identity))
        failures = self.attempt("failures", lambda: self.cluster.read_exceptions(identity)) or ()
        load = None
        if not self.job.status.is_terminal:
            load = self.attempt("load", lambda: self.cluster.read_load(identity))
        history = statistics.history if statistics is not None else ()
        names = {each.id: each.name for each in details.vertices} if details is not None else {}
        done = [each for each in history if each.status is CheckpointStatus.COMPLETED]
        newest = _find_newest(statistics)
        failed = [each for each in history if each.status is CheckpointStatus.FAILED]
        slowest = self.attempt("slowest subtasks", lambda: self._find_slowest(history, names))
        growth = self.attempt("growth of state", lambda: self._measure_growth(done, names))
        explained = tuple(explain_checkpoint(each, failures) for each in failed)
        counted = _count_failures(failures)
        settings = details.checkpoints if details is not None else None
        durations = _measure_durations([each for each in done if not each.is_savepoint])
        total = measure_total(done)
        of_job = self._judge_job(counted, load, statistics)
        checks = [
            self._check_job(of_job),
            *self._check_checkpoints(statistics, settings, explained, durations),
            *self._check_state(statistics, total),
        ]
        findings = [
            *of_job,
            *self._judge_checkpoints(statistics, settings, details, explained),
            *(
                JobFinding(each.level, each.what, each.remedy)
                for each in checks[1:]
                if each.passed is False and not self.job.status.is_terminal
            ),
            *_judge_load(load),
        ]
        return JobReport(
            endpoint=self.cluster.endpoint,
            measured=self.now,
            job=self.job,
            vertices=details.vertices if details is not None else (),
            load=load,
            settings=settings,
            counts={}
            if statistics is None
            else {
                "completed": statistics.completed,
                "failed": statistics.failed,
                "in_progress": statistics.in_progress,
                "restored": statistics.restored,
            },
            restored_path=statistics.restored_path if statistics is not None else "",
            newest=newest,
            durations=durations,
            failed=explained,
            failures=counted,
            slowest=slowest or (),
            growth=growth or (),
            operators=() if open is None else self._compare_operators(done, open),
            total=total,
            history=tuple(history),
            checks=tuple(checks),
            findings=tuple(sorted(findings, key=lambda each: each.level is Level.WARNING)),
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _find_slowest(self, history: Sequence[Checkpoint], names: dict[str, str]) -> tuple[SlowSubtask, ...]:
        """Return the slowest subtasks of the newest checkpoint, which explain its duration or failure."""
        for each in history[:3]:
            if each.status is CheckpointStatus.IN_PROGRESS and len(history) > 1:
                continue
            try:
                details = self.cluster.read_checkpoint(self.job.id, each.id, subtasks=True)
            except NotFoundError:
                # Skip a checkpoint that Flink has removed from its history meanwhile.
                continue
            found = [
                SlowSubtask(
                    task=names.get(task.vertex_id, task.vertex_id),
                    index=subtask.index,
                    is_completed=subtask.is_completed,
                    duration_ms=subtask.duration_ms,
                    sync_ms=subtask.sync_ms,
                    async_ms=subtask.async_ms,
                    alignment_ms=subtask.alignment_ms,
                    start_delay_ms=subtask.start_delay_ms,
                    state_size=subtask.state_size,
                )
                for task in details.tasks
                for subtask in task.details
            ]
            if found:
                # Subtasks that have not acknowledged are the slowest of all.
                found.sort(key=lambda sub: (sub.is_completed, -(sub.duration_ms or 0)))
                return tuple(found[:SLOWEST])
        return ()

    def _measure_growth(self, done: Sequence[Checkpoint], names: dict[str, str]) -> tuple[StateGrowth, ...]:
        """Measure the growth of each task from the oldest to the newest snapshot of the same kind in the history."""
        alike = select_alike(done)
        if len(alike) < 2:
            return ()
        after = self._read_sizes(alike[0])
        for each in reversed(alike[1:]):
            try:
                before = self._read_sizes(each)
            except NotFoundError:
                # Skip a checkpoint that Flink has removed from its history meanwhile.
                continue
            hours = (alike[0].triggered - each.triggered) / timedelta(hours=1)
            return tuple(
                StateGrowth(names.get(vertex, vertex), before.get(vertex), after.get(vertex), hours)
                for vertex in dict.fromkeys((*after, *before))
            )
        return ()

    def _read_sizes(self, checkpoint: Checkpoint) -> dict[str, int | None]:
        tasks = self.cluster.read_checkpoint(self.job.id, checkpoint.id).tasks
        return {task.vertex_id: task.state_size for task in tasks}

    def _compare_operators(
        self, done: Sequence[Checkpoint], open: Callable[[str], Snapshot]
    ) -> tuple[StateGrowth, ...]:
        there = [each for each in done if each.path and not each.is_discarded and not each.is_savepoint]
        if len(there) < 2:
            self.notes.append(
                "growth of operators: fewer than two checkpoints are there, see execution.checkpointing.num-retained"
            )
            return ()
        hours = (there[0].triggered - there[-1].triggered) / timedelta(hours=1)
        try:
            older, newer = (open(self.mapping.apply(each.path)) for each in (there[-1], there[0]))
            return compare_operators(older, newer, hours)
        except StateError as error:
            self.notes.append(f"growth of operators: {error}")
            return ()

    def _judge_job(
        self, failures: Sequence[FailureCount], load: JobLoad | None, statistics: CheckpointStatistics | None
    ) -> list[JobFinding]:
        found = []
        newest = _find_newest(statistics)
        state = self.job.status
        if state in (JobStatus.FAILED, JobStatus.SUSPENDED):
            why = f": {failures[0].cause}" if failures else ""
            found.append(JobFinding(Level.ERROR, f"the job is {state}{why}", "Repair the cause, then start it again."))
        elif state in (JobStatus.CANCELED, JobStatus.FINISHED):
            found.append(
                JobFinding(Level.ERROR, f"the job is {state}", "Start it from its last savepoint or checkpoint.")
            )
        elif state is not JobStatus.RUNNING:
            why = f": {failures[0].cause}" if failures else ""
            found.append(JobFinding(Level.ERROR, f"the job is {state}, not running{why}"))
        for each in failures:
            # A later checkpoint shows that the job has recovered since.
            is_over = newest is not None and newest.triggered > each.last and state is JobStatus.RUNNING
            if (each.misfits or each.cannot_restore) and not is_over:
                found.append(self._explain_state_error(each, _find_restored(statistics)))
        restarts = load.restarts if load is not None else None
        if restarts and state is JobStatus.RUNNING:
            why = f"; last: {failures[0].cause}" if failures else ""
            found.append(
                JobFinding(Level.WARNING, f"the job has restarted {restarts} times{why}", "Repair what makes it fail.")
            )
        return found

    def _explain_state_error(self, failure: FailureCount, snapshot: str) -> JobFinding:
        """Describe a restart loop that an error of the state causes, with the command to run.

        The command is for this machine: it has the path of the snapshot from here, and `--map`, because `_metadata` has
        the paths of the cluster.
        """
        path = shlex.quote(self.mapping.apply(snapshot)) if snapshot else "SNAPSHOT"
        mapped = "".join(f" --map {shlex.quote(each)}" for each in self.path_mapping)
        if not failure.misfits:
            return JobFinding(
                Level.ERROR,
                f"its state cannot be restored: {failure.cause}",
                "See which files the snapshot lacks. Those that retention has moved come back with "
                "`state-pipelines retain --restore`; otherwise start the job from another snapshot.",
                f"state-pipelines verify {path}{mapped}",
            )
        if self.revisions:
            return JobFinding(
                Level.ERROR,
                f"its state does not fit its program: {failure.cause}",
                "Cancel the job, migrate the snapshot that it starts from, and start it from the result.",
                f"state-pipelines migrate {path} --migrations {shlex.quote(self.revisions)} --out MIGRATED{mapped}",
            )
        return JobFinding(
            Level.ERROR,
            f"its state does not fit its program: {failure.cause}",
            "See what does not fit, and draft the migration; then cancel the job, migrate the snapshot that it starts "
            "from, and start it from the result.",
            f"state-pipelines check {path} --jar NEW.jar --draft DIR{mapped}",
        )

    def _check_job(self, findings: Sequence[JobFinding]) -> HealthCheck:
        wrong = [each for each in findings if each.level is Level.ERROR]
        what = "; ".join(each.what for each in wrong)
        remedy = " ".join(each.remedy for each in wrong if each.remedy)
        return HealthCheck(JOB_RUNS, not wrong, Level.ERROR, 0.0, float(len(wrong)), "errors", what, remedy)

    def _check_checkpoints(
        self,
        statistics: CheckpointStatistics | None,
        settings: CheckpointSettings | None,
        failed: Sequence[FailedCheckpoint],
        durations: CheckpointDurations,
    ) -> list[HealthCheck]:
        """Make the checks of checkpoints; none for a job without periodic checkpoints."""
        if settings is None or settings.interval_ms is None:
            return []
        newest = _find_newest(statistics)
        remedy = _hint_of(failed)
        return [
            check_age(
                self.limits,
                now=self.now,
                interval_ms=settings.interval_ms,
                timeout_ms=settings.timeout_ms,
                newest=newest.triggered if newest is not None else None,
                started=self.job.started,
                remedy=remedy,
            ),
            check_failures(self.limits, statistics.history if statistics is not None else (), remedy),
            check_duration(self.limits, durations.median_ms, settings.interval_ms),
        ]

    def _check_state(self, statistics: CheckpointStatistics | None, total: StateGrowth | None) -> list[HealthCheck]:
        newest = _find_newest(statistics)
        taken = [self.savepoint, *(each.triggered for each in _list_savepoints(statistics))]
        return [
            each
            for each in (
                check_savepoint(
                    self.limits,
                    now=self.now,
                    newest=max((each for each in taken if each is not None), default=None),
                    started=self.job.started,
                ),
                check_state(self.limits, newest.state_size if newest is not None else None, total),
            )
            if each is not None
        ]

    def _judge_checkpoints(
        self,
        statistics: CheckpointStatistics | None,
        settings: CheckpointSettings | None,
        details: JobDetails | None,
        failed: Sequence[FailedCheckpoint],
    ) -> list[JobFinding]:
        if self.job.status.is_terminal:
            return []
        if settings is None or settings.interval_ms is None:
            if details is None:
                return []
            return [
                JobFinding(
                    Level.WARNING,
                    "the job takes no periodic checkpoints",
                    "Set execution.checkpointing.interval, or take savepoints on a schedule.",
                )
            ]
        history = statistics.history if statistics is not None else ()
        decided = [each for each in history if each.status is not CheckpointStatus.IN_PROGRESS]
        row = next((n for n, each in enumerate(decided) if each.status is CheckpointStatus.COMPLETED), len(decided))
        if not row or not failed:
            return []
        last = failed[0]
        why = f": {last.message}" + (f" ({last.job_failure})" if last.job_failure else "")
        level = Level.ERROR if row >= _FAILED_IN_A_ROW else Level.WARNING
        number = "the last checkpoint has failed" if row == 1 else f"the last {row} checkpoints have failed"
        return [JobFinding(level, f"{number}{why}", last.remedy)]


def _find_newest(statistics: CheckpointStatistics | None) -> Checkpoint | None:
    """Return the newest completed checkpoint or savepoint; it may have left the history."""
    if statistics is None:
        return None
    found = [each for each in statistics.history if each.status is CheckpointStatus.COMPLETED]
    found += [statistics.latest_completed] if statistics.latest_completed is not None else []
    return max(found, key=lambda each: each.triggered, default=None)


def _list_savepoints(statistics: CheckpointStatistics | None) -> list[Checkpoint]:
    """Return the completed savepoints that Flink knows; the latest one may have left the history."""
    if statistics is None:
        return []
    found = [each for each in statistics.history if each.is_savepoint and each.status is CheckpointStatus.COMPLETED]
    return found + ([statistics.latest_savepoint] if statistics.latest_savepoint is not None else [])


def _find_restored(statistics: CheckpointStatistics | None) -> str:
    """Return the snapshot from which the job restarts: its newest checkpoint, or the one it was started with."""
    if statistics is None:
        return ""
    newest = _find_newest(statistics)
    return (newest.path if newest is not None else "") or statistics.restored_path


def _hint_of(failed: Sequence[FailedCheckpoint]) -> str:
    return failed[0].remedy if failed else "Look at the log of the JobManager."


def _judge_load(load: JobLoad | None) -> list[JobFinding]:
    if load is None:
        return []
    waiting = [each for each in load.vertices if (each.backpressured_ratio or 0) > _BUSY]
    busy = [each for each in load.vertices if (each.busy_ratio or 0) > _BUSY]
    if not waiting:
        return []
    names = ", ".join(each.vertex.name for each in waiting)
    because = ", ".join(each.vertex.name for each in busy)
    return [
        JobFinding(
            Level.WARNING,
            f"backpressure in {names}" + (f", since {because} is busy all the time" if because else ""),
            "Give the busy task more parallelism, or look for skewed keys: `state-pipelines inspect --balance`.",
        )
    ]


def _count_failures(failures: Sequence[JobFailure]) -> tuple[FailureCount, ...]:
    counted: dict[str, FailureCount] = {}
    for each in failures:
        cause = find_root_cause(each.stack) or each.exception
        if cause in counted:
            counted[cause] = replace(counted[cause], number=counted[cause].number + 1)
            continue
        misfits = any(words in each.stack for words in _MISFITS)
        cannot_restore = not misfits and any(words in each.stack for words in _RESTORES)
        counted[cause] = FailureCount(cause, 1, each.time, each.task, misfits, cannot_restore)
    return tuple(counted.values())


def _measure_durations(done: Sequence[Checkpoint]) -> CheckpointDurations:
    durations = sorted(each.duration_ms for each in done if each.duration_ms is not None)
    last = done[0] if done else None
    return CheckpointDurations(
        number=len(done),
        last_ms=last.duration_ms if last is not None else None,
        median_ms=durations[len(durations) // 2] if durations else None,
        longest_ms=durations[-1] if durations else None,
        last_size=last.state_size if last is not None else None,
        last_written=last.written_size if last is not None else None,
        last_persisted=last.persisted_data if last is not None else None,
    )


def compare_operators(older: Snapshot, newer: Snapshot, hours: float) -> tuple[StateGrowth, ...]:
    """Measure the growth of the state of each operator between two snapshots, by the sizes in their handles.

    Args:
        older: a checkpoint or savepoint.
        newer: a later one of the same job.
        hours: hours between the two snapshots.

    Raises:
        StateError: one of the snapshots cannot be read.
    """
    sizes: list[dict[str, int]] = []
    names: dict[str, str] = {}
    for each in (older, newer):
        operators = inspect(each, count=False).operators
        sizes.append({operator.id: operator.bytes for operator in operators})
        names |= {operator.id: operator.uid or operator.name or operator.id for operator in operators}
    order = sorted(names, key=lambda each: -(sizes[1].get(each, 0)))
    return tuple(StateGrowth(names[each], sizes[0].get(each), sizes[1].get(each), hours) for each in order)


def _to_json(value: object) -> object:
    if isinstance(value, dict):
        return {str(name): _to_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return value


_DAY = 86_400
_WIDTH, _HEIGHT = 9.0, 5.0
_DONE, _FAILED, _STATE, _LIMIT = "#3b6ea5", "#c0392b", "#d9822b", "#444444"


def draw_health(report: JobReport) -> bytes:
    """Draw the checkpoints that Flink still has as a PNG; return nothing unless two of them are completed or failed."""
    decided = [each for each in report.history if each.status is not CheckpointStatus.IN_PROGRESS]
    if len(decided) < 2:
        return b""
    from matplotlib import rc_context  # imported on use: it takes half a second
    from matplotlib.figure import Figure

    # Names of jobs must not be parsed as formulas.
    with rc_context({"text.parse_math": False, "font.size": 9}):
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        figure.suptitle(f"Checkpoints of {report.job.name}", fontsize=11)
        durations, sizes = figure.subplots(2, 1, sharex=True)
        _draw_durations(durations, report)
        _draw_sizes(sizes, report)
        sizes.xaxis_date(UTC)
        sizes.set_xlabel("UTC")
        output = io.BytesIO()
        figure.savefig(output, format="png", dpi=100)
    return output.getvalue()


def _list_times(checkpoints: Sequence[Checkpoint]) -> list[float]:
    # Days since 1970, as matplotlib counts them (`matplotlib.dates`).
    return [each.triggered.timestamp() / _DAY for each in checkpoints]


def _draw_durations(axes: Axes, report: JobReport) -> None:
    for status, color, label in (
        (CheckpointStatus.COMPLETED, _DONE, "completed"),
        (CheckpointStatus.FAILED, _FAILED, "failed"),
    ):
        found = [each for each in report.history if each.status is status and each.duration_ms is not None]
        if found:
            seconds = [(each.duration_ms or 0) / 1000 for each in found]
            axes.plot(_list_times(found), seconds, "o", color=color, label=label, markersize=4)
    interval = report.settings.interval_ms if report.settings is not None else None
    if interval is not None:
        axes.axhline(interval / 1000, color=_LIMIT, linestyle="--", linewidth=0.8, label="interval")
    axes.set_ylabel("duration, s")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", fontsize=8)


def _draw_sizes(axes: Axes, report: JobReport) -> None:
    done = [each for each in report.history if each.status is CheckpointStatus.COMPLETED]
    sized = [each for each in select_alike(done) if each.state_size is not None]
    if sized:
        sizes = [each.state_size or 0 for each in sized]
        axes.plot(_list_times(sized), sizes, "o-", color=_STATE, markersize=4)
    limit = next((each.expected for each in report.checks if each.name == STATE_HAS_ROOM), None)
    if limit is not None:
        axes.axhline(limit, color=_LIMIT, linestyle="--", linewidth=0.8, label="max_state_size")
        axes.legend(loc="upper left", fontsize=8)
    axes.set_ylabel("state")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, position: format_bytes(round(value)))
