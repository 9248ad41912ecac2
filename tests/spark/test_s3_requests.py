"""Spark works on an S3 server that counts, waits and fails."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from benchmarks.generate import OPERATOR, generate
from benchmarks.s3_server import S3Server, start_objects
from state_pipelines.errors import StateError
from state_pipelines.operations.convert import convert
from state_pipelines.operations.migration import parse_migration
from state_pipelines.snapshot import open_snapshot
from state_pipelines.spark import migrate, register
from state_pipelines.spark import source as metadata_source
from state_pipelines.spark.source import MetadataReader, SnapshotSplit
from state_pipelines.spark.tasks import LOGGER
from state_pipelines.storage import (
    METADATA_FILE,
    exists,
    join,
    list_files,
    locations,
    resolution,
    resolve,
    use_storage_options,
)
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

BUCKET = "s3://store"
MIGRATION = {
    "revision": "0001_grade",
    "operator": OPERATOR,
    "state": "profile",
    "upgrade": [{"rename": {"name": "label"}}],
    "downgrade": [{"rename": {"label": "name"}}],
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A canonical snapshot of two states in two files."""
    target = tmp_path_factory.mktemp("generated") / "savepoint"
    generate(str(target), 20_000)
    return target


@pytest.fixture
def server(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A store with the snapshot below `savepoint`."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    monkeypatch.setattr(resolution, "_registered", {})
    monkeypatch.setattr(locations, "_FIRST_WAIT", 0.01)
    with start_objects({f"store/savepoint/{path.name}": path.read_bytes() for path in directory.iterdir()}) as server:
        use_storage_options({BUCKET: server.options})
        yield server


@pytest.mark.parametrize(("format", "most"), [("canonical", 4), ("heap", 6), ("rocksdb", 9)])
def test_one_key_takes_the_requests_that_it_takes_without_spark(
    spark: SparkSession, server: S3Server, directory: Path, format: str, most: int
) -> None:
    register(spark)
    path = f"{BUCKET}/savepoint"
    if format != "canonical":
        path = convert(open_snapshot(path, uids=[OPERATOR]), f"{BUCKET}/{format}", format, verify=False).path
    state = open_snapshot(str(directory), uids=[OPERATOR]).operator(OPERATOR).state("total")
    row = next(state.batches()).to_pylist()[7]
    server.clear()
    options = {"path": path, "operatorId": OPERATOR, "uids": OPERATOR, "stateVarName": "total"}
    options |= {"key": str(row["state_key"]), "storageOptions": json.dumps({BUCKET: server.options})}
    (found,) = spark.read.format("flink-state").options(**options).load().collect()
    assert found["value"] == row["value"]
    assert len(server.requests) <= most


def test_requests_of_each_task_are_in_its_log(spark: SparkSession, server: S3Server) -> None:
    register(spark)
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    options = {"path": f"{BUCKET}/savepoint", "operatorId": OPERATOR, "uids": OPERATOR, "stateVarName": "total"}
    options |= {"splitSize": "100000", "storageOptions": json.dumps({BUCKET: server.options})}
    try:
        frame = spark.read.format("flink-state").options(**options).load()
        tasks = frame.rdd.getNumPartitions()
        server.clear()
        # The first one is sent twice, and counted twice.
        server.rule = lambda _method, _path: 503 if len(server.requests) == 1 else None
        assert frame.count() == 20_000
        logs = spark.tvf.python_worker_logs().where(f"logger = '{LOGGER}'").select("context", "msg").collect()
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    contexts = [row["context"] for row in logs]
    assert sorted(int(each["partition"]) for each in contexts) == list(range(tasks))
    assert sum(int(each["requests"]) for each in contexts) == len(server.requests) > tasks
    # The body of the error is no part of a file.
    assert 0 < server.received - sum(int(each["bytes_read"]) for each in contexts) < 100
    assert all(f"{int(each['bytes_read']):,} bytes" in row["msg"] for row, each in zip(logs, contexts, strict=True))


def run_migration(spark: SparkSession, *, prove: bool) -> str:
    source = open_snapshot(f"{BUCKET}/savepoint", uids=[OPERATOR])
    return migrate(source, parse_migration(MIGRATION), f"{BUCKET}/new", prove=prove, spark=spark).path


@pytest.mark.parametrize("prove", [False, True])
def test_a_migration_reads_and_writes_once_and_proves_with_one_reading(
    spark: SparkSession, server: S3Server, directory: Path, prove: bool
) -> None:
    size = sum(path.stat().st_size for path in directory.iterdir())
    path = run_migration(spark, prove=prove)
    sent = sum(each for _, _, each, _ in server.requests)
    assert server.received <= (2.1 if prove else 1.1) * size
    assert sent <= 1.05 * size
    names = {entry.location.path.rpartition("/")[0] for entry in list_files(resolve(BUCKET))}
    assert names == {resolve(f"{BUCKET}/savepoint").path, resolve(path).path}


@pytest.mark.parametrize("fault", [503, "short", "lost"])
def test_every_request_of_a_migration_may_fail_once(spark: SparkSession, server: S3Server, fault: int | str) -> None:
    seen: set[tuple[str, str]] = set()

    def fail(command: str, path: str) -> int | str | None:
        if (command, path) in seen:
            return None
        seen.add((command, path))
        return fault

    server.rule = fail
    path = run_migration(spark, prove=True)
    server.rule = None
    operator = open_snapshot(path).operators[0]
    assert {state.name for state in operator.keyed_states} == {"total", "profile"}


@pytest.mark.parametrize("allowed", [0, 4, 8, 12])
def test_a_store_that_fails_for_good_ends_a_migration_in_one_error(
    spark: SparkSession, server: S3Server, allowed: int
) -> None:
    begun = []

    def fail(command: str, path: str) -> int | None:
        begun.append(path)
        return 503 if len(begun) > allowed else None

    server.rule = fail
    with pytest.raises(StateError) as caught:
        run_migration(spark, prove=False)
    server.rule = None
    assert 1 <= len(str(caught.value).splitlines()) <= 4
    assert not exists(join(resolve(f"{BUCKET}/new"), METADATA_FILE))


def test_metadata_of_many_snapshots_are_read_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    monkeypatch.setattr(metadata_source, "SNAPSHOTS_PER_TASK", 16)
    metadata = (orders().path / METADATA_FILE).read_bytes()
    with start_objects({f"store/job/chk-{number}/{METADATA_FILE}": metadata for number in range(20)}) as server:
        reader = MetadataReader({"path": f"{BUCKET}/job", "storageOptions": json.dumps({BUCKET: server.options})})
        partitions = reader.partitions()
        assert [len(each.paths) for each in partitions if isinstance(each, SnapshotSplit)] == [16, 4]
        server.gather = lambda _method, path: 8 if path.endswith(METADATA_FILE) else 0
        rows = [row for partition in partitions for batch in reader.read(partition) for row in batch.to_pylist()]
    # The rows of one snapshot follow each other.
    snapshots = [row["snapshot"] for row in rows]
    assert len({*snapshots}) == 1 + sum(before != after for before, after in pairwise(snapshots)) == 20
    assert server.most >= 8
