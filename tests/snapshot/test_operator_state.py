"""Operator state of a snapshot: what is read when."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import FormatError, NotFoundError
from state_pipelines.keyed.operator_table import OperatorTableOptions
from state_pipelines.metadata.checkpoint import SubtaskState
from state_pipelines.metadata.handles import ByteStreamStateHandle, KeyGroupRange, RelativeFileStateHandle
from state_pipelines.snapshot.operator_state import NonKeyedState
from state_pipelines.snapshot.snapshot import choose_states
from tests.keyed.test_raw_timers import SECTION
from tests.snapshot.built import build_snapshot, list_operator, operator, write_list_state, write_raw_keyed
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.metadata.handles import OperatorStreamStateHandle
    from state_pipelines.snapshot import Operator, State

TIMERS = "_timer_state/event_user-timers"
ELEMENTS = [[b"a", b"", b"ccc"], [], [b"dd"]]


def element(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def open_list(directory: Path) -> NonKeyedState:
    stored = [[element(each) for each in elements] for elements in ELEMENTS]
    state = build_snapshot(directory, list_operator("op", "list", *stored), uids=["op"]).operator("op").state("list")
    assert isinstance(state, NonKeyedState)
    return state


def in_file(path: Path, elements: list[bytes]) -> OperatorStreamStateHandle:
    """The handle of a list state in a file."""
    handle = write_list_state("list", [*map(element, elements)])
    assert isinstance(handle.delegate, ByteStreamStateHandle)
    path.write_bytes(handle.delegate.data)
    return replace(handle, delegate=RelativeFileStateHandle(path.name, len(handle.delegate.data)))


def with_timers(directory: Path, subtask: SubtaskState) -> Operator:
    """An operator that has a list state beside timers."""
    subtask = replace(subtask, raw_keyed_state=write_raw_keyed({0: SECTION}, KeyGroupRange(0, 128)))
    return build_snapshot(directory, operator("op", subtask), uids=["op"]).operator("op")


def damaged() -> SubtaskState:
    handle = write_list_state("list", [element(b"a")])
    return SubtaskState(
        0, managed_operator_state=replace(handle, delegate=ByteStreamStateHandle("damaged", b"\xff" * 9))
    )


def test_keyed_state_is_found_beside_operator_state_that_cannot_be_read(tmp_path: Path) -> None:
    found = with_timers(tmp_path, damaged())
    assert found.state(TIMERS).to_arrow().num_rows == 1
    with pytest.raises(FormatError):
        found.state("list")
    with pytest.raises(FormatError):
        _ = found.states


def test_the_table_of_an_operator_does_not_touch_its_operator_state(tmp_path: Path) -> None:
    found = with_timers(tmp_path, damaged())
    assert [layout.name for layout in choose_states(found, found.keyed_states, OperatorTableOptions(timers=True))] == [
        TIMERS,
        "_timer_state/processing_user-timers",
    ]


def test_a_name_that_is_nowhere_is_told_with_all_names(tmp_path: Path) -> None:
    found = with_timers(tmp_path, SubtaskState(0, managed_operator_state=write_list_state("list", [element(b"a")])))
    with pytest.raises(NotFoundError) as caught:
        found.state("nowhere")
    assert TIMERS in caught.value.hint
    assert "list" in caught.value.hint


def test_listing_states_reads_headers_only(tmp_path: Path) -> None:
    handle = in_file(tmp_path / "state", [bytes(100), bytes(100)])
    (offsets,) = (state.offsets for state in handle.states)
    whole = (tmp_path / "state").read_bytes()
    (tmp_path / "state").write_bytes(whole[: offsets[0]])
    found = build_snapshot(tmp_path, operator("op", SubtaskState(0, managed_operator_state=handle)))
    (state,) = found.operators[0].states
    with pytest.raises(FormatError) as caught:
        state.to_arrow()
    assert (caught.value.where.operator, caught.value.where.state) == (found.operators[0].label, "list")
    (tmp_path / "state").write_bytes(whole)
    assert state.to_arrow()["value"].to_pylist() == [bytes(100), bytes(100)]


def test_parts_do_not_hold_the_state(tmp_path: Path) -> None:
    handle = in_file(tmp_path / "state", [bytes(1 << 20)])
    found = build_snapshot(tmp_path, operator("op", SubtaskState(0, managed_operator_state=handle)))
    (state,) = found.operators[0].operator_states
    assert state.to_arrow().num_rows == 1
    assert len(pickle.dumps(state.subtask_states)) < 1 << 14


@pytest.mark.parametrize(("size", "number"), [(1, 3), (1 << 20, 1)])
def test_splits_hold_whole_subtasks(size: int, number: int, tmp_path: Path) -> None:
    assert len([*open_list(tmp_path).split(size)]) == number


@pytest.mark.parametrize(("uid", "name"), [("order-counter", "returns"), ("pricing", "prices")])
def test_splits_that_traveled_make_up_the_state(uid: str, name: str) -> None:
    state = orders().open().operator(uid).state(name)
    assert split_rows(state) == state.to_arrow().to_pylist()


def split_rows(state: State) -> list[dict[str, object]]:
    """Rows of the state, read in parts by others."""
    assert isinstance(state, NonKeyedState)
    state.make_schema()
    moved = [pickle.loads(pickle.dumps(split)) for split in state.split(1)]
    return [row for parts, table in moved for batch in table.batches(parts) for row in batch.to_pylist()]
