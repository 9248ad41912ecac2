from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from assets.partitions import open_partition
from assets.sensors import NEW_PER_TICK, new_snapshots
from resources import MigrationResource, StorageResource
from state_pipelines.errors import NotFoundError
from tests.deployment.conftest import MIGRATIONS, SAVEPOINTS

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Watcher:
    """The sensor, tick by tick, as the daemon would call it."""

    root: Path
    instance: dg.DagsterInstance
    migrations: Path = MIGRATIONS
    cursor: str | None = None
    skipped: str = ""
    runs: list[str] = field(default_factory=list)

    @property
    def storage(self) -> StorageResource:
        return StorageResource(
            snapshots=str(self.root), results=str(self.root / "results"), tables=str(self.root / "tables")
        )

    def tick(self) -> list[str]:
        """Partition keys of the runs that this tick requests."""
        with dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            resources={"storage": self.storage, "migration": MigrationResource(migrations=str(self.migrations))},
        ) as context:
            result = new_snapshots(context)
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor
        self.skipped = str(result.skip_reason.skip_message) if result.skip_reason else ""
        for request in result.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions("snapshots", list(request.partition_keys))
        self.runs += [str(request.run_key) for request in result.run_requests or ()]
        return [str(request.partition_key) for request in result.run_requests or ()]

    def copy(self, release: str, name: str) -> Path:
        return Path(shutil.copytree(SAVEPOINTS[release], self.root / name))


@pytest.fixture
def watcher(tmp_path: Path) -> Iterator[Watcher]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Watcher(tmp_path, instance)


def test_a_new_snapshot_gets_one_run(watcher: Watcher) -> None:
    assert watcher.tick() == []
    watcher.copy("2.2", "job/savepoint-1")
    (key,) = watcher.tick()
    assert watcher.tick() == []
    assert watcher.instance.get_dynamic_partitions("snapshots") == [key]


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
    assert Path(open_partition(watcher.storage, key).path) == watcher.root / "savepoint-1"
    assert set(watcher.tick()) <= {key}


def test_a_deleted_snapshot_is_named(watcher: Watcher) -> None:
    path = watcher.copy("2.2", "savepoint-1")
    (key,) = watcher.tick()
    shutil.rmtree(path)
    with pytest.raises(NotFoundError, match=f"{key} is gone"):
        open_partition(watcher.storage, key)


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
    for number in range(NEW_PER_TICK + 2):
        watcher.copy("2.2", f"chk-{number}")
    assert [len(watcher.tick()) for _ in range(3)] == [NEW_PER_TICK, 2, 0]


def test_the_cursor_forgets_what_is_gone(watcher: Watcher) -> None:
    path = watcher.copy("2.2", "savepoint-1")
    watcher.tick()
    shutil.rmtree(path)
    watcher.tick()
    assert json.loads(watcher.cursor or "") == {"seen": []}


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
    assert watcher.skipped.startswith(f"{path.name}-")
    assert watcher.skipped.endswith(": at base already, nothing to do")
    assert len(watcher.instance.get_dynamic_partitions("snapshots")) == 1


def test_a_snapshot_of_another_job_is_not_migrated(watcher: Watcher, tmp_path_factory: pytest.TempPathFactory) -> None:
    watcher.migrations = tmp_path_factory.mktemp("migrations")
    text = (MIGRATIONS / "0001_amount_as_double.yaml").read_text(encoding="utf-8")
    (watcher.migrations / "0001.yaml").write_text(text.replace("operator: orders", "operator: carts"), encoding="utf-8")
    watcher.copy("2.2", "savepoint-1")
    assert watcher.tick() == []
    assert "the snapshot is at no revision of this directory" in watcher.skipped


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
