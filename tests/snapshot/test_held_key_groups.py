from __future__ import annotations

from dataclasses import replace

import pytest

from state_pipelines.errors import FormatError
from state_pipelines.metadata import OperatorState, SubtaskState
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    IncrementalRemoteKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    KeyGroupsSavepointStateHandle,
)
from state_pipelines.snapshot.snapshot_files import (
    check_held_key_groups,
    explain_missing_handles,
    find_held_key_groups,
    follows_formula,
)

STREAM = ByteStreamStateHandle("stream", b"")


def sections(start: int, end: int) -> KeyedStateHandle:
    return KeyGroupsSavepointStateHandle(KeyGroupRange(start, end + 1 - start), (0,) * (end + 1 - start), STREAM)


def database(name: str, start: int, end: int) -> KeyedStateHandle:
    groups = KeyGroupRange(start, end + 1 - start)
    return IncrementalRemoteKeyedStateHandle(1, name, groups, STREAM, (), (), 0, "handle")


def operator(*handles: KeyedStateHandle | None, max_parallelism: int = 16, raw: bool = False) -> OperatorState:
    subtasks = tuple(
        SubtaskState(index, raw_keyed_state=each) if raw else SubtaskState(index, managed_keyed_state=each)
        for index, each in enumerate(handles)
    )
    return OperatorState(bytes(16), len(handles), max_parallelism, subtasks)


def held(state: OperatorState) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in find_held_key_groups(state).values()]


def test_stored_ranges_decide_where_they_do_not_overlap() -> None:
    # By Flink's formula: 0-5, 6-10, 11-15.
    older = operator(database("a", 0, 5), database("b", 6, 11), database("c", 12, 15))
    assert held(older) == [(0, 5), (6, 11), (12, 15)]
    assert not follows_formula(older)


def test_a_database_that_subtasks_share_is_clipped_by_the_formula() -> None:
    shared = operator(*[database("a", 0, 7)] * 2, *[database("b", 8, 15)] * 2)
    assert held(shared) == [(0, 3), (4, 7), (8, 11), (12, 15)]
    assert follows_formula(shared)


def test_one_database_with_a_range_per_subtask_is_not_clipped() -> None:
    assert held(operator(database("a", 0, 5), database("a", 6, 11), database("a", 12, 15)))[1] == (6, 11)


@pytest.mark.parametrize(
    ("handles", "message"),
    [
        (
            (sections(0, 7), sections(9, 15)),
            r"key group 8 in none \(the handles hold subtask 0: 0-7, .* 1: 9-15\)",
        ),
        ((sections(1, 7), sections(8, 13)), r"key groups 0, 14-15 in none"),
        ((sections(0, 9), sections(8, 15)), r"key groups 8-9 in several handles \(subtask 0: 0-9, subtask 1: 8-15\)"),
        ((database("a", 0, 9), database("b", 8, 15)), r"key groups 8-9 in several handles"),
        ((sections(0, 7), sections(8, 19)), r"key groups 16-19 although there are 16 \(subtask 1: 8-19\)"),
        ((database("a", 0, 7), database("a", 0, 7)), r"no key group of subtask 1 in its handle \(0-7, "),
        # By the formula 0-5, 6-10, 11-15: no subtask would read the last groups of a.
        ((database("a", 0, 12), database("a", 0, 12), None), r"key groups 11-12 in none"),
    ],
    ids=["gap", "ends", "overlap", "two databases", "outside", "of another subtask", "clipped away"],
)
def test_each_key_group_is_held_once(handles: tuple[KeyedStateHandle | None, ...], message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        check_held_key_groups(operator(*handles), "_metadata")
    assert "rescale --drop-operator" in caught.value.hint


def test_raw_keyed_state_is_checked_likewise() -> None:
    state = operator(sections(0, 9), sections(8, 15), raw=True)
    check_held_key_groups(state, "_metadata")
    with pytest.raises(FormatError, match="the raw keyed state does not hold every key group once: key groups 8-9"):
        check_held_key_groups(state, "_metadata", raw=True)


@pytest.mark.parametrize(
    "handles",
    [
        (None, None),
        (None, sections(8, 15)),
        (sections(0, 5), None, sections(11, 15)),
        (sections(0, 5), None, sections(12, 15)),
    ],
    ids=["no state", "first", "between", "between, older rule"],
)
def test_subtasks_without_state_leave_gaps(handles: tuple[KeyedStateHandle | None, ...]) -> None:
    check_held_key_groups(operator(*handles), "_metadata")


@pytest.mark.parametrize(
    ("handles", "text"),
    [
        ((None, None), None),
        ((sections(0, 7), sections(8, 15)), None),
        ((None, sections(8, 15)), "key groups 0-7 in no handle: subtask 0 without keyed state"),
        ((sections(0, 5), None, sections(11, 15)), "key groups 6-10 in no handle: subtask 1 without keyed state"),
        ((None, sections(4, 7), None, None), "key groups 0-3, 8-15 in no handle: subtasks 0, 2, 3 without keyed state"),
        ((None, database("a", 6, 15), database("a", 6, 15)), "key groups 0-5 in no handle: subtask 0 without"),
    ],
    ids=["no state", "all", "first", "between", "several", "shared"],
)
def test_key_groups_of_subtasks_without_state_are_named(
    handles: tuple[KeyedStateHandle | None, ...], text: str | None
) -> None:
    found = explain_missing_handles(operator(*handles))
    assert found is None if text is None else found is not None and found.startswith(text)


def test_subtasks_that_have_finished_have_no_state() -> None:
    state = operator(sections(0, 5), None, sections(11, 15))
    finished = replace(state, subtasks=(state.subtasks[0], SubtaskState(1, finished=True), state.subtasks[2]))
    assert explain_missing_handles(finished) is None


@pytest.mark.parametrize("raw", [False, True])
def test_handles_of_no_key_group_are_no_state(raw: bool) -> None:
    state = operator(sections(0, -1), sections(0, -1), raw=raw)
    check_held_key_groups(state, "_metadata", raw=raw)
