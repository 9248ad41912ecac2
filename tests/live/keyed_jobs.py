"""Keyed state of an operator with several subtasks, whose tables are used by key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from state_pipelines.backends.changelog import ChangelogSettings, ChangelogSnapshots, ChangelogStore
from state_pipelines.backends.keyed_backend import KeyedStateBackend
from state_pipelines.backends.rocksdb_store import RocksStore
from state_pipelines.backends.snapshots import IncrementalSnapshots, restore_incremental, write_full_snapshot
from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.datastream import StateTtlConfig, Time
from state_pipelines.datastream.ttl import write_ttl_config
from state_pipelines.keyed.key_groups import compute_key_group_range
from state_pipelines.keyed.record_layout import derive_keyed_layout
from state_pipelines.metadata.handles import ChangelogStateBackendHandle, IncrementalRemoteKeyedStateHandle
from state_pipelines.operations.write.keyed_rewrite import Format
from state_pipelines.snapshot.handle_readers import HandleReader
from state_pipelines.storage import PathMapping, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from state_pipelines.backends.entry_store import EntryStore
    from state_pipelines.backends.keyed_backend import StateTable
    from state_pipelines.keyed.keyed_file import KeyedFile
    from state_pipelines.serializers.state_meta_info import StateMetaInfo
    from state_pipelines.serializers.tree import Serializer

LAYOUTS = LayoutContext()
TTL_CONFIG = write_ttl_config(StateTtlConfig.new_builder(Time.days(1)).build())


@dataclass
class KeyedJob:
    """Subtasks of one operator; a key goes to the subtask of its key group."""

    key_serializer: Serializer
    subtasks: list[KeyedStateBackend] = field(default_factory=list)
    snapshots: dict[int, IncrementalSnapshots] = field(default_factory=dict)
    changelogs: dict[int, ChangelogSnapshots] = field(default_factory=dict)

    @property
    def max_parallelism(self) -> int:
        return self.subtasks[0].max_parallelism

    def find_subtask(self, key: Any) -> KeyedStateBackend:
        keys = self.subtasks[0].key_context
        group = keys.find_key_group(key, keys.encode(key))
        (found,) = [each for each in self.subtasks if group in each.key_groups]
        return found

    def at(self, key: Any, info: StateMetaInfo) -> StateTable:
        """The state under a key."""
        backend = self.find_subtask(key)
        table = register(backend, info)
        backend.set_current_key(key)
        return table

    def tables(self, info: StateMetaInfo) -> Iterator[StateTable]:
        return (register(backend, info) for backend in self.subtasks)

    def keys(self, info: StateMetaInfo, namespace: Any = None) -> list[Any]:
        """Keys with a value in a namespace, of all subtasks."""
        return sorted(key for table in self.tables(info) for key in table.keys(namespace))

    def save(self, source: str, path: Path) -> list[KeyedFile]:
        """The keyed state of each subtask: live, or out of a snapshot.

        Args:
            source: `bytes`, or a format with the word `compressed` behind it if it is.
            path: of the snapshot.
        """
        if source == "bytes":
            return [backend.as_file() for backend in self.subtasks]
        path.mkdir()
        directory = resolve(str(path))
        name, _, compressed = source.partition(" ")
        written = [
            write_full_snapshot(backend, Format(name), directory, f"state-{index}", 7, compressed=bool(compressed))
            for index, backend in enumerate(self.subtasks)
        ]
        reader, context = HandleReader(directory, PathMapping()), self.subtasks[0].context
        return [file for each in written if (file := reader.open_keyed(each.handle, context)) is not None]

    def save_incremental(self, path: Path, number: int) -> list[IncrementalRemoteKeyedStateHandle]:
        """An incremental snapshot of each subtask, based on the one before."""
        (path / f"chk-{number}").mkdir(parents=True)
        (path / "shared").mkdir(exist_ok=True)
        directory, shared = resolve(str(path / f"chk-{number}")), resolve(str(path / "shared"))
        handles = []
        for index, backend in enumerate(self.subtasks):
            snapshots = self.snapshots.setdefault(index, IncrementalSnapshots(backend, find_store(backend)))
            handle = snapshots.write(number, directory, shared).handle
            snapshots.complete(number)
            if isinstance(handle, IncrementalRemoteKeyedStateHandle):
                handles.append(handle)
        return handles

    def restore_incremental(self, handles: list[IncrementalRemoteKeyedStateHandle], path: Path, number: int) -> None:
        reader = HandleReader(resolve(str(path / f"chk-{number}")), PathMapping())
        for index, backend in enumerate(self.subtasks):
            self.snapshots[index] = restore_incremental(backend, find_store(backend), handles, reader)

    def save_changelog(self, path: Path, number: int) -> list[ChangelogStateBackendHandle]:
        """A snapshot of the changelog of each subtask, based on the one before; the first one has no base."""
        (path / "shared").mkdir(exist_ok=True)
        shared = resolve(str(path / "shared"))
        handles = []
        for index, backend in enumerate(self.subtasks):
            assert not find_changelog(backend).without_log
            handle = self._find_changelog(index).write(number, shared, shared).handle
            self.changelogs[index].complete(number)
            if handle is not None:
                assert isinstance(handle, ChangelogStateBackendHandle)
                handles.append(handle)
        return handles

    def restore_changelog(self, handles: list[ChangelogStateBackendHandle], path: Path) -> None:
        reader = HandleReader(resolve(str(path)), PathMapping().allow([str(path)]))
        for index, backend in enumerate(self.subtasks):
            wanted = [each for each in handles if each.key_groups.intersect(backend.key_groups)]
            files = [reader.open_keyed(each, backend.context, self.key_serializer) for each in wanted]
            backend.restore([file for file in files if file is not None])
            same = [each for each in wanted if each.key_groups == backend.key_groups]
            going_on = same[0] if same else None
            self.changelogs[index] = ChangelogSnapshots(
                backend, find_changelog(backend), going_on, ChangelogSettings(None)
            )

    def _find_changelog(self, index: int) -> ChangelogSnapshots:
        if index not in self.changelogs:
            backend = self.subtasks[index]
            empty = ChangelogStateBackendHandle(backend.key_groups, 0, (), (), 0, "empty")
            settings = ChangelogSettings(None, compressed=True)
            self.changelogs[index] = ChangelogSnapshots(backend, find_changelog(backend), empty, settings)
        return self.changelogs[index]

    def close(self) -> None:
        for backend in self.subtasks:
            backend.close()


def register(backend: KeyedStateBackend, info: StateMetaInfo) -> StateTable:
    """The state of a subtask; that it has TTL is part of logs of its changes."""
    layout = derive_keyed_layout(info, backend.key_serializer, backend.max_parallelism, LAYOUTS)
    return backend.register(info, ttl_config=TTL_CONFIG if layout.ttl else None)


def find_changelog(backend: KeyedStateBackend) -> ChangelogStore:
    assert isinstance(backend.store, ChangelogStore)
    return backend.store


def find_store(backend: KeyedStateBackend) -> RocksStore:
    assert isinstance(backend.store, RocksStore)
    return backend.store


def start_job(
    make_store: Callable[[int], EntryStore], key_serializer: Serializer, parallelism: int, max_parallelism: int
) -> KeyedJob:
    """An operator without state.

    Args:
        make_store: makes a store, given the bytes of the key-group prefix.
        key_serializer: of the keys.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.
    """
    prefix = 1 if max_parallelism <= 128 else 2
    ranges = [compute_key_group_range(each, parallelism, max_parallelism) for each in range(parallelism)]
    subtasks = [
        KeyedStateBackend(make_store(prefix), key_serializer, key_groups, max_parallelism, LAYOUTS)
        for key_groups in ranges
    ]
    job = KeyedJob(key_serializer, subtasks)
    for index, backend in enumerate(subtasks):
        if isinstance(backend.store, ChangelogStore):
            job._find_changelog(index)
    return job
