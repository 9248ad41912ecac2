"""Plain work items run as Spark tasks, one task each, with their requests, tables and errors.

`run_tasks` runs them. `log_requests` writes the requests of a task to storages as a line of its log: Spark's interface
for data sources in Python has no metrics. Its workers' logs are a table, where
`spark.sql.pyspark.worker.logging.enabled` is true: `spark.tvf.python_worker_logs()`.
"""

from __future__ import annotations

import logging
import pickle
import re
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql.pandas.types import to_arrow_schema

from state_pipelines import errors
from state_pipelines.errors import MigrationError, StateError
from state_pipelines.spark.types import spark_schema
from state_pipelines.storage import join, resolve
from state_pipelines.storage.files import create_file, list_directory, remove_directory, remove_file
from state_pipelines.storage.locations import sent_requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

# PySpark logs the SQL that it refuses as a page of JSON; the errors here say the same in a line.
for _name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
    PySparkLogger.getLogger(_name).disabled = True

_HINT_IMPORT = (
    "The workers of Spark do not import what only the driver finds, such as a module beside the script: set PYTHONPATH "
    "before the session starts, call spark.sparkContext.addPyFile, or pyspark.cloudpickle.register_pickle_by_value of "
    "the module"
)

_RAISED = re.compile(r"state_pipelines\.errors\.(\w+): (.*)")


@contextmanager
def translate_failures(what: str, kind: type[StateError] = MigrationError) -> Iterator[None]:
    """Turn exceptions of Spark into a `StateError`.

    An error of this package that a worker raised keeps its class. All others become `kind`: errors of user code in a
    worker, what Spark refuses (a wrong expression, an overflow), and the death of a worker.

    Args:
        what: what failed; the message begins with it.
        kind: class for errors that are not of this package.
    """
    try:
        yield
    except PySparkException as error:
        text = str(error)
        if found := _RAISED.search(text):
            raised = getattr(errors, found[1], StateError)
            raise raised(found[2].strip()) from error
        if error.getCondition() == "USER_RAISED_EXCEPTION":
            message = (error.getMessageParameters() or {}).get("errorMessage") or text
            raise kind(message) from error
        if error.getCondition() == "PYTHON_EXCEPTION":
            traceback = (error.getMessageParameters() or {}).get("traceback") or text
            message = _summarize(traceback)
            hint = _HINT_IMPORT if message.startswith("ModuleNotFoundError") else ""
            raise kind(f"{what}: {message}", hint=hint) from error
        first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
        raise kind(f"{what}: Spark says {first.strip()}") from error
    except Py4JJavaError as error:
        message = error.java_exception.getMessage() or error.java_exception.getClass().getName()
        raise kind(f"{what}: Spark says {str(message).splitlines()[0].strip()}") from error


def _summarize(traceback: str) -> str:
    """Return class and message of the error at the end of a traceback, with file, line and function."""
    _, _, last = traceback.rpartition("Traceback (most recent call last):\n")
    lines = last.splitlines()
    frames = [index for index, line in enumerate(lines) if line.startswith("  ")]
    message = " ".join(line.strip() for line in lines[frames[-1] + 1 if frames else 0 :])
    calls = [lines[index].strip() for index in frames if lines[index].startswith('  File "')]
    return f"{message} ({calls[-1]})" if calls else message


LOGGER = "state_pipelines.requests"
"""Logger of the lines of `log_requests`, at INFO; their context has `stage`, `partition`, `requests` and
`bytes_read`."""


@contextmanager
def log_requests() -> Iterator[None]:
    """Log how many storage requests a block sends; no other task runs in this process meanwhile."""
    log, before = logging.getLogger(LOGGER), sent_requests()
    try:
        yield
    finally:
        sent, task = sent_requests() - before, TaskContext.get()
        if task is not None:
            # The root logger of a Python worker is at WARNING, and no code of the user runs there to change that.
            log.setLevel(logging.INFO)
            counts = {
                "stage": str(task.stageId()),
                "partition": str(task.partitionId()),
                "requests": str(sent.requests),
                "bytes_read": str(sent.bytes_read),
            }
            text = f"stage {task.stageId()}, partition {task.partitionId()}: {sent.requests:,} requests to storages"
            log.info("%s, %s bytes read", text, f"{sent.bytes_read:,}", extra={"context": counts})


_RESULT = pa.schema([("file", pa.string()), ("rows", pa.int64())])
_DONE = "_SUCCESS"


def write_parquet(frame: DataFrame, path: str) -> int:
    """Write a frame as Parquet files that replace the content of a directory; return the number of rows.

    A file `_SUCCESS` is written last. Files of attempts that failed are removed.

    Args:
        frame: the rows.
        path: the directory; a path or a URL that fsspec reaches, from all workers.

    Raises:
        StorageError: the storage refuses a request.
    """
    directory = resolve(path)
    remove_directory(directory)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # The name is unique to this attempt: another attempt at the same task writes another file.
        name, rows = f"part-{uuid4().hex}.parquet", 0
        with ExitStack() as stack:
            writer: pq.ParquetWriter | None = None
            for batch in batches:
                if not batch.num_rows:
                    continue
                if writer is None:
                    file = stack.enter_context(create_file(join(resolve(path), name)))
                    writer = stack.enter_context(pq.ParquetWriter(file, batch.schema))
                writer.write_batch(batch)
                rows += batch.num_rows
        if rows:
            yield pa.RecordBatch.from_pylist([{"file": name, "rows": rows}], _RESULT)

    written = {row["file"]: row["rows"] for row in frame.mapInArrow(write, "file string, rows bigint").collect()}
    if not written:
        schema = to_arrow_schema(frame.schema)
        with create_file(join(directory, "part-empty.parquet")) as file:
            pq.write_table(schema.empty_table(), file)
    else:
        for entry in list_directory(directory):
            if entry.location.name not in written:
                remove_file(entry.location)
    with create_file(join(directory, _DONE)):
        pass
    return sum(written.values())


Result = TypeVar("Result", covariant=True)


class Task(Protocol[Result]):
    """A work item that can be sent to a worker."""

    def run(self) -> Result:
        """Do the work."""


def uses_other_machines(spark: SparkSession) -> bool:
    """Return whether the tasks of a session may run on machines that do not share the files of this one."""
    return not (spark.conf.get("spark.master", None) or "").startswith("local")


def count_cores(spark: SparkSession) -> int:
    """Return the number of tasks that a session runs at a time."""
    return spark.sparkContext.defaultParallelism


def run_tasks(spark: SparkSession, tasks: Sequence[Task[Result]], what: str) -> list[Result]:
    """Run every item in a task of its own; return the results in the order of the items.

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
                    # Pickles are safe here: the processes of one Spark application trust each other, as in Spark
                    # itself.
                    result = pickle.dumps(items[index].run())
                yield pa.RecordBatch.from_pydict({"index": [index], "result": [result]})

    with translate_failures(what):
        rows = spark.range(0, len(items), 1, len(items)).mapInArrow(work, "index long, result binary").collect()
    results = {row["index"]: pickle.loads(row["result"]) for row in rows}
    return [results[index] for index in range(len(items))]


class StateSplit(Protocol):
    """Split of a state, whose rows one task reads."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """The batches, in the types of Spark."""


def read_splits(spark: SparkSession, found: Iterable[StateSplit], columns: pa.Schema) -> DataFrame:
    """Read splits as one frame, with one task per split; rows are in the order of the files.

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
