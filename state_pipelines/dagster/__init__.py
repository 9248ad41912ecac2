"""The Dagster integration: assets, checks, jobs, sensors and ops for any number of Flink jobs."""

from __future__ import annotations

from state_pipelines.dagster.builder import build_flink_job
from state_pipelines.dagster.component import FlinkJobComponent
from state_pipelines.dagster.job import FlinkJob
from state_pipelines.dagster.metadata_values import ExpectationsResource
from state_pipelines.dagster.ops import (
    SnapshotPath,
    apply_retention,
    bootstrap,
    check,
    checkpoint,
    convert,
    erase,
    migrate,
    pin,
    plan_retention,
    register,
    rescale,
    restore,
    savepoint,
    search,
    verify,
)
from state_pipelines.dagster.resources import SparkResource
from state_pipelines.dagster.snapshots_resource import SnapshotsResource, StateTablesIOManager
from state_pipelines.dagster.testing import TestJob, build_test_job
from state_pipelines.dagster.translation import AssetTranslator
from state_pipelines.dagster.upgrading import (
    change_savepoint,
    check_savepoint,
    decide_upgrade,
    plan_job_upgrade,
    rehearse,
    start_program,
    stop_job,
    watch_program,
)

__all__ = [
    "AssetTranslator",
    "ExpectationsResource",
    "FlinkJob",
    "FlinkJobComponent",
    "SnapshotPath",
    "SnapshotsResource",
    "SparkResource",
    "StateTablesIOManager",
    "TestJob",
    "apply_retention",
    "bootstrap",
    "build_flink_job",
    "build_test_job",
    "change_savepoint",
    "check",
    "check_savepoint",
    "checkpoint",
    "convert",
    "decide_upgrade",
    "erase",
    "migrate",
    "pin",
    "plan_job_upgrade",
    "plan_retention",
    "register",
    "rehearse",
    "rescale",
    "restore",
    "savepoint",
    "search",
    "start_program",
    "stop_job",
    "verify",
    "watch_program",
]
