"""A subtask that is restored from the files on its worker, against one that downloads them.

    python -m benchmarks.local_backup [--keys 500000] [--latency 0.03] [--rounds 3]

Both restore the same incremental checkpoint of RocksDB, by turns, from the S3 server of the benchmarks; then each reads
one key and takes the next checkpoint after one key in a hundred has changed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.s3_server import start_objects
from state_pipelines.backends.incremental_restore import restore_incremental
from state_pipelines.backends.incremental_snapshots import IncrementalSnapshots
from state_pipelines.backends.keyed_backend import KeyedStateBackend
from state_pipelines.backends.local_backup import LocalBackup
from state_pipelines.backends.rocksdb_store import RocksStore
from state_pipelines.codecs.layout_context import LayoutContext
from state_pipelines.metadata.key_groups import KeyGroupRange
from state_pipelines.metadata.keyed_handles import IncrementalRemoteKeyedStateHandle
from state_pipelines.serializers.build import VOID_NAMESPACE, basic
from state_pipelines.serializers.state_meta_info import keyed_state
from state_pipelines.snapshot.handle_readers import HandleReader
from state_pipelines.storage import PathMapping, resolve
from state_pipelines.storage.options import use_storage_options

if TYPE_CHECKING:
    from benchmarks.s3_server import S3Server

BUCKET = "s3://benchmark"
_STATE = keyed_state("value", "VALUE", basic("String"), VOID_NAMESPACE)
_KEY_GROUPS = KeyGroupRange(0, 128)


def _open(store: RocksStore) -> KeyedStateBackend:
    return KeyedStateBackend(store, basic("Long"), _KEY_GROUPS, 128, LayoutContext())


def _change(backend: KeyedStateBackend, keys: int, step: int, text: str) -> None:
    table = backend.register(_STATE)
    for number in range(0, keys, step):
        backend.set_current_key(number)
        table.put(f"{text} of the key {number * 2654435761 % 2**32:x}")


def _write(snapshots: IncrementalSnapshots, number: int, *, full: bool = False) -> IncrementalRemoteKeyedStateHandle:
    directory = resolve(f"{BUCKET}/chk-{number}")
    handle = snapshots.write(number, directory, resolve(f"{BUCKET}/shared"), full=full).handle
    assert isinstance(handle, IncrementalRemoteKeyedStateHandle)
    return handle


def measure(server: S3Server, keys: int, rounds: int, scratch: Path) -> None:
    """Print a row of each restore, and of each of the two next checkpoints."""
    use_storage_options({BUCKET: server.options})
    backup = LocalBackup.open([str(scratch / "kept")], "0" * 32, bytes(16), _KEY_GROUPS)
    store = RocksStore(1, scratch / "first")
    backend = _open(store)
    _change(backend, keys, 1, "the first value")
    first = _write(IncrementalSnapshots(backend, store, backup=backup), 1)
    store.close()
    print(f"{keys:,} keys, {(first.persisted_size or 0) / 1e6:.1f} MB in {len(first.shared_state)} tables")  # noqa: T201
    print("| restored from | requests | MB down | s |")  # noqa: T201
    print("| --- | --- | --- | --- |")  # noqa: T201
    for number in range(rounds):
        for name, kept in (("storage", None), ("worker", backup)):
            server.clear()
            store = RocksStore(1, scratch / f"{name}-{number}")
            backend = _open(store)
            started = time.monotonic()
            reader = HandleReader(resolve(f"{BUCKET}/chk-1"), PathMapping())
            snapshots = restore_incremental(backend, store, [first], reader, backup=kept)
            seconds = time.monotonic() - started
            print(f"| {name} | {len(server.requests)} | {server.received / 1e6:.1f} | {seconds:.2f} |")  # noqa: T201
            if number == rounds - 1 and kept is None:
                _compare(snapshots, backend, keys)
            store.close()


def _compare(snapshots: IncrementalSnapshots, backend: KeyedStateBackend, keys: int) -> None:
    """Print bytes and seconds of an incremental checkpoint after one key in a hundred changed, and of a full one."""
    _change(backend, keys, 100, "another value")
    for number, full in ((2, False), (3, True)):
        started = time.monotonic()
        handle = _write(snapshots, number, full=full)
        seconds, size = time.monotonic() - started, (handle.persisted_size or 0) / 1e6
        print(f"| {'full' if full else 'incremental'} checkpoint | | {size:.1f} up | {seconds:.2f} |")  # noqa: T201


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--latency", type=float, default=0.03)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with start_objects({"benchmark/empty": b"-"}) as server, tempfile.TemporaryDirectory() as scratch:
        server.latency = arguments.latency
        measure(server, arguments.keys, arguments.rounds, Path(scratch))


if __name__ == "__main__":
    main()
