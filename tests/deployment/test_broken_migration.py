"""A migration whose way back is wrong and does not say so."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.deployment.conftest import MIGRATIONS

if TYPE_CHECKING:
    import dagster as dg
    from pyspark.sql import SparkSession

    from tests.deployment.conftest import Deployment


@pytest.fixture(scope="module")
def broken(deployment: Deployment, spark: SparkSession) -> Deployment:
    (file,) = MIGRATIONS.iterdir()
    text = file.read_text(encoding="utf-8")
    wrong = text.replace("CAST(ROUND(amount * 100.0D) AS BIGINT)", "CAST(amount AS BIGINT)")
    assert wrong != text
    directory = deployment.root / "migrations"
    directory.mkdir()
    (directory / "0001_broken.yaml").write_text(wrong, encoding="utf-8")
    return replace(deployment, migrations=str(directory))


@pytest.fixture(scope="module")
def run(broken: Deployment) -> dg.ExecuteInProcessResult:
    return broken.run(broken.add("2.2"))


def test_the_run_fails(run: dg.ExecuteInProcessResult) -> None:
    assert not run.success


def test_exactly_the_round_trip_fails(run: dg.ExecuteInProcessResult) -> None:
    assert [each.check_name for each in run.get_asset_check_evaluations() if not each.passed] == ["round_trip"]


def test_the_failed_check_shows_rows(run: dg.ExecuteInProcessResult) -> None:
    (failed,) = (each for each in run.get_asset_check_evaluations() if not each.passed)
    assert "amount" in str(failed.metadata["sample"].value)


def test_no_savepoint_is_left(run: dg.ExecuteInProcessResult, broken: Deployment) -> None:
    assert run.asset_materializations_for_node("migrated_savepoint") == []
    assert broken.results == []
