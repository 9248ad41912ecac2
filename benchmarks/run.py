"""Times of the library on a savepoint of `benchmarks.generate`, without Spark.

    python -m benchmarks.run --snapshot .cache/large

Seconds of the process: CPU is user plus system. Kernels are warm (their first compilation is cached on disk).
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.generate import OPERATOR
from state_pipelines import open_snapshot
from state_pipelines.keyed.tables import TableOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from state_pipelines.snapshot import Snapshot


def count(snapshot: Snapshot) -> int:
    """Walk over all records of both states."""
    operator = snapshot.operator(OPERATOR)
    return sum(operator.state(name).count().entries for name in ("total", "profile"))


def aggregate(snapshot: Snapshot) -> float:
    """Decode every column of both states into Arrow and sum over them."""
    operator = snapshot.operator(OPERATOR)
    total = 0.0
    for name in ("total", "profile"):
        for batch in operator.state(name).batches():
            total += sum(_sum(column) for column in batch.columns)
    return total


def one_column(snapshot: Snapshot) -> float:
    """Decode one field of the POJO."""
    options = TableOptions(columns=("value.age",))
    state = snapshot.operator(OPERATOR).state("profile")
    return sum(_sum(batch.column("value")) for batch in state.batches(options))


def _sum(column: pa.Array) -> float:
    if pa.types.is_struct(column.type):
        return sum(_sum(column.field(index)) for index in range(column.type.num_fields))
    if pa.types.is_string(column.type):
        return float(pc.sum(pc.binary_length(column)).as_py() or 0)
    return float(pc.sum(column).as_py() or 0)


WORK: dict[str, Callable[[Snapshot], float]] = {
    "count records": count,
    "decode all columns and aggregate": aggregate,
    "decode one POJO field": one_column,
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--snapshot", required=True)
    arguments = parser.parse_args()
    for name, work in WORK.items():
        work(open_snapshot(arguments.snapshot))
        wall, cpu = time.perf_counter(), time.process_time()
        result = work(open_snapshot(arguments.snapshot))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        sys.stdout.write(f"{name:36} {cpu:7.2f} CPU s {wall:7.2f} s   {result:.2f}\n")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(f"peak memory {peak:.0f} MiB\n")


if __name__ == "__main__":
    main()
