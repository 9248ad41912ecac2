"""From an old snapshot and some new files to a new, self-contained savepoint.

Every file that stays is copied into the new directory under a new name, handles become relative, so that the result
can be moved as a whole. On request files are linked there, or only referenced where they lie. `_metadata` is written
last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from state_pipelines.errors import UsageError, Where
from state_pipelines.metadata import (
    FIRST_VERSION_WITH_PROPERTIES,
    CheckpointMetadata,
    CheckpointProperties,
    OperatorState,
    SubtaskState,
    replace_stream_handles,
    with_version,
)
from state_pipelines.metadata.checkpoint import SavepointFormatType, make_savepoint_properties
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    ChangelogStateBackendHandle,
    EmptySegmentFileStateHandle,
    FileMergingOperatorStreamStateHandle,
    FileStateHandle,
    IncrementalRemoteKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupsSavepointStateHandle,
    OperatorStateHandle,
    OperatorStreamStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from state_pipelines.metadata.references import StreamRole, list_references
from state_pipelines.metadata.streams import (
    StateStream,
    check_stream,
    copy_stream,
    copy_unmeasured,
    is_copied_inside,
    locate_file,
    open_stream,
)
from state_pipelines.operations.local_processes import COPY_THREADS
from state_pipelines.operations.write.file_names import make_file_name
from state_pipelines.storage import Location, join
from state_pipelines.storage.files import list_directory, remove_file
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.snapshot_writer import can_link, link_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from state_pipelines.metadata.references import StreamReference
    from state_pipelines.operations.write.keyed_rewrite import FileRewrite, WrittenFile
    from state_pipelines.snapshot import Snapshot

REMOTE_COPIES = 32
"""Files that are copied at a time from or to a storage that is not local."""

FIRST_RELATIVE_VERSION = 3
"""The oldest metadata version whose handles can be relative (Flink 1.11)."""


class FileMode(Enum):
    """The treatment of files that a new snapshot takes over; the values are the words of options."""

    COPY = "copy"
    """Each is copied; the result is self-contained."""
    LINK = "link"
    """Each gets a second name in the new directory, on the same local volume; the result is self-contained."""
    REFERENCE = "reference"
    """Each stays where it is, and the new metadata name it there; the result needs the old snapshot."""


@dataclass(frozen=True)
class FileCopy:
    """A file that goes into the new snapshot as it is.

    Attributes:
        source: the file.
        target: the new file.
        verify: read the copy again and compare checksums.
        link: give the file a second name instead.
        measure: ask for the size of a file that the storage copies by itself, before; `find_other_sizes` does it for
            many files afterwards.
    """

    source: StateStream
    target: Location
    verify: bool = False
    link: bool = False
    measure: bool = True
    threads: ClassVar[int] = COPY_THREADS

    @property
    def in_flight(self) -> int:
        """Number of such copies that one process runs at a time: they wait for a storage that is not local."""
        files = [self.target] if self.source.location is None else [self.source.location, self.target]
        return 1 if all(map(is_local, files)) else REMOTE_COPIES

    def run(self) -> int:
        """Copy; bytes written.

        Raises:
            ProofError: the copy does not hold what was read.
            StateError: the file cannot be read, or the copy not be written.
        """
        if self.link and self.source.location is not None:
            # Remains of a failed attempt: the name is unique to this task.
            remove_file(self.target)
            check_stream(self.source)
            link_file(self.source.location, self.target)
            return 0
        if not self.measure and not self.verify and is_copied_inside(self.source, self.target):
            return copy_unmeasured(self.source, self.target)
        return copy_stream(self.source, self.target, verify=self.verify)


def find_other_sizes(copies: Sequence[FileCopy], target: Location) -> list[FileCopy]:
    """The copies, made without asking for sizes, whose files are missing or have another size than their handles say.

    One listing of the new directory takes the place of a request for each file.

    Args:
        copies: the copies.
        target: their directory.

    Raises:
        StateError: the directory cannot be listed.
    """
    inside = [each for each in copies if not each.link and not each.verify and is_copied_inside(each.source, target)]
    sizes = {each.location.name: each.size for each in list_directory(target)} if inside else {}
    return [each for each in inside if sizes.get(each.target.name) != each.source.size]


@dataclass(frozen=True)
class NewFile:
    """A rewritten file and what was written."""

    rewrite: FileRewrite
    written: WrittenFile


def replace_rewritten(metadata: CheckpointMetadata, operator_id: bytes, files: Sequence[NewFile]) -> CheckpointMetadata:
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
    return replace_keyed_state(metadata, operator_id, handles)


def replace_keyed_state(
    metadata: CheckpointMetadata, operator_id: bytes, handles: Mapping[int, KeyedStateHandle | None]
) -> CheckpointMetadata:
    """`metadata` with other handles for the managed keyed state of some subtasks of an operator.

    Args:
        metadata: the old metadata.
        operator_id: the operator.
        handles: by subtask, None to leave it without; a subtask that the metadata do not mention is added.
    """
    return replace(
        metadata,
        operator_states=tuple(
            _with_handles(operator, handles) if operator.operator_id == operator_id else operator
            for operator in metadata.operator_states
        ),
    )


def _with_handles(operator: OperatorState, handles: Mapping[int, KeyedStateHandle | None]) -> OperatorState:
    return replace(
        operator,
        subtasks=tuple(
            replace(each, managed_keyed_state=handles.get(each.index, each.managed_keyed_state))
            for each in _add_subtasks(operator, handles)
        ),
    )


def _add_subtasks(operator: OperatorState, indices: Iterable[int]) -> tuple[SubtaskState, ...]:
    """The subtasks of an operator, and those of `indices` that it does not mention."""
    known = {subtask.index for subtask in operator.subtasks}
    return (*operator.subtasks, *(SubtaskState(index) for index in sorted(indices) if index not in known))


def replace_operator_state(
    metadata: CheckpointMetadata, operator_id: bytes, handles: Mapping[int, OperatorStateHandle | None]
) -> CheckpointMetadata:
    """`metadata` with other handles for the managed operator state of some subtasks of an operator.

    Args:
        metadata: the old metadata.
        operator_id: the operator.
        handles: by subtask, None where no operator state is left; a subtask that the metadata do not mention is added.
    """

    def with_handles(operator: OperatorState) -> OperatorState:
        subtasks = (
            replace(each, managed_operator_state=handles[each.index]) if each.index in handles else each
            for each in _add_subtasks(operator, handles)
        )
        return replace(operator, subtasks=tuple(subtasks))

    states = (with_handles(each) if each.operator_id == operator_id else each for each in metadata.operator_states)
    return replace(metadata, operator_states=tuple(states))


def plan_copies(
    snapshot: Snapshot,
    metadata: CheckpointMetadata,
    target: Location,
    properties: CheckpointProperties | None = None,
    *,
    files: FileMode = FileMode.COPY,
    verify: bool = False,
) -> tuple[CheckpointMetadata, list[FileCopy]]:
    """Metadata of the new snapshot, and the files that it takes over.

    Args:
        snapshot: the old snapshot.
        metadata: its metadata, with new files already in place (see `replace_rewritten`).
        target: directory of the new snapshot; handles of new files are relative to it and stay.
        properties: of the new snapshot; by default those of a canonical savepoint.
        files: whether files are copied, linked or referenced. Slices of merged files are copied in any case: the files
            belong to the TaskManagers that write them.
        verify: read every copy again and compare checksums.

    Returns:
        (metadata whose files all lie in `target`, but for those that are referenced; what is to be copied there).

    Raises:
        UsageError: a file cannot be linked into `target`.
    """
    if metadata.version < FIRST_RELATIVE_VERSION:
        metadata = with_version(metadata, FIRST_RELATIVE_VERSION)
    metadata = _separate_files(metadata)
    new = _new_names(snapshot.metadata, metadata)
    sizes = _find_sizes(metadata)
    names: dict[tuple[str, int], str] = {}
    copies: list[FileCopy] = []
    inlined = _InlinedNames()

    def relocate(reference: StreamReference) -> StreamStateHandle:
        handle = reference.handle
        if isinstance(handle, ByteStreamStateHandle):
            return replace(handle, handle_name=inlined.shorten(handle.handle_name))
        if not isinstance(handle, _FileHandle):
            return handle
        if isinstance(handle, RelativeFileStateHandle) and handle.relative_path in new:
            return handle
        if files is FileMode.REFERENCE and not isinstance(handle, SegmentFileStateHandle):
            return _reference(handle, snapshot)
        file = _identify(handle)
        if file not in names:
            # Handles over one file may each name a part of it; the file goes as a whole.
            whole = replace(handle, size=sizes[file])
            holds_changes = reference.role is StreamRole.CHANGES
            stream = open_stream(whole, snapshot.location.directory, snapshot.path_mapping, holds_changes=holds_changes)
            names[file] = make_file_name()
            link = files is FileMode.LINK and not stream.is_segment
            if link:
                _require_link(stream, target)
            copies.append(FileCopy(stream, join(target, names[file]), verify, link))
        return RelativeFileStateHandle(names[file], handle.size)

    relocated = replace_stream_handles(metadata, relocate)
    if relocated.version >= FIRST_VERSION_WITH_PROPERTIES:
        # The result belongs to nobody but its user, whatever the old snapshot was.
        relocated = replace(
            relocated, properties=properties or make_savepoint_properties(SavepointFormatType.CANONICAL)
        )
    return relocated, copies


def choose_properties(metadata: CheckpointMetadata) -> CheckpointProperties:
    """Properties of a savepoint with these files: canonical when all of its keyed state is."""
    handles = [each.managed_keyed_state for operator in metadata.operator_states for each in operator.subtasks]
    native = any(each is not None and not isinstance(each, KeyGroupsSavepointStateHandle) for each in handles)
    return make_savepoint_properties(SavepointFormatType.NATIVE if native else SavepointFormatType.CANONICAL)


def note_files(files: FileMode) -> str | None:
    """Note for the user of a snapshot whose files are linked or referenced."""
    match files:
        case FileMode.COPY:
            return None
        case FileMode.LINK:
            return (
                "the files have two names now, one in each snapshot; nobody may change their content, and they take "
                "their space until both snapshots are gone"
            )
        case FileMode.REFERENCE:
            return (
                "the result is not self-contained: it needs the files of the old snapshot where they lie; do not move "
                "or remove that, and do not restore the result with claim mode CLAIM, which would remove them; whoever "
                "reads the result allows their directory (--allow-root)"
            )


class _InlinedNames:
    """Names of inlined handles without their directories, which are those of the old snapshot.

    Flink compares such handles by name, so that different names stay different.
    """

    def __init__(self) -> None:
        self._new: dict[str, str] = {}
        self._taken: set[str] = set()

    def shorten(self, name: str) -> str:
        if name not in self._new:
            short = name.rpartition("/")[2]
            self._new[name] = make_file_name() if short in self._taken else short
            self._taken.add(self._new[name])
        return self._new[name]


_FileHandle = FileStateHandle | RelativeFileStateHandle | SegmentFileStateHandle


def _identify(handle: _FileHandle) -> tuple[str, int]:
    """Return a value that is equal for handles over one file, or over one slice."""
    match handle:
        case SegmentFileStateHandle():
            return handle.path, handle.start
        case RelativeFileStateHandle():
            return handle.relative_path, -1
        case FileStateHandle():
            return handle.path, -1


def _find_sizes(metadata: CheckpointMetadata) -> dict[tuple[str, int], int]:
    """The largest size that a handle states of each file."""
    sizes: dict[tuple[str, int], int] = {}
    for handle in (reference.handle for reference in list_references(metadata)):
        if isinstance(handle, _FileHandle):
            file = _identify(handle)
            sizes[file] = max(sizes.get(file, 0), handle.size)
    return sizes


def _reference(handle: FileStateHandle | RelativeFileStateHandle, snapshot: Snapshot) -> FileStateHandle:
    """An absolute handle of the file where it lies now; a path that still holds keeps its form."""
    with_handles = locate_file(handle, snapshot.location.directory, snapshot.path_mapping)
    if isinstance(handle, FileStateHandle) and snapshot.path_mapping.apply(handle.path) == handle.path:
        return handle
    return FileStateHandle(with_handles.url, handle.size)


def _require_link(stream: StateStream, target: Location) -> None:
    if stream.location is None or not can_link(stream.location, target):
        raise UsageError(
            "the file cannot be linked into the new snapshot: both must lie on one volume of the local file system",
            where=Where(file=stream.name),
            hint=f"Copy the files (--files {FileMode.COPY.value})",
        )


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
