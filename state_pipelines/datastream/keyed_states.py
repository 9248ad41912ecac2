"""Registration of the keyed states of a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from state_pipelines.datastream.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from state_pipelines.datastream.pyflink_layout import lay_out
from state_pipelines.datastream.states import KeyedStateStore
from state_pipelines.datastream.table_states import (
    TableAggregatingState,
    TableListState,
    TableMapState,
    TableReducingState,
    TableState,
    TableValueState,
    convert,
)
from state_pipelines.datastream.ttl_config_stream import write_ttl_config
from state_pipelines.datastream.ttl_states import (
    TtlAggregatingState,
    TtlListState,
    TtlMapState,
    TtlReducingState,
    TtlState,
    TtlValueState,
)
from state_pipelines.errors import UsageError, Where
from state_pipelines.serializers.build import VOID_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.backends.keyed_backend import KeyedStateBackend
    from state_pipelines.backends.state_access import StateTable
    from state_pipelines.backends.value_codecs import Value
    from state_pipelines.datastream.clocks import Clock
    from state_pipelines.datastream.states import AggregatingState, ListState, MapState, ReducingState, ValueState
    from state_pipelines.serializers.tree import Serializer

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
        pyflink_state: keep them in PyFlink's layout.
        track: gets every state that is opened; default none.
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
        """Register a state; the same descriptor again gives the same state.

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
        """Run the incremental clean-up of the states that ask for it at every record."""
        for state in self._cleaned_by_records:
            state.clean_some()

    def clean_for_snapshot(self) -> None:
        """Remove the expired values that a full snapshot must not contain."""
        for state in self._states.values():
            if isinstance(state, TtlState):
                state.clean_for_snapshot()

    def for_each_key(self, state: TableState, function: Callable[[Any], None]) -> None:
        """Call a function with every key of the subtask, in the scalar codec's form, that has a value in a state."""
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
        """The table of a state, and the descriptor by whose types it is read and written."""
        config = None if descriptor.ttl_config is None else write_ttl_config(descriptor.ttl_config)
        if self._pyflink_state:
            # PyFlink keeps default values in Python.
            state = lay_out(descriptor, self._namespace)
            return state.descriptor, self._backend.register(state.info, state.typed, ttl_config=config)
        info = descriptor.make_info(self._namespace)
        default = _find_default(descriptor)
        return descriptor, self._backend.register(info, ttl_config=config, default_value=default)


def _find_default(descriptor: StateDescriptor) -> Value:
    """The default value of a state as it is stored; None if it has none."""
    if not isinstance(descriptor, ValueStateDescriptor) or descriptor.ttl_config is not None:
        return None
    default = descriptor.default_value
    return None if default is None else convert(descriptor.type_info, default, descriptor.name)
