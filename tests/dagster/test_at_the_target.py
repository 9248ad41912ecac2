"""Runs for a snapshot that is where it is to be, or that does not tell where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    import dagster as dg

    from tests.dagster.conftest import Deployment

ASSETS = ["compatibility_report", "migrated_savepoint"]
SILENT = """
revision: "0001"
operator: orders
state: order
upgrade: [set: {field: note, expression: upper(note)}]
downgrade: [set: {field: note, expression: lower(note)}]
loss: [{field: note, reason: "case is lost"}]
"""


def run(deployment: Deployment, key: str, migrations: Path, **config: str) -> dg.ExecuteInProcessResult:
    """Without the tables, which need Spark."""
    return deployment.change(migrations=str(migrations)).materialize(ASSETS, key, **dict.fromkeys(ASSETS, config))


@pytest.fixture(scope="module")
def silent(deployment: Deployment) -> Path:
    """A revision that leaves no trace in serializers."""
    directory = deployment.root / "silent"
    directory.mkdir()
    (directory / "0001.yaml").write_text(SILENT, encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def key(deployment: Deployment) -> str:
    return deployment.add("2.2")


@pytest.fixture(scope="module")
def at_the_target(deployment: Deployment, silent: Path, key: str) -> dg.ExecuteInProcessResult:
    return run(deployment, key, silent, from_revision="0001")


def test_there_is_nothing_to_do(at_the_target: dg.ExecuteInProcessResult, deployment: Deployment) -> None:
    assert at_the_target.success
    assert at_the_target.asset_materializations_for_node(deployment.job.op("compatibility_report"))
    assert at_the_target.asset_materializations_for_node(deployment.job.op("migrated_savepoint")) == []
    assert deployment.results == []


def test_a_check_without_anything_to_check_is_not_shown(
    at_the_target: dg.ExecuteInProcessResult, deployment: Deployment
) -> None:
    evaluations = at_the_target.get_asset_check_evaluations()
    assert [each for each in evaluations if each.asset_key == deployment.job.key("migrated_savepoint")] == []


def test_a_snapshot_that_does_not_tell_where_it_is_fails(deployment: Deployment, silent: Path, key: str) -> None:
    result = run(deployment, key, silent)
    assert not result.success
    (failure,) = result.filter_events(lambda event: event.is_step_failure)
    assert "Give its revision as `from_revision` in the run configuration" in str(failure.step_failure_data.error)


def test_without_revisions_every_snapshot_is_at_base(deployment: Deployment, key: str, tmp_path: Path) -> None:
    assert run(deployment, key, tmp_path).success
