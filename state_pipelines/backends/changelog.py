"""Changelog store of one subtask: a store of entries that logs every change, and its snapshots.

* `StateLog`: changes since the last snapshot, encoded as the changelog state backend logs them. Only changes that still
  count are kept: a new value of a key replaces the older one, which Flink would log too. Source:
  `KvStateChangeLoggerImpl`, `PriorityQueueStateChangeLoggerImpl`, `AbstractStateChangeLogger`.
* `ChangelogStore`: logs every change, over another store that has the entries (`LoggedEntries`, `LoggedMaps`).
* `ChangelogSnapshots`: a base that is written now and then, and the changes since. Source:
  `ChangelogKeyedStateBackend`, `PeriodicMaterializationManager`, `StateChangeFsUploader`.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from state_pipelines.backends.entry_store import (
    NO_SETTINGS,
    EntryKind,
    StateSettings,
    find_entry_kind,
    make_codec,
    make_list_functions,
)
from state_pipelines.backends.rocksdb_store import RocksStore
from state_pipelines.backends.snapshots import IncrementalSnapshots, KeyedSnapshot, write_full_snapshot
from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.scalar import read_value
from state_pipelines.errors import StateError
from state_pipelines.keyed.changelog.changes import (
    METADATA_KEY_GROUP,
    MetadataChange,
    StateChangeOperation,
    write_change_stream,
    write_metadata_change,
)
from state_pipelines.metadata import CheckpointMetadata, OperatorState, SubtaskState, replace_stream_handles
from state_pipelines.metadata.handles import (
    ChangelogStateBackendHandle,
    ChangelogStateHandleStream,
    ChangelogStream,
    FileStateHandle,
    LoggedChange,
    RelativeFileStateHandle,
)
from state_pipelines.metadata.streams import list_keyed_streams
from state_pipelines.operations.write.keyed_rewrite import Format
from state_pipelines.serializers.state_meta_info import BackendStateType
from state_pipelines.storage import create_file, join, resolve
from state_pipelines.storage.files import find_entry, remove_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from state_pipelines.backends.entry_store import Entries, EntryStore, MapEntries, MeasureHead
    from state_pipelines.backends.keyed_backend import KeyedStateBackend
    from state_pipelines.keyed.record_layout import KeyedLayout, KeyedRecords
    from state_pipelines.metadata.handles import KeyedStateHandle, KeyGroupRange, StreamStateHandle
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.storage import Location

_ONE = (1).to_bytes(4, "big")
_NO_NULL = b"\0"
_KEPT_SCOPES = 4096


class StateLog:
    """Logged changes of one keyed state.

    Args:
        info: the state.
        layout: layout of its records.
        settings: TTL and default value, which the log contains.

    Attributes:
        kind: kind of its entries.
    """

    def __init__(self, info: StateMetaInfo, layout: KeyedLayout, settings: StateSettings = NO_SETTINGS) -> None:
        self.info = info
        self._settings = settings
        self.kind = find_entry_kind(info)
        self._is_queue = info.backend_type is BackendStateType.PRIORITY_QUEUE
        self._prefix = layout.prefix
        self._find_scope = _make_scope(layout)
        # Changes that no later change replaces, by record key. The key of a change that clears a map is the head of its
        # record keys (without map key), in a tuple.
        self._changes: dict[bytes | tuple[bytes], list[bytes]] = {}
        if self.kind is EntryKind.LIST:
            self._encode_element, self._decode_list = make_list_functions(layout.value)

    def __bool__(self) -> bool:
        """Return whether there are changes."""
        return bool(self._changes)

    def put(self, key: bytes, value: bytes) -> None:
        """Log the new content of a key: a value, all elements of a list (joined by `DELIMITER`), or a new timer."""
        if self._is_queue:
            self._set(key, StateChangeOperation.ADD_ELEMENT, _ONE + key[self._prefix :])
        elif self.kind is EntryKind.LIST:
            self._set(key, StateChangeOperation.SET, self._find_scope(key) + self._count_elements(value))
        else:
            self._set(key, StateChangeOperation.SET, self._find_scope(key) + value)

    def delete(self, key: bytes) -> None:
        """Log that a value, a list or a timer is gone."""
        if self._is_queue:
            self._set(key, StateChangeOperation.REMOVE_ELEMENT, key[self._prefix :])
        else:
            self._set(key, StateChangeOperation.CLEAR, self._find_scope(key))

    def append(self, key: bytes, elements: bytes) -> None:
        """Log elements appended to a list, joined by `DELIMITER`."""
        change = self._find_scope(key) + self._count_elements(elements)
        self._changes.setdefault(key, []).append(bytes((StateChangeOperation.ADD,)) + change)

    def put_entry(self, head: bytes, map_key: bytes, value: bytes) -> None:
        """Log the new value of a map key; `value` begins with its null flag."""
        scope = self._find_scope(head)
        if value[:1] == _NO_NULL:
            self._replace(head + map_key, StateChangeOperation.ADD_OR_UPDATE_ELEMENT, scope + map_key + value[1:])
        else:
            # The change of a single entry has no null flag, so a null is logged as a map with this one entry.
            self._replace(head + map_key, StateChangeOperation.ADD, scope + _ONE + map_key + value)

    def delete_entry(self, head: bytes, map_key: bytes) -> None:
        """Log that a map key is gone."""
        self._replace(head + map_key, StateChangeOperation.REMOVE_ELEMENT, self._find_scope(head) + map_key)

    def delete_map(self, head: bytes) -> None:
        """Log that all map keys are gone."""
        self._replace((head,), StateChangeOperation.CLEAR, self._find_scope(head))

    def clear(self) -> None:
        """Forget all changes."""
        self._changes.clear()

    def make_changes(self, state_id: int) -> list[LoggedChange]:
        """Return the changes in the order in which a restore applies them; the description of the state is first."""
        described = write_metadata_change(
            MetadataChange(
                info=self.info,
                state_id=state_id,
                ttl_config=self._settings.ttl_config,
                default_value=self._settings.default_value,
            )
        )
        number, prefix = state_id.to_bytes(2, "big"), self._prefix
        found = [LoggedChange(METADATA_KEY_GROUP, described)]
        for key, changes in self._changes.items():
            record_key = key[0] if isinstance(key, tuple) else key
            key_group = int.from_bytes(record_key[:prefix], "big")
            found += [LoggedChange(key_group, change[:1] + number + change[1:]) for change in changes]
        return found

    def _set(self, key: bytes, operation: StateChangeOperation, payload: bytes) -> None:
        """Log a change that replaces all older changes of the record key."""
        self._changes[key] = [bytes((operation,)) + payload]

    def _replace(self, key: bytes | tuple[bytes], operation: StateChangeOperation, payload: bytes) -> None:
        """Log a change after all others: a map may be cleared before or after an entry is put, so the order counts."""
        self._changes.pop(key, None)
        self._changes[key] = [bytes((operation,)) + payload]

    def _count_elements(self, joined: bytes) -> bytes:
        """Encode the elements of a list as `ListSerializer` does: their number, then the elements."""
        elements = self._decode_list(joined)
        return len(elements).to_bytes(4, "big") + b"".join(map(self._encode_element, elements))


def _make_scope(layout: KeyedLayout) -> Callable[[bytes], bytes]:
    """Make a function that converts a record key (of a map: its head) to the key and namespace in a logged change.

    If key and namespace are both of variable length, record keys also contain their lengths; changes never do.
    """
    prefix = layout.prefix
    fields = dict(layout.key.fields)
    key, namespace = fields["state_key"], fields["state_namespace"]
    if not (isinstance(key, lay.MeasuredKey) and isinstance(namespace, lay.MeasuredKey)):
        return lambda head: head[prefix:]
    head_layout = lay.Struct((("key", key), ("namespace", namespace)))
    encode_key, encode_namespace = make_codec(key.inner).encode, make_codec(namespace.inner).encode

    @lru_cache(_KEPT_SCOPES)
    def find_scope(head: bytes) -> bytes:
        found = read_value(head_layout, Reader(head, None, prefix))
        return encode_key(found["key"]) + encode_namespace(found["namespace"])

    return find_scope


class LoggedEntries:
    """Entries whose changes are logged."""

    get: Callable[[bytes], bytes | None]
    keys: Callable[[], Iterator[bytes]]

    def __init__(self, entries: Entries, log: StateLog) -> None:
        # Reads need no log: bind the methods of the wrapped store, without a call in between.
        self.get, self.keys = entries.get, entries.keys
        self._entries, self._log = entries, log

    def put(self, key: bytes, value: bytes, /) -> None:
        """Set the value of a record key, and log the change."""
        self._entries.put(key, value)
        self._log.put(key, value)

    def delete(self, key: bytes, /) -> None:
        """Remove the entry of a record key, and log the change."""
        self._entries.delete(key)
        self._log.delete(key)

    def append(self, key: bytes, element: bytes, /) -> None:
        """Append elements, joined by `DELIMITER`, to the list of a record key, and log the change."""
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
        """Set the value of a map key, and log the change."""
        self._entries.put(head, map_key, value)
        self._log.put_entry(head, map_key, value)

    def delete(self, head: bytes, map_key: bytes, /) -> None:
        """Remove a map key, and log the change."""
        self._entries.delete(head, map_key)
        self._log.delete_entry(head, map_key)

    def delete_all(self, head: bytes, /) -> None:
        """Remove all map keys of a head, and log the change."""
        self._entries.delete_all(head)
        self._log.delete_map(head)


class ChangelogStore:
    """Entries of another store, and a log of their changes since the last snapshot.

    Args:
        store: holds the entries; closed with this one.

    Attributes:
        store: the wrapped store.
        is_heap: whether the wrapped store follows the rules of Flink's heap backend.
        unlogged: number of changes that bypassed the log: records were loaded, a state was dropped, or it was
            registered with another serializer. Only a new base contains such changes.
        without_log: names of the states whose changes are never logged: states with TTL whose `StateTtlConfig` is
            unknown, since a log contains it; and states of Python functions, whose elements have no delimiter.
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
        """Note a state, and begin a log of its changes, unless they are never logged (`without_log`)."""
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
        """Note the states of the restored base: if one gets other serializers, its changes do not fit the base."""
        self._restored = {info.name: info for info in infos}
        self._described = set(self._restored)

    def take_changes(self) -> list[LoggedChange]:
        """Return and forget the changes since the last call, with the descriptions of new states."""
        found: list[LoggedChange] = []
        for state_id, log in enumerate(self._logs.values()):
            if log or log.info.name not in self._described:
                found += log.make_changes(state_id)
                log.clear()
                self._described.add(log.info.name)
        return found

    def open_entries(self, name: str, kind: EntryKind) -> Entries:
        """Open the entries of a state other than map state, and log their changes if the state has a log."""
        entries, log = self.store.open_entries(name, kind), self._logs.get(name)
        return entries if log is None else LoggedEntries(entries, log)

    def open_map(self, name: str, measure_head: MeasureHead) -> MapEntries:
        """Open the entries of a map state, and log their changes if the state has a log."""
        entries, log = self.store.open_map(name, measure_head), self._logs.get(name)
        return entries if log is None else LoggedMaps(entries, log)

    def load(self, name: str, records: KeyedRecords) -> None:
        """Add records to a state that is not open, without logging them: only a new base contains them."""
        self.unlogged += 1
        self.store.load(name, records)

    def records(self, name: str, key_groups: KeyGroupRange) -> Iterator[KeyedRecords]:
        """Yield the records of a state in batches, ascending by key group; no batches for an unknown state."""
        return self.store.records(name, key_groups)

    def drop(self, name: str) -> None:
        """Remove a state, its entries and its log."""
        self.unlogged += 1
        self._logs.pop(name, None)
        self.store.drop(name)

    def close(self) -> None:
        """Close the wrapped store; the entries are lost."""
        self.store.close()


_STORAGE = "filesystem"


@dataclass(frozen=True)
class ChangelogSettings:
    """Options of the changelog.

    Attributes:
        interval: age at which a base (all state, materialized) is replaced; None for never.
        compressed: changes are compressed (snappy).
        compressed_base: a base of the heap is compressed; RocksDB compresses its own blocks.
    """

    interval: timedelta | None = timedelta(minutes=10)
    compressed: bool = False
    compressed_base: bool = False


@dataclass(frozen=True)
class _Kept:
    """Handles of a snapshot; once the snapshot is completed, the next one references the same files.

    Attributes:
        bases: handles of the base.
        logs: handles of the changes since the base.
        number: materialization id of the base.
        made: time of the base; None if it is not known.
        changes: number of the changes in memory (`ChangelogSnapshots._changes`) that the snapshot contains.
        unlogged: `ChangelogStore.unlogged` when the base was written or restored.
    """

    bases: tuple[KeyedStateHandle, ...]
    logs: tuple[KeyedStateHandle, ...]
    number: int
    made: datetime | None
    changes: int = 0
    unlogged: int = 0


class ChangelogSnapshots:
    """Snapshots of one backend, each based on the last one that was completed.

    Without `restored`, the first snapshot writes a base, so that every checkpoint contains the key serializer;
    checkpoints of Flink contain it only after the first materialization.

    Args:
        backend: the live state, of a changelog store.
        store: store that holds the entries of the backend.
        restored: the handle from which exactly this state was restored, so that later snapshots may reference its
            files; None if there is none.
        settings: options.
        now: returns the current time.
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        store: ChangelogStore,
        restored: ChangelogStateBackendHandle | None = None,
        settings: ChangelogSettings | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._backend = backend
        self._store = store
        self._settings = settings or ChangelogSettings()
        self._now = now
        self._databases = IncrementalSnapshots(backend, store.store) if isinstance(store.store, RocksStore) else None
        self._number = 0
        self._completed: _Kept | None = None
        self._attempts: dict[int, _Kept] = {}
        self._changes: list[LoggedChange] = []
        store.note_restored(backend.states)
        if restored is not None:
            self._number = restored.materialization_id
            made = None if self._settings.interval is None else _find_time(restored.materialized)
            self._completed = _Kept(
                restored.materialized, restored.non_materialized, self._number, made, unlogged=store.unlogged
            )

    def write(self, checkpoint_id: int, directory: Location, shared: Location, *, full: bool = False) -> KeyedSnapshot:
        """Upload the changes since the last completed snapshot, or a new base.

        A base is written if there is none, if it is older than the interval, if changes bypassed the log (restored
        records, migrated values), or if the changes of a state are never logged (`ChangelogStore.without_log`).

        Args:
            checkpoint_id: id of the snapshot; ascending.
            directory: directory of the snapshot; nothing is written there.
            shared: directory of all files, which later snapshots use too; handles name them by their URL.
            full: write a base in any case, as after a restore without claim.

        Returns:
            The handle, and the bytes uploaded; no handle when the backend has no state.

        Raises:
            StateError: a file cannot be written.
        """
        if not self._backend.states:
            return KeyedSnapshot(None, 0)
        self._changes += self._store.take_changes()
        kept = self._completed
        if full or kept is None or self._is_outdated(kept):
            attempt, size = self._write_base(checkpoint_id, shared, full=full)
        else:
            logs, size = kept.logs, 0
            if self._changes:
                log = self._write_log(shared)
                logs, size = (*logs, log), log.size
            attempt = replace(kept, logs=logs, changes=len(self._changes))
        self._attempts[checkpoint_id] = attempt
        handle = ChangelogStateBackendHandle(
            key_groups=self._backend.key_groups,
            persisted_size=size,
            materialized=attempt.bases,
            non_materialized=attempt.logs,
            materialization_id=attempt.number,
            state_handle_id=str(uuid.uuid4()),
            checkpoint_id=checkpoint_id,
        )
        return KeyedSnapshot(handle, size)

    def complete(self, checkpoint_id: int) -> None:
        """Note that a snapshot was completed: later ones reference its files (`notifyCheckpointComplete`)."""
        attempt = self._attempts.get(checkpoint_id)
        if attempt is None:
            return
        self._changes = self._changes[attempt.changes :]
        self._attempts = {
            number: replace(each, changes=each.changes - attempt.changes)
            for number, each in self._attempts.items()
            if number > checkpoint_id
        }
        self._completed = replace(attempt, changes=0)
        if self._databases is not None:
            self._databases.complete(checkpoint_id)

    def abort(self, checkpoint_id: int) -> None:
        """Forget a snapshot that was not completed: its changes go into the next one."""
        self._attempts.pop(checkpoint_id, None)
        if self._databases is not None:
            self._databases.abort(checkpoint_id)

    def _is_outdated(self, kept: _Kept) -> bool:
        if kept.unlogged != self._store.unlogged or self._store.without_log:
            return True
        interval = self._settings.interval
        return interval is not None and (kept.made is None or self._now() - kept.made >= interval)

    def _write_base(self, checkpoint_id: int, shared: Location, *, full: bool) -> tuple[_Kept, int]:
        """Write a base, which has all state; return its handles, and the number of bytes written."""
        self._number += 1
        if self._databases is not None:
            written = self._databases.write(checkpoint_id, shared, shared, full=full)
        else:
            compressed, name = self._settings.compressed_base, str(uuid.uuid4())
            written = write_full_snapshot(
                self._backend, Format.HEAP, shared, name, checkpoint_id, compressed=compressed
            )
        assert written.handle is not None
        base = _name_by_url(written.handle, shared)
        kept = _Kept((base,), (), self._number, self._now(), len(self._changes), self._store.unlogged)
        return kept, written.size

    def _write_log(self, shared: Location) -> ChangelogStateHandleStream:
        data, (offset,) = write_change_stream([self._changes], compressed=self._settings.compressed)
        target = join(shared, str(uuid.uuid4()))
        try:
            with create_file(target, replace=True) as file:
                file.write(data)
        except BaseException:
            with suppress(StateError):
                remove_file(target)
            raise
        stream = ChangelogStream(offset, FileStateHandle(target.url, len(data)))
        return ChangelogStateHandleStream(
            self._backend.key_groups, (stream,), len(data), len(data), str(uuid.uuid4()), _STORAGE
        )


def is_continuable(handle: ChangelogStateBackendHandle) -> bool:
    """Return whether later checkpoints can reference the files of a handle: it names all of them by their URL."""
    return all(isinstance(each, FileStateHandle) for each in list_keyed_streams(handle))


def _wrap(handle: KeyedStateHandle) -> CheckpointMetadata:
    subtask = SubtaskState(0, managed_keyed_state=handle)
    return CheckpointMetadata(3, 0, (), (OperatorState(bytes(16), 1, 1, (subtask,)),))


def _name_by_url(handle: KeyedStateHandle, directory: Location) -> KeyedStateHandle:
    """Replace the names of files in a handle, which are relative to a directory, by URLs."""

    def locate(stream: StreamStateHandle) -> StreamStateHandle:
        if not isinstance(stream, RelativeFileStateHandle):
            return stream
        return FileStateHandle(join(directory, stream.relative_path).url, stream.size)

    replaced = replace_stream_handles(_wrap(handle), lambda reference: locate(reference.handle))
    found = replaced.operator_states[0].subtasks[0].managed_keyed_state
    assert found is not None
    return found


def _find_time(bases: tuple[KeyedStateHandle, ...]) -> datetime | None:
    """The latest modification time among the first files of the bases; None if the storage has no times."""
    files = [stream for base in bases for stream in list_keyed_streams(base)[:1] if isinstance(stream, FileStateHandle)]
    times = [find_entry(resolve(file.path)).modified for file in files]
    return max((time for time in times if time is not None), default=None)
