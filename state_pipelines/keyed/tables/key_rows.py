"""Rows of an operator: which records of its states have the same key and namespace.

Records are matched on the bytes of key and namespace, a window of whole key groups of one subtask at a time. Nothing
is decoded for that; of maps and timers it is only found where the namespace ends.
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
from state_pipelines.codecs.columns import Columns, Decoded, plan_columns
from state_pipelines.errors import FormatError, UnsupportedError, Where, at
from state_pipelines.keyed.keys.key_kernels import join_spans, match_prefix, number_keys
from state_pipelines.keyed.record_bounds import Measure
from state_pipelines.keyed.record_layout import VOID, KeyedRecords, concat_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Positions = npt.NDArray[np.int64]
_Spans = Callable[["RecordRows"], tuple[npt.NDArray[np.uint8], Positions, Positions]]

BYTES = plan_columns(lay.Rest())
"""Takes spans as they are."""


@dataclass(frozen=True)
class RecordRows:
    """Records of one state in one buffer, with the spans of their keys for matching.

    Attributes:
        records: the records.
        addresses: i64[n], address of key and namespace.
        sizes: i64[n], their bytes.
        keys: buffer that the addresses point into.
        own_starts: i64[n], start of the map key or the timestamp in the data of the records; other keys have neither.
        own_ends: i64[n].
    """

    records: KeyedRecords
    addresses: Positions
    sizes: Positions
    keys: npt.NDArray[np.uint8]
    own_starts: Positions
    own_ends: Positions

    def select(self, rows: Positions) -> RecordRows:
        """Some of the records."""
        spans = (self.own_starts[rows], self.own_ends[rows])
        return RecordRows(self.records.select(rows), self.addresses[rows], self.sizes[rows], self.keys, *spans)


@dataclass(frozen=True)
class StateRows:
    """The records of one state in a window, and their rows.

    Attributes:
        batches: the records; those of one batch follow those of the one before.
        rows: i64[n], row of each record, ascending.
        order: i64[n], the record of each of `rows`; records of one row in the order of the file.
    """

    batches: tuple[RecordRows, ...]
    rows: Positions
    order: Positions

    def between(self, first: int, stop: int) -> slice:
        """The indexes in `rows` of rows from `first` up to `stop`."""
        low, high = np.searchsorted(self.rows, (first, stop))
        return slice(int(low), int(high))

    @property
    def sizes(self) -> Positions:
        """i64[n], bytes of key and value of each of `rows`."""
        sizes = [
            each.records.value_ends - each.records.value_starts + each.records.key_ends - each.records.key_starts
            for each in self.batches
        ]
        joined: Positions = np.concatenate(sizes)[self.order]
        return joined


@dataclass(frozen=True)
class KeyRows:
    """The rows of a window.

    Attributes:
        key_groups: i32[rows], ascending.
        first_states: i64[rows], the state whose record came first.
        first_records: i64[rows], the record, counted in that state.
        states: records by state, of those that have any.
    """

    key_groups: npt.NDArray[np.int32]
    first_states: Positions
    first_records: Positions
    states: dict[int, StateRows]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.key_groups)

    def cut(self, most_rows: int, most_bytes: int) -> Iterator[tuple[int, int]]:
        """The rows in ranges of at most so many rows, or bytes of records where a row has not more."""
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
        layout: of their keys, see `KeyedLayout.key`.

    Raises:
        FormatError: the bytes do not fit the serializers.
        UnsupportedError: a key cannot be read, so that its end is not known.
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
    """A layout without its length."""
    return layout.inner if isinstance(layout, lay.MeasuredKey) else layout


def namespace_layout(layout: lay.Struct) -> lay.Layout:
    """Layout of the namespace in keys of `layout`."""
    return unmeasured(dict(layout.fields)["state_namespace"])


def match_rows(
    batches: dict[int, list[RecordRows]], layouts: Sequence[lay.Struct], needle: npt.NDArray[np.uint8] | None
) -> KeyRows | None:
    """Give records with the same key group, key and namespace the same row.

    Rows are ordered by key group, then by their first occurrence, states in the order of `batches`.

    Args:
        batches: records by state.
        layouts: of the keys, by state.
        needle: bytes of the only key that is wanted.

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
    # A void namespace is one zero byte; so is that of a global window.
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
        FormatError: a row has; it names the key.
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
    columns: Columns, batches: Sequence[RecordRows], indexes: Positions, *, lenient: bool = False
) -> Decoded:
    """Decode the whole keys of some records, counted over all batches, in the order of `indexes`.

    Raises:
        FormatError: the bytes do not fit the serializers.
        UnsupportedError, ValueRangeError: a record cannot be decoded; not when that is a failure (`lenient`).
    """
    return _decode(
        columns,
        batches,
        indexes,
        lambda each: (each.records.data, each.records.key_starts, each.records.key_ends),
        lenient=lenient,
    )


def decode_own(
    columns: Columns, batches: Sequence[RecordRows], indexes: Positions, *, lenient: bool = False
) -> Decoded:
    """Decode map keys or timestamps, as `decode_keys`."""
    return _decode(
        columns, batches, indexes, lambda each: (each.records.data, each.own_starts, each.own_ends), lenient=lenient
    )


def decode_values(
    columns: Columns, batches: Sequence[RecordRows], indexes: Positions, *, lenient: bool = False
) -> Decoded:
    """Decode values, as `decode_keys`."""
    return _decode(
        columns,
        batches,
        indexes,
        lambda each: (each.records.data, each.records.value_starts, each.records.value_ends),
        lenient=lenient,
    )


def decode_matched(batches: Sequence[RecordRows], indexes: Positions) -> pa.Array:
    """The bytes of key and namespace, in the order of `indexes`."""

    def find(batch: RecordRows) -> tuple[npt.NDArray[np.uint8], Positions, Positions]:
        starts = batch.addresses - batch.keys.ctypes.data
        return batch.keys, starts, starts + batch.sizes

    return _decode(BYTES, batches, indexes, find, lenient=False).array


def _decode(
    columns: Columns, batches: Sequence[RecordRows], indexes: Positions, spans: _Spans, *, lenient: bool
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
    """The `indexes` inside each batch: their indices, the batch, and their numbers in it."""
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
    """Arrays as one, in which the values of each come at its `indices`."""
    if not arrays:
        return pa.nulls(0, kind)
    if len(arrays) == 1:
        return arrays[0]
    order = np.argsort(np.concatenate(indices))
    return pa.concat_arrays(arrays).take(pa.array(order))


def merge_runs(runs: Sequence[KeyedRecords]) -> list[KeyedRecords]:
    """Merge runs of one state in the same buffer."""
    return [concat_records([*lying]) for _, lying in groupby(runs, key=lambda run: id(run.data))]
