"""Absolute paths in snapshots: where moved directories are now, and which further directories they may name."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError
from state_pipelines.storage.locations import is_below
from state_pipelines.storage.resolution import normalize, require_valid_host

if TYPE_CHECKING:
    from collections.abc import Iterable

_SYNTAX = "Write FROM=TO, for example file:/old=s3://bucket/new"
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]+:")


@dataclass(frozen=True)
class PathMapping:
    """Current directories of the absolute paths in snapshots, and the roots below which they may be (`storage.reach`).

    Attributes:
        rules: pairs of old and new directory (`--map FROM=TO`); the longest old one that fits decides.
        roots: directories that the user allows (`--allow-root`), beside those that belong to the snapshot.
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
        """`path` with its directory replaced, or as it is when no rule fits; only whole path parts fit."""
        if not self.rules:
            return path
        plain = _to_plain(path)
        fitting = [(old, new) for old, new in self.rules if is_below(plain, _to_plain(old))]
        if not fitting:
            return path
        old, new = max(fitting, key=lambda rule: len(_to_plain(rule[0])))
        return new.rstrip("/") + plain[len(_to_plain(old)) :]


def parse_path_mapping(texts: Iterable[str]) -> PathMapping:
    """A mapping from texts `FROM=TO`.

    Of several `=`, that separates which has an absolute path or URL on both sides: directories may be called `day=1`.

    Raises:
        UsageError: a text has another form, `FROM` is no absolute path, which snapshots alone name, or the host or
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
