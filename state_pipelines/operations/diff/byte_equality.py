"""Whether the bytes of two states mean the same: only then can records be compared as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.errors import UnsupportedError
from state_pipelines.serializers.merged_subclasses import join_infos, join_serializers
from state_pipelines.serializers.text import describe
from state_pipelines.snapshot.keyed_state import KeyedState
from state_pipelines.snapshot.operator_state import BroadcastState, NonKeyedState, OperatorListState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state_pipelines.codecs import layout as lay
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.snapshot import State

StoredInfo = tuple["Serializer | None", "StateMetaInfo"]
"""Key serializer and meta info of a keyed state."""


def find_obstacle(one: State, other: State) -> str:
    """Why records of two states cannot be compared as bytes; empty when they can.

    They can where keys and values have the same layouts, even if the kinds differ; and where the serializers are
    the same, subclasses of POJOs apart, which records name themselves.
    """
    if type(one) is not type(other):
        return "not compared: the kind differs"
    if not isinstance(one, KeyedState | OperatorListState | BroadcastState):
        return ""
    layouts = _find_layouts(one), _find_layouts(other)
    if None not in layouts and layouts[0] == layouts[1]:
        return ""
    kryo = [state.operator.snapshot.kryo_version for state in (one, other)]
    stored = _list_stored_infos(one), _list_stored_infos(other)
    if kryo[0] == kryo[1] and (stored[0] == stored[1] or _can_be_joined((*stored[0], *stored[1]))):
        return ""
    what = _find_difference(one, other)
    if what:
        return f"not compared: the {what} differs"
    several = [name for name, found in (("one", stored[0]), ("other", stored[1])) if not _can_be_joined(found)]
    if several:
        return f"not compared: subtasks of the {several[0]} hold the state with different serializers"
    if kryo[0] != kryo[1]:
        return f"not compared: the serializer differs: Kryo {kryo[0]} wrote the one, Kryo {kryo[1]} the other"
    return "not compared: the serializer differs, in what its readable form does not show"


def _find_layouts(state: State) -> tuple[lay.Layout, ...] | None:
    """Of keys and values; None when they have none."""
    try:
        match state:
            case KeyedState():
                return state.layout.key, state.layout.value
            case NonKeyedState():
                context = state.operator.snapshot.layout_context
                serializers = {tuple(each for _, each in info.serializers) for info in state.infos}
                found = {tuple(derive_layout(each, context) for each in several) for several in serializers}
                return found.pop() if len(found) == 1 else None
    except UnsupportedError:
        pass
    return None


def _list_stored_infos(state: State) -> frozenset[StoredInfo]:
    if isinstance(state, KeyedState):
        # Subtasks mostly share one header.
        headers = {(id(each.file.header), each.state_id): each for each in state.subtask_states}
        return frozenset(
            (each.file.header.key_serializer, each.file.header.states[each.state_id]) for each in headers.values()
        )
    assert isinstance(state, NonKeyedState)
    return frozenset((None, info) for info in state.infos)


def _can_be_joined(stored: Iterable[StoredInfo]) -> bool:
    (key, info), *others = sorted(stored, key=repr)
    for other_key, other_info in others:
        joined = join_infos(info, other_info)
        if joined is None:
            return False
        info = joined
        if key is not None and other_key is not None:
            key = join_serializers(key, other_key)
            if key is None:
                return False
    return True


def _find_difference(one: State, other: State) -> str:
    """Name the serializer that has another readable form; empty when none has."""
    pairs: list[tuple[str, Serializer, Serializer]] = []
    if isinstance(one, KeyedState) and isinstance(other, KeyedState):
        pairs.append(("key serializer", one.key_serializer, other.key_serializer))
    pairs += (
        (name.lower().replace("_", " "), serializer, dict(other.info.serializers)[name])
        for name, serializer in one.info.serializers
        if name in dict(other.info.serializers)
    )
    return next((name for name, old, new in pairs if describe(old) != describe(new)), "")
