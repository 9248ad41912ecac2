"""Columns of states in the table of an operator: their names, types and values (see `operator_table`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import Columns, plan_columns
from state_pipelines.errors import UnsupportedError, UsageError, ValueRangeError
from state_pipelines.keyed.tables.key_rows import BYTES, StateRows, decode_own, decode_values
from state_pipelines.keyed.tables.state_table import TTL_COLUMN, TTL_TYPE
from state_pipelines.serializers.registered_states import StateKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.codecs.programs.kernel_columns import Wanted

KEY_COLUMNS = ("state_key", "state_namespace")
FIXED_COLUMNS = ("key_group", "subtask", *KEY_COLUMNS, "key_bytes", "reason")

NULL_KEY = "a map has a null key, for which Arrow and Spark have no form"


@dataclass(frozen=True)
class StateLayout:
    """A state that takes part.

    Attributes:
        name: of the state.
        state_type: VALUE, REDUCING, AGGREGATING, LIST, MAP or TIMER.
        key: layout of the keys of its records.
        value: layout of its values; None when `reason` says why there is none.
        ttl: values carry the time of their last access.
        label: what its column is called, if not by its name.
    """

    name: str
    state_type: StateKind
    key: lay.Struct
    value: lay.Layout | None
    ttl: bool = False
    reason: str = ""
    label: str = ""

    @property
    def column(self) -> str:
        """Wanted name of its column."""
        return self.label or self.name

    @property
    def map_key(self) -> lay.Layout | None:
        """Layout of the keys of a map state."""
        return dict(self.key.fields).get("map_key")

    @property
    def repeats(self) -> bool:
        """Whether a key and namespace may have several records."""
        return self.state_type in (StateKind.MAP, StateKind.TIMER)


@dataclass(frozen=True)
class Decodability:
    """Degree to which the values of a state can be decoded into columns.

    Attributes:
        stored: values are shown as stored bytes only.
        reason: why bytes are shown; empty when they were requested.
        may_fail: single records may well fail to be decoded.
    """

    stored: bool = False
    reason: str = ""
    may_fail: bool = False


@dataclass(frozen=True)
class StateValues:
    """Values of a state for some rows.

    Attributes:
        array: one value per row.
        stored: bytes of what could not be decoded; None when everything was.
        failures: rows with something that could not be decoded, and why.
    """

    array: pa.Array
    stored: pa.Array | None = None
    failures: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class StateColumn:
    """The column of a state.

    Attributes:
        value: of the values; timers have none.
        own: of the keys of a map, or the timestamps of timers.
    """

    state: StateLayout
    name: str
    type: pa.DataType
    value: Columns | None = None
    own: Columns | None = None

    def make(self, found: StateRows, first: int, stop: int, *, lenient: bool) -> StateValues:
        """The values for rows from `first` up to `stop`.

        Args:
            found: the records of the state.
            first: first row.
            stop: end of the rows (exclusive).
            lenient: values that cannot be decoded are null, and their bytes are kept.

        Raises:
            FormatError: the bytes do not fit the serializers.
            UnsupportedError, ValueRangeError: a value cannot be decoded; not with `lenient`.
        """
        chosen = found.between(first, stop)
        rows, indexes, count = found.rows[chosen] - first, found.order[chosen], stop - first
        if self.state.state_type == StateKind.TIMER:
            assert self.own is not None
            times = decode_own(self.own, found.batches, indexes).array
            return StateValues(_group(rows, count, times.take(pa.array(np.lexsort((times.to_numpy(), rows))))))
        assert self.value is not None
        decoded = decode_values(self.value, found.batches, indexes, lenient=lenient)
        values = decoded.array
        if self.state.ttl and self.value is not BYTES:
            values = _name_ttl(values)
        if self.own is not None:
            return self._make_map(found, rows, indexes, count, values, dict(decoded.failures), lenient=lenient)
        failed = decoded.failed
        stored = None
        if len(failed):
            stored = spread(decode_values(BYTES, found.batches, indexes[failed]).array, rows[failed], count)
        failures = tuple((int(rows[index]), reason) for index, reason in decoded.failures)
        return StateValues(spread(values, rows, count), stored, failures)

    def _make_map(
        self,
        found: StateRows,
        rows: np.ndarray,
        indexes: np.ndarray,
        count: int,
        values: pa.Array,
        failures: dict[int, str],
        *,
        lenient: bool,
    ) -> StateValues:
        assert self.own is not None
        decoded = decode_own(self.own, found.batches, indexes, lenient=lenient)
        keys, lost = decoded.array, np.zeros(len(rows), np.bool_)
        if keys.null_count:
            if not lenient:
                hint = "Read the state alone (--state, stateVarName of Spark), which gives a row per entry"
                raise ValueRangeError(NULL_KEY, hint=hint)
            lost = np.asarray(keys.is_null())
            failures |= dict.fromkeys(np.flatnonzero(lost).tolist(), NULL_KEY) | dict(decoded.failures)
        kept = ~lost
        present = np.bincount(rows, minlength=count) > 0
        if not failures:
            return StateValues(_group(rows, count, keys, values))
        failed = np.array(sorted(failures), np.int64)
        raw = [
            decode_own(BYTES, found.batches, indexes[failed]).array,
            decode_values(BYTES, found.batches, indexes[failed]).array,
        ]
        mask = pa.array(kept)
        array = _group(rows[kept], count, keys.filter(mask), values.filter(mask), present=present)
        stored = _group(rows[failed], count, *raw)
        return StateValues(array, stored, tuple((int(rows[index]), failures[int(index)]) for index in failed))


def find_decodability(state: StateLayout, *, raw: bool) -> Decodability:
    """Return how far the values of a state can be decoded; with `raw` they are not."""
    if state.state_type == StateKind.TIMER:
        return Decodability()
    if raw:
        return Decodability(stored=True)
    if state.value is None:
        return Decodability(stored=True, reason=state.reason)
    try:
        sides = [plan_columns(layout) for layout in (state.value, state.map_key) if layout is not None]
    except UnsupportedError as error:
        return Decodability(stored=True, reason=error.what)
    return Decodability(may_fail=any(side.may_fail for side in sides))


def make_column(state: StateLayout, name: str, wanted: Wanted, decodability: Decodability) -> StateColumn:
    """The column of a state.

    Raises:
        UsageError: `wanted` names a field that the values do not have.
    """
    if state.state_type == StateKind.TIMER:
        return StateColumn(
            state, name, pa.list_(pa.int64()), own=plan_columns(lay.Logical(lay.LogicalKind.ORDERED_I64))
        )
    if decodability.stored:
        return StateColumn(state, name, stored_type(state), BYTES, BYTES if state.map_key else None)
    assert state.value is not None
    value = plan_columns(state.value, _value_paths(state, wanted))
    kind = _value_type(state, value.type)
    if state.map_key is None:
        return StateColumn(state, name, kind, value)
    own = plan_columns(state.map_key)
    return StateColumn(state, name, pa.map_(own.type, kind), value, own)


def stored_type(state: StateLayout) -> pa.DataType:
    """Type of a column of stored bytes."""
    return pa.binary() if state.map_key is None else pa.map_(pa.binary(), pa.binary())


def name_columns(wishes: Sequence[str]) -> list[str]:
    """Names of the columns of states.

    A name that another column has, be it in other case (Spark does not tell them apart), gets the prefix `state_`.
    """
    taken = set(FIXED_COLUMNS)
    names = [""] * len(wishes)
    # Those that can keep their names do.
    for index in sorted(range(len(wishes)), key=lambda each: wishes[each].lower() in taken):
        name = wishes[index]
        while name.lower() in taken:
            name = f"state_{name}"
        taken.add(name.lower())
        names[index] = name
    return names


def choose_columns(
    columns: Sequence[str] | None, known: Sequence[str], others: Sequence[str], aliases: dict[str, str]
) -> dict[str, Wanted]:
    """The wanted columns in the order of the wish, and which fields of them.

    Args:
        columns: names or dotted paths; None is all of `known`.
        known: names of the columns; names may hold dots.
        others: columns that are there for those who ask.
        aliases: other names of columns.

    Raises:
        UsageError: there is no such column.
    """
    if columns is None:
        return dict.fromkeys(known)
    chosen: dict[str, Wanted] = {}
    names = {name: name for name in (*known, *others)} | aliases
    for path in columns:
        fitting = [name for name in names if path == name or path.startswith(f"{name}.")]
        if not fitting:
            raise UsageError(f"the operator has no column {path}", hint=f"It has {', '.join(known)}")
        name = max(fitting, key=len)
        below: Wanted = None if path == name or names[name] != name else frozenset({path[len(name) + 1 :]})
        before = chosen.get(names[name], frozenset())
        chosen[names[name]] = None if before is None or below is None else before | below
    return chosen


def spread(values: pa.Array, rows: np.ndarray, count: int) -> pa.Array:
    """Values at `rows` (ascending) of `count` rows; null in the others."""
    if len(rows) == count:
        return values
    if pa.types.is_null(values.type):
        return pa.nulls(count)
    index = np.full(count, -1, np.int64)
    index[rows] = np.arange(len(rows))
    return values.take(pa.array(index, mask=index < 0))


def _group(rows: np.ndarray, count: int, *children: pa.Array, present: np.ndarray | None = None) -> pa.Array:
    """Lists, or maps of keys and values, per row; null in rows that are not present, by default those without any."""
    sizes = np.bincount(rows, minlength=count)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    missing = sizes == 0 if present is None else ~present
    mask = pa.array(missing) if missing.any() else None
    build = pa.MapArray.from_arrays if len(children) == 2 else pa.ListArray.from_arrays
    return build(pa.array(offsets), *children, mask=mask)


def _value_paths(state: StateLayout, wanted: Wanted) -> Wanted:
    """Paths into the layout of the value for paths into the column."""
    if wanted is None:
        return None
    if state.map_key is not None:
        wrong = [path for path in wanted if path.partition(".")[0] != "value"]
        if wrong:
            hint = f"Fields of the values are chosen, such as `{state.column}.value.name`; the keys always come along"
            raise UsageError(f"there is no field {wrong[0]}", hint=hint)
        if "value" in wanted:
            return None
        wanted = frozenset(path.partition(".")[2] for path in wanted)
    if state.ttl:
        wanted = frozenset("last_access" if path == TTL_COLUMN else path for path in wanted)
    return wanted


def _value_type(state: StateLayout, kind: pa.DataType) -> pa.DataType:
    if not state.ttl:
        return kind
    if state.state_type == StateKind.LIST:
        return pa.list_(_ttl_type(kind.value_type))
    return _ttl_type(kind)


def _ttl_type(kind: pa.StructType) -> pa.StructType:
    names = [each.name for each in kind]
    fields = [pa.field("value", kind.field("value").type)] if "value" in names else []
    return pa.struct([*fields, pa.field(TTL_COLUMN, TTL_TYPE)] if "last_access" in names else fields)


def _name_ttl(array: pa.Array) -> pa.Array:
    """Values with the time of their last access, named as in tables."""
    if pa.types.is_list(array.type):
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(array.offsets, _name_ttl(array.values), mask=mask)
    kind = _ttl_type(array.type)
    children = [
        array.field("last_access").cast(TTL_TYPE) if each.name == TTL_COLUMN else array.field(each.name)
        for each in kind
    ]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
