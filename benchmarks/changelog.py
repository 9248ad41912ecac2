"""Checkpoints of a changelog against full ones of the same backend, and restores of both.

    python -m benchmarks.changelog [--keys 2000000]

One subtask on a local disk. The first checkpoint writes the base; one key in a hundred changes, and the next checkpoint
uploads the changes, or, in the other row, all state again. Then another subtask restores each of them. CPU is that of
the process.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from state_pipelines.backends.changelog import ChangelogSettings, ChangelogSnapshots, ChangelogStore
from state_pipelines.backends.entry_store import HeapStore
from state_pipelines.backends.keyed_backend import KeyedStateBackend
from state_pipelines.backends.rocksdb_store import RocksStore
from state_pipelines.codecs.layout import LayoutContext
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.serializers.build import VOID_NAMESPACE, basic
from state_pipelines.serializers.state_meta_info import keyed_state
from state_pipelines.snapshot.handle_readers import HandleReader
from state_pipelines.storage import PathMapping, resolve

_STATE = keyed_state("value", "VALUE", basic("String"), VOID_NAMESPACE)
_KEY_GROUPS = KeyGroupRange(0, 128)


def _open(store: HeapStore | RocksStore | ChangelogStore) -> KeyedStateBackend:
    return KeyedStateBackend(store, basic("Long"), _KEY_GROUPS, 128, LayoutContext())


def _change(backend: KeyedStateBackend, keys: int, step: int, text: str) -> None:
    table = backend.register(_STATE)
    for number in range(0, keys, step):
        backend.set_current_key(number)
        table.put(f"{text} of the key {number * 2654435761 % 2**32:x}")


def measure(name: str, keys: int, scratch: Path) -> None:
    """Print a row of each checkpoint and of its restore."""
    stores = (RocksStore(1, scratch / f"{name}-{number}") if name == "rocksdb" else HeapStore(1) for number in range(9))
    store = ChangelogStore(next(stores))
    backend = _open(store)
    snapshots = ChangelogSnapshots(backend, store, settings=ChangelogSettings(None))
    directory = resolve(str(scratch / f"{name}-checkpoints"))
    Path(directory.path).mkdir()
    _change(backend, keys, 1, "the first value")
    snapshots.write(1, directory, directory)
    snapshots.complete(1)
    _change(backend, keys, 100, "another value")
    for number, full in ((2, False), (3, True)):
        started, wall = time.process_time(), time.monotonic()
        written = snapshots.write(number, directory, directory, full=full)
        spent = time.process_time() - started, time.monotonic() - wall
        started = time.process_time()
        file = HandleReader(directory, PathMapping().allow([directory.path])).open_keyed(
            written.handle, backend.context
        )
        assert file is not None
        other = _open(next(stores))
        other.restore([file])
        restored = time.process_time() - started
        table = other.register(_STATE)
        other.set_current_key(100)
        assert table.get() == "another value of the key " + format(100 * 2654435761 % 2**32, "x")
        other.close()
        kind = "all state" if full else "the changes"
        print(f"| {name} | {kind} | {written.size / 1e6:.1f} | {spent[0]:.2f} | {spent[1]:.2f} | {restored:.2f} |")  # noqa: T201
    backend.close()


def main() -> None:
    """Measure both backends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=2_000_000)
    keys = parser.parse_args().keys
    print("| backend | checkpoint of | MB | CPU s | s | CPU s of the restore |")  # noqa: T201
    print("| --- | --- | --- | --- | --- | --- |")  # noqa: T201
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("hashmap", "rocksdb"):
            measure(name, keys, Path(scratch))


if __name__ == "__main__":
    main()
