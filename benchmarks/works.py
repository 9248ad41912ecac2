"""The works that are measured: what each is called, on which snapshots it runs, and its command."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

LIBRARY = ("-m", "benchmarks.library_works")
SPARK = ("-m", "benchmarks.spark_works")
ROOFLINE = ("-m", "benchmarks.roofline")
COMMAND_LINE = ("-m", "state_pipelines")

UPGRADE = str(Path(__file__).with_name("upgrade.yaml"))
_DATA = ("--snapshot", "{snapshot}", "--target", "{target}")
_BOOTSTRAP = (*COMMAND_LINE, "bootstrap", "{history}/bootstrap.yaml", "--out", "{target}")
_MIGRATE = ("migrate", "{snapshot}", "--migration", UPGRADE, "--out", "{target}")


@dataclass(frozen=True)
class Work:
    """A task that a process of its own does.

    Attributes:
        name: for results and for choosing.
        title: for people.
        arguments: of the Python interpreter; `{snapshot}`, `{parquet}`, `{history}`, `{target}` and `{other}` are
            filled in.
        snapshots: names of shapes, see `snapshots.SHAPES`.
        warm: it is also measured a second time in the same process.
    """

    name: str
    title: str
    arguments: tuple[str, ...]
    snapshots: tuple[str, ...] = ("canonical",)
    warm: bool = False

    @property
    def is_command(self) -> bool:
        """Whether it is what a user types, not a program of the benchmarks."""
        return self.arguments[:2] == COMMAND_LINE

    def fill(
        self, *, snapshot: Path, parquet: Path, history: Path, target: Path, other: Path, repeat: int = 1
    ) -> list[str]:
        """Its command.

        Args:
            snapshot: the snapshot.
            parquet: the same rows as Parquet files.
            history: the same rows as a lake has them, with the description of a bootstrap.
            target: a path at which nothing lies.
            other: a snapshot of the same content with other files.
            repeat: how often it is done in the process.
        """
        given = {"snapshot": snapshot, "parquet": parquet, "history": history, "target": target, "other": other}
        command = [sys.executable, *(each.format(**given) for each in self.arguments)]
        return command if repeat == 1 else [*command, "--repeat", str(repeat)]


_ALL = ("canonical", "snappy", "heap", "rocksdb")

WORKS = (
    Work("library-count", "find and count all records", (*LIBRARY, "count", *_DATA), ("canonical", "snappy")),
    Work("library-decode", "decode all columns into Arrow", (*LIBRARY, "decode", *_DATA), _ALL),
    Work(
        "library-aggregate",
        "decode all columns and aggregate",
        (*LIBRARY, "aggregate", *_DATA),
        (*_ALL, "skewed", "longs", "pojos", "collections"),
    ),
    Work("library-column", "decode one field of the POJO", (*LIBRARY, "column", *_DATA), ("canonical", "snappy")),
    Work("library-table", "one table, a row per key", (*LIBRARY, "table", *_DATA)),
    Work("spark-start", "Spark: an empty session", (*SPARK, "start", *_DATA)),
    Work("spark-count", "Spark: count the rows of both states", (*SPARK, "count", *_DATA)),
    Work("spark-column", "Spark: sum over one field of the POJO", (*SPARK, "column", *_DATA)),
    Work(
        "spark-aggregate",
        "Spark: read both states, aggregate",
        (*SPARK, "aggregate", *_DATA),
        (*_ALL, "skewed"),
        warm=True,
    ),
    Work("spark-table", "Spark: one table, a row per key", (*SPARK, "table", *_DATA), warm=True),
    Work("spark-to-parquet", "Spark: write both states to Parquet", (*SPARK, "to-parquet", *_DATA)),
    Work(
        "spark-from-parquet",
        "Spark: the same rows from Parquet",
        (*SPARK, "from-parquet", "--snapshot", "{parquet}"),
        warm=True,
    ),
    Work("spark-migrate", "migrate the POJO", (*SPARK, "migrate", *_DATA), warm=True),
    Work("spark-migrate-proven", "migrate the POJO, proven", (*SPARK, "migrate-proven", *_DATA), warm=True),
    Work(
        "spark-bootstrap",
        "Spark: bootstrap both states from Parquet",
        (*SPARK, "bootstrap", "--snapshot", "{history}", "--target", "{target}"),
        warm=True,
    ),
    Work("cli-bootstrap", "bootstrap --no-proof", (*_BOOTSTRAP, "--no-proof")),
    Work("cli-bootstrap-proven", "bootstrap", _BOOTSTRAP),
    Work(
        "cli-bootstrap-rocksdb",
        "bootstrap --format rocksdb --no-proof",
        (*_BOOTSTRAP, "--format", "rocksdb", "--no-proof"),
    ),
    Work("cli-migrate", "migrate --no-proof", (*COMMAND_LINE, *_MIGRATE, "--no-proof")),
    Work("cli-migrate-proven", "migrate", (*COMMAND_LINE, *_MIGRATE)),
    Work(
        "cli-read-parquet",
        "read --parquet, one table",
        (*COMMAND_LINE, "read", "{snapshot}", "--operator", "bench", "--parquet", "{target}"),
    ),
    Work(
        "cli-rescale",
        "rescale --parallelism 3 --no-proof",
        (*COMMAND_LINE, "rescale", "{snapshot}", "--out", "{target}", "--parallelism", "3", "--no-proof"),
    ),
    Work(
        "cli-rescale-max",
        "rescale --max-parallelism 1024 --no-proof",
        (*COMMAND_LINE, "rescale", "{snapshot}", "--out", "{target}", "--max-parallelism", "1024", "--no-proof"),
        ("canonical", "skewed"),
    ),
    Work(
        "cli-rescale-max-proven",
        "rescale --max-parallelism 1024",
        (*COMMAND_LINE, "rescale", "{snapshot}", "--out", "{target}", "--max-parallelism", "1024"),
    ),
    Work(
        "cli-convert-heap",
        "convert --format heap",
        (*COMMAND_LINE, "convert", "{snapshot}", "--out", "{target}", "--format", "heap"),
    ),
    Work(
        "cli-convert-rocksdb",
        "convert --format rocksdb",
        (*COMMAND_LINE, "convert", "{snapshot}", "--out", "{target}", "--format", "rocksdb"),
    ),
    Work(
        "cli-convert-canonical",
        "convert --format canonical",
        (*COMMAND_LINE, "convert", "{snapshot}", "--out", "{target}", "--format", "canonical"),
        ("heap", "rocksdb"),
    ),
    Work("cli-inspect", "inspect", (*COMMAND_LINE, "inspect", "{snapshot}", "--no-count"), ("canonical", "handles")),
    Work(
        "cli-diff",
        "diff with the same in another format",
        (*COMMAND_LINE, "diff", "{snapshot}", "{other}"),
        ("canonical", "heap"),
    ),
    Work("roofline-read", "read the bytes", (*ROOFLINE, "read", *_DATA), ("canonical", "snappy")),
    Work("roofline-copy", "copy the bytes in memory", (*ROOFLINE, "copy", *_DATA)),
    Work("roofline-decompress", "read and decompress the bytes", (*ROOFLINE, "decompress", *_DATA), ("snappy",)),
)

OTHER = {"canonical": "snappy", "heap": "canonical"}
"""Shapes with the same content, for comparing."""
