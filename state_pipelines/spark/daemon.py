"""Spark's daemon (`pyspark.daemon`) with all imports of this package done before it forks workers.

Sessions on this machine fork it from their `fork_server`. On a cluster the option `spark.python.daemon.module` names
this module: each executor then imports once, and not once per worker.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from state_pipelines.spark.fork_server import SINGLE_THREADED, SOCKET_VARIABLE, ask, prepare


def main() -> None:
    """Start Spark's daemon for the worker module that the first argument names."""
    # Signals from the terminal are for the driver alone, as with Spark's daemon.
    with suppress(PermissionError):
        os.setpgid(0, 0)
    environment = dict(os.environ)
    server = environment.pop(SOCKET_VARIABLE, None)
    if server is not None and ask(server, environment, sys.argv[1:]):
        return
    if sys.platform == "linux":
        os.environ.update(SINGLE_THREADED)
        if prepare() != 1:
            # A process with several threads must not be forked: start the daemon again, without the imports.
            os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
