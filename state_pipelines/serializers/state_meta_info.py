"""State meta infos: name, kind, options and serializers of one registered state.

They fill the headers of keyed and operator state alike; meta-info versions 6 and 7 have the same bytes.
Source: `StateMetaInfoSnapshot`, `StateMetaInfoSnapshotReadersWriters`, `RegisteredStateMetaInfoBase`.

Subtasks of one job often differ in the subclasses that a `PojoSerializer` has met without registration. Their objects
are written with the class name, so that values of both can be stored under one serializer that lists all
(`PojoSerializerSnapshot`, `nonRegisteredSubclassSerializers`).
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from state_pipelines.errors import at
from state_pipelines.serializers.build import list_of, map_of
from state_pipelines.serializers.registry import read_snapshot, write_snapshot
from state_pipelines.serializers.snapshot_classes import (
    SERIALIZERS,
    SMALLEST_SNAPSHOT,
    STATES,
    OpenBodyError,
    current_reading,
    left,
)
from state_pipelines.serializers.tree import DISTRIBUTION_MODE as DISTRIBUTION_MODE
from state_pipelines.serializers.tree import KEY_SERIALIZER as KEY_SERIALIZER
from state_pipelines.serializers.tree import KEYED_STATE_TYPE as KEYED_STATE_TYPE
from state_pipelines.serializers.tree import NAMESPACE_SERIALIZER as NAMESPACE_SERIALIZER
from state_pipelines.serializers.tree import USER_KEY_SERIALIZER as USER_KEY_SERIALIZER
from state_pipelines.serializers.tree import VALUE_SERIALIZER as VALUE_SERIALIZER
from state_pipelines.serializers.tree import BackendStateType as BackendStateType
from state_pipelines.serializers.tree import Opaque, Pojo, PojoField, PojoSubclass, Serializer, StateKind
from state_pipelines.serializers.tree import StateMetaInfo as StateMetaInfo

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader, Writer

TIMER_STATE = "_timer_state/"
"""Prefix of the name of a timer state (`InternalTimeServiceManagerImpl.TIMER_STATE_PREFIX`)."""

_SERIALIZER_KEYS = (KEY_SERIALIZER, NAMESPACE_SERIALIZER, VALUE_SERIALIZER, USER_KEY_SERIALIZER)

_SMALLEST_OPTION = 4
_SMALLEST_SERIALIZER = 2 + 4 + SMALLEST_SNAPSHOT
# Least size of a meta info: name, type and two counts.
_SMALLEST_META_INFO = 2 + 4 + 4 + 4


_TYPES = tuple(BackendStateType)


def read_state_meta_info(reader: Reader) -> StateMetaInfo:
    """Read one meta info (`StateMetaInfoSnapshotReadersWriters.CurrentReaderImpl`).

    Raises:
        UnknownSerializerError: the snapshot class of a serializer has no reader, so nothing after it can be read. The
            error names the state.
        FormatError: the bytes are not a meta info.
    """
    name = reader.utf()
    with at(state=name):
        start = reader.position
        ordinal = reader.i32()
        if not 0 <= ordinal < len(_TYPES):
            raise reader.error(f"{ordinal} is not a kind of state (0 to {len(_TYPES) - 1})", start)
        options = tuple((reader.utf(), reader.utf()) for _ in range(reader.count(_SMALLEST_OPTION)))
        serializers: list[tuple[str, Serializer]] = []
        count = reader.count(_SMALLEST_SERIALIZER)
        for index in range(count):
            key = _read_serializer_key(reader)
            try:
                with left(SERIALIZERS, start, count - index):
                    serializers.append((key, read_snapshot(reader)))
            except OpenBodyError as error:
                read = (*serializers, (key, error.node))
                error.infos = (_complete(name, _TYPES[ordinal], options, dict(read), error.node),)
                raise
        return StateMetaInfo(name=name, backend_type=_TYPES[ordinal], options=options, serializers=tuple(serializers))


def _read_serializer_key(reader: Reader) -> str:
    """Read the key of a serializer, such as VALUE_SERIALIZER.

    Raises:
        FormatError: it is not one of Flink's keys, although its offset follows from an assumed end of a body.
    """
    start, key = reader.position, reader.utf()
    state = current_reading()
    if state is not None and state.used and key not in _SERIALIZER_KEYS:
        raise reader.error(f"{key!r} is not the key of a serializer", start)
    return key


def _complete(
    name: str,
    backend_type: BackendStateType,
    options: tuple[tuple[str, str], ...],
    read: dict[str, Serializer],
    unknown: Serializer,
) -> StateMetaInfo:
    """Make the meta info of a state that was read up to an unknown snapshot.

    Args:
        name: name of the state.
        backend_type: kind of the state.
        options: options of the state.
        read: the serializers that were read.
        unknown: the unknown snapshot, which takes the place of all serializers that were not read.
    """
    keys = {
        BackendStateType.PRIORITY_QUEUE: (VALUE_SERIALIZER,),
        BackendStateType.OPERATOR: (VALUE_SERIALIZER,),
        BackendStateType.BROADCAST: (VALUE_SERIALIZER, KEY_SERIALIZER),
    }.get(backend_type, (VALUE_SERIALIZER, NAMESPACE_SERIALIZER))
    serializers = {key: read.get(key, unknown) for key in keys} | read
    return StateMetaInfo(name=name, backend_type=backend_type, options=options, serializers=tuple(serializers.items()))


def unread_state(name: str, backend_type: BackendStateType, unknown: Serializer, mode: str = "") -> StateMetaInfo:
    """Make the meta info of a state that cannot be read, because it comes after an unknown snapshot in the header.

    Args:
        name: name of the state.
        backend_type: kind of the state, as far as it is known.
        unknown: the snapshot whose end is not known.
        mode: distribution mode of operator state.
    """
    assert isinstance(unknown, Opaque)
    reason = f"its serializers come after the snapshot of {unknown.unknown_class}, whose end is not known"
    options = ((DISTRIBUTION_MODE, mode),) if mode else ()
    return _complete(name, backend_type, options, {}, replace(unknown, reason=reason))


def write_state_meta_info(writer: Writer, info: StateMetaInfo) -> None:
    """Write a meta info as `read_state_meta_info` reads it."""
    writer.utf(info.name)
    writer.i32(_TYPES.index(info.backend_type))
    writer.i32(len(info.options))
    for key, value in info.options:
        writer.utf(key)
        writer.utf(value)
    writer.i32(len(info.serializers))
    for key, serializer in info.serializers:
        writer.utf(key)
        write_snapshot(writer, serializer)


def read_state_meta_infos(reader: Reader) -> tuple[StateMetaInfo, ...]:
    """Read an i16 count and that many meta infos.

    Raises:
        OpenBodyError: the end of a snapshot without a reader is not known; the error has the states up to that one.
        UnknownSerializerError, FormatError: as in `read_state_meta_info`; also for a count that cannot fit.
    """
    start = reader.position
    count = reader.i16()
    if count < 0 or count * _SMALLEST_META_INFO > reader.remaining:
        raise reader.error(f"{count} states do not fit in the {reader.remaining} bytes left", start)
    infos: list[StateMetaInfo] = []
    for index in range(count):
        try:
            with left(STATES, start, count - index):
                infos.append(read_state_meta_info(reader))
        except OpenBodyError as error:
            error.infos, error.left = (*infos, *error.infos), count - index - 1
            raise
    return tuple(infos)


def write_state_meta_infos(writer: Writer, infos: tuple[StateMetaInfo, ...]) -> None:
    """Write meta infos as `read_state_meta_infos` reads them."""
    writer.i16(len(infos))
    for info in infos:
        write_state_meta_info(writer, info)


def keyed_state(name: str, state_type: str, value: Serializer, namespace: Serializer) -> StateMetaInfo:
    """Return the meta info of a keyed state, with options and serializers in Flink's order.

    Args:
        name: state name.
        state_type: VALUE, LIST, REDUCING, AGGREGATING or MAP.
        value: value serializer; a list serializer for LIST, a map serializer for MAP.
        namespace: namespace serializer.
    """
    return StateMetaInfo(
        name=name,
        backend_type=BackendStateType.KEY_VALUE,
        options=((KEYED_STATE_TYPE, state_type),),
        serializers=((VALUE_SERIALIZER, value), (NAMESPACE_SERIALIZER, namespace)),
    )


def as_key_value(info: StateMetaInfo) -> StateMetaInfo:
    """Convert a `KEY_VALUE_V2` meta info to the one of the synchronous state API; return other kinds unchanged.

    Meta infos of the asynchronous API have the serializers of an element, or of user key and user value. Those of the
    synchronous API have the serializer of the whole list or map. Keys and values in the database are the same.
    Source: `org.apache.flink.runtime.state.v2.RegisteredKeyAndUserKeyValueStateBackendMetaInfo`, `ForStMapState`.
    """
    if info.backend_type is not BackendStateType.KEY_VALUE_V2:
        return info
    value = info.value_serializer
    if info.state_type == StateKind.LIST:
        value = list_of(value)
    elif info.state_type == StateKind.MAP:
        value = map_of(info._serializer(USER_KEY_SERIALIZER), value)
    return keyed_state(info.name, info.state_type or StateKind.VALUE, value, info.namespace_serializer)


def priority_queue(name: str, element: Serializer) -> StateMetaInfo:
    """Return the meta info of a priority queue, which holds the timers of one service and time domain."""
    return StateMetaInfo(
        name=name, backend_type=BackendStateType.PRIORITY_QUEUE, options=(), serializers=((VALUE_SERIALIZER, element),)
    )


def operator_list(name: str, element: Serializer, mode: str = StateKind.SPLIT_DISTRIBUTE) -> StateMetaInfo:
    """Return the meta info of an operator list state; `mode` is SPLIT_DISTRIBUTE or UNION."""
    return StateMetaInfo(
        name=name,
        backend_type=BackendStateType.OPERATOR,
        options=((DISTRIBUTION_MODE, mode),),
        serializers=((VALUE_SERIALIZER, element),),
    )


def broadcast_state(name: str, key: Serializer, value: Serializer) -> StateMetaInfo:
    """Return the meta info of a broadcast state, with options and serializers in Flink's order."""
    return StateMetaInfo(
        name=name,
        backend_type=BackendStateType.BROADCAST,
        options=((DISTRIBUTION_MODE, StateKind.BROADCAST),),
        serializers=((VALUE_SERIALIZER, value), (KEY_SERIALIZER, key)),
    )


_Node = TypeVar("_Node", bound=Serializer | PojoField | PojoSubclass)


def join_infos(first: StateMetaInfo, second: StateMetaInfo) -> StateMetaInfo | None:
    """Merge two meta infos of a state that list different POJO subclasses; None if they differ otherwise."""
    others = dict(second.serializers)
    joined = []
    for role, serializer in first.serializers:
        found = join_serializers(serializer, others[role]) if role in others else None
        if found is None:
            return None
        joined.append((role, found))
    whole = replace(first, serializers=tuple(joined))
    # The two may have their serializers in different order; the result has that of `first`. All else must be equal.
    return whole if replace(second, serializers=whole.serializers) == whole and len(joined) == len(others) else None


def join_serializers(first: Serializer, second: Serializer) -> Serializer | None:
    """Merge two serializers that list different non-registered POJO subclasses, in this order.

    Returns None if they differ in anything else.
    """
    return _join(first, second)


def _join(first: _Node, second: _Node) -> _Node | None:
    if first == second:
        return first
    if type(first) is not type(second):
        return None
    changes: dict[str, Any] = {}
    for each in fields(first):
        one, other = getattr(first, each.name), getattr(second, each.name)
        if isinstance(first, Pojo) and each.name == "non_registered":
            found = _join_subclasses(one, other)
        else:
            found = _join_values(one, other)
        if found is None and one != other:
            return None
        changes[each.name] = found
    return replace(first, **changes)


def _join_values(one: Any, other: Any) -> Any:
    """Merge two values of the same field of two nodes; None if they cannot be merged, or both are None."""
    if isinstance(one, Serializer | PojoField | PojoSubclass):
        return _join(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        joined = [_join_values(left, right) for left, right in zip(one, other, strict=True)]
        if any(value is None and left is not None for value, left in zip(joined, one, strict=True)):
            return None
        return tuple(joined)
    return one if one == other else None


def _join_subclasses(
    first: tuple[PojoSubclass, ...], second: tuple[PojoSubclass, ...]
) -> tuple[PojoSubclass, ...] | None:
    joined = {each.class_name: each for each in first}
    for each in second:
        found = _join(joined.get(each.class_name, each), each)
        if found is None:
            return None
        joined[each.class_name] = found
    return tuple(joined.values())
