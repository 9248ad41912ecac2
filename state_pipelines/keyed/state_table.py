"""One keyed state as a table: records decoded to rows, and rows encoded as records.

Columns: `key_group` int32, `subtask` int32, `state_key`, `state_namespace` (null for void, struct `start, end` for
time windows), then `value`, or `list_index, list_value`, or `map_key, map_value`, or for timers `timestamp`;
`ttl_last_access` (timestamp in milliseconds) when the state has TTL. A state that has no columnar form gives
`key_bytes`, `value_bytes` and `reason` in place of what cannot be decoded.

Where single records may well fail to be decoded (Kryo), and where they are among the wanted columns, these columns
stand beside the others: null but in the rows that failed, whose key or value is null; a list that failed is one row
without `list_index`. Without the column `reason` such a record is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import ColumnCodec, Decoded, explain, plan_columns
from state_pipelines.codecs.layout import LayoutContext
from state_pipelines.codecs.logical_values import conform, dense_offsets
from state_pipelines.codecs.programs import Encoded, Wanted, below
from state_pipelines.errors import UnsupportedError, UsageError, ValueRangeError, at
from state_pipelines.keyed.hashing import hash_codes
from state_pipelines.keyed.kernels import find_changes, match_prefix
from state_pipelines.keyed.key_groups import assign_key_groups
from state_pipelines.keyed.keys import TIMESTAMP, KeySeeks, encode_keys
from state_pipelines.keyed.record_layout import blame_declared
from state_pipelines.serializers.tree import StateKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from state_pipelines.keyed.hashing import HashExpression
    from state_pipelines.keyed.hashing.value_hashes import KeyHasher
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.keyed.record_layout import KeyedLayout, KeyedRecords

TTL_COLUMN = "ttl_last_access"
TTL_TYPE = pa.timestamp("ms", tz="UTC")


@dataclass(frozen=True)
class TableOptions:
    """Selection of columns of a state.

    Attributes:
        columns: names or dotted paths such as `value.address.zip`; None is all.
        flatten: one row per element of a list state; else one row per key with a list in `value`.
        raw: keep keys and values as bytes.
        key_bytes: add a column `key_bytes`: the stored key, without the key-group prefix.
        key_hash: add a column `hashed_key_group`: the key group that the hash of the key gives; null if the hash is not
            known (see `hashing`).
        key: only records of this key (as `keys.encode_keys` takes it).
    """

    columns: tuple[str, ...] | None = None
    flatten: bool = True
    raw: bool = False
    key_bytes: bool = False
    key_hash: bool = False
    key: object = None


@dataclass(frozen=True)
class _Side:
    """Key or value side of records: the decoder of its columns, or the reason why there is none."""

    columns: ColumnCodec | None
    reason: str = ""

    def keeps_bytes(self, *, asked: bool) -> bool:
        """Return whether there is a column for the stored bytes of records that cannot be decoded."""
        return self.columns is not None and (asked or self.columns.may_fail)


class KeyedTable:
    """Converter of records of one state to record batches.

    Args:
        layout: layouts of the records; None if they could not be derived, and `reason` says why.
        options: the selection.
        reason: why there is no layout.

    Raises:
        UsageError: a wanted column does not exist.
    """

    def __init__(self, layout: KeyedLayout | None, options: TableOptions, reason: str = "") -> None:
        self._layout = layout
        self._options = options
        self._wanted = None if options.columns is None else frozenset(options.columns)
        self._key = _Side(None, reason)
        self._value = _Side(None, reason)
        self._hasher = None if layout is None or not options.key_hash else _find_hasher(layout)
        self.needle: np.ndarray | None = None
        if layout is not None:
            if not options.raw:
                decodes_all = options.key_hash and self._hasher is None
                self._key = self._plan(layout.key, None if decodes_all else self._key_paths(layout))
                self._value = self._plan(layout.value, self._value_paths(layout))
            if options.key is not None:
                self.needle = encode_key(layout.key, options.key)
        elif options.key is not None:
            raise UsageError(f"the table cannot be filtered by key: {reason}")
        self.schema = self._make_schema()

    @property
    def undecoded(self) -> str:
        """Reason why keys or values are returned as bytes; empty if they are decoded, or if bytes were requested."""
        if self._options.raw:
            return ""
        return self._key.reason or self._value.reason

    def narrow(self, file: KeyedFile) -> KeyedFile:
        """Restrict the file to the blocks that may have the wanted key, if any (see `KeyedFile.narrow_to_keys`)."""
        return file if self.needle is None else file.narrow_to_keys(KeySeeks(((self.needle.tobytes(), None),)))

    def make_batch(self, records: KeyedRecords, subtask: int) -> pa.RecordBatch:
        """Decode records into a batch of `schema`.

        Raises:
            FormatError: the bytes do not fit the serializers; names file, offset and path.
        """
        if self.needle is not None:
            rows = match_prefix(
                records.data.ctypes.data,
                records.key_starts,
                records.key_ends,
                self.needle.ctypes.data,
                len(self.needle),
            )
            records = records.select(rows)
        columns: dict[str, pa.Array] = {
            "key_group": pa.array(records.key_groups, pa.int32()),
            "subtask": pa.array(np.full(len(records), subtask, np.int32)),
        }
        with at(file=records.file), blame_declared(self._layout):
            keys = self._add_key(records, columns)
            values, repeat = self._add_value(records, columns)
            self._add_reasons(records, columns, keys, values)
        if repeat is not None:
            columns = {
                name: column if name in ("list_index", "list_value", TTL_COLUMN) else column.take(repeat)
                for name, column in columns.items()
            }
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    def _add_key(self, records: KeyedRecords, columns: dict[str, pa.Array]) -> Decoded | None:
        spans = (records.data, records.key_starts, records.key_ends)
        decoded = None
        if self._key.columns is not None:
            decoded = self._decode(self._key.columns, spans, records.offset)
            for each, child in zip(decoded.array.type, _fields(decoded.array), strict=True):
                columns[each.name] = child
                if self._options.key_hash and self._hasher is None and each.name == "state_key":
                    columns["hashed_key_group"] = self._hash(child)
        if self._hasher is not None and self._layout is not None:
            skip = TIMESTAMP if self._layout.state_type == StateKind.TIMER else 0
            groups = self._hasher.assign_keys(records, self._layout.max_parallelism, skip=skip)
            columns["hashed_key_group"] = pa.array(groups, pa.int32())
        if self._options.raw or self._options.key_bytes or self._key.reason:
            columns["key_bytes"] = _binary(*spans)
        elif decoded is not None and "key_bytes" in self.schema.names:
            columns["key_bytes"] = _keep(_binary(*spans), decoded.failed)
        return decoded

    def _decode(self, side: ColumnCodec, spans: tuple[np.ndarray, np.ndarray, np.ndarray], offset: int) -> Decoded:
        return side.decode(*spans, offset=offset, lenient="reason" in self.schema.names)

    def _add_reasons(
        self, records: KeyedRecords, columns: dict[str, pa.Array], keys: Decoded | None, values: Decoded | None
    ) -> None:
        if "reason" not in self.schema.names:
            return
        if self.undecoded:
            columns["reason"] = pa.array([self.undecoded], pa.string()).take(pa.array(np.zeros(len(records), np.int8)))
            return
        reasons: dict[int, list[str]] = {}
        for side in (keys, values):
            for row, reason in side.failures if side is not None else ():
                reasons.setdefault(row, []).append(reason)
        texts = (
            ["; ".join(reasons[row]) if row in reasons else None for row in range(len(records))] if reasons else None
        )
        columns["reason"] = pa.nulls(len(records), pa.string()) if texts is None else pa.array(texts, pa.string())

    def _hash(self, keys: pa.Array) -> pa.Array:
        from state_pipelines.keyed.hashing import hash_codes  # many modules, for a column that few ask for

        assert self._layout is not None
        if keys.null_count and not pa.types.is_null(keys.type):
            # Nulls are keys that could not be decoded, because Flink has no null keys.
            indexes = pc.if_else(keys.is_valid(), pc.cumulative_sum(keys.is_valid().cast(pa.int64())), None)
            return self._hash(keys.drop_null()).take(pc.subtract(indexes, 1))
        try:
            codes = hash_codes(self._layout.key_serializer, keys)
        except (UnsupportedError, UsageError):
            # The hash is not known for user classes, nor for types that use the identity hash of Java objects.
            return pa.nulls(len(keys), pa.int32())
        return pa.array(assign_key_groups(codes, self._layout.max_parallelism), pa.int32())

    def _add_value(self, records: KeyedRecords, columns: dict[str, pa.Array]) -> tuple[Decoded | None, pa.Array | None]:
        """Add the value columns; return the decoded values, and the rows by which to repeat the other columns.

        Each result is None where there is nothing to decode or to repeat.
        """
        spans = (records.data, records.value_starts, records.value_ends)
        if self._options.raw or self._value.reason:
            columns["value_bytes"] = _binary(*spans)
        if self._value.columns is None or self._layout is None:
            return None, None
        decoded = self._decode(self._value.columns, spans, records.offset)
        if "value_bytes" in self.schema.names:
            columns["value_bytes"] = _keep(_binary(*spans), decoded.failed)
        array, repeat = decoded.array, None
        name = self._value_name()
        if self._layout.state_type == StateKind.LIST and self._options.flatten:
            repeat, columns["list_index"], array = _flatten(decoded)
        elif self._layout.state_type == StateKind.LIST and self._layout.ttl:
            columns[name] = array
            return decoded, None
        if self._layout.ttl:
            for each, child in zip(array.type, _fields(array), strict=True):
                if each.name == "last_access":
                    columns[TTL_COLUMN] = child.cast(TTL_TYPE)
                else:
                    columns[name] = child
        else:
            columns[name] = array
        return decoded, repeat

    def _value_name(self) -> str:
        state_type = self._layout.state_type if self._layout else StateKind.VALUE
        if state_type == StateKind.LIST and self._options.flatten:
            return "list_value"
        return "map_value" if state_type == StateKind.MAP else "value"

    def _plan(self, layout: lay.Layout, wanted: Wanted) -> _Side:
        if wanted is not None and not wanted:
            return _Side(None)
        try:
            return _Side(plan_columns(layout, wanted))
        except UnsupportedError as error:
            return _Side(None, explain(error))

    def _key_paths(self, layout: KeyedLayout) -> Wanted:
        names = {name for name, _ in layout.key.fields}
        if self._wanted is None:
            return None
        return frozenset(path for path in self._wanted if path.split(".")[0] in names)

    def _value_paths(self, layout: KeyedLayout) -> Wanted:
        if layout.state_type == StateKind.TIMER:
            return frozenset()
        if self._wanted is None:
            return None
        name = self._value_name()
        top = {path.split(".")[0] for path in self._wanted}
        value = below(self._wanted, name) if name in top else frozenset()
        if "list_index" in top and layout.state_type == StateKind.LIST:
            return None
        if not layout.ttl:
            return value
        prefixed = {"value"} if value is None else {f"value.{path}" for path in value}
        return frozenset(prefixed | ({"last_access"} if TTL_COLUMN in top else set()))

    def _make_schema(self) -> pa.Schema:
        asked = self._options.columns or ()
        fields: list[pa.Field] = [pa.field("key_group", pa.int32(), False), pa.field("subtask", pa.int32(), False)]
        if self._key.columns is not None:
            fields += list(self._key.columns.type)
        if self._value.columns is not None:
            fields += self._value_fields(self._value.columns.type)
        if self._options.raw or self._options.key_bytes or self._key.reason:
            fields.append(pa.field("key_bytes", pa.binary(), False))
        elif self._key.keeps_bytes(asked="key_bytes" in asked):
            fields.append(pa.field("key_bytes", pa.binary()))
        if self._options.raw or self._value.reason:
            fields.append(pa.field("value_bytes", pa.binary(), False))
        elif self._value.keeps_bytes(asked="value_bytes" in asked):
            fields.append(pa.field("value_bytes", pa.binary()))
        if self._options.key_hash and (self._hasher is not None or self._key.columns is not None):
            fields.append(pa.field("hashed_key_group", pa.int32()))
        if self.undecoded or any(side.keeps_bytes(asked="reason" in asked) for side in (self._key, self._value)):
            fields.append(pa.field("reason", pa.string(), not self.undecoded))
        if self._wanted is not None:
            fields = self._select(fields)
        return pa.schema(fields)

    def _value_fields(self, array_type: pa.DataType) -> list[pa.Field]:
        assert self._layout is not None
        name = self._value_name()
        fields = []
        if self._layout.state_type == StateKind.LIST and self._options.flatten:
            asked = "reason" in (self._options.columns or ())
            fields.append(pa.field("list_index", pa.int32(), self._value.keeps_bytes(asked=asked)))
            array_type = array_type.value_type
        if not self._layout.ttl or (self._layout.state_type == StateKind.LIST and not self._options.flatten):
            return [*fields, pa.field(name, array_type)]
        names = [each.name for each in array_type]
        if "value" in names:
            fields.append(pa.field(name, array_type.field("value").type))
        if "last_access" in names:
            fields.append(pa.field(TTL_COLUMN, TTL_TYPE))
        return fields

    def _select(self, fields: list[pa.Field]) -> list[pa.Field]:
        by_name = {each.name: each for each in fields}
        chosen: dict[str, pa.Field] = {}
        for path in self._options.columns or ():
            name = path.split(".")[0]
            if name not in by_name:
                hint = f"it has {', '.join(by_name)}"
                raise UsageError(f"the state has no column {name}", hint=hint)
            chosen[name] = by_name[name]
        if self.undecoded:
            chosen.update({name: by_name[name] for name in ("key_bytes", "value_bytes", "reason") if name in by_name})
        return list(chosen.values())


def _find_hasher(layout: KeyedLayout) -> KeyHasher | None:
    """Return a hasher of keys that works on their bytes, without decoding; None if no kernel has the hash."""
    from state_pipelines.keyed.hashing.value_hashes import KeyHasher  # many modules, for a column that few ask for

    hasher = KeyHasher(layout.key_serializer, LayoutContext())
    return hasher if hasher.has_kernel else None


def _binary(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> pa.Array:
    """Return spans of bytes as a binary array."""
    return plan_columns(lay.Rest()).decode(data, starts, ends).array


def _keep(array: pa.Array, rows: np.ndarray) -> pa.Array:
    """Return `array` with null in all rows except `rows`."""
    if not len(rows):
        return pa.nulls(len(array), array.type)
    kept = np.zeros(len(array), np.bool_)
    kept[rows] = True
    return pc.if_else(pa.array(kept), array, None)


def _fields(array: pa.StructArray) -> list[pa.Array]:
    """Return the children of structs, null where the struct is null."""
    if array.null_count:
        children: list[pa.Array] = array.flatten()
        return children
    return [array.field(index) for index in range(array.type.num_fields)]


def _flatten(decoded: Decoded) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Flatten lists into (row of each element, its index, the element).

    A list that could not be decoded has one row without index and element.
    """
    array = decoded.array
    lengths = np.diff(dense_offsets(array).to_numpy())
    values = array.flatten()
    starts = np.cumsum(lengths) - lengths
    rows = lengths.copy()
    rows[decoded.failed] = 1
    repeat = np.repeat(np.arange(len(array), dtype=np.int64), rows)
    if not len(decoded.failed):
        return pa.array(repeat), pa.array((np.arange(len(values)) - starts.repeat(lengths)).astype(np.int32)), values
    failed = np.isin(repeat, decoded.failed)
    index = np.arange(len(repeat)) - (np.cumsum(rows) - rows).repeat(rows)
    indexes = index + starts.repeat(rows)
    return (
        pa.array(repeat),
        pa.array(index.astype(np.int32), mask=failed),
        values.take(pa.array(np.where(failed, 0, indexes), mask=failed)),
    )


def encode_key(layout: lay.Struct, key: object) -> np.ndarray:
    """Return the bytes with which every record of `key` begins, after the key-group prefix."""
    fields = dict(layout.fields)
    if "timestamp" in fields:
        raise UsageError("timers cannot be looked for by key", hint="Read all timers and filter the rows")
    if isinstance(key, pa.Array):
        return plan_columns(fields["state_key"]).encode(key).data
    (data,) = encode_keys(fields["state_key"], [key])
    return np.frombuffer(data, np.uint8)


@dataclass(frozen=True)
class EncodedRecords:
    """Encoded records that are not framed yet: keys and values in separate buffers.

    Attributes:
        key_groups: i32[n].
        keys: keys without prefix.
        values: values.
        batch: the rows that were encoded; each row of a list state is a whole list.
    """

    key_groups: npt.NDArray[np.int32]
    keys: Encoded
    values: Encoded
    batch: pa.RecordBatch


@dataclass(frozen=True)
class RecordEncoder:
    """Encoder of rows of one state.

    Columns of the rows: `key_group` (computed from the key's hash if it is missing), `key_bytes` or `state_key`,
    `state_namespace` (may be missing when void) and `map_key`; then the value columns of `KeyedTable`: `value`, or
    `list_index, list_value`, or `map_value`; `ttl_last_access` when the state has TTL. In a row with a `reason`, the
    `value_bytes` are written as they are. Other columns are ignored.

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
        """Encode batches of rows into keys and values.

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
        """Encode the values of rows; those that could not be decoded when they were read come from `value_bytes`.

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
        """Mark the rows whose value is to be written from `value_bytes`; None if there are none."""
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
        # Rows with `key_bytes` were read from a snapshot with their key groups, so no hash is needed.
        groups = self._hash_keys(batch, stored) if stored is None or "key_bytes" not in names else stored
        if len(groups) and not 0 <= groups.min() <= groups.max() < self.layout.max_parallelism:
            raise UsageError(f"a key group lies outside 0 to {self.layout.max_parallelism - 1}")
        return np.asarray(groups, np.int32)

    def _hash_keys(self, batch: pa.RecordBatch, stored: npt.NDArray[np.int32] | None) -> npt.NDArray[np.int32]:
        """Return the key groups by hash, and check `stored` against them; if the hash is not known, return `stored`."""
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
        """Convert the keys of rows to the exact type of their layout: `state_key`, `state_namespace`, `map_key`.

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
        """Convert the values of rows to the exact type of their layout; timers have null.

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
        # The time of the last access is null for a map value of null; the whole struct is null then.
        mask = pc.is_null(accessed) if accessed.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)

    def _gather_lists(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Gather rows of list elements (`list_index`, `list_value`) into rows of whole lists (`value`).

        Batches that have whole lists already are yielded unchanged. The elements of a list have to be adjacent and in
        order, from index 0 on.
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
