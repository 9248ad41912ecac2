"""A checkpoint that was moved without `--map`: what can be read can be rescaled, in every way."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import OutOfReachError
from state_pipelines.metadata.handles import FileStateHandle, HandleAndLocalPath, IncrementalRemoteKeyedStateHandle
from state_pipelines.operations.rescale import rescale
from state_pipelines.snapshot import Snapshot, open_snapshot
from tests.snapshots import OWN

if TYPE_CHECKING:
    from pathlib import Path

(DATABASE,) = [case for case in OWN if case.case == "rocksdb-native" and case.version.startswith("2.2")]
MOVED = "494ff033-chk-6/494ff033ac9eadd8d03630bec6e3fb42/chk-6"


def move_away(snapshot: Snapshot, *beginnings: str) -> Snapshot:
    """The snapshot with files of its databases where it was taken, which is not here."""

    numbers = count()

    def move(each: HandleAndLocalPath) -> HandleAndLocalPath:
        if not each.local_path.startswith(beginnings):
            return each
        return replace(each, handle=FileStateHandle(path=f"file:/old/shared/{next(numbers)}", size=1))

    operators = []
    for operator in snapshot.metadata.operator_states:
        subtasks = []
        for subtask in operator.subtasks:
            handle = subtask.managed_keyed_state
            if isinstance(handle, IncrementalRemoteKeyedStateHandle):
                shared, private = (tuple(map(move, each)) for each in (handle.shared_state, handle.private_state))
                handle = replace(handle, shared_state=shared, private_state=private)
            subtasks.append(replace(subtask, managed_keyed_state=handle))
        operators.append(replace(operator, subtasks=tuple(subtasks)))
    metadata = replace(snapshot.metadata, operator_states=tuple(operators))
    return Snapshot(snapshot.location, metadata, snapshot.path_mapping, snapshot.declarations)


@pytest.mark.slow
@pytest.mark.parametrize(("parallelism", "key_groups"), [(4, None), (3, None), (None, 64)])
def test_files_that_no_reader_needs_hold_nothing_back(
    tmp_path: Path, parallelism: int | None, key_groups: int | None
) -> None:
    moved = move_away(DATABASE.open_told(), "OPTIONS")
    done = rescale(moved, str(tmp_path / "new"), parallelism=parallelism, max_parallelism=key_groups)
    assert done.proof is not None
    assert done.proof.ok


def test_files_with_records_do(tmp_path: Path) -> None:
    moved = move_away(DATABASE.open_told(), "OPTIONS", "0")
    with pytest.raises(OutOfReachError, match="--map FROM=TO"):
        rescale(moved, str(tmp_path / "new"), parallelism=4)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("parallelism", [2, 6])
def test_a_moved_checkpoint_of_others(wild: Path, tmp_path: Path, parallelism: int) -> None:
    path = wild / "gimral+flink-state-offset-translator" / MOVED
    done = rescale(open_snapshot(str(path)), str(tmp_path / "new"), parallelism=parallelism)
    assert done.proof is not None
    assert done.proof.ok
