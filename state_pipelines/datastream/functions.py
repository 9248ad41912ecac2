"""Functions that users write (`pyflink.datastream.functions`), with their context, states, timers and metrics."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from state_pipelines.datastream.flink_types import derive_type
from state_pipelines.datastream.type_information import ListTypeInfo, MapTypeInfo
from state_pipelines.errors import IncompatibleError, UsageError, Where
from state_pipelines.keyed.key_groups import compute_default_max_parallelism, compute_key_group_range
from state_pipelines.operations.check.check import explain_max_parallelism, explain_parallelism
from state_pipelines.serializers import build
from state_pipelines.serializers.state_meta_info import keyed_state
from state_pipelines.serializers.tree import StateKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from state_pipelines.backends.keyed_backend import KeyedStateBackend, TimeDomain, TimerQueue
    from state_pipelines.datastream.ttl import Clock, StateTtlConfig
    from state_pipelines.datastream.type_information import TypeDescription, TypeInformation
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer


@dataclass(frozen=True)
class TaskInfo:
    """The subtask that an operator runs as (`org.apache.flink.api.common.TaskInfo`).

    Attributes:
        task_name: name of the task.
        index: of the subtask, from 0.
        parallelism: number of subtasks.
        max_parallelism: number of key groups; None to take the number of the restored state, or else Flink's default.
        attempt: number of the attempt, from 0.
        job_parameters: parameters of the job by name.
    """

    task_name: str = "operator"
    index: int = 0
    parallelism: int = 1
    max_parallelism: int | None = None
    attempt: int = 0
    job_parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def task_name_with_subtasks(self) -> str:
        """Name of the task with the number of the subtask, such as `operator (1/4)`."""
        return f"{self.task_name} ({self.index + 1}/{self.parallelism})"

    def choose_max_parallelism(self, restored: int | None, snapshot: str = "") -> int:
        """Return the number of key groups (`StateAssignmentOperation.checkParallelismPreconditions`).

        Args:
            restored: number of key groups of the restored state; None without restored state.
            snapshot: path of the snapshot, for errors.

        Raises:
            IncompatibleError: the restored state has fewer key groups than subtasks, or another number than is set.
            UsageError: the parallelism is no number from 1 to 32,768.
        """
        if restored is None:
            return self.max_parallelism or compute_default_max_parallelism(self.parallelism)
        if restored < self.parallelism:
            raise IncompatibleError(explain_parallelism(self.task_name, restored, self.parallelism))
        if self.max_parallelism is not None and self.max_parallelism != restored:
            raise IncompatibleError(
                explain_max_parallelism(snapshot, self.task_name, restored, self.max_parallelism),
                hint="Leave the max parallelism out, or rescale the snapshot first",
            )
        return restored

    def find_key_groups(self, max_parallelism: int) -> KeyGroupRange:
        """Return the key groups of the subtask.

        Raises:
            UsageError: the parallelism is larger than the max parallelism, or there is no such subtask.
        """
        return compute_key_group_range(self.index, self.parallelism, max_parallelism)


if TYPE_CHECKING:
    Number = int | float

HISTORY_SIZE = 128
"""Values that a histogram keeps by default (`state.latency-track.history-size`)."""

_QUANTILES = {"p50": 0.5, "p75": 0.75, "p95": 0.95, "p98": 0.98, "p99": 0.99, "p999": 0.999}
"""Quantiles that Flink's reporters show of a histogram."""


class Counter:
    """A counter metric: a number that goes up and down."""

    def __init__(self) -> None:
        self._count = 0

    def inc(self, n: int = 1) -> None:
        """Add `n`."""
        self._count += n

    def dec(self, n: int = 1) -> None:
        """Subtract `n`."""
        self._count -= n

    def get_count(self) -> int:
        """Return the number."""
        return self._count


class Meter:
    """A meter metric; unlike Flink's, it counts events but does not compute their rate."""

    def __init__(self) -> None:
        self._count = 0

    def mark_event(self, value: int = 1) -> None:
        """Count `value` events."""
        self._count += value

    def get_count(self) -> int:
        """Return the number of events."""
        return self._count


class Distribution:
    """Number, sum, smallest and largest of some values."""

    def __init__(self) -> None:
        self.count = 0
        self.sum: Number = 0
        self.min: Number | None = None
        self.max: Number | None = None

    def update(self, value: Number) -> None:
        """Add a value."""
        self.count += 1
        self.sum += value
        self.min = value if self.min is None else min(self.min, value)
        self.max = value if self.max is None else max(self.max, value)

    def describe(self) -> dict[str, Number]:
        """Return the numbers that are reported; without values the count alone."""
        if self.min is None or self.max is None:
            return {"count": 0}
        return {"count": self.count, "min": self.min, "max": self.max, "mean": self.sum / self.count}


class Histogram(Distribution):
    """A distribution with quantiles of its last values (`DescriptiveStatisticsHistogram`).

    Args:
        history_size: number of the last values from which the quantiles are computed.
    """

    def __init__(self, history_size: int = HISTORY_SIZE) -> None:
        super().__init__()
        self._last: deque[Number] = deque(maxlen=history_size)

    def update(self, value: Number) -> None:
        """Add a value."""
        super().update(value)
        self._last.append(value)

    def describe(self) -> dict[str, Number]:
        """Return the numbers that are reported, with the quantiles."""
        if not self._last:
            return super().describe()
        ordered = sorted(self._last)
        found = {name: ordered[max(0, math.ceil(share * len(ordered)) - 1)] for name, share in _QUANTILES.items()}
        return super().describe() | found


@dataclass(frozen=True)
class MetricValue:
    """A metric of one subtask, or of all subtasks of an operator.

    Attributes:
        name: names of the metric's groups, outermost first, and of the metric, joined by dots.
        kind: counter, gauge, meter, distribution or histogram.
        numbers: `count` of a counter or meter, `value` of a gauge, and of a distribution or histogram `count`, `min`,
            `max`, `mean` and quantiles such as `p99`.
        error: why a gauge has no value; None if it has one.
        subtask: index; None if the value combines all subtasks.
    """

    name: str
    kind: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    error: str | None = None
    subtask: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return the metric as a JSON object: one line of a metrics file."""
        named = {"name": self.name, "kind": self.kind, "subtask": self.subtask, "error": self.error}
        return {key: value for key, value in named.items() if value is not None} | dict(self.numbers)


class MetricGroup:
    """Metrics by name.

    Attributes:
        metrics: counters, meters, distributions and histograms by name.
        gauges: functions that return a value, by name.
        groups: nested groups, by name.
    """

    def __init__(self) -> None:
        self.metrics: dict[str, Counter | Meter | Distribution] = {}
        self.gauges: dict[str, Callable[[], int]] = {}
        self.groups: dict[str, MetricGroup] = {}

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """Return the group `name`; with `extra`, its nested group `extra` (in Flink: value of the variable `name`)."""
        group = self.groups.setdefault(name, MetricGroup())
        return group if extra is None else group.add_group(extra)

    def counter(self, name: str) -> Counter:
        """Register a counter."""
        counter = Counter()
        self.metrics[name] = counter
        return counter

    def gauge(self, name: str, obj: Callable[[], int]) -> None:
        """Register a function that returns the value of a metric."""
        self.gauges[name] = obj

    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        """Register a meter; the time span does not matter for a count."""
        meter = Meter()
        self.metrics[name] = meter
        return meter

    def distribution(self, name: str) -> Distribution:
        """Register a distribution."""
        distribution = Distribution()
        self.metrics[name] = distribution
        return distribution

    def histogram(self, name: str, history_size: int = HISTORY_SIZE) -> Histogram:
        """Register a histogram, as in Java; PyFlink has no histograms.

        Args:
            name: of the metric.
            history_size: number of the last values from which the quantiles are computed.
        """
        histogram = Histogram(history_size)
        self.metrics[name] = histogram
        return histogram

    def collect(self, subtask: int | None = None, prefix: str = "") -> Iterator[MetricValue]:
        """Read all metrics; gauges are called.

        Args:
            subtask: index of the subtask that the metrics belong to; None if they belong to no single one.
            prefix: names of the enclosing groups, each followed by a dot.
        """
        for name, metric in self.metrics.items():
            kind = type(metric).__name__.lower()
            numbers = metric.describe() if isinstance(metric, Distribution) else {"count": metric.get_count()}
            yield MetricValue(prefix + name, kind, numbers, subtask=subtask)
        for name, read in self.gauges.items():
            yield _read_gauge(prefix + name, read, subtask)
        for name, group in self.groups.items():
            yield from group.collect(subtask, f"{prefix}{name}.")


def _read_gauge(name: str, read: Callable[[], int], subtask: int | None) -> MetricValue:
    try:
        value: object = read()
    except Exception as error:  # noqa: BLE001 - as in Flink's reporters, a metric fails no checkpoint
        return MetricValue(name, "gauge", {}, f"{type(error).__name__}: {error}", subtask)
    if isinstance(value, int | float):
        return MetricValue(name, "gauge", {"value": value}, subtask=subtask)
    return MetricValue(name, "gauge", {}, f"{value!r:.80} is not a number", subtask)


def combine_metrics(values: Iterable[MetricValue]) -> tuple[MetricValue, ...]:
    """Combine the values of all subtasks into one value per metric, sorted by name.

    Counts are added, and means are weighted by the counts. `min` is the smallest value of any subtask; `max` and the
    quantiles are the largest of any subtask. A gauge gets the smallest and the largest of its values.
    """
    found: dict[tuple[str, str], list[MetricValue]] = {}
    for each in values:
        found.setdefault((each.name, each.kind), []).append(each)
    return tuple(_combine(name, kind, each) for (name, kind), each in sorted(found.items()))


def _combine(name: str, kind: str, values: list[MetricValue]) -> MetricValue:
    error = next((each.error for each in values if each.error is not None), None)
    if kind == "gauge":
        known = [each.numbers["value"] for each in values if "value" in each.numbers]
        return MetricValue(name, kind, {"min": min(known), "max": max(known)} if known else {}, error)
    counts = [each.numbers["count"] for each in values]
    numbers: dict[str, Number] = {"count": sum(counts)}
    filled = [each.numbers for each in values if "min" in each.numbers]
    for key in filled[0] if filled else ():
        if key == "mean":
            numbers[key] = sum(each["mean"] * each["count"] for each in filled) / numbers["count"]
        elif key != "count":
            numbers[key] = (min if key == "min" else max)(each[key] for each in filled)
    return MetricValue(name, kind, numbers, error)


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class FunctionState(ABC):
    """Base class of all states."""

    @abstractmethod
    def clear(self) -> None:
        """Remove what is stored for the current key."""


class ValueState(FunctionState, Generic[T]):
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


class AppendingState(FunctionState, Generic[IN, OUT]):
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
    """A state whose values in several namespaces are merged when session windows grow together."""


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


class ReadOnlyMap(FunctionState, Generic[K, V]):
    """A map state for reading; the operators of dicts work too."""

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Return the value of a map key; None if it is not there."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Return whether a map key is there, even with a null value."""

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
    """A broadcast state for the input that is not broadcast, which must not change the state."""


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


LOWEST_WATERMARK = -(1 << 63)
"""The watermark before the first one (`Long.MIN_VALUE`)."""

HIGHEST_WATERMARK = (1 << 63) - 1
"""The watermark at the end of the input (`Watermark.MAX_WATERMARK`)."""


class TimerService:
    """Current times, and timers of the current key and namespace (`InternalTimerServiceImpl`).

    A timer exists once per time and key.

    Args:
        backend: whose current key the timers get.
        event_timers: queue of event time.
        processing_timers: queue of processing time.
        clock: processing time.

    Attributes:
        watermark: the current watermark.
        namespace: of the timers; None is the void namespace.
    """

    def __init__(
        self, backend: KeyedStateBackend, event_timers: TimerQueue, processing_timers: TimerQueue, clock: Clock
    ) -> None:
        self._backend = backend
        self._event_timers = event_timers
        self._processing_timers = processing_timers
        self._clock = clock
        self.watermark = LOWEST_WATERMARK
        self.namespace: Any = None

    def current_processing_time(self) -> int:
        """Return the processing time in epoch milliseconds."""
        return self._clock()

    def current_watermark(self) -> int:
        """Return the watermark in epoch milliseconds; Java's smallest long before the first one."""
        return self.watermark

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Register a timer that fires when the processing time reaches a time.

        Args:
            timestamp: epoch milliseconds.
        """
        self._processing_timers.add(timestamp, self._backend.current_key, self.namespace)

    def register_event_time_timer(self, timestamp: int) -> None:
        """Register a timer that fires when the watermark reaches a time.

        Args:
            timestamp: epoch milliseconds.
        """
        self._event_timers.add(timestamp, self._backend.current_key, self.namespace)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete a timer, if it is registered and has not fired.

        Args:
            timestamp: epoch milliseconds.
        """
        self._processing_timers.remove(timestamp, self._backend.current_key, self.namespace)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete a timer, if it is registered and has not fired.

        Args:
            timestamp: epoch milliseconds.
        """
        self._event_timers.remove(timestamp, self._backend.current_key, self.namespace)


class RuntimeContext(KeyedStateStore):
    """The subtask that a function runs in (`pyflink.datastream.RuntimeContext`).

    Args:
        task: the subtask.
        max_parallelism: number of key groups.
        states: registers keyed states; None in operators without keys.
        metrics: of the function; default new ones.
    """

    def __init__(
        self, task: TaskInfo, max_parallelism: int, states: KeyedStateStore | None, metrics: MetricGroup | None = None
    ) -> None:
        self._task = task
        self._max_parallelism = max_parallelism
        self._states = states
        self._metrics = metrics or MetricGroup()

    def get_task_name(self) -> str:
        """Return the name of the task."""
        return self._task.task_name

    def get_number_of_parallel_subtasks(self) -> int:
        """Return the parallelism of the operator."""
        return self._task.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """Return the max parallelism of the operator, which is its number of key groups."""
        return self._max_parallelism

    def get_index_of_this_subtask(self) -> int:
        """Return the index of the subtask, from 0."""
        return self._task.index

    def get_attempt_number(self) -> int:
        """Return the number of the attempt to run the subtask, from 0."""
        return self._task.attempt

    def get_task_name_with_subtasks(self) -> str:
        """Return the name of the task with the number of the subtask, such as `Task (3/6)`."""
        return self._task.task_name_with_subtasks

    def get_job_parameter(self, key: str, default_value: str) -> str:
        """Return a parameter of the job.

        Args:
            key: name of the parameter.
            default_value: if the job has no such parameter.
        """
        return self._task.job_parameters.get(key, default_value)

    def get_metrics_group(self) -> MetricGroup:
        """Return the metrics of the function."""
        return self._metrics

    def get_state(self, state_descriptor: Any) -> ValueState[Any]:
        """Register a value state."""
        return self._require_states().get_state(state_descriptor)

    def get_list_state(self, state_descriptor: Any) -> ListState[Any]:
        """Register a list state."""
        return self._require_states().get_list_state(state_descriptor)

    def get_map_state(self, state_descriptor: Any) -> MapState[Any, Any]:
        """Register a map state."""
        return self._require_states().get_map_state(state_descriptor)

    def get_reducing_state(self, state_descriptor: Any) -> ReducingState[Any]:
        """Register a reducing state."""
        return self._require_states().get_reducing_state(state_descriptor)

    def get_aggregating_state(self, state_descriptor: Any) -> AggregatingState[Any, Any]:
        """Register an aggregating state."""
        return self._require_states().get_aggregating_state(state_descriptor)

    def _require_states(self) -> KeyedStateStore:
        if self._states is None:
            raise UsageError(
                "Keyed state can only be used on a 'keyed stream', i.e., after a 'keyBy()' operation.",
                hint="Use a function for keyed inputs",
            )
        return self._states


class Function:
    """Base class of all functions."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Prepare the function, for example register states; called once, before anything else.

        Args:
            runtime_context: of the subtask.
        """

    def close(self) -> None:
        """Release what `open` has taken; called once, after everything else."""


class ReduceFunction(Function, ABC):
    """Combines two values of a type to one of the same type."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Combine two values.

        Args:
            value1: the value so far.
            value2: the new value.
        """


class ReduceFunctionWrapper(ReduceFunction):
    """A plain function as a `ReduceFunction`."""

    def __init__(self, func: Callable[[Any, Any], Any]) -> None:
        self._func = func

    def reduce(self, value1: Any, value2: Any) -> Any:
        """Call the function."""
        return self._func(value1, value2)


class AggregateFunction(Function, ABC):
    """Adds values to an accumulator; values, accumulator and result may be of three types."""

    @abstractmethod
    def create_accumulator(self) -> Any:
        """Return an accumulator without values."""

    @abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """Return the accumulator with a value added; the given accumulator may be changed and returned."""

    @abstractmethod
    def get_result(self, accumulator: Any) -> Any:
        """Return the result of an accumulator."""

    @abstractmethod
    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """Return an accumulator with the values of both accumulators; session windows need it."""


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
        """Serializer of the values; of a list or map the collection's, with the TTL serializer around the elements."""
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


if TYPE_CHECKING:
    Output = Iterable[Any] | None
    """Values that a call emits; a pair of `OutputTag` and value goes to a side output."""


class KeySelector(Function, ABC):
    """Finds the key of an element."""

    @abstractmethod
    def get_key(self, value: Any) -> Any:
        """Return the key; the same for the same value."""


class KeyedContext:
    """Key, timestamp and timers of the current element or timer; valid during the call only.

    Args:
        timers: of the subtask.
    """

    def __init__(self, timers: TimerService) -> None:
        self._timers = timers
        self._key: Any = None
        self._timestamp: int | None = None
        self._domain: TimeDomain | None = None

    def set_key(self, key: Any, timestamp: int | None, domain: TimeDomain | None = None) -> None:
        """Set key and timestamp of an element or timer; `domain` is the time domain of a timer, None for elements."""
        self._key, self._timestamp, self._domain = key, timestamp, domain

    def get_current_key(self) -> Any:
        """Return the key of the element or timer."""
        return self._key

    def timer_service(self) -> TimerService:
        """Return current times, and the timers of the key."""
        return self._timers

    def timestamp(self) -> int | None:
        """Return the timestamp of the element or timer in epoch milliseconds; None if it has none."""
        return self._timestamp


class KeyedTimerContext(KeyedContext):
    """A `KeyedContext` that also gives the time domain of a timer."""

    def time_domain(self) -> TimeDomain:
        """Return the time domain of the timer: event time or processing time.

        Raises:
            UsageError: called outside of `on_timer`.
        """
        if self._domain is None:
            raise UsageError("time_domain is called outside of on_timer")
        return self._domain


class KeyedProcessFunction(Function, ABC):
    """Processes the elements of one input, with keyed state and timers."""

    class Context(KeyedContext):
        """Context of `process_element`."""

    class OnTimerContext(KeyedTimerContext, Context):
        """Context of `on_timer`."""

    @abstractmethod
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Output:
        """Process an element, and yield what is emitted."""

    # Not abstract: functions without timers need no `on_timer`.
    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Output:
        """React to a timer, and yield what is emitted."""
        return None


class KeyedCoProcessFunction(Function, ABC):
    """Processes the elements of two inputs with the same keys, with common keyed state and timers."""

    class Context(KeyedContext):
        """Context of `process_element1` and `process_element2`."""

    class OnTimerContext(KeyedTimerContext, Context):
        """Context of `on_timer`."""

    @abstractmethod
    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Output:
        """Process an element of the first input, and yield what is emitted."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Output:
        """Process an element of the second input, and yield what is emitted."""

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Output:
        """React to a timer, and yield what is emitted."""
        return None


class ElementContext(KeyedProcessFunction.OnTimerContext, KeyedCoProcessFunction.OnTimerContext):
    """The context that operators pass to the function for an element or a timer of a keyed input."""


def require_function(function: object, wanted: Sequence[type[Function]], taker: str) -> None:
    """Refuse a user function that is not an instance of one of certain classes.

    Args:
        function: the object that the user gave.
        wanted: the classes.
        taker: name of the operator that runs the function, for errors.

    Raises:
        UsageError: the object is an instance of none of the classes.
    """
    if isinstance(function, tuple(wanted)):
        return
    names = " or ".join(each.__name__ for each in wanted)
    if isinstance(function, type):
        hint = f"{function.__name__} is a class: give an object of it, {function.__name__}()"
    elif isinstance(function, Function):
        bases = [each.__name__ for each in type(function).__mro__ if each.__module__.startswith(__package__)]
        hint = f"{type(function).__name__} is a {bases[0]}, which another operator runs"
    else:
        hint = f"Derive its class from {names} of state_pipelines.datastream"
    raise UsageError(f"{taker} runs a {names}, and {function!r:.80} is none", hint=hint)


class BaseBroadcastProcessFunction(Function, ABC):
    """Base class of the functions with a broadcast input."""

    class BaseContext(ABC):
        """Timestamp, processing time and watermark; valid during the call only."""

        @abstractmethod
        def timestamp(self) -> int | None:
            """Return the timestamp of the element or timer in epoch milliseconds; None if it has none."""

        @abstractmethod
        def current_processing_time(self) -> int:
            """Return the processing time in epoch milliseconds."""

        @abstractmethod
        def current_watermark(self) -> int:
            """Return the watermark in epoch milliseconds."""

    class Context(BaseContext):
        """Context of the broadcast side, which may change broadcast state."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
            """Return a broadcast state.

            Raises:
                UsageError: the operator was not given its descriptor.
            """

    class ReadOnlyContext(BaseContext):
        """Context of the input that is not broadcast, which may only read broadcast state."""

        @abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
            """Return a broadcast state for reading.

            Raises:
                UsageError: the operator was not given its descriptor.
            """


class BroadcastProcessFunction(BaseBroadcastProcessFunction):
    """Processes an input without keys and a broadcast one."""

    class Context(BaseBroadcastProcessFunction.Context):
        """Context of `process_broadcast_element`."""

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext):
        """Context of `process_element`."""

    @abstractmethod
    def process_element(self, value: Any, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Output:
        """Process an element of the input that is not broadcast, and yield what is emitted."""

    @abstractmethod
    def process_broadcast_element(self, value: Any, ctx: BroadcastProcessFunction.Context) -> Output:
        """Process a broadcast element, and yield what is emitted."""


class KeyedBroadcastProcessFunction(BaseBroadcastProcessFunction):
    """Processes a keyed input and a broadcast one, with keyed state and timers."""

    class Context(BaseBroadcastProcessFunction.Context):
        """Context of `process_broadcast_element`, which has no current key."""

        @abstractmethod
        def apply_to_keyed_state(self, state_descriptor: Any, function: Callable[[Any, Any], None]) -> None:
            """Call a function for every key of the subtask that has a value in a state (as in Java).

            Args:
                state_descriptor: of a keyed state.
                function: takes a key, and the state with that key as its current key.
            """

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext):
        """Context of `process_element`."""

        @abstractmethod
        def timer_service(self) -> TimerService:
            """Return current times, and the timers of the key."""

        @abstractmethod
        def get_current_key(self) -> Any:
            """Return the key of the element or timer."""

    class OnTimerContext(ReadOnlyContext):
        """Context of `on_timer`."""

        @abstractmethod
        def time_domain(self) -> TimeDomain:
            """Return the time domain of the timer: event time or processing time."""

    @abstractmethod
    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Output:
        """Process an element of the keyed input, and yield what is emitted."""

    @abstractmethod
    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> Output:
        """Process a broadcast element, and yield what is emitted."""

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Output:
        """React to a timer, and yield what is emitted."""
        return None


@dataclass(frozen=True)
class OutputTag:
    """A side output; a function emits to it by `yield tag, value`.

    Attributes:
        tag_id: name of the side output.
        type_info: type of the values; None if not given (PyFlink pickles the values then).

    Raises:
        UsageError: the name is empty.
    """

    tag_id: str
    type_info: TypeInformation | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.tag_id:
            raise UsageError("OutputTag tag_id cannot be None or empty string")
