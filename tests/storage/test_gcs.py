"""Google Cloud Storage, as an emulator of it on this machine answers."""

from __future__ import annotations

import socket
import uuid
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from state_pipelines.storage import Location, join, list_files, read_file, resolve
from state_pipelines.storage.files import copy_inside
from state_pipelines.storage.listing import list_tree
from state_pipelines.storage.snapshot_writer import find_snapshots
from tests.storage.test_storage import StorageSuite

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    core = pytest.importorskip("gcsfs.core", reason="gcsfs is not installed")
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="gcp-storage-emulator is not installed")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    # The class that `gs://` stands for asks by gRPC for the kind of a bucket, which the emulator does not answer.
    classes = dict.fromkeys(("gs", "gcs"), core.GCSFileSystem)
    with (
        emulator.create_server("127.0.0.1", port, in_memory=True),
        mock.patch.dict("fsspec.registry._registry", classes),
    ):
        yield f"http://127.0.0.1:{port}"


class TestGoogleStorage(StorageSuite):
    """A bucket of the emulator."""

    @pytest.fixture
    def root(self, endpoint: str) -> Location:
        bucket = resolve(f"gs://{uuid.uuid4()}", token="anon", project="tests", endpoint_url=endpoint)
        bucket.filesystem.mkdir(bucket.path)
        return join(bucket, "root")

    def test_snapshots_are_found(self, root: Location) -> None:
        for name in ("job/chk-1/_metadata", "job/chk-1/part", "job/shared/x", "savepoint-1/_metadata"):
            root.filesystem.pipe_file(join(root, name).path, b"12345")
        found = [entry.location.directory.path.removeprefix(f"{root.path}/") for entry in find_snapshots(root)]
        assert found == ["job/chk-1", "savepoint-1"]

    def test_sizes_and_times_of_files_are_listed(self, root: Location) -> None:
        root.filesystem.pipe_file(join(root, "d", "a").path, b"12345")
        (entry,) = list_files(root)
        (file,) = [each for each in list_tree(root) if not each.is_directory]
        assert entry.size == file.size == 5
        assert entry.modified is not None
        assert entry.modified == file.modified

    def test_a_file_is_copied_by_one_request(self, root: Location, monkeypatch: pytest.MonkeyPatch) -> None:
        source, target = join(root, "a"), join(root, "b")
        source.filesystem.pipe_file(source.path, b"12345")
        calls: list[tuple[str, str]] = []
        send = source.filesystem._call

        async def count(method: str, path: str, *arguments: object, **options: object) -> object:
            calls.append((method, path))
            return await send(method, path, *arguments, **options)

        monkeypatch.setattr(source.filesystem, "_call", count)
        copy_inside(source, target, 5)
        assert calls == [("POST", "b/{}/o/{}/rewriteTo/b/{}/o/{}")]
        assert read_file(target) == b"12345"
