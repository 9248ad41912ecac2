"""Running plain work items as Spark tasks, one task each."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa

from state_pipelines.spark.failures import translate_failures
from state_pipelines.spark.task_requests import log_requests
from state_pipelines.spark.types import spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession


Result = TypeVar("Result", covariant=True)


class Task(Protocol[Result]):
    """A work item that can be sent to a worker."""

    def run(self) -> Result:
        """Do the work."""


def uses_other_machines(spark: SparkSession) -> bool:
    """Return whether the tasks of a session may run on machines that do not share the files of this one."""
    return not (spark.conf.get("spark.master", None) or "").startswith("local")


def count_cores(spark: SparkSession) -> int:
    """The number of tasks that a session runs at a time."""
    return spark.sparkContext.defaultParallelism


def run_tasks(spark: SparkSession, tasks: Sequence[Task[Result]], what: str) -> list[Result]:
    """Run every item in a task of its own; results in the order of the items.

    Raises:
        StateError: an item failed.
    """
    if not tasks:
        return []
    items = tuple(tasks)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                with log_requests():
                    # The processes of one Spark application trust each other, as Spark itself does.
                    result = pickle.dumps(items[index].run())
                yield pa.RecordBatch.from_pydict({"index": [index], "result": [result]})

    with translate_failures(what):
        rows = spark.range(0, len(items), 1, len(items)).mapInArrow(work, "index long, result binary").collect()
    results = {row["index"]: pickle.loads(row["result"]) for row in rows}
    return [results[index] for index in range(len(items))]


class Split(Protocol):
    """Some rows of a state."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """The batches, in the types of Spark."""


def read_splits(spark: SparkSession, found: Iterable[Split], columns: pa.Schema) -> DataFrame:
    """The rows of splits as one frame; one task per split, rows in file order.

    Args:
        spark: the session.
        found: the splits.
        columns: schema of the state's batches.
    """
    splits, schema = tuple(found), spark_schema(columns)
    if not splits:
        return spark.createDataFrame([], schema)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                with log_requests():
                    yield from splits[index].read()

    return spark.range(0, len(splits), 1, len(splits)).mapInArrow(work, schema)
