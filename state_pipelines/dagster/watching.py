"""Filters of the sensor `new_snapshots`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import dagster as dg
from pydantic import BeforeValidator, ConfigDict, Field

from state_pipelines.dagster.field_validators import parsed_by
from state_pipelines.metadata.properties import SnapshotKind
from state_pipelines.operations.retention.policy import parse_duration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from state_pipelines.operations.inventory import SnapshotSummary
    from state_pipelines.snapshot import Snapshot

# Texts, not members of `SnapshotKind`: `unknown` cannot be chosen, and pydantic's message lists the choices.
Kind = Literal["savepoint", "checkpoint"]
_Age = Annotated[str, parsed_by(partial(parse_duration, field="min_age"))]


def _to_tuple(value: object) -> object:
    return tuple(each.strip() for each in value.split(",")) if isinstance(value, str) else value


class Watch(dg.Model):
    """Filters of the sensor `new_snapshots`; the inventory lists all snapshots regardless."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kinds: Annotated[tuple[Kind, ...], BeforeValidator(_to_tuple)] = Field(
        default=("savepoint", "checkpoint"), description="Kinds of snapshots that get a partition."
    )
    migrate: Annotated[tuple[Kind, ...], BeforeValidator(_to_tuple)] = Field(
        default=("savepoint",),
        description="Kinds that are migrated automatically when revisions are pending.",
    )
    include: Annotated[tuple[str, ...], BeforeValidator(_to_tuple)] = Field(
        default=("*",), description="Patterns of directories, such as */release-*/*; `*` also matches `/`."
    )
    exclude: Annotated[tuple[str, ...], BeforeValidator(_to_tuple)] = Field(
        default=(), description="Patterns of directories to ignore."
    )
    min_age: _Age = Field(default="0s", description="Minimal age of `_metadata`, such as 5min.")
    seconds: float = Field(
        default=10, gt=0, description="Time limit of one tick in seconds; the rest waits for the next tick."
    )

    def takes(self, summary: SnapshotSummary, now: datetime) -> bool:
        """Return whether a snapshot passes the filters now."""
        if summary.kind not in (*self.kinds, SnapshotKind.UNKNOWN):
            return False
        if summary.modified is not None and now - summary.modified < parse_duration(self.min_age):
            return False
        path = summary.path
        return any(fnmatchcase(path, each) for each in self.include) and not any(
            fnmatchcase(path, each) for each in self.exclude
        )

    def migrates(self, summary: SnapshotSummary) -> bool:
        """Return whether a snapshot is migrated automatically; also if its kind is unknown, as before Flink 1.16."""
        return summary.kind in (*self.migrate, SnapshotKind.UNKNOWN)


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
