"""Hooks of functions at checkpoints: operator state, and notifications; Java's interfaces in snake case."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from state_pipelines.datastream.states import OperatorStateStore

if TYPE_CHECKING:
    from state_pipelines.datastream.descriptors import ListStateDescriptor
    from state_pipelines.datastream.states import KeyedStateStore, ListState


class ListStateStore(OperatorStateStore):
    """Registration of operator states, with the list states that PyFlink does not have."""

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """Register a list state whose elements a new parallelism distributes evenly."""

    @abstractmethod
    def get_union_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """Register a list state whose elements every subtask gets all of on restore."""


class FunctionInitializationContext(ABC):
    """Context of the initialisation of a function (`org.apache.flink.runtime.state.FunctionInitializationContext`)."""

    @abstractmethod
    def is_restored(self) -> bool:
        """Return whether the subtask starts from a snapshot."""

    @abstractmethod
    def get_restored_checkpoint_id(self) -> int | None:
        """Return the id of the checkpoint that the subtask starts from; None if it starts without."""

    @abstractmethod
    def get_operator_state_store(self) -> ListStateStore:
        """Return the registration of operator states."""

    @abstractmethod
    def get_keyed_state_store(self) -> KeyedStateStore:
        """Return the registration of keyed states."""


class FunctionSnapshotContext(ABC):
    """The checkpoint at hand (`org.apache.flink.runtime.state.FunctionSnapshotContext`)."""

    @abstractmethod
    def get_checkpoint_id(self) -> int:
        """Return the id of the checkpoint."""

    @abstractmethod
    def get_checkpoint_timestamp(self) -> int:
        """Return the time at which the checkpoint was triggered, in epoch milliseconds."""


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
