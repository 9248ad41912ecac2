"""`spark.read.format("flink-state")`: a state, or an operator as one table, as a DataFrame, many tasks per file.

Filters are not pushed down: PySpark's Python data source lets a pushed filter leak into later queries on the same
DataFrame. Options select instead, and reach the kernels: `columns`, `keyGroups`, `key`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition

from state_pipelines.errors import UsageError
from state_pipelines.snapshot import Operator
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.snapshot.list_state import NonKeyedState
from state_pipelines.snapshot.raw_state import BytesState
from state_pipelines.spark.splits import (
    BytesSplit,
    EmptySplit,
    KeyedSplit,
    NonKeyedSplit,
    OperatorSplit,
    StateOptions,
    find_schema,
    find_state,
    open_options,
    split_bytes,
    split_non_keyed,
    split_operator,
    split_state,
)
from state_pipelines.spark.types import spark_schema
from state_pipelines.spark.writer import StateWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType


class FlinkStateSource(DataSource):
    """The format `flink-state`; see `StateOptions` for its options."""

    @classmethod
    def name(cls) -> str:
        """Short name."""
        return "flink-state"

    def schema(self) -> StructType:
        """Schema of what the options name."""
        options = StateOptions.parse(self.options)
        return spark_schema(find_schema(find_state(open_options(self.options), options), options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reader of that."""
        return StateReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Writer of that state."""
        return StateWriter(self.options, schema, overwrite)


class StateReader(DataSourceReader):
    """Splits a state, or all keyed states of an operator, into tasks and reads them."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """One per run of key groups, or some subtasks, of about `splitSize` bytes."""
        options = StateOptions.parse(self._options)
        state = find_state(open_options(self._options), options)
        splits: list[InputPartition] = []
        match state:
            case Operator():
                splits += split_operator(state, options)
            case KeyedState():
                splits += split_state(state, options)
            case BytesState():
                splits += split_bytes(state, options)
            case NonKeyedState():
                splits += split_non_keyed(state, options)
            case _:
                raise UsageError(f"{type(state).__name__} is not a state that this source reads")
        return splits or [EmptySplit(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split."""
        if not isinstance(partition, KeyedSplit | OperatorSplit | BytesSplit | NonKeyedSplit | EmptySplit):
            raise UsageError(f"{type(partition).__name__} is not a split of this source")
        return partition.read()
