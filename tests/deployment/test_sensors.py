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
from resources import StorageResource
from state_pipelines.errors import NotFoundError
from tests.deployment.conftest import SAVEPOINTS

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Watcher:
    """The sensor, tick by tick, as the daemon would call it."""

    root: Path
    instance: dg.DagsterInstance
    cursor: str | None = None
    runs: list[str] = field(default_factory=list)

    @property
    def storage(self) -> StorageResource:
        return StorageResource(
            snapshots=str(self.root), results=str(self.root / "results"), tables=str(self.root / "tables")
        )

    def tick(self) -> list[str]:
        """Partition keys of the runs that this tick requests."""
        with dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, resources={"storage": self.storage}
        ) as context:
            result = new_snapshots(context)
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor
        for request in result.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions("snapshots", list(request.partition_keys))
        assert [request.run_key for request in result.run_requests or ()] == [
            request.partition_key for request in result.run_requests or ()
        ]
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
        target = watcher.root / f"chk-{number}"
        target.mkdir()
        shutil.copy(SAVEPOINTS["2.2"] / "_metadata", target)
    assert [len(watcher.tick()) for _ in range(3)] == [NEW_PER_TICK, 2, 0]


def test_the_cursor_forgets_what_is_gone(watcher: Watcher) -> None:
    path = watcher.copy("2.2", "savepoint-1")
    watcher.tick()
    shutil.rmtree(path)
    watcher.tick()
    assert json.loads(watcher.cursor or "") == {"seen": []}
