"""A keyed function over the batches of a streaming query: the checkpoint of a batch has its number.

The id of the checkpoint is the id of the batch plus one, below a directory named after query and uid. So a batch that
Spark repeats finds whether its state is complete, and no batch is counted twice or left out.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import IntegralType

from state_pipelines.checkpoints.completed_checkpoints import CheckpointDirectories, find_latest_checkpoint
from state_pipelines.checkpoints.coordinator import SYSTEM_CLOCK, CheckpointFailure, FailureReason, PeriodicSchedule
from state_pipelines.checkpoints.options import ClaimMode, parse_options
from state_pipelines.errors import StateError, UsageError, Where
from state_pipelines.metadata.checkpoint import compute_operator_id
from state_pipelines.operations.jobs.flink_config import INTERVAL
from state_pipelines.spark.keyed_step import KeyedSettings, KeyedStep, choose_store
from state_pipelines.spark.keyed_tasks import KeyedProcessResult, require_columns
from state_pipelines.spark.tasks import translate_failures
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from state_pipelines.checkpoints.options import CheckpointOptions
    from state_pipelines.snapshot import Snapshot

_QUERY_ID = "sql.streaming.queryId"
"""Local property that holds the id of the query (`StreamExecution.QUERY_ID_KEY`)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyedBatches(KeyedSettings):
    """The function for `foreachBatch` that runs a keyed function over the batches of a streaming query.

    Each batch starts from the checkpoint of the batch before and ends with its own. State counts each row once,
    wherever the query stops. The output of a batch is complete before its checkpoint is published: if the query stops
    in between, it is given again with the same id, and it is never left out.

    Making it raises `UsageError` where arguments contradict each other, or an option has no meaning for streams.

    Attributes:
        checkpoints: directory of checkpoints (`execution.checkpointing.dir`).
        output: gets what the function emits and the id of the batch; it should replace what it wrote for the same id
            before. Default none, what the function emits is dropped.
        columns: of what the function emits, as a schema or its DDL; needed with `output`.
        out_of_orderness: milliseconds by which rows may be late. After a batch the watermark is the highest timestamp
            of the batch minus this number minus 1 (`BoundedOutOfOrdernessWatermarks`), and timers up to it fire. Of two
            inputs the one with the lower timestamp counts, and a batch with rows of one input only has no watermark; a
            broadcast input does not count. Default no watermark.
        on_checkpoint: gets the checkpoint of each batch, without the output; sizes and duration are 0 where an earlier
            run of the query had taken it already.
    """

    checkpoints: str
    output: Callable[[DataFrame, int], None] | None = None
    columns: str | StructType | None = None
    out_of_orderness: int | None = None
    on_checkpoint: Callable[[KeyedProcessResult], None] | None = None

    def __post_init__(self) -> None:
        """Refuse arguments that contradict each other."""
        if (self.output is None) != (self.columns is None):
            raise UsageError("output and columns belong together", hint="Give both, or none where nothing is wanted")
        if self.out_of_orderness is not None and self.timestamp is None:
            raise UsageError("out_of_orderness needs a column of event time", hint="Give timestamp")
        choose_store(self._options, self.options)
        if self._options.claim_mode is ClaimMode.CLAIM:
            raise UsageError(
                "a stream does not claim the snapshot it starts from, since ids of its checkpoints follow the batches",
                hint="Leave execution.state-recovery.claim-mode at NO_CLAIM, and delete the snapshot when it is not "
                "needed",
            )
        if not self._options.create_subdirectory:
            raise UsageError(
                "every query needs a directory of its own", hint="Leave execution.checkpointing.create-subdir at true"
            )
        if self._options.directory not in (None, self.checkpoints):
            raise UsageError(
                f"checkpoints is {self.checkpoints}, and execution.checkpointing.dir is {self._options.directory}",
                hint="Leave the option out",
            )
        _ = self._step

    @cached_property
    def _options(self) -> CheckpointOptions:
        return parse_options(dict(self.options or {}))

    @cached_property
    def _step(self) -> KeyedStep:
        """Step with the settings that all batches share."""
        return KeyedStep(
            **{each.name: getattr(self, each.name) for each in fields(KeyedSettings)},
            output=self.columns,
            checkpoint=self.checkpoints,
            out_of_orderness=self.out_of_orderness,
            schedule=PeriodicSchedule(self._options.interval, self._options.min_pause, SYSTEM_CLOCK),
            clock=SYSTEM_CLOCK,
        )

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Run the function over one batch.

        Raises:
            UsageError: the checkpoints do not fit the batch.
            StateError: as of `keyed_process`; nothing was published, and a restart of the query repeats the batch.
        """
        number = _name_job(df, self.uid, self.job_id)
        if self.timestamp is not None and self.out_of_orderness is not None:
            _require_event_time(df, self.timestamp)
        directories = CheckpointDirectories(resolve(self.checkpoints), number)
        wanted = batch_id + 1
        latest = find_latest_checkpoint(directories.job)
        found = 0 if latest is None else latest.metadata.checkpoint_id
        if latest is not None and latest.get_operator(compute_operator_id(self.uid)) is None:
            raise UsageError(
                f"the checkpoints of the job have no operator {self.uid}",
                where=Where(file=str(directories.job)),
                hint="Give each operator a job_id or directory of its own",
            )
        if found == wanted:
            # The checkpoint of this batch exists: an earlier run of the query took it, and stopped before Spark noted
            # the end of the batch.
            if self.on_checkpoint is not None:
                self.on_checkpoint(KeyedProcessResult(None, latest))
            return
        if found != batch_id:
            raise UsageError(
                f"batch {batch_id} goes on from checkpoint {batch_id}, and the newest one is "
                f"{'none' if latest is None else found}",
                where=Where(file=str(directories.job)),
                hint="The checkpoints are of another query, or were deleted. Start a new query with another "
                "checkpointLocation, and give the state to start from as from_snapshot",
            )
        first = self._options.restore_path if self.from_snapshot is None else self.from_snapshot
        output = self.output
        result = replace(
            self._step,
            from_snapshot=first if latest is None else latest,
            job_id=number,
            checkpoint_id=wanted,
            deliver=None if output is None else lambda rows: output(rows, batch_id),
        ).run(df)
        if self.on_checkpoint is not None:
            self.on_checkpoint(replace(result, output=None))


keyed_batches = KeyedBatches
"""Make the function for `foreachBatch`; the arguments are the attributes of `KeyedBatches` and `KeyedSettings`."""


def _name_job(df: DataFrame, uid: str, job_id: str | None) -> str:
    query = df.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    if query is None and job_id is None:
        raise UsageError("the batch is not one of a streaming query", hint="Give job_id to call the function directly")
    if job_id is None:
        return hashlib.md5(f"{query}/{uid}".encode(), usedforsecurity=False).hexdigest()
    if query is not None:
        raise UsageError(
            "job_id is given, but the directory of checkpoints of a streaming query is named by the id of the query",
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
        options: Flink's options by key. The checkpoint interval is the time between runs; batches do not wait for it.
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
        # Spark's exception has only the text of the error that a batch raised: raise the error itself.
        if batches.error is not None and isinstance(error.__cause__, StreamingQueryException):
            raise batches.error from None
        raise
    finally:
        query.stop()


class _Batches:
    """Maker of the function for the batches of a stream, with the arguments that its job sets.

    Attributes:
        is_used: the function was made.
        error: the error that a batch raised.
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
                f"the function of the stream sets {', '.join(given)}, which its job sets already",
                hint="Leave the argument out, and set the value in the description of the job",
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
                self.error = StateError(detail, hint="Repair the output function; the next run repeats this batch id")
                failure = CheckpointFailure(FailureReason.TASK_FAILURE, batch_id + 1, self.error.what)
                self.error.details = failure.describe()
                self.error.__cause__ = error
                raise

        return run
