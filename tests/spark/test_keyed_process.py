"""A keyed function as a batch step: its state equals a plain model, wherever and however often it is interrupted."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle

import state_pipelines as sp
from state_pipelines.datastream import (
    CheckpointedFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    Types,
    ValueStateDescriptor,
)
from state_pipelines.errors import IncompatibleError, StateError, UsageError
from state_pipelines.metadata.checkpoint import SavepointFormatType
from state_pipelines.metadata.handles import (
    FileStateHandle,
    IncrementalRemoteKeyedStateHandle,
    KeyGroupsStateHandle,
    RelativeFileStateHandle,
)
from state_pipelines.metadata.streams import list_references
from state_pipelines.operations.auditing import Severity, audit_snapshot
from state_pipelines.spark.keyed_step import keyed_process
from state_pipelines.storage import PathMapping
from state_pipelines.storage.snapshot_writer import find_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.datastream import RuntimeContext
    from state_pipelines.spark import KeyedProcessResult

UID = "clicks"
USERS = [f"user-{index}" for index in range(40)]


class CountClicks(KeyedProcessFunction):
    """Counts per user, remembers the pages in their order, and emits each count."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.pages = runtime_context.get_list_state(ListStateDescriptor("pages", Types.STRING()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int]]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.pages.add(value.page)
        yield ctx.get_current_key(), count


class RemindLater(KeyedProcessFunction):
    """Emits a user again ten milliseconds of event time after each click."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer((ctx.timestamp() or 0) + 10)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[tuple[str, int]]:
        yield ctx.get_current_key(), timestamp


class DieOnce(CountClicks):
    """Ends its worker, or raises, while it processes the first subtask for the first time."""

    def __init__(self, marker: Path, *, kills: bool) -> None:
        self.marker, self.kills = marker, kills

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int]]:
        if value.at == 30 and not self.marker.exists():
            self.marker.write_text("died")
            if self.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ZeroDivisionError
        return super().process_element(value, ctx)


class Fail(CountClicks):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int]]:
        raise UsageError("this page is unknown")


def clicks(start: int, end: int) -> list[tuple[str, str, int]]:
    return [(USERS[(at * 7) % len(USERS)], f"/{at}", at) for at in range(start, end)]


@pytest.fixture(scope="module")
def frames(spark: SparkSession) -> dict[str, DataFrame]:
    schema = "user string, page string, at long"
    return {
        "first": spark.createDataFrame(clicks(0, 120), schema).repartition(3),
        "second": spark.createDataFrame(clicks(120, 200), schema).repartition(3),
        "none": spark.createDataFrame([], schema),
        "null": spark.createDataFrame([(None, "/", 1)], schema),
    }


def run(df: DataFrame, function: KeyedProcessFunction | None = None, **options: Any) -> KeyedProcessResult:
    defaults: dict[str, Any] = {"key": "user", "uid": UID, "order_by": ["at"], "output": "user string, count long"}
    return keyed_process(df, function=function or CountClicks(), **(defaults | options))


def read_state(result: KeyedProcessResult, name: str) -> dict[str, Any]:
    assert result.snapshot is not None
    snapshot = sp.open_snapshot(result.snapshot.path)
    found: dict[str, Any] = {}
    for batch in snapshot.operator(UID).state(name).batches():
        for row in batch.to_pylist():
            if "list_value" in row:
                found.setdefault(row["state_key"], []).append(row["list_value"])
            else:
                found[row["state_key"]] = row["value"]
    return found


def expect(start: int, end: int) -> tuple[dict[str, int], dict[str, list[str]]]:
    pages: dict[str, list[str]] = {}
    for user, page, _ in clicks(start, end):
        pages.setdefault(user, []).append(page)
    return dict(Counter(user for user, _, _ in clicks(start, end))), pages


def assert_state(result: KeyedProcessResult, start: int, end: int) -> None:
    counts, pages = expect(start, end)
    assert read_state(result, "count") == counts
    assert read_state(result, "pages") == pages


FILES = {"execution.checkpointing.data-inline-threshold": 0}


@pytest.mark.parametrize(
    "target",
    [
        {"checkpoint": "checkpoints"},
        {"checkpoint": "checkpoints", "options": FILES | {"execution.checkpointing.snapshot-compression": True}},
        pytest.param(
            {"checkpoint": "checkpoints", "options": {"state.backend.type": "rocksdb"}}, marks=pytest.mark.essential
        ),
        pytest.param({"savepoint": "savepoints"}, marks=pytest.mark.essential),
        {"savepoint": "savepoints", "savepoint_format": SavepointFormatType.NATIVE},
    ],
    ids=["checkpoint", "compressed files", "rocksdb", "canonical savepoint", "native savepoint"],
)
def test_the_state_is_that_of_a_plain_model_and_goes_on_at_another_parallelism(
    frames: dict[str, DataFrame], tmp_path: Path, target: dict[str, Any]
) -> None:
    target |= {name: str(tmp_path / target[name]) for name in ("checkpoint", "savepoint") if name in target}
    first = run(frames["first"], parallelism=3, **target)
    assert_state(first, 0, 120)
    assert first.output is not None
    emitted = Counter(row["user"] for row in first.output.collect())
    assert emitted == expect(0, 120)[0]
    second = run(frames["second"], parallelism=2, from_snapshot=first.snapshot, **target)
    assert_state(second, 0, 200)
    assert second.snapshot is not None
    (operator,) = second.snapshot.metadata.operator_states
    assert (second.snapshot.checkpoint_id, operator.parallelism, operator.max_parallelism) == (2, 2, 128)
    assert second.state_size > 0


def test_options_stand_for_arguments_that_are_not_given(frames: dict[str, DataFrame], tmp_path: Path) -> None:
    options = {"execution.checkpointing.dir": str(tmp_path / "checkpoints")}
    first = run(frames["first"], parallelism=2, options=options)
    assert_state(first, 0, 120)
    assert first.snapshot is not None
    options["execution.state-recovery.path"] = first.snapshot.path
    second = run(frames["second"], parallelism=2, options=options)
    assert_state(second, 0, 200)
    # An argument goes before the option.
    assert second.snapshot is not None
    options["execution.state-recovery.path"] = second.snapshot.path
    saved = run(frames["second"], parallelism=2, savepoint=str(tmp_path / "savepoints"), options=options)
    assert saved.snapshot is not None
    assert Path(saved.snapshot.path).parent == tmp_path / "savepoints"


def test_only_the_newest_checkpoints_stay(frames: dict[str, DataFrame], tmp_path: Path) -> None:
    snapshot = None
    for _ in range(3):
        snapshot = run(
            frames["first"],
            from_snapshot=snapshot,
            checkpoint=str(tmp_path),
            parallelism=2,
            options={"execution.checkpointing.num-retained": 2},
        ).snapshot
    (job,) = tmp_path.iterdir()
    assert sorted(path.name for path in job.iterdir()) == ["chk-2", "chk-3"]


INCREMENTAL = {"state.backend.type": "rocksdb", "execution.checkpointing.incremental": True}


def list_tables(result: KeyedProcessResult) -> set[str]:
    """Names of the shared files that a checkpoint references."""
    assert result.snapshot is not None
    (operator,) = result.snapshot.metadata.operator_states
    found: set[str] = set()
    for subtask in operator.subtasks:
        handle = subtask.managed_keyed_state
        assert isinstance(handle, IncrementalRemoteKeyedStateHandle)
        for each in handle.shared_state:
            assert isinstance(each.handle, FileStateHandle)
            found.add(each.handle.path.rpartition("/")[2])
    return found


def test_an_incremental_checkpoint_uploads_only_new_tables(frames: dict[str, DataFrame], tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpoint": str(tmp_path), "options": INCREMENTAL}
    first = run(frames["first"], parallelism=2, **options)
    assert first.persisted_size == first.state_size
    # Without rows nothing changes, and every table is referenced.
    second = run(frames["none"], parallelism=2, from_snapshot=first.snapshot, **options)
    assert list_tables(second) == list_tables(first)
    third = run(frames["second"], parallelism=2, from_snapshot=second.snapshot, **options)
    assert_state(third, 0, 200)
    assert list_tables(third) & list_tables(first)
    assert list_tables(third) - list_tables(first)
    assert third.persisted_size < third.state_size
    (job,) = tmp_path.iterdir()
    # What the discarded checkpoints shared is still there, and nothing else.
    assert {path.name for path in (job / "shared").iterdir()} == list_tables(third)
    assert [path.name for path in job.glob("chk-*")] == ["chk-3"]


def test_a_worker_restores_from_the_files_that_it_has_kept(frames: dict[str, DataFrame], tmp_path: Path) -> None:
    kept = {
        "execution.checkpointing.local-backup.enabled": True,
        "execution.checkpointing.local-backup.dirs": f"{tmp_path / 'one'},{tmp_path / 'two'}",
    }
    checkpoints = tmp_path / "checkpoints"
    options: dict[str, Any] = {"checkpoint": str(checkpoints), "parallelism": 2}
    first = run(frames["first"], **options, options=INCREMENTAL | kept)
    assert len([*tmp_path.glob("one/*/*/*/chk-1"), *tmp_path.glob("two/*/*/*/chk-1")]) == 2
    tables = {path: path.read_bytes() for path in checkpoints.glob("*/shared/*")}
    assert tables
    for path, content in tables.items():
        path.unlink()
        path.write_bytes(bytes(len(content)))
    second = run(frames["second"], from_snapshot=first.snapshot, **options, options=INCREMENTAL | kept)
    assert len([*tmp_path.glob("one/*/*/*/chk-2"), *tmp_path.glob("two/*/*/*/chk-2")]) == 2
    for path, content in tables.items():
        path.write_bytes(content)
    assert_state(second, 0, 200)


def test_a_worker_restores_a_heap_from_the_files_that_it_has_kept(frames: dict[str, DataFrame], tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    options: dict[str, Any] = {
        "checkpoint": str(checkpoints),
        "parallelism": 2,
        "options": {
            "execution.checkpointing.data-inline-threshold": 0,
            "execution.checkpointing.local-backup.enabled": True,
            "execution.checkpointing.local-backup.dirs": str(tmp_path / "kept"),
        },
    }
    first = run(frames["first"], **options)
    assert first.snapshot is not None
    for subtask in first.snapshot.operator(UID).metadata.subtasks:
        handle = subtask.managed_keyed_state
        assert isinstance(handle, KeyGroupsStateHandle)
        assert isinstance(handle.delegate, RelativeFileStateHandle)
        # The driver reads the header, and the task the key groups.
        path = Path(first.snapshot.path) / handle.delegate.relative_path
        header = path.read_bytes()[: min(offset for offset in handle.offsets if offset > 0)]
        path.write_bytes(header.ljust(handle.delegate.size, b"\0"))
    second = run(frames["second"], from_snapshot=first.snapshot, **options)
    assert_state(second, 0, 200)


def test_incremental_checkpoints_at_another_parallelism_and_of_another_owner(
    frames: dict[str, DataFrame], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"checkpoint": str(tmp_path / "own"), "options": INCREMENTAL}
    first = run(frames["first"], parallelism=3, **options)
    # Another owner may delete its files at any time: nothing of it is referenced.
    other: dict[str, Any] = {"checkpoint": str(tmp_path / "other"), "options": INCREMENTAL}
    copied = run(frames["none"], parallelism=3, from_snapshot=first.snapshot, **other)
    assert not list_tables(copied) & list_tables(first)
    assert copied.persisted_size == copied.state_size
    second = run(frames["second"], parallelism=2, from_snapshot=first.snapshot, **options)
    assert_state(second, 0, 200)
    assert_state(run(frames["second"], parallelism=4, from_snapshot=copied.snapshot, **other), 0, 200)


@pytest.mark.parametrize("savepoint_format", SavepointFormatType)
def test_a_savepoint_references_no_table_of_the_checkpoints(
    frames: dict[str, DataFrame], tmp_path: Path, savepoint_format: SavepointFormatType
) -> None:
    files = INCREMENTAL | {"execution.checkpointing.data-inline-threshold": 0}
    first = run(frames["first"], parallelism=2, checkpoint=str(tmp_path / "checkpoints"), options=files)
    assert list_tables(first)
    target: dict[str, Any] = {"savepoint": str(tmp_path / "savepoints"), "savepoint_format": savepoint_format}
    # At the same parallelism the databases are taken over as they are, with their tables.
    saved = run(frames["none"], parallelism=2, from_snapshot=first.snapshot, options=files, **target)
    assert saved.snapshot is not None
    assert saved.persisted_size == saved.state_size
    kinds = {type(reference.handle) for reference in list_references(saved.snapshot.metadata)}
    assert kinds == {RelativeFileStateHandle}
    shutil.rmtree(tmp_path / "checkpoints")
    assert_state(saved, 0, 120)
    # Nor does a checkpoint reference tables of a savepoint, not even of one that it replaces.
    claiming = files | {"execution.state-recovery.claim-mode": "CLAIM"}
    again = run(
        frames["second"],
        parallelism=2,
        from_snapshot=saved.snapshot,
        checkpoint=str(tmp_path / "new"),
        options=claiming,
    )
    assert not [*(tmp_path / "savepoints").rglob("_metadata")]
    assert_state(again, 0, 200)


def test_a_job_with_checkpoints_does_not_start_empty(frames: dict[str, DataFrame], tmp_path: Path) -> None:
    run(frames["none"], checkpoint=str(tmp_path), parallelism=1)
    with pytest.raises(UsageError, match="the job has completed checkpoints"):
        run(frames["none"], checkpoint=str(tmp_path), parallelism=1)
    assert run(frames["none"], checkpoint=str(tmp_path), parallelism=1, job_id="e" * 32).snapshot is not None


def test_every_subtask_runs_without_rows(frames: dict[str, DataFrame], tmp_path: Path) -> None:
    empty = run(frames["none"], parallelism=5, savepoint=str(tmp_path))
    assert empty.snapshot is not None
    (operator,) = empty.snapshot.metadata.operator_states
    assert len(operator.subtasks) == 5
    assert read_state(empty, "count") == {}
    assert empty.output is not None
    assert empty.output.count() == 0


def test_rows_and_state_without_a_snapshot(frames: dict[str, DataFrame], tmp_path: Path) -> None:
    result = run(frames["first"], parallelism=2)
    assert result.snapshot is None
    assert result.output is not None
    assert result.output.count() == 120
    assert run(frames["first"], parallelism=2, output=None).output is None


RETRYING = """
import sys
from pathlib import Path
from state_pipelines.spark.session import create_session
from tests.conftest import QUICK_START
from tests.spark import test_keyed_process as tests

spark = create_session("retries", conf={"spark.master": "local[2,3]"} | QUICK_START)
folder = Path(sys.argv[1])
df = spark.createDataFrame(tests.clicks(0, 120), "user string, page string, at long").repartition(3)
for kills in (False, True):
    target = folder / str(kills)
    function = tests.DieOnce(folder / f"died-{kills}", kills=kills)
    options = {"execution.checkpointing.data-inline-threshold": 0}
    result = tests.run(df, function, parallelism=2, checkpoint=str(target), options=options)
    assert function.marker.exists()
    tests.assert_state(result, 0, 120)
    assert result.output.count() == 120
    (directory,) = target.glob("*/chk-1")
    assert len([*directory.glob("[!_]*")]) == 2, "files of the attempt that died are left"
spark.stop()
"""


@pytest.mark.slow
def test_a_task_that_dies_runs_again_and_leaves_nothing(tmp_path: Path) -> None:
    # The master of the other tests gives up at the first failure.
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", RETRYING, str(tmp_path)], cwd=root, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_tasks_say_the_checksums_of_their_files(frames: dict[str, DataFrame], tmp_path: Path, backend: str) -> None:
    options = {"execution.checkpointing.data-inline-threshold": 0, "state.backend.type": backend}
    result = run(frames["first"], parallelism=2, checkpoint=str(tmp_path), options=options)
    assert result.snapshot is not None
    manifest = find_manifest(result.snapshot.location.directory, PathMapping())
    assert manifest is not None
    assert len(manifest.files) >= 2
    assert all(each.checksum for each in manifest.files)
    assert audit_snapshot(result.snapshot.path, "whole").count(Severity.ERROR) == 0


@pytest.mark.parametrize("kills", [False, True], ids=["an error", "a killed worker"])
def test_a_run_that_fails_leaves_no_checkpoint(frames: dict[str, DataFrame], tmp_path: Path, kills: bool) -> None:
    function = DieOnce(tmp_path / "died", kills=kills)
    target = tmp_path / "checkpoints"
    with pytest.raises(StateError, match="operator clicks cannot run"):
        run(frames["first"], function, parallelism=2, checkpoint=str(target))
    assert not [*target.rglob("chk-*")]
    assert_state(run(frames["first"], function, parallelism=2, checkpoint=str(target)), 0, 120)


def test_an_error_of_the_function_is_raised_with_its_operator(frames: dict[str, DataFrame], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this page is unknown"):
        run(frames["first"], Fail(), checkpoint=str(tmp_path), parallelism=2)
    assert not [*tmp_path.rglob("chk-*")]


def test_timers_stay_in_the_state_until_the_watermark(frames: dict[str, DataFrame], tmp_path: Path) -> None:
    options: dict[str, Any] = {"timestamp": "at", "output": "user string, time long", "savepoint": str(tmp_path)}
    first = run(frames["first"], RemindLater(), parallelism=2, watermark=50, **options)
    assert first.output is not None
    early = sorted((row["time"], row["user"]) for row in first.output.collect())
    second = run(frames["none"], RemindLater(), parallelism=3, watermark=1_000, from_snapshot=first.snapshot, **options)
    assert second.output is not None
    late = sorted((row["time"], row["user"]) for row in second.output.collect())
    expected = sorted((at + 10, user) for user, _, at in clicks(0, 120))
    assert early == [each for each in expected if each[0] <= 50]
    assert late == [each for each in expected if each[0] > 50]


def test_several_columns_are_a_tuple(frames: dict[str, DataFrame], tmp_path: Path) -> None:
    result = run(frames["first"], key=["user", "page"], parallelism=2, savepoint=str(tmp_path), output=None)
    assert result.snapshot is not None
    rows = [row for batch in result.snapshot.operator(UID).state("count").batches() for row in batch.to_pylist()]
    assert {(row["state_key"]["f0"], row["state_key"]["f1"]) for row in rows} == {each[:2] for each in clicks(0, 120)}


# What is refused before anything runs


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"checkpoint": "a", "savepoint": "b"}, UsageError, "both a checkpoint and a savepoint"),
        ({"key": "nobody"}, UsageError, "no column nobody"),
        ({"order_by": ["when"]}, UsageError, "no column when"),
        ({"parallelism": 9, "max_parallelism": 8}, UsageError, "parallelism 9 is higher than max parallelism 8"),
        ({"options": {"state.backend.type": "rocksdb", "state.backend.rocksdb.x": 1}}, UsageError, "no option"),
        ({"options": {"execution.checkpointing.unaligned.enabled": "true"}}, UsageError, "not possible here"),
        ({"job_id": "x", "checkpoint": "a"}, UsageError, "is not a job id"),
    ],
)
def test_contradictions(
    frames: dict[str, DataFrame], options: dict[str, Any], error: type[StateError], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(frames["first"], **options)


def test_what_does_not_fit_the_snapshot_is_refused_in_the_words_of_flink(
    frames: dict[str, DataFrame], tmp_path: Path
) -> None:
    old = run(frames["first"], parallelism=2, max_parallelism=8, savepoint=str(tmp_path)).snapshot
    with pytest.raises(IncompatibleError, match=r"maximum parallelism \(8\) of the restored state is lower"):
        run(frames["second"], from_snapshot=old, parallelism=9)
    with pytest.raises(IncompatibleError, match="Max parallelism mismatch"):
        run(frames["second"], from_snapshot=old, parallelism=2, max_parallelism=16)
    with pytest.raises(IncompatibleError, match="the operator is not available in the new program"):
        run(frames["second"], from_snapshot=old, parallelism=2, uid="other")
    options = {"execution.state-recovery.ignore-unclaimed-state": True}
    dropped = run(frames["second"], from_snapshot=old, parallelism=2, uid="other", options=options)
    assert dropped.output is not None


def test_a_null_key_is_refused(frames: dict[str, DataFrame]) -> None:
    with pytest.raises(UsageError, match="a row has no key: user is null"):
        run(frames["null"], parallelism=2)


def test_an_output_that_does_not_fit(frames: dict[str, DataFrame]) -> None:
    with pytest.raises(UsageError, match="and its output has the columns user"):
        run(frames["first"], output="user string", parallelism=2)
    with pytest.raises(StateError, match="does not fit its output"):
        run(frames["first"], output="user long, count long", parallelism=2)


class Divide(CountClicks):
    """Code of a user with a mistake."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int]]:
        raise ZeroDivisionError(f"{value.user} has\nno pages")


def test_a_module_that_workers_cannot_import_is_named_with_the_ways_out(
    frames: dict[str, DataFrame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_the_script.py").write_text(
        "from state_pipelines.datastream import KeyedProcessFunction\n"
        "class Pass(KeyedProcessFunction):\n"
        "    def process_element(self, value, ctx):\n"
        "        yield ctx.get_current_key(), 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("beside_the_script")
    with pytest.raises(StateError, match="No module named 'beside_the_script'") as caught:
        run(frames["first"], module.Pass(), checkpoint=str(tmp_path / "checkpoints"))
    assert "PYTHONPATH" in caught.value.hint
    assert "register_pickle_by_value" in caught.value.hint
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    assert run(frames["first"], module.Pass(), checkpoint=str(tmp_path / "checkpoints")).snapshot is not None


def test_what_the_function_raises_is_named_with_its_line(frames: dict[str, DataFrame], tmp_path: Path) -> None:
    with pytest.raises(StateError) as caught:
        run(frames["first"], Divide(), checkpoint=str(tmp_path))
    text = str(caught.value)
    assert re.search(
        r'cannot run: ZeroDivisionError: user-\d+ has no pages \(File ".*test_keyed_process.py", line', text
    )
    # The checkpoint failed with it, for Flink's reason.
    assert caught.value.details["reason"] == "TASK_FAILURE"
    assert caught.value.details["message"] == f"Task has failed. {text}"


class NoSnapshot(CountClicks, CheckpointedFunction):
    """Code of a user with a mistake in its snapshot."""

    def initialize_state(self, context: Any) -> None:
        pass

    def snapshot_state(self, context: Any) -> None:
        raise ZeroDivisionError("no\nclicks")


def test_a_function_that_takes_no_snapshot_declines_the_checkpoint(
    frames: dict[str, DataFrame], tmp_path: Path
) -> None:
    with pytest.raises(StateError) as caught:
        run(frames["first"], NoSnapshot(), checkpoint=str(tmp_path))
    assert caught.value.details["reason"] == "CHECKPOINT_DECLINED"
    assert re.match(
        r'Checkpoint was declined\. ZeroDivisionError: no clicks \(File ".*test_keyed_process.py", line \d+, in snapsh',
        caught.value.details["message"],
    )
