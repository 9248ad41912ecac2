"""Checkpoints of a changelog that keyed functions on Spark wrote are restored by real Flink, and Flink's here."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.metadata.handles import ChangelogStateBackendHandle
from state_pipelines.operations.dump import dump
from state_pipelines.snapshot import declare, open_snapshot
from state_pipelines.spark.keyed_step import keyed_process
from tests.backends.golden_descriptions import read_golden
from tests.datastream.same_jobs import NUMBERS, ROUNDS, EveryState, text
from tests.flink import harness, jobs
from tests.flink.test_live_streams import CLAIM, UID, WRITTEN, process
from tests.snapshots import select

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from state_pipelines.datastream import KeyedProcessFunction
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.spark import KeyedProcessResult

pytestmark = [pytest.mark.flink, pytest.mark.spark]

CHANGELOG = {"state.changelog.enabled": "true", "state.changelog.periodic-materialize.enabled": "false"}
OPTIONS: dict[str, Any] = CHANGELOG | {"execution.checkpointing.data-inline-threshold": 0}
FLINK_OPTIONS = CHANGELOG | {
    "state.changelog.storage": "filesystem",
    "execution.checkpointing.data-inline-threshold": "0",
    "execution.checkpointing.num-retained": str(ROUNDS),
}
BACKENDS = ["hashmap", "rocksdb"]
TTL_UID = "ttl-states"


def list_handles(snapshot: Snapshot | None, uid: str = UID) -> list[ChangelogStateBackendHandle]:
    assert snapshot is not None
    handles = [each.managed_keyed_state for each in snapshot.operator(uid).metadata.subtasks]
    found = [each for each in handles if isinstance(each, ChangelogStateBackendHandle)]
    assert len(found) == len(handles)
    return found


def assert_restored(
    version: str, result: KeyedProcessResult, expected: list[harness.Entry], job: jobs.Job, **options: Any
) -> None:
    """Let Flink restore a checkpoint, and compare every entry of the operator."""
    assert result.snapshot is not None
    restored = harness.restore(version, Path(result.snapshot.path), job, **options)
    assert restored.ok, restored.error
    wanted = [each for each in expected if each["op"] == UID]
    assert {each["kind"] for each in wanted} == {"keyed", "timer"}
    difference = harness.diff_entries(wanted, restored.entries)
    assert not difference, str(difference)


@pytest.fixture(scope="module", params=BACKENDS)
def checkpoint(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, KeyedProcessResult]:
    """The backend, and the third checkpoint: a base of the first round, and a log of each later one."""
    root = tmp_path_factory.mktemp("checkpoints")
    options = OPTIONS | {"state.backend.type": request.param}
    result = process(spark, range(NUMBERS), root, parallelism=2, options=options)
    for turn in range(1, ROUNDS):
        numbers = range(turn * NUMBERS, (turn + 1) * NUMBERS)
        result = process(spark, numbers, root, parallelism=2, options=options, from_snapshot=result.snapshot)
    for handle in list_handles(result.snapshot):
        assert (len(handle.materialized), len(handle.non_materialized)) == (1, ROUNDS - 1)
    return request.param, result


@pytest.mark.parametrize(("parallelism", "changelog"), [(2, False), (3, True)])
def test_flink_restores_a_changelog_of_a_keyed_function(
    checkpoint: tuple[str, KeyedProcessResult], version: str, parallelism: int, *, changelog: bool
) -> None:
    backend, result = checkpoint
    (case,) = select("2.2", "heap-checkpoint")
    job = jobs.few_states_job()
    if changelog:
        job = replace(job, settings={**job.settings, **FLINK_OPTIONS})
    assert_restored(version, result, case.entries(), job, backend=backend, parallelism=parallelism)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_changelog_of_flink_goes_on_here_and_in_flink_again(
    spark: SparkSession, version: str, tmp_path: Path, backend: str
) -> None:
    job = jobs.few_states_job()
    job = replace(job, settings={**job.settings, **FLINK_OPTIONS})
    last, entries = harness.make_snapshot(
        version, job, tmp_path / "flink", backend=backend, kind="checkpoint", written=WRITTEN
    )
    location = last.with_name(f"chk-{ROUNDS - 1}")
    # Without a base nothing says which serializer the keys have.
    snapshot = open_snapshot(
        str(location),
        declare({"key_serializers": [f"{UID}=String"]}),
        path_mapping=(f"file:{WRITTEN}={tmp_path / 'flink'}",),
        uids=[UID, "numbers"],
    )
    assert all(handle.non_materialized for handle in list_handles(snapshot))
    options = OPTIONS | {"state.backend.type": backend, "execution.state-recovery.ignore-unclaimed-state": True}
    start, middle, end = 2 * NUMBERS, 2 * NUMBERS + NUMBERS // 2, ROUNDS * NUMBERS
    own = tmp_path / "own"
    first = process(spark, range(start, middle), own, parallelism=2, from_snapshot=snapshot, options=options | CLAIM)
    second = process(spark, range(middle, end), own, parallelism=2, from_snapshot=first.snapshot, options=options)
    for handle in list_handles(second.snapshot):
        assert (len(handle.materialized), len(handle.non_materialized)) == (1, 1)
    shutil.rmtree(tmp_path / "flink")
    assert_restored(version, second, entries, job, backend=backend, parallelism=2)


class TtlStatesOfRows(EveryState):
    """Every kind of keyed state with TTL, whose numbers come in rows."""

    def __init__(self) -> None:
        super().__init__(ttl=True)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        super().process_element(value.number, ctx)


def select_ttl_states(entries: Iterable[harness.Entry]) -> list[harness.Entry]:
    found = [each for each in entries if each["op"] == TTL_UID]
    assert {each["state"] for each in found} == {"value", "list", "map", "composites", "sum", "average"}
    return found


@pytest.mark.slow
def test_state_with_ttl_in_a_changelog_of_flink_goes_on_here_and_in_flink_again(
    spark: SparkSession, version: str, tmp_path: Path
) -> None:
    job = jobs.types_job()
    job = replace(job, settings={**job.settings, **FLINK_OPTIONS})
    location, entries = harness.make_snapshot(
        version, job, tmp_path / "flink", backend="rocksdb", kind="checkpoint", written=WRITTEN
    )
    snapshot = open_snapshot(
        str(location),
        declare({"key_serializers": [f"{TTL_UID}=String"]}),
        path_mapping=(f"file:{WRITTEN}={tmp_path / 'flink'}",),
        uids=[TTL_UID],
    )
    assert all(handle.non_materialized for handle in list_handles(snapshot, TTL_UID))
    difference = harness.diff_entries(select_ttl_states(entries), select_ttl_states(dump(snapshot)))
    assert not difference, str(difference)

    def go_on(numbers: range, snapshot: Snapshot | None, **options: Any) -> Snapshot | None:
        rows = [(f"key-{number}{text(number)}", number) for number in numbers]
        return keyed_process(
            spark.createDataFrame(rows, "key string, number int"),
            key="key",
            function=TtlStatesOfRows(),
            uid=TTL_UID,
            order_by=["number"],
            checkpoint=str(tmp_path / "own"),
            parallelism=2,
            from_snapshot=snapshot,
            options=OPTIONS | {"state.backend.type": "rocksdb"} | options,
        ).snapshot

    ignored = "execution.state-recovery.ignore-unclaimed-state"
    first = go_on(range(4), snapshot, **(CLAIM | {ignored: True}))
    second = go_on(range(4, 2 * NUMBERS), first)
    assert second is not None
    for handle in list_handles(second, TTL_UID):
        assert (len(handle.materialized), len(handle.non_materialized)) == (1, 1)
    shutil.rmtree(tmp_path / "flink")
    # The sources of the job begin again: every record comes once more, here and there.
    _, entries = harness.make_snapshot(
        version, job, tmp_path / "again", backend="rocksdb", parallelism=3, start=Path(second.path)
    )
    third = go_on(range(NUMBERS), second)
    assert third is not None
    expected = select_ttl_states(dump(open_snapshot(third.path, uids=[TTL_UID])))
    difference = harness.diff_entries(expected, select_ttl_states(entries))
    assert not difference, str(difference)


def test_flink_describes_states_as_recorded(version: str) -> None:
    recorded = {name: description.hex() for name, description in read_golden().items()}
    assert dict(line.split() for line in harness.describe_states(version).splitlines()) == recorded
