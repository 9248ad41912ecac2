from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from state_pipelines.connectors import ConnectorState, encode_elements, registry, versioned_state
from state_pipelines.connectors.kafka import KafkaCommittable, KafkaSplit, write_kafka_committable
from state_pipelines.connectors.message_queues import KinesisSplit
from state_pipelines.connectors.registry import ConnectorStateKind
from state_pipelines.errors import UsageError
from state_pipelines.keyed.state_table import TableOptions
from state_pipelines.serializers.build import basic
from state_pipelines.snapshot.declarations import parse_connectors
from state_pipelines.snapshot.operator_state import OperatorListState
from tests.connectors.test_kinesis import ARN, SHARD
from tests.connectors.vectors import BYTES, element, i64, versioned
from tests.serializers.literals import i32
from tests.snapshot.built import build_snapshot, list_operator
from tests.snapshot.test_operator_state import split_rows
from tests.snapshots import select

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

SPLITS = [KafkaSplit("orders", 0, 17), KafkaSplit("orders", 1, -2), KafkaSplit("prices", 0, 5, 99)]
COMMITTER = "streaming_committer_raw_states"


def encode(connector: str, *values: object) -> tuple[bytes, ...]:
    kind = ConnectorStateKind.SPLIT
    (columns,) = [each.columns for each in registry.list_codecs(kind) if each.connector == connector]
    return encode_elements(ConnectorState(connector, kind, values, (), columns), BYTES)


def committables(*checkpoints: Sequence[KafkaCommittable]) -> bytes:
    """The one element of a committer of Kafka's sink: committables of checkpoint 0, 1 …"""

    def frame(data: bytes) -> bytes:
        return i32(len(data)) + data

    def requests(each: Sequence[KafkaCommittable]) -> bytes:
        found = [versioned(1, write_kafka_committable(one).data) + i32(0) + i32(0) for one in each]
        return i32(0) + i32(len(found)) + b"".join(map(frame, found)) + i32(len(found)) + i32(0) + i32(0)

    parts = [i64(number) + i32(0) + i32(1) + frame(requests(each)) for number, each in enumerate(checkpoints)]
    data = i32(0) + i32(len(parts)) + b"".join(map(frame, parts))
    return element(2, bytes.fromhex("b91f252c") + data)


def open_list(
    directory: Path, name: str, *elements: Sequence[bytes], connectors: Mapping[str, str] | None = None
) -> OperatorListState:
    snapshot = build_snapshot(
        directory, list_operator("source", name, *elements), uids=["source"], connectors=connectors
    )
    state = snapshot.operator("source").state(name)
    assert isinstance(state, OperatorListState)
    return state


def test_splits_of_kafka_stand_beside_their_bytes(tmp_path: Path) -> None:
    stored = encode("kafka", *SPLITS)
    table = open_list(tmp_path, "SourceReaderState", stored[:2], stored[2:]).to_arrow()
    assert table.schema.names == ["subtask", "list_index", "value", "connector", "split"]
    assert [row["value"] for row in table.to_pylist()] == [each[4:] for each in stored]
    assert [
        (row["subtask"], row["list_index"], row["connector"], row["split"]["topic"], row["split"]["offset"])
        for row in table.to_pylist()
    ] == [(0, 0, "kafka", "orders", 17), (0, 1, "kafka", "orders", None), (1, 0, "kafka", "prices", 5)]


def test_subtasks_can_be_read_elsewhere_one_by_one(tmp_path: Path) -> None:
    stored = encode("kafka", *SPLITS)
    state = open_list(tmp_path, "SourceReaderState", stored[:2], [], stored[2:])
    assert split_rows(state) == state.to_arrow().to_pylist()


def test_splits_of_kinesis_are_columns(tmp_path: Path) -> None:
    stored = encode("kinesis", KinesisSplit(0, ARN, SHARD, "AFTER_SEQUENCE_NUMBER", "4959"))
    (row,) = open_list(tmp_path, "SourceReaderState", stored).to_arrow().to_pylist()
    assert (row["connector"], row["split"]["shard_id"], row["split"]["sequence_number"]) == ("kinesis", SHARD, "4959")


def test_an_element_of_several_committables_has_a_row_for_each_and_its_bytes_once(tmp_path: Path) -> None:
    stored = committables(
        [KafkaCommittable("tx-0", 1, 0), KafkaCommittable("tx-1", 2, 0)], [KafkaCommittable("tx-2", 3, 0)]
    )
    rows = open_list(tmp_path, COMMITTER, [stored]).to_arrow().to_pylist()
    assert [(row["list_index"], row["split"]["checkpoint_id"], row["split"]["transactional_id"]) for row in rows] == [
        (0, 0, "tx-0"),
        (0, 0, "tx-1"),
        (0, 1, "tx-2"),
    ]
    assert [row["value"] for row in rows] == [stored[4:], None, None]


def test_an_element_without_committables_keeps_its_row(tmp_path: Path) -> None:
    stored = [committables([KafkaCommittable("tx-0", 1, 0)]), committables()]
    rows = open_list(tmp_path, COMMITTER, stored).to_arrow().to_pylist()
    assert [(row["list_index"], row["split"] is None, row["value"]) for row in rows] == [
        (0, False, stored[0][4:]),
        (1, True, stored[1][4:]),
    ]


def test_raw_bytes_have_no_columns_of_a_connector(tmp_path: Path) -> None:
    stored = encode("kafka", *SPLITS)
    table = open_list(tmp_path, "SourceReaderState", stored).to_arrow(TableOptions(raw=True))
    assert table.schema.names == ["subtask", "list_index", "value_bytes"]
    assert table["value_bytes"].to_pylist() == list(stored)


@pytest.mark.parametrize("columns", [("split",), ("list_index", "connector"), ("value",), ("split", "value_bytes")])
def test_columns_choose(tmp_path: Path, columns: tuple[str, ...]) -> None:
    state = open_list(tmp_path, "SourceReaderState", encode("kafka", *SPLITS))
    assert state.to_arrow(TableOptions(columns=columns)).equals(
        state.to_arrow(
            TableOptions(columns=("subtask", "list_index", "value", "value_bytes", "connector", "split"))
        ).select(columns)
    )


def test_elements_are_not_looked_at_for_other_columns(tmp_path: Path) -> None:
    state = open_list(tmp_path, "SourceReaderState", encode("kafka", *SPLITS))
    state.to_arrow(TableOptions(columns=("value",)))
    state.to_arrow(TableOptions(raw=True))
    assert "detected" not in vars(state)


def test_the_schema_is_that_of_the_rows(tmp_path: Path) -> None:
    state = open_list(tmp_path, "SourceReaderState", encode("kafka", *SPLITS))
    table = state.to_arrow()
    table.validate(full=True)
    assert state.schema == table.schema


def test_state_of_nobody_known_stays_plain(tmp_path: Path) -> None:
    table = open_list(tmp_path, "SourceReaderState", [element(9, b"abc")]).to_arrow()
    assert table.schema.names == ["subtask", "list_index", "value"]


def test_state_that_subtasks_hold_with_different_serializers_stays_plain(tmp_path: Path) -> None:
    state = open_list(tmp_path, "SourceReaderState", encode("kafka", *SPLITS))
    other = list_operator("source", "SourceReaderState", [b"\2a"], serializer=basic("String"))
    (tmp_path / "other").mkdir()
    mixed = build_snapshot(tmp_path / "other", other, uids=["source"]).operator("source").state("SourceReaderState")
    assert isinstance(mixed, OperatorListState)
    both = OperatorListState(state.operator, (*state.subtask_states, *mixed.subtask_states))
    assert both.to_arrow().schema.names == ["subtask", "list_index", "value_bytes", "reason"]


@pytest.fixture
def shop() -> Iterator[None]:
    """A connector that takes every split for its own."""
    versioned_state(
        "shop",
        kind="split",
        operator_state_names=["SourceReaderState"],
        write=lambda value: value,
        rows=lambda value: [{"size": len(value.data)}],
        columns=pa.schema([("size", pa.int32())]),
    )(lambda value: value)
    yield
    del registry._codecs["shop", ConnectorStateKind.SPLIT]


@pytest.mark.usefixtures("shop")
def test_ambiguous_state_stays_plain_and_says_why(tmp_path: Path) -> None:
    state = open_list(tmp_path, "SourceReaderState", encode("kafka", *SPLITS))
    assert state.to_arrow().schema.names == ["subtask", "list_index", "value"]
    assert state.detected.candidates == ("kafka", "shop")
    assert state.detected.ambiguity.startswith("could be the state of kafka and shop")


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("connector", ["kafka", "shop"])
def test_the_caller_decides_what_is_ambiguous(tmp_path: Path, connector: str) -> None:
    stored = encode("kafka", *SPLITS)
    state = open_list(tmp_path, "SourceReaderState", stored, connectors={"source": connector})
    assert set(state.to_arrow()["connector"].to_pylist()) == {connector}


@pytest.mark.usefixtures("shop")
def test_a_connector_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    stored = encode("kafka", *SPLITS)
    state = open_list(tmp_path, "SourceReaderState", stored, connectors={"source": "kinesis"})
    with pytest.raises(UsageError, match="connector kinesis cannot have written") as raised:
        state.to_arrow()
    assert raised.value.hint == "Declare kafka or shop"


def test_connectors_are_named_by_operator() -> None:
    assert parse_connectors(["orders=kafka", "a=file"]) == {"orders": "kafka", "a": "file"}


@pytest.mark.parametrize("text", ["orders", "=kafka", "orders="])
def test_a_connector_needs_operator_and_name(text: str) -> None:
    with pytest.raises(UsageError, match="OPERATOR=NAME"):
        parse_connectors([text])


def test_sources_of_ones_own_by_real_flink_stay_plain() -> None:
    (case,) = select("2.2.1", "unaligned")
    state = case.open().operator("numbers").state("SourceReaderState")
    assert state.to_arrow().schema.names == ["subtask", "list_index", "value"]
