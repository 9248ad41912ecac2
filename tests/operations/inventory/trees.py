"""Directories of snapshots, made of metadata that Flink wrote."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from state_pipelines.metadata import read_metadata, write_metadata
from state_pipelines.storage import join
from tests.snapshots import DATA

if TYPE_CHECKING:
    from state_pipelines.metadata import CheckpointMetadata
    from state_pipelines.storage import Location

JOB = "1a2b3c4d5e6f708192a3b4c5d6e7f809"
OTHER_JOB = "ffeeddccbbaa99887766554433221100"


@cache
def flink_metadata(case: str = "heap") -> CheckpointMetadata:
    """Metadata of a savepoint of Flink 2.2."""
    file = max((DATA / "types/flink-2.2" / case).glob("**/_metadata"))
    return read_metadata(file.read_bytes(), str(file))


def put(root: Location, path: str, checkpoint_id: int = 1, case: str = "heap") -> Location:
    """Write the metadata of a snapshot under a checkpoint id, which makes its fingerprint; returns its directory."""
    metadata = replace(flink_metadata(case), checkpoint_id=checkpoint_id)
    return put_bytes(root, path, write_metadata(metadata))


def put_bytes(root: Location, path: str, data: bytes) -> Location:
    """Write a file `_metadata`; returns its directory."""
    directory = join(root, *path.split("/"))
    root.filesystem.makedirs(directory.path, exist_ok=True)
    root.filesystem.pipe_file(join(directory, "_metadata").path, data)
    return directory
