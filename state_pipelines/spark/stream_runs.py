"""Runs of a stream: each processes the input that is there, and goes on where the last one ended."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.readwriter import DataStreamWriter

from state_pipelines.checkpoints.coordinator import CheckpointFailure, FailureReason
from state_pipelines.errors import StateError, UsageError
from state_pipelines.operations.jobs.flink_config import INTERVAL
from state_pipelines.spark.failures import translate_failures
from state_pipelines.spark.micro_batches import keyed_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.snapshot import Snapshot
    from state_pipelines.spark.keyed_run import KeyedProcessResult

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
