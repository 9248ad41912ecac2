from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.operations.state_rows import compact, to_rows, to_values

if TYPE_CHECKING:
    import datetime as dt

MAP = pa.map_(pa.string(), pa.list_(pa.int64()))


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.int64(), [9_007_199_254_740_993, None], [9_007_199_254_740_993, None]),
        (pa.float64(), [1.5, math.inf, -math.inf, math.nan, None], [1.5, "Infinity", "-Infinity", "NaN", None]),
        (pa.bool_(), [True, None], [True, None]),
        (pa.string(), ["Zoë", ""], ["Zoë", ""]),
        (pa.binary(), [b"\x00\xff", b""], ["00ff", ""]),
        (pa.date32(), [0, -719_529, 2_932_897], ["1970-01-01", "-0001-12-31", "+10000-01-01"]),
        (pa.time64("ns"), [0, 86_399_999_999_999], ["00:00:00.000000000", "23:59:59.999999999"]),
        (pa.timestamp("ms", tz="UTC"), [0, -1, 253_402_300_800_000], [
            "1970-01-01T00:00:00.000Z",
            "1969-12-31T23:59:59.999Z",
            "+10000-01-01T00:00:00.000Z",
        ]),
        (pa.list_(pa.binary()), [[b"\x01"], None, []], [["01"], None, []]),
        (MAP, [[("a", [1, 2])], None, []], [[["a", [1, 2]]], None, []]),
        (
            pa.struct([("day", pa.date32())]),
            [{"day": 1}, None, {"day": None}],
            [{"day": "1970-01-02"}, None, {"day": None}],
        ),
        (pa.struct([]), [{}, None], [{}, None]),
        (pa.null(), [None, None], [None, None]),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else "",
)  # fmt: skip
def test_values(kind: pa.DataType, values: list[object], expected: list[object]) -> None:
    assert to_values(pa.array(values, kind)) == expected


@pytest.mark.slow
@given(st.lists(st.none() | st.lists(st.tuples(st.text(), st.lists(st.integers(-(2**63), 2**63 - 1))))), st.data())
def test_slices_of_nested_values(values: list[object], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(values)))
    whole = to_values(pa.array(values, MAP))
    assert to_values(pa.array(values, MAP).slice(start)) == whole[start:]


@pytest.mark.slow
@given(st.lists(st.none() | st.dates()))
def test_dates_are_those_of_python(days: list[dt.date | None]) -> None:
    assert to_values(pa.array(days, pa.date32())) == [None if day is None else day.isoformat() for day in days]


def test_rows_are_json() -> None:
    batch = pa.RecordBatch.from_pydict({"key": ["a"], "value": pa.array([b"\x01"], pa.binary())})
    assert [json.dumps(row) for row in to_rows(batch)] == ['{"key": "a", "value": "01"}']


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ({"id": 1, "tags": ["a", None]}, "{id: 1, tags: [a, null]}"),
        ({"epoch_second": 1, "nano": 2}, "1970-01-01T00:00:01.000000002Z"),
        ({"epoch_second": 1, "nano": 2, "zone": "UTC"}, "{epoch_second: 1, nano: 2, zone: UTC}"),
    ],
)
def test_values_for_people(value: object, text: str) -> None:
    assert compact(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1_500, "ms", "1970-01-01T00:00:01.500Z"),
        (-1, "us", "1969-12-31T23:59:59.999999000Z"),
        (11_000_000_077_000_011, "ns", "1970-05-08T07:33:20.077000011Z"),
    ],
)
def test_points_in_time_keep_their_precision(value: int, unit: str, text: str) -> None:
    assert to_values(pa.array([value], pa.timestamp(unit))) == [text]
