"""Resources shared by the Flink jobs of this deployment, configured by environment variables."""

from __future__ import annotations

import os

import dagster as dg
import yaml

from state_pipelines.dagster import ExpectationsResource, SparkResource

# A mapping in YAML, such as {spark.executor.memory: 4g}.
_SPARK_CONF = yaml.safe_load(os.environ.get("STATE_PIPELINES_SPARK_CONF") or "{}")

RESOURCES = {
    "spark": SparkResource(
        master=os.environ.get("STATE_PIPELINES_SPARK_MASTER", ""),
        cores=int(os.environ.get("STATE_PIPELINES_SPARK_CORES") or 0),
        memory=os.environ.get("STATE_PIPELINES_SPARK_MEMORY") or "2g",
        conf={str(name): str(value) for name, value in _SPARK_CONF.items()},
    ),
    "expectations": ExpectationsResource(),
}

EXECUTORS = {"in_process": dg.in_process_executor, "multiprocess": dg.multiprocess_executor}
# In one process, all steps of a run share a Spark session; otherwise each step that needs Spark starts its own.
EXECUTOR = EXECUTORS[os.environ.get("STATE_PIPELINES_EXECUTOR") or "in_process"]
