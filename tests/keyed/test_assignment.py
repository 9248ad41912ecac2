from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_pipelines.errors import UsageError
from state_pipelines.keyed.key_groups import (
    assign_key_group,
    assign_key_groups,
    compute_default_max_parallelism,
    compute_key_group_range,
    compute_operator_index,
    compute_operator_indexes,
    key_group_prefix_size,
)
from state_pipelines.metadata.checkpoint import read_metadata
from state_pipelines.metadata.handles import KeyGroupRange, KeyGroupsSavepointStateHandle, KeyGroupsStateHandle

# What `KeyGroupRangeAssignment.computeKeyGroupForKeyHash` of Flink gave.
GOLDEN = json.loads(Path(__file__).with_name("data").joinpath("java_hash_codes.json").read_text())
KEY_GROUPS = GOLDEN["key groups of 1, 3, 128, 1024, 32768"]
MAX_PARALLELISMS = (1, 3, 128, 1024, 32768)
# Mixed, this hash code becomes the smallest int, which has no absolute value.
MIXED_TO_THE_SMALLEST_INT = -2089875627

parallelisms = st.integers(1, 1 << 15).flatmap(lambda most: st.tuples(st.integers(1, most), st.just(most)))


@pytest.mark.parametrize(("position", "max_parallelism"), [*enumerate(MAX_PARALLELISMS)])
def test_key_groups_are_those_of_flink(position: int, max_parallelism: int) -> None:
    codes = np.array([code for code, _ in KEY_GROUPS], np.int32)
    expected = [key_groups[position] for _, key_groups in KEY_GROUPS]
    assert assign_key_groups(codes, max_parallelism).tolist() == expected


@pytest.mark.slow
@given(st.lists(st.integers(-(1 << 31), (1 << 31) - 1)), st.integers(1, 1 << 15))
def test_one_key_is_assigned_as_many_are(codes: list[int], max_parallelism: int) -> None:
    many = assign_key_groups(np.array(codes, np.int32), max_parallelism)
    assert many.dtype == np.int32
    assert many.tolist() == [assign_key_group(code, max_parallelism) for code in codes]


def test_the_smallest_int_falls_into_key_group_0() -> None:
    assert assign_key_group(MIXED_TO_THE_SMALLEST_INT, 127) == 0
    assert assign_key_groups(np.array([MIXED_TO_THE_SMALLEST_INT], np.int32), 127).tolist() == [0]


def test_more_keys_than_a_block_are_assigned() -> None:
    codes = np.arange(100_000, dtype=np.int32)
    key_groups = assign_key_groups(codes, 128)
    assert key_groups[[0, 40_000, 99_999]].tolist() == [assign_key_group(code, 128) for code in (0, 40_000, 99_999)]


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [(1, 128), (85, 128), (86, 256), (170, 256), (171, 256), (1000, 2048), (20000, 32768), (32768, 32768)],
)
def test_default_max_parallelism_is_that_of_flink(parallelism: int, expected: int) -> None:
    assert compute_default_max_parallelism(parallelism) == expected


@pytest.mark.parametrize(
    ("parallelism", "max_parallelism", "ranges"),
    [
        (3, 128, [(0, 42), (43, 85), (86, 127)]),
        (4, 10, [(0, 2), (3, 4), (5, 7), (8, 9)]),
        (5, 5, [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]),
    ],
)
def test_key_group_ranges_are_those_of_flink(
    parallelism: int, max_parallelism: int, ranges: list[tuple[int, int]]
) -> None:
    computed = [compute_key_group_range(subtask, parallelism, max_parallelism) for subtask in range(parallelism)]
    assert [(each.start, each.end) for each in computed] == ranges


@pytest.mark.slow
@settings(deadline=None)
@given(parallelisms)
def test_ranges_cover_every_key_group_once(numbers: tuple[int, int]) -> None:
    parallelism, max_parallelism = numbers
    position = 0
    for subtask in range(parallelism):
        key_groups = compute_key_group_range(subtask, parallelism, max_parallelism)
        assert key_groups.start == position
        position += len(key_groups)
    assert position == max_parallelism


@pytest.mark.slow
@given(parallelisms, st.integers(0, 1 << 15))
def test_the_subtask_of_a_key_group_has_it_in_its_range(numbers: tuple[int, int], number: int) -> None:
    parallelism, max_parallelism = numbers
    key_group = number % max_parallelism
    subtask = compute_operator_index(key_group, parallelism, max_parallelism)
    assert key_group in compute_key_group_range(subtask, parallelism, max_parallelism)
    several = compute_operator_indexes(np.array([0, key_group, max_parallelism - 1], np.int32), *numbers)
    assert several.tolist() == [0, subtask, parallelism - 1]


@pytest.mark.parametrize(("max_parallelism", "size"), [(1, 1), (128, 1), (129, 2), (32768, 2)])
def test_the_prefix_takes_two_bytes_beyond_128_key_groups(max_parallelism: int, size: int) -> None:
    assert key_group_prefix_size(max_parallelism) == size


def test_numbers_that_flink_refuses_are_refused() -> None:
    with pytest.raises(UsageError, match="max parallelism of 32769 is not between 1 and 32768"):
        key_group_prefix_size(32769)
    with pytest.raises(UsageError, match="max parallelism of 0"):
        assign_key_group(1, 0)
    with pytest.raises(UsageError, match="max parallelism of 0"):
        assign_key_groups(np.zeros(1, np.int32), 0)
    with pytest.raises(UsageError, match="parallelism of 0"):
        compute_default_max_parallelism(0)
    with pytest.raises(UsageError, match="parallelism of 5 does not go with a max parallelism of 4"):
        compute_key_group_range(0, 5, 4)
    with pytest.raises(UsageError, match="no subtask 4 among 4"):
        compute_key_group_range(4, 4, 128)
    with pytest.raises(UsageError, match="no key group 128 among 128"):
        compute_operator_index(128, 4, 128)
    with pytest.raises(UsageError, match="not among 128"):
        compute_operator_indexes(np.array([0, 128], np.int32), 4, 128)


FIXTURES = os.environ.get("FLINK_STATE_FIXTURES")


@pytest.mark.skipif(not FIXTURES, reason="FLINK_STATE_FIXTURES is unset: it names the directory with files of Flink")
@pytest.mark.parametrize("path", sorted(Path(FIXTURES).rglob("_metadata")) if FIXTURES else [], ids=str)
def test_handles_that_flink_wrote_have_the_computed_ranges(path: Path) -> None:
    for operator in read_metadata(path.read_bytes(), str(path)).operator_states:
        for subtask in operator.subtasks:
            handle = subtask.managed_keyed_state
            if isinstance(handle, KeyGroupsStateHandle | KeyGroupsSavepointStateHandle):
                expected = compute_key_group_range(subtask.index, operator.parallelism, operator.max_parallelism)
                assert handle.key_groups == KeyGroupRange(expected.start, expected.number)
