"""Values inside snapshots of other projects' jobs: offsets, transactions, timers, records, and what stays bytes.

The snapshots are those of `FLINK_STATE_WILD`; each test names its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import state_pipelines as sp
from state_pipelines.keyed.hashing.value_hashes import make_key_hasher
from state_pipelines.operations.dump import dump
from state_pipelines.snapshot.keyed_state import KeyedState

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.snapshot import Snapshot

TRANSLATOR = "gimral+flink-state-offset-translator"
HEAP = f"{TRANSLATOR}/FSSingleKafkaOperatorState-22638ff9"
ROCKSDB = f"{TRANSLATOR}/RDBMultipleKafkaOperatorsState-c900ff35"
INCREMENTAL = f"{TRANSLATOR}/494ff033-chk-6"
NUSSKNACKER = "TouK+nussknacker/"
STATEFUL = "efcbd2e34583844a0dee261c1744120a"
CLASSIC_SOURCE = "7b877ba8c709fa308dbec672f63d47cb"


def open_wild(wild: Path, case: str) -> Snapshot:
    """The only snapshot below the folder of a case."""
    (metadata,) = (wild / case).rglob("_metadata")
    return sp.open_snapshot(str(metadata.parent))


def values(snapshot: Snapshot, state: str, operator: str | None = None) -> list[Any]:
    """The values that `dump` prints of a state."""
    return [line["value"] for line in dump(snapshot, operator=operator, state=state)]


def splits(snapshot: Snapshot, state: str) -> list[dict[str, Any]]:
    """The rows of all operators whose state a connector is known of."""
    found = []
    for operator in snapshot.operators:
        if state in (each.name for each in operator.states):
            found += [row["split"] for row in operator.state(state).to_arrow().to_pylist() if row["split"] is not None]
    return found


@pytest.mark.parametrize(
    ("case", "offsets"),
    [
        (HEAP, {("auh.input", 0): 0, ("dxb.input", 0): 0, ("input", 0): 3}),
        (ROCKSDB, {("dxb.input", 0): 0, ("input", 0): 36}),
        (INCREMENTAL, {("dxb.input", 0): 0, ("input", 0): 38}),
    ],
)
def test_sources_of_beam_have_their_offsets(wild: Path, case: str, offsets: dict[tuple[str, int], int]) -> None:
    rows = splits(open_wild(wild, case), "_default_")
    assert {(row["topic"], row["partition"]): row["next_offset"] for row in rows} == offsets
    # 24 February 2022.
    assert all(1_645_660_000_000 < row["watermark"] < 1_645_747_000_000 for row in rows)


@pytest.mark.parametrize(
    ("case", "count", "time"), [(ROCKSDB, "a5", 1645716237192), (INCREMENTAL, "a7", 1645716536254)]
)
def test_state_and_timers_of_beam_are_decoded(wild: Path, case: str, count: str, time: int) -> None:
    snapshot = open_wild(wild, case)
    timer = {
        "timer_id": "ts-gcTimer",
        "timer_family_id": "",
        "namespace": "//",
        "timestamp": time,
        "output_timestamp": time,
        "domain": "EVENT_TIME",
    }
    assert values(snapshot, "state", STATEFUL) == [count]
    assert values(snapshot, "pending-timers", STATEFUL) == [timer]
    (line,) = dump(snapshot, operator=STATEFUL, state="_timer_state/event_beam-timer")
    assert (line["ns"], line["ts"], line["key"]) == (timer, time + 1, {"@bytes": "00"})


@pytest.mark.parametrize("case", [ROCKSDB, INCREMENTAL])
def test_keys_of_beam_are_in_the_key_group_of_their_hash(wild: Path, case: str) -> None:
    snapshot = open_wild(wild, case)
    state = snapshot.operator(STATEFUL).state("state")
    assert isinstance(state, KeyedState)
    hasher = make_key_hasher(state.key_serializer, snapshot.layout_context)
    groups = [
        (int(stored), int(hashed))
        for each in state.subtask_states
        for records in each.records()
        for stored, hashed in zip(records.key_groups, hasher.assign_keys(records, 128), strict=True)
    ]
    assert groups == [(123, 123)]


def test_state_of_beam_moves_to_other_key_groups(wild: Path, tmp_path: Path) -> None:
    snapshot = open_wild(wild, ROCKSDB)
    target = str(tmp_path / "moved")
    sp.rescale(snapshot, target, max_parallelism=251)
    moved = sp.open_snapshot(target)
    assert values(moved, "state", STATEFUL) == ["a5"]
    assert sorted(map(str, values(moved, "_default_"))) == sorted(map(str, values(snapshot, "_default_")))


@pytest.mark.parametrize(
    "case", ["2022-06-02-scala2.12-723d8ee9", "2023-01-20-2.12-36293a3a", "2024-02-29-2.12-dcc3c22a"]
)
def test_the_legacy_source_of_kafka_has_its_offset(wild: Path, case: str) -> None:
    snapshot = open_wild(wild, NUSSKNACKER + case)
    topic = "test.generic.avro.input.state.compatibility.input"
    (row,) = splits(snapshot, "topic-partition-offset-states")
    assert (row["topic"], row["partition"], row["last_offset"]) == (topic, 0, 0)
    ((partition, offset),) = (each["@tuple"] for each in values(snapshot, "topic-partition-offset-states"))
    assert (partition["topic"], partition["partition"], offset) == (topic, 0, 0)


@pytest.mark.parametrize(
    ("case", "opened", "waiting"),
    [
        ("2022-06-02-scala2.12-723d8ee9", 1654178151346, 1654178149036),
        ("2023-01-20-2.12-36293a3a", 1674241912542, 1674241909398),
        ("2024-02-29-2.12-dcc3c22a", 1709167099058, 1709167097367),
    ],
)
def test_the_sink_of_kafka_has_its_transactions(wild: Path, case: str, opened: int, waiting: int) -> None:
    snapshot = open_wild(wild, NUSSKNACKER + case)
    nothing = {"transactionalId": None, "producerId": -1, "epoch": -1}
    (operator,) = (
        each for each in snapshot.operators if "next-transactional-id-hint-v2" in (one.name for one in each.states)
    )
    assert values(snapshot, "next-transactional-id-hint-v2") == []
    assert values(snapshot, "state", operator.label) == [
        {
            "pending": {"transaction": nothing, "started": opened},
            "committing": [{"transaction": nothing, "started": waiting}],
            "context": None,
        }
    ]


def test_records_of_avro_inside_kryo_are_decoded(wild: Path) -> None:
    snapshot = open_wild(wild, f"{NUSSKNACKER}2023-01-20-2.12-36293a3a")
    name = "pl.touk.nussknacker.engine.schemedkafka.FullName"
    assert values(snapshot, "state", "60f7dfb0d53b9875410bf39c7261f5f3") == [
        {"@avro": name, "first": "Jan", "last": "Kowalski"}
    ]


@pytest.mark.parametrize("case", ["2022-06-02-scala2.12-723d8ee9", "2024-02-29-2.12-dcc3c22a"])
def test_records_of_a_kryo_serializer_of_the_job_stay_bytes(wild: Path, case: str) -> None:
    (value,) = values(open_wild(wild, NUSSKNACKER + case), "state", "60f7dfb0d53b9875410bf39c7261f5f3")
    assert value["@class"].endswith(".schemaregistry.GenericRecordWithSchemaId")
    assert "AvroGenericRecordSerializer. Declare what it writes" in value["@reason"]
    assert bytes.fromhex(value["@undecoded"]).endswith(b"\x06Jan\x10Kowalski")


def test_splits_of_the_source_of_kafka_have_their_offsets(wild: Path) -> None:
    snapshot = open_wild(wild, "apache+flink-connector-kafka/enum2-split0")
    rows = splits(snapshot, "SourceReaderState")
    assert {(row["topic"], row["partition"]): row["offset"] for row in rows} == {
        ("topic", each): 10 for each in range(10)
    }


def test_offsets_of_a_list_checkpointed_source_are_rows(wild: Path) -> None:
    state = open_wild(wild, "classic-examples").operator(CLASSIC_SOURCE).state("_default_")
    rows = [row["split"] for row in state.to_arrow().to_pylist()]
    assert rows == [{"element": f'{{"@class":"SeedJob$Split","n":{each}}}', "offset": 100 + each} for each in range(5)]
