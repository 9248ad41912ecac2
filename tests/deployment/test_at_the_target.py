"""Runs for a snapshot that is where it is to be, or that does not tell where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg
import pytest

from assets.compatibility import compatibility_report
from assets.migration import migrated_savepoint
from resources import ExpectationsResource, MigrationResource, SparkResource

if TYPE_CHECKING:
    from pathlib import Path

    from tests.deployment.conftest import Deployment

ASSETS = [compatibility_report, migrated_savepoint]
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
    return dg.materialize(
        ASSETS,
        partition_key=key,
        instance=deployment.instance,
        raise_on_error=False,
        run_config={"ops": {each.op.name: {"config": config} for each in ASSETS}},
        resources={
            "storage": deployment.storage,
            "migration": MigrationResource(migrations=str(migrations)),
            "spark": SparkResource(),
            "expectations": ExpectationsResource(),
        },
    )


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
    assert at_the_target.asset_materializations_for_node("compatibility_report")
    assert at_the_target.asset_materializations_for_node("migrated_savepoint") == []
    assert deployment.results == []


def test_the_checks_say_that_nothing_was_written(at_the_target: dg.ExecuteInProcessResult) -> None:
    evaluations = at_the_target.get_asset_check_evaluations()
    found = [each for each in evaluations if each.asset_key == migrated_savepoint.key]
    assert len(found) == 6
    assert {(each.passed, each.description) for each in found} == {
        (True, "The snapshot is at 0001 already: nothing to do, nothing was written.")
    }


def test_a_snapshot_that_does_not_tell_where_it_is_fails(deployment: Deployment, silent: Path, key: str) -> None:
    result = run(deployment, key, silent)
    assert not result.success
    (failure,) = result.filter_events(lambda event: event.is_step_failure)
    assert "Say where it is with the configuration `from_revision`" in str(failure.step_failure_data.error)


def test_without_revisions_every_snapshot_is_at_base(deployment: Deployment, key: str, tmp_path: Path) -> None:
    assert run(deployment, key, tmp_path).success
