"""Operator state of which `_metadata` leaves out or doubles elements: no command says nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.metadata.handles import OperatorStateMode
from tests.operations.auditing.damage import copy_case

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from state_pipelines.metadata import CheckpointMetadata, SubtaskState
    from state_pipelines.metadata.handles import OperatorStateHandle, OperatorStateMetaInfo
    from tests.cli.conftest import Called
    from tests.operations.auditing.damage import Copy

CASES = ("types-2.2-rocksdb-incremental", "types-2.2-heap-native-snappy", "types-1.20-heap")


def edit_lists(
    change: Callable[[OperatorStateMetaInfo], OperatorStateMetaInfo | None],
) -> Callable[[OperatorStateHandle], OperatorStateHandle]:
    """Change the list states of a handle that have at least two elements."""

    def edit(handle: OperatorStateHandle) -> OperatorStateHandle:
        changed = [
            change(each) if len(each.offsets) > 1 and each.mode is not OperatorStateMode.BROADCAST else each
            for each in handle.states
        ]
        return replace(handle, states=tuple(each for each in changed if each is not None))

    return edit


EDITS: dict[str, Callable[[OperatorStateHandle], OperatorStateHandle]] = {
    "the first element is left out": edit_lists(lambda state: replace(state, offsets=state.offsets[1:])),
    "an element is left out": edit_lists(lambda state: replace(state, offsets=(state.offsets[0], *state.offsets[2:]))),
    "the last element is left out": edit_lists(lambda state: replace(state, offsets=state.offsets[:-1])),
    "no element is left": edit_lists(lambda state: replace(state, offsets=())),
    "the states are left out": edit_lists(lambda _: None),
    "an element is named twice": edit_lists(lambda state: replace(state, offsets=(state.offsets[0], *state.offsets))),
    "another distribution": edit_lists(
        lambda state: replace(
            state,
            mode=OperatorStateMode.UNION
            if state.mode is OperatorStateMode.SPLIT_DISTRIBUTE
            else OperatorStateMode.SPLIT_DISTRIBUTE,
        )
    ),
}


def damage(copy: Copy, change: Callable[[tuple[SubtaskState, ...]], tuple[SubtaskState, ...]]) -> str:
    """Change the subtasks of each operator with lists; returns the option that maps the files of the copy."""

    def edit(metadata: CheckpointMetadata) -> CheckpointMetadata:
        operators = tuple(replace(each, subtasks=change(each.subtasks)) for each in metadata.operator_states)
        return replace(metadata, operator_states=operators)

    before = copy.metadata.read_bytes()
    copy.edit(edit)
    assert copy.metadata.read_bytes() != before
    return f"--map=file:{copy.case.written}={copy.folder}"


def require_noticed(call: Callable[..., Called], copy: Copy, target: Path, mapping: str, *, refused: bool) -> None:
    """`verify` finds errors; commands that write refuse, or note that elements may be missing."""
    assert call("verify", copy.path, mapping).code == 1
    for command in (("convert",), ("rescale", "--parallelism", "3")):
        called = call(*command, copy.path, "--out", target, "--dry-run", mapping)
        if refused:
            assert called.code == 2, command
            assert "operator " in called.err
        else:
            assert called.code == 2 or "elements may be missing" in called.out + called.err, command
        assert not target.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("edit", EDITS)
def test_elements_that_are_left_out_or_doubled(
    call: Callable[..., Called], tmp_path: Path, name: str, edit: str
) -> None:
    copy = copy_case(name, tmp_path)

    def change(subtasks: tuple[SubtaskState, ...]) -> tuple[SubtaskState, ...]:
        return tuple(
            each
            if each.managed_operator_state is None
            else replace(each, managed_operator_state=EDITS[edit](each.managed_operator_state))
            for each in subtasks
        )

    mapping = damage(copy, change)
    require_noticed(call, copy, tmp_path / "out", mapping, refused=edit == "another distribution")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_one_handle_in_two_subtasks(call: Callable[..., Called], tmp_path: Path, name: str) -> None:
    copy = copy_case(name, tmp_path)

    def change(subtasks: tuple[SubtaskState, ...]) -> tuple[SubtaskState, ...]:
        handles = [each.managed_operator_state for each in subtasks]
        if len(handles) < 2 or handles[0] is None or not any(each.offsets for each in handles[0].states):
            return subtasks
        return tuple(replace(each, managed_operator_state=handles[0]) for each in subtasks)

    require_noticed(call, copy, tmp_path / "out", damage(copy, change), refused=True)
