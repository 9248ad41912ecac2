"""The savepoints that the tests read: those of this tree, and those below FLINK_STATE_FIXTURES when it is set."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.snapshot import open_snapshot
from tests.flink.harness import ORDERS, Entry, read_entries

if TYPE_CHECKING:
    from state_pipelines.codecs.kryo.classes import FieldLists
    from state_pipelines.snapshot import Snapshot

TYPES = Path(__file__).resolve().parents[1] / "data" / "types"
FIXTURES = os.environ.get("FLINK_STATE_FIXTURES")
NO_FIXTURES = "FLINK_STATE_FIXTURES is unset: it names the directory with files of Flink"
KINDS = ("keyed", "timer", "operator", "broadcast")


@dataclass(frozen=True)
class Savepoint:
    """A savepoint and the entries that Flink itself read from it.

    Attributes:
        name: for test ids.
        path: directory of the snapshot.
        expected: file of the entries.
        uids: of the operators, as Flink before 2.0 stores only hashes.
    """

    name: str
    path: Path
    expected: Path
    uids: tuple[str, ...]

    def __str__(self) -> str:
        return self.name

    def open(self, *, classes: FieldLists | None = None) -> Snapshot:
        return open_snapshot(str(self.path), uids=self.uids, classes=classes)

    def entries(self) -> list[Entry]:
        return [entry for entry in read_entries(self.expected) if entry["kind"] in KINDS]


@cache
def _load(folder: Path, name: str) -> Savepoint:
    expected = folder / "expected.jsonl.gz"
    (metadata,) = folder.glob("*/_metadata")
    operators = folder / "operators.json"
    if operators.exists():
        uids = {each["uid"] for each in json.loads(operators.read_text()) if each["uid"]}
    else:
        uids = {entry["op"] for entry in read_entries(expected)}
    return Savepoint(name, metadata.parent, expected, tuple(sorted(uids)))


def types(release: str = "2.2", variant: str = "rocksdb") -> Savepoint:
    """One of `tests/data/types`."""
    return _load(TYPES / f"flink-{release}" / variant, f"types-{release}-{variant}")


def orders(release: str = "2.2") -> Savepoint:
    """One of the orders example."""
    return _load(ORDERS / "savepoints" / f"flink-{release}", f"orders-{release}")


RELEASES = ("1.20", "2.2")
VARIANTS = ("heap", "heap-snappy", "rocksdb", "rocksdb-snappy")
ALL_TYPES = [types(release, variant) for release in RELEASES for variant in VARIANTS]
ALL_ORDERS = [orders(release) for release in RELEASES]
MADE = [
    _load(folder, f"made-{folder.parent.name}-{folder.name}")
    for folder in (sorted(Path(FIXTURES, "made").glob("*/*-canonical")) if FIXTURES else ())
]
