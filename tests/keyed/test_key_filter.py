from __future__ import annotations

import pickle
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.keyed.keys import MOST_SEEKS, KeyFilter, KeySeeks
from state_pipelines.keyed.record_layout import KeyedRecords
from state_pipelines.metadata.handles import KeyGroupRange

if TYPE_CHECKING:
    from collections.abc import Sequence


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


@pytest.mark.slow
@given(st.frozensets(st.binary(max_size=20), max_size=50), st.lists(st.binary(max_size=24), max_size=50), st.booleans())
def test_same_as_one_by_one(keys: frozenset[bytes], rows: list[bytes], keep: bool) -> None:
    key_filter = pickle.loads(pickle.dumps(KeyFilter(keys, keep)))
    rows = [*rows, *sorted(keys)]
    expected = [any(row.startswith(key) for key in keys) == keep for row in rows]
    assert key_filter.select(records(rows)).tolist() == expected


def seek(keys: Sequence[tuple[bytes, KeyGroupRange | None]], key_groups: KeyGroupRange, **options: bool) -> object:
    return KeySeeks(tuple(keys)).find_ranges(key_groups, 1, **options)


def test_a_key_is_one_range_in_its_key_group() -> None:
    assert seek([(b"ab", KeyGroupRange(5, 1))], KeyGroupRange(0, 128)) == [(b"\x05ab", b"\x05ac")]


def test_a_key_of_an_unknown_hash_is_a_range_in_every_key_group() -> None:
    assert seek([(b"a", None)], KeyGroupRange(3, 2)) == [(b"\x03a", b"\x03b"), (b"\x04a", b"\x04b")]


def test_a_key_of_another_key_group_is_no_range() -> None:
    assert seek([(b"a", KeyGroupRange(5, 1))], KeyGroupRange(6, 10)) == []


def test_a_key_that_ends_with_the_largest_byte_has_an_end() -> None:
    assert seek([(b"a\xff\xff", None)], KeyGroupRange(1, 1)) == [(b"\x01a\xff\xff", b"\x01b")]


def test_a_key_of_largest_bytes_in_the_last_key_group_has_no_end() -> None:
    assert seek([(b"\xff", None)], KeyGroupRange(255, 1)) == [(b"\xff\xff", None)]


def test_timers_are_looked_for_in_whole_key_groups() -> None:
    wanted = [(b"a", KeyGroupRange(7, 1)), (b"b", KeyGroupRange(7, 1)), (b"c", KeyGroupRange(9, 1))]
    assert seek(wanted, KeyGroupRange(0, 128), timers=True) == [(b"\x07", b"\x08"), (b"\x09", b"\x0a")]


def test_ranges_ascend_and_do_not_overlap() -> None:
    keys: list[tuple[bytes, KeyGroupRange | None]] = [(bytes([number]), None) for number in (9, 1, 5, 1)]
    found = KeySeeks(tuple(keys)).find_ranges(KeyGroupRange(0, 3), 2)
    assert found == sorted(found)
    assert all(one[1] is not None and one[1] <= other[0] for one, other in pairwise(found))


def test_for_many_keys_whole_key_groups_are_read() -> None:
    keys: list[tuple[bytes, KeyGroupRange | None]] = [(number.to_bytes(4, "big"), None) for number in range(MOST_SEEKS)]
    assert seek(keys, KeyGroupRange(1, 2)) == [(b"\x01", b"\x02"), (b"\x02", b"\x03")]
