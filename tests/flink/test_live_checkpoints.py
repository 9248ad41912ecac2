"""Real Flink goes on from checkpoints that the coordinator here has published upon Flink's own incremental ones."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from state_pipelines.checkpoints.completed_checkpoints import CheckpointDirectories
from state_pipelines.checkpoints.coordinator import (
    METADATA_VERSION,
    CheckpointCoordinator,
    CheckpointedOperator,
    TaskCheckpoint,
)
from state_pipelines.checkpoints.options import CheckpointOptions, ClaimMode
from state_pipelines.metadata import replace_stream_handles
from state_pipelines.metadata.handles import FileStateHandle, RelativeFileStateHandle
from state_pipelines.metadata.streams import locate_file
from state_pipelines.storage import resolve
from tests.checkpoints.tasks import JOB, missing_files
from tests.flink import harness
from tests.flink.make_data import JOBS
from tests.flink.test_converted_savepoints import find_case, line_of

if TYPE_CHECKING:
    from pathlib import Path

    from state_pipelines.metadata.handles import StreamStateHandle
    from state_pipelines.metadata.streams import StreamReference
    from state_pipelines.snapshot import Snapshot

pytestmark = pytest.mark.flink


def publish(snapshot: Snapshot, root: Path, metadata_version: int) -> Path:
    """Claim a checkpoint, and take one whose tasks reference all of its files; the directory of that."""

    def locate(reference: StreamReference) -> StreamStateHandle:
        handle = reference.handle
        if not isinstance(handle, FileStateHandle | RelativeFileStateHandle):
            return handle
        place = locate_file(handle, snapshot.location.directory, snapshot.path_mapping)
        return FileStateHandle(place.url, handle.size)

    metadata = replace_stream_handles(snapshot.metadata, locate)
    operators = [
        CheckpointedOperator(each.operator_id, each.parallelism, each.max_parallelism)
        for each in metadata.operator_states
    ]
    options = CheckpointOptions(incremental=True)
    coordinator = CheckpointCoordinator(
        CheckpointDirectories(resolve(str(root)), JOB), operators, options, metadata_version=metadata_version
    )
    coordinator.restore(snapshot, ClaimMode.CLAIM)
    number = coordinator.trigger_checkpoint().checkpoint_id
    assert number == snapshot.checkpoint_id + 1
    coordinator.complete(
        [
            TaskCheckpoint(number, operator.operator_id, state)
            for operator in metadata.operator_states
            for state in operator.subtasks
        ]
    )
    return root / JOB / f"chk-{number}"


@pytest.mark.parametrize("parallelism", [1, 3])
def test_flink_restores_a_checkpoint_on_top_of_its_own(version: str, parallelism: int, tmp_path: Path) -> None:
    case = find_case(line_of(version), "rocksdb-incremental")
    old = tmp_path / "old"
    shutil.copytree(case.folder, old)
    there = replace(case, folder=old, path=old / case.path.relative_to(case.folder))
    snapshot = there.open()
    directory = publish(snapshot, tmp_path / "new", METADATA_VERSION if version.startswith("1.") else 6)
    # Discarded, but for the files that the new one references.
    assert not (there.path / "_metadata").exists()
    assert not missing_files(snapshot)
    result = harness.restore(
        version, directory, JOBS[case.job](case.max_parallelism), backend="rocksdb", parallelism=parallelism
    )
    assert result.ok, result.error
    assert not (difference := harness.diff_entries(case.entries(), result.entries)), str(difference)
