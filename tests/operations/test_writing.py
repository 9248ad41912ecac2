from __future__ import annotations

from dataclasses import replace

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.metadata import compute_operator_id
from state_pipelines.operations.write.state_write import NEW_METADATA_VERSION, StateDescription, plan_write
from state_pipelines.serializers.build import basic, list_of, map_of
from tests.snapshot.savepoints import orders

STRING, LONG = basic("String"), basic("Long")
NEW = StateDescription("totals", "total", "VALUE", key=STRING, value=LONG, parallelism=2)


def test_without_a_base_there_is_one_operator_with_one_state() -> None:
    plan = plan_write(None, NEW)
    assert plan.metadata.version == NEW_METADATA_VERSION
    assert plan.metadata.operator_states == (plan.operator,)
    assert plan.operator.operator_id == compute_operator_id("totals")
    assert (plan.operator.parallelism, plan.operator.max_parallelism) == (2, 128)
    assert [(subtask, file, position) for subtask, file, _, position in plan.files] == [(0, None, 0), (1, None, 0)]
    assert {header.states[0].name for _, _, header, _ in plan.files} == {"total"}


def test_the_max_parallelism_is_what_flink_would_choose() -> None:
    assert plan_write(None, replace(NEW, parallelism=200)).operator.max_parallelism == 512
    assert plan_write(None, replace(NEW, max_parallelism=1024)).operator.max_parallelism == 1024


def test_an_operator_may_be_given_by_its_id() -> None:
    operator_id = compute_operator_id("totals")
    assert plan_write(None, replace(NEW, operator=operator_id.hex())).operator.operator_id == operator_id


def test_a_state_of_the_base_keeps_its_place_and_serializers() -> None:
    base = orders().open()
    plan = plan_write(base, StateDescription("orders", "order"))
    assert plan.metadata == base.metadata
    for _, file, header, position in plan.files:
        assert file is not None
        assert header == file.header
        assert header.states[position].name == "order"


def test_a_new_state_stands_behind_those_of_the_base() -> None:
    plan = plan_write(orders().open(), StateDescription("orders", "amount", "VALUE", value=LONG))
    for _, file, header, position in plan.files:
        assert file is not None
        assert header.states[:position] == file.header.states
        assert [state.name for state in header.states[position:]] == ["amount"]


def test_a_state_of_the_base_may_get_another_serializer() -> None:
    plan = plan_write(orders().open(), StateDescription("orders", "order", value=LONG))
    assert {header.states[position].value_serializer for _, _, header, position in plan.files} == {LONG}


def test_an_operator_stands_beside_those_of_the_base() -> None:
    base = orders().open()
    plan = plan_write(base, NEW)
    assert plan.metadata.operator_states == (*base.metadata.operator_states, plan.operator)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (replace(NEW, key=None), "the serializer of the keys"),
        (replace(NEW, value=None), "the serializer of the value"),
        (replace(NEW, state_type=None), "the state type"),
        (replace(NEW, parallelism=None), "the parallelism"),
        (replace(NEW, state_type="VALUES"), "VALUES is not a type of keyed state"),
        (replace(NEW, state_type="MAP"), "MAP state needs a Map"),
        (replace(NEW, state_type="LIST"), "LIST state needs a List"),
        (replace(NEW, state_type="LIST", value=map_of(STRING, LONG)), "LIST state needs a List"),
        (replace(NEW, state_type="MAP", value=list_of(LONG)), "MAP state needs a Map"),
        (replace(NEW, parallelism=300, max_parallelism=128), "parallelism of 300"),
        (replace(NEW, max_parallelism=99_999), "99999"),
    ],
)
def test_what_is_missing_or_wrong_is_told(description: StateDescription, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan_write(None, description)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (StateDescription("orders", "order", parallelism=3), "parallelism 2 in the base, not 3"),
        (StateDescription("orders", "order", max_parallelism=64), "max parallelism 128 in the base, not 64"),
        (StateDescription("orders", "order", key=LONG), "keys are String in the base, not Long"),
        (StateDescription("orders", "amount"), "the state type"),
        (StateDescription("orders", "amount", "VALUE"), "the serializer of the value"),
        (StateDescription("order-counter", "counts"), "counts is operator state"),
        (StateDescription("orders", "_timer_state/event_user-timers", "VALUE", value=LONG), "is timers"),
        (StateDescription("totals", "total"), "the parallelism"),
    ],
)
def test_what_contradicts_the_base_is_told(description: StateDescription, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan_write(orders().open(), description)
