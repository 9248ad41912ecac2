from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.connectors.kafka import (
    NO_OFFSET,
    DynamicKafkaSplit,
    KafkaAssignment,
    KafkaCommittable,
    KafkaEnumerator,
    KafkaSplit,
    KafkaTransaction,
    KafkaWriterState,
    enumerator_rows,
    read_dynamic_kafka_split,
    read_kafka_committable,
    read_kafka_enumerator,
    read_kafka_split,
    read_kafka_writer_state,
    split_rows,
    write_dynamic_kafka_split,
    write_kafka_committable,
    write_kafka_enumerator,
    write_kafka_split,
    write_kafka_writer_state,
    writer_rows,
)
from state_pipelines.connectors.registry import Versioned
from state_pipelines.errors import FormatError, UnsupportedError, ValueRangeError

NONE = "8000000000000000"
SPLIT = bytes.fromhex(f"0006 6f7264657273 00000003 000000000000002a {NONE}")
ORDERS = KafkaSplit("orders", 3, 42)
PLAIN = bytes.fromhex("0006 6f7264657273 00000003")
UNKNOWN_OFFSET = KafkaSplit("orders", 3, NO_OFFSET)
ENUMERATORS = {
    0: (
        bytes.fromhex("00000002 00000000 00000000 00000000 00000001 00000001 0000001c") + SPLIT,
        KafkaEnumerator(0, (KafkaAssignment(ORDERS, reader=1),), readers=(0, 1)),
    ),
    1: (bytes.fromhex("00000001") + PLAIN, KafkaEnumerator(1, (KafkaAssignment(UNKNOWN_OFFSET),))),
    2: (
        bytes.fromhex("00000001") + PLAIN + bytes.fromhex("00000001 00"),
        KafkaEnumerator(2, (KafkaAssignment(UNKNOWN_OFFSET, "unassigned"),), initial_discovery_finished=False),
    ),
    3: (
        bytes.fromhex("00000001 00000000 0000001c") + SPLIT + bytes.fromhex("00000000 01"),
        KafkaEnumerator(3, (KafkaAssignment(ORDERS),)),
    ),
}
WRITERS = {
    1: (bytes.fromhex("0002 7478"), KafkaWriterState(1, "tx")),
    2: (
        bytes.fromhex("0002 7478 00000001 00000004 00000001 00000001 0006 74782d312d37 0000000000000007"),
        KafkaWriterState(2, "tx", 1, 4, "EXPLICIT_BY_WRITER_STATE", (KafkaTransaction("tx-1-7", 7),)),
    ),
}
TOPICS = st.text("abcXYZ019._-", min_size=3, max_size=20)
OFFSETS = st.integers(0, (1 << 63) - 1) | st.sampled_from([-1, -3, NO_OFFSET])


def test_a_split_is_topic_partition_and_two_offsets() -> None:
    assert read_kafka_split(Versioned(0, SPLIT)) == ORDERS


def test_the_row_of_a_split_has_its_next_offset() -> None:
    (row,) = split_rows(ORDERS)
    assert (row["topic"], row["partition"], row["offset"], row["stopping_offset"]) == ("orders", 3, 42, None)


@pytest.mark.parametrize(
    ("offset", "word"), [(-2, "earliest"), (-3, "committed"), (-1, "latest"), (NO_OFFSET, "migrated")]
)
def test_special_offsets_come_as_words(offset: int, word: str) -> None:
    (row,) = split_rows(KafkaSplit("orders", 3, offset))
    assert (row["offset"], row["offset_word"]) == (None, word)


@pytest.mark.parametrize(
    "data",
    [
        SPLIT + b"\0",
        SPLIT[:-1],
        SPLIT.replace(b"orders", b"or ers"),
        bytes.fromhex(f"0002 2e2e 00000003 000000000000002a {NONE}"),
        bytes.fromhex(f"0001 61 ffffffff 000000000000002a {NONE}"),
        bytes.fromhex(f"0001 61 00000003 fffffffffffffffb {NONE}"),
        bytes.fromhex("0001 61 00000003 000000000000002a fffffffffffffffe"),
    ],
    ids=["longer", "shorter", "topic", "dots", "partition", "offset", "stopping offset"],
)
def test_what_kafka_could_not_have_written_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        read_kafka_split(Versioned(0, data))


def test_a_split_of_another_version_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="version 1 of a Kafka split"):
        read_kafka_split(Versioned(1, SPLIT))


@pytest.mark.parametrize("version", ENUMERATORS)
def test_every_version_of_the_enumerator_is_read(version: int) -> None:
    data, value = ENUMERATORS[version]
    assert read_kafka_enumerator(Versioned(version, data)) == value


@pytest.mark.parametrize("version", ENUMERATORS)
def test_every_version_of_the_enumerator_is_written(version: int) -> None:
    data, value = ENUMERATORS[version]
    assert write_kafka_enumerator(value) == Versioned(version, data)


def test_a_version_that_does_not_exist_is_not_written() -> None:
    with pytest.raises(ValueRangeError, match="version 4 of Kafka"):
        write_kafka_enumerator(KafkaEnumerator(4, ()))


def test_the_rows_of_an_enumerator_say_who_reads_what() -> None:
    (row,) = enumerator_rows(ENUMERATORS[0][1])
    assert (row["status"], row["reader"], row["offset"]) == ("assigned", 1, 42)


def test_a_status_that_does_not_exist_is_refused() -> None:
    with pytest.raises(FormatError, match="3 is no assignment status"):
        read_kafka_enumerator(Versioned(2, bytes.fromhex("00000001") + PLAIN + bytes.fromhex("00000003 00")))


@pytest.mark.parametrize("version", WRITERS)
def test_every_version_of_the_writer_state_is_read(version: int) -> None:
    data, value = WRITERS[version]
    assert read_kafka_writer_state(Versioned(version, data)) == value


@pytest.mark.parametrize("version", WRITERS)
def test_every_version_of_the_writer_state_is_written(version: int) -> None:
    data, value = WRITERS[version]
    assert write_kafka_writer_state(value) == Versioned(version, data)


def test_a_writer_without_what_it_owns_has_no_second_version() -> None:
    with pytest.raises(ValueRangeError, match="needs the ownership"):
        write_kafka_writer_state(KafkaWriterState(2, "tx"))


def test_a_writer_has_a_row_per_transaction() -> None:
    assert [row.get("transactional_id") for row in writer_rows(WRITERS[2][1])] == ["tx-1-7"]


def test_a_committable_is_epoch_producer_and_transaction() -> None:
    data = bytes.fromhex("0005 00000000000003e8 0006 74782d312d37")
    committable = read_kafka_committable(Versioned(1, data))
    assert committable == KafkaCommittable("tx-1-7", 1000, 5)
    assert write_kafka_committable(committable) == Versioned(1, data)


def test_a_negative_producer_is_refused() -> None:
    with pytest.raises(FormatError, match="negative"):
        read_kafka_committable(Versioned(1, bytes.fromhex("0005 ffffffffffffffff 0001 74")))


@pytest.mark.parametrize(
    ("version", "retained", "flag"), [(1, None, ""), (2, None, "00"), (2, 5, "01 0000000000000005")]
)
def test_a_split_of_the_dynamic_source_names_its_cluster(version: int, retained: int | None, flag: str) -> None:
    data = bytes.fromhex(f"0002 6331 {flag} 00000000") + SPLIT
    split = read_dynamic_kafka_split(Versioned(version, data))
    assert split == DynamicKafkaSplit(version, "c1", ORDERS, retained)
    assert write_dynamic_kafka_split(split) == Versioned(version, data)


@pytest.mark.slow
@given(TOPICS, st.integers(0, (1 << 31) - 1), OFFSETS, OFFSETS)
def test_splits_survive_writing_and_reading(topic: str, partition: int, start: int, stop: int) -> None:
    split = KafkaSplit(topic, partition, start, stop)
    if topic not in (".", ".."):
        assert read_kafka_split(write_kafka_split(split)) == split
