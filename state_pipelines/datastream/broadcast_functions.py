"""Functions with a broadcast input (`pyflink.datastream.functions`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from state_pipelines.datastream.aggregations import Function

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.datastream.descriptors import MapStateDescriptor
    from state_pipelines.datastream.functions import Output
    from state_pipelines.datastream.states import BroadcastState, ReadOnlyBroadcastState
    from state_pipelines.datastream.timer_service import TimeDomain, TimerService


class BaseBroadcastProcessFunction(Function, ABC):
    """Base class of the functions with a broadcast input."""

    class BaseContext(ABC):
        """Times; valid during the call only."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Return the timestamp of the element or timer in epoch milliseconds; None if it has none."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """Return the processing time in epoch milliseconds."""

        @abstractmethod
        def current_watermark(self) -> int:
            """Return the watermark in epoch milliseconds."""

    class Context(BaseContext):
        """Context of the broadcast side, which may change broadcast state."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
            """Return a broadcast state.

            Raises:
                UsageError: the operator was not given its descriptor.
            """

    class ReadOnlyContext(BaseContext):
        """Context of the other side, which may only read broadcast state."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
            """Return a broadcast state for reading.

            Raises:
                UsageError: the operator was not given its descriptor.
            """


class BroadcastProcessFunction(BaseBroadcastProcessFunction):
    """Processes an input without keys and a broadcast one."""

    class Context(BaseBroadcastProcessFunction.Context):
        """Context of `process_broadcast_element`."""

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext):
        """Context of `process_element`."""

    @abstractmethod
    def process_element(self, value: Any, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Output:
        """Process an element of the input that is not broadcast, and yield what is emitted."""

    @abstractmethod
    def process_broadcast_element(self, value: Any, ctx: BroadcastProcessFunction.Context) -> Output:
        """Process a broadcast element, and yield what is emitted."""


class KeyedBroadcastProcessFunction(BaseBroadcastProcessFunction):
    """Processes a keyed input and a broadcast one, with keyed state and timers."""

    class Context(BaseBroadcastProcessFunction.Context):
        """Context of `process_broadcast_element`, which has no current key."""

        @abstractmethod
        def apply_to_keyed_state(self, state_descriptor: Any, function: Callable[[Any, Any], None]) -> None:
            """Call a function with every key of the subtask that has a value in a state, and the state (as in Java).

            Args:
                state_descriptor: of a state that the function has registered.
                function: takes the key and the state of that key.
            """

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext):
        """Context of `process_element`."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Return current times, and the timers of the key."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Return the key of the element or timer."""

    class OnTimerContext(ReadOnlyContext):
        """Context of `on_timer`."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Return the time that the timer has waited for."""

    @abstractmethod
    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Output:
        """Process an element of the keyed input, and yield what is emitted."""

    @abstractmethod
    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> Output:
        """Process a broadcast element, and yield what is emitted."""

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Output:
        """React to a timer, and yield what is emitted."""
        return None
