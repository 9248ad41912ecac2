"""The process that Spark's Python workers are forked from: it has imported what they need, once per session.

Spark starts a daemon (`pyspark.daemon`) per kind of worker, and each worker that a daemon forks imports pyspark,
pyarrow, numba and this package again, which takes longer than most tasks. With this server a daemon is itself a
fork of a process in which all of that is there already; `state_pipelines.spark.daemon` asks for it.

A fork copies the thread that forks and no other, so a process may only be forked as long as it has a single thread.
The imports here start none if that is set before (`SINGLE_THREADED`); the server counts them, and where there is more
than one it says so and serves nobody. Spark's daemons then start as they do without it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

# Parameters of `mallopt` (numbers from <malloc.h> of glibc) and their values in bytes: M_MMAP_THRESHOLD, the size from
# which an array gets pages of its own (glibc allows no more than this), and M_TRIM_THRESHOLD, the freed bytes that are
# kept at most.
_MALLOC = {-3: 32 << 20, -1: 128 << 20}


@cache
def keep_freed_memory() -> None:
    """Have the C library keep freed memory for later allocations, in this process and its forks.

    Arrays of some MB come and go with every batch. By default glibc asks the system for the pages of each and gives
    them back, and the system clears each page again when it is used: a tenth of the time of reading.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # Another C library.
    for parameter, size in _MALLOC.items():
        mallopt(parameter, size)


SOCKET_VARIABLE = "STATE_PIPELINES_FORK_SERVER"
"""Environment variable that names the socket of the server to Spark's daemons."""

SINGLE_THREADED = {
    # numpy's BLAS starts a thread per further core when it is loaded. Spark gives a worker one core.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    # Otherwise jemalloc starts a thread that returns memory to the system. Arrow contains jemalloc, although by default
    # Arrow does not allocate with it.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Environment variables with which the imported packages start no threads."""

_IMPORTED = (
    "numba",
    "pyarrow.compute",
    "pyarrow.ipc",
    "pyspark.daemon",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.pandas.types",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.worker",
    "state_pipelines.spark.migration_run",
    "state_pipelines.spark.source",
    "state_pipelines.spark.record_encoding",
)
_ACCEPTED = b"+"
_HEAD = 8
_FILES = (0, 1, 2)
_TIMEOUT = 10.0
_SEED = "PYTHONHASHSEED"


def ask(path: str, environment: dict[str, str], arguments: list[str]) -> bool:
    """Have the server fork a process that is Spark's daemon in place of this one; return when the daemon has ended.

    Args:
        path: socket of the server.
        environment: environment variables of the daemon.
        arguments: its arguments: the module of its workers.

    Returns:
        Whether the server forked a daemon; if not, this process has to be the daemon itself.
    """
    try:
        request = {
            "interpreter": _describe_interpreter(environment),
            "environment": environment,
            "arguments": arguments,
            "path": sys.path,
            "directory": str(Path.cwd()),
        }
        body = json.dumps(request).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(path)
            socket.send_fds(connection, [len(body).to_bytes(_HEAD, "big")], _FILES)
            connection.sendall(body)
            if connection.recv(1) != _ACCEPTED:
                return False
            # This call returns when the daemon ends, which closes its end of the connection.
            with suppress(ConnectionError):
                connection.recv(1)
            return True
    except OSError:
        return False


def main() -> None:
    """Serve on the socket whose file descriptor is the first argument; in a forked process, be Spark's daemon."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    threads = prepare()
    if threads != 1:
        sys.exit(f"state-pipelines: {threads} threads run after the imports, so Spark's workers import for themselves")
    request = _serve(listener)
    if request is None:
        # The process that started this server may have ended without removing the directory of the socket.
        shutil.rmtree(Path(listener.getsockname()).parent, ignore_errors=True)
        return
    _take_over(request)
    from pyspark.daemon import manager

    manager()


def prepare() -> int:
    """Import everything that workers need before they are forked; only on Linux.

    Returns:
        Number of threads of this process afterwards; with more than one it must not be forked.
    """
    keep_freed_memory()
    for name in _IMPORTED:
        import_module(name)
    _load_kernels()
    os.register_at_fork(after_in_child=_seed)
    # Garbage collections in the forks skip frozen objects, so that their memory pages stay shared.
    gc.collect()
    gc.freeze()
    return len(list(Path("/proc/self/task").iterdir()))


def _load_kernels() -> None:
    """Load the kernels that nearly all workers use from numba's cache.

    Objects that exist before a fork are frozen (see `prepare`): the garbage collection after each task of Spark skips
    the kernels, and what numba builds when it loads the first one.
    """
    import numpy as np
    import pyarrow as pa

    from state_pipelines.codecs import layout
    from state_pipelines.codecs.columns import plan_columns
    from state_pipelines.keyed.kernels import scan_records

    columns = plan_columns(layout.Text())
    encoded = columns.encode(pa.array([""]))
    columns.decode(encoded.data, encoded.starts, encoded.stops)
    nowhere, found = np.empty(0, np.int64), np.empty((6, 1), np.int64)
    wanted, cursor = np.ones(1, np.bool_), np.array([0, -1, 0, 0], np.int64)
    scan_records(0, nowhere, nowhere, np.empty(0, np.int32), True, True, 1, wanted, cursor, found)


def _describe_interpreter(environment: dict[str, str]) -> list[Any]:
    """Settings that an interpreter reads when it starts, which must be equal in the server and in its client.

    Left out: the import path, which the request has; `PYTHON_…`, which are Spark's; the seed, compared separately.
    """
    passed = ("PYTHONPATH", "PYTHONUNBUFFERED", _SEED)
    names = [name for name in environment if name.startswith("PYTHON") and not name.startswith("PYTHON_")]
    options = {name: environment[name] for name in names if name not in passed}
    flags = {name: getattr(sys.flags, name) for name in ("optimize", "utf8_mode", "isolated", "no_user_site")}
    return [sys.executable, sys.version, options, flags]


def _serve(listener: socket.socket) -> dict[str, Any] | None:
    """Fork for each request, until standard input ends: the process that started this one holds its other end.

    Returns:
        In a forked process its request; None in the server, at the end.
    """
    own = _describe_interpreter(dict(os.environ))
    poller = select.poll()
    poller.register(0, select.POLLIN)
    poller.register(listener, select.POLLIN)
    while True:
        ready = {number for number, _ in poller.poll(1000)}
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if 0 in ready:
            return None
        if not ready:
            continue
        connection, _ = listener.accept()
        request, files = _receive(connection)
        if request is not None and request["interpreter"] == own and _has_seed(request) and not os.fork():
            listener.close()
            return request | {"files": files, "connection": connection}
        connection.close()
        for file in files:
            os.close(file)


def _has_seed(request: dict[str, Any]) -> bool:
    seed = os.environ.get(_SEED)
    return bool(request["environment"].get(_SEED, seed) == seed)


def _receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Receive a request and the standard streams that come with it; None if the request is not complete."""
    files: list[int] = []
    try:
        connection.settimeout(_TIMEOUT)
        head, files, _, _ = socket.recv_fds(connection, _HEAD, len(_FILES))
        with connection.makefile("rb") as stream:
            body = stream.read(int.from_bytes(head, "big"))
        return (json.loads(body) if len(head) == _HEAD and len(files) == len(_FILES) else None), files
    except (OSError, ValueError):
        return None, files


def _take_over(request: dict[str, Any]) -> None:
    """Take over the streams, environment, import path and working directory of the process that sent the request."""
    connection: socket.socket = request["connection"]
    connection.settimeout(None)
    # The process that sent the request waits until the connection closes. Workers may outlive the daemon, so they must
    # not keep it open.
    os.register_at_fork(after_in_child=connection.close)
    for number, file in zip(_FILES, request["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:] = request["path"]
    sys.argv[1:] = request["arguments"]
    os.chdir(request["directory"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    connection.sendall(_ACCEPTED)


def _seed() -> None:
    """Seed numpy's random numbers in a fork; Python's module `random` does so by itself."""
    if numbers := sys.modules.get("numpy.random"):
        numbers.seed()


if __name__ == "__main__":
    main()
