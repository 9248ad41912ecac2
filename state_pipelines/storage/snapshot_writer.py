"""Publication of a new snapshot: data files first, `_metadata` last, or nothing at all.

The manifest of a snapshot that this package wrote: sizes and checksums of its files, in a file beside `_metadata`.
Flink reads only files that `_metadata` names, so that it ignores the manifest. docs/formats.md describes the format.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from state_pipelines.errors import (
    FormatError,
    MissingFileError,
    StateError,
    StorageError,
    TargetExistsError,
    UnsupportedVersionError,
    UsageError,
    Where,
)
from state_pipelines.storage.faults import request, translate, translating
from state_pipelines.storage.files import (
    CHECKSUM,
    RecordedFile,
    compute_checksum,
    create_file,
    exists,
    file_size,
    is_directory,
    list_directory,
    open_file,
    read_file,
    remove_directory,
    remove_file,
    replace_file,
)
from state_pipelines.storage.locations import Location, has_directories, is_below, is_local, join, parent
from state_pipelines.storage.resolution import (
    MANIFEST_FILE,
    PENDING_METADATA,
    canonicalize,
    find_path,
    find_scratch_target,
    is_own_file,
    locate_named,
    resolve,
)
from state_pipelines.storage.snapshot_listing import METADATA_FILE, SnapshotLocation

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from types import TracebackType

    from state_pipelines.storage.resolution import PathMapping

_PREFIX = "state-pipelines-scratch-"
_LOCK = ".lock"
"""File that the process locks to which a directory belongs; the lock ends with the process, however that ends."""

_PENDING_LOCK = ".lock.pending"
"""Its name before it is locked."""

_UNLOCKED_SECONDS = 3600
"""Age from which a directory without a lock, and without other files, counts as left over."""


@contextmanager
def open_local_scratch() -> Iterator[Path]:
    """Make a directory for temporary files of this machine, below `TMPDIR`; it is removed at the end.

    Those that processes have left that were killed are removed first.

    Raises:
        StorageError: this machine does not let the directory be made, or files be written in the block.
    """
    with translating(resolve(tempfile.gettempdir()), "write temporary files", writes=True):
        _remove_abandoned(Path(tempfile.gettempdir()))
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
        try:
            lock = os.open(directory / _PENDING_LOCK, os.O_CREAT | os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                # Only now: other processes take a directory whose lock file is not locked for one that is left over.
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
        # Once more, after an interrupt or a call that has failed; what stays goes with a later command.
        shutil.rmtree(directory, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    for directory in parent.glob(f"{_PREFIX}*"):
        # Those of other users stay, and those of processes that run.
        with suppress(OSError):
            if not (directory / _LOCK).exists():
                # Its process was killed before it had a lock, or is about to make one.
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
    # By this form of name, retention recognizes what a process that was killed has left.
    return join(parent(target) if directory is None else resolve(directory), f".{target.name}-{uuid.uuid4()}")


class ScratchDirectory:
    """A directory for the temporary files of an operation; leaving the block removes it.

    Where none is stated: beside a local target, whose volume has the space; for other targets in the directory for
    temporary files of this machine (`TMPDIR`), so that temporary files never go to an object store; but beside the
    target too where tasks run on other machines, which have nothing else in common.

    This is a class because the garbage collector closes a generator that was abandoned, for example by a job that
    died. Closing it would delete files in the middle of an unrelated call, and CPython 3.11 crashes when that call is
    `ContextVar.set`.

    Args:
        target: what the operation writes.
        directory: path or URL to use instead; a new directory is made inside.
        is_shared: tasks on other machines must reach the files.

    Raises:
        StateError: on leaving, when the directory cannot be removed.
    """

    def __init__(self, target: Location, directory: str | None = None, *, is_shared: bool = False) -> None:
        """Nothing is created before a file is."""
        is_here = directory is None and not is_shared and not is_local(target)
        self._local = open_local_scratch() if is_here else None
        self._beside = name_scratch(target, directory)

    def __enter__(self) -> Location:
        """Return the directory."""
        return self._beside if self._local is None else resolve(str(self._local.__enter__()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove the directory."""
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
        # Once more: one call may have failed that would not fail again.
        remove_directory(scratch)
    except BaseException:
        remove_directory(scratch)
        raise


def can_link(source: Location, directory: Location) -> bool:
    """Whether a file can have a second name in a directory, which need not be there yet: both lie on one local volume.

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
    """Give a file a second name (a hard link): both name the same bytes until one of them is removed.

    Where the source is a symbolic link, the file that it leads to gets the name.

    Raises:
        TargetExistsError: the target exists.
        OutOfReachError: the source is not in reach any more.
        StateError: the file system refuses, or the source was exchanged meanwhile.
    """
    with translating(target, "link the file", writes=True):
        Path(target.path).parent.mkdir(parents=True, exist_ok=True)
        with open_file(source) as file:
            wanted = os.fstat(file.fileno())
            try:
                # Not by the given name: the link itself would get the second one.
                os.link(find_path(file.fileno(), source.path), target.path, follow_symlinks=False)
            except FileExistsError:
                raise TargetExistsError("a file of this name exists already", where=Where(file=str(target))) from None
        found = os.lstat(target.path)
        if (found.st_dev, found.st_ino) != (wanted.st_dev, wanted.st_ino):
            os.unlink(target.path)  # noqa: PTH108 - as it was made
            raise StateError("the file was exchanged while it was linked", where=Where(file=str(source)))


MANIFEST_VERSION = 1
"""Version of the format that is written; a reader refuses a later one."""

# A million files.
_LARGEST = 256 << 20


@dataclass(frozen=True)
class Manifest:
    """Sizes and checksums of the files of a snapshot.

    Attributes:
        metadata: of `_metadata`; always with a checksum.
        files: of the data files in the directory of the snapshot, by name; without a checksum where the bytes did not
            pass through this package.
        referenced: of files elsewhere, as `_metadata` names them: their paths with the sizes that their handles state.
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
        data: its content.
        file: its name in errors.

    Raises:
        FormatError: it is damaged.
        UnsupportedVersionError: a later release wrote it.
    """
    where = Where(file=file)
    hint = "Without it, only the checksums inside the files can be checked"
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
        raise ValueError(each)
    return RecordedFile(name, size, checksum)


def _require_plain(name: str) -> str:
    """Refuse names that lead out of the directory: `verify` reads the files, and the manifest may be forged."""
    if re.fullmatch(r"[\w.-]+", name, re.ASCII) is None or name in {".", ".."}:
        raise ValueError(name)
    return name


def find_manifest(directory: Location, path_mapping: PathMapping) -> Manifest | None:
    """Read the manifest of the snapshot in a directory; None where there is none.

    Raises:
        FormatError: it is damaged.
        OutOfReachError: it is a link to a file that the snapshot may not name, or a device.
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
    """Writes a snapshot so that it is there as a whole or not at all.

    A context manager. Data files come first, `publish` writes `_metadata` last and in one step. Leaving the block
    without `publish`, or through an exception, removes everything.

    Args:
        target: a directory that does not exist yet or is empty.

    Attributes:
        written: names of files that were written by others, such as other processes; they are removed even where the
            storage does not list them.

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
        """Take the target directory."""
        try:
            request(self.target, "create the directory", self._enter, writes=True)
            # By its name, retention recognizes the files of a writer that was killed.
            replace_file(self._pending, self._token)
            self._marked = True
            self._refuse_published()
        except BaseException as error:
            # Also an interrupt: the block, which would remove the directory, has not begun.
            if self._taken:
                self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def require_taken(self) -> None:
        """Make sure that no other writer has taken the target since; before files of a fixed name are written.

        Two writers that find a target free at the same time both write the pending `_metadata`, each with a token of
        its own: the later one owns the target.

        Raises:
            TargetExistsError: another writer has taken the target, or published into it; its files stay.
            StorageError: the storage has lost what was written; the owner of the target is not known, and all stays.
        """
        try:
            token = read_file(self._pending)
        except MissingFileError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            # Gone because another writer has published; or the storage has lost it, and nobody else is here.
            self._refuse_published()
            return
        if token != self._token:
            # What is there is not ours to remove.
            self._taken = False
            if len(token) < len(self._token):
                raise StorageError(
                    f"the storage gives back {len(token)} of {len(self._token)} bytes that were written",
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
            TargetExistsError: somebody else has published into the target meanwhile.
        """
        location = self.locate(METADATA_FILE)
        if has_directories(location.filesystem):
            replace_file(self._pending, metadata)
            if exists(location):
                raise _target_exists(self.target)
            request(location, "publish the snapshot", self._rename, writes=True)
        else:
            # An object is there as a whole or not at all.
            try:
                self.write_file(METADATA_FILE, metadata)
            except TargetExistsError:
                raise _target_exists(self.target) from None
            self.published = True
            # The snapshot is complete; retention recognizes the rest by its name.
            with suppress(StateError):
                remove_file(self._pending)
        self.published = True
        return SnapshotLocation(self.target, location)

    def _rename(self) -> None:
        pending, location = self._pending, self.locate(METADATA_FILE)
        try:
            location.filesystem.mv(pending.path, location.path)
        except FileNotFoundError:
            # An attempt before this one may have done it, and its response was lost.
            if exists(pending) or not exists(location):
                raise

    def _remove(self) -> None:
        filesystem = self.target.filesystem
        if exists(self.locate(METADATA_FILE)):
            # Somebody else published here; what is below may be theirs.
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
        """Remove files that the storage has not listed, as stores do whose listings come late.

        Raises:
            StorageError: there were such files, so that others of other processes may stay.
        """
        unlisted = self.written.difference(listed)
        if not unlisted and (not self._marked or self._pending.name in listed):
            return
        for name in unlisted:
            remove_file(self.locate(name))
        # By this file, the rest is recognized.
        replace_file(self._pending, self._token)
        raise StorageError(
            "the storage does not list all that was written, so that some of it may stay",
            where=Where(file=str(self.target)),
            hint=_REMAINS,
        )


def require_free(target: Location) -> bool:
    """Refuse a target that holds something; nothing is written.

    Returns:
        Whether the target is there: an empty directory.

    Raises:
        TargetExistsError: it is a file, or a directory that is not empty. The error says where its files are those of
            a writer that was killed.
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
    """Remove what a writer that was killed has left: the files in `target`, and its scratch directories beside it.

    A directory is recognized by the file that `SnapshotWriter` creates first and renames last. Nothing is removed
    where that is missing, or anything else is inside that no writer creates: `_metadata`, a directory, a file of
    another name. Then scratch directories stay too: they may be those of a Spark write that has not reached its target.

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
    """Refuse a target inside the directory of the snapshot that is read, which would change it.

    Raises:
        UsageError: it is inside.
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
    """Names of the files in a directory; None where another directory is inside, which no writer creates."""
    entries = list_directory(directory)
    return None if any(each.is_directory for each in entries) else {each.location.name for each in entries}


def _are_partial(names: Collection[str]) -> bool:
    """Return whether files are those of a writer that was killed before it published."""
    others = [name for name in names if not PENDING_METADATA.fullmatch(name)]
    return len(others) < len(names) and all(map(is_own_file, others))


def _target_exists(target: Location) -> TargetExistsError:
    hint = "Choose a new directory; a snapshot is never overwritten"
    return TargetExistsError("the target holds something already", where=Where(file=str(target)), hint=hint)
