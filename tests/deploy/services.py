"""Services of a deployment on this machine: PostgreSQL and a Spark standalone cluster, ended with their blocks."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
SPARK_NODE = ROOT / "deploy" / "spark-node.sh"

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For Java programs that run for seconds: half of their CPU time is otherwise optimising compilation."""

_PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def find_free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def wait_for(
    condition: Callable[[], bool],
    what: str,
    *,
    seconds: float,
    log: Path | None = None,
    process: subprocess.Popen[bytes] | None = None,
) -> None:
    """Wait until a condition holds, unless the process ends before.

    Errors of the network count as not yet, and so do pages in place of JSON: Spark's UI answers before all of its
    addresses are there.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end and (process is None or process.poll() is None):
        try:
            if condition():
                return
        except (OSError, json.JSONDecodeError):
            pass
        time.sleep(0.5)
    text = "" if log is None else f":\n{log.read_text()[-5000:]}"
    raise AssertionError(f"{what} did not come up within {seconds} seconds, or ended{text}")


@contextmanager
def started(
    command: list[str], log: Path, environment: Mapping[str, str], cwd: Path = ROOT
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with its children in a process group of its own, which is ended with the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Every run and step is a process of its own that imports the same modules: compile them once.
            env={**os.environ, "PATH": _PATH, "PYTHONDONTWRITEBYTECODE": "", **environment},
            cwd=cwd,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def find_postgresql() -> Path | None:
    """Directory of the programs of PostgreSQL; None where it is not installed."""
    found = shutil.which("initdb")
    places = (
        [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    )
    return next((place for place in places if (place / "initdb").exists()), None)


@dataclass(frozen=True)
class PostgreSQL:
    port: int
    password: str = "secret of the tests"

    @property
    def environment(self) -> dict[str, str]:
        """Variables of `deploy/dagster.yaml`."""
        return {
            "DAGSTER_POSTGRES_HOST": "127.0.0.1",
            "DAGSTER_POSTGRES_PORT": str(self.port),
            "DAGSTER_POSTGRES_USER": "dagster",
            "DAGSTER_POSTGRES_PASSWORD": self.password,
            "DAGSTER_POSTGRES_DB": "dagster",
        }


@contextmanager
def postgresql(programs: Path) -> Iterator[PostgreSQL]:
    """A server with an empty database `dagster`; it does not run as root, so that root takes another user for it."""
    server = PostgreSQL(find_free_port())
    user: dict[str, Any] = {}
    directory = Path(tempfile.mkdtemp(prefix="postgresql-"))
    if os.getuid() == 0:
        names = {each.pw_name for each in pwd.getpwall()}
        name = next(each for each in ("postgres", "nobody") if each in names)
        shutil.chown(directory, name)
        user = {"user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": []}

    def call(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(programs / program), *arguments],
            cwd=directory,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if program == "pg_ctl" else subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PGPASSWORD": server.password},
            **user,
        )
        assert done.returncode == 0, f"{program} {arguments}: {(done.stdout or b'').decode()}"

    data = str(directory / "data")
    secret = directory / "password"
    secret.write_text(server.password)
    secret.chmod(0o644)
    try:
        call("initdb", "-D", data, "-U", "dagster", "--pwfile", str(secret), "--auth", "scram-sha-256", "--no-sync")
        options = f"-p {server.port} -h 127.0.0.1 -k {directory} -F"
        call("pg_ctl", "-D", data, "-o", options, "-l", str(directory / "log"), "-w", "start")
        try:
            call("createdb", "-h", "127.0.0.1", "-p", str(server.port), "-U", "dagster", "dagster")
            yield server
        finally:
            call("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True)
class SparkCluster:
    """A standalone cluster.

    Attributes:
        master: URL of the master.
        status: URL of the master's state as JSON.
        workers: URLs of the workers' states as JSON.
    """

    master: str
    status: str
    workers: tuple[str, ...]


@contextmanager
def spark_cluster(directory: Path, *, workers: int = 2) -> Iterator[SparkCluster]:
    """A standalone cluster of workers with two cores each."""
    port, ui = find_free_port(), find_free_port()
    ports = [find_free_port() for _ in range(workers)]
    cluster = SparkCluster(
        f"spark://127.0.0.1:{port}",
        f"http://127.0.0.1:{ui}/json/",
        tuple(f"http://127.0.0.1:{each}/json/" for each in ports),
    )
    common = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        "PYSPARK_PYTHON": sys.executable,
    }
    with ExitStack() as stack:
        node = stack.enter_context(
            started(
                [str(SPARK_NODE), "master", "127.0.0.1", str(port)],
                directory / "master.log",
                {**common, "SPARK_MASTER_WEBUI_PORT": str(ui)},
            )
        )
        for number, each in enumerate(ports):
            own = {
                "SPARK_WORKER_CORES": "2",
                "SPARK_WORKER_MEMORY": "1g",
                "SPARK_WORKER_DIR": str(directory / f"worker-{number}"),
                "SPARK_WORKER_WEBUI_PORT": str(each),
            }
            log = directory / f"worker-{number}.log"
            stack.enter_context(started([str(SPARK_NODE), "worker", cluster.master], log, {**common, **own}))
        wait_for(
            lambda: int(read_json(cluster.status)["aliveworkers"]) == workers,
            "the Spark cluster",
            seconds=180,
            log=directory / "master.log",
            process=node,
        )
        yield cluster


def read_json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def post_json(url: str, content: object) -> Any:
    request = urllib.request.Request(url, json.dumps(content).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)
