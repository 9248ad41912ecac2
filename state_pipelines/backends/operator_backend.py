"""The operator state backend of one subtask (`DefaultOperatorStateBackend`): list, union, broadcast and raw state."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from state_pipelines.backends.entry_store import Value, ValueChange, make_codec, read_clock, resolve_operator
from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.programs import Encoded
from state_pipelines.codecs.scalar import read_value
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.codecs.value_conversion import ValueConversion
from state_pipelines.errors import UnsupportedError, UsageError, Where, at
from state_pipelines.keyed.raw_timers import NEVER_STARTED, find_raw_sections
from state_pipelines.keyed.sections import read_sections
from state_pipelines.metadata.handles import (
    KeyGroupsStateHandle,
    OperatorStateMode,
    OperatorStreamStateHandle,
    RelativeFileStateHandle,
)
from state_pipelines.metadata.streams import read_whole_stream
from state_pipelines.operations.rescale.assembly import redistribute
from state_pipelines.operatorstate import OperatorHeader, read_raw_partitions, write_operator_file, write_raw_partitions
from state_pipelines.serializers.state_meta_info import BackendStateType, join_infos
from state_pipelines.storage import create_file, join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from state_pipelines.codecs.layout import LayoutContext
    from state_pipelines.metadata.handles import KeyGroupRange, KeyGroupsSavepointStateHandle, OperatorStateHandle
    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.operations.rescale.assembly import Share
    from state_pipelines.operatorstate import OperatorStateFile, UnreadOperatorState
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.storage import Location

OldOperatorState: TypeAlias = "UnreadOperatorState | None"
"""Operator state of one old subtask (`snapshot.handle_readers.HandleReader.open_operator`); None when it has none."""

Infos: TypeAlias = "dict[str, StateMetaInfo]"


@dataclass(frozen=True)
class _OldFiles:
    """Files of the old subtasks by subtask index; a file is read when it is first needed, and kept."""

    unread: dict[int, UnreadOperatorState]
    parallelism: int
    held: dict[int, OperatorStateFile] = field(default_factory=dict)

    @property
    def handles(self) -> list[tuple[int, OperatorStateHandle]]:
        return [(index, unread.handle) for index, unread in self.unread.items()]

    def read(self, subtask: int) -> OperatorStateFile:
        if subtask not in self.held:
            self.held[subtask] = self.unread[subtask].read()
        return self.held[subtask]


def _index(old: Sequence[OldOperatorState]) -> _OldFiles:
    return _OldFiles({index: unread for index, unread in enumerate(old) if unread is not None}, len(old))


def restore_lists(
    old: Sequence[OldOperatorState], subtask: int, parallelism: int
) -> tuple[Infos, dict[str, list[bytes]]]:
    """Restore the list states of a new subtask.

    Args:
        old: state of every old subtask, ascending.
        subtask: index of the new subtask.
        parallelism: number of new subtasks.

    Returns:
        States and bytes of their elements, by name; union state has the elements of all old subtasks.

    Raises:
        UnsupportedError: old subtasks have different serializers for a state.
        StateError: state cannot be read.
    """
    files = _index(old)
    infos = _join_infos(info for unread in files.unread.values() for info in unread.header.lists)
    elements: dict[str, list[bytes]] = {name: [] for name in infos}
    for share in _find_shares(files, subtask, parallelism):
        if share.offsets and share.mode is not OperatorStateMode.BROADCAST:
            handle = files.unread[share.subtask].handle
            elements[share.state_name] += _take(files.read(share.subtask), handle, share)
    return infos, elements


def restore_broadcasts(
    old: Sequence[OldOperatorState], subtask: int, parallelism: int, layouts: LayoutContext
) -> tuple[Infos, dict[str, dict[bytes, bytes]]]:
    """Restore the broadcast states of a new subtask: bytes of keys and values by name; see `restore_lists`."""
    files = _index(old)
    infos = _join_infos(info for unread in files.unread.values() for info in unread.header.broadcasts)
    entries: dict[str, dict[bytes, bytes]] = {name: {} for name in infos}
    for share in _find_shares(files, subtask, parallelism):
        if share.mode is OperatorStateMode.BROADCAST:
            file = files.read(share.subtask)
            with at(file=file.name, state=share.state_name):
                entries[share.state_name] = _cut_entries(file, infos[share.state_name], layouts)
    return infos, entries


def _find_shares(files: _OldFiles, subtask: int, parallelism: int) -> list[Share]:
    """Return the state that a new subtask gets of each old one: of union state all of it (`repartitionUnionState`)."""
    if not files.unread:
        return []
    dealt = redistribute(files.handles, parallelism, old_parallelism=files.parallelism)
    union = [share for shares in dealt for share in shares if share.mode is OperatorStateMode.UNION]
    own = [share for share in dealt[subtask] if share.mode is not OperatorStateMode.UNION]
    return own + sorted(union, key=lambda share: share.subtask)


def _take(file: OperatorStateFile, handle: OperatorStateHandle, share: Share) -> list[bytes]:
    data, starts, ends = file.elements(share.state_name)
    # Map offsets to rows: shares have offsets in the file, but starts and ends are offsets in the decompressed data.
    (state,) = [each for each in handle.states if each.state_name == share.state_name]
    rows = {offset: row for row, offset in enumerate(state.offsets)}
    if share.offsets == state.offsets:
        chosen = list(range(len(state.offsets)))
    elif len(rows) == len(state.offsets):
        chosen = [rows[offset] for offset in share.offsets]
    else:
        raise UnsupportedError(
            "several elements of zero bytes have the same offset, so that they cannot be distinguished",
            where=Where(file=file.name, state=share.state_name),
            hint="Restore with the old parallelism",
        )
    return [
        data[start:end].tobytes() for start, end in zip(starts[chosen].tolist(), ends[chosen].tolist(), strict=True)
    ]


def _cut_entries(file: OperatorStateFile, info: StateMetaInfo, layouts: LayoutContext) -> dict[bytes, bytes]:
    data, start, end, count = file.broadcast(info.name)
    key, value = derive_layout(info.key_serializer, layouts), derive_layout(info.value_serializer, layouts)
    reader = Reader(data[start:end].tobytes())
    entries: dict[bytes, bytes] = {}
    for _ in range(count):
        first = reader.position
        read_value(key, reader, tail=False)
        middle = reader.position
        read_value(value, reader, tail=False)
        entries[reader.data[first:middle]] = reader.data[middle : reader.position]
    return entries


def _join_infos(infos: Iterable[StateMetaInfo]) -> Infos:
    joined: Infos = {}
    for info in infos:
        both = join_infos(joined.get(info.name, info), info)
        if both is None:
            raise UnsupportedError(
                "the old subtasks have this operator state with different serializers",
                where=Where(state=info.name),
                hint="Let every subtask write the state once with the new job and take a savepoint then",
            )
        joined[info.name] = both
    return joined


class RawKeyedOutput:
    """Bytes by key group that an operator writes at a snapshot (`KeyedStateCheckpointOutputStream`).

    Args:
        key_groups: range of the subtask.
    """

    def __init__(self, key_groups: KeyGroupRange) -> None:
        self._key_groups = key_groups
        self._current: bytearray | None = None
        self._written: dict[int, bytearray] = {}

    @property
    def content(self) -> dict[int, bytes]:
        """The bytes of the key groups that were started."""
        return {key_group: bytes(written) for key_group, written in self._written.items()}

    def get_key_group_list(self) -> Sequence[int]:
        """Return the key groups of the subtask."""
        return list(self._key_groups)

    def start_new_key_group(self, key_group: int) -> None:
        """Start a key group, into which `write` writes from now on.

        Raises:
            UsageError: the key group is not one of the subtask, or was started before.
        """
        if key_group not in self._key_groups:
            raise UsageError(f"Key group {key_group} does not belong to the key groups of the subtask")
        if key_group in self._written:
            raise UsageError(f"Key group {key_group} has already been registered!")
        self._current = self._written[key_group] = bytearray()

    def write(self, data: bytes) -> None:
        """Write bytes into the key group that was started last.

        Raises:
            UsageError: no key group was started.
        """
        if self._current is None:
            raise UsageError("raw keyed state has no key group", hint="Call start_new_key_group first")
        self._current += data


class RawOperatorOutput:
    """Partitions that an operator writes at a snapshot (`OperatorStateCheckpointOutputStream`)."""

    def __init__(self) -> None:
        self._written: list[bytearray] = []

    @property
    def content(self) -> list[bytes]:
        """The partitions, in the order in which they were started."""
        return [bytes(each) for each in self._written]

    def start_new_partition(self) -> None:
        """Start a partition, into which `write` writes from now on; a restore gives it to one subtask as a whole."""
        self._written.append(bytearray())

    def write(self, data: bytes) -> None:
        """Write bytes into the partition that was started last.

        Raises:
            UsageError: no partition was started.
        """
        if not self._written:
            raise UsageError("raw operator state has no partition", hint="Call start_new_partition first")
        self._written[-1] += data


class RawState:
    """Restored raw state of a subtask, which snapshots contain until the function reads it or writes its own.

    Args:
        keyed: (key group, bytes) of the restored raw keyed state.
        partitions: partitions of the restored raw operator state.
    """

    def __init__(self, keyed: Iterable[tuple[int, bytes]] = (), partitions: Iterable[bytes] = ()) -> None:
        self._keyed, self._partitions = dict(keyed), list(partitions)

    def take_keyed(self) -> Iterator[tuple[int, bytes]]:
        """Yield the restored (key group, bytes); later snapshots do not contain them any more."""
        taken, self._keyed = self._keyed, {}
        yield from sorted(taken.items())

    def take_partitions(self) -> Iterator[bytes]:
        """Yield the restored partitions; later snapshots do not contain them any more."""
        taken, self._partitions = self._partitions, []
        yield from taken

    def choose_keyed(self, written: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Return the content for a snapshot: what the function wrote, else the restored state that it has not read."""
        return written or self._keyed

    def choose_partitions(self, written: list[bytes]) -> list[bytes]:
        """Return the content for a snapshot: what the function wrote, else the restored state that it has not read."""
        return written or self._partitions


def write_raw_keyed(
    content: Mapping[int, bytes], key_groups: KeyGroupRange, directory: Location, name: str
) -> KeyGroupsStateHandle | None:
    """Write raw keyed state; the mirror of `read_raw_keyed`.

    Args:
        content: bytes by key group; key groups without an entry were never started.
        key_groups: range of the subtask.
        directory: directory of the snapshot.
        name: name of the file; a leftover is replaced.

    Returns:
        The handle, relative to the directory; None without content.

    Raises:
        UsageError: a key group is not in the range.
    """
    for key_group in content:
        if key_group not in key_groups:
            raise UsageError(f"Key group {key_group} does not belong to the key groups of the subtask")
    if not content:
        return None
    offsets, size = [], 0
    with create_file(join(directory, name), replace=True) as output:
        for key_group in key_groups:
            offsets.append(size if key_group in content else NEVER_STARTED)
            size += output.write(content.get(key_group, b""))
    stream = RelativeFileStateHandle(name, size)
    return KeyGroupsStateHandle(key_groups, tuple(offsets), stream, state_handle_id=str(uuid.uuid4()))


def read_raw_keyed(
    handle: KeyGroupsStateHandle | KeyGroupsSavepointStateHandle, stream: StateStream, key_groups: KeyGroupRange
) -> Iterator[tuple[int, bytes]]:
    """Yield (key group, bytes) for those key groups of a new subtask that an old subtask has written.

    Args:
        handle: handle of any old subtask.
        stream: the stream of the handle.
        key_groups: range of the new subtask.

    Raises:
        FormatError: an offset is outside the stream.
    """
    for section in find_raw_sections(stream, handle.key_groups, handle.offsets):
        if section.key_group in key_groups:
            yield section.key_group, read_sections(stream, section.start, section.end)


def write_raw_operator(partitions: list[bytes], directory: Location, name: str) -> OperatorStreamStateHandle | None:
    """Write raw operator state; the mirror of `read_raw_operator`.

    Args:
        partitions: units that a restore distributes to subtasks, in order.
        directory: directory of the snapshot.
        name: name of the file; a leftover is replaced.

    Returns:
        The handle, relative to the directory; None without partitions.
    """
    if not partitions:
        return None
    data, states = write_raw_partitions(partitions)
    with create_file(join(directory, name), replace=True) as output:
        output.write(data)
    return OperatorStreamStateHandle(states, RelativeFileStateHandle(name, len(data)))


def read_raw_operator(
    old: Sequence[tuple[OperatorStateHandle, StateStream] | None], subtask: int, parallelism: int
) -> Iterator[bytes]:
    """Partitions of raw operator state for one new subtask.

    Args:
        old: handle and stream of every old subtask, ascending; None of those without raw state.
        subtask: index of the new subtask.
        parallelism: number of new subtasks.

    Raises:
        FormatError: an offset is outside its stream.
    """
    handles = [(index, each[0]) for index, each in enumerate(old) if each is not None]
    if not handles:
        return
    # An empty partition has the offset of the next one, so offsets do not identify partitions. They are counted
    # instead: the new subtasks, in their order, get consecutive partitions of an old subtask.
    taken: Counter[int] = Counter()
    for number, shares in enumerate(redistribute(handles, parallelism, old_parallelism=len(old))):
        for share in shares:
            found, first = old[share.subtask], taken[share.subtask]
            taken[share.subtask] += len(share.offsets)
            if number == subtask and found is not None and share.offsets:
                handle, stream = found
                data, starts, ends = read_raw_partitions(read_whole_stream(stream), handle, stream.name)
                chosen = slice(first, taken[share.subtask])
                for start, end in zip(starts[chosen].tolist(), ends[chosen].tolist(), strict=True):
                    yield data[start:end].tobytes()


class OperatorList:
    """A list state of this subtask; its distribution mode is in `info`.

    Args:
        info: the registered state.
        layouts: context of data layouts, such as the version of Kryo.
        elements: bytes of the restored elements.
    """

    def __init__(self, info: StateMetaInfo, layouts: LayoutContext, elements: list[bytes]) -> None:
        self.info = info
        self.elements = elements
        codec = make_codec(derive_layout(info.element, layouts))
        self._encode, self._decode = codec.encode, codec.decode

    def get(self) -> list[Value]:
        """All elements; an empty list when there are none (`PartitionableListState.get`)."""
        with at(state=self.info.name):
            return [self._decode(element) for element in self.elements]

    def update(self, values: Iterable[Value]) -> None:
        """Replace all elements; errors as for `add_all`."""
        self.elements[:] = self._encode_all(values)

    def add(self, value: Value) -> None:
        """Append an element; errors as for `add_all`."""
        self.elements += self._encode_all([value])

    def add_all(self, values: Iterable[Value]) -> None:
        """Append elements.

        Raises:
            UsageError: an element is null.
            ValueRangeError: an element does not fit the serializer; none is appended.
        """
        self.elements += self._encode_all(values)

    def clear(self) -> None:
        """Remove all elements."""
        self.elements.clear()

    def _encode_all(self, values: Iterable[Value]) -> list[bytes]:
        encoded = []
        with at(state=self.info.name):
            for value in values:
                if value is None:
                    raise UsageError("You cannot add null value to list state.")
                encoded.append(self._encode(value))
        return encoded


class HeapBroadcastState:
    """A broadcast state: a map of which every subtask has the same copy (`HeapBroadcastState`).

    Args:
        info: the registered state.
        layouts: context of data layouts, such as the version of Kryo.
        content: restored entries as bytes.
    """

    def __init__(self, info: StateMetaInfo, layouts: LayoutContext, content: dict[bytes, bytes]) -> None:
        self.info = info
        self.content = content
        key = make_codec(derive_layout(info.key_serializer, layouts))
        value = make_codec(derive_layout(info.value_serializer, layouts))
        self._encode_key, self._decode_key = key.encode, key.decode
        self._encode, self._decode = value.encode, value.decode

    def get(self, key: Value) -> Value:
        """The value of a key; None when there is none."""
        data = self.content.get(self._encode_key(key))
        return None if data is None else self._decode(data)

    def put(self, key: Value, value: Value) -> None:
        """Set the value of a key.

        Raises:
            ValueRangeError: key or value do not fit their serializers.
        """
        with at(state=self.info.name):
            self.content[self._encode_key(key)] = self._encode(value)

    def remove(self, key: Value) -> None:
        """Remove a key, if it is there."""
        self.content.pop(self._encode_key(key), None)

    def contains(self, key: Value) -> bool:
        """Return whether a key is there."""
        return self._encode_key(key) in self.content

    def entries(self) -> Iterator[tuple[Value, Value]]:
        """Keys and values at the time of the call."""
        return ((self._decode_key(key), self._decode(value)) for key, value in list(self.content.items()))

    def clear(self) -> None:
        """Remove all entries."""
        self.content.clear()


OperatorTable: TypeAlias = OperatorList | HeapBroadcastState


class OperatorStateBackend:
    """Operator states of one subtask.

    States that are restored and never registered are kept, and are part of the next snapshot. Every subtask gets all
    elements of union state. If a function does not reduce them to its own share, they multiply with each restore, as
    in Flink.

    Args:
        layouts: context of data layouts, such as the version of Kryo.
    """

    def __init__(self, layouts: LayoutContext) -> None:
        self._layouts = layouts
        self._infos: dict[str, StateMetaInfo] = {}
        self._lists: dict[str, list[bytes]] = {}
        self._broadcasts: dict[str, dict[bytes, bytes]] = {}
        self._registered: dict[str, OperatorTable] = {}

    @property
    def states(self) -> tuple[StateMetaInfo, ...]:
        """States that are registered or restored."""
        return tuple(self._infos.values())

    def restore(self, old: Sequence[OldOperatorState], subtask: int, parallelism: int) -> None:
        """Take the share of one subtask of the operator state of all old subtasks.

        Elements of split lists go where Flink's `RoundRobinOperatorStateRepartitioner` puts them; every subtask gets
        all elements of union lists, and a copy of broadcast state.

        Args:
            old: state of every old subtask, ascending; also of those without state.
            subtask: index of this subtask.
            parallelism: number of new subtasks.

        Raises:
            UsageError: a state is registered already.
            UnsupportedError: old subtasks have different serializers for a state.
            StateError: state cannot be read.
        """
        if self._registered:
            raise UsageError("state must be restored before any state is registered")
        infos, self._lists = restore_lists(old, subtask, parallelism)
        others, self._broadcasts = restore_broadcasts(old, subtask, parallelism, self._layouts)
        self._infos = infos | others

    def register_list(self, info: StateMetaInfo) -> OperatorList:
        """Register a list state, split or union; the same registration again returns the same list.

        Raises:
            UsageError: the state is no operator list state, or a state of another mode has its name.
            StateMigrationError: the restored state does not fit the new serializer.
            UnsupportedError: the serializer has no layout.
        """
        if info.backend_type is not BackendStateType.OPERATOR:
            raise UsageError(f"{info.backend_type} state is not operator list state", where=Where(state=info.name))
        known = self._registered.get(info.name)
        if isinstance(known, OperatorList) and known.info == info:
            return known
        with at(state=info.name):
            self._accept(info)
            made = OperatorList(info, self._layouts, self._lists.setdefault(info.name, []))
        self._registered[info.name] = made
        return made

    def register_broadcast(self, info: StateMetaInfo) -> HeapBroadcastState:
        """Register a broadcast state; as `register_list`."""
        if info.backend_type is not BackendStateType.BROADCAST:
            raise UsageError(f"{info.backend_type} state is no broadcast state", where=Where(state=info.name))
        known = self._registered.get(info.name)
        if isinstance(known, HeapBroadcastState) and known.info == info:
            return known
        with at(state=info.name):
            self._accept(info)
            made = HeapBroadcastState(info, self._layouts, self._broadcasts.setdefault(info.name, {}))
        self._registered[info.name] = made
        return made

    def snapshot(self, directory: Location, name: str, *, compressed: bool = False) -> OperatorStreamStateHandle | None:
        """Write all states into a file; the file of a failed attempt is replaced.

        Args:
            directory: directory of the snapshot.
            name: name of the file; no other writer uses it, except repetitions of this attempt.
            compressed: whether elements are compressed.

        Returns:
            The handle, relative to the directory; None when no state is registered or restored.

        Raises:
            StateError: the file cannot be written.
        """
        if not self._infos:
            return None
        header = OperatorHeader(
            compressed=compressed,
            lists=tuple(info for info in self._infos.values() if info.backend_type is BackendStateType.OPERATOR),
            broadcasts=tuple(info for info in self._infos.values() if info.backend_type is BackendStateType.BROADCAST),
        )
        lists = {info.name: _join(self._lists[info.name]) for info in header.lists}
        broadcasts = {info.name: _join_entries(self._broadcasts[info.name]) for info in header.broadcasts}
        data, states = write_operator_file(header, lists, broadcasts)
        with create_file(join(directory, name), replace=True) as output:
            output.write(data)
        return OperatorStreamStateHandle(states, RelativeFileStateHandle(name, len(data)))

    def _accept(self, info: StateMetaInfo) -> None:
        known = self._infos.get(info.name)
        if known is not None and resolve_operator(known, info) is ValueChange.REWRITE:
            if info.name in self._registered:
                raise UsageError("the state is registered with another serializer already")
            if info.backend_type is BackendStateType.OPERATOR:
                convert = self._find_conversion(known.element, info.element)
                self._lists[info.name] = [convert(element) for element in self._lists[info.name]]
            else:
                key = self._find_conversion(known.key_serializer, info.key_serializer)
                value = self._find_conversion(known.value_serializer, info.value_serializer)
                entries = self._broadcasts[info.name].items()
                self._broadcasts[info.name] = {key(one): value(other) for one, other in entries}
        self._infos[info.name] = info

    def _find_conversion(self, old: Serializer, new: Serializer) -> Callable[[bytes], bytes]:
        convert = ValueConversion(self._layouts, read_clock).find(old, new)
        decode = make_codec(derive_layout(old, self._layouts)).decode
        encode = make_codec(derive_layout(new, self._layouts)).encode
        return lambda data: encode(convert(decode(data)))


def _join(elements: Sequence[bytes]) -> Encoded:
    sizes = np.fromiter(map(len, elements), np.int64, len(elements))
    return Encoded(np.frombuffer(b"".join(elements), np.uint8), np.cumsum(sizes))


def _join_entries(entries: dict[bytes, bytes]) -> tuple[int, bytes]:
    return len(entries), b"".join(key + value for key, value in entries.items())
