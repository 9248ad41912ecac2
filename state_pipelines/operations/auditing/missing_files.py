"""Explanations of missing files: directories in which a file of the same name and size exists."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from state_pipelines.metadata.checkpoint import SnapshotKind
from state_pipelines.metadata.references import StreamRole
from state_pipelines.operations.auditing.report import Finding, Property, Severity
from state_pipelines.storage import Location
from state_pipelines.storage.locations import parent
from state_pipelines.storage.resolution import CHECKPOINT_DIRECTORY, SAVEPOINT_DIRECTORY, stays_below

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from state_pipelines.operations.auditing.file_listings import Listings
    from state_pipelines.operations.auditing.referenced_files import ReferencedFile
    from state_pipelines.snapshot import Snapshot

_MOST_SEARCHED = 256
"""Directories that are listed in search of missing files."""

_MOST_ABOVE = 4
"""Directories above a snapshot below which the rest of the path of a missing file is looked for."""

_MOST_NAMES = 64
"""Last names of the path of a missing file that are looked for there."""

_RESTORED = "Use an earlier snapshot, or restore the file from a backup"


class MissingFiles:
    """Searches the directories around a snapshot for files that its handles reference and that do not exist there.

    Symbolic links, which may come with a snapshot of somebody else, lead out of none of these directories.

    Args:
        snapshot: the snapshot.
        listings: known listings.
        directories: directories that are searched first.
    """

    def __init__(self, snapshot: Snapshot, listings: Listings, directories: Sequence[Location]) -> None:
        self._snapshot = snapshot
        self._listings = listings
        self._directories = directories
        self._found: dict[str, list[tuple[Location, int]]] | None = None
        self._moved: dict[str, list[Location]] = {}

    def explain(self, file: ReferencedFile) -> Finding:
        """Describe a missing file and what to do about it."""
        use = file.uses[0]
        role = use.reference.role
        kind = {StreamRole.SHARED: "shared file ", StreamRole.PRIVATE: "private file "}.get(role, "file ")
        name = f"{kind}{use.reference.local_path} " if use.reference.local_path else kind
        what = f"the {name}does not exist"
        if file.refusal is not None:
            what = f"the {name}is outside the directories that the snapshot may name"
        if len(file.uses) > 1:
            what += f" ({len(file.uses):,} handles name it)"
        elsewhere: list[Location] = []
        if file.refusal is None or not use.is_relative:
            elsewhere = [
                directory
                for directory, size in self._surroundings.get(file.name, ())
                if size == use.handle.size and directory != file.directory
            ]
        if not use.is_relative:
            elsewhere = elsewhere or self._find_moved(file)
        hint = _RESTORED
        kind = self._snapshot.kind
        if elsewhere and use.is_relative and role is StreamRole.SHARED and kind is not SnapshotKind.SAVEPOINT:
            hint = (
                f"A file of this name and size is in {elsewhere[0]}: after a restore in CLAIM mode from a native "
                "savepoint Flink wrote its path relative to the savepoint into the checkpoint (FLINK-39964). Copy the "
                f"file into {file.directory} before the savepoint is deleted"
            )
        elif elsewhere and use.is_relative:
            hint = f"A file of this name and size is in {elsewhere[0]}: copy it into {file.directory}"
        elif elsewhere:
            old, new = _strip_common(str(file.directory), str(elsewhere[0]))
            hint = f"A file of this name is in {elsewhere[0]}: if it was moved, add --map {old}={new}"
        elif file.refusal is not None:
            hint = file.refusal.hint
        elif use.is_relative and role is StreamRole.SHARED and kind is SnapshotKind.CHECKPOINT:
            hint = (
                "Checkpoints name shared files by absolute paths; a relative one comes from a native savepoint that "
                "was restored in CLAIM mode (FLINK-39964). Copy the file from that savepoint (name its directory or a "
                f"directory above it with --search) into {file.directory}"
            )
        elif not use.is_relative:
            hint = f"If it was moved, say where it is with --map FROM=TO; otherwise: {_RESTORED.lower()}"
        return Finding(
            Severity.UNDETERMINED if file.refusal is not None and not elsewhere else Severity.ERROR,
            Property.FILES,
            what,
            file=str(file.location),
            operator=use.operator,
            subtask=use.subtask,
            hint=hint,
        )

    def _find_moved(self, file: ReferencedFile) -> list[Location]:
        """Find the directory of a file in a tree that was moved as a whole: the last names of its path are the same."""
        key = str(file.directory)
        if key not in self._moved:
            names = file.directory.path.strip("/").split("/")[-_MOST_NAMES:]
            above = parent(self._snapshot.location.directory)
            directories: list[Location] = []
            for _ in range(_MOST_ABOVE):
                # The root of the file system would be the path itself, which the snapshot may not name.
                if above == parent(above):
                    break
                below = (_below(above, "/".join(names[index:])) for index in range(len(names)))
                directories += [each for each in below if stays_below(each, [above])]
                above = parent(above)
            self._moved[key] = [
                each for each in directories if each != file.directory and file.name in self._listings.list(each)
            ]
        return self._moved[key]

    @property
    def _surroundings(self) -> dict[str, list[tuple[Location, int]]]:
        """Files around the snapshot by name."""
        if self._found is None:
            self._found = {}
            waiting = deque(self._iter_directories())
            roots = [*self._directories, *self._list_above()]
            seen: set[str] = set()
            while waiting and len(seen) < _MOST_SEARCHED:
                directory = waiting.popleft()
                if directory.path in seen:
                    continue
                seen.add(directory.path)
                if not stays_below(directory, roots):
                    continue
                for name, size in self._listings.list(directory).items():
                    if size >= 0:
                        self._found.setdefault(name, []).append((directory, size))
                    elif SAVEPOINT_DIRECTORY.fullmatch(name) or CHECKPOINT_DIRECTORY.fullmatch(name):
                        waiting.append(_below(directory, name))
        return self._found

    def _iter_directories(self) -> Iterator[Location]:
        """Directories that are given, then those beside the snapshot and, for a checkpoint, beside its job."""
        yield from self._directories
        for above in self._list_above():
            for name, size in self._listings.list(above).items():
                if size < 0:
                    yield _below(above, name)

    def _list_above(self) -> list[Location]:
        """List the directory that holds the snapshot and the one above that: of a checkpoint, what holds its job.

        The root of a file system is not one of them: directories in it, or buckets, have nothing to do with each other.
        """
        job = parent(self._snapshot.location.directory)
        return [each for each in (job, parent(job)) if each.path.strip("/")]


def _below(directory: Location, name: str) -> Location:
    return Location(directory.filesystem, f"{directory.path.rstrip('/')}/{name}")


def _strip_common(old: str, new: str) -> tuple[str, str]:
    """Remove what two paths end with alike, so that they make a path mapping."""
    olds, news = old.split("/"), new.split("/")
    while len(olds) > 1 and len(news) > 1 and olds[-1] == news[-1]:
        olds.pop()
        news.pop()
    return "/".join(olds), "/".join(news)
