"""Operators of a snapshot and of a job: Flink's rules, in Flink's words."""

from __future__ import annotations

import pytest

from state_pipelines.checkpoints.coordinator import DeclaredOperator, assign_operators
from state_pipelines.errors import IncompatibleError, UsageError
from state_pipelines.metadata import CheckpointMetadata, OperatorState, SubtaskState, compute_operator_id
from state_pipelines.metadata.handles import ByteStreamStateHandle, KeyGroupRange, KeyGroupsSavepointStateHandle
from state_pipelines.snapshot import Snapshot
from state_pipelines.snapshot.declarations import Declarations
from state_pipelines.storage import METADATA_FILE, PathMapping, SnapshotLocation, join, resolve

KEYED = KeyGroupsSavepointStateHandle(KeyGroupRange(0, 16), (0,) * 16, ByteStreamStateHandle("x", b""))


def snapshot(*states: OperatorState) -> Snapshot:
    directory = resolve("/savepoints/savepoint-1")
    location = SnapshotLocation(directory, join(directory, METADATA_FILE))
    return Snapshot(location, CheckpointMetadata(3, 7, (), states), PathMapping(), Declarations())


def stored(uid: str, *, empty: bool = False) -> OperatorState:
    subtask = SubtaskState(0, managed_keyed_state=None if empty else KEYED)
    return OperatorState(compute_operator_id(uid), 1, 16, (subtask,))


def test_operators_are_found_by_their_uid_and_take_over_the_key_groups() -> None:
    found = assign_operators(
        [DeclaredOperator("b", 3), DeclaredOperator("a", 1, 16)], snapshot(stored("a"), stored("b"))
    )
    assert [(each.operator.uid, each.operator.max_parallelism) for each in found] == [("b", 16), ("a", 16)]
    assert [each.state and each.state.operator_id for each in found] == [compute_operator_id(name) for name in "ba"]


def test_a_new_operator_starts_empty_with_the_key_groups_of_flink() -> None:
    found = assign_operators([DeclaredOperator("a", 1), DeclaredOperator("new", 200)], snapshot(stored("a")))
    assert (found[1].state, found[1].operator.max_parallelism) == (None, 512)
    assert assign_operators([DeclaredOperator("a", 4, 32)], None)[0].operator.max_parallelism == 32


def test_state_without_an_operator_is_refused_unless_it_may_be_dropped() -> None:
    old = snapshot(stored("a"), stored("gone"))
    with pytest.raises(IncompatibleError, match="because the operator is not available in the new program") as caught:
        assign_operators([DeclaredOperator("a", 1)], old)
    assert caught.value.what.startswith("Failed to rollback to checkpoint/savepoint /savepoints/savepoint-1. ")
    assert compute_operator_id("gone").hex() in caught.value.what
    assert len(assign_operators([DeclaredOperator("a", 1)], old, allow_non_restored_state=True)) == 1


def test_an_operator_without_state_may_be_gone() -> None:
    assert assign_operators([DeclaredOperator("a", 1)], snapshot(stored("a"), stored("gone", empty=True)))


def test_another_max_parallelism_is_refused() -> None:
    message = r"Max parallelism mismatch .* max parallelism 16 to new .* parallelism 32"
    with pytest.raises(IncompatibleError, match=message):
        assign_operators([DeclaredOperator("a", 1, 32)], snapshot(stored("a")))


def test_more_subtasks_than_key_groups_are_refused() -> None:
    with pytest.raises(IncompatibleError, match=r"maximum parallelism \(16\) .* configured parallelism \(17\)"):
        assign_operators([DeclaredOperator("a", 17)], snapshot(stored("a")))
    with pytest.raises(UsageError, match="parallelism 9 is higher than max parallelism 8"):
        assign_operators([DeclaredOperator("a", 9, 8)], None)


def test_a_uid_that_occurs_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="the uid 'a' occurs twice"):
        assign_operators([DeclaredOperator("a", 1), DeclaredOperator("b", 1), DeclaredOperator("a", 2)], None)
