"""Metrics that functions count (`pyflink.metrics`), and what is reported of them when a subtask ends."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Number = int | float

HISTORY_SIZE = 128
"""Values that a histogram keeps by default (`state.latency-track.history-size`)."""

_QUANTILES = {"p50": 0.5, "p75": 0.75, "p95": 0.95, "p98": 0.98, "p99": 0.99, "p999": 0.999}
"""Those that Flink's reporters show of a histogram."""


class Counter:
    """A number that goes up and down."""

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
    """A count of events."""

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
        history_size: number of the last values that the quantiles are of.
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
        name: names of its groups and its own, with dots.
        kind: counter, gauge, meter, distribution or histogram.
        numbers: `count` of a counter or meter, `value` of a gauge, and of a distribution or histogram `count`, `min`,
            `max`, `mean` and quantiles such as `p99`.
        error: why a gauge has no value; None if it has one.
        subtask: index; None where the values of all subtasks are put together.
    """

    name: str
    kind: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    error: str | None = None
    subtask: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return a line of a file of metrics."""
        named = {"name": self.name, "kind": self.kind, "subtask": self.subtask, "error": self.error}
        return {key: value for key, value in named.items() if value is not None} | dict(self.numbers)


class MetricGroup:
    """Metrics by name.

    Attributes:
        metrics: counters, meters, distributions and histograms by name.
        gauges: functions that return a value, by name.
        groups: groups inside, by name.
    """

    def __init__(self) -> None:
        self.metrics: dict[str, Counter | Meter | Distribution] = {}
        self.gauges: dict[str, Callable[[], int]] = {}
        self.groups: dict[str, MetricGroup] = {}

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """Return the group of a name; with `extra` that of the value `extra` of the variable `name`."""
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
        """Register a histogram; in Java only, PyFlink has none.

        Args:
            name: of the metric.
            history_size: number of the last values that the quantiles are of.
        """
        histogram = Histogram(history_size)
        self.metrics[name] = histogram
        return histogram

    def collect(self, subtask: int | None = None, prefix: str = "") -> Iterator[MetricValue]:
        """Read all metrics; gauges are called.

        Args:
            subtask: whose they are.
            prefix: names of the groups around this one.
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
    """Put the values of all subtasks together, by name in order.

    Counts are added, means weighted; a smallest, a largest and a quantile is that of the subtask with the smallest or
    largest one. Gauges have the smallest and the largest of their values.
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
