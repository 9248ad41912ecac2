"""Locations: a path on a file system that fsspec reaches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from state_pipelines.errors import UsageError, Where

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_PLAIN_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
_SINGLE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
# Schemes of Flink's file systems that fsspec knows under another name.
_SCHEMES = {"s3p": "s3", "s3n": "s3", "viewfs": "hdfs"}


@dataclass(frozen=True)
class Location:
    """A path on a file system; its text is the plain path when local, else the URL.

    Attributes:
        filesystem: the fsspec file system.
        path: path in the form of that file system.
    """

    filesystem: AbstractFileSystem
    path: str

    def __str__(self) -> str:
        """The path for people and for error messages."""
        return self.path if isinstance(self.filesystem, LocalFileSystem) else self.url

    @property
    def url(self) -> str:
        """The path with its scheme; `resolve` takes it back."""
        return str(self.filesystem.unstrip_protocol(self.path))

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]


def resolve(path: str, **storage_options: Any) -> Location:
    """The location of a URL or path.

    Args:
        path: `s3://bucket/a`, `file:/a`, `file:///a` or a plain local path.
        storage_options: passed to the fsspec file system, such as `key`, `secret`, `client_kwargs`.

    Raises:
        UsageError: fsspec does not know the scheme, or the package for it is not installed.
    """
    try:
        filesystem, inner = url_to_fs(normalize(path), **storage_options)
    except (ValueError, ImportError) as error:
        hint = "Install the fsspec package for this storage, for example s3fs for s3://"
        raise UsageError(f"cannot reach {path!r}: {error}", where=Where(file=path), hint=hint) from None
    return Location(filesystem, str(inner))


def resolve_beside(path: str, location: Location) -> Location:
    """The location of an absolute path that a snapshot at `location` names; on the same storage with the same options.

    Raises:
        UsageError: see `resolve`.
    """
    directory, slash, name = path.rpartition("/")
    if not directory or not is_plain_name(name):
        return _resolve_beside(path, location.filesystem)
    # Snapshots name thousands of files in few directories.
    return join(_resolve_directory(directory + slash, location.filesystem), name)


def is_local(location: Location) -> bool:
    """Whether a location lies on this machine."""
    return isinstance(location.filesystem, LocalFileSystem)


def is_plain_name(name: str) -> bool:
    """Whether a name means itself on every file system: letters, digits, `_`, and behind the first `.` and `-`."""
    return _PLAIN_NAME.fullmatch(name) is not None


def _resolve_beside(path: str, filesystem: AbstractFileSystem) -> Location:
    normal = normalize(path)
    scheme, separator, _ = normal.partition("://")
    protocols = (filesystem.protocol,) if isinstance(filesystem.protocol, str) else filesystem.protocol
    if (scheme if separator else "file") in protocols:
        return Location(filesystem, str(filesystem._strip_protocol(normal)))
    return resolve(normal)


_resolve_directory = lru_cache(maxsize=256)(_resolve_beside)


def join(location: Location, *names: str) -> Location:
    """The location below `location`."""
    return Location(location.filesystem, "/".join((location.path.rstrip("/"), *names)))


def parent(location: Location) -> Location:
    """The directory that holds `location`."""
    return Location(location.filesystem, location.path.rstrip("/").rpartition("/")[0] or "/")


def normalize(path: str) -> str:
    """A path or URL in the form that fsspec understands: two slashes behind a scheme, the scheme one of its own."""
    match = _SINGLE_SLASH.match(path)
    if match:
        path = f"{match[1]}:///{path[match.end() :]}"
    scheme, separator, rest = path.partition("://")
    return _SCHEMES.get(scheme, scheme) + separator + rest
