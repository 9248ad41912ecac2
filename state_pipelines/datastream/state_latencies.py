"""Latency of the accesses to keyed states, sampled into histograms (`LatencyTrackingStateFactory`)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

from state_pipelines.serializers.registered_states import StateKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.datastream.metrics import MetricGroup
    from state_pipelines.datastream.table_states import TableState

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
