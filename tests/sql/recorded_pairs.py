"""Recorded plans and savepoints of queries that change; `tests.flink.make_migrated_queries` makes them."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path

from state_pipelines.snapshot import Snapshot, open_snapshot

FOLDER = Path(__file__).parent.parent / "data/sql/migrated"
NAMES = tuple(each.name.removesuffix(".tar.gz") for each in sorted(FOLDER.glob("*.tar.gz")))


@dataclass(frozen=True)
class RecordedPair:
    """The files of a pair."""

    folder: Path

    @property
    def old(self) -> str:
        return str(self.folder / "old.json")

    @property
    def new(self) -> str:
        return str(self.folder / "new.json")

    @property
    def savepoint(self) -> str:
        return str(self.folder / "savepoint")

    def open(self) -> Snapshot:
        return open_snapshot(self.savepoint)


def unpack(name: str, directory: Path) -> RecordedPair:
    """Unpack a pair into a directory."""
    folder = directory / name
    with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return RecordedPair(folder)
