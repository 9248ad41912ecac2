"""Rows as users have them, as rows that `RecordEncoder` takes: structs by position, times of access, timestamps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_pipelines.codecs.columns import column_type, plan_columns
from state_pipelines.codecs.layout import ROW_KINDS
from state_pipelines.codecs.logical_values import conform, dense_offsets, flatten_entries, to_plain
from state_pipelines.errors import IncompatibleError, UsageError, ValueRangeError, Where
from state_pipelines.keyed.digests import identify_rows
from state_pipelines.keyed.state_table import TTL_COLUMN, TTL_TYPE
from state_pipelines.serializers.registered_states import StateKind

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from state_pipelines.keyed.record_layout import KeyedLayout

_OF_ENTRY = 2
"""Fields of a struct that is an entry of a map: its key and its value."""

KEY_GROUP, STATE_KEY, NAMESPACE, TIMESTAMP = "key_group", "state_key", "state_namespace", "timestamp"


@dataclass(frozen=True)
class RowShape:
    """Brings batches into the columns and types of one keyed state.

    Attributes:
        layout: of the state.
        accessed: milliseconds since 1970: time of the last access of rows that do not have it, of a state with TTL.
        from_source: undoes how the engine that gives the rows holds values without a type of its own (Spark); it takes
            an array and the type that the value should have.
    """

    layout: KeyedLayout
    accessed: int
    from_source: Callable[[pa.Array, pa.DataType], pa.Array] | None = None

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Exact types of the columns, by name; lists are whole."""
        layout = self.layout
        found = {each.name: each.type for each in plan_columns(layout.key).type}
        if layout.state_type == StateKind.TIMER:
            return found
        value = column_type(layout.value)
        if layout.state_type == StateKind.LIST:
            element = value.value_type
            return found | {"value": pa.list_(element.field("value").type if layout.ttl else element)}
        name = "map_value" if layout.state_type == StateKind.MAP else "value"
        return found | {name: value.field("value").type if layout.ttl else value}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that a row needs."""
        return tuple(name for name, kind in self.types.items() if name != NAMESPACE or not pa.types.is_null(kind))

    def shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Bring rows into the columns of the state; rows with an empty list, which Flink does not store, are left out.

        Raises:
            UsageError: a column is missing, or two fields of a struct have one name.
            ValueRangeError: a value does not fit its serializer, or a list or key group is null.
            IncompatibleError: a map has a key twice.
        """
        columns: dict[str, pa.Array] = {}
        batch = to_plain_rows(batch)
        if self.layout.state_type == StateKind.LIST:
            batch = self._drop_empty(batch)
        for name, kind in self.types.items():
            if name in self.names:
                columns[name] = self._shape_column(batch, name, kind)
        if KEY_GROUP in batch.schema.names:
            columns[KEY_GROUP] = conform_number(batch.column(KEY_GROUP), pa.int32(), KEY_GROUP)
        if self.layout.ttl:
            accessed = self._find_access(batch)
            if self.layout.state_type == StateKind.LIST:
                columns["value"] = _stamp_elements(columns["value"], accessed)
            else:
                columns[TTL_COLUMN] = accessed
        return pa.RecordBatch.from_pydict(columns)

    def _shape_column(self, batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
        index = batch.schema.get_field_index(name)
        if index < 0:
            raise UsageError(f"the rows have no column {name}", hint=f"they have {', '.join(batch.schema.names)}")
        array = batch.column(index)
        if name == TIMESTAMP and pa.types.is_timestamp(array.type):
            array = conform(array, pa.timestamp("ms", array.type.tz), name).cast(pa.int64())
        array = name_fields(array, kind)
        if self.from_source is not None:
            array = self.from_source(array, kind)
        return conform_values(array, kind, name)

    def _drop_empty(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        index = batch.schema.get_field_index("value")
        if index < 0:
            return batch
        lists = batch.column(index)
        if lists.null_count:
            raise ValueRangeError(
                "a list is null", hint="Flink has no such state (`ListState.update(null)` fails); leave the row out"
            )
        if not pa.types.is_list(lists.type):
            if pa.types.is_null(lists.type):
                return batch
            raise ValueRangeError(f"{lists.type} is no list", where=Where(path="value"))
        empty = pc.equal(pc.list_value_length(lists), 0)
        return batch.filter(pc.invert(empty)) if pc.any(empty).as_py() else batch

    def _find_access(self, batch: pa.RecordBatch) -> pa.Array:
        index = batch.schema.get_field_index(TTL_COLUMN)
        if index < 0:
            return pa.array(np.full(len(batch), self.accessed, np.int64)).cast(TTL_TYPE)
        found = batch.column(index)
        if found.null_count:
            raise ValueRangeError(f"{TTL_COLUMN} is null", hint="State with time to live has a time for every value")
        if pa.types.is_integer(found.type):
            return conform(found, pa.int64(), TTL_COLUMN).cast(TTL_TYPE)
        return conform(found, TTL_TYPE, TTL_COLUMN)


def to_plain_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch whose columns have plain types (see `to_plain`).

    Raises:
        ValueRangeError: a column is too large for them.
    """
    columns = [to_plain(column, name) for name, column in zip(batch.schema.names, batch.columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def conform_number(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """A column of numbers that every row must have.

    Raises:
        ValueRangeError: it is not made of such numbers, or one is null.
    """
    require_kind(array.type, kind, name)
    if array.null_count:
        raise ValueRangeError(f"{name} is null in some rows", hint="Give it in every row, or leave the column out")
    return conform(array, kind, name)


def conform_values(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """A column of values as the type of its serializer.

    Raises:
        ValueRangeError: a value does not fit.
        IncompatibleError: a map has a key twice.
    """
    require_kind(array.type, kind, name)
    values = conform(array, kind, name)
    _require_distinct_keys(values, np.arange(len(values)), name)
    return values


def _holds_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    return pa.types.is_nested(kind) and any(_holds_map(kind.field(index).type) for index in range(kind.num_fields))


def _require_distinct_keys(array: pa.Array, rows: npt.NDArray[np.int64], path: str) -> None:
    """Refuse maps, at any depth, with a key twice, of which Java keeps one value; `rows` are those of the column."""
    kind = array.type
    if not _holds_map(kind):
        return
    if pa.types.is_struct(kind):
        for each, child in zip(kind, array.flatten(), strict=True):
            _require_distinct_keys(child, rows, f"{path}.{each.name}")
        return
    entries = flatten_entries(array)
    owners = np.repeat(np.arange(len(array)), np.diff(dense_offsets(array).to_numpy()))
    if not pa.types.is_map(kind):
        _require_distinct_keys(entries, rows[owners], f"{path}[]")
        return
    keys = entries.field(0)
    hashes = identify_rows([pa.array(owners), keys])
    # Sorting the values takes a fraction of the time that sorting indexes takes.
    if (np.diff(np.sort(hashes)) == 0).any():
        _refuse_equal(keys, hashes, rows[owners], path)
    for name, child in (("key", keys), ("value", entries.field(1))):
        _require_distinct_keys(child, rows[owners], f"{path}{{{name}}}")


def _refuse_equal(keys: pa.Array, hashes: npt.NDArray[np.uint64], rows: npt.NDArray[np.int64], path: str) -> None:
    """Refuse equal keys among those of one hash; `rows` are those of the column."""
    order = np.argsort(hashes, kind="stable")
    for index in np.flatnonzero(np.diff(hashes[order]) == 0).tolist():
        one, other = ((rows[each], repr(keys[each].as_py())) for each in order[index : index + 2].tolist())
        # Different keys may have one hash. Texts are compared because NaN differs from itself.
        if one == other:
            raise IncompatibleError(
                f"row {one[0]}: a map has the key {one[1]:.80} twice",
                where=Where(path=path),
                hint="A Java map holds one value per key: leave the others out",
            )


def require_kind(source: pa.DataType, target: pa.DataType, path: str) -> None:
    """Refuse text where numbers or truth values are wanted, one of these for the other, and no entries for a map.

    The values do not matter.

    Raises:
        ValueRangeError: names the path.
    """
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        for each in source:
            if (index := target.get_field_index(each.name)) >= 0:
                require_kind(each.type, target.field(index).type, f"{path}.{each.name}")
    elif pa.types.is_list(source) and pa.types.is_list(target):
        require_kind(source.value_type, target.value_type, f"{path}[]")
    elif pa.types.is_map(source) and pa.types.is_map(target):
        require_kind(source.key_type, target.key_type, f"{path}{{key}}")
        require_kind(source.item_type, target.item_type, f"{path}{{value}}")
    elif pa.types.is_list(source) and pa.types.is_map(target):
        entry = source.value_type
        if not pa.types.is_struct(entry) or entry.num_fields != _OF_ENTRY:
            raise ValueRangeError(f"{source} does not fit {target}", where=Where(path=path))
        require_kind(entry.field(0).type, target.key_type, f"{path}{{key}}")
        require_kind(entry.field(1).type, target.item_type, f"{path}{{value}}")
    elif (
        (one := _find_kind(source)) != (other := _find_kind(target))
        and None not in (one, other)
        and other is not _Kind.TEXT
    ):
        raise ValueRangeError(f"{source} does not fit {target}", where=Where(path=path))


class _Kind(Enum):
    NUMBER = auto()
    BOOLEAN = auto()
    TEXT = auto()


def _find_kind(of: pa.DataType) -> _Kind | None:
    if pa.types.is_integer(of) or pa.types.is_floating(of):
        return _Kind.NUMBER
    if pa.types.is_boolean(of):
        return _Kind.BOOLEAN
    return _Kind.TEXT if pa.types.is_string(of) or pa.types.is_large_string(of) else None


def name_fields(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Structs with the names of a Row or tuple (`f0`, `f1`, …) by position; a Row is an insert (`+I`).

    Where a field has such a name, and at another position, all fields keep their names.

    Raises:
        UsageError: two fields have one name, and the fields of the target are not known by their positions.
    """
    source = array.type
    if source == target or pa.types.is_null(source) or pa.types.is_null(target):
        return array
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(target) and pa.types.is_struct(source):
        wanted, given = [each.name for each in target], [each.name for each in source]
        plain = [name for name in wanted if name not in ("row_kind", "class")]
        by_position = len(plain) == len(given) and plain == [f"f{index}" for index in range(len(plain))]
        if not by_position or any(old in plain and old != new for new, old in zip(plain, given, strict=True)):
            plain = given
        if len(set(plain)) < len(plain):
            raise UsageError(f"two fields have one name: {', '.join(plain)}", hint="Name the fields of the struct")
        made = {
            new: name_fields(child, target.field(new).type) if new in wanted else child
            for new, child in zip(plain, array.flatten(), strict=True)
        }
        if wanted[:1] == ["row_kind"] and "row_kind" not in made:
            made = {"row_kind": pa.array([ROW_KINDS[0]] * len(array), pa.string()), **made}
        return pa.StructArray.from_arrays([*made.values()], names=[*made], mask=mask)
    if pa.types.is_list(target) and pa.types.is_list(source):
        values = name_fields(array.flatten(), target.value_type)
        return pa.ListArray.from_arrays(dense_offsets(array), values, mask=mask)
    if pa.types.is_map(target) and pa.types.is_map(source):
        entries = flatten_entries(array)
        keys, items = (
            name_fields(entries.field(each), kind) for each, kind in ((0, target.key_type), (1, target.item_type))
        )
        return pa.MapArray.from_arrays(dense_offsets(array), keys, items, mask=mask)
    return array


def _stamp_elements(lists: pa.ListArray, accessed: pa.Array) -> pa.ListArray:
    """Lists whose elements have the time of the last access of their row."""
    offsets = dense_offsets(lists)
    lengths = np.diff(offsets.to_numpy())
    rows = pa.array(np.repeat(np.arange(len(lists)), lengths))
    stamped = pa.StructArray.from_arrays(
        [accessed.take(rows).cast(pa.int64()), lists.flatten()], names=["last_access", "value"]
    )
    return pa.ListArray.from_arrays(offsets, stamped)
