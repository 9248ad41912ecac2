"""Settings of the sensor `new_snapshots`: filters, the snapshots with which a job begins, runs after failures."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import dagster as dg
from pydantic import BeforeValidator, ConfigDict, Field

from state_pipelines.dagster.field_validators import parsed_by
from state_pipelines.metadata.checkpoint import SnapshotKind
from state_pipelines.operations.retention.policy import parse_duration

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from state_pipelines.operations.inventory import SnapshotSummary
    from state_pipelines.snapshot import Snapshot

# Texts, not members of `SnapshotKind`: `unknown` cannot be chosen, and pydantic's message lists the choices.
Kind = Literal["savepoint", "checkpoint"]
_Age = Annotated[str, parsed_by(partial(parse_duration, field="min_age"))]


_Period = Annotated[str, parsed_by(partial(parse_duration, field="checkpoints"))]


def _to_tuple(value: object) -> object:
    return tuple(each.strip() for each in value.split(",")) if isinstance(value, str) else value


def _to_kinds(value: object) -> object:
    """Split a text, and accept plurals: `savepoints` is what people write."""
    found = _to_tuple(value)
    if not isinstance(found, list | tuple):
        return found
    return tuple(each.removesuffix("s") if isinstance(each, str) else each for each in found)


class Watch(dg.Model):
    """Settings of the sensor `new_snapshots`; the inventory lists all snapshots regardless."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kinds: Annotated[tuple[Kind, ...], BeforeValidator(_to_kinds)] = Field(
        default=("savepoint", "checkpoint"), description="Kinds of snapshots that get a partition."
    )
    checkpoints: _Period = Field(
        default="1h",
        description="Of the checkpoints, the newest one in each such time gets a partition; with 0s, all of them.",
    )
    migrate: Annotated[tuple[Kind, ...], BeforeValidator(_to_kinds)] = Field(
        default=("savepoint",),
        description="Kinds that are migrated automatically when revisions are pending.",
    )
    include: Annotated[tuple[str, ...], BeforeValidator(_to_tuple)] = Field(
        default=("*",), description="Patterns of directories, such as */release-*/*; `*` also matches `/`."
    )
    exclude: Annotated[tuple[str, ...], BeforeValidator(_to_tuple)] = Field(
        default=(), description="Patterns of directories to ignore."
    )
    since: Literal["now", "newest", "all"] = Field(
        default="newest",
        description="Snapshots with which the job begins, of those that exist at the first tick: none (now), the "
        "newest of each kind (newest), or all.",
    )
    retries: int = Field(
        default=2,
        ge=0,
        description="Number of further runs that a migration gets if its run fails without an error of the state, such "
        "as when its worker was killed.",
    )
    min_age: _Age = Field(default="0s", description="Minimal age of `_metadata`, such as 5min.")
    seconds: float = Field(
        default=10, gt=0, description="Time limit of one tick in seconds; the rest waits for the next tick."
    )

    def matches_kind(self, kind: str) -> bool:
        """Return whether snapshots of a kind get a partition; also those of an unknown kind, as before Flink 1.16."""
        return kind in (*self.kinds, SnapshotKind.UNKNOWN)

    def matches(self, summary: SnapshotSummary) -> bool:
        """Return whether a snapshot passes the filters, apart from `min_age`."""
        if not self.matches_kind(summary.kind):
            return False
        path = summary.path
        return any(fnmatchcase(path, each) for each in self.include) and not any(
            fnmatchcase(path, each) for each in self.exclude
        )

    def is_too_young(self, summary: SnapshotSummary, now: datetime) -> bool:
        """Return whether a snapshot has to wait because of `min_age`."""
        return summary.modified is not None and now - summary.modified < parse_duration(self.min_age)

    def samples(self, summary: SnapshotSummary, taken: Iterable[datetime]) -> bool:
        """Return whether a snapshot gets a partition as far as `checkpoints` says.

        Args:
            summary: of the snapshot.
            taken: when checkpoints with a partition were written.
        """
        written = summary.modified
        if summary.kind is not SnapshotKind.CHECKPOINT or written is None:
            return True
        period = parse_duration(self.checkpoints)
        return all(abs(written - each) >= period for each in taken)

    def migrates(self, summary: SnapshotSummary) -> bool:
        """Return whether a snapshot is migrated automatically; also if its kind is unknown, as before Flink 1.16."""
        return summary.kind in (*self.migrate, SnapshotKind.UNKNOWN)


@dataclass
class Beginning:
    """The snapshots that exist when a job starts: with which it begins, and which are passed over.

    It lasts for the ticks that open them, and again after the cursor of the sensor was cleared. Snapshots with a
    partition are not passed over, so that a cleared cursor evaluates them again.

    Attributes:
        since: the setting `since`.
        partitions: partition keys that the job has.
        reached: when the first snapshot of each kind was written; older ones are passed over. None if that is unknown:
            then all are.
    """

    since: str
    partitions: Collection[str]
    reached: dict[SnapshotKind, datetime | None] = field(default_factory=dict)

    def start(self, summaries: Iterable[SnapshotSummary]) -> None:
        """Set the first snapshots as far as they are known before a snapshot is opened.

        Args:
            summaries: the readable snapshots, newest first.
        """
        found = list(summaries)
        for each in found:
            if each.key in self.partitions:
                self.accept(each)
        if self.since == "now":
            for kind in SnapshotKind:
                self.reached.setdefault(kind, found[0].modified if found else None)

    def accept(self, summary: SnapshotSummary) -> None:
        """Begin with this snapshot, unless the job has begun with a newer one of its kind."""
        if self.since != "all":
            self.reached.setdefault(summary.kind, summary.modified)

    def passes_over(self, summary: SnapshotSummary) -> bool:
        """Return whether a snapshot is older than the first one of its kind."""
        if summary.kind not in self.reached or summary.key in self.partitions:
            return False
        first = self.reached[summary.kind]
        return first is None or summary.modified is None or summary.modified <= first

    def is_open(self, summary: SnapshotSummary) -> bool:
        """Return whether the first snapshot of its kind is not known yet, so that a newer one must be decided first."""
        return self.since != "all" and summary.kind not in self.reached and summary.key not in self.partitions

    def to_json(self) -> dict[str, str | None]:
        """Return `reached` for the cursor."""
        return {kind.value: None if time is None else time.isoformat() for kind, time in self.reached.items()}

    def resume(self, texts: dict[str, str | None]) -> None:
        """Set `reached` from the cursor."""
        self.reached = {
            SnapshotKind(kind): None if text is None else datetime.fromisoformat(text) for kind, text in texts.items()
        }


def find_stranger(uids: Sequence[str], snapshot: Snapshot) -> str:
    """Return why a snapshot is not one of a job, or an empty text if it may be.

    Args:
        uids: declared uids of the job; without any, every snapshot may be one of the job.
        snapshot: the snapshot, opened with these uids, so that hashes are resolved.
    """
    labels = {operator.label for operator in snapshot.operators}
    if not uids or not labels or labels & set(uids):
        return ""
    return f"not a snapshot of this job: it has none of the operators {', '.join(sorted(uids))}"
