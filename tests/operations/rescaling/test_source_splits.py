"""More subtasks of a source than it has splits: refused where it was named, noted where all operators were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.connectors import AmbiguousState, read_coordinator
from state_pipelines.connectors.kafka import KafkaAssignment, KafkaEnumerator, KafkaSplit, write_kafka_enumerator
from state_pipelines.errors import UnsupportedError
from state_pipelines.operations.dump import dump
from state_pipelines.operations.inspect import inspect
from state_pipelines.operations.rescale import parse_request, plan_rescale
from state_pipelines.operations.rescale.rescale import count_splits
from state_pipelines.storage import resolve
from tests.connectors.vectors import versioned
from tests.serializers.literals import i32
from tests.snapshot.built import build_snapshot, list_operator
from tests.snapshot.test_connector_columns import encode

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.snapshot import Snapshot

SPLITS = [KafkaSplit("orders", number, 17) for number in range(4)]
STATUSES = ("assigned", "assigned", "unassigned", "tombstoned")


@pytest.fixture
def source(tmp_path: Path) -> Snapshot:
    """Two partitions that readers have, one that waits at the enumerator, one that was removed."""
    assignments = tuple(KafkaAssignment(split, status) for split, status in zip(SPLITS, STATUSES, strict=True))
    enumerator = write_kafka_enumerator(KafkaEnumerator(3, assignments))
    read = encode("kafka", *SPLITS[:2])
    operator = list_operator(
        "source", "SourceReaderState", read[:1], read[1:], coordinator=i32(1) + versioned(3, enumerator.data)
    )
    other = list_operator("other", "elements", [b"\0\0\0\3abc"])
    return build_snapshot(tmp_path, operator, other, uids=["source", "other"])


def plan(snapshot: Snapshot, **content: Any) -> tuple[str, ...]:
    return plan_rescale(snapshot, resolve("new"), parse_request(content)).notes


def test_splits_of_readers_and_those_that_wait_are_known(source: Snapshot) -> None:
    assert [count_splits(each) for each in source.operators] == [3, None]


def test_a_named_source_gets_no_more_subtasks_than_splits(source: Snapshot) -> None:
    assert plan(source, operators={"source": {"parallelism": 3}}) == ()
    with pytest.raises(UnsupportedError, match="the source knows 3 splits, so that of its 5 subtasks 2") as caught:
        plan(source, operators={"source": {"parallelism": 5}})
    assert "--allow-idle-sources" in caught.value.hint


def test_idle_subtasks_are_permitted(source: Snapshot) -> None:
    assert plan(source, operators={"source": {"parallelism": 5}}, allow_idle_sources=True) == ()


def test_with_all_operators_it_is_a_note(source: Snapshot) -> None:
    (note,) = plan(source, parallelism=5)
    assert note.startswith("operator source: the source knows 3 splits, so that of its 5 subtasks 2 would have nothing")


def test_operators_without_splits_are_not_asked(source: Snapshot) -> None:
    assert plan(source, operators={"other": {"parallelism": 100}}) == ()


def test_more_subtasks_than_splits_of_an_unknown_connector_are_noted(tmp_path: Path) -> None:
    splits = [[bytes([0, 0, 0, 9, 0, 0, 0, 1, number])] for number in range(2)]
    operator = list_operator("order-source", "SourceReaderState", *splits, coordinator=i32(1) + versioned(9, b"any"))
    snapshot = build_snapshot(tmp_path, operator, uids=["order-source"])
    note = next(each for each in plan(snapshot, operators={"order-source": {"parallelism": 9}}) if "split" in each)
    assert note.startswith(
        "operator order-source: the readers of the source have 2 splits, so that of its 9 subtasks 7 have nothing to "
        "read unless its enumerator"
    )
    assert "split" not in str(plan(snapshot, operators={"order-source": {"parallelism": 2}}))


def test_the_splits_of_the_readers_tell_whose_enumerator_it_is(tmp_path: Path) -> None:
    split = read_split(4, 20)
    empty = i32(1) + versioned(1, i32(0))
    assert isinstance(read_coordinator(empty).state, AmbiguousState)
    snapshot = build_snapshot(tmp_path, list_operator("numbers", "SourceReaderState", [split], coordinator=empty))
    (found,) = inspect(snapshot).operators
    assert found.coordinator is not None
    assert found.coordinator.connector is not None
    assert (found.coordinator.connector.connector, found.coordinator.connector.summary) == (
        "number-sequence",
        "0 splits known",
    )


def test_dump_shows_splits_as_inspect_does(tmp_path: Path) -> None:
    snapshot = build_snapshot(tmp_path, list_operator("numbers", "SourceReaderState", [read_split(4, 20)]))
    (split,), (raw,) = (list(dump(snapshot, splits=splits)) for splits in (True, False))
    assert split["value"] == {"@connector": "number-sequence", "splits": [{"split_id": "1", "from": 4, "to": 20}]}
    assert raw["value"] == {"@bytes": read_split(4, 20)[4:].hex()}
    assert split | {"value": None} == raw | {"value": None}


def read_split(first: int, last: int) -> bytes:
    """An element with a split of numbers, as its reader writes it."""
    element = versioned(1, b"\0\1" + b"1" + first.to_bytes(8, "big") + last.to_bytes(8, "big"))
    return i32(len(element)) + element
