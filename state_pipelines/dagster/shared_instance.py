"""The Dagster instance as sensors use it: opened once for a process of the code location, not at each tick.

Opening it reads the list of all migrations of its database, which took a quarter of the CPU of idle sensors.
"""

from __future__ import annotations

import threading

import dagster as dg

_LOCK = threading.Lock()
_SHARED: list[tuple[object, dg.DagsterInstance]] = []
"""The instance that was opened last, with its reference; a code location serves one."""


def share_instance(context: dg.SensorEvaluationContext) -> dg.DagsterInstance:
    """Return the instance of a sensor, the same at each tick; that of the context in tests, which have no reference."""
    reference = context.instance_ref
    if reference is None:
        return context.instance
    with _LOCK:
        for known, instance in _SHARED:
            if known == reference:
                return instance
        instance = dg.DagsterInstance.from_ref(reference)
        _SHARED[:] = [(reference, instance)]
        return instance
