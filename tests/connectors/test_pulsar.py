from __future__ import annotations

import pytest

from state_pipelines.binary.java_stream import write_stream
from state_pipelines.connectors import detect
from state_pipelines.connectors.message_queues import (
    PulsarCommittable,
    PulsarEnumerator,
    PulsarPartition,
    PulsarSplit,
    committable_rows,
    pulsar_enumerator_rows,
    pulsar_split_rows,
    read_message_id,
    read_pulsar_committable,
    read_pulsar_enumerator,
    read_pulsar_split,
    write_pulsar_committable,
    write_pulsar_enumerator,
    write_pulsar_split,
)
from state_pipelines.connectors.registry import ConnectorState, Versioned
from state_pipelines.errors import FormatError
from tests.connectors.vectors import BYTES, element, i64, wrap
from tests.serializers.javacoders import java_object
from tests.serializers.literals import i32, utf

CURSORS = "org.apache.flink.connector.pulsar.source.enumerator.cursor.stop."
TOPIC = "persistent://public/default/orders"
RANGE = i32(0) + i32(65535)
# Version 0 has one range, version 1 a mode after the ranges.
PARTITIONS = {
    0: (utf(TOPIC) + i32(3) + RANGE, PulsarPartition(TOPIC, 3, ((0, 65535),))),
    1: (utf(TOPIC) + i32(-1) + i32(1) + RANGE + i32(1), PulsarPartition(TOPIC, -1, ((0, 65535),), 1)),
    2: (utf(TOPIC) + i32(3) + i32(0), PulsarPartition(TOPIC, 3, ())),
}
CURSOR = write_stream(java_object(f"{CURSORS}NeverStopCursor"))
# Ledger 7, entry 300, partition 3, batch index -1 (ten bytes), a set of acknowledged ones.
MESSAGE = bytes.fromhex("0807 10ac02 1803 20ffffffffffffffffff01 2a020105")


@pytest.mark.parametrize("version", PARTITIONS)
def test_every_version_of_a_split_is_read_and_written(version: int) -> None:
    raw, partition = PARTITIONS[version]
    data = Versioned(version, raw + wrap(CURSOR) + b"\1" + wrap(MESSAGE) + b"\1" + i64(4) + i64(5))
    split = read_pulsar_split(data)
    assert split == PulsarSplit(version, partition, CURSOR, MESSAGE, (4, 5))
    assert write_pulsar_split(split) == data


def test_the_row_of_a_split_says_the_last_message() -> None:
    split = PulsarSplit(2, PulsarPartition(TOPIC, 3, ((0, 99),)), CURSOR, MESSAGE, (4, 5))
    assert [*pulsar_split_rows(split)] == [
        {
            "topic": TOPIC,
            "partition": 3,
            "ranges": [{"start": 0, "end": 99}],
            "ledger_id": 7,
            "entry_id": 300,
            "batch_index": -1,
            "stop_cursor": f"{CURSORS}NeverStopCursor",
            "transaction": "(4,5)",
        }
    ]


def test_a_split_that_was_not_read_yet_has_no_message() -> None:
    (row,) = pulsar_split_rows(PulsarSplit(2, PARTITIONS[2][1], CURSOR))
    assert (row["ledger_id"], row["transaction"]) == (None, None)


@pytest.mark.parametrize("version", PARTITIONS)
def test_every_version_of_the_enumerator_is_read_and_written(version: int) -> None:
    raw, partition = PARTITIONS[version]
    data = Versioned(version + 1, i32(1) + raw)
    state = read_pulsar_enumerator(data)
    assert state == PulsarEnumerator(version + 1, (partition,))
    assert write_pulsar_enumerator(state) == data
    assert [row["topic"] for row in pulsar_enumerator_rows(state)] == [TOPIC]


def test_committables_are_read_and_written() -> None:
    data = Versioned(1, i64(4) + i64(5) + utf(TOPIC))
    committable = read_pulsar_committable(data)
    assert committable == PulsarCommittable((4, 5), TOPIC)
    assert write_pulsar_committable(committable) == data
    assert [*committable_rows(committable)] == [{"topic": TOPIC, "transaction": "(4,5)"}]


def test_the_state_of_a_reader_is_that_of_pulsar() -> None:
    state = detect("SourceReaderState", BYTES, [element(2, PARTITIONS[2][0] + wrap(CURSOR) + b"\0\0")])
    assert isinstance(state, ConnectorState)
    assert state.connector == "pulsar"


@pytest.mark.parametrize(
    "data",
    [
        utf("") + i32(3) + i32(0) + wrap(CURSOR) + b"\0\0",
        utf(TOPIC) + i32(-2) + i32(0) + wrap(CURSOR) + b"\0\0",
        utf(TOPIC) + i32(3) + i32(1) + i32(9) + i32(8) + wrap(CURSOR) + b"\0\0",
        utf(TOPIC) + i32(3) + i32(0) + wrap(b"cursor") + b"\0\0",
        utf(TOPIC) + i32(3) + i32(0) + wrap(CURSOR) + b"\0\0\0",
    ],
)
def test_what_pulsar_could_not_have_written_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        read_pulsar_split(Versioned(2, data))


@pytest.mark.parametrize("data", ["0807", "0d00000000", "08" + "ff" * 10 + "01"])
def test_what_is_no_message_id_is_refused(data: str) -> None:
    with pytest.raises(FormatError):
        read_message_id(bytes.fromhex(data))


def test_an_enumerator_without_partitions_could_be_any() -> None:
    with pytest.raises(FormatError, match="could be that of any connector"):
        read_pulsar_enumerator(Versioned(1, i32(0)))
