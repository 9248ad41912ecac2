"""Operator state, raw state and data in flight on both sides.

Elements of list state have no keys, so that the number of equal elements over all subtasks counts. Pairs of
broadcast state are compared by their keys, in one copy, since every subtask has the same one. Raw keyed state is
compared by key group, network buffers by channel and index.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import explain, plan_columns
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import StateError, StorageError, UnsupportedError, at
from state_pipelines.keyed.digests import MODULUS, RecordDigest
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.operations.diff.diff_report import ContentsDiff, Example
from state_pipelines.operations.diff.record_hashes import (
    Candidate,
    Hashes,
    concat_hashes,
    hash_records,
    join_hashes,
    sum_differences,
)
from state_pipelines.operations.json_rows import to_rows
from state_pipelines.operations.local_processes import KERNEL_THREADS
from state_pipelines.snapshot.operator_state import BroadcastState, OperatorListState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from state_pipelines.operations.json_rows import Row
    from state_pipelines.snapshot import State

_BYTES = ("value_bytes", "reason")
# Identifying columns of a row of raw state or of a buffer; partitions of raw operator state have no keys.
_POSITIONS = ("key_group", "direction", "gate_or_partition", "channel", "buffer_index")
_SAME_POSITION = ("subtask", *_POSITIONS)

OTHER_COPIES = "not compared one by one: the subtasks of one snapshot hold different copies"
SAME_VALUE = "the same value in other bytes"


@dataclass(frozen=True)
class UnkeyedRecords:
    """Some rows of a state that is not keyed.

    Attributes:
        batch: the rows.
        keys: names of the columns that make the key.
        hashes: of every row.
        bytes: of keys and values.
    """

    batch: pa.RecordBatch
    keys: tuple[str, ...]
    hashes: Hashes
    bytes: int

    @property
    def digest(self) -> RecordDigest:
        """Of all rows."""
        content = int(self.hashes.records.sum(dtype=np.uint64))
        return RecordDigest(len(self.hashes.records), self.bytes, content=content % MODULUS)

    def show(self, rows: npt.NDArray[np.int64]) -> Iterator[tuple[Row, Row]]:
        """Columns of key and value of some rows."""
        for row in to_rows(self.batch.take(pa.array(rows))):
            key = {name: row[name] for name in self.keys}
            yield (
                key,
                {
                    name: value
                    for name, value in row.items()
                    if name not in (*self.keys, "subtask") and not (name in _BYTES and value is None)
                },
            )


@dataclass(frozen=True)
class CompareUnkeyed:
    """A state that is not keyed, on both sides; None where a side does not have it.

    Attributes:
        operator: label, for errors.
        one: the state in the one.
        other: the state in the other.
        obstacle: why the two are not compared; empty when they are.
        limit: how many examples are wanted.
        in_flight: as `Work` says.
    """

    operator: str
    one: State | None
    other: State | None
    obstacle: str
    limit: int
    in_flight: int = 1
    # It is little beside keyed state, for which processes need not be started then.
    threads: ClassVar[int] = KERNEL_THREADS

    def run(self) -> ContentsDiff:
        """Compare them."""
        name = next(each.name for each in (self.one, self.other) if each is not None)
        with at(operator=self.operator, state=name):
            try:
                try:
                    return self._compare(raw=False)
                except UnsupportedError as error:
                    reason = explain(error)
                return self._compare(raw=True)
            except UnsupportedError:
                return ContentsDiff(None, None, None, note=f"not compared: {reason}")
            except StorageError:
                raise
            except StateError as error:
                return ContentsDiff(None, None, None, note=f"not compared: {error}", damaged=True)

    def _compare(self, *, raw: bool) -> ContentsDiff:
        (one, ones), (other, others) = (_load(state, raw=raw) for state in (self.one, self.other))
        if one is None or other is None:
            return ContentsDiff(one, other, False)
        if self.obstacle:
            return ContentsDiff(one, other, None, note=self.obstacle)
        if one == other:
            return ContentsDiff(one, other, True, only_in_one=0, only_in_other=0, changed=0)
        if ones is None or others is None:
            return ContentsDiff(one, other, False, note=OTHER_COPIES)
        found = sum_differences([join_hashes(ones, others, self.limit)], self.limit)
        examples = self._show(found.candidates, raw=raw)
        return ContentsDiff(
            one,
            other,
            False,
            only_in_one=found.only_in_one,
            only_in_other=found.only_in_other,
            changed=found.changed,
            examples=tuple(examples),
        )

    def _show(self, candidates: Sequence[Candidate], *, raw: bool) -> Iterator[Example]:
        ones = _find(self.one, [each.one for each in candidates if each.one is not None], raw=raw)
        others = _find(self.other, [each.other for each in candidates if each.other is not None], raw=raw)
        for each in candidates:
            sides = (
                None if each.one is None else ones[each.one],
                None if each.other is None else others[each.other],
            )
            yield make_example(each, *sides)


def make_example(candidate: Candidate, one: tuple[Row, Row] | None, other: tuple[Row, Row] | None) -> Example:
    """An example from columns of key and value on both sides."""
    (key, _) = one or other or ({}, {})
    old, new = (None if side is None else side[1] for side in (one, other))
    return Example(candidate.kind, key, old, new, SAME_VALUE if old is not None and old == new else "")


def _load(state: State | None, *, raw: bool) -> tuple[RecordDigest | None, Hashes | None]:
    """Digest and hashes of a state; no hashes where the subtasks have different copies of a broadcast state."""
    if state is None:
        return None, None
    if not isinstance(state, BroadcastState):
        tasks = []
        total = RecordDigest()
        for records in _read(state, raw=raw):
            tasks.append(records.hashes)
            total += records.digest
        return total, concat_hashes(tasks)
    copies = {each.digest: each.hashes for each in _read(state, raw=raw)}
    total = sum(copies, RecordDigest())
    return total, concat_hashes(copies.values()) if len(copies) <= 1 else None


def _find(state: State | None, wanted: list[int], *, raw: bool) -> dict[int, tuple[Row, Row]]:
    found: dict[int, tuple[Row, Row]] = {}
    hashes = np.array(wanted, np.uint64)
    if state is None or not wanted:
        return found
    for records in _read(state, raw=raw):
        rows = np.flatnonzero(np.isin(records.hashes.records, hashes))
        found.update(zip(records.hashes.records[rows].tolist(), records.show(rows), strict=True))
        if len(found) == len(set(wanted)):
            break
    return found


def _read(state: State, *, raw: bool) -> Iterator[UnkeyedRecords]:
    """The rows of a state; values of list and broadcast state are decoded and encoded again, which finds their ends."""
    context = state.operator.snapshot.layout_context
    layouts: dict[str, lay.Layout] = {}
    options = TableOptions()
    columns: tuple[str, ...] = ()
    match state:
        case OperatorListState() | BroadcastState():
            # Asked for by name, the columns of connectors are not looked for.
            decoded = not raw and not state.undecoded
            if decoded and isinstance(state, BroadcastState):
                layouts["map_key"] = derive_layout(state.info.key_serializer, context)
                layouts["map_value"] = derive_layout(state.info.value_serializer, context)
            elif decoded:
                layouts["value"] = derive_layout(state.info.value_serializer, context)
            names = ("subtask", *layouts, *_BYTES) if decoded else ("subtask", "value_bytes")
            options = TableOptions(columns=names, raw=not decoded)
        case _:
            known = state.make_schema().names
            position = _SAME_POSITION if "direction" in known else _POSITIONS
            columns = tuple(name for name in position if name in known)
    for batch in state.batches(options):
        if batch.num_rows:
            yield _hash(batch, layouts, columns)


def _hash(batch: pa.RecordBatch, layouts: dict[str, lay.Layout], columns: tuple[str, ...]) -> UnkeyedRecords:
    count = batch.num_rows
    stored = batch.column("value_bytes").is_valid().to_numpy(zero_copy_only=False)
    keys, values = _Spans(count), _Spans(count)
    values.put(batch.column("value_bytes"), lay.Rest(), np.flatnonzero(stored))
    decoded = np.flatnonzero(~stored)
    for name, layout in layouts.items():
        (keys if name == "map_key" else values).put(batch.column(name), layout, decoded)
    if columns:
        rows = to_rows(batch.select(columns))
        texts = pa.array([json.dumps(list(row.values())).encode() for row in rows], pa.binary())
        keys.put(texts, lay.Rest(), np.arange(count))
    elif "map_key" not in layouts:
        # Without keys the element is its own key: it is there or not, but never another one.
        keys, values = values, keys
    found = Hashes(np.zeros(count, np.int32), np.empty(count, np.uint64), np.empty(count, np.uint64))
    hash_records(found.groups, 0, keys.starts, keys.ends, values.starts, values.ends, found.keys, found.records)
    names = columns or tuple(name for name in layouts if name == "map_key")
    size = int((keys.ends - keys.starts).sum() + (values.ends - values.starts).sum())
    return UnkeyedRecords(batch, names, found, size)


class _Spans:
    """Addresses of the bytes of rows in memory; empty at first.

    Attributes:
        starts: i64[n], addresses.
        ends: i64[n].
    """

    def __init__(self, count: int) -> None:
        self.starts = np.zeros(count, np.int64)
        self.ends = np.zeros(count, np.int64)
        self._held: list[npt.NDArray[np.uint8]] = []

    def put(self, array: pa.Array, layout: lay.Layout, rows: npt.NDArray[np.int64]) -> None:
        """Encode the values of some rows."""
        if not len(rows):
            return
        encoded = plan_columns(layout).encode(array.take(pa.array(rows)))
        self._held.append(encoded.data)
        self.starts[rows] = encoded.starts + encoded.data.ctypes.data
        self.ends[rows] = encoded.stops + encoded.data.ctypes.data
