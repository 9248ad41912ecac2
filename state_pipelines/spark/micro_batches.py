"""A keyed function over the batches of a streaming query: the checkpoint of a batch has its number.

The id of the checkpoint is the id of the batch plus one, below a directory named after query and uid. So a batch that
Spark repeats finds whether its state is complete, and no batch is counted twice or left out.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import IntegralType

from state_pipelines.checkpoints.completed_checkpoints import CheckpointDirectories, find_latest_checkpoint
from state_pipelines.checkpoints.coordinator import SYSTEM_CLOCK, CheckpointFailure, FailureReason, PeriodicSchedule
from state_pipelines.checkpoints.options import ClaimMode, parse_options
from state_pipelines.datastream import Time
from state_pipelines.errors import StateError, UsageError, Where
from state_pipelines.metadata.checkpoint import compute_operator_id
from state_pipelines.operations.jobs.flink_config import INTERVAL
from state_pipelines.spark.keyed_step import KeyedStep, choose_store
from state_pipelines.spark.keyed_tasks import KeyedProcessResult, require_columns
from state_pipelines.spark.tasks import translate_failures
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from state_pipelines.codecs.kryo import FieldLists
    from state_pipelines.datastream import Duration, MapStateDescriptor, StateDescriptor
    from state_pipelines.datastream.windows import WindowAssigner
    from state_pipelines.keyed.hashing import HashExpression
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.spark.keyed_tasks import KeyedFunction

_QUERY_ID = "sql.streaming.queryId"
"""Local property that holds the id of the query (`StreamExecution.QUERY_ID_KEY`)."""


def keyed_batches(
    *,
    key: str | Sequence[str],
    function: KeyedFunction,
    uid: str,
    checkpoints: str,
    output: Callable[[DataFrame, int], None] | None = None,
    columns: str | StructType | None = None,
    key_type: Any = None,
    from_snapshot: Snapshot | str | None = None,
    job_id: str | None = None,
    parallelism: int | None = None,
    max_parallelism: int | None = None,
    order_by: Sequence[str] = (),
    timestamp: str | None = None,
    out_of_orderness: int | None = None,
    options: Mapping[str, Any] | None = None,
    hashes: Mapping[str, HashExpression] | None = None,
    parameters: Mapping[str, str] | None = None,
    on_checkpoint: Callable[[KeyedProcessResult], None] | None = None,
    pyflink_state: bool | None = None,
    windows: WindowAssigner | None = None,
    contents: StateDescriptor | None = None,
    element: str | None = None,
    allowed_lateness: Time | Duration = Time(0),  # noqa: B008 - frozen
    broadcast_states: Sequence[MapStateDescriptor] = (),
    classes: FieldLists | Iterable[str] | str | None = None,
    flink_version: str | None = None,
    metrics: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """Make the function for `foreachBatch` that runs a keyed function over the batches of a streaming query.

    Each batch starts from the checkpoint of the batch before and ends with its own. State counts each row once,
    wherever the query stops. The output of a batch is complete before its checkpoint is published: if the query stops
    in between, it is given again with the same id, and it is never left out.

    Args:
        key: column of the key; several are the fields of a tuple.
        function: as of `keyed_process`.
        uid: of the operator, by which state is found.
        checkpoints: directory of checkpoints (`execution.checkpointing.dir`).
        output: gets what the function emits and the id of the batch; it should replace what it wrote for the same id
            before. Default none, what the function emits is dropped.
        columns: of what the function emits, as a schema or its DDL; needed with `output`.
        key_type: type of the keys; default that of the state, else that of the columns.
        from_snapshot: the state that the first batch starts from; default `execution.state-recovery.path` of the
            options, else none. Later batches ignore it.
        job_id: 32 hexadecimal digits, which name the directory of the job below `checkpoints`, for calls outside of a
            query, whose batches must have ids of their own. A query has a directory by its id, which stays the same as
            long as its `checkpointLocation` does, and the uid.
        parallelism: number of subtasks; default as many as Spark runs tasks.
        max_parallelism: number of key groups; default that of the state, else Flink's.
        order_by: columns by which the rows of a subtask are ordered; without them a repeated batch may emit other rows.
        timestamp: column of event time, whole milliseconds since 1970.
        out_of_orderness: milliseconds by which rows may be late. After a batch the watermark is its highest timestamp
            minus these minus 1 (`BoundedOutOfOrdernessWatermarks`), and timers up to it fire. Of two inputs the
            lower one counts, and a batch with rows of one input only has no watermark; a broadcast input does not
            count. Default no watermark.
        options: Flink's options by key. A batch waits for the interval after the start of the one before, and for the
            pause after its checkpoint.
        hashes: `hashCode` of user classes among the keys, by class name.
        parameters: job parameters.
        on_checkpoint: gets the checkpoint of each batch, without the output; sizes and duration are 0 where an earlier
            run of the query had taken it already.
        pyflink_state: keep keys and state as PyFlink does; see `keyed_process`.
        windows: assigner of the windows of a window function, such as `TumblingEventTimeWindows.of(Time.hours(1))`.
        contents: descriptor of the state `window-contents`: a list of the rows, or a reducing or aggregating state of
            them; default a list, of the type that the restored state has, else of rows with the columns.
        element: column whose values are the elements of windows, where these are no rows.
        allowed_lateness: of rows after the end of their window.
        broadcast_states: descriptors of the broadcast states of a `KeyedBroadcastProcessFunction`.
        classes: fields of classes that Kryo writes, as `open_snapshot` has them, or paths of jars, directories and
            field lists; default those that the snapshot was opened with.
        flink_version: release that goes on from the snapshot, such as 1.20: new values of Kryo are those of its line.
            Default the line of the snapshot, else 2.x.
        metrics: directory of files with the metrics of the function, JSON lines, below the id of the job by the name of
            the checkpoint or savepoint; default none.

    Returns:
        The function. It raises `UsageError` where the checkpoints do not fit the batch, and what `keyed_process`
        raises; then nothing was published, and a restart of the query repeats the batch.

    Raises:
        UsageError: arguments contradict each other, or an option has no meaning for streams.
    """
    if (output is None) != (columns is None):
        raise UsageError("output and columns belong together", hint="Give both, or none where nothing is wanted")
    if out_of_orderness is not None and timestamp is None:
        raise UsageError("out_of_orderness needs a column of event time", hint="Give timestamp")
    parsed = parse_options(dict(options or {}))
    choose_store(parsed, options)
    if parsed.claim_mode is ClaimMode.CLAIM:
        raise UsageError(
            "a stream does not claim the snapshot it starts from, since ids of its checkpoints follow the batches",
            hint="Leave execution.state-recovery.claim-mode at NO_CLAIM, and delete the snapshot when it is not needed",
        )
    if not parsed.create_subdirectory:
        raise UsageError(
            "every query needs a directory of its own", hint="Leave execution.checkpointing.create-subdir at true"
        )
    if parsed.directory not in (None, checkpoints):
        raise UsageError(
            f"checkpoints is {checkpoints}, and execution.checkpointing.dir is {parsed.directory}",
            hint="Leave the option out",
        )
    first = parsed.restore_path if from_snapshot is None else from_snapshot
    step = KeyedStep(
        key=key,
        function=function,
        uid=uid,
        output=columns,
        key_type=key_type,
        checkpoint=checkpoints,
        job_id=job_id,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        order_by=order_by,
        timestamp=timestamp,
        options=options,
        hashes=hashes,
        parameters=parameters,
        pyflink_state=pyflink_state,
        windows=windows,
        contents=contents,
        element=element,
        allowed_lateness=allowed_lateness,
        broadcast_states=broadcast_states,
        classes=classes,
        flink_version=flink_version,
        metrics=metrics,
        out_of_orderness=out_of_orderness,
        schedule=PeriodicSchedule(parsed.interval, parsed.min_pause, SYSTEM_CLOCK),
        clock=SYSTEM_CLOCK,
    )

    def process(df: DataFrame, batch_id: int) -> None:
        number = _name_job(df, uid, job_id)
        if timestamp is not None and out_of_orderness is not None:
            _require_event_time(df, timestamp)
        directories = CheckpointDirectories(resolve(checkpoints), number)
        wanted = batch_id + 1
        latest = find_latest_checkpoint(directories.job)
        found = 0 if latest is None else latest.metadata.checkpoint_id
        if latest is not None and latest.get_operator(compute_operator_id(uid)) is None:
            raise UsageError(
                f"the checkpoints of the job have no operator {uid}",
                where=Where(file=str(directories.job)),
                hint="Give each operator a job_id or directory of its own",
            )
        if found == wanted:
            # The query stopped after the checkpoint, before Spark noted the end of the batch.
            if on_checkpoint is not None:
                on_checkpoint(KeyedProcessResult(None, latest))
            return
        if found != batch_id:
            raise UsageError(
                f"batch {batch_id} goes on from checkpoint {batch_id}, and the newest one is "
                f"{'none' if latest is None else found}",
                where=Where(file=str(directories.job)),
                hint="The checkpoints are of another query, or were deleted. Start a new query with another "
                "checkpointLocation, and give the state to start from as from_snapshot",
            )
        result = replace(
            step,
            from_snapshot=first if latest is None else latest,
            job_id=number,
            checkpoint_id=wanted,
            deliver=None if output is None else lambda rows: output(rows, batch_id),
        ).run(df)
        if on_checkpoint is not None:
            on_checkpoint(replace(result, output=None))

    return process


def _name_job(df: DataFrame, uid: str, job_id: str | None) -> str:
    query = df.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    if query is None and job_id is None:
        raise UsageError("the batch is not one of a streaming query", hint="Give job_id to call the function directly")
    if job_id is None:
        return hashlib.md5(f"{query}/{uid}".encode(), usedforsecurity=False).hexdigest()
    if query is not None:
        raise UsageError(
            "the id of a streaming query names its checkpoints, so that no other query goes on from them",
            hint="Leave job_id out: it is for calls outside of a query",
        )
    return job_id


def _require_event_time(df: DataFrame, timestamp: str) -> None:
    require_columns(df, [timestamp])
    kind = df.schema[timestamp].dataType
    if not isinstance(kind, IntegralType):
        raise UsageError(
            f"the column {timestamp} is {kind.simpleString()}, and event time is whole milliseconds since 1970",
            hint=f"Convert it with unix_millis({timestamp})",
        )


_PRESET = ("checkpoints", "options", "from_snapshot", "on_checkpoint", "job_id", "metrics")


def process_available(
    spark: SparkSession,
    define: Callable[..., object],
    *,
    checkpoints: str,
    progress: str,
    options: Mapping[str, Any],
    on_checkpoint: Callable[[KeyedProcessResult], None],
    from_snapshot: Snapshot | None = None,
    metrics: str | None = None,
) -> None:
    """Run a stream over the input that is there (trigger `availableNow`), with a checkpoint after each batch.

    Args:
        spark: the session.
        define: gets the session, and `keyed_batches` with the arguments below; returns the `DataStreamWriter` of the
            stream, which is not started.
        checkpoints: directory of checkpoints.
        progress: directory in which Spark keeps what the stream has read (`checkpointLocation`).
        options: Flink's options by key; the interval is the time between runs, so that no batch waits for it.
        on_checkpoint: gets the checkpoint of each batch.
        from_snapshot: state of the first batch.
        metrics: directory of the metrics of the function; default none.

    Raises:
        UsageError: the function does not define a stream with `keyed_batches`.
        StateError: a batch or its checkpoint failed, or Spark cannot read the input; the next run repeats the batch.
    """
    within = {key: value for key, value in options.items() if key not in INTERVAL}
    batches = _Batches(checkpoints, within, from_snapshot, on_checkpoint, metrics)
    writer = define(spark, batches.make_function)
    if not isinstance(writer, DataStreamWriter):
        raise UsageError(
            f"the function of the stream returns {type(writer).__name__}",
            hint="Return spark.readStream….writeStream.foreachBatch(keyed_batches(…)), which is not started",
        )
    if not batches.is_used:
        raise UsageError(
            "the function of the stream does not use the keyed_batches that it gets, so that no checkpoint is taken",
            hint="Return spark.readStream….writeStream.foreachBatch(keyed_batches(…))",
        )
    with translate_failures("the stream cannot start", StateError):
        query = writer.option("checkpointLocation", progress).trigger(availableNow=True).start()
    try:
        with translate_failures("the stream cannot run", StateError):
            query.awaitTermination()
    except StateError as error:
        # Spark passes on only the text of what a batch raises.
        if batches.error is not None and isinstance(error.__cause__, StreamingQueryException):
            raise batches.error from None
        raise
    finally:
        query.stop()


class _Batches:
    """The function for the batches of a stream, with the arguments of its job.

    Attributes:
        is_used: it was made.
        error: what a batch raised.
    """

    def __init__(
        self,
        checkpoints: str,
        options: Mapping[str, Any],
        from_snapshot: Snapshot | None,
        on_checkpoint: Callable[[KeyedProcessResult], None],
        metrics: str | None,
    ) -> None:
        self.is_used = False
        self.error: StateError | None = None
        self._make = partial(
            keyed_batches,
            checkpoints=checkpoints,
            options=options,
            from_snapshot=from_snapshot,
            on_checkpoint=on_checkpoint,
            metrics=metrics,
        )

    def make_function(self, **arguments: Any) -> Callable[[DataFrame, int], None]:
        """Make the function for `foreachBatch`; the arguments are those of `keyed_batches` that the job leaves open."""
        given = [name for name in _PRESET if name in arguments]
        if given:
            raise UsageError(
                f"the function of the stream sets {', '.join(given)}, which its job sets",
                hint="Leave it out, and change the description of the job",
            )
        process = self._make(**arguments)
        self.is_used = True

        def run(df: DataFrame, batch_id: int) -> None:
            try:
                process(df, batch_id)
            except StateError as error:
                self.error = error
                raise
            except Exception as error:
                # The output is code of the user, which may raise anything.
                detail = f"The output of batch {batch_id} failed: {type(error).__name__}: {error}"
                self.error = StateError(detail, hint="Repair it; the next run repeats the batch, with the same id")
                failure = CheckpointFailure(FailureReason.TASK_FAILURE, batch_id + 1, self.error.what)
                self.error.details = failure.describe()
                self.error.__cause__ = error
                raise

        return run
