"""A subtask that is restored from the files on its worker, against one that downloads them.

    python -m benchmarks.local_backup [--form rocksdb] [--keys 500000] [--latency 0.03] [--rounds 3]

Both restore the same checkpoint, by turns, from the S3 server of the benchmarks. Of `rocksdb`, an incremental one, each
reads one key and takes the next checkpoint after one key in a hundred has changed; `heap` and `changelog` (over the
heap: a base with all keys, and a log of all keys) are restored only.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.s3_server import start_objects
from state_pipelines.backends.changelog import ChangelogSnapshots, ChangelogStore
from state_pipelines.backends.entry_store import HeapStore
from state_pipelines.backends.keyed_backend import KeyedStateBackend
from state_pipelines.backends.rocksdb_store import RocksStore
from state_pipelines.backends.snapshots import IncrementalSnapshots, LocalBackup, write_full_snapshot
from state_pipelines.codecs.layout import LayoutContext
from state_pipelines.datastream.operators import DatabaseFiles, KeyedHandles, RestoredState
from state_pipelines.keyed.keyed_file import RecordContext
from state_pipelines.metadata.handles import IncrementalRemoteKeyedStateHandle, KeyGroupRange
from state_pipelines.operations.write.keyed_rewrite import Format
from state_pipelines.serializers.build import VOID_NAMESPACE, basic
from state_pipelines.serializers.state_meta_info import keyed_state
from state_pipelines.snapshot.handle_readers import HandleReader
from state_pipelines.storage import PathMapping, resolve
from state_pipelines.storage.resolution import use_storage_options

if TYPE_CHECKING:
    from benchmarks.s3_server import S3Server
    from state_pipelines.backends.entry_store import EntryStore
    from state_pipelines.metadata.handles import KeyedStateHandle

BUCKET = "s3://benchmark"
_STATE = keyed_state("value", "VALUE", basic("String"), VOID_NAMESPACE)
_KEY_GROUPS = KeyGroupRange(0, 128)


def _open(store: EntryStore) -> KeyedStateBackend:
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


def _write_first(form: str, keys: int, scratch: Path, backup: LocalBackup) -> RestoredState:
    """Write a checkpoint with all keys and copies of its files; the state of it, as the driver opens it."""
    store: EntryStore = RocksStore(1, scratch / "first") if form == "rocksdb" else HeapStore(1)
    backend = _open(ChangelogStore(store) if form == "changelog" else store)
    _change(backend, keys, 1, "the first value")
    directory = resolve(f"{BUCKET}/chk-1")
    if isinstance(backend.store, RocksStore):
        handle: KeyedStateHandle | None = _write(IncrementalSnapshots(backend, backend.store, backup=backup), 1)
    else:
        with backup.write_copies(1):
            if isinstance(backend.store, ChangelogStore):
                snapshots = ChangelogSnapshots(backend, backend.store)
                snapshots.write(0, directory, directory)
                snapshots.complete(0)
                _change(backend, keys, 1, "the second value")
                handle = snapshots.write(1, directory, directory).handle
            else:
                handle = write_full_snapshot(backend, Format.HEAP, directory, "state", 1).handle
        backup.keep_written(1, handle, directory, -1)
    backend.close()
    assert handle is not None
    mapping = PathMapping().allow([BUCKET])
    context = RecordContext(128, LayoutContext())
    file = HandleReader(directory, mapping).open_keyed(handle, context)
    assert file is not None
    databases = None
    if isinstance(handle, IncrementalRemoteKeyedStateHandle):
        databases = DatabaseFiles((handle,), directory, mapping)
    return RestoredState(
        (file,),
        (None,),
        context,
        1,
        databases=databases,
        handles=KeyedHandles((handle,), directory, mapping),
    )


def measure(server: S3Server, form: str, keys: int, rounds: int, scratch: Path) -> None:
    """Print a row of each restore, and, of RocksDB, of each of the two next checkpoints."""
    use_storage_options({BUCKET: server.options})
    backup = LocalBackup.open([str(scratch / "kept")], "0" * 32, bytes(16), _KEY_GROUPS)
    restored = _write_first(form, keys, scratch, backup)
    copies = [path for path in (scratch / "kept").rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in copies)
    print(f"{form}, {keys:,} keys, {size / 1e6:.1f} MB in {len(copies)} files")  # noqa: T201
    print("| restored from | requests | MB down | CPU s | s |")  # noqa: T201
    print("| --- | --- | --- | --- | --- |")  # noqa: T201
    for number in range(rounds):
        for name, kept in (("storage", None), ("worker", backup)):
            server.clear()
            directory = scratch / f"{name}-{number}"
            backend = _open(RocksStore(1, directory) if restored.databases else HeapStore(1))
            started, cpu = time.monotonic(), time.process_time()
            snapshots = None
            if restored.databases is not None and isinstance(backend.store, RocksStore):
                snapshots = restored.databases.restore(backend, backend.store, restored.context, kept)
            else:
                backend.restore(restored.find_files(_KEY_GROUPS, kept))
            seconds, cpu = time.monotonic() - started, time.process_time() - cpu
            print(  # noqa: T201
                f"| {name} | {len(server.requests)} | {server.received / 1e6:.1f} | {cpu:.2f} | {seconds:.2f} |"
            )
            if number == rounds - 1 and kept is None and snapshots is not None:
                _compare(snapshots, backend, keys)
            backend.close()


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
    parser.add_argument("--form", choices=["rocksdb", "heap", "changelog"], default="rocksdb")
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--latency", type=float, default=0.03)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with start_objects({"benchmark/empty": b"-"}) as server, tempfile.TemporaryDirectory() as scratch:
        server.latency = arguments.latency
        measure(server, arguments.form, arguments.keys, arguments.rounds, Path(scratch))


if __name__ == "__main__":
    main()
