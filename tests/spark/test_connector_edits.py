"""Columns of connectors, set by migrations; all kinds in one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.binary.java_stream import JavaString
from state_pipelines.connectors.kafka import KafkaSplit, write_kafka_split
from state_pipelines.connectors.registry import write_array_element
from state_pipelines.errors import StateError
from state_pipelines.operations.migration import Migration, parse_migration
from state_pipelines.spark import MigrationResult, migrate
from tests.connectors.test_beam import MARK, PARTITIONS, SOURCE
from tests.connectors.test_legacy import OFFSETS, ORDERS
from tests.serializers.javacoders import class_literal, coder, legacy_snapshot
from tests.serializers.test_beam import read
from tests.snapshot.built import build_snapshot, list_operator

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from state_pipelines.snapshot import Snapshot

pytestmark = pytest.mark.spark

BEAM = read(
    legacy_snapshot(
        coder(
            "KvCoder",
            keyCoder=coder("SerializableCoder", type=class_literal("org.apache.beam.sdk.io.UnboundedSource")),
            valueCoder=coder("AvroCoder", schemaStr=JavaString(MARK)),
        )
    )
)
SPLITS = [KafkaSplit("orders", 0, 38), KafkaSplit("orders", 1, 40), KafkaSplit("clicks", 0, 7)]


def split(values: KafkaSplit) -> bytes:
    return write_array_element(write_kafka_split(values))


def change(uid: str, state: str, upgrade: dict[str, str], downgrade: dict[str, str] | None = None) -> dict[str, Any]:
    back: Any = {"impossible": "the offsets before are not kept"}
    if downgrade is not None:
        back = [{"set": {"field": name, "expression": sql}} for name, sql in downgrade.items()]
    steps = [{"set": {"field": name, "expression": sql}} for name, sql in upgrade.items()]
    return {"operator": uid, "state": state, "upgrade": steps, "downgrade": back}


def make(*changes: dict[str, Any]) -> Migration:
    return parse_migration({"revision": "1", "changes": list(changes)})


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    operators = (
        list_operator("new", "SourceReaderState", [split(SPLITS[0]), split(SPLITS[1])], [split(SPLITS[2])]),
        list_operator("legacy", "topic-partition-offset-states", [ORDERS], serializer=OFFSETS),
        list_operator("beam", "_default_", [SOURCE + PARTITIONS], serializer=BEAM),
        list_operator("other", "bytes", [b"\0\0\0\1a"]),
    )
    uids = ("new", "legacy", "beam", "other")
    return build_snapshot(tmp_path_factory.mktemp("old") / "old", *operators, uids=uids)


@pytest.fixture(scope="module")
def up(spark: SparkSession, old: Snapshot, tmp_path_factory: pytest.TempPathFactory) -> MigrationResult:
    changes = make(
        change(
            "new",
            "SourceReaderState",
            {
                "split.offset": "CASE WHEN split.topic = 'orders' AND split.partition = 0 THEN 5 ELSE split.offset END",
                "split.offset_word": "IF(split.topic = 'clicks', 'earliest', split.offset_word)",
                "split.stopping_offset": "IF(split.topic = 'clicks', list_index + 90, split.stopping_offset)",
            },
        ),
        change("legacy", "topic-partition-offset-states", {"split.offset_word": "'latest'"}),
        change(
            "beam",
            "_default_",
            {"split.next_offset": "split.next_offset + 100 * split.partition + 1"},
            {"split.next_offset": "split.next_offset - 100 * split.partition - 1"},
        ),
    )
    return migrate(old, changes, str(tmp_path_factory.mktemp("up") / "new"))


def splits(snapshot: Snapshot, uid: str) -> list[dict[str, Any]]:
    (state,) = snapshot.operator(uid).operator_states
    return [row["split"] for row in state.to_arrow().to_pylist()]


def test_offsets_and_words_of_a_kafka_source_are_set(up: MigrationResult) -> None:
    found = [(each["offset"], each["offset_word"], each["stopping_offset"]) for each in splits(up.snapshot, "new")]
    assert found == [(5, None, None), (40, None, None), (None, "earliest", 90)]


def test_the_offset_of_a_legacy_consumer_is_set(up: MigrationResult) -> None:
    assert splits(up.snapshot, "legacy") == [
        {"topic": "orders", "partition": 3, "last_offset": None, "offset_word": "latest"}
    ]


def test_every_partition_in_an_element_of_beam_is_set(up: MigrationResult) -> None:
    assert [each["next_offset"] for each in splits(up.snapshot, "beam")] == [39, 101]
    assert [each["watermark"] for each in splits(up.snapshot, "beam")] == [1645716527400, -1]


def test_the_run_is_proven_and_comes_back(up: MigrationResult) -> None:
    assert up.proof is not None
    assert up.proof.ok
    assert "round_trip" in [each.name for each in up.proof.checks]


@pytest.mark.parametrize(
    ("uid", "state", "field", "expression", "message"),
    [
        ("new", "SourceReaderState", "split.topic", "'x'", r"split.topic of the split state of kafka cannot be set"),
        ("new", "SourceReaderState", "split.offset", "split.nowhere", "nowhere"),
        ("new", "SourceReaderState", "split.offset", "rand() * 3", "gives other values each time"),
        ("new", "SourceReaderState", "split.offset", "-7", "the offset -7 is negative"),
        ("new", "SourceReaderState", "split.offset_word", "'first'", "'first' is no word for an offset"),
        ("other", "bytes", "split.offset", "1", "has no column split.offset: no known connector wrote it"),
    ],
)
def test_wrong_steps_are_refused_and_leave_nothing(
    old: Snapshot, spark: SparkSession, tmp_path: Path, uid: str, state: str, field: str, expression: str, message: str
) -> None:
    target = tmp_path / "new"
    with pytest.raises(StateError, match=message):
        migrate(old, make(change(uid, state, {field: expression})), str(target), spark=spark)
    assert not target.exists()
