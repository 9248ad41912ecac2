"""Files of keyed state that handles of two operators name, which Flink never writes.

Logs of changes, which hold changes of all operators of a task, are not among them, nor are slices of merged files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import EDITED_METADATA, FormatError, Where
from state_pipelines.metadata.operator_ids import format_operator_id
from state_pipelines.metadata.references import StateCategory, StreamRole, list_references
from state_pipelines.metadata.stream_handles import FileStateHandle, RelativeFileStateHandle

if TYPE_CHECKING:
    from state_pipelines.metadata import CheckpointMetadata

Owners = dict[bytes, tuple[str, bytes]]
"""By operator id a file of its keyed state that another operator has, too, and the id of that."""


def find_shared_files(metadata: CheckpointMetadata) -> Owners:
    """Find operators that have files of keyed state in common."""
    first: dict[str, bytes] = {}
    found: Owners = {}
    for reference in list_references(metadata):
        is_keyed = reference.category in (StateCategory.MANAGED_KEYED, StateCategory.RAW_KEYED)
        if not is_keyed or reference.role is StreamRole.CHANGES:
            continue
        handle, own = reference.handle, reference.operator.operator_id
        if isinstance(handle, FileStateHandle | RelativeFileStateHandle):
            path = handle.path if isinstance(handle, FileStateHandle) else handle.relative_path
            other = first.setdefault(path, own)
            if other != own:
                found[own], found[other] = (path, other), (path, own)
    return found


def check_owner(owners: Owners, operator_id: bytes) -> None:
    """Refuse an operator with files of another one.

    Raises:
        FormatError: it has some.
    """
    if operator_id in owners:
        path, other = owners[operator_id]
        raise FormatError(
            f"the file is among the keyed state of operator {format_operator_id(other)}, too",
            where=Where(file=path),
            hint=EDITED_METADATA,
        )
