"""Requests of a task to storages, as a line of its log.

Spark's interface for data sources in Python has no metrics. Its workers' logs are a table, where
`spark.sql.pyspark.worker.logging.enabled` is true: `spark.tvf.python_worker_logs()`.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark import TaskContext

from state_pipelines.storage.faults import sent_requests

if TYPE_CHECKING:
    from collections.abc import Iterator

LOGGER = "state_pipelines.requests"
"""Logger of the lines, at INFO; their context has `stage`, `partition`, `requests` and `bytes_read`."""


@contextmanager
def log_requests() -> Iterator[None]:
    """Log what the block sends; other tasks of the same process do not run meanwhile."""
    log, before = logging.getLogger(LOGGER), sent_requests()
    try:
        yield
    finally:
        sent, task = sent_requests() - before, TaskContext.get()
        if task is not None:
            # The root logger of a Python worker is at WARNING, and no code of the user runs there to change that.
            log.setLevel(logging.INFO)
            counts = {
                "stage": str(task.stageId()),
                "partition": str(task.partitionId()),
                "requests": str(sent.requests),
                "bytes_read": str(sent.bytes_read),
            }
            text = f"stage {task.stageId()}, partition {task.partitionId()}: {sent.requests:,} requests to storages"
            log.info("%s, %s bytes read", text, f"{sent.bytes_read:,}", extra={"context": counts})
