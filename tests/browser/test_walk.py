"""Runs that somebody launches in the Dagster UI, and the pages that show what came of them."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from state_pipelines.dagster import FlinkJob
from state_pipelines.operations.inventory import make_partition_key
from state_pipelines.operations.retention import plan_retention
from state_pipelines.operations.retention.own_directory import read_pins
from state_pipelines.snapshot import open_snapshot
from state_pipelines.storage import resolve
from tests.browser.pictures import keep_picture
from tests.browser.project import ARCHIVE, CHECKPOINTS_OF_CLICKS, CLICKS, SAVEPOINTS
from tests.browser.test_ui import show
from tests.dagster.conftest import ROOT
from tests.dagster.conftest import SAVEPOINTS as OF_RELEASE
from tests.deploy.services import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.browser.project import Deployment

pytestmark = pytest.mark.browser

_DAY = 86_400
OLD = OF_RELEASE["1.20"]
NEWEST = ROOT / "examples/orders/savepoints/flink-2.3/savepoint-956c5f-d6500dcec434"


def put(deployment: Deployment, source: Path, days: int) -> Path:
    """Put a savepoint of some age into the archive."""
    target: Path = shutil.copytree(source, deployment.project.find(ARCHIVE, "savepoints") / source.name)
    then = time.time() - days * _DAY
    for each in [target, *target.rglob("*")]:
        os.utime(each, (then, then))
    return target


def test_a_savepoint_comes_back_from_quarantine_and_stays(deployment: Deployment, page: Page) -> None:
    put(deployment, OF_RELEASE["2.2"], 1)
    old = put(deployment, OLD, 30)
    # Of the same Flink job, so that one is the older.
    job = FlinkJob(**deployment.project.describe_archive())
    renamed = old.with_name(f"savepoint-df4606-{old.name.rpartition('-')[2]}")
    old.rename(renamed)
    fingerprint = plan_retention(job.roots, job.policy).fingerprint
    applied = {"archive__applied_retention": {"config": {"fingerprint": fingerprint}}}
    assert deployment.launch("archive_apply_retention", applied)[1] == "SUCCESS"
    assert not renamed.exists()
    restored = {"archive_restore": {"config": {"snapshot": renamed.name, "reason": "the audit needs it"}}}
    run, status = deployment.launch("archive_restore_snapshot", restored)
    assert status == "SUCCESS"
    assert (renamed / "_metadata").exists()
    (pinned,) = read_pins(resolve(job.roots[0]))
    assert pinned.path == renamed.name
    assert deployment.launch("archive_plan_retention")[1] == "SUCCESS"
    assert plan_retention(job.roots, job.policy).delete == ()
    show(deployment, page, f"/runs/{run}", "archive_restore_snapshot", "STEP_OUTPUT", "pinned")
    keep_picture(page, "restored-snapshot")


def test_of_frequent_checkpoints_each_hour_has_one_and_no_audit_is_lost(deployment: Deployment, page: Page) -> None:
    # An inventory that never ends its run, in front of everything else.
    lost = deployment.submit(f"{CLICKS}_refresh_inventory")
    deployment.cancel(lost)
    deployment.start_sensor(f"{CLICKS}_new_snapshots")
    sampled = 1 + (CHECKPOINTS_OF_CLICKS - 1) // 60
    left_out = f"{CHECKPOINTS_OF_CLICKS - sampled} checkpoints get no partition"
    assert any(left_out in each for each in deployment.list_ticks(f"{CLICKS}_new_snapshots"))
    partitions = deployment.list_partitions(f"{CLICKS}/restore_audit")
    assert len(partitions) == sampled
    deployment.start_sensor(f"{CLICKS}_automation")
    deployment.wait_for({f"{CLICKS}/restore_audit": sampled, f"{CLICKS}/snapshot_inventory": 1})
    assert deployment.list_runs()[lost] == "CANCELED"
    show(deployment, page, f"/assets/{CLICKS}/restore_audit?view=partitions", *partitions)
    keep_picture(page, "sampled-checkpoints")


def test_a_damaged_savepoint_is_red_and_reported(deployment: Deployment, page: Page) -> None:
    deployment.start_sensor(f"{ARCHIVE}_failed_runs")
    damaged = put(deployment, NEWEST, 0)
    key = make_partition_key(open_snapshot(str(damaged)))
    largest = max(
        (each for each in damaged.iterdir() if each.name != "_metadata"), key=lambda each: each.stat().st_size
    )
    largest.unlink()
    run, status = deployment.launch("archive_audit_snapshot", key=key)
    assert status == "FAILURE"
    assert deployment.count_failed_partitions(f"{ARCHIVE}/restore_audit") == 1
    show(deployment, page, f"/runs/{run}", "archive_audit_snapshot", "STEP_FAILURE")
    # No picture of it: the stack trace has paths of the machine.
    text = f"archive_audit_snapshot failed for {key}"
    wait_for(
        lambda: any(text in each for each in deployment.list_ticks(f"{ARCHIVE}_failed_runs")), "the report", seconds=120
    )
    show(deployment, page, f"/assets/{ARCHIVE}/restore_audit?view=partitions&partition={key}", "Failed")
    keep_picture(page, "damaged-partition")


def test_a_job_of_ops_makes_a_release(deployment: Deployment, page: Page) -> None:
    name = SAVEPOINTS["orders"].name
    savepoint = deployment.project.find("orders", "savepoints") / name
    if not savepoint.exists():
        # This module alone.
        shutil.copytree(SAVEPOINTS["orders"], savepoint)
    where = "{repositoryName}@{repositoryLocationName}".format(**deployment.location)
    show(deployment, page, f"/locations/{where}/jobs/release_orders", "SnapshotPath", "rescale")
    keep_picture(page, "composed-job")
    ops = {"verify": {"inputs": {"snapshot": name}}, "rescale": {"config": {"parallelism": 4}}}
    run, status = deployment.launch("release_orders", ops)
    assert status == "SUCCESS"
    show(deployment, page, f"/runs/{run}", "release_orders", "register")


def test_an_asset_of_a_team_is_downstream_of_the_snapshots(deployment: Deployment, page: Page) -> None:
    key = make_partition_key(
        open_snapshot(str(deployment.project.find("orders", "savepoints") / SAVEPOINTS["orders"].name))
    )
    _, status = deployment.launch("__ASSET_JOB", key=key, asset="orders/largest_orders")
    assert status == "SUCCESS"
    show(deployment, page, f"/assets/orders/largest_orders?view=partitions&partition={key}", "largest orders")
    keep_picture(page, "largest-orders")
