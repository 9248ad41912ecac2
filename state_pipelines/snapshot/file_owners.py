"""State that handles of two operators name, or two databases of one, which Flink never writes.

That is files, state inside of `_metadata`, slices of merged files and sets of logged changes. In-flight data, which
tasks write for all their operators, are not among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import EDITED_METADATA, FormatError, Where
from state_pipelines.metadata.checkpoint import format_operator_id
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    ChangelogStateBackendHandle,
    ChangelogStateHandleStream,
    FileStateHandle,
    IncrementalRemoteKeyedStateHandle,
    InMemoryChangelogStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
)
from state_pipelines.metadata.references import StateCategory, StreamRole, list_references

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.metadata import CheckpointMetadata
    from state_pipelines.metadata.handles import KeyedStateHandle, StreamStateHandle

_OWNED = (
    StateCategory.MANAGED_KEYED,
    StateCategory.RAW_KEYED,
    StateCategory.MANAGED_OPERATOR,
    StateCategory.RAW_OPERATOR,
)

Owners = dict[bytes, tuple[str, bytes]]
"""By operator id a file of its state that another operator, or another database of its own, has, and whose."""


def find_shared_files(metadata: CheckpointMetadata) -> Owners:
    """Find operators that have state in common, and databases of one operator that have private files in common."""
    first: dict[tuple[str, str], tuple[bytes, object]] = {}
    found: Owners = {}
    for kind, name, own, database in _list_names(metadata):
        other, known = first.setdefault((kind, name), (own, database))
        if (other, known) != (own, database):
            found[own], found[other] = (name, other), (name, own)
    return found


def _list_names(metadata: CheckpointMetadata) -> Iterator[tuple[str, str, bytes, object]]:
    """Yield kind and name of all that belongs to one operator, its id, and the database of a private file."""
    for reference in list_references(metadata):
        name = find_name(reference.handle)
        if name is not None and reference.category in _OWNED and reference.role is not StreamRole.CHANGES:
            yield "file", name, reference.operator.operator_id, None
    for operator in metadata.operator_states:
        for subtask in operator.subtasks:
            yield from _list_keyed_names(subtask.managed_keyed_state, operator.operator_id)


def _list_keyed_names(handle: KeyedStateHandle | None, own: bytes) -> Iterator[tuple[str, str, bytes, object]]:
    match handle:
        case IncrementalRemoteKeyedStateHandle():
            # Several subtasks may have one database, with all of its files.
            database = handle.backend_identifier, handle.meta_data_state
            names = (find_name(each.handle) for each in handle.private_state)
            yield from (("private file", name, own, database) for name in names if name is not None)
        case ChangelogStateBackendHandle():
            for each in (*handle.materialized, *handle.non_materialized):
                yield from _list_keyed_names(each, own)
        case InMemoryChangelogStateHandle():
            yield "changes", handle.state_handle_id, own, None
        case ChangelogStateHandleStream():
            for stream in handle.streams:
                name = find_name(stream.handle)
                if name is not None:
                    yield "changes", f"{name}, changes at {stream.offset}", own, None


def find_name(handle: StreamStateHandle) -> str | None:
    """Find the name by which two handles of one stream are recognised; None for empty segments, which have none."""
    match handle:
        case FileStateHandle(path=name) | RelativeFileStateHandle(relative_path=name):
            return name
        case ByteStreamStateHandle(handle_name=name):
            return name
        case SegmentFileStateHandle(path=path, start=start):
            return f"{path}, bytes from {start} on"
    return None


def check_owner(owners: Owners, operator_id: bytes) -> None:
    """Refuse an operator with files of another one.

    Raises:
        FormatError: it has some.
    """
    if operator_id in owners:
        path, other = owners[operator_id]
        raise FormatError(
            "two databases of the operator have the file"
            if other == operator_id
            else f"the file is among the state of operator {format_operator_id(other)}, too",
            where=Where(file=path),
            hint=EDITED_METADATA,
        )
