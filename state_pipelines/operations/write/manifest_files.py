"""Contents of the manifest of a new snapshot: sizes and checksums of its files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from state_pipelines.metadata import list_references
from state_pipelines.metadata.handles import FileStateHandle, RelativeFileStateHandle, SegmentFileStateHandle
from state_pipelines.storage import METADATA_FILE, Location
from state_pipelines.storage.files import RecordedFile, compute_checksum, list_directory, record_files
from state_pipelines.storage.snapshot_writer import Manifest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.metadata import CheckpointMetadata
    from state_pipelines.operations.local_processes import Work


@dataclass(frozen=True)
class RecordedWork:
    """A task that also returns the files that it has written.

    Attributes:
        work: the task.
        directory: only files in it are recorded.
    """

    work: Work[Any]
    directory: Location

    @property
    def in_flight(self) -> int:
        """See `Work`."""
        return getattr(self.work, "in_flight", 1)

    @property
    def threads(self) -> int:
        """See `Work`."""
        return getattr(self.work, "threads", 1)

    def run(self) -> tuple[Any, tuple[RecordedFile, ...]]:
        """Do the work; its result, and the files."""
        with record_files(self.directory) as recorder:
            result = self.work.run()
        return result, tuple(recorder.files.values())


def make_manifest(
    content: bytes,
    metadata: CheckpointMetadata,
    directory: Location,
    written: Mapping[str, RecordedFile],
) -> Manifest:
    """Manifest of a snapshot whose data files are complete.

    A file whose bytes did not pass through this package is recorded without a checksum: one that was linked, or that an
    object store has copied by itself. None is read.

    Args:
        content: of `_metadata`.
        metadata: the same, decoded.
        directory: of the snapshot.
        written: files whose checksums were taken while they were written, by name.

    Raises:
        StateError: the directory cannot be listed.
    """
    names: dict[str, None] = {}
    elsewhere: dict[str, int] = {}
    for handle in (each.handle for each in list_references(metadata)):
        match handle:
            case RelativeFileStateHandle(relative_path=name):
                names[name] = None
            case SegmentFileStateHandle(path=path, start=start, size=size):
                elsewhere[path] = max(elsewhere.get(path, 0), start + size)
            case FileStateHandle(path=path, size=size):
                elsewhere[path] = max(elsewhere.get(path, 0), size)
    sizes = {each.location.name: each.size for each in list_directory(directory)} if names else {}
    files = []
    # What is missing of an unverified copy is missing here too; `verify` reports it out of `_metadata`.
    for name in (each for each in names if each in sizes):
        known = written.get(name)
        files.append(known if known is not None and known.size == sizes[name] else RecordedFile(name, sizes[name]))
    return Manifest(
        RecordedFile(METADATA_FILE, len(content), compute_checksum([content])),
        tuple(files),
        tuple(RecordedFile(path, size) for path, size in elsewhere.items()),
    )
