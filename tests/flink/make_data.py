"""Makes the snapshots under `types`, `rescaling`, `sql` and `unknown` in `tests/data` again.

`python -m tests.flink.make_data [[GROUP/]CASE...]`
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.flink import harness, jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.snapshots import Case

DATA = harness.ROOT / "tests" / "data"
# What the snapshots take for the directory of these data, so that they name no directory of a machine.
WRITTEN = "/flink-data"
# RocksDB works here, and writes the path into its OPTIONS files; it must exist under this very name.
LOCAL = Path("/flink-data/local")
JOBS: dict[str, Callable[[int], jobs.Job]] = {
    "types": jobs.types_job,
    "rounds": jobs.rounds_job,
    "few-states": jobs.few_states_job,
    "in-flight": jobs.in_flight_job,
    "finished": jobs.finished_job,
    "async": jobs.async_job,
    "conflict": jobs.conflict_job,
    "rescaling": jobs.rescaling_job,
    "unknown": jobs.unknown_job,
    "orders": lambda _: jobs.orders_job(),
    "shop": lambda _: jobs.shop_job(),
}

FILES_ONLY = {"execution.checkpointing.data-inline-threshold": "0"}
SNAPPY = {"execution.checkpointing.snapshot-compression": "true"}
INCREMENTAL = {"execution.checkpointing.incremental": "true"}
CHANGELOG = {"state.changelog.enabled": "true", "state.changelog.periodic-materialize.enabled": "false"}
MEMORY = CHANGELOG | {"state.changelog.storage": "memory"}
FILESYSTEM = CHANGELOG | {"state.changelog.storage": "filesystem"}
MATERIALIZED = {
    "state.changelog.periodic-materialize.enabled": "true",
    "state.changelog.periodic-materialize.interval": "1 s",
}
HEAP_TIMERS = {"state.backend.rocksdb.timer-service.factory": "HEAP"}
COMPRESSED_CHANGES = {"state.changelog.dstl.dfs.compression.enabled": "true"}
FILE_MERGING = {"execution.checkpointing.file-merging.enabled": "true"}
UNALIGNED = {"execution.checkpointing.unaligned.enabled": "true"}
FLINK_2 = ("2.2.1", "2.3.0")
# Flink 2.3 writes what 2.2 writes but for the metadata version, so that a few cases of it are enough.
BEFORE_2_3 = ("1.20.5", "2.2.1")
FEW_KEYS = {"rescaling.keys": "32"}
SOME_KEY_TYPES = FEW_KEYS | {
    "rescaling.operators": "string;tuple;pojo-ide;record;row-data;string-windows;operator-states"
}
OTHER_KEY_TYPES = FEW_KEYS | {
    "rescaling.operators": "long;integer;row;pojo-objects;pojo-lombok;pojo-nested;tuple-of-pojo;pojo-sessions"
}
POJO_KEYS = FEW_KEYS | {"rescaling.operators": "pojo-nested;operator-states"}
SESSIONS = FEW_KEYS | {"rescaling.operators": "pojo-lombok;pojo-sessions"}
SQL_KEYS = FEW_KEYS | {"rescaling.operators": "row-data"}


@dataclass(frozen=True)
class Variant:
    """One way to write the same state; the 2-byte key-group prefix comes with 1024 key groups.

    Attributes:
        name: folder.
        backend: as Flink's option says it.
        kind: `canonical`, `native` or `checkpoint`.
        job: key of `JOBS`.
        max_parallelism: number of key groups.
        settings: Flink options besides those of the job.
        checkpoint_type: Flink's `CheckpointType`.
        pause_ms: rest after the first round.
        versions: of Flink that can write it.
        group: folder of its line.
    """

    name: str
    backend: str
    kind: str = "canonical"
    job: str = "rounds"
    max_parallelism: int = 128
    settings: dict[str, str] = field(default_factory=dict)
    checkpoint_type: str = "CONFIGURED"
    pause_ms: int = 0
    versions: tuple[str, ...] = BEFORE_2_3
    group: str = "types"


def _rescaling(
    name: str, backend: str, kind: str = "canonical", max_parallelism: int = 128, *, settings: Mapping[str, str]
) -> Variant:
    return Variant(name, backend, kind, "rescaling", max_parallelism, dict(settings), group="rescaling")


VARIANTS = (
    Variant("heap", "hashmap", job="types", settings=FILES_ONLY, versions=harness.VERSIONS),
    Variant("heap-snappy", "hashmap", job="types", max_parallelism=1024, settings=SNAPPY),
    Variant("rocksdb", "rocksdb", job="types", max_parallelism=1024, settings=FILES_ONLY),
    Variant("rocksdb-snappy", "rocksdb", job="types", settings=SNAPPY | FILES_ONLY),
    Variant("heap-native", "hashmap", "native", "types", settings=FILES_ONLY),
    Variant("rocksdb-native", "rocksdb", "native", settings=FILES_ONLY),
    Variant("heap-native-snappy", "hashmap", "native", settings=SNAPPY, versions=harness.VERSIONS),
    Variant("heap-checkpoint", "hashmap", "checkpoint", "few-states"),
    Variant(
        "rocksdb-incremental",
        "rocksdb",
        "checkpoint",
        settings=FILES_ONLY | INCREMENTAL | {"execution.checkpointing.num-retained": "2"},
    ),
    Variant("rocksdb-full", "rocksdb", "checkpoint", "few-states", settings=FILES_ONLY),
    Variant(
        "rocksdb-heap-timers",
        "rocksdb",
        "checkpoint",
        "few-states",
        settings=INCREMENTAL | HEAP_TIMERS,
        versions=harness.VERSIONS,
    ),
    Variant(
        "rocksdb-file-merging", "rocksdb", "checkpoint", "few-states", settings=FILES_ONLY | INCREMENTAL | FILE_MERGING
    ),
    Variant("changelog-heap-memory", "hashmap", "checkpoint", "few-states", settings=MEMORY),
    Variant("changelog-heap-files", "hashmap", "checkpoint", "few-states", settings=FILES_ONLY | FILESYSTEM),
    Variant(
        "changelog-heap-materialized",
        "hashmap",
        "checkpoint",
        "few-states",
        settings=FILES_ONLY | FILESYSTEM | MATERIALIZED | COMPRESSED_CHANGES,
        pause_ms=3_000,
    ),
    Variant("changelog-rocksdb-memory", "rocksdb", "checkpoint", "few-states", settings=MEMORY),
    Variant("changelog-rocksdb-files", "rocksdb", "checkpoint", "few-states", settings=FILESYSTEM | COMPRESSED_CHANGES),
    Variant(
        "changelog-rocksdb-materialized",
        "rocksdb",
        "checkpoint",
        "few-states",
        settings=FILESYSTEM | MATERIALIZED | INCREMENTAL,
        pause_ms=3_000,
        versions=harness.VERSIONS,
    ),
    Variant("unaligned", "hashmap", "checkpoint", "in-flight", settings=UNALIGNED, versions=harness.VERSIONS),
    Variant("finished", "hashmap", "checkpoint", "finished", versions=harness.VERSIONS),
    Variant("rocksdb-async-native", "rocksdb", "native", "async", versions=FLINK_2),
    # The job does not end after that: stop it, and take the entries of `rocksdb-async-native`.
    Variant("forst-async", "forst", "checkpoint", "async", settings=FILES_ONLY | INCREMENTAL, versions=("2.3.0",)),
    Variant("on-conflict", "rocksdb", job="conflict", versions=("2.3.0",), group="sql"),
    Variant("forst", "forst", "checkpoint", "few-states", settings=FILES_ONLY | INCREMENTAL, versions=FLINK_2),
    Variant("canonical", "hashmap", job="unknown", versions=("2.2.1",), group="unknown"),
    Variant("heap-native", "hashmap", "native", job="unknown", versions=("2.2.1",), group="unknown"),
    Variant(
        "rocksdb-native", "rocksdb", "native", job="unknown", settings=FILES_ONLY, versions=("2.2.1",), group="unknown"
    ),
    Variant(
        "orders",
        "rocksdb",
        "checkpoint",
        "orders",
        settings=FILES_ONLY | INCREMENTAL,
        versions=("2.2.1",),
        group="retained",
    ),
    Variant("shop", "hashmap", "checkpoint", "shop", settings=FILES_ONLY, versions=("1.20.5",), group="retained"),
    _rescaling("canonical", "hashmap", settings=FILES_ONLY | SOME_KEY_TYPES),
    _rescaling("canonical-other-keys", "rocksdb", settings=FILES_ONLY | SOME_KEY_TYPES | {"rescaling.first": "1000"}),
    _rescaling("canonical-snappy", "rocksdb", max_parallelism=96, settings=SNAPPY | FILES_ONLY | OTHER_KEY_TYPES),
    _rescaling("heap-native", "hashmap", "native", settings=FILES_ONLY | SOME_KEY_TYPES),
    _rescaling("heap-native-snappy", "hashmap", "native", 96, settings=SNAPPY | SESSIONS),
    _rescaling("rocksdb-native", "rocksdb", "native", 1024, settings=FILES_ONLY | SQL_KEYS),
    _rescaling("rocksdb-incremental", "rocksdb", "checkpoint", settings=FILES_ONLY | INCREMENTAL | POJO_KEYS),
)


def job_of(variant: Variant) -> jobs.Job:
    """The job with the settings of the variant."""
    job = JOBS[variant.job](variant.max_parallelism)
    return replace(job, settings={**job.settings, **variant.settings})


def job_of_case(case: Case) -> jobs.Job:
    """The job that wrote a snapshot of this tree, with the options that it needs to be restored."""
    job = JOBS[case.job](case.max_parallelism)
    return replace(job, settings={**job.settings, **case.settings})


def _making_job(variant: Variant) -> jobs.Job:
    job = job_of(variant)
    directories = {
        "state.backend.rocksdb.localdir": str(LOCAL),
        "state.backend.forst.local-dir": str(LOCAL),
    }
    return replace(job, settings={**job.settings, **directories})


def folder_of(version: str, variant: Variant) -> Path:
    """Where the snapshot of the variant lies."""
    return DATA / variant.group / f"flink-{version.rpartition('.')[0]}" / variant.name


def make(version: str, variant: Variant) -> None:
    """Makes the snapshot, its expected entries and its description."""
    folder = folder_of(version, variant)
    shutil.rmtree(folder, ignore_errors=True)
    LOCAL.mkdir(parents=True, exist_ok=True)
    written = f"{WRITTEN}/{folder.relative_to(DATA)}"
    snapshot, entries = harness.make_snapshot(
        version,
        _making_job(variant),
        folder,
        backend=variant.backend,
        kind=variant.kind,
        checkpoint_type=variant.checkpoint_type,
        pause_ms=variant.pause_ms,
        written=written,
    )
    shutil.rmtree(LOCAL)
    for empty in sorted(folder.rglob("*"), reverse=True):
        if empty.is_dir() and not any(empty.iterdir()):
            empty.rmdir()
    harness.write_entries(folder / "expected.jsonl.gz", entries)
    describe(version, variant, snapshot, entries)


def describe(version: str, variant: Variant, snapshot: Path, entries: list[harness.Entry]) -> None:
    """Writes the `case.json` of a snapshot."""
    folder = folder_of(version, variant)
    case = {
        "flink": version,
        "job": variant.job,
        "backend": variant.backend,
        "kind": variant.kind,
        "snapshot": str(snapshot.relative_to(folder)),
        "written": f"{WRITTEN}/{folder.relative_to(DATA)}",
        "parallelism": 2,
        "max_parallelism": variant.max_parallelism,
        "settings": variant.settings,
        "uids": sorted({entry["op"] for entry in entries}),
    }
    (folder / "case.json").write_text(json.dumps(case, indent=2) + "\n")


def main(names: list[str]) -> None:
    """Makes the named variants, or every one, with every version."""
    for variant in VARIANTS:
        for version in variant.versions:
            if not names or {variant.name, f"{variant.group}/{variant.name}"} & set(names):
                make(version, variant)


if __name__ == "__main__":
    main(sys.argv[1:])
