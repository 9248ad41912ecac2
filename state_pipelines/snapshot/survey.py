"""The readable states of an operator; a subtask that cannot be read does not hide the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.codecs.columns import explain
from state_pipelines.errors import StateError, StorageError, UnsupportedError, UnsupportedVersionError, at
from state_pipelines.metadata.handles import ChannelDirection
from state_pipelines.serializers.body_ends import OpenBodyError
from state_pipelines.serializers.registered_states import StateKind
from state_pipelines.snapshot.broadcast_state import BroadcastState
from state_pipelines.snapshot.held_key_groups import find_held_key_groups
from state_pipelines.snapshot.keyed_state import KeyedState, KeyedSubtaskState
from state_pipelines.snapshot.list_state import NonKeyedState, NonKeyedSubtaskState, OperatorListState
from state_pipelines.snapshot.python_states import declare_types, find_declaration
from state_pipelines.snapshot.raw_state import (
    InFlightState,
    InFlightSubtaskState,
    RawKeyedState,
    RawOperatorState,
    RawOperatorSubtaskState,
    UnreadKeyedState,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.snapshot.operator_files import OperatorFiles
    from state_pipelines.snapshot.raw_key_groups import RawKeyedSubtaskState
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


def is_undetermined(error: StateError) -> bool:
    """Return whether an error is about a version that is not known, so that nothing can be said of the bytes."""
    return isinstance(error, UnsupportedVersionError)


def is_unreadable(error: StateError) -> bool:
    """Return whether bytes are damaged or missing, or the storage fails or refuses.

    In contrast to those of a format that is not covered.
    """
    return not isinstance(error, UnsupportedError)


def is_damage(error: StateError) -> bool:
    """Return whether an error is about bytes that are damaged or missing.

    In contrast to those of a format that is not covered, and to a storage that fails or refuses.
    """
    return is_unreadable(error) and not isinstance(error, StorageError)


@dataclass(frozen=True)
class Survey:
    """The states of an operator as far as they can be read.

    Attributes:
        states: in the order of `Operator.states`.
        failures: what cannot be read.
    """

    states: tuple[State, ...]
    failures: tuple[Failure, ...]


def survey(operator: OperatorFiles, *, in_flight: bool = False) -> Survey:
    """The states of an operator as far as they can be read, and what cannot; see `Operator.survey`."""
    states: list[State] = []
    failures: list[Failure] = []
    for found, failed in (survey_keyed(operator), survey_operator(operator), survey_raw(operator)):
        states += found
        failures += failed
    if in_flight:
        try:
            with at(operator=operator.label):
                found_in_flight = find_in_flight(operator)
                states += [] if found_in_flight is None else [found_in_flight]
        except StateError as error:
            failures.append(Failure(None, error))
    return Survey(tuple(states), tuple(failures))


def find_failures(
    operator: OperatorFiles, state: State | None, key_groups: KeyGroupRange | None = None
) -> list[StateError]:
    """Errors of the files that cannot be read and may hold records of a state.

    Args:
        operator: the operator.
        state: the state; None: any keyed state.
        key_groups: only files that hold some of these.
    """
    if isinstance(state, NonKeyedState):
        return [failure.error for failure in survey_operator(operator)[1]]
    if state is not None and not isinstance(state, KeyedState):
        return [failure.error for failure in survey_raw(operator)[1]]
    held = find_held_key_groups(operator.metadata)
    return [
        failure.error
        for failure in survey_keyed(operator)[1]
        if key_groups is None or failure.subtask not in held or held[failure.subtask].intersect(key_groups).number
    ]


def find_in_flight(operator: OperatorFiles) -> InFlightState | None:
    """Find in-flight data of an unaligned checkpoint; None when there is none."""
    subtask_states = tuple(
        InFlightSubtaskState(subtask.index, operator.snapshot.handles.open_stream(handle.delegate), handle, direction)
        for subtask in operator.metadata.subtasks
        for direction, channels in (
            (ChannelDirection.INPUT, subtask.input_channel_state),
            (ChannelDirection.OUTPUT, subtask.result_subpartition_state),
        )
        for handle in channels
    )
    return InFlightState(operator, subtask_states) if subtask_states else None


def raise_first(failures: Sequence[Failure]) -> None:
    """Raise the error of the first failure, if there is one."""
    for failure in failures:
        raise failure.error


def _find_unread(operator: OperatorFiles) -> Mapping[int, RawKeyedSubtaskState]:
    """Find keyed state whose key serializer cannot be read, by index of the subtask."""
    _, failures = operator.snapshot.keyed_files.survey(operator.metadata, operator.snapshot.layout_context)
    found = {}
    for subtask in operator.metadata.subtasks:
        failure = failures.get(subtask.index)
        if isinstance(failure, OpenBodyError):
            reason = explain(failure)
            subtask_state = operator.snapshot.handles.open_key_groups(
                subtask.managed_keyed_state, subtask.index, reason
            )
            if subtask_state is not None:
                found[subtask.index] = subtask_state
    return found


def survey_keyed(operator: OperatorFiles) -> tuple[tuple[KeyedState, ...], list[Failure]]:
    """Keyed states and timers."""
    files, failures = operator.snapshot.keyed_files.survey(operator.metadata, operator.snapshot.layout_context)
    unread = _find_unread(operator)
    subtask_states: dict[str, list[KeyedSubtaskState]] = {}
    for subtask, file in files:
        for state_id, info in enumerate(file.header.states):
            subtask_states.setdefault(info.name, []).append(KeyedSubtaskState(subtask, file, state_id))
    failed = [_fail(operator, index, error) for index, error in failures.items() if index not in unread]
    return tuple(KeyedState(operator, tuple(each)) for each in subtask_states.values()), failed


def survey_operator(operator: OperatorFiles) -> tuple[tuple[State, ...], list[Failure]]:
    """List states, then broadcast states."""
    lists: dict[str, list[NonKeyedSubtaskState]] = {}
    broadcasts: dict[str, list[NonKeyedSubtaskState]] = {}
    failures = []
    for subtask in operator.metadata.subtasks:
        try:
            unread = operator.snapshot.handles.open_operator(subtask.managed_operator_state)
        except StateError as error:
            failures.append(_fail(operator, subtask.index, error))
            continue
        if unread is not None:
            for info in unread.header.lists:
                lists.setdefault(info.name, []).append(NonKeyedSubtaskState(subtask.index, unread, info))
            for info in unread.header.broadcasts:
                broadcasts.setdefault(info.name, []).append(NonKeyedSubtaskState(subtask.index, unread, info))
    for name, subtask_states in broadcasts.items():
        broadcasts[name] = [replace(each, info=_declare_broadcast(operator, each.info)) for each in subtask_states]
    found = (
        *(OperatorListState(operator, tuple(each)) for each in lists.values()),
        *(BroadcastState(operator, tuple(each)) for each in broadcasts.values()),
    )
    return found, failures


def _declare_broadcast(operator: OperatorFiles, info: StateMetaInfo) -> StateMetaInfo:
    """The meta info of a broadcast state with the types that are declared of it."""
    declared = find_declaration(info, operator.snapshot.python_types.get(operator.metadata.operator_id))
    return info if declared is None else declare_types(info, declared, StateKind.MAP)


def survey_raw(operator: OperatorFiles) -> tuple[tuple[State, ...], list[Failure]]:
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
                raw.append(RawOperatorSubtaskState(subtask.index, handles.open_stream(handle.delegate), handle))
        except StateError as error:
            failures.append(_fail(operator, subtask.index, error))
    found = (
        *([RawKeyedState(operator, tuple(keyed))] if keyed else ()),
        *([UnreadKeyedState(operator, tuple(sections.values()))] if sections else ()),
        *([RawOperatorState(operator, tuple(raw))] if raw else ()),
    )
    return found, failures


def _fail(operator: OperatorFiles, subtask: int | None, error: StateError) -> Failure:
    error.where = replace(error.where, operator=error.where.operator or operator.label)
    return Failure(subtask, error)
