"""A session that does what the pipelines do, so that the list of its classes holds theirs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.window import Window

from state_pipelines.spark.session import create_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_SCHEMA = (
    "id bigint, number int, size double, flag boolean, name string, bytes binary, time timestamp, "
    "value struct<a: int, b: string, c: double>, list array<bigint>, map map<string, int>"
)


class Rows(DataSource):
    """A data source with values of many types."""

    @classmethod
    def name(cls) -> str:
        """Short name."""
        return "rows"

    def schema(self) -> str:
        """Schema of the rows."""
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reader of the rows."""
        return RowsReader()


class RowsReader(DataSourceReader):
    """Reads two parts."""

    def partitions(self) -> list[InputPartition]:
        """One per part."""
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part."""
        numbers = pa.array(range(1000), pa.int64())
        names = numbers.cast(pa.string())
        small, sizes = numbers.cast(pa.int32()), numbers.cast(pa.float64())
        columns = {
            "id": numbers,
            "number": small,
            "size": sizes,
            "flag": numbers.cast(pa.bool_()),
            "name": names,
            "bytes": names.cast(pa.binary()),
            "time": numbers.cast(pa.timestamp("us", "UTC")),
            "value": pa.StructArray.from_arrays([small, names, sizes], ["a", "b", "c"]),
            "list": pa.array([[each] for each in range(1000)], pa.list_(pa.int64())),
            "map": pa.array([[("a", 1)]] * 1000, pa.map_(pa.string(), pa.int32())),
        }
        yield pa.RecordBatch.from_pydict(columns)


def exercise(spark: SparkSession) -> None:
    """Read, project, aggregate, sort, join, and pass through Python."""
    spark.dataSource.register(Rows)
    rows = spark.read.format("rows").load()
    values = rows.select(
        "*", F.expr("cast(number as string) as text"), F.expr("named_struct('a', value.a + 1, 'b', value.b) as struct")
    )
    sums = [F.length("name"), F.col("struct.a").cast("double"), F.col("flag").cast("int")]
    values.agg(*map(F.sum, sums)).collect()
    passed = values.mapInArrow(_pass, values.schema)
    hashed = passed.groupBy((F.col("id") % 7).alias("bucket")).agg(
        F.count("*"), F.sum(F.xxhash64("bytes", "list").cast("decimal(38,0)")), F.max("time"), F.min("text")
    )
    hashed.orderBy("bucket").collect()
    passed.join(rows.select("id", "list"), "id").groupBy("id").agg(F.collect_list("text")).limit(3).collect()
    first = F.row_number().over(Window.partitionBy("number").orderBy("id"))
    rows.withColumn("first", first).unionByName(rows.withColumn("first", F.lit(1))).where("first = 1").count()
    rows.selectExpr("id", "explode(map)", "transform(list, x -> x + 1)").limit(3).collect()
    rows.write.format("noop").mode("overwrite").save()
    spark.range(10, numPartitions=2).mapInArrow(_pass, "id long").collect()


def _pass(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def main() -> None:
    """Record in the directory of the second argument, with the `JAVA_HOME` of the first."""
    home, directory = sys.argv[1], Path(sys.argv[2])
    # Classes that come out of an archive would be missing in the list.
    options = f"-Xshare:off -XX:DumpLoadedClassList={directory / 'classes'}"
    session = create_session(
        "state-pipelines prepare", memory="1g", conf={"spark.driver.extraJavaOptions": options}, java_home=Path(home)
    )
    exercise(session)
    jvm = session._jvm
    assert jvm is not None
    (directory / "path").write_text(jvm.java.lang.System.getProperty("java.class.path"))
    session.stop()


if __name__ == "__main__":
    main()
