from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from state_pipelines.spark.fork_server import SOCKET_VARIABLE, ask
from state_pipelines.spark.session import start_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no such server")


@pytest.fixture
def server(spark: SparkSession) -> str:
    return start_workers()[SOCKET_VARIABLE]


def test_workers_are_forked_with_their_imports_and_without_threads(spark: SparkSession) -> None:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        command = Path("/proc/self/cmdline").read_text().split("\0")
        for _ in batches:
            yield pyarrow.record_batch(
                {"forked": ["state_pipelines.spark.fork_server" in command and "numba" in sys.modules]}
            )

    assert {row.forked for row in spark.range(2, numPartitions=2).mapInArrow(look, "forked boolean").collect()} == {
        True
    }


def test_workers_have_random_numbers_of_their_own(spark: SparkSession) -> None:
    def draw(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import random

        import numpy
        import pyarrow

        for _ in batches:
            yield pyarrow.record_batch({"own": [random.random()], "numpy": [numpy.random.random()]})

    rows = spark.range(4, numPartitions=4).mapInArrow(draw, "own double, numpy double").collect()
    assert (len({row.own for row in rows}), len({row.numpy for row in rows})) == (4, 4)


def test_arrow_computes_with_threads_in_forked_workers(spark: SparkSession) -> None:
    def compute(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow
        import pyarrow.compute

        pyarrow.set_cpu_count(4)
        for batch in batches:
            table = pyarrow.table({"key": pyarrow.compute.bit_wise_and(batch.column(0), 7), "id": batch.column(0)})
            grouped = table.group_by("key", use_threads=True).aggregate([("id", "sum")]).sort_by("key")
            yield from grouped.rename_columns(["key", "sum"]).to_batches()

    frame = spark.range(800_000, numPartitions=8).mapInArrow(compute, "key long, sum long")
    rows = frame.groupBy("key").sum("sum").orderBy("key").collect()
    assert [row[1] for row in rows] == [sum(range(key, 800_000, 8)) for key in range(8)]


def test_another_kind_of_interpreter_is_refused(server: str) -> None:
    assert not ask(server, {"PYTHONOPTIMIZE": "1"}, ["pyspark.worker"])


def test_another_seed_of_hashes_is_refused(server: str) -> None:
    assert not ask(server, {"PYTHONHASHSEED": "17"}, ["pyspark.worker"])


def test_without_a_server_nothing_happens(tmp_path: Path) -> None:
    assert not ask(str(tmp_path / "socket"), dict(os.environ), ["pyspark.worker"])


def test_every_session_of_a_process_has_the_same_server(server: str) -> None:
    assert start_workers()[SOCKET_VARIABLE] == server


def test_where_no_socket_can_be_there_is_no_server(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    program = "from state_pipelines.spark.session import start_workers; print(sorted(start_workers()))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"TMPDIR": str(long), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("['PYSPARK_DRIVER_PYTHON', 'PYSPARK_PYTHON']\n", "")
    assert not list(long.iterdir())


def test_the_server_ends_with_its_process_however_that_ends(tmp_path: Path) -> None:
    program = (
        "import os, signal; from state_pipelines.spark.session import start_workers; start_workers(); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    end = time.monotonic() + 60
    while list(tmp_path.iterdir()) and time.monotonic() < end:
        time.sleep(0.1)
    assert not list(tmp_path.iterdir())
