"""One spelling for each file, however `_metadata` files and users write its path."""

from __future__ import annotations

import os.path
import posixpath
import re
from dataclasses import dataclass, field
from functools import cached_property

from state_pipelines.errors import UsageError

Equalities = tuple[tuple[str, ...], ...]
"""Groups of words that mean the same."""

EQUAL_SCHEMES: Equalities = (
    ("s3", "s3a", "s3n", "s3p"),
    ("gs", "gcs"),
    ("abfs", "abfss", "wasb", "wasbs", "az"),
    ("file", "local"),
)
"""Schemes by which Flink, Hadoop and fsspec name one storage."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)", re.DOTALL)
# The default port of a name node (`HdfsClientConfigKeys.DFS_NAMENODE_RPC_PORT_DEFAULT`).
_HDFS_PORT = ":8020"


@dataclass(frozen=True)
class PathKeys:
    """Rules by which paths are compared.

    Attributes:
        equal_schemes: groups of schemes that name one storage, besides `EQUAL_SCHEMES`.
        equal_authorities: groups of authorities (host and port, bucket) that name one storage.
    """

    equal_schemes: Equalities = ()
    equal_authorities: Equalities = ()
    _directories: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def _schemes(self) -> dict[str, str]:
        return _merge((*EQUAL_SCHEMES, *self.equal_schemes))

    @cached_property
    def _authorities(self) -> dict[str, str]:
        return _merge(self.equal_authorities)

    def key(self, path: str) -> str:
        """The one spelling of a path or URL; equal for paths that name the same file."""
        match = _URL.fullmatch(path)
        scheme, authority, inner = ("file", "", path) if match is None else (match[1].lower(), match[2] or "", match[3])
        scheme = self._schemes.get(scheme, scheme)
        inner = _clean(inner)
        if scheme == "file":
            return "file:" + self._resolve_links(inner)
        if scheme == "abfs":
            # `container@account.dfs.core.windows.net` is what fsspec writes as `container`.
            authority = authority.partition("@")[0]
        elif scheme == "hdfs":
            authority = authority.removesuffix(_HDFS_PORT)
        authority = authority.lower()
        return f"{scheme}://{self._authorities.get(authority, authority)}{inner}"

    def directory_key(self, path: str) -> str:
        """The one spelling of a directory, which may itself be a link."""
        return self.key(f"{path.rstrip('/')}/_").rpartition("/")[0]

    def refresh(self) -> bool:
        """Follow the links of known directories again; returns whether one leads elsewhere now."""
        known = dict(self._directories)
        self._directories.clear()
        return any(self._follow(directory) != found for directory, found in known.items())

    def _resolve_links(self, path: str) -> str:
        # A snapshot may name files by a directory that is a link; the file itself is never followed.
        directory, _, name = path.rpartition("/")
        return f"{self._follow(directory)}/{name}"

    def _follow(self, directory: str) -> str:
        if directory not in self._directories:
            self._directories[directory] = os.path.realpath(directory or "/").rstrip("/")
        return self._directories[directory]


def parse_equalities(texts: tuple[str, ...] | list[str]) -> Equalities:
    """Groups from texts such as `s3=oss`.

    Raises:
        UsageError: a text has another form.
    """
    groups = []
    for text in texts:
        names = tuple(name.strip().lower() for name in text.split("="))
        if len(names) < 2 or not all(names):
            raise UsageError(f"{text!r} does not name two that are equal", hint="Write A=B, for example s3=oss")
        groups.append(names)
    return tuple(groups)


def _clean(path: str) -> str:
    path = re.sub(r"/{2,}", "/", path) if "//" in path else path
    if "/." in path:
        path = posixpath.normpath(path)
    path = path.rstrip("/")
    return path if path.startswith("/") or not path else "/" + path


def _merge(groups: Equalities) -> dict[str, str]:
    names: dict[str, str] = {}
    for group in groups:
        # Groups that share a name are one.
        known = {names[name] for name in group if name in names}
        first = min(known) if known else group[0].lower()
        for name, other in list(names.items()):
            if other in known:
                names[name] = first
        names.update({name.lower(): first for name in group})
    return names
