"""Suites of a job in Dagster: on any snapshot, and on what a migration writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.dagster.conftest import Deployment

SUITE = """
operator: orders
state: order
expect:
- {type: expect_column_values_to_be_between, column: value.quantity, max_value: 3}
"""


@pytest.fixture(scope="module")
def judged(deployment: Deployment, spark: SparkSession) -> Deployment:
    directory = deployment.root / "expectations"
    directory.mkdir()
    (directory / "orders.yaml").write_text(SUITE, encoding="utf-8")
    return deployment.change(expectations=str(directory), data_docs=str(deployment.root / "docs"))


@pytest.fixture(scope="module")
def key(deployment: Deployment) -> str:
    return deployment.add("2.2")


def test_a_snapshot_is_judged_with_rows_and_data_docs(judged: Deployment, key: str) -> None:
    result = judged.materialize(["state_expectations"], key)
    (check,) = result.get_asset_check_evaluations()
    assert (check.check_name, check.passed) == ("expectations_hold", False)
    rows = check.metadata["rows"]
    assert isinstance(rows, dg.TableMetadataValue)
    assert len(rows.records) == 10
    (materialization,) = result.asset_materializations_for_node(judged.job.op("state_expectations"))
    url = materialization.metadata["data docs"]
    assert isinstance(url, dg.UrlMetadataValue)
    assert url.value is not None
    assert Path(url.value.removeprefix("file://")).is_file()


def is_error(check: dg.AssetCheckEvaluation) -> bool:
    return not check.passed and check.severity is dg.AssetCheckSeverity.ERROR


def test_a_migration_whose_rows_do_not_meet_a_suite_is_not_published(judged: Deployment, key: str) -> None:
    result = judged.materialize(["migrated_savepoint"], key)
    assert not result.success
    # Those that the failed step has not evaluated are warnings.
    errors = {each.check_name for each in result.get_asset_check_evaluations() if is_error(each)}
    assert errors == {"expectations_hold"}
    assert judged.results == []


def test_without_suites_there_is_neither_the_asset_nor_the_check(deployment: Deployment) -> None:
    from tests.dagster.conftest import build, find_asset

    keys = {spec.key.path[-1] for spec in build(deployment.job).resolve_all_asset_specs()}
    assert "state_expectations" not in keys
    specs = {spec.name for spec in find_asset(deployment.job, "migrated_savepoint").check_specs}
    assert "expectations_hold" not in specs
