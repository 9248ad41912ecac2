"""Small files go into their handles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.checkpoints.completed_checkpoints import inline_small_files, measure_state
from state_pipelines.metadata import KeyGroupRange, SubtaskState
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    HandleAndLocalPath,
    IncrementalRemoteKeyedStateHandle,
    RelativeFileStateHandle,
)
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from pathlib import Path


def test_files_up_to_the_threshold_are_inlined_and_removed(tmp_path: Path) -> None:
    for name, size in (("meta", 3), ("small", 4), ("large", 5)):
        (tmp_path / name).write_bytes(b"x" * size)
    shared = HandleAndLocalPath("1.sst", FileStateHandle("s3://bucket/shared/1", 2))
    keyed = IncrementalRemoteKeyedStateHandle(
        checkpoint_id=1,
        backend_identifier="b",
        key_groups=KeyGroupRange(0, 1),
        meta_data_state=RelativeFileStateHandle("meta", 3),
        shared_state=(shared,),
        private_state=tuple(
            HandleAndLocalPath(name, RelativeFileStateHandle(name, size)) for name, size in (("small", 4), ("large", 5))
        ),
    )
    state = SubtaskState(0, managed_keyed_state=keyed)
    found = inline_small_files(state, resolve(str(tmp_path)), 4).managed_keyed_state
    assert isinstance(found, IncrementalRemoteKeyedStateHandle)
    assert isinstance(found.meta_data_state, ByteStreamStateHandle)
    assert found.meta_data_state.data == b"xxx"
    small, large = (each.handle for each in found.private_state)
    assert isinstance(small, ByteStreamStateHandle)
    assert large == RelativeFileStateHandle("large", 5)
    assert found.shared_state == (shared,)
    assert [path.name for path in tmp_path.iterdir()] == ["large"]
    assert measure_state(state) == measure_state(SubtaskState(0, managed_keyed_state=found)) == 14
