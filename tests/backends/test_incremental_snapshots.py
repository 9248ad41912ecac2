from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.backends.keyed_backend import KeyedStateBackend
from state_pipelines.backends.rocksdb_store import RocksStore, read_rocksdb_options
from state_pipelines.backends.snapshots import IncrementalSnapshots, restore_incremental
from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.errors import StateError
from state_pipelines.keyed.key_groups import compute_key_group_range
from state_pipelines.keyed.keyed_file import RecordContext, digest_states
from state_pipelines.metadata.handles import FileStateHandle, IncrementalRemoteKeyedStateHandle, KeyGroupRange
from state_pipelines.serializers.build import VOID_NAMESPACE, basic
from state_pipelines.serializers.state_meta_info import keyed_state
from state_pipelines.snapshot.handle_readers import HandleReader
from state_pipelines.storage import PathMapping, parse_path_mapping, resolve
from tests.backends.test_keyed_backend import sum_digests
from tests.snapshots import Case, select

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LAYOUTS = LayoutContext()
STRING, LONG = basic("String"), basic("Long")
VALUE = keyed_state("value", "VALUE", LONG, VOID_NAMESPACE)
ALL = KeyGroupRange(0, 128)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Callable[[int], RocksStore]]:
    made: list[RocksStore] = []

    def make(prefix: int = 1) -> RocksStore:
        made.append(RocksStore(prefix, tmp_path / f"store-{len(made)}"))
        return made[-1]

    yield make
    for store in made:
        store.close()


def make_backend(store: RocksStore) -> KeyedStateBackend:
    return KeyedStateBackend(store, STRING, ALL, 128, LAYOUTS)


def put(backend: KeyedStateBackend, first: int, last: int) -> None:
    table = backend.register(VALUE)
    for number in range(first, last):
        backend.set_current_key(f"key-{number}")
        table.put(number)


def write(
    snapshots: IncrementalSnapshots, path: Path, number: int, *, full: bool = False
) -> tuple[IncrementalRemoteKeyedStateHandle, int]:
    (path / f"chk-{number}").mkdir()
    (path / "shared").mkdir(exist_ok=True)
    written = snapshots.write(number, resolve(str(path / f"chk-{number}")), resolve(str(path / "shared")), full=full)
    assert isinstance(written.handle, IncrementalRemoteKeyedStateHandle)
    return written.handle, written.size


def shared_urls(handle: IncrementalRemoteKeyedStateHandle) -> set[str]:
    return {each.handle.path for each in handle.shared_state if isinstance(each.handle, FileStateHandle)}


def count_entries(handle: IncrementalRemoteKeyedStateHandle, path: Path) -> int:
    reader = HandleReader(resolve(str(path / f"chk-{handle.checkpoint_id}")), PathMapping())
    file = reader.open_keyed(handle, RecordContext(128, LAYOUTS))
    assert file is not None
    return digest_states(file, ALL)["value"].records


@pytest.mark.slow
def test_only_new_tables_are_uploaded(stores: Callable[[], RocksStore], tmp_path: Path) -> None:
    store = stores()
    backend = make_backend(store)
    snapshots = IncrementalSnapshots(backend, store)
    put(backend, 0, 20_000)
    first, whole = write(snapshots, tmp_path, 1)
    snapshots.complete(1)
    put(backend, 0, 200)
    second, added = write(snapshots, tmp_path, 2)
    assert shared_urls(first) < shared_urls(second)
    assert second.backend_identifier == first.backend_identifier
    assert second.persisted_size == added < 0.2 * whole
    assert count_entries(first, tmp_path) == count_entries(second, tmp_path) == 20_000
    files = [path.stat().st_size for path in tmp_path.glob("shared/*")]
    assert len(files) == len(shared_urls(second))


def test_tables_are_shared_with_completed_snapshots_only(stores: Callable[[], RocksStore], tmp_path: Path) -> None:
    store = stores()
    backend = make_backend(store)
    snapshots = IncrementalSnapshots(backend, store)
    put(backend, 0, 10)
    first, _ = write(snapshots, tmp_path, 1)
    second, _ = write(snapshots, tmp_path, 2)
    assert not shared_urls(first) & shared_urls(second)
    snapshots.abort(1)
    snapshots.complete(1)
    third, _ = write(snapshots, tmp_path, 3)
    assert not (shared_urls(first) | shared_urls(second)) & shared_urls(third)
    snapshots.complete(3)
    fourth, _ = write(snapshots, tmp_path, 4)
    assert shared_urls(third) <= shared_urls(fourth)
    full, _ = write(snapshots, tmp_path, 5, full=True)
    assert not shared_urls(full) & shared_urls(fourth)


def test_a_restored_store_goes_on_from_the_tables(stores: Callable[[], RocksStore], tmp_path: Path) -> None:
    store = stores()
    backend = make_backend(store)
    snapshots = IncrementalSnapshots(backend, store)
    put(backend, 0, 5000)
    handle, whole = write(snapshots, tmp_path, 1)
    again_store = stores()
    again = make_backend(again_store)
    going_on = restore_incremental(
        again, again_store, [handle], HandleReader(resolve(str(tmp_path / "chk-1")), PathMapping())
    )
    put(again, 5000, 5010)
    second, added = write(going_on, tmp_path, 2)
    assert second.backend_identifier == handle.backend_identifier
    assert shared_urls(handle) < shared_urls(second)
    assert added < whole / 2
    assert count_entries(second, tmp_path) == 5010
    assert count_entries(handle, tmp_path) == 5000
    # A table is linked, not copied.
    (table,) = [
        path
        for path in again_store.directory.glob("db/*.sst")
        if path.name in {each.local_path for each in handle.shared_state}
    ]
    assert table.stat().st_nlink > 1


def test_a_failed_upload_leaves_nothing(stores: Callable[[], RocksStore], tmp_path: Path) -> None:
    store = stores()
    backend = make_backend(store)
    put(backend, 0, 10)
    snapshots = IncrementalSnapshots(backend, store)
    (tmp_path / "shared").mkdir()
    (tmp_path / "chk-1").touch()
    with pytest.raises(StateError):
        snapshots.write(1, resolve(str(tmp_path / "chk-1")), resolve(str(tmp_path / "shared")))
    assert list((tmp_path / "shared").iterdir()) == []
    assert not list(store.directory.glob("chk-*"))
    (tmp_path / "chk-1").unlink()
    handle, _ = write(snapshots, tmp_path, 1)
    assert count_entries(handle, tmp_path) == 10


def test_without_state_there_is_no_handle(stores: Callable[[], RocksStore], tmp_path: Path) -> None:
    store = stores()
    written = IncrementalSnapshots(make_backend(store), store).write(1, resolve(str(tmp_path)), resolve(str(tmp_path)))
    assert (written.handle, written.size) == (None, 0)
    assert {path.name for path in tmp_path.iterdir()} == {"store-0"}


# Opening databases waits for the disk: those of two releases are enough.
NAMES = ("rocksdb-incremental", "rocksdb-native")
FLINKS = [each for line in ("1.20", "2.2") for each in select(line) if each.case in NAMES]


@pytest.mark.parametrize(("threshold", "is_taken_over"), [("0.5", True), ("0.51", False)])
def test_a_database_is_taken_over_where_enough_of_it_is_wanted(
    stores: Callable[[], RocksStore], tmp_path: Path, threshold: str, is_taken_over: bool
) -> None:
    store = stores()
    backend = make_backend(store)
    put(backend, 0, 300)
    handle, _ = write(IncrementalSnapshots(backend, store), tmp_path, 1)
    options = read_rocksdb_options({"state.backend.rocksdb.restore-overlap-fraction-threshold": threshold})
    found = 0
    for subtask in range(2):
        half = RocksStore(1, tmp_path / f"half-{subtask}", options)
        again = KeyedStateBackend(half, STRING, compute_key_group_range(subtask, 2, 128), 128, LAYOUTS)
        reader = HandleReader(resolve(str(tmp_path / "chk-1")), PathMapping().allow([str(tmp_path)]))
        restore_incremental(again, half, [handle], reader)
        # Records that were written are still in memory.
        assert bool(list(half.directory.rglob("*.sst"))) is is_taken_over
        found += len(list(again.register(VALUE).keys()))
        half.close()
    assert found == 300


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize("case", FLINKS, ids=str)
def test_databases_of_real_flink_are_taken_over(
    case: Case, parallelism: int, stores: Callable[[int], RocksStore], tmp_path: Path
) -> None:
    snapshot, restored = case.open_told(), 0
    reader = HandleReader(snapshot.location.directory, parse_path_mapping(case.path_mapping))
    for operator in snapshot.operators:
        handles = [each.managed_keyed_state for each in operator.metadata.subtasks]
        found = [each for each in handles if isinstance(each, IncrementalRemoteKeyedStateHandle)]
        if not found:
            continue
        context, everything = operator.record_context, KeyGroupRange(0, operator.max_parallelism)
        files = [file for _, file in operator.keyed_files]
        before = sum_digests([digest_states(file, everything) for file in files])
        after = []
        for subtask in range(parallelism):
            store = stores(context.prefix)
            groups = compute_key_group_range(subtask, parallelism, operator.max_parallelism)
            key = files[0].header.key_serializer
            backend = KeyedStateBackend(store, key, groups, operator.max_parallelism, context.layouts)
            going_on = restore_incremental(backend, store, found, reader)
            after.append(digest_states(backend.as_file(), groups))
            path = tmp_path / f"{operator.metadata.operator_id.hex()}-{subtask}"
            path.mkdir()
            handle, _ = write(going_on, path, 1000)
            # Without the mapping: tables of the restored snapshot are named by where they are now.
            allowed = PathMapping().allow([str(case.folder)])
            again = HandleReader(resolve(str(path / "chk-1000")), allowed).open_keyed(handle, context)
            assert again is not None
            assert digest_states(again, groups) == after[-1]
        assert sum_digests(after) == before
        restored += sum(digest.records for digest in before.values())
    assert restored
