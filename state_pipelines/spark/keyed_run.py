"""The tasks of one run of a keyed function, which take its snapshot when the coordinator triggers it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from state_pipelines.backends.snapshots import LocalBackup
from state_pipelines.checkpoints.completed_checkpoints import list_subtask_files
from state_pipelines.checkpoints.coordinator import FailureReason, is_full, read_task_checkpoint
from state_pipelines.datastream import CheckpointListener
from state_pipelines.datastream.functions import MetricValue
from state_pipelines.errors import StateError
from state_pipelines.metadata.checkpoint import SavepointFormatType, SavepointType
from state_pipelines.operations.jobs.flink_config import StateBackend
from state_pipelines.operations.write.state_formats import Format
from state_pipelines.snapshot.snapshot import open_location
from state_pipelines.spark.connected_inputs import INPUT
from state_pipelines.spark.failures import translate_failures
from state_pipelines.spark.key_partitioning import SUBTASK
from state_pipelines.spark.keyed_tasks import ACKNOWLEDGEMENT, METRICS, KeyedTask, TaskSnapshot
from state_pipelines.storage import METADATA_FILE, list_directory
from state_pipelines.storage.deletion import delete_files
from state_pipelines.storage.files import make_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from state_pipelines.checkpoints.coordinator import (
        CheckpointCoordinator,
        CheckpointFailure,
        CheckpointTrigger,
        TaskCheckpoint,
    )
    from state_pipelines.checkpoints.options import CheckpointOptions
    from state_pipelines.snapshot import Snapshot

_DECLINES = (FailureReason.CHECKPOINT_ASYNC_EXCEPTION, FailureReason.CHECKPOINT_DECLINED)
"""Reasons for which a task cannot take its snapshot."""

_NATIVE = {StateBackend.HASHMAP: Format.HEAP, StateBackend.ROCKSDB: Format.ROCKSDB}


@dataclass(frozen=True)
class KeyedProcessResult:
    """The results of a keyed function.

    Attributes:
        output: what the function emitted, computed already; None where no output was declared.
        snapshot: the checkpoint or savepoint that was taken; None where none was asked for.
        duration: milliseconds of the longest snapshot of a subtask and of the publication; the processing of input is
            not part of it.
        state_size: bytes of its state.
        persisted_size: bytes that were written; less than `state_size` where an incremental checkpoint references
            tables of earlier ones.
        metrics: of the function, of each subtask, by name; see `combine_metrics`.
        failures: failed checkpoints before it, which `execution.checkpointing.tolerable-failed-checkpoints` tolerates.
        postponed: milliseconds by which `execution.checkpointing.min-pause` has postponed it.
    """

    output: DataFrame | None
    snapshot: Snapshot | None
    duration: int = 0
    state_size: int = 0
    persisted_size: int = 0
    metrics: tuple[MetricValue, ...] = ()
    failures: tuple[CheckpointFailure, ...] = ()
    postponed: int = 0


class KeyedRun:
    """Runs the tasks, and takes the checkpoint or savepoint at their end.

    Attributes:
        metrics: of the function, of each subtask, when the tasks have ended.
    """

    def __init__(
        self,
        df: DataFrame,
        task: KeyedTask,
        order_by: tuple[str, ...],
        options: CheckpointOptions,
        deliver: Callable[[DataFrame], None] | None,
    ) -> None:
        self._df, self._task, self._order_by, self._options = df, task, order_by, options
        self._deliver = deliver
        self.metrics: tuple[MetricValue, ...] = ()

    def keep_backups(self, job_id: str) -> None:
        """Let the tasks keep the files of their checkpoints on the machines on which they run."""
        roots = tuple(filter(None, re.split("[,:]", self._options.local_directories or "")))
        self._task = replace(self._task, open_backup=partial(LocalBackup.open, roots, job_id))

    def process(self, snapshot: TaskSnapshot | None) -> tuple[DataFrame, list[TaskCheckpoint]]:
        """Run all subtasks; what they emit, and their acknowledgements."""
        task, operator = replace(self._task, snapshot=snapshot), self._task.operator
        partitioner = task.make_partitioner()
        # Rows that are no elements have no values.
        fields = [StructField(each.name, each.dataType, True) for each in self._df.schema.fields]
        placed = StructType([*fields, StructField(SUBTASK, IntegerType(), False)])
        ends = [StructField(ACKNOWLEDGEMENT, BinaryType(), True), StructField(METRICS, StringType(), True)]
        emitted = StructType([*from_arrow_schema(task.output), *ends])
        with translate_failures(f"operator {operator.label} cannot run", StateError):
            rows = self._df.mapInArrow(partitioner.add_subtasks, placed).union(self._make_markers(operator.parallelism))
            rows = rows.repartitionById(operator.parallelism, sql.col(SUBTASK))
            # Broadcast rows come first, whatever order is asked for.
            order = ([sql.col(INPUT).desc()] if task.has_broadcast else []) + [sql.col(each) for each in self._order_by]
            if order:
                rows = rows.sortWithinPartitions(*order)
            # Computed once: a second computation would take another snapshot.
            results = rows.mapInArrow(task.run, emitted).localCheckpoint(eager=True)
            is_end = sql.col(METRICS).isNotNull()
            marked = results.where(is_end).select(ACKNOWLEDGEMENT, METRICS).collect()
        taken = [read_task_checkpoint(bytes(row[0])) for row in marked if row[0] is not None]
        found = [MetricValue(**each) for row in marked for each in json.loads(row[1])]
        self.metrics = tuple(sorted(found, key=lambda each: (each.name, each.subtask)))
        return results.where(~is_end).drop(ACKNOWLEDGEMENT, METRICS), taken

    def _make_markers(self, parallelism: int) -> DataFrame:
        """Make a row per subtask, so that those without rows run too; the number of its subtask is negative."""
        nulls = [sql.lit(None).cast(each.dataType).alias(each.name) for each in self._df.schema.fields]
        numbers = self._df.sparkSession.range(0, parallelism, 1, 1)
        return numbers.select(*nulls, (sql.col("id") - parallelism).cast("int").alias(SUBTASK))

    def take(
        self, coordinator: CheckpointCoordinator, trigger: CheckpointTrigger, *, has_output: bool
    ) -> KeyedProcessResult:
        """Run all subtasks, and complete the checkpoint with their snapshots.

        Raises:
            StateError: the tasks, the output or the checkpoint failed; nothing was published, unless `failure` of the
                coordinator is in doubt.
        """
        number = trigger.checkpoint_id
        try:
            rows, taken = self.process(self._plan(trigger))
            if self._deliver is not None:
                self._deliver(rows)
            try:
                _remove_leftovers(trigger, taken)
            except StateError as error:
                raise coordinator.abort(FailureReason.FINALIZE_CHECKPOINT_FAILURE, str(error), error) from None
            completed = coordinator.complete(taken)
        except StateError as error:
            raised = error if coordinator.pending is None else _abort(coordinator, error)
            if isinstance(self._task.function, CheckpointListener) and not trigger.properties.is_savepoint:
                self._task.function.notify_checkpoint_aborted(number)
            raise raised from raised.__cause__
        except Exception as error:
            # The output is code of the user, which may raise anything.
            coordinator.abort(FailureReason.TASK_FAILURE, f"The output failed: {type(error).__name__}: {error}")
            raise
        except BaseException:
            if coordinator.pending is not None:
                coordinator.abort(FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN, "The driver was interrupted.")
            raise
        # On the driver, since the tasks have ended.
        if isinstance(self._task.function, CheckpointListener) and not trigger.properties.is_savepoint:
            self._task.function.notify_checkpoint_complete(number)
        return KeyedProcessResult(
            rows if has_output else None,
            open_location(completed.location),
            completed.duration,
            completed.state_size,
            completed.persisted_size,
            self.metrics,
        )

    def _plan(self, trigger: CheckpointTrigger) -> TaskSnapshot:
        """Return the snapshot that the tasks take."""
        kind = trigger.properties.checkpoint_type
        is_canonical = isinstance(kind, SavepointType) and kind.format_type is SavepointFormatType.CANONICAL
        is_incremental = self._options.changelog or (
            self._options.incremental and self._options.backend is StateBackend.ROCKSDB
        )
        shared = trigger.shared if is_incremental else None
        if shared is not None:
            make_directory(shared)
        return TaskSnapshot(
            trigger.checkpoint_id,
            trigger.directory,
            Format.CANONICAL if is_canonical else _NATIVE[self._options.backend],
            self._options.compression,
            self._options.inline_threshold,
            shared,
            is_full(trigger.properties),
        )


def _abort(coordinator: CheckpointCoordinator, error: StateError) -> StateError:
    """End the checkpoint whose tasks or output failed; return the error with Flink's reason."""
    declined = next((each for each in _DECLINES if error.what.startswith(each.message)), None)
    if declined is None:
        return coordinator.abort(FailureReason.TASK_FAILURE, str(error), error)
    return coordinator.abort(declined, str(error).removeprefix(declined.message).strip(), error)


def _remove_leftovers(trigger: CheckpointTrigger, taken: Sequence[TaskCheckpoint]) -> None:
    """Remove the files of attempts that failed; the stage is over, so that no task writes any more."""
    needed = {file.name for each in taken for file in list_subtask_files(each.state, trigger.directory, ())}
    files = [each.location for each in list_directory(trigger.directory) if not each.is_directory]
    left = [each for each in files if each.name not in needed and not each.name.startswith(METADATA_FILE)]
    for error in delete_files(left):
        if error is not None:
            raise error
