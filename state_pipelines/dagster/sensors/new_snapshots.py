"""`new_snapshots`: adds partitions for the snapshots that appear below the roots of a job, and starts migrations."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg

from state_pipelines.dagster.assets.flink_job import describe_savepoint
from state_pipelines.dagster.jobs import MIGRATE
from state_pipelines.dagster.watching import find_stranger
from state_pipelines.errors import StateError, StorageError
from state_pipelines.metadata.properties import SnapshotKind

if TYPE_CHECKING:
    from state_pipelines.dagster.job import FlinkJob
    from state_pipelines.operations.inventory import SnapshotSummary

NAME = "new_snapshots"

MOST_PER_TICK = 50
"""Maximal number of new snapshots per tick."""

_SHOWN = 10


def build_new_snapshots(job: FlinkJob) -> dg.SensorDefinition:
    """Build the sensor `new_snapshots` of a job."""

    @dg.sensor(
        name=job.prefix(NAME),
        job_name=job.prefix(MIGRATE),
        minimum_interval_seconds=30,
        default_status=job.sensor_status,
    )
    def new_snapshots(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        """Adds a partition for each new snapshot, and requests one run for each that has pending revisions.

        A directory is a snapshot as soon as it has `_metadata`, which Flink writes last. The newest snapshots come
        first; when the time of a tick is over, the others wait for the next tick. The cursor holds a mark of each known
        snapshot: clear it to evaluate all of them again.
        """
        version = job.revisions.version
        seen = set(json.loads(context.cursor)["seen"]) if context.cursor else set()
        deadline = time.monotonic() + job.watch.seconds
        update = job.storage.update_inventory(budget=job.watch.seconds)
        for each in [each for each in update.new if each.unreadable][:_SHOWN]:
            context.log.warning("%s cannot be read: %s", each.path, each.unreadable)
        now = datetime.now(UTC)
        there = {_mark(each): each for each in reversed(list(update.inventory)) if each.key}
        new = [mark for mark in reversed(there) if mark not in seen and job.watch.takes(there[mark], now)]
        tick = _Tick(job)
        handled: list[str] = []
        for mark in new[:MOST_PER_TICK]:
            if handled and time.monotonic() > deadline:
                break
            if tick.look_at(there[mark], context):
                handled.append(mark)
        waiting = len(new) - len(handled) + update.pending
        if waiting:
            context.log.info("%d snapshots wait for the next tick", waiting)
        # Without the marks of deleted snapshots, which would let the cursor grow without bound.
        cursor = json.dumps({"seen": sorted((seen & there.keys()).union(handled))})
        return dg.SensorResult(
            run_requests=[
                # After the cursor was cleared, only new revisions give a snapshot another run.
                dg.RunRequest(run_key=f"{key}-{version}", partition_key=key)
                for key in tick.pending
            ],
            dynamic_partitions_requests=[job.partitions.build_add_request(tick.keys)] if tick.keys else [],
            skip_reason=None
            if tick.pending
            else "; ".join(tick.reasons[:_SHOWN]) or f"No new snapshots below {', '.join(job.all_roots)}",
            asset_events=tick.savepoints,
            cursor=cursor,
        )

    return new_snapshots


@dataclass
class _Tick:
    """The decisions of one evaluation of the sensor.

    Attributes:
        job: the Flink job.
        keys: partitions to add.
        pending: keys of snapshots to migrate.
        reasons: why other snapshots are not migrated.
        savepoints: events of the external asset `flink_job`.
    """

    job: FlinkJob
    keys: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    savepoints: list[dg.AssetMaterialization] = field(default_factory=list)

    def look_at(self, summary: SnapshotSummary, context: dg.SensorEvaluationContext) -> bool:
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
            chain = self.job.revisions.plan(snapshot)
        except StorageError as error:
            context.log.warning("%s cannot be opened now; the next tick tries again: %s", key, error)
            return False
        except StateError as error:
            context.log.warning("Not migrated: %s: %s", key, error)
            self.reasons.append(f"{key}: {error}")
            chain = []
        else:
            if not chain:
                self.reasons.append(f"{key}: already at {self.job.revisions.name_target()}, nothing to do")
        self._add(summary)
        if chain:
            self.pending.append(key)
        return True

    def _add(self, summary: SnapshotSummary) -> None:
        self.keys.append(summary.key)
        limit = self.job.thresholds.savepoint_limit
        # Dagster dates an event by its arrival, so that an old savepoint would count as a fresh one.
        old = limit is not None and (summary.modified is None or datetime.now(UTC) - summary.modified > limit)
        if summary.kind is SnapshotKind.SAVEPOINT and not old:
            self.savepoints.append(describe_savepoint(self.job, summary))


def _mark(summary: SnapshotSummary) -> str:
    """A short hash of the partition key, so that copies of a snapshot have the same mark."""
    return hashlib.sha256(summary.key.encode()).hexdigest()[:12]
