"""State of the exactly-once sink `FlinkKafkaProducer` of 1.x."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.connectors import ConnectorState, decode_splits, detect, encode_elements
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import basic, pojo
from state_pipelines.serializers.registry import read_nested, write_nested
from tests.serializers.literals import composite, versioned

CONTEXT = LayoutContext(2)
PACKAGE = "org.apache.flink.streaming.connectors.kafka."
PRODUCERS = ("FlinkKafkaProducer", "FlinkKafkaProducer011")
SINK = "org.apache.flink.streaming.api.functions.sink.TwoPhaseCommitSinkFunction$StateSerializerSnapshot"
HINT = basic("KafkaNextTransactionalIdHint")
HINT_POJO = pojo(
    f"{PACKAGE}FlinkKafkaProducer$NextTransactionalIdHint",
    {"lastParallelism": basic("Int"), "nextFreeTransactionalId": basic("Long")},
)
# A pending transaction: flags of it and of its id, id, producer id, epoch, time; one to commit; a pool of one id.
STATE = bytes.fromhex(
    "01 01 0003 742d31 0000000000000fa1 0002 00000185cc0bc07e"
    "00000001 01 0003 742d30 0000000000000fa0 0001 00000185cc0bb436"
    "01 00000001 0003 742d32"
)


def nested(producer: str, name: str) -> bytes:
    return versioned(f"{PACKAGE}{producer}${name}${name}Snapshot", 3, b"")


def state_serializer(producer: str = PRODUCERS[0]) -> tree.Serializer:
    parts = nested(producer, "TransactionStateSerializer"), nested(producer, "ContextStateSerializer")
    return read_nested(Reader(versioned(SINK, 3, composite(4, b"\1", *parts))))


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("TransactionStateSerializer", "KafkaTransactionState"),
        ("ContextStateSerializer", "KafkaTransactionContext"),
        ("NextTransactionalIdHintSerializer", "KafkaNextTransactionalIdHint"),
    ],
)
def test_snapshots_are_read_and_written_byte_for_byte(producer: str, name: str, kind: str) -> None:
    data = nested(producer, name)
    node = read_nested(Reader(data))
    assert isinstance(node, tree.Basic)
    assert node.kind == kind
    writer = Writer()
    write_nested(writer, node)
    assert writer.getvalue() == data


@pytest.mark.parametrize("producer", PRODUCERS)
def test_transactions_and_the_pool_of_ids_are_rows(producer: str) -> None:
    batch = decode_splits("state", state_serializer(producer), [STATE], CONTEXT)
    assert batch is not None
    utc = datetime.UTC
    head = {"connector": "legacy-kafka", "list_index": 0}
    assert batch.to_pylist() == [
        {
            **head,
            "role": "open",
            "transactional_id": "t-1",
            "producer_id": 4001,
            "epoch": 2,
            "started": datetime.datetime(2023, 1, 19, 22, 0, 0, 382000, utc),
        },
        {
            **head,
            "role": "to commit",
            "transactional_id": "t-0",
            "producer_id": 4000,
            "epoch": 1,
            "started": datetime.datetime(2023, 1, 19, 21, 59, 57, 238000, utc),
        },
        {**head, "role": "pool", "transactional_id": "t-2", "producer_id": None, "epoch": None, "started": None},
    ]


@pytest.mark.parametrize(
    ("serializer", "element"),
    [
        (HINT, bytes.fromhex("000000000000000f 00000003")),
        # A POJO has a flag in front of it and in front of each field.
        (HINT_POJO, bytes.fromhex("02 00 00000003 00 000000000000000f")),
    ],
)
def test_hints_are_rows_and_are_written_byte_for_byte(serializer: tree.Serializer, element: bytes) -> None:
    state = detect("next-transactional-id-hint-v2", serializer, [element], CONTEXT)
    assert isinstance(state, ConnectorState)
    assert state.rows == (({"next_free_transactional_id": 15, "last_parallelism": 3},),)
    assert encode_elements(state, serializer, CONTEXT) == (element,)


def test_a_negative_hint_is_none_of_kafka() -> None:
    assert detect("next-transactional-id-hint-v2", HINT, [b"\xff" * 12], CONTEXT) is None


def test_the_state_is_written_byte_for_byte() -> None:
    serializer = state_serializer()
    state = detect("state", serializer, [STATE], CONTEXT)
    assert isinstance(state, ConnectorState)
    assert encode_elements(state, serializer, CONTEXT) == (STATE,)


def test_a_state_without_transactions_has_no_rows() -> None:
    state = detect("state", state_serializer(), [bytes.fromhex("00 00000000 00")], CONTEXT)
    assert isinstance(state, ConnectorState)
    assert state.rows == ((),)


def test_columns_of_the_state_go_both_ways() -> None:
    columns = plan_columns(derive_layout(state_serializer(), CONTEXT))
    array = columns.decode(np.frombuffer(STATE, np.uint8), np.zeros(1, np.int64), np.array([len(STATE)])).array
    assert array[0].as_py()["pending"]["transaction"] == {"transactionalId": "t-1", "producerId": 4001, "epoch": 2}
    assert array[0].as_py()["context"] == {"transactionalIds": ["t-2"]}
    assert columns.encode(array).data.tobytes() == STATE
