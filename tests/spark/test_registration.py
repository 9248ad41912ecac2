from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from state_pipelines.spark.session import create_java_home, find_java, locate_class_data
from tests.conftest import QUICK_START
from tests.snapshot.savepoints import orders

ROOT = Path(__file__).resolve().parents[2]
BARE = Path(sys.base_prefix) / "bin" / "python3"
"""The interpreter of this environment without its packages."""

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import state_pipelines as sp
from state_pipelines.errors import UsageError

def look(batches):
    import pyarrow

    # Imported before the function was read, since nothing in it asks for that.
    imported = "state_pipelines.spark.migration_run" in sys.modules
    yield from (pyarrow.record_batch({"imported": [imported]}) for _ in batches)


builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for option in sys.argv[2:]:
    builder = builder.config(*option.split("=", 1))
spark = builder.getOrCreate()
try:
    sp.spark.register(spark)
except UsageError as error:
    print(error)
else:
    rows = spark.read.format("flink-state").option("path", sys.argv[1])
    print(rows.option("operatorId", "orders").option("stateVarName", "order").load().count())
    print(spark.range(1).mapInArrow(look, "imported boolean").collect()[0].imported)
spark.stop()
"""


def run(tmp_path: Path, *options: str, **variables: str) -> str:
    """Run a program with a session of its own, in which `python3` is a Python without packages; what it prints."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(BARE)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    environment["PATH"] = os.pathsep.join([str(tmp_path / "bin"), "/usr/bin", "/bin"])
    environment["PYTHONPATH"] = str(ROOT)
    java = find_java()
    classes = locate_class_data(java)
    environment["JAVA_HOME"] = str(classes.home if classes.exists else create_java_home(java))
    options = (*options, *("=".join(each) for each in QUICK_START.items()))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(orders().path), *options],
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
    """Its workers are also forked from a process that has imported this package."""
    assert run(tmp_path) == f"200\n{sys.platform == 'linux'}\n"


def test_workers_of_a_daemon_named_by_an_option_have_imported_the_package(tmp_path: Path) -> None:
    # As on a cluster there is no server to fork from, here because a socket cannot have so long a path.
    long = tmp_path / ("x" * 100)
    long.mkdir()
    daemon = "spark.python.daemon.module=state_pipelines.spark.daemon"
    assert run(tmp_path, daemon, TMPDIR=str(long)) == f"200\n{sys.platform == 'linux'}\n"


def test_a_chosen_python_without_the_packages_is_refused_with_what_to_set(tmp_path: Path) -> None:
    text = run(tmp_path, PYSPARK_PYTHON=str(BARE))
    assert f"run {BARE} and cannot import state_pipelines: it lacks numba, pyarrow" in text
    assert "set PYSPARK_PYTHON (or spark.pyspark.python)" in text
