"""Makes the savepoints under `tests/data/types` anew: `python -m tests.flink.make_data`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.flink import harness

if TYPE_CHECKING:
    from pathlib import Path

TYPES = harness.ROOT / "tests" / "data" / "types"
FILES_ONLY = {"execution.checkpointing.data-inline-threshold": "0"}
SNAPPY = {"execution.checkpointing.snapshot-compression": "true"}


@dataclass(frozen=True)
class Variant:
    """One way to write the same state; the 2-byte key-group prefix comes with 1024 key groups."""

    name: str
    backend: str
    max_parallelism: int
    settings: dict[str, str]


VARIANTS = (
    Variant("heap", "hashmap", 128, FILES_ONLY),
    Variant("heap-snappy", "hashmap", 1024, SNAPPY),
    Variant("rocksdb", "rocksdb", 1024, FILES_ONLY),
    Variant("rocksdb-snappy", "rocksdb", 128, SNAPPY | FILES_ONLY),
)


def job_of(variant: Variant) -> harness.Job:
    """The job with the settings of the variant."""
    job = harness.types_job(variant.max_parallelism)
    return replace(job, settings={**job.settings, **variant.settings})


def folder_of(version: str, variant: Variant) -> Path:
    """Where the savepoint of the variant lies."""
    return TYPES / f"flink-{version.rpartition('.')[0]}" / variant.name


def main() -> None:
    """Makes every variant with every version."""
    for version in harness.VERSIONS:
        for variant in VARIANTS:
            folder = folder_of(version, variant)
            shutil.rmtree(folder, ignore_errors=True)
            _, entries = harness.make_snapshot(version, job_of(variant), folder, backend=variant.backend)
            harness.write_entries(folder / "expected.jsonl.gz", entries)


if __name__ == "__main__":
    main()
