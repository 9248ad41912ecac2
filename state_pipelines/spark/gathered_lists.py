"""Lists that become one value each, such as `values[0]`, where Arrow computes the SQL over their elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from state_pipelines.codecs.columns import column_type
from state_pipelines.codecs.logical_values import conform
from state_pipelines.codecs.serializer_layouts import contains_opaque, derive_layout
from state_pipelines.errors import UnsupportedError
from state_pipelines.operations.migration.flows import Apply, Read, Regroup
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.spark.casts import cast_by_name
from state_pipelines.spark.flow_columns import KEYS, hidden, require_deterministic, spark_type
from state_pipelines.spark.translated_columns import make_inputs, translate_column
from state_pipelines.spark.types import from_spark, to_spark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from state_pipelines.codecs.serializer_layouts import LayoutContext
    from state_pipelines.operations.migration.flows import Flow
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.spark.arrow_expressions import ArrowExpression

_VALUES = "values"


@dataclass(frozen=True)
class GatheredList:
    """The value of each list.

    Attributes:
        shape: of the rows afterwards, one per list.
        type: Arrow type of their payload.
        value: the payload, over a column of lists.
    """

    shape: StateShape
    type: pa.DataType
    value: ArrowExpression

    def gather(self, rows: pa.RecordBatch, column: str) -> pa.RecordBatch:
        """Rows of whole lists, one after the other, as one row per list.

        Args:
            rows: the elements with their `list_index`.
            column: the column of the elements.

        Raises:
            MigrationError: the value of a list cannot be computed.
        """
        starts = np.flatnonzero(rows.column("list_index").to_numpy() == 0)
        assert starts[0] == 0, "a batch begins inside of a list"
        elements = to_spark(rows.select([column])).column(0)
        offsets = pa.array(np.append(starts, len(rows)).astype(np.int32))
        lists = {_VALUES: pa.ListArray.from_arrays(offsets, elements)}
        found = self.value.evaluate(lists, pa.repeat(pa.scalar(True), len(starts)))
        firsts = rows if len(starts) == len(rows) else rows.take(pa.array(starts))
        columns = dict(zip(firsts.schema.names, firsts.columns, strict=True))
        del columns[column]
        payload = conform(from_spark(found, self.type), self.type, self.shape.column)
        return pa.RecordBatch.from_pydict(columns | {self.shape.column: payload})


def is_gathering(flow: Flow) -> bool:
    """Whether a stage makes one value of each list that is read.

    Times of the last access stay with Spark: they differ by element.
    """
    match flow:
        case Apply(input=Read(shape=before), stage=Regroup(sql=str(), key_sql=None), shape=after):
            return (before.kind, after.kind, before.ttl) == (StateKind.LIST, StateKind.VALUE, False)
        case _:
            return False


def find_gathered(
    spark: SparkSession, flow: Apply, keys: Mapping[str, DataType], layouts: LayoutContext
) -> GatheredList | None:
    """The value of each list; None when Arrow does not compute it.

    Args:
        spark: the session.
        flow: for which `is_gathering` holds.
        keys: types of the parts of the key, which SQL may name, too.
        layouts: what layouts depend on.

    Raises:
        MigrationError: the SQL gives other values each time, or one of another type than the state.
        PySparkException: Spark refuses it.
    """
    assert isinstance(flow.stage, Regroup)
    assert flow.stage.sql is not None
    if any(contains_opaque(each.payload, layouts) for each in (flow.input.shape, flow.shape)):
        return None
    try:
        element = spark_type(flow.input.shape.payload, layouts)
        target = spark_type(flow.shape.payload, layouts)
    except UnsupportedError:
        return None
    schema = StructType([StructField(_VALUES, ArrayType(element))])
    for name in KEYS[:2]:
        if name in keys:
            schema.add(name, keys[name])
    frame = make_inputs(spark, schema).select(F.expr(flow.stage.sql).alias("value"))
    require_deterministic(frame, allowed=False)
    frame = frame.select(cast_by_name(F.col("value"), frame.schema["value"].dataType, target))
    value = translate_column(frame, hidden("present"))
    if value is None or value.columns != {_VALUES}:
        return None
    return GatheredList(flow.shape, column_type(derive_layout(flow.shape.payload, layouts)), value)
