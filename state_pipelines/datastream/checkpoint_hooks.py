"""Hooks of functions at checkpoints: operator state, and notifications; Java's interfaces in snake case."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from state_pipelines.datastream.operator_states import BackendOperatorStates
    from state_pipelines.datastream.states import KeyedStateStore


@dataclass(frozen=True)
class FunctionInitializationContext:
    """Context of the initialisation of a function (`org.apache.flink.runtime.state.FunctionInitializationContext`)."""

    checkpoint_id: int | None
    operator_states: BackendOperatorStates
    keyed_states: KeyedStateStore

    def is_restored(self) -> bool:
        """Return whether the subtask starts from a snapshot."""
        return self.checkpoint_id is not None

    def get_restored_checkpoint_id(self) -> int | None:
        """Return the id of the checkpoint that the subtask starts from; None if it starts without."""
        return self.checkpoint_id

    def get_operator_state_store(self) -> BackendOperatorStates:
        """Return the registration of operator states."""
        return self.operator_states

    def get_keyed_state_store(self) -> KeyedStateStore:
        """Return the registration of keyed states."""
        return self.keyed_states


@dataclass(frozen=True)
class FunctionSnapshotContext:
    """The checkpoint at hand (`org.apache.flink.runtime.state.FunctionSnapshotContext`)."""

    checkpoint_id: int
    timestamp: int

    def get_checkpoint_id(self) -> int:
        """Return the id of the checkpoint."""
        return self.checkpoint_id

    def get_checkpoint_timestamp(self) -> int:
        """Return the time at which the checkpoint was triggered, in epoch milliseconds."""
        return self.timestamp


class CheckpointedFunction(ABC):
    """Functions with operator state (`org.apache.flink.streaming.api.checkpoint.CheckpointedFunction`)."""

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Register states, and take over what was restored; called once, before `open`."""

    @abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Bring the states up to date; called before every snapshot."""


class CheckpointListener(ABC):
    """Functions that learn of the end of checkpoints (`org.apache.flink.api.common.state.CheckpointListener`)."""

    @abstractmethod
    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """React to a checkpoint that all subtasks have completed."""

    # Most listeners have nothing to undo.
    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:  # noqa: B027
        """React to a checkpoint that failed."""
