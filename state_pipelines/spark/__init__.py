"""Snapshots in Spark: data sources, distributed pipelines and their proof. The only package that imports pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.spark.metadata_source import FlinkStateMetadataSource
from state_pipelines.spark.migrating import MigrationResult, migrate
from state_pipelines.spark.reports import ProofCheck, ProofReport
from state_pipelines.spark.session import create_session
from state_pipelines.spark.source import FlinkStateSource
from state_pipelines.spark.writer import write_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "MigrationResult",
    "ProofCheck",
    "ProofReport",
    "create_session",
    "migrate",
    "register",
    "write_state",
]


def register(spark: SparkSession) -> None:
    """Make `flink-state` and `flink-state-metadata` known to a session."""
    spark.dataSource.register(FlinkStateSource)
    spark.dataSource.register(FlinkStateMetadataSource)
