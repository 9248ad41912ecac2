"""Arrow arrays in the exact type of a layout."""

from __future__ import annotations

import pyarrow as pa
import pytest

from state_pipelines.codecs.logical_values import conform
from state_pipelines.errors import ValueRangeError


@pytest.mark.parametrize(
    ("array", "target"),
    [
        (pa.array([300]), pa.int8()),
        (pa.array(["x"]), pa.int64()),
        (pa.array([{"a": 1}]), pa.int64()),
        (pa.array([[1]]), pa.string()),
        (pa.array([True]), pa.timestamp("ms")),
    ],
    ids=["value too large", "text", "struct", "list", "no cast"],
)
def test_what_arrow_does_not_cast_is_named(array: pa.Array, target: pa.DataType) -> None:
    with pytest.raises(ValueRangeError, match=r"does not fit .*\[at value\.f0\]"):
        conform(array, target, "value.f0")


COUNTS = pa.map_(pa.string(), pa.int64())


def entry(**fields: pa.DataType) -> pa.DataType:
    return pa.list_(pa.struct(list(fields.items())))


def test_entries_become_a_map_by_the_names_of_their_fields() -> None:
    entries = pa.array([[{"value": 1, "key": "a"}], None, []], entry(value=pa.int64(), key=pa.string()))
    assert conform(entries, COUNTS).to_pylist() == [[("a", 1)], None, []]
    texts = pa.array([[{"value": "x", "key": "a"}]], entry(value=pa.string(), key=pa.string()))
    assert conform(texts, pa.map_(pa.string(), pa.string())).to_pylist() == [[("a", "x")]]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (pa.array([[1, 2]]), "list<item: int64> is not a map"),
        (pa.array([["a"]]), "list<item: string> is not a map"),
        (pa.array([[{"key": "a", "value": 1}, None]]), "an entry of a map is null"),
        (pa.array([[{"key": None, "value": 1}]], entry(key=pa.string(), value=pa.int64())), r"null.* \[at value\{key"),
        (pa.array([[{"key": None, "value": 1}]]), r"null.* \[at value\{key"),
        (pa.array([[{"key": "a", "value": 1, "other": 2}]]), "is not a map"),
        (
            pa.ListArray.from_arrays(
                [0, 1], pa.StructArray.from_arrays([pa.array(["a"])] * 3, names=["key", "value", "key"])
            ),
            "is not a map",
        ),
        (pa.array([[{"k": "a", "v": 1}]]), "entries are structs of the fields key and value"),
    ],
    ids=["numbers", "texts", "null entry", "null key", "keys without type", "another field", "two keys", "other names"],
)
def test_lists_without_entries_of_a_map_are_refused(array: pa.Array, message: str) -> None:
    with pytest.raises(ValueRangeError, match=message):
        conform(array, COUNTS)


def test_a_timestamp_is_a_date_only_at_midnight() -> None:
    times = pa.array([0, None, 86_400_000_000], pa.timestamp("us"))
    assert conform(times, pa.date32()).cast(pa.int32()).to_pylist() == [0, None, 1]
    with pytest.raises(ValueRangeError, match=r"a value of timestamp\[us\] has a time of day, which .* \[at value\]"):
        conform(pa.array([1], pa.timestamp("us")), pa.date32())


@pytest.mark.parametrize("target", [pa.time64("us"), pa.time32("ms")], ids=str)
def test_a_timestamp_is_no_time_of_day(target: pa.DataType) -> None:
    with pytest.raises(ValueRangeError, match="does not fit"):
        conform(pa.array([86_400_000_000], pa.timestamp("us")), target)
