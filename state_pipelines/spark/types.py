"""Arrow types without an exact match in Spark, and their surrogates in DataFrames.

| Arrow | Spark | why |
|---|---|---|
| `null` (void namespaces) | STRING, always null | Parquet and most sinks refuse void columns |
| empty struct (global windows) | STRING, empty | Parquet refuses empty structs |
| `time64[ns]` | BIGINT, nanoseconds of the day | Spark's TIME ends at microseconds |
| `timestamp[ms]` | TIMESTAMP | Spark knows microseconds only; values beyond its range are an error |
| `timestamp[ms]` without zone | TIMESTAMP_NTZ | likewise |
| `timestamp[ns]` | BIGINT, nanoseconds since 1970 | Spark's timestamps end at microseconds |
| `duration[ms]` | INTERVAL DAY TO SECOND | Spark knows microseconds only |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema

from state_pipelines.codecs.logical_values import dense_offsets, flatten_entries
from state_pipelines.errors import ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.types import StructType


def spark_schema(schema: pa.Schema) -> StructType:
    """Schema of the DataFrame that holds batches of `schema`."""
    return from_arrow_schema(spark_arrow_schema(schema), prefer_timestamp_ntz=True)


def spark_arrow_schema(schema: pa.Schema) -> pa.Schema:
    """`schema` in types that Spark takes."""
    return pa.schema([pa.field(each.name, _spark_type(each.type), each.nullable) for each in schema])


def to_spark(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch in the types of `spark_arrow_schema`.

    Raises:
        ValueRangeError: a timestamp lies outside the range of Spark's microseconds.
    """
    schema = spark_arrow_schema(batch.schema)
    return pa.RecordBatch.from_arrays([_to_spark(column) for column in batch.columns], schema=schema)


def from_spark(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Replace the surrogates in an array from Spark, so that `conform` can bring it into `target`."""
    if pa.types.is_null(target):
        return pa.nulls(len(array))
    if pa.types.is_struct(target) and target.num_fields == 0:
        return _empty_structs(array) if pa.types.is_string(array.type) else array
    if pa.types.is_struct(target) and pa.types.is_struct(array.type):
        return _map_struct(array, lambda child, each: from_spark(child, target.field(each).type), by_name=target)
    if pa.types.is_list(target) and pa.types.is_list(array.type):
        return _relist(array, from_spark(array.flatten(), target.value_type))
    if pa.types.is_timestamp(target) and pa.types.is_integer(array.type):
        return array.cast(pa.int64()).cast(target)
    if pa.types.is_map(target) and pa.types.is_map(array.type):
        entries = flatten_entries(array)
        keys = from_spark(entries.field(0), target.key_type)
        return _remap(array, keys, from_spark(entries.field(1), target.item_type))
    return array


def _spark_type(of: pa.DataType) -> pa.DataType:
    if pa.types.is_null(of) or (pa.types.is_struct(of) and of.num_fields == 0):
        return pa.string()
    if pa.types.is_time64(of):
        return pa.int64()
    if pa.types.is_timestamp(of):
        return pa.int64() if of.unit == "ns" else pa.timestamp("us", of.tz)
    if pa.types.is_duration(of):
        return pa.duration("us")
    if pa.types.is_struct(of):
        return pa.struct([pa.field(each.name, _spark_type(each.type), each.nullable) for each in of])
    if pa.types.is_map(of):
        return pa.map_(_spark_type(of.key_type), _spark_type(of.item_type))
    if pa.types.is_list(of):
        return pa.list_(_spark_type(of.value_type))
    return of


def _to_spark(array: pa.Array) -> pa.Array:
    of, target = array.type, _spark_type(array.type)
    if of == target:
        return array
    if pa.types.is_null(of):
        return pa.nulls(len(array), pa.string())
    if pa.types.is_struct(of) and of.num_fields == 0:
        return pc.if_else(array.is_valid(), "", None)
    if pa.types.is_timestamp(of) and of.unit != "ns":
        try:
            return array.cast(target, safe=True)
        except pa.ArrowInvalid:
            raise ValueRangeError(
                "a date lies outside the years that Spark's TIMESTAMP can hold",
                hint="Read the state with the library (`to_arrow`), which keeps milliseconds",
            ) from None
    if pa.types.is_struct(of):
        return _map_struct(array, lambda child, _: _to_spark(child))
    if pa.types.is_map(of):
        entries = flatten_entries(array)
        return _remap(array, _to_spark(entries.field(0)), _to_spark(entries.field(1)))
    if pa.types.is_list(of):
        return _relist(array, _to_spark(array.flatten()))
    return array.cast(target)


def _map_struct(
    array: pa.StructArray, change: Callable[[pa.Array, str], pa.Array], *, by_name: pa.StructType | None = None
) -> pa.Array:
    names = [each.name for each in array.type]
    known = {each.name for each in by_name} if by_name is not None else set(names)
    children = [
        change(array.field(index), name) if name in known else array.field(index) for index, name in enumerate(names)
    ]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, names=names, mask=mask)


def _relist(array: pa.ListArray, values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(dense_offsets(array), values, mask=array.is_null() if array.null_count else None)


def _remap(array: pa.MapArray, keys: pa.Array, items: pa.Array) -> pa.Array:
    return pa.MapArray.from_arrays(
        dense_offsets(array), keys, items, mask=array.is_null() if array.null_count else None
    )


def _empty_structs(array: pa.Array) -> pa.Array:
    valid = array.is_valid().buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(pa.struct([]), len(array), [valid])
