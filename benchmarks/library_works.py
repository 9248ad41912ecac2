"""Works of the library alone: one process, one core, no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.generate import OPERATOR
from benchmarks.stages import Task, run_program
from state_pipelines import open_snapshot
from state_pipelines.keyed.state_table import TableOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def count(task: Task) -> int:
    """Walk over all records of all states."""
    return sum(state.count().entries for state in open_snapshot(task.snapshot).operator(OPERATOR).states)


def _batches(task: Task) -> Iterator[pa.RecordBatch]:
    for _, batch in open_snapshot(task.snapshot).operator(OPERATOR).batches_by_state():
        yield batch


def decode(task: Task) -> int:
    """Decode every column of all states into Arrow."""
    return sum(map(len, _batches(task)))


def aggregate(task: Task) -> int:
    """Decode every column of all states into Arrow and sum over them."""
    rows = 0
    for batch in _batches(task):
        rows += len(batch)
        for column in batch.columns:
            sum_up(column)
    return rows


def decode_column(task: Task) -> int:
    """Decode one field of the POJO and sum over it."""
    rows = 0
    options = TableOptions(columns=("value.age",))
    for batch in open_snapshot(task.snapshot).operator(OPERATOR).state("profile").batches(options):
        sum_up(batch.column("value"))
        rows += len(batch)
    return rows


def make_table(task: Task) -> int:
    """Both states as one table, a row per key, and sums over all columns."""
    rows = 0
    for batch in open_snapshot(task.snapshot).operator(OPERATOR).batches():
        rows += len(batch)
        for column in batch.columns:
            sum_up(column)
    return rows


def sum_up(column: pa.Array) -> float:
    """The sum of a column, of text that of its lengths, of structs that of their fields."""
    if pa.types.is_null(column.type):
        return 0.0
    if pa.types.is_struct(column.type):
        return sum(sum_up(column.field(index)) for index in range(column.type.num_fields))
    if pa.types.is_string(column.type):
        return float(pc.sum(pc.binary_length(column)).as_py() or 0)
    return float(pc.sum(column).as_py() or 0)


WORKS: dict[str, Callable[[Task], int]] = {
    "count": count,
    "decode": decode,
    "aggregate": aggregate,
    "column": decode_column,
    "table": make_table,
}


if __name__ == "__main__":
    run_program(WORKS)
