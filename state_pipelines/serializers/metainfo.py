"""State meta infos: name, kind, options and serializers of one registered state.

They fill the headers of keyed and operator state alike; meta-info versions 6 and 7 have the same bytes.
Source: `StateMetaInfoSnapshot`, `StateMetaInfoSnapshotReadersWriters`, `RegisteredStateMetaInfoBase`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from state_pipelines.errors import NotFoundError, UsageError, Where, at
from state_pipelines.serializers.body_ends import SERIALIZERS, STATES, OpenBodyError, current_reading, left
from state_pipelines.serializers.build import list_of, map_of
from state_pipelines.serializers.framing import SMALLEST_SNAPSHOT
from state_pipelines.serializers.registry import read_snapshot, write_snapshot
from state_pipelines.serializers.tree import ListOf, Opaque, Serializer

if TYPE_CHECKING:
    from state_pipelines.binary.reader import Reader
    from state_pipelines.binary.writer import Writer

KEYED_STATE_TYPE = "KEYED_STATE_TYPE"
DISTRIBUTION_MODE = "OPERATOR_STATE_DISTRIBUTION_MODE"
KEY_SERIALIZER = "KEY_SERIALIZER"
NAMESPACE_SERIALIZER = "NAMESPACE_SERIALIZER"
USER_KEY_SERIALIZER = "USER_KEY_SERIALIZER"
VALUE_SERIALIZER = "VALUE_SERIALIZER"

_SERIALIZER_KEYS = (KEY_SERIALIZER, NAMESPACE_SERIALIZER, VALUE_SERIALIZER, USER_KEY_SERIALIZER)

_SMALLEST_OPTION = 4
_SMALLEST_SERIALIZER = 2 + 4 + SMALLEST_SNAPSHOT
# Name, kind and two counts.
_SMALLEST_META_INFO = 2 + 4 + 4 + 4


class StateKind(StrEnum):
    """`StateMetaInfoSnapshot.BackendStateType`; the file holds the position in this order."""

    KEY_VALUE = "KEY_VALUE"
    OPERATOR = "OPERATOR"
    BROADCAST = "BROADCAST"
    PRIORITY_QUEUE = "PRIORITY_QUEUE"
    KEY_VALUE_V2 = "KEY_VALUE_V2"


_KINDS = tuple(StateKind)


@dataclass(frozen=True, kw_only=True)
class StateMetaInfo:
    """What a snapshot says of one state.

    Attributes:
        name: state name, unique in its backend.
        kind: which sort of backend state it is.
        options: pairs in the order of the file.
        serializers: pairs of key and serializer in the order of the file.
    """

    name: str
    kind: StateKind
    options: tuple[tuple[str, str], ...]
    serializers: tuple[tuple[str, Serializer], ...]

    @property
    def state_type(self) -> str | None:
        """VALUE, LIST, REDUCING, AGGREGATING or MAP of keyed state; None for the other kinds."""
        return dict(self.options).get(KEYED_STATE_TYPE)

    @property
    def distribution_mode(self) -> str | None:
        """SPLIT_DISTRIBUTE, UNION or BROADCAST of operator state; None for keyed state."""
        return dict(self.options).get(DISTRIBUTION_MODE)

    @property
    def value_serializer(self) -> Serializer:
        """Of the value; of list and map state the whole list or map; of timers and operator state the element."""
        return self._serializer(VALUE_SERIALIZER)

    @property
    def namespace_serializer(self) -> Serializer:
        """Of the namespace; keyed state only."""
        return self._serializer(NAMESPACE_SERIALIZER)

    @property
    def key_serializer(self) -> Serializer:
        """Of the keys of a broadcast state (that of keyed state stands in the header of the file)."""
        return self._serializer(KEY_SERIALIZER)

    @property
    def element(self) -> Serializer:
        """Of one element of a list state, a priority queue or an operator list.

        Raises:
            UsageError: the state has no elements (value, map, broadcast).
        """
        value = self.value_serializer
        if self.kind in (StateKind.PRIORITY_QUEUE, StateKind.OPERATOR):
            return value
        if self.state_type == "LIST":
            return value.element if isinstance(value, ListOf) else value
        raise UsageError(
            f"a {self.state_type or self.kind} state has no elements",
            where=Where(state=self.name),
            hint="Use its value_serializer",
        )

    def _serializer(self, key: str) -> Serializer:
        for name, serializer in self.serializers:
            if name == key:
                return serializer
        present = ", ".join(name for name, _ in self.serializers) or "none"
        raise NotFoundError(f"the {self.kind} state stores no {key} (stored: {present})", where=Where(state=self.name))


def read_state_meta_info(reader: Reader) -> StateMetaInfo:
    """Read one meta info (`StateMetaInfoSnapshotReadersWriters.CurrentReaderImpl`).

    Raises:
        UnknownSerializerError: a serializer has no reader; it names the state. Nothing after it can be read.
        FormatError: the bytes are not a meta info.
    """
    name = reader.utf()
    with at(state=name):
        start = reader.position
        ordinal = reader.i32()
        if not 0 <= ordinal < len(_KINDS):
            raise reader.error(f"{ordinal} is not a kind of state (0 to {len(_KINDS) - 1})", start)
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
                error.infos = (_complete(name, _KINDS[ordinal], options, dict(read), error.node),)
                raise
        return StateMetaInfo(name=name, kind=_KINDS[ordinal], options=options, serializers=tuple(serializers))


def _read_serializer_key(reader: Reader) -> str:
    """Read the key of a serializer; Flink's own where the offset is an assumption.

    Raises:
        FormatError: it is another one.
    """
    start, key = reader.position, reader.utf()
    state = current_reading()
    if state is not None and state.used and key not in _SERIALIZER_KEYS:
        raise reader.error(f"{key!r} is not the key of a serializer", start)
    return key


def _complete(
    name: str, kind: StateKind, options: tuple[tuple[str, str], ...], read: dict[str, Serializer], unknown: Serializer
) -> StateMetaInfo:
    """Make the meta info of a state that is read up to an unknown snapshot; that is a stand-in for the rest."""
    keys = {
        StateKind.PRIORITY_QUEUE: (VALUE_SERIALIZER,),
        StateKind.OPERATOR: (VALUE_SERIALIZER,),
        StateKind.BROADCAST: (VALUE_SERIALIZER, KEY_SERIALIZER),
    }.get(kind, (VALUE_SERIALIZER, NAMESPACE_SERIALIZER))
    serializers = {key: read.get(key, unknown) for key in keys} | read
    return StateMetaInfo(name=name, kind=kind, options=options, serializers=tuple(serializers.items()))


def unread_state(name: str, kind: StateKind, unknown: Serializer, mode: str = "") -> StateMetaInfo:
    """Make the meta info of a state that cannot be read, because it comes after an unknown snapshot in the header.

    Args:
        name: of the state.
        kind: of the state, as far as it is known.
        unknown: the snapshot whose end is not known.
        mode: distribution mode of operator state.
    """
    assert isinstance(unknown, Opaque)
    reason = f"its serializers come after the snapshot of {unknown.unknown_class}, of which nobody knows where it ends"
    options = ((DISTRIBUTION_MODE, mode),) if mode else ()
    return _complete(name, kind, options, {}, replace(unknown, reason=reason))


def write_state_meta_info(writer: Writer, info: StateMetaInfo) -> None:
    """Mirror of `read_state_meta_info`."""
    writer.utf(info.name)
    writer.i32(_KINDS.index(info.kind))
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
        OpenBodyError: the end of a serializer without reader is not known; has the states up to that one.
        UnknownSerializerError, FormatError: as `read_state_meta_info`; also a count that cannot fit.
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
    """Mirror of `read_state_meta_infos`."""
    writer.i16(len(infos))
    for info in infos:
        write_state_meta_info(writer, info)


def keyed_state(name: str, state_type: str, value: Serializer, namespace: Serializer) -> StateMetaInfo:
    """Meta info of a keyed state, in the order that Flink writes.

    Args:
        name: state name.
        state_type: VALUE, LIST, REDUCING, AGGREGATING or MAP.
        value: value serializer; a list serializer for LIST, a map serializer for MAP.
        namespace: namespace serializer.
    """
    return StateMetaInfo(
        name=name,
        kind=StateKind.KEY_VALUE,
        options=((KEYED_STATE_TYPE, state_type),),
        serializers=((VALUE_SERIALIZER, value), (NAMESPACE_SERIALIZER, namespace)),
    )


def as_key_value(info: StateMetaInfo) -> StateMetaInfo:
    """The meta info of the same records in the synchronous state API; that of other kinds than `KEY_VALUE_V2` itself.

    State of the asynchronous API names the serializers of an element, a user key and a user value, where the
    synchronous one names those of the whole list or map; keys and values of the database are the same.
    Source: `org.apache.flink.runtime.state.v2.RegisteredKeyAndUserKeyValueStateBackendMetaInfo`, `ForStMapState`.
    """
    if info.kind is not StateKind.KEY_VALUE_V2:
        return info
    value = info.value_serializer
    if info.state_type == "LIST":
        value = list_of(value)
    elif info.state_type == "MAP":
        value = map_of(info._serializer(USER_KEY_SERIALIZER), value)
    return keyed_state(info.name, info.state_type or "VALUE", value, info.namespace_serializer)


def priority_queue(name: str, element: Serializer) -> StateMetaInfo:
    """Meta info of a priority queue: the timers of one service and time domain."""
    return StateMetaInfo(
        name=name, kind=StateKind.PRIORITY_QUEUE, options=(), serializers=((VALUE_SERIALIZER, element),)
    )


def operator_list(name: str, element: Serializer, mode: str = "SPLIT_DISTRIBUTE") -> StateMetaInfo:
    """Meta info of an operator list state; `mode` is SPLIT_DISTRIBUTE or UNION."""
    return StateMetaInfo(
        name=name,
        kind=StateKind.OPERATOR,
        options=((DISTRIBUTION_MODE, mode),),
        serializers=((VALUE_SERIALIZER, element),),
    )


def broadcast_state(name: str, key: Serializer, value: Serializer) -> StateMetaInfo:
    """Meta info of a broadcast state, in the order that Flink writes."""
    return StateMetaInfo(
        name=name,
        kind=StateKind.BROADCAST,
        options=((DISTRIBUTION_MODE, "BROADCAST"),),
        serializers=((VALUE_SERIALIZER, value), (KEY_SERIALIZER, key)),
    )
