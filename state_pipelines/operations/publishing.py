"""From an old snapshot and some new files to a new, self-contained savepoint.

Every file that stays is copied into the new directory under a new name, handles become relative, so that the result
can be moved as a whole. `_metadata` is written last.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.metadata import (
    CheckpointMetadata,
    CheckpointProperties,
    OperatorState,
    SubtaskState,
    replace_stream_handles,
    with_version,
)
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    EmptySegmentFileStateHandle,
    RelativeFileStateHandle,
    StreamStateHandle,
)
from state_pipelines.metadata.keyed import (
    ChangelogStateBackendHandle,
    IncrementalRemoteKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupsSavepointStateHandle,
)
from state_pipelines.metadata.operator import (
    FileMergingOperatorStreamStateHandle,
    OperatorStateHandle,
    OperatorStreamStateHandle,
)
from state_pipelines.metadata.properties import SavepointFormatType, make_savepoint_properties
from state_pipelines.metadata.references import StreamPart
from state_pipelines.metadata.streams import StateStream, copy_stream, open_stream
from state_pipelines.storage import Location, join
from state_pipelines.storage.files import remove_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.metadata.references import StreamReference
    from state_pipelines.operations.rewriting import FileRewrite, WrittenFile
    from state_pipelines.snapshot import Snapshot

FIRST_RELATIVE_VERSION = 3
"""The oldest metadata version whose handles can be relative (Flink 1.11)."""


@dataclass(frozen=True)
class FileCopy:
    """A file that goes into the new snapshot as it is."""

    source: StateStream
    target: Location

    def run(self) -> int:
        """Copy; bytes written."""
        # Whatever an attempt that died has left is ours: nobody else knows the name.
        remove_file(self.target)
        return copy_stream(self.source, self.target)


@dataclass(frozen=True)
class NewFile:
    """A rewritten file and what was written."""

    rewrite: FileRewrite
    written: WrittenFile


def make_file_name() -> str:
    """A name for a data file, as Flink makes them: a random UUID."""
    return str(uuid.uuid4())


def place_rewrites(metadata: CheckpointMetadata, operator_id: bytes, files: Sequence[NewFile]) -> CheckpointMetadata:
    """`metadata` with the keyed state of one operator in new files.

    Args:
        metadata: the old metadata.
        operator_id: the operator.
        files: at most one per subtask; a subtask that the metadata do not mention is added.
    """
    handles = {}
    for file in files:
        stream = RelativeFileStateHandle(file.rewrite.target.name, file.written.size)
        keyed = KeyGroupsSavepointStateHandle(file.rewrite.key_groups, file.written.offsets, stream)
        handles[file.rewrite.subtask] = keyed
    return place_keyed_state(metadata, operator_id, handles)


def place_keyed_state(
    metadata: CheckpointMetadata, operator_id: bytes, handles: Mapping[int, KeyedStateHandle]
) -> CheckpointMetadata:
    """`metadata` with other handles for the managed keyed state of some subtasks of an operator.

    Args:
        metadata: the old metadata.
        operator_id: the operator.
        handles: by subtask; a subtask that the metadata do not mention is added.
    """
    return replace(
        metadata,
        operator_states=tuple(
            _place(operator, handles) if operator.operator_id == operator_id else operator
            for operator in metadata.operator_states
        ),
    )


def _place(operator: OperatorState, handles: Mapping[int, KeyedStateHandle]) -> OperatorState:
    known = {subtask.index for subtask in operator.subtasks}
    added = tuple(SubtaskState(index) for index in sorted(handles) if index not in known)
    return replace(
        operator,
        subtasks=tuple(
            replace(each, managed_keyed_state=handles.get(each.index, each.managed_keyed_state))
            for each in (*operator.subtasks, *added)
        ),
    )


def plan_copies(
    snapshot: Snapshot,
    metadata: CheckpointMetadata,
    target: Location,
    properties: CheckpointProperties | None = None,
) -> tuple[CheckpointMetadata, list[FileCopy]]:
    """Metadata of the new snapshot, and the files that it takes over.

    Args:
        snapshot: the old snapshot.
        metadata: its metadata, with new files already in place (see `place_rewrites`).
        target: directory of the new snapshot; handles of new files are relative to it and stay.
        properties: of the new snapshot; by default those of a canonical savepoint.

    Returns:
        (metadata whose files all lie in `target`, what is to be copied there).
    """
    if metadata.version < FIRST_RELATIVE_VERSION:
        metadata = with_version(metadata, FIRST_RELATIVE_VERSION)
    metadata = _separate_files(metadata)
    new = _new_names(snapshot.metadata, metadata)
    placed: dict[StreamStateHandle, RelativeFileStateHandle] = {}
    copies: list[FileCopy] = []

    def relocate(reference: StreamReference) -> StreamStateHandle:
        handle = reference.handle
        if isinstance(handle, ByteStreamStateHandle | EmptySegmentFileStateHandle):
            return handle
        if isinstance(handle, RelativeFileStateHandle) and handle.relative_path in new:
            return handle
        if handle not in placed:
            holds_changes = reference.part is StreamPart.CHANGES
            stream = open_stream(
                handle, snapshot.location.directory, snapshot.path_mapping, holds_changes=holds_changes
            )
            name = make_file_name()
            placed[handle] = RelativeFileStateHandle(name, stream.size)
            copies.append(FileCopy(stream, join(target, name)))
        return placed[handle]

    relocated = replace_stream_handles(metadata, relocate)
    if isinstance(relocated.properties, CheckpointProperties | bytes):
        # The result belongs to nobody but its user, whatever the old snapshot was.
        relocated = replace(
            relocated, properties=properties or make_savepoint_properties(SavepointFormatType.CANONICAL)
        )
    return relocated, copies


def _separate_files(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """`metadata` without what ties a checkpoint to others: shared tables become private, merged files plain ones."""
    return replace(
        metadata,
        operator_states=tuple(
            replace(operator, subtasks=tuple(map(_separate_subtask, operator.subtasks)))
            for operator in metadata.operator_states
        ),
    )


def _separate_subtask(subtask: SubtaskState) -> SubtaskState:
    return replace(
        subtask,
        managed_operator_state=_separate_operator_state(subtask.managed_operator_state),
        raw_operator_state=_separate_operator_state(subtask.raw_operator_state),
        managed_keyed_state=_separate_tables(subtask.managed_keyed_state),
    )


def _separate_operator_state(handle: OperatorStateHandle | None) -> OperatorStateHandle | None:
    if not isinstance(handle, FileMergingOperatorStreamStateHandle):
        return handle
    if isinstance(handle.delegate, EmptySegmentFileStateHandle):
        return None
    return OperatorStreamStateHandle(handle.states, handle.delegate)


def _separate_tables(handle: KeyedStateHandle | None) -> KeyedStateHandle | None:
    if isinstance(handle, IncrementalRemoteKeyedStateHandle):
        return replace(handle, shared_state=(), private_state=(*handle.shared_state, *handle.private_state))
    if isinstance(handle, ChangelogStateBackendHandle):
        bases = tuple(base for base in map(_separate_tables, handle.materialized) if base is not None)
        return replace(handle, materialized=bases)
    return handle


def _new_names(old: CheckpointMetadata, new: CheckpointMetadata) -> set[str]:
    """Relative paths that only the new metadata name."""
    paths: list[set[str]] = []
    for metadata in (old, new):
        found: set[str] = set()

        def note(reference: StreamReference, found: set[str] = found) -> StreamStateHandle:
            if isinstance(reference.handle, RelativeFileStateHandle):
                found.add(reference.handle.relative_path)
            return reference.handle

        replace_stream_handles(metadata, note)
        paths.append(found)
    return paths[1] - paths[0]
