"""`spark`: the Spark session of all Flink jobs. The class is in `state_pipelines/dagster/resources.py`."""

from __future__ import annotations

import os

from state_pipelines.dagster import SparkResource
from state_pipelines.storage.documents import parse_yaml

# A mapping in YAML, such as {spark.executor.memory: 4g}.
_CONF = parse_yaml(os.environ.get("STATE_PIPELINES_SPARK_CONF") or "{}")

SPARK = SparkResource(
    master=os.environ.get("STATE_PIPELINES_SPARK_MASTER", ""),
    cores=int(os.environ.get("STATE_PIPELINES_SPARK_CORES") or 0),
    memory=os.environ.get("STATE_PIPELINES_SPARK_MEMORY") or "2g",
    conf={str(name): str(value) for name, value in _CONF.items()},
)
