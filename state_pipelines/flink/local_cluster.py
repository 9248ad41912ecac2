"""Session clusters of Flink on this machine, for the demo and the tests: a JobManager and a TaskManager.

Flink's jars come from the package index: `apache-flink-libraries` has `flink-dist`. No script of Flink runs.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import yaml

from state_pipelines.errors import ClusterError, UsageError
from state_pipelines.flink.http_client import HttpClient
from state_pipelines.flink.rest_cluster import RestCluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

OLDEST_JAVA = 17

OPENED_PACKAGES = (
    "java.io",
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.math",
    "java.net",
    "java.nio",
    "java.nio.charset",
    "java.text",
    "java.time",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "java.util.concurrent.locks",
    "sun.net.util",
)
"""Packages of the JDK that Flink accesses by reflection, and that have to be opened to it."""

DIST = "flink-dist|log4j"
"""Regular expression of the beginnings of the names of the jars that every job needs."""

JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"

START_SECONDS = 120
SLOTS = 4
# Flink's scripts, which compute the memory of a TaskManager, are not used here, so all its sizes have to be set.
_MEMORY = {
    "taskmanager.cpu.cores": 2,
    "taskmanager.memory.framework.heap.size": "64m",
    "taskmanager.memory.task.heap.size": "192m",
    "taskmanager.memory.framework.off-heap.size": "32m",
    "taskmanager.memory.task.off-heap.size": "16m",
    "taskmanager.memory.managed.size": "64m",
    "taskmanager.memory.network.min": "32m",
    "taskmanager.memory.network.max": "32m",
    "taskmanager.memory.jvm-metaspace.size": "128m",
    "taskmanager.memory.jvm-overhead.min": "64m",
    "taskmanager.memory.jvm-overhead.max": "64m",
    "jobmanager.memory.heap.size": "384m",
    "jobmanager.memory.off-heap.size": "64m",
    "jobmanager.memory.jvm-metaspace.size": "128m",
    "jobmanager.memory.jvm-overhead.min": "64m",
    "jobmanager.memory.jvm-overhead.max": "64m",
}
_LOGGING = """\
rootLogger.level = INFO
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = ${sys:log.file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} %m%n
"""
_LOG_SIZE = 6000


def find_tool(name: str) -> str | None:
    """Return the path of `java` or `javac`, in JAVA_HOME or on the PATH; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    return (shutil.which(name, path=str(Path(home) / "bin")) if home else None) or shutil.which(name)


def explain_missing_jdk() -> str:
    """Return why Java programs cannot be compiled here; empty if they can."""
    for tool in ("javac", "java"):
        if find_tool(tool) is None:
            return f"needs a JDK {OLDEST_JAVA} or newer: there is no {tool} under JAVA_HOME or on the PATH"
    done = subprocess.run([_require_tool("javac"), "-version"], capture_output=True, text=True, check=False)
    text = (done.stdout or done.stderr).strip()
    found = re.search(r"javac (\d+)", text)
    if found is None or int(found[1]) < OLDEST_JAVA:
        return f"needs a JDK {OLDEST_JAVA} or newer, found {text}"
    return ""


def _require_tool(name: str) -> str:
    path = find_tool(name)
    if path is None:
        raise UsageError(
            f"there is no {name} under JAVA_HOME or on the PATH", hint=f"Install a JDK, {OLDEST_JAVA} or newer"
        )
    return path


def install_jars(version: str, cache: Path) -> tuple[Path, ...]:
    """Download the jars of a Flink (about 300 MB) unless the cache has them; parallel callers wait for the first.

    Args:
        version: release of Flink, such as `2.2.1`.
        cache: directory of the jars of all versions.

    Raises:
        UsageError: the jars cannot be downloaded.
    """
    lib = cache / version / "lib"
    with locked(cache, f"{version}.lock"):
        if not lib.exists():
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                download_jars(version, Path(scratch), Path(scratch) / "lib", DIST)
                lib.parent.mkdir(exist_ok=True)
                (Path(scratch) / "lib").rename(lib)
    return tuple(sorted(lib.glob("*.jar")))


@contextmanager
def locked(cache: Path, name: str) -> Iterator[None]:
    """Hold a lock of the cache of jars during a block."""
    cache.mkdir(parents=True, exist_ok=True)
    (cache / ".gitignore").write_text("*\n")
    with (cache / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def download_jars(version: str, scratch: Path, target: Path, names: str) -> None:
    """Download Flink from the package index, and extract some of its jars.

    Args:
        version: version of Flink.
        scratch: directory for the archive.
        target: new directory of the jars.
        names: regular expression of their names.

    Raises:
        UsageError: Flink cannot be downloaded.
    """
    requirement = f"apache-flink-libraries=={version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    archives = sorted(scratch.glob("apache*"))
    if done.returncode or not archives:
        raise UsageError(
            f"Flink {version} cannot be downloaded: {done.stderr.strip()[-600:]}",
            hint=f"Look at the network, and whether pip can download {requirement} in this environment",
        )
    target.mkdir()
    _extract_jars(archives[0], target, names)


def _extract_jars(archive: Path, lib: Path, names: str) -> None:
    def wanted(name: str) -> bool:
        return re.search(rf"/lib/({names})[^/]*\.jar$", name) is not None

    def copy(source: IO[bytes], name: str) -> None:
        with (lib / Path(name).name).open("wb") as target:
            shutil.copyfileobj(source, target)

    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in filter(wanted, wheel.namelist()):
                with wheel.open(name) as source:
                    copy(source, name)
        return
    with tarfile.open(archive) as sdist:
        for member in sdist:
            opened = sdist.extractfile(member) if wanted(member.name) else None
            if opened is not None:
                with opened as source:
                    copy(source, member.name)


def compile_sources(jars: Iterable[Path], sources: Iterable[Path], target: Path) -> None:
    """Compile Java files against jars into a directory.

    Raises:
        UsageError: there is no compiler, or it refuses the files.
    """
    command = [_require_tool("javac"), "-nowarn", "-proc:none", "-encoding", "UTF-8", "-d", str(target)]
    command += ["-cp", _join(jars), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"javac failed:\n{done.stderr}")


def pack_jar(classes: Path, target: Path, main: str) -> Path:
    """Write a jar of compiled classes; equal classes give an equal jar.

    Args:
        classes: directory of the classes.
        target: the jar.
        main: its main class.
    """
    with zipfile.ZipFile(target, "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", f"Manifest-Version: 1.0\nMain-Class: {main}\n")
        for path in sorted(each for each in classes.rglob("*") if each.is_file()):
            # `ZipInfo` has a constant time, so that equal classes give an equal jar.
            jar.writestr(zipfile.ZipInfo(path.relative_to(classes).as_posix()), path.read_bytes())
    return target


def _join(paths: Iterable[Path]) -> str:
    return os.pathsep.join(map(str, paths))


@dataclass(frozen=True)
class LocalCluster:
    """A running session cluster on this machine.

    Attributes:
        url: its REST endpoint.
        directory: its own directory, with `checkpoints`, `savepoints` and the logs.
        processes: JobManager and TaskManager.
    """

    url: str
    directory: Path
    processes: tuple[subprocess.Popen[bytes], ...]

    def read_logs(self) -> str:
        """Return the ends of the log files."""
        logs = sorted((*self.directory.glob("*.out"), *self.directory.glob("*.log")))
        return "\n".join(f"== {each.name}\n{each.read_text(errors='replace')[-_LOG_SIZE:]}" for each in logs)


@contextmanager
def run_cluster(
    jars: Sequence[Path], directory: Path, settings: Mapping[str, object] | None = None, options: Sequence[str] = ()
) -> Iterator[LocalCluster]:
    """Run a session cluster during the block; its processes end with it.

    Args:
        jars: jars of Flink.
        directory: an empty directory for configuration, logs, checkpoints and savepoints.
        settings: further options of Flink, which override the defaults of this module.
        options: options of Java.

    Raises:
        ClusterError: the cluster does not come up; the error has the ends of its logs.
        UsageError: there is no Java.
    """
    rpc, rest = _find_ports(2)
    for name in ("checkpoints", "savepoints", "temporary"):
        (directory / name).mkdir(parents=True)
    configuration: dict[str, Any] = {
        **_MEMORY,
        "jobmanager.rpc.address": "127.0.0.1",
        "jobmanager.rpc.port": rpc,
        "jobmanager.bind-host": "127.0.0.1",
        "taskmanager.host": "127.0.0.1",
        "taskmanager.bind-host": "127.0.0.1",
        "taskmanager.numberOfTaskSlots": SLOTS,
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "rest.port": rest,
        "io.tmp.dirs": str(directory / "temporary"),
        "execution.checkpointing.dir": (directory / "checkpoints").as_uri(),
        "execution.checkpointing.savepoint-dir": (directory / "savepoints").as_uri(),
        "classloader.check-leaked-classloader": False,
        "heartbeat.timeout": 180_000,
        # Keep the metrics and statistics of the REST endpoint nearly up to date.
        "metrics.fetcher.update-interval": 100,
        "rest.cache.checkpoint-statistics.timeout": "1 ms",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 1000,
        "restart-strategy.fixed-delay.delay": "100 ms",
        **(settings or {}),
    }
    (directory / "config.yaml").write_text(yaml.safe_dump(configuration), encoding="utf-8")
    (directory / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")
    with ExitStack() as ended:
        processes = tuple(
            ended.enter_context(_running(jars, main, directory, name, options))
            for main, name in ((JOB_MANAGER, "jobmanager"), (TASK_MANAGER, "taskmanager"))
        )
        cluster = LocalCluster(f"http://127.0.0.1:{rest}", directory, processes)
        _await_slots(cluster, int(str(configuration["taskmanager.numberOfTaskSlots"])))
        yield cluster


def _find_ports(number: int) -> list[int]:
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


@contextmanager
def _running(
    jars: Iterable[Path], main: str, directory: Path, name: str, options: Iterable[str]
) -> Iterator[subprocess.Popen[bytes]]:
    command = [_require_tool("java"), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.timezone=UTC"]
    command += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED_PACKAGES]
    command += ["-Xmx384m", "-XX:MaxDirectMemorySize=96m", "-XX:MaxMetaspaceSize=192m", *options]
    command += [f"-Dlog.file={directory / name}.log", f"-Dlog4j.configurationFile={directory / 'log4j2.properties'}"]
    command += ["-cp", _join(jars), main, "--configDir", str(directory)]
    with (directory / f"{name}.out").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _await_slots(cluster: LocalCluster, slots: int) -> None:
    rest = RestCluster(HttpClient(cluster.url))
    deadline = time.monotonic() + START_SECONDS
    while True:
        if any(each.poll() is not None for each in cluster.processes) or time.monotonic() > deadline:
            raise ClusterError(
                f"the local cluster does not come up:\n{cluster.read_logs()}",
                hint=f"Look at the logs in {cluster.directory}",
            )
        try:
            if (rest.describe().slots_total or 0) >= slots:
                return
        except ClusterError:
            pass
        time.sleep(0.2)
