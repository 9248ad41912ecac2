"""The inventory of a job: every snapshot below its directories, from `_metadata` alone, kept in one Parquet file.

For example:

    update = update_inventory([resolve("s3://bucket/checkpoints")], resolve("s3://bucket/results/inventory.parquet"))
    update.inventory.find("chk-17-1a2b3c@bcb9ffff")
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from state_pipelines.errors import (
    FormatError,
    MissingFileError,
    NotFoundError,
    StateError,
    UnsupportedError,
    UsageError,
    Where,
)
from state_pipelines.metadata import format_operator_id, list_references
from state_pipelines.metadata.checkpoint import CheckpointProperties, SavepointType, SnapshotKind
from state_pipelines.metadata.handles import ByteStreamStateHandle
from state_pipelines.metadata.streams import StateCategory, StreamRole
from state_pipelines.operations.inspect import measure_handle
from state_pipelines.snapshot.snapshot import open_location
from state_pipelines.storage import (
    METADATA_FILE,
    SnapshotLocation,
    exists,
    is_directory,
    join,
    read_file,
    replace_file,
    resolve,
    resolve_beside,
)
from state_pipelines.storage.locations import Threads
from state_pipelines.storage.resolution import CHECKPOINT_DIRECTORY, JOB_DIRECTORY, SAVEPOINT_DIRECTORY
from state_pipelines.storage.snapshot_writer import find_snapshots

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from state_pipelines.metadata import OperatorState
    from state_pipelines.snapshot import Declarations, Snapshot
    from state_pipelines.storage import Location, PathMapping
    from state_pipelines.storage.snapshot_writer import SnapshotEntry

SHORT = 8
"""Number of hexadecimal digits of the fingerprint in a partition key."""

LONG = 16
"""Number of digits in the key of a snapshot, if another snapshot already has the key with `SHORT` digits."""

_NAME_SIZE = 40
_CHECKPOINT_KEY = re.compile(r"(?<![A-Za-z0-9])chk-\d")
_DATE = re.compile(r"\d{4}-\d\d-\d\d_(?=.)")
_KEY = re.compile(rf"(.+)@([0-9a-f]{{{SHORT}}}|[0-9a-f]{{{LONG}}})")


class SnapshotName(NamedTuple):
    """A readable name of a snapshot, from its path alone.

    Attributes:
        name: a name such as `chk-17-1a2b3c` or `savepoint-df4606`, or the name of the directory.
        job_id: id of the Flink job, as far as the path has it: all 32 hexadecimal digits if the directory above a
            checkpoint is named by them, the first six for a savepoint; else None.
    """

    name: str
    job_id: str | None


class PartitionKey(NamedTuple):
    """The two halves of a partition key: name with date, and the first 8 or 16 digits of the fingerprint."""

    name: str
    digits: str

    @property
    def undated(self) -> str:
        """The name without its date."""
        return _DATE.sub("", self.name, count=1)

    def fits(self, name: str, fingerprint: str) -> bool:
        """Return whether the key fits the name and fingerprint of a snapshot; its date does not matter.

        Args:
            name: name of the snapshot, see `name_snapshot`.
            fingerprint: fingerprint of the snapshot; empty to compare names only.
        """
        return name in (self.name, self.undated) and (not fingerprint or fingerprint.startswith(self.digits))


def name_snapshot(directory: Location) -> SnapshotName:
    """Name a snapshot by its directory.

    A checkpoint is named by its number and, if the directory above it is named by the job id, by the first six digits
    of that. A savepoint is named as Flink names it, up to the digits of the job id. The name of any other snapshot is
    that of its directory, without characters that Dagster refuses in partition keys, cut after 40 characters.

    Args:
        directory: the exclusive directory of the snapshot.
    """
    name = directory.name
    if CHECKPOINT_DIRECTORY.fullmatch(name):
        above = directory.path.rstrip("/").split("/")[-2:-1]
        if above and JOB_DIRECTORY.fullmatch(above[0]):
            return SnapshotName(f"{name}-{above[0][:6]}", above[0])
        return SnapshotName(name, None)
    savepoint = SAVEPOINT_DIRECTORY.fullmatch(name)
    if savepoint and savepoint[1]:
        return SnapshotName(f"savepoint-{savepoint[1]}", savepoint[1])
    plain = re.sub(r"\.{2,}", ".", re.sub(r"[^\w.~+=-]+", "-", name))
    return SnapshotName(plain[:_NAME_SIZE] or "snapshot", None)


def format_partition_key(name: str, fingerprint: str, size: int = SHORT, *, taken: datetime | None = None) -> str:
    """Make the partition key of a snapshot: `NAME@DIGITS`, for a savepoint with its date in front.

    Args:
        name: name of the snapshot, see `name_snapshot`.
        fingerprint: fingerprint of the snapshot, 16 hexadecimal digits.
        size: number of digits of the fingerprint in the key, `SHORT` or `LONG`.
        taken: time at which a savepoint was written, for the date; None for checkpoints, and if the storage gives no
            times. It is ignored for names that already have a date, and for `chk-…`, which has a number.
    """
    date = "" if taken is None or name.startswith("chk-") or _DATE.match(name) else f"{taken.astimezone(UTC):%Y-%m-%d}_"
    return f"{date}{name}@{fingerprint[:size]}"


def find_key(keys: Iterable[str], name: str, fingerprint: str) -> str:
    """Return the first of some keys that fits a snapshot; an empty text if none does.

    Args:
        keys: partition keys; other texts are ignored.
        name: name of the snapshot, see `name_snapshot`.
        fingerprint: fingerprint of the snapshot.
    """
    parsed = ((key, match) for key in keys if (match := _KEY.fullmatch(key)) is not None)
    return next((key for key, match in parsed if PartitionKey(match[1], match[2]).fits(name, fingerprint)), "")


def is_checkpoint_key(key: str) -> bool:
    """Return whether a key belongs to a snapshot whose directory has the name of a checkpoint (`chk-…`)."""
    return _CHECKPOINT_KEY.search(key) is not None


def parse_partition_key(key: str) -> PartitionKey:
    """Divide a partition key into name and digits.

    Raises:
        UsageError: the text is not a key.
    """
    match = _KEY.fullmatch(key)
    if match is None:
        hint = "A key is NAME@DIGITS, such as chk-17-1a2b3c@bcb9ffff; the inventory lists the keys that there are"
        raise UsageError(f"{key!r} is not the key of a snapshot", hint=hint)
    return PartitionKey(match[1], match[2])


_IN_FLIGHT = (StateCategory.INPUT_CHANNEL, StateCategory.RESULT_SUBPARTITION)
_KEYED = (StateCategory.MANAGED_KEYED, StateCategory.RAW_KEYED)


@dataclass(frozen=True)
class OperatorSummary:
    """Summary of an operator of a snapshot.

    Attributes:
        id: operator id, 32 hexadecimal digits.
        uid: uid; None if the snapshot does not store it (before Flink 2.0).
        name: name; None if the snapshot does not store it.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.
        subtasks: number of subtasks with state.
        bytes: bytes of all its state.
        keyed_bytes: bytes of its keyed state.
        states: names of its operator states. Names of keyed states are not in `_metadata`.
    """

    id: str
    uid: str | None
    name: str | None
    parallelism: int
    max_parallelism: int
    subtasks: int
    bytes: int
    keyed_bytes: int
    states: tuple[str, ...]

    @property
    def label(self) -> str:
        """The uid, or the id if the uid is not stored."""
        return self.uid or self.id


@dataclass(frozen=True)
class SnapshotSummary:
    """Summary of a snapshot, as the inventory keeps it.

    Attributes:
        path: directory of the snapshot.
        root: root below which it was found; `REGISTERED` if it was registered by its path.
        name: name of the snapshot, see `name_snapshot`.
        job_id: id of the Flink job, as far as the path has it, see `SnapshotName`.
        modified: time at which `_metadata` was written; None if the storage gives no times.
        metadata_size: bytes of `_metadata`.
        key: partition key; empty if `_metadata` cannot be read.
        fingerprint: hash of the content of `_metadata`, 16 hexadecimal digits; empty if it cannot be read.
        kind: `checkpoint`, `savepoint` or `unknown`; before Flink 1.16 guessed from the name.
        format: `canonical` or `native` for a savepoint; else empty.
        checkpoint_id: id of the checkpoint or savepoint; None if `_metadata` cannot be read.
        metadata_version: version of `_metadata`; None if it cannot be read.
        bytes: bytes of all state that the handles name, including inlined state.
        keyed_bytes: bytes of keyed state.
        operator_bytes: bytes of list, broadcast and raw operator state.
        in_flight_bytes: bytes of network buffers (unaligned checkpoints).
        coordinator_bytes: bytes of operator coordinators.
        shared_bytes: bytes of keyed state in files that other checkpoints may reference, too (incremental).
        files: number of distinct files that the handles name, without `_metadata`.
        operators: the operators, in the order of `_metadata`.
        unreadable: why `_metadata` cannot be read; empty if it can.
        retry: the reason may be temporary, such as a storage fault, so the next update reads the snapshot again.
    """

    path: str
    root: str
    name: str
    job_id: str | None
    modified: datetime | None
    metadata_size: int
    key: str = ""
    fingerprint: str = ""
    kind: SnapshotKind = SnapshotKind.UNKNOWN
    format: str = ""
    checkpoint_id: int | None = None
    metadata_version: int | None = None
    bytes: int = 0
    keyed_bytes: int = 0
    operator_bytes: int = 0
    in_flight_bytes: int = 0
    coordinator_bytes: int = 0
    shared_bytes: int = 0
    files: int = 0
    operators: tuple[OperatorSummary, ...] = ()
    unreadable: str = ""
    retry: bool = False

    @property
    def max_parallelism(self) -> int:
        """The highest max parallelism of its operators; 0 without operators."""
        return max((each.max_parallelism for each in self.operators), default=0)


def summarise_entry(entry: SnapshotEntry, root: str) -> SnapshotSummary:
    """Open a listed snapshot and summarise it, without a partition key; if it cannot be read, with the reason.

    Args:
        entry: entry of the listing.
        root: root that was listed.
    """
    directory = entry.location.directory
    name, job_id = name_snapshot(directory)
    blank = SnapshotSummary(str(directory), root, name, job_id, entry.modified, entry.size)
    try:
        return summarise_snapshot(open_location(entry.location), blank)
    except StateError as error:
        passing = not isinstance(error, FormatError | UnsupportedError)
        return replace(blank, unreadable=str(error), retry=passing)


def summarise_snapshot(snapshot: Snapshot, blank: SnapshotSummary) -> SnapshotSummary:
    """Summarise an opened snapshot, without a partition key.

    Args:
        snapshot: the snapshot.
        blank: summary with the values from the listing, to which those from `_metadata` are added.
    """
    sizes: Counter[StateCategory] = Counter()
    by_operator: Counter[tuple[bytes, StateCategory]] = Counter()
    shared = 0
    files = set()
    for reference in list_references(snapshot.metadata):
        size = measure_handle(reference.handle)
        sizes[reference.category] += size
        by_operator[reference.operator.operator_id, reference.category] += size
        shared += size if reference.role is StreamRole.SHARED else 0
        if not isinstance(reference.handle, ByteStreamStateHandle):
            files.add(_identify(reference.handle))
    properties = snapshot.metadata.properties
    stored = properties.checkpoint_type if isinstance(properties, CheckpointProperties) else None
    return replace(
        blank,
        fingerprint=snapshot.fingerprint,
        kind=_guess_kind(blank.name) if snapshot.kind is SnapshotKind.UNKNOWN else snapshot.kind,
        format=stored.format_type.value.lower() if isinstance(stored, SavepointType) else "",
        checkpoint_id=snapshot.checkpoint_id,
        metadata_version=snapshot.metadata.version,
        bytes=sum(sizes.values()),
        keyed_bytes=sum(sizes[each] for each in _KEYED),
        operator_bytes=sizes[StateCategory.MANAGED_OPERATOR] + sizes[StateCategory.RAW_OPERATOR],
        in_flight_bytes=sum(sizes[each] for each in _IN_FLIGHT),
        coordinator_bytes=sizes[StateCategory.COORDINATOR],
        shared_bytes=shared,
        files=len(files),
        operators=tuple(_summarise_operator(each, by_operator) for each in snapshot.metadata.operator_states),
    )


def make_partition_key(snapshot: Snapshot) -> str:
    """Make a partition key for a snapshot that has none yet; see `format_partition_key`."""
    directory = snapshot.location.directory
    name = name_snapshot(directory).name
    kind = _guess_kind(name) if snapshot.kind is SnapshotKind.UNKNOWN else snapshot.kind
    taken = None
    if kind is SnapshotKind.SAVEPOINT:
        taken = next((each.modified for each in find_snapshots(directory, depth=0)), None)
    return format_partition_key(name, snapshot.fingerprint, taken=taken)


def _summarise_operator(operator: OperatorState, sizes: Mapping[tuple[bytes, StateCategory], int]) -> OperatorSummary:
    names: dict[str, None] = {}
    for subtask in operator.subtasks:
        for handle in (subtask.managed_operator_state, subtask.raw_operator_state):
            if handle is not None:
                names |= dict.fromkeys(each.state_name for each in handle.states)
    by_category = {each: sizes.get((operator.operator_id, each), 0) for each in StateCategory}
    return OperatorSummary(
        format_operator_id(operator.operator_id),
        operator.uid,
        operator.name,
        operator.parallelism,
        operator.max_parallelism,
        len(operator.subtasks),
        sum(by_category.values()),
        sum(by_category[each] for each in _KEYED),
        tuple(names),
    )


def _guess_kind(name: str) -> SnapshotKind:
    if name.startswith("chk-"):
        return SnapshotKind.CHECKPOINT
    return SnapshotKind.SAVEPOINT if name.startswith("savepoint-") else SnapshotKind.UNKNOWN


def _identify(handle: object) -> object:
    return getattr(handle, "path", None) or getattr(handle, "relative_path", None) or handle


_VERSION_KEY = b"state-pipelines.inventory"
_VERSION = b"1"
_DELETED_KEY = b"state-pipelines.deleted"
_OPERATOR = pa.struct(
    [
        ("id", pa.string()),
        ("uid", pa.string()),
        ("name", pa.string()),
        ("parallelism", pa.int32()),
        ("max_parallelism", pa.int32()),
        ("subtasks", pa.int32()),
        ("bytes", pa.int64()),
        ("keyed_bytes", pa.int64()),
        ("states", pa.list_(pa.string())),
    ]
)
_TYPES = {
    "modified": pa.timestamp("us", "UTC"),
    "metadata_version": pa.int32(),
    "operators": pa.list_(_OPERATOR),
    "retry": pa.bool_(),
}
_NUMBERS = {"metadata_size", "checkpoint_id", "files"}
SCHEMA = pa.schema(
    [
        (name, _TYPES.get(name, pa.int64() if name in _NUMBERS or name.endswith("bytes") else pa.string()))
        for name in (each.name for each in fields(SnapshotSummary))
    ],
    metadata={_VERSION_KEY: _VERSION},
)
"""Columns of `Inventory.table` and of its Parquet file: the fields of `SnapshotSummary`."""


class Inventory:
    """The snapshots of a job.

    Args:
        table: a row for each snapshot, newest first, with the columns of `SCHEMA`.
        deleted: partition keys of snapshots that were in the inventory and have been deleted; those that were deleted
            first come first.
    """

    def __init__(self, table: pa.Table | None = None, deleted: tuple[str, ...] = ()) -> None:
        self.table = SCHEMA.empty_table() if table is None else table
        self.deleted = deleted

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[SnapshotSummary]:
        return map(_to_summary, self.table.to_pylist())

    def head(self, count: int) -> list[SnapshotSummary]:
        """Return the newest `count` snapshots."""
        return list(Inventory(self.table.slice(0, count)))

    def take(self, rows: Iterable[int]) -> list[SnapshotSummary]:
        """Return the snapshots with these row numbers, in this order."""
        return list(Inventory(self.table.take(pa.array(rows, pa.int64()))))

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Partition keys of the readable snapshots, newest first, each once."""
        return tuple(dict.fromkeys(key for key in self.table["key"].to_pylist() if key))

    def find(self, key: str) -> list[SnapshotSummary]:
        """Return the snapshots that a key fits, newest first: none, one, or copies of the same snapshot.

        If no stored key is equal to the given one, its date is ignored: other storages may give another time for a
        copy of a savepoint.
        """
        rows = self.table.filter(pc.equal(self.table["key"], key))
        if not rows.num_rows:
            columns = self.table.select(["name", "fingerprint"]).to_pylist()
            fits = [bool(each["fingerprint"]) and bool(find_key([key], **each)) for each in columns]
            rows = self.table.filter(pa.array(fits, pa.bool_()))
        return list(Inventory(rows))

    def unreadable(self) -> Inventory:
        """Return an inventory of the snapshots that cannot be read."""
        return Inventory(self.table.filter(pc.not_equal(self.table["unreadable"], "")))

    def sum(self, column: str) -> int:
        """Add up the numbers of a column."""
        return int(pc.sum(self.table[column]).as_py() or 0)


def make_inventory(summaries: Iterable[SnapshotSummary], known: pa.Table | None = None) -> Inventory:
    """Make an inventory of summaries and of rows of another inventory.

    Args:
        summaries: new summaries.
        known: rows of another inventory, which are taken as they are.
    """
    rows = pa.Table.from_pylist([asdict(each) for each in summaries], SCHEMA)
    table = rows if known is None else pa.concat_tables([known, rows])
    order = [("modified", "descending"), ("path", "ascending")]
    return Inventory(table.sort_by(order).combine_chunks().replace_schema_metadata(SCHEMA.metadata))


def read_inventory(location: Location) -> Inventory:
    """Read a stored inventory.

    Raises:
        MissingFileError: the file does not exist.
        FormatError: the file is not an inventory of this release.
    """
    data = read_file(location)
    try:
        table = pq.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise _wrong(location, f"the inventory is damaged: {error}") from None
    if (table.schema.metadata or {}).get(_VERSION_KEY) != _VERSION or table.schema != SCHEMA:
        raise _wrong(location, "the file is not an inventory of this release")
    if unknown := set(pc.unique(table["kind"]).to_pylist()).difference(SnapshotKind):
        raise _wrong(location, f"the inventory is damaged: {unknown.pop()!r:.60} is no kind of snapshot")
    return Inventory(table, _read_deleted(location, (table.schema.metadata or {}).get(_DELETED_KEY)))


def _read_deleted(location: Location, data: bytes | None) -> tuple[str, ...]:
    if data is None:
        return ()
    try:
        keys = json.loads(data)
    except ValueError as error:
        raise _wrong(location, f"the inventory is damaged: {error}") from None
    if not isinstance(keys, list) or not all(isinstance(each, str) for each in keys):
        raise _wrong(location, "the inventory is damaged: its deleted snapshots are no list of keys")
    return tuple(keys)


def write_inventory(location: Location, inventory: Inventory) -> None:
    """Store the inventory. A file that exists is replaced as a whole, or stays if that fails.

    Raises:
        StateError: the storage refuses.
    """
    sink = pa.BufferOutputStream()
    metadata = {_VERSION_KEY: _VERSION, _DELETED_KEY: json.dumps(inventory.deleted).encode()}
    pq.write_table(inventory.table.replace_schema_metadata(metadata), sink, compression="zstd")
    replace_file(location, sink.getvalue().to_pybytes())


def _to_summary(row: dict[str, Any]) -> SnapshotSummary:
    operators = (OperatorSummary(**each | {"states": tuple(each["states"])}) for each in row["operators"])
    return SnapshotSummary(**row | {"kind": SnapshotKind(row["kind"]), "operators": tuple(operators)})


def _wrong(location: Location, what: str) -> FormatError:
    hint = "An update of the inventory replaces it"
    return FormatError(what, where=Where(file=str(location)), hint=hint)


_ID_DIGITS = 6


def find_previous(inventory: Inventory, key: str) -> SnapshotSummary | None:
    """Find the newest readable snapshot that is older than the snapshot with a key; None if there is none.

    Snapshots with the same Flink job id take precedence over others, which are of earlier runs: a job that is started
    again has another id.

    Args:
        inventory: inventory whose roots hold snapshots of one program only.
        key: partition key.

    Raises:
        NotFoundError: the inventory does not have the key, or the time of its snapshot is not known.
    """
    found = inventory.find(key)
    if not found or found[0].modified is None:
        raise NotFoundError(
            f"the inventory does not have the snapshot {key}, or does not know its time",
            hint="Materialize the inventory first",
        )
    # Of several copies, the oldest one has the time at which the snapshot was taken.
    this = found[-1]
    table = inventory.table
    older = Inventory(
        table.filter(
            pc.and_(
                pc.and_(pc.less(table["modified"], this.modified), pc.not_equal(table["key"], key)),
                pc.equal(table["unreadable"], ""),
            )
        )
    )
    first = next(iter(older), None)
    if this.job_id is None:
        return first
    digits = this.job_id[:_ID_DIGITS]
    return next((each for each in older if each.job_id is not None and each.job_id.startswith(digits)), first)


THREADS = 16
"""Number of `_metadata` files that are read concurrently."""

MOST_DELETED = 100_000
"""Maximum number of keys of deleted snapshots that the inventory keeps; the oldest are dropped."""

REGISTERED = ""
"""`SnapshotSummary.root` of a snapshot that was registered by its path, not found below a root."""

_OLDEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class InventoryUpdate:
    """The inventory after an update, and what the update found.

    Attributes:
        inventory: the new inventory.
        new: snapshots that were opened, newest first: new ones, changed ones, and those that could not be read.
        gone: keys that the stored inventory had and the new one does not have.
        pending: number of snapshots that were listed but not opened, because the time was over; the next update opens
            the newest of them first.
        missing_roots: roots that do not exist; the inventory keeps the snapshots below them.
        rebuilt: why the stored inventory could not be used; empty if it was used, or there was none.
    """

    inventory: Inventory
    new: tuple[SnapshotSummary, ...] = ()
    gone: tuple[str, ...] = ()
    pending: int = 0
    missing_roots: tuple[str, ...] = ()
    rebuilt: str = ""

    def find_prunable(self, partitions: Iterable[str]) -> list[str]:
        """Return the partitions whose snapshot was in the inventory and has been deleted for certain.

        If roots are missing or snapshots are pending, none is certain. A partition with the same name as an unreadable
        snapshot is not, either.

        Args:
            partitions: partition keys.
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
            partitions: partition keys.
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

    A snapshot is known if path, size and time of its `_metadata` are those of the stored inventory; if the storage
    gives no times, every snapshot is opened each time. Snapshots whose path is not printable text are left out: Flink
    writes none.

    Args:
        roots: directories with checkpoints or savepoints; they may overlap.
        store: Parquet file of the inventory. It is read first, and replaced if something has changed. With None nothing
            is stored.
        register: directories of snapshots outside the roots, which are added to the inventory for good.
        partitions: partition keys that exist elsewhere (in Dagster). A new snapshot gets such a key if it fits.
        skip: paths of directories that are not visited, as the file systems of the roots spell them.
        threads: number of `_metadata` files that are read concurrently.
        budget: seconds after which no more snapshots are opened; the others are `pending`.

    Raises:
        MissingFileError: a directory below a root cannot be listed.
        NotFoundError: a directory in `register` holds no snapshot.
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
    # Mostly nothing has changed. Find that out without sorting and comparing tables, which costs more than the listing.
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
    """Load the stored inventory.

    Returns:
        (the stored inventory, or an empty one if there is none that can be used; whether it is such an empty one; why a
        stored inventory cannot be used, else empty).
    """
    if store is None:
        return Inventory(), True, ""
    try:
        return read_inventory(store), False, ""
    except MissingFileError:
        return Inventory(), True, ""
    except FormatError as error:
        return Inventory(), True, str(error)


def _keep_registered(store: Location, loaded: Inventory, inventory: Inventory) -> Inventory:
    """Add to the new inventory snapshots that another process has registered since the old one was loaded.

    Args:
        store: Parquet file of the inventory.
        loaded: the inventory as it was loaded from the file.
        inventory: the new inventory, to which they are added.
    """
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
    """Make the location of a path that the inventory has stored.

    The file system is that of the root above the path, or else of a root with the same scheme.
    """
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
    """Compare the stored inventory with the listing.

    Args:
        known: the stored inventory.
        listed: by path: (entry of the listing, its root).
        missing: roots that do not exist.

    Returns:
        (numbers of the stored rows that are kept; the roots of these; entries that must be opened, newest first, each
        with its root).
    """
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
    """Open the entries and return their summaries, in order; only those of the first entries if the time runs out."""
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
    """Add partition keys to summaries; if two different snapshots would get the same key, the second gets a longer one.

    A snapshot gets a key that fits it from `given`, if there is one. So it keeps its key if it is moved or copied,
    which changes its date, or if an older release has made the key without a date.

    Args:
        summaries: summaries without keys.
        rows: rows of other snapshots, whose keys are taken.
        given: keys that snapshots have had.
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
            key = key or format_partition_key(each.name, each.fingerprint, taken=date)
            if taken.setdefault(key, each.fingerprint) != each.fingerprint:
                key = format_partition_key(each.name, each.fingerprint, size=LONG, taken=date)
            by_digits.setdefault(each.fingerprint[:SHORT], []).append(key)
            named.append(replace(each, key=key))
        else:
            named.append(each)
    return named


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

    Usually the stored inventory says where the snapshot is, so that only its `_metadata` is read, however many
    snapshots there are. If the inventory does not have the key, or the snapshot was moved, the roots are listed, and
    snapshots with the same name are opened.

    Args:
        key: partition key.
        roots: directories with checkpoints or savepoints.
        store: Parquet file of the inventory; it is not changed.
        declarations: information that the snapshot does not hold.
        path_mapping: mapping from directories that absolute handles name to current ones.
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
    """State of a search for the snapshot with a key.

    Attributes:
        key: key of the wanted snapshot.
        declarations: information that the snapshot does not hold.
        path_mapping: mapping from directories that absolute handles name to current ones.
        tried: by directory, the fingerprint of a snapshot that is not the wanted one; empty if there is no snapshot.
        error: error of the first snapshot that could not be read. The search goes on, because another snapshot with the
            same name may be the wanted one.
    """

    key: PartitionKey
    declarations: Declarations | None
    path_mapping: PathMapping | None
    tried: dict[str, str] = field(default_factory=dict)
    error: StateError | None = None

    def open_first(self, directories: Iterable[Location]) -> Snapshot | None:
        """Open snapshots in these directories until one has the wanted fingerprint; return it, or None."""
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
    """Read the stored inventory; return an empty one if there is none, or it is damaged.

    The inventory only saves time: without it, `find_snapshot` lists the roots to find the wanted snapshot.
    """
    if store is None:
        return Inventory()
    try:
        return read_inventory(store)
    except (MissingFileError, FormatError):
        return Inventory()


def _list(search: _Search, known: Inventory, roots: Sequence[Location], skip: Collection[str]) -> Iterator[Location]:
    """Yield the directories below the roots whose names fit the partition key of the wanted snapshot.

    Directories that hold a snapshot with another fingerprint, according to the stored inventory, are left out and noted
    in `search.tried`.

    Args:
        search: the partition key that is searched for, and what was tried.
        known: the stored inventory.
        roots: the roots.
        skip: paths of directories that are not visited.
    """
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
    # Only one directory has the name of a checkpoint, so a snapshot with another fingerprint in it has replaced the one
    # that is wanted. Savepoints of a job all have the same name in keys: for them only the recorded directory counts.
    is_checkpoint = search.key.undated.startswith("chk-")
    for path, fingerprint in search.tried.items():
        if fingerprint and (path in recorded or is_checkpoint):
            there = format_partition_key(search.key.undated, fingerprint)
            return NotFoundError(
                f"another snapshot has replaced {key}", where=Where(file=path), hint=f"The directory now holds {there}"
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
        hint=f"It was deleted or moved, or it is not a key of the inventory; searched below {below}",
    )
