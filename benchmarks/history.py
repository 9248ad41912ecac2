"""Rows of the benchmark snapshots as Parquet files of a lake, and the description of a bootstrap from them.

    python -m benchmarks.history --keys 5000000 --out .cache/bench/history-5000000

One table with a row per key, in the order of the keys, not of their key groups: `key`, `total`, and the fields of the
profile. Row groups of a million rows, snappy.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.keys import choose_numbers
from benchmarks.rows import make_batches
from benchmarks.shapes import Shape

ROW_GROUP = 1_000_000
DESCRIPTION = "bootstrap.yaml"

PROFILE = "Pojo<bench.Profile>(active: Boolean, age: Int, id: Long, name: String, score: Double)"

_YAML = f"""\
operators:
  - uid: bench
    key: String
    parallelism: 2
    states:
      - name: total
        rows: rows.parquet
        type: Long
        columns: {{state_key: key, value: total}}
      - name: profile
        rows: rows.parquet
        type: "{PROFILE}"
        columns: {{state_key: key, value: [active, age, id, name, score]}}
"""


def write_history(directory: Path, keys: int) -> None:
    """Write the table and the description into a directory, which must not exist."""
    directory.mkdir(parents=True)
    shape = Shape()
    schema: pa.Schema | None = None
    with choose_numbers(keys, shape, directory) as numbers:
        sides = (make_batches(state, numbers, shape) for state in ("value", "profile"))
        writer: pq.ParquetWriter | None = None
        pending: list[pa.RecordBatch] = []
        for totals, profiles in zip(*sides, strict=True):
            profile = profiles.column("value")
            columns = {"key": totals.column("state_key"), "total": totals.column("value")}
            columns |= {each.name: profile.field(index) for index, each in enumerate(profile.type)}
            batch = pa.RecordBatch.from_pydict(columns)
            if writer is None:
                schema = batch.schema
                writer = pq.ParquetWriter(directory / "rows.parquet", schema)
            pending.append(batch)
            if sum(map(len, pending)) >= ROW_GROUP:
                writer.write_table(pa.Table.from_batches(pending), ROW_GROUP)
                pending = []
        if writer is not None:
            writer.write_table(pa.Table.from_batches(pending, schema), ROW_GROUP)
            writer.close()
    (directory / DESCRIPTION).write_text(_YAML)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--out", type=Path, required=True, help="directory, which must not exist")
    arguments = parser.parse_args()
    write_history(arguments.out, arguments.keys)


if __name__ == "__main__":
    main()
