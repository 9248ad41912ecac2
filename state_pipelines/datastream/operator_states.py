"""Operator states of a function, over the operator state backend of its subtask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state_pipelines.datastream.descriptors import ListStateDescriptor, MapStateDescriptor
from state_pipelines.datastream.states import BroadcastState, ListState, OperatorStateStore, ReadOnlyBroadcastState
from state_pipelines.datastream.table_states import ElementConversion, convert
from state_pipelines.errors import UsageError, Where
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.state_meta_info import BackendStateType, broadcast_state, operator_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.backends.operator_backend import BroadcastTable, OperatorList, OperatorStateBackend
    from state_pipelines.datastream.descriptors import StateDescriptor


class OperatorListState(ListState[Any]):
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

    def __init__(self, descriptor: MapStateDescriptor, table: BroadcastTable) -> None:
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
        if isinstance(known, OperatorListState):
            return known
        info = operator_list(descriptor.name, descriptor.type_info.elem_type.serializer, mode)
        made = OperatorListState(descriptor, self._backend.register_list(info))
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
