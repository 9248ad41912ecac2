"""Cursors of sensors that grow with the number of files: kept in a file, of which the instance stores the digest.

Dagster stores the cursor with each tick, also where nothing has changed. The instance is opened once for a process of
the code location: opening it reads the list of all migrations of its database, which took a quarter of the CPU of idle
sensors.
"""

from __future__ import annotations

import hashlib
import json
import threading
from typing import TYPE_CHECKING, Any

import dagster as dg

from state_pipelines.errors import FormatError, MissingFileError, StorageError
from state_pipelines.storage import Location, join, parent, read_file
from state_pipelines.storage.files import list_directory, remove_file, replace_file

if TYPE_CHECKING:
    from state_pipelines.dagster.job import FlinkJob

_LONGEST = 300
"""Number of characters up to which the instance stores the content itself."""

_FILE = "file"


def load_cursor(job: FlinkJob, sensor: str, context: dg.SensorEvaluationContext) -> dict[str, Any]:
    """Return the content of a cursor; empty where it was cleared, or its file was deleted.

    Args:
        job: the Flink job.
        sensor: name of the sensor, without the job.
        context: of the tick.

    Raises:
        FormatError: the file is not the one that the tick before has written.
        StorageError: the storage fails.
    """
    content: dict[str, Any] = json.loads(context.cursor) if context.cursor else {}
    if _FILE not in content:
        return content
    location = _locate(job, sensor, content[_FILE])
    try:
        data = read_file(location)
    except MissingFileError:
        context.log.warning("The file of the cursor was deleted, so that the sensor begins again: %s", location)
        return {}
    if _digest(data) != content[_FILE]:
        raise FormatError(
            f"the file of the cursor was changed: {location}", hint="Delete it, or clear the cursor of the sensor"
        )
    loaded: dict[str, Any] = json.loads(data)
    return loaded


def store_cursor(job: FlinkJob, sensor: str, context: dg.SensorEvaluationContext, content: dict[str, Any]) -> str:
    """Return the cursor for a content, and write its file if it is long and has changed.

    The file of the tick before stays: that tick counts until Dagster has stored this one.

    Raises:
        StorageError: the storage fails.
    """
    text = json.dumps(content)
    if len(text) <= _LONGEST:
        return text
    data = text.encode()
    cursor = json.dumps({_FILE: _digest(data)})
    if cursor != context.cursor:
        location = _locate(job, sensor, _digest(data))
        replace_file(location, data)
        _remove_others(location, f"{sensor}-", context.cursor or "")
    return cursor


def _locate(job: FlinkJob, sensor: str, digest: str) -> Location:
    return join(parent(job.storage.inventory), "cursors", f"{sensor}-{digest}.json")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _remove_others(location: Location, beginning: str, before: str) -> None:
    for entry in list_directory(parent(location)):
        name = entry.location.name
        digest = name.removeprefix(beginning).removesuffix(".json")
        if name.startswith(beginning) and name != location.name and f'"{digest}"' not in before:
            try:
                remove_file(entry.location)
            except StorageError:
                # It is only not needed any more; the next change tries it again.
                continue


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
