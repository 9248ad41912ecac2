"""Resolution of paths and URLs to locations: storage options, and the directories in which files of a snapshot may be.

* `use_storage_options`, `find_storage_options`: what fsspec needs to reach a storage, by the directory (root) that it
  holds for. A text in the options may name environment variables as `${NAME}`. They are replaced when a file system is
  made, in the process that makes it, so that secrets are neither in plans nor in arguments.
* `resolve`, `PathMapping`: paths and URLs to locations.
* `open_parent`, `find_path`: local files by descriptors of their directories, in which a directory exchanged for a
  symbolic link is noticed. A path that was checked may lead elsewhere when it is used, because somebody who can write
  to one of its directories can exchange the ones below it meanwhile. So a file that is removed or moved is named by the
  descriptor of its directory, to which `open_parent` goes one name after the other without following links; and the
  path of a file that is read is asked for again when it is open (`find_path`).
* `is_state_file`, `is_own_file`: names that Flink and this package give to directories and files of snapshots. Source:
  `AbstractFsCheckpointStorageAccess` for directories, `FsCheckpointStreamFactory` for files.
* `locate_named`: reach: the directories in which the files that a snapshot names may be. `_metadata` names files by
  relative and by absolute paths. It may come from somebody else, so that a path in it is not permission to read what is
  there. `locate_named` decides about every path that a handle names, before anything of it is opened, measured or
  copied.

Allowed are

* the directory of the snapshot;
* beside a checkpoint `chk-N`, the directories that the checkpoints of its job share (`COMMON`) and the other `chk-N`;
* where that is below a directory named by a job id, the same directories of the jobs beside it: a job that is restored
  in CLAIM mode goes on using the files of the one before (`AbstractFsCheckpointStorageAccess`,
  `CheckpointCoordinator.restoreSavepoint`);
* the new directories of a path mapping, and the roots that the user allows.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import stat
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import yaml
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from state_pipelines.errors import FormatError, OutOfReachError, StorageError, UsageError, Where
from state_pipelines.redaction import redact, redact_path
from state_pipelines.storage.documents import RepeatedKeyError, parse_yaml, read_given_text
from state_pipelines.storage.listing import parse_times_fast
from state_pipelines.storage.locations import SCHEMES as GOOGLE_SCHEMES
from state_pipelines.storage.locations import (
    Location,
    choose_token,
    client_errors,
    complete_scheme,
    explain,
    is_below,
    is_local,
    is_plain_name,
    is_s3,
    join,
    leave_retries_to_us,
    parent,
    protocols,
    remember_secrets,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

VARIABLE = "STATE_PIPELINES_STORAGE_OPTIONS"
"""Environment variable with storage options for the whole process: a file, or the options themselves (YAML, JSON)."""

# Scheme -> the scheme that `canonicalize` uses for the same storage; empty for local paths.
_CANONICAL = {
    "s3a": "s3",
    "s3n": "s3",
    "s3p": "s3",
    "gcs": "gs",
    "az": "abfs",
    "abfss": "abfs",
    "wasb": "abfs",
    "wasbs": "abfs",
    "viewfs": "hdfs",
    "file": "",
    "local": "",
}
_OPTIONS_TEXT = re.compile(r"[{}\r\n]|:\s|:$")
_NAMED = re.compile(r"\$\{(\w+)\}")

_registered: dict[str, dict[str, Any]] = {}
_scoped: ContextVar[Mapping[str, dict[str, Any]] | None] = ContextVar("storage options", default=None)


def use_storage_options(options: Mapping[str, Mapping[str, Any]]) -> None:
    """Use options for all paths at or below some roots, in this process; the longest root decides.

    Args:
        options: options of the fsspec file system by root, such as `s3://bucket/flink`. They replace earlier options of
            the same root.

    Raises:
        UsageError: the options are not a mapping of roots to options.
    """
    checked = {canonicalize(root): dict(each) for root, each in _check(options, "the storage options").items()}
    _registered.update(checked)


def share_storage_options(options: Mapping[str, Mapping[str, Any]]) -> None:
    """Use storage options in this process, and in processes that it starts from now on, which inherit `VARIABLE`.

    Raises:
        UsageError: see `use_storage_options`.
    """
    if options:
        use_storage_options(options)
        os.environ[VARIABLE] = json.dumps({**_from_environment(os.environ.get(VARIABLE, "")), **options})


@contextmanager
def scoped_storage_options(options: Mapping[str, Mapping[str, Any]], *, processes: bool = False) -> Iterator[None]:
    """Use storage options in a block of this thread and its `Threads`; they take precedence over the process's options.

    Args:
        options: options by root, see `use_storage_options`.
        processes: also use the options in processes that the block starts, such as those of Spark. They inherit the
            environment variable `VARIABLE`, which other threads of this process see, too.

    Raises:
        UsageError: see `use_storage_options`.
    """
    checked = {canonicalize(root): dict(each) for root, each in _check(options, "the storage options").items()}
    before = os.environ.get(VARIABLE)
    token = _scoped.set(checked)
    if processes and checked:
        os.environ[VARIABLE] = json.dumps({**_from_environment(before or ""), **checked})
    try:
        yield
    finally:
        _scoped.reset(token)
        if processes and checked:
            os.environ.pop(VARIABLE) if before is None else os.environ.update({VARIABLE: before})


def list_storage_options() -> dict[str, dict[str, Any]]:
    """Return the storage options that apply here by root, as given, for `use_storage_options` in another process."""
    return _from_environment(os.environ.get(VARIABLE, "")) | _registered | dict(_scoped.get() or {})


def load_storage_options(text: str) -> dict[str, dict[str, Any]]:
    """Load options from a YAML or JSON file, or from YAML or JSON text.

    A text with a brace, a line break, or a colon at its end or before a blank is taken for options, not for the name
    of a file. It may contain secrets, so errors do not quote it.

    Raises:
        UsageError: there is no such file, or it does not contain options by root.
    """
    where = Where() if is_options_text(text) else Where(file=text)
    try:
        loaded = parse_yaml(text if where.file is None else read_given_text(text, "the storage options"))
    except RepeatedKeyError as error:
        # The message does not quote the key: it may be a secret, written in the wrong line.
        first, second = error.lines
        what = f"the storage options contradict themselves: a key is there twice, in lines {first} and {second}"
        raise UsageError(what, where=where) from None
    except (yaml.YAMLError, UnicodeDecodeError):
        # The message of the parser would quote the text, which may hold secrets.
        raise UsageError("the storage options are neither YAML nor JSON", where=where) from None
    return _check(loaded, "the storage options", where)


def is_options_text(text: str) -> bool:
    """Return whether a text is storage options, not the name of a file that holds them."""
    return _OPTIONS_TEXT.search(text) is not None


def find_storage_options(path: str) -> dict[str, Any]:
    """Find the options for a path: those of the longest root above it, with environment variables replaced.

    Raises:
        UsageError: an environment variable is not set.
    """
    known = list_storage_options()
    if not known:
        return {}
    plain = canonicalize(path)
    fitting = [root for root in known if plain == root or plain.startswith(root.rstrip("/") + "/")]
    if not fitting:
        return {}
    root = max(fitting, key=len)
    found = _expand(known[root], root)
    if not isinstance(found, dict):
        return {}
    remember_secrets(found)
    return found


@cache
def _from_environment(text: str) -> dict[str, dict[str, Any]]:
    if not text:
        return {}
    return {canonicalize(root): options for root, options in load_storage_options(text).items()}


def _check(options: object, what: str, where: Where | None = None) -> dict[str, dict[str, Any]]:
    hint = "Write a mapping of roots (s3://bucket/directory) to mappings of options"
    if not isinstance(options, dict):
        raise UsageError(f"{what} are not a mapping", where=where, hint=hint)
    for root, each in options.items():
        if not isinstance(root, str) or not isinstance(each, dict) or not all(isinstance(name, str) for name in each):
            # Options given as text may have a secret where a root should be: the root is not shown then.
            named = "a root" if where is not None and where.file is None else repr(root)
            raise UsageError(f"{what} of {named} are not a mapping", where=where, hint=hint)
    return options


def canonicalize(path: str) -> str:
    """Return one spelling for all paths of a directory: `s3://b/c` for `s3a://b/c/`, `/a` for `file:/a`."""
    path = complete_scheme(path)
    scheme, separator, rest = path.partition("://")
    if not separator:
        return path.rstrip("/") or "/"
    scheme = _CANONICAL.get(scheme, scheme)
    rest = rest.rstrip("/")
    return f"{scheme}://{rest}" if scheme else rest or "/"


def _expand(value: Any, root: str) -> Any:
    if isinstance(value, dict):
        return {name: _expand(each, root) for name, each in value.items()}
    if isinstance(value, list):
        return [_expand(each, root) for each in value]
    return _NAMED.sub(lambda match: _read_variable(match[1], root), value) if isinstance(value, str) else value


def _read_variable(name: str, root: str) -> str:
    if name not in os.environ:
        raise UsageError(
            f"the environment variable {name} is not set", where=Where(file=root), hint="The storage options name it"
        )
    return os.environ[name]


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
        # fsspec would interpret an empty path as the working directory.
        raise UsageError("the path is empty", hint="Name a directory or a file; the working directory is `.`")
    normal = normalize(path)
    options = find_storage_options(normal) | storage_options
    scheme = normal.partition("://")[0]
    where = Where(file=path)
    for each in _split_chain(normal):
        if _names_nothing(each):
            # fsspec would interpret such a URL as the working directory, and clients as a bucket without a name.
            hint = "Write the scheme and the whole path: file:///directory, s3://bucket/directory"
            raise UsageError("the URL names no directory and no file", where=where, hint=hint)
        if find_scheme(each) in _BUCKETS and _has_user(each):
            # Clients would use the password as part of the bucket's name, and quote it in errors and requests.
            what = f"a URL of {find_scheme(each)}:// must not contain a user or a password"
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
    """Return the location of an absolute path on the storage of `location`, with the same options.

    For paths that a snapshot names, use `locate_named`, which checks them.

    Raises:
        UsageError: see `resolve`.
    """
    normal = normalize(path)
    require_valid_host(path)
    if find_scheme(normal) in protocols(location.filesystem):
        return Location(location.filesystem, str(location.filesystem._strip_protocol(normal)))
    return resolve(normal)


def require_valid_host(path: str) -> None:
    """Check the host and port of a URL, since errors of clients about them are no `OSError` and may quote a password.

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
    """Return whether clients can parse the hosts and ports in a URL; true for paths and for URLs without a host."""
    return all(_has_valid_host(normalize(each)) for each in _split_chain(path))


def _split_chain(path: str) -> list[str]:
    """Split a chain of URLs of fsspec, such as `simplecache::s3://bucket/a`, but not at a `::` in a host."""
    return _CHAIN.split(path)


def _has_valid_host(normal: str) -> bool:
    scheme = find_scheme(normal)
    if scheme not in _HOSTS:
        return True
    try:
        # Reading the property parses the port; ValueError if it is not valid.
        urlsplit(normal).port  # noqa: B018
        if scheme in ("http", "https"):
            # fsspec parses URLs of HTTP with yarl. It is imported late, because few snapshots are on HTTP servers.
            from yarl import URL

            URL(normal)
    except ImportError:
        # Without yarl, fsspec cannot make the file system either, and reports that.
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
    """Return whether a URL has a user or password in front of, or instead of, the name of a bucket."""
    bucket = url.partition("://")[2].partition("/")[0]
    # Clients use everything up to the first slash, even one in a password, as the bucket. ARNs of access points have
    # colons.
    return "@" in bucket or (":" in bucket and not bucket.startswith("arn:"))


def find_scheme(path: str) -> str:
    """Return the scheme of a normalized path, `file` where it has none."""
    scheme, separator, _ = path.partition("://")
    return scheme if separator else "file"


def normalize(path: str) -> str:
    """Return a path or URL as fsspec accepts it: two slashes after the scheme, and a scheme that fsspec knows."""
    scheme, separator, rest = complete_scheme(path).partition("://")
    if scheme == "file" and rest.startswith("localhost/"):
        rest = rest.removeprefix("localhost")
    return _SCHEMES.get(scheme, scheme) + separator + rest


_SYNTAX = "Write FROM=TO, for example file:/old=s3://bucket/new"
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]+:")


@dataclass(frozen=True)
class PathMapping:
    """Current directories of the absolute paths in snapshots, and the roots below which they may be.

    Attributes:
        rules: pairs of old and new directory (`--map FROM=TO`); of several that fit, the longest old directory applies.
        roots: directories that the user allows (`--allow-root`), in addition to those of the snapshot.
    """

    rules: tuple[tuple[str, str], ...] = ()
    roots: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """Directories that the user has named: allowed roots and new directories of the rules."""
        return (*self.roots, *(new for _, new in self.rules))

    def allow(self, roots: Iterable[str]) -> PathMapping:
        """Return the mapping with further allowed roots.

        Raises:
            UsageError: a root is empty, which would be the working directory, or is a URL whose host or port is not
                valid.
        """
        roots = tuple(roots)
        if not all(each.rpartition("://")[2].strip() for each in roots):
            raise UsageError("an allowed root is empty", hint="Name a directory; the working directory is `.`")
        for each in roots:
            require_valid_host(each)
        return replace(self, roots=tuple(dict.fromkeys((*self.roots, *roots))))

    def apply(self, path: str) -> str:
        """Return a path with its directory replaced by a rule, or unchanged if no rule fits.

        A rule fits the paths of its old directory and all paths below.
        """
        if not self.rules:
            return path
        plain = _to_plain(path)
        fitting = [(old, new) for old, new in self.rules if is_below(plain, _to_plain(old))]
        if not fitting:
            return path
        old, new = max(fitting, key=lambda rule: len(_to_plain(rule[0])))
        return new.rstrip("/") + plain[len(_to_plain(old)) :]


def parse_path_mapping(texts: Iterable[str]) -> PathMapping:
    """Parse `FROM=TO` texts to a mapping.

    Directories may have names like `day=1`. So if there are several `=`, the separator is the one with an absolute path
    or URL on both sides.

    Raises:
        UsageError: a text has another format, `FROM` is no absolute path (snapshots name no others), or the host or
            port of a URL is not valid.
    """
    rules = []
    for text in texts:
        old, new = _split_rule(text)
        require_valid_host(new)
        rules.append((old, new))
    return PathMapping(tuple(rules))


def _split_rule(text: str) -> tuple[str, str]:
    bounds = [each.start() for each in re.finditer("=", text)]
    splits = [(text[:bound], text[bound + 1 :]) for bound in bounds]
    if not any(old and new for old, new in splits):
        raise UsageError(f"{text!r} is not a path mapping", hint=_SYNTAX)
    absolute = [(old, new) for old, new in splits if _ABSOLUTE.match(old) and _ABSOLUTE.match(new)]
    found = splits if len(splits) == 1 else absolute
    if len(found) != 1:
        what = f"{text!r} has {len(bounds)} `=`, and which one separates FROM and TO is not clear"
        raise UsageError(what, hint=f"{_SYNTAX}, both absolute")
    old, new = found[0]
    if not _ABSOLUTE.match(old):
        raise UsageError(f"{old!r} is no absolute path, and snapshots name no others", hint=_SYNTAX)
    return old, new


def _to_plain(path: str) -> str:
    # Flink writes file:/a, users write file:///a or /a; all mean the same directory.
    path = normalize(path).removeprefix("file://").removeprefix("local://")
    return path.rstrip("/") or "/"


# O_PATH, which needs no permission to list the directory, exists on Linux only.
DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
"""Flags for the descriptor of a directory."""


# Linux follows as many symbolic links in one path (`MAXSYMLINKS`).
_MOST_LINKS = 40


@contextmanager
def open_parent(location: Location, root: Location, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """Open the directory of a local file.

    Args:
        location: the file.
        root: a directory above the file; its own path may contain symbolic links.
        make: create missing directories between root and file.

    Yields:
        (descriptor of the directory, which is closed afterwards; name of the file in it).

    Raises:
        OutOfReachError: a directory between root and file is a symbolic link.
        OSError: the file system refuses; `FileNotFoundError` and `NotADirectoryError` where there is no directory.
    """
    above = root.path.rstrip("/")
    names = [each for each in location.path[len(above) :].split("/") if each not in ("", ".")]
    if not names or not is_below(location.path, above) or ".." in names:
        raise OutOfReachError(f"the path is not below {root}", where=Where(file=str(location)))
    last = names.pop()
    descriptor = os.open(root.path, DIRECTORY)
    try:
        for name in names:
            inner = _open_inside(name, descriptor, location, make=make)
            os.close(descriptor)
            descriptor = inner
        yield descriptor, last
    finally:
        os.close(descriptor)


def _open_inside(name: str, directory: int, location: Location, *, make: bool) -> int:
    try:
        return os.open(name, DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    except FileNotFoundError:
        if not make:
            raise
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(name, directory):
            raise OutOfReachError(
                "a directory of this path is a symbolic link",
                where=Where(file=str(location)),
                hint="The file or directory that the link leads to was not touched; find out who created the link",
            ) from None
        raise
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=directory)
    return _open_inside(name, directory, location, make=False)


def _is_link(name: str, directory: int) -> bool:
    with suppress(FileNotFoundError):
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    return False


def find_path(descriptor: int, path: str) -> str:
    """Return the path of an open file or directory without symbolic links, as the kernel of Linux knows it.

    Args:
        descriptor: descriptor of the file.
        path: path by which it was opened. On other systems than Linux, the links in it are followed instead.
    """
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - of each file that is opened
    except OSError:
        return os.path.realpath(path)


def resolve_directory(path: str) -> str:
    """Return the path of a directory without symbolic links, even if the directory cannot be opened."""
    try:
        descriptor = os.open(path, DIRECTORY)
    except (OSError, ValueError):
        return os.path.realpath(path)
    try:
        return find_path(descriptor, path)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class FollowedPath:
    """Result of following a local path and all symbolic links in it.

    Attributes:
        path: path of the file or directory, without links; None if a name or link leads nowhere, in a circle, or cannot
            be read.
        directories: all directories through which the path and its links go, without links. The last one is the
            directory of the file, or the one in which nothing was found.
    """

    path: str | None
    directories: tuple[str, ...]


def follow_path(path: str) -> FollowedPath:
    """Follow an absolute local path and the symbolic links in it, without opening anything."""
    names = path.split("/")[::-1]
    directories = [""]
    current, links = "", 0
    while names:
        name = names.pop()
        if name in ("", "."):
            continue
        if name == "..":
            current = current.rpartition("/")[0]
            directories.append(current)
            continue
        found = f"{current}/{name}"
        try:
            mode = os.lstat(found).st_mode
            target = os.readlink(found) if stat.S_ISLNK(mode) else None  # noqa: PTH115
        except (OSError, ValueError):
            return FollowedPath(None, (*directories, current))
        if target is not None:
            links += 1
            if links > _MOST_LINKS:
                return FollowedPath(None, (*directories, current))
            names += target.split("/")[::-1]
            if target.startswith("/"):
                current = ""
            directories.append(current)
            continue
        if names and not stat.S_ISDIR(mode):
            return FollowedPath(None, (*directories, current))
        current = found
        if names:
            directories.append(current)
    return FollowedPath(current or "/", tuple(directories))


CHECKPOINT_DIRECTORY = re.compile(r"chk-(\d+)")
"""Directory of one checkpoint (`CHECKPOINT_DIR_PREFIX`); the group is its number."""

JOB_DIRECTORY = re.compile(r"[0-9a-f]{32}")
"""Directory of one job: its id."""

SAVEPOINT_DIRECTORY = re.compile(r"savepoint-(?:([0-9a-f]{6})-)?[0-9a-f]{12}")
"""Directory of one savepoint: digits of the job id, then random ones (`initializeLocationForSavepoint`)."""

UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
"""Pattern of a random UUID as text."""

PENDING_METADATA = re.compile(r"_metadata\.pending(?:\.[0-9a-f]{32}\.pending)?")
"""The unfinished `_metadata` of `SnapshotWriter`, and the file that becomes it (`files.replace_file`)."""

MANIFEST_FILE = "_state-pipelines.json"
"""Name of the manifest, in the directory of the snapshot."""

_MANIFEST = re.escape(MANIFEST_FILE)
_STATE_FILE = re.compile(rf"{UUID}|{_MANIFEST}")
# Flink's names of state files, and those of `NativeFiles.write_rocksdb`: a UUID with the number of a file, or `meta`.
_OWN_FILE = re.compile(rf"{UUID}(?:-(?:\d+|meta))?|{_MANIFEST}", re.ASCII)
_SCRATCH = re.compile(rf"\.(.+)-{UUID}")


def is_state_file(name: str) -> bool:
    """Return whether a file name is one of Flink's names for files of state (a random UUID), or that of a manifest."""
    return _STATE_FILE.fullmatch(name) is not None


def is_own_file(name: str) -> bool:
    """Return whether a file has a name that this package gives to the files of a new snapshot."""
    return _OWN_FILE.fullmatch(name) is not None


def find_scratch_target(name: str) -> str | None:
    """Return the name of the target whose scratch directory (`name_scratch`) has this name; None for others."""
    found = _SCRATCH.fullmatch(name)
    return None if found is None else found[1]


COMMON = ("shared", "taskowned", "dstl")
"""Directories of a job whose files belong to several checkpoints (`FsStateChangelogStorage` writes `dstl`)."""

_LOCAL = ("file", "local")
_HINT = (
    "If its files were moved, give their new location with --map FROM=TO; if you trust the snapshot, allow a directory "
    "above the file with --allow-root DIR"
)


def locate_named(path: str, directory: Location, path_mapping: PathMapping, *, relative: bool, handle: str) -> Location:
    """Return the file that a handle names.

    Symbolic links are followed before it is decided whether the file is in reach. Paths with `..` are errors, because
    Flink writes none.

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
            # No file system takes empty paths, NUL, or characters without an encoding; fsspec reads `::` as a chain of
            # file systems.
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
    """Directories in which the local files that a handle names may be; `handle` is its class, for errors."""

    directory: Location
    path_mapping: PathMapping
    handle: str

    def require(self, path: str, descriptor: int) -> None:
        """Raise OutOfReachError if an open local file is outside the allowed directories."""
        try:
            _require_local(find_path(descriptor, path), self.directory, self.path_mapping)
        except _Refused as refused:
            raise _to_error(refused, path, self.handle) from None


def _to_error(refused: _Refused, path: str, handle: str) -> OutOfReachError:
    return OutOfReachError(f"a {handle} names {refused.args[0]}", where=Where(file=path), hint=refused.args[1])


def _is_encodable(path: str, directory: Location) -> bool:
    """Return whether a path can be encoded: strings of Java may contain unpaired surrogates."""
    if path.isascii():
        return True
    try:
        # Python decodes bytes of local names that are not UTF-8 to unpaired surrogates (`surrogateescape`).
        path.encode(errors="surrogateescape" if is_local(directory) else "strict")
    except UnicodeEncodeError:
        return False
    return True


class _Malformed(Exception):
    """Raised for a path that no file system takes, such as one with a NUL character."""


class _Refused(Exception):
    """Raised for a path outside the allowed directories, with a description of the file and a hint for the user."""


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
    """Return the file that a handle names without checking its path, only to compare locations.

    The file itself must not be accessed. Returns None for a file on another storage. Arguments as for `locate_named`.
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
        # The directory is cached, because snapshots name thousands of files in few directories.
        return join(_find_directory(above, directory, path_mapping), name)
    return _find(path, directory, path_mapping)


@lru_cache(maxsize=256)
def _find_directory(above: str, directory: Location, path_mapping: PathMapping) -> Location:
    """Return the directory at the path `above`, after checking that files directly in it are in reach; cached."""
    return parent(_find(f"{above}/file", directory, path_mapping))


def _find(path: str, directory: Location, path_mapping: PathMapping) -> Location:
    """Return the location of an absolute path after checking that it is in reach, except if it is local.

    The caller checks local paths with `_require_file`.

    Raises:
        _Malformed: no file system takes the path.
        _Refused: the path is outside the allowed directories of a remote storage.
    """
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
    # A path with the scheme of the snapshot is on the storage of the snapshot, whatever host it names.
    location = Location(own, str(own._strip_protocol(normal)))
    if not is_local(location):
        targets = (each for each in map(normalize, path_mapping.targets) if find_scheme(each) in protocols(own))
        roots = (str(own._strip_protocol(each)) for each in targets)
        _require_below(location.path, directory.path, roots, is_refused=_has_parents(location.path))
    return location


def _has_parents(path: str, directory: Location | None = None) -> bool:
    if directory is not None and is_local(directory):
        return ".." in path.split("/")
    # HTTP servers decode percent-encoded names, and a path ends at a query or fragment.
    return any(re.split(r"[?#;]", name)[0] == ".." for name in re.split(r"[/\\]", unquote(path)))


def _require_file(location: Location, directory: Location, path_mapping: PathMapping) -> None:
    """Raise `_Refused` if a local file is outside the allowed directories, or is a device."""
    path = location.path
    above, _, name = path.rpartition("/")
    real = f"{resolve_directory(above or '/').rstrip('/')}/{name}"
    try:
        kind = os.lstat(path).st_mode
        if stat.S_ISLNK(kind):
            real = os.path.realpath(path)
            kind = Path(path).stat().st_mode
    except (OSError, ValueError):
        # A missing file is an error only when it is read; here only its path is checked.
        kind = stat.S_IFREG
    _require_local(real, directory, path_mapping)
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise _Refused("a device or pipe, not a file", "Do not use this snapshot")


def _require_local(real: str, directory: Location, path_mapping: PathMapping) -> None:
    """Raise `_Refused` if the path of a local file, without symbolic links, is outside the allowed directories."""
    own = resolve_directory(directory.path) if is_local(directory) else None
    _require_below(real, own, _follow_roots(path_mapping))


@lru_cache(maxsize=256)
def _follow_roots(path_mapping: PathMapping) -> tuple[str, ...]:
    return tuple(_follow(each) for each in map(normalize, path_mapping.targets) if find_scheme(each) in _LOCAL)


@lru_cache(maxsize=256)
def _follow(root: str) -> str:
    # `_strip_protocol` expands `~`, as `resolve` does.
    return resolve_directory(str(LocalFileSystem._strip_protocol(root)))


def _require_below(path: str, own: str | None, roots: Iterable[str], *, is_refused: bool = False) -> None:
    if is_refused or not (
        any(is_below(path, each) for each in roots) or (own is not None and _is_own(path, own.rstrip("/")))
    ):
        raise _Refused("a file outside the directories that this snapshot may name", _HINT)


def _is_own(path: str, own: str) -> bool:
    """Return whether a file is in the snapshot directory `own`, or belongs to its job or a job in the same root."""
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
