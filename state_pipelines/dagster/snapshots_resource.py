"""Snapshots of a Flink job for assets, checks and ops of one's own: open, read, judge, audit, migrate."""

from __future__ import annotations

import functools
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

import dagster as dg
from pydantic import ConfigDict, Field

from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.errors import MissingFileError, NotFoundError, UsageError, Where
from state_pipelines.operations.auditing import AuditReport, Depth, audit_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from state_pipelines.operations.check.check import MigrationCheckReport
    from state_pipelines.snapshot import Snapshot, State
    from state_pipelines.spark import MigrationResult


_Method = TypeVar("_Method", bound="Callable[..., Any]")


def _using_storage(method: _Method) -> _Method:
    """Decorate a method of the resource, so that it uses the storage options of the Flink job."""

    @functools.wraps(method)
    def call(self: SnapshotsResource, *args: object, **others: object) -> object:
        with self.job.using_storage():
            return method(self, *args, **others)

    return cast("_Method", call)


class SnapshotsResource(dg.ConfigurableResource["SnapshotsResource"]):
    """The snapshots of a Flink job, opened with its declarations. Each job defines it as `<job>_snapshots`."""

    model_config = ConfigDict(extra="forbid")

    description: str = Field(description="Description of the Flink job, as JSON.")

    @classmethod
    def of(cls, job: FlinkJob) -> SnapshotsResource:
        """Return the resource of a job."""
        # Exclude the URL of the webhook: it is often a secret, and the UI shows the fields of resources.
        return cls(description=job.model_dump_json(exclude={"webhook"}))

    @cached_property
    def job(self) -> FlinkJob:
        """The Flink job."""
        return FlinkJob.model_validate_json(self.description)

    @_using_storage
    def open(self, name: str) -> Snapshot:
        """Open a snapshot: a partition key, the name of its directory, its path, or `latest`.

        Any path is opened, also outside the roots of the job.

        Raises:
            NotFoundError: there is no such snapshot, or it cannot be read.
            StateError: a root cannot be listed, or the inventory cannot be stored.
        """
        if "/" in name:
            return self.job.storage.open(name)
        _, path = self.job.storage.find_named(name)
        return self.job.storage.open(path)

    @_using_storage
    def find_state(self, snapshot: Snapshot | str, operator: str, state: str) -> State:
        """Return a state of a snapshot, by uid (or id) of the operator and name of the state.

        Raises:
            NotFoundError: there is no such snapshot, operator or state.
        """
        opened = self.open(snapshot) if isinstance(snapshot, str) else snapshot
        return opened.operator(operator).state(state)

    @_using_storage
    def read_arrow(self, snapshot: Snapshot | str, operator: str, state: str) -> pa.Table:
        """Read a state as an Arrow table; the columns are those of `State.schema`."""
        return self.find_state(snapshot, operator, state).to_arrow()

    def read_pandas(self, snapshot: Snapshot | str, operator: str, state: str) -> pd.DataFrame:
        """Read a state as a pandas frame, in which structs are dictionaries."""
        frame: pd.DataFrame = self.read_arrow(snapshot, operator, state).to_pandas()
        return frame

    def read_polars(self, snapshot: Snapshot | str, operator: str, state: str) -> pl.DataFrame:
        """Read a state as a polars frame; needs polars."""
        import polars as pl

        return pl.DataFrame(self.read_arrow(snapshot, operator, state))

    @_using_storage
    def read_spark(
        self, snapshot: Snapshot | str, operator: str, state: str, spark: SparkResource | None = None
    ) -> DataFrame:
        """Read a state as a Spark frame: the work is split by key groups, and the driver sees no record.

        Args:
            snapshot: the snapshot, or its name as for `open`.
            operator: uid or id.
            state: name of the state.
            spark: the resource, such as `<job>_spark`; by default the active session.
        """
        opened = self.open(snapshot) if isinstance(snapshot, str) else snapshot
        frame: DataFrame = (spark or SparkResource()).read_state(opened, self.find_state(opened, operator, state))
        return frame

    @_using_storage
    def audit(self, snapshot: Snapshot | str, *, whole: bool = False) -> AuditReport:
        """Audit whether a snapshot can be restored: by samples of its state, or with `whole` by all of it."""
        opened = self.open(snapshot) if isinstance(snapshot, str) else snapshot
        return audit_snapshot(opened, Depth.WHOLE if whole else Depth.SAMPLE)

    @_using_storage
    def check(self, snapshot: Snapshot | str, to: str | None = None) -> MigrationCheckReport:
        """Return Flink's verdict on a snapshot in the new job, without the pending revisions and with them.

        Args:
            snapshot: the snapshot, or its name as for `open`.
            to: target revision; by default `migrate_to` of the job.
        """
        from state_pipelines.dagster.assets.snapshots import MigrationConfig, judge_snapshot

        opened = self.open(snapshot) if isinstance(snapshot, str) else snapshot
        return judge_snapshot(self.job, opened, MigrationConfig(to=to))

    @_using_storage
    def migrate(
        self, snapshot: Snapshot | str, target: str, spark: SparkResource | None = None, to: str | None = None
    ) -> MigrationResult:
        """Write a new savepoint after the pending revisions, proven before it is published.

        Args:
            snapshot: the snapshot, or its name as for `open`.
            target: directory of the new savepoint, which must not exist.
            spark: the resource, such as `<job>_spark`; by default the active session.
            to: target revision; by default `migrate_to` of the job.

        Raises:
            UsageError: there are no pending revisions.
            ProofError: the proof failed, and there is no new savepoint.
        """
        from state_pipelines.spark import migrate  # Importing Spark takes seconds.

        opened = self.open(snapshot) if isinstance(snapshot, str) else snapshot
        chain = self.job.revisions.plan(opened, None, to)
        if not chain:
            raise UsageError(f"the snapshot is at {self.job.revisions.name_target(to)}: there are no pending revisions")
        session = (spark or SparkResource()).session
        return migrate(opened, chain, target, allow_sql=True, allow_python=True, spark=session)


class StateTablesIOManager(dg.ConfigurableIOManager):
    """Loads tables of states, as `state_tables` wrote them, into inputs of assets downstream.

    An input names its state in its metadata, `{operator: …, state: …}`, or is an asset of one state (`per: state`). The
    annotation of the argument chooses `pyarrow.Table`, `pandas.DataFrame`, `polars.DataFrame`, a Spark `DataFrame`, or
    `str` for the path of the table. Each job defines it as `<job>_tables`.
    """

    description: str = Field(description="Description of the Flink job, as JSON.")

    @classmethod
    def of(cls, job: FlinkJob) -> StateTablesIOManager:
        """Return the I/O manager of a job."""
        return cls(description=job.model_dump_json(exclude={"webhook"}))

    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        """Refuse: tables of states are written by the asset `state_tables` only.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"{context.asset_key.to_user_string()} cannot be stored among the tables of states",
            hint="Use this I/O manager for inputs only (`input_manager_key`), and another one for outputs",
        )

    def load_input(self, context: dg.InputContext) -> object:
        """Load the table of a state of the snapshot of the run's partition.

        Raises:
            UsageError: the input names no state, or its annotation is none of the known types.
            NotFoundError: the table was not written.
        """
        job = FlinkJob.model_validate_json(self.description)
        metadata = {**_get_upstream(context), **(context.definition_metadata or {})}
        operator, state = (_get_text(metadata, name) for name in ("operator", "state"))
        if not operator or not state:
            raise UsageError(
                f"the input {context.name} names no state",
                hint="Give it metadata, such as dg.AssetIn(…, metadata={'operator': 'orders', 'state': 'order'})",
            )
        path = job.storage.name_table_of(context.partition_key, operator, state)
        with job.using_storage():
            return _read_table(path, context.dagster_type.typing_type, context.name)


def _get_upstream(context: dg.InputContext) -> dict[str, object]:
    upstream = context.upstream_output
    return {} if upstream is None else dict(upstream.definition_metadata or {})


def _get_text(metadata: dict[str, object], name: str) -> str:
    value = metadata.get(name, metadata.get(f"state-pipelines/{name}", ""))
    return str(getattr(value, "value", value))


def _read_table(path: str, wanted: object, name: str) -> object:
    import pyarrow.dataset as ds

    from state_pipelines.storage import resolve
    from state_pipelines.storage.files import list_directory

    kind = f"{getattr(wanted, '__module__', '')}.{getattr(wanted, '__qualname__', '')}"
    if wanted is str:
        return path
    if kind.startswith("pyspark."):
        return SparkResource().session.read.parquet(path)
    location = resolve(path)
    try:
        entries = list_directory(location)
    except MissingFileError:
        raise NotFoundError(
            f"there is no table for the input {name}",
            where=Where(file=path),
            hint="Materialise state_tables for this partition first",
        ) from None
    files = [each.location.path for each in entries if each.location.name.endswith(".parquet")]
    table = ds.dataset(files, filesystem=location.filesystem, format="parquet").to_table()
    if kind.startswith("pyarrow."):
        return table
    if kind.startswith("pandas."):
        return table.to_pandas()
    if kind.startswith("polars."):
        import polars as pl

        return pl.DataFrame(table)
    raise UsageError(
        f"the input {name} has the type {kind}, in which no table of a state can be loaded",
        hint="Annotate it with pyarrow.Table, pandas.DataFrame, polars.DataFrame, a Spark DataFrame, or str",
    )
