"""Starting Spark: one quiet session per process, on this machine unless the caller names a master."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from state_pipelines.spark.class_data import locate_class_data
from state_pipelines.spark.java import create_java_home, find_java
from state_pipelines.spark.workers import start_workers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["SparkSession", "create_session"]

_CASE = "spark.sql.caseSensitive"

_ROOT = Path(__file__).resolve().parents[2]
_LOGGING = Path(__file__).with_name("log4j2.properties")


def create_session(
    app_name: str,
    *,
    cores: int | None = None,
    memory: str = "2g",
    conf: Mapping[str, str] | None = None,
    java_home: Path | None = None,
) -> SparkSession:
    """The active Spark session of this process, or a new one.

    Unless `conf` names another `spark.master`, Spark runs inside one JVM on this machine, bound to the loopback
    interface, and its Python workers are this very interpreter, with this package importable.

    Args:
        app_name: shown in Spark's own listings.
        cores: tasks at a time; by default as many as this process may use.
        memory: heap of the JVM, such as `512m` or `4g`; Python workers come on top.
        conf: further Spark options; they win over those set here.
        java_home: directory whose `bin/java` is started; by default one that starts the Java of this machine, with the
            archive of Spark's classes where `state-pipelines prepare` has made one.

    Returns:
        The session. An active one is returned as it is, whatever the arguments say.

    Raises:
        UsageError: no Java of version 17 or newer is to be found.
    """
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        pass  # there is none; Spark has no other way to ask
    cores = cores or _available_cores()
    given = dict(conf or {})
    options = {"spark.master": f"local[{cores}]"} | _session_options(cores, memory) | given
    environment = {"JAVA_HOME": str(java_home or _find_java_home())}
    if options["spark.master"].startswith("local"):
        options = _LOOPBACK | {"spark.executorEnv.PYTHONPATH": str(_ROOT)} | options
        if _JAVA_DEFAULTS not in given:
            options[_JAVA_DEFAULTS] += f" {list_java_options(options, os.environ)}"
        # The `python3` on the PATH may be an interpreter without our packages.
        environment |= start_workers()
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.appName(app_name)
    for name, value in options.items():
        builder = builder.config(name, value)
    with _importing("pyspark.testing"), _environment(environment):
        return builder.getOrCreate()


def _find_java_home() -> Path:
    java = find_java()
    data = locate_class_data(java)
    return data.home if data.exists else create_java_home(java)


_JAVA_DEFAULTS = "spark.driver.defaultJavaOptions"
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def _session_options(cores: int, memory: str) -> dict[str, str]:
    return {
        "spark.driver.memory": memory,
        _JAVA_DEFAULTS: f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        # Otherwise every call that makes a column asks Java ten times more, to note its line in the Python code.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Two rounds of tasks level out skew; Spark's default of 200 is for clusters.
        "spark.sql.shuffle.partitions": str(2 * cores),
        # Spark creates this directory with its first table; by default that is below the current one.
        "spark.sql.warehouse.dir": Path(tempfile.gettempdir(), f"spark-warehouse-{os.getpid()}").as_uri(),
    }


# Arrow checks the bounds of every value that is read out of what this package's own workers have sent, at a fifth of
# the time that reading takes.
_ARROW_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
# Half the CPU time of a run of some seconds is Java compiling. Its second, slow compiler therefore waits until code has
# run ten times as often as by default, which what handles each row has all the same. Nor are the heap, and the room for
# classes, enlarged step by step with a collection at each.
_JAVA_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:MetaspaceSize=256m -XX:Tier4InvocationThreshold=50000 "
    "-XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
# Rows live for a moment: with a small space for new objects, which grows where they live longer, it is the same memory
# that is written again and again. Spark does not start with a heap that is smaller than three times this.
_NEW = "-XX:NewSize=150m"
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
OWN_CONFIGURATION = (
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONF_DIR",
    "SPARK_HOME",
    "SPARK_SUBMIT_OPTS",
)
"""Variables by which users configure Java or Spark themselves."""


def list_java_options(options: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Options of Java for a Spark that works for a short time, with all cores.

    Args:
        options: of Spark.
        environment: variables; where one of them configures Java or Spark, all is left to it.
    """
    if any(environment.get(each) for each in OWN_CONFIGURATION):
        return ""
    # Java does not start with two collectors.
    chosen = _COLLECTOR.search(options.get("spark.driver.extraJavaOptions", ""))
    collector = [] if chosen else ["-XX:+UseParallelGC", _NEW]
    return " ".join((_ARROW_OPTIONS, _JAVA_OPTIONS, f"-Xms{options['spark.driver.memory']}", *collector))


def _available_cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _importing(name: str) -> Iterator[None]:
    """Import in the meantime what would be imported afterwards: the first session does, once Java is there."""

    def load() -> None:
        with suppress(ImportError):
            import_module(name)

    thread = Thread(target=load)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for the time in which Spark starts; it reads them only then."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def case_sensitive(spark: SparkSession) -> Iterator[None]:
    """Let names differ in their case only, as those of Java's fields may, in whatever session the user has."""
    before = spark.conf.get(_CASE) or "false"
    spark.conf.set(_CASE, "true")
    try:
        yield
    finally:
        spark.conf.set(_CASE, before)
