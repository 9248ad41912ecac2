from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.backends.entry_store import HeapStore
from state_pipelines.backends.keyed_backend import KeyedStateBackend
from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.codecs.value_conversion import ValueConversion
from state_pipelines.errors import StateMigrationError, UnsupportedError, ValueRangeError
from state_pipelines.metadata.handles import KeyGroupRange
from state_pipelines.serializers.build import (
    VOID_NAMESPACE,
    basic,
    either,
    generic_array,
    list_of,
    map_of,
    nullable,
    pojo,
    row,
    ttl,
    ttl_aware,
)
from state_pipelines.serializers.state_meta_info import broadcast_state, keyed_state, operator_list
from tests.backends.test_operator_backend import make_backend, restore, save

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.serializers.tree import Serializer

LAYOUTS = LayoutContext()
STRING, LONG, INT = basic("String"), basic("Long"), basic("Int")
OLD = pojo("A", {"x": LONG})
NEW = pojo("A", {"x": LONG, "y": INT})
ONE: dict[str, Any] = {"class": "A", "x": 1}
TWO: dict[str, Any] = {"class": "A", "x": 1, "y": 0}


def convert(old: Serializer, new: Serializer, value: Any) -> Any:
    return ValueConversion(LAYOUTS, lambda: 99).find(old, new)(value)


@pytest.mark.parametrize(
    ("wrap", "before", "after"),
    [
        (list_of, [ONE], [TWO]),
        (nullable, None, None),
        (nullable, ONE, TWO),
        (lambda each: generic_array("A", each), [ONE, None], [TWO, None]),
        (lambda each: map_of(each, each), [(ONE, None)], [(TWO, None)]),
        (lambda each: row(LONG, each), {"row_kind": "+I", "f0": 1, "f1": ONE}, {"row_kind": "+I", "f0": 1, "f1": TWO}),
        (
            lambda each: row(LONG, each),
            {"row_kind": "-D", "f0": 1, "f1": None},
            {"row_kind": "-D", "f0": 1, "f1": None},
        ),
        (
            lambda each: either(LONG, each),
            {"is_left": False, "left": None, "right": ONE},
            {"is_left": False, "left": None, "right": TWO},
        ),
        (
            lambda each: ttl_aware(ttl(each), ttl_enabled=True),
            {"last_access": 1, "value": ONE},
            {"last_access": 1, "value": TWO},
        ),
    ],
)
def test_values_inside_others_are_converted(wrap: Any, before: Any, after: Any) -> None:
    assert convert(wrap(OLD), wrap(NEW), before) == after


def test_ttl_is_switched_on_at_the_time_of_the_clock() -> None:
    assert convert(OLD, ttl(NEW), ONE) == {"last_access": 99, "value": TWO}


def test_subclasses_are_converted_by_their_own_fields() -> None:
    sub_old, sub_new = pojo("B", {"x": LONG, "z": LONG}), pojo("B", {"x": LONG, "y": INT, "z": LONG})
    old = pojo("A", {"x": LONG}, registered={"B": sub_old}, non_registered={"C": OLD})
    new = pojo("A", {"x": LONG, "y": INT}, registered={"B": sub_new})
    assert convert(old, new, {"class": "B", "x": 1, "z": 3}) == {"class": "B", "x": 1, "y": 0, "z": 3}
    assert convert(old, new, None) is None
    with pytest.raises(ValueRangeError, match="an object of C"):
        convert(old, new, {"class": "C", "x": 1})


def test_unknown_conversions_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="no conversion is known"):
        convert(LONG, STRING, 1)


def test_other_keys_are_refused() -> None:
    old = KeyedStateBackend(HeapStore(1), STRING, KeyGroupRange(0, 128), 128, LAYOUTS)
    new = KeyedStateBackend(HeapStore(1), LONG, KeyGroupRange(0, 128), 128, LAYOUTS)
    words = r"The new key serializer \(Long\) must be compatible with the previous key serializer \(String\)\."
    with pytest.raises(StateMigrationError, match=words):
        new.restore([old.as_file()])


def test_operator_state_migrates(tmp_path: Path) -> None:
    backend = make_backend()
    backend.register_list(operator_list("list", OLD)).add(ONE)
    backend.register_broadcast(broadcast_state("rules", OLD, OLD)).put(ONE, ONE)
    (again,) = restore(save([backend], tmp_path), 1)
    assert again.register_list(operator_list("list", NEW)).get() == [TWO]
    assert list(again.register_broadcast(broadcast_state("rules", NEW, NEW)).entries()) == [(TWO, TWO)]


def test_incompatible_operator_state_is_refused(tmp_path: Path) -> None:
    backend = make_backend()
    backend.register_list(operator_list("list", LONG))
    backend.register_broadcast(broadcast_state("rules", LONG, LONG))
    (again,) = restore(save([backend], tmp_path), 1)
    with pytest.raises(StateMigrationError, match=r"^The new state typeSerializer for operator state must not be inc"):
        again.register_list(operator_list("list", STRING))
    with pytest.raises(StateMigrationError, match=r"^The new key typeSerializer for broadcast state must not be inc"):
        again.register_broadcast(broadcast_state("rules", STRING, LONG))
    with pytest.raises(StateMigrationError, match=r"^The new value typeSerializer for broadcast state must not be"):
        again.register_broadcast(broadcast_state("rules", LONG, STRING))


def test_map_keys_that_become_one_are_refused() -> None:
    def make_heap() -> KeyedStateBackend:
        return KeyedStateBackend(HeapStore(1), STRING, KeyGroupRange(0, 127), 128, LAYOUTS)

    first, again = make_heap(), make_heap()
    first.set_current_key("a")
    keys = [{"class": "A", "x": 1, "y": each} for each in (1, 2)]
    first.register(keyed_state("state", "MAP", map_of(NEW, LONG), VOID_NAMESPACE)).put([(each, 5) for each in keys])
    again.restore([first.as_file()])
    with pytest.raises(ValueRangeError, match="two map keys of one key become the same map key"):
        again.register(keyed_state("state", "MAP", map_of(OLD, LONG), VOID_NAMESPACE))
