"""An idle Dagster instance with 30 Flink jobs of 200 snapshots each: what it costs to load, and to watch.

python -m benchmarks.many_jobs DIRECTORY [MINUTES]
"""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import click
import dagster as dg

from benchmarks.inventory import make_snapshot
from benchmarks.processes import measure_descendants
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.job_settings import Watch

JOBS = 30
SNAPSHOTS = 200
SAVEPOINTS = SNAPSHOTS // 3
"""Of three snapshots one is a savepoint, see `make_snapshot`: they are those that get a partition."""

DERIVED = ("snapshot_profile", "snapshot_diff", "key_group_balance", "restore_audit", "compatibility_report")
MINUTES = 10
QUIET = 120
"""Seconds without an event, after which the first ticks, which open and report everything, are over."""

_ROOT = Path(__file__).resolve().parents[1]
_DEFINITIONS = """
import dagster as dg

from benchmarks.many_jobs import describe_jobs
from state_pipelines.dagster import ExpectationsResource, SparkResource, build_flink_job
from pathlib import Path

resources = {"spark": SparkResource(), "expectations": ExpectationsResource()}
jobs = describe_jobs(Path(__file__).parent)
defs = dg.Definitions.merge(*map(build_flink_job, jobs), dg.Definitions(resources=resources))
"""


def describe_jobs(directory: Path) -> list[FlinkJob]:
    """Return the jobs, with the settings of the scaffold, except that all old savepoints have a partition."""
    return [
        FlinkJob(
            name=f"job_{number}",
            roots=(str(directory / f"snapshots-{number}"),),
            results=str(directory / f"results-{number}"),
            watch=Watch(kinds=("savepoint",), since="all"),
        )
        for number in range(JOBS)
    ]


def prepare(directory: Path) -> None:
    """Make the snapshots, the partitions, and the materialisations that runs of all of them would have left."""
    home = directory / "home"
    if home.exists():
        return
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_text((_ROOT / "dagster.yaml").read_text(), encoding="utf-8")
    (directory / "definitions.py").write_text(_DEFINITIONS, encoding="utf-8")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        for job in describe_jobs(directory):
            for number in range(SNAPSHOTS):
                make_snapshot(Path(job.roots[0]), number)
            inventory = job.storage.update_inventory().inventory
            keys = [each.key for each in inventory if each.kind == "savepoint"][::-1]
            instance.add_dynamic_partitions(str(job.partitions.name), keys)
            for asset in DERIVED:
                for key in keys:
                    instance.report_runless_asset_event(dg.AssetMaterialization(job.key(asset), partition=key))


def measure_events(home: Path) -> int:
    """Return the bytes of all events of the instance, those of runs and those outside of runs."""
    total = 0
    for file in (home / "history").rglob("*.db"):
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
            tables = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
            if "event_logs" in tables:
                total += connection.execute("select coalesce(sum(length(event)), 0) from event_logs").fetchone()[0]
    return total


def measure_load(directory: Path) -> float:
    """Return the CPU seconds of a process that loads the definitions, imports included."""
    code = "import definitions; definitions.defs.get_repository_def().load_all_definitions()"
    environment = os.environ | {"PYTHONPATH": f"{directory}:{_ROOT}", "DAGSTER_HOME": str(directory / "home")}
    before = measure_descendants()
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    return (measure_descendants() - before).total


def count_ticks(home: Path) -> int:
    """Return the number of sensor ticks that have ended."""
    with sqlite3.connect(f"file:{home}/schedules/schedules.db?mode=ro", uri=True) as connection:
        query = "select count(*) from job_ticks where status != 'STARTED'"
        return int(connection.execute(query).fetchone()[0])


def wait_until_quiet(home: Path, ticks: int) -> None:
    """Wait until there were six ticks for each job, and the instance has got no event for a while.

    Args:
        home: directory of the instance.
        ticks: number of ticks before the daemon was started.
    """
    size, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET:
        time.sleep(5)
        if (now := measure_events(home)) != size or count_ticks(home) - ticks < 6 * JOBS:
            size, since = now, time.monotonic()


def measure_idle(directory: Path, minutes: float) -> tuple[float, float]:
    """Return CPU seconds per second of the daemon and its code location, and the events in bytes per hour and job."""
    home = directory / "home"
    environment = os.environ | {"PYTHONPATH": f"{directory}:{_ROOT}", "DAGSTER_HOME": str(home)}
    programs = Path(sys.executable).parent
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # As in a deployment: the code location is a service of its own.
    server = [str(programs / "dagster"), "api", "grpc", "-f", str(directory / "definitions.py"), "-p", port]
    workspace = directory / "workspace.yaml"
    workspace.write_text(f"load_from: [{{grpc_server: {{host: 127.0.0.1, port: {port}, location_name: jobs}}}}]\n")
    daemon = [str(programs / "dagster-daemon"), "run", "-w", str(workspace)]
    ticks = count_ticks(home) if (home / "schedules").exists() else 0
    with (directory / "daemon.log").open("w") as log:
        started = [
            subprocess.Popen(each, env=environment, stdout=log, stderr=log, cwd=directory) for each in (server, daemon)
        ]
        try:
            wait_until_quiet(home, ticks)
            cpu, events, begin = measure_descendants(), measure_events(home), time.monotonic()
            time.sleep(minutes * 60)
            assert all(each.poll() is None for each in started), "a process has ended"
            seconds = time.monotonic() - begin
            used = (measure_descendants() - cpu).total
            # Each job has one report an hour, which may fall outside of the time measured.
            written = (measure_events(home) - events) * 3600 / seconds / JOBS
        finally:
            server_process, daemon_process = started
            daemon_process.send_signal(signal.SIGINT)
            daemon_process.wait(60)
            # Whose signals a shell may have switched off for its background processes; it holds nothing.
            server_process.kill()
            server_process.wait()
    return used / seconds, written


def measure_report(directory: Path) -> int:
    """Return the bytes of the events of one hourly report of a job: its inventory and two checks."""
    with sqlite3.connect(f"file:{directory}/home/history/runs/index.db?mode=ro", uri=True) as connection:
        query = (
            "select length(event), dagster_event_type from event_logs where event like '%job_0%snapshot_inventory%' "
            "and dagster_event_type in ('ASSET_MATERIALIZATION', 'ASSET_CHECK_EVALUATION') order by id desc limit 3"
        )
        rows = connection.execute(query).fetchall()
    assert sorted(kind for _, kind in rows) == [*2 * ["ASSET_CHECK_EVALUATION"], "ASSET_MATERIALIZATION"], rows
    return sum(size for size, _ in rows)


def main(directory: Path, minutes: float) -> None:
    """Prepare the instance where it is not there yet, and print a table."""
    prepare(directory)
    click.echo(f"| {JOBS} jobs, {SNAPSHOTS} snapshots each | |\n| --- | --- |")
    click.echo(f"| load all definitions, CPU s | {measure_load(directory):.1f} |")
    share, written = measure_idle(directory, minutes)
    click.echo(f"| idle for {minutes:g} minutes, CPUs of one core | {share:.3f} |")
    click.echo(f"| events in that time, bytes per hour and job | {written:,.0f} |")
    click.echo(f"| events of one hourly report of an inventory, bytes | {measure_report(directory):,} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), float(sys.argv[2]) if len(sys.argv) > 2 else MINUTES)
