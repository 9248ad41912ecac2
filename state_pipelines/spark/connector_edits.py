"""Columns of connectors in frames: the splits of each element as rows, and elements with other values in them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from state_pipelines.codecs.columns import Columns, plan_columns
from state_pipelines.codecs.logical_values import conform
from state_pipelines.codecs.serializer_layouts import LayoutContext, OpaqueValues, derive_layout
from state_pipelines.connectors.registry import Codec, find_codec
from state_pipelines.snapshot.operator_state import SPLIT_COLUMN
from state_pipelines.spark.types import (
    PAYLOAD,
    cast_by_name,
    fold_constants,
    hidden,
    require_deterministic,
    spark_schema,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

    from state_pipelines.operations.migration.flows import SetSplit
    from state_pipelines.operations.migration.shapes import StateShape

_SPLITS, _NEW = hidden("split"), hidden("new_value")
_POSITION = hidden("position")
"""Position of a split in its element; null of an element without splits."""


@dataclass(frozen=True)
class _Elements:
    """Elements of a list state of a connector, from and to their payloads; can be sent to other processes."""

    stage: SetSplit
    shape: StateShape
    layouts: LayoutContext

    @cached_property
    def codec(self) -> Codec:
        return find_codec(self.stage.connector, self.stage.kind)

    @cached_property
    def columns(self) -> Columns:
        """Payloads as rows hold them."""
        return plan_columns(derive_layout(self.shape.payload, self.layouts))

    @cached_property
    def split_type(self) -> pa.DataType:
        return pa.struct([each.with_nullable(True) for each in self.codec.columns])

    def read(self, payloads: pa.Array) -> list[Any]:
        encoded = self.columns.encode(conform(payloads, self.columns.type))
        bounds = np.append(np.int64(0), encoded.stops).tolist()
        elements = (encoded.data[start:end].tobytes() for start, end in pairwise(bounds))
        return [self.codec.read(each, self.shape.payload, self._context) for each in elements]

    def write(self, values: Iterable[Any]) -> pa.Array:
        elements = [self.codec.write(each, self.shape.payload, self._context) for each in values]
        stops = np.cumsum([len(each) for each in elements], dtype=np.int64)
        starts = np.append(np.int64(0), stops)[:-1]
        return self.columns.decode(np.frombuffer(b"".join(elements), np.uint8), starts, stops).array

    @property
    def _context(self) -> LayoutContext:
        return replace(self.layouts, opaque_values=OpaqueValues.NONE)


def set_split(
    frame: DataFrame, shape: StateShape, stage: SetSplit, layouts: LayoutContext, *, folding: bool
) -> DataFrame:
    """The frame with elements in which a column of every split has another value.

    Args:
        frame: the rows before.
        shape: their shape, which stays.
        stage: the column and its SQL.
        layouts: of rows.
        folding: evaluate constant SQL.

    Raises:
        MigrationError: Spark refuses the expression.
    """
    elements = _Elements(stage, shape, layouts)
    split_type = spark_schema(pa.schema([(_SPLITS, elements.split_type)]))[0].dataType
    schema = StructType([*frame.schema, StructField(_POSITION, IntegerType()), StructField(_SPLITS, split_type)])

    def spread(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _spread(batch, elements)

    spread_frame = frame.mapInArrow(spread, schema)
    shown = [F.col(PAYLOAD).alias("value")]
    shown += [F.col(hidden(name)).alias(name) for name in ("list_index", "subtask") if hidden(name) in frame.columns]
    exposed = spread_frame.select("*", *shown, F.col(_SPLITS).alias(SPLIT_COLUMN))
    if folding:
        fold_constants(exposed.select(F.expr(stage.sql)))
    made = exposed.select(F.expr(stage.sql).alias(_NEW))
    require_deterministic(made, allowed=stage.nondeterministic)
    target = split_type[stage.column].dataType  # type: ignore[index]
    value = cast_by_name(F.expr(stage.sql), made.schema[_NEW].dataType, target, f"{SPLIT_COLUMN}.{stage.column}")
    changed = exposed.select(*spread_frame.columns, value.alias(_NEW))

    def gather(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: pa.Table | None = None
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            rows = rows if held is None else pa.concat_tables([held, rows])
            # The splits of the last element may go on in the next batch.
            first = _starts(rows)
            cut = int(first[-1]) if len(first) else 0
            held = rows.slice(cut)
            if cut:
                yield _gather(rows.slice(0, cut), elements)
        if held is not None and len(held):
            yield _gather(held, elements)

    return changed.mapInArrow(gather, frame.schema)


def _spread(batch: pa.RecordBatch, elements: _Elements) -> pa.RecordBatch:
    """A row per split, and one for an element without splits."""
    found = [[*elements.codec.rows(value)] for value in elements.read(batch.column(PAYLOAD))]
    counts = np.array([max(1, len(each)) for each in found], np.int64)
    repeated = batch.take(pa.array(np.repeat(np.arange(len(batch)), counts)))
    positions = [position for each in found for position in (range(len(each)) if each else (None,))]
    splits = [row for each in found for row in (each or (None,))]
    return pa.RecordBatch.from_arrays(
        [*repeated.columns, pa.array(positions, pa.int32()), pa.array(splits, elements.split_type)],
        names=[*batch.schema.names, _POSITION, _SPLITS],
    )


def _starts(rows: pa.Table) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Positions of the first rows of elements."""
    return np.flatnonzero(rows.column(_POSITION).fill_null(0).to_numpy() == 0)


def _gather(rows: pa.Table, elements: _Elements) -> pa.RecordBatch:
    """The elements of whole groups of rows, with the new values."""
    starts = _starts(rows)
    kept = rows.take(pa.array(starts)).drop_columns([_POSITION, _SPLITS, _NEW])
    splits, news = rows.column(_SPLITS).to_pylist(), rows.column(_NEW).to_pylist()
    edit, column = elements.codec.edit, elements.stage.column
    assert edit is not None
    values = []
    stops = [*starts[1:].tolist(), len(rows)]
    for value, start, stop in zip(elements.read(kept.column(PAYLOAD).combine_chunks()), starts, stops, strict=True):
        edited = [
            {**split, column: new}
            for split, new in zip(splits[start:stop], news[start:stop], strict=True)
            if split is not None
        ]
        values.append(edit.apply(value, edited) if edited else value)
    payload = conform(elements.write(values), kept.schema.field(PAYLOAD).type, PAYLOAD)
    columns = [payload if name == PAYLOAD else kept.column(name).combine_chunks() for name in kept.schema.names]
    return pa.RecordBatch.from_arrays(columns, names=kept.schema.names)
