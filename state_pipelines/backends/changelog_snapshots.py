"""Snapshots of a changelog store: a base that is written now and then, and the changes since.

Source: `ChangelogKeyedStateBackend`, `PeriodicMaterializationManager`, `StateChangeFsUploader`.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from state_pipelines.backends.incremental_snapshots import IncrementalSnapshots
from state_pipelines.backends.keyed_snapshots import KeyedSnapshot, write_full_snapshot
from state_pipelines.backends.rocksdb_store import RocksStore
from state_pipelines.errors import StateError
from state_pipelines.keyed.changelog.changes import write_change_stream
from state_pipelines.metadata import CheckpointMetadata, OperatorState, SubtaskState, replace_stream_handles
from state_pipelines.metadata.handles import (
    ChangelogStateBackendHandle,
    ChangelogStateHandleStream,
    ChangelogStream,
    FileStateHandle,
    RelativeFileStateHandle,
)
from state_pipelines.metadata.references import list_keyed_streams
from state_pipelines.operations.write.state_formats import Format
from state_pipelines.storage import create_file, join, resolve
from state_pipelines.storage.files import find_entry, remove_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.backends.changelog_store import ChangelogStore
    from state_pipelines.backends.keyed_backend import KeyedStateBackend
    from state_pipelines.metadata.handles import KeyedStateHandle, StateChange, StreamStateHandle
    from state_pipelines.storage import Location

_STORAGE = "filesystem"


@dataclass(frozen=True)
class ChangelogSettings:
    """Options of the changelog.

    Attributes:
        interval: age at which a base is replaced; None for never.
        compressed: changes are compressed (snappy).
        compressed_base: a base of the heap is compressed; RocksDB compresses its own blocks.
    """

    interval: timedelta | None = timedelta(minutes=10)
    compressed: bool = False
    compressed_base: bool = False


@dataclass(frozen=True)
class _Kept:
    """The state of a completed snapshot, on which the next one builds.

    Attributes:
        bases: handles of the base.
        logs: handles of the changes since.
        number: counts bases.
        made: time of the base; None where it is not known.
        changes: how many of the changes in memory it has.
        unlogged: `ChangelogStore.unlogged` at its time, which its base has.
    """

    bases: tuple[KeyedStateHandle, ...]
    logs: tuple[KeyedStateHandle, ...]
    number: int
    made: datetime | None
    changes: int = 0
    unlogged: int = 0


class ChangelogSnapshots:
    """Snapshots of one backend, each based on the last one that was completed.

    The first one writes a base, so that a checkpoint always says which serializer its keys have; Flink's own says so
    only after the first materialization.

    Args:
        backend: the live state, of a changelog store.
        store: of the backend.
        restored: the handle that was restored as a whole, whose files later snapshots may name; None for none.
        settings: options.
        now: the time.
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
        self._changes: list[StateChange] = []
        store.note_restored(backend.states)
        if restored is not None:
            self._number = restored.materialization_id
            made = None if self._settings.interval is None else _find_time(restored.materialized)
            self._completed = _Kept(
                restored.materialized, restored.non_materialized, self._number, made, unlogged=store.unlogged
            )

    def write(self, checkpoint_id: int, directory: Location, shared: Location, *, full: bool = False) -> KeyedSnapshot:
        """Upload the changes since the last completed snapshot, or a new base.

        A base is written where there is none, where it is older than the interval, where entries changed in a way that
        no log has (restored records, migrated values), and where a state has TTL.

        Args:
            checkpoint_id: of the snapshot; ascending.
            directory: of the snapshot; nothing is written there.
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
        """Base later snapshots on this one (`notifyCheckpointComplete`)."""
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
        """A base and its bytes."""
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
    """Return whether later checkpoints can name the files of a handle: all of them by their URL."""
    return all(isinstance(each, FileStateHandle) for each in list_keyed_streams(handle))


def _wrap(handle: KeyedStateHandle) -> CheckpointMetadata:
    subtask = SubtaskState(0, managed_keyed_state=handle)
    return CheckpointMetadata(3, 0, (), (OperatorState(bytes(16), 1, 1, (subtask,)),))


def _name_by_url(handle: KeyedStateHandle, directory: Location) -> KeyedStateHandle:
    """Name the files of a handle, which are in a directory, by their URL."""

    def locate(stream: StreamStateHandle) -> StreamStateHandle:
        if not isinstance(stream, RelativeFileStateHandle):
            return stream
        return FileStateHandle(join(directory, stream.relative_path).url, stream.size)

    replaced = replace_stream_handles(_wrap(handle), lambda reference: locate(reference.handle))
    found = replaced.operator_states[0].subtasks[0].managed_keyed_state
    assert found is not None
    return found


def _find_time(bases: tuple[KeyedStateHandle, ...]) -> datetime | None:
    """Time at which the youngest file of the bases was written; None where the storage does not say."""
    files = [stream for base in bases for stream in list_keyed_streams(base)[:1] if isinstance(stream, FileStateHandle)]
    times = [find_entry(resolve(file.path)).modified for file in files]
    return max((time for time in times if time is not None), default=None)
