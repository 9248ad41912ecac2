"""Publication of a new, self-contained savepoint from an old snapshot and some new files.

* `plan_copies`: every file that stays is copied into the new directory under a new name, and handles become relative,
  so that the result can be moved as a whole. On request files are linked there, or only referenced where they are.
  `_metadata` is written last.
* `require_staged`, `require_equal`, `require_own_files`: before that, staged metadata are compared with the expected
  ones. Digests prove the content of files; this proves that `_metadata` names these files, each for its subtask and
  with its offsets, that everything else in it is as expected, and that every file is in the directory of the snapshot
  or an allowed one. No state is read.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar

from state_pipelines.errors import ProofError, UsageError, Where
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
from state_pipelines.metadata.streams import (
    StateStream,
    StreamRole,
    check_stream,
    copy_stream,
    copy_unmeasured,
    is_copied_inside,
    list_references,
    locate_file,
    name_file,
    open_stream,
)
from state_pipelines.operations.local_processes import COPY_THREADS
from state_pipelines.operations.write.keyed_rewrite import make_file_name
from state_pipelines.storage import Location, PathMapping, join
from state_pipelines.storage.files import list_directory, remove_file
from state_pipelines.storage.locations import is_local, parent
from state_pipelines.storage.snapshot_writer import can_link, link_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from state_pipelines.metadata.streams import StreamReference
    from state_pipelines.operations.write.keyed_rewrite import FileRewrite, WrittenFile
    from state_pipelines.snapshot import Snapshot

REMOTE_COPIES = 32
"""Files that are copied at a time from or to a storage that is not local."""

FIRST_RELATIVE_VERSION = 3
"""The oldest metadata version whose handles can be relative (Flink 1.11)."""


class FileMode(Enum):
    """Treatment of the files that a new snapshot takes over from the old one; the values are the names in options."""

    COPY = "copy"
    """Each file is copied; the new snapshot is self-contained."""
    LINK = "link"
    """Each file gets a hard link in the new directory, on the same local volume; the new snapshot is self-contained."""
    REFERENCE = "reference"
    """Each file stays where it is, and the new metadata refer to it; the new snapshot needs the old one."""


@dataclass(frozen=True)
class FileCopy:
    """Task that copies or links a file, unchanged, into the new snapshot.

    Attributes:
        source: the old file.
        target: the new file.
        verify: whether to read the copy again and compare checksums.
        link: whether to make a hard link instead of a copy.
        measure: whether to check the size of the old file first, if the storage copies it by itself. Otherwise
            `find_other_sizes` checks the sizes of many copies afterwards, by one listing.
    """

    source: StateStream
    target: Location
    verify: bool = False
    link: bool = False
    measure: bool = True
    threads: ClassVar[int] = COPY_THREADS

    @property
    def in_flight(self) -> int:
        """Number of copies that one process should run concurrently: several if they wait for remote storage."""
        files = [self.target] if self.source.location is None else [self.source.location, self.target]
        return 1 if all(map(is_local, files)) else REMOTE_COPIES

    def run(self) -> int:
        """Copy the file; return the bytes written.

        Raises:
            ProofError: the copy does not hold what was read.
            StateError: the file cannot be read, or the copy not be written.
        """
        if self.link and self.source.location is not None:
            # Remove the link of a failed attempt: nothing else has the random name of the target.
            remove_file(self.target)
            check_stream(self.source)
            link_file(self.source.location, self.target)
            return 0
        if not self.measure and not self.verify and is_copied_inside(self.source, self.target):
            return copy_unmeasured(self.source, self.target)
        return copy_stream(self.source, self.target, verify=self.verify)


def find_other_sizes(copies: Sequence[FileCopy], target: Location) -> list[FileCopy]:
    """Find copies that are missing in the new directory, or whose size differs from that in their handle.

    Only copies that the storage makes by itself are checked. One listing of the new directory replaces a request for
    each file.

    Args:
        copies: the copies.
        target: the new directory.

    Raises:
        StateError: the directory cannot be listed.
    """
    inside = [each for each in copies if not each.link and not each.verify and is_copied_inside(each.source, target)]
    sizes = {each.location.name: each.size for each in list_directory(target)} if inside else {}
    return [each for each in inside if sizes.get(each.target.name) != each.source.size]


@dataclass(frozen=True)
class NewFile:
    """A task that has written the new keyed-state file of a subtask, and its result."""

    rewrite: FileRewrite
    written: WrittenFile


def replace_rewritten(metadata: CheckpointMetadata, operator_id: bytes, files: Sequence[NewFile]) -> CheckpointMetadata:
    """Return `metadata` with the keyed state of some subtasks of an operator in new canonical files.

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
    """Return `metadata` with other handles for the managed keyed state of some subtasks of an operator.

    Args:
        metadata: the old metadata.
        operator_id: the operator.
        handles: new handle by subtask, None for no keyed state; a subtask that the metadata do not mention is added.
    """

    def change(operator: OperatorState, each: SubtaskState) -> SubtaskState:
        is_named = operator.operator_id == operator_id and each.index in handles
        return replace(each, managed_keyed_state=handles[each.index]) if is_named else each

    return _add_subtasks(metadata, operator_id, handles).map_subtasks(change)


def _add_subtasks(metadata: CheckpointMetadata, operator_id: bytes, indices: Iterable[int]) -> CheckpointMetadata:
    """Return `metadata` in which an operator has subtasks of all `indices`; missing ones are added without state."""
    operators = list(metadata.operator_states)
    for number, operator in enumerate(operators):
        if operator.operator_id == operator_id:
            missing = sorted(set(indices) - {each.index for each in operator.subtasks})
            operators[number] = replace(operator, subtasks=(*operator.subtasks, *map(SubtaskState, missing)))
    return replace(metadata, operator_states=tuple(operators))


def replace_operator_state(
    metadata: CheckpointMetadata, operator_id: bytes, handles: Mapping[int, OperatorStateHandle | None]
) -> CheckpointMetadata:
    """Return `metadata` with other handles for the managed operator state of some subtasks of an operator.

    Args:
        metadata: the old metadata.
        operator_id: the operator.
        handles: new handle by subtask, None for no operator state; a subtask that the metadata do not mention is added.
    """

    def change(operator: OperatorState, each: SubtaskState) -> SubtaskState:
        is_named = operator.operator_id == operator_id and each.index in handles
        return replace(each, managed_operator_state=handles[each.index]) if is_named else each

    return _add_subtasks(metadata, operator_id, handles).map_subtasks(change)


def plan_copies(
    snapshot: Snapshot,
    metadata: CheckpointMetadata,
    target: Location,
    properties: CheckpointProperties | None = None,
    *,
    files: FileMode = FileMode.COPY,
    verify: bool = False,
) -> tuple[CheckpointMetadata, list[FileCopy]]:
    """Plan the metadata of a new snapshot, and the copies of the files that it takes over from the old one.

    Args:
        snapshot: the old snapshot.
        metadata: metadata of the old snapshot in which handles of new files have been set (see `replace_rewritten`).
        target: directory of the new snapshot. Handles of new files are relative to it already.
        properties: properties of the new snapshot; by default those of a canonical savepoint.
        files: whether files are copied, linked or referenced. Slices of merged files are always copied: the files
            belong to the TaskManagers that write them.
        verify: whether to read every copy again and compare checksums.

    Returns:
        (metadata in which all files, except referenced ones, are in `target`; the copies to make).

    Raises:
        UsageError: a file cannot be linked into `target`.
    """
    if metadata.version < FIRST_RELATIVE_VERSION:
        metadata = with_version(metadata, FIRST_RELATIVE_VERSION)
    metadata = metadata.map_subtasks(_separate_files)
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
            # Several handles may have different sizes for one file; copy as much as the largest one.
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
        # By default the new snapshot is a savepoint, which belongs to the user, even if the old one belonged to Flink.
        relocated = replace(
            relocated, properties=properties or make_savepoint_properties(SavepointFormatType.CANONICAL)
        )
    return relocated, copies


def choose_properties(metadata: CheckpointMetadata) -> CheckpointProperties:
    """Choose the properties of a savepoint: canonical if all of its keyed state is canonical, else native."""
    handles = [each.managed_keyed_state for operator in metadata.operator_states for each in operator.subtasks]
    native = any(each is not None and not isinstance(each, KeyGroupsSavepointStateHandle) for each in handles)
    return make_savepoint_properties(SavepointFormatType.NATIVE if native else SavepointFormatType.CANONICAL)


def note_files(files: FileMode) -> str | None:
    """Return a note for the user of a snapshot whose files are linked or referenced; None if they are copied."""
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
    """Shortens the names of inlined handles, which begin with the directory of the old snapshot, to the last name.

    Flink compares inlined handles by name, so different names get different short names.
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
    """Return a value that is equal for handles of the same file, or of the same slice of a merged file."""
    match handle:
        case SegmentFileStateHandle():
            return handle.path, handle.start
        case RelativeFileStateHandle():
            return handle.relative_path, -1
        case FileStateHandle():
            return handle.path, -1


def _find_sizes(metadata: CheckpointMetadata) -> dict[tuple[str, int], int]:
    """Find the largest size that any handle gives for each file."""
    sizes: dict[tuple[str, int], int] = {}
    for handle in (reference.handle for reference in list_references(metadata)):
        if isinstance(handle, _FileHandle):
            file = _identify(handle)
            sizes[file] = max(sizes.get(file, 0), handle.size)
    return sizes


def _reference(handle: FileStateHandle | RelativeFileStateHandle, snapshot: Snapshot) -> FileStateHandle:
    """Return a handle with the current absolute path of a file: the handle itself if it has this path already."""
    with_handles = locate_file(handle, snapshot.location.directory, snapshot.path_mapping)
    if isinstance(handle, FileStateHandle) and snapshot.path_mapping.apply(handle.path) == handle.path:
        return handle
    return FileStateHandle(with_handles.url, handle.size)


def _require_link(stream: StateStream, target: Location) -> None:
    if stream.location is None or not can_link(stream.location, target):
        raise UsageError(
            "the file cannot be linked into the new snapshot: both must be on one volume of the local file system",
            where=Where(file=stream.name),
            hint=f"Copy the files (--files {FileMode.COPY.value})",
        )


def _separate_files(_: OperatorState, subtask: SubtaskState) -> SubtaskState:
    """Return `subtask` without dependencies on other checkpoints.

    Shared RocksDB tables become private ones, and handles of merged files plain ones.
    """
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
    """Return the relative paths in the new metadata that the old metadata do not have."""
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


MOST_DIFFERENCES = 3
"""Largest number of differences that an error names."""


def require_staged(
    staged: Snapshot,
    expected: CheckpointMetadata,
    base: Snapshot | None,
    copies: Sequence[FileCopy],
    properties: CheckpointProperties | None,
    changed: Collection[bytes] | None,
) -> None:
    """Require that the metadata of a staged snapshot are the expected ones.

    Args:
        staged: the new snapshot, which is not published yet.
        expected: the expected metadata, in which files that are taken over still have their old names.
        base: the old snapshot, to whose directory the old names are relative; None if no files are taken over.
        copies: the copies of files that were taken over.
        properties: expected properties, if the version of the metadata has any; None for those of a canonical
            savepoint.
        changed: ids of the operators that may differ from those of `base`; None for all.

    Raises:
        ProofError: an operator, a subtask, a handle, an offset or another field is missing, added or different.
    """
    file = str(staged.location.metadata)
    if base is None:
        require_equal(staged.metadata, expected, file)
        return
    labels = {each.metadata.operator_id: each.label for each in base.operators}
    if changed is not None:
        before, after = (
            tuple(each for each in side.operator_states if each.operator_id not in changed)
            for side in (base.metadata, expected)
        )
        require_equal(replace(expected, operator_states=after), replace(expected, operator_states=before), file, labels)
    wanted = with_version(expected, max(expected.version, FIRST_RELATIVE_VERSION))
    if wanted.version >= FIRST_VERSION_WITH_PROPERTIES:
        wanted = replace(wanted, properties=properties or make_savepoint_properties(SavepointFormatType.CANONICAL))
    sources = {each.target.name: each.source for each in copies}
    references = (each.handle for each in list_references(base.metadata))
    old = {each.relative_path for each in references if isinstance(each, RelativeFileStateHandle)}
    require_equal(_normalize(staged.metadata, staged, sources, ()), _normalize(wanted, base, {}, old), file, labels)


def require_equal(
    metadata: CheckpointMetadata,
    expected: CheckpointMetadata,
    file: str,
    labels: Mapping[bytes, str] | None = None,
) -> None:
    """Require that metadata are the expected ones.

    Args:
        metadata: metadata of the new snapshot.
        expected: the expected metadata.
        file: path of the new metadata, for the error.
        labels: labels of operators by id, for the error; by default their uid or id.

    Raises:
        ProofError: the metadata differ; the message names the differences.
    """
    differences = list(_compare(expected, metadata, labels or {}))
    if not differences:
        return
    shown = "; ".join(differences[:MOST_DIFFERENCES])
    more = len(differences) - MOST_DIFFERENCES
    raise ProofError(
        "the proof failed (metadata_as_expected); nothing was published: the new metadata differ from the planned "
        f"ones: {shown}{f'; and {more:,} more differences' if more > 0 else ''}",
        where=Where(file=file),
        hint="Please report this",
    )


def _normalize(
    metadata: CheckpointMetadata, snapshot: Snapshot, copies: Mapping[str, StateStream], old: Collection[str]
) -> CheckpointMetadata:
    """Return `metadata` with handles that name the old files, so that it is the same before and after files are copied.

    Args:
        metadata: the metadata.
        snapshot: the snapshot to whose directory relative paths belong.
        copies: the old stream by name of the new file.
        old: relative paths of old files; other relative paths that are not in `copies` belong to new files.
    """

    def name(reference: StreamReference) -> StreamStateHandle:
        match reference.handle:
            case ByteStreamStateHandle() as handle:
                # Leave out the names of inlined handles: staging shortens them, and they only tell the handles apart.
                return replace(handle, handle_name="")
            case RelativeFileStateHandle(relative_path=path, size=size) if path in copies:
                return FileStateHandle(f"{copies[path].name} from {copies[path].start}", size)
            case RelativeFileStateHandle(relative_path=path) as handle if path not in old:
                return handle
            case RelativeFileStateHandle() | FileStateHandle() | SegmentFileStateHandle() as handle:
                file = name_file(handle, snapshot.location.directory, snapshot.path_mapping)
                start = handle.start if isinstance(handle, SegmentFileStateHandle) else 0
                return FileStateHandle(f"{file or handle} from {start}", handle.size)
            case handle:
                return handle

    return replace_stream_handles(metadata.map_subtasks(_separate), name)


def _separate(_: OperatorState, subtask: SubtaskState) -> SubtaskState:
    """Return `subtask` as staging makes it: without shared RocksDB tables and merged files.

    Staging does that by `_separate_files`. This is other code on purpose: the comparison is to find errors of staging.
    """
    return replace(
        subtask,
        managed_operator_state=_separate_elements(subtask.managed_operator_state),
        raw_operator_state=_separate_elements(subtask.raw_operator_state),
        managed_keyed_state=_separate_tables(subtask.managed_keyed_state),
    )


def _separate_elements(handle: OperatorStateHandle | None) -> OperatorStateHandle | None:
    if not isinstance(handle, FileMergingOperatorStreamStateHandle):
        return handle
    empty = isinstance(handle.delegate, EmptySegmentFileStateHandle)
    return None if empty else OperatorStreamStateHandle(handle.states, handle.delegate)


def _compare(expected: CheckpointMetadata, staged: CheckpointMetadata, labels: Mapping[bytes, str]) -> Iterator[str]:
    yield from _compare_fields(expected, staged, "operator_states")
    wanted, found = ({each.operator_id: each for each in side.operator_states} for side in (expected, staged))
    for operator_id in dict.fromkeys((*wanted, *found)):
        label = f"operator {labels.get(operator_id) or (wanted | found)[operator_id].uid or operator_id.hex()}"
        if operator_id not in found:
            yield f"{label} is missing"
        elif operator_id not in wanted:
            yield f"{label} is not expected"
        else:
            one, other = wanted[operator_id], found[operator_id]
            yield from (f"{label}: {each}" for each in _compare_fields(one, other, "subtasks"))
            yield from (f"{label}, {each}" for each in _compare_subtasks(one, other))


def _compare_subtasks(expected: OperatorState, staged: OperatorState) -> Iterator[str]:
    for one, other in zip_longest(expected.subtasks, staged.subtasks):
        if one is None:
            yield f"subtask {other.index}: not expected"
        elif other is None or one.index != other.index:
            yield f"subtask {one.index}: missing"
        else:
            yield from (f"subtask {one.index}: {each}" for each in _compare_fields(one, other))


def _compare_fields(expected: Any, staged: Any, but: str = "") -> Iterator[str]:
    """Describe the fields in which two dataclasses differ, apart from the field `but`."""
    for name in (each.name for each in fields(expected) if each.name != but):
        one, other = getattr(expected, name), getattr(staged, name)
        if one != other:
            shown = f" is {other}, not {one}" if isinstance(one, str | int) else " is not the expected one"
            yield f"{name.replace('_', ' ')}{shown}"


def require_own_files(
    metadata: CheckpointMetadata, directory: Location, beside: Collection[Location] = frozenset()
) -> None:
    """Make sure that a new snapshot needs nothing outside its directory, before it is published.

    Args:
        metadata: metadata of the new snapshot.
        directory: directory of the new snapshot, with all data files written.
        beside: other directories whose files the metadata may name by absolute paths, such as `shared` of its job. It
            is not checked that these files exist: the tasks that wrote them have reported it.

    Raises:
        OutOfReachError: `beside` is given, and a handle names a file that is neither in these directories nor in that
            of the snapshot.
        ProofError: a handle names a file in another directory, a missing file, or one that is too short; the message
            names the handle.
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
                # A handle of logged changes has their size before compression (`StateChangeFormat`), so that the file
                # may be smaller.
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
        f"the new snapshot would not be self-contained: its handle of {reference.category.value} state{subtask}{role} "
        f"names {named}",
        where=Where(operator=operator.uid or operator.operator_id.hex()),
        hint="Nothing was published; please report this",
    )
