"""Contents of the manifest of a new snapshot: sizes and checksums of its files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from state_pipelines.metadata import list_references
from state_pipelines.metadata.stream_handles import FileStateHandle, RelativeFileStateHandle, SegmentFileStateHandle
from state_pipelines.storage import METADATA_FILE, Location, join
from state_pipelines.storage.files import COPY_SIZE, list_directory
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.manifest import Manifest
from state_pipelines.storage.reading import read_ranges
from state_pipelines.storage.written_files import WrittenFile, compute_checksum, record_files

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

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

    def run(self) -> tuple[Any, tuple[WrittenFile, ...]]:
        """Do the work; its result, and the files."""
        with record_files(self.directory) as recorder:
            result = self.work.run()
        return result, tuple(recorder.files.values())


def make_manifest(
    content: bytes,
    metadata: CheckpointMetadata,
    directory: Location,
    written: Mapping[str, WrittenFile],
    *,
    unread: Collection[str] = frozenset(),
) -> Manifest:
    """Manifest of a snapshot whose data files are complete.

    A file without a checksum that is local is read once; one on another storage, such as one that an object store has
    copied by itself, is recorded without.

    Args:
        content: of `_metadata`.
        metadata: the same, decoded.
        directory: of the snapshot.
        written: files whose checksums were taken while they were written, by name.
        unread: names of files that are not read for their checksums: those of the old snapshot.

    Raises:
        StateError: a file cannot be read.
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
        file = WrittenFile(name, sizes[name])
        known = written.get(name)
        if known is not None and known.size == file.size:
            file = known
        elif is_local(directory) and name not in unread:
            pieces = read_ranges([(join(directory, name), 0, file.size)], COPY_SIZE)
            file = WrittenFile(name, file.size, compute_checksum(pieces))
        files.append(file)
    return Manifest(
        WrittenFile(METADATA_FILE, len(content), compute_checksum([content])),
        tuple(files),
        tuple(WrittenFile(path, size) for path, size in elsewhere.items()),
    )
