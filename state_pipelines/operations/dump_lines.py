"""Lines of `dump`: values in JSON, values that cannot be decoded, and state that cannot be read."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from state_pipelines.codecs.columns import explain
from state_pipelines.codecs.java import Undecoded
from state_pipelines.codecs.json import Json, access_times, to_json
from state_pipelines.errors import StateError, StorageError, UnsupportedError
from state_pipelines.serializers import tree
from state_pipelines.snapshot.snapshot import is_undetermined

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.binary.data_views import Reader
    from state_pipelines.snapshot import State
    from state_pipelines.snapshot.snapshot import Failure

Line = dict[str, Json]
"""An object for `json.dumps`; see `operations.dump`."""


class LineKind(StrEnum):
    """Kind of a line."""

    KEYED = "keyed"
    TIMER = "timer"
    OPERATOR = "operator"
    BROADCAST = "broadcast"
    RAW_KEYED = "raw_keyed"
    RAW_OPERATOR = "raw_operator"
    IN_FLIGHT = "inflight"
    COORDINATOR = "coordinator"
    MASTER = "master"
    UNREAD = "unread"


def describe_unread(failure: Failure, operator: str, state: str | None = None) -> Line:
    """Make the line of state that cannot be read.

    Raises:
        StorageError: the storage failed, which says nothing of the state.
    """
    if isinstance(failure.error, StorageError):
        raise failure.error
    line: Line = {"kind": LineKind.UNREAD, "op": operator}
    if state is not None:
        line["state"] = state
    if failure.subtask is not None:
        line["subtask"] = failure.subtask
    line |= {"error": str(failure.error), "damaged": failure.is_damage}
    return {**line, "undetermined": True} if is_undetermined(failure.error) else line


def name_state(state: State) -> Line:
    """The name of a state; of a Python function that in Python, and beside it that in Java."""
    line: Line = {"state": state.label}
    return {**line, "java_state": state.name} if state.python_name else line


def add_value(line: Line, serializer: tree.Serializer, reader: Reader, read: Callable[[Reader], object]) -> None:
    """Add the value that `read` gives to a line, with its times of access; bytes with a reason if it has no reader."""
    start = reader.position
    try:
        value = read(reader)
    except UnsupportedError as error:
        reader.position = start
        line["value"] = show_bytes(reader, describe_reason(error))
        return
    line["value"] = show_value(serializer, value)
    accessed = access_times(serializer, value)
    if accessed is not None:
        line["ttl_ts"] = accessed if isinstance(accessed, int) else [*accessed]


def show_value(serializer: tree.Serializer, value: object) -> Json:
    """The JSON of a value; bytes with a reason if it could not be decoded."""
    if isinstance(value, Undecoded) and isinstance(serializer, tree.Opaque):
        return {"@bytes": value.raw.hex(), "@reason": value.reason}
    return to_json(serializer, value)


def show_bytes(reader: Reader, reason: str) -> Json:
    """The remaining bytes of `reader`, which are taken, with the reason why they are not decoded."""
    return {"@bytes": reader.take(reader.remaining).hex(), "@reason": reason}


def describe_reason(error: StateError) -> str:
    """Say why a value is not decoded, with the path to the field."""
    text = explain(error)
    return f"{text} (at {error.where.path})" if error.where.path else text
