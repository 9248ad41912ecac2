"""Checkpoints of a stream on an S3 server: a batch goes on from the last one, wherever an earlier run has stopped."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import state_pipelines as sp
from benchmarks.s3_server import S3Server, start_objects
from state_pipelines.checkpoints.completed_checkpoints import list_files
from state_pipelines.checkpoints.coordinator import FailureReason
from state_pipelines.errors import StateError
from state_pipelines.spark.micro_batches import keyed_batches
from state_pipelines.storage import METADATA_FILE, locations, resolution, resolve, use_storage_options
from state_pipelines.storage import list_files as list_stored
from state_pipelines.storage.resolution import MANIFEST_FILE
from tests.spark.test_keyed_process import UID, CountClicks, clicks, expect
from tests.spark.test_micro_batches import SCHEMA, SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.spark import KeyedProcessResult

BUCKET = "s3://store"
JOB = "ab" * 16
BACKENDS: dict[str, dict[str, Any]] = {
    "full": {"state.backend.type": "hashmap"},
    "incremental": {"state.backend.type": "rocksdb", "execution.checkpointing.incremental": True},
    "changelog": {"state.changelog.enabled": True},
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    monkeypatch.setattr(resolution, "_registered", {})
    monkeypatch.setattr(locations, "_FIRST_WAIT", 0.01)
    with start_objects({"store/other": b"-"}) as server:
        use_storage_options({BUCKET: server.options})
        yield server


class Stream:
    """Batches of a query, which are given to its function one by one."""

    def __init__(self, spark: SparkSession, backend: str) -> None:
        self.spark = spark
        self.taken: list[KeyedProcessResult] = []
        self.output: dict[int, list[str]] = {}
        self.stop = False
        self.process: Callable[[DataFrame, int], None] = keyed_batches(
            key="user",
            function=CountClicks(),
            uid=UID,
            checkpoints=f"{BUCKET}/checkpoints",
            output=self.write,
            columns="user string, count long",
            job_id=JOB,
            parallelism=2,
            options=BACKENDS[backend] | {"execution.checkpointing.data-inline-threshold": 0},
            on_checkpoint=self.taken.append,
        )

    def write(self, rows: DataFrame, batch_id: int) -> None:
        self.output[batch_id] = [row["user"] for row in rows.collect()]
        if self.stop:
            raise StateError("the driver stops here")

    def run(self, batch_id: int) -> None:
        rows = clicks(batch_id * SIZE, (batch_id + 1) * SIZE)
        self.process(self.spark.createDataFrame(rows, SCHEMA), batch_id)


def assert_whole(batches: int) -> set[str]:
    """The only checkpoint has all rows of the batches. Return the names of files that it does not reference."""
    snapshot = sp.open_snapshot(f"{BUCKET}/checkpoints/{JOB}/chk-{batches}", uids=[UID])
    state = snapshot.operator(UID).state("count").to_arrow()
    counts = dict(zip(state["state_key"].to_pylist(), state["value"].to_pylist(), strict=True))
    assert counts == expect(0, batches * SIZE)[0]
    needed = {each.name for each in list_files(snapshot.metadata, snapshot.location.directory)}
    stored = {each.location.name: each.location for each in list_stored(resolve(f"{BUCKET}/checkpoints"))}
    assert needed <= stored.keys()
    left = stored.keys() - needed - {METADATA_FILE, MANIFEST_FILE}
    # Uploads of a stopped run for later checkpoints too; retention knows that nobody needs them.
    assert all("/shared/" in stored[name].path for name in left)
    plan = sp.plan_retention(f"{BUCKET}/checkpoints", now=lambda: datetime.now(UTC) + timedelta(days=10))
    assert {each.path.rpartition("/")[2] for each in plan.delete} == left
    return left


@pytest.mark.parametrize("backend", ["full", "incremental"])
def test_a_stopped_batch_is_repeated(spark: SparkSession, server: S3Server, backend: str) -> None:
    stream = Stream(spark, backend)
    stream.run(0)
    stream.stop = True
    with pytest.raises(StateError, match="stops here"):
        stream.run(1)
    again = Stream(spark, backend)
    again.run(1)
    # The query stopped after the checkpoint, before Spark noted the end of the batch.
    again.run(1)
    again.run(2)
    assert bool(assert_whole(3)) == (backend != "full")
    output = stream.output | again.output
    assert sum(map(Counter, output.values()), Counter()) == Counter(expect(0, 3 * SIZE)[0])
    if backend != "full":
        assert again.taken[-1].persisted_size < again.taken[-1].state_size


@pytest.mark.parametrize(
    ("backend", "refused", "reason"),
    [
        ("incremental", re.compile("/shared/"), FailureReason.CHECKPOINT_ASYNC_EXCEPTION),
        ("changelog", re.compile(rf"/{METADATA_FILE}$"), FailureReason.FINALIZE_CHECKPOINT_FAILURE),
    ],
    ids=["a table", "the metadata"],
)
def test_a_store_that_refuses_a_file_of_a_batch_loses_nothing(
    spark: SparkSession, server: S3Server, backend: str, refused: re.Pattern[str], reason: FailureReason
) -> None:
    stream = Stream(spark, backend)
    stream.run(0)
    server.rule = lambda method, path: 403 if method == "PUT" and refused.search(path.partition("?")[0]) else None
    with pytest.raises(StateError, match=r"cannot (write|publish|copy|upload)") as caught:
        stream.run(1)
    assert caught.value.details["reason"] == reason.name
    assert caught.value.details["message"].startswith(reason.message)
    server.rule = None
    stream.run(1)
    assert_whole(2)
