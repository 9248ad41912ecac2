"""Columns of dates and times: their parts on the wire, and the Arrow types that hold every bit of them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.programs import arrow_type, compile_layout, decode_spans, encode_array
from state_pipelines.errors import FormatError, StateError, ValueRangeError


def column_of(name: str, *records: str) -> pa.Array:
    raw = [bytes.fromhex(record) for record in records]
    stops = np.cumsum([len(each) for each in raw], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), stops[:-1]])
    return decode_spans(
        compile_layout(lay.Logical(lay.LogicalKind(name))), np.frombuffer(b"".join(raw), np.uint8), starts, stops
    )


def bytes_of(name: str, *values: Any) -> str:
    layout = lay.Logical(lay.LogicalKind(name))
    return encode_array(compile_layout(layout), pa.array(values, arrow_type(layout))).data.tobytes().hex()


CASES = [
    ("char", "20ac", "€"),
    ("char", "0000", "\0"),
    ("date_millis", "0000000000000001", datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)),
    ("date_millis", "8000000000000000", None),
    ("local_date", "000007b20102", date(1970, 1, 2)),
    ("local_date", "000000010101", date(1, 1, 1)),
    ("local_date", "800000008000", None),
    ("local_time", "173b3b00000000", time(23, 59, 59)),
    ("local_time", "80800080000000", None),
    ("local_date_time", "000007b2010200000100000000", {"date": date(1970, 1, 2), "time": time(0, 0, 1)}),
    ("local_date_time", "80000000800080800080000000", None),
    ("sql_timestamp", "000000000000000100000002", {"millis": 1, "nanos": 2}),
    ("sql_timestamp", "800000000000000000000000", None),
    ("instant", "ffffffffffffffff3b9ac9ff", {"epoch_second": -1, "nano": 999_999_999}),
    ("instant", "800000000000000080000000", None),
    ("ordered_i64", "8000000000000000", 0),
    ("ordered_i64", "0000000000000000", -(1 << 63)),
]


@pytest.mark.parametrize(("name", "data", "value"), CASES)
def test_parts_are_one_value(name: str, data: str, value: Any) -> None:
    assert column_of(name, data)[0].as_py() == value


@pytest.mark.parametrize(("name", "data", "value"), CASES)
def test_value_is_split_into_its_parts(name: str, data: str, value: Any) -> None:
    assert bytes_of(name, value) == data


def test_null_and_value_stand_side_by_side() -> None:
    records = ("800000008000", "000007b20102")
    assert column_of("local_date", *records).to_pylist() == [None, date(1970, 1, 2)]


def test_years_beyond_python_keep_their_days() -> None:
    assert column_of("local_date", "0059beec070b").cast(pa.int32())[0].as_py() == (1 << 31) - 1


@pytest.mark.parametrize(
    ("name", "data", "kind", "message"),
    [
        ("char", "d83d", ValueRangeError, "half of a surrogate pair"),
        ("local_date", "3b9ac9ff0101", ValueRangeError, "outside the range of Arrow's date32"),
        ("local_date", "000007e3021d", FormatError, "no day of the calendar"),
        ("local_date", "000000000000", FormatError, "no day of the calendar"),
        ("local_time", "18000000000000", FormatError, "no time of day"),
        ("local_time", "003c0000000000", FormatError, "no time of day"),
        ("local_date_time", "80000000800000000000000000", FormatError, "only one of the date and the time"),
        ("local_date_time", "000007b2010280800080000000", FormatError, "only one of the date and the time"),
    ],
)
def test_parts_that_are_no_value_are_refused(name: str, data: str, kind: type[StateError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        column_of(name, data)
    assert caught.value.where.offset == 0


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("char", None, "null where the serializer cannot write null"),
        ("char", "", "exactly one character"),
        ("char", "ab", "exactly one character"),
        ("char", "\U0001f600", "exactly one character"),
        ("ordered_i64", None, "null where the serializer cannot write null"),
        ("local_time", 86_400_000_000_000, "a time of day is outside"),
        ("instant", {"epoch_second": 1, "nano": None}, "nano is null in a value that is not"),
        ("local_date_time", {"date": None, "time": 0}, "date is null in a value that is not"),
    ],
)
def test_values_without_parts_are_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueRangeError, match=message):
        bytes_of(name, value)
