"""Watch over the `_metadata` files below the roots while a plan is applied."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from state_pipelines.errors import IncompatibleError, MissingFileError, StateError, StorageError, Where
from state_pipelines.operations.retention.references import Gone, MetadataFile, ReferenceReader, Unreadable
from state_pipelines.operations.retention.survey import find_parents, list_beside
from state_pipelines.storage import METADATA_FILE, FileEntry, Location, join, list_directory
from state_pipelines.storage.deletion import is_same_time, stat_files
from state_pipelines.storage.locations import parent
from state_pipelines.storage.snapshot_listing import RETENTION_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from state_pipelines.operations.retention.survey import Root

_ATTEMPTS = 20
_PAUSE_SECONDS = 0.05
_DEPTH = 5
# Directories beside the checkpoints of a job that hold only files of state, possibly very many of them.
_WITHOUT_SNAPSHOTS = frozenset({"shared", "taskowned", "dstl", RETENTION_DIRECTORY})


class SnapshotWatch:
    """Tells which snapshots have appeared or vanished since the last look, and which files the new ones need.

    A look lists the directories of jobs and those that had no `_metadata` before, and asks for size and time of the
    known `_metadata` files. It does not list the directories of known snapshots, nor those of shared files. Jobs beside
    roots that are jobs are looked at as well (`neighbours`).

    Args:
        roots: directories that are searched.
        reader: reads the references of new snapshots.
    """

    def __init__(self, roots: Sequence[Root], reader: ReferenceReader) -> None:
        """Take the first look."""
        self._roots = roots
        self._beside = find_parents(roots)
        self._key = reader.keys.key
        self._reader = reader
        self._known: dict[Location, FileEntry] = {}
        self._find_new()

    def forget(self, locations: Iterable[Location]) -> None:
        """Forget `_metadata` files that the caller has deleted."""
        for location in locations:
            self._known.pop(location, None)

    def look(self) -> tuple[dict[str, str], list[str]]:
        """Take another look.

        Returns:
            the keys of the files that new and changed snapshots need, each with the snapshot that needs it, and the
            `_metadata` files that have vanished.

        Raises:
            IncompatibleError: the references of a new snapshot cannot be known, or a known one cannot be looked at, so
                that nothing more may be deleted.
        """
        needed: dict[str, str] = {}
        vanished = self._find_vanished()
        unread = self._find_new()
        reason = "it changes all the time"
        for _ in range(_ATTEMPTS):
            if not unread:
                return needed, vanished
            files = [self._to_metadata_file(entry) for entry in unread]
            for entry, file, reading in zip(unread, files, self._reader.read(files), strict=True):
                if isinstance(reading, Gone):
                    # Flink has subsumed it: what it needed, its successor needs, unless nobody does.
                    self._known.pop(entry.location, None)
                elif isinstance(reading, Unreadable):
                    # It may be in the middle of being written.
                    self._known.pop(entry.location, None)
                    reason = reading.reason
                else:
                    needed.update(dict.fromkeys([self._key(file.path), *reading.files], file.path))
            unread = self._find_new()
            if unread:
                time.sleep(_PAUSE_SECONDS)
        raise IncompatibleError(
            f"the references of a new snapshot cannot be read: {reason}",
            where=Where(file=str(unread[0].location)),
            hint="Nothing more was deleted; apply the plan again when the snapshot can be read or is gone",
        )

    def _find_vanished(self) -> list[str]:
        """Forget `_metadata` files that have gone or changed; returns those that have gone."""
        known = list(self._known.values())
        vanished = []
        for entry, now in zip(known, stat_files([entry.location for entry in known]), strict=True):
            if now is None:
                vanished.append(str(entry.location))
            elif isinstance(now, StorageError | MissingFileError):
                raise IncompatibleError(
                    f"whether a known snapshot is still there cannot be seen: {now}",
                    where=Where(file=str(entry.location)),
                    hint="Nothing more was deleted; apply the plan again when the snapshot can be read or is gone",
                )
            elif (
                isinstance(now, StateError) or now.size != entry.size or not is_same_time(now.modified, entry.modified)
            ):
                pass
            else:
                continue
            del self._known[entry.location]
        return vanished

    def _find_new(self) -> list[FileEntry]:
        found = [entry for root in self._roots for entry in self._find_settled(root.location)]
        for top in self._beside:
            listed, _ = list_beside(top, self._roots, self._reader.keys, self._known)
            found += [each for each in listed if each.location not in self._known]
        self._known.update({entry.location: entry for entry in found})
        return found

    def _find_settled(self, root: Location) -> list[FileEntry]:
        for _ in range(_ATTEMPTS):
            try:
                return list(self._find_below(root, _DEPTH))
            except MissingFileError:
                # Flink has deleted a directory in the meantime.
                time.sleep(_PAUSE_SECONDS)
        return list(self._find_below(root, _DEPTH))

    def _find_below(self, directory: Location, depth: int) -> Iterable[FileEntry]:
        if join(directory, METADATA_FILE) in self._known:
            return
        entries = list_directory(directory)
        for entry in entries:
            if entry.location.name == METADATA_FILE and not entry.is_directory:
                yield entry
                return
        for entry in entries:
            if depth and entry.is_directory and entry.location.name not in _WITHOUT_SNAPSHOTS:
                yield from self._find_below(entry.location, depth - 1)

    def _to_metadata_file(self, entry: FileEntry) -> MetadataFile:
        path = str(entry.location)
        key = self._key(str(parent(entry.location)))
        return MetadataFile(path, key, entry.location, entry.size, entry.modified)
