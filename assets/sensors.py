"""`new_snapshots`: starts the migration of snapshots that appear below the watched directory."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import dagster as dg

from assets.jobs import migrate_snapshot
from assets.partitions import make_partition_key, snapshots
from resources import MigrationResource, StorageResource
from state_pipelines.errors import StateError

if TYPE_CHECKING:
    from state_pipelines.storage.snapshot_listing import SnapshotEntry

NEW_PER_TICK = 10
"""Snapshots that one tick takes up; the others wait for the next."""


@dg.sensor(job=migrate_snapshot, minimum_interval_seconds=30)
def new_snapshots(
    context: dg.SensorEvaluationContext, storage: StorageResource, migration: MigrationResource
) -> dg.SensorResult | dg.SkipReason:
    """Adds a partition for every new snapshot and requests a run where revisions are pending; once per snapshot.

    Which revision a snapshot is at, its own serializers say. A directory is a snapshot as soon as it has `_metadata`,
    which Flink writes last. The cursor holds a mark for each snapshot that was there at the last tick; clear it to look
    at all of them again.
    """
    seen = set(json.loads(context.cursor)["seen"]) if context.cursor else set()
    entries = {_mark(entry): entry for entry in storage.list_snapshots()}
    new = [mark for mark in entries if mark not in seen][:NEW_PER_TICK]
    keys, pending, reasons = [], [], []
    for mark in new:
        try:
            snapshot = storage.open(str(entries[mark].location.directory))
            keys.append(key := make_partition_key(snapshot))
        except StateError as error:
            context.log.warning("Not a readable snapshot: %s", error)
            continue
        try:
            chain = migration.plan(snapshot)
        except StateError as error:
            context.log.warning("Not migrated: %s: %s", key, error)
            reasons.append(f"{key}: {error}")
            continue
        if chain:
            pending.append(key)
        else:
            reasons.append(f"{key}: at {migration.name_target()} already, nothing to do")
    # Marks of deleted snapshots go, so that the cursor does not grow for ever.
    cursor = json.dumps({"seen": sorted((seen & entries.keys()).union(new))})
    return dg.SensorResult(
        run_requests=[
            # A snapshot that is looked at again gets another run when there are other revisions.
            dg.RunRequest(run_key=f"{key}-{migration.version}", partition_key=key)
            for key in dict.fromkeys(pending)
        ],
        dynamic_partitions_requests=[snapshots.build_add_request(list(dict.fromkeys(keys)))] if keys else [],
        skip_reason=None if pending else "; ".join(reasons) or f"No new snapshots below {storage.snapshots}",
        cursor=cursor,
    )


def _mark(entry: SnapshotEntry) -> str:
    """A few bytes that change when another snapshot takes the place of this one."""
    text = f"{entry.location.metadata} {entry.size} {entry.modified}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]
