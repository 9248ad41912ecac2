"""Sensors of a Flink job: `new_snapshots`, `requests` and `failed_runs`."""

from __future__ import annotations

import hashlib
import json
import math
import time
import urllib.error
import urllib.request
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import dagster as dg

from state_pipelines.dagster import ops, upgrading
from state_pipelines.dagster.assets import retention, savepoints, snapshots
from state_pipelines.dagster.assets.snapshots import InventoryReports
from state_pipelines.dagster.failures import read_outcome, read_planned_assets, to_tag
from state_pipelines.dagster.flink_asset import SKIPPED_TAG, flink_sensor
from state_pipelines.dagster.job_settings import Beginning, find_stranger
from state_pipelines.dagster.jobs import APPLY_RETENTION, AUDIT, CONVERT, MIGRATE, PLAN_RETENTION, RESCALE, SQL_REPORT
from state_pipelines.dagster.migration_runs import PARTITION_TAG, MigrationRuns
from state_pipelines.dagster.ops import REGISTER_SNAPSHOT as REGISTER
from state_pipelines.dagster.partitions import describe_savepoint, find_name_conflict, find_reported
from state_pipelines.dagster.storage import describe_owner, is_due, take_marker
from state_pipelines.dagster.triggers import load_cursor, share_instance, store_cursor
from state_pipelines.dagster.upgrading import WAITING_TAG
from state_pipelines.errors import StateError, StorageError, UsageError
from state_pipelines.metadata.checkpoint import SnapshotKind
from state_pipelines.operations.auditing.report import Depth
from state_pipelines.operations.requests import Operation, RequestFile, RequestStatus, describe_result, list_requests
from state_pipelines.operations.write.keyed_rewrite import Format
from state_pipelines.storage import resolve
from state_pipelines.storage.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from state_pipelines.dagster.job import FlinkJob
    from state_pipelines.dagster.jobs import AnyJob
    from state_pipelines.operations.inventory import Inventory, SnapshotSummary
    from state_pipelines.operations.requests import Request
    from state_pipelines.storage import Location

if TYPE_CHECKING:
    Plan = tuple[str, Mapping[str, Any]]
    """Name of a Dagster job, without the prefix of the Flink job, and its run configuration."""

JOBS = frozenset(
    {
        *(APPLY_RETENTION, AUDIT, CONVERT, MIGRATE, PLAN_RETENTION, RESCALE, ops.PIN, ops.RESTORE),
        *(upgrading.UPGRADE, upgrading.REHEARSE),
    }
)
"""Names of the Dagster jobs that requests run, without the prefix of the Flink job."""

UNPARTITIONED = frozenset(
    {
        *(Operation.PIN, Operation.UNPIN, Operation.RESTORE, Operation.RETAIN),
        *(Operation.UPGRADE, Operation.REHEARSE),
    }
)
"""Operations whose runs have no partition key."""


def plan_run(job: FlinkJob, request: Request) -> Plan:
    """Return the run that carries out a request.

    Raises:
        UsageError: the Flink job is not configured for the operation.
    """
    return _PLANS[request.operation](job, request)


def _plan_migration(job: FlinkJob, request: Request) -> Plan:
    if job.migrations is None and job.new_query is None:
        hint = "Set the field migrations in the YAML of the job, or new_query for a query of SQL"
        raise UsageError("the job has no migrations", hint=hint)
    known, other = (_REVISION_FIELDS, "new_query") if job.new_query is None else (_QUERY_FIELDS, "migrations")
    if wrong := sorted(request.options.keys() - known):
        raise UsageError(
            f"{', '.join(wrong)} is a field for jobs with {other}, and this one has none",
            hint=f"A request to migrate this job knows {', '.join(known)}",
        )
    if job.new_query is None:
        names = (snapshots.COMPATIBILITY_REPORT, savepoints.MIGRATED_SAVEPOINT)
        return MIGRATE, _configure(job, dict.fromkeys(names, request.options))
    match = {"match": request.options["match"]} if "match" in request.options else {}
    return MIGRATE, _configure(job, {SQL_REPORT: match, savepoints.MIGRATED_SAVEPOINT: request.options})


def _configure(job: FlinkJob, configs: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the configuration of a run from configurations by asset."""
    return {"ops": {job.op(name): {"config": dict(config)} for name, config in configs.items()}}


_REVISION_FIELDS = ("to", "from_revision")
_QUERY_FIELDS = ("match", "backfill")
"""Fields of requests to migrate, for a job with revisions and for one with a new query."""


def _plan_rescaling(job: FlinkJob, request: Request) -> Plan:
    config = {"request": request.to_yaml(without=("files",))}
    if "files" in request.options:
        config["files"] = request.options["files"]
    return RESCALE, _configure(job, {savepoints.RESCALED_SAVEPOINT: config})


def _plan_conversion(job: FlinkJob, request: Request) -> Plan:
    return CONVERT, _configure(job, {savepoints.CONVERTED_SAVEPOINT: request.options})


def _plan_copy(job: FlinkJob, request: Request) -> Plan:
    return CONVERT, _configure(job, {savepoints.CONVERTED_SAVEPOINT: {"format": Format.KEEP.value, **request.options}})


def _plan_audit(job: FlinkJob, request: Request) -> Plan:
    depth, choices = request.options.get("depth", Depth.SAMPLE), (Depth.SAMPLE, Depth.WHOLE)
    if depth not in choices:
        raise UsageError(f"depth is {depth!r}", hint=f"Choose from {', '.join(choices)}")
    return AUDIT, _configure(job, {snapshots.RESTORE_AUDIT: {"whole": depth == Depth.WHOLE}})


def _plan_retention(job: FlinkJob, request: Request) -> Plan:
    if "policy" in request.options:
        raise UsageError("a request cannot set the policy", hint="Change the field retention in the YAML of the job")
    if "apply" not in request.options:
        return PLAN_RETENTION, {}
    return APPLY_RETENTION, _configure(job, {retention.APPLICATION_NAME: {"fingerprint": request.options["apply"]}})


def _plan_pin(job: FlinkJob, request: Request) -> Plan:
    config = {"unpin": request.operation is Operation.UNPIN, **request.options}
    return ops.PIN, {"ops": {job.prefix(ops.pin.name): {"inputs": {"snapshot": request.snapshot}, "config": config}}}


def _plan_restore(job: FlinkJob, request: Request) -> Plan:
    return ops.RESTORE, {
        "ops": {job.prefix(ops.restore.name): {"config": {"snapshot": request.snapshot, **request.options}}}
    }


def _plan_upgrade(job: FlinkJob, request: Request) -> Plan:
    upgrading.make_request(job)
    if request.operation is Operation.REHEARSE:
        return upgrading.REHEARSE, {}
    config = {"approve": "", **request.options}
    return upgrading.UPGRADE, {"ops": {job.prefix(upgrading.plan_job_upgrade.name): {"config": config}}}


_PLANS: Mapping[Operation, Callable[[FlinkJob, Request], Plan]] = {
    Operation.MIGRATE: _plan_migration,
    Operation.RESCALE: _plan_rescaling,
    Operation.CONVERT: _plan_conversion,
    Operation.COPY: _plan_copy,
    Operation.VERIFY: _plan_audit,
    Operation.PIN: _plan_pin,
    Operation.UNPIN: _plan_pin,
    Operation.RESTORE: _plan_restore,
    Operation.RETAIN: _plan_retention,
    Operation.UPGRADE: _plan_upgrade,
    Operation.REHEARSE: _plan_upgrade,
}

FAILED_RUNS = "failed_runs"

FAILED_RUNS_INTERVAL = 60
"""Seconds between two ticks, if somebody gets a message."""

LOG_INTERVAL = 900
"""Seconds between two ticks of a job without a webhook, whose failures are only written to the log of the sensor."""

JOB_TAG = "state-pipelines/flink-job"
"""Tag of runs of other Dagster jobs that this sensor reports too; its value is the name of the Flink job."""

REPORTED_TAG = "state-pipelines/reported"
"""Tag of failed runs that were reported: a digest of the webhook, so that each gets one message per run."""

_TIMEOUT = 10
"""Timeout of the webhook in seconds."""

_LONGEST_TICK = 30
"""Seconds after which a tick reports no further run; Dagster ends it after 60 seconds."""

_MOST_PER_TICK = 50

_REPEATED_FOR = 86_400
"""Seconds for which a message is sent again that the webhook did not accept."""

_SHOWN = 3


def build_failed_runs(job: FlinkJob, *, jobs: Collection[str], assets: Collection[dg.AssetKey]) -> dg.SensorDefinition:
    """Build the sensor `failed_runs` of a Flink job.

    Its cursor contains the storage id of the last failure that it has seen, and the failed runs whose messages the
    webhook did not accept, with the time of the first attempt.

    Args:
        job: the Flink job.
        jobs: names of its Dagster jobs.
        assets: keys of its assets.
    """

    @flink_sensor(job, FAILED_RUNS, interval=FAILED_RUNS_INTERVAL if job.webhook else LOG_INTERVAL)
    def failed_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        """Reports failed runs of the job in its log and, if the job has a `webhook`, as JSON to its URL."""
        stored: dict[str, Any] = json.loads(context.cursor) if context.cursor else {}
        reports = _Reports(job, context, frozenset(jobs), frozenset(assets), dict(stored.get("undelivered", {})))
        # `record_id`: read cursors of earlier releases too, in which this was a run failure sensor of Dagster.
        after = stored.get("after", stored.get("record_id"))
        after = _find_newest(share_instance(context)) if after is None else reports.report_new(after)
        cursor = json.dumps({"after": after, "undelivered": reports.undelivered})
        if reports.undelivered and cursor == context.cursor:
            # Dagster drops the cursor of a failed tick. Nothing is lost here, because the cursor has not changed.
            raise _refused(reports.reason)
        context.update_cursor(cursor)
        return dg.SkipReason("; ".join(reports.texts) or "No failed runs")

    return failed_runs


class _Reports:
    """Messages about failed runs that one tick of the sensor sends to the webhook.

    Attributes:
        undelivered: runs whose message the webhook has not accepted: time of the first attempt, in seconds of the
            epoch, by id of the run.
        texts: the reported failures.
        reason: why the webhook did not accept the last message that it refused.
    """

    def __init__(
        self,
        job: FlinkJob,
        context: dg.SensorEvaluationContext,
        jobs: frozenset[str],
        assets: frozenset[dg.AssetKey],
        undelivered: dict[str, float],
    ) -> None:
        self._job = job
        self._context = context
        self._instance = share_instance(context)
        self._jobs = jobs
        self._assets = assets
        self._deadline = time.monotonic() + _LONGEST_TICK
        self.undelivered = undelivered
        self.texts: list[str] = []
        self.reason = ""

    def report_new(self, after: int) -> int:
        """Report failed runs, first those whose message was not accepted; return the id of the last failure."""
        for run_id in list(self.undelivered):
            run = self._instance.get_run_by_id(run_id)
            if run is None:
                del self.undelivered[run_id]
            elif time.monotonic() < self._deadline:
                self._report(run)
        wanted = dg.RunStatusChangeRecordsFilter(dg.DagsterEventType.RUN_FAILURE, after_storage_id=after)
        found = self._instance.fetch_run_status_changes(wanted, limit=_MOST_PER_TICK, ascending=True)
        for record in found.records:
            if time.monotonic() > self._deadline:
                break
            run = self._instance.get_run_by_id(record.run_id)
            if run is not None and self._is_watched(run):
                self._report(run)
            after = record.storage_id
        return after

    def _is_watched(self, run: dg.DagsterRun) -> bool:
        """Return whether a run is one of the Flink job: by its tag, its Dagster job, or its assets and checks.

        Materialisations from the UI, automation and backfills have the hidden job `__ASSET_JOB`. One run may contain
        assets of several Flink jobs; those with a failed step report it, or all of them where no step has failed.
        """
        if _is_elsewhere(self._context, run):
            return False
        if run.tags.get(JOB_TAG) == self._job.name or run.job_name in self._jobs:
            return True
        planned = read_planned_assets(self._instance, run.run_id)
        if not any(self._assets & keys for keys in planned.values()):
            return False
        outcome = read_outcome(self._instance, run)
        failed = {key for step in outcome.failed_steps for key in planned.get(step, ())}
        repository = self._context.repository_def
        watching = set() if repository is None else {sensor.name for sensor in repository.sensor_defs}
        others = {key for key in failed - self._assets if f"{key.path[0]}_{FAILED_RUNS}" in watching}
        return not others or not failed.isdisjoint(self._assets)

    def _report(self, run: dg.DagsterRun) -> None:
        """Post the message of a failed run, and log it at the first attempt; each webhook gets one message per run."""
        # The sensor of another Flink job with the same webhook may have reported the run already.
        mark = _digest(self._job.webhook)
        reported = run.tags.get(REPORTED_TAG, "").split()
        if mark in reported:
            self.undelivered.pop(run.run_id, None)
            return
        message = describe_failure(self._job, self._instance, run)
        text = str(message["text"])
        if run.run_id not in self.undelivered:
            self._context.log.error("%s", text)
        if self._job.webhook is not None:
            try:
                post(self._job.webhook, message)
            except dg.Failure as failure:
                self._keep(run, str(failure.description))
                return
        self.undelivered.pop(run.run_id, None)
        self._instance.add_run_tags(run.run_id, {REPORTED_TAG: " ".join((*reported, mark))})
        self.texts.append(text)

    def _keep(self, run: dg.DagsterRun, reason: str) -> None:
        """Keep a message that the webhook did not accept, to send it again at the next ticks, for a day."""
        first = self.undelivered.setdefault(run.run_id, time.time())
        self.reason = reason
        if time.time() - first > _REPEATED_FOR:
            del self.undelivered[run.run_id]
            reason = f"{reason}; it was tried for a day, and is not tried again"
        self._context.log.error("Run %s is not reported: %s", run.run_id, reason)
        self.texts.append(f"run {run.run_id[:8]} is not reported: {reason}")


def describe_failure(job: FlinkJob, instance: dg.DagsterInstance, run: dg.DagsterRun) -> dict[str, object]:
    """Return the message on a failed run: `text` for chat services, the other fields for programs."""
    outcome = read_outcome(instance, run)
    planned = read_planned_assets(instance, run.run_id)
    failed = sorted({key.to_user_string() for step in outcome.failed_steps for key in planned.get(step, ())})
    every = sorted({key.to_user_string() for keys in planned.values() for key in keys})
    snapshot = run.tags.get("dagster/partition")
    # Runs of automation and of the button *Materialize* have a hidden job, whose name is no help.
    name = _shorten(failed or every) if run.job_name.startswith("__") else run.job_name
    subject = f"{name} failed" + (f" for {snapshot}" if snapshot else "")
    return {
        "text": f"{subject}: {outcome.error}",
        "flink_job": job.name,
        "job": run.job_name,
        "run": run.run_id,
        "backfill": run.tags.get("dagster/backfill"),
        "snapshot": snapshot,
        "failed_assets": failed,
        "error": outcome.error,
        "failed_checks": dict(outcome.failed_checks),
    }


def post(url: str, message: Mapping[str, object]) -> None:
    """Post a message as JSON.

    Raises:
        dg.Failure: the webhook cannot be reached or rejects the message. The reason does not contain the URL, which may
            contain a secret.
    """
    data = json.dumps(message, default=str).encode()
    try:
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=_TIMEOUT):
            pass
    except urllib.error.HTTPError as error:
        error.close()
        raise _refused(f"the webhook did not accept the message: {error.code}") from None
    except (OSError, ValueError) as error:
        raise _refused(f"the webhook did not accept the message: {type(error).__name__}") from None


def _refused(reason: str) -> dg.Failure:
    # Do not quote the error of the request: it may contain the URL, which may be secret.
    return dg.Failure(reason)


def _find_newest(instance: dg.DagsterInstance) -> int:
    """Return the storage id of the newest failure: those before the first tick are not reported."""
    newest = instance.fetch_run_status_changes(dg.DagsterEventType.RUN_FAILURE, limit=1).records
    return newest[0].storage_id if newest else 0


def _is_elsewhere(context: dg.SensorEvaluationContext, run: dg.DagsterRun) -> bool:
    """Return whether a run is one of another code location, whose sensors report it."""
    here, there = context.code_location_origin, run.remote_job_origin
    if here is None or there is None:
        return False
    return here.location_name != there.repository_origin.code_location_origin.location_name


def _digest(webhook: str | None) -> str:
    return "log" if webhook is None else hashlib.sha256(webhook.encode()).hexdigest()[:12]


def _shorten(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


NEW_SNAPSHOTS = "new_snapshots"

NEW_SNAPSHOTS_INTERVAL = 120
"""Seconds between two ticks. Instances with many jobs are idle most of the time, and each tick costs some CPU."""

MOST_SNAPSHOTS_PER_TICK = 50
"""Maximal number of new snapshots per tick."""

_NEW_SNAPSHOTS_SHOWN = 10


def build_new_snapshots(job: FlinkJob) -> dg.SensorDefinition:
    """Build the sensor `new_snapshots` of a job."""

    @flink_sensor(job, NEW_SNAPSHOTS, interval=NEW_SNAPSHOTS_INTERVAL, runs=MIGRATE)
    def new_snapshots(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Adds a partition for each new snapshot, and requests one run for each with pending revisions or a new query.

        A directory is a snapshot as soon as it has `_metadata`, which Flink writes last. The newest snapshots come
        first; when the time of a tick is over, the others wait for the next tick. The cursor holds a mark of each known
        snapshot: clear it to evaluate all of them that have a partition again. A snapshot that exists at the first tick
        gets no partition if `watch.since` excludes it. Of checkpoints, only samples get a partition. The inventory is
        reported when it has changed, and every hour. A failed migration is requested again as often as
        `watch.retries` says.
        """
        instance = share_instance(context)
        if conflict := find_name_conflict(instance, job):
            return dg.SkipReason(conflict)
        stored = load_cursor(job, NEW_SNAPSHOTS, context)
        owned = stored.get("owned")
        if is_due(owned, now := datetime.now(UTC)):
            origin = context.code_location_origin
            owner = describe_owner(instance, "" if origin is None else origin.location_name)
            if conflict := take_marker(job.storage.marker, owner, now):
                return dg.SkipReason(conflict)
            owned = now.isoformat()
        deadline = time.monotonic() + job.watch.seconds
        partitions = instance.get_dynamic_partitions(str(job.partitions.name))
        update = job.storage.update_inventory(partitions=partitions, budget=job.watch.seconds)
        for each in [each for each in update.new if each.unreadable][:_NEW_SNAPSHOTS_SHOWN]:
            context.log.warning("%s cannot be read: %s", each.path, each.unreadable)
        keys = update.inventory.table["key"].to_pylist()
        tick = _SnapshotTick(job, context, MigrationRuns(job, instance), deadline, partitions=set(partitions))
        if "checkpoint" in stored:
            tick.sampled.append(datetime.fromisoformat(stored["checkpoint"]))
        if not stored or "beginning" in stored:
            tick.beginning = Beginning(job.watch.since, tick.partitions)
            if "beginning" in stored:
                tick.beginning.resume(stored["beginning"])
            else:
                tick.beginning.start(each for each in update.inventory if each.key)
        # Row numbers of snapshots by mark. Copies of a snapshot have the same mark, which gives the row of the newest.
        there = {_mark(key): row for row, key in reversed(list(enumerate(keys))) if key}
        seen = set(stored.get("seen", ()))
        unseen = [mark for mark in reversed(there) if mark not in seen]
        if tick.beginning is None:
            # Leave out the rows of kinds that get no partition; they may be many.
            kinds = update.inventory.table["kind"].to_pylist()
            unseen = [mark for mark in unseen if job.watch.matches_kind(kinds[there[mark]])]
        tick.look_at_all(dict(zip(unseen, update.inventory.take(there[mark] for mark in unseen), strict=True)))
        waiting = tick.waiting + update.pending
        if waiting:
            context.log.info("%d snapshots wait for the next tick", waiting)
        # Drop the marks of deleted snapshots; otherwise the cursor would grow without bound.
        cursor: dict[str, Any] = {"seen": sorted((seen & there.keys()).union(tick.handled))}
        if tick.beginning is not None and (waiting or tick.undecided):
            cursor["beginning"] = tick.beginning.to_json()
        if tick.sampled:
            cursor["checkpoint"] = max(tick.sampled).isoformat()
        reports = InventoryReports(job, stored.get("inventory", {}))
        events = reports.report(update, partitions, now)
        cursor["owned"] = owned
        cursor["inventory"] = reports.to_json()
        cursor["failures"] = tick.request_again(set(keys), stored.get("failures"))
        return dg.SensorResult(
            run_requests=tick.runs,
            # The UI lists partitions in this order: the oldest first.
            dynamic_partitions_requests=[job.partitions.build_add_request(tick.keys[::-1])] if tick.keys else [],
            skip_reason=None
            if tick.runs
            else "; ".join(tick.list_reasons()) or f"No new snapshots below {', '.join(job.all_roots)}",
            asset_events=[*tick.describe_savepoints(), *events],
            cursor=store_cursor(job, NEW_SNAPSHOTS, context, cursor),
        )

    return new_snapshots


@dataclass
class _SnapshotTick:
    """The decisions of one evaluation of the sensor.

    Attributes:
        job: the Flink job.
        context: of the sensor.
        migrations: the runs that migrate snapshots.
        deadline: monotonic time after which no further snapshot is opened.
        beginning: the snapshots with which the job begins; None once they are chosen.
        keys: partitions to add.
        runs: runs to request.
        reasons: why other snapshots are not migrated.
        savepoints: new savepoints, which the external asset `flink_job` shows.
        handled: marks of the decided snapshots.
        waiting: number of snapshots left to later ticks by the limits of a tick.
        undecided: kinds whose newest snapshot must be decided in a later tick.
        passed: number of snapshots that were passed over.
        partitions: keys of the partitions that exist.
        sampled: times of checkpoints with a partition: the newest of earlier ticks, and those of this tick.
        left_out: number of checkpoints that get no partition, because they are too close to one that has.
    """

    job: FlinkJob
    context: dg.SensorEvaluationContext
    migrations: MigrationRuns
    deadline: float
    beginning: Beginning | None = None
    keys: list[str] = field(default_factory=list)
    runs: list[dg.RunRequest] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    savepoints: list[SnapshotSummary] = field(default_factory=list)
    handled: list[str] = field(default_factory=list)
    waiting: int = 0
    undecided: set[SnapshotKind] = field(default_factory=set)
    passed: int = 0
    partitions: set[str] = field(default_factory=set)
    sampled: list[datetime] = field(default_factory=list)
    left_out: int = 0

    def look_at_all(self, unseen: Mapping[str, SnapshotSummary]) -> None:
        """Decide what happens with snapshots, as far as time permits.

        Args:
            unseen: snapshots by mark, newest first.
        """
        now = datetime.now(UTC)
        looked = 0
        for mark, summary in unseen.items():
            if self.beginning is not None and self.beginning.passes_over(summary):
                self.handled.append(mark)
                self.passed += 1
                continue
            if not self.job.watch.matches(summary):
                continue
            is_open = self.beginning is not None and self.beginning.is_open(summary)
            if is_open and summary.kind in self.undecided:
                continue
            if self.job.watch.is_too_young(summary, now):
                decided = False
            elif summary.key not in self.partitions and not self.job.watch.samples(summary, self.sampled):
                self.left_out += 1
                decided = True
            elif looked >= MOST_SNAPSHOTS_PER_TICK or (looked and time.monotonic() > self.deadline):
                self.waiting += 1
                decided = False
            else:
                looked += 1
                decided = self._look_at(summary)
            if decided:
                self.handled.append(mark)
            elif is_open:
                self.undecided.add(summary.kind)
        for text in (self._describe_passed(), self._describe_left_out()):
            if text:
                self.context.log.info("%s", text)

    def request_again(self, keys: set[str], since: float | None) -> float:
        """Request failed migrations again; return the time of the last failure that was looked at.

        Args:
            keys: partition keys of the snapshots that exist.
            since: time of the last failure that the tick before has looked at; None at the first tick.
        """
        last, failures = self.migrations.list_failures(since)
        for failure in failures:
            if failure.key in keys and (text := self.migrations.explain_retry(failure)):
                self.context.log.info("%s", text)
                if failure.next_attempt is None:
                    self.reasons.append(text)
                else:
                    self.runs.append(self.migrations.make_request(failure.key, failure.next_attempt))
        return last

    def describe_savepoints(self) -> Sequence[dg.AssetMaterialization]:
        """Return events for the savepoints after the last reported one, oldest first: `flink_job` shows the newest."""
        if not self.savepoints:
            return []
        last = find_reported(share_instance(self.context), self.job)
        dated = [(each.modified or datetime.min.replace(tzinfo=UTC), each) for each in self.savepoints]
        newer = [(taken, each) for taken, each in dated if last is None or taken > last]
        return [describe_savepoint(self.job, each) for _, each in sorted(newer, key=itemgetter(0))]

    def list_reasons(self) -> Sequence[str]:
        """Return why snapshots are not migrated, the most important first."""
        return list(filter(None, (self._describe_passed(), *self.reasons, self._describe_left_out())))[
            :_NEW_SNAPSHOTS_SHOWN
        ]

    def _describe_left_out(self) -> str:
        if not self.left_out:
            return ""
        return (
            f"{self.left_out} checkpoints get no partition, because of `watch: {{checkpoints: "
            f"{self.job.watch.checkpoints}}}`; they are in the inventory"
        )

    def _describe_passed(self) -> str:
        if not self.passed:
            return ""
        return (
            f"{self.passed} snapshots that existed before get no partition, because the job begins with "
            f"`watch: {{since: {self.job.watch.since}}}`: for all of them set `since: all` and clear the cursor of the "
            f"sensor, for some launch {self.job.prefix(REGISTER)}"
        )

    def _look_at(self, summary: SnapshotSummary) -> bool:
        """Decide what happens with a snapshot; return False if the next tick must decide again."""
        key = summary.key
        if not self.job.watch.migrates(summary):
            self._add(summary)
            self.reasons.append(f"{key}: {summary.kind}s are not migrated automatically")
            return True
        try:
            snapshot = self.job.storage.open(summary.path)
            if stranger := find_stranger(self.job.uids, snapshot):
                self.reasons.append(f"{key}: {stranger}")
                return True
            reason = self.migrations.explain_target(snapshot)
        except StorageError as error:
            self.context.log.warning("%s cannot be opened now; the next tick tries again: %s", key, error)
            return False
        except StateError as error:
            self.context.log.warning("Not migrated: %s: %s", key, error)
            reason = str(error)
        self._add(summary)
        if reason:
            self.reasons.append(f"{key}: {reason}")
        else:
            attempt, text = self.migrations.decide(key)
            if attempt is None:
                self.reasons.append(text)
            else:
                self.runs.append(self.migrations.make_request(key, attempt))
        return True

    def _add(self, summary: SnapshotSummary) -> None:
        self.keys.append(summary.key)
        if summary.kind is SnapshotKind.CHECKPOINT and summary.modified is not None:
            self.sampled.append(summary.modified)
        if self.beginning is not None:
            self.beginning.accept(summary)
        limit = self.job.thresholds.savepoint_limit
        # Dagster dates an event by its arrival, so that an old savepoint would count as a fresh one.
        old = limit is not None and (summary.modified is None or datetime.now(UTC) - summary.modified > limit)
        if summary.kind is SnapshotKind.SAVEPOINT and not old:
            self.savepoints.append(summary)


def _mark(key: str) -> str:
    """Return a short hash of a partition key, which stands for the snapshot and its copies in the cursor."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]


REQUESTS = "requests"

REQUESTS_INTERVAL = 30
"""Seconds between two ticks."""

REQUEST_TAG = "state-pipelines/request"
"""Run tag with the Flink job, and the name and mark of the request file."""

PASSED_OVER_TAG = "state-pipelines/passed-over"
"""Run tag with the newer snapshots that `latest` has passed over, and why."""

MOST_REQUESTS_PER_TICK = 50
"""Maximal number of requests that one tick reads; their runs are one message of gRPC."""

SECONDS = 20
"""Time after which a tick reads no further request; Dagster ends it after 60 seconds."""

LOST_AFTER = 3600
"""Seconds after which a request fails whose run does not exist."""

_WAITING, _RUNNING, _DONE = "waiting", "running", "done"
_REQUESTS_SHOWN = 10
_LONGEST_REASON = 1000


def build_requests(job: FlinkJob, jobs: Sequence[AnyJob]) -> dg.SensorDefinition:
    """Build the sensor `requests` of a Flink job.

    Its cursor contains, for each request file, its mark, its state (waiting, running or done), and for a running one
    when the run was requested, in seconds of the epoch.

    Args:
        job: the Flink job.
        jobs: its Dagster jobs.

    Raises:
        UsageError: the job has no directory for requests.
    """
    if job.requests is None:
        raise UsageError("the job has no directory for requests", hint="Set the field requests in the YAML of the job")
    directory = job.requests

    requested = [each for each in jobs if each.name in {job.prefix(name) for name in JOBS}]

    @flink_sensor(job, REQUESTS, interval=REQUESTS_INTERVAL, decorator=_decorate, jobs=requested)
    def requests(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Runs each request file once, and writes its result beside it."""
        if conflict := find_name_conflict(share_instance(context), job):
            return dg.SkipReason(conflict)
        tick = _RequestTick(job, context, load_cursor(job, REQUESTS, context))
        tick.evaluate(resolve(directory))
        return tick.finish(directory)

    return requests


class _RequestSensor(dg.SensorDefinition):
    """A sensor whose jobs need resources, for which Dagster would log a warning when it adds them to the jobs."""

    def with_updated_jobs(self, new_jobs: Sequence[Any]) -> dg.SensorDefinition:
        """Return a copy of the sensor whose jobs have their resources, without Dagster's warning of a beta option."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dg.BetaWarning)
            return super().with_updated_jobs(new_jobs)


def _decorate(**options: Any) -> Callable[[Callable[..., Any]], dg.SensorDefinition]:
    return lambda function: _RequestSensor(evaluation_fn=function, **options)


class _RequestTick:
    """One evaluation of the sensor `requests`; an error in one request file does not stop the evaluation of others."""

    def __init__(self, job: FlinkJob, context: dg.SensorEvaluationContext, known: Mapping[str, list[Any]]) -> None:
        self.job = job
        self.context = context
        self.instance = share_instance(context)
        self.known = known
        self.cursor: dict[str, list[Any]] = {}
        self.runs: list[dg.RunRequest] = []
        self.keys: list[str] = []
        self.reasons: list[str] = []
        self.found: dict[str, tuple[str, str]] = {}

    def evaluate(self, directory: Location) -> None:
        """Write the results of finished runs, and start the runs of new and of waiting files."""
        pending = []
        for file in list_requests(directory):
            mark, state, *since = known = self.known.get(file.name, ["", ""])
            if mark != file.mark or state == _WAITING:
                pending.append(file)
                continue
            self.cursor[file.name] = known
            if state == _RUNNING:
                with self._explaining(file):
                    self._report(file, *since)
        contents = self._read(self._order(pending))
        # If a file was replaced after it was listed, its mark may not belong to the content that was read: the next
        # tick reads it again.
        current = set(list_requests(directory)) if contents else set()
        for file, content in contents:
            with self._explaining(file):
                if file not in current:
                    self._explain(file, "waits, because it was changed or removed while it was read")
                elif isinstance(content, StateError):
                    self._refuse(file, content)
                else:
                    self._start(file, content)

    def finish(self, directory: str) -> dg.SensorResult:
        """Return the runs and partitions that this tick requests."""
        reason = "; ".join(self.reasons[:_REQUESTS_SHOWN]) or f"No new requests in {directory}"
        keys = list(dict.fromkeys(self.keys))
        return dg.SensorResult(
            run_requests=self.runs,
            dynamic_partitions_requests=[self.job.partitions.build_add_request(keys)] if keys else [],
            skip_reason=None if self.runs else reason,
            cursor=store_cursor(self.job, REQUESTS, self.context, self.cursor),
        )

    def _order(self, files: Sequence[RequestFile]) -> list[RequestFile]:
        """Sort files so that the waiting ones come after the new ones, first those that were read longest ago."""
        waiting = {name: index for index, (name, (_, state, *_)) in enumerate(self.known.items()) if state == _WAITING}
        return sorted(files, key=lambda file: waiting.get(file.name, -1))

    def _read(self, files: Sequence[RequestFile]) -> list[tuple[RequestFile, Request | StateError]]:
        """Return the requests of some files, or why they are refused, until the time is over."""
        contents: list[tuple[RequestFile, Request | StateError]] = []
        deadline = time.monotonic() + SECONDS
        for count, file in enumerate(files):
            if count and (len(contents) >= MOST_REQUESTS_PER_TICK or time.monotonic() > deadline):
                self.reasons.append(f"{len(files) - count} requests wait for the next tick")
                # Keep unread files first in the cursor, so that the next tick begins with them (see `_order`).
                left = {each.name: self.known[each.name] for each in files[count:] if each.name in self.known}
                self.cursor = {**left, **self.cursor}
                break
            self.cursor[file.name] = [file.mark, _WAITING]
            with self._explaining(file):
                if file.has_result():
                    # The request was carried out, although the cursor does not say so: it was cleared since then.
                    self.cursor[file.name] = [file.mark, _DONE]
                    continue
                try:
                    contents.append((file, file.read()))
                except StorageError:
                    raise
                except StateError as error:
                    contents.append((file, error))
        return contents

    @cached_property
    def _inventory(self) -> Inventory | StateError:
        # Cache an error too, so that a failing storage is not asked again for each request.
        try:
            return self.job.storage.update_inventory(budget=SECONDS).inventory
        except StateError as error:
            return error

    def _start(self, file: RequestFile, request: Request) -> None:
        try:
            name, config = plan_run(self.job, request)
        except UsageError as error:
            self._refuse(file, error)
            return
        key, passed_over = None, ""
        # A snapshot that comes back from quarantine is not in the inventory, so it is not looked up.
        if request.snapshot is not None and request.operation is not Operation.RESTORE:
            key, passed_over = self._find(request.snapshot)
            self.keys.append(key)
            if passed_over:
                self._explain(file, passed_over)
        tag = self._make_tag(file)
        self.runs.append(
            dg.RunRequest(
                run_key=tag,
                job_name=self.job.prefix(name),
                partition_key=None if request.operation in UNPARTITIONED else key,
                run_config=config,
                tags={REQUEST_TAG: tag, **({PASSED_OVER_TAG: to_tag(passed_over)} if passed_over else {})},
            )
        )

        self.cursor[file.name] = [file.mark, _RUNNING, int(time.time())]

    def _find(self, name: str) -> tuple[str, str]:
        """Return the partition key of a snapshot, and which newer ones `latest` has passed over; once for each name."""
        # An error, also that a snapshot does not exist, is not stored: the file waits, and the next tick looks again.
        if isinstance(self._inventory, StateError):
            raise self._inventory
        if name not in self.found:
            warnings: list[str] = []
            key, _ = self.job.storage.find_named(name, self._inventory, warnings.append)
            for each in warnings:
                self.context.log.warning("%s", each)
            self.found[name] = key, "; ".join(warnings)
        return self.found[name]

    def _refuse(self, file: RequestFile, error: StateError) -> None:
        self._explain(file, str(error))
        self._write(file, describe_result(file, RequestStatus.REFUSED, finished=_now(), error=str(error)))

    def _report(self, file: RequestFile, since: float = math.inf) -> None:
        """Write the result if the run has finished."""
        filters = dg.RunsFilter(tags={REQUEST_TAG: self._make_tag(file)})
        # A re-execution from the UI has the same tag; the newest run counts.
        run = next(iter(self.instance.get_runs(filters, limit=1)), None)
        if run is None and time.time() - since > LOST_AFTER:
            error = "the run does not exist: it was deleted, or could not be created. Change the file to run it again"
            self._explain(file, error)
            self._write(file, describe_result(file, RequestStatus.FAILED, finished=_now(), error=error))
        if run is None or not run.is_finished:
            return
        outcome = read_outcome(self.instance, run)
        skipped = run.tags.get(SKIPPED_TAG, "")
        if mark := run.tags.get(WAITING_TAG, ""):
            skipped = f"the plan waits for an approval: ask for it again with approve: {mark!r}"
        content = describe_result(
            file,
            RequestStatus.SUCCEEDED if outcome.success and not skipped else RequestStatus.FAILED,
            finished=_now(),
            run=run.run_id,
            error=outcome.error or skipped,
            snapshot=run.tags.get(PARTITION_TAG),
            passed_over=run.tags.get(PASSED_OVER_TAG),
            failed_checks=outcome.failed_checks,
            results=outcome.materialized,
        )
        self._write(file, content)

    def _write(self, file: RequestFile, content: bytes) -> None:
        """Write a result file; the next tick tries it again if the storage refuses."""
        try:
            replace_file(file.result, content)
        except StateError as error:
            self._explain(file, f"its result cannot be written: {error}")
        else:
            self.cursor[file.name] = [file.mark, _DONE]

    @contextmanager
    def _explaining(self, file: RequestFile) -> Iterator[None]:
        """Turn an exception into a reason: this tick goes on with other files, the next one tries the file again."""
        try:
            yield
        except StateError as error:
            self._explain(file, f"waits: {error}")
        except Exception as error:
            # Catch all errors: each concerns one file only, and the other files must be evaluated.
            self.context.log.exception("A request cannot be evaluated")
            self._explain(file, f"waits: {type(error).__name__}, see the log of the tick")

    def _explain(self, file: RequestFile, reason: str) -> None:
        name = file.name if file.name.isprintable() else ascii(file.name)
        # Databases store UTF-8, which names of files need not be.
        text = f"{name}: {reason}".encode(errors="backslashreplace").decode()
        self.reasons.append(text[:_LONGEST_REASON])

    def _make_tag(self, file: RequestFile) -> str:
        return f"{self.job.name}/{file.name}@{file.mark}"


def _now() -> datetime:
    return datetime.now(UTC)
