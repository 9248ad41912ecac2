"""The calls of the coordinator to the owner of the tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from state_pipelines.checkpoints.pending_checkpoint import CheckpointTrigger


class CheckpointOwner(Protocol):
    """The owner of the tasks, who forwards the calls of the coordinator to them."""

    def is_running(self) -> bool:
        """Return whether all tasks that must acknowledge are running."""

    def trigger_checkpoint(self, trigger: CheckpointTrigger) -> None:
        """Let all tasks take their snapshots; may acknowledge or decline before it returns.

        Raises:
            StateError: the tasks cannot be called.
        """

    def notify_complete(self, checkpoint_id: int) -> None:
        """A checkpoint was published (`CheckpointListener.notifyCheckpointComplete`)."""

    def notify_aborted(self, checkpoint_id: int) -> None:
        """A checkpoint that was triggered has failed (`notifyCheckpointAborted`)."""

    def notify_subsumed(self, checkpoint_id: int) -> None:
        """A completed checkpoint, and all before it, were discarded (`notifyCheckpointSubsumed`)."""

    def fail_job(self, message: str) -> None:
        """More checkpoints have failed than the options tolerate; the message has Flink's words."""
