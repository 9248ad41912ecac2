"""Snapshots of the job with keys of many types, each made once; and how they compare after a rescaling."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state_pipelines.snapshot import open_snapshot
from tests.flink import harness, jobs
from tests.flink.make_data import FILES_ONLY, INCREMENTAL

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from state_pipelines.snapshot import Snapshot

LINES = ("1.20", "2.2")
OPERATORS = (
    *("string", "long", "integer", "tuple", "row", "pojo-objects", "pojo-ide", "pojo-lombok", "pojo-nested", "record"),
    *("tuple-of-pojo", "row-data", "string-windows", "pojo-sessions", "row-data-windows", "operator-states"),
)
"""The operators of the job besides its sources, by uid."""

# Another number of key groups puts the keys into other ones; Flink itself says whether it finds them there.
ANY_KEY_GROUP = (*harness.VOLATILE, "kg")
BY_SUBTASK = tuple(name for name in harness.VOLATILE if name != "subtask")
OTHER_REGION = 1_000


@dataclass(frozen=True)
class Made:
    """A snapshot that Flink made.

    Attributes:
        version: of Flink.
        path: directory with the `_metadata`.
        entries: of the operators that it was taken of.
    """

    version: str
    path: Path
    entries: list[harness.Entry]


@dataclass(frozen=True)
class Maker:
    """Makes snapshots with 2 subtasks and 128 key groups, none of them twice.

    Attributes:
        directory: where they lie.
        made: those that there are.
    """

    directory: Path
    made: dict[tuple[str, str, str, int], Made] = field(default_factory=dict)

    def make(self, version: str, backend: str = "hashmap", kind: str = "canonical", first: int = 0) -> Made:
        """A snapshot of a backend and a kind; `first` is the number of the first key."""
        name = (version, backend, kind, first)
        if name not in self.made:
            job = jobs.rescaling_job(first=first, settings=FILES_ONLY | INCREMENTAL)
            target = self.directory / "-".join(map(str, name))
            path, entries = harness.make_snapshot(version, job, target, backend=backend, kind=kind)
            self.made[name] = Made(version, path, entries)
        return self.made[name]


def open_path(path: str | Path) -> Snapshot:
    """A snapshot of the job; Flink before 2.0 does not store the uids."""
    return open_snapshot(str(path), uids=(*OPERATORS, "numbers", "broadcasts"))


def check(
    result: harness.RestoreResult,
    expected: Iterable[harness.Entry],
    parallelism: int,
    ignored: Iterable[str] = harness.VOLATILE,
) -> None:
    """Fails unless Flink took the snapshot and sees the entries, those of broadcast states in every subtask."""
    assert result.ok, result.error
    difference = harness.diff_entries(expected, result.entries, ignored)
    assert not difference, str(difference)
    broadcasts = [entry for entry in result.entries if entry["kind"] == "broadcast"]
    in_each = [entry | {"subtask": subtask} for entry in broadcasts for subtask in range(parallelism)]
    difference = harness.diff_entries(in_each, broadcasts, BY_SUBTASK)
    assert not difference, str(difference)
