from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.keyed.digests import digest_run
from state_pipelines.operations.diff.compared_states import (
    CompareGroups,
    Hashes,
    KeyedSide,
    RecordDifferences,
    add_up,
    concat_hashes,
    join_hashes,
    make_side,
    plan_comparison,
    plan_digests,
    sum_differences,
    total_of,
)
from state_pipelines.operations.diff.diff_report import ExampleKind
from state_pipelines.snapshot.keyed_state import KeyedState
from tests.snapshot.savepoints import orders

RECORDS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=20)


def make_hashes(records: list[tuple[int, int]]) -> Hashes:
    keys = np.array([key for key, _ in records], np.uint64)
    whole = np.array([10 * key + value for key, value in records], np.uint64)
    return Hashes(keys.astype(np.int32) % 3, keys, whole)


@pytest.mark.slow
@given(one=RECORDS, other=RECORDS, limit=st.integers(0, 4))
def test_records_are_joined_as_they_are_counted(
    one: list[tuple[int, int]], other: list[tuple[int, int]], limit: int
) -> None:
    found = join_hashes(make_hashes(one), make_hashes(other), limit)
    left, right = Counter(one), Counter(other)
    ones = Counter(key for key, _ in (left - right).elements())
    others = Counter(key for key, _ in (right - left).elements())
    changed = (ones & others).total()
    assert (found.only_in_one, found.only_in_other, found.changed) == (
        ones.total() - changed,
        others.total() - changed,
        changed,
    )
    assert all(sum(each.kind is kind for each in found.candidates) <= limit for kind in ExampleKind)
    for each in found.candidates:
        assert each.one is None or left[divmod(each.one, 10)] > right[divmod(each.one, 10)]
        assert each.other is None or right[divmod(each.other, 10)] > left[divmod(each.other, 10)]


def test_nothing_differs_from_nothing() -> None:
    assert join_hashes(concat_hashes([]), concat_hashes([]), 5) == RecordDifferences()


def find(name: str) -> KeyedState:
    state = orders().open().operator("orders").state(name)
    assert isinstance(state, KeyedState)
    return state


def digest(state: KeyedState) -> np.ndarray:
    pieces = plan_digests([state])
    return add_up([piece.run().states[state.name] for piece in pieces], state.operator.max_parallelism)


@pytest.mark.parametrize("name", ["order", "quantities", "history", "_timer_state/event_user-timers"])
def test_digests_are_those_that_conversions_are_verified_with(name: str) -> None:
    state = find(name)
    runs = [
        digest_run(each, is_map=name == "quantities")
        for subtask_state in state.subtask_states
        for each in subtask_state.records()
    ]
    total = total_of(digest(state))
    assert total.records > 0
    assert total == sum(runs[1:], runs[0])


def compare(side: KeyedSide, budget: int, sums: np.ndarray) -> tuple[list[CompareGroups], RecordDifferences]:
    # The other side has no files: every record of the one is missing there.
    nothing = KeyedSide(side.operator, side.name, (), side.layout, side.reason)
    pieces = plan_comparison(side, nothing, (sums, np.zeros_like(sums)), 3, budget=budget)
    return pieces, sum_differences([piece.run() for piece in pieces], 3)


@pytest.mark.parametrize("budget", [1, 2, 7, 1000])
def test_no_piece_of_work_holds_more_than_the_budget(budget: int) -> None:
    state = find("order")
    pieces, found = compare(make_side(state), budget, digest(state))
    assert (found.only_in_one, found.only_in_other, found.changed) == (200, 0, 0)
    assert len(found.candidates) == 3
    groups = [group for piece in pieces for group in dict.fromkeys(piece.groups)]
    assert (len(pieces) == 1) is (budget == 1000)
    assert groups == sorted(groups)
