"""Files counted by reference."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from state_pipelines.checkpoints.completed_checkpoints import SharedFiles, list_files, list_subtask_files, name_files
from state_pipelines.errors import OutOfReachError
from state_pipelines.metadata import CheckpointMetadata, OperatorState, SubtaskState
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    HandleAndLocalPath,
    IncrementalRemoteKeyedStateHandle,
    KeyGroupRange,
)
from state_pipelines.storage import Location, PathMapping, join, resolve
from tests.snapshots import OWN, select

if TYPE_CHECKING:
    from pathlib import Path

    from tests.snapshots import Case

ROOT = resolve("/jobs/shared")


def at(*names: str) -> list[Location]:
    return [join(ROOT, name) for name in names]


@pytest.fixture
def files() -> SharedFiles:
    return SharedFiles()


def test_a_file_is_free_when_the_last_reference_is_gone(files: SharedFiles) -> None:
    files.register(1, at("a", "b"))
    files.register(2, at("b", "c"))
    assert len(files) == 3
    assert files.release(1) == at("a")
    assert files.release(2) == at("b", "c")
    assert len(files) == 0


def test_protected_files_are_never_free(files: SharedFiles) -> None:
    files.protect(at("a"))
    files.register(1, at("a", "b"))
    assert files.release(1) == at("b")
    assert at("a")[0] in files


def test_files_of_a_forgotten_checkpoint_stay(files: SharedFiles) -> None:
    files.register(1, at("a", "b"))
    files.register(2, at("b"))
    files.forget(1)
    assert files.release(2) == at("b")
    assert at("a")[0] in files


def test_nothing_is_free_while_references_are_unknown(files: SharedFiles) -> None:
    files.register(1, at("a"))
    files.freeze("chk-3 cannot be read")
    files.freeze("chk-4 cannot be read")
    assert files.release(1) == []
    assert files.frozen_by == "chk-3 cannot be read"


def test_releasing_an_unknown_checkpoint_does_nothing(files: SharedFiles) -> None:
    assert files.release(7) == []
    files.forget(7)


@pytest.mark.parametrize("case", select("2.2", "rocksdb-incremental") + OWN[:5], ids=str)
def test_files_of_real_snapshots_are_found(case: Case) -> None:
    snapshot = case.open()
    found = list_files(snapshot.metadata, snapshot.location.directory, snapshot.path_mapping)
    assert all(file.filesystem.exists(file.path) for file in found)
    assert {file.name for file in found if file.path.startswith(f"{snapshot.location.directory}/")} == {
        path.name for path in case.path.iterdir() if path.name != "_metadata"
    }


def test_files_out_of_reach_are_protected_but_never_counted_for_a_subtask(tmp_path: Path) -> None:
    directory, beside = resolve(str(tmp_path / "job" / "chk-1")), resolve(str(tmp_path / "claimed"))
    handles = [FileStateHandle(f"file:{tmp_path}/{name}", 1) for name in ("job/chk-1/a", "claimed/b", "elsewhere/c")]
    shared = tuple(HandleAndLocalPath(handle.path.rpartition("/")[2], handle) for handle in handles)
    meta = ByteStreamStateHandle("meta", b"")
    keyed = IncrementalRemoteKeyedStateHandle(1, str(UUID(int=0)), KeyGroupRange(0, 1), meta, shared, ())
    state = SubtaskState(0, managed_keyed_state=keyed)
    assert {file.name for file in list_subtask_files(state, directory, [beside])} == {"a", "b"}
    metadata = CheckpointMetadata(3, 1, (), (OperatorState(bytes(16), 1, 1, (state,)),))
    assert {file.name for file in name_files(metadata, directory, PathMapping())} == {"a", "b", "c"}
    with pytest.raises(OutOfReachError):
        list_files(metadata, directory)
