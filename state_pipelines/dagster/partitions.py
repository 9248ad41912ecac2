"""Snapshots in a Dagster instance: a dynamic partition for each, and the external asset `flink_job`."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg

from state_pipelines.dagster.translation import DATA_VERSION_TAG
from state_pipelines.errors import NotFoundError, StateError, UsageError
from state_pipelines.metadata.checkpoint import SnapshotKind
from state_pipelines.operations import inventory
from state_pipelines.redaction import redact
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from state_pipelines.dagster.job import FlinkJob
    from state_pipelines.operations.inventory import SnapshotSummary
    from state_pipelines.snapshot import Snapshot

NAMES = "state_pipelines_names"
"""Set of dynamic partitions with an entry for each Flink job of the instance: its name and its results."""

_SHOWN_SIZE = 200


def find_name_conflict(instance: dg.DagsterInstance, job: FlinkJob) -> str:
    """Reserve the name of a job in an instance; return why it cannot have it, or an empty text.

    All code locations of an instance share partitions, asset keys and names of sensors. Two jobs with one name would
    run for each other's snapshots, so the name belongs to the job that reserves it first. The directory of its results
    identifies this job.
    """
    entry = _make_entry(job)
    # Dagster has no conditional writes: of two jobs that write at the same time, the first in the stored order wins.
    if _find_owner(instance, job) is None:
        instance.add_dynamic_partitions(NAMES, [entry])
    owner = _find_owner(instance, job)
    if owner is None or owner == entry:
        return ""
    return (
        f"the name {job.name} belongs to another job of this Dagster instance, with the results "
        f"{owner.partition('@')[2]}: rename one of them. If the results of this job were moved, launch "
        f"{job.prefix('prune_partitions')} with `results_moved: true`"
    )


def check_name(instance: dg.DagsterInstance, job: FlinkJob) -> None:
    """Reserve the name of a job in an instance.

    Raises:
        UsageError: another job has it.
    """
    if conflict := find_name_conflict(instance, job):
        raise UsageError(conflict)


def take_name(instance: dg.DagsterInstance, job: FlinkJob) -> None:
    """Give its name to a job whose results were moved, even if another entry has reserved the name."""
    while (owner := _find_owner(instance, job)) not in (None, _make_entry(job)):
        instance.delete_dynamic_partition(NAMES, str(owner))
    check_name(instance, job)


def _find_owner(instance: dg.DagsterInstance, job: FlinkJob) -> str | None:
    entries = instance.get_dynamic_partitions(NAMES)
    return next((each for each in entries if each.partition(" ")[0] == job.name), None)


def _make_entry(job: FlinkJob) -> str:
    """Return the name of the job, a hash of the path of its results, and the path shortened and without secrets."""
    path = str(resolve(job.results))
    shown = redact(path)[:_SHOWN_SIZE].replace("...", "…")
    digest = hashlib.sha256(path.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{job.name} {digest}@{''.join(each if each.isprintable() else '?' for each in shown)}"


def explain_removal(job: FlinkJob, key: str) -> str:
    """Return why a partition has no snapshot any more, if it was a checkpoint; otherwise an empty text.

    Flink removes a checkpoint when newer ones replace it, even if a run for its partition is queued or reads it.
    """
    stored = job.storage.read_inventory()
    known = stored.find(key)
    if not known and key not in stored.deleted:
        return ""
    # Of a deleted snapshot the inventory has only the key, which has to tell checkpoints from savepoints.
    if not inventory.is_checkpoint_key(key) and not any(each.kind is SnapshotKind.CHECKPOINT for each in known):
        return ""
    try:
        job.storage.find(key)
    except NotFoundError as error:
        return f"the checkpoint was removed, as Flink removes those that newer ones replace: {error.what}"
    except StateError:
        return ""
    return ""


def open_partition(context: dg.AssetExecutionContext, job: FlinkJob) -> Snapshot:
    """Open the snapshot of a run's partition.

    Adds the partition if a manual run names a snapshot that the sensor has not seen yet: Dagster rejects results of
    unknown partitions.

    Raises:
        NotFoundError: there is no such snapshot, or it was deleted.
        UsageError: the name of the job belongs to another one.
    """
    check_name(context.instance, job)
    key = context.partition_key
    snapshot = job.storage.find(key)
    name = str(job.partitions.name)
    if not context.instance.has_dynamic_partition(name, key):
        context.instance.add_dynamic_partitions(name, [key])
    return snapshot


FLINK_JOB = "flink_job"
"""Name of the external asset, and of the resource and the argument with the `FlinkJob` that an op is about."""

SAME_VERSION = {DATA_VERSION_TAG: "INITIAL"}
"""Tag of each event with the data version of an external asset without events.

With a version of its own, each new savepoint would make the results for all older snapshots *Unsynced*.
"""


def describe_savepoint(job: FlinkJob, summary: SnapshotSummary) -> dg.AssetMaterialization:
    """Return the event for a savepoint that the running job has taken; the sensor `new_snapshots` reports it."""
    return dg.AssetMaterialization(
        job.key(FLINK_JOB),
        tags=SAME_VERSION,
        metadata={
            "savepoint": summary.key,
            "path": dg.MetadataValue.path(summary.path),
            "bytes": summary.bytes,
            **({} if summary.modified is None else {"taken": dg.MetadataValue.timestamp(summary.modified)}),
        },
    )


def find_reported(instance: dg.DagsterInstance, job: FlinkJob) -> datetime | None:
    """Return the time of the newest reported savepoint; None if there is none, or if its time is unknown."""
    event = instance.get_latest_materialization_event(job.key(FLINK_JOB))
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
        FLINK_JOB,
        description=job.description or f"The Flink job {job.name}, which takes the checkpoints and savepoints.",
        kinds={"flink"},
        metadata=metadata,
        # Dagster measures the time since the sensor has reported a savepoint (`describe_savepoint`).
        freshness_policy=None if limit is None else dg.FreshnessPolicy.time_window(fail_window=limit),
    )
