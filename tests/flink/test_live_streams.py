"""Incremental checkpoints of keyed functions on Spark are restored by real Flink, and Flink's by keyed functions."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.metadata.handles import FileStateHandle, IncrementalRemoteKeyedStateHandle, RelativeFileStateHandle
from state_pipelines.snapshot import open_snapshot
from state_pipelines.spark.keyed_step import keyed_process
from state_pipelines.storage import resolve
from tests.datastream.same_jobs import NUMBERS, ROUNDS, FewStates
from tests.flink import harness, jobs
from tests.snapshots import select

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from state_pipelines.datastream import KeyedProcessFunction
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.spark import KeyedProcessResult

pytestmark = [pytest.mark.flink, pytest.mark.spark]

UID = "few-states"
OPTIONS: dict[str, Any] = {
    "state.backend.type": "rocksdb",
    "execution.checkpointing.incremental": True,
    "execution.checkpointing.data-inline-threshold": 0,
}
CLAIM = {"execution.state-recovery.claim-mode": "CLAIM"}
FLINK_OPTIONS = {
    "execution.checkpointing.incremental": "true",
    "execution.checkpointing.data-inline-threshold": "0",
    "execution.checkpointing.num-retained": str(ROUNDS),
}
WRITTEN = "/flink-data/rounds"
"""Directory that Flink's checkpoints name; it does not exist here."""


class FewStatesOfRows(FewStates):
    """The states of `FewStates`, whose numbers come in rows."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        super().process_element(value.number, ctx)


def process(spark: SparkSession, numbers: range, root: Path, **arguments: Any) -> KeyedProcessResult:
    """Process records of the job, and take an incremental checkpoint below `root`."""
    rows = [(f"key-{number % NUMBERS}", number) for number in numbers]
    return keyed_process(
        spark.createDataFrame(rows, "key string, number int"),
        key="key",
        function=FewStatesOfRows(),
        uid=UID,
        order_by=["number"],
        checkpoint=str(root),
        **({"options": OPTIONS} | arguments),
    )


def list_tables(snapshot: Snapshot | None) -> set[str]:
    """Paths of the tables that a checkpoint references."""
    assert snapshot is not None
    found: set[str] = set()
    for subtask in snapshot.operator(UID).metadata.subtasks:
        handle = subtask.managed_keyed_state
        assert isinstance(handle, IncrementalRemoteKeyedStateHandle)
        for each in handle.shared_state:
            assert isinstance(each.handle, FileStateHandle)
            found.add(each.handle.path)
    return found


def assert_restored(
    version: str, result: KeyedProcessResult, expected: list[harness.Entry], *, parallelism: int
) -> None:
    """Let Flink restore a checkpoint, and compare every entry of the operator."""
    assert result.snapshot is not None
    restored = harness.restore(
        version, Path(result.snapshot.path), jobs.few_states_job(), backend="rocksdb", parallelism=parallelism
    )
    assert restored.ok, restored.error
    wanted = [each for each in expected if each["op"] == UID]
    assert {each["kind"] for each in wanted} == {"keyed", "timer"}
    difference = harness.diff_entries(wanted, restored.entries)
    assert not difference, str(difference)


# From Spark to Flink


@pytest.fixture(scope="module")
def checkpoint(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> KeyedProcessResult:
    """The second of two checkpoints, with the state after all rounds and tables of the first one."""
    root = tmp_path_factory.mktemp("checkpoints")
    first = process(spark, range(2 * NUMBERS), root, parallelism=2)
    second = process(spark, range(2 * NUMBERS, ROUNDS * NUMBERS), root, parallelism=2, from_snapshot=first.snapshot)
    assert list_tables(first.snapshot) & list_tables(second.snapshot)
    assert list_tables(second.snapshot) - list_tables(first.snapshot)
    assert second.persisted_size < second.state_size
    return second


@pytest.mark.parametrize("parallelism", [2, 3])
def test_flink_restores_an_incremental_checkpoint_of_a_keyed_function(
    checkpoint: KeyedProcessResult, version: str, parallelism: int
) -> None:
    (case,) = select("2.2", "heap-checkpoint")
    assert_restored(version, checkpoint, case.entries(), parallelism=parallelism)


# From Flink to Spark, and back


def make_flink_job() -> jobs.Job:
    """Return the job with incremental checkpoints in files, all of which are kept."""
    job = jobs.few_states_job()
    return replace(job, settings={**job.settings, **FLINK_OPTIONS})


@dataclass(frozen=True)
class FlinkRun:
    """A run of Flink's job at parallelism 2, with an incremental checkpoint after each round.

    Attributes:
        root: its directory of checkpoints.
        last: the checkpoint after all rounds, relative to `root`.
        entries: of the job after all rounds.
    """

    root: Path
    last: Path
    entries: list[harness.Entry]

    def copy_before_last_round(self, target: Path) -> Snapshot:
        """Move a copy of all checkpoints to `target`, and open that before the last round."""
        shutil.copytree(self.root, target)
        location = target / self.last.with_name(f"chk-{ROUNDS - 1}")
        return open_snapshot(str(location), path_mapping=(f"file:{WRITTEN}={target}",), uids=[UID, "numbers"])


@pytest.fixture(scope="module")
def run_flink(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], FlinkRun]:
    """Run the job with a version of Flink; once for each."""
    runs: dict[str, FlinkRun] = {}

    def run(version: str) -> FlinkRun:
        if version not in runs:
            root = tmp_path_factory.mktemp("flink")
            last, entries = harness.make_snapshot(
                version, make_flink_job(), root, backend="rocksdb", kind="checkpoint", written=WRITTEN
            )
            runs[version] = FlinkRun(root, last.relative_to(root), entries)
        return runs[version]

    return run


def test_a_checkpoint_of_flink_goes_on_at_another_parallelism_and_back(
    spark: SparkSession, run_flink: Callable[[str], FlinkRun], version: str, tmp_path: Path
) -> None:
    flink = run_flink(version)
    snapshot = flink.copy_before_last_round(tmp_path / "flink")
    start, middle, end = 2 * NUMBERS, 2 * NUMBERS + NUMBERS // 2, ROUNDS * NUMBERS
    # The state of the source is not wanted.
    options = OPTIONS | {"execution.state-recovery.ignore-unclaimed-state": True}
    own = tmp_path / "own"
    first = process(spark, range(start, middle), own, parallelism=3, from_snapshot=snapshot, options=options)
    # Flink's checkpoint is of another owner, so that nothing of it is referenced.
    assert first.persisted_size == first.state_size
    second = process(spark, range(middle, end), own, parallelism=3, from_snapshot=first.snapshot)
    assert second.persisted_size < second.state_size
    shutil.rmtree(tmp_path / "flink")
    assert_restored(version, second, flink.entries, parallelism=3)


def test_a_claimed_checkpoint_of_flink_gives_its_tables_to_the_next_ones(
    spark: SparkSession, run_flink: Callable[[str], FlinkRun], version: str, tmp_path: Path
) -> None:
    flink = run_flink(version)
    root = tmp_path / "flink"
    snapshot = flink.copy_before_last_round(root)
    options = OPTIONS | CLAIM | {"execution.state-recovery.ignore-unclaimed-state": True}
    start, middle, end = 2 * NUMBERS, 2 * NUMBERS + NUMBERS // 2, ROUNDS * NUMBERS
    own = tmp_path / "own"
    first = process(spark, range(start, middle), own, parallelism=2, from_snapshot=snapshot, options=options)
    assert first.snapshot is not None
    # Discarded, but for the tables that the new one references.
    assert not Path(snapshot.path, "_metadata").exists()
    going_on = open_snapshot(first.snapshot.path, uids=[UID], allow_roots=[str(root)])
    second = process(spark, range(middle, end), own, parallelism=2, from_snapshot=going_on)
    for result in (first, second):
        tables = list_tables(result.snapshot)
        of_flink = {table for table in tables if table.startswith(resolve(str(root)).url + "/")}
        assert of_flink
        assert tables - of_flink
        assert result.persisted_size < result.state_size
    assert_restored(version, second, flink.entries, parallelism=2)


@pytest.mark.slow
def test_a_claimed_native_savepoint_of_flink_gives_no_table_to_the_next_one(
    spark: SparkSession, version: str, tmp_path: Path
) -> None:
    # Flink's own checkpoint after such a restore names tables relative to the savepoint (FLINK-39964).
    savepoint, entries = harness.make_snapshot(
        version, make_flink_job(), tmp_path / "flink", backend="rocksdb", kind="native"
    )
    snapshot = open_snapshot(str(savepoint), uids=[UID, "numbers"])
    handles = [each.managed_keyed_state for each in snapshot.operator(UID).metadata.subtasks]
    tables = [
        each
        for handle in handles
        if isinstance(handle, IncrementalRemoteKeyedStateHandle)
        for each in handle.shared_state
    ]
    assert tables
    assert {type(each.handle) for each in tables} == {RelativeFileStateHandle}
    options = OPTIONS | CLAIM | {"execution.state-recovery.ignore-unclaimed-state": True}
    result = process(spark, range(0), tmp_path / "own", parallelism=2, from_snapshot=snapshot, options=options)
    assert not (savepoint / "_metadata").exists()
    assert result.persisted_size == result.state_size
    assert_restored(version, result, entries, parallelism=2)
