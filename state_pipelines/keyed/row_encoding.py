"""Rows of one keyed state to record bytes: the mirror of `state_table`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.logical_values import conform
from state_pipelines.codecs.programs.execution import Encoded
from state_pipelines.errors import UnsupportedError, UsageError, ValueRangeError
from state_pipelines.keyed.hashing import hash_codes
from state_pipelines.keyed.kernels import find_changes
from state_pipelines.keyed.key_groups import assign_key_groups
from state_pipelines.keyed.state_table import TTL_COLUMN
from state_pipelines.serializers.registered_states import StateKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from state_pipelines.keyed.hashing import HashExpression
    from state_pipelines.keyed.record_layout import KeyedLayout


@dataclass(frozen=True)
class EncodedRecords:
    """Records to be framed.

    Attributes:
        key_groups: i32[n].
        keys: keys without prefix.
        values: values.
        batch: the rows that were encoded; those of a list state are whole lists.
    """

    key_groups: npt.NDArray[np.int32]
    keys: Encoded
    values: Encoded
    batch: pa.RecordBatch


@dataclass(frozen=True)
class RecordEncoder:
    """Encodes rows of one state.

    Columns of the rows: `key_group` (else computed from the key's hash), `key_bytes` or `state_key`,
    `state_namespace` (may be missing when void) and `map_key`; then the value columns of `tables`: `value`, or
    `list_index, list_value`, or `map_value`; `ttl_last_access` when the state has TTL. Of a row with a `reason`, the
    `value_bytes` are taken as they are. Other columns are ignored.

    Attributes:
        layout: layouts of the records.
        state: name, for errors.
        hashes: `hashCode` of user classes in the key, by class name.
    """

    layout: KeyedLayout
    state: str
    hashes: tuple[tuple[str, HashExpression], ...] = ()

    @property
    def prefix(self) -> int:
        """Bytes of the key-group prefix."""
        return self.layout.prefix

    def encode(self, batches: Iterable[pa.RecordBatch]) -> Iterator[EncodedRecords]:
        """Encode batches.

        Raises:
            UsageError: a column is missing, or the elements of a list are not together or not in order.
            ValueRangeError: a value does not fit its serializer.
        """
        if self.layout.state_type == StateKind.LIST:
            batches = self._gather_lists(batches)
        for batch in batches:
            if len(batch):
                yield self._encode_batch(batch)

    def _encode_batch(self, batch: pa.RecordBatch) -> EncodedRecords:
        return EncodedRecords(self._key_groups(batch), self._encode_keys(batch), self.encode_values(batch), batch)

    def encode_values(self, batch: pa.RecordBatch) -> Encoded:
        """Encode values; of those that could not be decoded the bytes (column `value_bytes`) stay as they are.

        Raises:
            UsageError: a column is missing.
            ValueRangeError: a value does not fit its serializer.
        """
        columns = plan_columns(self.layout.value)
        kept = self._kept(batch)
        if kept is None:
            return columns.encode(self.read_values(batch))
        raw = plan_columns(lay.Rest()).encode(batch.column("value_bytes").filter(pa.array(kept)))
        encoded = columns.encode(self.read_values(batch.filter(pa.array(~kept))))
        data = np.concatenate([encoded.data, raw.data])
        starts, stops = np.empty(len(batch), np.int64), np.empty(len(batch), np.int64)
        starts[~kept], stops[~kept] = encoded.starts, encoded.stops
        starts[kept], stops[kept] = raw.starts + len(encoded.data), raw.stops + len(encoded.data)
        sizes = stops - starts
        ends = np.cumsum(sizes, dtype=np.int64)
        positions = np.arange(int(ends[-1]), dtype=np.int64) + np.repeat(starts - (ends - sizes), sizes)
        return Encoded(data[positions], ends)

    def _kept(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
        """Rows that hold the bytes of a value that could not be decoded; None when there are none."""
        if not {"reason", "value_bytes"} <= set(batch.schema.names):
            return None
        failed = np.asarray(pc.and_(batch.column("reason").is_valid(), batch.column("value_bytes").is_valid()))
        return failed if failed.any() else None

    def _encode_keys(self, batch: pa.RecordBatch) -> Encoded:
        if "key_bytes" in batch.schema.names:
            raw = batch.column("key_bytes")
            if raw.null_count == 0:
                return plan_columns(lay.Rest()).encode(raw)
            if raw.null_count < len(raw):
                raise UsageError(
                    f"only some of the rows for state {self.state} have key_bytes",
                    hint="Read the state with the key as bytes for every row, or leave such rows out",
                )
        return plan_columns(self.layout.key).encode(self.read_keys(batch))

    def _key_groups(self, batch: pa.RecordBatch) -> npt.NDArray[np.int32]:
        names = batch.schema.names
        stored = None
        if "key_group" in names:
            given = batch.column("key_group")
            if given.null_count:
                raise UsageError(
                    f"key_group is null in some rows for state {self.state}",
                    hint="Give it in every row, or leave the column out, and it is computed",
                )
            stored = given.cast(pa.int32()).to_numpy()
        # Unchanged keys are taken from the buffer they were read into.
        groups = self._hash_keys(batch, stored) if stored is None or "key_bytes" not in names else stored
        if len(groups) and not 0 <= groups.min() <= groups.max() < self.layout.max_parallelism:
            raise UsageError(f"a key group lies outside 0 to {self.layout.max_parallelism - 1}")
        return np.asarray(groups, np.int32)

    def _hash_keys(self, batch: pa.RecordBatch, stored: npt.NDArray[np.int32] | None) -> npt.NDArray[np.int32]:
        """Key groups by hash; `stored` ones must agree, and count alone where the hash is not known."""
        target = plan_columns(dict(self.layout.key.fields)["state_key"]).type
        keys = conform(self._column(batch, "state_key"), target, "state_key")
        try:
            codes = hash_codes(self.layout.key_serializer, keys, expressions=dict(self.hashes))
        except UnsupportedError:
            if stored is None:
                raise
            return stored
        groups = assign_key_groups(codes, self.layout.max_parallelism)
        if stored is not None and not np.array_equal(stored, groups):
            row = int(np.flatnonzero(stored != groups)[0])
            raise UsageError(
                f"the key {keys[row].as_py()!r} belongs to key group {groups[row]}, the row says {stored[row]}",
                hint="Leave the column key_group out, and it is computed",
            )
        return groups

    def read_keys(self, batch: pa.RecordBatch) -> pa.StructArray:
        """The keys of rows in the exact type of their layout: `state_key`, `state_namespace`, `map_key`.

        Raises:
            UsageError: a column is missing.
            ValueRangeError: a key is null or does not fit its serializer.
        """
        target = plan_columns(self.layout.key).type
        columns = []
        for each in target:
            if each.name == "state_namespace" and each.name not in batch.schema.names and pa.types.is_null(each.type):
                columns.append(pa.nulls(len(batch)))
            else:
                columns.append(conform(self._column(batch, each.name), each.type, each.name))
            if each.name == "state_key" and columns[-1].null_count:
                row = int(np.flatnonzero(columns[-1].is_null().to_numpy(zero_copy_only=False))[0])
                raise ValueRangeError(
                    f"row {row} for state {self.state} has no key: state_key is null",
                    hint="Flink refuses null keys (`No key set`); leave such rows out or give them a key",
                )
        return pa.StructArray.from_arrays(columns, fields=list(target))

    def read_values(self, batch: pa.RecordBatch) -> pa.Array:
        """The values of rows in the exact type of their layout; those of timers are null.

        Raises:
            UsageError: a column is missing.
            ValueRangeError: a value does not fit its serializer.
        """
        target = plan_columns(self.layout.value).type
        if self.layout.state_type == StateKind.TIMER:
            return pa.nulls(len(batch))
        if self.layout.state_type == StateKind.LIST:
            return conform(self._column(batch, "value"), target, "list_value")
        name = "map_value" if self.layout.state_type == StateKind.MAP else "value"
        value = self._column(batch, name)
        if not self.layout.ttl:
            return conform(value, target, name)
        accessed = self._column(batch, TTL_COLUMN)
        children = [_access_times(accessed), conform(value, target.field("value").type, name)]
        # A map value of null has no time of its last access either.
        mask = pc.is_null(accessed) if accessed.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)

    def _gather_lists(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of list elements (`list_index`, `list_value`) to rows of whole lists (`value`), which pass through.

        The elements of a list follow each other, from index 0 on.
        """
        rest: pa.Table | None = None
        for batch in batches:
            if "value" in batch.schema.names:
                yield batch
                continue
            table = pa.Table.from_batches([batch])
            if rest is not None:
                table = pa.concat_tables([rest, table])
            starts = np.flatnonzero(self._list_index(table) == 0)
            # The last list may go on in the next batch.
            cut = int(starts[-1]) if len(starts) else 0
            yield from self._make_lists(table.slice(0, cut))
            rest = table.slice(cut)
        if rest is not None:
            yield from self._make_lists(rest)

    def _make_lists(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        if not len(table):
            return
        batch = table.combine_chunks().to_batches()[0]
        index = self._list_index(batch)
        starts = np.flatnonzero(index == 0)
        lengths = np.diff(np.append(starts, len(index)))
        keys = self._encode_keys(batch)
        changed = find_changes(keys.data.ctypes.data, keys.starts, keys.stops)
        in_order = np.array_equal(np.arange(len(index)) - index, starts.repeat(lengths))
        if not in_order or changed[index > 0].any():
            raise UsageError(
                f"the elements of a list of state {self.state} do not come one after the other, from index 0 on",
                hint="Sort by key and list_index inside each partition, or give whole lists in a column `value`",
            )
        elements = self._column(batch, "list_value")
        if self.layout.ttl:
            accessed = _access_times(self._column(batch, TTL_COLUMN))
            elements = pa.StructArray.from_arrays([accessed, elements], names=["last_access", "value"])
        offsets = pa.array(np.append(starts, len(index)).astype(np.int32))
        heads = batch.take(pa.array(starts))
        keep = [name for name in batch.schema.names if name not in ("list_index", "list_value", TTL_COLUMN)]
        columns = [*(heads.column(name) for name in keep), pa.ListArray.from_arrays(offsets, elements)]
        yield pa.RecordBatch.from_arrays(columns, names=[*keep, "value"])

    def _list_index(self, rows: pa.RecordBatch | pa.Table) -> npt.NDArray[np.int64]:
        index = self._column(rows, "list_index")
        if index.null_count or not pa.types.is_integer(index.type):
            raise UsageError(f"list_index of the rows for state {self.state} is not a number in every row")
        return np.asarray(index.to_numpy(), np.int64)

    def _column(self, rows: pa.RecordBatch | pa.Table, name: str) -> pa.Array:
        index = rows.schema.get_field_index(name)
        if index < 0:
            raise UsageError(
                f"the rows for state {self.state} have no column {name}",
                hint=f"they have {', '.join(rows.schema.names)}",
            )
        return rows.column(index)


def _access_times(array: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", tz="UTC"))
    return array.cast(pa.int64())
