"""Settings from environment variables, with defaults that make the orders example work right after the installation.

Secrets are not among them: fsspec itself reads the credentials of a storage from the environment (`FSSPEC_S3_KEY`,
`AWS_PROFILE`, …), in this process as well as in the workers of Spark, so they never pass through Dagster.
"""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_EXAMPLE = _ROOT / "examples" / "orders"
_OUTPUT = _ROOT / ".cache" / "dagster"

DEFAULTS = {
    "STATE_PIPELINES_SNAPSHOTS": str(_EXAMPLE / "savepoints"),
    "STATE_PIPELINES_RESULTS": str(_OUTPUT / "savepoints"),
    "STATE_PIPELINES_TABLES": str(_OUTPUT / "tables"),
    "STATE_PIPELINES_REQUESTS": str(_OUTPUT / "requests"),
    "STATE_PIPELINES_MIGRATIONS": str(_EXAMPLE / "migrations"),
    "STATE_PIPELINES_MIGRATE_TO": "head",
    "STATE_PIPELINES_FLINK": "2.2",
    "STATE_PIPELINES_PATH_MAPPING": "",
    "STATE_PIPELINES_UIDS": "orders,revenue-per-minute,order-counter,pricing,order-source,price-source",
    "STATE_PIPELINES_CLASSES": "",
    "STATE_PIPELINES_KEY_SERIALIZERS": "",
    "STATE_PIPELINES_CONNECTORS": "",
    "STATE_PIPELINES_PYTHON_TYPES": "",
    "STATE_PIPELINES_SERIALIZERS": "",
    "STATE_PIPELINES_PROTOS": "",
    "STATE_PIPELINES_THRIFTS": "",
    "STATE_PIPELINES_SPARK_CORES": "0",
    "STATE_PIPELINES_SPARK_MEMORY": "2g",
}
"""Every variable and what holds when it is not set."""


def read_variable(name: str) -> str:
    """The value of a variable of `DEFAULTS`."""
    return os.environ.get(name) or DEFAULTS[name]


def read_list(name: str) -> list[str]:
    """The comma-separated parts of a variable of `DEFAULTS`."""
    return [part.strip() for part in read_variable(name).split(",") if part.strip()]
