"""A store that logs every change, over another store that has the entries (`ChangelogKeyedStateBackend`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.backends.change_log import StateLog
from state_pipelines.backends.entry_store import NO_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from state_pipelines.backends.entry_store import (
        Entries,
        EntryKind,
        EntryStore,
        MapEntries,
        MeasureHead,
        StateSettings,
    )
    from state_pipelines.keyed.record_layout import KeyedLayout, KeyedRecords
    from state_pipelines.metadata.handles import KeyGroupRange, StateChange
    from state_pipelines.serializers.state_meta_info import StateMetaInfo


class LoggedEntries:
    """Entries whose changes are logged."""

    get: Callable[[bytes], bytes | None]
    keys: Callable[[], Iterator[bytes]]

    def __init__(self, entries: Entries, log: StateLog) -> None:
        # Nothing is called in between.
        self.get, self.keys = entries.get, entries.keys
        self._entries, self._log = entries, log

    def put(self, key: bytes, value: bytes, /) -> None:
        """See `Entries`."""
        self._entries.put(key, value)
        self._log.put(key, value)

    def delete(self, key: bytes, /) -> None:
        """See `Entries`."""
        self._entries.delete(key)
        self._log.delete(key)

    def append(self, key: bytes, element: bytes, /) -> None:
        """See `Entries`."""
        self._entries.append(key, element)
        self._log.append(key, element)


class LoggedMaps:
    """Entries of map state whose changes are logged."""

    get: Callable[[bytes, bytes], bytes | None]
    scan: Callable[[bytes], Iterator[tuple[bytes, bytes]]]
    keys: Callable[[], Iterator[bytes]]

    def __init__(self, entries: MapEntries, log: StateLog) -> None:
        self.get, self.scan, self.keys = entries.get, entries.scan, entries.keys
        self._entries, self._log = entries, log

    def put(self, head: bytes, map_key: bytes, value: bytes, /) -> None:
        """See `MapEntries`."""
        self._entries.put(head, map_key, value)
        self._log.put_entry(head, map_key, value)

    def delete(self, head: bytes, map_key: bytes, /) -> None:
        """See `MapEntries`."""
        self._entries.delete(head, map_key)
        self._log.delete_entry(head, map_key)

    def delete_all(self, head: bytes, /) -> None:
        """See `MapEntries`."""
        self._entries.delete_all(head)
        self._log.delete_map(head)


class ChangelogStore:
    """Entries of another store, and the changes since the last snapshot.

    Args:
        store: has the entries; closed with this one.

    Attributes:
        store: the other store.
        is_heap: as of the other store.
        unlogged: number of times that entries changed otherwise than through logged entries, as by loading records or
            by registering restored state again; only a new base has such changes.
        without_log: names of the states whose changes are never logged: with TTL of unknown settings, which a log
            would have to repeat, and those of Python functions, whose values nothing separates.
    """

    def __init__(self, store: EntryStore) -> None:
        self.store = store
        self.is_heap = store.is_heap
        self.unlogged = 0
        self.without_log: set[str] = set()
        self._logs: dict[str, StateLog] = {}
        self._restored: dict[str, StateMetaInfo] = {}
        self._described: set[str] = set()

    def register(self, info: StateMetaInfo, layout: KeyedLayout, settings: StateSettings = NO_SETTINGS) -> None:
        """See `EntryStore`."""
        self.store.register(info, layout, settings)
        if layout.is_declared or (layout.ttl and settings.ttl_config is None):
            self._logs.pop(info.name, None)
            self.without_log.add(info.name)
            return
        log = self._logs.get(info.name)
        if log is None or log.info != info:
            self._logs[info.name] = StateLog(info, layout, settings)
            if log is not None or self._restored.get(info.name, info) != info:
                self.unlogged += 1

    def note_restored(self, infos: Iterable[StateMetaInfo]) -> None:
        """Note how the base describes its states: changes of a state that is registered otherwise do not fit it."""
        self._restored = {info.name: info for info in infos}
        self._described = set(self._restored)

    def take_changes(self) -> list[StateChange]:
        """Return the changes since the last call, with the descriptions of new states, and forget them."""
        found: list[StateChange] = []
        for state_id, log in enumerate(self._logs.values()):
            if log or log.info.name not in self._described:
                found += log.make_changes(state_id)
                log.clear()
                self._described.add(log.info.name)
        return found

    def open_entries(self, name: str, kind: EntryKind) -> Entries:
        """See `EntryStore`."""
        entries, log = self.store.open_entries(name, kind), self._logs.get(name)
        return entries if log is None else LoggedEntries(entries, log)

    def open_map(self, name: str, measure_head: MeasureHead) -> MapEntries:
        """See `EntryStore`."""
        entries, log = self.store.open_map(name, measure_head), self._logs.get(name)
        return entries if log is None else LoggedMaps(entries, log)

    def load(self, name: str, records: KeyedRecords) -> None:
        """See `EntryStore`."""
        self.unlogged += 1
        self.store.load(name, records)

    def records(self, name: str, key_groups: KeyGroupRange) -> Iterator[KeyedRecords]:
        """See `EntryStore`."""
        return self.store.records(name, key_groups)

    def drop(self, name: str) -> None:
        """See `EntryStore`."""
        self.unlogged += 1
        self._logs.pop(name, None)
        self.store.drop(name)

    def close(self) -> None:
        """See `EntryStore`."""
        self.store.close()
