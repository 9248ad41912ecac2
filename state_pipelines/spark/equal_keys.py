"""Keys of rows as Flink compares them.

Spark takes -0.0 and 0.0 for equal where it groups rows, at any depth, and gives one of them for both. In Java they are
two keys (`Double.equals`), and so are their bytes. Where keys hold such numbers, rows are grouped by the bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import ArrayType, BinaryType, DataType, DoubleType, FloatType, StructType

from state_pipelines.codecs.columns import column_type, plan_columns
from state_pipelines.codecs.logical_values import conform
from state_pipelines.codecs.serializer_layouts import OpaqueValues, derive_layout
from state_pipelines.spark.types import KEYS, from_spark, hidden

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.serializers.tree import Serializer

BYTES = hidden("bytes_of_keys")


def group_rows(
    frame: DataFrame, keys: Sequence[str], shape: StateShape, layouts: LayoutContext, aggregates: Sequence[Column] = ()
) -> DataFrame:
    """One row per key, with the columns of the keys and those of aggregates.

    Args:
        frame: the rows.
        keys: names of the columns that are equal for the rows of one key.
        shape: of the state.
        layouts: of its serializers.
        aggregates: over the rows of a key.
    """
    frame, compared = separate_keys(frame, keys, shape, layouts)
    # In the result of a grouping by them, such columns would hold 0.0 for -0.0.
    found = [F.first(name).alias(name) for name in keys if name not in compared]
    found += aggregates
    grouped = frame.groupBy(*compared).agg(*found) if found else frame.select(*compared).distinct()
    return grouped.drop(BYTES)


def separate_keys(
    frame: DataFrame, keys: Sequence[str], shape: StateShape, layouts: LayoutContext
) -> tuple[DataFrame, list[str]]:
    """The frame, with `BYTES` where `keys` hold floating-point numbers, and the columns that Spark compares."""
    inexact = [name for name in keys if _holds_floats(frame.schema[name].dataType)]
    if not inexact:
        return frame, list(keys)
    frame = frame.withColumn(BYTES, serialize_keys(inexact, shape, layouts))
    return frame, [BYTES, *(name for name in keys if name not in inexact)]


def compare_key(column: Column, kind: DataType, serializer: Serializer, layouts: LayoutContext) -> Column:
    """Return a key as Spark compares it where keys of two frames are joined: the bytes of one with such numbers."""
    return _serialize(column, serializer, layouts) if _holds_floats(kind) else column


def serialize_keys(names: Sequence[str], shape: StateShape, layouts: LayoutContext) -> Column:
    """The bytes of key, namespace and user key one after the other, as canonical savepoints and RocksDB hold them.

    Args:
        names: columns among `KEYS`, as they are called inside.
        shape: of the state.
        layouts: of its serializers.
    """
    serializers = dict(zip(map(hidden, KEYS), (shape.key, shape.namespace, shape.map_key), strict=True))
    columns = []
    for name in names:
        serializer = serializers[name]
        assert serializer is not None
        columns.append(F.coalesce(_serialize(F.col(name), serializer, layouts), F.lit(b"")))
    return F.concat(*columns)


def _serialize(column: Column, serializer: Serializer, layouts: LayoutContext) -> Column:
    layout = derive_layout(serializer, replace(layouts, opaque_values=OpaqueValues.NONE))

    def work(array: pa.Array) -> pa.Array:
        kind = column_type(layout)
        values = conform(from_spark(array, kind), kind)
        encoded = plan_columns(layout).encode(values.drop_null())
        offsets = np.concatenate([np.zeros(1, np.int64), encoded.stops]).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(encoded.data))]
        found = pa.Array.from_buffers(pa.binary(), len(encoded.stops), buffers)
        valid = np.asarray(values.is_valid())
        return found.take(pa.array(np.cumsum(valid) - 1, mask=~valid))

    # Spark derives the kind of function from its type hints, which the stubs do not know.
    make: Any = arrow_udf
    found: Column = make(work, BinaryType())(column)
    return found


def _holds_floats(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_holds_floats(each.dataType) for each in kind)
        case ArrayType(elementType=element):
            return _holds_floats(element)
        case _:
            return isinstance(kind, DoubleType | FloatType)
