"""Metrics that functions count (`pyflink.metrics`); they are kept in the process, and are not reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


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
        self.sum = 0
        self.min: int | None = None
        self.max: int | None = None

    def update(self, value: int) -> None:
        """Add a value."""
        self.count += 1
        self.sum += value
        self.min = value if self.min is None else min(self.min, value)
        self.max = value if self.max is None else max(self.max, value)


class MetricGroup:
    """Metrics by name.

    Attributes:
        metrics: counters, meters and distributions by name.
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
