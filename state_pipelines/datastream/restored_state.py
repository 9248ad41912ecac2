"""The state that a subtask starts from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.backends.changelog_snapshots import is_continuable
from state_pipelines.backends.incremental_restore import restore_incremental
from state_pipelines.metadata.handles import (
    ChangelogStateBackendHandle,
    IncrementalRemoteKeyedStateHandle,
    KeyGroupsSavepointStateHandle,
    KeyGroupsStateHandle,
)
from state_pipelines.snapshot.handle_readers import HandleReader
from state_pipelines.storage import PathMapping

if TYPE_CHECKING:
    from state_pipelines.backends.incremental_snapshots import IncrementalSnapshots
    from state_pipelines.backends.keyed_backend import KeyedStateBackend
    from state_pipelines.backends.local_backup import LocalBackup
    from state_pipelines.backends.restored_elements import OldOperatorState
    from state_pipelines.backends.rocksdb_store import RocksStore
    from state_pipelines.keyed.keyed_file import KeyedFile, RecordContext
    from state_pipelines.metadata.handles import KeyedStateHandle, KeyGroupRange, OperatorStateHandle
    from state_pipelines.metadata.streams import StateStream
    from state_pipelines.snapshot import Operator
    from state_pipelines.storage import Location


@dataclass(frozen=True)
class KeyedHandles:
    """The managed keyed state of an operator of a snapshot, as handles.

    Attributes:
        handles: of all old subtasks.
        directory: of the snapshot.
        path_mapping: where directories that absolute handles name are now.
    """

    handles: tuple[KeyedStateHandle, ...]
    directory: Location
    path_mapping: PathMapping

    @staticmethod
    def of(operator: Operator) -> KeyedHandles:
        """Take the handles of an operator."""
        keyed = (each.managed_keyed_state for each in operator.metadata.subtasks)
        handles = tuple(each for each in keyed if each is not None)
        return KeyedHandles(handles, operator.snapshot.location.directory, operator.snapshot.path_mapping)

    def open_copy(self, file: KeyedFile, backup: LocalBackup) -> KeyedFile | None:
        """Open the keyed state of a subtask from copies on this machine.

        Args:
            file: opened keyed state of the same subtask, which says what its keys are.
            backup: of the subtask.

        Returns:
            The state; None where there is no copy of any of its files.

        Raises:
            StateError: a copy cannot be read.
        """
        own = [each for each in self.handles if each.key_groups == file.key_groups]
        reader = self._make_reader()
        reader.copies |= backup.find(own, reader)
        if len(own) != 1 or not reader.copies:
            return None
        return reader.open_keyed(own[0], file.header.key_serializer)

    def _make_reader(self) -> HandleReader:
        return HandleReader(self.directory, self.path_mapping)


@dataclass(frozen=True)
class DatabaseFiles(KeyedHandles):
    """The databases of an operator of a snapshot, which a subtask with a RocksDB store takes over as files."""

    handles: tuple[IncrementalRemoteKeyedStateHandle, ...]

    @staticmethod
    def find(operator: Operator) -> DatabaseFiles | None:
        """Take the databases of an operator; None where some of its keyed state is not in one of RocksDB."""
        keyed = KeyedHandles.of(operator)
        handles = tuple(each for each in keyed.handles if isinstance(each, IncrementalRemoteKeyedStateHandle))
        has_raw = any(each.raw_keyed_state is not None for each in operator.metadata.subtasks)
        is_forst = any(file.is_forst for _, file in operator.keyed_files)
        if not handles or len(handles) != len(keyed.handles) or has_raw or is_forst:
            return None
        return DatabaseFiles(handles, keyed.directory, keyed.path_mapping)

    def restore(
        self, backend: KeyedStateBackend, store: RocksStore, context: RecordContext, backup: LocalBackup | None = None
    ) -> IncrementalSnapshots:
        """Restore the key groups of a subtask; see `restore_incremental`."""
        return restore_incremental(backend, store, self.handles, self._make_reader(), context, backup)


@dataclass(frozen=True)
class RestoredState:
    """State of an operator of a snapshot, of all its subtasks; a subtask takes what belongs to its key groups.

    Attributes:
        keyed_files: keyed state, of any format and any subtasks.
        operator_states: operator state of every subtask, by its index; None of those without.
        context: of the operator of the snapshot: number of key groups, and what layouts depend on.
        checkpoint_id: id of the checkpoint or savepoint.
        snapshot: its path, for errors.
        databases: the keyed state as databases of RocksDB; None where it is not in such, or its classes are declared.
        changelogs: handles of changelogs whose files later checkpoints can name; of any old subtasks.
        handles: of the managed keyed state, for subtasks that have copies of its files; None where its classes are
            declared.
        raw_keyed: handle and stream of the raw keyed state of each old subtask that is not timers.
        raw_operator: handle and stream of the raw operator state of every old subtask; None of those without.
    """

    keyed_files: tuple[KeyedFile, ...]
    operator_states: tuple[OldOperatorState, ...]
    context: RecordContext
    checkpoint_id: int
    snapshot: str = ""
    databases: DatabaseFiles | None = None
    changelogs: tuple[ChangelogStateBackendHandle, ...] = ()
    handles: KeyedHandles | None = None
    raw_keyed: tuple[tuple[KeyGroupsStateHandle | KeyGroupsSavepointStateHandle, StateStream], ...] = ()
    raw_operator: tuple[tuple[OperatorStateHandle, StateStream] | None, ...] = ()

    @staticmethod
    def of(operator: Operator) -> RestoredState:
        """Take the state of an operator of a snapshot.

        Raises:
            StateError: the state cannot be read.
        """
        handles = {each.index: each.managed_operator_state for each in operator.metadata.subtasks}
        open_state = operator.snapshot.handles.open_operator
        is_declared = bool(operator.snapshot.declarations.serializers)
        return RestoredState(
            tuple(file for _, file in operator.keyed_files),
            tuple(open_state(handles.get(index)) for index in range(operator.parallelism)),
            operator.record_context,
            operator.snapshot.checkpoint_id,
            operator.snapshot.path,
            None if is_declared else DatabaseFiles.find(operator),
            () if is_declared else _find_changelogs(operator),
            None if is_declared else KeyedHandles.of(operator),
            *_find_raw(operator),
        )

    def find_files(self, key_groups: KeyGroupRange, backup: LocalBackup | None = None) -> tuple[KeyedFile, ...]:
        """Find the keyed state for a subtask, that of the same key groups from copies on this machine.

        Args:
            key_groups: of the subtask.
            backup: of the subtask; None without.

        Raises:
            StateError: a copy cannot be read.
        """
        if backup is None or self.handles is None:
            return self.keyed_files
        return tuple(
            file
            if file.holds_raw_timers or file.key_groups != key_groups
            else self.handles.open_copy(file, backup) or file
            for file in self.keyed_files
        )

    def find_changelog(self, key_groups: KeyGroupRange) -> ChangelogStateBackendHandle | None:
        """The changelog of a subtask of the same key groups; None where there is none."""
        return next((each for each in self.changelogs if each.key_groups == key_groups), None)


def _find_raw(
    operator: Operator,
) -> tuple[
    tuple[tuple[KeyGroupsStateHandle | KeyGroupsSavepointStateHandle, StateStream], ...],
    tuple[tuple[OperatorStateHandle, StateStream] | None, ...],
]:
    """The raw keyed and the raw operator state of an operator; timers in raw keyed state are among its files."""
    snapshot = operator.snapshot
    unread = snapshot.keyed_files.survey_unread(operator.metadata, snapshot.layout_context)
    subtasks = {each.index: each for each in operator.metadata.subtasks}
    keyed = []
    for index in unread:
        handle = subtasks[index].raw_keyed_state
        if isinstance(handle, KeyGroupsStateHandle | KeyGroupsSavepointStateHandle):
            keyed.append((handle, snapshot.handles.open_stream(handle.delegate)))
    raw: list[tuple[OperatorStateHandle, StateStream] | None] = []
    for index in range(operator.parallelism):
        partitions = subtasks[index].raw_operator_state if index in subtasks else None
        opened = None if partitions is None else (partitions, snapshot.handles.open_stream(partitions.delegate))
        raw.append(opened)
    return tuple(keyed), tuple(raw)


def _find_changelogs(operator: Operator) -> tuple[ChangelogStateBackendHandle, ...]:
    """The changelogs of an operator; none where files were moved, since the handles name their old locations."""
    if operator.snapshot.path_mapping != PathMapping():
        return ()
    handles = (each.managed_keyed_state for each in operator.metadata.subtasks)
    return tuple(each for each in handles if isinstance(each, ChangelogStateBackendHandle) and is_continuable(each))
