"""A code location of 30 Flink jobs with 200 snapshots each: how long it takes to load, and a tick of each sensor.

    python -m benchmarks.company DIRECTORY

Every job has 200 copies of the savepoint of `examples/orders` under checkpoint ids of their own, partitions for all of
them, and the events of three assets for half of them, in an instance on SQLite.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import dagster as dg
import yaml

from state_pipelines.metadata import read_metadata, write_metadata
from state_pipelines.operations.inventory import update_inventory
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph

JOBS = 30
SNAPSHOTS = 200
MATERIALISED = ("snapshot_profile", "restore_audit", "compatibility_report")
"""Assets with an event for every second snapshot."""

TICKED = 5
"""Jobs whose `new_snapshots` and `requests` are evaluated: each of one job, whatever the number of jobs."""

_TOP = Path(__file__).resolve().parents[1]
_SAVEPOINT = _TOP / "examples/orders/savepoints/flink-2.2/savepoint-df4606-efe91b44c091"
_MODULE = "company.definitions"
_DEFINITIONS = """from pathlib import Path

import dagster as dg

from resources import EXECUTOR, RESOURCES

defs = dg.Definitions.merge(
    dg.load_from_defs_folder(path_within_project=Path(__file__).parent),
    dg.Definitions(resources=RESOURCES, executor=EXECUTOR),
)
"""
_PROJECT = """[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "company"
"""


def name_job(number: int) -> str:
    """Name of a Flink job."""
    return f"job_{number:02}"


def make_project(directory: Path) -> None:
    """Write the code location and the snapshots of its jobs."""
    package = directory / "company"
    (package / "defs").mkdir(parents=True)
    (directory / "pyproject.toml").write_text(_PROJECT)
    (package / "definitions.py").write_text(_DEFINITIONS)
    for file in (package / "__init__.py", package / "defs/__init__.py"):
        file.touch()
    metadata = read_metadata((_SAVEPOINT / "_metadata").read_bytes(), str(_SAVEPOINT))
    for number in range(JOBS):
        name = name_job(number)
        for each in range(SNAPSHOTS):
            target = directory / "snapshots" / name / f"savepoint-{number:06x}-{each:012x}"
            target.mkdir(parents=True)
            for file in _SAVEPOINT.iterdir():
                if file.name != "_metadata":
                    shutil.copy2(file, target)
            own = replace(metadata, checkpoint_id=number * SNAPSHOTS + each)
            (target / "_metadata").write_bytes(write_metadata(own))
        job = {
            "name": name,
            "roots": [str(directory / "snapshots" / name)],
            "results": str(directory / "results" / name),
            "requests": str(directory / "requests" / name),
            "migrations": str(_TOP / "examples/orders/migrations"),
        }
        component = package / "defs" / name / "defs.yaml"
        component.parent.mkdir()
        component.write_text(yaml.safe_dump({"type": "state_pipelines.dagster.FlinkJobComponent", "attributes": job}))


def fill_instance(directory: Path, instance: dg.DagsterInstance) -> None:
    """Register partitions and record materialisations."""
    for number in range(JOBS):
        name = name_job(number)
        update = update_inventory([resolve(str(directory / "snapshots" / name))])
        keys = list(update.inventory.keys)
        instance.add_dynamic_partitions(f"{name}_snapshots", keys)
        for asset in MATERIALISED:
            for key in keys[::2]:
                event = dg.AssetMaterialization(dg.AssetKey([name, asset]), partition=key)
                instance.report_runless_asset_event(event)


def load_server(directory: Path) -> None:
    """Start a code server, wait until it has loaded the definitions, and end it."""
    from dagster._grpc.client import DagsterGrpcClient

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [*_dagster(), "api", "grpc", "--host", "127.0.0.1", "--port", str(port), "-m", _MODULE, "-d", "."]
    server = subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        client = DagsterGrpcClient(host="127.0.0.1", port=port)
        while not _is_open(port):
            if server.poll() is not None:
                raise click.ClickException(f"the code server ended with {server.returncode}")
            time.sleep(0.1)
        # Answered when the definitions are loaded.
        client.list_repositories()
    finally:
        server.terminate()
        server.wait()


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def validate(directory: Path) -> None:
    """Validate the code location, as a deployment does before it starts."""
    command = [*_dagster(), "definitions", "validate", "-m", _MODULE, "-d", "."]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


def tick(repository: dg.RepositoryDefinition, name: str, instance: dg.DagsterInstance, cursors: dict[str, str]) -> None:
    """Evaluate a sensor once."""
    sensor = repository.get_sensor_def(name)
    with dg.build_sensor_context(instance=instance, cursor=cursors.get(name)) as context:
        result = sensor(context)
    assert isinstance(result, dg.SensorResult)
    cursors[name] = result.cursor or ""


def _dagster() -> tuple[str, ...]:
    return sys.executable, "-W", "ignore", "-m", "dagster"


def _measure(what: str, works: Iterable[Callable[[], None]]) -> None:
    """Print seconds of CPU, children included, and of the clock: medians and most."""
    cpu, clock = [], []
    for work in works:
        before, start = os.times(), time.perf_counter()
        work()
        spent = os.times()
        clock.append(time.perf_counter() - start)
        cpu.append(sum(spent[:4]) - sum(before[:4]))
    figures = (statistics.median(cpu), max(cpu), statistics.median(clock), max(clock))
    click.echo(f"| {what} | " + " | ".join(f"{each:.2f}" for each in figures) + " |")


def main(directory: Path) -> None:
    """Make the project where it is not there yet, and print a table."""
    directory = directory.resolve()
    home = directory / "home"
    os.environ["DAGSTER_HOME"] = str(home)
    os.environ["PYTHONPATH"] = f"{directory}{os.pathsep}{_TOP}"
    sys.path.insert(0, str(directory))
    is_new = not directory.exists()
    if is_new:
        make_project(directory)
        home.mkdir()
        (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with dg.DagsterInstance.get() as instance:
        if is_new:
            fill_instance(directory, instance)
        click.echo("| work | CPU s | most | s | most |\n| --- | --- | --- | --- | --- |")
        _measure("`dagster definitions validate`", (lambda: validate(directory) for _ in range(3)))
        _measure("a code server, until it serves", (lambda: load_server(directory) for _ in range(3)))
        measure_ticks(instance)


def measure_ticks(instance: dg.DagsterInstance) -> None:
    """Print the rows of the sensors."""
    from company.definitions import defs  # type: ignore[import-not-found]

    repository = defs.get_repository_def()
    cursors: dict[str, str] = {}
    names = [name_job(number) for number in range(TICKED)]

    def ticks(sensor: str) -> Iterator[Callable[[], None]]:
        return (partial(tick, repository, f"{name}_{sensor}", instance, cursors) for name in names)

    _measure("first tick of `new_snapshots`, 50 of 200 snapshots", ticks("new_snapshots"))
    for _ in range(SNAPSHOTS // 50 - 1):
        for work in ticks("new_snapshots"):
            work()
    _measure("tick of `new_snapshots`, nothing is new", ticks("new_snapshots"))
    _measure("tick of `requests`", ticks("requests"))
    automation = Automation(repository.asset_graph, instance, {})
    for what in (
        f"first evaluation of `automation`, which requests {SNAPSHOTS + 1} runs",
        "the next evaluation of `automation`",
    ):
        _measure(what, (partial(automation.evaluate, name_job(number)) for number in range(JOBS)))
    automation.evaluate_all()
    _measure(
        f"an evaluation of `automation` of all {JOBS} jobs, nothing is new", (automation.evaluate_all for _ in range(3))
    )


@dataclass(frozen=True)
class Automation:
    """Evaluations of the sensors `automation`, as by Dagster's daemon, with serialized cursors but no records of ticks.

    `dg.evaluate_automation_conditions` takes several times as long: it reads the partitions again for each condition.
    """

    graph: BaseAssetGraph[Any]
    instance: dg.DagsterInstance
    cursors: dict[str, str]

    def evaluate(self, name: str) -> None:
        """Evaluate the conditions of a job."""
        from dagster._core.definitions.asset_daemon_cursor import AssetDaemonCursor
        from dagster._core.definitions.automation_tick_evaluation_context import AutomationTickEvaluationContext
        from dagster._daemon import asset_daemon

        stored = self.cursors.get(name)
        cursor = (
            AssetDaemonCursor.empty()
            if stored is None
            else asset_daemon.asset_daemon_cursor_from_instigator_serialized_cursor(stored, self.graph)
        )
        context = AutomationTickEvaluationContext(
            evaluation_id=cursor.evaluation_id + 1,
            instance=self.instance,
            asset_graph=self.graph,
            cursor=cursor,
            materialize_run_tags={},
            observe_run_tags={},
            auto_observe_asset_keys=set(),
            asset_selection=dg.AssetSelection.groups(name),
            logger=logging.getLogger("automation"),
            emit_backfills=False,
        )
        _, new, _ = context.evaluate()
        self.cursors[name] = asset_daemon.asset_daemon_cursor_to_instigator_serialized_cursor(new)

    def evaluate_all(self) -> None:
        """Evaluate the conditions of every job."""
        for number in range(JOBS):
            self.evaluate(name_job(number))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
