"""State of real Flink, read through the states of functions, entry by entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.codecs.json import to_json
from state_pipelines.datastream import (
    AggregatingStateDescriptor,
    KeyedProcessOperator,
    ListStateDescriptor,
    ManualClock,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RestoredState,
    StateTtlConfig,
    TaskInfo,
    Time,
    Types,
    ValueStateDescriptor,
)
from state_pipelines.errors import IncompatibleError, UsageError
from state_pipelines.keyed.hashing.class_hashes import parse_hash_expression
from state_pipelines.serializers import tree
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import StateKind
from tests.datastream.operators import Script, Scripted
from tests.datastream.test_states import Add, Average
from tests.flink.harness import diff_entries
from tests.snapshots import CASES, Case, select

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.datastream import TypeInformation
    from state_pipelines.datastream.functions import StateDescriptor
    from state_pipelines.snapshot import Operator
    from state_pipelines.snapshot.keyed_state import KeyedState

HASHES = {"types.Place": parse_hash_expression("objects(region, number)")}
OPERATORS = ("few-states", "state-kinds", "ttl-states", "basic-types", "composite-types", "array-types")
IGNORED = ("subtask", "ttl_ts", "kg")
OWN = [case for case in CASES if case.name.startswith("types-")]
FINER = ("Sql", "Local", "Date")
"""Parts of names of types whose values in these snapshots are finer or larger than Python's."""

UNLISTED = "person-or-guest"
"""A state with objects of a class that the serializers of the heap backend do not list."""


class Kept(Average):
    """An aggregation whose result is its accumulator, so that a test sees it."""

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


def is_with_ttl(serializer: tree.Serializer) -> bool:
    return isinstance(serializer, tree.Ttl) or (isinstance(serializer, tree.TtlAware) and serializer.ttl_enabled)


def find_type(serializer: tree.Serializer) -> TypeInformation:
    while isinstance(serializer, (tree.Ttl, tree.TtlAware)):
        serializer = serializer.inner
    return Types.of(serializer, stored=any(each in describe(serializer) for each in FINER))


def describe_state(state: KeyedState) -> StateDescriptor:
    """The descriptor that the job in Java had."""
    info, value = state.info, state.info.value_serializer
    descriptor: StateDescriptor
    match info.state_type:
        case "LIST":
            value = info.element
            descriptor = ListStateDescriptor(info.name, find_type(value))
        case "MAP":
            assert isinstance(value, tree.MapOf)
            descriptor = MapStateDescriptor(info.name, value.key, find_type(value.value))
            value = value.value
        case "REDUCING":
            descriptor = ReducingStateDescriptor(info.name, Add(), find_type(value))
        case "AGGREGATING":
            descriptor = AggregatingStateDescriptor(info.name, Kept(), find_type(value))
        case _:
            of = Types.of(value, stored=True) if info.name == UNLISTED else find_type(value)
            descriptor = ValueStateDescriptor(info.name, of)
    if is_with_ttl(value):
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.days(100_000)).build())
    return descriptor


def read_all(operator: Operator) -> Iterator[dict[str, Any]]:
    """Entries of the keyed states and timers, as a function of two subtasks sees them."""
    described = [describe_state(state) for state in operator.keyed_states if state.kind != StateKind.TIMER]
    key_serializer = operator.keyed_files[0][1].header.key_serializer
    for index in range(2):
        function = Scripted(*described)
        runner = KeyedProcessOperator(
            function,
            lambda element: element[0],
            key_serializer,
            task=TaskInfo(index=index, parallelism=2),
            clock=ManualClock(1_800_000_000_000),
            layouts=operator.record_context.layouts,
            hashes={name: each for name, each in HASHES.items() if name in str(Types.of(key_serializer))},
        )
        runner.open(RestoredState.of(operator))
        with runner:
            for descriptor, state in zip(described, function.states, strict=True):
                yield from read_state(runner, descriptor, state, operator.label, key_serializer)


def read_state(
    runner: KeyedProcessOperator, descriptor: StateDescriptor, state: Any, op: str, key_serializer: tree.Serializer
) -> Iterator[dict[str, Any]]:
    of, keys = descriptor.type_info, Types.of(key_serializer)
    head = {"kind": "keyed", "op": op, "state": descriptor.name, "type": descriptor.state_type, "ns": None}
    is_map = isinstance(descriptor, MapStateDescriptor)
    for key in list(runner.backend.register(descriptor.make_info()).keys()):
        element = (keys.from_internal_type(key), lambda *_: [list(state.items()) if is_map else read_one(state)])
        (found,) = runner.process(element)
        line = {**head, "key": to_json(key_serializer, key)}
        if isinstance(descriptor, MapStateDescriptor):
            for name, value in found:
                name_json = to_json(
                    descriptor.type_info.key_type.serializer, descriptor.type_info.key_type.to_internal_type(name)
                )
                kind = descriptor.type_info.value_type
                value_json = None if value is None else to_json(kind.serializer, kind.to_internal_type(value))
                yield {**line, "ukey": name_json, "value": value_json}
        else:
            yield {**line, "value": to_json(of.serializer, of.to_internal_type(found))}


def read_one(state: Any) -> Any:
    return state.value() if hasattr(state, "value") else state.get()


@pytest.mark.slow
@pytest.mark.parametrize("case", OWN, ids=str)
def test_functions_see_the_state_that_flink_wrote(case: Case) -> None:
    snapshot = case.open_told()
    seen = 0
    for operator in snapshot.operators:
        if operator.label not in OPERATORS:
            continue
        expected = [each for each in case.entries() if each["kind"] == "keyed" and each["op"] == operator.label]
        difference = diff_entries(expected, read_all(operator), IGNORED)
        assert not difference, f"{operator.label}: {difference}"
        seen += len(expected)
    assert seen > 0 or case.drained or case.job in ("finished", "async")


@pytest.mark.parametrize("case", select("2.2", "heap") + select("1.20", "rocksdb-native"), ids=str)
def test_restored_timers_fire(case: Case) -> None:
    operator = case.open_told().operator("state-kinds")
    timers = [each for each in case.entries() if each["kind"] == "timer" and each["op"] == "state-kinds"]
    expected = sorted(each["ts"] for each in timers if each["domain"] == "event")
    key_type = operator.keyed_files[0][1].header.key_serializer
    fired: list[int] = []
    for index in range(3):
        script = Script(
            key_type=key_type,
            hashes=HASHES,
            task=TaskInfo(index=index, parallelism=3),
            restored=RestoredState.of(operator),
            layouts=operator.record_context.layouts,
            on_timer=lambda timestamp, ctx: [timestamp],
        )
        fired += script.operator.advance_watermark((1 << 63) - 1)
    assert sorted(fired) == expected
    assert expected


def test_state_that_is_not_registered_is_kept() -> None:
    operator = select("2.2", "heap")[0].open_told().operator("basic-types")
    key_type = operator.keyed_files[0][1].header.key_serializer
    script = Script(key_type=key_type, restored=RestoredState.of(operator))
    names = {state.name for state in operator.keyed_states}
    assert {info.name for info in script.operator.backend.states} == names


def test_restored_state_needs_its_max_parallelism() -> None:
    operator = select("2.2", "heap")[0].open_told().operator("basic-types")
    key_type = operator.keyed_files[0][1].header.key_serializer
    with pytest.raises(IncompatibleError, match="to new program with max parallelism 64"):
        Script(key_type=key_type, restored=RestoredState.of(operator), task=TaskInfo(max_parallelism=64))
    with pytest.raises(IncompatibleError, match="is lower than the configured parallelism"):
        Script(key_type=key_type, restored=RestoredState.of(operator), task=TaskInfo(parallelism=129))


def test_keys_with_a_hash_of_the_user_need_it() -> None:
    operator = select("2.2", "heap")[0].open_told().operator("state-kinds")
    key_type = operator.keyed_files[0][1].header.key_serializer
    with pytest.raises(UsageError, match=r"UNSUPPORTED key types: Pojo<types\.Place>"):
        Script(key_type=key_type, restored=RestoredState.of(operator))
