"""The Dagster integration: assets, checks, jobs and sensors for any number of Flink jobs."""

from __future__ import annotations

from state_pipelines.dagster.builder import build_flink_job
from state_pipelines.dagster.component import FlinkJobComponent
from state_pipelines.dagster.expectations import ExpectationsResource
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.resources import SparkResource

__all__ = ["ExpectationsResource", "FlinkJob", "FlinkJobComponent", "SparkResource", "build_flink_job"]
