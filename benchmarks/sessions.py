"""Reads through Spark in a session of `create_session` and in plain sessions of a user.

    python -m benchmarks.generate --keys 5000000 --out .cache/large
    python -m benchmarks.sessions --snapshot .cache/large

Each session is a process of its own. A read takes a hash over all columns of both states. The first read of a session
includes the start of its Python workers; the warm figure is the median of the reads after the third. CPU is that of the
process, its JVM and its Python workers. Sessions of the kinds alternate.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.generate import OPERATOR
from benchmarks.processes import Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = ("create_session", "plain", "plain, register only names the sources")


def start(kind: str, cores: int) -> SparkSession:
    """Start a session of a kind, and register the data sources."""
    from pyspark.sql import SparkSession

    from state_pipelines.spark import register
    from state_pipelines.spark.session import create_session
    from state_pipelines.spark.source import FlinkStateMetadataSource, FlinkStateSource

    if kind == KINDS[0]:
        spark = create_session("benchmark", cores=cores)
    else:
        builder = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
        spark = (
            builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.memory", "2g").getOrCreate()
        )
    if kind == KINDS[2]:
        spark.sparkContext.pythonExec = sys.executable
        for source in (FlinkStateSource, FlinkStateMetadataSource):
            spark.dataSource.register(source)
    else:
        register(spark)
    return spark


def read(spark: SparkSession, path: str) -> int:
    """Hash all columns of both states."""
    total = 0
    for state in ("total", "profile"):
        options = {"path": path, "uids": OPERATOR, "operatorId": OPERATOR, "stateVarName": state}
        frame = spark.read.format("flink-state").options(**options).load()
        (row,) = frame.selectExpr(f"sum(hash({', '.join(frame.columns)}))").collect()
        total += row[0]
    return total


def measure(kind: str, path: str, cores: int, reads: int) -> list[tuple[float, float]]:
    """(CPU, wall) seconds of each read of a session in this process."""
    spark = start(kind, cores)
    figures = []
    for number in range(reads):
        clock = Clock()
        with clock.measure(str(number)):
            read(spark, path)
        cpu, wall = clock.seconds[str(number)]
        figures.append((cpu.total, wall))
    spark.stop()
    return figures


def main() -> None:
    """Measure all kinds, or one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshot", required=True, help="made by benchmarks.generate")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--reads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.kind:
        sys.stdout.write(f"{json.dumps(measure(given.kind, given.snapshot, given.cores, given.reads))}\n")
        return
    results: dict[str, list[list[tuple[float, float]]]] = {kind: [] for kind in KINDS}
    for _ in range(given.rounds):
        for kind in KINDS:
            command = [sys.executable, "-m", "benchmarks.sessions", *sys.argv[1:], "--kind", kind]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results[kind].append(json.loads(done.stdout.splitlines()[-1]))
    sys.stdout.write("| session | first, CPU s | first, s | warm, CPU s | warm, s |\n|---|---|---|---|---|\n")
    for kind, rounds in results.items():
        first = [median(each[0][part] for each in rounds) for part in (0, 1)]
        warm = [median(figures[part] for each in rounds for figures in each[3:]) for part in (0, 1)]
        sys.stdout.write(f"| {kind} | " + " | ".join(f"{figure:.1f}" for figure in (*first, *warm)) + " |\n")


if __name__ == "__main__":
    main()
