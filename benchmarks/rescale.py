"""Rescaling of a savepoint of `benchmarks.generate`, beside a plain copy of its files.

    python -m benchmarks.generate --keys 11500000 --out .cache/gigabyte
    python -m benchmarks.rescale --snapshot .cache/gigabyte

One process does the work. CPU is user plus system seconds of the process; the files lie in the cache of the operating
system. Kernels are warm: a small snapshot goes the same ways before.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.generate import generate
from benchmarks.processes import Clock
from benchmarks.snapshots import TINY
from state_pipelines import open_snapshot
from state_pipelines.operations.rescale import RescaleRequest, rescale
from state_pipelines.operations.write.publication import FileMode

if TYPE_CHECKING:
    from collections.abc import Callable


def copy_files(source: Path, target: Path) -> None:
    """What any copy does, in pieces of 8 MiB as here."""
    target.mkdir()
    for path in source.iterdir():
        with path.open("rb") as old, (target / path.name).open("wb") as new:
            shutil.copyfileobj(old, new, 8 << 20)


def _rescale(files: FileMode = FileMode.COPY, *, prove: bool = False, **numbers: int) -> Callable[[Path, Path], object]:
    def work(source: Path, target: Path) -> object:
        request = RescaleRequest(**numbers)  # type: ignore[arg-type]
        return rescale(open_snapshot(str(source)), str(target), request, files=files, prove=prove)

    return work


WORK: dict[str, Callable[[Path, Path], object]] = {
    "copy of the files": copy_files,
    "parallelism 2 to 3": _rescale(parallelism=3),
    "parallelism 2 to 3, proven": _rescale(parallelism=3, prove=True),
    "parallelism 2 to 4, files linked": _rescale(FileMode.LINK, parallelism=4),
    "parallelism 2 to 4, files referenced": _rescale(FileMode.REFERENCE, parallelism=4),
    "max parallelism 128 to 1,024": _rescale(max_parallelism=1024),
    "max parallelism 128 to 1,024, proven": _rescale(max_parallelism=1024, prove=True),
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--snapshot", type=Path, required=True)
    arguments = parser.parse_args()
    with TemporaryDirectory(dir=arguments.snapshot.parent) as directory:
        small = Path(directory, "small")
        generate(str(small), TINY)
        for number, (name, work) in enumerate(WORK.items()):
            work(small, Path(directory, f"warm-{number}"))
            target = Path(directory, str(number))
            clock = Clock()
            with clock.measure(name):
                work(arguments.snapshot, target)
            cpu, wall = clock.seconds[name]
            shutil.rmtree(target)
            sys.stdout.write(f"{name:40} {cpu.total:7.2f} CPU s {wall:7.2f} s\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
