"""Columns of rows in the forms that users have them become the columns of a state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.errors import StateError, UsageError, ValueRangeError
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.operations.bootstrap.new_states import RowShape
from state_pipelines.operations.write.savepoint_plan import StateDescription
from state_pipelines.serializers.build import basic, list_of, map_of, ttl
from state_pipelines.serializers.text import parse

if TYPE_CHECKING:
    from state_pipelines.serializers.tree import Serializer

KEY = basic("Long")
PAIR = parse("Row(f0: Long, f1: Long)")


def shape(value: Serializer | None, column: pa.Array, kind: str = "VALUE", **columns: Any) -> pa.RecordBatch:
    info = StateDescription("s", kind, value).make_info(KEY, None)
    rows = pa.RecordBatch.from_pydict({"state_key": pa.array(range(len(column)), pa.int64()), **columns})
    name = {"TIMER": "timestamp", "MAP": "map_value"}.get(kind, "value")
    layout = derive_keyed_layout(info, KEY, 8, LayoutContext())
    return RowShape(layout, 0).shape(rows.append_column(name, column))


def pairs(*names: str) -> pa.StructArray:
    return pa.StructArray.from_arrays([pa.array([1, 2]), pa.array([10, 20])], names=list(names))


class TestStructs:
    def test_names_of_a_row_count_in_any_order(self) -> None:
        values = shape(PAIR, pairs("f1", "f0"))["value"].to_pylist()
        assert values == [{"row_kind": "+I", "f0": 10, "f1": 1}, {"row_kind": "+I", "f0": 20, "f1": 2}]

    @pytest.mark.parametrize("names", [("a", "b"), ("f0", "b"), ("f0", "f1"), ("x", "x")])
    def test_other_names_are_taken_by_position(self, names: tuple[str, str]) -> None:
        values = shape(PAIR, pairs(*names))["value"].to_pylist()
        assert [(row["f0"], row["f1"]) for row in values] == [(1, 10), (2, 20)]

    def test_a_name_in_the_place_of_another_is_refused(self) -> None:
        with pytest.raises(ValueRangeError, match="missing f0"):
            shape(PAIR, pairs("f1", "total"))

    def test_two_fields_of_one_name_are_refused(self) -> None:
        with pytest.raises(UsageError, match="two fields have one name: x, x"):
            shape(parse("Pojo<com.acme.P>(x: Long, y: Long)"), pairs("x", "x"))


LISTS = [pa.list_, pa.large_list, lambda each: pa.list_(each, 1)]


@pytest.mark.parametrize("make", LISTS, ids=["list", "large", "fixed"])
@pytest.mark.parametrize("kind", ["LIST", "VALUE"])
def test_lists_of_every_kind_keep_their_structs(make: Any, kind: str) -> None:
    element = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    array = pa.array([[{"a": 1, "b": 2}], [{"a": 3, "b": 4}]], make(element))
    found = shape(list_of(PAIR), array, kind)["value"].to_pylist()
    assert [[(each["f0"], each["f1"]) for each in row] for row in found] == [[(1, 2)], [(3, 4)]]


def test_views_of_lists_are_refused() -> None:
    with pytest.raises(ValueRangeError, match="cast it to a list"):
        shape(list_of(PAIR), pa.array([[{"a": 1, "b": 2}]], pa.list_view(pairs("a", "b").type)), "LIST")


@pytest.mark.parametrize("text", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())])
def test_texts_of_every_kind_inside_structs(text: pa.DataType) -> None:
    array = pa.array([{"a": "x", "b": 1}, None], pa.struct([("a", pa.string()), ("b", pa.int64())]))
    array = array.cast(pa.struct([("a", text), ("b", pa.int64())]))
    found = shape(parse("Nullable<Pojo<com.acme.P>(a: String, b: Long)>"), array)["value"].to_pylist()
    assert found == [{"a": "x", "b": 1}, None]


def test_large_lists_in_maps() -> None:
    kind = map_of(basic("String"), list_of(basic("Long")))
    keys = pa.array(["a", "b"], pa.large_string())
    array = pa.array([[1], [2, 3]], pa.large_list(pa.int64()))
    assert shape(kind, array, "MAP", map_key=keys)["map_value"].to_pylist() == [[1], [2, 3]]


class TestTimes:
    def test_time_stamps_of_timers(self) -> None:
        times = pa.array([1_700_000_000_123_000, 5_000], pa.timestamp("us", "UTC"))
        assert shape(None, times, "TIMER")["timestamp"].to_pylist() == [1_700_000_000_123, 5]

    def test_time_stamps_between_milliseconds_are_refused(self) -> None:
        with pytest.raises(ValueRangeError, match="timestamp"):
            shape(None, pa.array([1_234], pa.timestamp("us", "UTC")), "TIMER")

    def test_a_time_of_access_that_is_too_large_is_refused(self) -> None:
        accessed = pa.array([1 << 63], pa.uint64())
        with pytest.raises(ValueRangeError, match=r"uint64 does not fit int64.*at ttl_last_access"):
            shape(ttl(basic("Long")), pa.array([1]), ttl_last_access=accessed)


@pytest.mark.parametrize(
    ("groups", "message"),
    [([1, None], "key_group is null in some rows"), (["1", "2"], "string does not fit int32.*at key_group")],
)
def test_key_groups_that_are_none_are_refused(groups: list[Any], message: str) -> None:
    with pytest.raises(StateError, match=message):
        shape(basic("Long"), pa.array([1, 2]), key_group=groups)
