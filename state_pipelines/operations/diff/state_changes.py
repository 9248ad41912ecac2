"""Changes between two snapshots of a job by state: records added, removed and changed, with samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.operations.diff.diff_report import ExampleKind, Presence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state_pipelines.operations.diff.diff_report import Example, SnapshotDiff, StateDiff


@dataclass(frozen=True)
class StateChange:
    """One state in an older and a newer snapshot.

    Attributes:
        operator: the uid, or the id when the uid is not known.
        state: name.
        kind: as in `StateReport`.
        before: records in the older snapshot; None when they were not counted.
        after: records in the newer snapshot; likewise.
        added: records that only the newer has; None when records were not compared one by one.
        removed: records that only the older has; likewise.
        changed: records with another value; likewise.
        note: why records were not compared, or serializers that differ; empty otherwise.
        samples: some of these records.
    """

    operator: str
    state: str
    kind: str
    before: int | None
    after: int | None
    added: int | None
    removed: int | None
    changed: int | None
    note: str = ""
    samples: tuple[Example, ...] = ()

    @property
    def is_changed(self) -> bool:
        """Whether a difference was found, or the records could not be compared."""
        return bool(self.note) or any((self.added, self.removed, self.changed)) or self.before != self.after

    def list_samples(self, kind: ExampleKind) -> list[Example]:
        """Samples of one kind: those only in the older (`ONE`), only in the newer (`OTHER`), or changed."""
        return [each for each in self.samples if each.kind is kind]


def list_changes(diff: SnapshotDiff) -> list[StateChange]:
    """The states of a comparison of an older (`one`) and a newer snapshot (`other`)."""
    return list(_iter_changes(diff))


def _iter_changes(diff: SnapshotDiff) -> Iterator[StateChange]:
    for operator in diff.operators:
        if operator.error:
            yield StateChange(operator.label, "", "", None, None, None, None, None, operator.error)
        for state in operator.states:
            yield _describe(operator.label, state)


def _describe(operator: str, state: StateDiff) -> StateChange:
    contents = state.contents
    one, other = (None, None) if contents is None else (contents.one, contents.other)
    before, after = (None if each is None else each.records for each in (one, other))
    added = removed = changed = None
    notes = [
        f"{each.name} was {each.one}, is {each.other}" for each in state.properties if each.counts and each.differs
    ]
    if state.presence is Presence.ONE:
        after, added, removed, changed = 0, 0, before, 0
        notes = ["the newer snapshot has no such state"]
    elif state.presence is Presence.OTHER:
        before, added, removed, changed = 0, after, 0, 0
        notes = ["the older snapshot has no such state"]
    elif contents is not None:
        added, removed, changed = contents.only_in_other, contents.only_in_one, contents.changed
        notes += [contents.note] if contents.note else []
    return StateChange(
        operator,
        state.name,
        str(state.kind),
        before,
        after,
        added,
        removed,
        changed,
        "; ".join(notes),
        () if contents is None else contents.examples,
    )
