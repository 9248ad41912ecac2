"""Retention plans for 1,000 checkpoints of three jobs with 100,000 files.

python -m benchmarks.retention DIRECTORY
"""

from __future__ import annotations

import resource
import sys
import time
import uuid
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from state_pipelines.metadata import read_metadata, replace_stream_handles, write_metadata
from state_pipelines.metadata.handles import FileStateHandle
from state_pipelines.operations.retention import plan_retention

if TYPE_CHECKING:
    from state_pipelines.metadata import StreamReference
    from state_pipelines.metadata.handles import StreamStateHandle
    from state_pipelines.operations.retention import RetentionPlan

CHECKPOINTS = 1_000
JOBS = 3
FILES = 100_000
FRESH = 10
"""A checkpoint shares its files with those of the same ten, as after a compaction."""

SOURCE = Path(__file__).resolve().parents[1] / "tests/data/types/flink-2.2/rocksdb-incremental"


def make_checkpoint(root: Path, number: int) -> None:
    """A checkpoint with the metadata of Flink and sparse files of the right names and sizes."""
    source = max(SOURCE.glob("**/_metadata"))
    job = root / f"{number % JOBS:032x}"
    target = job / f"chk-{number}"
    target.mkdir(parents=True)
    (job / "shared").mkdir(exist_ok=True)

    def rename(reference: StreamReference) -> StreamStateHandle:
        handle = reference.handle
        if not isinstance(handle, FileStateHandle):
            return handle
        name = uuid.uuid5(uuid.NAMESPACE_URL, f"{job.name}/{number // FRESH}/{handle.path}")
        path = job / "shared" / str(name)
        make_file(path, handle.size)
        return FileStateHandle(f"file:{path}", handle.size)

    for file in source.parent.iterdir():
        if file != source:
            make_file(target / file.name, file.stat().st_size)
    metadata = replace(read_metadata(source.read_bytes(), str(source)), checkpoint_id=number)
    (target / "_metadata").write_bytes(write_metadata(replace_stream_handles(metadata, rename)))


def make_file(path: Path, size: int) -> None:
    """A sparse file."""
    with path.open("ab") as file:
        file.truncate(size)


def make_orphans(root: Path) -> None:
    """Files in `shared` that no checkpoint references, until there are `FILES`."""
    present = sum(path.is_file() for path in root.rglob("*"))
    for number in range(FILES - present):
        make_file(root / f"{number % JOBS:032x}" / "shared" / str(uuid.uuid4()), 1)


def main(directory: Path) -> None:
    """Make the checkpoints where they are not there yet, and print a table."""
    root = directory / "checkpoints"
    if not root.exists():
        for number in range(CHECKPOINTS):
            make_checkpoint(root, number)
        make_orphans(root)
    click.echo("| policy | CPU s | s | paths that go | files that stay |\n| --- | --- | --- | --- | --- |")
    policies: tuple[tuple[str, dict[str, object] | None], ...] = (
        ("none: orphans only", None),
        ("last 100 of each job", {"keep": {"last": 100}}),
    )
    for name, policy in policies:
        cpu, clock = time.process_time(), time.perf_counter()
        plan: RetentionPlan = plan_retention(str(root), policy, min_age=timedelta(0))
        seconds, spent = time.perf_counter() - clock, time.process_time() - cpu
        click.echo(f"| {name} | {spent:.1f} | {seconds:.1f} | {len(plan.delete):,} | {len(plan.keep):,} |")
    click.echo(f"\n{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10:,} MiB of memory at most")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
