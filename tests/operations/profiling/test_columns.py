from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from state_pipelines.operations.profiling import MAX_COLUMNS, ColumnProfile, ColumnProfiler


def profile(*batches: dict[str, pa.Array]) -> dict[str, ColumnProfile]:
    profiler = ColumnProfiler()
    for batch in batches:
        profiler.add(pa.RecordBatch.from_pydict(batch))
    return {each.column: each for each in profiler.result()}


def one(values: list[Any], kind: pa.DataType) -> ColumnProfile:
    return profile({"value": pa.array(values, kind)})["value"]


def test_nulls_and_defaults_are_counted() -> None:
    found = one([0, 3, None, 0, 5], pa.int64())
    assert (found.rows, found.nulls, found.defaults) == (5, 1, 2)
    assert (found.null_ratio, found.default_ratio) == (0.2, 0.4)


def test_numbers_have_a_range_and_a_mean() -> None:
    found = one([0, 3, None, 9], pa.int32())
    assert (found.measured, found.minimum, found.maximum, found.mean) == ("value", 0, 9, 4.0)


def test_batches_add_up() -> None:
    found = profile({"value": pa.array([1, None])}, {"value": pa.array([5, 0])}, {"value": pa.array([], pa.int64())})
    assert (found["value"].rows, found["value"].nulls, found["value"].defaults) == (4, 1, 1)
    assert (found["value"].minimum, found["value"].maximum, found["value"].mean) == (0, 5, 2.0)


def test_a_batch_of_nulls_changes_no_range() -> None:
    found = profile({"value": pa.array([4])}, {"value": pa.array([None], pa.int64())})["value"]
    assert (found.minimum, found.maximum, found.nulls) == (4, 4, 1)


@pytest.mark.parametrize(
    ("values", "kind", "defaults"),
    [
        ([False, True, None, False], pa.bool_(), 2),
        (["", "ab", None], pa.string(), 1),
        ([b"", b"ab", b"\0"], pa.binary(), 1),
        ([0.0, -0.0, 1.5], pa.float64(), 2),
        ([Decimal("0.00"), Decimal("1.25")], pa.decimal128(10, 2), 1),
        ([[], [1], None], pa.list_(pa.int32()), 1),
        ([[], [("a", 1)]], pa.map_(pa.string(), pa.int32()), 1),
        ([0, 1000], pa.timestamp("ms", "UTC"), 1),
        ([0, 1], pa.date32(), 1),
        ([0, 1], pa.time64("ns"), 1),
        ([0, 1], pa.duration("ms"), 1),
    ],
)
def test_defaults_of_types(values: list[Any], kind: pa.DataType, defaults: int) -> None:
    assert one(values, kind).defaults == defaults


def test_texts_have_lengths_in_characters() -> None:
    found = one(["", "größe", None], pa.string())
    assert (found.measured, found.minimum, found.maximum, found.mean) == ("length", 0, 5, 2.5)


def test_maps_have_lengths() -> None:
    found = one([[], [("a", 1), ("b", 2)]], pa.map_(pa.string(), pa.int32()))
    assert (found.measured, found.minimum, found.maximum) == ("length", 0, 2)


def test_times_have_a_range_as_text() -> None:
    found = one([datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 3, 4, tzinfo=UTC)], pa.timestamp("ms", "UTC"))
    assert (str(found.minimum)[:10], str(found.maximum)[:10], found.mean) == ("2026-01-02", "2026-03-04", None)


@pytest.mark.parametrize(
    ("kind", "minimum", "maximum"),
    [
        (pa.timestamp("ms", "UTC"), "-292275055-05-16T16:47:04.192Z", "+292278994-08-17T07:12:55.807Z"),
        (pa.timestamp("ns"), "1677-09-21T00:12:43.145224192Z", "2262-04-11T23:47:16.854775807Z"),
    ],
)
def test_times_beyond_the_years_of_python_are_shown(kind: pa.DataType, minimum: str, maximum: str) -> None:
    found = one([-(1 << 63), (1 << 63) - 1], kind)
    assert (found.minimum, found.maximum) == (minimum, maximum)


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        ([math.nan], ("NaN", "NaN")),
        ([-math.inf, math.inf], ("-Infinity", "Infinity")),
        ([1e308, 1e308], (1e308, 1e308)),
    ],
)
def test_numbers_that_json_does_not_have_are_text(values: list[float], bounds: tuple[object, object]) -> None:
    found = one(values, pa.float64())
    assert (found.minimum, found.maximum, found.mean) == (*bounds, None)


def test_a_decimal_is_a_number() -> None:
    found = one([Decimal("1.25"), Decimal("2.75")], pa.decimal128(10, 2))
    assert (found.minimum, found.maximum, found.mean) == (1.25, 2.75, 2.0)


def test_fields_of_a_record_are_columns() -> None:
    value = pa.array([{"a": 1, "b": {"c": ""}}, {"a": None, "b": None}])
    found = profile({"value": value})
    assert list(found) == ["value.a", "value.b", "value.b.c"]
    assert (found["value.a"].nulls, found["value.b"].nulls) == (1, 1)


def test_a_field_of_a_record_that_is_null_does_not_count() -> None:
    value = pa.array([{"a": 1}, None, {"a": None}])
    found = profile({"value": value})
    assert (found["value"].rows, found["value"].nulls) == (3, 1)
    assert (found["value.a"].rows, found["value.a"].nulls) == (2, 1)


def test_a_record_without_nulls_first_keeps_its_rows() -> None:
    found = profile({"value": pa.array([{"a": 1}])}, {"value": pa.array([None, {"a": 2}])})
    assert (found["value.a"].rows, found["value.a"].maximum) == (2, 2)


def test_elements_of_lists_are_a_column() -> None:
    found = profile({"value": pa.array([[{"a": 0}, {"a": 4}], [], None])})
    assert (found["value"].rows, found["value"].nulls, found["value"].defaults) == (3, 1, 1)
    assert (found["value[].a"].rows, found["value[].a"].defaults) == (2, 1)


def test_keys_and_values_of_maps_are_columns() -> None:
    maps = pa.array([[("a", 1), ("", None)], None, []], pa.map_(pa.string(), pa.int32()))
    found = profile({"value": maps})
    assert (found["value{}.key"].rows, found["value{}.key"].defaults) == (2, 1)
    assert (found["value{}.value"].rows, found["value{}.value"].nulls) == (2, 1)


def test_a_slice_counts_only_its_rows() -> None:
    whole = pa.array([[("a", 1)], [("b", 2), ("c", 3)], [("d", 4)]], pa.map_(pa.string(), pa.int32()))
    found = profile({"value": whole.slice(1, 1)})
    assert (found["value{}.value"].rows, found["value{}.value"].minimum, found["value{}.value"].maximum) == (2, 2, 3)


def test_columns_of_the_format_are_left_out() -> None:
    found = profile({name: pa.array([1]) for name in ("key_group", "subtask", "state_key", "list_index", "list_value")})
    assert list(found) == ["state_key", "list_value"]


def test_columns_are_bounded() -> None:
    profiler = ColumnProfiler()
    for _ in range(2):
        profiler.add(pa.RecordBatch.from_pydict({f"c{number}": pa.array([1]) for number in range(MAX_COLUMNS + 7)}))
    assert len(profiler.result()) == MAX_COLUMNS
    assert len(profiler.omitted) == 7
