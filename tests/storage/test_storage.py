"""One suite for every storage; a subclass names the root."""

from __future__ import annotations

import pickle
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import (
    FormatError,
    MissingFileError,
    NotFoundError,
    StateError,
    StorageError,
    TargetExistsError,
    UsageError,
)
from state_pipelines.storage import (
    FileEntry,
    Location,
    PathMapping,
    SnapshotWriter,
    copy_file,
    create_file,
    exists,
    file_size,
    is_directory,
    join,
    list_directory,
    list_files,
    open_file,
    parent,
    parse_path_mapping,
    read_file,
    read_range,
    reading,
    resolve,
    resolve_beside,
    resolve_snapshot,
    snapshot_writer,
)
from state_pipelines.storage.files import can_copy_inside, copy_inside
from state_pipelines.storage.locations import is_local

if TYPE_CHECKING:
    from collections.abc import Iterator


def write(location: Location, data: bytes) -> Location:
    with create_file(location) as file:
        file.write(data)
    return location


def names(entries: list[FileEntry] | Iterator[FileEntry]) -> list[str]:
    return sorted(entry.location.name for entry in entries)


def fail_while_writing(target: Location) -> None:
    with SnapshotWriter(target) as writer:
        writer.write_file("state", b"content")
        write(writer.locate("written by a task"), b"content")
        raise FormatError("broken input")


def fail_after_publishing(target: Location) -> None:
    with SnapshotWriter(target) as writer:
        writer.publish(b"metadata")
        raise FormatError("later")


def publish_second(target: Location) -> None:
    with SnapshotWriter(target) as writer:
        write(join(target, "_metadata"), b"theirs")
        writer.publish(b"ours")


class StorageSuite:
    """What every storage must do."""

    @pytest.fixture
    def root(self) -> Location:
        raise NotImplementedError

    def test_file_comes_back(self, root: Location) -> None:
        assert read_file(write(join(root, "a", "b"), b"content")) == b"content"

    def test_file_has_a_size(self, root: Location) -> None:
        assert file_size(write(join(root, "a"), b"content")) == 7

    def test_range_is_read(self, root: Location) -> None:
        assert read_range(write(join(root, "a"), b"content"), 2, 5) == b"nte"

    def test_empty_range_is_read(self, root: Location) -> None:
        assert read_range(write(join(root, "a"), b"content"), 7, 7) == b""

    @pytest.mark.parametrize(("start", "end"), [(5, 8), (8, 9), (0, 1 << 60)])
    def test_range_outside_the_file_is_an_error(self, root: Location, start: int, end: int) -> None:
        place = write(join(root, "a"), b"content")
        with pytest.raises(FormatError, match=f"bytes {start} to {end} are wanted but the file has 7"):
            read_range(place, start, end)

    def test_missing_file_is_an_error_with_its_path(self, root: Location) -> None:
        for read in (read_file, file_size, open_file):
            with pytest.raises(MissingFileError, match="the file does not exist") as caught:
                read(join(root, "gone"))
            assert caught.value.where.file == str(join(root, "gone"))

    def test_range_of_a_missing_file_is_an_error(self, root: Location) -> None:
        with pytest.raises(MissingFileError):
            read_range(join(root, "gone"), 0, 5)

    def test_file_is_opened_and_sought(self, root: Location) -> None:
        with open_file(write(join(root, "a"), b"content")) as file:
            file.seek(3)
            assert file.read(2) == b"te"

    def test_existence_follows_writing(self, root: Location) -> None:
        place = join(root, "d", "a")
        assert not exists(place)
        write(place, b"x")
        assert exists(place)
        assert is_directory(join(root, "d"))

    def test_existing_file_is_not_overwritten(self, root: Location) -> None:
        place = write(join(root, "a"), b"first")
        with pytest.raises(TargetExistsError), create_file(place):
            pass
        assert read_file(place) == b"first"

    def test_listing_tells_files_from_directories(self, root: Location) -> None:
        write(join(root, "d", "file"), b"content")
        write(join(root, "d", "inner", "file"), b"")
        listed = [(entry.location.name, entry.size, entry.is_directory) for entry in list_directory(join(root, "d"))]
        assert listed == [("file", 7, False), ("inner", 0, True)]

    def test_listed_location_can_be_read(self, root: Location) -> None:
        write(join(root, "d", "file"), b"content")
        (entry,) = list_directory(join(root, "d"))
        assert read_file(entry.location) == b"content"

    def test_listing_says_when_a_file_was_changed(self, root: Location) -> None:
        write(join(root, "d", "file"), b"content")
        (entry,) = list_directory(join(root, "d"))
        assert entry.modified is not None
        assert entry.modified.tzinfo is not None

    def test_files_are_found_at_every_depth(self, root: Location) -> None:
        for path in ("d/1", "d/e/2", "d/e/f/3"):
            write(join(root, *path.split("/")), b"")
        assert names(list_files(join(root, "d"))) == ["1", "2", "3"]

    def test_nothing_is_found_where_nothing_is(self, root: Location) -> None:
        assert not list(list_files(join(root, "gone")))

    def test_file_is_copied(self, root: Location) -> None:
        source = write(join(root, "a"), b"content")
        assert copy_file(source, join(root, "copies", "a")) == 7
        assert read_file(join(root, "copies", "a")) == b"content"

    def test_file_is_copied_by_the_storage(self, root: Location) -> None:
        source, target = write(join(root, "a"), b"content"), join(root, "b")
        assert can_copy_inside(source, target) is not is_local(root)
        if not is_local(root):
            copy_inside(source, target, 7)
            assert read_file(target) == b"content"

    def test_long_range_is_read(self, root: Location, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "REQUEST_SIZE", 1 << 16)
        content = bytes(range(256)) * (3 << 8)
        assert read_range(write(join(root, "a"), content), 5, len(content) - 5) == content[5:-5]

    def test_url_leads_back(self, root: Location) -> None:
        write(join(root, "a"), b"content")
        assert read_file(join(resolve(root.url, **root.filesystem.storage_options), "a")) == b"content"

    def test_location_can_be_sent_to_another_process(self, root: Location) -> None:
        place = write(join(root, "a"), b"content")
        assert read_file(pickle.loads(pickle.dumps(place))) == b"content"

    def test_snapshot_is_found_by_its_directory(self, root: Location) -> None:
        write(join(root, "chk-1", "_metadata"), b"m")
        found = resolve_snapshot(join(root, "chk-1").url, **root.filesystem.storage_options)
        assert (found.directory, found.metadata) == (join(root, "chk-1"), join(root, "chk-1", "_metadata"))

    def test_snapshot_is_found_by_its_metadata_file(self, root: Location) -> None:
        write(join(root, "chk-1", "_metadata"), b"m")
        found = resolve_snapshot(join(root, "chk-1", "_metadata").url, **root.filesystem.storage_options)
        assert found.directory == join(root, "chk-1")

    def test_directory_without_metadata_is_no_snapshot(self, root: Location) -> None:
        write(join(root, "chk-1", "state"), b"")
        with pytest.raises(NotFoundError, match="the directory has no _metadata"):
            resolve_snapshot(join(root, "chk-1").url, **root.filesystem.storage_options)

    def test_nothing_is_no_snapshot(self, root: Location) -> None:
        with pytest.raises(NotFoundError, match="nothing is there"):
            resolve_snapshot(join(root, "gone").url, **root.filesystem.storage_options)

    def test_published_snapshot_is_there(self, root: Location) -> None:
        target = join(root, "savepoint")
        with SnapshotWriter(target) as writer:
            writer.write_file("state", b"content")
            published = writer.publish(b"metadata")
        assert names(list_directory(target)) == ["_metadata", "state"]
        assert read_file(published.metadata) == b"metadata"

    def test_nothing_looks_complete_before_publication(self, root: Location) -> None:
        target = join(root, "savepoint")
        with SnapshotWriter(target) as writer:
            writer.write_file("state", b"content")
            assert not exists(join(target, "_metadata"))

    @pytest.mark.parametrize("error", [KeyboardInterrupt, StorageError("no")])
    def test_an_end_at_the_beginning_leaves_nothing(
        self, root: Location, monkeypatch: pytest.MonkeyPatch, error: BaseException | type[BaseException]
    ) -> None:
        def fail(*_: object) -> None:
            raise error

        target = join(root, "savepoint")
        monkeypatch.setattr(snapshot_writer, "replace_file", fail)
        with pytest.raises((KeyboardInterrupt, StorageError)), SnapshotWriter(target):
            pass
        assert not exists(target)

    def test_error_leaves_nothing(self, root: Location) -> None:
        target = join(root, "savepoint")
        with pytest.raises(FormatError):
            fail_while_writing(target)
        assert not exists(target)

    def test_leaving_without_publication_leaves_nothing(self, root: Location) -> None:
        target = join(root, "savepoint")
        with SnapshotWriter(target) as writer:
            writer.write_file("state", b"content")
        assert not exists(target)

    def test_error_after_publication_keeps_the_snapshot(self, root: Location) -> None:
        target = join(root, "savepoint")
        with pytest.raises(FormatError):
            fail_after_publishing(target)
        assert exists(join(target, "_metadata"))

    def test_target_that_holds_something_is_refused_and_kept(self, root: Location) -> None:
        write(join(root, "savepoint", "state"), b"content")
        with pytest.raises(TargetExistsError, match="never overwritten"), SnapshotWriter(join(root, "savepoint")):
            pass
        assert names(list_directory(join(root, "savepoint"))) == ["state"]

    def test_target_that_is_a_file_is_refused_and_kept(self, root: Location) -> None:
        place = write(join(root, "savepoint"), b"content")
        with pytest.raises(TargetExistsError), SnapshotWriter(place):
            pass
        assert read_file(place) == b"content"

    def test_snapshot_that_somebody_else_published_is_kept(self, root: Location) -> None:
        target = join(root, "savepoint")
        with pytest.raises(TargetExistsError):
            publish_second(target)
        assert read_file(join(target, "_metadata")) == b"theirs"


class TestLocalStorage(StorageSuite):
    """Files of this machine."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Location:
        return resolve(str(tmp_path))

    @pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "local://{}"])
    def test_every_form_of_a_path_is_understood(self, root: Location, form: str) -> None:
        assert resolve(form.format(root.path)) == root

    def test_text_is_the_plain_path(self, root: Location) -> None:
        assert str(join(root, "a")) == f"{root.path}/a"

    def test_empty_target_stays_when_writing_fails(self, root: Location) -> None:
        target = join(root, "savepoint")
        Path(target.path).mkdir()
        with pytest.raises(FormatError):
            fail_while_writing(target)
        assert list_directory(target) == []

    def test_target_below_a_file_is_an_error(self, root: Location) -> None:
        write(join(root, "file"), b"")
        with pytest.raises(StateError, match="cannot write"), SnapshotWriter(join(root, "file", "savepoint")):
            pass

    def test_directory_cannot_be_read_as_a_file(self, root: Location) -> None:
        with pytest.raises(MissingFileError, match="cannot be opened"):
            read_file(root)


class TestMemoryStorage(StorageSuite):
    """The storage that fsspec keeps in memory."""

    @pytest.fixture
    def root(self) -> Iterator[Location]:
        root = resolve(f"memory://{uuid.uuid4()}")
        root.filesystem.mkdir(root.path)
        yield root
        root.filesystem.rm(root.path, recursive=True)

    def test_text_is_the_url(self, root: Location) -> None:
        assert str(root) == f"memory://{root.path}"


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = pytest.importorskip("moto.server", reason="moto[server] is not installed").ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


class TestS3Storage(StorageSuite):
    """An S3 endpoint on this machine."""

    @pytest.fixture
    def root(self, s3_endpoint: str) -> Location:
        bucket = resolve(f"s3://{uuid.uuid4()}", key="k", secret="s", client_kwargs={"endpoint_url": s3_endpoint})
        bucket.filesystem.mkdir(bucket.path)
        return join(bucket, "root")

    def test_name_of_flinks_presto_plugin_is_understood(self, root: Location) -> None:
        write(join(root, "a"), b"content")
        url = join(root, "a").url.replace("s3://", "s3p://")
        assert read_file(resolve(url, **root.filesystem.storage_options)) == b"content"

    def test_absolute_handle_uses_the_options_of_the_snapshot(self, root: Location) -> None:
        write(join(root, "a"), b"content")
        assert read_file(resolve_beside(f"s3a://{root.path}/a", root)) == b"content"


def test_parent_is_the_directory() -> None:
    assert parent(resolve("/a/b/c")) == resolve("/a/b")


def test_unknown_scheme_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="Protocol not known: nope"):
        resolve("nope://bucket/a")


def test_single_slash_of_flink_is_understood() -> None:
    assert resolve("memory:/a/b") == resolve("memory:///a/b")


@pytest.mark.parametrize(
    ("path", "mapped"),
    [
        ("file:/flink-data/job/shared/1", "/new/job/shared/1"),
        ("file:///flink-data/job/shared/1", "/new/job/shared/1"),
        ("/flink-data/job/shared/1", "/new/job/shared/1"),
        ("/flink-data", "/new"),
        ("/flink-data-2/job", "/flink-data-2/job"),
        ("s3://bucket/flink-data/1", "s3://bucket/flink-data/1"),
        ("s3://old/job/1", "memory://copy/job/1"),
        ("/flink-data/special/1", "/elsewhere/1"),
    ],
)
def test_prefix_of_a_path_is_replaced(path: str, mapped: str) -> None:
    mapping = PathMapping(
        (("file:/flink-data", "/new/"), ("s3://old/", "memory://copy"), ("/flink-data/special", "/elsewhere"))
    )
    assert mapping.apply(path) == mapped


def test_path_mapping_is_written_from_to() -> None:
    assert parse_path_mapping(["file:/a=s3://b/c"]) == PathMapping((("file:/a", "s3://b/c"),))


@pytest.mark.parametrize("text", ["", "a", "=b", "a="])
def test_other_text_is_no_path_mapping(text: str) -> None:
    with pytest.raises(UsageError, match="FROM=TO"):
        parse_path_mapping([text])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adlfs", "gcsfs", "s3fs"])
def test_storage_clients_print_nothing_by_themselves(name: str) -> None:
    code = f"import logging, state_pipelines.storage; logging.getLogger('{name}').error('a traceback')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
