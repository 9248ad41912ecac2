"""Checks by the limits of a job, and what else the description of a job decides."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from state_pipelines.dagster.job import Thresholds
from tests.dagster.conftest import build

if TYPE_CHECKING:
    from pathlib import Path

    from tests.dagster.conftest import Deployment

CHECK = "recent_savepoint"


def evaluate(deployment: Deployment) -> dg.AssetCheckEvaluation:
    result = deployment.run("refresh_inventory", None)
    (found,) = [each for each in result.get_asset_check_evaluations() if each.check_name == CHECK]
    return found


@pytest.fixture
def limited(deployment: Deployment, tmp_path: Path) -> Deployment:
    """A job that wants a savepoint each hour, with none yet."""
    return deployment.change(roots=(str(tmp_path),), thresholds=Thresholds(max_hours_without_savepoint=1.0))


def age(deployment: Deployment, hours: float) -> None:
    for file in deployment.snapshots.rglob("_metadata"):
        os.utime(file, (time.time() - hours * 3600,) * 2)


def test_a_recent_savepoint_passes(limited: Deployment) -> None:
    limited.add("2.2")
    age(limited, 0.5)
    found = evaluate(limited)
    assert found.passed
    assert found.metadata["observed"].value == pytest.approx(0.5, abs=0.1)


def test_an_old_savepoint_warns_and_is_named(limited: Deployment) -> None:
    limited.add("2.2")
    age(limited, 3)
    found = evaluate(limited)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "savepoint-df4606" in str(found.metadata["snapshot"].value)


def test_a_recent_one_that_cannot_be_read_does_not_count(limited: Deployment) -> None:
    limited.add("2.2")
    (file,) = limited.snapshots.rglob("_metadata")
    file.write_bytes(b"nothing of Flink's")
    assert not evaluate(limited).passed


def test_without_a_limit_there_is_no_check(deployment: Deployment) -> None:
    keys = build(deployment.job).resolve_asset_graph().asset_check_keys
    assert keys
    assert CHECK not in {each.name for each in keys}


def test_the_flink_job_is_upstream_of_everything(deployment: Deployment) -> None:
    graph = build(deployment.job).resolve_asset_graph()
    top = deployment.job.key("flink_job")
    assert not graph.get(top).is_materializable
    assert {key for key in graph.get_all_asset_keys() if not graph.get(key).parent_keys} == {top}


def test_the_migrated_savepoint_refers_to_the_revisions(deployment: Deployment) -> None:
    (spec,) = [
        each
        for each in build(deployment.job).resolve_all_asset_specs()
        if each.key == deployment.job.key("migrated_savepoint")
    ]
    references = spec.metadata["dagster/code_references"]
    assert [each.label for each in references.code_references] == ["0001"]


def test_what_is_derived_follows_a_new_snapshot(deployment: Deployment) -> None:
    defs = build(deployment.job)
    selection = dg.AssetSelection.assets(
        *map(deployment.job.key, ("key_group_balance", "compatibility_report", "state_tables"))
    )
    with dg.DagsterInstance.ephemeral() as instance:
        name = str(deployment.job.partitions.name)
        instance.add_dynamic_partitions(name, ["old@1"])
        result = dg.evaluate_automation_conditions(defs, instance, selection)
        instance.add_dynamic_partitions(name, ["new@2"])
        result = dg.evaluate_automation_conditions(defs, instance, selection, cursor=result.cursor)
        for asset in ("key_group_balance", "compatibility_report", "state_tables"):
            assert result.get_requested_partitions(deployment.job.key(asset)) == {"new@2"}
        result = dg.evaluate_automation_conditions(defs, instance, selection, cursor=result.cursor)
        assert result.total_requested == 0
