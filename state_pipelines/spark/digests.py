"""Order-independent digests of frames, per key group: what the two sides of a proof are compared by."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from state_pipelines.spark.flows import hidden

Metric = Callable[[DataFrame], Column]
"""Makes the aggregate of a frame that is compared."""

IDENTITY = hidden("identity")
"""The hash of what tells a row from all others, see `identify`."""

BUCKETS = 128
"""Rows are compared in so many heaps where keys have changed their key group."""


def profile(
    frame: DataFrame, metrics: Mapping[str, Metric], extra: Mapping[str, Column], *, by_group: bool
) -> list[Row]:
    """One row per key group (`bucket`), or per heap of equal keys, of a frame that `identify` gave."""
    bucket = F.col(hidden("key_group"))
    if not by_group:
        key = hashable(F.col(hidden("state_key")), frame.schema[hidden("state_key")].dataType)
        bucket = F.pmod(F.xxhash64(key), F.lit(BUCKETS)).cast("int")
    columns = [metric(frame).alias(name) for name, metric in metrics.items()]
    columns += [column.alias(name) for name, column in extra.items()]
    return frame.groupBy(bucket.alias("bucket")).agg(*columns).collect()


def identify(frame: DataFrame, identity: tuple[str, ...]) -> DataFrame:
    """The frame with a hash of the columns that tell rows apart, which every digest starts with: it is made once."""
    parts = [part for name in identity for part in _told(F.col(name), frame.schema[name].dataType)]
    return frame.withColumn(IDENTITY, F.xxhash64(*parts))


def count_rows() -> Metric:
    """The number of rows."""
    return lambda _: F.count("*")


def digest_keys() -> Metric:
    """Of what tells rows apart."""
    return lambda _: _sum(F.col(IDENTITY))


def digest_payload(column: str, path: tuple[str, ...] | None, lost: tuple[str, ...] = ()) -> Metric:
    """Of a column together with the identity of its row.

    Args:
        column: the column.
        path: to the field of it; empty for the whole, None for whether it is null.
        lost: dotted paths below it that do not count.
    """

    def make(frame: DataFrame) -> Column:
        value = F.col(column)
        kind = frame.schema[column].dataType
        if path is None:
            return _sum(F.xxhash64(IDENTITY, value.isNull()))
        for name in path:
            assert isinstance(kind, StructType)
            value, kind = value.getField(name), kind[name].dataType
        return _sum(F.xxhash64(IDENTITY, value.isNull(), hashable(value, kind, lost)))

    return make


def _sum(digest: Column) -> Column:
    """Sums of both halves of the hashes of rows, which no order changes and which never overflow."""
    low, high = digest.bitwiseAND(F.lit(0xFFFFFFFF)), F.shiftrightunsigned(digest, 32)
    return F.struct(F.sum(low).alias("low"), F.sum(high).alias("high"))


def hashable(column: Column, kind: DataType, lost: tuple[str, ...] = ()) -> Column:
    """`column` so that Spark's hash tells all its values apart but for whether it is null; without what is lost.

    That hash skips nulls and goes through structs and lists as if they were flat, so that `(null, 1)` is like
    `(1, null)`, and refuses maps.
    """
    match kind:
        case MapType():
            return F.struct(
                F.size(column),
                F.transform(
                    F.map_entries(column),
                    lambda entry: F.struct(*_told(entry["key"], kind.keyType), *_told(entry["value"], kind.valueType)),
                ),
            )
        case ArrayType():
            return F.struct(F.size(column), F.transform(column, lambda item: F.struct(*_told(item, kind.elementType))))
        case StructType():
            parts = [
                part
                for each in kind
                if each.name not in lost
                for part in _told(column.getField(each.name), each.dataType, _below(lost, each.name))
            ]
            return F.struct(*(part.alias(f"part_{index}") for index, part in enumerate(parts))) if parts else F.lit(0)
        case _:
            return column


def _told(column: Column, kind: DataType, lost: tuple[str, ...] = ()) -> tuple[Column, Column]:
    return column.isNull(), hashable(column, kind, lost)


def _below(lost: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(each.partition(".")[2] for each in lost if each.startswith(f"{name}."))
