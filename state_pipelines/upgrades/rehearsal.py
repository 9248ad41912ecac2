"""Rehearsals: the upgrade of a job on a savepoint that is taken while the job runs on, measured."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from state_pipelines.errors import ClusterError, ProofError, StateError
from state_pipelines.flink.cluster import POLL_SECONDS, JobStatus, find_job, runs_all_tasks
from state_pipelines.storage import join, resolve
from state_pipelines.storage.files import is_directory, remove_directory, remove_file
from state_pipelines.upgrades.state_changes import (
    locate_plan,
    make_submission,
    map_to_cluster,
    plan_change,
    prepare_change,
    stage_plan,
    write_change,
)
from state_pipelines.upgrades.upgrade_plan import check_clusters, check_job, predict_down_time, take_savepoint
from state_pipelines.upgrades.upgrade_records import find_records
from state_pipelines.upgrades.upgrade_request import UpgradeRequest, load_upgrade_request
from state_pipelines.upgrades.upgrade_run import connect_clusters, connect_spare, describe_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from state_pipelines.flink.cluster import FlinkCluster
    from state_pipelines.upgrades.state_changes import StateChange
    from state_pipelines.upgrades.upgrade_plan import DownTime


@dataclass(frozen=True)
class RehearsalReport:
    """Result of a rehearsal.

    Attributes:
        job: name of the job.
        refusals: why the upgrade would fail; empty if it would not.
        change: verdict on the state, and the changes that it needs; None where they could not be determined.
        savepoint: the savepoint that was taken, as the cluster names it.
        state_size: bytes of its state; None where the cluster does not say.
        savepoint_seconds: duration of the savepoint.
        change_seconds: wall time of each operation with its proof.
        start_seconds: seconds until the new program ran on the cluster of rehearsals; None without such a cluster.
        down_time: predicted down time of an upgrade; None if it would be refused.
        finished: ISO time.
    """

    job: str
    refusals: tuple[str, ...]
    change: StateChange | None
    savepoint: str
    state_size: int | None
    savepoint_seconds: float | None
    change_seconds: Mapping[str, float]
    start_seconds: float | None
    down_time: DownTime | None
    finished: str

    @property
    def ok(self) -> bool:
        """Whether the upgrade would succeed, as far as the rehearsal has seen."""
        return not self.refusals

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON; later plans read it from the records."""
        return {
            "job": self.job,
            "ok": self.ok,
            "refusals": list(self.refusals),
            "change": None if self.change is None else self.change.describe(),
            "savepoint": self.savepoint,
            "state_size": self.state_size,
            "savepoint_seconds": self.savepoint_seconds,
            "change_seconds": sum(self.change_seconds.values()) if self.ok else None,
            "operations": dict(self.change_seconds),
            "start_seconds": self.start_seconds,
            "down_time": None if self.down_time is None else self.down_time.to_json(),
            "finished": self.finished,
        }

    def list_lines(self) -> list[str]:
        """Return the report as lines of text; the first line is the answer."""
        answer = "would succeed" if self.ok else "would be refused"
        lines = [
            f"the upgrade of {self.job} {answer}; the job runs on",
            *(f"refused: {each}" for each in self.refusals),
        ]
        if self.change is not None:
            lines.append(f"verdict: {self.change.verdict}; {', '.join(self.change.needs)}")
            lines += [f"revision: {each}" for each in self.change.revisions]
        if self.savepoint:
            size = "" if self.state_size is None else f", {self.state_size:,} bytes of state"
            lines.append(f"savepoint: {self.savepoint}{size}")
        lines += [f"{name}: {seconds:.1f} s with its proof" for name, seconds in self.change_seconds.items()]
        if self.change_seconds:
            lines.append("the upgrade reuses no file of the rehearsal: it takes a savepoint of its own")
        if self.start_seconds is not None:
            lines.append(f"the new program ran after {self.start_seconds:.1f} s on the cluster of rehearsals")
        if self.down_time is not None:
            lines.append(f"predicted down time: {self.down_time.seconds:.1f} s")
        return lines


def rehearse(
    job: UpgradeRequest | str,
    *,
    clusters: tuple[FlinkCluster, FlinkCluster] | None = None,
    spare: FlinkCluster | None = None,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    report: Callable[[str], object] = lambda text: None,
) -> RehearsalReport:
    """Rehearse an upgrade: take a savepoint, check it, write and prove the changed state, and remove that state again.

    Args:
        job: the job, or the path of its `JOB.yaml`.
        clusters: clusters of the old and of the new program; by default those that the job names.
        spare: a cluster on which the new program is restored from the changed state, with the arguments of rehearsals;
            the program is cancelled once it has completed a checkpoint. By default the cluster of `upgrade.rehearsal`,
            if any.
        sleep: waits between two polls.
        clock: monotonic clock, in seconds.
        report: gets a line for each step.

    Raises:
        ClusterError: a cluster cannot be reached, or the savepoint failed.
        NotFoundError: the cluster has no such job.
        StateError: the records cannot be read or written.
    """
    request = load_upgrade_request(job) if isinstance(job, str) else job
    old, new = clusters or connect_clusters(request)
    spare = spare or connect_spare(request)
    records = find_records(request.results, request.name)
    found = find_job(old, request.job)
    refusals = [*check_job(found), *check_clusters(request, old, new)]
    result = RehearsalReport(request.name, tuple(refusals), None, "", None, None, {}, None, None, "")
    mark = f"rehearsal-{uuid4().hex[:12]}"
    if not refusals:
        report("savepoint …")
        result = _rehearse(request, old, found.id, spare, mark, result, sleep, clock, report)
    result = replace(result, finished=datetime.now(UTC).isoformat(timespec="seconds"))
    records.write_rehearsal(result.to_json())
    if result.change is not None and result.ok:
        predicted = predict_down_time(
            request,
            old,
            found.id,
            result.change,
            records,
            state_size=result.state_size,
            savepoint_seconds=result.savepoint_seconds,
        )
        result = replace(result, down_time=predicted)
        records.write_rehearsal(result.to_json())
    return result


def _rehearse(
    request: UpgradeRequest,
    cluster: FlinkCluster,
    job: str,
    spare: FlinkCluster | None,
    mark: str,
    result: RehearsalReport,
    sleep: Callable[[float], object],
    clock: Callable[[], float],
    report: Callable[[str], object],
) -> RehearsalReport:
    try:
        taken, snapshot = take_savepoint(request, cluster, job, sleep=sleep)
        seconds = None if taken.duration_ms is None else taken.duration_ms / 1000
        result = replace(result, savepoint=taken.path, state_size=taken.state_size, savepoint_seconds=seconds)
        report("check …")
        change = plan_change(request, snapshot)
        result = replace(result, change=change)
        if change.is_refused:
            return replace(result, refusals=change.reasons)
        report("change …")
        prepare_change(request, change)
        written = write_change(request, change, snapshot, mark)
        result = replace(result, change_seconds=written.seconds)
        if spare is not None:
            report("start …")
            path = map_to_cluster(request, written.path) if change.writes else taken.path
            plan = stage_plan(request, mark)
            result = replace(result, start_seconds=_restore(request, spare, path, plan, sleep, clock))
    except ProofError as error:
        return replace(result, refusals=(f"the proof fails: {error}",))
    except ClusterError:
        raise
    except StateError as error:
        return replace(result, refusals=(str(error),))
    finally:
        _remove_results(request, mark)
    return result


def _restore(
    request: UpgradeRequest,
    spare: FlinkCluster,
    path: str,
    plan: str,
    sleep: Callable[[float], object],
    clock: Callable[[], float],
) -> float:
    """Restore the new program on a spare cluster; return the seconds until it ran.

    Raises:
        StateError: the new program does not run, or completes no checkpoint.
    """
    settings = request.settings
    program = settings.new
    if settings.rehearsal.arguments is not None:
        program = program.model_copy(update={"arguments": settings.rehearsal.arguments})
    job = uuid4().hex
    started = clock()
    try:
        spare.start(make_submission(request, program, path, job, plan=plan))
        running: float | None = None
        while True:
            status = spare.read_status(job)
            failures = spare.read_exceptions(job)
            if failures or (status.is_terminal and status is not JobStatus.FINISHED):
                raise StateError(
                    "the new program does not run from the savepoint that the rehearsal prepared: "
                    f"{describe_failure(failures)}"
                )
            if status is JobStatus.RUNNING and running is None and runs_all_tasks(spare.read_job(job)):
                running = clock()
            if running is not None and spare.read_checkpoints(job).completed > 0:
                return running - started
            if status is JobStatus.FINISHED:
                return clock() - started
            if clock() - started > settings.watch.total_seconds():
                raise StateError(
                    f"the new program is {status} after {settings.watch.total_seconds():g} s, without a checkpoint"
                )
            sleep(POLL_SECONDS)
    finally:
        if any(each.id == job and not each.status.is_terminal for each in spare.list_jobs()):
            spare.cancel(job)


def _remove_results(request: UpgradeRequest, mark: str) -> None:
    for operation in ("migrate", "rescale", "convert"):
        directory = join(resolve(request.results), f"{mark}-{operation}")
        if is_directory(directory):
            remove_directory(directory)
    if request.settings.new.plan.endswith(".sql"):
        remove_file(locate_plan(request, mark))
