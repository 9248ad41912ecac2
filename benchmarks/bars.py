"""The bars: what each work has to reach, and what it reaches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks import peer
from benchmarks.results import NOISE

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.results import Results

MIB = 1 << 20
KEYS = 5_000_000
"""Of the snapshots for which the bars are set."""


@dataclass(frozen=True)
class Bar:
    """A bar.

    Attributes:
        title: what is meant.
        measure: what is reached; None when it was not measured.
        limit: what is to be reached.
        at_least: more is better.
        unit: of both, such as `x` or `s`.
    """

    title: str
    measure: Callable[[Results], float | None]
    limit: float
    at_least: bool
    unit: str

    def is_met(self, value: float) -> bool:
        """Whether a value is good enough."""
        return value >= self.limit if self.at_least else value <= self.limit


def speed_up(results: Results, work: str, snapshot: str) -> float | None:
    """How often our net CPU goes into that of the peer, for the keys that were measured."""
    runs = results.select(work, snapshot)
    ours = results.net_cpu(work, snapshot)
    theirs = peer.net_cpu(work, snapshot, runs[0].keys) if runs else None
    return None if ours is None or theirs is None else theirs / max(ours, NOISE)


def _peer(title: str, work: str, limit: float, snapshot: str = "canonical") -> Bar:
    return Bar(f"{title}, against the peer", lambda results: speed_up(results, work, snapshot), limit, True, "x")


def _own(title: str, work: tuple[str, str], base: tuple[str, str], limit: float) -> Bar:
    def measure(results: Results) -> float | None:
        ours, other = results.net_cpu(*work), results.net_cpu(*base)
        # A base that is nothing but noise says nothing.
        return None if ours is None or other is None or other < NOISE else max(ours, NOISE) / other

    return Bar(title, measure, limit, False, "x")


def _wall(title: str, work: str, limit: float, snapshot: str = "canonical") -> Bar:
    def measure(results: Results) -> float | None:
        wall = results.wall(work, snapshot)
        return None if wall is None else wall.median

    return Bar(title, measure, limit, False, "s")


def _memory(title: str, work: str, limit: float) -> Bar:
    def measure(results: Results) -> float | None:
        memory = results.memory(work, "canonical")
        return None if memory is None else memory.median / MIB

    return Bar(title, measure, limit, False, "MiB")


def _growth(title: str, work: str, limit: float) -> Bar:
    def measure(results: Results) -> float | None:
        keys = sorted(
            {each.keys for each in results.measurements if each.work == work and each.snapshot == "canonical"}
        )
        small, huge = results.memory(work, "canonical"), results.memory(work, "canonical", keys=keys[-1] if keys else 0)
        if small is None or huge is None or len(keys) < 3:
            return None
        return huge.median / small.median

    return Bar(title, measure, limit, False, "x")


BARS = (
    _peer("library, both states into Arrow, aggregate", "library-aggregate", 15),
    _peer("library, the same from snappy", "library-aggregate", 5, "snappy"),
    _peer("Spark, both states, aggregate", "spark-aggregate", 5),
    _peer("Spark, the same from snappy", "spark-aggregate", 2, "snappy"),
    _own("Spark, the same against Parquet", ("spark-aggregate", "canonical"), ("spark-from-parquet", "canonical"), 2),
    _peer("Spark, one table, a row per key", "spark-table", 4),
    _peer("migrate and write", "spark-migrate", 8),
    _own("proof against none", ("spark-migrate-proven", "canonical"), ("spark-migrate", "canonical"), 2),
    _peer("bootstrap from Parquet", "cli-bootstrap", 6),
    _peer("bootstrap from Parquet to RocksDB native", "cli-bootstrap-rocksdb", 4),
    _peer("max parallelism 128 to 1,024", "cli-rescale-max", 8),
    _peer("parallelism only", "cli-rescale", 50),
    _wall("read and aggregate, from the prompt to the result", "spark-aggregate", 11.1),
    _wall("migrate, from the prompt to the result", "cli-migrate", 10.5),
    _wall("bootstrap, from the prompt to the result", "cli-bootstrap", 10.7),
    _own("heap native against canonical", ("library-aggregate", "heap"), ("library-aggregate", "canonical"), 2),
    _own("RocksDB native against canonical", ("library-aggregate", "rocksdb"), ("library-aggregate", "canonical"), 2),
    _own("Spark, heap native against canonical", ("spark-aggregate", "heap"), ("spark-aggregate", "canonical"), 2),
    _own(
        "Spark, RocksDB native against canonical", ("spark-aggregate", "rocksdb"), ("spark-aggregate", "canonical"), 2
    ),
    _wall("inspect a snapshot with 10,000 handles", "cli-inspect", 1.5, "handles"),
    _memory("memory of a process, library", "library-aggregate", 600),
    _memory("memory of a process, Spark reads", "spark-aggregate", 600),
    _memory("memory of a process, Spark migrates", "spark-migrate", 600),
    _memory("memory of a process, max parallelism", "cli-rescale-max", 600),
    _growth("memory with ten times the keys, library", "library-aggregate", 1.15),
    _growth("memory with ten times the keys, Spark", "spark-aggregate", 1.15),
    _growth("memory with ten times the keys, Spark migrates and proves", "spark-migrate-proven", 1.15),
    _growth("memory with ten times the keys, max parallelism", "cli-rescale-max", 1.15),
)
