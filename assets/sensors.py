"""`new_snapshots`: starts the migration of snapshots that appear below the watched directory."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import dagster as dg

from assets.jobs import migrate_snapshot
from assets.partitions import make_partition_key, snapshots
from resources import StorageResource
from state_pipelines.errors import StateError

if TYPE_CHECKING:
    from state_pipelines.storage.snapshot_listing import SnapshotEntry

NEW_PER_TICK = 10
"""Snapshots that one tick takes up; the others wait for the next."""


@dg.sensor(job=migrate_snapshot, minimum_interval_seconds=30)
def new_snapshots(context: dg.SensorEvaluationContext, storage: StorageResource) -> dg.SensorResult | dg.SkipReason:
    """Adds a partition for every new snapshot and requests its run; each snapshot is taken up once.

    A directory is a snapshot as soon as it has `_metadata`, which Flink writes last. The cursor holds a mark for each
    snapshot that was there at the last tick; clear it to look at all of them again.
    """
    seen = set(json.loads(context.cursor)["seen"]) if context.cursor else set()
    entries = {_mark(entry): entry for entry in storage.list_snapshots()}
    new = [mark for mark in entries if mark not in seen][:NEW_PER_TICK]
    keys = []
    for mark in new:
        try:
            keys.append(make_partition_key(storage.open(str(entries[mark].location.directory))))
        except StateError as error:
            context.log.warning("Not a readable snapshot: %s", error)
    # Marks of deleted snapshots go, so that the cursor does not grow for ever.
    cursor = json.dumps({"seen": sorted((seen & entries.keys()).union(new))})
    return dg.SensorResult(
        run_requests=[dg.RunRequest(run_key=key, partition_key=key) for key in dict.fromkeys(keys)],
        dynamic_partitions_requests=[snapshots.build_add_request(list(dict.fromkeys(keys)))] if keys else [],
        skip_reason=None if keys else f"No new snapshots below {storage.snapshots}",
        cursor=cursor,
    )


def _mark(entry: SnapshotEntry) -> str:
    """A few bytes that change when another snapshot takes the place of this one."""
    text = f"{entry.location.metadata} {entry.size} {entry.modified}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]
