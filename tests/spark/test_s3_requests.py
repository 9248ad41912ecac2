"""Spark works on an S3 server behind a proxy that counts, waits and fails."""

from __future__ import annotations

import json
import uuid
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from benchmarks.generate import OPERATOR, generate
from benchmarks.s3_server import S3Server, start_s3
from state_pipelines.errors import StateError
from state_pipelines.operations.migration import parse_migration
from state_pipelines.snapshot import open_snapshot
from state_pipelines.spark import metadata_source, migrate
from state_pipelines.spark.metadata_source import MetadataReader, SnapshotSplit
from state_pipelines.storage import (
    METADATA_FILE,
    exists,
    faults,
    join,
    list_files,
    options,
    resolve,
    use_storage_options,
)
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

MIGRATION = {
    "revision": "0001_grade",
    "operator": OPERATOR,
    "state": "profile",
    "upgrade": [{"rename": {"name": "label"}}],
    "downgrade": [{"rename": {"label": "name"}}],
}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    with start_s3() as server:
        yield server


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A canonical snapshot of two states in two files."""
    target = tmp_path_factory.mktemp("generated") / "savepoint"
    generate(str(target), 20_000)
    return target


@pytest.fixture
def bucket(server: S3Server, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket with the snapshot below `savepoint`."""
    monkeypatch.setattr(options, "_registered", {})
    monkeypatch.setattr(faults, "_FIRST_WAIT", 0.01)
    name = str(uuid.uuid4())
    use_storage_options({f"s3://{name}": server.options})
    server.put(name, {f"savepoint/{path.name}": path.read_bytes() for path in directory.iterdir()})
    server.clear()
    yield f"s3://{name}"
    server.rule = server.gather = None


def run_migration(spark: SparkSession, bucket: str, *, prove: bool) -> str:
    source = open_snapshot(f"{bucket}/savepoint", uids=[OPERATOR])
    return migrate(source, parse_migration(MIGRATION), f"{bucket}/new", prove=prove, spark=spark).path


@pytest.mark.parametrize("prove", [False, True])
def test_a_migration_reads_and_writes_once_and_proves_with_one_reading(
    spark: SparkSession, server: S3Server, bucket: str, directory: Path, prove: bool
) -> None:
    size = sum(path.stat().st_size for path in directory.iterdir())
    path = run_migration(spark, bucket, prove=prove)
    sent = sum(each for _, _, each, _ in server.requests)
    assert server.received <= (2.1 if prove else 1.1) * size
    assert sent <= 1.05 * size
    names = {entry.location.path.rpartition("/")[0] for entry in list_files(resolve(bucket))}
    assert names == {resolve(f"{bucket}/savepoint").path, resolve(path).path}


@pytest.mark.parametrize("fault", [500, 503, "reset", "short", "lost"])
def test_every_request_of_a_migration_may_fail_once(
    spark: SparkSession, server: S3Server, bucket: str, fault: int | str
) -> None:
    seen: set[tuple[str, str]] = set()

    def fail(command: str, path: str) -> int | str | None:
        if (command, path) in seen:
            return None
        seen.add((command, path))
        return fault

    server.rule = fail
    path = run_migration(spark, bucket, prove=True)
    server.rule = None
    operator = open_snapshot(path).operators[0]
    assert {state.name for state in operator.keyed_states} == {"total", "profile"}


@pytest.mark.parametrize("allowed", [0, 2, 4, 6, 8, 10, 12, 13])
def test_a_store_that_fails_for_good_ends_a_migration_in_one_error(
    spark: SparkSession, server: S3Server, bucket: str, allowed: int
) -> None:
    begun = []

    def fail(command: str, path: str) -> int | None:
        begun.append(path)
        return 503 if len(begun) > allowed else None

    server.rule = fail
    with pytest.raises(StateError) as caught:
        run_migration(spark, bucket, prove=False)
    server.rule = None
    assert 1 <= len(str(caught.value).splitlines()) <= 4
    assert not exists(join(resolve(f"{bucket}/new"), METADATA_FILE))


def test_metadata_of_many_snapshots_are_read_many_at_a_time(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_source, "SNAPSHOTS_PER_TASK", 32)
    name = resolve(bucket).path
    metadata = (orders().path / METADATA_FILE).read_bytes()
    files = {f"many/job/chk-{number}/{METADATA_FILE}": metadata for number in range(40)}
    server.put(name, files)
    server.clear()
    reader = MetadataReader({"path": f"{bucket}/many", "storageOptions": json.dumps({bucket: server.options})})
    partitions = reader.partitions()
    assert [len(each.paths) for each in partitions if isinstance(each, SnapshotSplit)] == [32, 8]
    server.gather = lambda _method, path: 16 if path.endswith(METADATA_FILE) else 0
    rows = [row for partition in partitions for batch in reader.read(partition) for row in batch.to_pylist()]
    # The rows of one snapshot follow each other.
    snapshots = [row["snapshot"] for row in rows]
    assert len({*snapshots}) == 1 + sum(before != after for before, after in pairwise(snapshots)) == 40
    assert server.most >= 16
