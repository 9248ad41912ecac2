from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from state_pipelines.datastream import (
    AggregateFunction,
    AggregatingStateDescriptor,
    KeyedProcessOperator,
    ListStateDescriptor,
    MapStateDescriptor,
    ReduceFunction,
    ReducingStateDescriptor,
    Row,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
)
from state_pipelines.datastream.flink_types import check_key_type
from state_pipelines.errors import UsageError, ValueRangeError
from state_pipelines.serializers import tree
from state_pipelines.serializers.text import describe
from tests.datastream.operators import Script, Scripted

PERSON = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()])


class Add(ReduceFunction):
    def reduce(self, value1: int, value2: int) -> int:
        return value1 + value2


class Average(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: tuple[int, int], acc_b: tuple[int, int]) -> tuple[int, int]:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


VALUE = ValueStateDescriptor("value", Types.LONG())
LIST = ListStateDescriptor("list", Types.LONG())
MAP = MapStateDescriptor("map", Types.STRING(), Types.STRING())
REDUCING = ReducingStateDescriptor("sum", Add(), Types.LONG())
AGGREGATING = AggregatingStateDescriptor("average", Average(), Types.TUPLE([Types.LONG(), Types.LONG()]))


def test_a_value_is_kept_per_key() -> None:
    script = Script(VALUE)
    script.run(lambda state: state.update(5), "a")
    script.run(lambda state: state.update(6), "b")
    assert [script.run(lambda state: state.value(), key) for key in "abc"] == [5, 6, None]


def test_none_removes_a_value() -> None:
    script = Script(VALUE)
    script.run(lambda state: state.update(5))
    script.run(lambda state: state.update(None))
    assert script.run(lambda state: state.value()) is None
    assert not list(script.operator.backend.register(VALUE.make_info()).keys())


def test_a_cleared_value_is_gone() -> None:
    script = Script(VALUE)
    script.run(lambda state: state.update(5))
    script.run(lambda state: state.clear())
    assert script.run(lambda state: state.value()) is None


def test_keys_without_value_have_the_default_value() -> None:
    script = Script(ValueStateDescriptor("value", Types.LIST(Types.LONG()), default_value=[1]))
    script.run(lambda state: state.value().append(2))
    assert script.run(lambda state: state.value()) == [1]


def test_the_default_value_does_not_count_with_ttl() -> None:
    descriptor = ValueStateDescriptor("value", Types.LONG(), default_value=7)
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.seconds(1)).build())
    assert Script(descriptor).run(lambda state: state.value()) is None


def test_values_are_converted() -> None:
    script = Script(ValueStateDescriptor("value", PERSON))
    script.run(lambda state: state.update(Row("Alice", 11)))
    assert script.run(lambda state: state.value()) == Row(name="Alice", age=11)


def test_a_value_of_another_type_names_the_state() -> None:
    for descriptor in (ValueStateDescriptor("mine", PERSON), ValueStateDescriptor("mine", Types.LONG())):
        script = Script(descriptor)
        with pytest.raises(ValueRangeError):
            script.run(lambda state: state.update("text"))


def test_elements_are_appended() -> None:
    script = Script(LIST)
    script.run(lambda state: state.add(1))
    script.run(lambda state: state.add_all([2, 3]))
    assert script.run(lambda state: list(state)) == [1, 2, 3]
    script.run(lambda state: state.update([4]))
    assert script.run(lambda state: list(state.get())) == [4]


def test_a_key_without_list_has_an_empty_one() -> None:
    assert Script(LIST).run(lambda state: list(state.get())) == []


def test_an_empty_list_is_not_stored() -> None:
    script = Script(LIST)
    script.run(lambda state: state.add(1))
    script.run(lambda state: state.update([]))
    assert not list(script.operator.backend.register(LIST.make_info()).keys())


@pytest.mark.parametrize("element_type", [Types.STRING(), Types.TUPLE([Types.LONG()])])
def test_elements_are_not_null(element_type: Any) -> None:
    script = Script(ListStateDescriptor("list", element_type))
    for wrong in (
        lambda state: state.add(None),
        lambda state: state.add_all([None]),
        lambda state: state.update([None]),
        lambda state: state.update(None),
        lambda state: state.add_all(None),
    ):
        with pytest.raises(UsageError, match="null"):
            script.run(wrong)
    assert script.run(lambda state: list(state)) == []


def test_a_map_is_read_and_written_by_key() -> None:
    script = Script(MAP)
    script.run(lambda state: state.put("x", "1"))
    script.run(lambda state: state.put_all({"y": "2", "z": None}))
    assert script.run(lambda state: (state.get("x"), state.get("z"), state.get("none"))) == ("1", None, None)
    assert script.run(lambda state: ("z" in state, state.contains("none"))) == (True, False)
    assert script.run(lambda state: dict(state.items())) == {"x": "1", "y": "2", "z": None}
    assert script.run(lambda state: (sorted(state), sorted(state.keys()))) == (["x", "y", "z"], ["x", "y", "z"])
    assert script.run(lambda state: set(state.values())) == {"1", "2", None}
    script.run(lambda state: state.remove("x"))
    assert script.run(lambda state: (state.is_empty(), state["x"], state["y"])) == (False, None, "2")
    script.run(lambda state: state.clear())
    assert script.run(lambda state: state.is_empty())


def test_a_map_has_the_syntax_of_dicts() -> None:
    def use(state: Any) -> list[str]:
        state["x"] = "1"
        state["y"] = "2"
        del state["x"]
        return list(state)

    assert Script(MAP).run(use) == ["y"]


def test_map_entries_may_change_during_an_iteration() -> None:
    script = Script(MAP)
    script.run(lambda state: state.put_all({"x": "1", "y": "2"}))
    script.run(lambda state: [state.remove(key) for key in state.keys()])  # noqa: SIM118
    assert script.run(lambda state: state.is_empty())


def test_map_values_are_null_only_where_their_type_allows_it() -> None:
    # Java's map value has a null flag of its own in front (`MapSerializer`), so that every type allows it.
    script = Script(MapStateDescriptor("map", Types.LONG(), Types.LONG()))
    script.run(lambda state: state.put(1, None))
    assert script.run(lambda state: (state.contains(1), state.get(1))) == (True, None)


def test_maps_have_rows_as_keys_and_values() -> None:
    script = Script(MapStateDescriptor("map", PERSON, PERSON))
    script.run(lambda state: state.put(Row("Alice", 11), Row("Bob", 12)))
    assert script.run(lambda state: state.get(Row(name="Alice", age=11))) == Row(name="Bob", age=12)
    assert script.run(lambda state: list(state)) == [Row(name="Alice", age=11)]


def test_a_bad_map_changes_nothing() -> None:
    script = Script(MapStateDescriptor("map", Types.STRING(), PERSON))
    with pytest.raises(ValueRangeError):
        script.run(lambda state: state.put_all({"x": Row("Alice", 11), "y": 5}))
    assert script.run(lambda state: state.is_empty())


def test_values_are_reduced() -> None:
    script = Script(REDUCING)
    for value in (1, 2, 3):
        script.run(lambda state, value=value: state.add(value))
    assert script.run(lambda state: state.get()) == 6
    script.run(lambda state: state.add(None))
    assert script.run(lambda state: state.get()) is None


def test_a_plain_function_reduces() -> None:
    script = Script(ReducingStateDescriptor("max", max, Types.LONG()))
    script.run(lambda state: [state.add(each) for each in (3, 9, 4)])
    assert script.run(lambda state: state.get()) == 9


def test_values_are_aggregated() -> None:
    script = Script(AGGREGATING)
    assert script.run(lambda state: state.get()) is None
    script.run(lambda state: [state.add(each) for each in (1, 2)])
    assert script.run(lambda state: state.get()) == 1.5
    script.run(lambda state: state.add(None))
    assert script.run(lambda state: state.get()) is None


def test_functions_of_descriptors_are_checked() -> None:
    with pytest.raises(UsageError):
        ReducingStateDescriptor("sum", 5, Types.LONG())  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        AggregatingStateDescriptor("average", Add(), Types.LONG())  # type: ignore[arg-type]


def test_descriptors_take_serializers_and_their_text() -> None:
    descriptor = ValueStateDescriptor("order", "Pojo<shop.Order>(cents: Long, id: String)")
    script = Script(descriptor)
    script.run(lambda state: state.update({"id": "x", "cents": 5}))
    assert script.run(lambda state: state.value().cents) == 5
    assert describe(script.operator.backend.states[0].value_serializer) == str(descriptor.type_info)


def test_a_state_is_registered_twice_with_the_same_descriptor() -> None:
    script = Script(VALUE, ValueStateDescriptor("value", Types.LONG()))
    assert script.function.states[0] is script.function.states[1]


@pytest.mark.parametrize(
    "other",
    [
        ValueStateDescriptor("value", Types.STRING()),
        ListStateDescriptor("value", Types.LONG()),
        ReducingStateDescriptor("value", Add(), Types.LONG()),
    ],
)
def test_a_name_is_not_used_twice(other: Any) -> None:
    with pytest.raises(UsageError, match="the name is in use"):
        Script(VALUE, other)


def test_a_descriptor_of_another_kind_is_refused() -> None:
    script = Script(VALUE)
    with pytest.raises(UsageError, match="is no ListStateDescriptor"):
        script.function.context.get_list_state(VALUE)


def test_state_needs_a_key() -> None:
    script = Script(VALUE)
    with pytest.raises(UsageError, match="No key set"):
        script.function.states[0].value()


def test_keyed_operators_reject_keys_of_flink() -> None:
    for text in (
        "BytePrimitiveArray",
        "StringArray",
        "Array<java.lang.Long>(Long)",
        "Enum<a.B>(X)",
        "Pojo<a.B>(x: Long)",
        "Tuple2<Long, Enum<a.B>(X)>",
        "Row(f0: IntPrimitiveArray)",
    ):
        with pytest.raises(UsageError, match=r"cannot be used as key\. Contained UNSUPPORTED key types: "):
            KeyedProcessOperator(Scripted(), lambda each: each, text)


def test_a_plug_in_may_have_a_basic_kind_of_its_own() -> None:
    check_key_type(tree.Basic(snapshot_class="com.acme.Money", kind="Money"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key_type", "key"),
    [
        (Types.LONG(), 5),
        (Types.ROW([Types.STRING(), Types.LONG()]), Row("a", 5)),
        (Types.TUPLE([Types.STRING(), Types.LONG()]), ("a", 5)),
        (Types.BIG_DEC(), __import__("decimal").Decimal("1.5")),
    ],
)
def test_keys_have_many_types(key_type: Any, key: Any) -> None:
    script = Script(VALUE, key_type=key_type)
    script.run(lambda state: state.update(5), key)
    assert script.run(lambda state: state.value(), key) == 5


class StatesMachine(RuleBasedStateMachine):
    """States against plain Python."""

    keys = st.sampled_from("abc")
    numbers = st.integers(-3, 3)

    def __init__(self) -> None:
        super().__init__()
        self.script = Script(VALUE, LIST, MAP, REDUCING)
        self.model: dict[str, dict[str, Any]] = {key: {"list": [], "map": {}} for key in "abc"}

    @rule(key=keys, value=st.none() | numbers)
    def update(self, key: str, value: int | None) -> None:
        self.script.run(lambda *states: states[0].update(value), key)
        self.model[key]["value"] = value

    @rule(key=keys, values=st.lists(numbers, max_size=3))
    def append(self, key: str, values: list[int]) -> None:
        self.script.run(lambda *states: states[1].add_all(values), key)
        self.model[key]["list"] += values

    @rule(key=keys, values=st.lists(numbers, max_size=3))
    def replace(self, key: str, values: list[int]) -> None:
        self.script.run(lambda *states: states[1].update(values), key)
        self.model[key]["list"] = list(values)

    @rule(key=keys, name=numbers, value=st.none() | st.text(max_size=3))
    def put(self, key: str, name: int, value: str | None) -> None:
        self.script.run(lambda *states: states[2].put(str(name), value), key)
        self.model[key]["map"][str(name)] = value

    @rule(key=keys, name=numbers)
    def remove(self, key: str, name: int) -> None:
        self.script.run(lambda *states: states[2].remove(str(name)), key)
        self.model[key]["map"].pop(str(name), None)

    @rule(key=keys, value=numbers)
    def add(self, key: str, value: int) -> None:
        self.script.run(lambda *states: states[3].add(value), key)
        self.model[key]["sum"] = value + (self.model[key].get("sum") or 0)

    @rule(key=keys, index=st.integers(0, 3))
    def clear(self, key: str, index: int) -> None:
        self.script.run(lambda *states: states[index].clear(), key)
        name = ("value", "list", "map", "sum")[index]
        self.model[key][name] = {"list": [], "map": {}}.get(name)

    @invariant()
    def agrees(self) -> None:
        for key, expected in self.model.items():
            value, elements, entries, total = self.script.run(
                lambda *states: (states[0].value(), list(states[1]), dict(states[2].items()), states[3].get()), key
            )
            assert value == expected.get("value")
            assert elements == expected["list"]
            assert entries == expected["map"]
            assert total == expected.get("sum")


TestStates = StatesMachine.TestCase
TestStates.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
