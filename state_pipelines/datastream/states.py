"""The states that functions use (`pyflink.datastream.state`); every keyed state belongs to the current key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class State(ABC):
    """Base class of all states."""

    @abstractmethod
    def clear(self) -> None:
        """Remove what is stored for the current key."""


class ValueState(State, Generic[T]):
    """One value per key."""

    @abstractmethod
    def value(self) -> T | None:
        """Return the value; the default value of the descriptor, else None, if there is none."""

    @abstractmethod
    def update(self, value: T | None) -> None:
        """Set the value; None removes it.

        Raises:
            ValueRangeError: the value does not fit the type of the state.
        """


class AppendingState(State, Generic[IN, OUT]):
    """A state that values are added to."""

    @abstractmethod
    def get(self) -> OUT:
        """Return what has been added."""

    @abstractmethod
    def add(self, value: IN) -> None:
        """Add a value.

        Raises:
            ValueRangeError: the value does not fit the type of the state.
        """


class MergingState(AppendingState[IN, OUT]):
    """A state that is merged with that of other namespaces when session windows grow together."""


class ReducingState(MergingState[T, "T | None"]):
    """One value per key, combined from all that are added; None if there is none. Adding None removes it."""


class AggregatingState(MergingState[IN, OUT]):
    """The result of an aggregation per key; None if nothing was added. Adding None removes the accumulator."""


class ListState(MergingState[T, "Sequence[T]"]):
    """A list per key; elements are not null, and an empty list is not stored."""

    @abstractmethod
    def update(self, values: Sequence[T]) -> None:
        """Replace all elements.

        Raises:
            UsageError: None is given, or an element is None.
            ValueRangeError: an element does not fit the type of the state.
        """

    @abstractmethod
    def add_all(self, values: Sequence[T]) -> None:
        """Append elements.

        Raises:
            UsageError: None is given, or an element is None.
            ValueRangeError: an element does not fit the type of the state.
        """

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())


class ReadOnlyMap(State, Generic[K, V]):
    """Reading of a map by key; also with the syntax of dicts."""

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Return the value of a map key; None if it is not there."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Return whether a map key is there, with or without a value."""

    @abstractmethod
    def items(self) -> Iterable[tuple[K, V]]:
        """Return map keys and values at the time of the call; the order means nothing."""

    def keys(self) -> Iterable[K]:
        """Return the map keys at the time of the call."""
        return (key for key, _ in self.items())

    def values(self) -> Iterable[V]:
        """Return the map values at the time of the call."""
        return (value for _, value in self.items())

    def is_empty(self) -> bool:
        """Return whether there is no map key."""
        return next(iter(self.items()), None) is None

    def __getitem__(self, key: K) -> V | None:
        return self.get(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())


class MapState(ReadOnlyMap[K, V]):
    """A map per key; values are null only if their type allows it, and an empty map is not stored."""

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Set the value of a map key.

        Raises:
            ValueRangeError: key or value do not fit the types of the state.
        """

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove a map key, if it is there."""

    def put_all(self, dict_value: Mapping[K, V]) -> None:
        """Set the values of several map keys; the others stay."""
        for key, value in dict_value.items():
            self.put(key, value)

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)


class ReadOnlyBroadcastState(ReadOnlyMap[K, V]):
    """A broadcast state, for the side that must not change it."""


class BroadcastState(MapState[K, V], ReadOnlyBroadcastState[K, V]):
    """A map that is the same in all subtasks, because each gets all broadcast elements. It has no current key."""


class KeyedStateStore(ABC):
    """Registration of keyed states."""

    @abstractmethod
    def get_state(self, state_descriptor: Any) -> ValueState[Any]:
        """Register a value state.

        Args:
            state_descriptor: a `ValueStateDescriptor`.
        """

    @abstractmethod
    def get_list_state(self, state_descriptor: Any) -> ListState[Any]:
        """Register a list state.

        Args:
            state_descriptor: a `ListStateDescriptor`.
        """

    @abstractmethod
    def get_map_state(self, state_descriptor: Any) -> MapState[Any, Any]:
        """Register a map state.

        Args:
            state_descriptor: a `MapStateDescriptor`.
        """

    @abstractmethod
    def get_reducing_state(self, state_descriptor: Any) -> ReducingState[Any]:
        """Register a reducing state.

        Args:
            state_descriptor: a `ReducingStateDescriptor`.
        """

    @abstractmethod
    def get_aggregating_state(self, state_descriptor: Any) -> AggregatingState[Any, Any]:
        """Register an aggregating state.

        Args:
            state_descriptor: an `AggregatingStateDescriptor`.
        """


class OperatorStateStore(ABC):
    """Registration of operator states."""

    @abstractmethod
    def get_broadcast_state(self, state_descriptor: Any) -> BroadcastState[Any, Any]:
        """Register a broadcast state.

        Args:
            state_descriptor: a `MapStateDescriptor`.
        """
