from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from state_pipelines.spark.java import create_java_home, find_java
from tests.snapshot.savepoints import orders

ROOT = Path(__file__).resolve().parents[2]
BARE = Path(sys.base_prefix) / "bin" / "python3"
"""The interpreter of this environment without its packages."""

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import state_pipelines as sp
from state_pipelines.errors import UsageError

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    sp.spark.register(spark)
except UsageError as error:
    print(error)
else:
    rows = spark.read.format("flink-state").option("path", sys.argv[1])
    print(rows.option("operatorId", "orders").option("stateVarName", "order").load().count())
spark.stop()
"""


def run(tmp_path: Path, **variables: str) -> str:
    """Run a program with a session of its own, in which `python3` is a Python without packages; what it prints."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(BARE)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    environment["PATH"] = os.pathsep.join([str(tmp_path / "bin"), "/usr/bin", "/bin"])
    environment["PYTHONPATH"] = str(ROOT)
    environment["JAVA_HOME"] = str(create_java_home(find_java()))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(orders().path)],
        env=environment | variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def _bare_python() -> None:
    done = subprocess.run([BARE, "-c", "import pyarrow"], capture_output=True, check=False)
    if done.returncode == 0:
        pytest.skip("the Python below this environment has its packages too")


def test_a_script_works_without_its_environment_on_the_path(tmp_path: Path) -> None:
    assert run(tmp_path) == "200\n"


def test_a_chosen_python_without_the_packages_is_refused_with_what_to_set(tmp_path: Path) -> None:
    text = run(tmp_path, PYSPARK_PYTHON=str(BARE))
    assert f"run {BARE} and cannot import state_pipelines: it lacks numba, pyarrow" in text
    assert "set PYSPARK_PYTHON (or spark.pyspark.python)" in text
