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

from state_pipelines.backends.local_backup import LocalBackup
from state_pipelines.checkpoints.failure_reasons import FailureReason
from state_pipelines.checkpoints.properties import is_full
from state_pipelines.checkpoints.shared_files import list_subtask_files
from state_pipelines.checkpoints.task_checkpoint import read_task_checkpoint
from state_pipelines.datastream import CheckpointListener
from state_pipelines.datastream.metrics import MetricValue
from state_pipelines.errors import StateError
from state_pipelines.metadata.properties import SavepointFormatType, SavepointType
from state_pipelines.operations.jobs.flink_config import StateBackend
from state_pipelines.operations.write.state_formats import Format
from state_pipelines.snapshot.opening import open_location
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

    from state_pipelines.checkpoints.coordinator import CheckpointCoordinator
    from state_pipelines.checkpoints.options import CheckpointOptions
    from state_pipelines.checkpoints.pending_checkpoint import CheckpointTrigger
    from state_pipelines.checkpoints.requests import CheckpointRequest
    from state_pipelines.checkpoints.task_checkpoint import TaskCheckpoint
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
        duration: milliseconds from its trigger to its publication.
        state_size: bytes of its state.
        persisted_size: bytes that were written; less than `state_size` where an incremental checkpoint references
            tables of earlier ones.
        metrics: of the function, of each subtask, by name; see `combine_metrics`.
    """

    output: DataFrame | None
    snapshot: Snapshot | None
    duration: int = 0
    state_size: int = 0
    persisted_size: int = 0
    metrics: tuple[MetricValue, ...] = ()


class KeyedRun:
    """Runs the tasks when the coordinator triggers the snapshot: the owner of `CheckpointCoordinator`.

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
        self.coordinator: CheckpointCoordinator | None = None
        self._df, self._task, self._order_by, self._options = df, task, order_by, options
        self._deliver = deliver
        self._rows: DataFrame | None = None
        self._error: StateError | None = None
        self.metrics: tuple[MetricValue, ...] = ()
        self._completed: list[int] = []
        self._aborted: list[int] = []

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

    def finish(self, request: CheckpointRequest, *, has_output: bool) -> KeyedProcessResult:
        """Return the results, or raise what has failed."""
        assert self.coordinator is not None
        self._tell_function()
        error, failure = self._error, request.failure
        if failure is not None:
            error = error or StateError(str(failure), hint=failure.reason.remedy)
            error.details = failure.describe()
        if error is not None:
            raise error
        assert request.location is not None
        taken = self.coordinator.completed.latest
        assert taken is not None
        return KeyedProcessResult(
            self._rows if has_output else None,
            open_location(request.location),
            taken.duration,
            taken.state_size,
            taken.persisted_size,
            self.metrics,
        )

    def is_running(self) -> bool:
        """Return true: the tasks start with the trigger."""
        return True

    def trigger_checkpoint(self, trigger: CheckpointTrigger) -> None:
        """Run all subtasks, and acknowledge their snapshots."""
        assert self.coordinator is not None
        kind = trigger.properties.checkpoint_type
        is_canonical = isinstance(kind, SavepointType) and kind.format_type is SavepointFormatType.CANONICAL
        is_incremental = self._options.changelog or (
            self._options.incremental and self._options.backend is StateBackend.ROCKSDB
        )
        shared = trigger.shared if is_incremental else None
        if shared is not None:
            make_directory(shared)
        wanted = TaskSnapshot(
            trigger.checkpoint_id,
            trigger.directory,
            Format.CANONICAL if is_canonical else _NATIVE[self._options.backend],
            self._options.compression,
            self._options.inline_threshold,
            shared,
            is_full(trigger.properties),
        )
        try:
            self._rows, taken = self.process(wanted)
            if self._deliver is not None:
                self._deliver(self._rows)
        except StateError as error:
            self._error = error
            declined = next((each for each in _DECLINES if error.what.startswith(each.message)), None)
            if declined is None:
                self.coordinator.fail_tasks(str(error))
            else:
                detail = str(error).removeprefix(declined.message).strip()
                self.coordinator.decline(trigger.checkpoint_id, declined, detail)
            return
        except BaseException:
            self.coordinator.fail_tasks("the output failed, or the driver was interrupted")
            raise
        _remove_leftovers(trigger, taken)
        for each in taken:
            self.coordinator.acknowledge(each)
        if len(taken) < self._task.operator.parallelism:
            self._error = StateError(
                f"only {len(taken)} of {self._task.operator.parallelism} subtasks have run", hint="Please report this"
            )
            self.coordinator.fail_tasks(str(self._error))

    def _tell_function(self) -> None:
        """Tell the function how the checkpoint has ended: on the driver, since the tasks have ended."""
        function = self._task.function
        if isinstance(function, CheckpointListener):
            for number in self._completed:
                function.notify_checkpoint_complete(number)
            for number in self._aborted:
                function.notify_checkpoint_aborted(number)

    def notify_complete(self, checkpoint_id: int) -> None:
        """Remember to tell the function, after the coordinator has settled the checkpoint."""
        self._completed.append(checkpoint_id)

    def notify_aborted(self, checkpoint_id: int) -> None:
        """Remember to tell the function."""
        self._aborted.append(checkpoint_id)

    def notify_subsumed(self, checkpoint_id: int) -> None:
        """Do nothing: the tasks have ended."""

    def fail_job(self, message: str) -> None:
        """Do nothing: the step fails with its request."""


def _remove_leftovers(trigger: CheckpointTrigger, taken: Sequence[TaskCheckpoint]) -> None:
    """Remove the files of attempts that failed; the stage is over, so that no task writes any more."""
    needed = {file.name for each in taken for file in list_subtask_files(each.state, trigger.directory, ())}
    files = [each.location for each in list_directory(trigger.directory) if not each.is_directory]
    left = [each for each in files if each.name not in needed and not each.name.startswith(METADATA_FILE)]
    for error in delete_files(left):
        if error is not None:
            raise error
