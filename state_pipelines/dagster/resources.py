"""Spark as a Dagster resource: one session per process, started when it is first used."""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import ConfigDict, Field, PrivateAttr, field_validator

from state_pipelines.snapshot.declarations import KINDS
from state_pipelines.storage.resolution import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.operations.local_processes import Work
    from state_pipelines.snapshot import Snapshot, State
    from state_pipelines.snapshot.snapshot_files import OperatorFiles


_MEMORY = re.compile(r"[1-9][0-9]*[kmgt]?", re.ASCII | re.IGNORECASE)
_PER_OPERATOR = ("key_serializers", "connectors", "python_types")


class SparkResource(dg.ConfigurableResource["SparkResource"]):
    """A Spark session with the data sources `flink-state` and `flink-state-metadata`."""

    model_config = ConfigDict(extra="forbid")

    cores: int = Field(
        default=0, ge=0, description="Number of concurrent tasks of a local master; 0 for all cores of the process."
    )
    memory: str = Field(
        default="2g",
        description="Heap of the driver JVM, such as 2g; Python workers need memory besides.",
    )
    master: str = Field(default="", description="Spark master, such as spark://host:7077; local by default.")
    conf: dict[str, str] = Field(default={}, description="Further Spark options; they override the fields above.")
    _session: Any = PrivateAttr(default=None)

    @field_validator("memory", mode="before")
    @classmethod
    def _check_memory(cls, memory: object) -> object:
        # The value of an environment variable is validated when it is read.
        if isinstance(memory, str) and not isinstance(memory, dg.EnvVar) and not _MEMORY.fullmatch(memory):
            raise ValueError(f"{memory!r} is no size of a heap: write a number with k, m, g or t, such as 2g")
        return memory

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[SparkResource]:
        """Stop the session at the end of the run, unless it existed before."""
        try:
            yield self
        finally:
            if self._session is not None:
                self._session.stop()
                self._session = None

    def run_tasks(self, tasks: Sequence[Work[Any]], what: str) -> list[Any]:
        """Run tasks of an operation, as its argument `run`; the session starts when there are some.

        Raises:
            StateError: a task failed.
        """
        from state_pipelines.spark.tasks import run_tasks

        return run_tasks(self.session, tasks, what) if tasks else []

    @property
    def session(self) -> SparkSession:
        """The active session of this process, or a new one.

        Raises:
            UsageError: no Java runtime that Spark supports was found.
        """
        from state_pipelines.spark import create_session, register  # Importing Spark takes seconds.
        from state_pipelines.spark.session import SparkSession

        active: SparkSession | None = SparkSession.getActiveSession()
        if active is None:
            conf = {"spark.master": self.master} if self.master else {}
            if VARIABLE in os.environ:
                conf[f"spark.executorEnv.{VARIABLE}"] = os.environ[VARIABLE]
            active = self._session = create_session(
                "state-pipelines", cores=self.cores or None, memory=self.memory, conf=conf | self.conf
            )
        register(active)
        return active

    def read_state(self, snapshot: Snapshot, state: State, *, raw: bool = False) -> DataFrame:
        """Return a state as a DataFrame; with `raw`, keys and values are bytes."""
        reader = self.session.read.format("flink-state").option("path", snapshot.path)
        mapping = snapshot.path_mapping
        reader = reader.option("pathMapping", json.dumps([f"{old}={new}" for old, new in mapping.rules]))
        reader = reader.option("allowRoots", json.dumps(mapping.roots))
        for kind in KINDS:
            texts = snapshot.declarations.texts.get(kind.name, ())
            if kind.name in _PER_OPERATOR:
                # The data source rejects operators that the snapshot lacks; a job declares those of all its snapshots.
                texts = tuple(text for text in texts if _is_about(text, state.operator))
            reader = reader.option(kind.spark_option, kind.separator.join(texts))
        reader = reader.option("raw", str(raw).lower())
        return reader.option("operatorId", state.operator.id).option("stateVarName", state.name).load()


def _is_about(text: str, operator: OperatorFiles) -> bool:
    """Return whether a declaration (`OPERATOR=…`, `OPERATOR.STATE=…`, or a file) concerns an operator."""
    path, equals, _ = text.partition("=")
    names = {operator.id, operator.label, operator.uid}
    return not equals or path in names or path.rpartition(".")[0] in names
