"""`new_snapshots`: adds partitions for the snapshots that appear below the roots of a job, and starts migrations."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import dagster as dg

from state_pipelines.dagster.assets.flink_job import describe_savepoint, find_reported
from state_pipelines.dagster.assets.snapshots import InventoryReports
from state_pipelines.dagster.flink_asset import documented
from state_pipelines.dagster.job_settings import Beginning, find_stranger
from state_pipelines.dagster.jobs import MIGRATE
from state_pipelines.dagster.migration_runs import MigrationRuns
from state_pipelines.dagster.ops import REGISTER_SNAPSHOT as REGISTER
from state_pipelines.dagster.partitions import find_name_conflict
from state_pipelines.dagster.storage import describe_owner, is_due, take_marker
from state_pipelines.dagster.triggers import load_cursor, share_instance, store_cursor
from state_pipelines.errors import StateError, StorageError
from state_pipelines.metadata.checkpoint import SnapshotKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.dagster.job import FlinkJob
    from state_pipelines.operations.inventory import SnapshotSummary

NAME = "new_snapshots"

INTERVAL = 120
"""Seconds between two ticks. Instances with many jobs are idle most of the time, and each tick costs some CPU."""

MOST_PER_TICK = 50
"""Maximal number of new snapshots per tick."""

_SHOWN = 10


def build_new_snapshots(job: FlinkJob) -> dg.SensorDefinition:
    """Build the sensor `new_snapshots` of a job."""

    @documented(
        job,
        dg.sensor,
        name=job.prefix(NAME),
        job_name=job.prefix(MIGRATE),
        minimum_interval_seconds=job.interval(NAME, INTERVAL),
        default_status=job.sensor_status,
    )
    def new_snapshots(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Adds a partition for each new snapshot, and requests one run for each with pending revisions or a new query.

        A directory is a snapshot as soon as it has `_metadata`, which Flink writes last. The newest snapshots come
        first; when the time of a tick is over, the others wait for the next tick. The cursor holds a mark of each known
        snapshot: clear it to evaluate all of them that have a partition again. Of the snapshots that exist at the first
        tick, those that `watch.since` excludes get no partition, and of checkpoints only samples. The inventory is
        reported when it has changed, and every hour. A failed migration is requested again as often as
        `watch.retries` says.
        """
        instance = share_instance(context)
        if conflict := find_name_conflict(instance, job):
            return dg.SkipReason(conflict)
        stored = load_cursor(job, NAME, context)
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
        for each in [each for each in update.new if each.unreadable][:_SHOWN]:
            context.log.warning("%s cannot be read: %s", each.path, each.unreadable)
        keys = update.inventory.table["key"].to_pylist()
        tick = _Tick(job, context, MigrationRuns(job, instance), deadline, partitions=set(partitions))
        if "checkpoint" in stored:
            tick.sampled.append(datetime.fromisoformat(stored["checkpoint"]))
        if not stored or "beginning" in stored:
            tick.beginning = Beginning(job.watch.since, tick.partitions)
            if "beginning" in stored:
                tick.beginning.resume(stored["beginning"])
            else:
                tick.beginning.start(each for each in update.inventory if each.key)
        # Rows by mark; the newest of several copies has the mark.
        there = {_mark(key): row for row, key in reversed(list(enumerate(keys))) if key}
        seen = set(stored.get("seen", ()))
        unseen = [mark for mark in reversed(there) if mark not in seen]
        if tick.beginning is None:
            # Without the rows of kinds that get no partition, which may be many.
            kinds = update.inventory.table["kind"].to_pylist()
            unseen = [mark for mark in unseen if job.watch.matches_kind(kinds[there[mark]])]
        tick.look_at_all(dict(zip(unseen, update.inventory.take(there[mark] for mark in unseen), strict=True)))
        waiting = tick.waiting + update.pending
        if waiting:
            context.log.info("%d snapshots wait for the next tick", waiting)
        # Without the marks of deleted snapshots, which would let the cursor grow without bound.
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
            cursor=store_cursor(job, NAME, context, cursor),
        )

    return new_snapshots


@dataclass
class _Tick:
    """The decisions of one evaluation of the sensor.

    Attributes:
        job: the Flink job.
        context: of the sensor.
        migrations: the runs that migrate snapshots.
        deadline: monotonic time after which no further snapshot is opened.
        beginning: which of the snapshots that exist at the start are passed over; None when they are decided.
        keys: partitions to add.
        runs: runs to request.
        reasons: why other snapshots are not migrated.
        savepoints: new savepoints, which the external asset `flink_job` shows.
        handled: marks of the decided snapshots.
        waiting: number of snapshots for which time was short.
        undecided: kinds whose newest snapshot must be decided in a later tick.
        passed: number of snapshots that were passed over.
        partitions: keys of the partitions that exist.
        sampled: when the checkpoints with a partition were written, the newest of the ticks before and those of this
            one.
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
            elif looked >= MOST_PER_TICK or (looked and time.monotonic() > self.deadline):
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
            since: that of the tick before; None at the first tick.
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
        """Return events for the new savepoints, the newest last, so that `flink_job` shows it; none for older ones."""
        if not self.savepoints:
            return []
        last = find_reported(share_instance(self.context), self.job)
        dated = [(each.modified or datetime.min.replace(tzinfo=UTC), each) for each in self.savepoints]
        newer = [(taken, each) for taken, each in dated if last is None or taken > last]
        return [describe_savepoint(self.job, each) for _, each in sorted(newer, key=itemgetter(0))]

    def list_reasons(self) -> Sequence[str]:
        """Return why snapshots are not migrated, the most important first."""
        return list(filter(None, (self._describe_passed(), *self.reasons, self._describe_left_out())))[:_SHOWN]

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
    """A short hash of a partition key, so that copies of a snapshot have the same mark."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]
