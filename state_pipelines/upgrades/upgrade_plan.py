"""The plan of an upgrade: changes of state, savepoint, and down time, predicted before and measured after.

* `DownTime`, `predict_down_time`, `measure_down_time`: down time is predicted from earlier measurements, and measured
  from the record of an upgrade. A figure comes from the best source that there is: a rehearsal, the start of the
  running job as its cluster has timed it, an earlier upgrade of the job; else it is assumed. The prediction says which.
* `UpgradePlan`, `plan_upgrade`: the plan; `check_job`, `check_clusters`: its preconditions.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import ClusterError, MissingFileError, NotFoundError, SnapshotGoneError, StateError
from state_pipelines.flink.cluster import (
    Checkpoint,
    CheckpointStatus,
    JobStatus,
    SavepointRequest,
    TriggerStatus,
    find_job,
    wait_for_savepoint,
)
from state_pipelines.operations.inspect import inspect
from state_pipelines.operations.migration.history import RevisionDirectory
from state_pipelines.upgrades.state_changes import map_from_cluster, open_state, plan_change
from state_pipelines.upgrades.upgrade_records import Step, UpgradeOutcome
from state_pipelines.upgrades.upgrade_request import Need, fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from state_pipelines.flink.cluster import FlinkCluster, JobOverview
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.upgrades.state_changes import StateChange
    from state_pipelines.upgrades.upgrade_records import RecordDirectory, UpgradeRecord
    from state_pipelines.upgrades.upgrade_request import UpgradeRequest

START_SECONDS = 10.0
"""Assumed time between a submission and the moment at which all tasks run, without the restore of the state."""

SUBMISSION_SECONDS = 1.5
"""Assumed time of the upload of a jar and of its main program."""

RESTORED_BYTES_PER_SECOND = 5e6
"""Assumed speed at which a subtask restores a savepoint of many small values."""

OPERATION_SECONDS = 1.0
"""Assumed time of a migration, a rescaling or a conversion of nearly no state; Spark starts before the job stops."""

WRITTEN_BYTES_PER_SECOND = 20e6
"""Assumed speed of a migration, a rescaling or a conversion with its proof on one machine."""

_LEAST_SHARE = 0.1
"""Smallest ratio of the restored state to the state now for which the duration of that restore predicts the next
one."""


@dataclass(frozen=True)
class DownTime:
    """Predicted time in which the job is down.

    Attributes:
        savepoint: seconds of the savepoint.
        change: seconds of the migration and the other operations, with their proofs.
        start: seconds from the submission until all tasks of the new job run, which is after they restored the state.
        sources: for each of these numbers, the measurement or assumption that it comes from.
    """

    savepoint: float
    change: float
    start: float
    sources: Mapping[str, str]

    @property
    def seconds(self) -> float:
        """The whole down time in seconds."""
        return self.savepoint + self.change + self.start

    def to_json(self) -> dict[str, object]:
        """Return the prediction as JSON."""
        return {
            "seconds": round(self.seconds, 1),
            "savepoint": round(self.savepoint, 1),
            "change": round(self.change, 1),
            "start": round(self.start, 1),
            "sources": dict(self.sources),
        }


def predict_down_time(
    request: UpgradeRequest,
    cluster: FlinkCluster,
    job: str,
    change: StateChange,
    records: RecordDirectory,
    *,
    state_size: int | None,
    savepoint_seconds: float | None,
) -> DownTime:
    """Predict the time in which a job is down.

    Args:
        request: the job.
        cluster: cluster of the running job.
        job: id of the job at the cluster.
        change: planned change of its state.
        records: records of earlier upgrades and rehearsals.
        state_size: bytes of its state; None where the cluster does not say.
        savepoint_seconds: duration of its newest savepoint; None before there was one.

    Raises:
        StateError: the records cannot be read.
    """
    past = _Past(records.read_rehearsal(), records.list_records(), state_size or 0)
    seconds, changed = past.predict_change(change)
    start, started = past.find_rehearsed_start() or _predict_start(request, cluster, job, past)
    sources = {
        "savepoint": "not known" if savepoint_seconds is None else "duration of the newest savepoint",
        "change": changed,
        "start": started,
    }
    return DownTime(savepoint_seconds or 0.0, seconds, start, sources)


@dataclass(frozen=True)
class _Past:
    """Measurements of a job: its last rehearsal, its upgrades (the oldest first), and the present size of its state."""

    rehearsal: Mapping[str, Any]
    upgrades: Sequence[UpgradeRecord]
    size: int

    def predict_change(self, change: StateChange) -> tuple[float, str]:
        if not change.writes:
            return 0.0, "nothing is written"
        rehearsal = self.rehearsal
        if rehearsal.get("change") == change.describe() and rehearsal.get("change_seconds") is not None:
            seconds = float(rehearsal["change_seconds"]) * self._compare(rehearsal.get("state_size"))
            return seconds, f"rehearsal of {rehearsal['finished']}"
        for record in reversed(self.upgrades):
            taken = record.get(Step.CHANGE).get("seconds") or {}
            if sorted(taken) == sorted(change.writes):
                size = (record.plan.get("checked") or {}).get("state_size")
                seconds = sum(float(each) for each in taken.values()) * self._compare(size)
                return seconds, f"upgrade of {record.created[:19]}"
        seconds = len(change.writes) * (OPERATION_SECONDS + self.size / WRITTEN_BYTES_PER_SECOND)
        return seconds, "assumed speed, not rehearsed"

    def find_rehearsed_start(self) -> tuple[float, str] | None:
        seconds = self.rehearsal.get("start_seconds")
        if seconds is None:
            return None
        ratio = self._compare(self.rehearsal.get("state_size"))
        return float(seconds) * ratio, f"rehearsal of {self.rehearsal['finished']}"

    def find_last(self, step: Step, name: str) -> float | None:
        """Return the last measurement of a step; None if there is none."""
        found = (each.get(step).get(name) for each in reversed(self.upgrades))
        return next((float(each) for each in found if each is not None), None)

    def _compare(self, size: object) -> float:
        """Return the ratio of the state's size now to an earlier `size`; 1 if either is not known."""
        return self.size / size if self.size and isinstance(size, int) and size else 1.0


def _predict_start(request: UpgradeRequest, cluster: FlinkCluster, job: str, past: _Past) -> tuple[float, str]:
    """Predict the start of the new job from that of the running one, or from the last upgrade."""
    try:
        timed = cluster.read_start(job)
    except StateError:
        timed = None
    if timed is None:
        seconds = past.find_last(Step.WATCH, "start_seconds")
        if seconds is not None:
            return seconds, "last upgrade"
        return START_SECONDS + _assume_restore(past.size, request.settings.new.parallelism or 1), "assumed"
    submission = past.find_last(Step.START, "seconds") or SUBMISSION_SECONDS
    restore, source = timed.restore_seconds, "start of the running job"
    restored = _measure_restored(request, cluster, job)
    if restored is not None and restored >= past.size * _LEAST_SHARE:
        restore *= past.size / restored if restored and past.size else 1.0
        source += ", its restore in proportion to the state"
    elif restored is not None:
        restore = _assume_restore(past.size, request.settings.new.parallelism or timed.parallelism)
        source += ", which had less state: the restore is assumed"
    return submission + timed.seconds - timed.restore_seconds + restore, source


def _assume_restore(size: int, parallelism: int) -> float:
    return size / (RESTORED_BYTES_PER_SECOND * parallelism)


def _measure_restored(request: UpgradeRequest, cluster: FlinkCluster, job: str) -> int | None:
    """Return the bytes of state that the running job was restored from: 0 without a snapshot, None if it is gone."""
    try:
        path = cluster.read_checkpoints(job).restored_path
        if not path:
            return 0
        return sum(each.bytes for each in inspect(open_state(request, path), count=False).operators)
    except StateError:
        return None


def measure_down_time(record: UpgradeRecord) -> float | None:
    """Return the seconds from the request for the savepoint until all tasks of the new job ran.

    Return None if the upgrade was interrupted, so that a step was not measured.
    """
    measured = (
        record.get(Step.STOP).get("seconds"),
        record.get(Step.CHECK).get("seconds"),
        record.get(Step.CHANGE).get("elapsed"),
        record.get(Step.WATCH).get("start_seconds"),
    )
    known = [float(each) for each in measured if each is not None]
    return sum(known) if len(known) == len(measured) else None


_CHECKS = 3
"""Number of attempts to check a checkpoint, which Flink may remove while it is read."""


@dataclass(frozen=True)
class CheckedSnapshot:
    """The snapshot that a plan was made with, taken while the job ran on.

    Attributes:
        path: path of the snapshot, as the cluster names it.
        description: `checkpoint 17` or `savepoint 18`.
        state_size: bytes of its state; None where the cluster does not say.
        savepoint_seconds: duration of the newest savepoint of the job; None before there was one.
    """

    path: str
    description: str
    state_size: int | None
    savepoint_seconds: float | None


@dataclass(frozen=True)
class UpgradePlan:
    """Plan of an upgrade: the checked snapshot, the changes of its state, and why the upgrade would be refused.

    Attributes:
        job: name of the job.
        old_job: id of the running job.
        job_name: its name at the cluster.
        endpoints: endpoints of the clusters of the old and of the new program.
        checked: the snapshot that was checked; None where none could be.
        change: verdict and changes of the state; None where they could not be determined.
        down_time: predicted down time; None for a plan that is refused.
        refusals: why the upgrade cannot be done; nothing is stopped then.
        fingerprint: 16 hexadecimal digits that change with the programs, the change and the running job.
        programs: 16 hexadecimal digits that change with the programs and their settings alone.
        to_approve: results of the check that the policy of the job leaves to a person.
        notes: what users should know.
    """

    job: str
    old_job: str
    job_name: str
    endpoints: tuple[str, str]
    checked: CheckedSnapshot | None
    change: StateChange | None
    down_time: DownTime | None
    refusals: tuple[str, ...]
    fingerprint: str
    programs: str
    to_approve: tuple[Need, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps in words, in order."""
        if self.change is None or self.refusals:
            return ()
        writes = [f"{each} the state, and prove the result" for each in self.change.writes]
        moves = "" if self.endpoints[0] == self.endpoints[1] else f" at {self.endpoints[1]}"
        return (
            f"take a savepoint of job {self.old_job} and stop it",
            "check that savepoint again",
            *(writes or ["change nothing: the state restores as it is"]),
            f"start the new program{moves} from the result",
            "watch it until its checkpoints are completed; else cancel it and start the old program from its savepoint",
        )

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        return {
            "job": self.job,
            "old_job": self.old_job,
            "job_name": self.job_name,
            "endpoints": list(self.endpoints),
            "checked": None
            if self.checked is None
            else {
                "path": self.checked.path,
                "snapshot": self.checked.description,
                "state_size": self.checked.state_size,
            },
            "change": None if self.change is None else self.change.to_json(),
            "down_time": None if self.down_time is None else self.down_time.to_json(),
            "steps": list(self.steps),
            "refusals": list(self.refusals),
            "fingerprint": self.fingerprint,
            "to_approve": [str(each) for each in self.to_approve],
            "notes": list(self.notes),
            "programs": self.programs,
        }


def plan_upgrade(
    request: UpgradeRequest,
    old: FlinkCluster,
    new: FlinkCluster,
    records: RecordDirectory,
    *,
    sleep: Callable[[float], object] = time.sleep,
) -> UpgradePlan:
    """Plan an upgrade; the job is not stopped.

    If no savepoint of the job can be read from here yet, one is taken while the job runs on, to make sure that
    savepoints of the cluster are reachable.

    Args:
        request: the job and its programs.
        old: the cluster of the running job.
        new: the cluster of the new program.
        records: records of earlier upgrades and rehearsals.
        sleep: waits between two polls.

    Raises:
        ClusterError: a cluster cannot be reached.
        NotFoundError: the cluster has no such job.
        UsageError: a jar is missing, or several jobs have the name.
        StateError: a revision cannot be read.
    """
    programs = fingerprint(request.describe_change())
    job = find_job(old, request.job)
    refusals = [*check_job(job), *check_clusters(request, old, new)]
    checked, change, notes = None, None, list[str]()
    if not refusals:
        try:
            checked, change = _check_newest(request, old, job.id, sleep)
            if change.is_refused:
                refusals += change.reasons
        except ClusterError:
            raise
        except StateError as error:
            refusals.append(str(error))
    needs = [] if change is None else list(change.needs)
    earlier = records.find_last()
    if earlier is not None and earlier.outcome is UpgradeOutcome.WENT_BACK and earlier.plan.get("programs") == programs:
        needs.append(Need.REPEATED)
        notes.append(f"the last upgrade to this program went back: {earlier.reason}")
    mark = _make_fingerprint(request, job.id, change)
    down_time = None
    if change is not None and checked is not None and not refusals:
        down_time = predict_down_time(
            request,
            old,
            job.id,
            change,
            records,
            state_size=checked.state_size,
            savepoint_seconds=checked.savepoint_seconds,
        )
        notes += list(change.notes)
    return UpgradePlan(
        job=request.name,
        old_job=job.id,
        job_name=job.name,
        endpoints=(old.endpoint, new.endpoint),
        checked=checked,
        change=change,
        down_time=down_time,
        refusals=tuple(refusals),
        fingerprint=mark,
        programs=programs,
        to_approve=() if refusals else tuple(each for each in needs if each not in request.settings.automatic),
        notes=tuple(notes),
    )


def _check_newest(
    request: UpgradeRequest, cluster: FlinkCluster, job: str, sleep: Callable[[float], object]
) -> tuple[CheckedSnapshot, StateChange]:
    """Check the newest snapshot of a job; if Flink removes it meanwhile, try others, and finally a savepoint."""
    for _ in range(_CHECKS):
        checked, snapshot = find_snapshot(request, cluster, job, sleep=sleep)
        try:
            return checked, plan_change(request, snapshot)
        except (SnapshotGoneError, MissingFileError):
            continue
    checked, snapshot = find_snapshot(request, cluster, job, checkpoints=False, sleep=sleep)
    return checked, plan_change(request, snapshot)


def find_snapshot(
    request: UpgradeRequest,
    cluster: FlinkCluster,
    job: str,
    *,
    checkpoints: bool = True,
    sleep: Callable[[float], object] = time.sleep,
) -> tuple[CheckedSnapshot, Snapshot]:
    """Open the newest snapshot of a running job; make sure that savepoints of the job can be read from here.

    Args:
        request: the upgrade.
        cluster: cluster of the job.
        job: its id.
        checkpoints: return a checkpoint if it is the newest; Flink may remove it while it is read.
        sleep: waits for a savepoint that has to be taken.

    Raises:
        ClusterError: the cluster cannot be reached, or the savepoint failed.
        NotFoundError: the savepoints of the cluster are not reachable from here.
    """
    savepoint = next(_open_all(request, _list_completed(cluster, job, is_savepoint=True)), None)
    if savepoint is None:
        savepoint = take_savepoint(request, cluster, job, sleep=sleep)
    seconds = None if savepoint[0].duration_ms is None else savepoint[0].duration_ms / 1000
    # A checkpoint alone is not enough: it may be in another directory than savepoints, and Flink may delete it while it
    # is read.
    found = _open_all(request, _list_completed(cluster, job, is_savepoint=False))
    checkpoint = next(found, None) if checkpoints else None
    newest = max((savepoint, checkpoint or savepoint), key=lambda each: each[0].id)
    kind = "savepoint" if newest[0].is_savepoint else "checkpoint"
    return CheckedSnapshot(newest[0].path, f"{kind} {newest[0].id}", newest[0].state_size, seconds), newest[1]


def take_savepoint(
    request: UpgradeRequest, cluster: FlinkCluster, job: str, *, sleep: Callable[[float], object] = time.sleep
) -> tuple[Checkpoint, Snapshot]:
    """Take a savepoint of a running job, which runs on, and open it from here.

    Raises:
        ClusterError: the savepoint failed.
        NotFoundError: the savepoint is not reachable from here.
    """
    settings = request.settings
    wanted = SavepointRequest(directory=settings.savepoints, format=settings.savepoint_format)
    triggered = datetime.now(UTC)
    trigger = cluster.trigger_savepoint(job, wanted)
    try:
        progress = wait_for_savepoint(
            cluster, job, trigger, timeout_seconds=settings.savepoint_timeout.total_seconds(), sleep=sleep
        )
    except NotFoundError as error:
        raise ClusterError(
            f"{cluster.endpoint} does not know the requested savepoint, as happens after a change of its leader",
            hint="Nothing was stopped: start the command again",
            transient=True,
        ) from error
    if progress.status is TriggerStatus.FAILED:
        raise refuse_savepoint(progress.failure, cluster)
    snapshot = open_state(request, progress.path)
    for each in _list_completed(cluster, job, is_savepoint=True):
        if each.path.rstrip("/") == progress.path.rstrip("/"):
            return each, snapshot
    # Flink's statistics may lack the savepoint: they are up to `web.refresh-interval` old, and their history is short.
    taken = Checkpoint(
        snapshot.checkpoint_id,
        CheckpointStatus.COMPLETED,
        is_savepoint=True,
        kind="SAVEPOINT",
        triggered=triggered,
        path=progress.path,
    )
    return taken, snapshot


def refuse_savepoint(failure: str, cluster: FlinkCluster) -> ClusterError:
    """Return the error of a savepoint that failed, with Flink's reason."""
    first = failure.splitlines()[0] if failure else "Flink gives no reason"
    error = ClusterError(
        f"the savepoint failed at {cluster.endpoint}: {first}",
        hint="The job runs on. `state-pipelines status` shows its checkpoints; the directory may not be writable there",
    )
    error.details["flink"] = failure
    return error


def _make_fingerprint(request: UpgradeRequest, job: str, change: StateChange | None) -> str:
    revisions = None
    if request.migrations is not None:
        revisions = RevisionDirectory(request.migrations, allow_python=request.allow_python).fingerprint
    content = {
        "request": request.describe_change(),
        "revisions": revisions,
        "old_job": job,
        "change": None if change is None else change.describe(),
    }
    return fingerprint(content)


def check_job(job: JobOverview) -> Iterator[str]:
    """Yield the reasons why a job cannot take a savepoint; nothing if it can."""
    if job.status is not JobStatus.RUNNING:
        yield (
            f"job {job.id} is {job.status}: only a running job can take a savepoint. Start it, or look at "
            "`state-pipelines status`"
        )


def check_clusters(request: UpgradeRequest, old: FlinkCluster, new: FlinkCluster) -> Iterator[str]:
    """Yield the reasons why the clusters could not start the programs; nothing if they could.

    Raises:
        ClusterError: a cluster cannot be reached.
    """
    settings = request.settings
    sides = [(new, settings.new, "new"), (old, settings.old, "old")]
    for cluster, program, what in sides:
        overview = cluster.describe()
        stops_into = overview.stop_directory
        if what == "old" and stops_into is not None and not _is_same_directory(stops_into, settings.savepoints):
            yield (
                f"{cluster.endpoint} is configured to write savepoints to {stops_into or 'no directory'}, and "
                f"upgrade.savepoints is {settings.savepoints}: set upgrade.savepoints to the configured directory, or "
                "change execution.checkpointing.savepoint-dir of the job first"
            )
        if program.jar and not overview.can_submit:
            yield (
                f"{cluster.endpoint} takes no jars, so the {what} program cannot be started there: set "
                "web.submit.enable, or let the deployment start it (image)"
            )
        if program.plan and overview.sql_obstacle:
            yield f"the {what} query cannot be started at {cluster.endpoint}: {overview.sql_obstacle}"
        if what == "new":
            line = ".".join(overview.version.split(".")[:2])
            if line and line != ".".join(request.target_release.split(".")[:2]):
                yield (
                    f"{cluster.endpoint} runs Flink {overview.version}, and target_release is "
                    f"{request.target_release}: set it to {line}"
                )
            if new is not old and program.parallelism and overview.slots_available is not None:
                missing = program.parallelism - overview.slots_available
                if missing > 0:
                    yield f"{cluster.endpoint} has {missing} slots too few for parallelism {program.parallelism}"


def _list_completed(cluster: FlinkCluster, job: str, *, is_savepoint: bool) -> Iterator[Checkpoint]:
    for each in cluster.read_checkpoints(job).history:
        is_done = each.status is CheckpointStatus.COMPLETED and not each.is_discarded
        if is_done and each.is_savepoint is is_savepoint and each.path:
            yield each


def _open_all(request: UpgradeRequest, found: Iterator[Checkpoint]) -> Iterator[tuple[Checkpoint, Snapshot]]:
    """Open the snapshots that can be read from here; a savepoint counts only below the directory of savepoints."""
    directory = map_from_cluster(request, request.settings.savepoints).rstrip("/")
    for each in found:
        here = map_from_cluster(request, each.path)
        if each.is_savepoint and not _normalize(here).startswith(f"{_normalize(directory)}/"):
            continue
        try:
            yield each, open_state(request, each.path)
        except (NotFoundError, SnapshotGoneError):
            continue


def _is_same_directory(one: str, other: str) -> bool:
    return _normalize(one).rstrip("/") == _normalize(other).rstrip("/")


def _normalize(path: str) -> str:
    return path.removeprefix("file:").lstrip("/") if path.startswith(("file:", "/")) else path
