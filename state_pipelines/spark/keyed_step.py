"""A keyed function with Flink's state as a batch step of Spark, from a snapshot and to one."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass, replace
from functools import update_wrapper
from inspect import signature
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from state_pipelines.backends.entry_store import HeapStore
from state_pipelines.backends.rocksdb_store import read_rocksdb_options
from state_pipelines.checkpoints.completed_checkpoints import CheckpointDirectories
from state_pipelines.checkpoints.coordinator import (
    EXCEEDED_MESSAGE,
    SYSTEM_CLOCK,
    CheckpointCoordinator,
    FailureCounter,
    PeriodicSchedule,
    assign_operators,
)
from state_pipelines.checkpoints.options import CheckpointOptions, parse_options
from state_pipelines.codecs.kryo import oldest_metadata_version
from state_pipelines.datastream import KeyedCoProcessFunction, KeyedProcessFunction, RestoredState, Time
from state_pipelines.datastream.flink_types import derive_type
from state_pipelines.datastream.functions import require_function
from state_pipelines.datastream.table_states import LatencyTracking
from state_pipelines.errors import StateError, UsageError, Where
from state_pipelines.metadata.checkpoint import SavepointFormatType
from state_pipelines.operations.jobs.flink_config import StateBackend
from state_pipelines.operations.write.savepoint_plan import KRYO_OF_FLINK_1, make_layouts
from state_pipelines.snapshot.snapshot import ensure_open
from state_pipelines.spark.keyed_tasks import (
    FUNCTIONS,
    KeyedProcessResult,
    KeyedRun,
    KeyedTask,
    MakeRocksStore,
    check_broadcast_states,
    check_inputs,
    check_windows,
    choose_layout,
    choose_parallelism,
    find_contents,
    find_key_type,
    parse_output,
    require_columns,
)
from state_pipelines.storage import METADATA_FILE, create_file, exists, join, resolve
from state_pipelines.storage.files import is_directory, make_directory, remove_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from state_pipelines.backends.entry_store import EntryStore
    from state_pipelines.checkpoints.coordinator import AssignedOperator, Clock
    from state_pipelines.codecs.kryo import FieldLists
    from state_pipelines.datastream import Duration, MapStateDescriptor, StateDescriptor
    from state_pipelines.datastream.windows import WindowAssigner
    from state_pipelines.keyed.hashing import HashExpression
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.spark.keyed_tasks import KeyedFunction
    from state_pipelines.storage import Location

_log = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")


@dataclass(frozen=True, kw_only=True)
class KeyedSettings:
    """Keyword arguments that `keyed_process` and `keyed_batches` have in common.

    Attributes:
        key: column of the key; several are the fields of a tuple.
        function: a `KeyedProcessFunction`, as one writes it for PyFlink. A `KeyedCoProcessFunction` or a
            `KeyedBroadcastProcessFunction` has the rows of two inputs (see `connect`), a `WindowFunction` or a
            `ProcessWindowFunction` has the rows of a window. A `CheckpointListener` is notified on the driver.
        uid: of the operator, by which state is found.
        key_type: type of the keys (see `Types.of`); default the key type of the restored state, else of the columns.
        from_snapshot: the state to start from; in a stream, only its first batch uses it. Default
            `execution.state-recovery.path` of the options, else none.
        job_id: 32 hexadecimal digits, the name of the job's directory below the directory of checkpoints. Default
            derived from `uid`, so that the next run finds the checkpoints of this one. In a streaming query it is
            derived from the id of the query, which stays the same as long as its `checkpointLocation` does, and from
            `uid`. Only calls outside of a query give a `job_id`; with `keyed_batches` they number their batches
            consecutively from 0.
        parallelism: number of subtasks; default as many as Spark runs tasks.
        max_parallelism: number of key groups; default the number in the restored state, else Flink's default.
        order_by: columns by which the rows of a subtask are ordered; without them their order is Spark's, and may
            differ in another attempt of a task and in a repeated batch.
        timestamp: column of event time, whole milliseconds since 1970.
        options: Flink's options by key. A batch of a stream waits for the interval after the start of the one before,
            and for the pause after its checkpoint.
        hashes: `hashCode` of user classes among the keys, by class name.
        parameters: job parameters.
        pyflink_state: keep keys and state in PyFlink's layout, for a job of PyFlink that restores the snapshot; False:
            in Java's. Default the layout of the restored state, else Java's.
        windows: assigner of the windows of a window function, such as `TumblingEventTimeWindows.of(Time.hours(1))`.
        contents: descriptor of the state `window-contents`: a list of the rows, or a reducing or aggregating state of
            them; default a list, of the type that the restored state has, else of rows with the columns.
        element: column whose values are the elements of windows; by default whole rows are.
        allowed_lateness: how long after its end a window still accepts rows.
        broadcast_states: descriptors of the broadcast states of a `KeyedBroadcastProcessFunction`.
        classes: fields of classes that Kryo writes, as `open_snapshot` has them, or paths of jars, directories and
            field lists; default those that the snapshot was opened with.
        flink_version: release of Flink that will restore the snapshot, such as 1.20: new values are written as the Kryo
            of its release line does. Default the line of the snapshot, else 2.x.
        metrics: directory for the metrics of the function; each checkpoint or savepoint gets a file of JSON lines,
            `JOB_ID/NAME.jsonl`. Default none.
    """

    key: str | Sequence[str]
    function: KeyedFunction
    uid: str
    key_type: Any = None
    from_snapshot: Snapshot | str | None = None
    job_id: str | None = None
    parallelism: int | None = None
    max_parallelism: int | None = None
    order_by: Sequence[str] = ()
    timestamp: str | None = None
    options: Mapping[str, Any] | None = None
    hashes: Mapping[str, HashExpression] | None = None
    parameters: Mapping[str, str] | None = None
    pyflink_state: bool | None = None
    windows: WindowAssigner | None = None
    contents: StateDescriptor | None = None
    element: str | None = None
    allowed_lateness: Time | Duration = Time(0)  # noqa: RUF009 - frozen
    broadcast_states: Sequence[MapStateDescriptor] = ()
    classes: FieldLists | Iterable[str] | str | None = None
    flink_version: str | None = None
    metrics: str | None = None


@dataclass(frozen=True, kw_only=True)
class ProcessSettings(KeyedSettings):
    """Keyword arguments of `keyed_process`: those of `KeyedSettings`, and the following.

    Attributes:
        output: columns of what the function emits, as a schema or its DDL; default none, what it emits is dropped.
        checkpoint: directory of checkpoints; a checkpoint is taken at the end. Default `execution.checkpointing.dir` of
            the options, unless a savepoint is asked for.
        savepoint: directory of savepoints; a savepoint is taken at the end.
        savepoint_format: canonical or native.
        watermark: event time after the last row; timers up to it fire. Default none, so that they stay in the state.
    """

    output: str | StructType | None = None
    checkpoint: str | None = None
    savepoint: str | None = None
    savepoint_format: SavepointFormatType = SavepointFormatType.CANONICAL
    watermark: int | None = None


def _take_settings(
    make: Callable[Arguments, ProcessSettings],
) -> Callable[
    [Callable[[DataFrame, ProcessSettings], KeyedProcessResult]],
    Callable[Concatenate[DataFrame, Arguments], KeyedProcessResult],
]:
    """Let callers of a function give the fields of its settings as keyword arguments."""

    def decorate(
        run: Callable[[DataFrame, ProcessSettings], KeyedProcessResult],
    ) -> Callable[Concatenate[DataFrame, Arguments], KeyedProcessResult]:
        def take(df: DataFrame, *args: Arguments.args, **settings: Arguments.kwargs) -> KeyedProcessResult:
            return run(df, make(*args, **settings))

        update_wrapper(take, run)
        parameters = [signature(run).parameters["df"], *signature(make).parameters.values()]
        vars(take)["__signature__"] = signature(run).replace(parameters=parameters)
        # The annotated type does not say that `df` may be given by name as well.
        return take  # type: ignore[return-value]

    return decorate


@_take_settings(ProcessSettings)
def keyed_process(df: DataFrame, settings: ProcessSettings) -> KeyedProcessResult:
    """Run a keyed function over the rows of a DataFrame, with the state of a snapshot, and take a snapshot of the end.

    Tasks are subtasks with ranges of key groups, as in Flink, so that a job of Flink can restore the snapshot. The
    function gets each row as a `Row` with the names of the columns. It runs at once, not when the output is read.

    Args:
        df: the rows.
        settings: keyword arguments, see `KeyedSettings` and `ProcessSettings`.

    Raises:
        UsageError: the function cannot run on Spark, arguments contradict each other, a column is missing, Flink
            rejects the type of the keys, or there are more subtasks than key groups.
        IncompatibleError: the snapshot does not fit, in Flink's words.
        StateError: the function, a task, or the checkpoint failed; nothing was published.
    """
    return KeyedStep(**vars(settings)).run(df)


@dataclass(frozen=True, kw_only=True)
class KeyedStep(ProcessSettings):
    """A run of a keyed function over a DataFrame: the state that it starts from, and the snapshot at its end.

    Attributes:
        checkpoint_id: id of the checkpoint to take; by default the last one plus 1.
        deliver: gets the output before the snapshot is published; if it fails, nothing is published.
        out_of_orderness: milliseconds by which rows may be late, in place of a watermark; see `keyed_batches`.
        schedule: schedule of checkpoints of the stream whose batch this is; by default one that begins with the run.
        clock: the clock of checkpoints.
    """

    checkpoint_id: int | None = None
    deliver: Callable[[DataFrame], None] | None = None
    out_of_orderness: int | None = None
    schedule: PeriodicSchedule | None = None
    clock: Clock = SYSTEM_CLOCK

    def __post_init__(self) -> None:
        """Refuse a function that does not run on Spark, and arguments that belong to other functions."""
        require_function(self.function, FUNCTIONS, "Spark")
        check_windows(self.function, self.windows, self.contents, self.allowed_lateness, self.timestamp, self.element)
        check_broadcast_states(self.function, self.broadcast_states)

    def run(self, df: DataFrame) -> KeyedProcessResult:
        """Run the function over the rows of a DataFrame; see `keyed_process`."""
        if self.checkpoint is not None and self.savepoint is not None:
            raise UsageError("both a checkpoint and a savepoint are asked for", hint="Choose one of them")
        parsed = parse_options(dict(self.options or {}))
        if self.schedule is None and parsed.min_pause:
            raise UsageError(
                "execution.checkpointing.min-pause is set, but a run over a DataFrame takes a single checkpoint",
                hint="Leave it out, or run the function over a stream (keyed_batches)",
            )
        step = self
        if self.from_snapshot is None:
            step = replace(step, from_snapshot=parsed.restore_path)
        if self.checkpoint is None and self.savepoint is None:
            step = replace(step, checkpoint=parsed.directory)
        return step._run(df, parsed, choose_store(parsed, self.options))

    def _run(
        self, df: DataFrame, parsed: CheckpointOptions, make_store: Callable[[int], EntryStore]
    ) -> KeyedProcessResult:
        keys = (self.key,) if isinstance(self.key, str) else tuple(self.key)
        check_inputs(df, self.function)
        require_columns(df, (*keys, *self.order_by, *filter(None, (self.timestamp, self.element))))
        snapshot = None if self.from_snapshot is None else ensure_open(self.from_snapshot)
        wanted = choose_parallelism(df, self.uid, snapshot, self.parallelism, self.max_parallelism)
        (assigned,) = assign_operators([wanted], snapshot, allow_non_restored_state=parsed.allow_non_restored_state)
        restored = None
        if snapshot is not None and assigned.state is not None:
            restored = RestoredState.of(snapshot.operator(self.uid))
        in_pyflink = choose_layout(restored, self.pyflink_state)
        if in_pyflink and not isinstance(self.function, KeyedProcessFunction | KeyedCoProcessFunction):
            raise UsageError(
                f"{type(self.function).__name__} cannot keep its state in PyFlink's layout",
                hint="Windows and broadcast states run with Java's layout: leave pyflink_state out, and start from a "
                "snapshot of a Java job, or of this function",
            )
        known_type = (
            derive_type(self.key_type)
            if self.key_type is not None
            else find_key_type(df, keys, restored, pyflink_state=in_pyflink)
        )
        columns = parse_output(self.output)
        task = KeyedTask(
            function=self.function,
            operator=assigned.operator,
            columns=tuple(df.columns),
            key_columns=keys,
            key_type=known_type,
            timestamp=self.timestamp,
            watermark=self.watermark,
            output=columns,
            restored=restored,
            snapshot=None,
            hashes=dict(self.hashes or {}),
            parameters=dict(self.parameters or {}),
            make_store=make_store,
            changelog=parsed.changelog_settings,
            pyflink_state=in_pyflink,
            latencies=find_latencies(parsed),
            layouts=make_layouts(self.classes, self.flink_version, snapshot),
            broadcast_states=tuple(self.broadcast_states),
            windows=self.windows,
            contents=None if self.windows is None else self.contents or find_contents(df, restored, self.element),
            element=self.element,
            allowed_lateness=self.allowed_lateness,
            out_of_orderness=self.out_of_orderness,
            clock=self.clock,
        )
        run = KeyedRun(df, task, tuple(self.order_by), parsed, self.deliver)
        directory = self.checkpoint or self.savepoint
        if directory is None and self.metrics is not None:
            raise UsageError(
                "metrics need a checkpoint or savepoint, after which their file is named, and the run takes none",
                hint="Give checkpoint or savepoint, or read the metrics of the result",
            )
        if directory is None:
            rows, _ = run.process(None)
            return KeyedProcessResult(rows if self.output is not None else None, None, metrics=run.metrics)
        number = self.job_id or hashlib.md5(self.uid.encode(), usedforsecurity=False).hexdigest()
        if parsed.local_backup and self.checkpoint is not None:
            run.keep_backups(number)
        directories = CheckpointDirectories(resolve(directory), number, parsed.create_subdirectory)
        result = self._take_snapshot(run, directories, assigned, snapshot, parsed)
        if self.metrics is not None and result.snapshot is not None:
            _write_metrics(join(resolve(self.metrics), number), result)
        return result

    def _take_snapshot(
        self,
        run: KeyedRun,
        directories: CheckpointDirectories,
        assigned: AssignedOperator,
        snapshot: Snapshot | None,
        parsed: CheckpointOptions,
    ) -> KeyedProcessResult:
        """Run the tasks until their snapshot is published, or more checkpoints have failed than are tolerable.

        After a failed checkpoint the rows are processed again from the restored state, so that the next checkpoint
        contains them, as it would in Flink.
        """
        schedule = self.schedule or PeriodicSchedule(parsed.interval, clock=self.clock)
        counter = FailureCounter(parsed.tolerable_failures)
        version = oldest_metadata_version(KRYO_OF_FLINK_1 if snapshot is None else snapshot.kryo_version)
        postponed = 0
        while True:
            coordinator = CheckpointCoordinator(
                directories, [assigned.operator], parsed, clock=self.clock, metadata_version=version
            )
            _restore(coordinator, snapshot, is_checkpoint=self.checkpoint is not None)
            postponed += schedule.wait_for_start()
            try:
                result = self._attempt(run, coordinator)
            except StateError as error:
                failure = coordinator.failure
                # Failed savepoints are not tolerated: the caller who has asked for one gets the error.
                if failure is None or not failure.reason.counts or self.savepoint is not None:
                    raise
                if counter.is_tolerable(failure):
                    _log.warning(
                        "The run goes on: %d of %d failed checkpoints that are tolerable",
                        len(counter.tolerated),
                        parsed.tolerable_failures,
                    )
                    continue
                if not failure.is_in_doubt:
                    error.what = f"{EXCEEDED_MESSAGE} {error.what}"
                    error.details["tolerated failures"] = str(len(counter.tolerated))
                raise
            schedule.note_completion()
            return replace(result, failures=tuple(counter.tolerated), postponed=postponed)

    def _attempt(self, run: KeyedRun, coordinator: CheckpointCoordinator) -> KeyedProcessResult:
        if self.savepoint is not None:
            trigger = coordinator.trigger_savepoint(resolve(self.savepoint), self.savepoint_format)
        else:
            if self.checkpoint_id is not None:
                coordinator.set_next_id(self.checkpoint_id)
                _remove_unpublished(coordinator.directories.checkpoint(self.checkpoint_id))
            trigger = coordinator.trigger_checkpoint()
        return run.take(coordinator, trigger, has_output=self.output is not None)


def _remove_unpublished(directory: Location) -> None:
    """Remove the files of a checkpoint that was not published, for example because the driver was killed."""
    if is_directory(directory) and not exists(join(directory, METADATA_FILE)):
        remove_directory(directory)


def choose_store(parsed: CheckpointOptions, options: Mapping[str, Any] | None) -> Callable[[int], EntryStore]:
    """Return the function that makes the store of a subtask's state, on the heap or in RocksDB.

    Raises:
        UsageError: an option of RocksDB is not known, or is not possible here.
    """
    if parsed.backend is StateBackend.HASHMAP:
        return HeapStore
    return MakeRocksStore(read_rocksdb_options(_to_texts(options)))


def find_latencies(parsed: CheckpointOptions) -> LatencyTracking | None:
    """Return the settings of latency tracking; None if it is off."""
    if not parsed.latency_tracking:
        return None
    return LatencyTracking(parsed.latency_interval, parsed.latency_history, parsed.latency_variable)


def _write_metrics(directory: Location, result: KeyedProcessResult) -> None:
    """Write the metrics of a checkpoint; metrics of an earlier attempt at the same batch are replaced."""
    assert result.snapshot is not None
    make_directory(directory)
    name = f"{result.snapshot.location.directory.name}.jsonl"
    with create_file(join(directory, name), replace=True) as output:
        for each in result.metrics:
            output.write(json.dumps(each.to_json()).encode() + b"\n")


def _to_texts(options: Mapping[str, Any] | None) -> dict[str, str]:
    """Convert the values of options to text, as in Flink's configuration file."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in (options or {}).items()
    }


def _restore(coordinator: CheckpointCoordinator, snapshot: Snapshot | None, *, is_checkpoint: bool) -> None:
    """Let the coordinator take over the checkpoints of earlier runs of the job, and the restored snapshot."""
    latest = coordinator.recover() if is_checkpoint else None
    known = {each.location for each in coordinator.completed.all}
    if snapshot is None and latest is not None:
        raise UsageError(
            "the job has completed checkpoints, and a run that starts without state would replace them by its own",
            where=Where(file=str(latest.location.directory)),
            hint="Start from this checkpoint (from_snapshot), or give the new job another job_id",
        )
    if snapshot is not None and snapshot.location not in known:
        coordinator.restore(snapshot)
