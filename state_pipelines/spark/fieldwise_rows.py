"""The rows of field-wise flows: a task that needs the new rows of a split reads the split and computes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from state_pipelines.codecs.columns import column_type
from state_pipelines.codecs.logical_values import conform
from state_pipelines.codecs.serializer_layouts import OpaqueValues, derive_layout
from state_pipelines.keyed.state_table import TTL_COLUMN, TableOptions
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.spark.fieldwise import FieldwiseFlow, field_column
from state_pipelines.spark.flow_columns import VISIBLE, hidden
from state_pipelines.spark.splits import KeyedSplit, choose_whole, split_state
from state_pipelines.spark.tasks import run_tasks
from state_pipelines.spark.types import from_spark, to_spark

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Operator
    from state_pipelines.spark.arrow_expressions import ArrowExpression

Result = TypeVar("Result", covariant=True)


@dataclass(frozen=True)
class Rows:
    """Some rows of a state.

    Attributes:
        stored: as they are read: key group, key as bytes, `list_index`, `ttl_last_access`; of the payload what is
            needed.
        new: as they become: the same columns, as far as the new state has them, and the new payload.
    """

    stored: pa.RecordBatch
    new: pa.RecordBatch


class RowsTask(Protocol[Result]):
    """Does something with the rows of one split."""

    def run(self, rows: Iterator[Rows]) -> Result:
        """Take the rows as they are stored and as they become, batch by batch."""


@dataclass(frozen=True)
class FieldwiseRows:
    """Reader that turns splits of a state into rows of a field-wise flow.

    Attributes:
        flow: the flow.
        layouts: context of the layout of the new payload.
        new: the fields of the new payload that are wanted; None is all.
        old: fields of the payload that is read that are wanted beside.
        hashed: with the key groups that the hashes of the keys give.
    """

    flow: FieldwiseFlow
    layouts: LayoutContext
    new: frozenset[str] | None = None
    old: frozenset[str] = frozenset()
    hashed: bool = False

    @cached_property
    def type(self) -> pa.DataType:
        """Arrow type of the new payload, with the wanted fields."""
        kind = column_type(derive_layout(self.flow.after.payload, self.layouts))
        return pa.struct([each for each in kind if self._wants(each.name)])

    @cached_property
    def _carried(self) -> dict[str, str]:
        return {new: old for new, old in self.flow.carried if self._wants(new)}

    @cached_property
    def _derived(self) -> dict[str, ArrowExpression]:
        return {name: each for name, each in self.flow.derived if self._wants(name)}

    def _wants(self, name: str) -> bool:
        return self.new is None or name in self.new

    @cached_property
    def _used(self) -> frozenset[str]:
        """Columns that expressions read."""
        return frozenset[str]().union(*(each.columns for each in self._derived.values()))

    @cached_property
    def _keys(self) -> tuple[str, ...]:
        return tuple(name for name in VISIBLE if hidden(name) in self._used)

    @cached_property
    def options(self) -> TableOptions:
        """The columns that `make_rows` needs."""
        fields = self._choose_fields(self._used)
        return list_columns(self.flow.before, fields, keys=self._keys, hashed=self.hashed)

    def read(self, split: KeyedSplit) -> Iterator[Rows]:
        """The rows of a split."""
        for batch in replace(split, options=self.options).batches():
            if len(batch):
                yield self.make_rows(batch)

    def make_rows(self, batch: pa.RecordBatch) -> Rows:
        """The rows of a batch, which has the columns of `options`."""
        shape, gathered = self.flow.before, self.flow.gathered
        rows = batch if gathered is None else gathered.gather(batch, shape.column)
        payload = rows.column(self.flow.start.column)
        present = payload.is_valid()
        made = dict[str, pa.Array]()
        if self._derived:
            inputs = _find_inputs(rows, payload, self._used, self._keys)
            made |= {name: each.evaluate(inputs, present) for name, each in self._derived.items()}
        new = payload if self.flow.whole else self._make_payload(payload, made)
        return Rows(batch, self._make_columns(rows, new))

    def _choose_fields(self, used: frozenset[str]) -> tuple[str, ...]:
        """The fields that are read; none where the payload is read as a whole."""
        if self.flow.whole or self.flow.gathered is not None:
            return ()
        kind = column_type(derive_layout(self.flow.before.payload, self.layouts))
        read = [each.name for each in kind if field_column(each.name) in used]
        return choose_fields(kind, {*self._carried.values(), *read, *self.old})

    def _make_columns(self, stored: pa.RecordBatch, payload: pa.Array) -> pa.RecordBatch:
        before, after = self.flow.start, self.flow.after
        columns = {name: stored.column(name) for name in ("key_group", "key_bytes")}
        if after.kind == StateKind.LIST:
            zeros = pa.array(np.zeros(len(stored), np.int32))
            columns["list_index"] = stored.column("list_index") if before.kind == StateKind.LIST else zeros
        if after.ttl:
            time = self.flow.time
            columns[TTL_COLUMN] = stored.column(TTL_COLUMN) if time is None else pa.repeat(time, len(stored))
        return pa.RecordBatch.from_pydict(columns | {after.column: payload})

    def _make_payload(self, payload: pa.StructArray, made: Mapping[str, pa.Array]) -> pa.StructArray:
        constants = self.flow.constants
        arrays = []
        for each in self.type:
            if each.name in self._carried:
                arrays.append(payload.field(self._carried[each.name]))
                continue
            if each.name in made:
                array = made[each.name]
            else:
                assert constants is not None
                array = pa.repeat(constants[each.name], len(payload))
            arrays.append(conform(from_spark(array, each.type), each.type, each.name))
        mask = payload.is_null() if payload.null_count else None
        return pa.StructArray.from_arrays(arrays, fields=list(self.type), mask=mask)


def split_rows(operator: Operator, name: str, opaque_values: OpaqueValues = OpaqueValues.ALL) -> tuple[KeyedSplit, ...]:
    """The splits of a keyed state, without columns yet."""
    state = operator.state(name)
    assert isinstance(state, KeyedState)
    layout = derive_row_layout(operator, name, opaque_values)
    return tuple(replace(split, layout=layout) for split in split_state(state, choose_whole(state, TableOptions())))


def derive_row_layout(operator: Operator, name: str, opaque_values: OpaqueValues = OpaqueValues.ALL) -> KeyedLayout:
    """The layout by which the rows of a keyed state are read."""
    state = operator.state(name)
    assert isinstance(state, KeyedState)
    return state.derive_layout(replace(operator.snapshot.layout_context, opaque_values=opaque_values))


def choose_fields(kind: pa.DataType, wanted: Collection[str]) -> tuple[str, ...]:
    """`wanted` fields of a payload, in its order; without any, one that says where the payload is null."""
    chosen = tuple(each.name for each in kind if each.name in wanted)
    if chosen:
        return chosen
    return (min(kind, key=lambda each: (pa.types.is_nested(each.type), pa.types.is_string(each.type))).name,)


def list_columns(
    shape: StateShape, fields: tuple[str, ...], *, keys: tuple[str, ...] = (), hashed: bool = False
) -> TableOptions:
    """Columns that a task reads: keys as bytes, payload, and the other columns of a row.

    Args:
        shape: of the rows.
        fields: of the payload; without any it is read as a whole.
        keys: other columns.
        hashed: with the key groups that the hashes of the keys give.
    """
    columns = ["key_group", "key_bytes", *keys]
    columns += ["list_index"] if shape.kind == StateKind.LIST and "list_index" not in keys else []
    columns += [TTL_COLUMN] if shape.ttl and TTL_COLUMN not in keys else []
    columns += ["hashed_key_group"] if hashed else []
    columns += [f"{shape.column}.{name}" for name in fields] or [shape.column]
    return TableOptions(columns=tuple(columns), key_bytes=True, key_hash=hashed)


def _find_inputs(
    batch: pa.RecordBatch, payload: pa.StructArray, used: Collection[str], keys: tuple[str, ...]
) -> dict[str, pa.Array]:
    """Columns that expressions read, in the types of Spark."""
    fields = zip(payload.type, payload.flatten(), strict=True)
    columns = {name: array for each, array in fields if (name := field_column(each.name)) in used}
    columns |= {hidden(name): batch.column(name) for name in keys}
    inputs = to_spark(pa.RecordBatch.from_pydict(columns))
    return dict(zip(inputs.schema.names, inputs.columns, strict=True))


def run_on_rows(
    spark: SparkSession,
    rows: FieldwiseRows,
    splits: Sequence[KeyedSplit],
    task: RowsTask[Result],
    what: str,
) -> list[Result]:
    """Run a task on the rows of every split.

    Args:
        spark: the session.
        rows: the flow.
        splits: of the state that it reads.
        task: the task; it goes to the workers.
        what: for errors.

    Raises:
        StateError: a task failed.
    """
    return run_tasks(spark, [_OnSplit(rows, each, task) for each in splits], what)


@dataclass(frozen=True)
class _OnSplit(Generic[Result]):
    """A task on the rows of one split."""

    rows: FieldwiseRows
    split: KeyedSplit
    task: RowsTask[Result]

    def run(self) -> Result:
        """Do the work."""
        return self.task.run(self.rows.read(self.split))
