"""Columns of the table of an operator: records of its states with the same key and namespace, and their values.

* `KeyRows`, `match_rows`: rows of an operator. Records are matched on the bytes of key and namespace, a window of whole
  key groups of one subtask at a time. Nothing is decoded for that; in maps and timers only the end of the namespace is
  searched.
* `StateColumn`, `make_column`: the column of a state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import ColumnCodec, Decoded, plan_columns
from state_pipelines.errors import FormatError, UnsupportedError, UsageError, ValueRangeError, Where, at
from state_pipelines.keyed.kernels import join_spans, match_prefix, number_keys
from state_pipelines.keyed.record_layout import VOID, KeyedRecords, Measure, concat_records
from state_pipelines.keyed.state_table import TTL_COLUMN, TTL_TYPE
from state_pipelines.serializers.tree import StateKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.codecs.programs import Wanted

Positions = npt.NDArray[np.int64]
_Spans = Callable[["RecordRows"], tuple[npt.NDArray[np.uint8], Positions, Positions]]

BYTES = plan_columns(lay.Rest())
"""Decoder that returns the bytes of spans as they are."""


@dataclass(frozen=True)
class RecordRows:
    """Records of one state in one buffer, with the spans of their keys for matching.

    Attributes:
        records: the records.
        addresses: i64[n], address of the bytes of key and namespace of each record.
        sizes: i64[n], number of these bytes.
        keys: buffer that the addresses point into.
        own_starts: i64[n], start of the map key or of a timer's timestamp in the data of the records; unused in other
            states.
        own_ends: i64[n].
    """

    records: KeyedRecords
    addresses: Positions
    sizes: Positions
    keys: npt.NDArray[np.uint8]
    own_starts: Positions
    own_ends: Positions

    def select(self, rows: Positions) -> RecordRows:
        """Return some of the records."""
        spans = (self.own_starts[rows], self.own_ends[rows])
        return RecordRows(self.records.select(rows), self.addresses[rows], self.sizes[rows], self.keys, *spans)


@dataclass(frozen=True)
class StateRows:
    """The records of one state in a window, and the table rows to which they belong.

    Attributes:
        batches: the records; an index of a record counts over all batches.
        rows: i64[n], the number of a row for each record, ascending.
        order: i64[n], the index of the record that each element of `rows` is for; records of a row are in the order of
            the file.
    """

    batches: tuple[RecordRows, ...]
    rows: Positions
    order: Positions

    def between(self, first: int, stop: int) -> slice:
        """Return the slice of `rows` (and `order`) with row numbers from `first` up to `stop` (exclusive)."""
        low, high = np.searchsorted(self.rows, (first, stop))
        return slice(int(low), int(high))

    @property
    def sizes(self) -> Positions:
        """i64[n], bytes of key and value of the record of each element of `rows`."""
        sizes = [
            each.records.value_ends - each.records.value_starts + each.records.key_ends - each.records.key_starts
            for each in self.batches
        ]
        joined: Positions = np.concatenate(sizes)[self.order]
        return joined


@dataclass(frozen=True)
class KeyRows:
    """The rows of the table for one window: one per key group, key and namespace.

    Attributes:
        key_groups: i32[rows], ascending.
        first_states: i64[rows], number of the state whose record came first.
        first_records: i64[rows], index of that record in its state.
        states: records by number of the state; only states with records.
    """

    key_groups: npt.NDArray[np.int32]
    first_states: Positions
    first_records: Positions
    states: dict[int, StateRows]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.key_groups)

    def cut(self, most_rows: int, most_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of at most `most_rows` rows with at most `most_bytes` bytes of records, but at least one row."""
        sizes = np.zeros(len(self), np.int64)
        for state in self.states.values():
            sizes += np.bincount(state.rows, state.sizes, len(self)).astype(np.int64)
        stops = np.cumsum(sizes)
        first = 0
        while first < len(self):
            before = int(stops[first] - sizes[first])
            fitting = int(np.searchsorted(stops, before + most_bytes, side="right"))
            stop = min(max(fitting, first + 1), first + most_rows)
            yield first, stop
            first = stop


def locate_keys(records: KeyedRecords, layout: lay.Struct) -> RecordRows:
    """Find key and namespace of each record.

    Args:
        records: of one state.
        layout: layout of their keys, see `KeyedLayout.key`.

    Raises:
        FormatError: the bytes do not fit the serializers.
        UnsupportedError: the end of a key is not known, because its serializer has no reader.
    """
    fields = dict(layout.fields)
    base = records.data.ctypes.data
    measured = isinstance(fields["state_key"], lay.MeasuredKey)
    if len(fields) == 2 and not measured:
        ends = records.key_ends
        return RecordRows(records, base + records.key_starts, ends - records.key_starts, records.data, ends, ends)
    measure = _plan_measure(layout)
    spans = measure.spans(records.data, records.key_starts, records.key_ends, offset=records.offset, name=records.file)
    key_starts, key_ends = _ends(spans, "state_key")
    starts, ends = _ends(spans, "state_namespace")
    own = next((name for name in fields if name not in ("state_key", "state_namespace")), "state_namespace")
    if not measured:
        return RecordRows(records, base + key_starts, ends - key_starts, records.data, *_ends(spans, own))
    joined = np.empty(int((key_ends - key_starts).sum() + (ends - starts).sum()), np.uint8)
    stops = np.empty(len(records), np.int64)
    join_spans(base, key_starts, key_ends, starts, ends, joined.ctypes.data, stops)
    sizes = np.diff(stops, prepend=0)
    return RecordRows(records, joined.ctypes.data + stops - sizes, sizes, joined, *_ends(spans, own))


@lru_cache(maxsize=512)
def _plan_measure(layout: lay.Struct) -> Measure:
    return Measure(lay.Struct(tuple((name, _span(name, each)) for name, each in layout.fields)))


def _span(name: str, layout: lay.Layout) -> lay.Layout:
    if name == "map_key":
        return lay.Span(lay.Rest())
    return lay.MeasuredKey(lay.Span(layout.inner)) if isinstance(layout, lay.MeasuredKey) else lay.Span(layout)


def _ends(spans: pa.StructArray, name: str) -> tuple[Positions, Positions]:
    field = spans.field(name)
    return field.field("start").to_numpy(), field.field("stop").to_numpy()


def unmeasured(layout: lay.Layout) -> lay.Layout:
    """Return the layout without the length that `MeasuredKey` adds."""
    return layout.inner if isinstance(layout, lay.MeasuredKey) else layout


def namespace_layout(layout: lay.Struct) -> lay.Layout:
    """Return the layout of the namespace in keys of `layout`."""
    return unmeasured(dict(layout.fields)["state_namespace"])


def match_rows(
    batches: dict[int, list[RecordRows]], layouts: Sequence[lay.Struct], needle: npt.NDArray[np.uint8] | None
) -> KeyRows | None:
    """Give records with the same key group, key and namespace the same row.

    Rows are ordered by key group, then by their first record; states count in the order of `batches`.

    Args:
        batches: records by state.
        layouts: of the keys, by state.
        needle: bytes of the only key that is wanted; None for all keys.

    Returns:
        The rows; None when there are none.
    """
    if needle is not None:
        batches = {state: [_only(each, needle) for each in found] for state, found in batches.items()}
    batches = {state: [each for each in found if len(each.records)] for state, found in batches.items()}
    flat = [(state, each) for state, found in batches.items() for each in found]
    if not flat:
        return None
    key_groups = np.concatenate([each.records.key_groups for _, each in flat])
    # A void namespace and the namespace of a global window both are one zero byte, but must not match each other.
    others = [namespace_layout(layouts[state]) != VOID for state, _ in flat]
    lengths = [len(each.records) for _, each in flat]
    codes = key_groups.astype(np.int64) * 2 + np.repeat(np.array(others, np.int64), lengths)
    addresses = np.concatenate([each.addresses for _, each in flat])
    sizes = np.concatenate([each.sizes for _, each in flat])
    rows = np.empty(len(addresses), np.int64)
    firsts = number_keys(addresses, sizes, codes, rows)
    if bool((np.diff(key_groups[firsts]) < 0).any()):
        order = np.argsort(key_groups[firsts], kind="stable")
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.arange(len(order))
        rows, firsts = numbers[rows], firsts[order]
    states: dict[int, StateRows] = {}
    present = [state for state, found in batches.items() if found]
    bounds = [0]
    for state in present:
        bounds.append(bounds[-1] + sum(len(each.records) for each in batches[state]))
        states[state] = _sort_rows(tuple(batches[state]), rows[bounds[-2] : bounds[-1]])
    indexes = np.searchsorted(np.array(bounds), firsts, side="right") - 1
    return KeyRows(key_groups[firsts], np.array(present, np.int64)[indexes], firsts - np.array(bounds)[indexes], states)


def _only(batch: RecordRows, needle: npt.NDArray[np.uint8]) -> RecordRows:
    ends = batch.addresses + batch.sizes
    return batch.select(match_prefix(0, batch.addresses, ends, needle.ctypes.data, len(needle)))


def _sort_rows(batches: tuple[RecordRows, ...], rows: Positions) -> StateRows:
    if bool((np.diff(rows) >= 0).all()):
        return StateRows(batches, rows, np.arange(len(rows), dtype=np.int64))
    order = np.argsort(rows, kind="stable")
    return StateRows(batches, rows[order], order)


def require_one(state: StateRows, name: str, layout: lay.Struct) -> None:
    """Check that no row has two records.

    Raises:
        FormatError: a row has two records; the error names the key.
    """
    repeated = np.flatnonzero(state.rows[1:] == state.rows[:-1])
    if not len(repeated):
        return
    indexes = state.order[repeated[:1] + 1]
    _, batch, numbers = next(_by_batch(state.batches, indexes))
    records = batch.records
    with at(file=records.file, state=name):
        try:
            key = decode_keys(plan_columns(layout), state.batches, indexes).array[0]["state_key"].as_py()
        except UnsupportedError:
            key = decode_matched(state.batches, indexes)[0].as_py()
        offset = records.offset + int(records.key_starts[numbers[0]])
        raise FormatError(f"the key {key!r} comes twice", where=Where(offset=offset))


def decode_keys(
    columns: ColumnCodec, batches: Sequence[RecordRows], indexes: Positions, *, lenient: bool = False
) -> Decoded:
    """Decode the whole keys of the records with these indexes (over all batches), in the order of `indexes`.

    Raises:
        FormatError: the bytes do not fit the serializers.
        UnsupportedError, ValueRangeError: a record cannot be decoded; with `lenient`, the result lists it as a failure.
    """
    return _decode(
        columns,
        batches,
        indexes,
        lambda each: (each.records.data, each.records.key_starts, each.records.key_ends),
        lenient=lenient,
    )


def decode_own(
    columns: ColumnCodec, batches: Sequence[RecordRows], indexes: Positions, *, lenient: bool = False
) -> Decoded:
    """Decode only the map keys, or the timestamps of timers; arguments as of `decode_keys`."""
    return _decode(
        columns, batches, indexes, lambda each: (each.records.data, each.own_starts, each.own_ends), lenient=lenient
    )


def decode_values(
    columns: ColumnCodec, batches: Sequence[RecordRows], indexes: Positions, *, lenient: bool = False
) -> Decoded:
    """Decode values, with the arguments of `decode_keys`."""
    return _decode(
        columns,
        batches,
        indexes,
        lambda each: (each.records.data, each.records.value_starts, each.records.value_ends),
        lenient=lenient,
    )


def decode_matched(batches: Sequence[RecordRows], indexes: Positions) -> pa.Array:
    """Return the bytes of key and namespace, by which rows of several states are matched.

    Args:
        batches: batches of records of one state.
        indexes: numbers of the wanted records, counted over all batches; the result has their order.
    """

    def find(batch: RecordRows) -> tuple[npt.NDArray[np.uint8], Positions, Positions]:
        starts = batch.addresses - batch.keys.ctypes.data
        return batch.keys, starts, starts + batch.sizes

    return _decode(BYTES, batches, indexes, find, lenient=False).array


def _decode(
    columns: ColumnCodec, batches: Sequence[RecordRows], indexes: Positions, spans: _Spans, *, lenient: bool
) -> Decoded:
    arrays, indices = [], []
    failures: list[tuple[int, str]] = []
    for index, batch, numbers in _by_batch(batches, indexes):
        data, starts, ends = spans(batch)
        offset = batch.records.offset
        with at(file=batch.records.file):
            decoded = columns.decode(data, starts[numbers], ends[numbers], offset=offset, lenient=lenient)
        arrays.append(decoded.array)
        indices.append(index)
        failures += [(int(index[row]), reason) for row, reason in decoded.failures]
    return Decoded(join_arrays(arrays, indices, columns.type), tuple(sorted(failures)))


def _by_batch(batches: Sequence[RecordRows], indexes: Positions) -> Iterator[tuple[Positions, RecordRows, Positions]]:
    """Split `indexes` by batch; yield positions in `indexes`, the batch, and the indexes of records in the batch."""
    if len(batches) == 1:
        yield np.arange(len(indexes), dtype=np.int64), batches[0], indexes
        return
    first = 0
    for batch in batches:
        index = np.flatnonzero((indexes >= first) & (indexes < first + len(batch.records)))
        if len(index):
            yield index, batch, indexes[index] - first
        first += len(batch.records)


def join_arrays(arrays: Sequence[pa.Array], indices: Sequence[Positions], kind: pa.DataType) -> pa.Array:
    """Join arrays into one; the values of each array go to the positions in its element of `indices`."""
    if not arrays:
        return pa.nulls(0, kind)
    if len(arrays) == 1:
        return arrays[0]
    order = np.argsort(np.concatenate(indices))
    return pa.concat_arrays(arrays).take(pa.array(order))


def merge_runs(runs: Sequence[KeyedRecords]) -> list[KeyedRecords]:
    """Merge adjacent runs of one state whose records are in the same buffer."""
    return [concat_records([*lying]) for _, lying in groupby(runs, key=lambda run: id(run.data))]


KEY_COLUMNS = ("state_key", "state_namespace")
FIXED_COLUMNS = ("key_group", "subtask", *KEY_COLUMNS, "key_bytes", "reason")

NULL_KEY = "a map has a null key, which maps of Arrow and Spark cannot hold"


@dataclass(frozen=True)
class StateLayout:
    """A state in the table of an operator.

    Attributes:
        name: of the state.
        state_type: VALUE, REDUCING, AGGREGATING, LIST, MAP or TIMER.
        key: layout of the keys of its records.
        value: layout of its values; None if there is none, and `reason` says why.
        ttl: values carry the time of their last access.
        label: name for its column, if it differs from the name of the state.
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
        """Wished name of its column; it gets a prefix if another column has that name (see `name_columns`)."""
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
        array: one value per row, null if it could not be decoded.
        stored: stored bytes of the values that could not be decoded; None if all were.
        failures: (row, reason) for each failure.
    """

    array: pa.Array
    stored: pa.Array | None = None
    failures: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class StateColumn:
    """Decoder of the column that a state has in the table of an operator.

    Attributes:
        value: decoder of the values; timers have none.
        own: decoder of the keys of a map, or of the timestamps of timers.
    """

    state: StateLayout
    name: str
    type: pa.DataType
    value: ColumnCodec | None = None
    own: ColumnCodec | None = None

    def make(self, found: StateRows, first: int, stop: int, *, lenient: bool) -> StateValues:
        """Decode the values for rows from `first` up to `stop`.

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
    """Return to what extent the values of a state can be decoded; with `raw`, all of them stay bytes."""
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
    """Make the decoder of the column that a state has in the table of an operator.

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
    """Return the type of a column of stored bytes."""
    return pa.binary() if state.map_key is None else pa.map_(pa.binary(), pa.binary())


def name_columns(wishes: Sequence[str]) -> list[str]:
    """Choose the names of the columns of states.

    A name that another column has gets the prefix `state_`. Case does not count, because Spark ignores it.
    """
    taken = set(FIXED_COLUMNS)
    names = [""] * len(wishes)
    # Reserved names come last, so that the names they get with the prefix do not displace other states' own names.
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
    """Return the requested columns in the requested order, with the requested fields of each (None for all).

    Args:
        columns: names or dotted paths; None is all of `known`.
        known: names of the columns; names may hold dots.
        others: names of columns that are returned only if `columns` names them.
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
    """Put values at `rows` (ascending) of an array of `count` rows; the other rows are null."""
    if len(rows) == count:
        return values
    if pa.types.is_null(values.type):
        return pa.nulls(count)
    index = np.full(count, -1, np.int64)
    index[rows] = np.arange(len(rows))
    return values.take(pa.array(index, mask=index < 0))


def _group(rows: np.ndarray, count: int, *children: pa.Array, present: np.ndarray | None = None) -> pa.Array:
    """Group values into a list per row (or keys and values into a map); null in rows that are not `present`.

    By default, rows without values are not present.
    """
    sizes = np.bincount(rows, minlength=count)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    missing = sizes == 0 if present is None else ~present
    mask = pa.array(missing) if missing.any() else None
    build = pa.MapArray.from_arrays if len(children) == 2 else pa.ListArray.from_arrays
    return build(pa.array(offsets), *children, mask=mask)


def _value_paths(state: StateLayout, wanted: Wanted) -> Wanted:
    """Convert wanted paths in the column of a state to paths in the layout of its value."""
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
    """Give the time of the last access in values with TTL the name and type that it has in tables of states."""
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
