"""Arrow types that Spark has no match for: what stands for them, and back."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import DayTimeIntervalType, LongType, TimestampNTZType, TimestampType

from state_pipelines.codecs.logical_values import conform
from state_pipelines.spark.types import from_spark, spark_schema, to_spark


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (pa.timestamp("ms", "UTC"), TimestampType),
        (pa.timestamp("ms"), TimestampNTZType),
        (pa.timestamp("us"), TimestampNTZType),
        (pa.timestamp("ns", "UTC"), LongType),
        (pa.time64("ns"), LongType),
        (pa.duration("ms"), DayTimeIntervalType),
    ],
)
def test_types_of_sql_have_types_in_spark_and_come_back(of: pa.DataType, expected: type) -> None:
    assert isinstance(spark_schema(pa.schema([("value", of)]))["value"].dataType, expected)
    nested = pa.list_(pa.struct([("x", of)]))
    plain = pa.array([7, None], pa.int64()).cast(of)
    array = pa.array([[{"x": each} for each in plain]], nested)
    sent = to_spark(pa.RecordBatch.from_arrays([array], names=["value"])).column(0)
    assert conform(from_spark(sent, nested), nested).equals(array)
