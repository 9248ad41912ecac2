from __future__ import annotations

import pytest

from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.connectors import ConnectorState, detect, encode_elements
from state_pipelines.connectors.message_queues import (
    NO_STOPPING_OFFSET,
    RocketMQEnumerator,
    RocketMQQueue,
    RocketMQSplit,
    read_rocketmq_enumerator,
    read_rocketmq_split,
    rocketmq_enumerator_rows,
    rocketmq_split_rows,
    write_rocketmq_enumerator,
    write_rocketmq_split,
)
from state_pipelines.connectors.registry import Versioned
from state_pipelines.errors import FormatError
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import basic, pojo, tuple_of
from tests.connectors.vectors import BYTES, element, i64
from tests.serializers.literals import i32, utf

QUEUE = RocketMQQueue("orders", "broker-a", 3)
NAMES = utf("orders") + utf("broker-a") + i32(3)
SPLITS = {
    "version 0": (0, NAMES + i64(42) + i64(100), RocketMQSplit(0, QUEUE, 42, 100)),
    "version 1, before 2023": (1, NAMES + i64(42) + i64(100), RocketMQSplit(1, QUEUE, 42, 100)),
    "version 1": (1, NAMES + i64(42) + i64(100) + b"\1", RocketMQSplit(1, QUEUE, 42, 100, True)),
}
MESSAGE_QUEUE = "org.apache.rocketmq.common.message.MessageQueue"
FIELDS = {"brokerName": basic("String"), "queueId": basic("Int"), "topic": basic("String")}
KRYO = tree.Kryo(
    type_class=MESSAGE_QUEUE,
    registrations=(tree.KryoRegistration(class_name=MESSAGE_QUEUE, resolved=True, value=None),),
)
LEGACY = {
    "POJO": (
        tuple_of(pojo(MESSAGE_QUEUE, FIELDS), basic("Long")),
        "02 00 09 62726f6b65722d61 00 00000003 00 07 6f7264657273 000000000000002a",
    ),
    # Class id 85 (+ 2), a new object; a broker with a mark for the object, a zigzag number, a topic likewise.
    "Kryo": (tuple_of(KRYO, basic("Long")), "57 01 01 62726f6b65722de1 06 01 6f72646572f3 000000000000002a"),
}


@pytest.mark.parametrize(("version", "data", "split"), SPLITS.values(), ids=SPLITS.keys())
def test_every_version_of_a_split_is_read_and_written(version: int, data: bytes, split: RocketMQSplit) -> None:
    assert read_rocketmq_split(Versioned(version, data)) == split
    assert write_rocketmq_split(split) == Versioned(version, data)


def test_the_row_of_a_split_says_the_next_offset() -> None:
    assert [*rocketmq_split_rows(RocketMQSplit(1, QUEUE, 42, NO_STOPPING_OFFSET, True))] == [
        {
            "topic": "orders",
            "broker": "broker-a",
            "queue_id": 3,
            "offset": 42,
            "stopping_offset": None,
            "increase": True,
        }
    ]


def test_the_enumerator_is_read_and_written() -> None:
    data = Versioned(0, i32(1) + utf("broker-a") + utf("orders") + i32(3))
    state = read_rocketmq_enumerator(data)
    assert state == RocketMQEnumerator((QUEUE,))
    assert write_rocketmq_enumerator(state) == data
    assert [*rocketmq_enumerator_rows(state)] == [{"topic": "orders", "broker": "broker-a", "queue_id": 3}]


def test_the_state_of_a_reader_is_that_of_rocketmq() -> None:
    state = detect("SourceReaderState", BYTES, [element(1, SPLITS["version 1"][1])])
    assert isinstance(state, ConnectorState)
    assert state.connector == "rocketmq"


@pytest.mark.parametrize(
    "data", [NAMES + i64(-2) + i64(0), NAMES + i64(0) + i64(0) + b"\2", utf("") + utf("b") + i32(0) + i64(0) + i64(0)]
)
def test_what_rocketmq_could_not_have_written_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        read_rocketmq_split(Versioned(1, data))


@pytest.mark.parametrize(("serializer", "data"), LEGACY.values(), ids=LEGACY.keys())
def test_offsets_of_the_legacy_source_are_rows_and_written_as_they_were(serializer: tree.Serializer, data: str) -> None:
    context, raw = LayoutContext(2), bytes.fromhex(data)
    state = detect("topic-partition-offset-states", serializer, [raw], context)
    assert isinstance(state, ConnectorState)
    assert state.rows == (({"topic": "orders", "broker": "broker-a", "queue_id": 3, "offset": 42},),)
    assert encode_elements(state, serializer, context) == (raw,)
