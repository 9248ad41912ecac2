"""The inventory as an Arrow table and as one Parquet file; a row per snapshot, newest first."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from state_pipelines.errors import FormatError, Where
from state_pipelines.metadata.checkpoint import SnapshotKind
from state_pipelines.operations.inventory.keys import find_key
from state_pipelines.operations.inventory.summary import OperatorSummary, SnapshotSummary
from state_pipelines.storage import read_file, replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from state_pipelines.storage import Location

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
"""Columns of the table and the Parquet file, those of `SnapshotSummary`."""


class Inventory:
    """The snapshots of a job.

    Args:
        table: of `SCHEMA`.
        deleted: partition keys of snapshots that were in the inventory and were deleted, oldest first.
    """

    def __init__(self, table: pa.Table | None = None, deleted: tuple[str, ...] = ()) -> None:
        self.table = SCHEMA.empty_table() if table is None else table
        self.deleted = deleted

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[SnapshotSummary]:
        return map(_to_summary, self.table.to_pylist())

    def head(self, count: int) -> list[SnapshotSummary]:
        """The newest snapshots."""
        return list(Inventory(self.table.slice(0, count)))

    def take(self, rows: Iterable[int]) -> list[SnapshotSummary]:
        """The snapshots of some rows, in the order of these."""
        return list(Inventory(self.table.take(pa.array(rows, pa.int64()))))

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Partition keys of the readable snapshots, newest first, each once."""
        return tuple(dict.fromkeys(key for key in self.table["key"].to_pylist() if key))

    def find(self, key: str) -> list[SnapshotSummary]:
        """The snapshots of a key, with its date or without: none, one, or copies of the same one, newest first."""
        rows = self.table.filter(pc.equal(self.table["key"], key))
        if not rows.num_rows:
            columns = self.table.select(["name", "fingerprint"]).to_pylist()
            fits = [bool(each["fingerprint"]) and bool(find_key([key], **each)) for each in columns]
            rows = self.table.filter(pa.array(fits, pa.bool_()))
        return list(Inventory(rows))

    def unreadable(self) -> Inventory:
        """The snapshots that cannot be read."""
        return Inventory(self.table.filter(pc.not_equal(self.table["unreadable"], "")))

    def sum(self, column: str) -> int:
        """Sum over a column of numbers."""
        return int(pc.sum(self.table[column]).as_py() or 0)


def make_inventory(summaries: Iterable[SnapshotSummary], known: pa.Table | None = None) -> Inventory:
    """The inventory of summaries, and of rows of another one.

    Args:
        summaries: new ones.
        known: rows that are taken as they are.
    """
    rows = pa.Table.from_pylist([asdict(each) for each in summaries], SCHEMA)
    table = rows if known is None else pa.concat_tables([known, rows])
    order = [("modified", "descending"), ("path", "ascending")]
    return Inventory(table.sort_by(order).combine_chunks().replace_schema_metadata(SCHEMA.metadata))


def read_inventory(location: Location) -> Inventory:
    """The stored inventory.

    Raises:
        MissingFileError: there is none.
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
    """Store the inventory in the place of the one that may be there, whole or not at all.

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
