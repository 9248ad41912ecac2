"""Check of new snapshots: every file that the metadata name is in the directory of the snapshot or an allowed one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import ProofError, Where
from state_pipelines.metadata import list_references
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    EmptySegmentFileStateHandle,
    FileStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
)
from state_pipelines.metadata.references import StreamRole
from state_pipelines.metadata.streams import locate_file
from state_pipelines.storage import PathMapping
from state_pipelines.storage.files import list_directory
from state_pipelines.storage.locations import parent

if TYPE_CHECKING:
    from collections.abc import Collection

    from state_pipelines.metadata import CheckpointMetadata
    from state_pipelines.metadata.references import StreamReference
    from state_pipelines.storage import Location


def require_own_files(
    metadata: CheckpointMetadata, directory: Location, beside: Collection[Location] = frozenset()
) -> None:
    """Make sure that a new snapshot needs nothing outside its directory, before it is published.

    Args:
        metadata: of the new snapshot.
        directory: of the new snapshot, with all data files written.
        beside: other directories whose files it may name by absolute paths, such as `shared` of its job. These files
            are not looked for: the tasks that wrote them have said so.

    Raises:
        OutOfReachError: a handle names a file elsewhere, although other directories are allowed.
        ProofError: a handle names a file elsewhere, a file that is not there, or one that is too short; names the
            handle.
    """
    allowed = PathMapping().allow(each.url for each in beside)
    references = [each for each in list_references(metadata) if not isinstance(each.handle, _INLINED)]
    sizes = {entry.location.name: entry.size for entry in list_directory(directory)} if references else {}
    for reference in references:
        match reference.handle:
            case RelativeFileStateHandle(relative_path=name, size=size):
                if "/" in name or name in (".", ".."):
                    raise _refuse(reference, f"{name}, which is not a file of the directory itself")
                if name not in sizes:
                    raise _refuse(reference, f"{name}, which is not there")
                # Sizes of logged changes are those before compression (`StateChangeFormat`).
                if sizes[name] < size and reference.role is not StreamRole.CHANGES:
                    raise _refuse(reference, f"{size:,} bytes of {name}, which has {sizes[name]:,}")
            case FileStateHandle(path=path) | SegmentFileStateHandle(path=path) as handle:
                if beside and parent(locate_file(handle, directory, allowed)) in beside:
                    continue
                raise _refuse(reference, f"{path}, which may lie elsewhere")
            case other:
                raise _refuse(reference, f"a {type(other).__name__}, of which no file is known")


_INLINED = (ByteStreamStateHandle, EmptySegmentFileStateHandle)


def _refuse(reference: StreamReference, named: str) -> ProofError:
    operator = reference.operator
    subtask = "" if reference.subtask_index is None else f" of subtask {reference.subtask_index}"
    role = f" ({reference.role.value} {reference.local_path or ''}".rstrip() + ")"
    return ProofError(
        f"the new snapshot would not stand alone: its handle of {reference.category.value} state{subtask}{role} names "
        f"{named}",
        where=Where(operator=operator.uid or operator.operator_id.hex()),
        hint="Nothing was published; please report this",
    )
