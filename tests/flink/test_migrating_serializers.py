"""Serializers of users migrate here as in Flink: live state and `migrate` give the entries that Flink gets itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from state_pipelines.datastream import (
    KeyedProcessFunction,
    KeyedProcessOperator,
    ListStateDescriptor,
    MapStateDescriptor,
    RestoredState,
    TaskInfo,
    Types,
    ValueStateDescriptor,
    write_savepoint,
)
from state_pipelines.operations.jobs.job_state import describe_job
from state_pipelines.operations.migration import parse_migration
from state_pipelines.operations.migration.drafting import draft_revision, format_revision
from state_pipelines.serializers.build import basic, pojo
from state_pipelines.snapshot import open_snapshot
from state_pipelines.spark import migrate
from tests.flink import harness, jobs
from tests.serializers.migrating_families import Counter, Crate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.datastream import RuntimeContext
    from state_pipelines.snapshot import Snapshot

pytestmark = [pytest.mark.flink, pytest.mark.spark]

UID = "keeper"
CHANGELOG = {
    "state.changelog.enabled": "true",
    "state.changelog.storage": "filesystem",
    "state.changelog.periodic-materialize.enabled": "false",
    "execution.checkpointing.data-inline-threshold": "0",
}
SOURCES = {
    "heap": ("hashmap", "native", {}),
    "rocksdb": ("rocksdb", "native", {}),
    "changelog": ("rocksdb", "checkpoint", CHANGELOG),
}
ITEM = pojo("migrating.Item", {"x": basic("Long"), "y": basic("Int")})
CRATE = Types.of(Crate(label="box", content=ITEM))
COUNTER = Types.of(Counter(width=8))


class Keeper(KeyedProcessFunction):
    """Registers the states of the Java function with its new serializers."""

    def __init__(self, *, map_keys: bool) -> None:
        self.map_keys = map_keys

    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_state(ValueStateDescriptor("counter", COUNTER))
        runtime_context.get_list_state(ListStateDescriptor("crates", CRATE))
        runtime_context.get_map_state(MapStateDescriptor("named", Types.STRING(), CRATE))
        if self.map_keys:
            runtime_context.get_map_state(MapStateDescriptor("numbered", COUNTER, Types.STRING()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield from ()


def restore_live(snapshot: Snapshot, target: Path, *, map_keys: bool, format: str) -> Snapshot:
    restored = RestoredState.of(snapshot.operator(UID))
    operators = [
        KeyedProcessOperator(
            Keeper(map_keys=map_keys),
            lambda key: key,
            Types.STRING(),
            task=TaskInfo(index=index, parallelism=2, max_parallelism=128),
        )
        for index in range(2)
    ]
    for operator in operators:
        operator.open(restored)
    return write_savepoint(str(target), {UID: operators}, base=snapshot, format=format)


@pytest.mark.parametrize("source", SOURCES)
def test_live_state_and_migrations_give_what_flink_gets(
    spark: SparkSession, version: str, source: str, tmp_path: Path
) -> None:
    backend, kind, settings = SOURCES[source]
    before, after = jobs.migrating_job("v1", settings=settings), jobs.migrating_job("v2")
    old, entries = harness.make_snapshot(version, before, tmp_path / "old", backend=backend, kind=kind)
    expected = let_flink_migrate(version, old, entries, after, backend)

    snapshot = open_snapshot(str(old), uids=[UID, "numbers"], allow_roots=[str(tmp_path / "old")])
    format = "rocksdb" if backend == "rocksdb" else "canonical"
    live = restore_live(snapshot, tmp_path / "live", map_keys=False, format=format)
    text = format_revision(draft_revision(snapshot, describe_job(live), "0001"))
    migrate(snapshot, parse_migration(yaml.safe_load(text)), str(tmp_path / "migrated"))
    for name in ("live", "migrated"):
        require_entries(version, tmp_path / name, after, backend, expected)


@pytest.mark.slow
def test_map_keys_migrate_on_heap(version: str, tmp_path: Path) -> None:
    before, after = (jobs.migrating_job(classes, map_keys=True) for classes in ("v1", "v2"))
    old, entries = harness.make_snapshot(version, before, tmp_path / "old", backend="hashmap")
    expected = let_flink_migrate(version, old, entries, after, "hashmap")
    snapshot = open_snapshot(str(old), uids=[UID, "numbers"])
    restore_live(snapshot, tmp_path / "live", map_keys=True, format="heap")
    require_entries(version, tmp_path / "live", after, "hashmap", expected)


def let_flink_migrate(
    version: str, old: Path, entries: list[harness.Entry], after: jobs.Job, backend: str
) -> list[harness.Entry]:
    judged = harness.restore(version, old, after, backend=backend)
    assert judged.ok, judged.error
    assert len(judged.entries) == len(entries)
    assert harness.diff_entries(entries, judged.entries)
    return judged.entries


def require_entries(version: str, path: Path, job: jobs.Job, backend: str, expected: list[harness.Entry]) -> None:
    result = harness.restore(version, path, job, backend=backend, parallelism=3)
    assert result.ok, result.error
    difference = harness.diff_entries(expected, result.entries)
    assert not difference, f"{path.name}: {difference}"
