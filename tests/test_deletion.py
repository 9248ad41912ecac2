from __future__ import annotations

import os
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import StateError, TargetExistsError
from state_pipelines.storage import FileEntry, Location, create_file, exists, join, list_directory, read_file, resolve
from state_pipelines.storage.files import create_file_at_once
from state_pipelines.storage.snapshot_writer import (
    delete_files,
    is_same_time,
    move_file,
    move_files,
    remove_empty_directory,
    stat_files,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def write(location: Location, data: bytes) -> Location:
    with create_file(location) as file:
        file.write(data)
    return location


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = pytest.importorskip("moto.server", reason="moto[server] is not installed").ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


class DeletionSuite:
    """Behaviour on every storage; subclasses give `root`."""

    def test_deleted_files_are_gone_and_others_stay(self, root: Location) -> None:
        files = [write(join(root, "a", str(number)), b"x") for number in range(5)]
        assert delete_files(files[:3]) == [None] * 3
        assert [entry.location.name for entry in list_directory(join(root, "a"))] == ["3", "4"]

    def test_missing_file_counts_as_deleted(self, root: Location) -> None:
        there = write(join(root, "b", "there"), b"x")
        assert delete_files([join(root, "b", "missing"), there]) == [None, None]
        assert not exists(there)

    def test_characters_of_patterns_delete_only_the_file_itself(self, root: Location) -> None:
        pattern, other = write(join(root, "c", "data-[ab]*"), b"x"), write(join(root, "c", "data-a"), b"x")
        assert delete_files([pattern]) == [None]
        assert (exists(pattern), exists(other)) == (False, True)

    def test_nothing_to_delete_is_fine(self, root: Location) -> None:
        assert delete_files([]) == []

    def test_state_of_a_file_is_its_size_and_time(self, root: Location) -> None:
        (entry,) = stat_files([write(join(root, "d", "file"), b"12345")])
        assert isinstance(entry, FileEntry)
        assert entry.size == 5
        assert entry.modified is not None
        assert abs((datetime.now(UTC) - entry.modified).total_seconds()) < 60

    def test_state_agrees_with_the_listing(self, root: Location) -> None:
        location = write(join(root, "e", "file"), b"12345")
        (listed,) = list_directory(join(root, "e"))
        (state,) = stat_files([location])
        assert isinstance(state, FileEntry)
        assert is_same_time(listed.modified, state.modified)

    def test_state_of_a_missing_file_is_none(self, root: Location) -> None:
        assert stat_files([join(root, "f", "missing"), write(join(root, "f", "x"), b"")])[0] is None

    def test_state_is_not_that_of_an_earlier_listing(self, root: Location) -> None:
        location = write(join(root, "g", "file"), b"1")
        list_directory(join(root, "g"))
        other = resolve(root.url, skip_instance_cache=True, **root.filesystem.storage_options)
        with other.filesystem.open(location.path, "wb") as file:
            file.write(b"22")
        (state,) = stat_files([location])
        assert isinstance(state, FileEntry)
        assert state.size == 2

    def test_directory_is_not_a_file(self, root: Location) -> None:
        write(join(root, "h", "sub", "file"), b"1")
        assert isinstance(stat_files([join(root, "h", "sub")])[0], StateError)

    def test_moved_file_has_the_same_content(self, root: Location) -> None:
        source, target = write(join(root, "i", "file"), b"content"), join(root, "j", "deep", "file")
        move_file(source, target, root)
        assert (exists(source), read_file(target)) == (False, b"content")

    def test_move_does_not_replace_another_file(self, root: Location) -> None:
        source, target = write(join(root, "k", "file"), b"content"), write(join(root, "k", "other"), b"x")
        with pytest.raises(TargetExistsError):
            move_file(source, target, root)
        assert (read_file(source), read_file(target)) == (b"content", b"x")

    def test_failed_moves_are_reported_each(self, root: Location) -> None:
        good = write(join(root, "l", "good"), b"1")
        missing, fine = move_files(
            [
                (join(root, "l", "missing"), join(root, "m", "missing"), root),
                (good, join(root, "m", "good"), root),
            ]
        )
        assert isinstance(missing, StateError)
        assert fine is None

    def test_directory_with_content_is_not_removed(self, root: Location) -> None:
        file = write(join(root, "n", "file"), b"1")
        assert not remove_empty_directory(join(root, "n"))
        assert exists(file)

    def test_file_written_at_once_is_not_replaced(self, root: Location) -> None:
        create_file_at_once(join(root, "o", "file"), b"1")
        with pytest.raises(TargetExistsError):
            create_file_at_once(join(root, "o", "file"), b"2")
        assert read_file(join(root, "o", "file")) == b"1"
        assert [entry.location.name for entry in list_directory(join(root, "o"))] == ["file"]


class TestLocal(DeletionSuite):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Location:
        return resolve(str(tmp_path))

    def test_empty_directory_is_removed(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        assert remove_empty_directory(resolve(str(tmp_path / "empty")))
        assert not (tmp_path / "empty").exists()

    def test_symbolic_link_is_not_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"1")
        (tmp_path / "link").symlink_to(tmp_path / "file")
        assert isinstance(stat_files([resolve(str(tmp_path / "link"))])[0], StateError)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may delete everything")
    def test_refusal_of_the_storage_is_the_error_of_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "dir").mkdir()
        (tmp_path / "dir" / "file").write_bytes(b"1")
        (tmp_path / "dir").chmod(0o500)
        (error,) = delete_files([resolve(str(tmp_path / "dir" / "file"))])
        assert error is not None
        assert "cannot write" in str(error)

    def test_directory_is_not_deleted_as_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "dir").mkdir()
        (error,) = delete_files([resolve(str(tmp_path / "dir"))])
        assert error is not None
        assert "cannot write" in str(error)


class TestMemory(DeletionSuite):
    @pytest.fixture
    def root(self) -> Iterator[Location]:
        root = resolve(f"memory://{uuid.uuid4()}")
        root.filesystem.makedirs(root.path)
        yield root
        root.filesystem.rm(root.path, recursive=True)


class TestS3(DeletionSuite):
    @pytest.fixture
    def root(self, s3_endpoint: str) -> Location:
        bucket = resolve(f"s3://{uuid.uuid4()}", key="k", secret="s", client_kwargs={"endpoint_url": s3_endpoint})
        bucket.filesystem.mkdir(bucket.path)
        return join(bucket, "root")

    @pytest.mark.slow
    def test_many_files_go_with_one_request(self, root: Location, monkeypatch: pytest.MonkeyPatch) -> None:
        files = [write(join(root, str(number)), b"x") for number in range(20)]
        calls = []
        original = root.filesystem._call_s3

        async def count(method: str, *args: object, **options: object) -> object:
            calls.append(method)
            return await original(method, *args, **options)

        monkeypatch.setattr(root.filesystem, "_call_s3", count)
        delete_files(files)
        assert calls.count("delete_objects") == 1
        assert "delete_object" not in calls

    @pytest.mark.slow
    def test_file_that_the_store_did_not_delete_is_deleted_alone(
        self, root: Location, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = [write(join(root, str(number)), b"x") for number in range(3)]
        # The store refuses single keys of a bulk request without failing it, and s3fs drops these errors.
        monkeypatch.setattr(root.filesystem, "rm", lambda paths: None)
        assert delete_files(files) == [None] * 3
        assert not any(map(exists, files))


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("2026-01-01T10:00:00.250", "2026-01-01T10:00:00.250", True),
        ("2026-01-01T10:00:00.250", "2026-01-01T10:00:00", True),
        ("2026-01-01T10:00:00.250", "2026-01-01T10:00:00.251", False),
        ("2026-01-01T10:00:00", "2026-01-01T10:00:01", False),
    ],
)
def test_times_agree_as_far_as_both_are_given(first: str, second: str, *, same: bool) -> None:
    assert is_same_time(datetime.fromisoformat(first), datetime.fromisoformat(second)) is same
