"""`upgrade`: a running job from its old program to the new one, step by step, or back.

Until the job has stopped, a failure leaves it as it is. After that the old program is started again from its savepoint
whatever has failed, unless the new one runs. A step first looks which of the jobs of the upgrade there are, by their
ids, and then acts; so no job is started twice.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from state_pipelines.errors import ClusterError, NotFoundError, StateError, StorageError, UsageError
from state_pipelines.flink.checkpoint_failures import find_root_cause
from state_pipelines.flink.cluster import POLL_SECONDS, JobStatus, SavepointRequest, TriggerStatus, runs_all_tasks
from state_pipelines.flink.connections import connect
from state_pipelines.operations.retention import pin_snapshot, unpin_snapshot
from state_pipelines.storage import Location, resolve
from state_pipelines.storage.locations import is_below
from state_pipelines.storage.snapshot_writer import find_snapshots
from state_pipelines.upgrades.state_changes import (
    make_submission,
    map_from_cluster,
    map_to_cluster,
    open_state,
    plan_change,
    prepare_change,
    stage_old_plan,
    stage_plan,
    write_change,
)
from state_pipelines.upgrades.upgrade_plan import plan_upgrade
from state_pipelines.upgrades.upgrade_records import (
    LeaseLostError,
    Step,
    UpgradeOutcome,
    UpgradeRecord,
    find_records,
    hold_lease,
)
from state_pipelines.upgrades.upgrade_reports import UpgradeReport, report_plan, report_record, report_undecided
from state_pipelines.upgrades.upgrade_request import UpgradeRequest, fingerprint, load_upgrade_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.flink.cluster import CheckpointStatistics, FlinkCluster, JobFailure, JobLoad, SavepointProgress
    from state_pipelines.upgrades.state_changes import StateChange
    from state_pipelines.upgrades.upgrade_plan import UpgradePlan
    from state_pipelines.upgrades.upgrade_records import Lease, RecordDirectory
    from state_pipelines.upgrades.upgrade_request import Program

Answer = TypeVar("Answer")

_TRIGGERS = 3
"""Maximum number of requests for the savepoint while their answers are lost."""

_FORGOTTEN = (
    "the cluster does not know the requested savepoint, as happens when another JobManager becomes leader, and the job "
    "runs on: run the upgrade again"
)

_EXPLANATIONS = 10
"""Maximum number of requests for the exception of a failed job."""

FORWARD = (Step.STOP, Step.CHECK, Step.CHANGE, Step.START, Step.WATCH)
"""The steps of an upgrade that succeeds."""


class UndecidedError(StateError):
    """Raised when it is unknown which program runs: the cluster or the storage of the record cannot be reached."""


class _NotStoppedError(StateError):
    """The savepoint failed, and the job runs on."""


class _GoneError(StateError):
    """The job has ended without the savepoint of the upgrade."""


class UpgradeRun:
    """An upgrade of a job by this process, which holds the lease of the job.

    Attributes:
        record: record of what has been done; it is stored whenever a method returns.
    """

    def __init__(
        self,
        request: UpgradeRequest,
        old: FlinkCluster,
        new: FlinkCluster,
        records: RecordDirectory,
        lease: Lease,
        record: UpgradeRecord,
        *,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        report: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.record = record
        self._request = request
        self._settings = request.settings
        self._old = old
        self._new = new
        self._records = records
        self._lease = lease
        self._sleep = sleep
        self._clock = clock
        self._report = report
        self._change: StateChange | None = None
        self._submitted: float | None = None

    @property
    def new_job(self) -> str:
        """Id of the job of the new program."""
        return self.record.make_id("new")

    @property
    def returned_job(self) -> str:
        """Id of the job of the old program after the return to it."""
        return self.record.make_id("old")

    @property
    def savepoint(self) -> str:
        """Path of the savepoint that the job was stopped with, as the cluster names it; empty before the stop."""
        return str(self.record.get(Step.STOP).get("savepoint", ""))

    def finish(self) -> UpgradeRecord:
        """Take all steps that are left, and decide whether the new program stays or the old one comes back.

        Raises:
            UndecidedError: it cannot be seen what runs; the next run continues.
            LeaseLostError: another process has taken over.
        """
        for step in FORWARD:
            self.advance(step)
        return self.decide()

    def advance(self, step: Step) -> None:
        """Take a step, unless it was taken or an earlier one has failed.

        Raises:
            UndecidedError: it cannot be seen what runs.
            LeaseLostError: another process has taken over.
        """
        if self.record.outcome is not None or self.record.get(Step.BACK) or self.record.is_done(step):
            return
        actions = {
            Step.STOP: self._stop,
            Step.CHECK: self._check,
            Step.CHANGE: self._write,
            Step.START: self._start,
            Step.WATCH: self._watch,
        }
        self._report(f"{step} …")
        try:
            actions[step]()
        except (UndecidedError, LeaseLostError):
            raise
        except _NotStoppedError as error:
            self._decide(UpgradeOutcome.NOT_STOPPED, str(error))
        except _GoneError as error:
            self._decide(UpgradeOutcome.NOTHING_RUNS, str(error))
        except Exception as error:
            reason = str(error) if isinstance(error, StateError) else f"{type(error).__name__}: {error}"
            if step is Step.STOP:
                if not self.record.get(step):
                    self._decide(UpgradeOutcome.NOT_STOPPED, reason)
                    return
                # Without an answer it is unknown whether the job will stop.
                raise UndecidedError(
                    f"it is unknown whether the job will stop: no answer about its savepoint ({reason})"
                ) from error
            # The job is down: after any error, the old program must run again.
            self._report(f"{step} failed: {reason}")
            self._note(Step.BACK, failed=str(step), reason=reason)

    def decide(self) -> UpgradeRecord:
        """Decide the upgrade: it is done, or the old program is started again.

        Raises:
            UndecidedError: it cannot be seen what runs; the next run continues.
            LeaseLostError: another process has taken over.
        """
        if self.record.outcome is not None:
            return self.record
        if self.record.get(Step.BACK):
            self._go_back()
        elif self.record.is_done(Step.WATCH):
            self._decide(UpgradeOutcome.UPGRADED, "")
        else:
            raise UndecidedError("the upgrade has not ended", hint="Run it again, which continues it")
        return self.record

    # Step: stop the old job with a savepoint.

    def _stop(self) -> None:
        change = self._plan_again()
        if change is not None:
            prepare_change(self._request, change)
        attempt = int(self.record.get(Step.STOP).get("attempt", 0))
        if attempt and self._follow_stop(attempt):
            return
        attempt += 1
        planned = self.record.plan.get("change") or {}
        old_plan = stage_old_plan(self._request, self.record.name) if planned.get("is_compiled") else ""
        self._note(Step.STOP, attempt=attempt, requested=_now(), old_plan=old_plan)
        self._lease.require_held()
        wanted = SavepointRequest(
            directory=self._find_directory(attempt),
            format=self._settings.savepoint_format,
            stop=True,
            drain=self._settings.drain,
            trigger_id=self.record.make_id("stop", attempt),
        )
        started = self._clock()
        for _ in range(_TRIGGERS):
            try:
                # With the same id, a second request takes no second savepoint.
                self._old.trigger_savepoint(self.record.old_job, wanted)
                break
            except NotFoundError:
                # The job has ended meanwhile: `_follow_stop` finds out how.
                break
            except StateError as error:
                if not getattr(error, "is_in_doubt", False):
                    raise _NotStoppedError(f"the savepoint was refused: {error}") from error
                self._sleep(POLL_SECONDS)
        if not self._follow_stop(attempt, started):
            raise _NotStoppedError(self.record.get(Step.STOP).get("failure") or "the savepoint was not taken")

    def _follow_stop(self, attempt: int, started: float | None = None) -> bool:
        """Wait for the savepoint of an attempt; return False if there is none and the job runs on."""
        job = self.record.old_job
        progress = self._wait_for_stop(attempt)
        if progress is None or progress.status is TriggerStatus.FAILED:
            status = self._find_recovered(job)
            if status is not None and not status.is_terminal:
                failure = _FORGOTTEN if progress is None else progress.failure.partition("\n")[0]
                self._note(Step.STOP, failure=failure)
                return False
            path = self._find_savepoint(attempt)
        else:
            path = progress.path
            self._wait_for_end(self._old, job)
        seconds = None if started is None else round(self._clock() - started, 3)
        self._note(Step.STOP, savepoint=path, seconds=seconds, done=True)
        self._pin(path)
        return True

    def _find_recovered(self, job: str) -> JobStatus | None:
        """Return the status of a job; None if the cluster still does not know the job after some time.

        A new leader of the cluster may need this time to recover its jobs.
        """
        deadline = self._clock() + self._settings.start_timeout.total_seconds()
        while (status := self._find_status(self._old, job)) is None and self._clock() < deadline:
            self._sleep(POLL_SECONDS)
        return status

    def _wait_for_stop(self, attempt: int) -> SavepointProgress | None:
        """Wait for the savepoint of an attempt; None if the cluster has forgotten the trigger, or never got it.

        Raises:
            UndecidedError: it takes too long, and the job may stop later.
        """
        job, trigger = self.record.old_job, self.record.make_id("stop", attempt)
        timeout = self._settings.savepoint_timeout.total_seconds()
        deadline = self._clock() + timeout
        while True:
            try:
                progress = self._ask(lambda: self._old.poll_savepoint(job, trigger), f"job {job} stops")
            except NotFoundError:
                return None
            if progress.status is not TriggerStatus.IN_PROGRESS:
                return progress
            if self._clock() >= deadline:
                raise UndecidedError(
                    f"the savepoint is not completed after {timeout:g} s, and job {job} stops as soon as it is",
                    hint="Run the upgrade again, which waits for it, or raise savepoint_timeout",
                )
            self._sleep(POLL_SECONDS)

    def _find_directory(self, attempt: int) -> str:
        """Return the directory of savepoints of one attempt; each has its own, so that they cannot be confused."""
        overview = self._ask(self._old.describe, "the job is stopped")
        if overview.stop_directory is not None:
            # A cluster with a fixed directory stores the path of the savepoint itself, so the attempts can share it.
            return overview.stop_directory
        return f"{self._settings.savepoints.rstrip('/')}/{self.record.name}/{attempt}"

    def _find_savepoint(self, attempt: int) -> str:
        """Find the savepoint of an attempt whose answer was lost, after the job has ended.

        Raises:
            _GoneError: there is not exactly one savepoint.
        """
        directory = self._find_directory(attempt)
        found = list(find_snapshots(resolve(map_from_cluster(self._request, directory))))
        if len(found) != 1:
            raise _GoneError(
                f"job {self.record.old_job} has ended, and {directory} holds "
                f"{'no savepoint' if not found else f'{len(found)} savepoints'}",
                hint="Start the old program from its newest checkpoint (`state-pipelines verify` finds it)",
            )
        return f"{directory}/{found[0].location.directory.name}"

    # Steps: check the savepoint, and write the changed state.

    def _check(self) -> None:
        started = self._clock()
        snapshot = open_state(self._request, self.savepoint)
        change = self._change = plan_change(self._request, snapshot)
        if change.is_refused:
            raise UsageError("the savepoint does not restore in the new program: " + "; ".join(change.reasons))
        planned = self.record.plan.get("change") or {}
        more = [str(each) for each in change.needs if str(each) not in planned.get("needs", [])]
        if more:
            raise UsageError(f"the savepoint needs changes that are not in the plan: {', '.join(more)}")
        self._note(Step.CHECK, change=change.to_json(), seconds=self._measure(started), done=True)

    def _measure(self, started: float) -> float:
        return round(self._clock() - started, 3)

    def _write(self) -> None:
        started = self._clock()
        snapshot = open_state(self._request, self.savepoint)
        change = self._change or plan_change(self._request, snapshot)
        self._lease.require_held()
        written = write_change(self._request, change, snapshot, self.record.name)
        path = map_to_cluster(self._request, written.path) if change.writes else self.savepoint
        plan = stage_plan(self._request, self.record.name)
        self._note(
            Step.CHANGE,
            path=path,
            plan=plan,
            seconds=dict(written.seconds),
            elapsed=self._measure(started) if len(written.seconds) == len(change.writes) else None,
            proofs=dict(written.proofs),
            done=True,
        )
        if change.writes:
            self._pin(path)

    def _plan_again(self) -> StateChange | None:
        """Plan the change again, to prepare it; return None on an error, which the check of the savepoint reports."""
        checked = self.record.plan.get("checked") or {}
        try:
            return plan_change(self._request, open_state(self._request, str(checked.get("path", ""))))
        except StateError:
            return None

    # Steps: start the new job, and watch it.

    def _start(self) -> None:
        if self._find_status(self._new, self.new_job) is None:
            for cluster in {id(each): each for each in (self._old, self._new)}.values():
                self._require_ended(cluster)
            if self.record.plan.get("programs") != fingerprint(self._request.describe_change()):
                raise UsageError(
                    "a program or its settings have changed since the plan: the changed program was not checked"
                )
            self._note(Step.START, job=self.new_job, requested=_now())
            changed = self.record.get(Step.CHANGE)
            plan = str(changed.get("plan", ""))
            self._submitted = self._clock()
            self._submit(self._new, self._settings.new, str(changed["path"]), self.new_job, plan)
            self._note(Step.START, job=self.new_job, seconds=self._measure(self._submitted), done=True)
            return
        self._note(Step.START, job=self.new_job, done=True)

    def _submit(self, cluster: FlinkCluster, program: Program, snapshot: str, job: str, plan: str = "") -> None:
        """Start a job, and wait until the cluster knows it.

        Raises:
            ClusterError: the cluster refuses the job, or does not know it in time.
        """
        self._lease.require_held()
        failure: ClusterError | None = None
        name = str(self.record.plan.get("job_name", ""))
        submission = make_submission(self._request, program, snapshot, job, job_name=name, plan=plan)
        try:
            cluster.start(submission)
        except ClusterError as error:
            failure = error
        deadline = self._clock() + self._settings.start_timeout.total_seconds()
        while self._find_status(cluster, job) is None:
            if failure is not None and not failure.is_in_doubt:
                raise failure
            if self._clock() >= deadline:
                raise failure or ClusterError(f"{cluster.endpoint} does not know job {job} that it was to start")
            self._sleep(POLL_SECONDS)

    def _watch(self) -> None:
        job = self.new_job
        running: float | None = None
        timeout = self._settings.watch.total_seconds()
        deadline = self._clock() + timeout
        first_lag: int | None = None
        while True:
            status = self._find_status(self._new, job)
            if status is None:
                raise ClusterError(f"{self._new.endpoint} has lost job {job}")
            if status is JobStatus.FINISHED:
                self._note(Step.WATCH, ended="the job has finished by itself", done=True)
                return
            self._require_healthy(job, status)
            statistics, load = self._read_progress(job)
            if load is not None and load.restarts:
                failures = self._find_failures(job)
                raise ClusterError(f"job {job} of the new program has restarted: {describe_failure(failures)}")
            if load is not None and running is None and status is JobStatus.RUNNING and self._runs_all_tasks(job):
                running, first_lag = self._clock(), load.pending_records
            lag = None if load is None else load.pending_records
            grows = first_lag is not None and lag is not None and lag > first_lag
            completed = 0 if statistics is None else statistics.completed
            if completed >= self._settings.checkpoints and running is not None and not grows:
                self._note(
                    Step.WATCH,
                    checkpoints=completed,
                    start_seconds=self._measure_start(running),
                    pending_records=lag,
                    done=True,
                )
                return
            if self._clock() >= deadline:
                what = f"its lag grows from {first_lag} to {lag} records" if grows else f"it is {status}"
                raise ClusterError(
                    f"job {job} of the new program has completed {completed} of "
                    f"{self._settings.checkpoints} checkpoints after {timeout:g} s, and {what}"
                )
            self._sleep(POLL_SECONDS)

    def _read_progress(self, job: str) -> tuple[CheckpointStatistics | None, JobLoad | None]:
        """Return statistics and load of the new job; None while the cluster knows no more of it than its status."""
        try:
            return (
                self._ask(lambda: self._new.read_checkpoints(job), f"job {job} runs"),
                self._ask(lambda: self._new.read_load(job), f"job {job} runs"),
            )
        except NotFoundError:
            return None, None

    def _runs_all_tasks(self, job: str) -> bool:
        return runs_all_tasks(self._ask(lambda: self._new.read_job(job), f"job {job} runs"))

    def _measure_start(self, running: float) -> float | None:
        """Return the seconds from the submission until all tasks ran; None if they are not known.

        Args:
            running: time at which this process saw that all tasks ran. If another process submitted the job, Flink's
                times are used.
        """
        if self._submitted is not None:
            return round(running - self._submitted, 3)
        submission = self.record.get(Step.START).get("seconds")
        try:
            timed = self._new.read_start(self.new_job)
        except StateError:
            timed = None
        return None if timed is None or submission is None else round(float(submission) + timed.seconds, 3)

    def _require_healthy(self, job: str, status: JobStatus) -> None:
        failures = self._ask(lambda: self._new.read_exceptions(job), f"job {job} runs")
        is_bad = status.is_terminal or status in (JobStatus.FAILING, JobStatus.RESTARTING, JobStatus.CANCELLING)
        if failures or is_bad:
            failures = failures or self._find_failures(job)
            raise ClusterError(f"job {job} of the new program is {status}: {describe_failure(failures)}")

    def _find_failures(self, job: str) -> tuple[JobFailure, ...]:
        """Return the failures of a failed job; wait, because Flink lists them a moment after the status has changed."""
        for _ in range(_EXPLANATIONS):
            if failures := self._ask(lambda: self._new.read_exceptions(job), f"job {job} runs"):
                return failures
            self._sleep(POLL_SECONDS)
        return ()

    # Step: return to the old program.

    def _go_back(self) -> None:
        self._report("back to the old program …")
        if self.record.get(Step.START):
            self._end(self._new, self.new_job)
        self._require_ended(self._old)
        job = self.returned_job
        reason = str(self.record.get(Step.BACK)["reason"])
        status = self._find_status(self._old, job)
        if status is None:
            self._note(Step.BACK, job=job, requested=_now())
            try:
                plan = str(self.record.get(Step.STOP).get("old_plan", ""))
                self._submit(self._old, self._settings.old, self.savepoint, job, plan)
            except ClusterError as error:
                if error.transient or error.is_in_doubt:
                    raise UndecidedError(f"it is unknown whether the old program was started: {error}") from error
                self._decide(UpgradeOutcome.NOTHING_RUNS, f"{reason}. The old program was not started: {error}")
                return
        problem = self._watch_return(job)
        if self.record.get(Step.START):
            # End the new job: a submission whose answer was lost may have started it since.
            self._end(self._new, self.new_job)
        if problem:
            self._decide(UpgradeOutcome.NOTHING_RUNS, f"{reason}. The old program does not come back: {problem}")
        else:
            self._decide(UpgradeOutcome.WENT_BACK, reason)

    def _watch_return(self, job: str) -> str:
        """Wait until the old program has a checkpoint, or the time is over.

        Return why the old program does not run; an empty text if it runs or has finished.
        """
        deadline = self._clock() + self._settings.watch.total_seconds()
        while True:
            status = self._find_status(self._old, job)
            if status is JobStatus.FINISHED:
                return ""
            if status is None or status.is_terminal:
                failures = (
                    () if status is None else self._ask(lambda: self._old.read_exceptions(job), f"job {job} runs")
                )
                return f"job {job} is {status or 'gone'}: {describe_failure(failures)}"
            if status is JobStatus.RUNNING and self._has_checkpoint(job):
                return ""
            if self._clock() >= deadline:
                if status is JobStatus.RUNNING:
                    return ""
                return f"job {job} is {status}; cancel it before you start another one"
            self._sleep(POLL_SECONDS)

    def _has_checkpoint(self, job: str) -> bool:
        try:
            return self._ask(lambda: self._old.read_checkpoints(job), f"job {job} runs").completed > 0
        except NotFoundError:
            # The job takes no checkpoints, or the cluster has only its status yet.
            return False

    def _end(self, cluster: FlinkCluster, job: str) -> None:
        """Cancel a job that has not ended, and wait until it has."""
        status = self._find_status(cluster, job)
        if status is None or status.is_terminal:
            return
        self._lease.require_held()
        try:
            cluster.cancel(job)
        except NotFoundError:
            return
        except ClusterError as error:
            if not (error.is_in_doubt or error.transient):
                raise UndecidedError(f"job {job} of the new program could not be cancelled: {error}") from error
        self._wait_for_end(cluster, job)

    def _wait_for_end(self, cluster: FlinkCluster, job: str) -> None:
        """Wait until a job has ended.

        Raises:
            UndecidedError: the job does not end in time.
        """
        timeout = self._settings.start_timeout.total_seconds()
        deadline = self._clock() + timeout
        while (status := self._find_status(cluster, job)) is not None and not status.is_terminal:
            if self._clock() >= deadline:
                raise UndecidedError(
                    f"job {job} at {cluster.endpoint} is still {status} after {timeout:g} s",
                    hint="Run the upgrade again, which continues it, or raise start_timeout",
                )
            self._sleep(POLL_SECONDS)

    # Helpers of all steps.

    def _find_status(self, cluster: FlinkCluster, job: str) -> JobStatus | None:
        """Return the status of a job; None if the cluster does not have it.

        Raises:
            UndecidedError: the cluster did not answer until the time of the watch was over.
        """
        try:
            return self._ask(lambda: cluster.read_status(job), f"job {job} runs")
        except NotFoundError:
            return None

    def _ask(self, call: Callable[[], Answer], what: str) -> Answer:
        """Call a cluster; repeat the call as long as the cluster cannot be reached.

        Raises:
            NotFoundError: the cluster does not have the job.
            UndecidedError: the cluster did not answer until the time of the watch was over.
        """
        deadline = self._clock() + self._settings.watch.total_seconds()
        while True:
            try:
                return call()
            except ClusterError as error:
                if not error.transient or self._clock() >= deadline:
                    raise UndecidedError(f"it is unknown whether {what}: {error}") from error
            self._sleep(POLL_SECONDS)

    def _require_ended(self, cluster: FlinkCluster) -> None:
        """Make sure that neither the old job nor another one of its name runs."""
        ours = (self.new_job, self.returned_job)
        name = self.record.plan.get("job_name")
        for each in self._ask(cluster.list_jobs, "the job runs"):
            is_same = each.id == self.record.old_job or (each.name == name and each.id not in ours)
            if is_same and not each.status.is_terminal:
                raise UndecidedError(
                    f"job {each.id} ({each.name}) is still {each.status} at {cluster.endpoint}, so no program is "
                    "started",
                    hint="Cancel that job and run the upgrade again; or, to give the upgrade up, move its record away",
                )

    def _note(self, step: Step, **outcome: Any) -> None:
        self._keep(self.record.note(step, **outcome))

    def _keep(self, record: UpgradeRecord) -> None:
        try:
            self._lease.require_held()
            self._records.write(record)
        except StorageError as error:
            raise UndecidedError(f"the record of the upgrade cannot be written: {error}") from error
        self.record = record

    def _decide(self, outcome: UpgradeOutcome, reason: str) -> None:
        self._keep(replace(self.record, outcome=outcome, reason=reason))
        if outcome is not UpgradeOutcome.NOTHING_RUNS:
            for path in self._list_pinned():
                self._change_pin(path, is_pinned=False)

    def _list_pinned(self) -> list[str]:
        return list(self.record.get(Step.STOP).get("pinned", ()))

    def _pin(self, path: str) -> None:
        """Pin a savepoint of the upgrade; a failure is only reported, because the job is down and must run again."""
        if self._change_pin(path, is_pinned=True):
            self._note(Step.STOP, pinned=[*self._list_pinned(), path])

    def _change_pin(self, path: str, *, is_pinned: bool) -> bool:
        here = map_from_cluster(self._request, path)
        try:
            snapshot = resolve(here)
            root = self._find_root(snapshot)
            if root is None:
                return False
            if is_pinned:
                pin_snapshot(root, str(snapshot), reason=f"upgrade {self.record.id} of {self.record.job}")
            else:
                unpin_snapshot(root, str(snapshot))
        except StateError as error:
            self._report(f"note: {path} could not be {'pinned' if is_pinned else 'unpinned'}: {error}")
            return False
        return True

    def _find_root(self, snapshot: Location) -> Location | None:
        """Return the directory of retention (`roots`) that a snapshot is below; None if it is below none."""
        given = (*self._request.roots, map_from_cluster(self._request, self._settings.savepoints))
        roots = [resolve(each) for each in (*given, self._request.results)]
        return next((each for each in roots if is_below(snapshot.path, each.path)), None)


def describe_failure(failures: tuple[JobFailure, ...]) -> str:
    """Return the reason of the newest failure in one line: the innermost cause that Flink names."""
    if not failures:
        return "Flink names no exception"
    return find_root_cause(failures[0].stack) or failures[0].exception


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def connect_clusters(request: UpgradeRequest) -> tuple[FlinkCluster, FlinkCluster]:
    """Connect to the cluster of the old program and to that of the new one, which may be the same.

    Raises:
        UsageError: a setting is wrong.
    """
    directory = Path(request.directory)
    old = connect(request.cluster, directory)
    return old, connect(request.settings.cluster, directory) if request.settings.cluster else old


def connect_spare(request: UpgradeRequest) -> FlinkCluster | None:
    """Connect to the cluster of rehearsals; None without one.

    Raises:
        UsageError: a setting is wrong.
    """
    settings = request.settings.rehearsal.cluster
    return connect(settings, Path(request.directory)) if settings else None


def upgrade(
    job: UpgradeRequest | str,
    *,
    clusters: tuple[FlinkCluster, FlinkCluster] | None = None,
    approve: str | None = None,
    plan_only: bool = False,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    report: Callable[[str], object] = lambda text: None,
) -> UpgradeReport:
    """Upgrade a running job, or continue an upgrade that was interrupted.

    Args:
        job: the job, or the path of its `JOB.yaml`.
        clusters: clusters of the old and of the new program; by default those that the job names.
        approve: fingerprint of the plan that may be carried out whatever the policy of the job says.
        plan_only: stop nothing, and report what would happen.
        sleep: waits between two polls.
        clock: monotonic clock, in seconds.
        report: gets a line for each step.

    Raises:
        UsageError: the job is not described completely, or another process upgrades it.
        NotFoundError: the cluster has no such job.
        ClusterError: the cluster cannot be reached, before anything was stopped.
        StateError: records or revisions cannot be read.
    """
    request = load_upgrade_request(job) if isinstance(job, str) else job
    old, new = clusters or connect_clusters(request)
    records = find_records(request.results, request.name)
    if plan_only:
        unfinished = records.find_unfinished()
        if unfinished is not None:
            raise UsageError(
                f"an upgrade of {request.name} has not ended yet ({unfinished.id})",
                hint="Run it without --plan, which continues it",
            )
        return report_plan(request, plan_upgrade(request, old, new, records, sleep=sleep), is_wanted=True)
    with hold_lease(records.location, request.name) as lease:
        record, plan = records.find_unfinished(), None
        if record is None:
            done = find_done(request, new, records)
            if done is not None:
                return report_record(request, done, None)
            plan = plan_upgrade(request, old, new, records, sleep=sleep)
            refusal = refuse_plan(request, plan, records, approve)
            if refusal is not None:
                return refusal
            record = begin_record(plan, records)
        run = UpgradeRun(request, old, new, records, lease, record, sleep=sleep, clock=clock, report=report)
        require_same_programs(request, record)
        try:
            return report_record(request, run.finish(), plan)
        except UndecidedError as error:
            return report_undecided(request, run.record, error, plan)


def refuse_plan(
    request: UpgradeRequest, plan: UpgradePlan, records: RecordDirectory, approve: str | None
) -> UpgradeReport | None:
    """Return a report on why a plan is not carried out; None if it is carried out.

    Raises:
        UsageError: another plan was approved.
        StorageError: the approval cannot be read or written.
    """
    if plan.refusals:
        return report_plan(request, plan, is_wanted=False)
    if approve is not None:
        if approve != plan.fingerprint:
            raise UsageError(
                f"the plan has changed: its fingerprint is {plan.fingerprint}, not {approve} as approved",
                hint=f"Read it again: state-pipelines upgrade {request.file} --plan",
            )
        records.approve(approve, "the command")
    elif plan.to_approve and not records.is_approved(plan.fingerprint):
        return report_plan(request, plan, is_wanted=False)
    return None


def find_done(request: UpgradeRequest, cluster: FlinkCluster, records: RecordDirectory) -> UpgradeRecord | None:
    """Find the upgrade that has started the very program that is asked for; None unless its job runs.

    Raises:
        ClusterError: the cluster cannot be reached.
        StateError: a record or a jar cannot be read.
    """
    last = records.find_last()
    if last is None or last.outcome is not UpgradeOutcome.UPGRADED:
        return None
    if last.plan.get("programs") != fingerprint(request.describe_change()):
        return None
    try:
        status = cluster.read_status(last.make_id("new"))
    except NotFoundError:
        return None
    return None if status.is_terminal else last


def begin_record(plan: UpgradePlan, records: RecordDirectory) -> UpgradeRecord:
    """Write the record of a new upgrade.

    Raises:
        StorageError: the storage refuses.
    """
    number = len(records.list_records())
    mark = fingerprint([plan.job, plan.old_job, plan.fingerprint, number])[:12]
    created = datetime.now(UTC).isoformat(timespec="microseconds")
    record = UpgradeRecord(mark, plan.job, created, plan.old_job, plan.fingerprint, plan.to_json())
    records.write(record)
    return record


def require_same_programs(request: UpgradeRequest, record: UpgradeRecord) -> None:
    """Make sure that an upgrade is continued with the programs that it was begun with.

    Raises:
        UsageError: the programs are not those of the plan.
    """
    if record.plan.get("programs") != fingerprint(request.describe_change()):
        raise UsageError(
            f"upgrade {record.id} of {record.job}, begun {record.created}, has not ended, and it was planned with "
            "other programs (jar, arguments, plan, revision or release differ)",
            hint="Continue it with the description of the job that it was begun with",
        )
