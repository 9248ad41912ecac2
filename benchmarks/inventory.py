"""The inventory of 1,000 snapshots, ticks of the sensor over them, and a code location of 30 jobs.

python -m benchmarks.inventory DIRECTORY
"""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import dagster as dg

from state_pipelines.dagster import ExpectationsResource, FlinkJob, SparkResource, build_flink_job
from state_pipelines.dagster.sensors import build_new_snapshots
from state_pipelines.metadata import read_metadata, write_metadata
from state_pipelines.operations.inventory import find_snapshot, update_inventory
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

SNAPSHOTS = 1_000
JOBS = 3
FLINK_JOBS = 30
SHARED = 20
"""Files in `shared/` for each snapshot, which no listing may visit."""

TYPES = Path(__file__).resolve().parents[1] / "tests/data/types/flink-2.2"
CASES = ("rocksdb-incremental", "heap-checkpoint", "rocksdb")


def make_snapshot(root: Path, number: int) -> None:
    """A copy of a small snapshot of Flink under a checkpoint id of its own; its files of state are copies."""
    case = CASES[number % JOBS]
    source = min((TYPES / case).glob("**/_metadata"))
    job = f"{number % JOBS:032x}"
    target = root / f"savepoint-{job[-6:]}-{number:012x}" if case == "rocksdb" else root / job / f"chk-{number}"
    target.mkdir(parents=True)
    for file in source.parent.iterdir():
        if file != source:
            shutil.copy2(file, target)
    metadata = read_metadata(source.read_bytes(), str(source))
    (target / "_metadata").write_bytes(write_metadata(replace(metadata, checkpoint_id=number)))
    shared = root / job / "shared"
    shared.mkdir(parents=True, exist_ok=True)
    for each in range(SHARED):
        (shared / f"{number}-{each}").touch()


def measure(what: str, work: Callable[[], object]) -> None:
    """Print seconds of CPU and of the clock."""
    cpu, clock = time.process_time(), time.perf_counter()
    result = work()
    click.echo(f"| {what} | {time.process_time() - cpu:.2f} | {time.perf_counter() - clock:.2f} | {result} |")


def load_jobs(directory: Path) -> int:
    """Build and resolve the definitions of many jobs in one code location; returns the number of snapshots opened."""
    jobs = [
        FlinkJob(name=f"job_{each}", roots=(str(directory / "snapshots"),), results=str(directory / f"results-{each}"))
        for each in range(FLINK_JOBS)
    ]
    resources = {"spark": SparkResource(), "expectations": ExpectationsResource()}
    defs = dg.Definitions.merge(*map(build_flink_job, jobs), dg.Definitions(resources=resources))
    dg.Definitions.validate_loadable(defs)
    return 0


def main(directory: Path) -> None:
    """Make the snapshots where they are not there yet, and print a table."""
    root, store = resolve(str(directory / "snapshots")), resolve(str(directory / "inventory.parquet"))
    if not Path(root.path).exists():
        for number in range(SNAPSHOTS):
            make_snapshot(Path(root.path), number)
    Path(store.path).unlink(missing_ok=True)
    click.echo("| work | CPU s | s | snapshots opened |\n| --- | --- | --- | --- |")

    def update() -> int:
        return len(update_inventory([root], store).new)

    measure("first update", update)
    measure("update, nothing is new", update)
    number = len(update_inventory([root], store).inventory)
    make_snapshot(Path(root.path), number)
    measure("update, one snapshot is new", update)
    keys = update_inventory([root], store).inventory.keys
    measure("open a snapshot by its key", lambda: len([find_snapshot(keys[0], [root], store)]))
    job = FlinkJob(name="bench", roots=(root.path,), results=str(directory / "results"))
    sensor = build_new_snapshots(job)
    cursor = None
    with dg.DagsterInstance.ephemeral() as instance:

        def tick() -> int:
            nonlocal cursor
            with dg.build_sensor_context(instance=instance, cursor=cursor) as context:
                result = sensor(context)
            assert isinstance(result, dg.SensorResult)
            cursor = result.cursor
            return sum(len(each.partition_keys) for each in result.dynamic_partitions_requests or ())

        measure("first tick of the sensor, 50 partitions", tick)
        while tick():
            pass
        measure("tick, nothing is new", tick)
        make_snapshot(Path(root.path), number + 1)
        measure("tick, one snapshot is new", tick)
    measure(f"definitions of {FLINK_JOBS} jobs", lambda: load_jobs(directory))
    click.echo(f"\n{len(keys):,} snapshots; the inventory is a file of {Path(store.path).stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
