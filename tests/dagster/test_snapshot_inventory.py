"""The assets of the inventory, the profile and the diff, and the job that prunes partitions; without Spark."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

import state_pipelines as sp
from state_pipelines.dagster import FlinkJob
from state_pipelines.metadata import read_metadata, write_metadata
from state_pipelines.operations.inventory import read_inventory
from state_pipelines.storage import resolve
from tests.dagster.conftest import SAVEPOINTS, UIDS, Deployment, build

if TYPE_CHECKING:
    from collections.abc import Iterator

EVENT_SIZE = 50_000
JOB = "1a2b3c4d5e6f708192a3b4c5d6e7f809"


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Deployment]:
    job = FlinkJob(name="shop", roots=(str(tmp_path / "snapshots"),), results=str(tmp_path / "results"), uids=UIDS)
    (tmp_path / "snapshots").mkdir()
    with dg.DagsterInstance.ephemeral() as instance:
        yield Deployment(tmp_path, instance, job)


def copy_metadata(deployment: Deployment, path: str, checkpoint_id: int, seconds: int) -> Path:
    """Put a snapshot of metadata alone; returns its directory."""
    source = SAVEPOINTS["2.2"] / "_metadata"
    target = Path(deployment.job.roots[0], path)
    target.mkdir(parents=True)
    metadata = replace(read_metadata(source.read_bytes(), str(source)), checkpoint_id=checkpoint_id)
    (target / "_metadata").write_bytes(write_metadata(metadata))
    os.utime(target / "_metadata", (seconds, seconds))
    return target


def event_size(materialization: dg.AssetMaterialization) -> int:
    return len(dg.serialize_value(materialization))


def refresh(deployment: Deployment) -> tuple[dg.AssetMaterialization, dict[str, dg.AssetCheckEvaluation]]:
    result = deployment.run("refresh_inventory", None)
    assert result.success
    (event,) = result.asset_materializations_for_node("shop__snapshot_inventory")
    return event, {each.check_name: each for each in result.get_asset_check_evaluations()}


def values(materialization: dg.AssetMaterialization) -> dict[str, Any]:
    return {name: each.value for name, each in materialization.metadata.items()}


# --- inventory


def test_the_inventory_counts_for_the_plots(empty: Deployment) -> None:
    copy_metadata(empty, f"{JOB}/chk-7", 7, 2000)
    shutil.copytree(SAVEPOINTS["2.2"], Path(empty.job.roots[0], SAVEPOINTS["2.2"].name))
    metadata = values(refresh(empty)[0])
    snapshot = sp.open_snapshot(str(SAVEPOINTS["2.2"]))
    # What the metadata says is a savepoint is one, whatever its directory is called.
    assert (metadata["snapshots"], metadata["savepoints"], metadata["unreadable"]) == (2, 2, 0)
    assert metadata["bytes"] == 2 * snapshot.file_size
    assert metadata["opened"] == 2
    assert values(refresh(empty)[0])["opened"] == 0


def test_the_newest_comes_first(empty: Deployment) -> None:
    for number in range(20):
        copy_metadata(empty, f"{JOB}/chk-{number}", number, 1000 + number)
    metadata = values(refresh(empty)[0])
    rows = [each.data for each in metadata["newest snapshots"].records]
    assert [each["checkpoint id"] for each in rows] == list(range(19, 9, -1))
    assert metadata["newest"] == rows[0]["snapshot"]
    assert metadata["newest written"] == 1019


def test_the_whole_inventory_is_a_file(empty: Deployment) -> None:
    for number in range(20):
        copy_metadata(empty, f"{JOB}/chk-{number}", number, 1000 + number)
    metadata = values(refresh(empty)[0])
    assert len(read_inventory(resolve(metadata["inventory"]))) == 20


def test_the_event_stays_small_with_many_snapshots(empty: Deployment) -> None:
    source = SAVEPOINTS["2.2"] / "_metadata"
    metadata = read_metadata(source.read_bytes(), str(source))
    for number in range(1000):
        target = Path(empty.job.roots[0], JOB, f"chk-{number}")
        target.mkdir(parents=True)
        broken = number % 2
        content = b"broken" if broken else write_metadata(replace(metadata, checkpoint_id=number))
        (target / "_metadata").write_bytes(content)
    event, checks = refresh(empty)
    assert values(event)["snapshots"] == 1000
    assert values(event)["unreadable"] == 500
    assert event_size(event) + len(dg.serialize_value(checks["snapshots_are_readable"])) < EVENT_SIZE


def test_unreadable_snapshots_are_a_warning(empty: Deployment) -> None:
    for number in range(12):
        target = Path(empty.job.roots[0], f"savepoint-{number}")
        target.mkdir()
        (target / "_metadata").write_bytes(b"broken")
    check = refresh(empty)[1]["snapshots_are_readable"]
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert check.metadata["observed"].value == 12
    sample = check.metadata["sample"].value
    assert isinstance(sample, dict)
    assert len(sample) == 10


def test_a_missing_root_is_a_warning(empty: Deployment) -> None:
    missing = empty.change(roots=(*empty.job.roots, str(empty.root / "absent")))
    check = refresh(missing)[1]["roots_exist"]
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)


def test_an_empty_root_has_an_inventory(empty: Deployment) -> None:
    event, checks = refresh(empty)
    assert values(event)["snapshots"] == 0
    assert all(each.passed for each in checks.values())


def test_the_field_automation_brings_the_inventory_up_to_date_by_runs(empty: Deployment) -> None:
    defs = build(empty.change(automation={"snapshot_inventory": "every_ten_minutes"}).job)
    selection = dg.AssetSelection.assets(empty.job.key("snapshot_inventory"))

    def evaluate(minute: int, cursor: Any = None) -> Any:
        now = datetime(2026, 11, 22, 12, minute, 30, tzinfo=UTC)
        return dg.evaluate_automation_conditions(defs, empty.instance, selection, evaluation_time=now, cursor=cursor)

    first = evaluate(1)
    second = evaluate(9, first.cursor)
    third = evaluate(11, second.cursor)
    fourth = evaluate(12, third.cursor)
    assert [each.total_requested for each in (first, second, third, fourth)] == [1, 0, 1, 0]


def test_profile_and_diff_follow_a_new_snapshot(empty: Deployment) -> None:
    defs = build(empty.job)
    assets = [empty.job.key(name) for name in ("snapshot_profile", "snapshot_diff")]
    selection = dg.AssetSelection.assets(*assets)
    result = dg.evaluate_automation_conditions(defs, empty.instance, selection)
    empty.instance.add_dynamic_partitions("shop_snapshots", ["new@2"])
    result = dg.evaluate_automation_conditions(defs, empty.instance, selection, cursor=result.cursor)
    assert [result.get_requested_partitions(key) for key in assets] == [{"new@2"}] * 2


def test_migrations_do_not_make_the_inventory(deployment: Deployment) -> None:
    nodes = build(deployment.job).resolve_job_def("shop_migrate_snapshot").graph.node_dict
    assert "shop__snapshot_inventory" not in nodes


# --- partitions


def test_partitions_of_deleted_snapshots_are_pruned_on_request(empty: Deployment) -> None:
    directory = copy_metadata(empty, f"{JOB}/chk-1", 1, 1000)
    copy_metadata(empty, f"{JOB}/chk-2", 2, 2000)
    keys = [each.key for each in empty.job.storage.update_inventory().inventory]
    empty.instance.add_dynamic_partitions("shop_snapshots", keys)
    shutil.rmtree(directory)
    assert values(refresh(empty)[0])["prunable partitions"] == 1
    assert empty.run("prune_partitions", None).success
    assert set(empty.instance.get_dynamic_partitions("shop_snapshots")) == set(keys)
    result = empty.run("prune_partitions", None, prune_partitions={"apply": True})
    assert result.success
    assert empty.instance.get_dynamic_partitions("shop_snapshots") == [keys[0]]


def test_nothing_is_pruned_while_a_root_is_missing(empty: Deployment) -> None:
    copy_metadata(empty, f"{JOB}/chk-1", 1, 1000)
    keys = [each.key for each in empty.job.storage.update_inventory().inventory]
    empty.instance.add_dynamic_partitions("shop_snapshots", keys)
    Path(empty.job.roots[0]).rename(empty.root / "unmounted")
    assert empty.run("prune_partitions", None, prune_partitions={"apply": True}).success
    assert empty.instance.get_dynamic_partitions("shop_snapshots") == keys


def test_a_snapshot_outside_the_roots_is_registered_by_its_path(empty: Deployment) -> None:
    path = shutil.copytree(SAVEPOINTS["2.2"], empty.root / "elsewhere" / SAVEPOINTS["2.2"].name)
    result = empty.run("register_snapshot", None, register_snapshot={"paths": [str(path)]})
    (key,) = result.output_for_node("shop__register_snapshot")
    assert "_savepoint-df4606@" in key
    assert empty.instance.get_dynamic_partitions("shop_snapshots") == [key]
    assert values(profile(empty, key))["entries"] > 1000
    refresh(empty)
    assert empty.job.storage.find(key).path == str(path)


def test_what_is_no_snapshot_is_not_registered(empty: Deployment) -> None:
    path = shutil.copytree(SAVEPOINTS["2.2"], empty.root / "elsewhere" / SAVEPOINTS["2.2"].name)
    paths = [str(path), str(empty.root)]
    assert not empty.run("register_snapshot", None, register_snapshot={"paths": paths}).success
    assert empty.instance.get_dynamic_partitions("shop_snapshots") == []


# --- profile


def profile(deployment: Deployment, key: str, **config: Any) -> dg.AssetMaterialization:
    result = deployment.materialize(["snapshot_profile"], key, snapshot_profile=config)
    assert result.success
    (event,) = result.asset_materializations_for_node("shop__snapshot_profile")
    return event


def test_a_profile_has_numbers_for_the_plots(empty: Deployment) -> None:
    event = profile(empty, empty.add("2.2"))
    metadata = values(event)
    assert metadata["entries"] > 1000
    assert metadata["unreadable"] == 0
    assert metadata["imbalance"] > 1
    rows = {(each.data["operator"], each.data["state"]): each.data for each in metadata["states"].records}
    assert rows["orders", "order"]["entries"] == 200
    assert rows["pricing", "prices"]["value"]
    columns = {(each.data["state"], each.data["column"]): each.data for each in metadata["columns"].records}
    assert columns["order", "value.amount"]["null ratio"] == 0
    assert event_size(event) < EVENT_SIZE


def test_the_whole_profile_is_a_file(empty: Deployment) -> None:
    metadata = values(profile(empty, empty.add("2.2")))
    report = json.loads(Path(metadata["profile"]).read_text())
    assert report["entries"] == metadata["entries"]


def test_the_ttl_of_the_job_shows_what_expires(tmp_path: Path, empty: Deployment) -> None:
    from tests.snapshots import select

    (case,) = select("2.2", "heap", "canonical")[:1]
    key = empty.add_copy(case.path, "types")
    assert "expired" not in values(profile(empty.change(uids=case.uids), key))
    told = values(profile(empty.change(uids=case.uids, ttl={"*": "1s"}), key))
    assert told["expired"] > 0
    assert {each.data["state"] for each in told["ages"].records} >= {"sum", "average"}
    assert values(profile(empty.change(uids=case.uids), key, ttl={"sum": "1s"}))["expired"] == 12


@pytest.mark.parametrize("ttl", ["soon", "", "-1d"])
def test_a_wrong_ttl_is_refused(ttl: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        FlinkJob(name="shop", roots=("/a",), results="/b", ttl={"*": ttl})


# --- diff


def compare(deployment: Deployment, key: str, **config: Any) -> dg.ExecuteInProcessResult:
    return deployment.materialize(["snapshot_diff"], key, snapshot_diff=config)


def changes(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    assert result.success
    (event,) = result.asset_materializations_for_node("shop__snapshot_diff")
    assert event_size(event) < EVENT_SIZE
    return values(event)


@pytest.fixture
def two(empty: Deployment) -> tuple[Deployment, str, str]:
    """A savepoint, and a later one without a key."""
    old = shutil.copytree(SAVEPOINTS["2.2"], empty.root / "old" / SAVEPOINTS["2.2"].name)
    os.utime(old / "_metadata", (1000, 1000))
    first = empty.add_copy(old, "flink-2.2")
    path = Path(empty.job.storage.find(first).path)
    later = empty.root / "later" / "savepoint-df4606-0123456789ab"
    sp.erase(str(path), ["order-0001"], str(later))
    return empty, first, empty.add_copy(later, "later")


def test_changes_since_the_previous_snapshot(two: tuple[Deployment, str, str]) -> None:
    deployment, first, second = two
    metadata = changes(compare(deployment, second))
    assert metadata["previous"] == first
    assert (metadata["added"], metadata["changed"]) == (0, 0)
    assert metadata["removed"] >= 1
    rows = {(each.data["operator"], each.data["state"]): each.data for each in metadata["states"].records}
    order = rows["orders", "order"]
    assert [order[name] for name in ("before", "after", "added", "removed", "changed")] == [200, 199, 0, 1, 0]
    assert "order-0001" in metadata["samples"]
    assert json.loads(Path(metadata["diff"]).read_text())["differs"]


def test_the_first_snapshot_has_no_previous_one(two: tuple[Deployment, str, str]) -> None:
    deployment, first, _ = two
    assert changes(compare(deployment, first))["previous"] == "none"


def test_the_older_one_can_be_named(two: tuple[Deployment, str, str]) -> None:
    deployment, first, second = two
    metadata = changes(compare(deployment, first, previous=second))
    assert (metadata["previous"], metadata["added"]) == (second, changes(compare(deployment, second))["removed"])


def test_an_older_one_that_is_gone_is_a_failure(two: tuple[Deployment, str, str]) -> None:
    deployment, first, _ = two
    result = compare(deployment, first, previous="chk-1-1a2b3c@00000000")
    assert not result.success
