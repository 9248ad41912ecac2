"""Spark sessions: one quiet session per process, its Python workers, and the registration of the data sources.

A session runs on this machine unless the caller names a master. Its workers are forked from a server (`fork_server`).
The data sources can be registered in any session.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from state_pipelines.errors import UsageError
from state_pipelines.spark.fork_server import SINGLE_THREADED, SOCKET_VARIABLE
from state_pipelines.spark.java import create_java_home, find_java, locate_class_data, write_program

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

__all__ = ["SparkSession", "create_session", "register", "start_workers"]

_ROOT = Path(__file__).resolve().parents[2]
_LONGEST_SOCKET = 107  # Bytes of `sun_path` on Linux, without the closing zero.

# Spark lets one name another daemon, but not for those that plan reads of data sources: only the interpreter is ours to
# choose.
_INTERPRETER = """\
#!/bin/sh
if [ "$1 $2" = "-m pyspark.daemon" ]; then
  shift 2
  set -- -c {daemon} "$@"
fi
exec {python} "$@"
"""
# Not with `-m`: planners are not given the path of a package that is not installed.
_DAEMON = "import sys; sys.path.append({root!r}); from state_pipelines.spark.daemon import main; main()"


def start_workers() -> dict[str, str]:
    """Environment variables with which Spark's workers are this interpreter, forked from a server that is started here.

    Elsewhere than on Linux, where nothing tells how many threads a process has, workers start as Spark has them start.

    Raises:
        UsageError: the cache directory cannot be written.
    """
    if sys.platform != "linux":
        return dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    daemon = shlex.quote(_DAEMON.format(root=str(_ROOT)))
    interpreter = write_program("python", _INTERPRETER.format(python=shlex.quote(sys.executable), daemon=daemon))
    names = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(interpreter))
    server = _start_server()
    return names if server is None else names | {SOCKET_VARIABLE: server}


@cache
def _start_server() -> str | None:
    """The socket of the one server of this process; workers of further sessions are forked from it as well.

    None where the directory for temporary files has a longer name than sockets may have; Spark's daemons then start as
    they do without a server.
    """
    directory = tempfile.mkdtemp(prefix="state-pipelines-")
    path = str(Path(directory, "socket"))
    if len(os.fsencode(path)) > _LONGEST_SOCKET:
        Path(directory).rmdir()
        return None
    environment = {"PYTHONHASHSEED": "0"} | os.environ | SINGLE_THREADED | {"PYTHONUNBUFFERED": "YES"}
    environment["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        server = subprocess.Popen(
            [sys.executable, "-m", "state_pipelines.spark.fork_server", str(listener.fileno())],
            stdin=subprocess.PIPE,
            env=environment,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    atexit.register(_stop_server, server, directory, os.getpid())
    return path


def _stop_server(server: subprocess.Popen[bytes], directory: str, owner: int) -> None:
    if os.getpid() != owner:
        return  # A fork of the process that the server belongs to.
    assert server.stdin is not None
    server.stdin.close()
    server.wait()
    shutil.rmtree(directory, ignore_errors=True)


_CASE = "spark.sql.caseSensitive"

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


_NEEDED = ("numba", "pyarrow", "state_pipelines")
_LOOK = (
    "import sys; from importlib.util import find_spec; "
    f"print(sys.prefix); print(*(each for each in {_NEEDED} if find_spec(each) is None))"
)
_REGISTRATION_INTERPRETER = "PYSPARK_PYTHON"
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
        context.pythonExec = workers.pop(_REGISTRATION_INTERPRETER)
        context.environment.update(workers)
    assert spark._jvm is not None
    properties = spark._jvm.java.lang.System
    for name, value in _ARROW_PROPERTIES.items():
        if properties.getProperty(name) is None:
            properties.setProperty(name, value)


def _is_unchosen(spark: SparkSession) -> bool:
    return (
        _REGISTRATION_INTERPRETER not in os.environ and spark.sparkContext.getConf().get("spark.pyspark.python") is None
    )


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
