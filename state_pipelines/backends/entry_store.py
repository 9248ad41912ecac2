"""Entry stores: where the keyed state of one subtask is, as bytes; the store of the heap backend.

A store maps record keys to record values, per state. Both have the bytes of the canonical format (see
`keyed.record_layout`): the record key is the key-group prefix, the key, the namespace and, of map state, the map key.
Restoring and snapshotting therefore move bytes and decode nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

import numpy as np

from state_pipelines.errors import UsageError, Where
from state_pipelines.keyed.key_groups import decode_prefixes, encode_prefix
from state_pipelines.keyed.record_layout import KeyedRecords
from state_pipelines.serializers.registered_states import BackendStateType, StateKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from state_pipelines.keyed.record_layout import KeyedLayout
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.serializers.state_meta_info import StateMetaInfo

MeasureHead: TypeAlias = "Callable[[bytes], int]"
"""Length of the head of a record key of map state: key-group prefix, key and namespace, without the map key."""

DELIMITER = b","
"""Byte between the elements of list state (`ListDelimitedSerializer`)."""


@dataclass(frozen=True)
class StateSettings:
    """Settings of a state that no snapshot stores, only a log of its changes.

    Attributes:
        ttl_config: `StateTtlConfig` as a Java serialization stream; None without TTL, or if it is not known.
        default_value: bytes of the default value; None if there is none.
    """

    ttl_config: bytes | None = None
    default_value: bytes | None = None


NO_SETTINGS = StateSettings()


class EntryKind(Enum):
    """Kinds of entries, by what is done to them."""

    VALUE = "value"
    """One value: VALUE, REDUCING and AGGREGATING state; also timers, whose values are empty."""
    LIST = "list"
    """Elements that are appended."""
    MAP = "map"
    """An entry per map key, found by the head of their record keys."""


def find_entry_kind(info: StateMetaInfo) -> EntryKind:
    """The kind of the entries of a state."""
    if info.backend_type is BackendStateType.KEY_VALUE and info.state_type in (StateKind.LIST, StateKind.MAP):
        return EntryKind[info.state_type]
    return EntryKind.VALUE


class Entries(Protocol):
    """Entries of a state with one entry per key and namespace."""

    def get(self, key: bytes, /) -> bytes | None:
        """The value of a record key; None when there is none."""

    def put(self, key: bytes, value: bytes, /) -> None:
        """Set a value."""

    def delete(self, key: bytes, /) -> None:
        """Remove an entry, if there is one."""

    def append(self, key: bytes, element: bytes, /) -> None:
        """Append one element to a list, or several that are joined by `DELIMITER`."""

    def keys(self) -> Iterator[bytes]:
        """Record keys at the time of the call; changes during the iteration are allowed."""


class MapEntries(Protocol):
    """Entries of map state; the head of their record keys is key-group prefix, key and namespace."""

    def get(self, head: bytes, map_key: bytes, /) -> bytes | None:
        """The value of a map key; None when there is none."""

    def put(self, head: bytes, map_key: bytes, value: bytes, /) -> None:
        """Set the value of a map key."""

    def delete(self, head: bytes, map_key: bytes, /) -> None:
        """Remove a map key, if it is there."""

    def scan(self, head: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Map keys and values at the time of the call; changes during the iteration are allowed."""

    def delete_all(self, head: bytes, /) -> None:
        """Remove all map keys."""

    def keys(self) -> Iterator[bytes]:
        """Heads with at least one map key at the time of the call, each once; changes are allowed meanwhile."""


class EntryStore(Protocol):
    """Entries of the states of one subtask."""

    @property
    def is_heap(self) -> bool:
        """Whether Flink's heap backend keeps its state so; it says some things in other words."""

    def register(self, info: StateMetaInfo, layout: KeyedLayout, settings: StateSettings = NO_SETTINGS) -> None:
        """Note what a state is, before its entries are opened."""

    def open_entries(self, name: str, kind: EntryKind) -> Entries:
        """The entries of a state that is no map; loaded ones if there are any, else none yet."""

    def open_map(self, name: str, measure_head: MeasureHead) -> MapEntries:
        """The entries of a map state; loaded ones if there are any, else none yet."""

    def load(self, name: str, records: KeyedRecords) -> None:
        """Add records of a state that is not open; they replace those of the same keys."""

    def records(self, name: str, key_groups: KeyGroupRange) -> Iterator[KeyedRecords]:
        """Records of a state in batches, ascending by key group; nothing of an unknown state."""

    def drop(self, name: str) -> None:
        """Remove a state and its entries."""

    def close(self) -> None:
        """Release everything; entries are lost."""


BATCH = 1 << 16
"""Records after which a batch ends with the key group at hand."""

NAME = "live state"
"""File name of records that come from no file, in errors."""


def make_records(entries: Sequence[tuple[bytes, bytes]], prefix: int) -> KeyedRecords:
    """Records of (record key, value) pairs, in their order.

    Args:
        entries: record keys with the key-group prefix.
        prefix: bytes of the prefix, 1 or 2.
    """
    count = len(entries)
    data = np.frombuffer(b"".join(chain.from_iterable(entries)), np.uint8)
    lengths = np.fromiter((len(side) for entry in entries for side in entry), np.int64, 2 * count)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    key_starts = starts[::2]
    groups = decode_prefixes(data, key_starts, prefix)
    return KeyedRecords(groups, data, key_starts + prefix, ends[::2], starts[1::2], ends[1::2], 0, NAME)


def split_records(records: KeyedRecords, prefix: int) -> Iterator[tuple[bytes, bytes]]:
    """(Record key, value) of each record; the mirror of `make_records`."""
    view = records.data.data
    heads = {group: encode_prefix(group, prefix) for group in np.unique(records.key_groups).tolist()}
    spans = (records.key_groups, records.key_starts, records.key_ends, records.value_starts, records.value_ends)
    for group, key, key_end, value, value_end in zip(*(span.tolist() for span in spans), strict=True):
        yield heads[group] + bytes(view[key:key_end]), bytes(view[value:value_end])


def batch_key_groups(groups: Iterable[Sequence[tuple[bytes, bytes]]], prefix: int) -> Iterator[KeyedRecords]:
    """Records of whole key groups, several small ones at a time.

    Args:
        groups: entries of each key group, ascending.
        prefix: bytes of the key-group prefix.
    """
    held: list[tuple[bytes, bytes]] = []
    for entries in groups:
        held += entries
        if len(held) >= BATCH:
            yield make_records(held, prefix)
            held = []
    if held:
        yield make_records(held, prefix)


class HeapValues:
    """Entries of one value each; also the loaded records of a state that is not open."""

    get: Callable[[bytes], bytes | None]
    put: Callable[[bytes, bytes], None]

    def __init__(self, content: dict[bytes, bytes]) -> None:
        self.content = content
        # The methods of the dictionary itself: nothing is called in between.
        self.get = content.get
        self.put = content.__setitem__

    def delete(self, key: bytes, /) -> None:
        """See `Entries`."""
        self.content.pop(key, None)

    def append(self, key: bytes, element: bytes, /) -> None:
        """See `Entries`."""
        old = self.content.get(key)
        self.content[key] = element if old is None else old + DELIMITER + element

    def keys(self) -> Iterator[bytes]:
        """See `Entries`."""
        return iter(list(self.content))

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Record keys and values."""
        return iter(self.content.items())


class HeapLists:
    """Entries of list state: appending does not copy what is there."""

    def __init__(self, content: dict[bytes, bytes]) -> None:
        self._lists: dict[bytes, list[bytes]] = {key: [value] for key, value in content.items()}

    def get(self, key: bytes, /) -> bytes | None:
        """See `Entries`."""
        elements = self._lists.get(key)
        if elements is None:
            return None
        if len(elements) > 1:
            elements[:] = [DELIMITER.join(elements)]
        return elements[0]

    def put(self, key: bytes, value: bytes, /) -> None:
        """See `Entries`."""
        self._lists[key] = [value]

    def delete(self, key: bytes, /) -> None:
        """See `Entries`."""
        self._lists.pop(key, None)

    def append(self, key: bytes, element: bytes, /) -> None:
        """See `Entries`."""
        elements = self._lists.get(key)
        if elements is None:
            self._lists[key] = [element]
        else:
            elements.append(element)

    def keys(self) -> Iterator[bytes]:
        """See `Entries`."""
        return iter(list(self._lists))

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Record keys and values."""
        return ((key, DELIMITER.join(elements)) for key, elements in self._lists.items())


class HeapMaps:
    """Entries of map state: a dictionary per head."""

    def __init__(self, content: dict[bytes, bytes], measure_head: MeasureHead) -> None:
        self._maps: dict[bytes, dict[bytes, bytes]] = {}
        for key, value in content.items():
            size = measure_head(key)
            self.put(key[:size], key[size:], value)

    def get(self, head: bytes, map_key: bytes, /) -> bytes | None:
        """See `MapEntries`."""
        entries = self._maps.get(head)
        return None if entries is None else entries.get(map_key)

    def put(self, head: bytes, map_key: bytes, value: bytes, /) -> None:
        """See `MapEntries`."""
        entries = self._maps.get(head)
        if entries is None:
            self._maps[head] = {map_key: value}
        else:
            entries[map_key] = value

    def delete(self, head: bytes, map_key: bytes, /) -> None:
        """See `MapEntries`."""
        entries = self._maps.get(head)
        if entries is not None:
            entries.pop(map_key, None)
            if not entries:
                del self._maps[head]

    def scan(self, head: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """See `MapEntries`."""
        return iter(list(self._maps.get(head, {}).items()))

    def delete_all(self, head: bytes, /) -> None:
        """See `MapEntries`."""
        self._maps.pop(head, None)

    def keys(self) -> Iterator[bytes]:
        """See `MapEntries`."""
        return iter(list(self._maps))

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Record keys and values."""
        return ((head + key, value) for head, entries in self._maps.items() for key, value in entries.items())


HeapEntries: TypeAlias = HeapValues | HeapLists | HeapMaps


class HeapStore:
    """Entries of all states in memory.

    Args:
        prefix: bytes of the key-group prefix, 1 or 2.
    """

    is_heap: ClassVar[bool] = True

    def __init__(self, prefix: int) -> None:
        self._prefix = prefix
        self._loaded: dict[str, dict[bytes, bytes]] = {}
        self._open: dict[str, HeapEntries] = {}

    def register(self, info: StateMetaInfo, layout: KeyedLayout, settings: StateSettings = NO_SETTINGS) -> None:
        """Do nothing: entries are bytes here."""

    def open_entries(self, name: str, kind: EntryKind) -> HeapValues | HeapLists:
        """See `EntryStore`."""
        opened = self._open.get(name)
        if opened is None:
            content = self._loaded.pop(name, {})
            opened = self._open[name] = HeapLists(content) if kind is EntryKind.LIST else HeapValues(content)
        if isinstance(opened, HeapMaps):
            raise UsageError("the entries are those of map state", where=Where(state=name))
        return opened

    def open_map(self, name: str, measure_head: MeasureHead) -> HeapMaps:
        """See `EntryStore`."""
        opened = self._open.get(name)
        if opened is None:
            opened = self._open[name] = HeapMaps(self._loaded.pop(name, {}), measure_head)
        if not isinstance(opened, HeapMaps):
            raise UsageError("the entries are not those of map state", where=Where(state=name))
        return opened

    def load(self, name: str, records: KeyedRecords) -> None:
        """See `EntryStore`."""
        if name in self._open:
            raise UsageError("records are loaded before a state is opened", where=Where(state=name))
        self._loaded.setdefault(name, {}).update(split_records(records, self._prefix))

    def records(self, name: str, key_groups: KeyGroupRange) -> Iterator[KeyedRecords]:
        """See `EntryStore`."""
        groups: dict[int, list[tuple[bytes, bytes]]] = {key_group: [] for key_group in key_groups}
        for entry in self._items(name):
            group = int.from_bytes(entry[0][: self._prefix], "big")
            if group in groups:
                groups[group].append(entry)
        return batch_key_groups((groups.pop(key_group) for key_group in key_groups), self._prefix)

    def drop(self, name: str) -> None:
        """See `EntryStore`."""
        self._open.pop(name, None)
        self._loaded.pop(name, None)

    def close(self) -> None:
        """See `EntryStore`."""
        self._open.clear()
        self._loaded.clear()

    def _items(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        if name in self._open:
            return self._open[name].items()
        return iter(self._loaded.get(name, {}).items())
