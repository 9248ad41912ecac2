"""What the assets work with: Spark, storage, migrations and proofs, each a Dagster resource."""

from __future__ import annotations

from resources.expectations import ExpectationsResource
from resources.migrations import MigrationResource
from resources.spark import SparkResource
from resources.storage import StorageResource

__all__ = ["ExpectationsResource", "MigrationResource", "SparkResource", "StorageResource"]
