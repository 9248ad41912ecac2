"""Counts and sums by key in two batches, declared and per record, against PySpark's `transformWithStateInPandas`.

    python -m benchmarks.aggregates --events 10000000 --keys 1000000 [--without-peer]

Both run over the same Parquet files, half of the events each, in one session: ours writes a savepoint after each
batch and starts the second from the first, once by declared aggregates and once by a function that is called for each
record; the peer keeps its state in Spark's RocksDB state store and takes the files one per micro-batch. CPU is that of
the process, its JVM and its Python workers. Every way runs over a hundredth of the events first, which does not count.
The results are compared.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from benchmarks.processes import Clock
from state_pipelines.datastream import KeyedProcessFunction, Types, ValueStateDescriptor
from state_pipelines.spark.bootstrap_run import count_of, keyed_aggregate, sum_of
from state_pipelines.spark.keyed_step import keyed_process
from state_pipelines.spark.session import create_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from state_pipelines.datastream import RuntimeContext

STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STATES = {"count": count_of(), "sum": sum_of("amount")}
SUMS = ("sum(count)", "sum(total)", "sum(hash(user, count, total))")


class Totals(StatefulProcessor):
    """Count and sum of each key."""

    def init(self, handle: Any) -> None:
        """Declare the state."""
        self.totals = handle.getValueState("totals", "count bigint, total bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        """Add the rows of a batch."""
        count, total = self.totals.get() if self.totals.exists() else (0, 0)
        for frame in rows:
            count, total = count + len(frame), total + int(frame["amount"].sum())
        self.totals.update((count, total))
        yield pd.DataFrame({"user": [key[0]], "count": [count], "total": [total]})

    def close(self) -> None:
        """Nothing to release."""


def make_events(spark: SparkSession, directory: Path, events: int, keys: int) -> list[str]:
    """Write two Parquet files with half of the events each."""
    paths = []
    for number in range(2):
        rows = spark.range(number * events // 2, (number + 1) * events // 2).selectExpr(
            f"concat('user-', pmod(hash(id), {keys})) AS user", "id * 31 % 1000 AS amount"
        )
        paths.append(str(directory / f"events-{number}"))
        rows.coalesce(1).write.parquet(paths[-1])
    return paths


def run_declared(spark: SparkSession, paths: list[str], directory: Path) -> tuple[Any, ...]:
    """Two savepoints; the sums of the second."""
    snapshot = None
    for number, path in enumerate(paths):
        target = str(directory / f"savepoint-{number}")
        result = keyed_aggregate(
            spark.read.parquet(path),
            target,
            "users",
            "user",
            STATES,
            snapshot=snapshot,
            parallelism=None if number else 2,
        )
        snapshot = result.snapshot
    return _sum_up(spark, str(directory / "savepoint-1"))


def _sum_up(spark: SparkSession, path: str) -> tuple[Any, ...]:
    options = {"path": path, "uids": "users", "operatorId": "users", "states": "count,sum"}
    frame = spark.read.format("flink-state").options(**options).load()
    (row,) = frame.selectExpr("state_key AS user", "count", "sum AS total").selectExpr(*SUMS).collect()
    return tuple(row)


class CountAndSum(KeyedProcessFunction):
    """Count and sum of each key, record by record."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Declare the state."""
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        """Add a record."""
        self.count.update((self.count.value() or 0) + 1)
        self.sum.update((self.sum.value() or 0) + value.amount)


def run_records(spark: SparkSession, paths: list[str], directory: Path) -> tuple[Any, ...]:
    """Two savepoints of the function; the sums of the second."""
    snapshot = None
    for number, path in enumerate(paths):
        result = keyed_process(
            spark.read.parquet(path),
            key="user",
            function=CountAndSum(),
            uid="users",
            savepoint=str(directory / f"records-{number}"),
            from_snapshot=snapshot,
            parallelism=2,
        )
        snapshot = result.snapshot
    assert snapshot is not None
    return _sum_up(spark, snapshot.path)


def run_peer(spark: SparkSession, paths: list[str], directory: Path) -> tuple[Any, ...]:
    """Two micro-batches; the sums of the last values."""
    source = directory / "stream"
    source.mkdir()
    for number, path in enumerate(paths):
        (file,) = Path(path).glob("*.parquet")
        (source / f"{number}.parquet").symlink_to(file)
    stream = spark.readStream.schema("user string, amount bigint").option("maxFilesPerTrigger", 1).parquet(str(source))
    output = stream.groupBy("user").transformWithStateInPandas(
        Totals(), "user string, count bigint, total bigint", "Update", "None"
    )
    sink = str(directory / "peer")

    def keep(batch: Any, number: int) -> None:
        batch.write.parquet(f"{sink}/{number}")

    query = output.writeStream.foreachBatch(keep).outputMode("update").trigger(availableNow=True)
    query.option("checkpointLocation", str(directory / "checkpoint")).start().awaitTermination()
    last = spark.read.parquet(*(f"{sink}/{number}" for number in range(len(paths))))
    last = last.groupBy("user").agg(F.max("count").alias("count"), F.max_by("total", "count").alias("total"))
    (row,) = last.selectExpr(*SUMS).collect()
    return tuple(row)


PEER = "`transformWithStateInPandas`"
WAYS = {"declared": run_declared, "per record": run_records, PEER: run_peer}


def main() -> None:
    """Measure the ways and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--without-peer", action="store_true", help="measure ours alone, where the peer takes too long")
    given = parser.parse_args()
    ways = {name: way for name, way in WAYS.items() if name != PEER or not given.without_peer}
    spark = create_session("benchmark", cores=given.cores)
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STORE)
    spark.conf.set("spark.sql.shuffle.partitions", given.cores)
    clock = Clock()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        for name in ("warm-up", "measured"):
            (directory / name).mkdir()
        few = make_events(spark, directory / "warm-up", given.events // 100, given.keys // 100)
        for way in ways.values():
            way(spark, few, directory / "warm-up")
        directory = directory / "measured"
        paths = make_events(spark, directory, given.events, given.keys)
        results = []
        for name, way in ways.items():
            with clock.measure(name):
                results.append(way(spark, paths, directory))
    spark.stop()
    if len(set(results)) > 1:
        sys.exit(f"the results differ: {results}")
    seconds = {name: (cpu.total, wall) for name, (cpu, wall) in clock.seconds.items()}
    sys.stdout.write("| way | CPU s | s | peer's CPU, times | peer's wall time, times |\n|---|---|---|---|---|\n")
    for name, (cpu, wall) in seconds.items():
        times = [f"{of / own:.1f}" for of, own in zip(seconds.get(PEER, ()), (cpu, wall), strict=False)] or ["", ""]
        sys.stdout.write(f"| {name} | {cpu:.1f} | {wall:.1f} | {' | '.join(times)} |\n")


if __name__ == "__main__":
    main()
