"""New objects on S3 from ranges of others, against a server behind a proxy that counts and fails."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING

import pytest

from benchmarks.s3_server import S3Server, start_s3
from state_pipelines.errors import StorageError
from state_pipelines.metadata.streams import StateStream, StreamRange, copy_ranges
from state_pipelines.storage import (
    Location,
    create_file,
    exists,
    join,
    locations,
    read_file,
    resolution,
    resolve,
    uploads,
    use_storage_options,
)
from state_pipelines.storage import (
    uploads as multipart,
)
from state_pipelines.storage.uploads import SMALLEST_PART, FileRange, Part, S3Upload, can_copy_ranges, plan_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    with start_s3() as server:
        yield server


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Location]:
    monkeypatch.setattr(resolution, "_registered", {})
    monkeypatch.setattr(locations, "_FIRST_WAIT", 0.01)
    name = f"s3://{uuid.uuid4()}"
    use_storage_options({name: server.options})
    bucket = resolve(name)
    bucket.filesystem.mkdir(bucket.path)
    server.clear()
    yield bucket
    server.rule = None


def put(bucket: Location, server: S3Server, name: str, size: int) -> bytes:
    content = random.Random(name).randbytes(size)
    server.put(bucket.path, {name: content})
    return content


def stream(bucket: Location, name: str, size: int) -> StateStream:
    location = join(bucket, name)
    return StateStream(location.url, size, location)


def list_uploads(bucket: Location) -> list[object]:
    answer = bucket.filesystem.call_s3("list_multipart_uploads", Bucket=bucket.path)
    return list(answer.get("Uploads", []))


@pytest.fixture
def wanted(bucket: Location, server: S3Server) -> tuple[list[StreamRange], bytes]:
    """A header, two long ranges with a short one between them, inlined bytes; and the content."""
    a, b = put(bucket, server, "a", 14 * MIB), put(bucket, server, "b", 7 * MIB)
    inlined = b"inlined" * 100
    ranges = [
        StreamRange(stream(bucket, "a", len(a)), 0, 1300),
        StreamRange(stream(bucket, "a", len(a)), 2 * MIB, 13 * MIB),
        StreamRange(stream(bucket, "b", len(b)), 5, 500),
        StreamRange(StateStream("inlined", len(inlined), data=inlined), 0, len(inlined)),
    ]
    return ranges, a[:1300] + a[2 * MIB : 13 * MIB] + b[5:500] + inlined


@pytest.mark.slow
def test_long_ranges_do_not_pass_through_the_client(
    bucket: Location, server: S3Server, wanted: tuple[list[StreamRange], bytes]
) -> None:
    ranges, content = wanted
    target = join(bucket, "new")
    assert copy_ranges(ranges, target) == len(content)
    sent = sum(size for _, _, size, _ in server.requests)
    # The first part has the header and as much of the range as a part needs.
    assert server.received < SMALLEST_PART + 10_000
    assert sent < SMALLEST_PART + 10_000
    assert read_file(target) == content


@pytest.mark.slow
def test_a_range_alone_is_copied_without_any_byte(bucket: Location, server: S3Server) -> None:
    content = put(bucket, server, "a", 6 * MIB)
    target = join(bucket, "new")
    copy_ranges([StreamRange(stream(bucket, "a", len(content)), 7, len(content))], target)
    assert server.received < 10_000
    assert sum(size for _, _, size, _ in server.requests) < 1_000
    assert read_file(target) == content[7:]


@pytest.mark.slow
def test_a_range_whose_copy_is_refused_passes_through_the_client(
    bucket: Location, server: S3Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = put(bucket, server, "a", 6 * MIB)
    target = join(bucket, "new")

    def refuse(*_: object) -> str:
        raise StorageError("cannot copy the file: access denied")

    monkeypatch.setattr(S3Upload, "_copy_part", refuse)
    copy_ranges([StreamRange(stream(bucket, "a", len(content)), 7, len(content))], target)
    assert read_file(target) == content[7:]
    assert list_uploads(bucket) == []
    assert ["bytes pass through this process" in each.getMessage() for each in caplog.records].count(True) == 1


@pytest.mark.slow
def test_a_verified_file_is_compared_with_its_ranges(
    bucket: Location, server: S3Server, wanted: tuple[list[StreamRange], bytes]
) -> None:
    ranges, content = wanted
    assert copy_ranges(ranges, join(bucket, "new"), verify=True) == len(content)
    assert server.received > 2 * len(content)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [500, 503, "reset", "short", "lost"])
def test_every_request_may_fail_once(
    bucket: Location, server: S3Server, wanted: tuple[list[StreamRange], bytes], fault: int | str
) -> None:
    ranges, content = wanted
    target = join(bucket, "new")
    server.rule = fail_first(fault)
    copy_ranges(ranges, target)
    server.rule = None
    assert read_file(target) == content
    # Where the response to the first request is lost, nobody knows the upload that it began.
    assert len(list_uploads(bucket)) <= (fault in ("short", "lost"))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
def test_an_upload_that_fails_for_good_leaves_nothing(
    bucket: Location, server: S3Server, wanted: tuple[list[StreamRange], bytes], method: str
) -> None:
    ranges, _ = wanted
    target = join(bucket, "new")
    server.rule = lambda command, path: 503 if command == method else None
    with pytest.raises(StorageError, match="5 attempts"):
        copy_ranges(ranges, target)
    server.rule = None
    assert not exists(target)
    assert list_uploads(bucket) == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, 500, "lost"])
def test_large_files_are_sent_in_parts(
    bucket: Location, server: S3Server, fault: int | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "ONE_REQUEST", 6 * MIB)
    monkeypatch.setattr(uploads, "SENT_PART", 5 * MIB)
    content = random.Random(1).randbytes(16 * MIB)
    target = join(bucket, "new")
    server.rule = None if fault is None else fail_first(fault)
    with create_file(target, replace=True) as file:
        for start in range(0, len(content), MIB):
            file.write(content[start : start + MIB])
    server.rule = None
    assert [size for method, _, size, _ in server.requests if method == "PUT" and size].count(5 * MIB) >= 3
    assert read_file(target) == content


@pytest.mark.slow
def test_a_large_file_whose_writer_fails_does_not_exist(
    bucket: Location, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "ONE_REQUEST", 6 * MIB)
    target = join(bucket, "new")

    def write() -> None:
        with create_file(target, replace=True) as file:
            file.write(bytes(20 * MIB))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert not exists(target)
    assert list_uploads(bucket) == []


def fail_first(fault: int | str) -> Callable[[str, str], int | str | None]:
    """Let the first attempt of every request fail; a GET of another range of a file is not another request."""
    seen: set[tuple[str, str]] = set()

    def fail(command: str, path: str) -> int | str | None:
        if (command, path) in seen:
            return None
        seen.add((command, path))
        return fault

    return fail


@pytest.mark.slow
def test_parts_are_long_enough(bucket: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "SMALLEST_PART", 10)
    monkeypatch.setattr(multipart, "SENT_PART", 16)
    monkeypatch.setattr(multipart, "COPIED_PART", 30)
    numbers = random.Random(3)
    source, target = join(bucket, "a"), join(bucket, "new")
    for _ in range(2000):
        ranges: list[FileRange | bytes] = [
            bytes(size) if numbers.random() < 0.2 else FileRange(source, 100, 100 + size)
            for size in (numbers.choice([1, 3, 9, 10, 11, 25, 70]) for _ in range(numbers.randrange(1, 7)))
        ]
        parts = plan_parts(ranges, target)
        assert all(sum(map(len, part.ranges)) >= 10 for part in parts[:-1])
        assert all(sum(map(len, part.ranges)) <= 45 for part in parts)
        assert spell(parts) == spell([Part(tuple(ranges))])
        copied = [part for part in parts if part.is_copied]
        assert all(len(part.ranges[0]) >= 10 for part in copied)
        assert bool(copied) == can_copy_ranges(ranges, target)


def spell(parts: list[Part]) -> list[int]:
    """Every byte by its position, -1 for bytes that are in no file."""
    ranges = [each for part in parts for each in part.ranges]
    return [
        at
        for each in ranges
        for at in (range(each.start, each.end) if isinstance(each, FileRange) else [-1] * len(each))
    ]


def test_files_of_another_store_are_sent(bucket: Location) -> None:
    elsewhere = resolve("memory://elsewhere")
    assert not can_copy_ranges([FileRange(elsewhere, 0, 50 * MIB)], join(bucket, "new"))
    assert not can_copy_ranges([FileRange(join(bucket, "a"), 0, 50 * MIB)], elsewhere)
