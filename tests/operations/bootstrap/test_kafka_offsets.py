from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from state_pipelines.connectors.registry import ConnectorState, read_coordinator
from state_pipelines.errors import StateError, UsageError
from state_pipelines.operations.bootstrap.bootstrap import (
    assign_splits,
    make_coordinator,
    read_offsets,
    require_splits,
)


def offsets(**columns: Any) -> pa.Table:
    return pa.table({"topic": ["orders", "orders"], "partition": [0, 1], "offset": [7, -2]} | columns)


def test_splits_go_to_the_readers_that_the_enumerator_would_choose() -> None:
    # "orders".hashCode() is -1008770331; times 31, without the sign, modulo 3 is 1.
    rows = assign_splits(read_offsets(offsets()), 3)
    start = (-1008770331 * 31 & 0x7FFFFFFF) % 3
    expected = sorted([start, (start + 1) % 3])
    assert rows.column("subtask").to_pylist() == expected


def test_the_coordinator_knows_every_partition_as_assigned() -> None:
    state = read_coordinator(make_coordinator(read_offsets(offsets()))).state
    assert isinstance(state, ConnectorState)
    assert state.connector == "kafka"
    assert [(row["partition"], row["status"]) for rows in state.rows for row in rows] == [
        (0, "assigned"),
        (1, "assigned"),
    ]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"partition": [1, 1]}, "several offsets for partition 1 of topic orders"),
        ({"partition": [0, -1]}, "there is no partition -1"),
        ({"partition": [0, None]}, "there is no partition None"),
        ({"topic": ["orders", None]}, "of topic None"),
        ({"offset": [7, None]}, "None is no offset"),
        ({"offset": [7, -9]}, "-9 is no offset"),
        ({"offset": [7, 2.5]}, r"double does not fit int64.*at offset"),
        ({"offset": ["7", "8"]}, r"string does not fit int64.*at offset"),
        ({"offset": [True, False]}, r"bool does not fit int64.*at offset"),
        ({"partition": [0, 1 << 40]}, r"int64 does not fit int32.*at partition"),
        ({"topic": [1, 2]}, "the column topic is int64, not text"),
    ],
)
def test_wrong_offsets_are_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(StateError, match=message):
        read_offsets(offsets(**columns))


def test_whole_numbers_of_any_width_are_offsets() -> None:
    given = offsets(
        topic=pa.array(["a", "a"]).dictionary_encode(), partition=pa.array([0, 1], pa.int64()), offset=[7.0, 9.0]
    )
    assert [(each.topic, each.partition, each.starting_offset) for each in read_offsets(given)] == [
        ("a", 0, 7),
        ("a", 1, 9),
    ]


def test_no_offsets_are_refused() -> None:
    with pytest.raises(StateError, match="there are no offsets"):
        read_offsets(offsets().slice(2))
    with pytest.raises(StateError, match="no column offset"):
        read_offsets(offsets().drop_columns(["offset"]))


def test_a_source_with_more_subtasks_than_partitions_is_refused() -> None:
    splits = read_offsets(pa.table({"topic": ["orders"] * 3, "partition": [0, 1, 2], "offset": [5, 6, -2]}))
    require_splits(splits, 3)
    with pytest.raises(UsageError, match=r"knows 3 partitions, so that of its 5 subtasks 2 would have nothing to read"):
        require_splits(splits, 5)
