"""Python workers of a session on this machine: their interpreter, and the server that they are forked from."""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from state_pipelines.spark.fork_server import SINGLE_THREADED, SOCKET_VARIABLE
from state_pipelines.spark.java import write_program

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
