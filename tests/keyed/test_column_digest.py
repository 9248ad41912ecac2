from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.errors import UnsupportedError
from state_pipelines.keyed.digests import (
    KEYS,
    ROWS,
    ColumnDigest,
    Sums,
    add_sums,
    drop_fields,
    identify_rows,
)

TEXTS = pa.list_(pa.string())
POINT = pa.struct([("x", pa.int32()), ("y", pa.int32())])
DIFFERENT = [
    (pa.int64(), [1, 2], [2, 1]),
    (pa.int64(), [1, 2], [1, 3]),
    (pa.int64(), [0, 1], [None, 1]),
    (pa.int8(), [-1, 0], [0, -1]),
    (pa.float64(), [0.0, 1.0], [-0.0, 1.0]),
    (pa.float32(), [1.5, 2.5], [2.5, 1.5]),
    (pa.bool_(), [True, False], [False, True]),
    (pa.string(), ["a", "b"], ["b", "a"]),
    (pa.string(), ["", "b"], [None, "b"]),
    (pa.binary(), [b"\0", b""], [b"", b"\0"]),
    (pa.timestamp("ms"), [0, 1], [1, 0]),
    (pa.date32(), [0, 1], [0, None]),
    (TEXTS, [["a"], ["b", "c"]], [["a", "b"], ["c"]]),
    (TEXTS, [["a", None], []], [[None, "a"], []]),
    (TEXTS, [[], ["a"]], [None, ["a"]]),
    (POINT, [{"x": 1, "y": None}, None], [{"x": None, "y": 1}, None]),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], []], [[("a", None)], []]),
    (pa.decimal128(9, 2), [decimal.Decimal("1.00"), None], [decimal.Decimal("1.01"), None]),
    (pa.list_(pa.timestamp("ms")), [[datetime.datetime(2020, 1, 1)], None], [[datetime.datetime(2020, 1, 2)], None]),
    (pa.struct([("d", pa.date32()), ("n", pa.null())]), [{"d": datetime.date(2020, 1, 1)}, {}], [{}, {}]),
]


def digest(values: list[Any], of: pa.DataType, keys: list[bytes], groups: list[int] | None = None) -> Sums:
    found = ColumnDigest(8, ["x"])
    column = pa.array(values, of)
    found.add(np.array(groups or [3] * len(keys), np.int32), identify_rows([pa.array(keys)]), {"x": column})
    return found.sums


@pytest.mark.parametrize(("of", "one", "other"), DIFFERENT)
def test_columns_that_differ_have_other_digests(of: pa.DataType, one: list[Any], other: list[Any]) -> None:
    keys = [b"k", b"l"]
    assert digest(one, of, keys)[3]["x"] != digest(other, of, keys)[3]["x"]
    assert digest(one, of, keys)[3][KEYS] == digest(other, of, keys)[3][KEYS]


@pytest.mark.parametrize(("of", "one"), [(of, one) for of, one, _ in DIFFERENT])
def test_slices_and_the_order_of_rows_do_not_count(of: pa.DataType, one: list[Any]) -> None:
    column = pa.array([None, *one, None], of).slice(1, 2)
    keys = pa.array([b"-", b"k", b"l"]).slice(1)
    found = ColumnDigest(8, ["x"])
    for row in (1, 0):
        found.add(np.array([3], np.int32), identify_rows([keys.slice(row, 1)]), {"x": column.slice(row, 1)})
    assert found.sums == digest(one, of, [b"k", b"l"])


@pytest.mark.slow
@given(st.lists(st.tuples(st.binary(max_size=20), st.integers(0, 7), st.none() | st.text(max_size=20)), max_size=30))
def test_pieces_add_up_to_the_whole(rows: list[tuple[bytes, int, str | None]]) -> None:
    keys, groups, values = [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    whole = digest(values, pa.string(), keys, groups) if rows else {}
    pieces = [digest([value], pa.string(), [key], [group]) for key, group, value in rows]
    total: Sums = {}
    for piece in pieces:
        add_sums(total, piece)
    assert total == whole
    assert sum(each[ROWS] for each in whole.values()) == len(rows)


def test_rows_of_a_list_are_told_apart_by_their_index() -> None:
    keys = pa.array([b"k", b"k"])
    one, other = (identify_rows([keys, pa.array(index, pa.int32())]) for index in ([0, 1], [1, 0]))
    assert one.tolist() == other.tolist()[::-1]
    assert one[0] != one[1]


def test_key_groups_are_kept_apart() -> None:
    found = digest([1, 2], pa.int64(), [b"k", b"l"], [0, 7])
    assert {group: sums[ROWS] for group, sums in found.items()} == {0: 1, 7: 1}


@pytest.mark.parametrize(
    ("one", "other", "value"),
    [
        (pa.int32(), pa.int64(), 1),
        (pa.bool_(), pa.int8(), None),
        (pa.date32(), pa.int32(), 1),
        (pa.timestamp("ms"), pa.timestamp("us"), 0),
        (pa.string(), pa.binary(), b"a"),
        (pa.string(), pa.dictionary(pa.int8(), pa.string()), "a"),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), [1]),
        (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())]), {}),
        (pa.int32(), pa.int64(), None),
    ],
)
def test_the_same_value_of_another_type_has_another_digest(one: pa.DataType, other: pa.DataType, value: Any) -> None:
    assert digest([value], one, [b"k"])[3]["x"] != digest([value], other, [b"k"])[3]["x"]


@pytest.mark.parametrize(
    ("one", "other", "value"),
    [
        (pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.string()), "a"),
        (pa.string(), pa.large_string(), "a"),
        (pa.binary(), pa.large_binary(), b"a"),
        (pa.list_(pa.string()), pa.large_list(pa.large_string()), ["a", None]),
        (pa.struct([("a", pa.int8())]), pa.struct([pa.field("a", pa.int8(), nullable=False)]), {"a": 1}),
    ],
)
def test_how_a_type_is_stored_does_not_count(one: pa.DataType, other: pa.DataType, value: Any) -> None:
    assert digest([value], one, [b"k"]) == digest([value], other, [b"k"])


def test_types_that_no_state_has_are_told() -> None:
    with pytest.raises(UnsupportedError, match="have no digest"):
        digest([b"ab"], pa.binary(2), [b"k"])


def test_fields_that_are_left_out_do_not_count() -> None:
    inner = pa.struct([("a", pa.int32()), ("b", pa.int32())])
    whole = pa.array(
        [{"x": {"a": 1, "b": 2}, "y": 3}, None, {"x": None, "y": 4}], pa.struct([("x", inner), ("y", pa.int8())])
    )
    assert drop_fields(whole, ["x.b"]).to_pylist() == [{"x": {"a": 1}, "y": 3}, None, {"x": None, "y": 4}]
    assert drop_fields(whole, ["y"]).to_pylist() == [{"x": {"a": 1, "b": 2}}, None, {"x": None}]
    assert drop_fields(whole, ["x.a", "x.b", "y"]).to_pylist() == [{"x": True}, None, {"x": False}]
    assert drop_fields(whole, ["x", "y"]).to_pylist() == [True, False, True]
    assert drop_fields(whole.field("y"), ["z"]) is not None
