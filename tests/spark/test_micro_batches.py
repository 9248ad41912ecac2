"""A keyed function over the batches of a query: wherever it stops, state equals that of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from inspect import Parameter, signature
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import state_pipelines as sp
from state_pipelines.errors import StateError, UsageError
from state_pipelines.metadata import list_references
from state_pipelines.spark.keyed_step import KeyedSettings, keyed_process
from state_pipelines.spark.micro_batches import keyed_batches
from tests.spark.test_keyed_process import UID, CountClicks, RemindLater, clicks, expect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.spark.keyed_tasks import KeyedProcessResult

SCHEMA = "user string, page string, at long"
SIZE = 30
BATCHES = 3


class Stopped(Exception):
    """The driver ends here."""


class Query:
    """A query over files, one per batch, with an output that replaces what it wrote for the same batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.calls: list[int] = []
        self.checkpoints = folder / "checkpoints"
        (folder / "input").mkdir(exist_ok=True)

    def add(self, number: int) -> None:
        rows = clicks(number * SIZE, (number + 1) * SIZE)
        lines = [json.dumps({"user": user, "page": page, "at": at}) for user, page, at in rows]
        path = self.folder / "input" / f"{number}.json"
        path.write_text("\n".join(lines))
        # The source gives files by their time.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    def write_output(self, rows: DataFrame, batch_id: int) -> None:
        self.calls.append(batch_id)
        found = sorted([row["user"], row["count"]] for row in rows.collect())
        (self.folder / f"output-{batch_id}.json").write_text(json.dumps(found))

    def make_writer(self, **options: Any) -> Callable[[DataFrame, int], None]:
        defaults: dict[str, Any] = {
            "key": "user",
            "function": CountClicks(),
            "uid": UID,
            "checkpoints": str(self.checkpoints),
            "output": self.write_output,
            "columns": "user string, count long",
            "order_by": ["at"],
            "parallelism": 2,
        }
        return keyed_batches(**(defaults | options))

    def run(self, writer: Callable[[DataFrame, int], None]) -> None:
        """Process all files that are there."""
        source = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.folder / "input"))
        query = (
            source.writeStream.foreachBatch(writer)
            .option("checkpointLocation", str(self.folder / "query"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def find_checkpoints(self) -> list[str]:
        return sorted(path.parent.name for path in self.checkpoints.glob("*/chk-*/_metadata"))

    def read_state(self) -> dict[str, int]:
        newest = sorted(self.checkpoints.glob("*/chk-*/_metadata"), key=lambda path: int(path.parent.name[4:]))[-1]
        state = sp.open_snapshot(str(newest.parent)).operator(UID).state("count").to_arrow()
        return dict(zip(state["state_key"].to_pylist(), state["value"].to_pylist(), strict=True))

    def read_output(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for path in self.folder.glob("output-*.json"):
            found.update(user for user, _ in json.loads(path.read_text()))
        return found


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    made = Query(spark, tmp_path)
    for number in range(BATCHES):
        made.add(number)
    return made


def assert_whole(query: Query, end: int = BATCHES * SIZE) -> None:
    counts = expect(0, end)[0]
    assert query.read_state() == counts
    assert query.read_output() == Counter(counts)


def test_each_batch_has_the_checkpoint_of_its_number(query: Query) -> None:
    query.run(query.make_writer(options={"execution.checkpointing.num-retained": 2}))
    assert query.calls == [0, 1, 2]
    assert query.find_checkpoints() == ["chk-2", "chk-3"]
    assert_whole(query)
    # The next run of the query goes on.
    query.add(3)
    query.run(query.make_writer(parallelism=3, options={"execution.checkpointing.num-retained": 2}))
    assert query.calls == [0, 1, 2, 3]
    assert query.find_checkpoints() == ["chk-3", "chk-4"]
    assert_whole(query, 4 * SIZE)


def test_incremental_checkpoints_of_batches_share_tables(query: Query) -> None:
    options = {"state.backend.type": "rocksdb", "execution.checkpointing.incremental": True}
    query.run(query.make_writer(options=options | {"execution.checkpointing.num-retained": 2}))
    assert query.find_checkpoints() == ["chk-2", "chk-3"]
    assert_whole(query)
    (job,) = query.checkpoints.iterdir()
    tables = []
    for name in ("chk-2", "chk-3"):
        metadata = sp.open_snapshot(str(job / name)).metadata
        paths = (getattr(each.handle, "path", "") for each in list_references(metadata))
        tables.append({path.rpartition("/")[2] for path in paths if "/shared/" in path})
    assert tables[0] & tables[1], "the later one references tables of the earlier one"
    assert {path.name for path in (job / "shared").iterdir()} == tables[0] | tables[1]


def test_checkpoints_of_batches_upload_the_changes(query: Query) -> None:
    options = {"state.changelog.enabled": True, "execution.checkpointing.num-retained": 2}
    query.run(query.make_writer(options=options))
    assert query.find_checkpoints() == ["chk-2", "chk-3"]
    assert_whole(query)
    (job,) = query.checkpoints.iterdir()
    files = []
    for name in ("chk-2", "chk-3"):
        references = list_references(sp.open_snapshot(str(job / name)).metadata)
        files.append({Path(getattr(each.handle, "path", "")).name: each.role for each in references})
    assert files[0].items() < files[1].items(), (
        "the later one has the base and the logs of the earlier one, and its own"
    )
    assert {each.value for each in files[1].values()} == {"state", "changes"}
    assert {path.name for path in (job / "shared").iterdir()} == set(files[1])


STEPS = ["in a task", "before the output", "after the output", "publishing", "before the commit"]


@pytest.mark.parametrize("step", STEPS)
def test_a_query_that_stops_anywhere_goes_on(query: Query, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    stopped: list[int] = []

    def stop(batch_id: int) -> None:
        if batch_id == 1 and not stopped:
            stopped.append(batch_id)
            raise Stopped

    def write_output(rows: DataFrame, batch_id: int) -> None:
        if step == "before the output":
            stop(batch_id)
        query.write_output(rows, batch_id)
        if step == "after the output":
            stop(batch_id)

    writer = query.make_writer(output=write_output)

    def process(df: DataFrame, batch_id: int) -> None:
        if step == "in a task" and batch_id == 1 and not stopped:
            stopped.append(batch_id)
            df = df.selectExpr("user", "page", "assert_true(at <> 45) is null as x", "at").selectExpr(
                "if(x, user, null) as user", "page", "at"
            )
        writer(df, batch_id)
        if step == "before the commit":
            stop(batch_id)

    if step == "publishing":
        from state_pipelines.checkpoints import completed_checkpoints, coordinator

        publish = completed_checkpoints.publish

        def fail(*arguments: Any) -> Any:
            if query.calls[-1] == 1 and not stopped:
                stopped.append(1)
                raise StateError("the disk is full")
            return publish(*arguments)

        monkeypatch.setattr(coordinator, "publish", fail)
    with pytest.raises(Exception, match=r"Stopped|disk is full|cannot run"):
        query.run(process)
    assert stopped == [1]
    assert query.find_checkpoints() == (["chk-2"] if step == "before the commit" else ["chk-1"])
    query.run(process)
    again = step in ("after the output", "publishing")
    assert query.calls == ([0, 1, 1, 2] if again else [0, 1, 2])
    assert query.find_checkpoints() == ["chk-3"]
    assert_whole(query)


KILLED = """
import os
import signal
import sys
from pathlib import Path
from state_pipelines.spark.session import create_session
from tests.conftest import QUICK_START
from tests.spark.test_micro_batches import Query

query = Query(create_session("killed", conf={"spark.master": "local[2]"} | QUICK_START), Path(sys.argv[1]))


def write_output(rows, batch_id):
    query.write_output(rows, batch_id)
    if batch_id == 1:
        os.kill(os.getpid(), signal.SIGKILL)


options = {"execution.checkpointing.data-inline-threshold": 0}
query.run(query.make_writer(output=write_output, options=options))
"""


@pytest.mark.slow
def test_a_driver_that_is_killed_before_the_publication_leaves_nothing(query: Query) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(query.folder)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    (job,) = query.checkpoints.iterdir()
    assert [*(job / "chk-2").iterdir()], "data files were written"
    assert query.find_checkpoints() == ["chk-1"]
    query.run(query.make_writer())
    assert_whole(query)
    assert [path.name for path in job.iterdir()] == ["chk-3"]


@pytest.mark.essential
def test_the_first_batch_starts_from_a_snapshot(query: Query, spark: SparkSession, tmp_path: Path) -> None:
    history = spark.createDataFrame(clicks(0, SIZE), SCHEMA)
    old = keyed_process(
        history, key="user", function=CountClicks(), uid=UID, parallelism=1, savepoint=str(tmp_path / "savepoints")
    ).snapshot
    query.run(query.make_writer(from_snapshot=old))
    expected = Counter(expect(0, BATCHES * SIZE)[0]) + Counter(expect(0, SIZE)[0])
    assert query.read_state() == expected
    assert old is not None
    assert sp.open_snapshot(old.path).operator(UID).state("count").to_arrow().num_rows == SIZE


def test_timers_fire_up_to_the_watermark_of_the_batch(query: Query) -> None:
    fired: dict[int, list[tuple[int, str]]] = {}

    def note(rows: DataFrame, batch_id: int) -> None:
        fired[batch_id] = sorted((row["count"], row["user"]) for row in rows.collect())

    query.run(query.make_writer(function=RemindLater(), output=note, timestamp="at", out_of_orderness=5))
    timers = sorted((at + 10, user) for user, _, at in clicks(0, BATCHES * SIZE))
    # The last rows of the batches are at 29, 59 and 89.
    bounds = [-1, 23, 53, 83]
    assert fired == {
        index: [each for each in timers if low < each[0] <= high] for index, (low, high) in enumerate(pairwise(bounds))
    }


def test_a_batch_is_read_once(query: Query, spark: SparkSession) -> None:
    read = spark.sparkContext.accumulator(0)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            read.add(batch.num_rows)
            yield batch

    rows = spark.createDataFrame(clicks(0, SIZE), SCHEMA).repartition(3).mapInArrow(count, SCHEMA)
    options = {"job_id": "ab" * 16, "function": RemindLater(), "timestamp": "at", "out_of_orderness": 5}
    query.make_writer(**options)(rows, 0)
    assert read.value == SIZE
    assert query.read_output() == Counter(user for user, _, at in clicks(0, SIZE) if at + 10 <= SIZE - 1 - 5 - 1)


def test_batches_that_do_not_follow_the_checkpoints_are_refused(query: Query, spark: SparkSession) -> None:
    job = "e" * 32
    writer = query.make_writer(job_id=job)
    df = spark.createDataFrame(clicks(0, SIZE), SCHEMA)
    with pytest.raises(UsageError, match="batch 1 goes on from checkpoint 1, and the newest one is none"):
        writer(df, 1)
    writer(df, 0)
    with pytest.raises(UsageError, match="batch 5 goes on from checkpoint 5, and the newest one is 1"):
        writer(df, 5)
    assert query.calls == [0]
    with pytest.raises(UsageError, match="not one of a streaming query"):
        query.make_writer()(df, 0)


def test_two_functions_of_a_query_have_checkpoints_of_their_own(query: Query) -> None:
    one, other = query.make_writer(), query.make_writer(uid="other", output=None, columns=None)

    def run_both(df: DataFrame, batch_id: int) -> None:
        one(df, batch_id)
        other(df, batch_id)

    query.run(run_both)
    assert sorted(query.find_checkpoints()) == [f"chk-{BATCHES}"] * 2
    assert query.read_output() == Counter(expect(0, BATCHES * SIZE)[0])


def test_checkpoints_of_another_operator_are_refused(query: Query, spark: SparkSession) -> None:
    df = spark.createDataFrame(clicks(0, SIZE), SCHEMA)
    query.make_writer(job_id="e" * 32)(df, 0)
    with pytest.raises(UsageError, match="have no operator other"):
        query.make_writer(job_id="e" * 32, uid="other")(df, 0)


def test_event_time_is_a_column_of_whole_milliseconds(query: Query, spark: SparkSession) -> None:
    df = spark.createDataFrame(clicks(0, SIZE), SCHEMA)
    for timestamp, message in (("nope", "no column nope"), ("user", "event time is whole milliseconds")):
        with pytest.raises(UsageError, match=message):
            query.make_writer(job_id="e" * 32, timestamp=timestamp, out_of_orderness=1)(df, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": None}, "output and columns belong together"),
        ({"out_of_orderness": 3}, "needs a column of event time"),
        ({"options": {"execution.state-recovery.claim-mode": "CLAIM"}}, "does not claim"),
        ({"options": {"execution.checkpointing.create-subdir": False}}, "a directory of its own"),
        ({"options": {"execution.checkpointing.dir": "elsewhere"}}, "execution.checkpointing.dir is elsewhere"),
    ],
)
def test_contradictions(query: Query, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        query.make_writer(**options)


def test_settings_are_keyword_arguments_of_both() -> None:
    shared = {each.name for each in fields(KeyedSettings)}
    for function, own in (
        (keyed_process, {"df", "output", "checkpoint", "savepoint", "savepoint_format", "watermark"}),
        (keyed_batches, {"checkpoints", "output", "columns", "out_of_orderness", "on_checkpoint"}),
    ):
        parameters = signature(function).parameters
        assert set(parameters) == shared | own
        assert {each.kind for name, each in parameters.items() if name != "df"} == {Parameter.KEYWORD_ONLY}


def test_each_checkpoint_is_reported_also_when_the_batch_is_repeated(query: Query, spark: SparkSession) -> None:
    found: list[KeyedProcessResult] = []
    rows = spark.createDataFrame(clicks(0, SIZE), SCHEMA)
    writer = query.make_writer(job_id="ab" * 16, on_checkpoint=found.append)
    writer(rows, 0)
    # The query stopped before Spark noted the end of the batch.
    writer(rows, 0)
    first, repeated = found
    assert first.output is None
    assert first.snapshot is not None
    assert repeated.snapshot is not None
    assert repeated.snapshot.path == first.snapshot.path
    assert first.state_size == first.persisted_size > 0
    assert (repeated.duration, repeated.state_size, repeated.persisted_size) == (0, 0, 0)
