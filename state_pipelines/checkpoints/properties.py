"""Properties of checkpoints as runs make them (`CheckpointProperties`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.metadata.checkpoint import CheckpointType, SharingFilesStrategy, make_checkpoint_properties

if TYPE_CHECKING:
    from state_pipelines.metadata.checkpoint import CheckpointProperties

_FULL = CheckpointType("Full Checkpoint", SharingFilesStrategy.FORWARD)


def make_properties(*, full: bool = False) -> CheckpointProperties:
    """Make the properties of a checkpoint that stays when its run ends (`forCheckpoint`, `RETAIN_ON_CANCELLATION`).

    Args:
        full: all state is written again.
    """
    return make_checkpoint_properties(_FULL if full else CheckpointType())


def is_full(properties: CheckpointProperties) -> bool:
    """Return whether the checkpoint must write all state again."""
    return properties.checkpoint_type == _FULL
