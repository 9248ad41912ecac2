"""`pyspark.daemon`, forked from the session's `fork_server` where there is one."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from state_pipelines.spark.fork_server import SOCKET_VARIABLE, ask


def main() -> None:
    """Start Spark's daemon for the worker module that the first argument names."""
    # Signals from the terminal are for the driver alone, as with Spark's daemon.
    with suppress(PermissionError):
        os.setpgid(0, 0)
    environment = dict(os.environ)
    server = environment.pop(SOCKET_VARIABLE, None)
    if server is None or not ask(server, environment, sys.argv[1:]):
        from pyspark.daemon import manager

        manager()
