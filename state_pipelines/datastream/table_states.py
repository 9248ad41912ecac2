"""Keyed states with and without TTL, and operator states, over the backends of a subtask.

Keyed states with TTL: every value, list element and map value has its own time of last access. Source: `TtlValueState`,
`TtlListState`, `TtlMapState`, `TtlReducingState`, `TtlAggregatingState`.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from state_pipelines.datastream.functions import (
    AggregatingState,
    BroadcastState,
    FunctionState,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    OperatorStateStore,
    ReadOnlyBroadcastState,
    ReducingState,
    ValueState,
)
from state_pipelines.datastream.ttl import TtlCleaner, TtlRules
from state_pipelines.datastream.type_information import convert_elements
from state_pipelines.errors import UsageError, Where, at
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.state_meta_info import BackendStateType, broadcast_state, operator_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state_pipelines.backends.keyed_backend import KeyedStateBackend, StateTable
    from state_pipelines.backends.operator_backend import HeapBroadcastState, OperatorList, OperatorStateBackend
    from state_pipelines.datastream.functions import (
        AggregatingStateDescriptor,
        ReducingStateDescriptor,
        StateDescriptor,
        ValueStateDescriptor,
    )
    from state_pipelines.datastream.ttl import Clock, Stamped
    from state_pipelines.datastream.type_information import TypeInformation


class TableState(FunctionState):
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


class TtlState(TableState):
    """A state whose values expire.

    Args:
        descriptor: with a configuration of TTL.
        table: of the backend.
        backend: of the subtask.
        clock: processing time.
    """

    def __init__(
        self, descriptor: StateDescriptor, table: StateTable, backend: KeyedStateBackend, clock: Clock
    ) -> None:
        super().__init__(descriptor, table)
        config = descriptor.ttl_config
        assert config is not None
        self._rules = TtlRules(config, clock)
        self._cleaner = TtlCleaner(table, backend, self._rules, self.prune)
        self._is_cleaned_in_snapshots = config.get_cleanup_strategies().in_full_snapshot()
        strategy = config.get_cleanup_strategies().get_incremental_cleanup_strategy()
        self._clean_size = 0 if strategy is None else strategy.get_cleanup_size()
        self.is_cleaned_by_records = strategy is not None and strategy.run_cleanup_for_every_record()

    def prune(self, namespace: Any) -> list[int]:
        """Remove the value of the current key if it has expired; return the time of last access if it stays."""
        stored = self._table.get(namespace)
        if stored is None:
            return []
        if self._rules.is_expired(stored):
            self._table.remove(namespace)
            return []
        return [stored["last_access"]]

    def clean_some(self) -> None:
        """Look at the next keys of the incremental clean-up."""
        if self._clean_size:
            self._cleaner.clean(self._clean_size)

    def clean_for_snapshot(self) -> None:
        """Remove all expired values, if the state is cleaned up in full snapshots."""
        if self._is_cleaned_in_snapshots:
            self._cleaner.clean_all()

    def clear(self) -> None:
        """Remove what is stored for the current key."""
        self.clean_some()
        super().clear()

    def _read_single(self) -> Stamped | None:
        """Return the only value of the current key, by the rules."""
        self.clean_some()
        namespace = self._namespace
        return self._rules.read(
            self._table.get(namespace),
            lambda stamped: self._table.put(stamped, namespace),
            lambda: self._table.remove(namespace),
        )

    def _find_visible(self, namespace: Any) -> Stamped | None:
        stored: Stamped | None = self._table.get(namespace)
        return stored if stored is not None and self._rules.is_visible(stored) else None


class TtlValueState(TtlState, ValueState[Any]):
    """`ValueState` with TTL; the default value of its descriptor does not count."""

    def value(self) -> Any:
        """Return the value; None if it has expired."""
        stored = self._read_single()
        return None if stored is None else self.descriptor.type_info.from_internal_type(stored["value"])

    def update(self, value: Any) -> None:
        """Set the value; None removes it."""
        self.clean_some()
        if value is None:
            self._table.remove(self._namespace)
            return
        converted = convert(self.descriptor.type_info, value, self.descriptor.name)
        self._table.put(self._rules.stamp(converted), self._namespace)


class TtlListState(TtlState, TableListState):
    """`ListState` with TTL of every element."""

    def get(self) -> Sequence[Any]:
        """Return the elements that have not expired."""
        self.clean_some()
        stored = self._table.get(self._namespace) or []
        alive = [each for each in stored if not self._rules.is_expired(each)]
        if stored and not alive:
            self._table.remove(self._namespace)
        elif alive and self._rules.is_prolonged_by_read:
            self._table.put([self._rules.stamp(each["value"]) for each in alive], self._namespace)
        shown = stored if self._rules.returns_expired else alive
        return self._elements.read([each["value"] for each in shown])

    def add(self, value: Any) -> None:
        """Append an element."""
        self.add_all([value])

    def add_all(self, values: Sequence[Any]) -> None:
        """Append elements."""
        self.clean_some()
        self._table.append(self._stamp_all(values), self._namespace)

    def update(self, values: Sequence[Any]) -> None:
        """Replace all elements."""
        self.clean_some()
        self._table.put(self._stamp_all(values), self._namespace)

    def prune(self, namespace: Any) -> list[int]:
        """Remove the expired elements of the current key; return the times of last access of the others."""
        stored = self._table.get(namespace) or []
        alive = [each for each in stored if not self._rules.is_expired(each)]
        if len(alive) != len(stored):
            self._table.put(alive, namespace)
        return [each["last_access"] for each in alive]

    def _stamp_all(self, values: Sequence[Any]) -> list[Stamped]:
        return [self._rules.stamp(each) for each in self._elements.write(values)]


class TtlMapState(TtlState, MapState[Any, Any]):
    """`MapState` with TTL of every map value."""

    def __init__(
        self, descriptor: MapStateDescriptor, table: StateTable, backend: KeyedStateBackend, clock: Clock
    ) -> None:
        super().__init__(descriptor, table, backend, clock)
        self._key = descriptor.type_info.key_type
        self._value = descriptor.type_info.value_type

    def get(self, key: Any) -> Any:
        """Return the value of a map key; None if it has expired."""
        stored = self._read_entry(key)
        return None if stored is None else self._show(stored)

    def contains(self, key: Any) -> bool:
        """Return whether a map key is there and has not expired."""
        return self._read_entry(key) is not None

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a map key."""
        self.clean_some()
        name = self.descriptor.name
        converted = None if value is None else convert(self._value, value, name)
        self._table.put_entry(convert(self._key, key, name), self._rules.stamp(converted), self._namespace)

    def remove(self, key: Any) -> None:
        """Remove a map key."""
        self.clean_some()
        self._table.remove_entry(convert(self._key, key, self.descriptor.name), self._namespace)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Return map keys and values that have not expired."""
        self.clean_some()
        for key, stored in self._table.entries(self._namespace):
            shown = self._apply(key, stored)
            if shown is not None:
                yield self._key.from_internal_type(key), self._show(shown)

    def is_empty(self) -> bool:
        """Return whether there is no map key, expired or not (`TtlMapState.isEmpty`)."""
        self.clean_some()
        return next(iter(self._table.entries(self._namespace)), None) is None

    def prune(self, namespace: Any) -> list[int]:
        """Remove the expired entries of the current key; return the times of last access of the others."""
        kept: list[int] = []
        for key, stored in self._table.entries(namespace):
            if stored is None or not self._rules.is_expired(stored):
                kept += [] if stored is None else [stored["last_access"]]
            else:
                self._table.remove_entry(key, namespace)
        return kept

    def _read_entry(self, key: Any) -> Stamped | None:
        self.clean_some()
        written = convert(self._key, key, self.descriptor.name)
        return self._apply(written, self._table.get_entry(written, self._namespace))

    def _apply(self, key: Any, stored: Stamped | None) -> Stamped | None:
        namespace = self._namespace
        return self._rules.read(
            stored,
            lambda stamped: self._table.put_entry(key, stamped, namespace),
            lambda: self._table.remove_entry(key, namespace),
        )

    def _show(self, stored: Stamped) -> Any:
        value = stored["value"]
        return None if value is None else self._value.from_internal_type(value)


class _TtlCombinedState(TtlState, CombinedState):
    """A combined state with TTL: an expired value does not count for the next one."""

    def add(self, value: Any) -> None:
        """Combine a value with that of the state; None removes it."""
        self.clean_some()
        super().add(value)

    def _read(self) -> Any:
        stored = self._read_single()
        return None if stored is None else self._type.from_internal_type(stored["value"])

    def _load(self, namespace: Any) -> Any:
        stored = self._find_visible(namespace)
        return None if stored is None else self._type.from_internal_type(stored["value"])

    def _take(self, namespace: Any) -> Any:
        value = self._load(namespace)
        self._table.remove(namespace)
        return value

    def _store(self, value: Any, namespace: Any) -> None:
        self._table.put(self._rules.stamp(convert(self._type, value, self.descriptor.name)), namespace)


class TtlReducingState(_TtlCombinedState, TableReducingState):
    """`ReducingState` with TTL."""


class TtlAggregatingState(_TtlCombinedState, TableAggregatingState):
    """`AggregatingState` with TTL."""


class PartitionableListState(ListState[Any]):
    """A list state of the subtask, which has no current key."""

    def __init__(self, descriptor: ListStateDescriptor, table: OperatorList) -> None:
        self._elements = ElementConversion(descriptor)
        self._table = table

    def get(self) -> Sequence[Any]:
        """Return the elements."""
        return self._elements.read(self._table.get())

    def add(self, value: Any) -> None:
        """Append an element."""
        self._table.add_all(self._elements.write([value]))

    def add_all(self, values: Sequence[Any]) -> None:
        """Append elements."""
        self._table.add_all(self._elements.write(values))

    def update(self, values: Sequence[Any]) -> None:
        """Replace all elements."""
        self._table.update(self._elements.write(values))

    def clear(self) -> None:
        """Remove all elements."""
        self._table.clear()


class TableReadOnlyBroadcastState(ReadOnlyBroadcastState[Any, Any]):
    """A broadcast state for reading."""

    def __init__(self, descriptor: MapStateDescriptor, table: HeapBroadcastState) -> None:
        self.descriptor = descriptor
        self._key = descriptor.type_info.key_type
        self._value = descriptor.type_info.value_type
        self._table = table

    def get(self, key: Any) -> Any:
        """Return the value of a map key."""
        stored = self._table.get(self._write_key(key))
        return None if stored is None else self._value.from_internal_type(stored)

    def contains(self, key: Any) -> bool:
        """Return whether a map key is there."""
        return self._table.contains(self._write_key(key))

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Return map keys and values."""
        read_key, read_value = self._key.from_internal_type, self._value.from_internal_type
        for key, value in self._table.entries():
            yield read_key(key), None if value is None else read_value(value)

    def clear(self) -> None:
        """Refuse.

        Raises:
            UsageError: always.
        """
        raise UsageError("the state is read-only here", where=Where(state=self.descriptor.name))

    def _write_key(self, key: Any) -> Any:
        return convert(self._key, key, self.descriptor.name)


class TableBroadcastState(TableReadOnlyBroadcastState, BroadcastState[Any, Any]):
    """A broadcast state for reading and writing."""

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a map key."""
        converted = None if value is None else convert(self._value, value, self.descriptor.name)
        self._table.put(self._write_key(key), converted)

    def remove(self, key: Any) -> None:
        """Remove a map key."""
        self._table.remove(self._write_key(key))

    def clear(self) -> None:
        """Remove all map keys."""
        self._table.clear()

    def for_reading(self) -> TableReadOnlyBroadcastState:
        """Return the state without its methods that write."""
        return TableReadOnlyBroadcastState(self.descriptor, self._table)


class BackendOperatorStates(OperatorStateStore):
    """Operator states of one backend, by name; with the list states that PyFlink does not have.

    Args:
        backend: of the subtask.
    """

    def __init__(self, backend: OperatorStateBackend) -> None:
        self._backend = backend
        self._states: dict[str, tuple[str, StateDescriptor, Any]] = {}

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """Register a list state whose elements a new parallelism distributes evenly."""
        return self._register_list(state_descriptor, StateKind.SPLIT_DISTRIBUTE)

    def get_union_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """Register a list state whose elements every subtask gets all of on restore."""
        return self._register_list(state_descriptor, StateKind.UNION)

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> TableBroadcastState:
        """Register a broadcast state.

        Raises:
            UsageError: it is no `MapStateDescriptor`, has TTL, or its name is in use for another state.
            IncompatibleError: the state was restored with serializers that do not fit.
        """
        known = self._find(state_descriptor, MapStateDescriptor, StateKind.BROADCAST)
        if isinstance(known, TableBroadcastState):
            return known
        of = state_descriptor.type_info
        info = broadcast_state(state_descriptor.name, of.key_type.serializer, of.value_type.serializer)
        made = TableBroadcastState(state_descriptor, self._backend.register_broadcast(info))
        self._states[state_descriptor.name] = StateKind.BROADCAST, state_descriptor, made
        return made

    def get_registered_state_names(self) -> set[str]:
        """Return the names of list states, registered or restored (`OperatorStateStore.getRegisteredStateNames`)."""
        return {info.name for info in self._backend.states if info.backend_type is BackendStateType.OPERATOR}

    def get_registered_broadcast_state_names(self) -> set[str]:
        """Return the names of broadcast states, registered or restored."""
        return {info.name for info in self._backend.states if info.backend_type is BackendStateType.BROADCAST}

    def _register_list(self, descriptor: ListStateDescriptor, mode: str) -> ListState[Any]:
        known = self._find(descriptor, ListStateDescriptor, mode)
        if isinstance(known, PartitionableListState):
            return known
        info = operator_list(descriptor.name, descriptor.type_info.elem_type.serializer, mode)
        made = PartitionableListState(descriptor, self._backend.register_list(info))
        self._states[descriptor.name] = mode, descriptor, made
        return made

    def _find(self, descriptor: StateDescriptor, kind: type[StateDescriptor], mode: str) -> Any:
        """Return the state of the same descriptor; None if it is new."""
        if not isinstance(descriptor, kind):
            raise UsageError(f"{descriptor!r:.80} is no {kind.__name__}")
        where = Where(state=descriptor.name)
        if descriptor.ttl_config is not None:
            raise UsageError("operator state does not expire", where=where, hint="Only keyed state has TTL")
        known = self._states.get(descriptor.name)
        if known is None:
            return None
        if known[0] != mode or not known[1].describes_same_state(descriptor):
            raise UsageError(
                f"the name is in use for {known[0]} state of {known[1].type_info}, and cannot be used for {mode} state "
                f"of {descriptor.type_info}",
                where=where,
                hint="Names of states are unique in an operator",
            )
        return known[2]
