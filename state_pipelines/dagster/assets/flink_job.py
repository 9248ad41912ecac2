"""`flink_job`: the running Flink job, an external asset upstream of all others."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg

from state_pipelines.dagster.translation import DATA_VERSION_TAG

if TYPE_CHECKING:
    from state_pipelines.dagster.job import FlinkJob
    from state_pipelines.operations.inventory import SnapshotSummary

NAME = "flink_job"

SAME_VERSION = {DATA_VERSION_TAG: "INITIAL"}
"""Tag of each event with the data version of an external asset without events.

With a version of its own, each new savepoint would make the results for all older snapshots *Unsynced*.
"""


def describe_savepoint(job: FlinkJob, summary: SnapshotSummary) -> dg.AssetMaterialization:
    """Return the event for a savepoint that the running job has taken; the sensor `new_snapshots` reports it."""
    return dg.AssetMaterialization(
        job.key(NAME),
        tags=SAME_VERSION,
        metadata={
            "savepoint": summary.key,
            "path": dg.MetadataValue.path(summary.path),
            "bytes": summary.bytes,
            **({} if summary.modified is None else {"taken": dg.MetadataValue.timestamp(summary.modified)}),
        },
    )


def find_reported(instance: dg.DagsterInstance, job: FlinkJob) -> datetime | None:
    """Return when the newest savepoint was taken that was reported; None if there is none, or its time is unknown."""
    event = instance.get_latest_materialization_event(job.key(NAME))
    shown = None if event is None else event.asset_materialization
    taken = None if shown is None else shown.metadata.get("taken")
    return datetime.fromtimestamp(taken.value, UTC) if isinstance(taken, dg.TimestampMetadataValue) else None


def build_flink_job_spec(job: FlinkJob) -> dg.AssetSpec:
    """Build the external asset `flink_job` of a job."""
    flink = job.flink
    limit = job.thresholds.savepoint_limit
    metadata: dict[str, object] = {
        "roots": list(job.all_roots),
        **({"checkpoint interval": str(flink.interval)} if flink.interval is not None else {}),
        **({"checkpoints retained": flink.num_retained} if flink.num_retained is not None else {}),
        **({"state TTL": str(flink.ttl)} if flink.ttl is not None else {}),
    }
    return job.specify(
        NAME,
        description=job.description or f"The Flink job {job.name}, which takes the checkpoints and savepoints.",
        tags=job.tags,
        kinds={"flink"},
        metadata=metadata,
        # The time since the sensor has reported a savepoint (`describe_savepoint`).
        freshness_policy=None if limit is None else dg.FreshnessPolicy.time_window(fail_window=limit),
    )
