"""Publication of a new snapshot: data files first, `_metadata` last, or nothing at all."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from state_pipelines.errors import MissingFileError, StateError, StorageError, TargetExistsError, UsageError, Where
from state_pipelines.storage.faults import request
from state_pipelines.storage.files import (
    create_file,
    exists,
    is_directory,
    list_directory,
    read_file,
    remove_directory,
    remove_file,
    replace_file,
)
from state_pipelines.storage.locations import Location, has_directories, is_below, is_local, join, parent
from state_pipelines.storage.options import canonicalize
from state_pipelines.storage.snapshot_location import METADATA_FILE, SnapshotLocation
from state_pipelines.storage.written_names import PENDING_METADATA, find_scratch_target, is_own_file

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

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
