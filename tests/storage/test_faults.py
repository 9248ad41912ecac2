from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from state_pipelines.errors import FormatError, MissingFileError, StorageError
from state_pipelines.redaction import redact
from state_pipelines.storage import (
    Location,
    create_file,
    exists,
    file_size,
    is_directory,
    join,
    list_directory,
    list_files,
    locations,
    parent,
    read_file,
    read_range,
    resolve,
)
from state_pipelines.storage.files import remove_file
from state_pipelines.storage.locations import ATTEMPTS, is_transient, request, translating
from tests.storages import CountedFileSystem, empty_counted

if TYPE_CHECKING:
    from collections.abc import Callable


class HttpFault(Exception):
    """As clients raise one for an answer that is an error."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(text or f"the server answered {status}")
        self.status = status


class FlexibleChecksumError(Exception):
    """Named as the error of botocore for a body that does not have its checksum."""


TRANSIENT = [
    TimeoutError("timed out"),
    ConnectionResetError("reset by peer"),
    OSError(5, "Internal error"),
    *(HttpFault(status) for status in (429, 500, 502, 503, 504)),
    FlexibleChecksumError("expected checksum a, got b"),
]


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Location:
    monkeypatch.setattr(locations, "_FIRST_WAIT", 0.0)
    monkeypatch.setattr(locations, "_CLIENT_ERRORS", ((__name__, "HttpFault"), (__name__, "FlexibleChecksumError")))
    root = empty_counted()
    with create_file(join(root, "d", "a")) as file:
        file.write(b"content")
    CountedFileSystem.requests.clear()
    return root


def write(place: Location) -> bytes:
    with create_file(place, replace=True) as file:
        file.write(b"content")
    return b""


OPERATIONS: list[tuple[str, Callable[[Location], object], object]] = [
    ("read the file", read_file, b"content"),
    ("read the file", lambda place: read_range(place, 2, 5), b"nte"),
    ("measure the file", file_size, 7),
    ("look for the file", exists, True),
    ("look for the directory", lambda place: is_directory(parent(place)), True),
    ("list the directory", lambda place: len(list_directory(parent(place))), 1),
    ("remove the file", remove_file, None),
]


@pytest.mark.parametrize("fault", TRANSIENT, ids=lambda fault: f"{type(fault).__name__} {fault}")
@pytest.mark.parametrize(("operation", "call", "result"), OPERATIONS)
def test_a_fault_changes_nothing(
    root: Location, operation: str, call: Callable[[Location], object], result: object, fault: Exception
) -> None:
    CountedFileSystem.faults.append(fault)
    assert call(join(root, "d", "a")) == result


def test_a_fault_while_listing_leaves_no_file_out(root: Location) -> None:
    CountedFileSystem.faults += [TimeoutError(), TimeoutError()]
    assert [entry.location.path for entry in list_files(root)] == ["/counted/d/a"]


def test_a_small_file_is_written_after_a_fault(root: Location) -> None:
    CountedFileSystem.faults += [TimeoutError(), TimeoutError()]
    write(join(root, "new"))
    assert read_file(join(root, "new")) == b"content"


@pytest.mark.parametrize(("operation", "call", "result"), OPERATIONS)
def test_faults_end_in_one_error_after_some_attempts(
    root: Location, operation: str, call: Callable[[Location], object], result: object
) -> None:
    CountedFileSystem.faults += [ConnectionResetError("reset by peer")] * ATTEMPTS
    with pytest.raises(StorageError) as caught:
        call(join(root, "d", "a"))
    assert caught.value.what == f"cannot {operation} ({ATTEMPTS} attempts): reset by peer"
    assert str(caught.value.where.file).startswith("counted:///counted/d")
    assert caught.value.transient
    assert len(CountedFileSystem.requests) == ATTEMPTS


@pytest.mark.parametrize("error", [FileNotFoundError("gone"), PermissionError("no"), IsADirectoryError(21, "is one")])
def test_other_errors_are_not_tried_again(root: Location, error: Exception) -> None:
    CountedFileSystem.faults.append(error)
    with pytest.raises(StorageError if isinstance(error, PermissionError) else MissingFileError):
        read_file(join(root, "d", "a"))
    assert len(CountedFileSystem.requests) == 1


def test_a_short_body_is_read_again(root: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [b"nt", b"nte"]
    monkeypatch.setattr(CountedFileSystem, "cat_file", lambda *_, **__: bodies.pop(0))
    assert read_range(join(root, "d", "a"), 2, 5) == b"nte"


def test_a_range_after_the_end_is_not_read_again(root: Location) -> None:
    with pytest.raises(FormatError, match="bytes 5 to 9 are wanted but the file has 7"):
        read_range(join(root, "d", "a"), 5, 9)
    assert [operation for operation, _ in CountedFileSystem.requests].count("read") == 1


def test_local_files_are_not_tried_again(tmp_path: object) -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        raise OSError(5, "Input/output error")

    with pytest.raises(MissingFileError, match="Input/output error"):
        request(resolve(str(tmp_path)), "read the file", fail)
    assert len(calls) == 1


def test_errors_of_programs_are_not_translated(root: Location) -> None:
    CountedFileSystem.faults.append(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        read_file(join(root, "d", "a"))


@pytest.mark.parametrize(
    "error", [AttributeError("S3CR3T"), KeyError("S3CR3T"), TypeError("S3CR3T"), ValueError("Invalid endpoint: S3CR3T")]
)
@pytest.mark.parametrize(("operation", "call", "result"), OPERATIONS)
def test_options_that_a_client_does_not_take_are_one_error_without_its_text(
    root: Location, operation: str, call: Callable[[Location], object], result: object, error: Exception
) -> None:
    CountedFileSystem.faults.append(error)
    with pytest.raises(StorageError) as caught:
        call(join(root, "d", "a"))
    name = type(error).__name__
    assert caught.value.what == f"cannot {operation}: the client of the storage refuses the storage options ({name})"
    assert caught.value.__cause__ is error
    assert "S3CR3T" not in str(caught.value)
    assert len(CountedFileSystem.requests) == 1


def test_options_that_a_client_does_not_take_for_a_stream_are_one_error(root: Location) -> None:
    with pytest.raises(StorageError, match="refuses the storage options"), translating(root, "write the file"):
        raise TypeError("S3CR3T")


@pytest.mark.parametrize("error", [ValueError("x"), TypeError("x"), KeyError("x"), AttributeError("x")])
def test_errors_of_programs_with_local_files_are_not_translated(tmp_path: object, error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        request(resolve(str(tmp_path)), "read the file", fail)
    assert caught.value is error


def test_errors_of_arrow_are_not_about_options(root: Location) -> None:
    with pytest.raises(pa.ArrowInvalid), translating(root, "read the file"):
        raise pa.ArrowInvalid("not Parquet")


def test_a_client_that_quotes_a_url_shows_no_password_with_a_blank(root: Location) -> None:
    location = Location(root.filesystem, "u:hunt er2@h/x")
    CountedFileSystem.faults.append(HttpFault(403, f"refused {location.url}"))
    with pytest.raises(StorageError) as caught:
        read_file(location)
    assert "er2" not in str(caught.value)


def test_the_error_can_be_sent_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(StorageError("failed", transient=True)))
    assert (str(error), error.transient) == ("failed", True)


@pytest.mark.parametrize("error", [FileNotFoundError(), PermissionError(), ValueError(), HttpFault(403)])
def test_an_error_that_stays_is_not_transient(error: Exception) -> None:
    assert not is_transient(error)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("https://h/a?X-Amz-Signature=1&X-Amz-Credential=2", "https://h/a?…"),
        ("GET https://h/a?sig=1 failed", "GET https://h/a?… failed"),
        ("ftp://user:password@h/a", "ftp://…@h/a"),
        ("abfss://container@account.dfs.core.windows.net/a", "abfss://container@account.dfs.core.windows.net/a"),
        ("Could not connect to 'http://h/b?x=1'", "Could not connect to 'http://h/b?…'"),
        ("is that so?", "is that so?"),
    ],
)
def test_secrets_in_urls_are_replaced(text: str, shown: str) -> None:
    assert redact(text) == shown
