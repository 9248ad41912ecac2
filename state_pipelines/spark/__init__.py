"""Snapshots in Spark: data sources, distributed pipelines and their proof. The only package that imports pyspark.

Nothing is imported before it is asked for: a session starts, and so do its workers, without the pipelines.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from state_pipelines.spark.migrating import MigrationResult, migrate
    from state_pipelines.spark.reports import ProofCheck, ProofReport
    from state_pipelines.spark.session import create_session
    from state_pipelines.spark.writer import write_state

__all__ = [
    "MigrationResult",
    "ProofCheck",
    "ProofReport",
    "create_session",
    "migrate",
    "register",
    "write_state",
]

_PLACES = {
    "MigrationResult": "migrating",
    "ProofCheck": "reports",
    "ProofReport": "reports",
    "create_session": "session",
    "migrate": "migrating",
    "write_state": "writer",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = found
    return found


def register(spark: SparkSession) -> None:
    """Make `flink-state` and `flink-state-metadata` known to a session."""
    from state_pipelines.spark.metadata_source import FlinkStateMetadataSource
    from state_pipelines.spark.source import FlinkStateSource

    spark.dataSource.register(FlinkStateSource)
    spark.dataSource.register(FlinkStateMetadataSource)
