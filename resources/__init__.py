"""Resources of this deployment, one module each, with environment variables for what differs between installations.

Assets, jobs and sensors take them by their keys. A Flink job may have its own: field `resources` of its YAML.
"""

from __future__ import annotations

import resources.storage  # noqa: F401  # It takes effect when it is imported.
from resources.executor import EXECUTOR
from resources.expectations import EXPECTATIONS
from resources.spark import SPARK

RESOURCES = {"spark": SPARK, "expectations": EXPECTATIONS}

__all__ = ["EXECUTOR", "RESOURCES"]
