"""The asset `restore_audit` and its schedule, without Spark."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from state_pipelines.dagster.assets.snapshots import AUDIT_CHECKS, RESTORE_AUDIT
from state_pipelines.operations.auditing import Property
from tests.dagster.conftest import SAVEPOINTS, build

if TYPE_CHECKING:
    from tests.dagster.conftest import Deployment


def results_of(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {each.check_name: each for each in result.get_asset_check_evaluations()}


def metadata_of(result: dg.ExecuteInProcessResult) -> dict[str, object]:
    (event,) = result.asset_materializations_for_node("shop__restore_audit")
    return {name: value.value for name, value in event.metadata.items()}


@pytest.mark.parametrize("whole", [False, True])
def test_every_property_of_a_sound_snapshot_is_a_check_that_passes(deployment: Deployment, whole: bool) -> None:
    key = deployment.add_copy(SAVEPOINTS["2.2"], f"sound-{whole}")
    result = deployment.run("audit_snapshot", key, restore_audit={"whole": whole})
    assert result.success
    assert {name: each.passed for name, each in results_of(result).items()} == {
        name: True for name, _ in AUDIT_CHECKS.values()
    }
    metadata = metadata_of(result)
    assert (metadata["verdict"], metadata["errors"]) == ("restorable", 0)
    assert "findings" not in metadata


def test_there_is_a_check_of_every_property() -> None:
    assert set(AUDIT_CHECKS) == set(Property) - {Property.RESTORE}


@pytest.mark.essential
def test_a_missing_file_fails_its_check_with_the_file(deployment: Deployment) -> None:
    source = Path(deployment.job.roots[0]).parent / "damaged" / "savepoint-df4606-aaaaaaaaaaaa"
    shutil.copytree(SAVEPOINTS["1.20"], source)
    (file, *_) = (each for each in sorted(source.iterdir()) if each.name != "_metadata")
    file.unlink()
    key = deployment.add_copy(source, "damaged")
    result = deployment.run("audit_snapshot", key)
    failed = {name: each for name, each in results_of(result).items() if not each.passed}
    assert set(failed) == {"files_exist"}
    assert failed["files_exist"].severity is dg.AssetCheckSeverity.ERROR
    assert failed["files_exist"].partition == key
    assert file.name in str(failed["files_exist"].metadata["sample"].value)
    # Not materialised, so that the partition and backfills are failed.
    assert not result.asset_materializations_for_node("shop__restore_audit")
    assert not result.success
    asset = deployment.job.key(RESTORE_AUDIT)
    assert deployment.instance.get_status_by_partition(asset, [key], deployment.job.partitions) == {
        key: dg.AssetPartitionStatus.FAILED
    }
    (observed,) = result.get_asset_observation_events()
    found = observed.asset_observation_data.asset_observation
    assert (found.partition, found.metadata["verdict"].value, found.metadata["errors"].value) == (key, "damaged", 1)
    (failure,) = result.get_step_failure_events()
    shown = failure.step_failure_data.user_failure_data
    assert shown is not None
    assert str(shown.description).startswith("the snapshot is damaged: 1 error; the first: ")
    assert str(shown.metadata["file"].value).endswith(file.name)
    run = deployment.instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags["state-pipelines/error"] == "FormatError"
    # As *Materialize* and automation run it: reported as well, by the sensor of the deployment.
    assert not deployment.materialize([RESTORE_AUDIT], key).success
    sensor = build(deployment.job).resolve_sensor_def("shop_failed_runs")
    with dg.build_sensor_context(instance=deployment.instance, cursor='{"after": 0}') as context:
        reported = str(sensor(context))
    assert f"shop_audit_snapshot failed for {key}: shop__restore_audit: the snapshot is damaged" in reported
    assert f"shop/restore_audit failed for {key}: shop__restore_audit: the snapshot is damaged" in reported


def test_the_schedule_audits_the_newest_snapshots_once_a_day(deployment: Deployment, tmp_path: Path) -> None:
    for path in Path(deployment.job.roots[0]).rglob("_metadata"):
        os.utime(path, (1_000_000_000,) * 2)
    keys = []
    for age, name in enumerate(("savepoint-a", "savepoint-b", "savepoint-c", "savepoint-d")):
        source = Path(deployment.job.roots[0]).parent / "newest" / name
        shutil.copytree(SAVEPOINTS["2.2"], source)
        os.utime(source / "_metadata", (1_700_000_000 - age,) * 2)
        keys.append(deployment.add_copy(source, "newest-" + name))
    definitions = build(deployment.job)
    schedule = definitions.resolve_schedule_def("shop_daily_audit")
    repository = definitions.get_repository_def()
    at_four = datetime(2026, 1, 2, 4, tzinfo=UTC)
    with (
        dg.DagsterInstance.local_temp(str(tmp_path)) as instance,
        dg.build_schedule_context(
            instance=instance, scheduled_execution_time=at_four, repository_def=repository
        ) as context,
    ):
        found = schedule.evaluate_tick(context).run_requests or []
    assert [each.partition_key for each in found] == keys[:3]
    assert [each.run_key for each in found] == [f"{key}-2026-01-02" for key in keys[:3]]
