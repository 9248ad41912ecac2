"""Settings of a stream that runs on Spark, with its state in Flink's format."""

from __future__ import annotations

from typing import Annotated, Any

import dagster as dg
from pydantic import ConfigDict, Field, field_validator

from state_pipelines.checkpoints.options import CheckpointOptions, parse_options
from state_pipelines.dagster.field_validators import parsed_by
from state_pipelines.dagster.python_functions import split_function
from state_pipelines.errors import UsageError
from state_pipelines.operations.jobs.flink_config import INTERVAL
from state_pipelines.storage import join, resolve

_Definition = Annotated[str, parsed_by(split_function)]
_MINUTE, _HOUR_MINUTES, _DAY_HOURS = 60_000, 60, 24


class StreamSettings(dg.Model):
    """A stream: its Python function, its directory, when its input is processed, and Flink's options."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    definition: _Definition = Field(
        description="FILE.py:FUNCTION. The function gets the Spark session and keyed_batches, and returns the writer "
        "of the stream. The file is run, as the code of the deployment is."
    )
    directory: str = Field(
        description="Directory of its checkpoints, savepoints and metrics, and what it has read: each job has its own."
    )
    from_snapshot: str | None = Field(
        default=None, description="Snapshot with the state of the first batch; none by default."
    )
    input: str | None = Field(
        default=None,
        description="Directory, or pattern of files in one, such as s3://lake/orders/*.parquet: new files start a run.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="Flink's options by key; a run starts every execution.checkpointing.interval.",
    )

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        try:
            parsed = parse_options(options)
            if parsed.interval is not None:
                to_cron(parsed.interval)
        except UsageError as error:
            raise ValueError(str(error)) from None
        if (parsed.directory, parsed.restore_path) != (None, None):
            raise ValueError(
                "the directory of checkpoints and the snapshot to restore are no options here: set directory and "
                "from_snapshot"
            )
        return options

    @property
    def parsed(self) -> CheckpointOptions:
        """The options that are about checkpoints."""
        return parse_options(self.options)

    @property
    def cron(self) -> str | None:
        """The cron expression of the checkpoint interval; None without one."""
        interval = self.parsed.interval
        return None if interval is None else to_cron(interval)

    @property
    def checkpoints(self) -> str:
        """Directory of checkpoints."""
        return self._resolve("checkpoints")

    @property
    def savepoints(self) -> str:
        """Directory of savepoints."""
        return self._resolve("savepoints")

    @property
    def metrics(self) -> str:
        """Directory of the metrics of its function, a file for each checkpoint."""
        return self._resolve("metrics")

    @property
    def progress(self) -> str:
        """Directory of what the query has read; outside of those that are searched for snapshots."""
        return self._resolve("query")

    def _resolve(self, name: str) -> str:
        return str(join(resolve(self.directory), name))


def to_cron(interval: int) -> str:
    """Return the cron expression of an interval.

    Args:
        interval: milliseconds.

    Raises:
        UsageError: cron has no such interval.
    """
    minutes, rest = divmod(interval, _MINUTE)
    hours, odd = divmod(minutes, _HOUR_MINUTES)
    if not rest and minutes and minutes < _HOUR_MINUTES and not _HOUR_MINUTES % minutes:
        return "* * * * *" if minutes == 1 else f"*/{minutes} * * * *"
    if not rest and not odd and hours and hours <= _DAY_HOURS and not _DAY_HOURS % hours:
        return {1: "0 * * * *", _DAY_HOURS: "0 0 * * *"}.get(hours, f"0 */{hours} * * *")
    raise UsageError(
        f"{INTERVAL[0]} is {interval} ms, which no schedule has",
        hint="Choose minutes that divide an hour or hours that divide a day, such as 1 min, 10 min or 6 h",
    )
