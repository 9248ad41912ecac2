"""Migration by a chain of five revisions, up and down again, with and without its proof.

    python -m benchmarks.generate --keys 1000000 --out .cache/million
    python -m benchmarks.migrate --snapshot .cache/million
    python -m benchmarks.migrate --snapshot .cache/million --repeat 5

With `--repeat`, one revision and the chain are measured several times, without proof.

CPU is user plus system seconds of the process with all its children: the JVM and the workers of Spark. Before the first
figure a small snapshot goes the same ways, so that Spark, the kernels and Great Expectations are there and warm; what
that takes is the first line. Up and down with the proof, the bytes of every entry are compared with the original.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.generate import OPERATOR, generate
from benchmarks.processes import Clock
from benchmarks.snapshots import TINY
from state_pipelines import open_snapshot
from state_pipelines.operations.migration.history import RevisionDirectory
from state_pipelines.operations.migration.migration_files import load_migration
from state_pipelines.spark import create_session, migrate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from state_pipelines.keyed.record_layout import KeyedRecords
    from state_pipelines.snapshot import Snapshot

REVISIONS = Path(__file__).with_name("revisions")
ONE = Path(__file__).with_name("upgrade.yaml")

Entries = dict[str, list[tuple[bytes, bytes]]]
"""By state, key and value as the snapshot has them, sorted."""


def list_entries(snapshot: Snapshot) -> Iterator[tuple[int, Entries]]:
    """The bytes of all entries, one key group after the other."""
    operator = snapshot.operator(OPERATOR)
    for _, file in operator.keyed_files:
        for key_group, runs in file.scan_key_groups(file.key_groups):
            found: Entries = {}
            for state_id, records in runs:
                found.setdefault(file.header.states[state_id].name, []).extend(_cut(records))
            yield key_group, {name: sorted(entries) for name, entries in found.items()}


def _cut(records: KeyedRecords) -> Iterator[tuple[bytes, bytes]]:
    data = records.data.tobytes()
    spans = (records.key_starts, records.key_ends, records.value_starts, records.value_ends)
    for key_start, key_end, start, end in zip(*(each.tolist() for each in spans), strict=True):
        yield data[key_start:key_end], data[start:end]


def count_equal(one: Snapshot, other: Snapshot) -> int:
    """The number of entries, whose bytes must be the same.

    Raises:
        SystemExit: they are not.
    """
    count = 0
    for (key_group, before), (theirs, after) in zip(list_entries(one), list_entries(other), strict=True):
        if (key_group, before) != (theirs, after):
            raise SystemExit(f"key group {key_group} has other entries than before")
        count += sum(map(len, before.values()))
    return count


def run(spark: SparkSession, snapshot: Snapshot, directory: Path, clock: Clock) -> int:
    """Up and down, each without and with proof; the number of entries that came back with the same bytes."""
    revisions = RevisionDirectory(str(REVISIONS))
    up, down = revisions.between("base", "head"), revisions.between("head", "base")
    with clock.measure("up, without proof"):
        migrate(snapshot, up, str(directory / "up-unproven"), prove=False)
    with clock.measure("up, with proof"):
        risen = migrate(snapshot, up, str(directory / "up")).snapshot
    with clock.measure("down, without proof"):
        migrate(risen, down, str(directory / "down-unproven"), prove=False)
    with clock.measure("down, with proof"):
        returned = migrate(risen, down, str(directory / "down")).snapshot
    return count_equal(snapshot, returned)


def run_unproven(snapshot: Snapshot, directory: Path, clock: Clock) -> None:
    """One revision, then the chain up and down, without proof."""
    revisions = RevisionDirectory(str(REVISIONS))
    with clock.measure("one revision"):
        migrate(snapshot, load_migration(str(ONE)), str(directory / "one"), prove=False)
    with clock.measure("up"):
        up = migrate(snapshot, revisions.between("base", "head"), str(directory / "up"), prove=False).snapshot
    with clock.measure("down"):
        migrate(up, revisions.between("head", "base"), str(directory / "down"), prove=False)
    shutil.rmtree(directory)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--snapshot", required=True)
    parser.add_argument("--cores", type=int)
    parser.add_argument("--repeat", type=int, default=0, help="measure so many times without proof, and nothing else")
    arguments = parser.parse_args()
    clock = Clock()
    with TemporaryDirectory() as name:
        directory = Path(name)
        with clock.measure("start and warm-up"):
            session = create_session("benchmark", cores=arguments.cores)
            generate(str(directory / "small"), TINY)
            run(session, open_snapshot(str(directory / "small")), directory / "small-run", Clock())
        for number in range(arguments.repeat):
            turn = Clock()
            run_unproven(open_snapshot(arguments.snapshot), directory / f"run-{number}", turn)
            figures = (f"{what} {cpu.total:.2f}" for what, (cpu, _) in turn.seconds.items())
            sys.stdout.write(f"CPU s: {', '.join(figures)}\n")
            sys.stdout.flush()
        if arguments.repeat:
            return
        entries = run(session, open_snapshot(arguments.snapshot), directory / "run", clock)
    for what, (cpu, wall) in clock.seconds.items():
        sys.stdout.write(f"{what:24} {cpu.total:7.1f} CPU s {wall:7.1f} s\n")
    for way in ("up", "down"):
        bare, proven = (clock.seconds[f"{way}, {how} proof"][0].total for how in ("without", "with"))
        sys.stdout.write(f"proof / migration, {way:5} {(proven - bare) / bare:7.2f}\n")
    sys.stdout.write(f"{entries} entries came back with the bytes that they had\n")


if __name__ == "__main__":
    main()
