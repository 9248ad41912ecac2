"""Small files of state, inlined in `_metadata` (`FsCheckpointStateOutputStream`, `data-inline-threshold`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.metadata import (
    CheckpointMetadata,
    OperatorState,
    SubtaskState,
    list_references,
    replace_stream_handles,
)
from state_pipelines.metadata.handles import ByteStreamStateHandle, RelativeFileStateHandle
from state_pipelines.storage import Location, join, read_file
from state_pipelines.storage.files import remove_file

if TYPE_CHECKING:
    from state_pipelines.metadata.handles import StreamStateHandle
    from state_pipelines.metadata.references import StreamReference


def measure_state(state: SubtaskState) -> int:
    """Return the bytes of all streams of a subtask."""
    references = list_references(_wrap(state))
    return sum(
        len(each.handle.data) if isinstance(each.handle, ByteStreamStateHandle) else getattr(each.handle, "size", 0)
        for each in references
    )


def inline_small_files(state: SubtaskState, directory: Location, threshold: int) -> SubtaskState:
    """Move the files that a subtask has written to the directory of a checkpoint into their handles, if they are small.

    Args:
        state: of the subtask.
        directory: of the checkpoint.
        threshold: files of this size are the largest that move.

    Raises:
        StateError: a file cannot be read or removed.
    """

    def inline(reference: StreamReference) -> StreamStateHandle:
        handle = reference.handle
        if not isinstance(handle, RelativeFileStateHandle) or handle.size > threshold:
            return handle
        location = join(directory, handle.relative_path)
        data = read_file(location)
        remove_file(location)
        return ByteStreamStateHandle(location.url, data)

    (operator,) = replace_stream_handles(_wrap(state), inline).operator_states
    return operator.subtasks[0]


def _wrap(state: SubtaskState) -> CheckpointMetadata:
    return CheckpointMetadata(3, 0, (), (OperatorState(bytes(16), 1, 1, (state,)),))
