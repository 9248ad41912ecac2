"""Descriptors of states: name, type, functions and TTL (`pyflink.datastream.state`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from state_pipelines.datastream.aggregations import AggregateFunction, ReduceFunction, ReduceFunctionWrapper
from state_pipelines.datastream.derived_types import derive_type
from state_pipelines.datastream.type_information import ListTypeInfo, MapTypeInfo
from state_pipelines.errors import UsageError, Where
from state_pipelines.serializers import build
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.state_meta_info import keyed_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.datastream.ttl_config import StateTtlConfig
    from state_pipelines.datastream.type_information import TypeDescription
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer


class StateDescriptor:
    """Name and type of a state; a function registers the state with it.

    Args:
        name: unique in its operator.
        type_info: of the values, or another description of a type (see `Types.of`).

    Attributes:
        state_type: VALUE, LIST, MAP, REDUCING or AGGREGATING.
    """

    state_type = StateKind.UNKNOWN

    def __init__(self, name: str, type_info: TypeDescription) -> None:
        self.name = name
        self.type_info = derive_type(type_info)
        self._ttl_config: StateTtlConfig | None = None

    def get_name(self) -> str:
        """Return the name of the state."""
        return self.name

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        """Let values expire.

        Raises:
            UsageError: the update type is Disabled.
        """
        if not ttl_config.is_enabled():
            raise UsageError(
                "UpdateType.Disabled cannot be used with enable_time_to_live", hint="Leave the call out to disable TTL"
            )
        self._ttl_config = ttl_config

    @property
    def ttl_config(self) -> StateTtlConfig | None:
        """Configuration of TTL; None if values do not expire."""
        return self._ttl_config

    @property
    def value_serializer(self) -> Serializer:
        """Serializer of the values; of lists and maps that of the whole collection, with TTL inside."""
        return self._with_ttl(self.type_info.serializer)

    def make_info(self, namespace: Serializer = build.VOID_NAMESPACE) -> StateMetaInfo:
        """Return the meta information that the state is registered with."""
        return keyed_state(self.name, self.state_type, self.value_serializer, namespace)

    def describes_same_state(self, other: StateDescriptor) -> bool:
        """Return whether another descriptor describes the state in the same way."""
        return (
            self.name == other.name
            and self.state_type == other.state_type
            and self.type_info == other.type_info
            and self.ttl_config == other.ttl_config
        )

    def _with_ttl(self, serializer: Serializer) -> Serializer:
        return serializer if self._ttl_config is None else build.ttl(serializer)


class ValueStateDescriptor(StateDescriptor):
    """Descriptor of a `ValueState`.

    Args:
        name: unique in its operator.
        value_type_info: type of the value.
        default_value: value of keys without one; as in Java it is ignored with TTL.
    """

    state_type = StateKind.VALUE

    def __init__(self, name: str, value_type_info: TypeDescription, *, default_value: Any = None) -> None:
        super().__init__(name, value_type_info)
        self.default_value = default_value


class ListStateDescriptor(StateDescriptor):
    """Descriptor of a `ListState`.

    Args:
        name: unique in its operator.
        elem_type_info: type of the elements.
    """

    state_type = StateKind.LIST
    type_info: ListTypeInfo

    def __init__(self, name: str, elem_type_info: TypeDescription) -> None:
        super().__init__(name, ListTypeInfo(derive_type(elem_type_info)))

    @property
    def value_serializer(self) -> Serializer:
        """`ListSerializer`; every element has its own time of last access."""
        return build.list_of(self._with_ttl(self.type_info.elem_type.serializer))


class MapStateDescriptor(StateDescriptor):
    """Descriptor of a `MapState` or a `BroadcastState`.

    Args:
        name: unique in its operator.
        key_type_info: type of the map keys.
        value_type_info: type of the map values.
    """

    state_type = StateKind.MAP
    type_info: MapTypeInfo

    def __init__(self, name: str, key_type_info: TypeDescription, value_type_info: TypeDescription) -> None:
        super().__init__(name, MapTypeInfo(derive_type(key_type_info), derive_type(value_type_info)))

    @property
    def value_serializer(self) -> Serializer:
        """`MapSerializer`; every map value has its own time of last access."""
        return build.map_of(self.type_info.key_type.serializer, self._with_ttl(self.type_info.value_type.serializer))


class ReducingStateDescriptor(StateDescriptor):
    """Descriptor of a `ReducingState`.

    Args:
        name: unique in its operator.
        reduce_function: a `ReduceFunction`, or a function of two values.
        type_info: type of the values.

    Raises:
        UsageError: the function is neither.
    """

    state_type = StateKind.REDUCING

    def __init__(
        self, name: str, reduce_function: ReduceFunction | Callable[[Any, Any], Any], type_info: TypeDescription
    ) -> None:
        super().__init__(name, type_info)
        if isinstance(reduce_function, ReduceFunction):
            self._reduce_function = reduce_function
        elif callable(reduce_function):
            self._reduce_function = ReduceFunctionWrapper(reduce_function)
        else:
            raise UsageError("reduce_function is neither a ReduceFunction nor callable", where=Where(state=name))

    def get_reduce_function(self) -> ReduceFunction:
        """Return the function that combines two values."""
        return self._reduce_function


class AggregatingStateDescriptor(StateDescriptor):
    """Descriptor of an `AggregatingState`; the state stores accumulators.

    Args:
        name: unique in its operator.
        agg_function: the aggregation.
        state_type_info: type of the accumulators.

    Raises:
        UsageError: `agg_function` is no AggregateFunction.
    """

    state_type = StateKind.AGGREGATING

    def __init__(self, name: str, agg_function: AggregateFunction, state_type_info: TypeDescription) -> None:
        super().__init__(name, state_type_info)
        if not isinstance(agg_function, AggregateFunction):
            raise UsageError("agg_function is not an AggregateFunction", where=Where(state=name))
        self._agg_function = agg_function

    def get_agg_function(self) -> AggregateFunction:
        """Return the aggregation."""
        return self._agg_function
