"""What the peer takes: the State Processor API of Flink 2.0.2, the only other way to do these works.

2 cores, 2 slots, `-Xmx8g`; String keys with a `ValueState<Long>` and a `ValueState<POJO of 5 fields>`, as in our
snapshots; medians on a quiet machine. CPU is user plus system seconds of the process. Its reading of a plain canonical
savepoint is not buffered, so that the one with snappy compression must be looked at too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PeerFigure:
    """Seconds, start-up included; `wall` is None where only CPU was measured."""

    cpu: float
    wall: float | None = None


START = PeerFigure(4.5, 2.6)
"""An empty job."""

READ, MIGRATE, MAX_PARALLELISM = "read", "migrate", "max parallelism"
BOOTSTRAP, BOOTSTRAP_ROCKSDB = "bootstrap", "bootstrap for RocksDB"
"""The peer writes canonical savepoints only: from its heap backend, or from its RocksDB backend."""

FIGURES = {
    (READ, "canonical", 1_000_000): PeerFigure(12.8, 7.0),
    (READ, "snappy", 1_000_000): PeerFigure(8.6, 4.5),
    (READ, "rocksdb", 1_000_000): PeerFigure(14.9, 8.2),
    (MIGRATE, "canonical", 1_000_000): PeerFigure(18.8, 10.0),
    (MIGRATE, "rocksdb", 1_000_000): PeerFigure(21.3, 11.5),
    (MAX_PARALLELISM, "canonical", 1_000_000): PeerFigure(18.0, 9.6),
    (MAX_PARALLELISM, "rocksdb", 1_000_000): PeerFigure(20.1, 10.6),
    (READ, "canonical", 5_000_000): PeerFigure(42.2, 22.3),
    (READ, "snappy", 5_000_000): PeerFigure(15.5, 8.4),
    (READ, "rocksdb", 5_000_000): PeerFigure(72.0, 36.8),
    (MIGRATE, "canonical", 5_000_000): PeerFigure(59.6, 31.6),
    (MIGRATE, "rocksdb", 5_000_000): PeerFigure(101.0, 51.8),
    (MAX_PARALLELISM, "canonical", 5_000_000): PeerFigure(57.0, 30.6),
    (MAX_PARALLELISM, "rocksdb", 5_000_000): PeerFigure(104.9, 54.6),
    (BOOTSTRAP, "canonical", 5_000_000): PeerFigure(41.0, 21.5),
    (BOOTSTRAP_ROCKSDB, "canonical", 5_000_000): PeerFigure(55.0),
}
"""By what it does, the snapshot, and the number of keys."""

SAME_WORK = {
    "library-decode": READ,
    "library-aggregate": READ,
    "library-table": READ,
    "spark-aggregate": READ,
    "spark-table": READ,
    "spark-migrate": MIGRATE,
    "spark-migrate-proven": MIGRATE,
    "cli-migrate": MIGRATE,
    "cli-migrate-proven": MIGRATE,
    "spark-bootstrap": BOOTSTRAP,
    "cli-bootstrap": BOOTSTRAP,
    "cli-bootstrap-proven": BOOTSTRAP,
    "cli-bootstrap-rocksdb": BOOTSTRAP_ROCKSDB,
    "cli-rescale": MAX_PARALLELISM,
    "cli-rescale-max": MAX_PARALLELISM,
    "cli-rescale-max-proven": MAX_PARALLELISM,
}
"""What the peer does for the same result as a work of ours; it has no other way to another parallelism either."""


def find_figure(work: str, snapshot: str, keys: int) -> PeerFigure | None:
    """What the peer takes for the result of a work; None when that is not known."""
    return FIGURES.get((SAME_WORK.get(work, ""), snapshot, keys))


def net_cpu(work: str, snapshot: str, keys: int) -> float | None:
    """The same, CPU seconds without start-up."""
    figure = find_figure(work, snapshot, keys)
    return None if figure is None else figure.cpu - START.cpu
