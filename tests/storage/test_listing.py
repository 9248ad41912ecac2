"""Listings of S3, against a server on this machine: the same as of local directories, in few requests."""

from __future__ import annotations

import time
import uuid
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from benchmarks.s3_server import S3Server, start_objects, start_s3
from state_pipelines.storage import Location, join, list_files, resolve
from state_pipelines.storage import listing as s3_listing
from state_pipelines.storage.snapshot_writer import find_snapshots
from tests.storages import CountedFileSystem, empty_counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from state_pipelines.storage.snapshot_writer import SnapshotEntry

PAGE = 50


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    with start_s3() as server:
        yield server


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Location:
    # A page of the server takes long when it holds many objects.
    monkeypatch.setattr(s3_listing, "PAGE", PAGE)
    bucket = resolve(f"s3://{uuid.uuid4()}", **server.options)
    bucket.filesystem.mkdir(bucket.path)
    server.requests.clear()
    return bucket


def put(root: Location, *names: str) -> None:
    for name in names:
        root.filesystem.pipe_file(join(root, name).path, b"12345")


def put_many(server: S3Server, bucket: Location, names: list[str]) -> None:
    server.put(bucket.path, dict.fromkeys(names, b"12345"))


def directories(found: Iterator[SnapshotEntry], root: Location) -> list[str]:
    return [entry.location.directory.path.removeprefix(root.path).lstrip("/") for entry in found]


NAMES = [
    "0a/chk-1/_metadata",
    "0a/chk-1/5-file",
    "0a/shared/x/_metadata",
    "job/chk-2/_metadata",
    "job/chk-2/c/_metadata",
    "job/chk-2/5/_metadata",
    "job/chk-3/5-file",
    "job/taskowned/y/_metadata",
    "results/savepoint-9/_metadata",
    "savepoint-1/_metadata",
    "savepoint-2/_metadata/file",
    "a/b/c/d/e/_metadata",
]


@pytest.mark.slow
def test_snapshots_are_those_of_a_local_directory(bucket: Location, tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    put(bucket, *NAMES)
    local = resolve(str(tmp_path))
    expected = directories(find_snapshots(local, skip=[f"{tmp_path}/results"]), local)
    found = directories(find_snapshots(bucket, skip=[f"{bucket.path}/results"]), bucket)
    assert found == expected == ["0a/chk-1", "job/chk-2", "savepoint-1"]


def test_the_root_may_be_a_snapshot_itself(bucket: Location) -> None:
    put(bucket, "_metadata", "5/_metadata", "inner/_metadata")
    assert directories(find_snapshots(bucket), bucket) == [""]


def test_a_bucket_without_snapshots_is_one_request(bucket: Location, server: S3Server) -> None:
    assert list(find_snapshots(bucket)) == []
    assert len(server.requests) == 1


@pytest.mark.slow
def test_snapshots_of_a_few_files_share_pages(bucket: Location, server: S3Server) -> None:
    put_many(server, bucket, [f"job/chk-{chk}/{name}" for chk in range(60) for name in ("_metadata", *"abcdefghi")])
    assert len(list(find_snapshots(join(bucket, "job")))) == 60
    assert len(server.requests) <= 60


@pytest.mark.slow
def test_snapshots_whose_data_comes_first_are_found(bucket: Location, server: S3Server) -> None:
    names = [f"job/chk-{chk}/{name}" for chk in range(120) for name in ("_metadata", *"0123456789")]
    put_many(server, bucket, names)
    assert len(list(find_snapshots(bucket))) == 120


@pytest.mark.slow
def test_shared_files_are_not_listed(bucket: Location, server: S3Server) -> None:
    put_many(server, bucket, [f"job/shared/{number:05}" for number in range(3_000)])
    put_many(server, bucket, ["job/chk-1/_metadata", "job/taskowned/1", "savepoint-1/_metadata"])
    assert directories(find_snapshots(bucket), bucket) == ["job/chk-1", "savepoint-1"]
    assert len(server.requests) <= 20 < 3_000 / PAGE


@pytest.mark.slow
def test_every_file_is_listed_once_in_order(bucket: Location, server: S3Server) -> None:
    names = [f"job/shared/{uuid.UUID(int=number << 115)}" for number in range(300)]
    names += [f"job/chk-{number}/_metadata" for number in range(70)] + ["2", "job/shared/2", "job/chk-1/ä b"]
    put_many(server, bucket, names)
    found = [entry.location.path.removeprefix(f"{bucket.path}/") for entry in list_files(bucket)]
    assert found == sorted(names)


def test_sizes_and_times_are_listed(bucket: Location) -> None:
    put(bucket, "d/a")
    (entry,) = list_files(bucket)
    assert entry.size == 5
    assert entry.modified is not None
    assert entry.modified.tzinfo is not None


def test_marks_of_directories_are_not_files(bucket: Location) -> None:
    put(bucket, "d/a")
    bucket.filesystem.call_s3("put_object", Bucket=bucket.path, Key="d/e/", Body=b"")
    assert [entry.location.name for entry in list_files(bucket)] == ["a"]


def test_a_listing_that_nobody_reads_to_its_end_ends(bucket: Location, server: S3Server) -> None:
    put_many(server, bucket, [f"{letter}/{number:05}" for letter in "abcd" for number in range(200)])
    listing = list_files(bucket)
    next(listing)
    listing.close()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_an_error_while_listing_reaches_the_reader(
    bucket: Location, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_many(server, bucket, [f"{letter}/{number:05}" for letter in "abcd" for number in range(150)])

    def fail(*_: object) -> object:
        raise ZeroDivisionError

    monkeypatch.setattr(s3_listing._Lister, "list_pages", fail)
    with pytest.raises(ZeroDivisionError):
        list(list_files(bucket))


# --- many files


def test_directories_are_listed_as_they_are_read() -> None:
    root = empty_counted()
    for number in range(50):
        root.filesystem.pipe_file(join(root, str(number), "file").path, b"12345")
    CountedFileSystem.requests.clear()
    assert len(list(islice(list_files(root), 3))) == 3
    lists = [path for operation, path in CountedFileSystem.requests if operation == "list"]
    assert len(lists) == len(set(lists)) == 4


# --- many objects: a server that lists them fast, with one snapshot of 11 objects and the rest in `shared`

OBJECTS = 30_000


@pytest.fixture(scope="module")
def large() -> Iterator[S3Server]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    files = [f"b/job/shared/{uuid.uuid5(uuid.NAMESPACE_OID, str(number))}" for number in range(OBJECTS - 11)]
    own = [f"b/job/chk-1/{name}" for name in ("_metadata", *"abcdefghij")]
    with start_objects(dict.fromkeys([*files, *own], b"12345")) as server:
        yield server


@pytest.fixture
def large_root(large: S3Server) -> Location:
    root = resolve("s3://b/job", **large.options)
    large.clear()
    return root


@pytest.mark.slow
def test_a_large_root_takes_a_request_per_page_and_few_more(large_root: Location, large: S3Server) -> None:
    names = [entry.location.path for entry in list_files(large_root)]
    assert len(names) == OBJECTS
    assert names == sorted(set(names))
    pages = OBJECTS // s3_listing.PAGE
    assert pages <= len(large.requests) <= pages + s3_listing.SEQUENTIAL * s3_listing.IN_FLIGHT


@pytest.mark.slow
def test_a_large_root_is_listed_by_several_requests_at_a_time(large_root: Location, large: S3Server) -> None:
    # Until the listing is shared each request follows another.
    large.gather = lambda _, path: 0 if len(large.requests) < s3_listing.SEQUENTIAL or "delimiter=" in path else 2
    try:
        assert sum(1 for _ in list_files(large_root)) == OBJECTS
    finally:
        large.gather = None
    assert 1 < large.most <= s3_listing.IN_FLIGHT


def test_snapshots_of_a_large_root_take_few_requests(large_root: Location, large: S3Server) -> None:
    assert directories(find_snapshots(large_root), large_root) == ["chk-1"]
    assert len(large.requests) <= 2


@pytest.mark.slow
def test_pages_that_nobody_has_read_are_bounded(
    large_root: Location, large: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_listing, "PAGE", PAGE)
    listing = list_files(large_root)
    assert len(list(islice(listing, PAGE * s3_listing.SEQUENTIAL + 1))) == PAGE * s3_listing.SEQUENTIAL + 1
    before = 0
    while before < len(large.requests):
        before = len(large.requests)
        time.sleep(0.3)
    listing.close()  # type: ignore[attr-defined]
    # Each range holds a page for its reader besides those that wait.
    assert before <= s3_listing.SEQUENTIAL + 1 + s3_listing.IN_FLIGHT * (s3_listing.WAITING + 1) < OBJECTS // PAGE


def test_times_of_a_listing_and_of_a_file_are_equal(large_root: Location) -> None:
    (entry,) = islice(list_files(large_root), 1)
    info = large_root.filesystem.info(entry.location.path)
    assert entry.modified is not None
    assert entry.modified == info["LastModified"]
