"""Contexts of the element or timer at hand, for functions with a broadcast input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state_pipelines.datastream.broadcast_functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from state_pipelines.datastream.functions import KeyedTimerContext
from state_pipelines.errors import UsageError, Where

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from state_pipelines.datastream.descriptors import MapStateDescriptor, StateDescriptor
    from state_pipelines.datastream.function_operator import FunctionOperator
    from state_pipelines.datastream.keyed_states import BackendKeyedStates
    from state_pipelines.datastream.operator_states import TableBroadcastState
    from state_pipelines.datastream.states import BroadcastState, ReadOnlyBroadcastState
    from state_pipelines.datastream.timer_service import TimerService
    from state_pipelines.datastream.type_information import TypeInformation


class _Times:
    """Timestamp of the element or timer, times of the subtask, and its broadcast states.

    Args:
        operator: whose watermark and clock count.
        states: broadcast states by name.
    """

    def __init__(self, operator: FunctionOperator, states: Mapping[str, TableBroadcastState]) -> None:
        self._operator = operator
        self._states = states
        self._timestamp: int | None = None

    def set(self, timestamp: int | None) -> None:
        """Set the timestamp of an element."""
        self._timestamp = timestamp

    def timestamp(self) -> int | None:
        """Return the timestamp."""
        return self._timestamp

    def current_processing_time(self) -> int:
        """Return the processing time."""
        return self._operator.read_clock()

    def current_watermark(self) -> int:
        """Return the watermark."""
        return self._operator.watermark

    def _find_state(self, descriptor: MapStateDescriptor) -> TableBroadcastState:
        found = self._states.get(descriptor.name)
        if found is None or not found.descriptor.describes_same_state(descriptor):
            # The words of `CoBroadcastWithKeyedOperator`.
            raise UsageError(
                "The requested state does not exist. Check for typos in your state descriptor, or specify the state "
                "descriptor in the datastream.broadcast(...) call if you forgot to register it.",
                where=Where(state=descriptor.name),
                hint="Descriptors are an argument of the operator",
            )
        return found


class ReadOnlyContext(_Times, BroadcastProcessFunction.ReadOnlyContext):
    """Context of an element that is not broadcast."""

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        """Return a broadcast state for reading."""
        return self._find_state(state_descriptor).for_reading()


class BroadcastContext(_Times, BroadcastProcessFunction.Context):
    """Context of a broadcast element."""

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        """Return a broadcast state."""
        return self._find_state(state_descriptor)


class KeyedReadOnlyContext(KeyedTimerContext, _Times, KeyedBroadcastProcessFunction.OnTimerContext):
    """Context of an element with a key, or of a timer.

    Args:
        operator: whose watermark and clock count.
        states: broadcast states by name.
        timers: of the subtask.
    """

    def __init__(
        self, operator: FunctionOperator, states: Mapping[str, TableBroadcastState], timers: TimerService
    ) -> None:
        _Times.__init__(self, operator, states)
        KeyedTimerContext.__init__(self, timers)

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        """Return a broadcast state for reading."""
        return self._find_state(state_descriptor).for_reading()


class KeyedBroadcastContext(_Times, KeyedBroadcastProcessFunction.Context):
    """Context of a broadcast element beside a keyed input.

    Args:
        operator: whose watermark and clock count.
        states: broadcast states by name.
        keyed_states: of the subtask.
        key_type: of the keys.
    """

    def __init__(
        self,
        operator: FunctionOperator,
        states: Mapping[str, TableBroadcastState],
        keyed_states: BackendKeyedStates,
        key_type: TypeInformation,
    ) -> None:
        super().__init__(operator, states)
        self._keyed_states = keyed_states
        self._key_type = key_type

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        """Return a broadcast state."""
        return self._find_state(state_descriptor)

    def apply_to_keyed_state(self, state_descriptor: StateDescriptor, function: Callable[[Any, Any], None]) -> None:
        """Call a function with every key that has a value in a state, and the state."""
        state = self._keyed_states.register(state_descriptor)
        self._keyed_states.for_each_key(state, lambda key: function(self._key_type.from_internal_type(key), state))
