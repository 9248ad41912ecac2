"""Storage: where snapshots appear, and where results go; any path or URL that fsspec reaches."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from resources.environment import read_list, read_variable
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import join, resolve
from state_pipelines.storage.snapshot_listing import SnapshotEntry, find_snapshots

if TYPE_CHECKING:
    from state_pipelines.snapshot import Snapshot, State


class StorageResource(dg.ConfigurableResource["StorageResource"]):
    """The directories of this deployment."""

    snapshots: str = Field(description="Directory that is watched; checkpoints and savepoints lie below it.")
    results: str = Field(description="Directory for new savepoints.")
    tables: str = Field(description="Directory for the tables of states; Spark writes there.")
    path_mapping: list[str] = Field(
        default=[], description="`FROM=TO` for directories that were moved; absolute paths in snapshots name them."
    )
    uids: list[str] = Field(
        default=[], description="Operator uids, to name the operators of snapshots that store only their hashes."
    )

    @classmethod
    def from_environment(cls) -> StorageResource:
        """The resource as the environment variables describe it."""
        return cls(
            snapshots=read_variable("STATE_PIPELINES_SNAPSHOTS"),
            results=read_variable("STATE_PIPELINES_RESULTS"),
            tables=read_variable("STATE_PIPELINES_TABLES"),
            path_mapping=read_list("STATE_PIPELINES_PATH_MAPPING"),
            uids=read_list("STATE_PIPELINES_UIDS"),
        )

    def list_snapshots(self) -> list[SnapshotEntry]:
        """The snapshots below the watched directory, without results that may lie there too."""
        own = [resolve(path).path for path in (self.results, self.tables)]
        return list(find_snapshots(resolve(self.snapshots), skip=own))

    def open(self, path: str) -> Snapshot:
        """Open the snapshot at `path`."""
        return open_snapshot(path, path_mapping=self.path_mapping, uids=self.uids)

    def place_result(self, name: str) -> str:
        """Where the new savepoint `name` goes."""
        return str(join(resolve(self.results), _to_file_name(name)))

    def place_table(self, key: str, state: State) -> str:
        """Where the table of a state of the snapshot `key` goes."""
        names = (key, state.operator.label, state.name)
        return str(join(resolve(self.tables), *map(_to_file_name, names)))


def _to_file_name(name: str) -> str:
    # Uids and state names may hold any character, and Spark ignores what begins with `_` or `.`.
    return re.sub(r"^[_.]|[^\w.-]", lambda match: f"~{ord(match[0]):x}", name, flags=re.ASCII)
