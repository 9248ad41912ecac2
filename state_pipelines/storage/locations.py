"""Locations: a path on a file system that fsspec reaches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from state_pipelines.errors import StorageError, UsageError, Where
from state_pipelines.storage.faults import client_errors, leave_retries_to_us, redact
from state_pipelines.storage.options import find_storage_options
from state_pipelines.storage.s3_listing import parse_times_fast

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_PLAIN_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
_SINGLE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
# Schemes of Flink's file systems that fsspec knows under another name.
_SCHEMES = {"s3p": "s3", "s3n": "s3", "wasb": "abfs", "wasbs": "abfss", "viewfs": "hdfs"}
# Object stores, where directories exist only as beginnings of names.
_FLAT = frozenset({"s3", "gs", "gcs", "abfs", "az"})
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}


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
        """The path for people and for error messages, without secrets."""
        return self.path if isinstance(self.filesystem, LocalFileSystem) else redact(self.url)

    @property
    def url(self) -> str:
        """The path with its scheme; `resolve` takes it back."""
        return str(self.filesystem.unstrip_protocol(self.path))

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]


def resolve(path: str, **storage_options: Any) -> Location:
    """Find the location of a URL or path.

    Args:
        path: `s3://bucket/a`, `file:/a`, `file:///a` or a plain local path.
        storage_options: options of the fsspec file system, such as `key`, `secret`, `client_kwargs`; they are added to
            those of `use_storage_options` for the directory.

    Raises:
        UsageError: fsspec does not know the scheme, or the package for it is not installed.
        StorageError: the storage refuses the options.
    """
    normal = normalize(path)
    options = find_storage_options(normal) | storage_options
    scheme = normal.partition("://")[0]
    where = Where(file=redact(path))
    try:
        filesystem, inner = url_to_fs(normal, **options)
    except ImportError as error:
        extra = _EXTRAS.get(scheme)
        install = (
            f"Install it: pip install 'state-pipelines[{extra}]'" if extra else "Install the package that it names"
        )
        raise UsageError(f"cannot reach {scheme}://: {redact(str(error))}", where=where, hint=install) from None
    except (ValueError, TypeError, KeyError) as error:
        hint = "Check the scheme and the storage options; docs/storage.md lists them"
        raise UsageError(f"cannot reach {redact(path)!r}: {redact(str(error))}", where=where, hint=hint) from None
    except client_errors() as error:
        raise StorageError(
            f"cannot reach the storage: {redact(str(error))}",
            where=where,
            hint="Credentials and options of each storage: docs/storage.md",
        ) from error
    leave_retries_to_us(filesystem)
    if is_s3(filesystem):
        parse_times_fast(filesystem)
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


def is_s3(filesystem: AbstractFileSystem) -> bool:
    """Return whether a file system is that of s3fs."""
    return "s3" in _protocols(filesystem)


def has_directories(filesystem: AbstractFileSystem) -> bool:
    """Return whether directories are created before the files in them."""
    return _FLAT.isdisjoint(_protocols(filesystem))


def _protocols(filesystem: AbstractFileSystem) -> tuple[str, ...]:
    return (filesystem.protocol,) if isinstance(filesystem.protocol, str) else tuple(filesystem.protocol)


def is_plain_name(name: str) -> bool:
    """Whether a name means itself on every file system: letters, digits, `_`, and behind the first `.` and `-`."""
    return _PLAIN_NAME.fullmatch(name) is not None


def _resolve_beside(path: str, filesystem: AbstractFileSystem) -> Location:
    normal = normalize(path)
    scheme, separator, _ = normal.partition("://")
    if (scheme if separator else "file") in _protocols(filesystem):
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
    if scheme == "file" and rest.startswith("localhost/"):
        rest = rest.removeprefix("localhost")
    return _SCHEMES.get(scheme, scheme) + separator + rest
