"""Updates of the inventory: one listing, and one open of every snapshot that is new or was replaced."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.errors import FormatError, MissingFileError, NotFoundError, Where
from state_pipelines.metadata.checkpoint import SnapshotKind
from state_pipelines.operations.inventory.keys import LONG, SHORT, find_key, make_partition_key, parse_partition_key
from state_pipelines.operations.inventory.summary import SnapshotSummary, summarise_entry
from state_pipelines.operations.inventory.table import Inventory, make_inventory, read_inventory, write_inventory
from state_pipelines.storage import METADATA_FILE, is_directory, join, resolve, resolve_beside
from state_pipelines.storage.locations import Threads
from state_pipelines.storage.snapshot_listing import find_snapshots

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from state_pipelines.storage import Location
    from state_pipelines.storage.snapshot_listing import SnapshotEntry

THREADS = 16
"""`_metadata` files that are read at a time."""

MOST_DELETED = 100_000
"""Keys of deleted snapshots that the inventory keeps; the oldest are dropped."""

REGISTERED = ""
"""Root of a snapshot that was registered by its path rather than found below a root."""

_OLDEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class InventoryUpdate:
    """The inventory after an update, and what the update found.

    Attributes:
        inventory: all snapshots.
        new: snapshots that were opened, newest first: new ones, replaced ones, and those that could not be read.
        gone: keys of snapshots that the inventory had and the listing does not.
        pending: snapshots that were listed and not opened, for want of time; the next update begins with the newest.
        missing_roots: roots that do not exist; what the inventory has below them is kept.
        rebuilt: why the stored inventory was not used; empty when it was, or there was none.
    """

    inventory: Inventory
    new: tuple[SnapshotSummary, ...] = ()
    gone: tuple[str, ...] = ()
    pending: int = 0
    missing_roots: tuple[str, ...] = ()
    rebuilt: str = ""

    def find_prunable(self, partitions: Iterable[str]) -> list[str]:
        """Return the partitions whose snapshot was in the inventory and is deleted, but none that may still exist.

        That is none at all while roots are missing or snapshots are pending, and none with the name of an unreadable
        snapshot.

        Args:
            partitions: keys of partitions.
        """
        if self.pending or self.missing_roots:
            return []
        deleted = set(self.inventory.deleted)
        unreadable = self.inventory.unreadable().table["name"].to_pylist()
        found = [key for key in partitions if key in deleted]
        return [key for key in found if not any(parse_partition_key(key).fits(name, "") for name in unreadable)]

    def find_foreign(self, partitions: Iterable[str]) -> list[str]:
        """Return the partitions whose snapshot was never in the inventory, such as those of another job.

        Args:
            partitions: keys of partitions.
        """
        known = {*self.inventory.keys, *self.inventory.deleted}
        return [key for key in partitions if key not in known]


def update_inventory(
    roots: Sequence[Location],
    store: Location | None = None,
    *,
    register: Iterable[Location] = (),
    partitions: Iterable[str] = (),
    skip: Collection[str] = (),
    threads: int = THREADS,
    budget: float | None = None,
) -> InventoryUpdate:
    """List the snapshots below the roots and open those that the stored inventory does not know.

    A snapshot is known by path, size and time of its `_metadata`; it is opened each time if the storage says no time.
    One in a directory whose name is not text, or holds control characters, which Flink does not write, is left out.

    Args:
        roots: directories with checkpoints or savepoints; they may overlap.
        store: the Parquet file, read first and replaced when something has changed; nothing is stored without it.
        register: directories of snapshots outside the roots, which the inventory keeps from now on.
        partitions: keys that snapshots have elsewhere, which they keep when the stored inventory does not know them.
        skip: paths, as the file systems of the roots write them, of directories that are not visited.
        threads: `_metadata` files that are read at a time.
        budget: seconds after which no more snapshots are opened; those left are `pending`.

    Raises:
        MissingFileError: a directory below a root cannot be listed.
        NotFoundError: a directory to be registered holds no snapshot.
        StateError: the inventory cannot be stored.
    """
    deadline = None if budget is None else time.monotonic() + budget
    known, is_new, rebuilt = _load(store)
    missing = tuple(str(root) for root in roots if not is_directory(root))
    listed: dict[str, tuple[SnapshotEntry, str]] = {}
    for root in roots:
        for entry in find_snapshots(root, skip=skip):
            path = str(entry.location.directory)
            if path.isprintable():
                listed.setdefault(path, (entry, str(root)))
    _list_registered(known, roots, register, listed)
    kept, roots_of_kept, unknown = _match(known, listed, missing)
    found = _open(unknown, threads, deadline)
    rows = known.table.take(pa.array(kept, pa.int64()))
    index = rows.schema.get_field_index("root")
    rows = rows.set_column(index, rows.schema.field("root"), pa.array(roots_of_kept, pa.string()))
    new = _assign_keys(found, rows, (*known.keys, *known.deleted, *partitions) if found else ())
    # Sorting and comparing costs more than the listing, and mostly nothing has changed.
    same = not new and len(kept) == len(known) and roots_of_kept == known.table["root"].to_pylist()
    inventory = known if same else make_inventory(new, rows)
    changed = store is not None and (is_new or (not same and inventory.table != known.table))
    if store is not None and changed:
        inventory = _keep_registered(store, known, inventory)
    held = set(inventory.keys)
    gone = tuple(key for key in known.keys if key not in held)
    deleted = [key for key in dict.fromkeys((*known.deleted, *gone)) if key not in held]
    inventory = Inventory(inventory.table, tuple(deleted[-MOST_DELETED:]))
    if store is not None and changed:
        write_inventory(store, inventory)
    return InventoryUpdate(inventory, tuple(new), gone, len(unknown) - len(found), missing, rebuilt)


def _load(store: Location | None) -> tuple[Inventory, bool, str]:
    """The stored inventory, whether there is none that can be used, and why not where one is stored."""
    if store is None:
        return Inventory(), True, ""
    try:
        return read_inventory(store), False, ""
    except MissingFileError:
        return Inventory(), True, ""
    except FormatError as error:
        return Inventory(), True, str(error)


def _keep_registered(store: Location, loaded: Inventory, inventory: Inventory) -> Inventory:
    """The inventory with snapshots that another process has registered since it was loaded."""
    stored = _load(store)[0].table
    registered = stored.filter(pc.equal(stored["root"], REGISTERED))
    seen = pa.concat_arrays([*loaded.table["path"].chunks, *inventory.table["path"].chunks])
    missed = registered.filter(pc.invert(pc.is_in(registered["path"], seen)))
    return make_inventory((), pa.concat_tables([inventory.table, missed])) if missed.num_rows else inventory


def _list_registered(
    known: Inventory,
    roots: Sequence[Location],
    register: Iterable[Location],
    listed: dict[str, tuple[SnapshotEntry, str]],
) -> None:
    wanted = [(each, True) for each in register]
    for path, root in zip(known.table["path"].to_pylist(), known.table["root"].to_pylist(), strict=True):
        if root == REGISTERED and path not in listed:
            wanted.append((locate_directory(path, roots), False))
    for directory, is_new in wanted:
        entries = list(find_snapshots(directory, depth=0))
        for entry in entries:
            listed.setdefault(str(entry.location.directory), (entry, REGISTERED))
        if is_new and not entries:
            hint = f"Give the directory that holds {METADATA_FILE} (chk-…, savepoint-…)"
            raise NotFoundError("there is no snapshot to be registered", where=Where(file=str(directory)), hint=hint)


def locate_directory(path: str, roots: Sequence[Location]) -> Location:
    """The location of a stored path: on the file system of the root above it, else of a root of the same scheme."""
    above = [root for root in roots if path.startswith(f"{str(root).rstrip('/')}/")]
    if above:
        root = max(above, key=lambda each: len(str(each)))
        return join(root, path[len(str(root).rstrip("/")) + 1 :])
    scheme = path.partition("://")[0] if "://" in path else "file"
    same = [root for root in roots if scheme in np.atleast_1d(root.filesystem.protocol)]
    return resolve_beside(path, same[0]) if same else resolve(path)


def _match(
    known: Inventory, listed: dict[str, tuple[SnapshotEntry, str]], missing: Collection[str]
) -> tuple[list[int], list[str], list[tuple[SnapshotEntry, str]]]:
    """Rows of the stored inventory that are kept, and their roots; entries to be opened, newest first."""
    kept, roots = [], []
    unknown = dict(listed)
    columns = ["path", "root", "metadata_size", "modified", "retry"]
    for row, each in enumerate(known.table.select(columns).to_pylist()):
        entry, root = listed.get(each["path"], (None, ""))
        if entry is None and each["root"] in missing:
            kept.append(row)
            roots.append(each["root"])
        elif (
            entry is not None
            and not each["retry"]
            and each["modified"] is not None
            and (entry.size, entry.modified) == (each["metadata_size"], each["modified"])
        ):
            kept.append(row)
            roots.append(root)
            del unknown[each["path"]]
    entries = sorted(unknown.values(), key=lambda each: str(each[0].location.directory))
    entries.sort(key=lambda each: each[0].modified or _OLDEST, reverse=True)
    return kept, roots, entries


def _open(entries: Sequence[tuple[SnapshotEntry, str]], threads: int, deadline: float | None) -> list[SnapshotSummary]:
    """Summaries of the entries in their order, of the first ones when the time is over."""
    if not entries:
        return []
    found: list[SnapshotSummary] = []
    with Threads(min(threads, len(entries))) as pool:
        for start in range(0, len(entries), threads):
            if deadline is not None and time.monotonic() > deadline:
                break
            found += pool.map(lambda each: summarise_entry(*each), entries[start : start + threads])
    return found


def _assign_keys(summaries: Iterable[SnapshotSummary], rows: pa.Table, given: Collection[str]) -> list[SnapshotSummary]:
    """The summaries with keys; of two different snapshots with one key the one that came later has the longer key.

    A snapshot keeps the key that it has, also where it was moved or copied, which changes its date, and where an older
    release made the key without a date.
    """
    taken = dict(zip(rows["key"].to_pylist(), rows["fingerprint"].to_pylist(), strict=True))
    by_digits: dict[str, list[str]] = {}
    for key in given:
        by_digits.setdefault(key.rpartition("@")[2][:SHORT], []).append(key)
    named = []
    for each in summaries:
        if each.fingerprint:
            date = each.modified if each.kind is SnapshotKind.SAVEPOINT else None
            key = find_key(by_digits.get(each.fingerprint[:SHORT], ()), each.name, each.fingerprint)
            key = key or make_partition_key(each.name, each.fingerprint, taken=date)
            if taken.setdefault(key, each.fingerprint) != each.fingerprint:
                key = make_partition_key(each.name, each.fingerprint, size=LONG, taken=date)
            by_digits.setdefault(each.fingerprint[:SHORT], []).append(key)
            named.append(replace(each, key=key))
        else:
            named.append(each)
    return named
