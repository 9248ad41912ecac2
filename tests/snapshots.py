"""Snapshots that real Flink made: those of this tree, and those below FLINK_STATE_FIXTURES when it is set.

Each comes with its entries; conformance suites are parametrised over `CASES`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.codecs.kryo import load_classes
from state_pipelines.serializers.text import parse
from state_pipelines.snapshot import Declarations, open_snapshot
from tests.flink.harness import Entry, read_entries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state_pipelines.codecs.kryo.classes import FieldLists
    from state_pipelines.snapshot import Snapshot

DATA = Path(__file__).resolve().parent / "data"
FIXTURES = os.environ.get("FLINK_STATE_FIXTURES")
ENTRY_KINDS = ("keyed", "timer", "operator", "broadcast")

CLASSES = """\
types.Guest extends types.Person: [visits: int]
oracle.model.GenericThing:
  - a: int
  - b: String
  - list: ArrayList<String>
  - map: HashMap<String, Integer>
  - nullable: Long
  - color: oracle.model.Color
  - d: double
  - longs: long[]
enum oracle.model.Color: [RED, GREEN, BLUE]
oracle.model.VipProfile extends oracle.model.UserProfile: [level: int]
"""
"""Fields of the classes that snapshots do not describe."""

KEY_SERIALIZERS = {
    "made-2.2.1-changelog-rocksdb-checkpoint": {
        "op-pojokey": "Pojo<oracle.model.KeyPojo>(bucket: Int, region: String)",
        "op-agg": "Tuple2<String, Int>",
    }
}
"""Case -> uid -> serializer of the keys, where the snapshot does not say it: nothing is materialized yet."""


@dataclass(frozen=True)
class Case:
    """A snapshot of Flink and what is known of it.

    Attributes:
        name: for test ids, `<origin>-<version or line>-<folder>`.
        version: of the Flink that wrote it, such as `2.2.1`.
        case: name of its folder, such as `rocksdb-incremental`.
        path: directory with the `_metadata`.
        expected: file of its entries, gzipped JSON lines.
        backend: Flink's `state.backend.type`.
        kind: `canonical` or `native` (savepoints) or `checkpoint`.
        job: which job wrote it.
        parallelism: of the job.
        max_parallelism: number of key groups.
        settings: Flink options of the job that matter to the format.
        written: directory that absolute paths in the snapshot name, such as `/flink-data/types/flink-2.2/x`.
        folder: where that directory is now.
        uids: of the operators, as Flink before 2.0 stores only hashes.
        drained: the expected entries are those after the records in flight have arrived, not the stored ones.
    """

    name: str
    version: str
    case: str
    path: Path
    expected: Path
    backend: str
    kind: str
    job: str
    parallelism: int
    max_parallelism: int
    settings: Mapping[str, str]
    written: str
    folder: Path
    uids: tuple[str, ...]
    drained: bool

    def __str__(self) -> str:
        return self.name

    @property
    def path_mapping(self) -> tuple[str, ...]:
        """`FROM=TO` texts with which the snapshot opens, wherever this tree is."""
        return (f"file:{self.written}={self.folder}",)

    def open(self, *, classes: FieldLists | None = None) -> Snapshot:
        """The opened snapshot."""
        return open_snapshot(str(self.path), path_mapping=self.path_mapping, uids=self.uids, classes=classes)

    def open_told(self) -> Snapshot:
        """The opened snapshot, together with all that must be told about it (`CLASSES`, `KEY_SERIALIZERS`)."""
        return open_snapshot(
            str(self.path),
            Declarations(
                uids=self.uids,
                classes=load_classes(CLASSES),
                key_serializers={uid: parse(text) for uid, text in KEY_SERIALIZERS.get(self.name, {}).items()},
            ),
            path_mapping=self.path_mapping,
        )

    @property
    def format(self) -> str:
        """What is special about its files, as the table of `docs/formats.md` has it."""
        if self.drained:
            return "unaligned checkpoint"
        if self.settings.get("state.changelog.enabled") == "true":
            return "changelog checkpoint"
        if self.settings.get("execution.checkpointing.file-merging.enabled") == "true":
            return "incremental checkpoint, merged files"
        if self.settings.get("state.backend.rocksdb.timer-service.factory") == "HEAP":
            return "incremental checkpoint, timers on the heap"
        if self.kind == "canonical":
            return "canonical savepoint"
        if self.backend == "hashmap":
            return "native savepoint, heap" if self.kind == "native" else "checkpoint, heap"
        if self.backend == "forst":
            return "incremental checkpoint, ForSt"
        if self.kind == "native":
            return "native savepoint, RocksDB"
        return "full checkpoint, RocksDB" if self.case == "rocksdb-full" else "incremental checkpoint, RocksDB"

    def entries(self) -> list[Entry]:
        """The expected entries of keyed state, timers, operator state and broadcast state."""
        return _read_entries(self.expected)


@cache
def _read_entries(path: Path) -> list[Entry]:
    return [entry for entry in read_entries(path) if entry["kind"] in ENTRY_KINDS]


def _load_own(file: Path) -> Case:
    folder = file.parent
    case = json.loads(file.read_text())
    expected = folder / "expected.jsonl.gz"
    return Case(
        name=f"{folder.parent.parent.name}-{folder.parent.name.removeprefix('flink-')}-{folder.name}",
        version=case["flink"],
        case=folder.name,
        path=folder / case["snapshot"],
        expected=expected,
        backend=case["backend"],
        kind=case["kind"],
        job=case["job"],
        parallelism=case["parallelism"],
        max_parallelism=case["max_parallelism"],
        settings=case["settings"],
        written=case["written"],
        folder=folder,
        uids=tuple(case["uids"]),
        drained=case["job"] == "in-flight",
    )


def _load_made(file: Path) -> Case:
    folder = file.parent
    case = json.loads(file.read_text())
    operators = json.loads((folder / "operators.json").read_text())
    drained = folder / "expected-drained.jsonl.gz"
    return Case(
        name=f"made-{folder.parent.name}-{folder.name}",
        version=case["flink"],
        case=folder.name,
        path=folder / case["snapshot"],
        expected=drained if drained.exists() else folder / "expected.jsonl.gz",
        backend=case["backend"],
        kind=case["kind"],
        job=case["job"],
        parallelism=case["parallelism"],
        max_parallelism=case["maxParallelism"],
        settings=case.get("conf", {}),
        written=f"/flink-data/{folder.parent.name}/{folder.name}",
        folder=folder,
        uids=tuple(sorted({each["uid"] for each in operators if each["uid"]})),
        drained=drained.exists(),
    )


OWN = [_load_own(file) for file in sorted(DATA.glob("types/*/*/case.json"))]
RESCALING = [_load_own(file) for file in sorted(DATA.glob("rescaling/*/*/case.json"))]
"""Snapshots with keys of many types; their entries have the rows of SQL as bytes (`@rowdata`)."""

UNKNOWN = [_load_own(file) for file in sorted(DATA.glob("unknown/*/*/case.json"))]
"""Snapshots of five operators, one of which has a serializer that nothing here reads."""

UNKNOWN_SERIALIZER = "unknown.PurseSerializer$PurseSnapshot=Struct(f0: utf, f1: i64)"
"""The declaration of that serializer."""

RETAINED = [_load_own(file) for file in sorted(DATA.glob("retained/*/*/case.json"))]
"""Retained checkpoints of the jobs of both examples, whose savepoints are in `examples`."""

SQL = [_load_own(file) for file in sorted(DATA.glob("sql/*/*/case.json"))]
"""Snapshots of SQL jobs; their entries have the rows of SQL as bytes (`@rowdata`)."""

MADE = [_load_made(file) for file in sorted(Path(FIXTURES, "made").glob("*/*/params.json"))] if FIXTURES else []
CASES = OWN + MADE

LARGE = [
    *{each.format: each for each in sorted(MADE, key=lambda case: "-main-" in case.name) if not each.drained}.values()
]
"""One of the larger snapshots for each format that they have."""


def select(version: str | None = None, case: str | None = None, kind: str | None = None) -> list[Case]:
    """The cases of a Flink version (or a line such as `2.2`), of a folder name, of a kind; None stands for all."""
    return [
        each
        for each in CASES
        if (version is None or each.version == version or each.version.startswith(version + "."))
        and case in (None, each.case)
        and kind in (None, each.kind)
    ]
