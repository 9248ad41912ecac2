"""Serializers of a user migrate by `migrate`: read by the old layout, converted, written by the new one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from state_pipelines.datastream import (
    KeyedProcessFunction,
    KeyedProcessOperator,
    ListStateDescriptor,
    MapStateDescriptor,
    TaskInfo,
    Types,
    ValueStateDescriptor,
    write_savepoint,
)
from state_pipelines.operations.dump import dump
from state_pipelines.operations.jobs.job_state import describe_job
from state_pipelines.operations.migration import Direction, parse_migration
from state_pipelines.operations.migration.drafting import draft_revision, format_revision
from state_pipelines.serializers.build import basic, pojo
from state_pipelines.spark import migrate
from tests.serializers.migrating_families import Counter, Crate, Price

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.datastream import RuntimeContext
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import Snapshot
    from state_pipelines.spark import MigrationResult

pytestmark = pytest.mark.spark

STRING, LONG, INT = basic("String"), basic("Long"), basic("Int")
OLD: dict[str, Serializer] = {
    "counter": Counter(width=4),
    "prices": Price(snapshot_version=1),
    "crates": Crate(label="box", content=pojo("A", {"x": LONG})),
}
NEW: dict[str, Serializer] = {
    "counter": Counter(width=8),
    "prices": Price(snapshot_version=2),
    "crates": Crate(label="box", content=pojo("A", {"x": LONG, "y": INT})),
}
KEYS = [f"key-{number}" for number in range(20)]


class Keeper(KeyedProcessFunction):
    def __init__(self, types: dict[str, Serializer]) -> None:
        self.types = types

    def open(self, runtime_context: RuntimeContext) -> None:
        of = {name: Types.of(each) for name, each in self.types.items()}
        self.counter = runtime_context.get_state(ValueStateDescriptor("counter", of["counter"]))
        self.prices = runtime_context.get_list_state(ListStateDescriptor("prices", of["prices"]))
        self.crates = runtime_context.get_map_state(MapStateDescriptor("crates", Types.STRING(), of["crates"]))

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        number = int(value.rpartition("-")[2])
        if self.types is OLD:
            self.counter.update(-number)
            self.prices.update([number, 7])
            self.crates.put("full", {"number": number, "content": {"class": "A", "x": number}})
            self.crates.put("empty", {"number": number, "content": None})
        yield from ()


def write(types: dict[str, Serializer], target: Path) -> Snapshot:
    operator = KeyedProcessOperator(
        Keeper(types), lambda key: key, Types.STRING(), task=TaskInfo(index=0, parallelism=1, max_parallelism=128)
    )
    operator.open(None)
    for key in KEYS:
        operator.process(key)
    return write_savepoint(str(target), {"keeper": [operator]})


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return write(OLD, tmp_path_factory.mktemp("families") / "old")


@pytest.fixture(scope="module")
def drafted(old: Snapshot, tmp_path_factory: pytest.TempPathFactory) -> str:
    new = write(NEW, tmp_path_factory.mktemp("families") / "new")
    return format_revision(draft_revision(old, describe_job(new), "0001"))


@pytest.fixture(scope="module")
def migrated(
    spark: SparkSession, old: Snapshot, drafted: str, tmp_path_factory: pytest.TempPathFactory
) -> MigrationResult:
    migration = parse_migration(yaml.safe_load(drafted))
    return migrate(old, migration, str(tmp_path_factory.mktemp("families") / "migrated"))


def read(snapshot: Snapshot) -> dict[tuple[Any, Any, Any], Any]:
    lines: Iterator[Any] = dump(snapshot)
    return {(each["state"], each["key"], each.get("ukey")): each["value"] for each in lines}


def test_the_drafted_revision_migrates_every_value(migrated: MigrationResult) -> None:
    found = read(migrated.snapshot)
    for key in KEYS:
        number = int(key.rpartition("-")[2])
        assert found["counter", key, None] == -number
        assert found["prices", key, None] == [
            {"cents": number, "currency": "EUR"},
            {"cents": 7, "currency": "EUR"},
        ]
        assert found["crates", key, "full"]["content"] == {"@class": "A", "x": number, "y": 0}
        assert found["crates", key, "empty"]["content"] is None
    shown = {each.name: each.serializer for each in migrated.snapshot.operator("keeper").states}
    assert Counter(width=8) in shown.values()


def test_the_proof_goes_the_way_back_where_there_is_one(migrated: MigrationResult) -> None:
    assert migrated.proof is not None
    assert migrated.proof.ok
    (trip,) = [each for each in migrated.proof.checks if each.name == "round_trip"]
    assert trip.ok
    assert trip.counts is not None
    assert trip.counts.compared >= 3 * len(KEYS)


def test_what_has_no_way_back_says_so(drafted: str) -> None:
    changes = {each["state"]: each for each in yaml.safe_load(drafted)["changes"]}
    assert "impossible" in changes["prices"]["downgrade"]
    assert isinstance(changes["counter"]["downgrade"], list)


def test_the_downgrade_gives_the_old_bytes(
    spark: SparkSession, old: Snapshot, migrated: MigrationResult, drafted: str, tmp_path: Path
) -> None:
    content = yaml.safe_load(drafted)
    content["changes"] = [each for each in content["changes"] if each["state"] != "prices"]
    back = migrate(migrated.snapshot, parse_migration(content), str(tmp_path / "back"), direction=Direction.DOWNGRADE)
    before, after = read(old), read(back.snapshot)
    assert {each: value for each, value in before.items() if each[0] != "prices"} == {
        each: value for each, value in after.items() if each[0] != "prices"
    }
