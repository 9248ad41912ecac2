"""Snapshots as directories: listed, published completely or not at all, and deleted; and their manifests.

* `resolve_snapshot`, `find_snapshots`: one snapshot, and all below a directory.
* `Manifest`, `write_manifest`, `read_manifest`: sizes and checksums of the files of a snapshot that this package wrote,
  in a file beside `_metadata`. Flink reads only files that `_metadata` names, so that it ignores the manifest.
  docs/formats.md describes the format.
* `SnapshotWriter`: the publication of a new snapshot; `delete_files`, `move_files`: removal.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import stat
import tempfile
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.arrow import ArrowFSWrapper

from state_pipelines.errors import (
    FormatError,
    MissingFileError,
    NotFoundError,
    OutOfReachError,
    StateError,
    StorageError,
    TargetExistsError,
    UnsupportedVersionError,
    UsageError,
    Where,
)
from state_pipelines.storage.files import (
    CHECKSUM,
    FileEntry,
    RecordedFile,
    compute_checksum,
    copy_inside,
    create_file,
    exists,
    file_size,
    is_directory,
    list_directory,
    make_directory,
    make_time,
    open_file,
    read_file,
    remove_directory,
    remove_file,
    replace_file,
    to_entry,
)
from state_pipelines.storage.listing import LIST_THREADS, list_objects
from state_pipelines.storage.locations import (
    NO_BUCKET,
    Location,
    Threads,
    has_directories,
    is_below,
    is_local,
    is_s3,
    join,
    parent,
    request,
    translate,
    translating,
)
from state_pipelines.storage.resolution import (
    CHECKPOINT_DIRECTORY,
    MANIFEST_FILE,
    PENDING_METADATA,
    canonicalize,
    find_path,
    find_scratch_target,
    is_own_file,
    locate_named,
    open_parent,
    resolve,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from types import TracebackType

    from fsspec import AbstractFileSystem

    from state_pipelines.storage.resolution import PathMapping

METADATA_FILE = "_metadata"
"""Name of the file that makes a directory a snapshot (`AbstractFsCheckpointStorageAccess.METADATA_FILE_NAME`)."""

MOST_METADATA = 2 << 30
"""Maximum bytes of a `_metadata` file; 100 operators with 10,000 handles each take a tenth of it."""


@dataclass(frozen=True)
class SnapshotLocation:
    """Location of a snapshot.

    Attributes:
        directory: the exclusive directory; relative state handles start there.
        metadata: the `_metadata` file.
    """

    directory: Location
    metadata: Location


def resolve_snapshot(path: str, **storage_options: Any) -> SnapshotLocation:
    """Find the location of a snapshot, given its directory or its metadata file.

    As in `AbstractFsCheckpointStorageAccess.resolveCheckpointPointer`, any file is regarded as the metadata, and its
    directory as the exclusive directory.

    Raises:
        NotFoundError: nothing is there, or a directory without `_metadata`.
        UsageError: see `resolve`.
    """
    location = resolve(path, **storage_options)
    inside = join(location, METADATA_FILE)
    if exists(inside):
        return SnapshotLocation(location, inside)
    where = Where(file=str(location))
    if not exists(location):
        raise NotFoundError("nothing is there", where=where, hint="Give the directory of a snapshot or its _metadata")
    if is_directory(location):
        hint = "Give the directory that holds it (chk-…, savepoint-…); without the file a snapshot was never completed"
        raise NotFoundError("the directory has no _metadata", where=where, hint=hint)
    return SnapshotLocation(parent(location), location)


def read_metadata_file(path: str, **storage_options: Any) -> tuple[SnapshotLocation, bytes]:
    """Find a snapshot and read its metadata file, in one request where `path` is its directory or metadata file.

    Arguments and errors as for `resolve_snapshot`.
    """
    location = resolve(path, **storage_options)
    if location.name == METADATA_FILE:
        wanted = SnapshotLocation(parent(location), location)
    else:
        wanted = SnapshotLocation(location, join(location, METADATA_FILE))
    try:
        return wanted, read_metadata_bytes(wanted.metadata)
    except MissingFileError as error:
        if not isinstance(error.__cause__, FileNotFoundError | NotADirectoryError | IsADirectoryError):
            raise
        if error.what == NO_BUCKET:
            raise
    found = resolve_snapshot(path, **storage_options)
    return found, read_metadata_bytes(found.metadata)


def read_metadata_bytes(location: Location) -> bytes:
    """Read a `_metadata` file.

    Raises:
        FormatError: the file has more than `MOST_METADATA` bytes.
        MissingFileError: there is no such file, or it is a device, a pipe or a link to one.
        StorageError: the storage fails.
    """
    return read_file(location, most=MOST_METADATA)


RETENTION_DIRECTORY = "_retention"
"""Directory at the top of a root that belongs to retention: pins, audit logs, quarantined files. Holds no snapshots."""

# Directories of a job that have only files of state and no snapshots, possibly very many files
# (`AbstractFsCheckpointStorageAccess.CHECKPOINT_SHARED_STATE_DIR`, `CHECKPOINT_TASK_OWNED_STATE_DIR`).
_WITHOUT_SNAPSHOTS = frozenset({"shared", "taskowned", RETENTION_DIRECTORY})


@dataclass(frozen=True)
class SnapshotEntry:
    """A snapshot in a listing; nothing of it has been read.

    Attributes:
        location: directory and `_metadata` file.
        size: bytes of its `_metadata`.
        modified: time when `_metadata` was written; None if the storage does not say.
    """

    location: SnapshotLocation
    size: int
    modified: datetime | None


def find_snapshots(root: Location, *, skip: Collection[str] = (), depth: int = 4) -> Iterator[SnapshotEntry]:
    """Find every snapshot (directory with a `_metadata` file) at or below `root`, but none inside of another snapshot.

    They are yielded in the order of their names.

    On S3 this is one recursive listing; it skips `shared`, `taskowned` and the rest of each snapshot if they have more
    objects than a page. On other remote storages the directories of a level are listed `LIST_THREADS` at a time.

    Args:
        root: directory at which the search starts; it need not exist.
        skip: paths, as the file system of `root` writes them, of directories that are not visited.
        depth: levels below `root` that are visited. Flink puts checkpoints at the second (job, checkpoint).

    Raises:
        MissingFileError: a directory below `root` cannot be listed.
        StorageError: the storage fails.
    """
    if is_local(root):
        yield from _find_local(root.filesystem, root.path, frozenset(skip), depth)
    elif is_s3(root.filesystem):
        yield from _find_objects(root, frozenset(skip), depth)
    elif is_directory(root):
        yield from _find_listed(root, frozenset(skip), depth)


def _find_listed(root: Location, skip: frozenset[str], depth: int) -> Iterator[SnapshotEntry]:
    found: list[SnapshotEntry] = []
    level = [root]
    with Threads(LIST_THREADS) as pool:
        while level:
            inner: list[Location] = []
            for directory, entries in zip(level, pool.map(list_directory, level), strict=True):
                files = [each for each in entries if each.location.name == METADATA_FILE and not each.is_directory]
                found += [
                    SnapshotEntry(SnapshotLocation(directory, each.location), each.size, each.modified)
                    for each in files
                ]
                if not files:
                    inner += [each.location for each in entries if each.is_directory]
            level = [each for each in inner if each.name not in _WITHOUT_SNAPSHOTS and each.path not in skip]
            level, depth = level if depth else [], depth - 1
    yield from sorted(found, key=lambda entry: entry.location.directory.path.split("/"))


def _find_local(
    filesystem: AbstractFileSystem, directory: str, skip: frozenset[str], depth: int
) -> Iterator[SnapshotEntry]:
    """Find snapshots at or below a local directory, without asking for the sizes of state files."""
    location = Location(filesystem, directory)
    inner: list[str] = []
    with translating(location, "list the directory"):
        try:
            listed = os.scandir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return
        with listed:
            for entry in listed:
                if entry.is_dir():
                    if entry.name not in _WITHOUT_SNAPSHOTS and entry.path not in skip:
                        inner.append(entry.path)
                elif entry.name == METADATA_FILE:
                    status = entry.stat()
                    metadata = Location(filesystem, entry.path)
                    modified = make_time(status.st_mtime)
                    yield SnapshotEntry(SnapshotLocation(location, metadata), status.st_size, modified)
                    return
    if depth:
        for each in sorted(inner):
            yield from _find_local(filesystem, each, skip, depth - 1)


def _find_objects(root: Location, skip: frozenset[str], depth: int) -> Iterator[SnapshotEntry]:
    base = root.path.rstrip("/") + "/"
    skipped = {path.rstrip("/")[len(base) :] + "/" for path in skip if path.startswith(base)}
    found: set[str] = set()

    def leave_out(key: str) -> str | None:
        directories = key.split("/")[:-1]
        above = ""
        for level, name in enumerate(directories):
            above += name + "/"
            if name in _WITHOUT_SNAPSHOTS or level >= depth or above in skipped:
                return above
            # Only keys after `_metadata` are left out: a repeated listing of this range must find `_metadata` again.
            if above in found and key > above + METADATA_FILE:
                return above
        if key == above + METADATA_FILE:
            found.add(above)
        return None

    # Entries wait until no directory above them can turn out to be a snapshot by a `_metadata` that is listed later.
    waiting: list[tuple[str, SnapshotEntry]] = []
    last: str | None = None
    for each in list_objects(root, leave_out):
        key = each.path[len(base) :]
        directory, _, name = key.rpartition("/")
        if name == METADATA_FILE and (last is None or not _is_inside(directory, last)):
            last = directory
            location = Location(root.filesystem, f"{base}{directory}".rstrip("/"))
            metadata = Location(root.filesystem, each.path)
            waiting = [(inner, entry) for inner, entry in waiting if not _is_inside(inner, directory)]
            waiting.append((directory, SnapshotEntry(SnapshotLocation(location, metadata), each.size, each.modified)))
            if not directory:
                break
        while waiting and _is_settled(waiting[0][0], key):
            yield waiting.pop(0)[1]
    yield from (entry for _, entry in waiting)


def _is_inside(directory: str, other: str) -> bool:
    return not other or directory.startswith(other + "/")


def _is_settled(directory: str, key: str) -> bool:
    """Return whether the listing has passed the name of `_metadata` in all directories above `directory`."""
    above = directory
    while above:
        above = above.rpartition("/")[0]
        if (f"{above}/" if above else "") + METADATA_FILE > key:
            return False
    return True


_RECENT = timedelta(minutes=1)
"""Time after the completion of a checkpoint in which Flink may still be removing the checkpoint that it replaces."""

_LONGEST_WAIT = 2.0
_PAUSE = 0.1


def is_removed(directory: Location) -> bool:
    """Return whether a snapshot, of which a file is missing, has been deleted as a whole.

    Flink deletes shared files and `_metadata` concurrently (`SharedStateRegistry.unregisterUnusedState`,
    `CheckpointsCleaner`). So if a newer checkpoint has just been completed, this waits up to two seconds for Flink to
    delete `_metadata` too.

    Args:
        directory: directory of the snapshot.

    Raises:
        StorageError: the storage fails.
    """
    metadata = join(directory, METADATA_FILE)
    if not exists(metadata):
        # A snapshot that is read for its proof before it is published has only a pending `_metadata`.
        return not exists(join(directory, f"{METADATA_FILE}.pending"))
    if not _is_just_replaced(directory):
        return False
    until = time.monotonic() + _LONGEST_WAIT
    while time.monotonic() < until:
        time.sleep(_PAUSE)
        if not exists(metadata):
            return True
    return False


def _is_just_replaced(directory: Location) -> bool:
    own = CHECKPOINT_DIRECTORY.fullmatch(directory.name)
    if own is None:
        return False
    for each in find_snapshots(parent(directory), depth=1):
        other = CHECKPOINT_DIRECTORY.fullmatch(each.location.directory.name)
        is_recent = each.modified is not None and datetime.now(UTC) - each.modified < _RECENT
        if other is not None and int(other[1]) > int(own[1]) and is_recent:
            return True
    return False


_PREFIX = "state-pipelines-scratch-"
_LOCK = ".lock"
"""Name of the file in a directory that its process keeps locked; the lock ends with the process in any case."""

_PENDING_LOCK = ".lock.pending"
"""Name of the lock file before it is locked."""

_UNLOCKED_SECONDS = 3600
"""Age from which a directory without a lock, and without other files, counts as left over."""


@contextmanager
def open_local_scratch() -> Iterator[Path]:
    """Create a local directory for temporary files below `TMPDIR`; it is removed at the end of the block.

    Such directories that killed processes have left are removed first.

    Raises:
        StorageError: the directory cannot be created, or writing a file in the block has failed.
    """
    with translating(resolve(tempfile.gettempdir()), "write temporary files", writes=True):
        _remove_abandoned(Path(tempfile.gettempdir()))
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            lock = os.open(directory / _PENDING_LOCK, os.O_CREAT | os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                # The lock file gets its name only once it is locked, because other processes remove directories with a
                # lock file that is not locked.
                (directory / _PENDING_LOCK).rename(directory / _LOCK)
                yield directory
            finally:
                os.close(lock)
        finally:
            _remove(directory)


def _remove(directory: Path) -> None:
    try:
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        # Try again if an interrupt or an error has left something; a later command removes the rest.
        shutil.rmtree(directory, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    for directory in parent.glob(f"{_PREFIX}*"):
        # Errors are ignored: directories of other users and of running processes are not removed.
        with suppress(OSError):
            if not (directory / _LOCK).exists():
                # Without a lock, the process was killed before it created one, or is about to create it.
                if time.time() - directory.stat().st_mtime > _UNLOCKED_SECONDS:
                    (directory / _PENDING_LOCK).unlink(missing_ok=True)
                    directory.rmdir()
                continue
            lock = os.open(directory / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(lock)


def name_scratch(target: Location, directory: str | None = None) -> Location:
    """Name a new directory for temporary files, beside `target` or in `directory`; nothing is created."""
    # Retention recognizes directories that killed processes have left by such names.
    return join(parent(target) if directory is None else resolve(directory), f".{target.name}-{uuid.uuid4()}")


class ScratchDirectory:
    """A directory for the temporary files of an operation; leaving the block removes it.

    By default it is beside a local target, whose volume has the space. For other targets it is in `TMPDIR` of this
    machine, so that temporary files do not go to an object store; but beside the target if tasks run on other machines,
    since these share no other storage.

    This is a class because the garbage collector closes a generator that was abandoned, for example by a job that
    died. Closing it would delete files in the middle of an unrelated call, and CPython 3.11 crashes when that call is
    `ContextVar.set`.

    Args:
        target: target of the operation.
        directory: path or URL in which the new directory is created instead.
        is_shared: tasks on other machines must reach the files.

    Raises:
        StateError: on leaving, when the directory cannot be removed.
    """

    def __init__(self, target: Location, directory: str | None = None, *, is_shared: bool = False) -> None:
        """Choose the directory; it is not created before the block is entered or a file is written."""
        is_here = directory is None and not is_shared and not is_local(target)
        self._local = open_local_scratch() if is_here else None
        self._beside = name_scratch(target, directory)

    def __enter__(self) -> Location:
        """Return the directory for temporary files."""
        return self._beside if self._local is None else resolve(str(self._local.__enter__()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove the directory for temporary files."""
        if self._local is not None:
            self._local.__exit__(kind, error, traceback)
            return
        try:
            _remove_scratch(self._beside)
        except StateError as failure:
            if error is None:
                failure.add_note(f"Temporary files in {self._beside} could not be removed")
                raise
            error.add_note(f"Temporary files in {self._beside} could not be removed: {failure}")


def _remove_scratch(scratch: Location) -> None:
    try:
        remove_directory(scratch)
    except StateError:
        # Try again: the error may have been a temporary one.
        remove_directory(scratch)
    except BaseException:
        remove_directory(scratch)
        raise


def can_link(source: Location, directory: Location) -> bool:
    """Return whether a file can be hard-linked into a directory: both are on the same local volume.

    The directory need not exist.

    Raises:
        MissingFileError: no such file.
    """
    if not (is_local(source) and is_local(directory)):
        return False
    path = Path(directory.path).absolute()
    while not path.exists():
        path = path.parent
    try:
        return Path(source.path).stat().st_dev == path.stat().st_dev
    except OSError as error:
        raise translate(source, "open the file", error) from None


def link_file(source: Location, target: Location) -> None:
    """Create a hard link: a second name of a file.

    If the source is a symbolic link, the file to which it leads gets the name.

    Raises:
        TargetExistsError: the target exists.
        OutOfReachError: the source is not in reach any more.
        StateError: the file system refuses, or the source was replaced meanwhile.
    """
    with translating(target, "link the file", writes=True):
        Path(target.path).parent.mkdir(parents=True, exist_ok=True)
        with open_file(source) as file:
            wanted = os.fstat(file.fileno())
            try:
                # Link the opened file and not the given path, which may be a symbolic link: that link itself would get
                # the second name.
                os.link(find_path(file.fileno(), source.path), target.path, follow_symlinks=False)
            except FileExistsError:
                raise TargetExistsError("a file of this name exists already", where=Where(file=str(target))) from None
        found = os.lstat(target.path)
        if (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino):
            os.unlink(target.path)  # noqa: PTH108 - as it was made
            raise StateError("the file was replaced while a hard link to it was made", where=Where(file=str(source)))


MANIFEST_VERSION = 1
"""Version of the format that is written; readers raise an error for later versions."""

# Maximum bytes of a manifest; enough for a million files.
_LARGEST = 256 << 20


@dataclass(frozen=True)
class Manifest:
    """Sizes and checksums of the files of a snapshot.

    Attributes:
        metadata: size and checksum of `_metadata`.
        files: the data files in the directory of the snapshot, by name; without a checksum if their bytes did not pass
            through this package.
        referenced: files elsewhere: paths as in `_metadata`, with the sizes in their handles.
    """

    metadata: RecordedFile
    files: tuple[RecordedFile, ...]
    referenced: tuple[RecordedFile, ...] = ()


def write_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest; the inverse of `read_manifest`."""
    content = {
        "format": "state-pipelines-manifest",
        "version": MANIFEST_VERSION,
        "algorithm": CHECKSUM,
        "metadata": _to_json(manifest.metadata),
        "files": {each.name: _to_json(each) for each in manifest.files},
        "referenced": {each.name: _to_json(each) for each in manifest.referenced},
    }
    return json.dumps(content | {"checksum": _sign(content)}, indent=1).encode()


def _to_json(file: RecordedFile) -> dict[str, object]:
    return {"size": file.size} if file.checksum is None else {"size": file.size, "checksum": file.checksum}


def _sign(content: dict[str, Any]) -> str:
    return compute_checksum([json.dumps(content, sort_keys=True, separators=(",", ":")).encode()])


def read_manifest(data: bytes, file: str) -> Manifest:
    """Decode a manifest.

    Args:
        data: content of the manifest.
        file: name of the manifest, for errors.

    Raises:
        FormatError: the manifest is damaged.
        UnsupportedVersionError: a later release wrote it.
    """
    where = Where(file=file)
    hint = "Without the manifest, only the checksums inside the files can be checked"
    try:
        content = json.loads(data)
        signature = content.pop("checksum")
        version = content["version"]
        is_whole = signature == _sign(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FormatError("the manifest is damaged: it is not JSON with a checksum", where=where, hint=hint) from None
    if is_whole and version != MANIFEST_VERSION:
        what = f"the manifest has version {version}, this release reads {MANIFEST_VERSION}"
        raise UnsupportedVersionError(what, where=where, hint="Use the release that wrote the snapshot, or a later one")
    if not is_whole:
        what = "the manifest is damaged: it does not match its own checksum"
        raise FormatError(what, where=where, hint=hint)
    try:
        metadata = _from_json("_metadata", content["metadata"])
        if metadata.checksum is None:
            raise ValueError(metadata)
        return Manifest(
            metadata,
            tuple(_from_json(_require_plain(name), each) for name, each in content["files"].items()),
            tuple(_from_json(name, each) for name, each in content["referenced"].items()),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FormatError("the manifest does not have the fields of its version", where=where, hint=hint) from None


def _from_json(name: str, each: dict[str, Any]) -> RecordedFile:
    size, checksum = each["size"], each.get("checksum")
    if type(size) is not int or size < 0 or not isinstance(checksum, str | None):
        raise ValueError(f"size or checksum of {name!r}: {each}")
    return RecordedFile(name, size, checksum)


def _require_plain(name: str) -> str:
    """Return a name after checking that it does not lead out of the directory: the manifest may be forged."""
    if re.fullmatch(r"[\w.-]+", name, re.ASCII) is None or name in {".", ".."}:
        raise ValueError(f"{name!r} is not the name of a file in the directory of the manifest")
    return name


def find_manifest(directory: Location, path_mapping: PathMapping) -> Manifest | None:
    """Read the manifest of the snapshot in a directory; None if there is none.

    Raises:
        FormatError: the manifest is damaged.
        OutOfReachError: the manifest is a link to a file that the snapshot may not name, or a device.
        StorageError: the storage does not answer.
        UnsupportedVersionError: a later release wrote it.
    """
    location = locate_named(MANIFEST_FILE, directory, path_mapping, relative=True, handle="manifest")
    try:
        size = file_size(location)
        if size > _LARGEST:
            raise FormatError(
                f"the manifest has {size:,} bytes, more than one can have", where=Where(file=str(location))
            )
        data = read_file(location)
    except MissingFileError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return None
        raise
    return read_manifest(data, str(location))


_PENDING_SUFFIX = ".pending"
_REMAINS = "If nothing else writes there, repeat the command with --discard-partial, which removes the rest"


class SnapshotWriter:
    """Writes a snapshot so that it exists as a whole or not at all.

    It is a context manager. Data files are written first; `publish` writes `_metadata` last and in one step. Leaving
    the block without `publish`, or with an exception, removes everything.

    Args:
        target: a directory that does not exist yet or is empty.

    Attributes:
        written: names of the files that were written. Callers add files of other processes, so that they are removed
            even if the storage does not list them.

    Raises:
        TargetExistsError: on entering, when the target holds something.
    """

    def __init__(self, target: Location) -> None:
        """Remember the target; nothing is touched before the block is entered."""
        self.target = target
        self.published = False
        self.written: set[str] = set()
        self._existed = self._taken = self._marked = False
        self._token = uuid4().hex.encode()

    def __enter__(self) -> SnapshotWriter:
        """Take the target directory: write a pending `_metadata` with a token of this writer."""
        try:
            request(self.target, "create the directory", self._enter, writes=True)
            # Retention recognizes the target of a killed writer by the name of this file.
            replace_file(self._pending, self._token)
            self._marked = True
            self._refuse_published()
        except BaseException as error:
            # Clean up here, also after an interrupt: until `__enter__` has returned, `with` does not call `__exit__`.
            if self._taken:
                self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def require_taken(self) -> None:
        """Check that no other writer has taken the target since; to be called before writing files of a fixed name.

        Two writers that find a target free at the same time both write the pending `_metadata`, each with its own
        token. The last one to write it owns the target.

        Raises:
            TargetExistsError: another writer has taken the target, or published into it; its files stay.
            StorageError: the storage has lost bytes of the token, so that the owner is not known; nothing is removed.
        """
        try:
            token = read_file(self._pending)
        except MissingFileError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            # The pending file is gone: another writer has published and removed it, or the storage has lost it.
            self._refuse_published()
            return
        if token != self._token:
            # The target is not this writer's any more. Leaving the block must not remove the other writer's files.
            self._taken = False
            if len(token) < len(self._token):
                raise StorageError(
                    f"the storage returns {len(token)} of {len(self._token)} bytes that were written",
                    where=Where(file=str(self._pending)),
                    hint=f"Nothing was published. {_REMAINS}",
                )
            raise _target_exists(self.target)

    def _refuse_published(self) -> None:
        if exists(self.locate(METADATA_FILE)):
            self._taken = False
            with suppress(StateError):
                remove_file(self._pending)
            raise _target_exists(self.target)

    @property
    def _pending(self) -> Location:
        return self.locate(METADATA_FILE + _PENDING_SUFFIX)

    def _enter(self) -> None:
        filesystem, path = self.target.filesystem, self.target.path
        self._existed = require_free(self.target)
        if has_directories(filesystem):
            try:
                filesystem.makedirs(path, exist_ok=self._existed)
            except FileExistsError:
                raise _target_exists(self.target) from None
        self._taken = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove everything unless the snapshot was published."""
        if self.published or not self._taken:
            return
        try:
            request(self.target, "remove what was written", self._remove, writes=True)
        except StateError as failure:
            if error is None:
                raise
            error.add_note(f"What was written to {self.target} could not be removed: {failure}")

    def locate(self, name: str) -> Location:
        """Return the location of the data file `name`; other processes may write it with `create_file`."""
        return join(self.target, name)

    def write_file(self, name: str, data: bytes) -> None:
        """Write one data file."""
        self.written.add(name)
        with create_file(self.locate(name)) as file:
            file.write(data)

    def publish(self, metadata: bytes) -> SnapshotLocation:
        """Write `_metadata`; from then on the directory is a snapshot.

        Raises:
            TargetExistsError: another writer has published into the target meanwhile.
        """
        location = self.locate(METADATA_FILE)
        if has_directories(location.filesystem):
            replace_file(self._pending, metadata)
            if exists(location):
                raise _target_exists(self.target)
            request(location, "publish the snapshot", self._rename, writes=True)
        else:
            # `_metadata` is not written as a pending file and renamed, since object stores show only complete objects.
            try:
                self.write_file(METADATA_FILE, metadata)
            except TargetExistsError:
                raise _target_exists(self.target) from None
            self.published = True
            # The snapshot is complete. If the pending file cannot be removed, retention recognizes it by its name.
            with suppress(StateError):
                remove_file(self._pending)
        self.published = True
        return SnapshotLocation(self.target, location)

    def _rename(self) -> None:
        pending, location = self._pending, self.locate(METADATA_FILE)
        try:
            location.filesystem.mv(pending.path, location.path)
        except FileNotFoundError:
            # An earlier attempt may have renamed the file although its response was lost.
            if exists(pending) or not exists(location):
                raise

    def _remove(self) -> None:
        filesystem = self.target.filesystem
        if exists(self.locate(METADATA_FILE)):
            # Another writer has published here, so the files may be those of its snapshot.
            return
        listed = None if has_directories(filesystem) else self._list_written()
        with suppress(FileNotFoundError):
            filesystem.rm(self.target.path, recursive=True)
        if listed is not None:
            self._remove_unlisted(listed)
        if self._existed:
            filesystem.makedirs(self.target.path, exist_ok=True)

    def _list_written(self) -> set[str]:
        try:
            return {each.location.name for each in list_directory(self.target)}
        except MissingFileError:
            return set()

    def _remove_unlisted(self, listed: Collection[str]) -> None:
        """Remove written files that are not in the listing, because the listings of some stores are not up to date.

        Raises:
            StorageError: there were such files, so unlisted files of other processes may be left as well.
        """
        unlisted = self.written.difference(listed)
        if not unlisted and (not self._marked or self._pending.name in listed):
            return
        for name in unlisted:
            remove_file(self.locate(name))
        # Retention recognizes a directory with leftover files by this file.
        replace_file(self._pending, self._token)
        raise StorageError(
            "the storage does not list all that was written, so that files may be left there",
            where=Where(file=str(self.target)),
            hint=_REMAINS,
        )


def require_free(target: Location) -> bool:
    """Check that a target does not exist or is an empty directory; nothing is written.

    Returns:
        Whether the target exists.

    Raises:
        TargetExistsError: the target is a file, or a directory that is not empty. The error says if a killed writer has
            left the files.
        StorageError: the storage refuses.
    """
    if not exists(target):
        return False
    if is_directory(target):
        names = _list_names(target)
        if names is not None and not names:
            return True
        if names is not None and _are_partial(names):
            raise TargetExistsError(
                "the target holds the files of a command that was killed, or still runs; it is no snapshot",
                where=Where(file=str(target)),
                hint="If nothing writes there any more, remove the directory; commands do so with --discard-partial",
            )
    raise _target_exists(target)


def discard_partial(target: Location) -> int:
    """Remove what a killed writer has left: the files in `target`, and its scratch directories in the same directory.

    Such a target has the file that `SnapshotWriter` creates first and renames last. If that file is missing, or the
    directory has something that no writer leaves (`_metadata`, a directory, a file of another name), nothing is
    removed. Scratch directories are not removed either then: they may be those of a Spark write that has not reached
    its target yet.

    Returns:
        Number of files and directories that were removed.

    Raises:
        StorageError: the storage refuses.
    """
    names = _list_names(target) if is_directory(target) else None
    if not names or not _are_partial(names):
        return 0
    remove_directory(target)
    removed = len(names)
    for each in list_directory(parent(target)):
        if each.is_directory and find_scratch_target(each.location.name) == target.name:
            removed += 1
            remove_directory(each.location)
    return removed


def require_outside(target: Location, directory: Location) -> None:
    """Check that a target is not inside the directory of the snapshot that is read, which writing would change.

    Raises:
        UsageError: the target is inside.
    """
    inner, outer = (
        os.path.realpath(each.path) if is_local(each) else canonicalize(str(each)) for each in (target, directory)
    )
    if inner != outer and is_below(inner, outer):
        raise UsageError(
            f"the target is inside the snapshot {directory}, which stays as it is",
            where=Where(file=str(target)),
            hint="Choose a directory outside of it",
        )


def _list_names(directory: Location) -> set[str] | None:
    """Return the names of the files in a directory; None if it contains a directory, which no writer creates."""
    entries = list_directory(directory)
    return None if any(each.is_directory for each in entries) else {each.location.name for each in entries}


def _are_partial(names: Collection[str]) -> bool:
    """Return whether files are those of a writer that was killed before it published."""
    others = [name for name in names if not PENDING_METADATA.fullmatch(name)]
    return len(others) < len(names) and all(map(is_own_file, others))


def _target_exists(target: Location) -> TargetExistsError:
    hint = "Choose a new directory; a snapshot is never overwritten"
    return TargetExistsError("the target holds something already", where=Where(file=str(target)), hint=hint)


_THREADS = 16
_BULK_SIZE = 1000
# `rm` of fsspec expands these characters in paths, and would remove every file that matches.
_PATTERN_CHARACTERS = frozenset("*?[")

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def stat_files(
    locations: Sequence[Location], roots: Sequence[Location] | None = None
) -> list[FileEntry | StateError | None]:
    """Return size and time of files, read from the storage and not from a cache.

    Args:
        locations: the files.
        roots: for each file, a directory above it, below which no symbolic link is followed; by default the directory
            of the file.

    Returns:
        For each location: the entry, None if the file does not exist, or the error of the storage (`StorageError`,
        `MissingFileError`). Directories and symbolic links are not files; for them it is a `StateError`.
    """
    return _map(_stat_file, _with_roots(locations, roots))


def is_same_time(first: datetime | None, second: datetime | None) -> bool:
    """Return whether two times of a file are equal, up to whole seconds if one has no fraction, as on some storages."""
    if first is None or second is None:
        return first is second
    if 0 in (first.microsecond, second.microsecond):
        return first.replace(microsecond=0) == second.replace(microsecond=0)
    return first == second


def delete_files(locations: Sequence[Location], roots: Sequence[Location] | None = None) -> list[StateError | None]:
    """Delete files; a missing file counts as deleted.

    Object stores delete many files per request. What they report about single files differs and is partly dropped by
    their fsspec packages, so the storage is asked afterwards which files are still there.

    Args:
        locations: the files.
        roots: as for `stat_files`.

    Returns:
        For each location: None, or the error because of which the file may still exist.
    """
    bulk: dict[AbstractFileSystem, list[Location]] = {}
    for each in locations:
        if _deletes_in_bulk(each):
            bulk.setdefault(each.filesystem, []).append(each)
    for filesystem, found in bulk.items():
        for start in range(0, len(found), _BULK_SIZE):
            _delete_in_bulk(filesystem, found[start : start + _BULK_SIZE])
    files = _with_roots(locations, roots)
    if not bulk:
        return [_delete_file(each) for each in files]
    left = [state is not None for state in stat_files(locations, roots)]
    errors = iter(_map(_delete_file, [each for each, is_left in zip(files, left, strict=True) if is_left]))
    return [next(errors) if is_left else None for is_left in left]


def move_file(source: Location, target: Location, root: Location) -> None:
    """Move a file within a file system. Local files are renamed; others are copied, then the source is deleted.

    Args:
        source: the file.
        target: new location of the file; missing directories are created.
        root: a directory above both, below which no symbolic link is followed.

    Raises:
        TargetExistsError: another file is at the target.
        OutOfReachError: there is a symbolic link between the root and source or target.
        StateError: the storage refuses, or the copy has another size; the source still exists.
    """
    if is_local(source):
        with (
            translating(source, "move the file", writes=True),
            open_parent(source, root) as (old, name),
            open_parent(target, root, make=True) as (new, new_name),
        ):
            if _is_there(new_name, new):
                raise _has_target(target)
            os.rename(name, new_name, src_dir_fd=old, dst_dir_fd=new)
        return
    wanted, found = stat_files([source, target])
    if not isinstance(wanted, FileEntry):
        raise wanted or StateError("the file does not exist", where=Where(file=str(source)))
    # A file of the same size may be the copy of an interrupted move.
    if isinstance(found, FileEntry) and found.size != wanted.size:
        raise _has_target(target)
    if has_directories(target.filesystem):
        make_directory(parent(target))
    copy_inside(source, target, wanted.size)
    (copied,) = stat_files([target])
    if not isinstance(copied, FileEntry) or copied.size != wanted.size:
        raise StateError("the copy is not complete", where=Where(file=str(target)), hint="The original was kept")
    (error,) = delete_files([source])
    if error is not None:
        raise error


def move_files(moves: Sequence[tuple[Location, Location, Location]]) -> list[StateError | None]:
    """Move several files, given the arguments of `move_file` for each; return None or the error for each."""
    return _map(_try_to_move, moves)


def remove_empty_directory(location: Location, root: Location | None = None) -> bool:
    """Remove a directory if it is empty; return whether it was removed.

    Object stores have no directories. Arrow's file systems can remove a directory only with its content, so a file that
    is created meanwhile would be lost; on these the directory is not removed.

    Args:
        location: the directory.
        root: a directory above it, below which no symbolic link is followed; by default its parent.
    """
    filesystem = location.filesystem
    if is_local(location):
        with suppress(OSError, OutOfReachError), open_parent(location, root or parent(location)) as (directory, name):
            os.rmdir(name, dir_fd=directory)
            return True
        return False
    if isinstance(filesystem, ArrowFSWrapper) or not has_directories(filesystem):
        return False
    try:
        if list_directory(location):
            return False
        filesystem.rmdir(location.path)
    except (OSError, StateError):
        return False
    return True


def _with_roots(locations: Sequence[Location], roots: Sequence[Location] | None) -> list[tuple[Location, Location]]:
    return list(zip(locations, map(parent, locations) if roots is None else roots, strict=True))


def _is_there(name: str, directory: int) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _stat_file(file: tuple[Location, Location]) -> FileEntry | StateError | None:
    location, root = file

    def look() -> dict[str, object] | None:
        if is_local(location):
            return _stat_local(location, root)
        location.filesystem.invalidate_cache(parent(location).path)
        try:
            info: dict[str, object] = location.filesystem.info(location.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return info

    try:
        info = request(location, "ask for size and time of the file", look)
    except StateError as error:
        return error
    if info is None:
        return None
    if info["type"] != "file" or info.get("islink"):
        return StateError("this is not a plain file", where=Where(file=str(location)))
    return to_entry(location.filesystem, info)


def _stat_local(location: Location, root: Location) -> dict[str, object] | None:
    """Return type, size and time of a local file under fsspec's names; symbolic links are not followed."""
    try:
        with open_parent(location, root) as (directory, name):
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    kind = "file" if stat.S_ISREG(status.st_mode) else "other"
    return {"name": location.path, "type": kind, "size": status.st_size, "mtime": status.st_mtime}


def _delete_in_bulk(filesystem: AbstractFileSystem, files: Sequence[Location]) -> None:
    # If this request fails, the files are deleted one by one afterwards, which gives an error for each.
    with suppress(StateError, FileNotFoundError):
        request(files[0], "delete files", lambda: filesystem.rm([each.path for each in files]), writes=True)


def _delete_file(file: tuple[Location, Location]) -> StateError | None:
    location, root = file

    def delete() -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            if not is_local(location):
                location.filesystem.rm_file(location.path)
                return
            with open_parent(location, root) as (directory, name):
                os.unlink(name, dir_fd=directory)

    try:
        request(location, "delete the file", delete, writes=True)
    except StateError as error:
        return error
    return None


def _try_to_move(move: tuple[Location, Location, Location]) -> StateError | None:
    try:
        move_file(*move)
    except StateError as error:
        return error
    return None


def _deletes_in_bulk(location: Location) -> bool:
    return isinstance(location.filesystem, AsyncFileSystem) and not _PATTERN_CHARACTERS & set(location.path)


def _map(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    if len(items) < 2 or is_local(_location_of(items[0])):
        return [function(item) for item in items]
    with Threads(_THREADS) as pool:
        return list(pool.map(function, items))


def _location_of(item: object) -> Location:
    location = item[0] if isinstance(item, tuple) else item
    assert isinstance(location, Location)
    return location


def _has_target(target: Location) -> TargetExistsError:
    return TargetExistsError("a file of this name exists already", where=Where(file=str(target)))
