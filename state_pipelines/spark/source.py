"""`spark.read.format("flink-state")`: a state, or an operator as one table, as a DataFrame, many tasks per file.

Filters are not pushed down: PySpark's Python data source lets a pushed filter leak into later queries on the same
DataFrame. Options select instead, and reach the kernels: `columns`, `keyGroups`, `key`.
"""

from __future__ import annotations

import logging
import pickle
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition

from state_pipelines.errors import UsageError
from state_pipelines.snapshot.checks import check_declared_names
from state_pipelines.spark.splits import (
    READ_OPTIONS,
    BytesSplit,
    EmptySplit,
    KeyedSplit,
    NonKeyedSplit,
    OperatorSplit,
    StateOptions,
    UnreadableSplit,
    check_options,
    find_schema,
    find_state,
    ignoring,
    open_options,
    plan_splits,
    use_options,
)
from state_pipelines.spark.task_requests import log_requests
from state_pipelines.spark.types import spark_schema
from state_pipelines.spark.worker_memory import keep_freed_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from state_pipelines.snapshot import Operator, State

_log = logging.getLogger(__name__)

_MOST_KEPT = 4 << 20
"""Bytes of an opened state, pickled, up to which a read is planned with it; about one KiB per subtask."""

_SPLITS = (KeyedSplit, OperatorSplit, BytesSplit, NonKeyedSplit, UnreadableSplit, EmptySplit)


class FlinkStateSource(DataSource):
    """The format `flink-state`; see `StateOptions` for its options."""

    # Spark asks for the schema and plans each read in processes of their own, to which it sends the source: metadata
    # and headers need not be read again then.
    _found: State | Operator | None = None

    @classmethod
    def name(cls) -> str:
        """Short name."""
        return "flink-state"

    def schema(self) -> StructType:
        """Schema of the state or operator that the options name."""
        check_options(self.options, READ_OPTIONS)
        options = StateOptions.parse(self.options)
        snapshot = open_options(self.options)
        for note in check_declared_names(snapshot):
            _log.warning("%s", note)
        found = find_state(snapshot, options)
        schema = spark_schema(find_schema(found, options))
        if len(pickle.dumps(found)) <= _MOST_KEPT:
            self._found = found
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reader of that."""
        check_options(self.options, READ_OPTIONS)
        return StateReader(self.options, self._found)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Writer of that state."""
        # Spark plans each read in a new process, which would import the encoders too.
        from state_pipelines.spark.writer import StateWriter

        return StateWriter(self.options, schema, overwrite)


class StateReader(DataSourceReader):
    """Splits a state, or all keyed states of an operator, into tasks and reads them."""

    def __init__(self, options: Mapping[str, str], found: State | Operator | None = None) -> None:
        self._options = options
        self._found = found

    def __getstate__(self) -> dict[str, object]:
        # Tasks get the reader too, and need only their splits.
        return self.__dict__ | {"_found": None}

    def partitions(self) -> list[InputPartition]:
        """One per run of key groups, or some subtasks, of about `splitSize` bytes."""
        options = StateOptions.parse(self._options)
        use_options(self._options)
        state = self._found or find_state(open_options(self._options), options)
        splits: list[InputPartition] = [*plan_splits(state, options)]
        return splits or [EmptySplit(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split."""
        keep_freed_memory()
        if not isinstance(partition, _SPLITS):
            raise UsageError(f"{type(partition).__name__} is not a split of this source")
        with log_requests():
            yield from ignoring(partition.read(), StateOptions.parse(self._options).ignored)
