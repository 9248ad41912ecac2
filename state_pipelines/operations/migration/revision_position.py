"""The revision that a snapshot is at, by its own serializers.

A snapshot is at a revision when that revision and all before it can be taken back, and all after it be applied, each so
that its opposite leads back to the same serializers. Plans on shapes decide this; no data are read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from state_pipelines.errors import MigrationError, StateError
from state_pipelines.operations.migration.migration_planner import find_subject
from state_pipelines.operations.migration.schemas import apply_migration
from state_pipelines.operations.migration.steps import Cast, Convert, Direction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.operations.migration.migration_files import Change, Migration
    from state_pipelines.operations.migration.schemas import Schemas


@dataclass(frozen=True)
class Position:
    """The revision of a snapshot, as far as its serializers show it.

    Attributes:
        revision: its revision (`base`: before the first); None when it cannot be determined.
        candidates: where it may be, in order; one when it is known.
        reasons: why the other revisions are excluded, or why candidates are indistinguishable; by revision.
    """

    revision: str | None
    candidates: tuple[str, ...]
    reasons: Mapping[str, str]

    def require(self) -> str:
        """The revision.

        Raises:
            MigrationError: it is not known; says why.
        """
        if self.revision is not None:
            return self.revision
        raise MigrationError(self.explain(), hint="Say where it is with --from REVISION")

    def explain(self) -> str:
        """Why the revision is not known; empty when it is."""
        if self.revision is not None:
            return ""
        names = self.candidates or tuple(self.reasons)
        why = "; ".join(f"{name}: {self.reasons[name]}" for name in names if name in self.reasons)
        if self.candidates:
            return f"the snapshot may be at {' or '.join(self.candidates)} ({why})"
        return f"the snapshot is at no revision of this directory ({why})"


@dataclass(frozen=True)
class _Finding:
    """Whether a snapshot may be at a revision: why not, and whether every step leads back."""

    refused: str = ""
    exact: bool = True


def find_position(revisions: Sequence[Migration], schemas: Schemas, base: str) -> Position:
    """The revision that a snapshot is at.

    Args:
        revisions: from the first to the last.
        schemas: of the operators that they name.
        base: name of the position before the first revision.
    """
    names = (base, *(each.revision for each in revisions))
    # The next step each way is enough to refuse most positions.
    findings = [_judge(revisions, schemas, index, reach=1) for index in range(len(names))]
    findings = [
        each if each.refused else _judge(revisions, schemas, index, reach=len(revisions))
        for index, each in enumerate(findings)
    ]
    fitting = [index for index, each in enumerate(findings) if not each.refused]
    # A downgrade need not bring back the serializer to the last detail, but one that does is the better witness.
    fitting = [index for index in fitting if findings[index].exact] or fitting
    reasons = {
        name: each.refused or "the serializers of another position fit better"
        for index, (name, each) in enumerate(zip(names, findings, strict=True))
        if index not in fitting
    }
    for lower, upper in pairwise(fitting):
        silent = ", ".join(names[lower + 1 : upper + 1])
        reasons[names[upper]] = f"{silent} leaves no trace in the serializers of this snapshot"
    candidates = tuple(names[index] for index in fitting)
    return Position(candidates[0] if len(candidates) == 1 else None, candidates, reasons)


def _judge(revisions: Sequence[Migration], schemas: Schemas, index: int, reach: int) -> _Finding:
    """Whether the snapshot may be at a position, by as many revisions above and below it."""
    exact = True
    shapes = schemas
    for migration in revisions[index : index + reach]:
        before = shapes
        try:
            shapes, back = apply_migration(shapes, migration, Direction.UPGRADE)
        except StateError as error:
            return _Finding(f"{migration.revision} cannot be applied: {_say(error)}")
        # A cast to the current type is not a change: such a revision has been applied already.
        exact = exact and back and not (_changes_types(migration) and shapes.is_like(before))
    shapes = schemas
    lost: set[tuple[str, str]] = set()
    for migration in reversed(revisions[max(index - reach, 0) : index]):
        try:
            found = _find_lost(migration, shapes)
            if found is None:
                return _Finding(f"{migration.revision} can still be applied")
            lost |= found
            shapes, back = apply_migration(shapes, _leave_out(migration, shapes, lost), Direction.DOWNGRADE)
        except StateError as error:
            return _Finding(f"{migration.revision} cannot be taken back: {_say(error)}")
        exact = exact and back
    return _Finding(exact=exact)


def _changes_types(migration: Migration) -> bool:
    """Whether there is a step that does nothing else."""
    steps = (step for change in migration.changes for step in change.upgrade)
    return any(isinstance(step, Cast | Convert) and step.expression is None for step in steps)


def _find_lost(migration: Migration, after: Schemas) -> set[tuple[str, str]] | None:
    """States, by operator and name, whose earlier shape is unknown; '' stands for all states of an operator.

    None says that a change without a way back has not been applied yet: it still fits, and would change serializers.
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
    """The migration without changes that cannot be taken back, and without those of states that are lost."""
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
