"""The snapshots that works run on, made where they are missing; the same shape with few keys tells start-up apart."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.generate import generate
from benchmarks.history import DESCRIPTION, write_history
from benchmarks.shapes import Shape

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TINY = 2000
"""Keys of a snapshot on which a work does little more than start."""

HANDLE_KEYS = 100_000
"""Keys of the snapshot with many handles."""

SHAPES = {
    "canonical": Shape(),
    "snappy": Shape(compressed=True),
    "heap": Shape(format="heap-native"),
    "rocksdb": Shape(format="rocksdb-native"),
    "skewed": Shape(skew=0.5),
    "longs": Shape(key="long"),
    "pojos": Shape(key="pojo"),
    "collections": Shape(states=("map", "list", "timers"), per_key=1),
    "handles": Shape(parallelism=10_000, max_parallelism=32_768),
}
"""By the names that results have. `handles` has as many files as a job with 10,000 subtasks."""


@dataclass(frozen=True)
class Snapshots:
    """A directory of generated snapshots; each one's name tells its shape and number of keys.

    Attributes:
        directory: where they lie.
        report: is told of what is being made.
    """

    directory: Path
    report: Callable[[str], None]

    def name(self, shape: str, keys: int) -> Path:
        """Where the snapshot of this shape and size lies, or would lie."""
        return self.directory / f"{shape}-{keys}"

    def find(self, shape: str, keys: int) -> Path:
        """The snapshot of this shape and size, made now unless it is there."""
        place = self.name(shape, keys)
        if not (place / "_metadata").exists():
            self.report(f"making {place}")
            # What a run that was killed has left.
            shutil.rmtree(place, ignore_errors=True)
            generate(str(place), keys, SHAPES[shape])
        return place

    def measure(self, shape: str, keys: int) -> int:
        """Bytes of its files."""
        return sum(path.stat().st_size for path in self.find(shape, keys).iterdir())

    def find_parquet(self, shape: str, keys: int) -> Path:
        """The place of the rows of the same snapshot as Parquet files."""
        return self.name(f"{shape}-parquet", keys)

    def find_history(self, keys: int) -> Path:
        """The rows of so many keys as a lake has them (see `history`), made now unless they are there."""
        place = self.name("history", keys)
        if not (place / DESCRIPTION).exists():
            self.report(f"making {place}")
            # What a run that was killed has left.
            shutil.rmtree(place, ignore_errors=True)
            write_history(place, keys)
        return place
