"""Locations of paths and URLs, in the forms that people and Flink write."""

from __future__ import annotations

import logging
import re
from typing import Any
from urllib.parse import urlsplit

from fsspec.core import url_to_fs

from state_pipelines.errors import StorageError, UsageError, Where
from state_pipelines.redaction import redact, redact_path
from state_pipelines.storage.client_retries import leave_retries_to_us
from state_pipelines.storage.faults import client_errors, explain
from state_pipelines.storage.google_credentials import SCHEMES as GOOGLE_SCHEMES
from state_pipelines.storage.google_credentials import choose_token
from state_pipelines.storage.locations import Location, complete_scheme, is_s3, protocols
from state_pipelines.storage.options import find_storage_options
from state_pipelines.storage.s3_listing import parse_times_fast

# Clients of storages log the faults that they raise, with tracebacks; without a handler Python prints them.
for _name in ("adlfs", "azure", "fsspec", "gcsfs", "google", "s3fs"):
    logging.getLogger(_name).addHandler(logging.NullHandler())

# Schemes of Flink's file systems that fsspec knows under another name.
_SCHEMES = {"s3p": "s3", "s3n": "s3", "wasb": "abfs", "wasbs": "abfss", "viewfs": "hdfs"}
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}

_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs"})
"""Schemes whose URLs begin with the name of a bucket."""

_HOSTS = frozenset(
    {"abfs", "abfss", "az", "arrow_hdfs", "ftp", "hdfs", "http", "https", "sftp", "smb", "ssh", "webhdfs", "webHDFS"}
)
"""Schemes whose URLs begin with a host and a port."""

_WHOLE = _HOSTS | {"file", "local"}
"""Schemes after which something has to follow."""

_CHAIN = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.-]*:/)")

_CREDENTIALS = "Give credentials by the environment or among the storage options (docs/storage.md)"


def resolve(path: str, **storage_options: Any) -> Location:
    """Find the location of a URL or path.

    Args:
        path: `s3://bucket/a`, `file:/a`, `file:///a` or a plain local path.
        storage_options: options of the fsspec file system, such as `key`, `secret`, `client_kwargs`; they are added to
            those of `use_storage_options` for the directory.

    Raises:
        UsageError: the path is empty, fsspec does not know the scheme, the package for it is not installed, the URL of
            a bucket has a password, or the host or port of a URL is not valid.
        StorageError: the storage refuses the options.
    """
    if not path.strip():
        # fsspec would take it for the working directory.
        raise UsageError("the path is empty", hint="Name a directory or a file; the working directory is `.`")
    normal = normalize(path)
    options = find_storage_options(normal) | storage_options
    scheme = normal.partition("://")[0]
    where = Where(file=path)
    for each in _split_chain(normal):
        if _names_nothing(each):
            # fsspec would take it for the working directory, clients for a bucket without a name.
            hint = "Write the scheme and the whole path: file:///directory, s3://bucket/directory"
            raise UsageError("the URL names no directory and no file", where=where, hint=hint)
        if find_scheme(each) in _BUCKETS and _has_user(each):
            # Clients would take it for the name of the bucket, and quote it in errors and requests.
            what = f"a URL of {find_scheme(each)}:// has no user and no password"
            raise UsageError(what, where=where, hint=_CREDENTIALS)
    require_valid_host(path)
    if scheme in GOOGLE_SCHEMES:
        options = choose_token(options)
    shown = {each: redact_path(each) for each in (path, normal)}
    try:
        filesystem, inner = url_to_fs(normal, **options)
        leave_retries_to_us(filesystem)
    except ImportError as error:
        extra = _EXTRAS.get(scheme)
        install = (
            f"Install it: pip install 'state-pipelines[{extra}]'" if extra else "Install the package that it names"
        )
        raise UsageError(f"cannot reach {scheme}://: {redact(str(error))}", where=where, hint=install) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        hint = "Check the scheme and the storage options; docs/storage.md lists them"
        reason = explain(error, options, shown)
        raise UsageError(f"cannot reach {redact_path(path)!r}: {reason}", where=where, hint=hint) from None
    except client_errors() as error:
        raise StorageError(
            f"cannot reach the storage: {explain(error, options, shown)}",
            where=where,
            hint="Credentials and options of each storage: docs/storage.md",
        ) from error
    if is_s3(filesystem):
        parse_times_fast(filesystem)
    return Location(filesystem, str(inner))


def resolve_beside(path: str, location: Location) -> Location:
    """The location of an absolute path near `location`: on the same storage with the same options.

    Paths that a snapshot names go through `reach.locate_named` instead.

    Raises:
        UsageError: see `resolve`.
    """
    normal = normalize(path)
    require_valid_host(path)
    if find_scheme(normal) in protocols(location.filesystem):
        return Location(location.filesystem, str(location.filesystem._strip_protocol(normal)))
    return resolve(normal)


def require_valid_host(path: str) -> None:
    """Refuse a URL whose host or port no client takes; their errors are no `OSError`, and may quote a password.

    Raises:
        UsageError: the host or the port of the URL is not valid.
    """
    if not has_valid_host(path):
        raise UsageError(
            "the host or port of the URL is not valid",
            where=Where(file=path),
            hint=f"Write scheme://host:port/path, with a port of at most 65535. {_CREDENTIALS}",
        )


def has_valid_host(path: str) -> bool:
    """Return whether clients can take the hosts and ports of a URL apart; true for paths and other URLs."""
    return all(_has_valid_host(normalize(each)) for each in _split_chain(path))


def _split_chain(path: str) -> list[str]:
    """The URLs of a chain of file systems of fsspec, such as `simplecache::s3://bucket/a`; hosts may have `::` too."""
    return _CHAIN.split(path)


def _has_valid_host(normal: str) -> bool:
    scheme = find_scheme(normal)
    if scheme not in _HOSTS:
        return True
    try:
        # The port is parsed when it is asked for.
        urlsplit(normal).port  # noqa: B018
        if scheme in ("http", "https"):
            # What fsspec parses URLs of HTTP with. Imported late: most snapshots are elsewhere.
            from yarl import URL

            URL(normal)
    except ImportError:
        # Without the package the file system cannot be made either.
        return True
    except ValueError:
        return False
    return True


def _names_nothing(url: str) -> bool:
    """Return whether a URL ends with its scheme, or has no bucket where one should be."""
    if url.endswith(":") and url[:-1] in _BUCKETS | _WHOLE:
        return True
    scheme, separator, rest = url.partition("://")
    if scheme in _BUCKETS:
        return not rest.partition("/")[0]
    return bool(separator) and scheme in _WHOLE and not rest.strip("/" if scheme in _HOSTS else "")


def _has_user(url: str) -> bool:
    """Return whether there is something else than the name of a bucket where it should be."""
    bucket = url.partition("://")[2].partition("/")[0]
    # A password with a slash ends the name of the bucket for clients. Names of access points have colons.
    return "@" in bucket or (":" in bucket and not bucket.startswith("arn:"))


def find_scheme(path: str) -> str:
    """Return the scheme of a normalized path, `file` where it has none."""
    scheme, separator, _ = path.partition("://")
    return scheme if separator else "file"


def normalize(path: str) -> str:
    """A path or URL in the form that fsspec understands: two slashes after a scheme, the scheme one of its own."""
    scheme, separator, rest = complete_scheme(path).partition("://")
    if scheme == "file" and rest.startswith("localhost/"):
        rest = rest.removeprefix("localhost")
    return _SCHEMES.get(scheme, scheme) + separator + rest
