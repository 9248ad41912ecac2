from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.keyed.stats import CountedKeys, KeyCounter

RECORDS = st.lists(st.tuples(st.integers(0, 70), st.integers(0, 5), st.binary(max_size=20), st.integers(0, 99)))


def count(records: list[tuple[int, int, bytes, int]], states: int) -> CountedKeys:
    """Count records (state, key group, key, bytes), each in a call of its own."""
    counter = KeyCounter(states)
    for state, group, key, size in records:
        data = np.frombuffer(b"?" + key, np.uint8)
        spans = np.array([1], np.int64), np.array([len(data)], np.int64)
        counter.add(state, np.array([group], np.int32), data, *spans, np.array([size], np.int64))
    return counter.result()


@pytest.mark.slow
@given(RECORDS)
def test_it_counts_as_a_dictionary_does(records: list[tuple[int, int, bytes, int]]) -> None:
    keys = count(records, 71)
    expected = Counter((group, key) for _, group, key, _ in records)
    found = {(int(keys.key_groups[row]), keys.key(row)): int(keys.records[row]) for row in range(len(keys))}
    assert found == expected
    assert keys.sizes.sum() == sum(size for *_, size in records)


def test_a_key_of_two_states_is_one_key() -> None:
    keys = count([(0, 3, b"a", 5), (1, 3, b"a", 7), (1, 3, b"b", 1)], 2)
    assert keys.records.tolist() == [2, 1]
    assert keys.sizes.tolist() == [12, 1]
    assert keys.in_state(0).tolist() == [True, False]
    assert keys.in_state(1).tolist() == [True, True]


def test_states_beyond_one_word_are_told_apart() -> None:
    keys = count([(61, 0, b"a", 1), (62, 0, b"b", 1), (130, 0, b"a", 1)], 131)
    assert [keys.in_state(state).tolist() for state in (61, 62, 130)] == [[True, False], [False, True], [True, False]]


def test_the_same_bytes_in_two_key_groups_are_two_keys() -> None:
    assert len(count([(0, 1, b"a", 1), (0, 2, b"a", 1)], 1)) == 2


def test_it_grows_with_the_keys() -> None:
    number = 50_000
    keys = np.arange(number, dtype=np.int64)
    data = np.tile(keys, 2).view(np.uint8)
    starts = np.arange(2 * number, dtype=np.int64) * 8
    counter = KeyCounter(1)
    groups, sizes = np.zeros(2 * number, np.int32), np.ones(2 * number, np.int64)
    counter.add(0, groups, data, starts, starts + 8, sizes)
    found = counter.result()
    assert len(found) == number
    assert set(found.records.tolist()) == {2}
    assert [found.key(row) for row in (0, number - 1)] == [bytes(8), (number - 1).to_bytes(8, "little")]


def test_one_key_may_be_larger_than_the_room_for_keys() -> None:
    key = bytes(range(256)) * 4096
    assert count([(0, 0, key, 1), (0, 0, key, 1)], 1).key(0) == key
