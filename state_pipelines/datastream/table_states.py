"""States of functions on the tables of a backend: keyed states and operator states.

* `TableValueState`, `TableListState`, `TableMapState`, `TableReducingState`, `TableAggregatingState`: keyed states.
* `TtlValueState`, `TtlListState`, `TtlMapState`, `TtlReducingState`, `TtlAggregatingState`: keyed states with TTL:
  every value, list element and map value has its own time of last access. Source: Flink's classes of these names.
* `PartitionableListState`, `TableBroadcastState`, `BackendOperatorStates`: operator states.
* `PyflinkState`, `BackendKeyedStates`: registration of the keyed states of a function. State as PyFlink keeps it is
  byte arrays of its coders in Java's list and map state, under keys in a row of one field. Source:
  `pyflink.fn_execution.coders.from_type_info`, `pyflink.fn_execution.state_impl`, `BeamKeyedStateStore`,
  `KeyByKeySelector`.
"""

from __future__ import annotations

import copy
import time
from abc import abstractmethod
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from state_pipelines.datastream.flink_types import RowTypeInfo, TupleTypeInfo
from state_pipelines.datastream.functions import (
    AggregatingState,
    AggregatingStateDescriptor,
    BroadcastState,
    FunctionState,
    KeyedStateStore,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    OperatorStateStore,
    ReadOnlyBroadcastState,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from state_pipelines.datastream.ttl import TtlCleaner, TtlRules, write_ttl_config
from state_pipelines.datastream.type_information import (
    ArrayTypeInfo,
    BasicTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    TypeInformation,
    convert_elements,
)
from state_pipelines.errors import UnsupportedError, UsageError, ValueRangeError, Where, at
from state_pipelines.serializers import build, tree
from state_pipelines.serializers.build import VOID_NAMESPACE
from state_pipelines.serializers.python_types import BYTES, PythonDeclaration, PythonType
from state_pipelines.serializers.state_meta_info import BackendStateType, broadcast_state, keyed_state, operator_list
from state_pipelines.serializers.tree import COMPONENTS, BasicKind, StateKind
from state_pipelines.snapshot.state import PREFIX, declare_types, python_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from state_pipelines.backends.entry_store import Value
    from state_pipelines.backends.keyed_backend import KeyedStateBackend, StateTable
    from state_pipelines.backends.operator_backend import HeapBroadcastState, OperatorList, OperatorStateBackend
    from state_pipelines.datastream.functions import MetricGroup
    from state_pipelines.datastream.ttl import Clock, Stamped
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer


class TableState(FunctionState):
    """A state of the current key and namespace.

    Args:
        descriptor: with which the state is registered.
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
        """Return the value; without one, the default value."""
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
        """Move the elements of the source namespaces to the end of the target's; TTL keeps their last-access times."""
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
        """Set the values of several map keys; set none if one of them does not fit the type."""
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
    """A state with one value per key and namespace; `add` combines it with a new value."""

    def __init__(self, descriptor: StateDescriptor, table: StateTable) -> None:
        super().__init__(descriptor, table)
        self._type = descriptor.type_info

    def add(self, value: Any) -> None:
        """Combine a value with the stored one, or remove the stored one for None (as in `HeapReducingState`)."""
        if value is None:
            self._table.remove(self._namespace)
            return
        self._store(self._combine(self._load(self._namespace), value), self._namespace)

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Merge the values of the source namespaces, and then the target's own value, into the target."""
        merged: Any = None
        for namespace in (*sources, target):
            value = self._take(namespace)
            if value is not None:
                merged = value if merged is None else self._merge(merged, value)
        if merged is not None:
            self._store(merged, target)

    @abstractmethod
    def _combine(self, before: Any, value: Any) -> Any:
        """Combine the stored value (None if there is none) with an added one."""

    @abstractmethod
    def _merge(self, first: Any, second: Any) -> Any:
        """Combine two stored values."""

    def _read(self) -> Any:
        """Return the stored value for a read by the function; with TTL this may prolong or end its life."""
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
        """Convert elements of the scalar codec to Python values."""
        return [self._type.from_internal_type(each) for each in stored] if self._is_converted else list(stored)

    def write(self, values: Sequence[Any]) -> list[Any]:
        """Convert Python values to elements of the scalar codec.

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
    """Convert a Python value to a value of the scalar codec; errors name the state."""
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
        """Run one step of the incremental clean-up, if the state has it."""
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
        """Read the value of the current key by the TTL rules: prolong its life, or remove it if it has expired."""
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
    """`ValueState` with TTL; the default value of its descriptor is ignored."""

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
    """A combined state with TTL: `add` ignores an expired value, unless expired values are visible."""

    def add(self, value: Any) -> None:
        """Combine a value with the stored one; None removes the stored one."""
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
    """A list state of a subtask (operator state): it has no keys."""

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
        """Refuse to change a state for reading.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "broadcast state is read-only in this method",
            where=Where(state=self.descriptor.name),
            hint="Change it in process_broadcast_element",
        )

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
        """Return a read-only view of the state."""
        return TableReadOnlyBroadcastState(self.descriptor, self._table)


class BackendOperatorStates(OperatorStateStore):
    """Operator states of one backend, by name: broadcast states, and list states, which PyFlink does not have.

    Args:
        backend: of the subtask.
    """

    def __init__(self, backend: OperatorStateBackend) -> None:
        self._backend = backend
        self._states: dict[str, tuple[str, StateDescriptor, Any]] = {}

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """Register a list state; a restore with another parallelism distributes its elements evenly."""
        return self._register_list(state_descriptor, StateKind.SPLIT_DISTRIBUTE)

    def get_union_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """Register a union list state: on restore every subtask gets the elements of all subtasks."""
        return self._register_list(state_descriptor, StateKind.UNION)

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> TableBroadcastState:
        """Register a broadcast state.

        Raises:
            UsageError: the descriptor is no `MapStateDescriptor`, has TTL, or its name is in use for another state.
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
        """Return the state that was registered with the same descriptor; None if there is none."""
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


ROW_KIND = "+I"
"""Kind of the rows that hold keys."""

_WORDS: dict[BasicKind | None, tuple[str, BasicKind]] = {
    **{
        kind: (kind.upper(), kind)
        for kind in (
            BasicKind.BOOLEAN,
            BasicKind.INT,
            BasicKind.FLOAT,
            BasicKind.DOUBLE,
            BasicKind.STRING,
            BasicKind.INSTANT,
        )
    },
    BasicKind.BYTE: ("TINYINT", BasicKind.BYTE),
    BasicKind.SHORT: ("SMALLINT", BasicKind.SHORT),
    BasicKind.LONG: ("BIGINT", BasicKind.LONG),
    BasicKind.BIG_INT: ("BIGINT", BasicKind.LONG),
    BasicKind.CHAR: ("STRING", BasicKind.STRING),
    # These coders write days, nanoseconds of the day, and milliseconds: the scalar values of the kinds on the right.
    BasicKind.SQL_DATE: ("DATE", BasicKind.LOCAL_DATE),
    BasicKind.SQL_TIME: ("TIME", BasicKind.LOCAL_TIME),
    BasicKind.SQL_TIMESTAMP: ("TIMESTAMP", BasicKind.DATE),
}
"""Word of the coder, and the kind whose conversion gives what it writes, by kind of `BasicTypeInfo`."""


@dataclass(frozen=True)
class DecimalTextTypeInfo(TypeInformation):
    """`decimal.Decimal` as text."""

    java_class = "java.lang.String"

    @property
    def serializer(self) -> Serializer:
        """`StringSerializer`."""
        return build.basic(BasicKind.STRING)

    def to_internal_type(self, obj: Any) -> Any:
        """Return a Decimal as text."""
        if obj is not None and not isinstance(obj, Decimal):
            raise ValueRangeError(f"{obj!r:.80} is not a Decimal")
        return None if obj is None else str(obj)

    def from_internal_type(self, obj: Any) -> Any:
        """Parse a Decimal."""
        return None if obj is None else Decimal(obj)


@dataclass(frozen=True)
class CoderTypeInfo(TypeInformation):
    """Values that a coder of PyFlink serializes.

    Attributes:
        coder: the coder, as a serializer.
        values: converts between Python values and the scalar values of the coder's codec.
    """

    coder: PythonType
    values: TypeInformation

    java_class = "[B"

    @property
    def serializer(self) -> Serializer:
        """The coder; a serializer that snapshots do not store, for they declare byte arrays."""
        return self.coder

    def need_conversion(self) -> bool:
        """Return whether values in Python differ from those of the scalar codec."""
        return self.values.need_conversion()

    def to_internal_type(self, obj: Any) -> Any:
        """Convert a Python value to a value of the scalar codec."""
        return self.values.to_internal_type(obj)

    def from_internal_type(self, obj: Any) -> Any:
        """Convert a value of the scalar codec to a Python value."""
        return self.values.from_internal_type(obj)


@dataclass(frozen=True)
class KeyRowTypeInfo(TypeInformation):
    """Keys in a row of one field, as PyFlink's Java operators store them.

    Attributes:
        key_type: of the keys.
    """

    key_type: TypeInformation

    java_class = "org.apache.flink.types.Row"

    @cached_property
    def serializer(self) -> Serializer:
        """`RowSerializer` of one field."""
        return build.row(self.key_type.serializer)

    def to_internal_type(self, obj: Any) -> Any:
        """Put a key into a row."""
        return None if obj is None else {"row_kind": ROW_KIND, "f0": self.key_type.to_internal_type(obj)}

    def from_internal_type(self, obj: Any) -> Any:
        """Take the key out of its row."""
        return self.key_type.from_internal_type(obj["f0"])


@dataclass(frozen=True)
class PyflinkState:
    """A state in PyFlink's layout.

    Attributes:
        descriptor: the user's descriptor, with the types of PyFlink's coders.
        info: the list or map state of byte arrays that PyFlink registers in Java; the snapshot declares this one.
        typed: `info` with the types of the values instead of byte arrays.
    """

    descriptor: StateDescriptor
    info: StateMetaInfo
    typed: StateMetaInfo


def lay_out(descriptor: StateDescriptor, namespace: Serializer) -> PyflinkState:
    """Return the state of byte arrays that PyFlink registers in Java for a descriptor.

    Raises:
        UnsupportedError: PyFlink has no coder for a type.
    """
    with at(state=descriptor.name):
        adapted = copy.copy(descriptor)
        adapted.type_info = _adapt(descriptor)
        array: Serializer = build.basic(BasicKind.BYTE_PRIMITIVE_ARRAY)
        if descriptor.ttl_config is not None:
            array = build.ttl(array)
        name = PREFIX + descriptor.name
        if isinstance(adapted.type_info, MapTypeInfo):
            arrays = build.map_of(build.basic(BasicKind.BYTE_ARRAY_WRAPPER), array)
            info = keyed_state(name, StateKind.MAP, arrays, namespace)
            sides = (adapted.type_info.key_type, adapted.type_info.value_type)
            type_ = PythonType(word="MAP", children=tuple(_coder_of(each) for each in sides))
        else:
            info = keyed_state(name, StateKind.LIST, build.list_of(array), namespace)
            stored = adapted.type_info
            type_ = _coder_of(stored.elem_type if isinstance(stored, ListTypeInfo) else stored)
        kind = descriptor.state_type
        return PyflinkState(adapted, info, declare_types(info, PythonDeclaration(type_, kind), kind))


def find_coder(of: TypeInformation) -> CoderTypeInfo:
    """Return PyFlink's coder for a type, as a `CoderTypeInfo`.

    Raises:
        UnsupportedError: PyFlink has no coder for it, or one that pickles; pickles are never loaded here.
    """
    match of:
        case CoderTypeInfo():
            return of
        case BasicTypeInfo(kind=BasicKind.BYTE_PRIMITIVE_ARRAY):
            return CoderTypeInfo(PythonType(word=BYTES), of)
        case BasicTypeInfo(kind=BasicKind.BIG_DEC):
            return CoderTypeInfo(PythonType(word="DECIMAL"), DecimalTextTypeInfo())
        case BasicTypeInfo(kind=BasicKind.STRING_ARRAY):
            element = PythonType(word="STRING")
            return CoderTypeInfo(PythonType(word="ARRAY", children=(element,)), of)
        case BasicTypeInfo(kind=kind) if COMPONENTS.get(kind) in _WORDS:
            element = PythonType(word=_WORDS[COMPONENTS[kind]][0])
            return CoderTypeInfo(PythonType(word="PRIMITIVE_ARRAY", children=(element,)), of)
        case BasicTypeInfo(kind=kind) if kind in _WORDS:
            word, values = _WORDS[kind]
            return CoderTypeInfo(PythonType(word=word), BasicTypeInfo(values))
        case ListTypeInfo(elem_type=elem) if type(of) in (ListTypeInfo, ArrayTypeInfo):
            inner = find_coder(elem)
            return CoderTypeInfo(PythonType(word="ARRAY", children=(inner.coder,)), ListTypeInfo(inner.values))
        case MapTypeInfo(key_type=key, value_type=value):
            sides = find_coder(key), find_coder(value)
            coder = PythonType(word="MAP", children=tuple(each.coder for each in sides))
            return CoderTypeInfo(coder, MapTypeInfo(*(each.values for each in sides)))
        case TupleTypeInfo(field_types=types, tuple_class=None):
            fields = [find_coder(each) for each in types]
            coder = PythonType(word="TUPLE", children=tuple(each.coder for each in fields))
            return CoderTypeInfo(coder, TupleTypeInfo(tuple(each.values for each in fields)))
        case RowTypeInfo(field_types=types, field_names=names, python_class=made):
            fields = [find_coder(each) for each in types]
            coder = PythonType(word="ROW", children=tuple(each.coder for each in fields))
            return CoderTypeInfo(coder, RowTypeInfo(tuple(each.values for each in fields), names, made))
    raise UnsupportedError(
        f"PyFlink has no coder for {of}",
        hint="Use a type of PyFlink's Types, or keep the state as Java does (pyflink_state=False)",
    )


def has_pyflink_states(infos: Iterable[StateMetaInfo]) -> bool:
    """Return whether a restored operator keeps its state in PyFlink's layout."""
    return any(python_name(info) for info in infos)


def unwrap_key(serializer: Serializer) -> Serializer:
    """Return the serializer of the keys of a PyFlink operator, without the row of one field in which Java has them."""
    if isinstance(serializer, tree.PositionalRow) and len(serializer.fields) == 1:
        return serializer.fields[0]
    return serializer


def _adapt(descriptor: StateDescriptor) -> TypeInformation:
    of = descriptor.type_info
    if descriptor.state_type == StateKind.LIST and isinstance(of, ListTypeInfo):
        return ListTypeInfo(find_coder(of.elem_type))
    if descriptor.state_type == StateKind.MAP and isinstance(of, MapTypeInfo):
        return MapTypeInfo(find_coder(of.key_type), find_coder(of.value_type))
    return find_coder(of)


def _coder_of(of: TypeInformation) -> PythonType:
    assert isinstance(of, CoderTypeInfo)
    return of.coder


_CLEAR = {"clear": "stateClearLatency"}
_ADDED = {"get": "Get", "add": "Add", "merge_namespaces": "MergeNamespaces"}
_METRICS: dict[str, dict[str, str]] = {
    StateKind.VALUE: {"value": "valueStateGetLatency", "update": "valueStateUpdateLatency"},
    StateKind.LIST: {
        "get": "listStateGetLatency",
        "add": "listStateAddLatency",
        "add_all": "listStateAddAllLatency",
        "update": "listStateUpdateLatency",
        "merge_namespaces": "listStateMergeNamespacesLatency",
    },
    StateKind.MAP: {
        "get": "mapStateGetLatency",
        "put": "mapStatePutLatency",
        "put_all": "mapStatePutAllLatency",
        "remove": "mapStateRemoveLatency",
        # The misleading name is Flink's: the method is `contains`.
        "contains": "mapStateContainsAllLatency",
        "items": "mapStateEntriesInitLatency",
        "keys": "mapStateKeysInitLatency",
        "values": "mapStateValuesInitLatency",
        "is_empty": "mapStateIsEmptyLatency",
    },
    StateKind.REDUCING: {method: f"reducingState{name}Latency" for method, name in _ADDED.items()},
    StateKind.AGGREGATING: {method: f"aggregatingState{name}Latency" for method, name in _ADDED.items()},
}
"""Name of the histogram of each method, by kind of state."""


@dataclass(frozen=True)
class LatencyTracking:
    """Settings of the latency tracking of state access (`state.latency-track.*`).

    Attributes:
        sample_interval: of so many calls of a method one is timed, beginning with the first call.
        history_size: values that a histogram keeps.
        state_name_as_variable: group the metrics by the variable `state_name`, not directly by the state's name.
    """

    sample_interval: int = 100
    history_size: int = 128
    state_name_as_variable: bool = True

    def track(self, state: TableState, metrics: MetricGroup) -> None:
        """Time the accesses to a state, in nanoseconds.

        Args:
            state: whose methods are replaced.
            metrics: of the function, which get a group for the state.
        """
        name = state.descriptor.name
        group = metrics.add_group("state_name", name) if self.state_name_as_variable else metrics.add_group(name)
        for method, metric in (_METRICS[state.descriptor.state_type] | _CLEAR).items():
            setattr(state, method, self._time(getattr(state, method), metric, group))

    def _time(self, call: Callable[..., Any], metric: str, group: MetricGroup) -> Callable[..., Any]:
        calls = 0

        @wraps(call)
        def timed(*arguments: Any) -> Any:
            nonlocal calls
            is_sampled = calls % self.sample_interval == 0
            calls += 1
            if not is_sampled:
                return call(*arguments)
            started = time.perf_counter_ns()
            try:
                return call(*arguments)
            finally:
                histogram = group.metrics.get(metric) or group.histogram(metric, self.history_size)
                histogram.update(time.perf_counter_ns() - started)  # type: ignore[union-attr]

        return timed


Kind = TypeVar("Kind", bound=TableState)

_KINDS: dict[type[StateDescriptor], tuple[Callable[..., TableState], Callable[..., TtlState]]] = {
    ValueStateDescriptor: (TableValueState, TtlValueState),
    ListStateDescriptor: (TableListState, TtlListState),
    MapStateDescriptor: (TableMapState, TtlMapState),
    ReducingStateDescriptor: (TableReducingState, TtlReducingState),
    AggregatingStateDescriptor: (TableAggregatingState, TtlAggregatingState),
}


class BackendKeyedStates(KeyedStateStore):
    """Keyed states of one backend, by name.

    Args:
        backend: of the subtask.
        clock: processing time, for TTL.
        namespace: serializer of the namespaces of the states.
        pyflink_state: store the states in PyFlink's layout.
        track: is called with every newly registered state, for latency tracking; default none.
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        clock: Clock,
        namespace: Serializer = VOID_NAMESPACE,
        *,
        pyflink_state: bool = False,
        track: Callable[[TableState], None] | None = None,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._namespace = namespace
        self._pyflink_state = pyflink_state
        self._track = track
        self._current_namespace: Any = None
        self._states: dict[str, TableState] = {}
        self._given: dict[str, StateDescriptor] = {}
        self._cleaned_by_records: list[TtlState] = []

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState[Any]:
        """Register a value state."""
        return cast("ValueState[Any]", self.register(state_descriptor, ValueStateDescriptor))

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """Register a list state."""
        return cast("ListState[Any]", self.register(state_descriptor, ListStateDescriptor))

    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """Register a map state."""
        return cast("MapState[Any, Any]", self.register(state_descriptor, MapStateDescriptor))

    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        """Register a reducing state."""
        return cast("ReducingState[Any]", self.register(state_descriptor, ReducingStateDescriptor))

    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        """Register an aggregating state."""
        return cast("AggregatingState[Any, Any]", self.register(state_descriptor, AggregatingStateDescriptor))

    def register(self, descriptor: StateDescriptor, kind: type[StateDescriptor] | None = None) -> TableState:
        """Register a state; a second call with the same descriptor returns the same state.

        Args:
            descriptor: of the state.
            kind: class that the descriptor must have; default any.

        Raises:
            UsageError: the descriptor is of another kind, or the name is in use for another state.
            IncompatibleError: the state was restored with a serializer that does not fit.
        """
        if not isinstance(descriptor, kind or tuple(_KINDS)):
            wanted = kind.__name__ if kind is not None else "StateDescriptor"
            raise UsageError(f"{descriptor!r:.80} is no {wanted}")
        known = self._states.get(descriptor.name)
        if known is None:
            known = self._states[descriptor.name] = self._open(descriptor)
            self._given[descriptor.name] = descriptor
            known.set_current_namespace(self._current_namespace)
            if self._track is not None:
                self._track(known)
        elif not (given := self._given[descriptor.name]).describes_same_state(descriptor):
            raise UsageError(
                f"the name is in use for {given.state_type} state of {given.type_info}, and "
                f"cannot be used for {descriptor.state_type} state of {descriptor.type_info}",
                where=Where(state=descriptor.name),
                hint="Names of states are unique in an operator; types and TTL of one state do not change",
            )
        return known

    def set_current_namespace(self, namespace: Any) -> None:
        """Make a namespace the current one of all states; None is the void namespace."""
        self._current_namespace = namespace
        for state in self._states.values():
            state.set_current_namespace(namespace)

    def clean_by_record(self) -> None:
        """Run the incremental clean-up of the states that are configured to run it for every record."""
        for state in self._cleaned_by_records:
            state.clean_some()

    def clean_for_snapshot(self) -> None:
        """Remove the expired values that a full snapshot must not contain."""
        for state in self._states.values():
            if isinstance(state, TtlState):
                state.clean_for_snapshot()

    def for_each_key(self, state: TableState, function: Callable[[Any], None]) -> None:
        """Call a function with every key that has a value in a state; the keys are values of the scalar codec."""
        table = self._register(state.descriptor)[1]
        current = self._backend.current_key
        for key in list(table.keys()):
            self._backend.set_current_key(key)
            function(key)
        if current is None:
            self._backend.clear_current_key()
        else:
            self._backend.set_current_key(current)

    def _open(self, descriptor: StateDescriptor) -> TableState:
        plain, expiring = _KINDS[type(descriptor)]
        described, table = self._register(descriptor)
        if descriptor.ttl_config is None:
            return plain(described, table)
        state = expiring(described, table, self._backend, self._clock)
        if state.is_cleaned_by_records:
            self._cleaned_by_records.append(state)
        return state

    def _register(self, descriptor: StateDescriptor) -> tuple[StateDescriptor, StateTable]:
        """Register a state in the backend; return the descriptor with the types that are stored, and the table."""
        config = None if descriptor.ttl_config is None else write_ttl_config(descriptor.ttl_config)
        if self._pyflink_state:
            # No default value is passed: PyFlink keeps default values in Python, not in the state.
            state = lay_out(descriptor, self._namespace)
            return state.descriptor, self._backend.register(state.info, state.typed, ttl_config=config)
        info = descriptor.make_info(self._namespace)
        default = _find_default(descriptor)
        return descriptor, self._backend.register(info, ttl_config=config, default_value=default)


def _find_default(descriptor: StateDescriptor) -> Value:
    """Return the default value of a state as the scalar codec has it; None if the state has none, or has TTL."""
    if not isinstance(descriptor, ValueStateDescriptor) or descriptor.ttl_config is not None:
        return None
    default = descriptor.default_value
    return None if default is None else convert(descriptor.type_info, default, descriptor.name)
