"""Locations: a path on a file system that fsspec reaches."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from fsspec.implementations.local import LocalFileSystem

from state_pipelines.redaction import redact_path

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_SINGLE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
_PLAIN_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
# Object stores, where directories exist only as beginnings of names.
_FLAT = frozenset({"s3", "gs", "gcs", "abfs", "az"})


class Reach(Protocol):
    """The directories in which a file may be."""

    def require(self, path: str, descriptor: int) -> None:
        """Refuse an open local file that is in none of them; `path` is that by which it was opened."""


@dataclass(frozen=True)
class Location:
    """A path on a file system; its text is the plain path when local, else the URL.

    Attributes:
        filesystem: the fsspec file system.
        path: path in the form of that file system.
        reach: of the snapshot that names this local file; the file is read only if it is in reach once it is open.
    """

    filesystem: AbstractFileSystem
    path: str
    reach: Reach | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        """The path for people and for error messages, without secrets."""
        return self.path if isinstance(self.filesystem, LocalFileSystem) else redact_path(self.url)

    @property
    def url(self) -> str:
        """The path with its scheme, as `resolve` takes it."""
        return str(self.filesystem.unstrip_protocol(self.path))

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]


def is_local(location: Location) -> bool:
    """Whether a location lies on this machine."""
    return isinstance(location.filesystem, LocalFileSystem)


def is_s3(filesystem: AbstractFileSystem) -> bool:
    """Return whether a file system is that of s3fs."""
    return "s3" in protocols(filesystem)


def is_azure(filesystem: AbstractFileSystem) -> bool:
    """Return whether a file system is that of adlfs."""
    return "abfs" in protocols(filesystem)


def has_directories(filesystem: AbstractFileSystem) -> bool:
    """Return whether directories are created before the files in them."""
    return _FLAT.isdisjoint(protocols(filesystem))


def protocols(filesystem: AbstractFileSystem) -> tuple[str, ...]:
    """Schemes of a file system."""
    return (filesystem.protocol,) if isinstance(filesystem.protocol, str) else tuple(filesystem.protocol)


def is_plain_name(name: str) -> bool:
    """Whether a name means itself on every file system: letters, digits, `_`, and after the first `.` and `-`."""
    return _PLAIN_NAME.fullmatch(name) is not None


def complete_scheme(path: str) -> str:
    """Return a path with two slashes after its scheme: Flink writes `file:/a` for `file:///a`."""
    match = _SINGLE_SLASH.match(path)
    return path if match is None else f"{match[1]}:///{path[match.end() :]}"


def join(location: Location, *names: str) -> Location:
    """The location below `location`."""
    return Location(location.filesystem, "/".join((location.path.rstrip("/"), *names)))


def cut_directory(path: str) -> str:
    """Return the directory of an absolute path or URL: `/` for `/a`, `file:///` for `file:///a`."""
    head = complete_scheme(path).rpartition("/")[0]
    return f"{head}/" if not head or head.endswith("://") else head


def is_below(path: str, directory: str) -> bool:
    """Return whether a path is that of a directory or of something below it; both are in one form."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def parent(location: Location) -> Location:
    """The directory that holds `location`."""
    return Location(location.filesystem, location.path.rstrip("/").rpartition("/")[0] or "/")
