from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import dagster as dg
import pytest
from dagster._core.test_utils import create_run_for_test

from state_pipelines.dagster import FlinkJob, sensors
from state_pipelines.dagster.job import Thresholds
from state_pipelines.dagster.job_settings import Watch
from state_pipelines.dagster.sensors import MOST_SNAPSHOTS_PER_TICK, build_new_snapshots
from state_pipelines.errors import NotFoundError
from state_pipelines.metadata import read_metadata, write_metadata
from state_pipelines.operations.inventory import parse_partition_key, update_inventory
from tests.dagster.conftest import MIGRATIONS, ROOT, SAVEPOINTS, UIDS
from tests.snapshots import select

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.operations.inventory import InventoryUpdate

OTHER_JOB = ROOT / "examples" / "upgrade" / "savepoint" / "savepoint-b085a2-58e50c40fc0d"


@dataclass
class Watcher:
    """The sensor, tick by tick, as the daemon would call it."""

    root: Path
    instance: dg.DagsterInstance
    migrations: Path = MIGRATIONS
    cursor: str | None = None
    watch: Watch = field(default_factory=lambda: Watch(since="all", seconds=600))
    skipped: str = ""
    runs: list[str] = field(default_factory=list)
    events: list[dg.AssetMaterialization] = field(default_factory=list)
    reports: list[Any] = field(default_factory=list)
    thresholds: Thresholds = field(default_factory=Thresholds)

    @property
    def job(self) -> FlinkJob:
        return FlinkJob(
            name="shop",
            roots=(str(self.root),),
            results=str(self.root / "results"),
            tables=str(self.root / "tables"),
            migrations=str(self.migrations),
            watch=self.watch,
            thresholds=self.thresholds,
        )

    def tick(self) -> list[str]:
        """Partition keys of the runs that this tick requests."""
        with dg.build_sensor_context(instance=self.instance, cursor=self.cursor) as context:
            result = build_new_snapshots(self.job)(context)
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor
        self.skipped = str(result.skip_reason.skip_message) if result.skip_reason else ""
        for request in result.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions("shop_snapshots", list(request.partition_keys))
        happened = [each for each in result.asset_events if isinstance(each, dg.AssetMaterialization)]
        self.events += [each for each in happened if each.asset_key == self.job.key("flink_job")]
        self.reports += [each for each in result.asset_events if each not in self.events]
        self.runs += [str(request.run_key) for request in result.run_requests or ()]
        return [str(request.partition_key) for request in result.run_requests or ()]

    def copy(self, release: str, name: str) -> Path:
        return Path(shutil.copytree(SAVEPOINTS[release], self.root / name))


@pytest.fixture
def watcher(tmp_path: Path) -> Iterator[Watcher]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Watcher(tmp_path, instance)


def test_a_savepoint_is_an_event_of_the_flink_job(watcher: Watcher) -> None:
    path = watcher.copy("2.2", "job/savepoint-1")
    watcher.tick()
    watcher.tick()
    (event,) = watcher.events
    assert event.asset_key == watcher.job.key("flink_job")
    assert event.metadata["path"].value == str(path)


def test_the_newest_savepoint_is_the_one_that_the_flink_job_shows(watcher: Watcher) -> None:
    for name, seconds in {"savepoint-1": 3000, "savepoint-2": 5000, "savepoint-3": 4000}.items():
        os.utime(watcher.copy("2.2", f"job/{name}") / "_metadata", (seconds,) * 2)
    watcher.tick()
    names = [Path(str(each.metadata["path"].value)).name for each in watcher.events]
    assert names == ["savepoint-1", "savepoint-3", "savepoint-2"]
    for event in watcher.events:
        watcher.instance.report_runless_asset_event(event)
    # One that is found later, but was taken before.
    os.utime(watcher.copy("1.20", "job/savepoint-4") / "_metadata", (2000, 2000))
    watcher.tick()
    assert len(watcher.events) == len(names)
    assert len(watcher.runs) == 4


def test_a_checkpoint_is_no_event_of_the_flink_job(watcher: Watcher) -> None:
    (case,) = select("2.2", "heap-checkpoint", "checkpoint")[:1]
    shutil.copytree(case.path, watcher.root / "chk-7")
    watcher.tick()
    assert watcher.events == []


def test_a_savepoint_beyond_the_limit_does_not_make_the_flink_job_fresh(watcher: Watcher) -> None:
    watcher.thresholds = Thresholds(max_hours_without_savepoint=1)
    old = watcher.copy("2.2", "job/savepoint-1") / "_metadata"
    os.utime(old, (1000, 1000))
    new = watcher.copy("1.20", "job/savepoint-2")
    # A copy keeps the time of the file in this tree.
    os.utime(new / "_metadata")
    watcher.tick()
    assert [each.metadata["path"].value for each in watcher.events] == [str(new)]


def test_an_idle_tick_stores_the_digest_of_a_long_cursor(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("state_pipelines.dagster.triggers._LONGEST", 0)
    watcher.copy("2.2", "job/savepoint-1")
    assert len(watcher.tick()) == 1
    first = watcher.cursor
    assert watcher.tick() == []
    assert watcher.cursor == first
    assert len(first or "") < 60
    watcher.copy("1.20", "job/savepoint-2")
    assert len(watcher.tick()) == 1


def test_a_new_snapshot_gets_one_run(watcher: Watcher) -> None:
    assert watcher.tick() == []
    watcher.copy("2.2", "job/savepoint-1")
    (key,) = watcher.tick()
    assert watcher.tick() == []
    assert watcher.instance.get_dynamic_partitions("shop_snapshots") == [key]


def test_partitions_are_added_oldest_first(watcher: Watcher) -> None:
    for number in (2, 1, 3):
        path = watcher.copy("2.2", f"savepoint-{number}")
        os.utime(path / "_metadata", (number * 86_400,) * 2)
    watcher.tick()
    keys = watcher.instance.get_dynamic_partitions("shop_snapshots")
    assert [key.partition("@")[0] for key in keys] == [f"1970-01-0{each + 1}_savepoint-{each}" for each in (1, 2, 3)]


def test_a_partition_of_an_older_release_is_not_added_again(watcher: Watcher) -> None:
    (watcher.root / "savepoint-1").mkdir()
    watcher.copy("2.2", "savepoint-1/savepoint-1")
    (summary,) = watcher.job.storage.update_inventory().inventory
    Path(watcher.job.storage.inventory.path).unlink()
    old = f"savepoint-1@{summary.fingerprint[:8]}"
    watcher.instance.add_dynamic_partitions("shop_snapshots", [old])
    assert watcher.tick() == [old]
    assert watcher.instance.get_dynamic_partitions("shop_snapshots") == [old]


def test_a_later_snapshot_gets_its_own_run(watcher: Watcher) -> None:
    watcher.copy("2.2", "savepoint-1")
    first = watcher.tick()
    watcher.copy("1.20", "savepoint-2")
    second = watcher.tick()
    assert (len(first), len(second)) == (1, 1)
    assert first != second


def test_the_key_is_not_the_path(watcher: Watcher) -> None:
    path = watcher.copy("2.2", "here/savepoint-1")
    (key,) = watcher.tick()
    path.rename(watcher.root / "savepoint-1")
    assert Path(watcher.job.storage.find(key).path) == watcher.root / "savepoint-1"
    assert set(watcher.tick()) <= {key}


def test_a_deleted_snapshot_is_named(watcher: Watcher) -> None:
    path = watcher.copy("2.2", "savepoint-1")
    (key,) = watcher.tick()
    shutil.rmtree(path)
    with pytest.raises(NotFoundError, match=f"the snapshot {key} is gone"):
        watcher.job.storage.find(key)


def test_another_snapshot_in_the_same_place_is_new(watcher: Watcher) -> None:
    watcher.copy("2.2", "savepoint-1")
    first = watcher.tick()
    shutil.rmtree(watcher.root / "savepoint-1")
    watcher.copy("1.20", "savepoint-1")
    second = watcher.tick()
    assert len(second) == 1
    assert first != second


def test_a_directory_without_metadata_waits(watcher: Watcher) -> None:
    metadata = watcher.copy("2.2", "savepoint-1") / "_metadata"
    metadata.rename(metadata.with_name("_metadata.inprogress"))
    assert watcher.tick() == []
    metadata.with_name("_metadata.inprogress").rename(metadata)
    assert len(watcher.tick()) == 1


def test_a_broken_snapshot_does_not_stop_the_others(watcher: Watcher) -> None:
    (watcher.copy("1.20", "savepoint-1") / "_metadata").write_bytes(b"nothing of Flink's")
    watcher.copy("2.2", "savepoint-2")
    assert len(watcher.tick()) == 1
    assert watcher.tick() == []


def test_results_are_not_taken_for_snapshots(watcher: Watcher) -> None:
    watcher.copy("2.2", "results/savepoint-1")
    assert watcher.tick() == []


def test_one_tick_takes_up_a_bounded_number(watcher: Watcher) -> None:
    for number in range(MOST_SNAPSHOTS_PER_TICK + 2):
        watcher.copy("2.2", f"chk-{number}")
    assert [len(watcher.tick()) for _ in range(3)] == [MOST_SNAPSHOTS_PER_TICK, 2, 0]


def test_the_newest_come_first_when_time_is_short(watcher: Watcher) -> None:
    for number in range(4):
        path = watcher.copy("2.2", f"chk-{number}")
        os.utime(path / "_metadata", (1000 + number,) * 2)
    watcher.job.storage.update_inventory()
    watcher.watch = Watch(since="all", seconds=1e-9)
    names = list_names([key for _ in range(5) for key in watcher.tick()])
    assert names == ["chk-3", "chk-2", "chk-1", "chk-0"]


def test_snapshots_can_be_chosen_by_path(watcher: Watcher) -> None:
    watcher.watch = Watch(include=("*/release-*",), exclude=("*-test",))
    for name in ("nightly-1", "release-1", "release-1-test"):
        watcher.copy("2.2", name)
    assert list_names(watcher.tick()) == ["release-1"]


def test_a_kind_can_be_left_out(watcher: Watcher) -> None:
    watcher.watch = Watch(kinds=("checkpoint",))
    watcher.copy("2.2", "savepoint-1")
    assert watcher.tick() == []
    assert watcher.instance.get_dynamic_partitions("shop_snapshots") == []


def test_a_checkpoint_gets_a_partition_and_no_run(watcher: Watcher) -> None:
    (case,) = select("2.2", "heap-checkpoint", "checkpoint")[:1]
    shutil.copytree(case.path, watcher.root / "chk-7")
    assert watcher.tick() == []
    (key,) = watcher.instance.get_dynamic_partitions("shop_snapshots")
    assert f"{key}: checkpoints are not migrated automatically" in watcher.skipped


def test_a_young_snapshot_waits(watcher: Watcher) -> None:
    watcher.watch = Watch(min_age="1h")
    path = watcher.copy("2.2", "savepoint-1")
    os.utime(path / "_metadata")
    assert watcher.tick() == []
    os.utime(path / "_metadata", (1000, 1000))
    assert len(watcher.tick()) == 1


def test_a_tick_reads_known_snapshots_from_the_inventory(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher.copy("2.2", "savepoint-1")
    assert len(watcher.tick()) == 1
    monkeypatch.setattr("state_pipelines.operations.inventory.summarise_entry", None)
    assert watcher.tick() == []


def test_the_cursor_forgets_what_is_gone(watcher: Watcher) -> None:
    path = watcher.copy("2.2", "savepoint-1")
    watcher.tick()
    shutil.rmtree(path)
    watcher.tick()
    assert json.loads(watcher.cursor or "")["seen"] == []


def test_a_snapshot_without_its_files_is_not_migrated(watcher: Watcher) -> None:
    target = watcher.root / "chk-1"
    target.mkdir()
    shutil.copy(SAVEPOINTS["2.2"] / "_metadata", target)
    assert watcher.tick() == []
    assert "does not exist" in watcher.skipped


def test_a_snapshot_at_the_target_has_nothing_to_do(watcher: Watcher, tmp_path_factory: pytest.TempPathFactory) -> None:
    watcher.migrations = tmp_path_factory.mktemp("migrations")
    path = watcher.copy("2.2", "savepoint-1")
    assert watcher.tick() == []
    assert f"_{path.name}@" in watcher.skipped.partition(":")[0]
    assert watcher.skipped.endswith(": already at base, nothing to do")
    assert len(watcher.instance.get_dynamic_partitions("shop_snapshots")) == 1


def test_a_snapshot_of_another_job_is_not_migrated(watcher: Watcher, tmp_path_factory: pytest.TempPathFactory) -> None:
    watcher.migrations = tmp_path_factory.mktemp("migrations")
    text = (MIGRATIONS / "0001_amount_as_double.yaml").read_text(encoding="utf-8")
    (watcher.migrations / "0001.yaml").write_text(text.replace("operator: orders", "operator: carts"), encoding="utf-8")
    watcher.copy("2.2", "savepoint-1")
    assert watcher.tick() == []
    assert (
        "not a snapshot of this job: it has none of the operators that the revisions change: carts" in watcher.skipped
    )


def test_another_revision_is_another_run(watcher: Watcher, tmp_path_factory: pytest.TempPathFactory) -> None:
    watcher.copy("2.2", "savepoint-1")
    watcher.tick()
    watcher.migrations = Path(shutil.copytree(MIGRATIONS, tmp_path_factory.mktemp("more") / "migrations"))
    more = "revision: '0002', operator: orders, state: history"
    steps = "upgrade: [{filter: {keep: 'true', reason: none}}], downgrade: {impossible: none}"
    (watcher.migrations / "0002.yaml").write_text(f"{{{more}, {steps}}}", encoding="utf-8")
    watcher.cursor = None
    watcher.tick()
    first, second = watcher.runs
    assert first != second


def test_a_snapshot_without_operators_of_the_job_is_not_of_the_job(
    watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = watcher.job.model_copy(update={"uids": ("carts", "checkouts")})
    monkeypatch.setattr(Watcher, "job", job)
    watcher.copy("2.2", "savepoint-1")
    assert watcher.tick() == []
    assert "not a snapshot of this job: it has none of the operators carts, checkouts" in watcher.skipped
    assert watcher.instance.get_dynamic_partitions("shop_snapshots") == []


# --- what exists at the first tick


def copy_old(watcher: Watcher, count: int) -> None:
    """Savepoints, each newer than the one before."""
    for number in range(count):
        path = watcher.copy("2.2", f"chk-{number}")
        os.utime(path / "_metadata", (1000 + number,) * 2)


def list_names(keys: list[str]) -> list[str]:
    """Names in partition keys, without dates."""
    return [parse_partition_key(key).undated for key in keys]


def test_a_job_begins_with_its_newest_savepoint(watcher: Watcher) -> None:
    watcher.watch = Watch()
    copy_old(watcher, 3)
    assert list_names(watcher.tick()) == ["chk-2"]
    assert watcher.tick() == []
    path = watcher.copy("1.20", "savepoint-1")
    os.utime(path / "_metadata", (3000, 3000))
    assert list_names(watcher.tick()) == ["savepoint-1"]
    assert len(watcher.instance.get_dynamic_partitions("shop_snapshots")) == 2


def test_an_older_snapshot_that_comes_later_is_new(watcher: Watcher) -> None:
    watcher.watch = Watch()
    copy_old(watcher, 1)
    watcher.tick()
    path = watcher.copy("1.20", "savepoint-1")
    os.utime(path / "_metadata", (500, 500))
    assert list_names(watcher.tick()) == ["savepoint-1"]


def test_the_first_tick_says_how_many_snapshots_are_passed_over(watcher: Watcher) -> None:
    watcher.watch = Watch(since="now")
    copy_old(watcher, 3)
    assert watcher.tick() == []
    assert "3 snapshots that existed before get no partition" in watcher.skipped
    assert "`watch: {since: now}`" in watcher.skipped
    assert "shop_register_snapshot" in watcher.skipped
    watcher.copy("1.20", "savepoint-1")
    assert list_names(watcher.tick()) == ["savepoint-1"]


def test_a_beginning_lasts_until_all_are_opened(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher.watch = Watch(seconds=1e-9)
    monkeypatch.setattr("state_pipelines.dagster.storage.update_inventory", update_slowly)
    copy_old(watcher, 4)
    assert list_names([key for _ in range(6) for key in watcher.tick()]) == ["chk-3"]


def update_slowly(*arguments: Any, **options: Any) -> InventoryUpdate:
    """Each update opens one snapshot."""
    ticks = iter([0.0, 0.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("state_pipelines.operations.inventory.time.monotonic", lambda: next(ticks, 1e9))
        return update_inventory(*arguments, **{**options, "threads": 1})


def test_the_newest_of_each_kind_is_first(watcher: Watcher) -> None:
    watcher.watch = Watch()
    (case,) = select("2.2", "heap-checkpoint", "checkpoint")[:1]
    checkpoint = shutil.copytree(case.path, watcher.root / "chk-7")
    copy_old(watcher, 2)
    os.utime(checkpoint / "_metadata", (9000, 9000))
    assert list_names(watcher.tick()) == ["chk-1"]
    names = list_names(list(watcher.instance.get_dynamic_partitions("shop_snapshots")))
    assert sorted(names) == ["chk-1", "chk-7"]


def test_a_young_newest_snapshot_holds_back_the_older_ones(watcher: Watcher) -> None:
    watcher.watch = Watch(min_age="1h")
    copy_old(watcher, 2)
    newest = watcher.copy("1.20", "savepoint-1")
    os.utime(newest / "_metadata")
    assert watcher.tick() == []
    os.utime(newest / "_metadata", (5000, 5000))
    assert list_names(watcher.tick()) == ["savepoint-1"]
    assert watcher.tick() == []


def test_a_job_does_not_begin_with_a_snapshot_of_another_job(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher.watch = Watch()
    monkeypatch.setattr(Watcher, "job", watcher.job.model_copy(update={"uids": UIDS}))
    other = shutil.copytree(OTHER_JOB, watcher.root / "savepoint-other")
    os.utime(other / "_metadata", (9000, 9000))
    copy_old(watcher, 2)
    assert list_names(watcher.tick()) == ["chk-1"]


def test_a_cleared_cursor_evaluates_the_snapshots_with_a_partition_and_newer_ones(watcher: Watcher) -> None:
    watcher.watch = Watch()
    copy_old(watcher, 2)
    watcher.tick()
    for number, seconds in ((1, 5000), (2, 6000)):
        path = watcher.copy("1.20", f"savepoint-{number}")
        os.utime(path / "_metadata", (seconds, seconds))
    watcher.cursor = None
    assert list_names(watcher.tick()) == ["savepoint-2", "savepoint-1", "chk-1"]


# --- samples of checkpoints


def copy_checkpoints(watcher: Watcher, *minutes: int) -> None:
    """Checkpoints with distinct metadata, each written at a minute."""
    (case,) = select("2.2", "heap-checkpoint", "checkpoint")[:1]
    for number in minutes:
        path = Path(shutil.copytree(case.path, watcher.root / f"chk-{number}"))
        metadata = read_metadata((path / "_metadata").read_bytes(), "")
        (path / "_metadata").write_bytes(write_metadata(replace(metadata, checkpoint_id=number)))
        os.utime(path / "_metadata", (number * 60,) * 2)


def list_partitions(watcher: Watcher) -> list[str]:
    watcher.tick()
    return list_names(list(watcher.instance.get_dynamic_partitions("shop_snapshots")))


def test_of_checkpoints_one_each_hour_gets_a_partition(watcher: Watcher) -> None:
    copy_checkpoints(watcher, 100, 158, 159)
    assert list_partitions(watcher) == ["chk-159"]
    assert "2 checkpoints get no partition, because of `watch: {checkpoints: 1h}`" in watcher.skipped
    copy_checkpoints(watcher, 160, 218)
    assert list_partitions(watcher) == ["chk-159"]
    copy_checkpoints(watcher, 219, 220)
    assert list_partitions(watcher) == ["chk-159", "chk-220"]
    assert len(watcher.job.storage.read_inventory()) == 7


def test_all_checkpoints_get_a_partition_without_a_period(watcher: Watcher) -> None:
    watcher.watch = Watch(since="all", checkpoints="0s")
    copy_checkpoints(watcher, 1, 2)
    assert list_partitions(watcher) == ["chk-1", "chk-2"]


def test_old_checkpoints_are_sampled_too(watcher: Watcher) -> None:
    copy_checkpoints(watcher, 1, 2, 61, 62, 122)
    assert list_partitions(watcher) == ["chk-2", "chk-62", "chk-122"]


def test_a_checkpoint_with_a_partition_is_evaluated_again_after_the_cursor_was_cleared(watcher: Watcher) -> None:
    watcher.watch = Watch(since="all", checkpoints="0s", migrate=("checkpoint",))
    copy_checkpoints(watcher, 1, 2)
    assert list_partitions(watcher) == ["chk-1", "chk-2"]
    watcher.watch = Watch(since="all", migrate=("checkpoint",))
    watcher.cursor = None
    watcher.tick()
    assert all(f"chk-{number}@" in watcher.skipped for number in (1, 2))


def test_kinds_may_be_plurals() -> None:
    assert Watch(kinds=["savepoints"]).kinds == ("savepoint",)  # type: ignore[arg-type]


# --- reports of the inventory


def test_the_sensor_reports_the_inventory_when_it_has_changed_and_every_hour(
    watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(sensors, "datetime", Mock(now=lambda _: now, fromisoformat=datetime.fromisoformat))

    def count_reports(minutes: int) -> int:
        nonlocal now
        now += timedelta(minutes=minutes)
        watcher.reports.clear()
        watcher.tick()
        return len(watcher.reports)

    watcher.copy("2.2", "savepoint-1")
    assert count_reports(0) == 3
    inventory, *checks = watcher.reports
    assert inventory.metadata["snapshots"].value == 1
    assert {each.check_name: each.passed for each in checks} == {"snapshots_are_readable": True, "roots_exist": True}
    assert [count_reports(minutes) for minutes in (1, 58, 1)] == [0, 0, 3]
    watcher.copy("1.20", "savepoint-2")
    assert [count_reports(minutes) for minutes in (1, 9, 1)] == [0, 3, 0]
    # An outcome of a check does not wait.
    (watcher.copy("2.2", "savepoint-3") / "_metadata").write_bytes(b"broken")
    assert count_reports(1) == 3
    for each in watcher.reports:
        watcher.instance.report_runless_asset_event(each)
    (stored,) = watcher.instance.fetch_materializations(watcher.job.key("snapshot_inventory"), limit=9).records
    assert stored.asset_materialization is not None
    assert stored.asset_materialization.metadata["unreadable"].value == 1


# --- failed migrations


def end_run(watcher: Watcher, status: dg.DagsterRunStatus, **tags: str) -> dg.DagsterRun:
    """A run of the newest request, with its outcome."""
    run_key = watcher.runs[-1]
    key = run_key.rpartition("-")[0].rpartition("-")[0]
    run: dg.DagsterRun = create_run_for_test(
        watcher.instance,
        job_name="shop_migrate_snapshot",
        status=status,
        tags={"dagster/run_key": run_key, "dagster/partition": key, **tags},
    )
    return run


def test_a_migration_whose_worker_was_killed_is_requested_again(watcher: Watcher) -> None:
    watcher.copy("2.2", "savepoint-1")
    (key,) = watcher.tick()
    for attempt in (2, 3):
        end_run(watcher, dg.DagsterRunStatus.FAILURE)
        assert watcher.tick() == [key]
        assert watcher.runs[-1].endswith(f"#{attempt}")
    run = end_run(watcher, dg.DagsterRunStatus.FAILURE)
    assert watcher.tick() == []
    assert f"{key}: run {run.run_id[:8]} failed, the last of 3 attempts" in watcher.skipped


def test_a_migration_with_an_error_of_the_state_is_not_requested_again(watcher: Watcher) -> None:
    watcher.copy("2.2", "savepoint-1")
    watcher.tick()
    end_run(watcher, dg.DagsterRunStatus.FAILURE, **{"state-pipelines/error": "MigrationError"})
    assert watcher.tick() == []


def test_a_migration_with_an_error_of_the_storage_is_requested_again(watcher: Watcher) -> None:
    watcher.copy("2.2", "savepoint-1")
    (key,) = watcher.tick()
    end_run(watcher, dg.DagsterRunStatus.FAILURE, **{"state-pipelines/error": "StorageError"})
    assert watcher.tick() == [key]


def test_failures_before_the_first_tick_and_retries_of_dagster_are_left_alone(watcher: Watcher) -> None:
    watcher.copy("2.2", "savepoint-1")
    watcher.tick()
    end_run(watcher, dg.DagsterRunStatus.FAILURE, **{"dagster/will_retry": "true"})
    assert watcher.tick() == []
    end_run(watcher, dg.DagsterRunStatus.FAILURE)
    watcher.watch = Watch(since="all", retries=0)
    assert watcher.tick() == []


@pytest.mark.parametrize(
    ("version", "revision", "requested"),
    [(None, "", False), ("another", "", True), (None, "base", True)],
    ids=["same", "other revisions", "other target"],
)
def test_what_is_materialised_by_the_same_revisions_is_not_migrated_again(
    watcher: Watcher, version: str | None, revision: str, requested: bool
) -> None:
    watcher.copy("2.2", "savepoint-1")
    (key,) = watcher.tick()
    # No run: it was launched by hand, it was deleted, or its code location had another name.
    tags = {"dagster/code_version": version or watcher.job.revisions.version}
    metadata = {"revision": revision or watcher.job.revisions.name_target()}
    asset = watcher.job.key("migrated_savepoint")
    migrated = dg.AssetMaterialization(asset, partition=key, metadata=metadata, tags=tags)
    watcher.instance.report_runless_asset_event(migrated)
    watcher.cursor = None
    assert watcher.tick() == [key] * requested
    assert ("has migrated it by the same revisions" in watcher.skipped) is not requested


@pytest.mark.parametrize(
    ("status", "requested", "reason"),
    [
        (dg.DagsterRunStatus.FAILURE, True, ""),
        (dg.DagsterRunStatus.CANCELED, True, ""),
        (dg.DagsterRunStatus.SUCCESS, False, "has migrated it by the same revisions"),
        (dg.DagsterRunStatus.STARTED, False, "is started"),
    ],
)
def test_a_cleared_cursor_repeats_failed_migrations_and_names_the_run_of_others(
    watcher: Watcher, status: dg.DagsterRunStatus, requested: bool, reason: str
) -> None:
    watcher.copy("2.2", "savepoint-1")
    (key,) = watcher.tick()
    run = end_run(watcher, status, **{"state-pipelines/error": "MigrationError"})
    watcher.cursor = None
    assert watcher.tick() == [key] * requested
    if requested:
        assert watcher.runs[-1] == f"{watcher.runs[0]}#2"
    else:
        assert f"{key}: run {run.run_id[:8]} {reason}" in watcher.skipped
