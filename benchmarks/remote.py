"""Works on an S3 store that takes 30 ms for each request: requests and bytes, counted outside of the product.

    python -m benchmarks.remote [--latency 0.03] [--keys 1000000] [--max-parallelism 128] [WORK...]
    python -m benchmarks.remote --latency 0.4 --repeat 3 files-count-heap files-diff-heap

The store is `benchmarks.s3_server.start_objects` in this process, which delays and counts requests; each operation runs
in its own process. Seconds are an upper bound: the server is Python and has the same processors. Roots of many objects
are the subject of `benchmarks.large_root`. With `--repeat` each work runs as often with the latency and without any,
and what is printed is the difference of the shortest times, in round trips.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import uuid
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.generate import generate
from benchmarks.s3_server import Content, S3Server, start_objects
from benchmarks.shapes import Shape
from state_pipelines import convert, dump, open_snapshot, rescale
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.operations.diff.diff import diff
from state_pipelines.operations.inspect import inspect
from state_pipelines.snapshot.snapshot import open_location
from state_pipelines.storage import resolve
from state_pipelines.storage.resolution import VARIABLE
from state_pipelines.storage.snapshot_writer import find_snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BUCKET = "benchmark"
SNAPSHOTS = 200
_ROOT = Path(__file__).resolve().parents[1]
_FILES = _ROOT / "tests/data/types/flink-2.2/rocksdb-native"
_CHANGES = _ROOT / "tests/data/types/flink-2.2/changelog-rocksdb-materialized"
_CACHE = _ROOT / ".cache"
_FORMATS = {"keys": "canonical", "rocks": "rocksdb-native", "heap": "heap-native"}
"""Format of each snapshot with many keys."""

_SUBTASKS = 100
"""Subtasks of the snapshots with 20,000 keys in many small files: `files-canonical`, `files-heap`, `files-rocks`."""


def _open(name: str) -> str:
    return str(open_snapshot(f"s3://{BUCKET}/{name}").checkpoint_id)


def _read(name: str) -> str:
    states = open_snapshot(f"s3://{BUCKET}/{name}").operator("bench").keyed_states
    rows = sum(len(batch) for state in states[:1] for batch in state.batches(TableOptions(columns=("state_key",))))
    return f"{rows:,} rows of one state"


def _read_one(name: str) -> str:
    state = open_snapshot(f"s3://{BUCKET}/{name}").operator("bench").keyed_states[0]
    key = os.environ["BENCHMARK_KEY"]
    return f"{len(state.to_arrow(TableOptions(key=key)))} row"


def _read_one_by_command(name: str) -> str:
    from click.testing import CliRunner

    from state_pipelines.cli import main

    path, key = f"s3://{BUCKET}/{name}", os.environ["BENCHMARK_KEY"]
    state = os.environ["BENCHMARK_STATE"]
    arguments = ["read", path, "--operator", "bench", "--state", state, "--key", key, "--json"]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    return f"{len(result.stdout.splitlines())} row"


def _read_one_by_spark(name: str) -> str:
    from pyspark.sql import SparkSession

    from state_pipelines.spark import register

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    register(spark)
    reader = spark.read.format("flink-state").option("path", f"s3://{BUCKET}/{name}").option("operatorId", "bench")
    reader = reader.option("stateVarName", os.environ["BENCHMARK_STATE"]).option("key", os.environ["BENCHMARK_KEY"])
    return f"{len(reader.load().collect())} row"


def _read_all(name: str) -> str:
    operator = open_snapshot(f"s3://{BUCKET}/{name}").operator("bench")
    return f"{sum(len(batch) for _, batch in operator.batches_by_state()):,} rows of all states"


def _diff(names: str) -> str:
    one, other = (open_snapshot(f"s3://{BUCKET}/{name}") for name in names.split("+"))
    return "the same contents" if diff(one, other).same_contents else "other contents"


def _inspect_changes(name: str) -> str:
    case = json.loads((_CHANGES / "case.json").read_text())
    mapping = [f"file:{case['written']}=s3://{BUCKET}/{name}"]
    report = inspect(open_snapshot(f"s3://{BUCKET}/{name}/{case['snapshot']}", path_mapping=mapping), count=True)
    return f"{sum(state.entries or 0 for operator in report.operators for state in operator.states):,} entries"


def _count(name: str) -> str:
    report = inspect(open_snapshot(f"s3://{BUCKET}/{name}"), count=True)
    return f"{sum(state.entries or 0 for operator in report.operators for state in operator.states):,} entries"


def _keep(name: str) -> str:
    return f"{convert(f's3://{BUCKET}/{name}', f's3://{BUCKET}/kept', 'keep').copied} files"


def _rescale(name: str, *, parallelism: int | None = None, max_parallelism: int | None = None) -> str:
    source, target = f"s3://{BUCKET}/{name}", f"s3://{BUCKET}/{uuid.uuid4()}"
    path = rescale(source, target, parallelism=parallelism, max_parallelism=max_parallelism, prove=False).path
    (operator,) = open_snapshot(path).operators
    return f"{operator.parallelism} subtasks, {operator.max_parallelism} key groups"


def _dump(name: str) -> str:
    return f"{sum(1 for _ in dump(open_snapshot(f's3://{BUCKET}/{name}'))):,} lines"


def _list_snapshots(name: str) -> str:
    return f"{sum(1 for _ in find_snapshots(resolve(f's3://{BUCKET}/{name}')))} snapshots"


def _read_metadata(name: str) -> str:
    from concurrent.futures import ThreadPoolExecutor

    found = [entry.location for entry in find_snapshots(resolve(f"s3://{BUCKET}/{name}"))]
    with ThreadPoolExecutor(16) as pool:
        return f"{len(list(pool.map(open_location, found)))} snapshots"


WORKS: dict[str, tuple[str, Callable[[str], str], str]] = {
    "open": ("open", _open, "keys"),
    "one-key": ("one key, canonical", _read_one, "keys"),
    "one-key-heap": ("one key, heap", _read_one, "heap"),
    "one-key-rocks": ("one key, RocksDB", _read_one, "rocks"),
    "one-key-command": ("`read --key`, RocksDB", _read_one_by_command, "rocks"),
    "one-key-spark": ("option `key` of Spark, RocksDB", _read_one_by_spark, "rocks"),
    "read": ("keys of one state, canonical", _read, "keys"),
    "read-all": ("all columns of two states, canonical", _read_all, "keys"),
    "read-heap": ("all columns of two states, heap", _read_all, "heap"),
    "read-rocks": ("all columns of two states, RocksDB", _read_all, "rocks"),
    "count": ("counts of `inspect`, two states", _count, "keys"),
    "count-heap": ("counts of `inspect`, heap", _count, "heap"),
    "count-rocks": ("counts of `inspect`, RocksDB", _count, "rocks"),
    "diff": ("`diff` of canonical and RocksDB", _diff, "keys+rocks"),
    "changes": ("counts of `inspect`, changelog", _inspect_changes, "changes"),
    "dump": ("`dump`, two states, canonical", _dump, "small"),
    **{
        f"files-{work}-{name}": (f"{text}, {_SUBTASKS} files", run, f"files-{name}")
        for name in ("canonical", "heap", "rocks")
        for work, text, run in (
            ("read", f"all columns, {name}", _read_all),
            ("count", f"counts of `inspect`, {name}", _count),
            ("dump", f"`dump`, {name}", _dump),
        )
    },
    **{
        f"files-diff-{name}": (f"`diff` with itself, {name}, {_SUBTASKS} files", _diff, f"files-{name}+files-{name}")
        for name in ("canonical", "heap", "rocks")
    },
    "keep": ("`convert --format keep`, RocksDB", _keep, "files"),
    "parallelism": ("`rescale --parallelism 3 --no-proof`", partial(_rescale, parallelism=3), "keys"),
    "max-parallelism": ("`rescale --max-parallelism 1024 --no-proof`", partial(_rescale, max_parallelism=1024), "keys"),
    "list": (f"list {SNAPSHOTS} snapshots of 10 objects", _list_snapshots, "many"),
    "metadata": ("list them and open each", _read_metadata, "many"),
}


def prepare(keys: int, max_parallelism: int, works: Sequence[str]) -> tuple[dict[str, Content], str, str]:
    """The objects for some works, by key; a state of the snapshots with many keys, and a key that they hold.

    Args:
        keys: of the large snapshots.
        max_parallelism: of the large snapshots; few key groups are large ones.
        works: names of the works.
    """
    wanted = {name for work in works for name in WORKS[work][2].split("+")}
    objects: dict[str, Content] = {}
    found = ("", "")
    for name in sorted(wanted & _FORMATS.keys()):
        source = _generate(keys, Shape(format=_FORMATS[name], max_parallelism=max_parallelism))
        objects |= _map_files(name, source)
        state = open_snapshot(str(source)).operator("bench").keyed_states[0]
        batch = next(state.batches(TableOptions(columns=("state_key",)), KeyGroupRange(0, 1)))
        found = state.name, str(batch.column("state_key")[0].as_py())
    for name, format in {"canonical": "canonical", "heap": "heap-native", "rocks": "rocksdb-native"}.items():
        if f"files-{name}" in wanted:
            objects |= _map_files(f"files-{name}", _generate(20_000, Shape(format=format, parallelism=_SUBTASKS)))
    if "small" in wanted:
        objects |= _map_files("small", _generate(20_000, Shape()))
    if "files" in wanted:
        # 531 files: five of each subtask, and the metadata.
        shape = Shape(format="rocksdb-native", states=("value",), parallelism=106)
        objects |= _map_files("files", _generate(20_000, shape))
    if "changes" in wanted:
        files = [path for path in _CHANGES.rglob("*") if path.is_file() and path.parent != _CHANGES]
        objects |= {f"changes/{path.relative_to(_CHANGES)}": path.read_bytes() for path in files}
    if "many" in wanted:
        (small,) = _FILES.glob("savepoint-*")
        metadata = (small / "_metadata").read_bytes()
        for number in range(SNAPSHOTS):
            names = (f"{each:08x}-0000" for each in range(9))
            objects |= {f"many/job/chk-{number}/{each}": b"state" for each in names}
            objects[f"many/job/chk-{number}/_metadata"] = metadata
    return objects, *found


def _generate(keys: int, shape: Shape) -> Path:
    source = _CACHE / f"remote-{keys}-{shape.format}-{shape.parallelism}-{shape.max_parallelism}"
    if not source.exists():
        generate(str(source), keys, shape)
    return source


def _map_files(name: str, source: Path) -> dict[str, Content]:
    found: dict[str, Content] = {}
    for path in source.iterdir():
        with path.open("rb") as file:
            found[f"{name}/{path.name}"] = mmap(file.fileno(), 0, access=ACCESS_READ)
    return found


def measure(name: str, server: S3Server, stored: int, state: str, key: str) -> None:
    """Run one work in a process of its own and print a row of the table; `stored` is bytes of its files."""
    options = json.dumps({f"s3://{BUCKET}": server.options})
    environment = os.environ | {VARIABLE: options, "BENCHMARK_KEY": key, "BENCHMARK_STATE": state}
    server.clear()
    result = _start(name, environment)
    sent = sum(each for _, _, each, _ in server.requests)
    print(  # noqa: T201
        f"| {WORKS[name][0]} | {result['result']} | {len(server.requests):,} | {server.received / 1e6:.1f} "
        f"| {server.received / stored:.2f} | {sent / 1e6:.1f} | {server.most} | {result['cpu']:.1f} "
        f"| {result['seconds']:.1f} | {result['memory']:,} |"
    )


def _start(name: str, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.remote", "--run", name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=_ROOT)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def compare(name: str, server: S3Server, latency: float, repeat: int) -> None:
    """Print what the latency adds to a work, in round trips, and the seconds that these are with 30 ms."""
    environment = os.environ | {VARIABLE: json.dumps({f"s3://{BUCKET}": server.options})}
    shortest = {0.0: float("inf"), latency: float("inf")}
    for _ in range(repeat):
        for server.latency in shortest:
            server.clear()
            shortest[server.latency] = min(shortest[server.latency], float(_start(name, environment)["seconds"]))
    trips = (shortest[latency] - shortest[0.0]) / latency
    print(f"| {WORKS[name][0]} | {len(server.requests):,} | {trips:.1f} | {trips * 0.03:.2f} |")  # noqa: T201


def run(name: str) -> None:
    """Do one work in this process and print its result as JSON."""
    _, work, snapshot = WORKS[name]
    before = measure_memory()
    started, spent = time.monotonic(), time.process_time()
    result = work(snapshot)
    figures = {"seconds": time.monotonic() - started, "cpu": time.process_time() - spent}
    grown = measure_memory() - before
    print(json.dumps({"result": result, "memory": grown // 1024, **figures}))  # noqa: T201


def measure_memory() -> int:
    """Most memory of this process so far in KiB; `getrusage` would include the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def main() -> None:
    """Measure the works that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("works", nargs="*", metavar="WORK", help=", ".join(WORKS))
    parser.add_argument("--latency", type=float, default=0.03)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--max-parallelism", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=0)
    parser.add_argument("--run", choices=WORKS)
    arguments = parser.parse_args()
    if arguments.run:
        run(arguments.run)
        return
    works = arguments.works or list(WORKS)
    objects, state, key = prepare(arguments.keys, arguments.max_parallelism, works)
    with start_objects({f"{BUCKET}/{name}": content for name, content in objects.items()}) as server:
        server.latency = arguments.latency
        if arguments.repeat:
            print("| work | requests | round trips | s with 30 ms each |\n| --- | --- | --- | --- |")  # noqa: T201
            for name in works:
                compare(name, server, arguments.latency, arguments.repeat)
            return
        print("| work | result | requests | MB down | of the files | MB up | in flight | CPU s | s | MiB |")  # noqa: T201
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")  # noqa: T201
        for name in works:
            folders = tuple(f"{each}/" for each in WORKS[name][2].split("+"))
            stored = sum(len(content) for each, content in objects.items() if each.startswith(folders))
            measure(name, server, stored, state, key)


if __name__ == "__main__":
    main()
