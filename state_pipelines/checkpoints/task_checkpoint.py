"""The value with which a subtask acknowledges a checkpoint, and its bytes.

Source: `AcknowledgeCheckpoint`, `CheckpointMetrics`. The bytes travel from a task to the coordinator of the same
release; the state inside is in the format of `_metadata`.
"""

from __future__ import annotations

from dataclasses import dataclass

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.metadata.checkpoint import VERSIONS, SubtaskState, read_subtask_state, write_subtask_state
from state_pipelines.storage.files import RecordedFile

_MAGIC = 0x5443_6870
# The newest version stores every field.
_VERSION = VERSIONS[-1]


@dataclass(frozen=True, slots=True)
class TaskCheckpoint:
    """The snapshot of one operator in one subtask.

    Attributes:
        checkpoint_id: the checkpoint.
        operator_id: 16 bytes.
        state: handles by the subtask's index.
        state_size: bytes of all state that the handles name.
        persisted_size: bytes that this checkpoint added; less than `state_size` where files are shared.
        millis: duration of the snapshot and its upload, in milliseconds; the processing of input is none of it.
        files: written to the directory of the checkpoint, with their checksums, for its manifest.
        metadata_version: oldest version of `_metadata` that says how the values are written; 0 for any.
    """

    checkpoint_id: int
    operator_id: bytes
    state: SubtaskState
    state_size: int = 0
    persisted_size: int = 0
    millis: int = 0
    files: tuple[RecordedFile, ...] = ()
    metadata_version: int = 0


def write_task_checkpoint(checkpoint: TaskCheckpoint) -> bytes:
    """Write an acknowledgement.

    Raises:
        ValueRangeError: a handle cannot be stored.
    """
    writer = Writer()
    writer.i32(_MAGIC)
    writer.i64(checkpoint.checkpoint_id)
    writer.bytes32(checkpoint.operator_id)
    for number in (
        checkpoint.state_size,
        checkpoint.persisted_size,
        checkpoint.millis,
        checkpoint.metadata_version,
    ):
        writer.i64(number)
    writer.i32(len(checkpoint.files))
    for file in checkpoint.files:
        writer.utf(file.name)
        writer.i64(file.size)
        writer.utf(file.checksum or "")
    write_subtask_state(writer, checkpoint.state, _VERSION)
    return writer.getvalue()


def read_task_checkpoint(data: bytes, name: str | None = None) -> TaskCheckpoint:
    """Read what `write_task_checkpoint` writes.

    Args:
        data: the bytes.
        name: where they are from, for errors.

    Raises:
        FormatError: they are not an acknowledgement, end early or go on after its end.
    """
    reader = Reader(data, name)
    if reader.remaining < 4 or reader.i32() != _MAGIC:
        raise reader.error("not an acknowledgement of a checkpoint", 0)
    checkpoint_id, operator_id = reader.i64(), reader.bytes32()
    state_size, persisted_size, millis, version = (reader.i64() for _ in range(4))
    files = tuple(RecordedFile(reader.utf(), reader.i64(), reader.utf() or None) for _ in range(reader.count(12)))
    state = read_subtask_state(reader, _VERSION)
    reader.expect_end("the acknowledgement")
    return TaskCheckpoint(
        checkpoint_id,
        operator_id,
        state,
        state_size,
        persisted_size,
        millis,
        files,
        version,
    )
