"""Resources shared by the Flink jobs of this deployment, configured by environment variables."""

from __future__ import annotations

import os

import dagster as dg

from state_pipelines.dagster import ExpectationsResource, SparkResource
from state_pipelines.storage.yaml_documents import parse_yaml

# A mapping in YAML, such as {spark.executor.memory: 4g}.
_SPARK_CONF = parse_yaml(os.environ.get("STATE_PIPELINES_SPARK_CONF") or "{}")

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
