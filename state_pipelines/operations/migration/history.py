"""Directories of revisions: their order, the way from one to another, and which one a snapshot is at.

Every revision names the one that it revises; a file that does not follows the file before it, by name. There is one
line from `base`, before the first, to `head`, the last; gaps, branches and cycles are refused.

A snapshot is at a revision when that revision and all before it can be taken back, and all after it be applied, each so
that its opposite leads back to the same serializers. Plans on shapes decide this; no data are read.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fsspec.implementations.local import LocalFileSystem

from state_pipelines.errors import MigrationError, MissingFileError, NotFoundError, StateError, UsageError, Where
from state_pipelines.operations.migration.migration_files import Migration, load_migration
from state_pipelines.operations.migration.migration_planner import find_subject, make_context, plan_migrations
from state_pipelines.operations.migration.shapes import find_shapes, number_columns
from state_pipelines.operations.migration.steps import Cast, Convert, Direction
from state_pipelines.operations.migration.structs import PlanContext, sign_shapes
from state_pipelines.operations.models import OperationModel, Option
from state_pipelines.storage import FileEntry, Location, is_directory, list_directory, read_file, resolve
from state_pipelines.storage.snapshot_writer import open_local_scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from state_pipelines.operations.migration.migration_files import Change
    from state_pipelines.operations.migration.shapes import StateShape
    from state_pipelines.snapshot import Snapshot


class MigrationRequest(OperationModel):
    """A migration along revisions."""

    to: Annotated[str | None, Option(value="REVISION")] = None
    """Target revision: head, base, a revision or its beginning, +1 or -1; by default head, or that of the job."""

    from_revision: Annotated[str | None, Option("--from", value="REVISION")] = None
    """Revision of the snapshot, if its serializers do not tell."""


@dataclass(frozen=True)
class Schemas:
    """Shapes of the states of a snapshot, before or after some revisions.

    Attributes:
        operators: by operator id, the shapes by state name.
        find: function that returns the operator id of a uid, id or name; it raises `NotFoundError`.
        context: planning context.
    """

    operators: Mapping[str, Mapping[str, StateShape]]
    find: Callable[[str], str]
    context: PlanContext = field(default_factory=PlanContext)

    def is_like(self, other: Schemas) -> bool:
        """Return whether both have the same operators, whose states have the same signatures."""
        return self.operators.keys() == other.operators.keys() and all(
            sign_shapes(shapes.values()) == sign_shapes(other.operators[name].values())
            for name, shapes in self.operators.items()
        )


def read_schemas(snapshot: Snapshot, migrations: Iterable[Migration]) -> Schemas:
    """Read the shapes (serializers) of the states of those operators of a snapshot that migrations name.

    Raises:
        StateError: the snapshot cannot be read.
    """
    snapshot = number_columns(snapshot)
    operators = {}
    for name in dict.fromkeys(change.operator for each in migrations for change in each.changes):
        try:
            operator = snapshot.operator(name)
        except NotFoundError:
            continue  # an unknown operator is reported when a change of it is applied
        operators[operator.id] = find_shapes(operator)
    together = {f"{each}/{name}": shape for each, shapes in operators.items() for name, shape in shapes.items()}
    return Schemas(operators, lambda name: snapshot.operator(name).id, make_context(snapshot, together))


def apply_migration(schemas: Schemas, migration: Migration, direction: Direction) -> tuple[Schemas, bool]:
    """Apply a migration to shapes; return the new shapes, and whether the opposite direction restores the old ones.

    States for which the opposite is impossible are not compared; if it is impossible for all, the flag is True.

    Raises:
        NotFoundError: there is no such operator.
        MigrationError: the migration does not fit.
    """
    called: dict[str, set[str]] = {}
    for change in migration.changes:
        called.setdefault(schemas.find(change.operator), set()).add(change.operator)
    after, exact = dict(schemas.operators), True
    for name, names in called.items():
        chain = [(migration, direction)]
        plan = plan_migrations(schemas.operators[name], chain, operators=names, context=schemas.context)
        after[name] = plan.new_shapes
        if plan.back is not None:
            # The opposite migration does not restore states without a downgrade, so these are not compared.
            before = {state: shape for state, shape in schemas.operators[name].items() if state in plan.back.states}
            exact = exact and sign_shapes(plan.back.new_shapes.values()) == sign_shapes(before.values())
    return replace(schemas, operators=after), exact


@dataclass(frozen=True)
class Position:
    """The revision of a snapshot, as far as its serializers show it.

    Attributes:
        revision: the revision of the snapshot (`base`: before the first one); None if it cannot be determined.
        candidates: all revisions that the snapshot may be at, in order; exactly one if it is known.
        reasons: by revision, why it is excluded, or why it cannot be distinguished from the candidate before it.
    """

    revision: str | None
    candidates: tuple[str, ...]
    reasons: Mapping[str, str]

    def require(self) -> str:
        """Return the revision.

        Raises:
            MigrationError: the revision is not known; the message says why.
        """
        if self.revision is not None:
            return self.revision
        raise MigrationError(self.explain(), hint="Give the revision of the snapshot with --from REVISION")

    def explain(self) -> str:
        """Return the reason why the revision is not known; empty if it is known."""
        if self.revision is not None:
            return ""
        names = self.candidates or tuple(self.reasons)
        why = "; ".join(f"{name}: {self.reasons[name]}" for name in names if name in self.reasons)
        if self.candidates:
            return f"the snapshot may be at {' or '.join(self.candidates)} ({why})"
        return f"the snapshot is at no revision of this directory ({why})"


@dataclass(frozen=True)
class _Finding:
    """Judgement on whether a snapshot may be at a revision.

    Attributes:
        refused: why the snapshot cannot be at the revision; empty if it may be.
        exact: whether each migration that was tried can be reverted to exactly the same schemas, and none with a cast
            or conversion leaves the schemas unchanged.
    """

    refused: str = ""
    exact: bool = True


def find_position(revisions: Sequence[Migration], schemas: Schemas, base: str) -> Position:
    """Find the revision that a snapshot is at.

    Args:
        revisions: all revisions from the first to the last.
        schemas: shapes of the operators of the snapshot that the revisions name.
        base: name of the position before the first revision.
    """
    names = (base, *(each.revision for each in revisions))
    # Trying one revision up and one down is enough to refuse most positions.
    findings = [_judge(revisions, schemas, index, reach=1) for index in range(len(names))]
    findings = [
        each if each.refused else _judge(revisions, schemas, index, reach=len(revisions))
        for index, each in enumerate(findings)
    ]
    fitting = [index for index, each in enumerate(findings) if not each.refused]
    # A downgrade may restore a serializer only approximately. Positions from which all migrations lead back exactly
    # are preferred.
    fitting = [index for index in fitting if findings[index].exact] or fitting
    reasons = {
        name: each.refused or "the serializers fit another revision better"
        for index, (name, each) in enumerate(zip(names, findings, strict=True))
        if index not in fitting
    }
    for lower, upper in pairwise(fitting):
        silent = ", ".join(names[lower + 1 : upper + 1])
        reasons[names[upper]] = f"{silent} leaves no trace in the serializers of this snapshot"
    candidates = tuple(names[index] for index in fitting)
    return Position(candidates[0] if len(candidates) == 1 else None, candidates, reasons)


def _judge(revisions: Sequence[Migration], schemas: Schemas, index: int, reach: int) -> _Finding:
    """Judge whether the snapshot may be at a position: try to apply up to `reach` revisions above and below it."""
    exact = True
    shapes = schemas
    for migration in revisions[index : index + reach]:
        before = shapes
        try:
            shapes, back = apply_migration(shapes, migration, Direction.UPGRADE)
        except StateError as error:
            return _Finding(f"{migration.revision} cannot be applied: {_say(error)}")
        # If a cast or conversion changes nothing, the state has the new type already: the snapshot is probably at a
        # later revision, so this position is not exact.
        exact = exact and back and not (_changes_types(migration) and shapes.is_like(before))
    shapes = schemas
    lost: set[tuple[str, str]] = set()
    for migration in reversed(revisions[max(index - reach, 0) : index]):
        try:
            found = _find_lost(migration, shapes)
            if found is None:
                return _Finding(f"{migration.revision} can still be applied, so the snapshot is from before it")
            lost |= found
            shapes, back = apply_migration(shapes, _leave_out(migration, shapes, lost), Direction.DOWNGRADE)
        except StateError as error:
            return _Finding(f"{migration.revision} cannot be reverted: {_say(error)}")
        exact = exact and back
    return _Finding(exact=exact)


def _changes_types(migration: Migration) -> bool:
    """Return whether an upgrade step of the migration is a cast or a conversion without an expression."""
    steps = (step for change in migration.changes for step in change.upgrade)
    return any(isinstance(step, Cast | Convert) and step.expression is None for step in steps)


def _find_lost(migration: Migration, after: Schemas) -> set[tuple[str, str]] | None:
    """List the states whose shape before `migration` is unknown, since their changes have no downgrade.

    Returns (operator, state) pairs; the state '' stands for all states of the operator. Returns None if such a change
    still fits `after` and would change its serializers: then the snapshot cannot be at a revision that includes it.
    """
    lost: set[tuple[str, str]] = set()
    for change in migration.changes:
        if not change.impossible:
            continue
        try:
            again, _ = apply_migration(after, replace(migration, changes=(change,)), Direction.UPGRADE)
        except StateError:
            lost |= _name_states(change, after)
            continue
        if not again.is_like(after):
            return None
    return lost


def _leave_out(migration: Migration, schemas: Schemas, lost: set[tuple[str, str]]) -> Migration:
    """Return the migration without changes that have no downgrade or are of states in `lost` (see `_find_lost`)."""
    kept = []
    for change in migration.changes:
        names = _name_states(change, schemas)
        if not change.impossible and not names & lost and not {(operator, "") for operator, _ in names} & lost:
            kept.append(change)
    return replace(migration, changes=tuple(kept))


def _name_states(change: Change, schemas: Schemas) -> set[tuple[str, str]]:
    operator = schemas.find(change.operator)
    return {(operator, change.state or ""), (operator, find_subject(change, Direction.DOWNGRADE))}


def _say(error: StateError) -> str:
    index = " / ".join(filter(None, (error.where.operator, error.where.state)))
    return f"{error.what} ({index})" if index else error.what


HEAD, BASE = "head", "base"
"""Names of the last revision, and of the position before the first one."""

_SUFFIXES = (".yaml", ".yml", ".py")
_RELATIVE = re.compile(r"[+-]\d{1,6}")


class RevisionDirectory:
    """The revisions of a job.

    Attributes:
        path: path of the directory.
        revisions: the revisions from the first to the last.

    Args:
        path: a path or URL that fsspec reaches. Files in it that end in `.yaml`, `.yml` or `.py` are revisions, unless
            their names begin with `_` or `.`.
        allow_python: run Python files; without it they are refused.

    Raises:
        MissingFileError: there is no such directory.
        MigrationError: a file is no revision, or the revisions do not follow one another in a single line; the message
            names the files.
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
        """Hash of the names and contents of all revisions (first 16 hexadecimal digits of SHA-256)."""
        text = "\n".join(f"{each.revision} {each.fingerprint}" for each in self.revisions)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def get(self, name: str) -> Migration:
        """Return the revision of a name; `name` may also be the unique beginning of a name, or `head`.

        Raises:
            NotFoundError: there is no such revision.
            UsageError: several names begin with `name`.
        """
        position = self.locate(name)
        if position == 0:
            raise NotFoundError(f"{BASE} is no revision", where=Where(file=self.path))
        return self.revisions[position - 1]

    def locate(self, name: str) -> int:
        """Return the number of revisions that have been applied at `name`: 0 for `base`.

        Raises:
            NotFoundError: there is no such revision.
            UsageError: several names begin with `name`.
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
        """List the revisions to apply, in order, to get from one revision to another; empty if both are the same.

        Args:
            current: a revision, `base` or `head`.
            target: a revision, `base`, `head`, or a number of revisions from `current`, such as `+1` or `-2`.

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
        """Return the name of the last of the first `position` revisions, `base` for 0; the inverse of `locate`."""
        return self.revisions[position - 1].revision if position else BASE

    def current(self, snapshot: Snapshot | Schemas) -> Position:
        """Find the revision that a snapshot is at from its serializers; no data are read.

        A snapshot may be at a revision if the upgrades of all later revisions can be applied to its serializers, and
        the downgrades of all revisions up to this one. Revisions that change only values leave no trace in serializers.

        Raises:
            StateError: the snapshot cannot be read.
        """
        schemas = snapshot if isinstance(snapshot, Schemas) else read_schemas(snapshot, self.revisions)
        return find_position(self.revisions, schemas, BASE)


def order_revisions(files: list[Migration]) -> tuple[Migration, ...]:
    """Sort revisions from the first to the last.

    Args:
        files: revisions in the order of their file names; one without `revises` follows the revision before it.

    Raises:
        MigrationError: the revisions do not follow one another in a single line; the message names the files.
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
    # Revisions may name schema files and Python modules in the same directory, which are read as local files. So the
    # whole directory is copied to this machine.
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
