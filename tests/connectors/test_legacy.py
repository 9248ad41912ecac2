from __future__ import annotations

import pytest

from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.connectors import ConnectorState, decode_splits, detect, encode_elements
from state_pipelines.connectors.list_state_sources import LegacyKafkaOffset
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import basic, pojo, tuple_of

KAFKA = "org.apache.flink.streaming.connectors.kafka.internals.KafkaTopicPartition"
KINESIS = "org.apache.flink.streaming.connectors.kinesis.model."
CONTEXT = LayoutContext(2)
# Kryo: class id 85 (+ 2), a new object, cachedHash, partition (zigzag), topic; then the offset.
ORDERS = bytes.fromhex("57 01 9a01 06 01 6f72646572f3 0000000000000029")


def kryo(name: str) -> tree.Kryo:
    registration = tree.KryoRegistration(class_name=name, resolved=True, value=None)
    return tree.Kryo(type_class=name, registrations=(registration,))


OFFSETS = tuple_of(kryo(KAFKA), basic("Long"))
SHARDS = tuple_of(
    pojo(f"{KINESIS}StreamShardMetadata", {name: basic("String") for name in ("streamName", "shardId")}),
    kryo(f"{KINESIS}SequenceNumber"),
)
# The POJO: shardId, streamName; Kryo: class id 85 (+ 2), a new object, cachedHash, sequenceNumber, subSequenceNumber.
CLICKS = bytes.fromhex("02 00 08 73686172642d30 00 07 636c69636b73 57 01 12 01 343935b9 01")


def test_offsets_of_the_kafka_consumer_are_read() -> None:
    state = detect("topic-partition-offset-states", OFFSETS, [ORDERS], CONTEXT)
    assert isinstance(state, ConnectorState)
    assert state.values == (LegacyKafkaOffset("orders", 3, 41, 77),)


def test_an_offset_of_the_kafka_consumer_is_that_of_the_last_record() -> None:
    batch = decode_splits("topic-partition-offset-states", OFFSETS, [ORDERS], CONTEXT)
    assert batch is not None
    assert batch.to_pylist() == [
        {
            "connector": "legacy-kafka",
            "list_index": 0,
            "topic": "orders",
            "partition": 3,
            "last_offset": 41,
            "offset_word": None,
        }
    ]


def test_placeholders_of_the_kafka_consumer_come_as_words() -> None:
    element = ORDERS[:-8] + (-915623761775).to_bytes(8, "big", signed=True)
    batch = decode_splits("topic-partition-offset-states", OFFSETS, [element], CONTEXT)
    assert batch is not None
    (row,) = batch.to_pylist()
    assert (row["last_offset"], row["offset_word"]) == (None, "earliest")


def test_offsets_of_the_kinesis_consumer_are_read() -> None:
    batch = decode_splits("Kinesis-Stream-Shard-State", SHARDS, [CLICKS], CONTEXT)
    assert batch is not None
    (row,) = batch.to_pylist()
    assert (row["stream_name"], row["shard_id"], row["sequence_number"]) == ("clicks", "shard-0", "4959")


@pytest.mark.parametrize(
    ("name", "serializer", "element"),
    [("topic-partition-offset-states", OFFSETS, ORDERS), ("Kinesis-Stream-Shard-State", SHARDS, CLICKS)],
)
def test_elements_are_written_as_they_were(name: str, serializer: tree.Serializer, element: bytes) -> None:
    state = detect(name, serializer, [element], CONTEXT)
    assert isinstance(state, ConnectorState)
    assert encode_elements(state, serializer, CONTEXT) == (element,)


def test_a_state_of_the_same_name_with_another_serializer_is_not_that_of_kafka() -> None:
    other = tuple_of(basic("String"), basic("Long"))
    assert detect("topic-partition-offset-states", other, [ORDERS], CONTEXT) is None


def test_no_elements_are_still_those_of_the_only_candidate() -> None:
    state = detect("topic-partition-offset-states", OFFSETS, [], CONTEXT)
    assert isinstance(state, ConnectorState)
    assert state.to_batch().num_rows == 0
