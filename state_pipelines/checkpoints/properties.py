"""Properties of checkpoints and savepoints as the options of a job make them (`CheckpointProperties`)."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from state_pipelines.checkpoints.options import Retention
from state_pipelines.metadata.properties import (
    CheckpointProperties,
    CheckpointType,
    PostCheckpointAction,
    SavepointFormatType,
    SavepointType,
    SharingFilesStrategy,
    make_checkpoint_properties,
    make_savepoint_properties,
)

_FULL = CheckpointType("Full Checkpoint", SharingFilesStrategy.FORWARD)
_STOP_NAMES = {PostCheckpointAction.SUSPEND: "Suspend Savepoint", PostCheckpointAction.TERMINATE: "Terminate Savepoint"}


class CheckpointKind(Enum):
    """The kind of checkpoint that a user asks for (`org.apache.flink.core.execution.CheckpointType`)."""

    CONFIGURED = "configured"
    """As the options say."""
    FULL = "full"
    """All state is written again."""
    INCREMENTAL = "incremental"
    """Unchanged files are referenced, as far as the options allow."""


def make_properties(retention: Retention, kind: CheckpointKind = CheckpointKind.CONFIGURED) -> CheckpointProperties:
    """Make the properties of a checkpoint (`forCheckpoint`).

    Args:
        retention: when it is discarded.
        kind: whether it is full.
    """
    is_full = kind is CheckpointKind.FULL
    retained = make_checkpoint_properties(_FULL if is_full else CheckpointType())
    match retention:
        case Retention.RETAIN_ON_CANCELLATION:
            return retained
        case Retention.DELETE_ON_CANCELLATION:
            return replace(retained, discard_cancelled=True, discard_suspended=True)
        case Retention.NO_EXTERNALIZED_CHECKPOINTS:
            return replace(retained, discard_cancelled=True, discard_suspended=True, discard_failed=True)


def make_stop_properties(format_type: SavepointFormatType, action: PostCheckpointAction) -> CheckpointProperties:
    """Make the properties of a savepoint, after which the job may stop (`forSavepoint`, `forSyncSavepoint`)."""
    plain = make_savepoint_properties(format_type)
    if action is PostCheckpointAction.NONE:
        return plain
    return replace(plain, checkpoint_type=SavepointType(format_type, _STOP_NAMES[action], action))


def is_full(properties: CheckpointProperties) -> bool:
    """Return whether the checkpoint must write all state again."""
    return properties.checkpoint_type == _FULL
