from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import FormatError, MissingFileError, UnsupportedError
from state_pipelines.metadata.handles import EmptySegmentFileStateHandle, OperatorStateHandle, OperatorStreamStateHandle
from state_pipelines.metadata.streams import StateStream
from state_pipelines.operatorstate import open_operator_state
from state_pipelines.storage import resolve
from tests.operatorstate.test_backend import FILE, START, STATES, make_handle, spans

if TYPE_CHECKING:
    from pathlib import Path


def put(path: Path, data: bytes, size: int | None = None) -> StateStream:
    path.write_bytes(data)
    return StateStream(str(path), len(data) if size is None else size, location=resolve(str(path)))


def inlined(data: bytes) -> StateStream:
    return StateStream("inlined", len(data), data=data)


def test_nothing_behind_the_first_element_is_read(tmp_path: Path) -> None:
    unread = open_operator_state(put(tmp_path / "state", FILE[:START], len(FILE)), make_handle(*STATES))
    assert [info.name for info in unread.header.lists] == ["names", "counts"]
    with pytest.raises(FormatError, match=f"the file has {START} bytes"):
        unread.read()


@pytest.mark.parametrize("first_read", [1, 7, START - 1, START, START + 1, len(FILE), 1 << 20])
def test_a_header_that_is_longer_than_the_first_read_is_read_whole(first_read: int) -> None:
    whole = open_operator_state(inlined(FILE), make_handle(*STATES))
    assert open_operator_state(inlined(FILE), make_handle(*STATES), first_read=first_read).header == whole.header


def test_without_elements_the_header_is_found_too() -> None:
    unread = open_operator_state(inlined(FILE[:START]), make_handle(), first_read=16)
    assert [info.name for info in unread.header.lists] == ["names", "counts"]


def test_a_source_travels_to_other_processes(tmp_path: Path) -> None:
    unread = open_operator_state(put(tmp_path / "state", FILE), make_handle(*STATES))
    moved = pickle.loads(pickle.dumps(unread))
    assert moved.header == unread.header
    assert spans(moved.read(), "names") == spans(unread.read(), "names") != []


def test_a_source_does_not_hold_the_state(tmp_path: Path) -> None:
    data = FILE + bytes(1 << 20)
    unread = open_operator_state(put(tmp_path / "state", data), make_handle(*STATES))
    assert len(pickle.dumps(unread)) < 1 << 14


@pytest.mark.parametrize("size", [0, 1, START // 2, START - 1])
def test_a_header_that_is_cut_off_is_an_error(size: int) -> None:
    with pytest.raises(FormatError):
        open_operator_state(inlined(FILE[:size]), make_handle(*STATES), first_read=4)


def test_a_version_that_is_not_covered_is_told() -> None:
    with pytest.raises(UnsupportedError, match="version 3"):
        open_operator_state(inlined(bytes.fromhex("00000003") + FILE[4:]), make_handle(*STATES), first_read=4)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    stream = StateStream("gone", len(FILE), location=resolve(str(tmp_path / "gone")))
    with pytest.raises(MissingFileError):
        open_operator_state(stream, make_handle(*STATES))


def test_a_subtask_without_state_has_an_empty_source() -> None:
    handle: OperatorStateHandle = OperatorStreamStateHandle((), EmptySegmentFileStateHandle())
    unread = open_operator_state(StateStream("an empty segment", 0), handle)
    assert unread.header.lists == ()
    assert unread.read().header == unread.header
