"""Operators that run functions with a broadcast input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from state_pipelines.datastream.broadcast_contexts import (
    BroadcastContext,
    KeyedBroadcastContext,
    KeyedReadOnlyContext,
    ReadOnlyContext,
)
from state_pipelines.datastream.broadcast_functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from state_pipelines.datastream.function_operator import FunctionOperator
from state_pipelines.datastream.keyed_operator import KeyedOperator, find_key_function

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from state_pipelines.datastream.descriptors import MapStateDescriptor
    from state_pipelines.datastream.functions import KeySelector
    from state_pipelines.datastream.type_information import TypeDescription


class BroadcastProcessOperator(FunctionOperator):
    """Runs a `BroadcastProcessFunction` (`CoBroadcastWithNonKeyedOperator`).

    Args:
        function: that the user wrote.
        broadcast_state_descriptors: of the broadcast states.
        options: as of `FunctionOperator`.
    """

    function_types: ClassVar = (BroadcastProcessFunction,)
    function: BroadcastProcessFunction

    def __init__(
        self,
        function: BroadcastProcessFunction,
        broadcast_state_descriptors: Sequence[MapStateDescriptor],
        **options: Any,
    ) -> None:
        super().__init__(function, **options)
        self._descriptors = broadcast_state_descriptors

    def process(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Process an element of the input that is not broadcast.

        Args:
            value: the element.
            timestamp: epoch milliseconds of event time; None without.

        Returns:
            What the function emits.
        """
        self._context.set(timestamp)
        return self._collect(self.function.process_element(value, self._context), [])

    def process_broadcast(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Process a broadcast element; as `process`."""
        self._broadcast_context.set(timestamp)
        return self._collect(self.function.process_broadcast_element(value, self._broadcast_context), [])

    def _open_contexts(self) -> None:
        states = {each.name: self.operator_states.get_broadcast_state(each) for each in self._descriptors}
        self._context = ReadOnlyContext(self, states)
        self._broadcast_context = BroadcastContext(self, states)


class KeyedBroadcastProcessOperator(KeyedOperator):
    """Runs a `KeyedBroadcastProcessFunction` (`CoBroadcastWithKeyedOperator`).

    Args:
        function: that the user wrote.
        key_selector: finds the key of an element of the keyed input.
        key_type: type of the keys, or another description of it (see `Types.of`).
        broadcast_state_descriptors: of the broadcast states.
        options: as of `KeyedOperator`.
    """

    function_types: ClassVar = (KeyedBroadcastProcessFunction,)
    function: KeyedBroadcastProcessFunction

    def __init__(
        self,
        function: KeyedBroadcastProcessFunction,
        key_selector: KeySelector | Callable[[Any], Any],
        key_type: TypeDescription,
        broadcast_state_descriptors: Sequence[MapStateDescriptor],
        **options: Any,
    ) -> None:
        super().__init__(function, key_type, **options)
        self._get_key = find_key_function(key_selector)
        self._descriptors = broadcast_state_descriptors

    def process(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Process an element of the keyed input; as `BroadcastProcessOperator.process`."""
        return self._process(self._get_key(value), value, timestamp)

    def _process(self, key: Any, value: Any, timestamp: int | None) -> list[Any]:
        self._set_key(key)
        self._context.set_key(key, timestamp)
        return self._collect(self.function.process_element(value, self._context), [])

    def process_broadcast(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Process a broadcast element, without a current key; as `BroadcastProcessOperator.process`."""
        self.backend.clear_current_key()
        self._broadcast_context.set(timestamp)
        return self._collect(self.function.process_broadcast_element(value, self._broadcast_context), [])

    def _open_contexts(self) -> None:
        super()._open_contexts()
        states = {each.name: self.operator_states.get_broadcast_state(each) for each in self._descriptors}
        self._context = KeyedReadOnlyContext(self, states, self._timers)
        self._broadcast_context = KeyedBroadcastContext(self, states, self._states, self._key_type)
