"""Spark: one session per run, started by the first asset that needs it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field, PrivateAttr

from resources.environment import read_variable
from state_pipelines.snapshot.declarations import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.snapshot import Snapshot, State


class SparkResource(dg.ConfigurableResource["SparkResource"]):
    """A Spark session with the data sources `flink-state` and `flink-state-metadata`."""

    cores: int = Field(default=0, description="Tasks at a time; 0 takes as many as this process may use.")
    memory: str = Field(default="2g", description="Heap of the JVM; Python workers come on top.")
    conf: dict[str, str] = Field(
        default={}, description="Further options of Spark, such as `spark.master`; they win over the others."
    )
    _session: Any = PrivateAttr(default=None)

    @classmethod
    def from_environment(cls) -> SparkResource:
        """The resource as the environment variables describe it."""
        cores = int(read_variable("STATE_PIPELINES_SPARK_CORES"))
        return cls(cores=cores, memory=read_variable("STATE_PIPELINES_SPARK_MEMORY"))

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[SparkResource]:
        """Stop the session at the end of the run, if it was started here."""
        try:
            yield self
        finally:
            if self._session is not None:
                self._session.stop()
                self._session = None

    @property
    def session(self) -> SparkSession:
        """The session; the first call starts it, unless this process has one already.

        Raises:
            UsageError: there is no Java that Spark can run on.
        """
        from state_pipelines.spark import create_session, register  # starting Spark takes seconds, so nobody else pays
        from state_pipelines.spark.session import SparkSession

        active: SparkSession | None = SparkSession.getActiveSession()
        if active is None:
            active = self._session = create_session(
                "state-pipelines", cores=self.cores or None, memory=self.memory, conf=self.conf
            )
        register(active)
        return active

    def read_state(self, snapshot: Snapshot, state: State, *, raw: bool = False) -> DataFrame:
        """A state as a frame; `raw` leaves keys and values as bytes."""
        reader = self.session.read.format("flink-state").option("path", snapshot.path)
        rules = snapshot.path_mapping.rules
        reader = reader.option("pathMapping", ",".join(f"{old}={new}" for old, new in rules))
        for kind in KINDS:
            texts = snapshot.declarations.texts.get(kind.name, ())
            reader = reader.option(kind.spark_option, kind.separator.join(texts))
        reader = reader.option("raw", str(raw).lower())
        return reader.option("operatorId", state.operator.id).option("stateVarName", state.name).load()
