"""Keyed states without TTL, over the tables of a keyed state backend."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from state_pipelines.datastream.states import AggregatingState, ListState, MapState, ReducingState, State, ValueState
from state_pipelines.datastream.type_information import convert_elements
from state_pipelines.errors import UsageError, Where, at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state_pipelines.backends.state_access import StateTable
    from state_pipelines.datastream.descriptors import (
        AggregatingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        StateDescriptor,
        ValueStateDescriptor,
    )
    from state_pipelines.datastream.type_information import TypeInformation


class TableState(State):
    """A state of the current key and namespace.

    Args:
        descriptor: that the state is registered with.
        table: of the backend.
    """

    def __init__(self, descriptor: StateDescriptor, table: StateTable) -> None:
        self.descriptor = descriptor
        self._table = table
        self._namespace: Any = None

    def set_current_namespace(self, namespace: Any) -> None:
        """Make a namespace the current one; None is the void namespace."""
        self._namespace = namespace

    def clear(self) -> None:
        """Remove what is stored for the current key."""
        self._table.remove(self._namespace)

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Move what is stored for some namespaces of the current key to another one (`InternalMergingState`)."""
        raise UsageError(
            f"{self.descriptor.state_type} state cannot be merged", where=Where(state=self.descriptor.name)
        )


class TableValueState(TableState, ValueState[Any]):
    """`ValueState` over a table."""

    def __init__(self, descriptor: ValueStateDescriptor, table: StateTable) -> None:
        super().__init__(descriptor, table)
        self._type = descriptor.type_info
        self._is_converted = self._type.need_conversion()
        self._default = descriptor.default_value

    def value(self) -> Any:
        """Return the value, else the default value."""
        stored = self._table.get(self._namespace)
        if stored is None:
            return copy.deepcopy(self._default)
        return self._type.from_internal_type(stored) if self._is_converted else stored

    def update(self, value: Any) -> None:
        """Set the value; None removes it."""
        if value is not None and self._is_converted:
            value = convert(self._type, value, self.descriptor.name)
        self._table.put(value, self._namespace)


class TableListState(TableState, ListState[Any]):
    """`ListState` over a table."""

    def __init__(self, descriptor: ListStateDescriptor, table: StateTable) -> None:
        super().__init__(descriptor, table)
        self._elements = ElementConversion(descriptor)

    def get(self) -> Sequence[Any]:
        """Return the elements."""
        return self._elements.read(self._table.get(self._namespace) or [])

    def add(self, value: Any) -> None:
        """Append an element."""
        self._table.append(self._elements.write([value]), self._namespace)

    def add_all(self, values: Sequence[Any]) -> None:
        """Append elements."""
        self._table.append(self._elements.write(values), self._namespace)

    def update(self, values: Sequence[Any]) -> None:
        """Replace all elements."""
        self._table.put(self._elements.write(values), self._namespace)

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Append the elements of the sources, with TTL those with their times of last access, to the target's."""
        for source in sources:
            stored = self._table.get(source)
            if stored is not None:
                self._table.remove(source)
                self._table.append(stored, target)


class TableMapState(TableState, MapState[Any, Any]):
    """`MapState` over a table."""

    def __init__(self, descriptor: MapStateDescriptor, table: StateTable) -> None:
        super().__init__(descriptor, table)
        self._key = descriptor.type_info.key_type
        self._value = descriptor.type_info.value_type

    def get(self, key: Any) -> Any:
        """Return the value of a map key."""
        stored = self._table.get_entry(self._write_key(key), self._namespace)
        return None if stored is None else self._value.from_internal_type(stored)

    def contains(self, key: Any) -> bool:
        """Return whether a map key is there."""
        return self._table.has_entry(self._write_key(key), self._namespace)

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a map key."""
        name = self.descriptor.name
        converted = None if value is None else convert(self._value, value, name)
        self._table.put_entry(self._write_key(key), converted, self._namespace)

    def put_all(self, dict_value: Mapping[Any, Any]) -> None:
        """Set the values of several map keys, none of them if one does not fit."""
        if dict_value is None:
            return
        name = self.descriptor.name
        pairs = [
            (self._write_key(key), None if value is None else convert(self._value, value, name))
            for key, value in dict_value.items()
        ]
        for key, value in pairs:
            self._table.put_entry(key, value, self._namespace)

    def remove(self, key: Any) -> None:
        """Remove a map key."""
        self._table.remove_entry(self._write_key(key), self._namespace)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Return map keys and values."""
        read_key, read_value = self._key.from_internal_type, self._value.from_internal_type
        for key, value in self._table.entries(self._namespace):
            yield read_key(key), None if value is None else read_value(value)

    def _write_key(self, key: Any) -> Any:
        return convert(self._key, key, self.descriptor.name) if self._key.need_conversion() else key


class CombinedState(TableState):
    """A state of one value per key and namespace, which values that are added are combined with."""

    def __init__(self, descriptor: StateDescriptor, table: StateTable) -> None:
        super().__init__(descriptor, table)
        self._type = descriptor.type_info

    def add(self, value: Any) -> None:
        """Combine a value with that of the state; None removes it (`HeapReducingState`, `HeapAggregatingState`)."""
        if value is None:
            self._table.remove(self._namespace)
            return
        self._store(self._combine(self._load(self._namespace), value), self._namespace)

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Merge the values of the sources, then that of the target, into the target."""
        merged: Any = None
        for namespace in (*sources, target):
            value = self._take(namespace)
            if value is not None:
                merged = value if merged is None else self._merge(merged, value)
        if merged is not None:
            self._store(merged, target)

    @abstractmethod
    def _combine(self, before: Any, value: Any) -> Any:
        """Combine the stored value, or None, with one that is added."""

    @abstractmethod
    def _merge(self, first: Any, second: Any) -> Any:
        """Combine two stored values."""

    def _read(self) -> Any:
        """Return the value for a read."""
        return self._load(self._namespace)

    def _load(self, namespace: Any) -> Any:
        """Return the stored value of a namespace; None if there is none."""
        stored = self._table.get(namespace)
        return None if stored is None else self._type.from_internal_type(stored)

    def _take(self, namespace: Any) -> Any:
        """Remove the stored value of a namespace, and return it; None if there is none."""
        value = self._load(namespace)
        if value is not None:
            self._table.remove(namespace)
        return value

    def _store(self, value: Any, namespace: Any) -> None:
        self._table.put(convert(self._type, value, self.descriptor.name), namespace)


class TableReducingState(CombinedState, ReducingState[Any]):
    """`ReducingState` over a table."""

    def __init__(self, descriptor: ReducingStateDescriptor, table: StateTable) -> None:
        super().__init__(descriptor, table)
        self._reduce = descriptor.get_reduce_function().reduce

    def get(self) -> Any:
        """Return the combined value."""
        return self._read()

    def _combine(self, before: Any, value: Any) -> Any:
        return value if before is None else self._reduce(before, value)

    def _merge(self, first: Any, second: Any) -> Any:
        return self._reduce(first, second)

    def _store(self, value: Any, namespace: Any) -> None:
        if value is None:
            self._table.put(None, namespace)
        else:
            super()._store(value, namespace)


class TableAggregatingState(CombinedState, AggregatingState[Any, Any]):
    """`AggregatingState` over a table, which stores the accumulator."""

    def __init__(self, descriptor: AggregatingStateDescriptor, table: StateTable) -> None:
        super().__init__(descriptor, table)
        self._function = descriptor.get_agg_function()

    def get(self) -> Any:
        """Return the result of the accumulator."""
        accumulator = self._read()
        return None if accumulator is None else self._function.get_result(accumulator)

    def _combine(self, before: Any, value: Any) -> Any:
        return self._function.add(value, self._function.create_accumulator() if before is None else before)

    def _merge(self, first: Any, second: Any) -> Any:
        return self._function.merge(first, second)


class ElementConversion:
    """Conversion of the elements of a list state.

    Args:
        descriptor: of the state.
    """

    def __init__(self, descriptor: ListStateDescriptor) -> None:
        self._name = descriptor.name
        self._type = descriptor.type_info.elem_type
        self._is_converted = self._type.need_conversion()

    def read(self, stored: Sequence[Any]) -> list[Any]:
        """Convert elements to those of Python."""
        return [self._type.from_internal_type(each) for each in stored] if self._is_converted else list(stored)

    def write(self, values: Sequence[Any]) -> list[Any]:
        """Convert elements to those of the scalar codec.

        Raises:
            UsageError: there is no list, or an element is None.
            ValueRangeError: an element does not fit the type.
        """
        if values is None:
            raise UsageError("List of values to add cannot be null.", where=Where(state=self._name))
        with at(state=self._name):
            given = list(values)
            if any(each is None for each in given):
                raise UsageError("You cannot add null to a ListState.")
            return convert_elements(given, self._type)


def convert(of: TypeInformation, value: Any, state: str) -> Any:
    """Convert a value to that of the scalar codec; errors name the state."""
    with at(state=state):
        return of.to_internal_type(value)
