from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.connectors import (
    AmbiguousState,
    ConnectorState,
    CoordinatorState,
    decode_splits,
    detect,
    encode_elements,
    read_coordinator,
    registry,
    versioned_state,
    write_coordinator,
)
from state_pipelines.connectors.kafka import KafkaCommittable, TwoPhaseCommitState, write_kafka_committable
from state_pipelines.connectors.registry import ConnectorStateKind, Versioned
from state_pipelines.connectors.sinks import (
    CheckpointCommittables,
    CommitRequest,
    Committables,
    SubtaskCommittables,
)
from state_pipelines.errors import UnsupportedError, UsageError
from state_pipelines.serializers import tree
from state_pipelines.serializers.build import basic
from state_pipelines.snapshot import open_snapshot
from state_pipelines.snapshot.operator_state import OperatorListState
from tests.connectors.test_kafka import ENUMERATORS, SPLIT
from tests.connectors.vectors import BYTES, element, i64, versioned
from tests.serializers.literals import i32

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KAFKA = element(0, SPLIT)


def test_splits_of_kafka_are_detected() -> None:
    state = detect("SourceReaderState", BYTES, [KAFKA, KAFKA])
    assert isinstance(state, ConnectorState)
    assert (state.connector, state.kind, len(state.values)) == ("kafka", "split", 2)


def test_splits_become_a_table() -> None:
    batch = decode_splits("SourceReaderState", BYTES, [KAFKA])
    assert batch is not None
    assert batch.to_pylist() == [
        {
            "connector": "kafka",
            "list_index": 0,
            "topic": "orders",
            "partition": 3,
            "offset": 42,
            "offset_word": None,
            "stopping_offset": None,
            "stopping_word": "none",
        }
    ]


def test_one_element_that_does_not_fit_is_enough_to_say_no() -> None:
    assert detect("SourceReaderState", BYTES, [KAFKA, element(0, SPLIT + b"\0")]) is None


def test_a_state_of_another_name_is_not_looked_at() -> None:
    assert detect("my-state", BYTES, [KAFKA]) is None


def test_a_state_of_another_serializer_is_not_looked_at() -> None:
    assert detect("SourceReaderState", basic("String"), [KAFKA]) is None


def test_no_elements_say_nothing() -> None:
    assert detect("SourceReaderState", BYTES, []) is None


def test_bytes_behind_the_array_belong_to_elements_that_the_handle_leaves_out() -> None:
    assert isinstance(detect("SourceReaderState", BYTES, [KAFKA + b"more"]), ConnectorState)


@pytest.fixture
def shop() -> Iterator[None]:
    """A connector whose splits are bytes of any kind."""
    columns = pa.schema([("size", pa.int32())])
    versioned_state(
        "shop",
        kind="split",
        operator_state_names=["SourceReaderState"],
        write=lambda value: value,
        rows=lambda value: [{"size": len(value.data)}],
        columns=columns,
    )(lambda value: value)
    yield
    del registry._codecs["shop", ConnectorStateKind.SPLIT]


@pytest.mark.usefixtures("shop")
def test_a_connector_of_ones_own_is_detected() -> None:
    batch = decode_splits("SourceReaderState", BYTES, [element(9, b"abc")])
    assert batch is not None
    assert batch.to_pylist() == [{"connector": "shop", "list_index": 0, "size": 3}]


@pytest.mark.usefixtures("shop")
def test_two_connectors_that_fit_are_both_named() -> None:
    state = detect("SourceReaderState", BYTES, [KAFKA])
    assert isinstance(state, AmbiguousState)
    assert state.connectors == ("kafka", "shop")


@pytest.mark.usefixtures("shop")
def test_a_table_is_not_guessed() -> None:
    with pytest.raises(UnsupportedError, match="that of kafka and shop"):
        decode_splits("SourceReaderState", BYTES, [KAFKA])


def test_a_kind_of_state_is_registered_once() -> None:
    register = versioned_state(
        "kafka",
        kind="split",
        operator_state_names=["SourceReaderState"],
        write=lambda value: value,
        rows=lambda value: [],
        columns=pa.schema([]),
    )
    with pytest.raises(UsageError, match="registered already"):
        register(lambda value: value)


def test_state_of_an_unknown_connector_cannot_be_written() -> None:
    with pytest.raises(UsageError, match="no connector undefined"):
        encode_elements(ConnectorState("undefined", ConnectorStateKind.SPLIT, (), (), pa.schema([])), BYTES)


@pytest.mark.parametrize("version", [0, 1])
def test_the_coordinator_of_a_kafka_source_is_detected(version: int) -> None:
    data, value = ENUMERATORS[2]
    rest = b"" if version else b"split assignments"
    raw = i32(version) + versioned(2, data) + rest
    coordinator = read_coordinator(raw)
    assert isinstance(coordinator.state, ConnectorState)
    assert (coordinator.state.connector, coordinator.state.values) == ("kafka", (value,))
    assert coordinator.rest == rest
    assert write_coordinator(coordinator) == raw


def test_the_coordinator_of_an_unknown_source_has_sizes() -> None:
    coordinator = read_coordinator(i32(1) + versioned(77, b"unknown"))
    assert coordinator == CoordinatorState(19, 1, Versioned(77, b"unknown"))


@pytest.mark.parametrize("data", [b"", b"something else altogether", i32(1) + versioned(1, b"a") + b"left over"])
def test_the_coordinator_of_another_operator_has_its_size_only(data: bytes) -> None:
    assert read_coordinator(data) == CoordinatorState(len(data))


def test_only_source_coordinators_can_be_put_together() -> None:
    with pytest.raises(UsageError, match="source coordinator"):
        write_coordinator(CoordinatorState(3))


COMMITTABLE = KafkaCommittable("tx-1-7", 1000, 5)
COMMITTER_MAGIC = bytes.fromhex("b91f252c")


def committer(data: bytes, version: int = 2) -> ConnectorState:
    state = detect("streaming_committer_raw_states", BYTES, [element(version, COMMITTER_MAGIC + data)])
    assert isinstance(state, ConnectorState)
    return state


def frame(data: bytes) -> bytes:
    return i32(len(data)) + data


def requests(committable: bytes) -> bytes:
    return i32(0) + i32(1) + frame(committable + i32(2) + i32(1))


def test_committables_of_kafka_are_detected() -> None:
    raw = write_kafka_committable(COMMITTABLE)
    subtask = requests(versioned(1, raw.data)) + i32(3) + i32(1) + i32(0)
    data = i32(0) + i32(1) + frame(i64(7) + i32(0) + i32(1) + frame(subtask))
    state = committer(data)
    request = CommitRequest(COMMITTABLE, 2, "RETRY")
    expected = CheckpointCommittables(7, (SubtaskCommittables((request,), 3, 1, 0, None),), 0)
    assert (state.connector, state.values) == ("kafka", (Committables((expected,), 0),))
    assert encode_elements(state, BYTES) == (element(2, COMMITTER_MAGIC + data),)


def test_committables_of_1_14_have_no_checkpoint() -> None:
    data = i32(1) + i32(1) + frame(write_kafka_committable(COMMITTABLE).data)
    state = committer(data, 1)
    assert state.values == (Committables(plain=(COMMITTABLE,), plain_version=1),)
    assert state.to_batch().column("transactional_id").to_pylist() == ["tx-1-7"]
    assert encode_elements(state, BYTES) == (element(1, COMMITTER_MAGIC + data),)


def test_committables_of_an_unknown_sink_are_counted() -> None:
    subtask = i32(3) + requests(versioned(8, b"opaque")) + i32(1) + i32(0)
    state = committer(i32(1) + i32(1) + frame(i64(7) + i32(4) + i32(2) + i32(1) + frame(subtask)))
    (row,) = state.to_batch().to_pylist()
    assert (row["connector"], row["checkpoint_id"], row["subtask"]) == ("unknown sink", 7, 3)
    assert (row["committable_version"], row["committable"]) == (8, b"opaque")


def test_transactions_of_a_two_phase_commit_sink_are_listed() -> None:
    serializer = tree.Variants(
        snapshot_class="",
        kind=tree.VariantKind.TWO_PHASE_COMMIT,
        serializers=(basic("String"), basic("Void")),
        flag=True,
    )
    data = bytes.fromhex("01 037478 0000018bcfe56800 00000001 037479 0000018bcfe56801 00")
    state = detect("state", serializer, [data])
    assert isinstance(state, ConnectorState)
    rows = [(row["role"], row["transaction"]) for row in state.to_batch().to_pylist()]
    assert rows == [("open", '"tx"'), ("to commit", '"ty"')]
    assert encode_elements(state, serializer) == (data,)
    assert isinstance(state.values[0], TwoPhaseCommitState)


def test_a_source_of_ones_own_is_not_taken_for_a_known_one(fixtures: Path) -> None:
    case = fixtures / "made" / "2.2.1" / "main-rocksdb-canonical"
    (metadata,) = case.glob("savepoint-*/_metadata")
    state = open_snapshot(str(metadata.parent)).operator("src-events").state("SourceReaderState")
    assert isinstance(state, OperatorListState)
    elements = []
    for subtask_state in state.subtask_states:
        data, starts, ends = subtask_state.elements()
        elements += [data[start:end].tobytes() for start, end in zip(starts, ends, strict=True)]
    assert elements
    assert detect(state.name, state.serializer, elements, LayoutContext()) is None


def test_an_enumerator_without_content_is_ambiguous(fixtures: Path) -> None:
    (metadata,) = (fixtures / "made" / "2.2.1" / "main-rocksdb-canonical").glob("savepoint-*/_metadata")
    stored = open_snapshot(str(metadata.parent)).operator("src-events").metadata.coordinator_state
    assert stored is not None
    coordinator = read_coordinator(stored.data)
    assert (coordinator.version, coordinator.enumerator) == (1, Versioned(1, bytes(4)))
    assert isinstance(coordinator.state, AmbiguousState)
    assert coordinator.state.connectors == ("kafka", "number-sequence")
