"""A survey of roots: every file, the snapshots among them, what these reference, and what changes meanwhile."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

from state_pipelines.errors import IncompatibleError, MissingFileError, StateError, StorageError, UsageError, Where
from state_pipelines.operations.retention.own_directory import (
    PINS_FILE,
    Pin,
    find_above,
    find_pinnable,
    find_pinned_keys,
    read_pins,
    refuse_link,
)
from state_pipelines.operations.retention.references import (
    READ_THREADS,
    Gone,
    MetadataFile,
    ReferenceReader,
    SnapshotReferences,
    SurveyedSizes,
    Unreadable,
)
from state_pipelines.storage import METADATA_FILE, FileEntry, Location, join, list_directory, resolve
from state_pipelines.storage.listing import list_tree
from state_pipelines.storage.locations import Threads, is_below, is_local, parent
from state_pipelines.storage.resolution import CHECKPOINT_DIRECTORY, COMMON, JOB_DIRECTORY, SAVEPOINT_DIRECTORY
from state_pipelines.storage.snapshot_writer import RETENTION_DIRECTORY, is_same_time, stat_files

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence
    from datetime import datetime

    from state_pipelines.operations.retention.policy import PathKeys
    from state_pipelines.storage.listing import TreeEntry

_LOCAL = "file:"
"""Beginning of the keys of local files (`PathKeys`)."""

ATTEMPTS = 5
"""Number of surveys after which a plan is given up because the roots change while they are read."""


@dataclass(frozen=True)
class Root:
    """A directory that is searched for snapshots and files.

    Attributes:
        path: path or URL as the user has spelled it, without a slash at the end.
        key: key of the directory (see `PathKeys`).
        location: location for listing it.
    """

    path: str
    key: str
    location: Location

    def contains(self, key: str) -> bool:
        """Return whether a key is below the root."""
        return key.startswith(self.key.rstrip("/") + "/")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file or directory below a root.

    Attributes:
        root: the root.
        entry: entry of the listing.
        key: key of the path (see `PathKeys`).
        directory_key: key of the directory that holds the file.
        name: last name on the path.
    """

    root: Root
    entry: TreeEntry
    key: str
    directory_key: str
    name: str

    @property
    def path(self) -> str:
        """Path or URL, beginning with the root as the user has spelled it."""
        return f"{self.root.path.rstrip('/')}/{self.entry.name}"


@dataclass(frozen=True)
class FoundSnapshot:
    """A directory with a `_metadata` file.

    Attributes:
        path: path or URL of the directory, beginning with the root as the user has spelled it.
        key: key of the directory.
        root: the root.
        reading: references of the snapshot, or why they are not known.
        files: the files in the directory, including `_metadata`.
        modified: time at which `_metadata` was written.
        tags: tags that pin files give the snapshot.
        pin: a pin without tags, which always keeps the snapshot; or None.
    """

    path: str
    key: str
    root: Root
    reading: SnapshotReferences | Unreadable
    files: tuple[FoundFile, ...]
    modified: datetime | None
    tags: frozenset[str] = frozenset()
    pin: Pin | None = None

    @property
    def restorable(self) -> bool | None:
        """Whether the snapshot is restorable, see `SnapshotVerdict`; None if that is not known."""
        return self.reading.restorable if isinstance(self.reading, SnapshotReferences) else False


@dataclass(frozen=True)
class Neighbour:
    """A snapshot outside the roots that may need files of the roots.

    It belongs to a job whose directory is beside a root, or a symbolic link below a root leads to it.

    Attributes:
        path: directory of the snapshot.
        reading: references of the snapshot, or why they are not known.
    """

    path: str
    reading: SnapshotReferences | Unreadable


@dataclass(frozen=True)
class FoundPin:
    """A pin of a pin file in a root, or in a directory below or above a root.

    Attributes:
        pin: the pin.
        directory: directory that has the pin file, to which the pin may be relative.
        keys: keys of the directories that the pin may name.
        is_above: the pin file is above the roots.
    """

    pin: Pin
    directory: Location
    keys: tuple[str, ...]
    is_above: bool = False

    def covers(self, key: str) -> bool:
        """Return whether a directory is the pinned directory, or below it."""
        return any(is_below(key, pinned) for pinned in self.keys)


@dataclass
class Survey:
    """Everything below the roots at one time.

    Attributes:
        roots: the roots.
        time: time at which the survey began.
        files: regular files, by key.
        directories: directories, by key.
        links: symbolic links and special files.
        snapshots: directories with `_metadata`, by key.
        neighbours: snapshots outside the roots that may need files of the roots.
        pin_files: pin files of the roots, and of directories below them that have been roots of another plan.
        above: directories above the roots that have been roots of another plan.
        lost_pins: pins that name no snapshot.
        notes: remarks for the user.
    """

    roots: tuple[Root, ...]
    time: datetime
    files: dict[str, FoundFile] = field(default_factory=dict)
    directories: dict[str, FoundFile] = field(default_factory=dict)
    links: list[FoundFile] = field(default_factory=list)
    snapshots: dict[str, FoundSnapshot] = field(default_factory=dict)
    neighbours: list[Neighbour] = field(default_factory=list)
    pin_files: list[FoundFile] = field(default_factory=list)
    above: list[Location] = field(default_factory=list)
    lost_pins: list[FoundPin] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def is_inside(self, key: str) -> bool:
        """Return whether a key is below a root."""
        return any(root.contains(key) for root in self.roots)


def open_roots(
    paths: Sequence[str | Location], keys: PathKeys, storage_options: Mapping[str, Any] | None
) -> tuple[tuple[Root, ...], list[str]]:
    """Make roots of the paths that a user has given.

    Returns:
        (the roots, each once and none inside of another one; notes on paths that are inside of another root).

    Raises:
        UsageError: no path is given, a path is a whole file system, or a storage is not known.
    """
    if not paths:
        raise UsageError("no root is named", hint="Give directories of checkpoints or savepoints")
    found: dict[str, Root] = {}
    for given in paths:
        location = given if isinstance(given, Location) else resolve(given, **(storage_options or {}))
        if is_local(location) and ".." in location.path.split("/"):
            # Resolve `..`, because paths below the root are compared as texts.
            location = Location(location.filesystem, os.path.realpath(location.path))
            given = location
        text = str(location)
        # Keep the URL as the user wrote it: fsspec may drop the authority.
        if isinstance(given, str) and "://" in given and "://" in text:
            text = given
        path = text.rstrip("/") or "/"
        if path == "/" or path.endswith(":"):
            raise UsageError(
                "retention does not work on a whole file system",
                where=Where(file=str(given)),
                hint="Name a directory of checkpoints or savepoints",
            )
        # The root may be a symbolic link itself, but `key` resolves only the directories above the last name.
        key = keys.key(path + "/_").rpartition("/")[0]
        found.setdefault(key, Root(path, key, location))
    notes = []
    roots: list[Root] = []
    for root in sorted(found.values(), key=lambda each: each.key):
        outer = next((each for each in roots if each.contains(root.key)), None)
        if outer is None:
            roots.append(root)
        else:
            notes.append(f"{root.path} is below {outer.path} and is searched with it")
    return tuple(roots), notes


def survey(
    roots: tuple[Root, ...], reader: ReferenceReader, clock: Callable[[], datetime], notes: Sequence[str] = ()
) -> Survey:
    """List the roots, and read the pins and the references of every snapshot.

    If a snapshot vanishes between listing and reading, because Flink has subsumed it, the roots are listed again: its
    successor may be newer than the listing.

    Args:
        roots: the roots.
        reader: reads the references.
        clock: returns the current time.
        notes: remarks for the user, to which the survey adds its own.

    Raises:
        NotFoundError: a root does not exist.
        UsageError: the directory `_retention` of a root, or its pin file, is a symbolic link.
        StateError: a directory cannot be listed, or the roots change too fast.
    """
    for _ in range(ATTEMPTS):
        # Take the time before the listing. Files that appear meanwhile are newer, and so count as young.
        result = Survey(roots, clock(), notes=list(notes))
        with Threads(max(1, min(len(roots), 8))) as threads:
            trees = list(threads.map(lambda root: list_tree(root.location), roots))
        for root, entries in zip(roots, trees, strict=True):
            _add_entries(result, root, entries)
        _find_above(result, reader.keys)
        if _read_snapshots(result, reader):
            return result
    raise StateError(
        f"checkpoints vanished in each of {ATTEMPTS} attempts to read the roots",
        where=Where(file=roots[0].path),
        hint="Plan again when fewer checkpoints are written, or for fewer roots at a time",
    )


def _add_entries(result: Survey, root: Root, entries: Sequence[TreeEntry]) -> None:
    prefix = root.key.rstrip("/") + "/"
    for entry in entries:
        key = prefix + entry.name
        directory_key, _, name = key.rpartition("/")
        file = FoundFile(root, entry, key, directory_key, name)
        if RETENTION_DIRECTORY in entry.name and RETENTION_DIRECTORY in (names := entry.name.split("/")):
            # Look for `_retention` at any depth: a directory inside this root may be the root of another plan.
            if entry.is_link and names[-1] == RETENTION_DIRECTORY:
                # Links are not followed, so pins in the directory that it leads to would not be read.
                raise refuse_link(file.path)
            if names[-2:] == [RETENTION_DIRECTORY, PINS_FILE]:
                result.pin_files.append(file)
            continue
        if entry.is_link:
            result.links.append(file)
        elif entry.is_directory:
            result.directories[key] = file
        else:
            result.files[key] = file


def _read_snapshots(result: Survey, reader: ReferenceReader) -> bool:
    by_directory: defaultdict[str, list[FoundFile]] = defaultdict(list)
    for file in result.files.values():
        by_directory[file.directory_key].append(file)
    found = [file for file in result.files.values() if file.name == METADATA_FILE]
    regular = {file.key: file.entry.size for file in result.files.values()}
    linked = {link.key: size for link in result.links if (size := _find_linked_size(link)) is not None}
    sizes = SurveyedSizes(regular, result.is_inside, reader.keys, linked)
    own = [_to_metadata_file(file) for file in found]
    others = find_neighbours(result, reader.keys)
    readings = reader.read([*own, *others], sizes)
    for metadata, reading in zip(others, readings[len(own) :], strict=True):
        if isinstance(reading, Gone):
            return False
        result.neighbours.append(Neighbour(metadata.path.rpartition("/")[0], reading))
    pins = _collect_pins(result, reader.keys)
    for file, reading in zip(found, readings[: len(own)], strict=True):
        if isinstance(reading, Gone):
            return False
        key = file.directory_key
        matching = [each.pin for each in pins if each.covers(key)]
        result.snapshots[key] = FoundSnapshot(
            file.path.rpartition("/")[0],
            key,
            file.root,
            reading,
            tuple(by_directory[key]),
            file.entry.modified,
            frozenset(tag for pin in matching for tag in pin.tags),
            next((pin for pin in matching if not pin.tags), None),
        )
    result.lost_pins = [each for each in pins if _is_lost(each, result, reader.keys)]
    return True


def _find_linked_size(link: FoundFile) -> int | None:
    """Return the size of the regular file to which a symbolic link leads; None for other links and special files."""
    if not is_local(link.root.location):
        return None
    try:
        status = Path(join(link.root.location, link.entry.name).path).stat()
    except (OSError, ValueError):
        return None
    return status.st_size if S_ISREG(status.st_mode) else None


def _find_above(result: Survey, keys: PathKeys) -> None:
    known: dict[str, Location] = {}
    for root in result.roots:
        found, notes = find_above(root.location)
        known |= {keys.directory_key(each.url): each for each in found}
        result.notes += notes
    result.above = [each for key, each in known.items() if not any(is_below(key, root.key) for root in result.roots)]


def _collect_pins(result: Survey, keys: PathKeys) -> list[FoundPin]:
    """Read all pin files in the roots and in directories below and above them."""
    directories = []
    for file in result.pin_files:
        names = file.entry.name.split("/")[:-2]
        directories.append((join(file.root.location, *names), file.directory_key.rpartition("/")[0], False))
    directories += [(each, keys.directory_key(each.url), True) for each in result.above]
    return [
        FoundPin(pin, directory, find_pinned_keys(key, pin.path, keys), is_above)
        for directory, key, is_above in directories
        for pin in read_pins(directory)
    ]


def _is_lost(found: FoundPin, result: Survey, keys: PathKeys) -> bool:
    """Return whether a pin names no snapshot.

    If the pin file is above the roots, the snapshot may also be beside the roots.
    """
    if any(found.covers(key) for key in (*result.snapshots, *(root.key for root in result.roots))):
        return False
    if not found.is_above or any(map(result.is_inside, found.keys)):
        return True
    return find_pinnable(found.directory, found.pin.path, keys) is None


def _to_metadata_file(file: FoundFile) -> MetadataFile:
    location = join(file.root.location, file.entry.name)
    return MetadataFile(file.path, file.directory_key, location, file.entry.size, file.entry.modified)


def require_whole_jobs(roots: Iterable[Root]) -> None:
    """Refuse roots inside the directory of a job: snapshots of the job outside the root need files of the root.

    Raises:
        UsageError: a root is a directory such as `shared` or `chk-3`, or is below one; the error names the directory of
            the job.
    """
    for root in roots:
        job = _find_job_above(root)
        if job is not None:
            raise UsageError(
                "the root is inside the directory of a job, and snapshots beside it need its files",
                where=Where(file=root.path),
                hint=f"Give the directory of the job as the root: {job}",
            )


def _find_job_above(root: Root) -> Location | None:
    """Return the directory of the job that contains a root; None if there is none. Links in the root are resolved."""
    location = root.location
    if is_local(location):
        location = Location(location.filesystem, root.key.removeprefix(_LOCAL) or "/")
    while "/" in location.path.strip("/") or (location.path.startswith("/") and location.path.strip("/")):
        name, above = location.name, parent(location)
        if CHECKPOINT_DIRECTORY.fullmatch(name) or (name in COMMON and _is_job(above)):
            return above
        location = above
    return None


def _is_job(directory: Location) -> bool:
    if JOB_DIRECTORY.fullmatch(directory.name):
        return True
    try:
        entries = list_directory(directory)
    except StateError:
        # If we may not list the directory, assume that it does not belong to a job, and that its subdirectory is called
        # `shared` or the like by chance.
        return False
    return any(each.is_directory and CHECKPOINT_DIRECTORY.fullmatch(each.location.name) for each in entries)


def find_parents(roots: Iterable[Root]) -> list[Location]:
    """Return the parents of roots that are directories of jobs: there, other jobs may have their directories, too."""
    locations = []
    for root in roots:
        location = root.location
        if is_local(location):
            location = Location(location.filesystem, root.key.removeprefix(_LOCAL))
        if "/" in location.path and _is_job(location):
            locations.append(parent(location))
    return list(dict.fromkeys(locations))


def list_beside(
    top: Location, roots: Iterable[Root], keys: PathKeys, known: Container[Location] = ()
) -> tuple[list[FileEntry], list[StateError]]:
    """List the `_metadata` files at most two levels below a directory, such as that with the checkpoints of all jobs.

    They may be in the directory itself, in any directory in it, and in checkpoint and savepoint directories in those.

    Args:
        top: the directory.
        roots: directories that are left out.
        keys: computes the keys by which directories are compared.
        known: `_metadata` files whose directories need not be listed.

    Returns:
        (the files; errors of directories that cannot be listed).

    Raises:
        StorageError: the storage fails temporarily.
    """
    errors: list[StateError] = []
    skipped = {root.key for root in roots}

    def list_one(directory: Location) -> list[FileEntry]:
        try:
            return list_directory(directory)
        except StateError as error:
            if isinstance(error, StorageError) and error.transient:
                raise
            if not isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                errors.append(error)
            return []

    entries = list_one(top)
    metadata = [each for each in entries if _is_metadata(each)]
    for is_last in (False, True):
        inner = [each.location for each in entries if _may_hold_snapshots(each, only_named=is_last)]
        inner = [each for each in inner if join(each, METADATA_FILE) not in known]
        inner = [each for each in inner if keys.directory_key(each.url) not in skipped]
        with Threads(READ_THREADS) as threads:
            entries = [entry for listed in threads.map(list_one, inner) for entry in listed]
        metadata += [each for each in entries if _is_metadata(each)]
    return metadata, errors


def find_neighbours(found: Survey, keys: PathKeys) -> list[MetadataFile]:
    """Find `_metadata` files outside the roots whose snapshots may need files of the roots.

    If a root is the directory of a job, these are the snapshots of jobs beside it. If a symbolic link below a root
    leads to a directory outside, these are the snapshots there.

    Args:
        found: survey with the listings of its roots. Notes on directories that cannot be listed are added to it.
        keys: computes the keys by which paths are compared.
    """
    files: dict[str, FileEntry] = {}
    errors: list[StateError] = []
    for top in dict.fromkeys((*find_parents(found.roots), *_find_linked(found))):
        listed, failed = list_beside(top, found.roots, keys)
        files.update((each.location.url, each) for each in listed)
        errors += failed
    if errors:
        more = f", and {len(errors) - 1:,} more" if len(errors) > 1 else ""
        found.notes.append(
            f"directories that cannot be listed may hold snapshots that need files of the roots: {errors[0]}{more}"
        )
    return [
        MetadataFile(
            str(each.location), keys.directory_key(parent(each.location).url), each.location, each.size, each.modified
        )
        for each in files.values()
    ]


def _find_linked(found: Survey) -> Iterable[Location]:
    """Yield the directories outside the roots to which symbolic links below the roots lead."""
    for link in found.links:
        location = join(link.root.location, link.entry.name)
        if is_local(location) and os.path.isdir(location.path):  # noqa: PTH112
            real = os.path.realpath(location.path)
            key = f"{_LOCAL}{real}"
            if not any(is_below(root.key, key) or is_below(key, root.key) for root in found.roots):
                yield Location(location.filesystem, real)


def _is_metadata(entry: FileEntry) -> bool:
    return entry.location.name == METADATA_FILE and not entry.is_directory


def _may_hold_snapshots(entry: FileEntry, *, only_named: bool) -> bool:
    name = entry.location.name
    if not entry.is_directory or name in (*COMMON, RETENTION_DIRECTORY):
        return False
    return not only_named or any(each.fullmatch(name) for each in (CHECKPOINT_DIRECTORY, SAVEPOINT_DIRECTORY))


_ATTEMPTS = 20
_PAUSE_SECONDS = 0.05
_DEPTH = 5
# Directories beside the checkpoints of a job that hold only files of state, possibly very many of them.
_WITHOUT_SNAPSHOTS = frozenset({"shared", "taskowned", "dstl", RETENTION_DIRECTORY})


class SnapshotWatch:
    """Finds snapshots that have appeared or vanished since the last look, and the files that the new ones need.

    A look lists directories that had no `_metadata` before, such as those of jobs, and asks for size and time of the
    known `_metadata` files. It does not list the directories of known snapshots, nor those of shared files. If a root
    is the directory of a job, jobs beside it are searched, too (see `find_neighbours`).

    Args:
        roots: the roots.
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
        """Forget `_metadata` files that the caller has deleted, so that they do not count as vanished."""
        for location in locations:
            self._known.pop(location, None)

    def look(self) -> tuple[dict[str, str], list[str]]:
        """Take another look.

        Returns:
            (keys of the files that new and changed snapshots need, each with the path of a `_metadata` that needs it;
            paths of the `_metadata` files that have vanished).

        Raises:
            IncompatibleError: the references of a new snapshot cannot be read, or it is not known whether a known
                snapshot still exists. Then nothing more may be deleted.
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
                    # Flink has already subsumed the new checkpoint. Its files are needed only if newer checkpoints
                    # reference them.
                    self._known.pop(entry.location, None)
                elif isinstance(reading, Unreadable):
                    # Try again: the file may not be complete yet.
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
        """Forget known `_metadata` files that have vanished or changed; return the paths of the vanished ones."""
        known = list(self._known.values())
        vanished = []
        for entry, now in zip(known, stat_files([entry.location for entry in known]), strict=True):
            if now is None:
                vanished.append(str(entry.location))
            elif isinstance(now, StorageError | MissingFileError):
                raise IncompatibleError(
                    f"it is not known whether a known snapshot still exists: {now}",
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
                # A directory was deleted after it was listed, probably by Flink: list again.
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
