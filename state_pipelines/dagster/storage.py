"""Directories of a Flink job: roots of its snapshots, targets of results, and the marker of the instance in charge.

Directories are local paths or fsspec URLs. Two instances, or two code locations of one, with a job of the same name and
the same results would migrate each snapshot twice. They see each other by the marker, which the sensor `new_snapshots`
renews.
"""

from __future__ import annotations

import json
import os
import re
import socket
import uuid
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from state_pipelines.errors import FormatError, MissingFileError, NotFoundError, SnapshotGoneError, UsageError, Where
from state_pipelines.metadata.checkpoint import SnapshotKind
from state_pipelines.operations.auditing import Depth, Severity, audit_snapshot
from state_pipelines.operations.auditing.report import AuditVerdict
from state_pipelines.operations.inventory import (
    Inventory,
    InventoryUpdate,
    find_snapshot,
    read_inventory,
    update_inventory,
)
from state_pipelines.operations.requests import LATEST
from state_pipelines.snapshot import declare, open_snapshot
from state_pipelines.storage import Location, is_directory, join, read_file, replace_file, resolve, resolve_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import dagster as dg

    from state_pipelines.operations.inventory import SnapshotSummary
    from state_pipelines.snapshot import Snapshot, State
    from state_pipelines.storage import PathMapping

# Number of snapshots that an error message suggests.
_SHOWN = 5

# Number of newest snapshots among which `latest` looks for one that is not damaged.
_MOST_DAMAGED = 10

AUDIT_REPORT = "restore_audit"
"""The asset whose reports are the audits of snapshots."""

REPORTS = "reports"
"""Directory below `results` for the inventory and the reports on snapshots."""


def _ignore(text: str) -> None:
    """Ignore a warning; default of `warn` in `find_named`."""


@dataclass(frozen=True)
class JobStorage:
    """The directories of a Flink job.

    Attributes:
        roots: directories below which checkpoints and savepoints are found.
        results: directory for new savepoints.
        tables: directory for the tables of states, or None.
        requests: directory of request files, or None.
        job: name of the job; its reports are in a directory of this name.
        path_mapping: where moved directories are, and all directories that snapshots may name files in.
        declarations: information that snapshots do not store, as texts by kind (`snapshot.declarations.KINDS`).
        own_roots: further roots, to which runs of the job write; there is none before the first run.
    """

    roots: tuple[str, ...]
    results: str
    tables: str | None
    requests: str | None
    job: str
    path_mapping: PathMapping
    declarations: Mapping[str, tuple[str, ...]]
    own_roots: tuple[str, ...] = ()

    @property
    def inventory(self) -> Location:
        """The Parquet file of the inventory."""
        return join(resolve(self.results), REPORTS, self.job, "inventory.parquet")

    @property
    def marker(self) -> Location:
        """The file that says which code location runs the job."""
        return join(resolve(self.results), REPORTS, self.job, "owner.json")

    @property
    def searched_roots(self) -> tuple[str, ...]:
        """Roots that are searched for snapshots: all of `roots`, and those of `own_roots` that exist."""
        return (*self.roots, *(each for each in self.own_roots if is_directory(resolve(each))))

    @property
    def _root_locations(self) -> list[Location]:
        return [resolve(root) for root in self.searched_roots]

    @property
    def _own(self) -> list[str]:
        """Directories that are not searched for snapshots, because they may be below a root."""
        return [resolve(path).path for path in (self.results, self.tables) if path is not None]

    def update_inventory(
        self, *, register: Iterable[str] = (), partitions: Iterable[str] = (), budget: float | None = None
    ) -> InventoryUpdate:
        """List the roots, open each new snapshot once, and update the stored inventory.

        Args:
            register: directories or `_metadata` files of further snapshots, outside the roots.
            partitions: keys of the partitions that exist, which their snapshots keep.
            budget: seconds after which no further snapshots are opened.

        Raises:
            StateError: a root cannot be listed, or the inventory cannot be stored.
        """
        return update_inventory(
            self._root_locations,
            self.inventory,
            register=[resolve_snapshot(path).directory for path in register],
            partitions=partitions,
            skip=self._own,
            budget=budget,
        )

    def read_inventory(self) -> Inventory:
        """Return the stored inventory, or an empty one."""
        try:
            return read_inventory(self.inventory)
        except (MissingFileError, FormatError):
            return Inventory()

    def find(self, key: str) -> Snapshot:
        """Open the snapshot of a partition key (`find_snapshot`).

        Raises:
            NotFoundError: it does not exist, or was deleted.
        """
        return find_snapshot(
            key,
            self._root_locations,
            self.inventory,
            declarations=declare(self.declarations),
            path_mapping=self.path_mapping,
            skip=self._own,
        )

    def find_named(
        self, name: str, inventory: Inventory | None = None, warn: Callable[[str], None] = _ignore
    ) -> tuple[str, str]:
        """Return partition key and path of the snapshot that a request names.

        `latest` is the newest one that is not damaged, as far as its newest audit and the listing of its files show.

        Args:
            name: name of its directory, its path, its partition key, or `latest`.
            inventory: the snapshots of the job; by default the inventory is updated.
            warn: called with a text for each newer snapshot that is passed over.

        Raises:
            NotFoundError: no snapshot has this name, or it cannot be read; for `latest`, all are damaged.
            StateError: a root cannot be listed, or the inventory cannot be stored.
        """
        if inventory is None:
            inventory = self.update_inventory().inventory
        if name == LATEST and len(inventory):
            return self._find_latest(inventory, warn)
        rows = inventory.table.select(["key", "path", "unreadable"]).to_pylist()
        for row in rows:
            wanted = (row["key"], row["path"], row["path"].rpartition("/")[2])
            if name in wanted:
                if row["unreadable"]:
                    raise NotFoundError(f"the snapshot {name} cannot be read: {row['unreadable']}")
                return row["key"], row["path"]
        known = ", ".join(row["path"].rpartition("/")[2] for row in rows[:_SHOWN]) or "none"
        where = Where(file=", ".join((*self.roots, *self.own_roots)))
        raise NotFoundError(f"there is no snapshot {name}", where=where, hint=f"The newest snapshots are {known}")

    def _find_latest(self, inventory: Inventory, warn: Callable[[str], None]) -> tuple[str, str]:
        reasons = []
        for each in inventory:
            reason = self._find_damage(each)
            if not reason:
                return each.key, each.path
            reasons.append(f"{each.key or each.path}: {reason}")
            warn(f"latest is not {reasons[-1]}")
            if len(reasons) == _MOST_DAMAGED:
                break
        raise NotFoundError(
            f"the newest {len(reasons)} snapshots are damaged or cannot be read: {'; '.join(reasons[:_SHOWN])}",
            hint="Name a snapshot instead of latest",
        )

    def _find_damage(self, summary: SnapshotSummary) -> str:
        """Return why a snapshot cannot be restored, or an empty text; its files are listed, not read."""
        if summary.unreadable:
            return f"it cannot be read: {summary.unreadable}"
        if reason := self._read_audit(summary.key):
            return reason
        try:
            report = audit_snapshot(self.open(summary.path), Depth.FILES)
        except (SnapshotGoneError, NotFoundError) as error:
            return error.what
        first = next((str(each) for each in report.findings if each.severity is Severity.ERROR), "")
        return f"it is damaged: {first}" if first else ""

    def _read_audit(self, key: str) -> str:
        """Return the damage that the newest audit of a snapshot has found, or an empty text."""
        try:
            report = json.loads(read_file(self.locate_report(AUDIT_REPORT, key)))
        except (MissingFileError, ValueError):
            return ""
        if not isinstance(report, dict) or report.get("verdict") != AuditVerdict.DAMAGED:
            return ""
        return "its newest audit found damage; audit it again if it was repaired"

    def find_newest(self, directory: str) -> SnapshotSummary:
        """Return the newest readable checkpoint below a directory, which is a root or below one.

        Raises:
            NotFoundError: there is none.
            StateError: a root cannot be listed, or the inventory cannot be stored.
        """
        beginning = f"{resolve(directory)}/"
        for each in self.update_inventory().inventory:
            if each.key and each.kind is SnapshotKind.CHECKPOINT and each.path.startswith(beginning):
                return each
        raise NotFoundError("there is no checkpoint yet", where=Where(file=directory), hint="Take one first")

    def open(self, path: str) -> Snapshot:
        """Open the snapshot at a path, with the declarations of the job."""
        return open_snapshot(path, declare(self.declarations), path_mapping=self.path_mapping)

    def name_result(self, key: str, purpose: str, run_id: str) -> str:
        """Return the path for the savepoint that a run derives from the snapshot `key`; it is unique to the run."""
        name = f"{key.replace('@', '-')}-{purpose}-{run_id[:8]}"
        return str(join(resolve(self.results), _to_file_name(name)))

    def locate_report(self, asset: str, key: str) -> Location:
        """Return the location of an asset's JSON report on the snapshot `key`."""
        return join(resolve(self.results), REPORTS, self.job, asset, f"{_to_file_name(key.replace('@', '-'))}.json")

    def name_table(self, key: str, state: State) -> str:
        """Return the path of the table of a state of the snapshot `key`.

        Raises:
            UsageError: the job has no directory for tables.
        """
        return self.name_table_of(key, state.operator.label, state.name)

    def name_table_of(self, key: str, operator: str, state: str) -> str:
        """Return the path of the table of a state, by the label of its operator and its name.

        Raises:
            UsageError: the job has no directory for tables.
        """
        return str(join(resolve(self.name_tables(key)), _to_file_name(operator), _to_file_name(state)))

    def name_tables(self, key: str) -> str:
        """Return the directory of the tables of the snapshot `key`.

        Raises:
            UsageError: the job has no directory for tables.
        """
        if self.tables is None:
            raise UsageError("the job has no directory for tables", hint="Set the field tables in the YAML of the job")
        return str(join(resolve(self.tables), _to_file_name(key.replace("@", "-"))))


def _to_file_name(name: str) -> str:
    # Uids and state names may contain any character; Spark ignores files that begin with `_` or `.`.
    return re.sub(r"^[_.]|[^\w.-]", lambda match: f"~{ord(match[0]):x}", name, flags=re.ASCII)


INSTANCE = "state_pipelines_instance"
"""Set of dynamic partitions whose first entry is the id of the Dagster instance."""

RENEWAL = timedelta(minutes=2)
"""Age of a marker at which its owner writes it again."""

LEASE = timedelta(minutes=6)
"""Age of a marker from which another owner may take it over."""


@dataclass(frozen=True)
class Owner:
    """The process that runs the sensor `new_snapshots` of a job, as the marker file of the job names it.

    Attributes:
        instance: id of the Dagster instance.
        location: name of the code location.
        host: name of the machine or container.
        pid: id of the process of the code location.
        seen: when the marker was written, in ISO format.
    """

    instance: str
    location: str
    host: str
    pid: int
    seen: str = ""

    def is_same(self, other: Owner) -> bool:
        """Return whether two markers are of the same code location of one instance, whatever process it has."""
        return (self.instance, self.location) == (other.instance, other.location)


def describe_owner(instance: dg.DagsterInstance, location: str) -> Owner:
    """Describe this process as an owner."""
    if not (entries := instance.get_dynamic_partitions(INSTANCE)):
        instance.add_dynamic_partitions(INSTANCE, [uuid.uuid4().hex])
        # Another process may add an id at the same time: the first in the stored order counts.
        entries = instance.get_dynamic_partitions(INSTANCE)
    return Owner(entries[0], location, socket.gethostname(), os.getpid())


def take_marker(marker: Location, owner: Owner, now: datetime) -> str:
    """Write the marker of a job; return why another owner has it, or an empty text.

    Args:
        marker: the file in the results of the job.
        owner: this process.
        now: the current time, with its zone.

    Raises:
        StateError: the marker cannot be read or written.
    """
    found = _read(marker)
    if found is not None and not found.is_same(owner) and not _is_dead(found):
        left = LEASE - abs(now - datetime.fromisoformat(found.seen))
        if left > timedelta():
            return (
                f"another code location runs this job with the same results: {found.location or 'unnamed'} on "
                f"{found.host}, process {found.pid}, of {_name_instance(found, owner)}, last seen {found.seen}. Give "
                "one of them other results or another name, or stop its sensors. If it ended, this one takes over in "
                f"{max(1, round(left.total_seconds() / 60))} min; {marker} says who has it"
            )
    replace_file(marker, json.dumps(asdict(replace(owner, seen=now.isoformat(timespec="seconds")))).encode())
    return ""


def is_due(written: str | None, now: datetime) -> bool:
    """Return whether the marker must be written again.

    Args:
        written: when this owner wrote it last, in ISO format; None if it never did.
        now: the current time.
    """
    return written is None or not timedelta() <= now - datetime.fromisoformat(written) < RENEWAL


def _read(marker: Location) -> Owner | None:
    """Return the stored owner; None if there is no file, or it is not a marker."""
    try:
        found = Owner(**json.loads(read_file(marker)))
        datetime.fromisoformat(found.seen).astimezone()
    except (MissingFileError, ValueError, TypeError):
        return None
    return found


def _is_dead(owner: Owner) -> bool:
    """Return whether an owner is known to have ended: its process was on this machine, as of `dg dev` before a restart.

    False if the owner is on another machine, where its process cannot be seen.
    """
    if owner.host != socket.gethostname():
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _name_instance(found: Owner, owner: Owner) -> str:
    return "this Dagster instance" if found.instance == owner.instance else "another Dagster instance"
