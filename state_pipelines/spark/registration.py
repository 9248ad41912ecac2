"""Registration of the data sources in any Spark session."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from state_pipelines.errors import UsageError
from state_pipelines.spark.workers import start_workers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession

_NEEDED = ("numba", "pyarrow", "state_pipelines")
_LOOK = (
    "import sys; from importlib.util import find_spec; "
    f"print(sys.prefix); print(*(each for each in {_NEEDED} if find_spec(each) is None))"
)
_INTERPRETER = "PYSPARK_PYTHON"
# Arrow otherwise checks the bounds of every value that the JVM reads from a batch.
_ARROW_PROPERTIES = {
    "arrow.enable_unsafe_memory_access": "true",
    "arrow.enable_null_check_for_get": "false",
}

_CHECKED: set[str] = set()
"""Ids of applications whose workers have imported this package."""


def register(spark: SparkSession) -> None:
    """Make `flink-state` and `flink-state-metadata` known to a session, and check that its Python workers can run them.

    In a local session whose workers run the Python of this process, they start as those of `create_session`: forked
    from a process that has imported this package. If no interpreter was chosen and `python3` lacks the packages, the
    workers run the Python of this process.

    Raises:
        UsageError: the Python workers cannot import this package; the hint names the option to set.
    """
    from state_pipelines.spark.source import FlinkStateMetadataSource, FlinkStateSource

    if _is_classic(spark):
        if (spark.sparkContext.master or "").startswith("local"):
            _prepare_local(spark)
        else:
            _check_remote(spark)
    spark.dataSource.register(FlinkStateSource)
    spark.dataSource.register(FlinkStateMetadataSource)


def _is_classic(spark: SparkSession) -> bool:
    """Return whether this process is the driver; with Spark Connect, only the server knows the workers."""
    return getattr(spark, "_jvm", None) is not None


def _prepare_local(spark: SparkSession) -> None:
    context = spark.sparkContext
    own = tuple(sorted(context.environment.items()))
    prefix, missing = _look_at(context.pythonExec, own)
    if missing and _is_unchosen(spark):
        prefix, missing = _look_at(sys.executable, own)
    if missing:
        raise _blame(context.pythonExec, f"it lacks {missing}")
    if prefix == sys.prefix:
        workers = start_workers()
        context.pythonExec = workers.pop(_INTERPRETER)
        context.environment.update(workers)
    assert spark._jvm is not None
    properties = spark._jvm.java.lang.System
    for name, value in _ARROW_PROPERTIES.items():
        if properties.getProperty(name) is None:
            properties.setProperty(name, value)


def _is_unchosen(spark: SparkSession) -> bool:
    return _INTERPRETER not in os.environ and spark.sparkContext.getConf().get("spark.pyspark.python") is None


@cache
def _look_at(interpreter: str, environment: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    """Return the prefix of an interpreter and the needed packages that it lacks.

    Args:
        interpreter: program; workers on this machine have the environment of this process and `environment`.
        environment: further variables.
    """
    variables: Mapping[str, str] = os.environ | dict(environment)
    try:
        done = subprocess.run(
            [interpreter, "-c", _LOOK], env=variables, capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return "", "a Python that starts"
    prefix, missing = done.stdout.splitlines()
    return prefix, ", ".join(missing.split())


def _check_remote(spark: SparkSession) -> None:
    """Run one task that imports this package; once per application."""
    application = spark.sparkContext.applicationId
    if application in _CHECKED:
        return
    try:
        spark.range(1).mapInArrow(_pass, "id long").collect()
    except PySparkException as error:
        _, found, rest = str(error).partition("No module named ")
        if not found:
            raise
        raise _blame(spark.sparkContext.pythonExec, f"it lacks {rest.splitlines()[0]}") from None
    _CHECKED.add(application)


def _pass(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return batches unchanged; workers find this function by importing this module."""
    yield from batches


def _blame(interpreter: str, reason: str) -> UsageError:
    return UsageError(
        f"the Python workers of the Spark session run {interpreter} and cannot import state_pipelines: {reason}",
        hint="Before the session starts, set PYSPARK_PYTHON (or spark.pyspark.python) to a Python that has "
        f"state-pipelines installed on every machine; here that is {sys.executable}",
    )
