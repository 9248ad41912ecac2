"""Restoring a RocksDB store out of incremental snapshots: the tables of one are taken over as files.

Source: `RocksDBIncrementalRestoreOperation`, `RocksDBStateDownloader`, `RocksDBIncrementalCheckpointUtils`.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from state_pipelines.backends.incremental_snapshots import TABLE, IncrementalSnapshots
from state_pipelines.errors import FormatError, UnsupportedError, Where
from state_pipelines.metadata.handles import FileStateHandle, SegmentFileStateHandle
from state_pipelines.metadata.streams import copy_stream, locate_file
from state_pipelines.storage import join, resolve
from state_pipelines.storage.locations import Threads, is_plain_name
from state_pipelines.storage.snapshot_writer import can_link, link_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state_pipelines.backends.keyed_backend import KeyedStateBackend
    from state_pipelines.backends.local_backup import LocalBackup
    from state_pipelines.backends.rocksdb_store import RocksStore
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
    from state_pipelines.metadata.handles import (
        HandleAndLocalPath,
        IncrementalRemoteKeyedStateHandle,
        KeyGroupRange,
        StreamStateHandle,
    )
    from state_pipelines.snapshot.handle_readers import HandleReader
    from state_pipelines.storage import Location


def restore_incremental(
    backend: KeyedStateBackend,
    store: RocksStore,
    handles: Sequence[IncrementalRemoteKeyedStateHandle],
    reader: HandleReader,
    context: RecordContext | None = None,
    backup: LocalBackup | None = None,
) -> IncrementalSnapshots:
    """Restore the key groups of a subtask; before any state is registered.

    One handle of the same key groups is taken over as it is: its tables are linked, or copied from another volume or
    storage, and later snapshots reference them. Of other handles the one with the most key groups of the subtask is
    taken over and clipped by range tombstones, and the records of the others are written to it. None is taken over
    where `state.backend.rocksdb.restore-overlap-fraction-threshold` asks for more of its key groups.

    Args:
        backend: of the subtask.
        store: of the backend.
        handles: of any old subtasks; those of other key groups are left out.
        reader: of the snapshot.
        context: of the old operator; see `KeyedStateBackend.restore`.
        backup: has the files of the last snapshots on this machine, and keeps those of the next ones.

    Returns:
        The snapshots that go on from the restored one.

    Raises:
        UsageError: a state is registered already.
        StateMigrationError: the new key serializer is not compatible with that of the old keys.
        UnsupportedError: the database is one of ForSt.
        StateError: a file cannot be read.
    """
    wanted = [each for each in handles if each.key_groups.intersect(backend.key_groups).number]
    if not wanted:
        return IncrementalSnapshots(backend, store, backup=backup)
    if backup is not None:
        reader.copies |= backup.find(wanted, reader)
    base = _choose_base(wanted, backend.key_groups, store.options.restore_overlap_fraction_threshold)
    if base is None:
        backend.restore([_open(reader, each) for each in wanted], context)
        return IncrementalSnapshots(backend, store, backup=backup)
    file = _open(reader, base)
    backend.take_states(file)
    _take_files(store, base, file, reader)
    if len(wanted) == 1 and base.key_groups == backend.key_groups:
        # A rescale can leave other key groups in the tables of a handle.
        store.clip(backend.key_groups)
        return IncrementalSnapshots(backend, store, _locate_tables(base, reader), backup)
    store.clip(base.key_groups.intersect(backend.key_groups))
    backend.restore([_open(reader, each) for each in wanted if each is not base], context)
    return IncrementalSnapshots(backend, store, backup=backup)


def _choose_base(
    handles: Sequence[IncrementalRemoteKeyedStateHandle], key_groups: KeyGroupRange, threshold: float
) -> IncrementalRemoteKeyedStateHandle | None:
    """The handle whose database is taken over (`RocksDBIncrementalCheckpointUtils.chooseTheBestStateHandleForInitial`).

    Only those count whose key groups are wanted to the fraction `threshold` at least.
    """

    def score(handle: IncrementalRemoteKeyedStateHandle) -> tuple[int, float]:
        number = handle.key_groups.intersect(key_groups).number
        return number, number / handle.key_groups.number

    return max((each for each in handles if score(each)[1] >= threshold), key=score, default=None)


def _open(reader: HandleReader, handle: IncrementalRemoteKeyedStateHandle) -> KeyedFile:
    file = reader.open_keyed(handle)
    assert file is not None
    if file.is_forst:
        raise UnsupportedError(
            "the database is one of ForSt, whose states are of the asynchronous API",
            where=Where(file=file.name),
            hint="Restore it by records: KeyedStateBackend.restore",
        )
    return file


def _locate_tables(
    handle: IncrementalRemoteKeyedStateHandle, reader: HandleReader
) -> IncrementalRemoteKeyedStateHandle:
    """Name moved tables by their new paths: later snapshots, which reference them, are read without the mapping."""
    shared = tuple(replace(each, handle=_locate_table(each.handle, reader)) for each in handle.shared_state)
    return replace(handle, shared_state=shared)


def _locate_table(handle: StreamStateHandle, reader: HandleReader) -> StreamStateHandle:
    if not isinstance(handle, FileStateHandle | SegmentFileStateHandle):
        return handle
    if reader.path_mapping.apply(handle.path) == handle.path:
        return handle
    return replace(handle, path=locate_file(handle, reader.directory, reader.path_mapping).url)


def _take_files(
    store: RocksStore, handle: IncrementalRemoteKeyedStateHandle, file: KeyedFile, reader: HandleReader
) -> None:
    restored = store.directory / "restored"
    shutil.rmtree(restored, ignore_errors=True)
    restored.mkdir()
    directory = resolve(str(restored))
    files = (*handle.shared_state, *handle.private_state)
    with Threads(max(1, store.options.transfer_threads)) as pool:
        for _ in pool.map(lambda each: _take_file(each, directory, reader), files):
            pass
    store.adopt(restored, [info.name for info in file.header.states])


def _take_file(file: HandleAndLocalPath, directory: Location, reader: HandleReader) -> None:
    if not is_plain_name(file.local_path):
        raise FormatError(f"{file.local_path!r:.80} is not the name of a file of a database")
    stream, target = reader.open_stream(file.handle), join(directory, file.local_path)
    source = None if stream.is_segment else stream.location
    # A table never changes. The manifest does, so that it is copied.
    if file.local_path.endswith(TABLE) and source is not None and can_link(source, directory):
        link_file(source, target)
    else:
        copy_stream(stream, target)
