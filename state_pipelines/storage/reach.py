"""Reach: the directories in which the files that a snapshot names may be.

`_metadata` names files by relative and by absolute paths. It may come from somebody else, so that a path in it is not
permission to read what is there. `locate_named` decides about every path that a handle names, before anything of it is
opened, measured or copied. Allowed are

* the directory of the snapshot;
* beside a checkpoint `chk-N`, the directories that the checkpoints of its job share (`COMMON`) and the other `chk-N`;
* where that is below a directory named by a job id, the same directories of the jobs beside it: a job that is restored
  in CLAIM mode goes on using the files of the one before (`AbstractFsCheckpointStorageAccess`,
  `CheckpointCoordinator.restoreSavepoint`);
* the new directories of a path mapping, and the roots that the user allows.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from fsspec.implementations.local import LocalFileSystem

from state_pipelines.errors import FormatError, OutOfReachError, Where
from state_pipelines.storage.local_directories import find_path, resolve_directory
from state_pipelines.storage.locations import Location, is_below, is_local, is_plain_name, join, parent, protocols
from state_pipelines.storage.options import canonicalize
from state_pipelines.storage.resolution import find_scheme, has_valid_host, normalize, resolve, resolve_beside
from state_pipelines.storage.written_names import CHECKPOINT_DIRECTORY, JOB_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from state_pipelines.storage.path_mapping import PathMapping

COMMON = ("shared", "taskowned", "dstl")
"""Directories of a job whose files belong to several checkpoints (`FsStateChangelogStorage` writes `dstl`)."""

_LOCAL = ("file", "local")
_HINT = (
    "If its files were moved, give their new location with --map FROM=TO; if you trust the snapshot, allow a directory "
    "above the file with --allow-root DIR"
)


def locate_named(path: str, directory: Location, path_mapping: PathMapping, *, relative: bool, handle: str) -> Location:
    """Return the file that a handle names.

    Symbolic links are followed before it is decided whether the file is in reach. Paths with `..` are refused: Flink
    writes none.

    Args:
        path: the path of the handle.
        directory: directory of the snapshot.
        path_mapping: current directories of absolute paths, and the allowed roots.
        relative: the path starts at `directory`.
        handle: class of the handle, for errors.

    Raises:
        FormatError: the path is not one that Flink writes.
        OutOfReachError: the file is outside all allowed directories, or is a device.
        UsageError: the storage of an allowed root cannot be reached.
    """
    try:
        if "\0" in path or not path or not _is_encodable(path, directory) or (not relative and "::" in path):
            # No file system takes the first ones; fsspec would take the last for a chain of file systems.
            raise _Malformed
        location = _find_file(path, directory, path_mapping, relative=relative)
        if is_local(location):
            _require_file(location, directory, path_mapping)
            location = replace(location, reach=_Reach(directory, path_mapping, handle))
    except _Malformed:
        raise FormatError("the path of a state handle is not one of Flink's", where=Where(file=path)) from None
    except _Refused as refused:
        raise _to_error(refused, path, handle) from None
    return location


@dataclass(frozen=True)
class _Reach:
    """The directories in which the local files of a snapshot may be, and the class of a handle; see `Reach`."""

    directory: Location
    path_mapping: PathMapping
    handle: str

    def require(self, path: str, descriptor: int) -> None:
        """See `Reach`."""
        try:
            _require_local(find_path(descriptor, path), self.directory, self.path_mapping)
        except _Refused as refused:
            raise _to_error(refused, path, self.handle) from None


def _to_error(refused: _Refused, path: str, handle: str) -> OutOfReachError:
    return OutOfReachError(f"a {handle} names {refused.args[0]}", where=Where(file=path), hint=refused.args[1])


def _is_encodable(path: str, directory: Location) -> bool:
    """Return whether a path can be sent to a file system: Java's texts can have halves of characters."""
    if path.isascii():
        return True
    try:
        # Python reads bytes of local names that are not UTF-8 as some of these halves.
        path.encode(errors="surrogateescape" if is_local(directory) else "strict")
    except UnicodeEncodeError:
        return False
    return True


class _Malformed(Exception):
    """A path that no file system takes."""


class _Refused(Exception):
    """A path that is out of reach: how it is, and a hint for the user."""


def stays_below(directory: Location, roots: Iterable[Location]) -> bool:
    """Return whether a directory is one of some roots or below one, after symbolic links are followed."""
    if _has_parents(directory.path, directory):
        return False
    path = os.path.realpath(directory.path) if is_local(directory) else directory.path
    return any(
        root.filesystem is directory.filesystem
        and is_below(path, os.path.realpath(root.path) if is_local(root) else root.path)
        for root in roots
    )


def name_named(path: str, directory: Location, path_mapping: PathMapping, *, relative: bool) -> Location | None:
    """Return the file that a handle names, in reach or not, to compare it with others; None on another storage.

    Nothing may be done with the file itself; arguments as for `locate_named`.
    """
    if relative:
        return join(directory, path)
    normal = normalize(path_mapping.apply(path))
    if find_scheme(normal) not in protocols(directory.filesystem):
        return None
    found = resolve_beside(normal, directory)
    return Location(found.filesystem, os.path.normpath(found.path)) if is_local(found) else found


def _find_file(path: str, directory: Location, path_mapping: PathMapping, *, relative: bool) -> Location:
    if relative:
        if path.startswith("/") or _has_parents(path, directory):
            what = f"the relative path {path!r} does not stay below the snapshot's directory"
            raise FormatError(what, where=Where(file=str(directory)))
        return join(directory, path)
    above, _, name = path.rpartition("/")
    if above and is_plain_name(name):
        # Snapshots name thousands of files in few directories.
        return join(_find_directory(above, directory, path_mapping), name)
    return _find(path, directory, path_mapping)


@lru_cache(maxsize=256)
def _find_directory(above: str, directory: Location, path_mapping: PathMapping) -> Location:
    """The directory of files that have plain names."""
    return parent(_find(f"{above}/file", directory, path_mapping))


def _find(path: str, directory: Location, path_mapping: PathMapping) -> Location:
    """The location of an absolute path; refused here where it is not local, for local ones `_require_file` decides."""
    normal = normalize(path_mapping.apply(path))
    if not has_valid_host(normal):
        raise _Malformed
    own = directory.filesystem
    if find_scheme(normal) not in protocols(own):
        if find_scheme(normal) not in _LOCAL:
            named = map(canonicalize, path_mapping.targets)
            _require_below(canonicalize(normal), None, named, is_refused=_has_parents(normal))
        location = resolve(normal)
        if find_scheme(normal) in _LOCAL and not is_local(location):
            raise _Refused("a URL that is not a file", "Do not use this snapshot")
        return location
    # The same storage with the same options, whatever host the path names.
    location = Location(own, str(own._strip_protocol(normal)))
    if not is_local(location):
        targets = (each for each in map(normalize, path_mapping.targets) if find_scheme(each) in protocols(own))
        roots = (str(own._strip_protocol(each)) for each in targets)
        _require_below(location.path, directory.path, roots, is_refused=_has_parents(location.path))
    return location


def _has_parents(path: str, directory: Location | None = None) -> bool:
    if directory is not None and is_local(directory):
        return ".." in path.split("/")
    # Servers of HTTP decode names, and end a path at a query or fragment.
    return any(re.split(r"[?#;]", name)[0] == ".." for name in re.split(r"[/\\]", unquote(path)))


def _require_file(location: Location, directory: Location, path_mapping: PathMapping) -> None:
    """Refuse a local file outside the allowed directories, and one that is a device."""
    path = location.path
    above, _, name = path.rpartition("/")
    real = f"{resolve_directory(above or '/').rstrip('/')}/{name}"
    try:
        kind = os.lstat(path).st_mode
        if stat.S_ISLNK(kind):
            real = os.path.realpath(path)
            kind = Path(path).stat().st_mode
    except (OSError, ValueError):
        # A file that is not there: reading it tells so, if it may.
        kind = stat.S_IFREG
    _require_local(real, directory, path_mapping)
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise _Refused("a device or pipe, not a file", "Do not use this snapshot")


def _require_local(real: str, directory: Location, path_mapping: PathMapping) -> None:
    """Refuse the path of a local file, without symbolic links, outside the allowed directories."""
    own = resolve_directory(directory.path) if is_local(directory) else None
    _require_below(real, own, _follow_roots(path_mapping))


@lru_cache(maxsize=256)
def _follow_roots(path_mapping: PathMapping) -> tuple[str, ...]:
    return tuple(_follow(each) for each in map(normalize, path_mapping.targets) if find_scheme(each) in _LOCAL)


@lru_cache(maxsize=256)
def _follow(root: str) -> str:
    # As `resolve` understands it, with `~`.
    return resolve_directory(str(LocalFileSystem._strip_protocol(root)))


def _require_below(path: str, own: str | None, roots: Iterable[str], *, is_refused: bool = False) -> None:
    if is_refused or not (
        any(is_below(path, each) for each in roots) or (own is not None and _is_own(path, own.rstrip("/")))
    ):
        raise _Refused("a file outside the directories that this snapshot may name", _HINT)


def _is_own(path: str, own: str) -> bool:
    """Return whether a file belongs to the snapshot in the directory `own`, or to its job or the jobs beside it."""
    if is_below(path, own):
        return True
    job, _, name = own.rpartition("/")
    if not CHECKPOINT_DIRECTORY.fullmatch(name):
        return False
    root, _, job_id = job.rpartition("/")
    if job and is_below(path, job):
        return _is_layout(path[len(job) + 1 :].split("/"))
    if root and JOB_DIRECTORY.fullmatch(job_id) and is_below(path, root):
        other, *rest = path[len(root) + 1 :].split("/")
        return JOB_DIRECTORY.fullmatch(other) is not None and _is_layout(rest)
    return False


def _is_layout(names: Sequence[str]) -> bool:
    return len(names) > 1 and (names[0] in COMMON or CHECKPOINT_DIRECTORY.fullmatch(names[0]) is not None)
