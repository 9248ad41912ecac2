"""The snapshot of a partition key: found in the stored inventory, else by one listing, and verified by its content."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state_pipelines.errors import FormatError, MissingFileError, NotFoundError, StateError, Where
from state_pipelines.operations.inventory.keys import (
    PartitionKey,
    make_partition_key,
    name_snapshot,
    parse_partition_key,
)
from state_pipelines.operations.inventory.table import Inventory, read_inventory
from state_pipelines.operations.inventory.updating import locate_directory
from state_pipelines.snapshot.snapshot import open_location
from state_pipelines.storage import METADATA_FILE, SnapshotLocation, exists, join
from state_pipelines.storage.snapshot_listing import find_snapshots

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from state_pipelines.snapshot import Declarations, Snapshot
    from state_pipelines.storage import Location, PathMapping


def find_snapshot(
    key: str,
    roots: Sequence[Location],
    store: Location | None = None,
    *,
    declarations: Declarations | None = None,
    path_mapping: PathMapping | None = None,
    skip: Collection[str] = (),
) -> Snapshot:
    """Open the snapshot of a partition key, wherever it is below the roots.

    The stored inventory says where it is, so one file is opened, however many snapshots there are. Only a key that the
    inventory does not have, or whose snapshot moved, costs a listing, of which snapshots of the same name are opened.

    Args:
        key: partition key.
        roots: directories with checkpoints or savepoints.
        store: Parquet file of the inventory; it is not changed.
        declarations: information that the snapshot does not hold.
        path_mapping: current directories of absolute handles.
        skip: paths of directories that are not visited.

    Raises:
        UsageError: the text is not a key.
        NotFoundError: the snapshot was deleted, or another one took its place.
        StateError: a directory below a root cannot be listed, or `_metadata` cannot be read.
    """
    search = _Search(parse_partition_key(key), declarations, path_mapping)
    known = _read(store)
    recorded = [locate_directory(each.path, roots) for each in known.find(key)]
    found = search.open_first(recorded) or search.open_first(_list(search, known, roots, skip))
    if found is not None:
        return found
    if search.error is not None:
        raise search.error
    raise _gone(key, search, {str(each) for each in recorded}, roots)


@dataclass
class _Search:
    """Directories that were opened so far.

    Attributes:
        key: of the wanted snapshot.
        declarations: information that the snapshot does not hold.
        path_mapping: current directories of absolute handles.
        tried: fingerprint by directory; empty where there is no snapshot.
        error: of the first snapshot that could not be read; a later one of the same name may be the right one.
    """

    key: PartitionKey
    declarations: Declarations | None
    path_mapping: PathMapping | None
    tried: dict[str, str] = field(default_factory=dict)
    error: StateError | None = None

    def open_first(self, directories: Iterable[Location]) -> Snapshot | None:
        """The first snapshot with the wanted fingerprint."""
        for directory in directories:
            if str(directory) in self.tried:
                continue
            location = SnapshotLocation(directory, join(directory, METADATA_FILE))
            try:
                snapshot = open_location(location, self.declarations, path_mapping=self.path_mapping)
            except MissingFileError as error:
                self.tried[str(directory)] = ""
                if exists(location.metadata):
                    self.error = self.error or error
                continue
            except StateError as error:
                self.error = self.error or error
                continue
            if snapshot.fingerprint.startswith(self.key.digits):
                return snapshot
            self.tried[str(directory)] = snapshot.fingerprint
        return None


def _read(store: Location | None) -> Inventory:
    """The stored inventory; an empty one when none can be read, for then the listing finds the snapshot."""
    if store is None:
        return Inventory()
    try:
        return read_inventory(store)
    except (MissingFileError, FormatError):
        return Inventory()


def _list(search: _Search, known: Inventory, roots: Sequence[Location], skip: Collection[str]) -> Iterator[Location]:
    """Directories whose name fits, without those that are known to hold another snapshot."""
    key = search.key
    rows = known.table.select(["path", "metadata_size", "modified", "fingerprint"]).to_pylist()
    prints = {
        (each["path"], each["metadata_size"], each["modified"]): each["fingerprint"]
        for each in rows
        if each["modified"] is not None
    }
    for root in roots:
        for entry in find_snapshots(root, skip=skip):
            directory = entry.location.directory
            if not key.fits(name_snapshot(directory).name, ""):
                continue
            fingerprint = prints.get((str(directory), entry.size, entry.modified), "")
            if fingerprint and not fingerprint.startswith(key.digits):
                search.tried[str(directory)] = fingerprint
            else:
                yield directory


def _gone(key: str, search: _Search, recorded: Collection[str], roots: Sequence[Location]) -> NotFoundError:
    # The savepoints of a job have the same name in their keys; a checkpoint's name is that of one directory.
    is_checkpoint = search.key.undated.startswith("chk-")
    for path, fingerprint in search.tried.items():
        if fingerprint and (path in recorded or is_checkpoint):
            there = make_partition_key(search.key.undated, fingerprint)
            return NotFoundError(
                f"another snapshot took the place of {key}", where=Where(file=path), hint=f"There is {there} now"
            )
    below = ", ".join(map(str, roots)) or "no directory at all"
    if recorded:
        return NotFoundError(
            f"the snapshot {key} is gone",
            where=Where(file=next(iter(recorded))),
            hint=f"It was deleted or moved; searched below {below}",
        )
    return NotFoundError(
        f"there is no snapshot {key}",
        hint=f"It was deleted or moved, or the key is none that the inventory lists; searched below {below}",
    )
