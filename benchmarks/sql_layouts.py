"""SQL queries whose state gets another layout: `sql migrate` against the same steps in a migration file.

    python -m benchmarks.sql_layouts --rows 1000000 --rounds 3

A join that becomes an outer one, a rank of fewer rows, and windows of OVER with more calls and with fewer rows. The
plans are those of the tests, the rows are made. CPU is user plus system seconds of the command with all its children.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.sql_queries import run
from state_pipelines.spark import NewOperator, NewState, bootstrap, create_session
from state_pipelines.sql import list_operators, load_plan
from tests.sql.recorded_pairs import unpack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from state_pipelines.sql import PlannedOperator
    from state_pipelines.sql.node_states import PlannedRow, PlannedState

PAIRS = {
    "inner join to left join": "join-to-left",
    "rank of 5 rows to one of 2": "top-fewer",
    "OVER with more calls": "over-time-rows",
    "OVER of 5 rows to one of 3": "over-time-rows-fewer",
}
PER_KEY = 5
"""Rows of a key."""

_VALUES = {
    "BIGINT": "id",
    "INTEGER": "CAST(id % 1000 AS INT)",
    "VARCHAR": "concat('name ', id % 1000)",
    "TIMESTAMP_WITHOUT_TIME_ZONE": "timestamp_millis(id)",
}


def _make_row(row: PlannedRow, key: str) -> str:
    """SQL of a row whose columns come from `id`; those of the key from `key`."""
    values = [
        key if column.meaning.endswith(".cid") else _VALUES.get(column.type.root, "NULL") for column in row.columns
    ]
    fields = ["'row_kind', '+I'", *(f"'f{number}', {sql}" for number, sql in enumerate(values))]
    return f"named_struct({', '.join(fields)})"


def _make_state(spark: SparkSession, state: PlannedState, rows: int) -> NewState | None:
    key = f"id DIV {PER_KEY}"
    columns = [f"named_struct('row_kind', '+I', 'f0', {key}) AS state_key"]
    one_per_key = state.name == "right-records" or not state.describe().startswith("Map<")
    count = rows // PER_KEY if one_per_key else rows
    if one_per_key:
        key, columns = "id", ["named_struct('row_kind', '+I', 'f0', id) AS state_key"]
    made = [_make_row(each, key) for each in state.rows]
    match state.plain_template:
        case "{0}":
            columns.append(f"{made[0]} AS value")
        case "Long":
            number = PER_KEY if state.name == "processedCountState" else 1 << 60
            columns.append(f"CAST({number} AS BIGINT) AS value")
        case "Map<{0}, Int>":
            columns += [f"{made[0]} AS map_key", "1 AS map_value"]
        case "Map<{0}, List<{1}>>":
            columns += [f"{made[0]} AS map_key", f"array({made[1]}) AS map_value"]
        case "Map<Long, List<{0}>>":
            columns += ["id AS map_key", f"array({made[0]}) AS map_value"]
        case _:
            raise ValueError(f"no rows are made for {state.name}: {state.plain_template}")
    return NewState(state.name, spark.range(count).selectExpr(*columns), str(state.kind), type=state.describe())


def make_snapshot(operator: PlannedOperator, rows: int, target: Path) -> None:
    """Write the state of an operator."""
    spark = create_session("benchmark")
    assert operator.key is not None
    states = [each for state in operator.states if (each := _make_state(spark, state, rows)) is not None]
    made = NewOperator(operator.uid, states, key=operator.key.describe(), parallelism=2, max_parallelism=128)
    bootstrap(str(target), [made], prove=False)
    spark.stop()


def measure(name: str, pair: str, rows: int, rounds: int, directory: Path) -> None:
    """Measure a pair of queries."""
    recorded = unpack(pair, directory)
    snapshot, target, file = directory / "snapshot", directory / "result", directory / "by-hand.yaml"
    (old,) = (each for each in list_operators(load_plan(recorded.old)) if each.states)
    (new,) = (each for each in list_operators(load_plan(recorded.new)) if each.states)
    make_snapshot(old, rows, snapshot)
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        arguments = ["sql", "migrate", recorded.old, recorded.new, str(snapshot), "--out", str(target)]
        run(f"{name}: sql migrate", arguments, found)
        if number == 0:
            file.write_text((target / "revision.yaml").read_text().replace(new.uid, old.uid))
        shutil.rmtree(target)
        arguments = ["migrate", str(snapshot), "--migration", str(file), "--uid", old.uid, "--out", str(target)]
        run(f"{name}: by hand", arguments, found)
        shutil.rmtree(target)
    for each, seconds in found.items():
        sys.stdout.write(f"{each}: {statistics.median(seconds):.1f} s CPU ({min(seconds):.1f} to {max(seconds):.1f})\n")


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch")
    options = parser.parse_args()
    for name, pair in PAIRS.items():
        with TemporaryDirectory(dir=options.scratch) as directory:
            measure(name, pair, options.rows, options.rounds, Path(directory))


if __name__ == "__main__":
    main()
