"""Partitions: one per snapshot, named by its directory and its content."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from state_pipelines.errors import NotFoundError, StateError, Where

if TYPE_CHECKING:
    from resources import StorageResource
    from state_pipelines.snapshot import Snapshot

snapshots = dg.DynamicPartitionsDefinition(name="snapshots")
"""The sensor adds them; a partition stays when its snapshot is deleted, with all that was found out about it."""


def make_partition_key(snapshot: Snapshot) -> str:
    """The key of a snapshot: name of its directory and fingerprint, so that moving it changes nothing."""
    return f"{snapshot.location.directory.name}-{snapshot.fingerprint}"


def open_partition(storage: StorageResource, key: str) -> Snapshot:
    """Open the snapshot of a partition, wherever it lies below the watched directory.

    Raises:
        NotFoundError: it is not there any more.
    """
    name, _, fingerprint = key.rpartition("-")
    for entry in storage.list_snapshots():
        if entry.location.directory.name == name:
            try:
                snapshot = storage.open(str(entry.location.directory))
            except StateError:
                continue  # one of the same name that is broken; the inventory tells of it
            if snapshot.fingerprint == fingerprint:
                return snapshot
    raise NotFoundError(
        f"the snapshot {key} is gone",
        where=Where(file=storage.snapshots),
        hint="It was deleted or moved out of the watched directory, or another one took its place",
    )
