"""Metrics of functions: what is reported of them, and latencies of state."""

from __future__ import annotations

import json
from typing import Any

import pytest

from state_pipelines.datastream import (
    KeyedProcessFunction,
    KeyedProcessOperator,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    Types,
    ValueStateDescriptor,
)
from state_pipelines.datastream.functions import MetricGroup, MetricValue, combine_metrics
from state_pipelines.datastream.table_states import LatencyTracking


def test_every_kind_of_metric_is_reported() -> None:
    group = MetricGroup()
    group.add_group("orders").counter("bad").inc(3)
    group.meter("events").mark_event(2)
    group.gauge("size", lambda: 7)
    group.gauge("broken", lambda: 1 // 0)
    group.gauge("text", lambda: "many")  # type: ignore[arg-type,return-value]
    sizes = group.distribution("sizes")
    sizes.update(4)
    sizes.update(2)
    group.distribution("none")
    group.histogram("no times")
    histogram = group.histogram("times", history_size=100)
    for value in range(1, 201):
        histogram.update(value)
    found = {each.name: each.to_json() for each in group.collect(1)}
    assert all(each.pop("subtask") == 1 and each.pop("name") == name for name, each in found.items())
    assert found == {
        "orders.bad": {"kind": "counter", "count": 3},
        "events": {"kind": "meter", "count": 2},
        "size": {"kind": "gauge", "value": 7},
        "broken": {"kind": "gauge", "error": "ZeroDivisionError: integer division or modulo by zero"},
        "text": {"kind": "gauge", "error": "'many' is not a number"},
        "sizes": {"kind": "distribution", "count": 2, "min": 2, "max": 4, "mean": 3.0},
        "none": {"kind": "distribution", "count": 0},
        "no times": {"kind": "histogram", "count": 0},
        # The quantiles are of the last hundred values, 101 to 200.
        "times": {"kind": "histogram", "count": 200, "min": 1, "max": 200, "mean": 100.5}
        | {"p50": 150, "p75": 175, "p95": 195, "p98": 198, "p99": 199, "p999": 200},
    }


def test_the_values_of_subtasks_are_put_together() -> None:
    values = [
        MetricValue("sizes", "distribution", {"count": 1, "min": 5, "max": 5, "mean": 5.0}, subtask=0),
        MetricValue("sizes", "distribution", {"count": 3, "min": 1, "max": 3, "mean": 1.0}, subtask=1),
        MetricValue("sizes", "distribution", {"count": 0}, subtask=2),
        *(MetricValue("clicks", "counter", {"count": index}, subtask=index) for index in range(3)),
        *(MetricValue("open", "gauge", {"value": index}, subtask=index) for index in range(3)),
        MetricValue("broken", "gauge", {}, "KeyError: 1", 0),
    ]
    assert combine_metrics(values) == (
        MetricValue("broken", "gauge", {}, "KeyError: 1"),
        MetricValue("clicks", "counter", {"count": 3}),
        MetricValue("open", "gauge", {"min": 0, "max": 2}),
        MetricValue("sizes", "distribution", {"count": 4, "min": 1, "max": 5, "mean": 2.0}),
    )


class UseStates(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value", Types.LONG()))
        self.list = runtime_context.get_list_state(ListStateDescriptor("list", Types.LONG()))
        self.map = runtime_context.get_map_state(MapStateDescriptor("map", Types.LONG(), Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.value.update(value)
        yield self.value.value()
        self.list.add(value)
        self.map[value] = value
        assert value in self.map
        self.list.clear()


@pytest.mark.parametrize("is_variable", [True, False])
def test_one_of_some_accesses_to_state_is_timed(is_variable: bool) -> None:
    tracking = LatencyTracking(3, 2, is_variable)
    with KeyedProcessOperator(UseStates(), lambda value: value, Types.LONG(), latencies=tracking) as operator:
        assert [operator.process(value) for value in range(7)] == [[value] for value in range(7)]
        metrics = {each.name: each.numbers for each in operator.collect_metrics()}
    prefix = "state_name." if is_variable else ""
    names = [
        "value.valueStateUpdateLatency",
        "value.valueStateGetLatency",
        "list.listStateAddLatency",
        "list.stateClearLatency",
        "map.mapStatePutLatency",
        "map.mapStateContainsAllLatency",
    ]
    # The first of seven calls, the fourth and the seventh.
    assert {name: numbers["count"] for name, numbers in metrics.items()} == {prefix + name: 3 for name in names}
    assert all(numbers["min"] > 0 for numbers in metrics.values())


def test_without_tracking_nothing_is_timed() -> None:
    with KeyedProcessOperator(UseStates(), lambda value: value, Types.LONG()) as operator:
        operator.process(1)
        assert json.dumps(operator.collect_metrics()) == "[]"
