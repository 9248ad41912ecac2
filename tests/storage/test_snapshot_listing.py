from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from state_pipelines.storage import resolve
from state_pipelines.storage.snapshot_writer import find_snapshots
from tests.storages import CountedFileSystem, empty_counted

if TYPE_CHECKING:
    from pathlib import Path


def put(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"12345")


def paths(root: Path, **options: object) -> list[str]:
    found = find_snapshots(resolve(str(root)), **options)  # type: ignore[arg-type]
    return [entry.location.directory.path.removeprefix(str(root)).lstrip("/") for entry in found]


def test_checkpoints_and_savepoints_are_found_by_path(tmp_path: Path) -> None:
    put(tmp_path, "job/chk-2/_metadata", "job/chk-1/_metadata", "savepoint-1/_metadata", "savepoint-1/part")
    assert paths(tmp_path) == ["job/chk-1", "job/chk-2", "savepoint-1"]


def test_the_root_may_be_a_snapshot_itself(tmp_path: Path) -> None:
    put(tmp_path, "_metadata")
    assert paths(tmp_path) == [""]


def test_a_directory_without_metadata_is_none(tmp_path: Path) -> None:
    put(tmp_path, "savepoint-1/part", "savepoint-2/_metadata.pending", "savepoint-3/_metadata/part")
    assert paths(tmp_path) == []


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    assert paths(tmp_path / "absent") == []


def test_directories_of_state_files_are_not_visited(tmp_path: Path) -> None:
    put(tmp_path, "job/shared/a/_metadata", "job/taskowned/b/_metadata", "job/chk-1/c/_metadata", "job/chk-1/_metadata")
    assert paths(tmp_path) == ["job/chk-1"]


def test_directories_can_be_skipped(tmp_path: Path) -> None:
    put(tmp_path, "results/savepoint-1/_metadata", "savepoint-1/_metadata")
    assert paths(tmp_path, skip=[str(tmp_path / "results")]) == ["savepoint-1"]


def test_depth_is_bounded(tmp_path: Path) -> None:
    put(tmp_path, "a/b/c/_metadata", "a/b/_metadata.old")
    assert (paths(tmp_path, depth=2), paths(tmp_path, depth=3)) == ([], ["a/b/c"])


def test_size_and_time_are_those_of_the_metadata(tmp_path: Path) -> None:
    put(tmp_path, "savepoint-1/_metadata", "savepoint-1/part")
    (entry,) = find_snapshots(resolve(str(tmp_path)))
    assert entry.size == 5
    assert entry.modified is not None


def test_directories_of_other_storages_are_listed_many_at_a_time() -> None:
    root = empty_counted()
    names = [f"chk-{number:02}" for number in range(16)]
    for name in names:
        root.filesystem.pipe_file(f"{root.path}/job/{name}/_metadata", b"12345")
    CountedFileSystem.requests.clear()
    # The root and the job are listed alone, then all checkpoints wait for each other.
    CountedFileSystem.rule = staticmethod(lambda number, *_: gather() if number == 4 else None)

    def gather() -> None:
        CountedFileSystem.gather = {"list": 8}

    found = [entry.location.directory.name for entry in find_snapshots(root)]
    assert found == names
    assert CountedFileSystem.most >= 8
    assert Counter(operation for operation, _ in CountedFileSystem.requests)["list"] == 2 + len(names)
