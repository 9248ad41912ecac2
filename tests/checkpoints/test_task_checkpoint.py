"""Acknowledgements travel as bytes; real handles of Flink survive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state_pipelines.checkpoints.coordinator import TaskCheckpoint, read_task_checkpoint, write_task_checkpoint
from state_pipelines.errors import FormatError
from state_pipelines.metadata import SubtaskState
from state_pipelines.storage.files import RecordedFile
from tests.snapshots import OWN

if TYPE_CHECKING:
    from tests.snapshots import Case

FILES = (RecordedFile("a", 7, "0" * 32), RecordedFile("b", 9))
EXAMPLE = TaskCheckpoint(9, b"\x0a" * 16, SubtaskState(3, finished=True), 5, 4, 3, FILES, 2)


@pytest.mark.parametrize("case", OWN, ids=str)
def test_states_of_real_snapshots_are_read_as_written(case: Case) -> None:
    for operator in case.open().metadata.operator_states:
        for state in operator.subtasks:
            written = write_task_checkpoint(TaskCheckpoint(1, operator.operator_id, state))
            assert read_task_checkpoint(written) == TaskCheckpoint(1, operator.operator_id, state)


def test_numbers_and_finished_subtasks_are_read_as_written() -> None:
    assert read_task_checkpoint(write_task_checkpoint(EXAMPLE)) == EXAMPLE


@pytest.mark.parametrize("size", range(len(write_task_checkpoint(EXAMPLE))))
def test_bytes_that_end_early_are_an_error(size: int) -> None:
    with pytest.raises(FormatError):
        read_task_checkpoint(write_task_checkpoint(EXAMPLE)[:size])


def test_bytes_after_the_end_are_an_error() -> None:
    with pytest.raises(FormatError, match="the acknowledgement"):
        read_task_checkpoint(write_task_checkpoint(EXAMPLE) + b"\0")
