"""Savepoints of a running job by a policy: which of them are due, how one is taken, and how long retention keeps it.

    savepoints:
      directory: s3://bucket/savepoints   # as the cluster names it; by default that of `upgrade`, or the cluster's own
      timeout: 10min
      canonical: monthly                  # or {every: monthly, keep: 12}
      native: {every: daily, keep: 7}

A savepoint that the policy asks for is pinned, so that retention keeps it; with `keep` newer ones of its format it is
unpinned, and retention decides. Its record on the storage has the id of its trigger: a process that was killed is
continued by the next one, and Flink takes one savepoint for one trigger.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field

from state_pipelines.errors import (
    ClusterError,
    FormatError,
    NotFoundError,
    StateError,
    UnsupportedError,
    UsageError,
    Where,
    at,
)
from state_pipelines.flink.checkpoint_failures import explain_message
from state_pipelines.flink.cluster import (
    CheckpointStatus,
    JobStatus,
    SavepointFormat,
    SavepointProgress,
    SavepointRequest,
    TriggerStatus,
    find_job,
    wait_for_savepoint,
)
from state_pipelines.flink.connections import open_described
from state_pipelines.operations.models import OperationModel
from state_pipelines.operations.retention import pin_snapshot, unpin_snapshot
from state_pipelines.operations.retention.policy import Duration
from state_pipelines.redaction import redact
from state_pipelines.storage import join, list_directory, parse_path_mapping, read_file, replace_file, resolve
from state_pipelines.storage.files import is_directory, remove_file
from state_pipelines.storage.locations import is_below
from state_pipelines.upgrades.upgrade_records import find_records, hold_lease

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from state_pipelines.flink.cluster import FlinkCluster
    from state_pipelines.storage import Location

DIRECTORY = "_savepoints"
"""Name of the directory of savepoint records, below the results of a job; it has a directory per job."""

_SUFFIX = ".json"
_MOST_BYTES = 1 << 20
_KEPT: Mapping[str, int] = {"hourly": 24, "daily": 7, "weekly": 4, "monthly": 12}


class SavepointFailedError(ClusterError):
    """Flink could not take a savepoint; the job runs on. `details["reason"]` is the name of Flink's reason."""


class Period(StrEnum):
    """Period in which a policy wants one savepoint: an hour, day, week or month in UTC."""

    HOURLY = "hourly"
    DAILY = "daily"
    WEEKLY = "weekly"
    MONTHLY = "monthly"

    def name_time(self, time: datetime) -> str:
        """Return the name of the hour, day, week or month that a time is in; later names sort after earlier ones."""
        patterns = {Period.HOURLY: "%Y-%m-%dT%H", Period.DAILY: "%Y-%m-%d", Period.WEEKLY: "%G-W%V"}
        return time.astimezone(UTC).strftime(patterns.get(self, "%Y-%m"))


@dataclass(frozen=True)
class SavepointRule:
    """A format of savepoints, how often one is taken, and how many are kept."""

    format: SavepointFormat
    period: Period
    keep: int


class PeriodicSavepoints(OperationModel):
    """Savepoints of one format: their period and number."""

    every: Annotated[Period, Field(strict=False)]
    """Time in which one is taken."""

    keep: Annotated[int, Field(ge=1)] | None = None
    """Number of them that stay; by default 24 hourly, 7 daily, 4 weekly or 12 monthly ones."""


_Periodic = Annotated[
    PeriodicSavepoints, BeforeValidator(lambda value: {"every": value} if isinstance(value, str) else value)
]


class SavepointPolicy(OperationModel):
    """Formats, intervals and directory of the savepoints of a job, and which ones are kept."""

    directory: str | None = None
    """Directory of savepoints, as the cluster names it; by default that of the cluster."""

    timeout: Duration = timedelta(minutes=10)
    """Time in which a savepoint must be completed."""

    canonical: _Periodic | None = None
    """Savepoints in the canonical format; by default none."""

    native: _Periodic | None = None
    """Savepoints in the native format; by default none."""

    @property
    def rules(self) -> tuple[SavepointRule, ...]:
        """The rules of the policy, one per format."""
        found = ((SavepointFormat.CANONICAL, self.canonical), (SavepointFormat.NATIVE, self.native))
        return tuple(SavepointRule(name, each.every, each.keep or _KEPT[each.every]) for name, each in found if each)


def parse_savepoint_policy(content: object) -> SavepointPolicy:
    """Read the entry `savepoints` of a job.

    Raises:
        UsageError: the entry is no policy; the error names the setting.
    """
    return SavepointPolicy.parse(content, "`savepoints`")


@dataclass(frozen=True)
class SavepointJob:
    """A running job of which savepoints are taken.

    Attributes:
        name: name of the job in its description.
        cluster: cluster that runs the job.
        job: name or id of the job at the cluster.
        results: directory of results, for the records.
        policy: policy of its savepoints.
        roots: directories of retention.
        path_mapping: texts `FROM=TO`: a directory as the cluster names it, and its path from here.
    """

    name: str
    cluster: FlinkCluster
    job: str
    results: str
    policy: SavepointPolicy
    roots: tuple[str, ...] = ()
    path_mapping: tuple[str, ...] = ()


def open_savepoint_job(path: str, path_mapping: tuple[str, ...] = ()) -> SavepointJob:
    """Read the description of a job; relative paths in it start at its directory.

    Raises:
        UsageError: the file is no description of a job with a cluster.
    """
    cluster, content = open_described(path)
    start = Path(path).absolute().parent

    def find(value: object) -> str:
        text = str(value)
        return text if ":/" in text or Path(text).is_absolute() else str(start / text)

    with at(file=path):
        name, results = content.get("name"), content.get("results")
        if not name or not results:
            raise UsageError(
                f"the description of the job has no {'results' if name else 'name'}",
                hint="docs/running-jobs.md shows a whole file",
            )
        roots = content.get("roots") or ()
        mapped = content.get("path_mapping") or ()
        return SavepointJob(
            str(name),
            cluster,
            str(content.get("job") or name),
            find(results),
            choose_policy(content.get("savepoints"), content.get("upgrade")),
            tuple(find(each) for each in ([roots] if isinstance(roots, str) else roots)),
            (*([mapped] if isinstance(mapped, str) else mapped), *path_mapping),
        )


def choose_policy(savepoints: object, upgrade: object) -> SavepointPolicy:
    """Return the policy of the entry `savepoints`; if it has no directory, take that of the entry `upgrade`.

    Raises:
        UsageError: the entry is no policy.
    """
    policy = SavepointPolicy() if savepoints is None else parse_savepoint_policy(savepoints)
    directory = upgrade.get("savepoints") if isinstance(upgrade, Mapping) else None
    return policy if policy.directory or not directory else policy.model_copy(update={"directory": str(directory)})


class TakenStatus(StrEnum):
    """Status of a requested savepoint."""

    REQUESTED = "requested"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True)
class TakenSavepoint:
    """Record of a requested savepoint.

    Attributes:
        format: its format.
        period: the hour, day, week or month that it is for; for a savepoint without a rule, the time of the request.
        attempt: number of the attempt, from 1.
        flink_job: id of the job at the cluster.
        trigger: id of the trigger.
        requested: ISO time of the request.
        status: progress.
        path: path of the savepoint, as the cluster names it; empty until the savepoint is completed.
        failure: Flink's message if the savepoint failed.
        reason: name of Flink's failure reason in this message; empty if there is none.
        remedy: what to do about the failure; empty if the savepoint has not failed.
        pinned: URL of the root (directory of retention) in which it is pinned; empty if it is not pinned.
    """

    format: SavepointFormat
    period: str
    attempt: int
    flink_job: str
    trigger: str
    requested: str
    status: TakenStatus = TakenStatus.REQUESTED
    path: str = ""
    failure: str = ""
    reason: str = ""
    remedy: str = ""
    pinned: str = ""

    @property
    def key(self) -> str:
        """Name of the record of the savepoint."""
        return f"{self.format.lower()}-{self.period}-{self.attempt}"

    @property
    def time(self) -> datetime:
        """Time of the request."""
        return datetime.fromisoformat(self.requested)


@dataclass(frozen=True)
class SavepointRecords:
    """Directory with the savepoint records and the lease of one job; it need not exist."""

    location: Location

    def list_records(self) -> list[TakenSavepoint]:
        """Read the records, the newest first.

        Raises:
            FormatError: a file is no record.
            StorageError: the storage fails.
        """
        if not is_directory(self.location):
            return []
        files = [each.location for each in list_directory(self.location) if not each.is_directory]
        starts = tuple(f"{each.lower()}-" for each in SavepointFormat)
        found = [_read(each) for each in files if each.name.startswith(starts) and each.name.endswith(_SUFFIX)]
        return sorted(found, key=lambda each: (each.requested, each.attempt), reverse=True)

    def write(self, taken: TakenSavepoint) -> None:
        """Write a record, which replaces its earlier version.

        Raises:
            StorageError: the storage refuses.
        """
        replace_file(self._locate(taken), json.dumps(asdict(taken), indent=2).encode())

    def remove(self, taken: TakenSavepoint) -> None:
        """Remove the record of a savepoint; the savepoint itself is not deleted.

        Raises:
            StorageError: the storage refuses.
        """
        remove_file(self._locate(taken))

    def _locate(self, taken: TakenSavepoint) -> Location:
        return join(self.location, f"{taken.key}{_SUFFIX}")


def _read(location: Location) -> TakenSavepoint:
    try:
        content = json.loads(read_file(location, most=_MOST_BYTES))
        chosen = {"format": SavepointFormat(content["format"]), "status": TakenStatus(content["status"])}
        return TakenSavepoint(**{**content, **chosen})
    except (ValueError, TypeError, KeyError) as error:
        raise FormatError(
            f"this is no record of a savepoint: {redact(str(error))}",
            where=Where(file=str(location)),
            hint="Move the file away",
        ) from None


def find_savepoint_records(results: str, job: str) -> SavepointRecords:
    """Return the savepoint records of a job, which are below its results."""
    return SavepointRecords(join(resolve(results), DIRECTORY, job))


def find_newest_savepoint(records: Sequence[TakenSavepoint]) -> datetime | None:
    """Return the time at which the newest completed savepoint was asked for; None without one."""
    return max((each.time for each in records if each.status is TakenStatus.COMPLETED), default=None)


def find_recorded_savepoint(path: str) -> datetime | None:
    """Return the time of the newest savepoint in the records of a job; None without one.

    Also return None, without reading the records, if `path` is the address of a cluster, or if the job does not limit
    the age of savepoints.

    Raises:
        UsageError: the file is no description of a job with a cluster.
        StateError: the records cannot be read.
    """
    described = open_described(path)[1]
    limits = described.get("thresholds")
    if not isinstance(limits, Mapping) or "max_hours_without_savepoint" not in limits or not described.get("results"):
        return None
    job = open_savepoint_job(path)
    return find_newest_savepoint(find_savepoint_records(job.results, job.name).list_records())


def list_due(policy: SavepointPolicy, records: Sequence[TakenSavepoint], now: datetime) -> tuple[SavepointRule, ...]:
    """Return the rules whose savepoint of the current hour, day, week or month is not completed yet."""
    done = {(each.format, each.period) for each in records if each.status is TakenStatus.COMPLETED}
    return tuple(each for each in policy.rules if (each.format, each.period.name_time(now)) not in done)


def savepoint(
    job: SavepointJob | str,
    *,
    format: SavepointFormat | str = SavepointFormat.CANONICAL,
    due: bool = False,
    path_mapping: tuple[str, ...] = (),
    report: Callable[[str], object] = lambda text: None,
) -> tuple[TakenSavepoint, ...]:
    """Take a savepoint of a running job, which runs on, or all savepoints that its policy wants now.

    Args:
        job: the job, or the path of its `JOB.yaml`.
        format: `canonical` or `native`.
        due: take the savepoints that the policy wants and that are not there yet, in their formats; each is pinned.
        path_mapping: texts `FROM=TO`: a directory as the cluster names it, and its path from here.
        report: gets a line for each step.

    Raises:
        SavepointFailedError: Flink could not take a savepoint; the error has Flink's reason.
        ClusterError: the cluster cannot be reached, or the job does not run.
        UsageError: the job is not described completely, or another process takes a savepoint or upgrades it.
        StateError: the records cannot be read or written.
    """
    described = open_savepoint_job(job, path_mapping) if isinstance(job, str) else job
    if due:
        return take_due_savepoints(described, report=report)
    return (take_savepoint(described, SavepointFormat(format), report=report),)


def take_due_savepoints(
    job: SavepointJob,
    *,
    now: datetime | None = None,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    report: Callable[[str], object] = lambda text: None,
) -> tuple[TakenSavepoint, ...]:
    """Take the savepoints that the policy of a job wants and that are not there yet, one after the other.

    Raises:
        SavepointFailedError: Flink could not take a savepoint; the error has Flink's reason.
        ClusterError: the cluster cannot be reached, or the job does not run.
        UsageError: another process takes a savepoint of the job, or upgrades it.
        StateError: the records cannot be read or written.
    """
    moment = now or datetime.now(UTC)
    records = find_savepoint_records(job.results, job.name)
    due = list_due(job.policy, records.list_records(), moment)
    return tuple(
        take_savepoint(job, each.format, each, now=moment, sleep=sleep, clock=clock, report=report) for each in due
    )


def take_savepoint(
    job: SavepointJob,
    format: SavepointFormat,
    rule: SavepointRule | None = None,
    *,
    now: datetime | None = None,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    report: Callable[[str], object] = lambda text: None,
) -> TakenSavepoint:
    """Take a savepoint of a running job, which runs on.

    Args:
        job: the job.
        format: format of the savepoint.
        rule: the rule of the policy that wants it. Without one, the savepoint is not pinned, and the next call takes
            another one.
        now: the time; by default that of this machine.
        sleep: waits between two polls.
        clock: monotonic clock, in seconds.
        report: gets a line for each step.

    Raises:
        SavepointFailedError: Flink could not take it; the error has Flink's reason.
        ClusterError: the cluster cannot be reached, or the job does not run.
        UsageError: another process takes a savepoint of the job, or upgrades it.
        StateError: the records cannot be read or written.
    """
    moment = now or datetime.now(UTC)
    records = find_savepoint_records(job.results, job.name)
    with hold_lease(records.location, job.name, what="a savepoint"):
        return _Taking(job, records, sleep, clock, report).take(format, rule, moment)


@dataclass(frozen=True)
class _Taking:
    """The process of taking one savepoint, under the lease of the savepoints of a job."""

    job: SavepointJob
    records: SavepointRecords
    sleep: Callable[[float], object]
    clock: Callable[[], float]
    report: Callable[[str], object]

    def take(self, format: SavepointFormat, rule: SavepointRule | None, now: datetime) -> TakenSavepoint:
        period = f"{now:%Y-%m-%dT%H%M%S}" if rule is None else rule.period.name_time(now)
        known = self.records.list_records()
        before = [each for each in known if (each.format, each.period) == (format, period)]
        done = next((each for each in before if each.status is TakenStatus.COMPLETED), None)
        if done is not None:
            return done
        progress = None
        taken = next((each for each in before if each.status is TakenStatus.REQUESTED), None)
        if taken is not None:
            progress = self._poll(taken)
        if taken is None or progress is None:
            self._require_free()
            attempt = max((each.attempt for each in before), default=0) + 1
            taken = self._trigger(format, period, attempt, now)
            progress = self._wait(taken)
        return self._finish(taken, progress, rule, known)

    def _poll(self, taken: TakenSavepoint) -> SavepointProgress | None:
        """Wait for a savepoint that an earlier process asked for; None if the cluster does not know it."""
        self.report(f"waits for the {taken.format.lower()} savepoint of {taken.period}, asked for {taken.requested}")
        try:
            return self._wait(taken)
        except NotFoundError:
            self.records.write(
                replace(taken, status=TakenStatus.FAILED, failure="the cluster has forgotten the savepoint")
            )
            return None

    def _wait(self, taken: TakenSavepoint) -> SavepointProgress:
        return wait_for_savepoint(
            self.job.cluster,
            taken.flink_job,
            taken.trigger,
            timeout_seconds=self.job.policy.timeout.total_seconds(),
            sleep=self.sleep,
            clock=self.clock,
        )

    def _require_free(self) -> None:
        upgrade = find_records(self.job.results, self.job.name).find_unfinished()
        if upgrade is not None:
            raise UsageError(
                f"upgrade {upgrade.id} of {self.job.name} has not ended, so that no savepoint is taken",
                hint="Wait for it, or continue it: `state-pipelines upgrade JOB.yaml`",
            )

    def _trigger(self, format: SavepointFormat, period: str, attempt: int, now: datetime) -> TakenSavepoint:
        cluster = self.job.cluster
        found = find_job(cluster, self.job.job)
        if found.status is not JobStatus.RUNNING:
            raise ClusterError(
                f"job {found.name} at {cluster.endpoint} is {found.status}, so that no savepoint can be taken",
                hint="See why: `state-pipelines status JOB.yaml`",
            )
        with suppress(UnsupportedError, NotFoundError):
            pending = [
                each
                for each in cluster.read_checkpoints(found.id).history
                if each.is_savepoint and each.status is CheckpointStatus.IN_PROGRESS
            ]
            if pending:
                raise UsageError(
                    f"savepoint {pending[0].id} of job {found.name} is under way already", hint="Wait for it"
                )
        words = (self.job.name, found.id, format, period, attempt)
        trigger = hashlib.sha256(" ".join(map(str, words)).encode()).hexdigest()[:32]
        taken = TakenSavepoint(format, period, attempt, found.id, trigger, now.isoformat())
        self.records.write(taken)
        self.report(f"takes a {format.lower()} savepoint of job {found.name} ({found.id})")
        cluster.trigger_savepoint(
            found.id, SavepointRequest(self.job.policy.directory or None, format, trigger_id=taken.trigger)
        )
        return taken

    def _finish(
        self,
        taken: TakenSavepoint,
        progress: SavepointProgress,
        rule: SavepointRule | None,
        known: Sequence[TakenSavepoint],
    ) -> TakenSavepoint:
        if progress.status is TriggerStatus.FAILED:
            reason, cause, remedy = explain_message(progress.failure)
            self.records.write(
                replace(taken, status=TakenStatus.FAILED, failure=progress.failure, reason=reason, remedy=remedy)
            )
            usual = f" Usual cause: {cause}" if cause else ""
            error = SavepointFailedError(
                f"the {taken.format.lower()} savepoint of job {self.job.name} failed: {progress.failure}",
                hint=f"{remedy}{usual}",
            )
            error.details["reason"] = reason or "not known"
            raise error
        taken = replace(taken, status=TakenStatus.COMPLETED, path=progress.path)
        self.report(f"savepoint {taken.path}")
        if rule is not None:
            # Pin before writing the record: if this process is killed in between, the next one will poll and pin again.
            taken = replace(taken, pinned=self._pin(taken))
        self.records.write(taken)
        if rule is not None:
            self._release(rule, [taken, *known])
        return taken

    def _pin(self, taken: TakenSavepoint) -> str:
        snapshot, root = self._find_root(taken.path)
        if root is None:
            self.report(f"note: {taken.path} is below no root of the job, so that retention does not see it")
            return ""
        reason = f"{taken.format.lower()} savepoint of {taken.period}, by the policy of {self.job.name}"
        try:
            pin_snapshot(root, str(snapshot), reason=reason)
        except StateError as error:
            self.report(f"note: {taken.path} could not be pinned: {error}")
            return ""
        return root.url

    def _find_root(self, path: str) -> tuple[Location, Location | None]:
        snapshot = resolve(parse_path_mapping(self.job.path_mapping).apply(path))
        roots = (resolve(each) for each in self.job.roots)
        return snapshot, next((each for each in roots if is_below(snapshot.path, each.path)), None)

    def _release(self, rule: SavepointRule, known: Sequence[TakenSavepoint]) -> None:
        """Unpin the savepoints of a rule for which there are enough newer ones (`keep`), and remove their records."""
        pattern = rule.period.name_time(datetime(2000, 1, 1, tzinfo=UTC))
        own = [each for each in known if each.format is rule.format and len(each.period) == len(pattern)]
        done = [each for each in own if each.status is TakenStatus.COMPLETED]
        if len(done) < rule.keep:
            return
        oldest = done[rule.keep - 1].requested
        for each in own:
            if each.requested < oldest:
                self._unpin(each)
                self.records.remove(each)

    def _unpin(self, taken: TakenSavepoint) -> None:
        if not taken.pinned:
            return
        snapshot, root = self._find_root(taken.path)
        try:
            if root is not None:
                unpin_snapshot(root, str(snapshot))
        except UsageError:
            # Nothing to do: somebody has removed the pin, or the savepoint.
            return
        except StateError as error:
            self.report(f"note: {taken.path} could not be unpinned: {error}")
