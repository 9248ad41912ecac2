"""A script of SQL that makes Flink keep state of every kind, run in the cluster inside one Java process."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from state_pipelines.metadata import compute_operator_id
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import StateKind
from state_pipelines.snapshot import open_snapshot
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.sql import Plan, list_operators
from state_pipelines.sql.planner import FlinkJars, start_java
from tests.flink.harness import ROOT, install_formats, install_libraries

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = ROOT / "tests/data/sql/plans/queries.sql"
UPSERT = "INSERT INTO up SELECT cid, SUM(amount) FROM o GROUP BY cid"
SETTINGS = {
    "execution.target": "local",
    "rest.port": "0",
    "rest.bind-port": "0",
    "taskmanager.memory.network.min": "256mb",
    "taskmanager.memory.network.max": "256mb",
    "parallelism.default": "1",
    "restart-strategy.type": "none",
    "state.backend.type": "hashmap",
    "taskmanager.numberOfTaskSlots": "1",
}


def link_home(version: str, directory: Path) -> Path:
    """A directory with the jars of a Flink, as an installed one has them."""
    lib = directory / f"flink-{version}" / "lib"
    lib.mkdir(parents=True)
    for jar in {*install_libraries(version).jars, *install_formats(version).jars}:
        (lib / jar.name).symlink_to(jar)
    return lib.parent


def read_script(version: str) -> str:
    """The script; 2.3 wants to be told what becomes of conflicts in a sink."""
    text = SCRIPT.read_text()
    assert UPSERT in text
    return text.replace(UPSERT, f"{UPSERT} ON CONFLICT DO DEDUPLICATE") if version.startswith("2.3") else text


def run_plan(flink: FlinkJars, plan: str, directory: Path) -> str:
    """Run a plan until it has started, and stop it with a savepoint; gives the path of that."""
    with start_java(flink.paths) as java:
        from py4j.protocol import Py4JJavaError

        configuration = java.org.apache.flink.configuration.Configuration()
        for key, value in SETTINGS.items():
            configuration.setString(key, value)
        streams = java.org.apache.flink.streaming.api.environment.StreamExecutionEnvironment
        tables = java.org.apache.flink.table.api.bridge.java.StreamTableEnvironment
        environment = tables.create(streams.getExecutionEnvironment(configuration))
        reference = java.org.apache.flink.table.api.PlanReference.fromJsonString(plan)
        client = environment.loadPlan(reference).execute().getJobClient().get()
        canonical = java.org.apache.flink.core.execution.SavepointFormatType.CANONICAL
        while str(client.getJobStatus().get()) in ("INITIALIZING", "CREATED", "RUNNING"):
            # Refused until all tasks run.
            with contextlib.suppress(Py4JJavaError):
                return str(client.stopWithSavepoint(False, str(directory), canonical).get()).removeprefix("file:")
        raise RuntimeError(f"the job is {client.getJobStatus().get()}")


def list_stored(savepoint: str) -> dict[str, list[Any]]:
    """By `operator id/state` of the keyed states of a savepoint: kind, and serializers of key, namespace and value."""
    return {
        f"{operator.id}/{state.name}": [
            str(state.kind),
            describe(state.key_serializer),
            describe(state.info.namespace_serializer),
            describe(state.info.value_serializer),
        ]
        for operator in open_snapshot(savepoint).operators
        for state in operator.states
        if isinstance(state, KeyedState) and state.kind != StateKind.TIMER
    }


def list_planned(plan: Plan) -> dict[str, list[Any]]:
    """The same as a plan says it."""
    return {
        f"{compute_operator_id(operator.uid).hex()}/{state.name}": [
            str(state.kind),
            operator.key.describe(),
            state.namespace,
            state.describe(),
        ]
        for operator in list_operators(plan)
        for state in operator.states
        if operator.key is not None
    }
