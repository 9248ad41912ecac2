"""Functions that users write (`pyflink.datastream.functions`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from state_pipelines.datastream.aggregations import Function
from state_pipelines.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from state_pipelines.datastream.timer_service import TimeDomain, TimerService

    Output = Iterable[Any] | None
    """Values that a call emits; a pair of `OutputTag` and value goes to a side output."""


class KeySelector(Function, ABC):
    """Finds the key of an element."""

    @abstractmethod
    def get_key(self, value: Any) -> Any:
        """Return the key; the same for the same value."""


class KeyedContext:
    """Key, timestamp and timers of the element at hand; valid during the call only.

    Args:
        timers: of the subtask.
    """

    def __init__(self, timers: TimerService) -> None:
        self._timers = timers
        self._key: Any = None
        self._timestamp: int | None = None
        self._domain: TimeDomain | None = None

    def set_key(self, key: Any, timestamp: int | None, domain: TimeDomain | None = None) -> None:
        """Set key and timestamp of an element or timer, and what a timer has waited for."""
        self._key, self._timestamp, self._domain = key, timestamp, domain

    def get_current_key(self) -> Any:
        """Return the key of the element or timer."""
        return self._key

    def timer_service(self) -> TimerService:
        """Return current times, and the timers of the key."""
        return self._timers

    def timestamp(self) -> int | None:
        """Return the timestamp of the element or timer in epoch milliseconds; None if it has none."""
        return self._timestamp


class KeyedTimerContext(KeyedContext):
    """As `KeyedContext`, for an element or a timer."""

    def time_domain(self) -> TimeDomain:
        """Return the time that the timer has waited for.

        Raises:
            UsageError: no timer fires.
        """
        if self._domain is None:
            raise UsageError("time_domain is called outside of on_timer")
        return self._domain


class KeyedProcessFunction(Function, ABC):
    """Processes the elements of one input, with keyed state and timers."""

    class Context(KeyedContext):
        """Context of `process_element`."""

    class OnTimerContext(KeyedTimerContext, Context):
        """Context of `on_timer`."""

    @abstractmethod
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Output:
        """Process an element, and yield what is emitted."""

    # Functions without timers do not have to write it.
    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Output:
        """React to a timer, and yield what is emitted."""
        return None


class KeyedCoProcessFunction(Function, ABC):
    """Processes the elements of two inputs with the same keys, with common keyed state and timers."""

    class Context(KeyedContext):
        """Context of `process_element1` and `process_element2`."""

    class OnTimerContext(KeyedTimerContext, Context):
        """Context of `on_timer`."""

    @abstractmethod
    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Output:
        """Process an element of the first input, and yield what is emitted."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Output:
        """Process an element of the second input, and yield what is emitted."""

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Output:
        """React to a timer, and yield what is emitted."""
        return None


class ElementContext(KeyedProcessFunction.OnTimerContext, KeyedCoProcessFunction.OnTimerContext):
    """Context of an element or a timer of a keyed input, as operators make it."""


def require_function(function: object, wanted: Sequence[type[Function]], taker: str) -> None:
    """Refuse an object that is not a function of certain classes.

    Args:
        function: that a user gives.
        wanted: the classes.
        taker: what runs the function, for errors.

    Raises:
        UsageError: it is an instance of none of them.
    """
    if isinstance(function, tuple(wanted)):
        return
    names = " or ".join(each.__name__ for each in wanted)
    if isinstance(function, type):
        hint = f"{function.__name__} is a class: give an object of it, {function.__name__}()"
    elif isinstance(function, Function):
        bases = [each.__name__ for each in type(function).__mro__ if each.__module__.startswith(__package__)]
        hint = f"{type(function).__name__} is a {bases[0]}, which another operator runs"
    else:
        hint = f"Derive its class from {names} of state_pipelines.datastream"
    raise UsageError(f"{taker} runs a {names}, and {function!r:.80} is none", hint=hint)
