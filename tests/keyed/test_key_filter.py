from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.keyed.key_filter import KeyFilter
from state_pipelines.keyed.records import KeyedRecords


def records(keys: list[bytes]) -> KeyedRecords:
    ends = np.cumsum([len(key) for key in keys], dtype=np.int64)
    starts = ends - np.array([len(key) for key in keys], np.int64)
    data = np.frombuffer(b"".join(keys) + b"\0", np.uint8)
    return KeyedRecords(np.zeros(len(keys), np.int32), data, starts, ends, ends, ends, 0, "file")


def test_key_is_what_the_bytes_begin_with() -> None:
    key_filter = KeyFilter(frozenset([b"\2a", b"\3ab"]))
    found = key_filter.select(records([b"\2a\0", b"\2b\0", b"\3ab", b"\3a", b""]))
    assert found.tolist() == [True, False, True, False, False]


def test_key_of_a_timer_is_behind_its_timestamp() -> None:
    key_filter = KeyFilter(frozenset([b"\2a"]))
    timers = records([bytes(8) + b"\2a\0", b"\2a\0\0\0\0\0\0" + b"\2b\0"])
    assert key_filter.select(timers, timers=True).tolist() == [True, False]


@pytest.mark.parametrize("keep", [True, False])
def test_no_keys(keep: bool) -> None:
    found = KeyFilter(frozenset(), keep).select(records([b"\2a", b"\2b"]))
    assert found.tolist() == [not keep] * 2


@given(st.frozensets(st.binary(max_size=20), max_size=50), st.lists(st.binary(max_size=24), max_size=50), st.booleans())
def test_same_as_one_by_one(keys: frozenset[bytes], rows: list[bytes], keep: bool) -> None:
    key_filter = pickle.loads(pickle.dumps(KeyFilter(keys, keep)))
    rows = [*rows, *sorted(keys)]
    expected = [any(row.startswith(key) for key in keys) == keep for row in rows]
    assert key_filter.select(records(rows)).tolist() == expected
