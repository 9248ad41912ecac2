"""Audit of what `_metadata` says: subtasks, key groups, offsets, and the files that handles reference."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from state_pipelines.errors import EDITED_METADATA, FormatError, OutOfReachError, StateError
from state_pipelines.keyed.changelog.changes import find_missing_base, find_missing_changes
from state_pipelines.metadata import list_references
from state_pipelines.metadata.checkpoint import (
    compute_operator_id,
    format_operator_id,
    is_operator_id,
    parse_operator_id,
)
from state_pipelines.metadata.handles import (
    MAX_PARALLELISM,
    ByteStreamStateHandle,
    ChangelogStateBackendHandle,
    ChangelogStateHandleStream,
    EmptySegmentFileStateHandle,
    FileStateHandle,
    InMemoryChangelogStateHandle,
    KeyGroupsSavepointStateHandle,
    KeyGroupsStateHandle,
    MergedChannelStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
)
from state_pipelines.metadata.streams import StateCategory, StreamRole, locate_file, name_file, open_stream
from state_pipelines.operations.auditing.report import Finding, Property, Severity, from_error
from state_pipelines.snapshot.checks import find_wrong_channels, find_wrong_streams
from state_pipelines.snapshot.snapshot_files import (
    check_held_key_groups,
    check_owner,
    check_subtasks,
    explain_missing_handles,
    explain_older_ranges,
    find_shared_files,
)
from state_pipelines.storage import Location, resolve
from state_pipelines.storage.resolution import normalize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.metadata import OperatorState, SubtaskState
    from state_pipelines.metadata.handles import KeyedStateHandle, StreamStateHandle
    from state_pipelines.metadata.streams import StreamReference
    from state_pipelines.operations.auditing.report import Findings
    from state_pipelines.snapshot import Operator, Snapshot


def audit_structure(snapshot: Snapshot, findings: Findings) -> None:
    """Check that the contents of `_metadata` agree with each other, without reading any state; add findings."""
    names = [each.name for each in snapshot.metadata.master_states]
    for name in sorted({each for each in names if names.count(each) > 1}):
        # Flink restores only one state for each hook (`MasterHooks.restoreMasterHooks`).
        what = f"the state of the master hook {name} is listed twice"
        file = str(snapshot.location.metadata)
        findings.add(Finding(Severity.ERROR, Property.METADATA, what, file=file, hint=EDITED_METADATA))
    owners = find_shared_files(snapshot.metadata)
    for operator in snapshot.operators:
        try:
            check_owner(owners, operator.metadata.operator_id)
        except FormatError as error:
            findings.add(from_error(error, Property.METADATA, operator=operator.label))
        if _check_subtasks(operator, findings):
            _check_key_groups(operator, findings)
        for subtask in operator.metadata.subtasks:
            for handle, offsets, begins in _iter_offsets(subtask):
                _check_offsets(operator, subtask, handle, offsets, begins, findings)
            _check_changes(operator, subtask, findings)
            for what in find_wrong_channels(subtask):
                findings.add(_find(operator, subtask, Property.METADATA, what, hint=EDITED_METADATA))
        for doubt in _find_foreign_names(operator.metadata):
            findings.add(Finding(Severity.WARNING, Property.METADATA, doubt, operator=operator.label))
    labels = {each.metadata.operator_id: each.label for each in snapshot.operators}
    for operator_id, problem in find_wrong_streams(snapshot.metadata):
        findings.add(from_error(problem, Property.METADATA, operator=labels[operator_id]))


def _find_foreign_names(operator: OperatorState) -> Iterator[str]:
    """Yield signs that an operator has the uid or the coordinator state of another one; Flink does not check these."""
    if operator.uid is not None and compute_operator_id(operator.uid) != operator.operator_id:
        # `StreamGraphHasherV2.generateUserSpecifiedHash` hashes the uid to the id. A job may set another id by
        # `setUidHash`, which is not stored.
        yield (
            f"the operator has the id {format_operator_id(operator.operator_id)}, which is not that of its uid "
            f"{operator.uid}. Flink restores by the id"
        )
    coordinator = operator.coordinator_state
    if coordinator is not None and is_operator_id(coordinator.handle_name):
        # `OperatorCoordinatorCheckpoints` names the state by the id of its operator.
        other = parse_operator_id(coordinator.handle_name)
        if other != operator.operator_id:
            yield (
                f"its coordinator state was written for the operator {format_operator_id(other)}. That is right where "
                "a tool has renamed the operator since"
            )


def _check_subtasks(operator: Operator, findings: Findings) -> bool:
    """Check subtasks and parallelism; return whether key groups can be checked, too.

    After an error here, a check of key groups would only report it again.
    """
    metadata = operator.metadata
    error = None
    try:
        check_subtasks(metadata, str(operator.snapshot.location.metadata))
    except FormatError as failed:
        error = failed
        findings.add(from_error(error, Property.METADATA, operator=operator.label))
    problems = []
    if metadata.parallelism > metadata.max_parallelism > 0:
        problems.append(f"parallelism {metadata.parallelism} is above max parallelism {metadata.max_parallelism}")
    if metadata.max_parallelism > MAX_PARALLELISM:
        problems.append(f"max parallelism {metadata.max_parallelism} is above Flink's limit of {MAX_PARALLELISM}")
    for problem in problems:
        findings.add(_find(operator, None, Property.METADATA, problem, hint=EDITED_METADATA))
    return error is None and metadata.max_parallelism <= MAX_PARALLELISM


def _check_key_groups(operator: Operator, findings: Findings) -> None:
    file = str(operator.snapshot.location.metadata)
    failed = False
    for raw in (False, True):
        try:
            check_held_key_groups(operator.metadata, file, raw=raw)
        except StateError as error:
            failed = True
            findings.add(from_error(error, Property.KEY_GROUPS, operator=operator.label))
    notes = [explain_older_ranges(operator.metadata, operator.label)]
    if not failed:
        notes += [explain_missing_handles(operator.metadata, raw=raw) for raw in (False, True)]
    for note in filter(None, notes):
        findings.add(Finding(Severity.WARNING, Property.KEY_GROUPS, note, file=file, operator=operator.label))


Offsets = tuple["StreamStateHandle", "Sequence[int]", str]
"""(stream, offsets into it, description of what begins at an offset)."""


def _iter_offsets(subtask: SubtaskState) -> Iterator[Offsets]:
    for keyed in (subtask.managed_keyed_state, subtask.raw_keyed_state):
        if keyed is not None:
            yield from _iter_keyed_offsets(keyed)
    for lists in (subtask.managed_operator_state, subtask.raw_operator_state):
        for state in () if lists is None else lists.states:
            assert lists is not None
            yield lists.delegate, state.offsets, f"an element of state {state.state_name}"
    for channel in (*subtask.input_channel_state, *subtask.result_subpartition_state):
        states = channel.states if isinstance(channel, MergedChannelStateHandle) else (channel.state,)
        for each in states:
            yield channel.delegate, each.offsets, "a buffer in flight"


def _iter_keyed_offsets(handle: KeyedStateHandle) -> Iterator[Offsets]:
    if isinstance(handle, KeyGroupsStateHandle | KeyGroupsSavepointStateHandle):
        yield handle.delegate, handle.offsets, "a key group"
    elif isinstance(handle, ChangelogStateBackendHandle):
        for each in handle.materialized:
            yield from _iter_keyed_offsets(each)


def _check_offsets(
    operator: Operator,
    subtask: SubtaskState,
    handle: StreamStateHandle,
    offsets: Sequence[int],
    what: str,
    findings: Findings,
) -> None:
    if not offsets or isinstance(handle, EmptySegmentFileStateHandle):
        return
    # Accept -1 and 0, the offsets of key groups without state, and the end of the stream, where empty elements may
    # begin.
    smallest, largest = min(offsets), max(offsets)
    if smallest >= -1 and largest <= (size := _get_size(handle)):
        return
    wrong = smallest if smallest < -1 else largest
    size = _get_size(handle)
    text = f"{what} begins at offset {wrong:,}, outside the {size:,} bytes of state"
    findings.add(
        _find(operator, subtask, Property.OFFSETS, text, handle=handle, offset=max(wrong, 0), hint=EDITED_METADATA)
    )


def _get_size(handle: StreamStateHandle) -> int:
    while isinstance(handle, KeyGroupsStateHandle):
        handle = handle.delegate
    if isinstance(handle, ByteStreamStateHandle):
        return len(handle.data)
    return 0 if isinstance(handle, EmptySegmentFileStateHandle) else handle.size


def _check_changes(operator: Operator, subtask: SubtaskState, findings: Findings) -> None:
    """Check that the changes of a changelog handle can be replayed.

    They must be of a known type, have key groups of the handle, and leave no gaps; the base must be complete.
    """
    handle = subtask.managed_keyed_state
    if not isinstance(handle, ChangelogStateBackendHandle):
        return
    for change in handle.non_materialized:
        if not isinstance(change, ChangelogStateHandleStream | InMemoryChangelogStateHandle):
            text = f"a {type(change).__name__} is among the changes of a changelog handle, which cannot replay it"
            findings.add(_find(operator, subtask, Property.METADATA, text, hint=EDITED_METADATA))
        elif not change.key_groups.intersect(handle.key_groups).number and handle.key_groups.number:
            text = (
                f"changes of key groups {change.key_groups.start}-{change.key_groups.end} are in a changelog handle of "
                f"key groups {handle.key_groups.start}-{handle.key_groups.end}"
            )
            findings.add(_find(operator, subtask, Property.KEY_GROUPS, text, hint=EDITED_METADATA))
    for problem in find_missing_changes(handle):
        findings.add(_find(operator, subtask, Property.METADATA, problem, hint=EDITED_METADATA))
    missing = find_missing_base(handle)
    if missing is not None:
        found = _find(operator, subtask, Property.METADATA, missing, hint=EDITED_METADATA)
        findings.add(replace(found, severity=Severity.WARNING))


def _find(
    operator: Operator,
    subtask: SubtaskState | None,
    property: Property,
    what: str,
    *,
    handle: StreamStateHandle | None = None,
    offset: int | None = None,
    hint: str = "",
) -> Finding:
    file = str(operator.snapshot.location.metadata)
    if handle is not None:
        try:
            snapshot = operator.snapshot
            file = open_stream(handle, snapshot.location.directory, snapshot.path_mapping).name
        except StateError:
            # The handle cannot be resolved, which `collect_files` reports: name `_metadata` as the file.
            pass
    return Finding(
        Severity.ERROR,
        property,
        what,
        file=file,
        offset=offset,
        operator=operator.label,
        subtask=None if subtask is None else subtask.index,
        hint=hint,
    )


FileHandle = FileStateHandle | RelativeFileStateHandle | SegmentFileStateHandle


@dataclass(frozen=True, slots=True)
class FileUse:
    """Reference of one state handle to a file.

    Attributes:
        reference: operator, subtask and role of the handle.
        handle: the handle.
    """

    reference: StreamReference
    handle: FileHandle

    @property
    def end(self) -> int:
        """Offset in the file at which the referenced bytes end."""
        return self.handle.size + (self.handle.start if isinstance(self.handle, SegmentFileStateHandle) else 0)

    @property
    def operator(self) -> str:
        """Uid of the operator, or its id."""
        return self.reference.operator.uid or format_operator_id(self.reference.operator.operator_id)

    @property
    def subtask(self) -> int | None:
        """Index of the subtask; None for coordinator state."""
        return self.reference.subtask_index

    @property
    def has_sections(self) -> bool:
        """Whether the handle has offsets of key groups, as handles of canonical, heap and raw keyed state do."""
        keyed = (StateCategory.MANAGED_KEYED, StateCategory.RAW_KEYED)
        return self.reference.category in keyed and self.reference.role is StreamRole.STATE

    @property
    def holds_changes(self) -> bool:
        """Whether the handle refers to logged changes (`StateChangeFsUploader`).

        Such a handle records the size before compression, without the first byte of the file.
        """
        return self.reference.role is StreamRole.CHANGES

    @property
    def is_relative(self) -> bool:
        """Whether the path in the handle is relative to the directory of the snapshot."""
        return isinstance(self.handle, RelativeFileStateHandle)


@dataclass(slots=True)
class ReferencedFile:
    """A file that state handles reference.

    Attributes:
        directory: directory of the file.
        name: name of the file.
        refusal: why the file must not be accessed, so that `directory` is for reports only; None if access is allowed.
        uses: the handles that reference the file, in the order of `_metadata`.
    """

    directory: Location
    name: str
    refusal: OutOfReachError | None = None
    uses: list[FileUse] = field(default_factory=list)

    @property
    def location(self) -> Location:
        """Location of the file."""
        return Location(self.directory.filesystem, f"{self.directory.path.rstrip('/')}/{self.name}")


@dataclass(frozen=True)
class ReferencedFiles:
    """Files and inlined state that the handles of a snapshot reference.

    Attributes:
        files: the files, each once.
        handles: number of stream handles.
        inlined_bytes: bytes of state inside `_metadata`.
    """

    files: tuple[ReferencedFile, ...]
    handles: int
    inlined_bytes: int

    def by_directory(self) -> dict[Location, list[str]]:
        """Return the names of the files by directory, without files that must not be accessed."""
        found: dict[Location, list[str]] = {}
        last: Location | None = None
        names: list[str] = []
        for file in self.files:
            if file.refusal is not None:
                continue
            if file.directory is not last:
                last, names = file.directory, found.setdefault(file.directory, [])
            names.append(file.name)
        return found


def collect_files(snapshot: Snapshot, findings: Findings) -> ReferencedFiles:
    """Find the files of all handles of a snapshot without reading them; add findings on handles without a location."""
    files: dict[str, ReferencedFile] = {}
    directories: dict[str, Location] = {}
    inlined = handles = 0
    for reference in list_references(snapshot.metadata):
        handles += 1
        handle = reference.handle
        if isinstance(handle, ByteStreamStateHandle):
            inlined += len(handle.data)
            continue
        if isinstance(handle, EmptySegmentFileStateHandle | KeyGroupsStateHandle):
            continue
        use = FileUse(reference, handle)
        try:
            location = locate_file(handle, snapshot.location.directory, snapshot.path_mapping)
            refusal = None
        except OutOfReachError as error:
            # Keep the path for reports, but do not access it: only the snapshot names it, not the user.
            location, refusal = _name_refused(use, snapshot), error
        except StateError as error:
            findings.add(from_error(error, Property.FILES, operator=use.operator, subtask=use.subtask))
            continue
        key = location.path if location.filesystem is snapshot.location.directory.filesystem else location.url
        if key not in files:
            path, _, name = location.path.rpartition("/")
            parent = key.rpartition("/")[0]
            if parent not in directories:
                directories[parent] = Location(location.filesystem, path or "/")
            files[key] = ReferencedFile(directories[parent], name, refusal)
        files[key].uses.append(use)
    return ReferencedFiles(tuple(files.values()), handles, inlined)


def _name_refused(use: FileUse, snapshot: Snapshot) -> Location:
    """Return the location that a refused handle names, for reports; it must not be accessed."""
    found = name_file(use.handle, snapshot.location.directory, snapshot.path_mapping)
    if found is not None or isinstance(use.handle, RelativeFileStateHandle):
        return found or snapshot.location.directory
    return Location(resolve("/").filesystem, normalize(snapshot.path_mapping.apply(use.handle.path)))
