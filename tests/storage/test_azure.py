"""Azure Blob Storage, as a small server on this machine answers; the real service was never reached."""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.generate import OPERATOR, generate
from benchmarks.shapes import Shape
from state_pipelines import convert, diff, open_snapshot, rescale
from state_pipelines.errors import MissingFileError, StorageError
from state_pipelines.metadata.streams import StateStream, StreamRange, copy_ranges
from state_pipelines.storage import (
    Location,
    exists,
    join,
    locations,
    read_file,
    resolution,
    resolve,
    uploads,
    use_storage_options,
)
from state_pipelines.storage.files import copy_inside
from state_pipelines.storage.uploads import authorize_source
from tests.snapshots import DATA
from tests.storage.azure_server import AzureServer, start_azure
from tests.storage.test_storage import StorageSuite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNIT = 1 << 15
"""Bytes that count as a MiB here."""


@pytest.fixture(scope="module")
def started() -> Iterator[AzureServer]:
    pytest.importorskip("adlfs", reason="adlfs is not installed")
    with start_azure() as server:
        yield server


@pytest.fixture
def server(started: AzureServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[AzureServer]:
    monkeypatch.setattr(locations, "_FIRST_WAIT", 0.01)
    monkeypatch.setattr(uploads, "_refused", [])
    monkeypatch.setattr(uploads, "SMALLEST_PART", 5 * UNIT)
    monkeypatch.setattr(resolution, "_registered", {})
    started.clear()
    yield started
    started.rule, started.pending, started.code = None, 0, "CannotVerifyCopySource"


@pytest.fixture
def container(server: AzureServer) -> Location:
    return resolve(f"abfs://{uuid.uuid4()}", connection_string=server.connection_string)


def put(server: AzureServer, container: Location, name: str, size: int) -> bytes:
    content = random.Random(name).randbytes(size)
    server.blobs[f"{container.path}/{name}"] = content
    return content


def name_range(container: Location, name: str, start: int, end: int) -> StreamRange:
    location = join(container, name)
    return StreamRange(StateStream(location.url, end, location), start, end)


@pytest.fixture
def wanted(container: Location, server: AzureServer) -> tuple[list[StreamRange], bytes]:
    """A header, two long ranges with a short one between them, inlined bytes; and the content."""
    a, b = put(server, container, "a", 14 * UNIT), put(server, container, "b b", 12 * UNIT)
    inlined = b"inlined" * 100
    ranges = [
        name_range(container, "a", 0, 1300),
        name_range(container, "a", 2 * UNIT, 13 * UNIT),
        name_range(container, "b b", 5, 500),
        name_range(container, "b b", 600, 12 * UNIT),
        StreamRange(StateStream("inlined", len(inlined), data=inlined), 0, len(inlined)),
    ]
    return ranges, a[:1300] + a[2 * UNIT : 13 * UNIT] + b[5:500] + b[600:] + inlined


def test_ranges_are_copied_by_the_service(
    container: Location, server: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "COPIED_BLOCK", 5 * UNIT)
    content = put(server, container, "a", 16 * UNIT)
    target = join(container, "new", "file")
    assert copy_ranges([name_range(container, "a", 7, len(content))], target) == len(content) - 7
    assert server.moved == 0
    assert [kind for _, kind, *_ in server.requests] == ["block from URL"] * 4 + ["blocklist"]
    assert server.blobs[target.path] == content[7:]


def test_short_ranges_are_sent_beside_them(
    container: Location, server: AzureServer, wanted: tuple[list[StreamRange], bytes]
) -> None:
    ranges, content = wanted
    target = join(container, "new")
    assert copy_ranges(ranges, target) == len(content)
    # The header and the range between are read and sent, each with as much of the next range as a part needs.
    assert server.moved < 4 * (5 * UNIT + 10_000)
    assert server.blobs[target.path] == content


def test_a_verified_file_is_compared_with_its_ranges(
    container: Location, server: AzureServer, wanted: tuple[list[StreamRange], bytes]
) -> None:
    ranges, content = wanted
    assert copy_ranges(ranges, join(container, "new"), verify=True) == len(content)
    assert server.moved > 2 * len(content)


@pytest.mark.slow
@pytest.mark.parametrize("status", [400, 403, 404, 409, 501])
def test_refused_ranges_pass_through_the_client(
    container: Location,
    server: AzureServer,
    wanted: tuple[list[StreamRange], bytes],
    status: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ranges, content = wanted
    server.rule = lambda method, kind, name: status if kind == "block from URL" else None
    with caplog.at_level(logging.WARNING):
        for name in ("new", "other"):
            assert copy_ranges(ranges, join(container, name)) == len(content)
            assert server.blobs[f"{container.path}/{name}"] == content
    (record,) = caplog.records
    assert "bytes pass through this process: cannot copy the file" in record.getMessage()
    assert "sig=" not in record.getMessage()


@pytest.mark.parametrize("kind", ["block from URL", "block", "blocklist"])
def test_each_request_may_fail_once(
    container: Location, server: AzureServer, wanted: tuple[list[StreamRange], bytes], kind: str
) -> None:
    ranges, content = wanted
    seen: set[str] = set()

    def fail(method: str, found: str, name: str) -> int | None:
        is_first = found == kind and name not in seen
        seen.add(name)
        return 503 if is_first else None

    server.rule = fail
    copy_ranges(ranges, join(container, "new"))
    assert server.blobs[f"{container.path}/new"] == content


@pytest.mark.slow
def test_an_upload_that_fails_for_good_is_no_blob(
    container: Location, server: AzureServer, wanted: tuple[list[StreamRange], bytes]
) -> None:
    server.rule = lambda method, kind, name: 503 if method == "PUT" else None
    with pytest.raises(StorageError, match="5 attempts"):
        copy_ranges(wanted[0], join(container, "new"))
    assert not exists(join(container, "new"))


def test_a_source_is_signed_for_reading_it_alone(container: Location, server: AzureServer) -> None:
    put(server, container, "a", 6 * UNIT)
    copy_ranges([name_range(container, "a", 0, 6 * UNIT)], join(container, "new"))
    ((signature, authorization),) = server.sources
    assert (signature["sp"], signature["sr"], authorization) == ("r", "b", None)


def test_a_source_has_the_token_of_the_client_or_its_signature(container: Location) -> None:
    async def get_token(scope: str) -> Any:
        return SimpleNamespace(token=f"token for {scope}")

    def authorize(credential: object, url: str) -> tuple[str, dict[str, str]]:
        blob = SimpleNamespace(credential=credential, url=url)
        client = SimpleNamespace(get_blob_client=lambda *_, **__: blob)
        filesystem: Any = SimpleNamespace(split_path=container.filesystem.split_path, service_client=client)
        return asyncio.run(authorize_source(Location(filesystem, "container/a")))

    token = {"source_authorization": "Bearer token for https://storage.azure.com/.default"}
    assert authorize(SimpleNamespace(get_token=get_token), "https://x/a") == ("https://x/a", token)
    assert authorize(None, "https://x/a?sig=1") == ("https://x/a?sig=1", {})


def test_a_whole_file_is_one_request(container: Location, server: AzureServer) -> None:
    content = put(server, container, "a", 6 * UNIT)
    copy_inside(join(container, "a"), join(container, "b"), len(content))
    assert [(method, kind) for method, kind, *_ in server.requests] == [("PUT", "blob from URL")]
    assert server.blobs[f"{container.path}/b"] == content


def test_a_copy_that_goes_on_is_waited_for(
    container: Location, server: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "_PAUSE", 0.01)
    server.pending = 2
    content = put(server, container, "a", 10)
    copy_inside(join(container, "a"), join(container, "b"), len(content))
    assert [method for method, *_ in server.requests] == ["PUT", "HEAD", "HEAD", "HEAD"]


def test_a_copy_whose_start_was_lost_is_waited_for(
    container: Location, server: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "_PAUSE", 0.01)
    content = put(server, container, "a", 10)
    server.blobs[f"{container.path}/b"] = content
    server.copies[f"{container.path}/b"] = 1
    server.code = "PendingCopyOperation"
    server.rule = lambda method, kind, name: 409 if kind == "blob from URL" else None
    copy_inside(join(container, "a"), join(container, "b"), len(content))
    assert [method for method, *_ in server.requests] == ["PUT", "HEAD", "HEAD"]


def test_a_whole_file_whose_copy_is_refused_passes_through_the_client(
    container: Location, server: AzureServer, caplog: pytest.LogCaptureFixture
) -> None:
    content = put(server, container, "a", UNIT)
    server.rule = lambda method, kind, name: 409 if kind == "blob from URL" else None
    with caplog.at_level(logging.WARNING):
        copy_inside(join(container, "a"), join(container, "b"), len(content))
    assert read_file(join(container, "b")) == content
    assert len(caplog.records) == 1


def test_a_file_that_is_not_there_is_missing(container: Location, server: AzureServer) -> None:
    with pytest.raises(MissingFileError, match="does not exist"):
        copy_inside(join(container, "a"), join(container, "b"), 1)


@pytest.mark.slow
def test_the_files_of_a_snapshot_are_copied_by_the_service(container: Location, server: AzureServer) -> None:
    (directory,) = (DATA / "types/flink-2.2/rocksdb-native").glob("savepoint-*")
    server.blobs |= {f"{container.path}/old/{path.name}": path.read_bytes() for path in directory.iterdir()}
    use_storage_options({f"abfs://{container.path}": {"connection_string": server.connection_string}})
    server.clear()
    convert(join(container, "old").url, join(container, "new").url, "keep")
    files = sorted(path.read_bytes() for path in directory.iterdir() if path.name != "_metadata")
    copied = [name for _, kind, name, *_ in server.requests if kind == "blob from URL"]
    assert sorted(server.blobs[name] for name in copied) == files
    # Nothing but `_metadata` and the manifest is read or sent.
    moved = [name.rpartition("/")[2] for _, kind, name, *sizes in server.requests if kind == "blob" and any(sizes)]
    assert all(name.startswith("_") for name in moved)
    assert len(server.requests) <= len(files) + 20


@pytest.mark.slow
def test_a_snapshot_is_rescaled_by_the_service(
    container: Location, server: AzureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(str(tmp_path / "old"), 1000, Shape())
    server.blobs |= {f"{container.path}/old/{path.name}": path.read_bytes() for path in (tmp_path / "old").iterdir()}
    use_storage_options({f"abfs://{container.path}": {"connection_string": server.connection_string}})
    monkeypatch.setattr(uploads, "SMALLEST_PART", 4000)
    server.clear()
    old = open_snapshot(join(container, "old").url, uids=[OPERATOR])
    rescale(old, join(container, "new").url, parallelism=3)
    assert len(server.sources) >= 3
    new = open_snapshot(join(container, "new").url, uids=[OPERATOR])
    assert [each.parallelism for each in new.operators] == [3]
    assert diff(old, new).same_contents


class TestAzureStorage(StorageSuite):
    """A container of the server."""

    @pytest.fixture
    def root(self, container: Location) -> Location:
        return join(container, "root")
