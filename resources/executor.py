"""The executor of runs: steps in one process or in several. The classes are Dagster's."""

from __future__ import annotations

import os

import dagster as dg

_EXECUTORS = {"in_process": dg.in_process_executor, "multiprocess": dg.multiprocess_executor}

# In one process, all steps of a run share a Spark session; otherwise each step that needs Spark starts its own.
EXECUTOR = _EXECUTORS[os.environ.get("STATE_PIPELINES_EXECUTOR") or "in_process"]
