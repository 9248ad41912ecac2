"""Storage: where snapshots appear, and where results go; any path or URL that fsspec reaches."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from resources.environment import read_list, read_variable
from state_pipelines.errors import UsageError, Where
from state_pipelines.snapshot import declare, open_snapshot
from state_pipelines.snapshot.declarations import KINDS
from state_pipelines.storage import Location, join, resolve
from state_pipelines.storage.files import is_directory, list_directory, read_file
from state_pipelines.storage.snapshot_listing import SnapshotEntry, find_snapshots

if TYPE_CHECKING:
    from state_pipelines.snapshot import Snapshot, State


@dataclass(frozen=True)
class RequestFile:
    """A file in which somebody asks for something.

    Attributes:
        location: where it lies.
        mark: changes when its size or the time of its last change does.
    """

    location: Location
    mark: str

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.location.name

    def read(self) -> str:
        """Its text.

        Raises:
            UsageError: it is not text.
        """
        try:
            return read_file(self.location).decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"the request is not text: {error}", where=Where(file=str(self.location))) from None


class StorageResource(dg.ConfigurableResource["StorageResource"]):
    """The directories of this deployment."""

    snapshots: str = Field(description="Directory that is watched; checkpoints and savepoints lie below it.")
    results: str = Field(description="Directory for new savepoints.")
    tables: str = Field(description="Directory for the tables of states; Spark writes there.")
    requests: str = Field(default="", description="Directory of files that ask for rescalings; none by default.")
    path_mapping: list[str] = Field(
        default=[], description="`FROM=TO` for directories that were moved; absolute paths in snapshots name them."
    )
    declarations: dict[str, list[str]] = Field(
        default={},
        description="Facts that the snapshots do not hold, as texts by kind: uids, classes, connectors, …",
    )

    @classmethod
    def from_environment(cls) -> StorageResource:
        """The resource as the environment variables describe it."""
        return cls(
            snapshots=read_variable("STATE_PIPELINES_SNAPSHOTS"),
            results=read_variable("STATE_PIPELINES_RESULTS"),
            tables=read_variable("STATE_PIPELINES_TABLES"),
            requests=read_variable("STATE_PIPELINES_REQUESTS"),
            path_mapping=read_list("STATE_PIPELINES_PATH_MAPPING"),
            declarations={kind.name: list(kind.split(read_variable(kind.variable))) for kind in KINDS},
        )

    def list_snapshots(self) -> list[SnapshotEntry]:
        """The snapshots below the watched directory, without results that may lie there too."""
        own = [resolve(path).path for path in (self.results, self.tables)]
        return list(find_snapshots(resolve(self.snapshots), skip=own))

    def list_requests(self) -> list[RequestFile]:
        """The YAML files in the directory of requests, by name; none when it does not exist."""
        if not self.requests or not is_directory(place := resolve(self.requests)):
            return []
        found = []
        for entry in list_directory(place):
            if not entry.is_directory and entry.location.name.endswith((".yaml", ".yml")):
                text = f"{entry.size} {entry.modified}"
                found.append(RequestFile(entry.location, hashlib.sha256(text.encode()).hexdigest()[:12]))
        return found

    def open(self, path: str) -> Snapshot:
        """Open the snapshot at `path`."""
        return open_snapshot(path, declare(self.declarations), path_mapping=self.path_mapping)

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
