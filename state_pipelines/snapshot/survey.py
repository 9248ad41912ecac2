"""The readable states of an operator; a subtask that cannot be read does not hide the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.codecs.columns import explain
from state_pipelines.errors import StateError, UnsupportedError, at
from state_pipelines.serializers.body_ends import OpenBodyError
from state_pipelines.snapshot.broadcast_state import BroadcastState
from state_pipelines.snapshot.keyed_state import KeyedPart, KeyedState
from state_pipelines.snapshot.list_state import OperatorListState, OperatorPart
from state_pipelines.snapshot.raw_state import (
    RawKeyedPart,
    RawKeyedState,
    RawOperatorPart,
    RawOperatorState,
    UnreadKeyedState,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.snapshot.operator import Operator
    from state_pipelines.snapshot.state import State


@dataclass(frozen=True)
class Failure:
    """State of an operator that cannot be read.

    Attributes:
        subtask: index of the subtask; None where it is not state of a single one.
        error: why not.
    """

    subtask: int | None
    error: StateError

    @property
    def is_damage(self) -> bool:
        """Whether bytes are damaged or missing, in contrast to a format that is not covered."""
        return is_damage(self.error)


def is_damage(error: StateError) -> bool:
    """Return whether an error is about bytes that are damaged or missing, not about a format that is not covered."""
    return not isinstance(error, UnsupportedError)


@dataclass(frozen=True)
class Survey:
    """The states of an operator as far as they can be read.

    Attributes:
        states: in the order of `Operator.states`.
        failures: what cannot be read.
    """

    states: tuple[State, ...]
    failures: tuple[Failure, ...]


def survey(operator: Operator, *, in_flight: bool = False) -> Survey:
    """The states of an operator as far as they can be read, and what cannot; see `Operator.survey`."""
    states: list[State] = []
    failures: list[Failure] = []
    for found, failed in (survey_keyed(operator), survey_operator(operator), survey_raw(operator)):
        states += found
        failures += failed
    if in_flight:
        try:
            with at(operator=operator.label):
                states += [] if operator.in_flight is None else [operator.in_flight]
        except StateError as error:
            failures.append(Failure(None, error))
    return Survey(tuple(states), tuple(failures))


def raise_first(failures: Sequence[Failure]) -> None:
    """Raise the error of the first failure, if there is one."""
    for failure in failures:
        raise failure.error


def _find_unread(operator: Operator) -> Mapping[int, RawKeyedPart]:
    """Find keyed state whose key serializer cannot be read, by index of the subtask."""
    _, failures = operator.snapshot.keyed_files.survey(operator.metadata, operator.snapshot.layout_context)
    found = {}
    for subtask in operator.metadata.subtasks:
        failure = failures.get(subtask.index)
        if isinstance(failure, OpenBodyError):
            reason = explain(failure)
            part = operator.snapshot.handles.open_key_groups(subtask.managed_keyed_state, subtask.index, reason)
            if part is not None:
                found[subtask.index] = part
    return found


def survey_keyed(operator: Operator) -> tuple[tuple[KeyedState, ...], list[Failure]]:
    """Keyed states and timers."""
    files, failures = operator.snapshot.keyed_files.survey(operator.metadata, operator.snapshot.layout_context)
    unread = _find_unread(operator)
    parts: dict[str, list[KeyedPart]] = {}
    for subtask, file in files:
        for state_id, info in enumerate(file.header.states):
            parts.setdefault(info.name, []).append(KeyedPart(subtask, file, state_id))
    failed = [_fail(operator, index, error) for index, error in failures.items() if index not in unread]
    return tuple(KeyedState(operator, tuple(each)) for each in parts.values()), failed


def survey_operator(operator: Operator) -> tuple[tuple[State, ...], list[Failure]]:
    """List states, then broadcast states."""
    lists: dict[str, list[OperatorPart]] = {}
    broadcasts: dict[str, list[OperatorPart]] = {}
    failures = []
    for subtask in operator.metadata.subtasks:
        try:
            source = operator.snapshot.handles.open_operator(subtask.managed_operator_state)
        except StateError as error:
            failures.append(_fail(operator, subtask.index, error))
            continue
        if source is not None:
            for info in source.header.lists:
                lists.setdefault(info.name, []).append(OperatorPart(subtask.index, source, info))
            for info in source.header.broadcasts:
                broadcasts.setdefault(info.name, []).append(OperatorPart(subtask.index, source, info))
    for name, parts in broadcasts.items():
        broadcasts[name] = [replace(part, info=operator.declare_broadcast(part.info)) for part in parts]
    found = (
        *(OperatorListState(operator, tuple(each)) for each in lists.values()),
        *(BroadcastState(operator, tuple(each)) for each in broadcasts.values()),
    )
    return found, failures


def survey_raw(operator: Operator) -> tuple[tuple[State, ...], list[Failure]]:
    """Find state that is only known as bytes."""
    handles = operator.snapshot.handles
    keyed, raw, failures = [], [], []
    sections = _find_unread(operator)
    unread = operator.snapshot.keyed_files.survey_unread(operator.metadata, operator.snapshot.layout_context)
    for subtask in operator.metadata.subtasks:
        try:
            if subtask.index in unread:
                reason = unread[subtask.index].reason
                keyed.append(handles.open_raw_bytes(subtask.raw_keyed_state, subtask.index, reason))
            if (handle := subtask.raw_operator_state) is not None:
                raw.append(RawOperatorPart(subtask.index, handles.open_stream(handle.delegate), handle))
        except StateError as error:
            failures.append(_fail(operator, subtask.index, error))
    found = (
        *([RawKeyedState(operator, tuple(keyed))] if keyed else ()),
        *([UnreadKeyedState(operator, tuple(sections.values()))] if sections else ()),
        *([RawOperatorState(operator, tuple(raw))] if raw else ()),
    )
    return found, failures


def _fail(operator: Operator, subtask: int | None, error: StateError) -> Failure:
    error.where = replace(error.where, operator=error.where.operator or operator.label)
    return Failure(subtask, error)
