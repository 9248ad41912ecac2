"""Memory of a worker whose state is in RocksDB, by number of keys.

    python -m benchmarks.store_memory [--keys 2000000] [--memory 64mb]

A process writes that many keys, another one ten times as many; both have the same budget for the database
(`taskmanager.memory.managed.size`) and take a checkpoint in the end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.remote import measure_memory
from state_pipelines.backends.keyed_backend import KeyedStateBackend
from state_pipelines.backends.rocksdb_store import MANAGED_SIZE, RocksStore, read_rocksdb_options
from state_pipelines.codecs.layout import LayoutContext
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.serializers.build import VOID_NAMESPACE, basic
from state_pipelines.serializers.state_meta_info import keyed_state


def write(keys: int, memory: str) -> None:
    """Write the keys, and print the memory before and at most in MiB."""
    before = measure_memory()
    with tempfile.TemporaryDirectory() as scratch:
        store = RocksStore(1, Path(scratch) / "store", read_rocksdb_options({MANAGED_SIZE: memory}))
        backend = KeyedStateBackend(store, basic("Long"), KeyGroupRange(0, 128), 128, LayoutContext())
        table = backend.register(keyed_state("value", "VALUE", basic("String"), VOID_NAMESPACE))
        for number in range(keys):
            backend.set_current_key(number)
            table.put(f"the value of the key {number * 2654435761 % 2**32:x}")
        store.checkpoint(Path(scratch) / "checkpoint")
        size = sum(path.stat().st_size for path in (Path(scratch) / "checkpoint").iterdir())
        backend.close()
    print(f"| {keys:,} | {size / 1e6:.0f} | {before // 1024} | {measure_memory() // 1024} |")  # noqa: T201


def main() -> None:
    """Measure both numbers of keys, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--memory", default="64mb")
    parser.add_argument("--run", action="store_true")
    arguments = parser.parse_args()
    if arguments.run:
        write(arguments.keys, arguments.memory)
        return
    print("| keys | MB | MiB of the imports | MiB at most |\n| --- | --- | --- | --- |", flush=True)  # noqa: T201
    for keys in (arguments.keys, 10 * arguments.keys):
        command = [sys.executable, "-m", "benchmarks.store_memory", "--run"]
        subprocess.run([*command, "--keys", str(keys), "--memory", arguments.memory], check=True)


if __name__ == "__main__":
    main()
