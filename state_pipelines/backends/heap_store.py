"""Entries in dictionaries: the store of the heap backend (`hashmap`; `HeapKeyedStateBackend`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeAlias

from state_pipelines.backends.entry_store import DELIMITER, NO_SETTINGS, EntryKind
from state_pipelines.backends.record_batches import batch_key_groups, split_records
from state_pipelines.errors import UsageError, Where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from state_pipelines.backends.entry_store import MeasureHead, StateSettings
    from state_pipelines.keyed.record_layout import KeyedLayout, KeyedRecords
    from state_pipelines.metadata.handles import KeyGroupRange
    from state_pipelines.serializers.state_meta_info import StateMetaInfo


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
