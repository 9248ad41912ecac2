"""Files that the state handles of a snapshot reference, and the bytes that each handle references."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state_pipelines.errors import OutOfReachError, StateError
from state_pipelines.metadata import format_operator_id, list_references
from state_pipelines.metadata.handles import (
    ByteStreamStateHandle,
    EmptySegmentFileStateHandle,
    FileStateHandle,
    KeyGroupsStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
)
from state_pipelines.metadata.references import StateCategory, StreamRole
from state_pipelines.metadata.streams import locate_file, name_file
from state_pipelines.operations.auditing.report import Property, from_error
from state_pipelines.storage import Location, resolve
from state_pipelines.storage.resolution import normalize

if TYPE_CHECKING:
    from state_pipelines.metadata.references import StreamReference
    from state_pipelines.operations.auditing.report import Findings
    from state_pipelines.snapshot import Snapshot

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
        """Whether the bytes are key groups that the handle locates: canonical, heap and raw keyed state."""
        keyed = (StateCategory.MANAGED_KEYED, StateCategory.RAW_KEYED)
        return self.reference.category in keyed and self.reference.role is StreamRole.STATE

    @property
    def holds_changes(self) -> bool:
        """Whether the handle counts bytes before compression, and not the first byte (`StateChangeFsUploader`)."""
        return self.reference.role is StreamRole.CHANGES

    @property
    def is_relative(self) -> bool:
        """Whether the handle starts at the directory of the snapshot."""
        return isinstance(self.handle, RelativeFileStateHandle)


@dataclass(slots=True)
class ReferencedFile:
    """A file that state handles reference.

    Attributes:
        directory: directory that holds it.
        name: its name there.
        refusal: why it must not be looked at; then `directory` is only what the handles say.
        uses: the handles, in the order of `_metadata`.
    """

    directory: Location
    name: str
    refusal: OutOfReachError | None = None
    uses: list[FileUse] = field(default_factory=list)

    @property
    def location(self) -> Location:
        """The file."""
        return Location(self.directory.filesystem, f"{self.directory.path.rstrip('/')}/{self.name}")


@dataclass(frozen=True)
class ReferencedFiles:
    """Files and inlined state that the handles of a snapshot reference.

    Attributes:
        files: the files, each once.
        handles: number of stream handles.
        inlined_bytes: state inside `_metadata`.
    """

    files: tuple[ReferencedFile, ...]
    handles: int
    inlined_bytes: int

    def by_directory(self) -> dict[Location, list[str]]:
        """Names of the files by directory."""
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
    """Resolve every handle of a snapshot; nothing is read. Handles that cannot be resolved become findings."""
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
            # The path is kept as a text: nothing is asked of a storage that only the snapshot names.
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
    """The path of a refused handle for reports; it is never opened."""
    found = name_file(use.handle, snapshot.location.directory, snapshot.path_mapping)
    if found is not None or isinstance(use.handle, RelativeFileStateHandle):
        return found or snapshot.location.directory
    return Location(resolve("/").filesystem, normalize(snapshot.path_mapping.apply(use.handle.path)))
