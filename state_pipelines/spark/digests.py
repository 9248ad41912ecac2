"""Order-independent digests of frames, per key group: what the two sides of a proof are compared by."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from state_pipelines.spark.flows import hidden

Metric = Callable[[DataFrame], Column]
"""Makes the aggregate of a frame that is compared."""

BUCKETS = 128
"""Rows are compared in so many heaps where keys have changed their key group."""


def profile(
    frame: DataFrame, metrics: Mapping[str, Metric], extra: Mapping[str, Column], *, by_group: bool
) -> list[Row]:
    """One row per key group (`bucket`), or per heap of equal keys."""
    bucket = F.col(hidden("key_group"))
    if not by_group:
        key = hashable(F.col(hidden("state_key")), frame.schema[hidden("state_key")].dataType)
        bucket = F.pmod(F.xxhash64(key), F.lit(BUCKETS)).cast("int")
    columns = [metric(frame).alias(name) for name, metric in metrics.items()]
    columns += [column.alias(name) for name, column in extra.items()]
    return frame.groupBy(bucket.alias("bucket")).agg(*columns).collect()


def count_rows() -> Metric:
    """The number of rows."""
    return lambda _: F.count("*")


def digest_keys(identity: tuple[str, ...]) -> Metric:
    """Of the columns that tell rows apart."""
    return lambda frame: _digest(*_columns(frame, identity))


def digest_payload(
    identity: tuple[str, ...], column: str, path: tuple[str, ...] | None, lost: tuple[str, ...] = ()
) -> Metric:
    """Of a column together with the identity of its row.

    Args:
        identity: columns that tell rows apart.
        column: the column.
        path: to the field of it; empty for the whole, None for whether it is null.
        lost: dotted paths below it that do not count.
    """

    def make(frame: DataFrame) -> Column:
        value = F.col(column)
        kind = frame.schema[column].dataType
        if path is None:
            return _digest(*_columns(frame, identity), value.isNull())
        for name in path:
            assert isinstance(kind, StructType)
            value, kind = value.getField(name), kind[name].dataType
        return _digest(*_columns(frame, identity), hashable(value, kind, lost))

    return make


def _columns(frame: DataFrame, names: tuple[str, ...]) -> list[Column]:
    return [hashable(F.col(name), frame.schema[name].dataType) for name in names]


def _digest(*columns: Column) -> Column:
    """A sum of hashes, which no order changes; null counts too."""
    parts = [part for column in columns for part in (column.isNull(), column)]
    return F.sum(F.xxhash64(*parts).cast("decimal(20,0)"))


def hashable(column: Column, kind: DataType, lost: tuple[str, ...] = ()) -> Column:
    """`column` with its maps as lists of entries, since Spark refuses to hash maps, and without what is lost."""
    match kind:
        case MapType():
            return F.transform(
                F.map_entries(column),
                lambda entry: F.struct(hashable(entry["key"], kind.keyType), hashable(entry["value"], kind.valueType)),
            )
        case ArrayType() if _has_map(kind):
            return F.transform(column, lambda item: hashable(item, kind.elementType))
        case StructType() if lost or _has_map(kind):
            fields = [
                hashable(column.getField(each.name), each.dataType, _below(lost, each.name))
                for each in kind
                if each.name not in lost
            ]
            return F.when(column.isNotNull(), F.struct(*fields) if fields else F.lit("").cast(StringType()))
        case _:
            return column


def _below(lost: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(each.partition(".")[2] for each in lost if each.startswith(f"{name}."))


def _has_map(kind: DataType) -> bool:
    match kind:
        case MapType():
            return True
        case ArrayType(elementType=element):
            return _has_map(element)
        case StructType():
            return any(_has_map(each.dataType) for each in kind)
        case _:
            return False
