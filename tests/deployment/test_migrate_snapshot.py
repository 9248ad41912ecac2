"""One run of the job for each savepoint of the orders example, on real Spark and real Great Expectations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from state_pipelines.snapshot import open_snapshot
from tests.deployment.conftest import MIGRATION
from state_pipelines.operations.migration import load_migration

if TYPE_CHECKING:
    from collections.abc import Mapping

    import dagster as dg
    from pyspark.sql import SparkSession

    from tests.deployment.conftest import Deployment

CHECKS = {
    "snapshots_are_readable",
    "row_counts_per_key_group",
    "key_sets",
    "key_groups_match_key_hash",
    "round_trip",
    "written_reads_back",
}
ASSETS = {"snapshot_inventory", "state_tables", "compatibility_report", "migrated_savepoint"}


@pytest.fixture(scope="module", params=["2.2", "1.20"])
def run(request: pytest.FixtureRequest, deployment: Deployment, spark: SparkSession) -> dg.ExecuteInProcessResult:
    return deployment.run(deployment.add(request.param))


def materialization(run: dg.ExecuteInProcessResult, asset: str) -> dg.AssetMaterialization:
    (event,) = run.asset_materializations_for_node(asset)
    return event


def metadata(run: dg.ExecuteInProcessResult, asset: str) -> Mapping[str, Any]:
    return {name: value.value for name, value in materialization(run, asset).metadata.items()}


def evaluations(run: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {each.check_name: each for each in run.get_asset_check_evaluations()}


def test_every_asset_is_materialized(run: dg.ExecuteInProcessResult) -> None:
    assert run.success
    assert {event.asset_key.to_user_string() for event in run.get_asset_materialization_events() if event.asset_key} == ASSETS


def test_every_check_passes(run: dg.ExecuteInProcessResult) -> None:
    assert {name: each.passed for name, each in evaluations(run).items()} == dict.fromkeys(CHECKS, True)


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_every_check_says_what_was_expected_and_what_was_seen(run: dg.ExecuteInProcessResult, name: str) -> None:
    assert {"expected", "observed"} <= evaluations(run)[name].metadata.keys()


def test_checks_belong_to_the_partition(run: dg.ExecuteInProcessResult) -> None:
    assert evaluations(run)["round_trip"].partition == run.dagster_run.tags["dagster/partition"]
