"""The operator state backend of one subtask (`DefaultOperatorStateBackend`): list, union and broadcast state."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from state_pipelines.backends.restored_elements import restore_broadcasts, restore_lists
from state_pipelines.backends.schema_changes import Change, resolve_operator
from state_pipelines.backends.system_clock import read_clock
from state_pipelines.backends.value_codecs import Value, make_codec
from state_pipelines.codecs.programs.execution import Encoded
from state_pipelines.codecs.serializer_layouts import derive_layout
from state_pipelines.codecs.value_conversion import ValueConversion
from state_pipelines.errors import UsageError, Where, at
from state_pipelines.metadata.handles import OperatorStreamStateHandle, RelativeFileStateHandle
from state_pipelines.operatorstate import OperatorHeader, write_operator_file
from state_pipelines.serializers.state_meta_info import BackendStateType
from state_pipelines.storage import create_file, join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from state_pipelines.backends.restored_elements import OldOperatorState
    from state_pipelines.codecs.layout import LayoutContext
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer
    from state_pipelines.storage import Location


class OperatorList:
    """A list state of this subtask; its distribution mode is in `info`.

    Args:
        info: the registered state.
        layouts: what layouts depend on.
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
        """Replace all elements; errors as of `add_all`."""
        self.elements[:] = self._encode_all(values)

    def add(self, value: Value) -> None:
        """Append an element; errors as of `add_all`."""
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


class BroadcastTable:
    """A broadcast state: a map of which every subtask has the same copy (`HeapBroadcastState`).

    Args:
        info: the registered state.
        layouts: what layouts depend on.
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
        """Whether a key is there."""
        return self._encode_key(key) in self.content

    def entries(self) -> Iterator[tuple[Value, Value]]:
        """Keys and values at the time of the call."""
        return ((self._decode_key(key), self._decode(value)) for key, value in list(self.content.items()))

    def clear(self) -> None:
        """Remove all entries."""
        self.content.clear()


OperatorTable: TypeAlias = OperatorList | BroadcastTable


class OperatorStateBackend:
    """Operator states of one subtask.

    States that are restored and never registered are kept, and are part of the next snapshot. Every subtask gets all
    elements of union state, so that a function must write its own share only: else they multiply, as in Flink.

    Args:
        layouts: what layouts depend on.
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
            raise UsageError("state is restored before any state is registered")
        infos, self._lists = restore_lists(old, subtask, parallelism)
        others, self._broadcasts = restore_broadcasts(old, subtask, parallelism, self._layouts)
        self._infos = infos | others

    def register_list(self, info: StateMetaInfo) -> OperatorList:
        """Register a list state, split or union; a second registration of the same gives the same list.

        Raises:
            UsageError: no operator list state, or a state of another mode has that name.
            StateMigrationError: the restored state does not fit the new serializer.
            UnsupportedError: the serializer has no layout.
        """
        if info.backend_type is not BackendStateType.OPERATOR:
            raise UsageError(f"{info.backend_type} state is no list of operator state", where=Where(state=info.name))
        known = self._registered.get(info.name)
        if isinstance(known, OperatorList) and known.info == info:
            return known
        with at(state=info.name):
            self._accept(info)
            made = OperatorList(info, self._layouts, self._lists.setdefault(info.name, []))
        self._registered[info.name] = made
        return made

    def register_broadcast(self, info: StateMetaInfo) -> BroadcastTable:
        """Register a broadcast state; as `register_list`."""
        if info.backend_type is not BackendStateType.BROADCAST:
            raise UsageError(f"{info.backend_type} state is no broadcast state", where=Where(state=info.name))
        known = self._registered.get(info.name)
        if isinstance(known, BroadcastTable) and known.info == info:
            return known
        with at(state=info.name):
            self._accept(info)
            made = BroadcastTable(info, self._layouts, self._broadcasts.setdefault(info.name, {}))
        self._registered[info.name] = made
        return made

    def snapshot(self, directory: Location, name: str, *, compressed: bool = False) -> OperatorStreamStateHandle | None:
        """Write all states into a file, a leftover of which is replaced.

        Args:
            directory: of the snapshot.
            name: of the file, unique to this attempt or to its repetitions.
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
        if known is not None and resolve_operator(known, info) is Change.REWRITE:
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
