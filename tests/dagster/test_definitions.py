from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg
import pytest
import yaml
from dagster._core.instance.config import PoolGranularity

from assets.definitions import defs
from state_pipelines.dagster import SparkResource
from state_pipelines.dagster.assets.savepoints import MigratedSavepoint
from state_pipelines.dagster.flink_asset import SPARK_POOL
from state_pipelines.dagster.job import Thresholds
from tests.dagster.conftest import ROOT, build, find_asset, list_executable

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.dagster.conftest import Deployment

OWNERS = {"orders": "team:streaming", "upgrade": "team:growth", "customers": "team:sales"}


def run_python(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    environment = os.environ | {"DAGSTER_HOME": str(home)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_code_location_is_valid(tmp_path: Path) -> None:
    done = run_python("-m", "dagster", "definitions", "validate", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "All code locations passed validation" in done.stdout + done.stderr


def test_loading_starts_neither_spark_nor_great_expectations(tmp_path: Path) -> None:
    code = "import sys, assets.definitions; print({'pyspark', 'great_expectations'} & set(sys.modules))"
    assert run_python("-c", code, home=tmp_path).stdout == "set()\n"


@pytest.mark.slow
@pytest.mark.spark
def test_the_session_that_a_run_starts_ends_with_it(tmp_path: Path) -> None:
    code = (
        "import dagster as dg\n"
        "from pyspark.sql import SparkSession\n"
        "from state_pipelines.dagster import SparkResource\n"
        "with dg.build_resources({'spark': SparkResource(memory='512m')}) as resources:\n"
        "    print(SparkSession.getActiveSession(), resources.spark.session.range(3).count())\n"
        "print(SparkSession.getActiveSession())"
    )
    assert run_python("-c", code, home=tmp_path).stdout == "None 3\nNone\n"


def test_a_session_that_was_there_stays(spark: SparkSession) -> None:
    with dg.build_resources({"spark": SparkResource()}) as resources:
        assert resources.spark.session is spark
    assert spark.range(3).count() == 3


def test_the_proof_blocks_what_comes_after(deployment: Deployment) -> None:
    specs = {spec.name: spec.blocking for spec in find_asset(deployment.job, "migrated_savepoint").check_specs}
    assert specs == dict.fromkeys(MigratedSavepoint().list_checks(deployment.job), True)


def test_expectations_are_a_check_where_a_revision_has_some(deployment: Deployment, tmp_path: Path) -> None:
    assert "own_expectations" not in MigratedSavepoint().list_checks(deployment.job)
    text = (
        "revision: '1'\noperator: orders\nstate: order\nupgrade: [{rename: {note: remark}}]\n"
        "downgrade: [{rename: {remark: note}}]\n"
        "expect: [{type: expect_column_values_to_not_be_null, column: state_key}]\n"
    )
    (tmp_path / "0001.yaml").write_text(text, encoding="utf-8")
    assert "own_expectations" in MigratedSavepoint().list_checks(deployment.change(migrations=str(tmp_path)).job)


def test_without_a_way_back_the_round_trip_is_no_check(deployment: Deployment, tmp_path: Path) -> None:
    text = (
        "revision: '1'\noperator: orders\nstate: order\nupgrade: [{drop: {field: note}}]\n"
        "downgrade: {impossible: the notes are gone}\n"
    )
    (tmp_path / "0001.yaml").write_text(text, encoding="utf-8")
    assert "round_trip" not in MigratedSavepoint().list_checks(deployment.change(migrations=str(tmp_path)).job)


@pytest.mark.essential
def test_assets_have_the_owner_the_group_and_a_description() -> None:
    for spec in defs.resolve_all_asset_specs():
        # An asset of another team downstream.
        owner = "team:sales" if spec.key.path[1] == "largest_orders" else OWNERS[spec.key.path[0]]
        assert spec.owners == [owner]
        assert spec.group_name == spec.key.path[0]
        assert spec.description


def test_the_limit_without_a_savepoint_is_a_freshness_policy(deployment: Deployment) -> None:
    job = deployment.change(thresholds=Thresholds(max_hours_without_savepoint=36)).job
    (spec,) = [each for each in build(job).resolve_all_asset_specs() if each.key == job.key("flink_job")]
    assert spec.freshness_policy == dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=36))


def test_runs_with_spark_share_a_pool_and_others_that_write_or_delete_wait_for_each_other() -> None:
    pools = {key.to_user_string(): each.op.pool for each in list_executable(defs) for key in each.keys if each.op.pool}
    assert {name for name, pool in pools.items() if pool == SPARK_POOL} == {
        f"{job}/{asset}"
        for job in OWNERS
        for asset in ("migrated_savepoint", "converted_savepoint", "rescaled_savepoint", "state_tables")
    } - {"customers/migrated_savepoint", "customers/state_tables"} | {"orders/bootstrapped_savepoint"}
    assert set(pools.values()) - {SPARK_POOL} == {f"{job}_applied_retention" for job in OWNERS} | {
        "customers_checkpoint"
    }


def test_short_runs_do_not_wait_for_spark(tmp_path: Path) -> None:
    overrides = yaml.safe_load((ROOT / "dagster.yaml").read_text())
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=overrides) as instance:
        queue = instance.get_concurrency_config()
    assert queue.run_queue_config is not None
    assert queue.run_queue_config.max_concurrent_runs > 1
    assert queue.pool_config.pool_granularity is PoolGranularity.RUN
    assert queue.pool_config.default_pool_limit == 1
