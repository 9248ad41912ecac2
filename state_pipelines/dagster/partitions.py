"""Dynamic partitions: one per snapshot, named after its directory and its content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.operations import inventory

if TYPE_CHECKING:
    import dagster as dg

    from state_pipelines.dagster.job import FlinkJob
    from state_pipelines.snapshot import Snapshot


def make_partition_key(snapshot: Snapshot) -> str:
    """Return the partition key of a snapshot: its short name and 8 digits of its fingerprint, without its path."""
    name = inventory.name_snapshot(snapshot.location.directory).name
    return inventory.make_partition_key(name, snapshot.fingerprint)


def open_partition(context: dg.AssetExecutionContext, job: FlinkJob) -> Snapshot:
    """Open the snapshot of a run's partition.

    Adds the partition if a manual run names a snapshot that the sensor has not seen yet: Dagster rejects results of
    unknown partitions.

    Raises:
        NotFoundError: there is no such snapshot, or it was deleted.
    """
    key = context.partition_key
    snapshot = job.storage.find(key)
    name = str(job.partitions.name)
    if not context.instance.has_dynamic_partition(name, key):
        context.instance.add_dynamic_partitions(name, [key])
    return snapshot
