from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.metadata import compute_operator_id
from state_pipelines.operations.write.savepoint_plan import (
    NEW_METADATA_VERSION,
    OperatorWriting,
    SavepointPlan,
    make_layouts,
    plan_savepoint,
)
from state_pipelines.serializers.build import basic, list_of, map_of
from state_pipelines.serializers.tree import Kryo
from tests.operations.one_state import OneState
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from state_pipelines.snapshot import Snapshot

STRING, LONG = basic("String"), basic("Long")
NEW = OneState("totals", "total", "VALUE", key=STRING, value=LONG, parallelism=2)


def plan_one(base: Snapshot | None, state: OneState) -> tuple[SavepointPlan, OperatorWriting]:
    """The plan, and what it says of the one operator."""
    plan = plan_savepoint(base, [state.description])
    (writing,) = plan.operators
    return plan, writing


def test_without_a_base_there_is_one_operator_with_one_state() -> None:
    plan, writing = plan_one(None, NEW)
    assert plan.metadata.version == NEW_METADATA_VERSION
    assert plan.metadata.operator_states == (writing.metadata,)
    assert writing.metadata.operator_id == compute_operator_id("totals")
    assert (writing.metadata.parallelism, writing.metadata.max_parallelism) == (2, 128)
    assert [(subtask, file) for subtask, file, _ in writing.files] == [(0, None), (1, None)]
    assert {tuple(info.name for info in header.states) for _, _, header in writing.files} == {("total",)}


def test_new_values_of_kryo_are_those_of_the_release_that_the_metadata_says() -> None:
    state = replace(NEW, value=Kryo(type_class="com.acme.Point"))
    for layouts, version, kryo in ((None, 5, 5), (make_layouts(flink_version="1.20"), NEW_METADATA_VERSION, 2)):
        plan = plan_savepoint(None, [state.description], layouts=layouts)
        assert plan.metadata.version == version
        (writing,) = plan.operators
        assert kryo == plan.context.kryo_version == writing.context.layouts.kryo_version


def test_the_max_parallelism_is_what_flink_would_choose() -> None:
    assert plan_one(None, replace(NEW, parallelism=200))[1].metadata.max_parallelism == 512
    assert plan_one(None, replace(NEW, max_parallelism=1024))[1].metadata.max_parallelism == 1024


def test_an_operator_may_be_given_by_its_id() -> None:
    operator_id = compute_operator_id("totals")
    assert plan_one(None, replace(NEW, operator=operator_id.hex()))[1].metadata.operator_id == operator_id


def test_a_state_of_the_base_keeps_its_place_and_serializers() -> None:
    base = orders().open()
    plan, writing = plan_one(base, OneState("orders", "order"))
    assert plan.metadata == base.metadata
    for _, file, header in writing.files:
        assert file is not None
        assert header == file.header


def test_a_new_state_stands_behind_those_of_the_base() -> None:
    _, writing = plan_one(orders().open(), OneState("orders", "amount", "VALUE", value=LONG))
    for _, file, header in writing.files:
        assert file is not None
        assert header.states[:-1] == file.header.states
        assert header.states[-1].name == "amount"


def test_a_state_of_the_base_may_get_another_serializer() -> None:
    _, writing = plan_one(orders().open(), OneState("orders", "order", value=LONG))
    states = [info for _, _, header in writing.files for info in header.states if info.name == "order"]
    assert {info.value_serializer for info in states} == {LONG}


def test_an_operator_stands_beside_those_of_the_base() -> None:
    base = orders().open()
    plan, writing = plan_one(base, NEW)
    assert plan.metadata.operator_states == (*base.metadata.operator_states, writing.metadata)


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
def test_what_is_missing_or_wrong_is_told(description: OneState, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan_one(None, description)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (OneState("orders", "order", parallelism=3), "parallelism 2 in the base, not 3"),
        (OneState("orders", "order", max_parallelism=64), "max parallelism 128 in the base, not 64"),
        (OneState("orders", "order", key=LONG), "keys are String in the base, not Long"),
        (OneState("orders", "amount"), "the state type"),
        (OneState("orders", "amount", "VALUE"), "the serializer of the value"),
        (OneState("order-counter", "counts"), "counts is operator state"),
        (OneState("orders", "_timer_state/event_user-timers", "VALUE", value=LONG), "is timers in the base"),
        (OneState("totals", "total"), "the parallelism"),
    ],
)
def test_what_contradicts_the_base_is_told(description: OneState, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan_one(orders().open(), description)
