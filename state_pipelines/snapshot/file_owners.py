"""Files, and state inside of `_metadata`, that handles of two operators name, which Flink never writes.

Logs of changes and in-flight data, which tasks write for all their operators, are not among them. Of merged files the
slices count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import EDITED_METADATA, FormatError, Where
from state_pipelines.metadata.operator_ids import format_operator_id
from state_pipelines.metadata.references import StateCategory, StreamRole, list_references
from state_pipelines.metadata.stream_handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
)

if TYPE_CHECKING:
    from state_pipelines.metadata import CheckpointMetadata
    from state_pipelines.metadata.stream_handles import StreamStateHandle

_OWNED = (
    StateCategory.MANAGED_KEYED,
    StateCategory.RAW_KEYED,
    StateCategory.MANAGED_OPERATOR,
    StateCategory.RAW_OPERATOR,
)

Owners = dict[bytes, tuple[str, bytes]]
"""By operator id a file of its state that another operator has, too, and the id of that."""


def find_shared_files(metadata: CheckpointMetadata) -> Owners:
    """Find operators that have files in common."""
    first: dict[str, bytes] = {}
    found: Owners = {}
    for reference in list_references(metadata):
        name = _find_name(reference.handle)
        if name is None or reference.category not in _OWNED or reference.role is StreamRole.CHANGES:
            continue
        own = reference.operator.operator_id
        other = first.setdefault(name, own)
        if other != own:
            found[own], found[other] = (name, other), (name, own)
    return found


def _find_name(handle: StreamStateHandle) -> str | None:
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
            f"the file is among the state of operator {format_operator_id(other)}, too",
            where=Where(file=path),
            hint=EDITED_METADATA,
        )
