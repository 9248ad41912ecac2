"""All figures: every task in processes of its own, on large snapshots and on tiny ones that tell start-up apart.

    python -m benchmarks.run --snapshots .cache/bench --runs 3
    python -m benchmarks.run --snapshots .cache/bench --works spark-aggregate,spark-from-parquet --keys 1000000

Snapshots are made where they are missing. The runs of all works take turns, so that a machine that gets slower does so
for all of them. Before them each work is done once on its tiny snapshot, which compiles kernels. What is measured again
replaces what the file of results has of the same work and snapshot; pictures come beside it. Needs Linux.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TYPE_CHECKING

from benchmarks.bars import KEYS
from benchmarks.plots import draw
from benchmarks.processes import watch
from benchmarks.results import COLD, RESULTS, WARM, Measurement, load, write_measurement
from benchmarks.snapshots import HANDLE_KEYS, SHAPES, TINY, Snapshots
from benchmarks.stages import Stage, read_report
from benchmarks.tables import tabulate
from benchmarks.works import COMMAND_LINE, OTHER, SPARK, WORKS, Work

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TIMEOUT = 3600.0
"""Seconds for one process."""

HUGE = 10
"""How many times the keys of a large snapshot a huge one has."""

HUGE_WORKS = ("library-aggregate", "spark-aggregate", "spark-migrate-proven", "cli-rescale-max")


class WorkError(Exception):
    """A work ended with an error."""


@dataclass(frozen=True)
class Case:
    """A work on a snapshot.

    Attributes:
        work: the work.
        shape: name of the snapshot's shape.
        keys: of the snapshot.
        mode: `cold` or `warm`.
    """

    work: Work
    shape: str
    keys: int
    mode: str

    def __str__(self) -> str:
        return f"{self.work.name} on {self.shape}, {self.keys:,} keys, {self.mode}"


def list_cases(works: Sequence[Work], shapes: Sequence[str], keys: int, *, huge: bool) -> list[Case]:
    """All that one round measures: the tiny snapshot, the large one, the large one again in a warm process."""
    cases = []
    for work in works:
        for shape in work.snapshots:
            if shape not in shapes:
                continue
            # Of many handles it is the whole time that counts.
            sizes = [HANDLE_KEYS] if shape == "handles" else [TINY, keys]
            cases += [Case(work, shape, each, COLD) for each in sizes]
            if huge and shape == "canonical" and work.name in HUGE_WORKS:
                cases.append(Case(work, shape, HUGE * keys, COLD))
            if work.warm:
                cases.append(Case(work, shape, keys, WARM))
    return cases


def run_case(case: Case, snapshots: Snapshots, run: int) -> Measurement:
    """Do it once.

    Raises:
        WorkError: it failed.
    """
    with TemporaryDirectory(dir=snapshots.directory) as directory:
        command = case.work.fill(
            snapshot=snapshots.find(case.shape, case.keys),
            parquet=snapshots.find_parquet(case.shape, case.keys),
            history=snapshots.name("history", case.keys),
            target=Path(directory, "target"),
            other=snapshots.name(OTHER.get(case.shape, case.shape), case.keys),
            repeat=2 if case.mode == WARM else 1,
        )
        for each in command:
            if Path(each).parent == snapshots.directory:
                _read_once(Path(each))
        with TemporaryFile() as output, TemporaryFile() as errors:
            usage = watch(command, stdout=output, stderr=errors, timeout=TIMEOUT)
            output.seek(0)
            errors.seek(0)
            text = output.read().decode(errors="replace")
            if usage.code:
                told = (errors.read().decode(errors="replace") or text).strip().splitlines()
                raise WorkError(f"{case}: code {usage.code}\n" + "\n".join(told[-8:]))
    size = snapshots.measure(case.shape, case.keys)
    rows, stages = (None, list[Stage]()) if case.work.is_command else read_report(text)
    place = (case.work.name, case.shape, case.keys, case.mode, run)
    if case.mode == WARM:
        return Measurement(*place, stages[-1].wall, stages[-1].cpu, rows, size=size)
    return Measurement(*place, usage.wall, usage.cpu, rows, usage.peak, usage.read, usage.written, usage.roles, size)


def prepare(cases: Sequence[Case], snapshots: Snapshots) -> None:
    """Make what the cases need that is not there."""
    needed = dict.fromkeys((case.shape, case.keys) for case in cases)
    others = ((OTHER[case.shape], case.keys) for case in cases if "{other}" in case.work.arguments)
    for shape, keys in dict.fromkeys(chain(needed, others)):
        snapshots.find(shape, keys)
    for case in cases:
        if any("{history}" in each for each in case.work.arguments):
            snapshots.find_history(case.keys)
        parquet = snapshots.find_parquet(case.shape, case.keys)
        if "{parquet}" in case.work.arguments and not parquet.exists():
            snapshots.report(f"making {parquet}")
            snapshot = snapshots.find(case.shape, case.keys)
            program = [sys.executable, *SPARK, "to-parquet", "--snapshot", str(snapshot), "--target", str(parquet)]
            subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
            # The first repetition.
            parquet.with_name(f"{parquet.name}-0").rename(parquet)


def _read_once(directory: Path) -> None:
    """Bring files into memory: some systems take from it what was not asked for in a while."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                while file.read(8 << 20):
                    pass


def measure(cases: Sequence[Case], snapshots: Snapshots, runs: int) -> Iterator[Measurement | WorkError]:
    """All cases, round after round; one that fails is not tried again."""
    failed: set[tuple[str, str]] = set()
    rounds = [(-1, case) for case in cases if case.keys == TINY]
    rounds += [(run, case) for run in range(runs) for case in cases]
    for run, case in rounds:
        place = (case.work.name, case.shape)
        if place in failed:
            continue
        if run < 0:
            snapshots.report(f"warming up: {case}")
        try:
            measurement = run_case(case, snapshots, run)
        except (WorkError, TimeoutError) as error:
            failed.add(place)
            yield error if isinstance(error, WorkError) else WorkError(f"{case}: {error}")
            continue
        if run >= 0:
            yield measurement


def keep_others(out: Path, cases: Sequence[Case]) -> None:
    """Leave in the file of results only what is not measured again."""
    places = {(case.work.name, case.shape) for case in cases}
    old = load(out).measurements if out.exists() else []
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w") as file:
        file.writelines(write_measurement(each) for each in old if (each.work, each.snapshot) not in places)


@cache
def is_command(name: str) -> bool:
    """Whether the command line has a command, which an older or newer one may not."""
    command = [sys.executable, *COMMAND_LINE, name, "--help"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def choose_works(names: str | None) -> list[Work]:
    """Works by their names; all of them without names.

    Raises:
        SystemExit: there is no such work.
    """
    known = {work.name: work for work in WORKS}
    wanted = list(known) if names is None else names.split(",")
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"no work is called {', '.join(unknown)}; there are {', '.join(known)}")
    found = [known[name] for name in wanted]
    absent = [work for work in found if work.is_command and not is_command(work.arguments[len(COMMAND_LINE)])]
    for work in absent:
        _say(f"{work.name} is left out: there is no such command")
    return [work for work in found if work not in absent]


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshots", type=Path, default=Path(".cache/bench"), help="directory of the snapshots")
    parser.add_argument("--keys", type=int, default=KEYS, help="keys of the large snapshots")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--works", help="some works, separated by commas")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="some snapshots, separated by commas")
    parser.add_argument("--huge", action="store_true", help="also read ten times the keys, for the growth of memory")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.keys == TINY:
        parser.error(f"{TINY} keys are those of the tiny snapshots")
    arguments.snapshots.mkdir(parents=True, exist_ok=True)
    snapshots = Snapshots(arguments.snapshots, _say)
    shapes = arguments.shapes.split(",")
    if unknown := set(shapes) - set(SHAPES):
        parser.error(f"no snapshot is called {', '.join(sorted(unknown))}; there are {', '.join(SHAPES)}")
    cases = list_cases(choose_works(arguments.works), shapes, arguments.keys, huge=arguments.huge)
    prepare(cases, snapshots)
    keep_others(arguments.out, cases)
    failures = 0
    with arguments.out.open("a") as file:
        for found in measure(cases, snapshots, arguments.runs):
            if isinstance(found, WorkError):
                failures += 1
                _say(str(found))
                continue
            file.write(write_measurement(found))
            file.flush()
            _say(
                f"{found.run} {found.work:24} {found.snapshot:10} {found.keys:>11,} {found.mode} "
                f"{found.cpu.total:8.2f} CPU s {found.wall:8.2f} s {found.largest_worker >> 20:6} MiB"
            )
    results = load(arguments.out)
    sys.stdout.write(tabulate(results))
    draw(results, arguments.out.parent)
    if failures:
        raise SystemExit(f"{failures} works failed")


if __name__ == "__main__":
    main()
