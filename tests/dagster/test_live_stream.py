"""A stream that runs here: its checkpoints and savepoints as assets."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
import yaml

import state_pipelines as sp
from state_pipelines.dagster import ExpectationsResource, FlinkJob, SparkResource, build_flink_job
from state_pipelines.dagster.assets.savepoints import _check
from state_pipelines.dagster.job_settings import StreamSettings, to_cron
from state_pipelines.dagster.triggers import build_new_input
from state_pipelines.errors import StateError, UsageError
from state_pipelines.metadata.checkpoint import SnapshotKind
from state_pipelines.operations.auditing import Depth, audit_snapshot
from tests.dagster.conftest import ROOT, build, find_asset
from tests.snapshots import select

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

STREAM = """
from pathlib import Path

from state_pipelines.datastream import (
    CheckpointedFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    ProcessWindowFunction,
    Time,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
)
from state_pipelines.spark import connect

LIMITS = MapStateDescriptor("limits", Types.STRING(), Types.LONG())


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        metrics = runtime_context.get_metrics_group()
        self.clicks = metrics.counter("clicks")
        self.lengths = metrics.histogram("lengths")
        metrics.gauge("subtask", runtime_context.get_index_of_this_subtask)

    def process_element(self, value, ctx):
        self.clicks.inc()
        self.lengths.update(len(value.user))
        if value.page == "broken":
            raise ZeroDivisionError("no such page")
        self.count.update((self.count.value() or 0) + 1)
        yield ctx.get_current_key(), self.count.value()


class DeclineTwice(Count, CheckpointedFunction):
    def initialize_state(self, context):
        pass

    def snapshot_state(self, context):
        for name in ("@INPUT@/../first", "@INPUT@/../second"):
            if not Path(name).exists():
                Path(name).touch()
                raise OSError("no space left")


def decline_twice(spark, keyed_batches):
    return count_clicks(spark, keyed_batches, function=DeclineTwice(), parallelism=1)


class CountPages(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, len(list(elements))


class Limit(KeyedBroadcastProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value, ctx):
        self.count.update(min((self.count.value() or 0) + 1, ctx.get_broadcast_state(LIMITS).get("most")))

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(LIMITS).put(value.name, value.number)


def count_windows(spark, keyed_batches):
    windows = TumblingEventTimeWindows.of(Time.seconds(10))
    pages = keyed_batches(
        key="user",
        function=CountPages(),
        uid="pages",
        parallelism=2,
        timestamp="at",
        windows=windows,
        out_of_orderness=0,
    )
    most = keyed_batches(
        key="user", function=Limit(), uid="limit", parallelism=2, timestamp="at", broadcast_states=[LIMITS]
    )
    rules = spark.createDataFrame([("most", 1)], "name string, number long")

    def run_both(df, batch_id):
        timed = df.selectExpr("user", "page", "cast(ascii(page) as long) as at")
        pages(timed, batch_id)
        most(connect(timed, rules, key="user", timestamp="at", broadcast=True), batch_id)

    return count_clicks(spark, keyed_batches).foreachBatch(run_both)


def refuse(rows, batch_id):
    raise OSError("the table is read-only")


def count_clicks(spark, keyed_batches, **others):
    clicks = spark.readStream.schema("user string, page string").option("maxFilesPerTrigger", 1).json("@INPUT@")
    chosen = {"function": Count(), "parallelism": 2} | others
    return clicks.writeStream.foreachBatch(keyed_batches(key="user", uid="clicks", **chosen))


def refuse_output(spark, keyed_batches):
    return count_clicks(spark, keyed_batches, output=refuse, columns="user string, count long")


def take_options(spark, keyed_batches):
    return count_clicks(spark, keyed_batches, checkpoints="/elsewhere")


def start(spark, keyed_batches):
    return count_clicks(spark, keyed_batches).foreachBatch(print)


def forget(spark, keyed_batches):
    return spark.readStream.schema("user string").json("@INPUT@").writeStream.format("noop")


def nothing(spark, keyed_batches):
    return None
"""


@dataclass(frozen=True)
class Stream:
    """A job with a stream over files, and an instance."""

    folder: Path
    instance: dg.DagsterInstance
    job: FlinkJob

    def add(self, number: int, *clicks: tuple[str, str]) -> None:
        """Add a file of input, which is a batch."""
        path = self.folder / "input" / f"{number}.json"
        path.write_text("\n".join(json.dumps({"user": user, "page": page}) for user, page in clicks))
        # The source gives files by their time.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    def change(self, **settings: Any) -> Stream:
        assert self.job.stream is not None
        return replace(self, job=self.job.model_copy(update={"stream": self.job.stream.model_copy(update=settings)}))

    def use(self, function: str) -> Stream:
        """The same with another function of the file."""
        return self.change(definition=f"{self.folder / 'stream.py'}:{function}")

    def run(self, name: str, **config: Any) -> dg.ExecuteInProcessResult:
        asset = name.removeprefix("take_")
        return (
            build(self.job)
            .resolve_job_def(self.job.prefix(name))
            .execute_in_process(
                instance=self.instance,
                raise_on_error=False,
                run_config={"ops": {self.job.op(asset): {"config": config}}} if config else {},
            )
        )

    def read(self, path: str) -> dict[str, int]:
        state = sp.open_snapshot(path).operator("clicks").state("count").to_arrow()
        return dict(zip(state["state_key"].to_pylist(), state["value"].to_pylist(), strict=True))

    def list_checkpoints(self) -> list[str]:
        assert self.job.stream is not None
        return sorted(path.parent.name for path in Path(self.job.stream.checkpoints).glob("*/chk-*/_metadata"))


def make_stream(folder: Path, instance: dg.DagsterInstance, name: str = "clicks") -> Stream:
    (folder / "input").mkdir(parents=True)
    (folder / "stream.py").write_text(STREAM.replace("@INPUT@", str(folder / "input")))
    job = FlinkJob(
        name=name,
        results=str(folder / "results"),
        stream=StreamSettings(
            definition=f"{folder / 'stream.py'}:count_clicks",
            directory=str(folder / "live"),
            input=str(folder / "input"),
            options={"execution.checkpointing.interval": "10 min", "execution.checkpointing.num-retained": 2}
            | {"state.latency-track.keyed-state-enabled": True, "state.latency-track.sample-interval": 1},
        ),
    )
    return Stream(folder, instance, job)


@pytest.fixture
def stream(tmp_path: Path, spark: SparkSession) -> Iterator[Stream]:
    with dg.DagsterInstance.ephemeral() as instance:
        made = make_stream(tmp_path, instance)
        made.add(0, ("ada", "a"), ("bob", "a"), ("ada", "b"))
        yield made


def get_metadata(result: dg.ExecuteInProcessResult) -> list[dict[str, Any]]:
    """The metadata of the materialisations of a run, in their order."""
    return [
        {name: value.value for name, value in event.materialization.metadata.items()}
        for event in result.get_asset_materialization_events()
    ]


def get_failure(result: dg.ExecuteInProcessResult) -> tuple[str, dict[str, Any]]:
    """Description and metadata of the failure of the only step."""
    (event,) = result.get_step_failure_events()
    data = event.step_failure_data.user_failure_data
    assert data is not None
    assert data.description is not None
    return data.description, {name: value.value for name, value in data.metadata.items()}


def test_a_run_takes_a_checkpoint_with_numbers(stream: Stream) -> None:
    result = stream.run("take_checkpoint")
    assert result.success
    (metadata,) = get_metadata(result)
    assert stream.read(metadata["path"]) == {"ada": 2, "bob": 1}
    assert metadata["entries"] == 2
    assert metadata["checkpoint id"] == 1
    (event,) = result.get_asset_materialization_events()
    for name in ("duration in ms", "bytes", "new bytes", "entries", "checkpoint id"):
        assert isinstance(event.materialization.metadata[name], dg.IntMetadataValue)
        assert metadata[name] > 0
    assert metadata["bytes"] == metadata["new bytes"]
    # The metrics of the function are beside its checkpoint, and in a file.
    assert isinstance(event.materialization.metadata["metric clicks"], dg.IntMetadataValue)
    assert metadata["metric clicks"] == 3
    rows = {each.data["metric"]: each.data for each in metadata["metrics"].records}
    latency = "state_name.count.valueStateUpdateLatency"
    assert {name: row["kind"] for name, row in rows.items()} == {
        "clicks": "counter",
        "lengths": "histogram",
        "subtask": "gauge",
        latency: "histogram",
        "state_name.count.valueStateGetLatency": "histogram",
    }
    assert rows["subtask"]["values"] == "min 0, max 1"
    assert rows["lengths"]["values"].startswith("count 3, min 3, max 3, mean 3, p50 3")
    (file,) = (stream.folder / "live" / "metrics").glob("*/chk-1.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sum(each["count"] for each in lines if each["name"] == "clicks") == 3
    # Every access of each subtask is timed.
    assert sum(each["count"] for each in lines if each["name"] == latency) == 3
    assert {each["subtask"] for each in lines} == {0, 1}
    # Its own checks have read it.
    checks = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert checks == dict.fromkeys(("restorable", "files_present", "key_groups_covered"), True)
    assert "failed before" not in metadata


def test_each_batch_has_its_materialisation_and_the_next_run_goes_on(stream: Stream) -> None:
    stream.add(1, ("bob", "b"))
    first = get_metadata(stream.run("take_checkpoint"))
    assert [each["checkpoint id"] for each in first] == [1, 2]
    stream.add(2, ("eve", "a"))
    (second,) = get_metadata(stream.run("take_checkpoint"))
    assert second["checkpoint id"] == 3
    assert stream.read(second["path"]) == {"ada": 2, "bob": 2, "eve": 1}
    assert stream.list_checkpoints() == ["chk-2", "chk-3"]


def test_without_input_nothing_is_materialised(stream: Stream) -> None:
    stream.run("take_checkpoint")
    again = stream.run("take_checkpoint")
    assert again.success
    assert get_metadata(again) == []


def test_entries_are_counted_on_request_only(stream: Stream) -> None:
    (metadata,) = get_metadata(stream.run("take_checkpoint", count=False))
    assert "entries" not in metadata


def test_a_failed_checkpoint_fails_the_materialisation_with_the_reason_of_flink(stream: Stream) -> None:
    stream.add(1, ("bob", "broken"))
    result = stream.run("take_checkpoint")
    assert not result.success
    # That of the batch before is complete.
    assert [each["checkpoint id"] for each in get_metadata(result)] == [1]
    description, metadata = get_failure(result)
    assert "no such page" in description
    assert metadata["reason"] == "TASK_FAILURE"
    assert metadata["message"].startswith("Task has failed.")
    assert metadata["cause"] == "A task ended with an error while the checkpoint was pending."
    assert metadata["remedy"] == "Repair what the error of the task names."
    assert stream.list_checkpoints() == ["chk-1"]
    # The batch is repeated, and counts once.
    (stream.folder / "stream.py").write_text((stream.folder / "stream.py").read_text().replace('"broken"', '"none"'))
    (metadata,) = get_metadata(stream.run("take_checkpoint"))
    assert stream.read(metadata["path"]) == {"ada": 2, "bob": 2}


def test_tolerable_failures_are_shown_beside_the_checkpoint_that_follows(stream: Stream) -> None:
    options = {"execution.checkpointing.tolerable-failed-checkpoints": 1}
    declining = stream.use("decline_twice")
    description, metadata = get_failure(declining.change(options=options).run("take_checkpoint"))
    assert "Exceeded checkpoint tolerable failure threshold. Checkpoint was declined." in description
    assert (metadata["reason"], metadata["tolerated failures"]) == ("CHECKPOINT_DECLINED", "1")
    assert stream.list_checkpoints() == []
    (stream.folder / "second").unlink()
    (metadata,) = get_metadata(declining.change(options=options).run("take_checkpoint"))
    assert metadata["failed before"] == 1
    (row,) = metadata["failures"].records
    assert row.data["reason"] == "CHECKPOINT_DECLINED"
    assert row.data["message"].startswith("Checkpoint was declined. OSError: no space left")
    assert stream.read(metadata["path"]) == {"ada": 2, "bob": 1}


def test_windows_and_broadcast_states_run_in_the_asset(stream: Stream) -> None:
    result = stream.use("count_windows").run("take_checkpoint")
    assert result.success
    windows, limits = get_metadata(result)
    pages = sp.open_snapshot(windows["path"]).operator("pages").state("window-contents").to_arrow().to_pylist()
    assert sorted((each["state_key"], each["state_namespace"]["start"]) for each in pages) == [
        ("ada", 0),
        ("ada", 0),
        ("bob", 0),
    ]
    limit = sp.open_snapshot(limits["path"]).operator("limit")
    assert sorted(limit.state("count").to_arrow()["value"].to_pylist()) == [1, 1]
    assert limit.state("limits").to_arrow().to_pylist()[0]["map_value"] == 1


@pytest.mark.parametrize(
    ("damage", "failed"),
    [
        (lambda path: path.unlink(), {"restorable", "files_present"}),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), {"restorable", "files_present"}),
        (lambda path: None, set()),
    ],
    ids=["missing", "cut", "whole"],
)
def test_checks_of_a_checkpoint_fail_where_it_is_damaged(
    tmp_path: Path, damage: Callable[[Path], Any], failed: set[str]
) -> None:
    case = select("2.2", "rocksdb-incremental")[0]
    shutil.copytree(case.folder, tmp_path / "job")
    moved = replace(case, folder=tmp_path / "job", path=tmp_path / "job" / case.path.relative_to(case.folder))
    damage(max(tmp_path.rglob("shared/*"), key=lambda each: each.stat().st_size))
    results = [*_check(audit_snapshot(moved.open(), Depth.SAMPLE))]
    assert {each.check_name for each in results} == {"restorable", "files_present", "key_groups_covered"}
    assert {each.check_name for each in results if not each.passed} >= failed
    assert bool(failed) == any(not each.passed for each in results)


def test_an_output_that_fails_fails_the_checkpoint(stream: Stream) -> None:
    result = stream.use("refuse_output").run("take_checkpoint")
    description, metadata = get_failure(result)
    assert "The output of batch 0 failed: OSError: the table is read-only" in description
    assert metadata["reason"] == "TASK_FAILURE"
    assert stream.list_checkpoints() == []


def test_storage_that_refuses_is_a_reason_too(stream: Stream) -> None:
    assert stream.job.stream is not None
    Path(stream.job.stream.directory).mkdir()
    Path(stream.job.stream.checkpoints).write_text("a file")
    _, metadata = get_failure(stream.run("take_checkpoint"))
    assert metadata["reason"] == "IO_EXCEPTION"
    assert metadata["message"].startswith("An Exception occurred while triggering the checkpoint. IO-problem detected.")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("take_options", "sets checkpoints, which its job sets"),
        ("forget", "does not use the keyed_batches"),
        ("nothing", "returns NoneType"),
        ("absent", "does not define absent"),
    ],
)
def test_a_function_that_defines_no_stream_is_refused(stream: Stream, function: str, message: str) -> None:
    description, metadata = get_failure(stream.use(function).run("take_checkpoint"))
    assert message in description
    assert metadata["error"] == "UsageError"


def test_a_savepoint_has_the_state_of_the_newest_checkpoint_and_starts_another_stream(
    stream: Stream, tmp_path: Path
) -> None:
    stream.add(1, ("eve", "a"))
    stream.run("take_checkpoint")
    result = stream.run("take_savepoint")
    assert result.success
    (metadata,) = get_metadata(result)
    assert metadata["format"] == "canonical"
    assert metadata["dagster/row_count"] == 3
    assert [(each.check_name, each.passed) for each in result.get_asset_check_evaluations()] == [
        ("reads_back_equal", True)
    ]
    assert stream.read(metadata["path"]) == {"ada": 2, "bob": 1, "eve": 1}
    # Another job goes on from there, with input of its own.
    other = make_stream(tmp_path / "other", stream.instance, "other").change(from_snapshot=metadata["path"])
    other.add(0, ("ada", "c"))
    (checkpoint,) = get_metadata(other.run("take_checkpoint"))
    assert other.read(checkpoint["path"]) == {"ada": 3, "bob": 1, "eve": 1}


def test_a_savepoint_without_a_checkpoint_is_refused(stream: Stream) -> None:
    description, _ = get_failure(stream.run("take_savepoint"))
    assert "there is no checkpoint yet" in description


def test_the_sensor_for_snapshots_sees_checkpoints_and_savepoints(stream: Stream) -> None:
    update = stream.job.storage.update_inventory()
    assert update.missing_roots == ()
    stream.run("take_checkpoint")
    stream.run("take_savepoint")
    kinds = {each.kind: each.key for each in stream.job.storage.update_inventory().inventory}
    assert kinds.keys() == {"checkpoint", "savepoint"}
    context = dg.build_sensor_context(
        instance=stream.instance, repository_def=build(stream.job).get_repository_def(), sensor_name=None
    )
    tick = build(stream.job).resolve_sensor_def("clicks_new_snapshots").evaluate_tick(context)
    (added,) = tick.dynamic_partitions_requests or []
    assert set(added.partition_keys) == set(kinds.values())
    event = stream.instance.get_latest_materialization_event(stream.job.key("checkpoint"))
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["snapshot"].value == kinds[SnapshotKind.CHECKPOINT]


def test_retention_of_a_stream_deletes_nothing_that_it_needs(stream: Stream) -> None:
    assert "the stream has taken no checkpoint yet" in get_failure(stream.run("plan_retention"))[0]
    stream.run("take_checkpoint")
    (metadata,) = get_metadata(stream.run("plan_retention"))
    # Nothing is an orphan: what the query has read is outside of the roots.
    assert metadata["unknown paths"] == 0
    assert (metadata["snapshots"], metadata["snapshots to delete"], metadata["bytes to delete"]) == (1, 0, 0)


def test_streams_of_two_jobs_do_not_meet(stream: Stream, tmp_path: Path) -> None:
    other = make_stream(tmp_path / "other", stream.instance, "other")
    other.add(0, ("zoe", "a"))
    (mine,), (theirs,) = get_metadata(stream.run("take_checkpoint")), get_metadata(other.run("take_checkpoint"))
    assert stream.read(mine["path"]) == {"ada": 2, "bob": 1}
    assert other.read(theirs["path"]) == {"zoe": 1}
    resources = dg.Definitions(resources={"spark": SparkResource(), "expectations": ExpectationsResource()})
    dg.Definitions.validate_loadable(
        dg.Definitions.merge(build_flink_job(stream.job), build_flink_job(other.job), resources)
    )


def test_checkpoints_and_savepoints_of_a_job_share_a_pool(stream: Stream, tmp_path: Path) -> None:
    pools = {find_asset(stream.job, name).op.pool for name in ("checkpoint", "savepoint")}
    assert pools == {"clicks_checkpoint"}
    # The instance of this repository gives each pool what Flink gives the checkpoints of a job.
    overrides = {"concurrency": yaml.safe_load((ROOT / "dagster.yaml").read_text())["concurrency"]}
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=overrides) as instance:
        limit = instance.get_concurrency_config().pool_config.default_pool_limit
    assert stream.job.stream is not None
    assert limit == 1


@pytest.mark.parametrize(
    ("minutes", "cron"),
    [(1, "* * * * *"), (10, "*/10 * * * *"), (60, "0 * * * *"), (360, "0 */6 * * *"), (1440, "0 0 * * *")],
)
def test_the_interval_is_the_schedule(minutes: int, cron: str) -> None:
    assert to_cron(minutes * 60_000) == cron


@pytest.mark.parametrize("millis", [10_000, 90_000, 7 * 60_000, 90 * 60_000, 5 * 3_600_000, 48 * 3_600_000])
def test_an_interval_that_no_schedule_has_is_refused(millis: int) -> None:
    with pytest.raises(UsageError, match="no schedule has"):
        to_cron(millis)


def test_the_schedule_requests_runs_unless_one_is_pending(
    stream: Stream, tmp_path_factory: pytest.TempPathFactory
) -> None:
    schedule = build(stream.job).resolve_schedule_def("clicks_periodic_checkpoint")
    assert schedule.cron_schedule == "*/10 * * * *"
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
    assert schedule.job_name == "clicks_take_checkpoint"

    def tick(stream: Stream) -> Any:
        schedule = build(stream.job).resolve_schedule_def("clicks_periodic_checkpoint")
        return schedule.evaluate_tick(dg.build_schedule_context(instance=stream.instance))

    # Schedules need an instance on disk.
    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("instance"))) as instance:
        stream = replace(stream, instance=instance)
        assert len(tick(stream).run_requests) == 1
        run = instance.create_run_for_job(
            build(stream.job).resolve_job_def("clicks_take_checkpoint"), status=dg.DagsterRunStatus.STARTED
        )
        assert run.run_id in tick(stream).skip_message
        instance.delete_run(run.run_id)
        # With a pause, the next checkpoint waits for it.
        stream.run("take_checkpoint")
        options = {"execution.checkpointing.interval": "10 min", "execution.checkpointing.min-pause": "10 min"}
        assert len(tick(stream).run_requests) == 1
        assert "minimum time between checkpoints" in tick(stream.change(options=options)).skip_message


def test_without_an_interval_there_is_no_schedule(stream: Stream) -> None:
    names = {each.name for each in build(stream.change(options={}).job).get_repository_def().schedule_defs}
    assert "clicks_periodic_checkpoint" not in names


def test_the_sensor_requests_a_run_for_new_files_once(stream: Stream) -> None:
    sensor = build_new_input(stream.job, str(stream.folder / "input" / "*.json"))

    def tick(cursor: str | None) -> Any:
        with dg.build_sensor_context(instance=stream.instance, cursor=cursor) as context:
            return sensor.evaluate_tick(context)

    first = tick(None)
    assert len(first.run_requests) == 1
    assert tick(first.cursor).run_requests == []
    (stream.folder / "input" / "_SUCCESS").write_text("")
    (stream.folder / "input" / "notes.txt").write_text("")
    assert "Nothing is new in the 1 files" in tick(first.cursor).skip_message
    stream.add(1, ("bob", "b"))
    run = stream.instance.create_run_for_job(
        build(stream.job).resolve_job_def("clicks_take_checkpoint"), status=dg.DagsterRunStatus.STARTED
    )
    waiting = tick(first.cursor)
    assert run.run_id in waiting.skip_message
    # It did not forget the new file.
    assert waiting.cursor == first.cursor
    stream.instance.delete_run(run.run_id)
    second = tick(waiting.cursor)
    assert len(second.run_requests) == 1
    assert second.cursor != first.cursor


def test_the_sensor_takes_names_that_are_not_utf8(stream: Stream) -> None:
    directory = stream.folder / "odd"
    directory.mkdir()
    (directory / os.fsdecode(b"x\xff.json")).write_text("")
    with dg.build_sensor_context(instance=stream.instance) as context:
        assert len(build_new_input(stream.job, str(directory)).evaluate_tick(context).run_requests or ()) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"definition": "shop.streams:orders"}, "names no function"),
        ({"options": {"execution.checkpointing.interval": "7 min"}}, "which no schedule has"),
        ({"options": {"execution.checkpointing.max-concurrent-checkpoints": 2}}, "or set it to 1"),
        ({"options": {"execution.checkpointing.dir": "/a"}}, "set directory and from_snapshot"),
        ({"options": {"execution.checkpointing.unaligned.enabled": True}}, "unaligned"),
        ({"options": {"execution.checkpointing.timeuot": 3}}, "timeuot"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StreamSettings(**({"definition": "stream.py:count", "directory": "live"} | settings))


def test_an_error_keeps_its_facts_when_it_is_pickled() -> None:
    error = StateError("no")
    error.details = {"reason": "TASK_FAILURE"}
    assert pickle.loads(pickle.dumps(error)).details == {"reason": "TASK_FAILURE"}
