"""Registration of the keyed states of a function.

State as PyFlink keeps it: byte arrays of its coders in Java's list and map state, under keys in a row of one field.
Source: `pyflink.fn_execution.coders.from_type_info`, `pyflink.fn_execution.state_impl`, `BeamKeyedStateStore`,
`KeyByKeySelector`.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from state_pipelines.datastream.flink_types import RowTypeInfo, TupleTypeInfo
from state_pipelines.datastream.functions import (
    AggregatingStateDescriptor,
    KeyedStateStore,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from state_pipelines.datastream.table_states import (
    TableAggregatingState,
    TableListState,
    TableMapState,
    TableReducingState,
    TableState,
    TableValueState,
    TtlAggregatingState,
    TtlListState,
    TtlMapState,
    TtlReducingState,
    TtlState,
    TtlValueState,
    convert,
)
from state_pipelines.datastream.ttl import write_ttl_config
from state_pipelines.datastream.type_information import (
    ArrayTypeInfo,
    BasicTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    TypeInformation,
)
from state_pipelines.errors import UnsupportedError, UsageError, ValueRangeError, Where, at
from state_pipelines.serializers import build, tree
from state_pipelines.serializers.build import VOID_NAMESPACE
from state_pipelines.serializers.python_types import BYTES, PythonDeclaration, PythonType
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.serializers.state_meta_info import keyed_state
from state_pipelines.serializers.tree import COMPONENTS, BasicKind
from state_pipelines.snapshot.state import PREFIX, declare_types, python_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from state_pipelines.backends.keyed_backend import KeyedStateBackend, StateTable
    from state_pipelines.backends.value_codecs import Value
    from state_pipelines.datastream.functions import (
        AggregatingState,
        ListState,
        MapState,
        MetricGroup,
        ReducingState,
        ValueState,
    )
    from state_pipelines.datastream.ttl import Clock
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer

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
    # Days, nanoseconds of the day, and milliseconds.
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
        """Write a number."""
        if obj is not None and not isinstance(obj, Decimal):
            raise ValueRangeError(f"{obj!r:.80} is not a Decimal")
        return None if obj is None else str(obj)

    def from_internal_type(self, obj: Any) -> Any:
        """Parse a number."""
        return None if obj is None else Decimal(obj)


@dataclass(frozen=True)
class CoderTypeInfo(TypeInformation):
    """Values in the bytes of PyFlink's coder.

    Attributes:
        coder: of the values.
        values: converts between Python and the scalar form of the coder.
    """

    coder: PythonType
    values: TypeInformation

    java_class = "[B"

    @property
    def serializer(self) -> Serializer:
        """The coder, which no snapshot names."""
        return self.coder

    def need_conversion(self) -> bool:
        """Return whether values in Python differ from those of the scalar codec."""
        return self.values.need_conversion()

    def to_internal_type(self, obj: Any) -> Any:
        """Convert a value of Python to that of the scalar codec."""
        return self.values.to_internal_type(obj)

    def from_internal_type(self, obj: Any) -> Any:
        """Convert a value of the scalar codec to that of Python."""
        return self.values.from_internal_type(obj)


@dataclass(frozen=True)
class KeyRowTypeInfo(TypeInformation):
    """Keys in a row of one field, as the Java operators of PyFlink have them.

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
        descriptor: of the same state, whose types are those of the coders.
        info: the state of Java, which is registered and stored.
        typed: `info` with the types of the values in its byte arrays.
    """

    descriptor: StateDescriptor
    info: StateMetaInfo
    typed: StateMetaInfo


def lay_out(descriptor: StateDescriptor, namespace: Serializer) -> PyflinkState:
    """Find the state of Java that PyFlink has for a descriptor.

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
    """Find the coder that PyFlink has for a type.

    Raises:
        UnsupportedError: it has none, or one for pickles, which are never loaded here.
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
    """The serializer of the keys of PyFlink, out of the row that Java has them in."""
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
        # Flink's own spelling.
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
    """Settings of the tracking (`state.latency-track.*`).

    Attributes:
        sample_interval: every how many calls of a method one is timed, beginning with the first.
        history_size: values that a histogram keeps.
        state_name_as_variable: the name of the state is the value of the variable `state_name`, not a group.
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
