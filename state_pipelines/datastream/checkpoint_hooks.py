"""Hooks of functions at checkpoints: operator state, and notifications; Java's interfaces in snake case."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.backends.raw_streams import RawKeyedOutput, RawOperatorOutput, RawState
    from state_pipelines.datastream.operator_states import BackendOperatorStates
    from state_pipelines.datastream.states import KeyedStateStore


@dataclass(frozen=True)
class FunctionInitializationContext:
    """Context of the initialisation of a function (`org.apache.flink.runtime.state.FunctionInitializationContext`).

    In Java raw state is for operators alone (`StateInitializationContext`).
    """

    checkpoint_id: int | None
    operator_states: BackendOperatorStates
    keyed_states: KeyedStateStore
    raw_state: RawState

    def get_raw_keyed_state_inputs(self) -> Iterator[tuple[int, bytes]]:
        """Return (key group, bytes) of the restored raw keyed state; what is not read is part of the next snapshot."""
        return self.raw_state.take_keyed()

    def get_raw_operator_state_inputs(self) -> Iterator[bytes]:
        """Return the partitions of the restored raw operator state; as for raw keyed state."""
        return self.raw_state.take_partitions()

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
    """The checkpoint at hand (`org.apache.flink.runtime.state.FunctionSnapshotContext`).

    In Java raw state is for operators alone (`StateSnapshotContext`).
    """

    checkpoint_id: int
    timestamp: int
    raw_operator_output: RawOperatorOutput
    raw_keyed_output: RawKeyedOutput | None

    def get_raw_keyed_operator_state_output(self) -> RawKeyedOutput:
        """Return what takes bytes by key group, which nobody but the function can read.

        Raises:
            UsageError: the operator has no keys.
        """
        if self.raw_keyed_output is None:
            raise UsageError("an operator without keys has no raw keyed state", hint="Write raw operator state")
        return self.raw_keyed_output

    def get_raw_operator_state_output(self) -> RawOperatorOutput:
        """Return what takes partitions of bytes, which a rescale distributes among the subtasks."""
        return self.raw_operator_output

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
