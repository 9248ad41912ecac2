"""Operators for tests: a function that does what a test says to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state_pipelines.datastream import KeyedProcessFunction, KeyedProcessOperator, ManualClock, Types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from state_pipelines.datastream import RuntimeContext
    from state_pipelines.datastream.functions import StateDescriptor

GETTERS = {
    "VALUE": "get_state",
    "LIST": "get_list_state",
    "MAP": "get_map_state",
    "REDUCING": "get_reducing_state",
    "AGGREGATING": "get_aggregating_state",
}


class Scripted(KeyedProcessFunction):
    """Registers states, and calls the functions that it gets as elements: (key, function of states and context)."""

    def __init__(
        self, *descriptors: StateDescriptor, on_timer: Callable[..., Iterable[Any] | None] | None = None
    ) -> None:
        self.descriptors = descriptors
        self.react = on_timer
        self.states: list[Any] = []
        self.is_closed = False

    def open(self, runtime_context: RuntimeContext) -> None:
        self.context = runtime_context
        self.states = [getattr(runtime_context, GETTERS[each.state_type])(each) for each in self.descriptors]

    def close(self) -> None:
        self.is_closed = True

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        emitted: Iterable[Any] | None = value[1](*self.states, ctx)
        return emitted

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        return None if self.react is None else self.react(timestamp, ctx, *self.states)


class Script:
    """One subtask with the states of some descriptors, and a clock that a test sets."""

    def __init__(self, *descriptors: StateDescriptor, now: int = 1000, **options: Any) -> None:
        self.clock = ManualClock(now)
        self.function = Scripted(*descriptors, on_timer=options.pop("on_timer", None))
        key_type = options.pop("key_type", Types.STRING())
        restored = options.pop("restored", None)
        self.operator = KeyedProcessOperator(
            self.function, lambda element: element[0], key_type, clock=self.clock, **options
        )
        self.operator.open(restored)

    def run(self, function: Callable[..., Any], key: Any = "a") -> Any:
        """Return what a function of the states returns for a key."""
        return self.operator.process((key, lambda *states: [function(*states[:-1])]))[0]
