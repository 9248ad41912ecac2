"""Directories of revisions: their order, the way from one to another, and which one a snapshot is at.

Every revision names the one that it revises; a file that does not follows the file before it, by name. There is one
line from `base`, before the first, to `head`, the last; gaps, branches and cycles are refused.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fsspec.implementations.local import LocalFileSystem

from state_pipelines.errors import MigrationError, MissingFileError, NotFoundError, StateError, UsageError, Where
from state_pipelines.operations.migration.migration_files import Migration, load_migration
from state_pipelines.operations.migration.revision_position import Position, find_position
from state_pipelines.operations.migration.schemas import Schemas, read_schemas
from state_pipelines.operations.migration.steps import Direction
from state_pipelines.storage import FileEntry, Location, is_directory, list_directory, read_file, resolve
from state_pipelines.storage.snapshot_writer import open_local_scratch

if TYPE_CHECKING:
    from state_pipelines.snapshot import Snapshot

HEAD, BASE = "head", "base"
"""The last revision, and the point before the first."""

_SUFFIXES = (".yaml", ".yml", ".py")
_RELATIVE = re.compile(r"[+-]\d{1,6}")


class RevisionDirectory:
    """The revisions of a job.

    Attributes:
        path: of the directory.
        revisions: from the first to the last.

    Args:
        path: a path or URL that fsspec reaches. Files in it that end in `.yaml`, `.yml` or `.py` are revisions, unless
            their names begin with `_` or `.`.
        allow_python: run Python files; without it they are refused.

    Raises:
        MissingFileError: there is no such directory.
        MigrationError: a file is no revision, or the revisions are not one line; names the files.
    """

    def __init__(self, path: str | Path, *, allow_python: bool = False) -> None:
        location = resolve(str(path))
        self.path = str(location)
        if not is_directory(location):
            raise MissingFileError(
                "there is no such directory of revisions",
                where=Where(file=self.path),
                hint="Name the directory; a single file goes with `migrate --migration`",
            )
        self.revisions = order_revisions(_load(location, allow_python=allow_python))

    @property
    def head(self) -> str:
        """Name of the last revision; `base` when there is none."""
        return self.revisions[-1].revision if self.revisions else BASE

    @property
    def fingerprint(self) -> str:
        """Changes with every file (SHA-256, 16 hexadecimal digits)."""
        text = "\n".join(f"{each.revision} {each.fingerprint}" for each in self.revisions)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def get(self, name: str) -> Migration:
        """The revision of a name, of the beginning of a name that only one has, or `head`.

        Raises:
            NotFoundError: there is none.
            UsageError: several names begin so.
        """
        position = self.locate(name)
        if position == 0:
            raise NotFoundError(f"{BASE} is no revision", where=Where(file=self.path))
        return self.revisions[position - 1]

    def locate(self, name: str) -> int:
        """Number of revisions applied at `name`: 0 at `base`.

        Raises:
            NotFoundError: there is no such revision.
            UsageError: several names begin so.
        """
        if name == BASE:
            return 0
        if name == HEAD:
            return len(self.revisions)
        names = [each.revision for each in self.revisions]
        if name in names:
            return names.index(name) + 1
        found = [each for each in names if name and each.startswith(name)]
        if len(found) > 1:
            raise UsageError(f"several revisions begin with {name}: {', '.join(found)}", where=Where(file=self.path))
        if not found:
            known = ", ".join((BASE, *names, HEAD))
            raise NotFoundError(f"there is no revision {name}", where=Where(file=self.path), hint=f"There are {known}")
        return names.index(found[0]) + 1

    def between(self, current: str, target: str) -> list[tuple[Migration, Direction]]:
        """The revisions to apply, in order, to get from one revision to another; empty when both are the same.

        Args:
            current: a revision, `base` or `head`.
            target: likewise, or steps from the current one: `+1`, `-2`.

        Raises:
            NotFoundError: there is no such revision.
            UsageError: the steps lead beyond the first or the last.
        """
        start = self.locate(current)
        end = start + int(target) if _RELATIVE.fullmatch(target) else self.locate(target)
        if not 0 <= end <= len(self.revisions):
            raise UsageError(
                f"{target} from {self.name(start)} leads beyond {HEAD if end > 0 else BASE}",
                where=Where(file=self.path),
                hint=f"{len(self.revisions) - start} revisions are newer, {start} are older",
            )
        if end >= start:
            return [(each, Direction.UPGRADE) for each in self.revisions[start:end]]
        return [(each, Direction.DOWNGRADE) for each in reversed(self.revisions[end:start])]

    def name(self, position: int) -> str:
        """The revision after so many; mirror of `locate`."""
        return self.revisions[position - 1].revision if position else BASE

    def current(self, snapshot: Snapshot | Schemas) -> Position:
        """The revision that a snapshot is at, found from its own serializers; no data are read.

        It is the one from which all later revisions can be applied and all earlier ones taken back, so that the
        serializers fit at each step. Revisions that change values only leave no trace in serializers.

        Raises:
            StateError: the snapshot cannot be read.
        """
        schemas = snapshot if isinstance(snapshot, Schemas) else read_schemas(snapshot, self.revisions)
        return find_position(self.revisions, schemas, BASE)


def order_revisions(files: list[Migration]) -> tuple[Migration, ...]:
    """Revisions from the first to the last.

    Args:
        files: in the order of their names; a file without `revises` follows the one before it.

    Raises:
        MigrationError: they are not one line; names the files.
    """
    parents: dict[str, str] = {}
    by_name: dict[str, Migration] = {}
    before = BASE
    for each in files:
        _check_name(each)
        if each.revision in by_name:
            both = f"{_file(by_name[each.revision])} and {_file(each)}"
            raise MigrationError(f"revision {each.revision} is in two files: {both}", hint="Give one another name")
        by_name[each.revision] = each
        parents[each.revision] = before if each.revises is None else each.revises
        before = each.revision
    children: dict[str, str] = {}
    for name, parent in parents.items():
        if parent != BASE and parent not in by_name:
            raise MigrationError(
                f"revision {name} revises {parent}, which no file has",
                where=Where(file=by_name[name].path),
                hint=f"The revisions are {', '.join(by_name)}",
            )
        if parent in children:
            both = f"{children[parent]} ({_file(by_name[children[parent]])}) and {name} ({_file(by_name[name])})"
            raise MigrationError(f"two revisions revise {parent}: {both}", hint="Let one of them revise the other")
        children[parent] = name
    line: list[str] = []
    name = BASE
    while name in children:
        name = children[name]
        line.append(name)
    circle = [each for each in by_name if each not in line]
    if circle:
        revisions_text = ", ".join(f"{each} ({_file(by_name[each])}) revises {parents[each]}" for each in circle)
        raise MigrationError(
            f"revisions revise each other in a circle: {revisions_text}", hint=f"The first revises {BASE}"
        )
    return tuple(by_name[each] for each in line)


def _check_name(migration: Migration) -> None:
    name = migration.revision
    if name in (HEAD, BASE) or name[:1] in ("+", "-") or not name.strip():
        raise MigrationError(
            f"{name!r} is no name for a revision",
            where=Where(file=migration.path),
            hint=f"{HEAD}, {BASE}, +1 and the like have a meaning of their own",
        )


def _file(migration: Migration) -> str:
    return migration.path.rpartition("/")[2]


def _load(directory: Location, *, allow_python: bool) -> list[Migration]:
    entries = [each for each in list_directory(directory) if not each.is_directory]
    entries.sort(key=lambda each: each.location.name)
    if isinstance(directory.filesystem, LocalFileSystem):
        revisions = (str(each.location) for each in filter(_is_revision, entries))
        return [load_migration(each, allow_python=allow_python, named=True) for each in revisions]
    # Schemas and Python modules that revisions name are files of the same directory, on this machine.
    with open_local_scratch() as local:
        for each in entries:
            Path(local, each.location.name).write_bytes(read_file(each.location))
        return [
            _load_copy(Path(local, each.location.name), each, allow_python=allow_python)
            for each in filter(_is_revision, entries)
        ]


def _load_copy(copy: Path, entry: FileEntry, *, allow_python: bool) -> Migration:
    try:
        return replace(load_migration(copy, allow_python=allow_python, named=True), path=str(entry.location))
    except StateError as error:
        error.where = replace(error.where, file=str(entry.location))
        raise


def _is_revision(entry: FileEntry) -> bool:
    name = entry.location.name
    return name.endswith(_SUFFIXES) and not name.startswith(("_", "."))
