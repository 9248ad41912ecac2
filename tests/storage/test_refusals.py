"""What S3 refuses says nothing of the bytes: a storage error that names credentials, region or archive, once."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

import state_pipelines as sp
from benchmarks.s3_server import Refusal, S3Server, start_s3
from state_pipelines.errors import StorageError, TargetExistsError
from state_pipelines.operations.auditing.audits import audit_snapshot
from state_pipelines.operations.auditing.report import AuditVerdict
from state_pipelines.operations.inspect import inspect
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import (
    Location,
    file_size,
    join,
    locations,
    read_file,
    read_range,
    resolution,
    resolve,
    use_storage_options,
)
from state_pipelines.storage.snapshot_writer import SnapshotWriter, discard_partial
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ELSEWHERE = (("x-amz-bucket-region", "eu-central-1"),)
REFUSALS = {
    "archived": (Refusal(403, "InvalidObjectState"), "the object is archived"),
    "expired": (Refusal(400, "ExpiredToken"), "the credentials have expired"),
    "invalid": (Refusal(400, "InvalidToken"), "the credentials have expired, or are not valid"),
    "unsigned": (Refusal(403, "SignatureDoesNotMatch"), "the credentials do not allow it"),
    "forbidden": (Refusal(403, "AccessDenied"), "the credentials do not allow it"),
    "elsewhere": (Refusal(301, "PermanentRedirect", ELSEWHERE), "the bucket is in another region, eu-central-1"),
    "malformed": (Refusal(400, "AuthorizationHeaderMalformed"), "the bucket is in another region"),
    "disabled": (Refusal(400, "KMS.DisabledException"), "the key of its encryption cannot be used"),
    "foreign": (Refusal(400, "KMS.NotFoundException"), "the key of its encryption cannot be used"),
    "conflict": (Refusal(409, "InvalidBucketState"), "cannot read the file: "),
}
each_refusal = pytest.mark.parametrize(("refusal", "message"), REFUSALS.values(), ids=REFUSALS)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    with start_s3() as server:
        yield server


@pytest.fixture
def savepoint(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Location]:
    """The orders in a bucket of their own."""
    monkeypatch.setattr(resolution, "_registered", {})
    monkeypatch.setattr(locations, "_FIRST_WAIT", 0.0)
    name = str(uuid.uuid4())
    use_storage_options({f"s3://{name}": server.options})
    server.put(name, {f"savepoint/{path.name}": path.read_bytes() for path in orders().path.iterdir()})
    yield resolve(f"s3://{name}/savepoint")
    server.rule = None


def refuse(server: S3Server, fault: object, wanted: Callable[[str, str], bool]) -> None:
    """Refuse some requests by their method and path."""
    server.clear()
    server.rule = lambda command, path: fault if wanted(command, path) else None  # type: ignore[assignment,return-value]


@each_refusal
def test_a_refusal_is_sent_once_and_named(
    savepoint: Location, server: S3Server, refusal: Refusal, message: str
) -> None:
    refuse(server, refusal, lambda *_: True)
    with pytest.raises(StorageError) as caught:
        read_file(join(savepoint, "_metadata"))
    assert caught.value.what.startswith("cannot read the file: ")
    assert message in caught.value.what
    assert not caught.value.transient
    # The client asks for the region of a bucket that is elsewhere.
    assert len([each for each in server.requests if each[0] == "GET"]) <= (2 if "region" in message else 1)


@pytest.mark.parametrize("read", [file_size, lambda file: read_range(file, 2, 5)], ids=["size", "range"])
@pytest.mark.parametrize(("refusal", "message"), [REFUSALS["forbidden"], REFUSALS["elsewhere"]])
def test_refusals_of_other_requests_are_named_too(
    savepoint: Location, server: S3Server, read: Callable[[Location], object], refusal: Refusal, message: str
) -> None:
    refuse(server, refusal, lambda *_: True)
    with pytest.raises(StorageError, match=message.split(",")[0]):
        read(join(savepoint, "_metadata"))


@pytest.mark.slow
@each_refusal
def test_a_snapshot_with_files_that_are_refused_is_not_damaged(
    savepoint: Location, server: S3Server, refusal: Refusal, message: str
) -> None:
    refuse(
        server, refusal, lambda command, path: command == "GET" and "_metadata" not in path and "list-type" not in path
    )
    report = audit_snapshot(savepoint.url)
    assert report.verdict is AuditVerdict.UNDETERMINED
    assert any(message in finding.what for finding in report.findings)
    shown = inspect(open_snapshot(savepoint.url))
    assert any(each.unreachable for each in shown.operators)
    assert not any(each.damaged for each in shown.operators)


def test_a_conflict_with_another_request_is_tried_once_more(savepoint: Location, server: S3Server) -> None:
    refuse(server, Refusal(409, "OperationAborted"), lambda *_: True)
    with pytest.raises(StorageError, match="2 attempts"):
        read_file(join(savepoint, "_metadata"))
    assert len(server.requests) == 2


def test_throttling_of_keys_is_tried_again(savepoint: Location, server: S3Server) -> None:
    server.faults += [Refusal(400, "KMS.ThrottlingException")] * 2
    assert len(read_file(join(savepoint, "_metadata")))
    assert not server.faults


@pytest.mark.slow
def test_a_refusal_in_the_middle_leaves_nothing(savepoint: Location, server: S3Server) -> None:
    target = join(resolve(savepoint.url.rpartition("/")[0]), "new")
    snapshot = open_snapshot(savepoint.url, uids=orders().uids)
    inspect(snapshot)
    refuse(
        server, REFUSALS["forbidden"][0], lambda command, path: command in ("PUT", "POST") and path.count("/new/") > 0
    )
    with pytest.raises(StorageError, match="credentials"):
        sp.convert(snapshot, target.url, "heap")
    server.rule = None
    assert not target.filesystem.exists(target.path)


NOTHING = Refusal(
    200, "", content=b"<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
)


def write_unfinished(target: Location) -> None:
    """Write a file that the writer knows, and one as a worker does that has not answered yet; publish nothing."""
    with SnapshotWriter(target) as writer:
        writer.write_file("known", b"bytes")
        target.filesystem.pipe_file(join(target, str(uuid.uuid4())).path, b"bytes")


@pytest.mark.slow
def test_files_that_the_storage_does_not_list_are_removed_or_named(savepoint: Location, server: S3Server) -> None:
    target = join(resolve(savepoint.url.rpartition("/")[0]), "new")
    refuse(server, NOTHING, lambda command, path: command == "GET" and "list-type=2" in path)
    with pytest.raises(StorageError, match=r"does not list all that was written.*--discard-partial"):
        write_unfinished(target)
    server.rule = None
    target.filesystem.invalidate_cache()
    assert not target.filesystem.exists(join(target, "known").path)
    with pytest.raises(TargetExistsError, match="--discard-partial"), SnapshotWriter(target):
        pass
    assert discard_partial(target) == 2
    target.filesystem.invalidate_cache()
    assert not target.filesystem.exists(target.path)


def take_with_loss(target: Location, server: S3Server) -> None:
    """Take a target whose marker comes back empty."""
    with SnapshotWriter(target) as writer:
        refuse(server, Refusal(200, "", content=b""), lambda command, path: command == "GET" and ".pending" in path)
        writer.require_taken()


@pytest.mark.slow
def test_what_the_storage_has_lost_is_named(savepoint: Location, server: S3Server) -> None:
    target = join(resolve(savepoint.url.rpartition("/")[0]), "new")
    with pytest.raises(StorageError, match=r"returns 0 of 32 bytes .*--discard-partial"):
        take_with_loss(target, server)
    server.rule = None
    assert discard_partial(target) == 1


def test_a_server_that_ignores_ranges_is_named(savepoint: Location, server: S3Server) -> None:
    refuse(server, "whole", lambda *_: True)
    with pytest.raises(StorageError, match=r"ignores ranges: .* were sent for 3 bytes"):
        read_range(join(savepoint, "_metadata"), 2, 5)
    assert len(server.requests) == 1
