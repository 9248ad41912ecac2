"""Listings, a tick of the sensor and plans of retention over 1,000 checkpoints with 100,000 objects on S3.

    python -m benchmarks.large_root DIRECTORY [--latency 0.03] [WORK...]

The store is `benchmarks.s3_server.start_objects`, which counts requests; each work runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.remote import measure_memory
from benchmarks.s3_server import S3Server, start_objects
from state_pipelines.metadata import read_metadata, replace_stream_handles, write_metadata
from state_pipelines.metadata.handles import FileStateHandle
from state_pipelines.storage.resolution import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.metadata import StreamReference
    from state_pipelines.metadata.handles import StreamStateHandle

BUCKET = "flink"
ROOT = f"s3://{BUCKET}/checkpoints"
CHECKPOINTS = 1_000
JOBS = 3
OBJECTS = 100_000
FRESH = 10
"""A checkpoint shares its files with those of the same ten, as after a compaction."""

_TOP = Path(__file__).resolve().parents[1]
_SOURCE = max((_TOP / "tests/data/types/flink-2.2/rocksdb-incremental").glob("**/_metadata"))


def make_objects() -> dict[str, bytes]:
    """Checkpoints with metadata of Flink, the files that they share, and orphans up to `OBJECTS`."""
    objects: dict[str, bytes] = {}
    metadata = read_metadata(_SOURCE.read_bytes(), str(_SOURCE))
    for number in range(CHECKPOINTS):
        job = f"{number % JOBS:032x}"

        def rename(reference: StreamReference, job: str = job, number: int = number) -> StreamStateHandle:
            handle = reference.handle
            if not isinstance(handle, FileStateHandle):
                return handle
            name = uuid.uuid5(uuid.NAMESPACE_URL, f"{job}/{number // FRESH}/{handle.path}")
            objects[f"{BUCKET}/checkpoints/{job}/shared/{name}"] = b"state"
            return FileStateHandle(f"{ROOT}/{job}/shared/{name}", handle.size)

        own = replace_stream_handles(replace(metadata, checkpoint_id=number), rename)
        objects[f"{BUCKET}/checkpoints/{job}/chk-{number}/_metadata"] = write_metadata(own)
    for number in range(OBJECTS - len(objects)):
        name = uuid.uuid5(uuid.NAMESPACE_OID, str(number))
        objects[f"{BUCKET}/checkpoints/{number % JOBS:032x}/shared/{name}"] = b"state"
    return objects


def _list_files(_: Path) -> str:
    from state_pipelines.storage import list_files, resolve

    return f"{sum(1 for _ in list_files(resolve(ROOT))):,} files"


def _find_snapshots(_: Path) -> str:
    from state_pipelines.storage import resolve
    from state_pipelines.storage.snapshot_writer import find_snapshots

    return f"{sum(1 for _ in find_snapshots(resolve(ROOT))):,} snapshots"


def _tick(directory: Path) -> str:
    import dagster as dg

    from state_pipelines.dagster import FlinkJob
    from state_pipelines.dagster.sensors import build_new_snapshots

    job = FlinkJob(name="bench", roots=(ROOT,), results=str(directory / "results"))
    cursor = directory / "cursor"
    before = cursor.read_text() if cursor.exists() else None
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_sensor_context(instance=instance, cursor=before) as context,
    ):
        result = build_new_snapshots(job)(context)
    assert isinstance(result, dg.SensorResult)
    cursor.write_text(result.cursor or "")
    added = sum(len(each.partition_keys) for each in result.dynamic_partitions_requests or ())
    return f"{added} partitions"


def _plan(policy: dict[str, object] | None) -> Callable[[Path], str]:
    def plan(_: Path) -> str:
        from state_pipelines.operations.retention import plan_retention

        result = plan_retention(ROOT, policy, min_age=timedelta(0))
        return f"{len(result.delete):,} of {len(result.delete) + len(result.keep):,} paths go"

    return plan


WORKS: dict[str, tuple[str, Callable[[Path], str]]] = {
    "files": ("`list_files`", _list_files),
    "snapshots": ("`find_snapshots`", _find_snapshots),
    "first-tick": ("first tick of the sensor", _tick),
    "tick": ("the tick after it", _tick),
    "orphans": ("`plan_retention`, orphans only", _plan(None)),
    "policy": ("`plan_retention`, the last 100 of each job stay", _plan({"keep": {"last": 100}})),
}


def measure(name: str, server: S3Server, directory: Path) -> None:
    """Run one work in a process of its own and print a row of the table."""
    server.clear()
    environment = os.environ | {VARIABLE: json.dumps({f"s3://{BUCKET}": server.options})}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.large_root", str(directory), "--run", name]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, cwd=_TOP)
    result = json.loads(done.stdout.splitlines()[-1])
    print(  # noqa: T201
        f"| {WORKS[name][0]} | {result['result']} | {len(server.requests):,} | {server.most} | {result['cpu']:.1f} "
        f"| {result['seconds']:.1f} | {result['memory']:,} |"
    )


def run(name: str, directory: Path) -> None:
    """Do one work in this process and print its result as JSON."""
    before = measure_memory()
    started, spent = time.monotonic(), time.process_time()
    result = WORKS[name][1](directory)
    figures = {"seconds": time.monotonic() - started, "cpu": time.process_time() - spent}
    grown = (measure_memory() - before) // 1024
    print(json.dumps({"result": result, "memory": grown, **figures}))  # noqa: T201


def main() -> None:
    """Measure the works that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="for the inventory and the cursor; its content is replaced")
    parser.add_argument("works", nargs="*", metavar="WORK", help=", ".join(WORKS))
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--run", choices=WORKS)
    arguments = parser.parse_args()
    if arguments.run:
        run(arguments.run, arguments.directory)
        return
    arguments.directory.mkdir(parents=True)
    with start_objects(make_objects(), datetime.now(UTC) - timedelta(days=30)) as server:
        server.latency = arguments.latency
        print("| work | result | requests | in flight | CPU s | s | MiB more |")  # noqa: T201
        print("| --- | --- | --- | --- | --- | --- | --- |")  # noqa: T201
        for name in arguments.works or WORKS:
            measure(name, server, arguments.directory)


if __name__ == "__main__":
    main()
