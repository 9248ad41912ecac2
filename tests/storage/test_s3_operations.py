"""Operations on snapshots on S3, against a server behind a proxy that counts, waits and fails."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import state_pipelines as sp
from benchmarks.s3_server import S3Server, start_s3
from state_pipelines.errors import MissingFileError, NotFoundError, StorageError
from state_pipelines.operations.dump import dump
from state_pipelines.operations.inspect import inspect
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import (
    METADATA_FILE,
    Location,
    join,
    list_files,
    locations,
    resolution,
    resolve,
    use_storage_options,
)
from state_pipelines.storage.resolution import MANIFEST_FILE
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.snapshot import Snapshot


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    with start_s3() as server:
        yield server


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Location:
    """A bucket whose options are those of its root."""
    monkeypatch.setattr(resolution, "_registered", {})
    monkeypatch.setattr(locations, "_FIRST_WAIT", 0.01)
    name = f"s3://{uuid.uuid4()}"
    use_storage_options({name: server.options})
    bucket = resolve(name)
    bucket.filesystem.mkdir(bucket.path)
    return bucket


@pytest.fixture
def savepoint(bucket: Location, server: S3Server) -> str:
    """The orders in the bucket."""
    target = join(bucket, "savepoints", orders().path.name)
    for path in orders().path.iterdir():
        bucket.filesystem.pipe_file(join(target, path.name).path, path.read_bytes())
    server.clear()
    return target.url


def show(snapshot: Snapshot, *kinds: str) -> list[str]:
    return sorted(str(each) for each in dump(snapshot) if not kinds or each["kind"] in kinds)


def open_orders(path: str) -> Snapshot:
    return open_snapshot(path, uids=orders().uids)


def test_a_snapshot_is_opened_in_one_request(savepoint: str, server: S3Server) -> None:
    open_orders(savepoint)
    assert [(method, path.rpartition("/")[2]) for method, path, *_ in server.requests] == [("GET", "_metadata")]


def test_its_metadata_file_is_opened_in_one_request(savepoint: str, server: S3Server) -> None:
    open_orders(f"{savepoint}/_metadata")
    assert len(server.requests) == 1


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3a", "s3n", "s3p"])
def test_spellings_of_flink_are_understood(savepoint: str, scheme: str) -> None:
    assert open_orders(savepoint.replace("s3://", f"{scheme}://")).operator("orders").states


@pytest.mark.slow
def test_all_entries_are_those_of_the_local_files(savepoint: str) -> None:
    assert show(open_orders(savepoint)) == show(orders().open())


@pytest.mark.slow
def test_copies_stay_inside_the_store(savepoint: str, bucket: Location, server: S3Server) -> None:
    snapshot = open_orders(savepoint)
    files = len(list(list_files(resolve(savepoint)))) - 1
    snapshot.operators[0].states  # noqa: B018 - headers are not what is counted

    def is_data(method: str, path: str) -> bool:
        return method == "PUT" and METADATA_FILE not in path and MANIFEST_FILE not in path

    server.clear()
    server.gather = lambda method, path: min(files, 8) if is_data(method, path) else 0
    try:
        result = sp.convert(snapshot, join(bucket, "kept").url, "keep")
    finally:
        server.gather = None
    copies = [path for method, path, *_ in server.requests if is_data(method, path)]
    assert (result.copied, len(copies)) == (files, files)
    assert sum(sent for method, path, sent, _ in server.requests if is_data(method, path)) == 0
    # All else is for the target, that no other writer takes it, its manifest and metadata.
    assert len(server.requests) <= files + 20
    assert server.most >= min(files, 8)
    assert show(open_orders(result.path)) == show(orders().open())


@pytest.mark.slow
def test_a_snapshot_is_converted_on_s3(savepoint: str, bucket: Location) -> None:
    result = sp.convert(open_orders(savepoint), join(bucket, "rocksdb").url, "rocksdb")
    assert show(open_orders(result.path)) == show(orders().open())


@pytest.mark.slow
def test_a_snapshot_is_rescaled_on_s3(savepoint: str, bucket: Location) -> None:
    result = sp.rescale(open_orders(savepoint), join(bucket, "rescaled").url, parallelism=3)
    assert {each.parallelism for each in open_orders(result.path).operators if each.states} == {3}
    assert show(open_orders(result.path), "keyed", "timer") == show(orders().open(), "keyed", "timer")


@pytest.mark.slow
def test_key_groups_change_on_s3(savepoint: str, bucket: Location) -> None:
    result = sp.rescale(open_orders(savepoint), join(bucket, "rescaled").url, max_parallelism=64)
    assert {each.max_parallelism for each in open_orders(result.path).operators if each.keyed_states} == {64}


@pytest.mark.slow
@pytest.mark.parametrize("fault", [503, "reset", "short"])
def test_faults_change_nothing(savepoint: str, bucket: Location, server: S3Server, fault: int | str) -> None:
    requests: Counter[tuple[str, str]] = Counter()

    def fail_first(command: str, path: str) -> int | str | None:
        # Of the five attempts of a request at most two fail, whatever others are sent between them.
        requests[command, path] += 1
        return fault if requests[command, path] <= 2 else None

    server.rule = fail_first
    try:
        result = sp.convert(open_orders(savepoint), join(bucket, "faulty").url, "heap")
    finally:
        server.rule = None
    assert max(requests.values()) > 2
    assert show(open_orders(result.path)) == show(orders().open())


@pytest.mark.slow
def test_a_store_that_fails_for_good_ends_in_one_error(savepoint: str, server: S3Server) -> None:
    server.faults += [503] * 100
    try:
        with pytest.raises(StorageError, match=r"cannot read the file \(5 attempts\)") as caught:
            open_orders(savepoint)
    finally:
        server.faults.clear()
    assert len(server.requests) == 5
    assert caught.value.where.file == f"{savepoint}/_metadata"
    assert len(str(caught.value)) < 400


@pytest.mark.slow
def test_a_store_that_fails_while_writing_leaves_nothing(savepoint: str, bucket: Location, server: S3Server) -> None:
    snapshot = open_orders(savepoint)
    inspect(snapshot)
    target = join(bucket, "failed")

    def fail_puts(command: str, path: str) -> int | None:
        return 503 if command == "PUT" and "/failed/" in path else None

    server.rule = fail_puts
    try:
        with pytest.raises(StorageError, match="5 attempts"):
            sp.convert(snapshot, target.url, "keep")
    finally:
        server.rule = None
    assert list(list_files(target)) == []


def test_a_bucket_that_does_not_exist_is_named(bucket: Location, server: S3Server) -> None:
    use_storage_options({"s3://no-such-bucket": server.options})
    with pytest.raises(MissingFileError, match=r"the bucket does not exist \[file s3://no-such-bucket/a/_metadata\]"):
        open_snapshot("s3://no-such-bucket/a")


def test_a_directory_without_a_snapshot_is_named(savepoint: str) -> None:
    with pytest.raises(NotFoundError, match="the directory has no _metadata"):
        open_snapshot(savepoint.rpartition("/")[0])


@pytest.mark.slow
def test_missing_credentials_are_named(bucket: Location, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "absent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "absent")
    use_storage_options({"s3://private": {"endpoint_url": server.endpoint}})
    with pytest.raises(StorageError, match="Unable to locate credentials") as caught:
        open_snapshot("s3://private/a")
    assert "docs/storage.md" in caught.value.hint


def test_two_roots_have_their_own_credentials(bucket: Location, server: S3Server) -> None:
    one, other = server.options | {"key": "one"}, server.options | {"key": "other"}
    use_storage_options({"s3://bucket/one": one, "s3://bucket/other": other})
    keys = [resolve(f"s3a://bucket/{name}/chk-1").filesystem.key for name in ("one", "other")]
    assert keys == ["one", "other"]
