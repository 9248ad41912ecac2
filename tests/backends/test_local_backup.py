from __future__ import annotations

import logging
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from state_pipelines.backends import snapshots as local_backup
from state_pipelines.backends.snapshots import IncrementalSnapshots, LocalBackup, restore_incremental
from state_pipelines.errors import SnapshotGoneError, UsageError
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.snapshot.handle_readers import HandleReader
from state_pipelines.storage import PathMapping, resolve
from tests.backends.test_incremental_snapshots import ALL, VALUE, make_backend, put, stores, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from state_pipelines.backends.rocksdb_store import RocksStore
    from state_pipelines.metadata.handles import IncrementalRemoteKeyedStateHandle

__all__ = ["stores"]
JOB, OPERATOR = "0" * 32, b"\1" * 16


@pytest.fixture
def backup(tmp_path: Path) -> LocalBackup:
    return LocalBackup.open([str(tmp_path / "disk")], JOB, OPERATOR, ALL)


def restore(
    store: RocksStore, handle: IncrementalRemoteKeyedStateHandle, path: Path, backup: LocalBackup | None
) -> tuple[list[object], IncrementalSnapshots]:
    """Values of a few keys in a store that is restored, and its next snapshots."""
    backend = make_backend(store)
    reader = HandleReader(resolve(str(path / f"chk-{handle.checkpoint_id}")), PathMapping())
    snapshots = restore_incremental(backend, store, [handle], reader, backup=backup)
    table, values = backend.register(VALUE), []
    for number in (0, 77, 299):
        backend.set_current_key(f"key-{number}")
        values.append(table.get())
    return values, snapshots


def remove_uploads(path: Path) -> None:
    for each in (*path.glob("shared/*"), *path.glob("chk-*/*")):
        each.unlink()


def test_restores_without_the_uploaded_files(
    stores: Callable[[], RocksStore], tmp_path: Path, backup: LocalBackup
) -> None:
    store = stores()
    backend = make_backend(store)
    snapshots = IncrementalSnapshots(backend, store, backup=backup)
    put(backend, 0, 200)
    write(snapshots, tmp_path, 1)
    snapshots.complete(1)
    put(backend, 200, 300)
    handle, _ = write(snapshots, tmp_path, 2)
    remove_uploads(tmp_path)
    with pytest.raises(SnapshotGoneError):
        restore(stores(), handle, tmp_path, None)
    # Tables of the checkpoint before are among those of this one.
    values, _ = restore(stores(), handle, tmp_path, backup)
    assert values == [0, 77, 299]


def test_goes_on_from_a_backup(stores: Callable[[], RocksStore], tmp_path: Path, backup: LocalBackup) -> None:
    store = stores()
    backend = make_backend(store)
    put(backend, 0, 300)
    first, _ = write(IncrementalSnapshots(backend, store, backup=backup), tmp_path, 1)
    again = stores()
    _, snapshots = restore(again, first, tmp_path, backup)
    second, _ = write(snapshots, tmp_path, 2)
    urls = [{str(each.handle) for each in handle.shared_state} for handle in (first, second)]
    # The uploaded tables are referenced, not their copies.
    assert urls[0] <= urls[1]
    assert not [url for url in urls[1] if "disk" in url]
    remove_uploads(tmp_path)
    values, _ = restore(stores(), second, tmp_path, backup)
    assert values == [0, 77, 299]


def test_keeps_the_snapshot_and_the_last_completed_one(
    stores: Callable[[], RocksStore], tmp_path: Path, backup: LocalBackup
) -> None:
    store = stores()
    backend = make_backend(store)
    snapshots = IncrementalSnapshots(backend, store, backup=backup)
    for number, completed in ((1, True), (2, False), (3, True), (4, False)):
        put(backend, 0, 10 * number)
        write(snapshots, tmp_path, number)
        if completed:
            snapshots.complete(number)
    assert sorted(path.name for path in backup.directory.iterdir()) == ["chk-3", "chk-4"]


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_copy_that_is_not_whole_is_downloaded(
    stores: Callable[[], RocksStore], tmp_path: Path, backup: LocalBackup, damage: str
) -> None:
    store = stores()
    backend = make_backend(store)
    put(backend, 0, 300)
    handle, _ = write(IncrementalSnapshots(backend, store, backup=backup), tmp_path, 1)
    for path in backup.directory.glob("chk-1/*"):
        path.unlink()
        if damage == "short":
            path.write_bytes(b"short")
    values, _ = restore(stores(), handle, tmp_path, backup)
    assert values == [0, 77, 299]


def test_copies_where_disks_differ(
    stores: Callable[[], RocksStore], tmp_path: Path, backup: LocalBackup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object, target: object) -> None:
        raise OSError("Invalid cross-device link")

    store = stores()
    backend = make_backend(store)
    put(backend, 0, 300)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        handle, _ = write(IncrementalSnapshots(backend, store, backup=backup), tmp_path, 1)
    remove_uploads(tmp_path)
    values, _ = restore(stores(), handle, tmp_path, backup)
    assert values == [0, 77, 299]


def test_a_snapshot_outlives_its_backup(
    stores: Callable[[], RocksStore], tmp_path: Path, backup: LocalBackup, caplog: pytest.LogCaptureFixture
) -> None:
    store = stores()
    backend = make_backend(store)
    put(backend, 0, 300)
    (tmp_path / "disk" / JOB).write_text("in the way")
    with caplog.at_level(logging.WARNING, local_backup.__name__):
        handle, _ = write(IncrementalSnapshots(backend, store, backup=backup), tmp_path, 1)
    assert "no local backup of checkpoint 1" in caplog.text
    values, _ = restore(stores(), handle, tmp_path, backup)
    assert values == [0, 77, 299]


def test_subtasks_are_divided_among_the_directories(tmp_path: Path) -> None:
    roots = [str(tmp_path / "a"), str(tmp_path / "b")]
    found = [LocalBackup.open(roots, JOB, OPERATOR, KeyGroupRange(start, 1)).directory for start in range(3)]
    assert [path.relative_to(tmp_path).parts[0] for path in found] == ["a", "b", "a"]
    assert len(set(found)) == 3


def test_the_default_directory_belongs_to_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    top = LocalBackup.open([], JOB, OPERATOR, ALL).directory.parents[2]
    assert top.parent == tmp_path
    assert top.stat().st_mode & 0o777 == 0o700
    shutil.move(top, tmp_path / "other")
    top.symlink_to(tmp_path / "other")
    with pytest.raises(UsageError, match="belongs to another user"):
        LocalBackup.open([], JOB, OPERATOR, ALL)


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="no directory for local backups"):
        LocalBackup.open([str(tmp_path / "file" / "below")], JOB, OPERATOR, ALL)
