"""A migration whose way back is wrong and does not say so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg
import pytest

from state_pipelines.dagster.failures import NOT_EVALUATED
from tests.dagster.conftest import MIGRATIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.dagster.conftest import Deployment


@pytest.fixture(scope="module")
def broken(deployment: Deployment, spark: SparkSession) -> Deployment:
    (file,) = MIGRATIONS.iterdir()
    text = file.read_text(encoding="utf-8")
    wrong = text.replace("CAST(ROUND(amount * 100.0D) AS BIGINT)", "CAST(amount AS BIGINT)")
    assert wrong != text
    directory = deployment.root / "migrations"
    directory.mkdir()
    (directory / "0001_broken.yaml").write_text(wrong, encoding="utf-8")
    return deployment.change(migrations=str(directory))


@pytest.fixture(scope="module")
def run(broken: Deployment) -> dg.ExecuteInProcessResult:
    return broken.run("migrate_snapshot", broken.add("2.2"))


def test_the_run_fails(run: dg.ExecuteInProcessResult) -> None:
    assert not run.success


def list_failed(run: dg.ExecuteInProcessResult) -> list[dg.AssetCheckEvaluation]:
    """The failed checks, without those that were not evaluated."""
    checks = [each for each in run.get_asset_check_evaluations() if not each.passed]
    assert all((each.severity is dg.AssetCheckSeverity.WARN) == (NOT_EVALUATED in each.metadata) for each in checks)
    return [each for each in checks if NOT_EVALUATED not in each.metadata]


def test_exactly_the_round_trip_fails(run: dg.ExecuteInProcessResult) -> None:
    assert [each.check_name for each in list_failed(run)] == ["round_trip"]


def test_the_failed_check_shows_rows(run: dg.ExecuteInProcessResult) -> None:
    (failed,) = list_failed(run)
    rows = failed.metadata["rows"]
    assert isinstance(rows, dg.TableMetadataValue)
    assert len(rows.records) == 10
    assert {"key", "before", "after", "expected"} <= {column.name for column in rows.schema.columns}
    assert "amount" in str(rows.records[0].data["before"])


def test_the_failed_check_has_numbers(run: dg.ExecuteInProcessResult) -> None:
    (failed,) = list_failed(run)
    assert failed.metadata["rows compared"].value == 200
    assert failed.metadata["rows differing"].value == 189
    assert failed.metadata["rows missing"].value == 0


def test_no_savepoint_is_left(run: dg.ExecuteInProcessResult, broken: Deployment) -> None:
    assert run.asset_materializations_for_node(broken.job.op("migrated_savepoint")) == []
    assert broken.results == []
