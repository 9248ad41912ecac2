from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from state_pipelines.errors import UnsupportedError
from state_pipelines.keyed.canonical import CanonicalFile
from state_pipelines.serializers.build import basic
from state_pipelines.serializers.state_meta_info import VALUE_SERIALIZER
from state_pipelines.snapshot import open_snapshot
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.snapshot.operator_state import OperatorBroadcastState

(ORDERS,) = (Path(__file__).parents[2] / "examples/orders/savepoints/flink-2.2").glob("savepoint-*")


def test_subtasks_that_hold_keyed_state_with_different_serializers_are_told() -> None:
    # The window aggregate of one subtask is said to be a Long, as if a schema change had reached only that one.
    state = open_snapshot(str(ORDERS)).operator("revenue-per-minute").state("window-contents")
    assert isinstance(state, KeyedState)
    first, second = state.subtask_states
    assert isinstance(second.file, CanonicalFile)
    info = second.file.header.states[second.state_id]
    other = replace(
        info,
        serializers=tuple((key, basic("Long") if key == VALUE_SERIALIZER else each) for key, each in info.serializers),
    )
    states = tuple(other if each is info else each for each in second.file.header.states)
    changed = replace(second, file=replace(second.file, header=replace(second.file.header, states=states)))
    with pytest.raises(UnsupportedError, match="subtasks 0 and 1 hold the state with different serializers"):
        _ = KeyedState(state.operator, (first, changed)).layout


def test_broadcast_state_with_different_serializers_comes_as_bytes() -> None:
    state = open_snapshot(str(ORDERS)).operator("pricing").state("prices")
    assert isinstance(state, OperatorBroadcastState)
    first, second = state.subtask_states
    serializers = tuple(
        (key, basic("Long") if key == VALUE_SERIALIZER else each) for key, each in second.info.serializers
    )
    mixed = OperatorBroadcastState(
        state.operator, (first, replace(second, info=replace(second.info, serializers=serializers)))
    )
    assert mixed.undecoded == "the subtasks hold the state with different serializers"
    assert mixed.to_arrow().schema.names == ["subtask", "value_bytes", "reason"]
