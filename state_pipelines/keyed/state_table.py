"""Records of one keyed state as Arrow record batches.

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
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import ColumnCodec, Decoded, explain, plan_columns
from state_pipelines.codecs.layout import LayoutContext
from state_pipelines.codecs.logical_values import dense_offsets
from state_pipelines.codecs.programs.program import Wanted, below
from state_pipelines.errors import UnsupportedError, UsageError, at
from state_pipelines.keyed.kernels import match_prefix
from state_pipelines.keyed.key_groups import assign_key_groups
from state_pipelines.keyed.keys import TIMESTAMP, KeySeeks, encode_keys
from state_pipelines.keyed.record_layout import blame_declared
from state_pipelines.serializers.registered_states import StateKind

if TYPE_CHECKING:
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
        raw: keys and values as bytes, nothing decoded.
        key_bytes: a column `key_bytes` beside the decoded ones: the stored key after the key-group prefix.
        key_hash: a column `hashed_key_group` beside the others: the key group that the hash of the key gives; null
            where the hash cannot be known (see `hashing`).
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
    """The key or the value side of records: its columns, or the reason why there are none."""

    columns: ColumnCodec | None
    reason: str = ""

    def keeps_bytes(self, *, asked: bool) -> bool:
        """Whether there is a column for the bytes of records that cannot be decoded."""
        return self.columns is not None and (asked or self.columns.may_fail)


class KeyedTable:
    """Turns records of one state into record batches.

    Args:
        layout: layouts of the records; None when `reason` says why they could not be derived.
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
            raise UsageError(f"a key cannot be looked for: {reason}")
        self.schema = self._make_schema()

    @property
    def undecoded(self) -> str:
        """Why keys or values come as bytes; empty when they do not."""
        if self._options.raw:
            return ""
        return self._key.reason or self._value.reason

    def narrow(self, file: KeyedFile) -> KeyedFile:
        """The file without the blocks that a wanted key does not need (see `KeyedFile.narrow_to_keys`)."""
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
            # Keys that could not be decoded; a key is never null.
            indexes = pc.if_else(keys.is_valid(), pc.cumulative_sum(keys.is_valid().cast(pa.int64())), None)
            return self._hash(keys.drop_null()).take(pc.subtract(indexes, 1))
        try:
            codes = hash_codes(self._layout.key_serializer, keys)
        except (UnsupportedError, UsageError):
            # User classes, and types that Flink itself files by identity.
            return pa.nulls(len(keys), pa.int32())
        return pa.array(assign_key_groups(codes, self._layout.max_parallelism), pa.int32())

    def _add_value(self, records: KeyedRecords, columns: dict[str, pa.Array]) -> tuple[Decoded | None, pa.Array | None]:
        """Add the value columns; also the row numbers by which the others are to be repeated, if so."""
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
    """A hasher of the keys from their bytes, whether they can be decoded or not; None where no kernel knows them."""
    from state_pipelines.keyed.hashing.value_hashes import KeyHasher  # many modules, for a column that few ask for

    hasher = KeyHasher(layout.key_serializer, LayoutContext())
    return hasher if hasher.has_kernel else None


def _binary(data: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> pa.Array:
    """Spans of bytes as a binary array."""
    return plan_columns(lay.Rest()).decode(data, starts, ends).array


def _keep(array: pa.Array, rows: np.ndarray) -> pa.Array:
    """`array` with nulls but in `rows`."""
    if not len(rows):
        return pa.nulls(len(array), array.type)
    kept = np.zeros(len(array), np.bool_)
    kept[rows] = True
    return pc.if_else(pa.array(kept), array, None)


def _fields(array: pa.StructArray) -> list[pa.Array]:
    """Children of structs, null where the struct is."""
    if array.null_count:
        children: list[pa.Array] = array.flatten()
        return children
    return [array.field(index) for index in range(array.type.num_fields)]


def _flatten(decoded: Decoded) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Lists to (row of each element, its index, the element); a list that failed has one row without both."""
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
    """Bytes with which every record of `key` begins (after the key-group prefix)."""
    fields = dict(layout.fields)
    if "timestamp" in fields:
        raise UsageError("timers cannot be looked for by key", hint="Read all and filter")
    if isinstance(key, pa.Array):
        return plan_columns(fields["state_key"]).encode(key).data
    (data,) = encode_keys(fields["state_key"], [key])
    return np.frombuffer(data, np.uint8)
