"""Long ranges of files on an object store: several requests at a time, of which only failed ones are repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.s3_server import S3Server, start_objects
from state_pipelines.errors import FormatError, StorageError
from state_pipelines.storage import locations, read_range, resolution, resolve, use_storage_options
from state_pipelines.storage.reading import REQUEST_SIZE, REQUESTS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.storage import Location

CONTENT = bytes(range(256)) * (4 * REQUEST_SIZE // 256)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A store with one object of four parts."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    monkeypatch.setattr(resolution, "_registered", {})
    monkeypatch.setattr(locations, "_FIRST_WAIT", 0.01)
    with start_objects({"store/a": CONTENT}) as server:
        use_storage_options({"s3://store": server.options})
        yield server


@pytest.fixture
def file(server: S3Server) -> Location:
    return resolve("s3://store/a")


@pytest.mark.slow
def test_parts_are_in_flight_together(server: S3Server, file: Location) -> None:
    server.gather = lambda *_: 4
    assert read_range(file, 10, len(CONTENT) - 10) == CONTENT[10:-10]
    assert (len(server.requests), server.most) == (4, 4)


@pytest.mark.slow
def test_a_short_range_is_one_request(server: S3Server, file: Location) -> None:
    assert read_range(file, 10, 10 + REQUEST_SIZE) == CONTENT[10 : 10 + REQUEST_SIZE]
    assert len(server.requests) == 1


@pytest.mark.slow
def test_one_request_at_a_time_reads_the_whole_range(
    server: S3Server, file: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REQUESTS_VARIABLE, "1")
    assert read_range(file, 0, len(CONTENT)) == CONTENT
    assert len(server.requests) == 1


@pytest.mark.slow
@pytest.mark.parametrize("fault", [503, "reset", "short"])
def test_only_the_part_that_failed_is_read_again(server: S3Server, file: Location, fault: int | str) -> None:
    server.faults += [0, fault]
    assert read_range(file, 0, len(CONTENT)) == CONTENT
    assert [method for method, *_ in server.requests].count("GET") == 5


@pytest.mark.slow
def test_a_store_that_fails_for_good_is_one_error(server: S3Server, file: Location) -> None:
    server.rule = lambda *_: 503
    with pytest.raises(StorageError, match=r"cannot read the file \(5 attempts\)"):
        read_range(file, 0, len(CONTENT))


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, len(CONTENT) - 1, len(CONTENT) + 5])
def test_a_range_that_the_file_does_not_have_is_refused(server: S3Server, file: Location, start: int) -> None:
    with pytest.raises(FormatError, match=f"are wanted but the file has {len(CONTENT)}"):
        read_range(file, start, start + len(CONTENT) + REQUEST_SIZE)
