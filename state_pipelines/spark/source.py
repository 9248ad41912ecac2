"""`spark.read.format("flink-state")`: a state, or an operator as one table; and `flink-state-metadata`.

Filters are not pushed down: PySpark's Python data source lets a pushed filter leak into later queries on the same
DataFrame. Options select instead, and reach the kernels: `columns`, `keyGroups`, `key`.
"""

from __future__ import annotations

import logging
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition

from state_pipelines.errors import NotFoundError, StateError, UsageError, Where
from state_pipelines.operations.inspect import inspect
from state_pipelines.snapshot.checks import check_declared_names
from state_pipelines.spark.fork_server import keep_freed_memory
from state_pipelines.spark.splits import (
    METADATA_OPTIONS,
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
    open_with,
    plan_splits,
    use_options,
)
from state_pipelines.spark.tasks import log_requests
from state_pipelines.spark.types import spark_schema
from state_pipelines.storage import is_directory, resolve, resolve_snapshot
from state_pipelines.storage.locations import Threads
from state_pipelines.storage.snapshot_writer import find_snapshots

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql.types import StructType

    from state_pipelines.snapshot import Operator, State

_log = logging.getLogger(__name__)

_MOST_KEPT = 4 << 20
"""Largest size in bytes of a pickled state with which a read is planned; it has about one KiB per subtask."""

_SPLITS = (KeyedSplit, OperatorSplit, BytesSplit, NonKeyedSplit, UnreadableSplit, EmptySplit)


class FlinkStateSource(DataSource):
    """Data source of the format `flink-state`; see `StateOptions` for its options."""

    # Spark asks for the schema and plans each read in processes of their own, to which it sends this object. With the
    # opened state in it, they need not read metadata and headers again.
    _found: State | Operator | None = None

    @classmethod
    def name(cls) -> str:
        """Short name."""
        return "flink-state"

    def schema(self) -> StructType:
        """Return the schema of the state or operator that the options name."""
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
        """Make the reader of the state or operator."""
        check_options(self.options, READ_OPTIONS)
        return StateReader(self.options, self._found)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Make the writer of the state that the options describe."""
        # The encoders are imported only here: Spark plans each read in a new process, which would import them, too.
        from state_pipelines.spark.record_encoding import StateWriter

        return StateWriter(self.options, schema, overwrite)


class StateReader(DataSourceReader):
    """Reader of a state, or of all keyed states of an operator, which splits it into tasks."""

    def __init__(self, options: Mapping[str, str], found: State | Operator | None = None) -> None:
        self._options = options
        self._found = found

    def __getstate__(self) -> dict[str, object]:
        # Tasks get the reader as well, but need only their splits.
        return self.__dict__ | {"_found": None}

    def partitions(self) -> list[InputPartition]:
        """Return one partition per range of key groups, or per group of subtasks, of about `splitSize` bytes each."""
        options = StateOptions.parse(self._options)
        use_options(self._options)
        state = self._found or find_state(open_options(self._options), options)
        splits: list[InputPartition] = [*plan_splits(state, options)]
        return splits or [EmptySplit(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one split."""
        keep_freed_memory()
        if not isinstance(partition, _SPLITS):
            raise UsageError(f"{type(partition).__name__} is not a split of this source")
        with log_requests():
            yield from ignoring(partition.read(), StateOptions.parse(self._options).ignored)


SCHEMA = pa.schema(
    [
        ("snapshot", pa.string()),
        ("snapshot_kind", pa.string()),
        ("checkpoint_id", pa.int64()),
        ("metadata_version", pa.int32()),
        ("operator_id", pa.string()),
        ("operator_uid", pa.string()),
        ("operator_name", pa.string()),
        ("parallelism", pa.int32()),
        ("max_parallelism", pa.int32()),
        ("state", pa.string()),
        ("state_kind", pa.string()),
        ("key_serializer", pa.string()),
        ("namespace_serializer", pa.string()),
        ("value_serializer", pa.string()),
        ("entries", pa.int64()),
        ("bytes", pa.int64()),
        ("undecoded", pa.string()),
        ("format", pa.string()),
        ("connector", pa.string()),
        ("connector_kind", pa.string()),
        ("connector_summary", pa.string()),
        ("error", pa.string()),
    ]
)
"""One row per state; an operator without states, or a snapshot that cannot be read, has one row with its `error`.

`format` is the format of the state if it is keyed (see `KeyedFormat`). The row of an operator without states has the
formats of all its keyed state.
"""


class FlinkStateMetadataSource(DataSource):
    """Data source of the format `flink-state-metadata`, whose rows describe states.

    Options: `path`, `count` (entries and bytes too), and those of `open_with`.
    """

    @classmethod
    def name(cls) -> str:
        """Short name."""
        return "flink-state-metadata"

    def schema(self) -> StructType:
        """Schema of the rows, which depends on no options."""
        return spark_schema(SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader."""
        check_options(self.options, METADATA_OPTIONS)
        return MetadataReader(self.options)


SNAPSHOTS_PER_TASK = 64
"""Number of snapshots whose metadata one task reads. With the option `count`, a task reads one, with all its state."""

IN_FLIGHT = 16
"""Number of snapshots that one task reads at the same time."""


@dataclass(frozen=True)
class SnapshotSplit(InputPartition):
    """The snapshots whose metadata one task reads."""

    paths: tuple[str, ...]


class MetadataReader(DataSourceReader):
    """Reader of metadata of many snapshots in one task, because reading one is mostly waiting for the storage."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return groups of the snapshots below the path, in order."""
        path = self._options.get("path")
        if not path:
            raise UsageError("the option path is missing", hint="Give a snapshot, or a directory of snapshots")
        use_options(self._options)
        found = list_snapshots(path)
        size = 1 if self._is_counting else SNAPSHOTS_PER_TASK
        return [SnapshotSplit(tuple(found[start : start + size])) for start in range(0, len(found), size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of some snapshots, a batch for each."""
        if not isinstance(partition, SnapshotSplit):
            raise UsageError(f"{type(partition).__name__} is not a split of this source")

        def describe(path: str) -> pa.RecordBatch:
            rows = list(describe_snapshot(path, self._options, count=self._is_counting))
            return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)

        with log_requests(), Threads(min(IN_FLIGHT, len(partition.paths))) as pool:
            yield from pool.map(describe, partition.paths)

    @property
    def _is_counting(self) -> bool:
        return self._options.get("count") == "true"


def list_snapshots(path: str) -> list[str]:
    """Find the directories of the snapshots at or below a path, in order.

    Raises:
        NotFoundError: there are none.
    """
    location = resolve(path)
    if not is_directory(location):
        return [str(resolve_snapshot(path).directory)]
    found = [str(each.location.directory) for each in find_snapshots(location)]
    if not found:
        raise NotFoundError("there is no snapshot", where=Where(file=path), hint="Give a directory of snapshots")
    return found


def describe_snapshot(path: str, options: Mapping[str, str], *, count: bool) -> Iterator[dict[str, object]]:
    """Yield the rows of `SCHEMA` for one snapshot."""
    try:
        report = inspect(open_with(path, options), count=count)
    except StateError as error:
        # One snapshot that cannot be read must not hide the others.
        yield {"snapshot": path, "error": str(error)}
        return
    head = {
        "snapshot": path,
        "snapshot_kind": report.kind,
        "checkpoint_id": report.checkpoint_id,
        "metadata_version": report.metadata_version,
    }
    for operator in report.operators:
        own = head | {
            "operator_id": operator.id,
            "operator_uid": operator.uid,
            "operator_name": operator.name,
            "parallelism": operator.parallelism,
            "max_parallelism": operator.max_parallelism,
            "error": operator.error or None,
        }
        if not operator.states:
            yield own | {"format": ", ".join(dict.fromkeys(each.format for each in operator.keyed_formats)) or None}
        for state in operator.states:
            connector = state.connector
            yield own | {
                "state": state.name,
                "state_kind": state.kind,
                "key_serializer": state.key,
                "namespace_serializer": state.namespace,
                "value_serializer": state.value,
                "entries": state.entries,
                "bytes": state.bytes,
                "undecoded": state.undecoded or None,
                "format": state.format,
                "connector": connector.connector if connector else None,
                "connector_kind": connector.kind if connector else None,
                "connector_summary": connector.summary if connector else None,
                "error": operator.error or state.error or None,
            }
