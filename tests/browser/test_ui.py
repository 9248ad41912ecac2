"""The Dagster UI in a real browser, on a project made by docs/dagster.md.

Snapshots of two Flink jobs appear, requests are carried out, and the pages show it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from state_pipelines.operations.inventory import make_partition_key
from state_pipelines.snapshot import open_snapshot
from tests.browser.many_snapshots import NAME, SNAPSHOTS, find_newest
from tests.browser.pictures import keep_picture
from tests.browser.project import CHECKPOINTS, JOBS, SAVEPOINTS

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.project import Deployment

pytestmark = pytest.mark.browser

# A copy has the time of the file, and so the date in the key.
KEY = make_partition_key(open_snapshot(str(SAVEPOINTS["orders"])))
_DAY = 86_400

DERIVED = ("snapshot_profile", "snapshot_diff", "key_group_balance", "compatibility_report", "restore_audit")


def show(deployment: Deployment, page: Page, path: str, *texts: str, timeout: float = 60_000) -> None:
    """Open a page and wait until it shows some texts."""
    page.goto(f"{deployment.url}{path}")
    for text in texts:
        page.get_by_text(text).filter(visible=True).first.wait_for(timeout=timeout)


def test_snapshots_that_appear_are_described_judged_audited_and_migrated(deployment: Deployment) -> None:
    deployment.drop_snapshots()
    wanted = {f"{job}/{name}": 2 for job in JOBS for name in DERIVED}
    once = ("snapshot_inventory", "migrated_savepoint", "flink_job")
    deployment.wait_for(wanted | {f"{job}/{name}": 1 for job in JOBS for name in once})


@pytest.mark.parametrize(
    ("asset", "checks"),
    [
        ("orders/snapshot_inventory", {"snapshots_are_readable", "roots_exist"}),
        ("orders/compatibility_report", {"migrated_state_restores"}),
        ("orders/migrated_savepoint", {"key_sets", "round_trip", "written_reads_back"}),
        ("orders/restore_audit", {"files_exist", "key_groups_are_held_once", "records_can_be_decoded"}),
        ("upgrade/restore_audit", {"files_exist", "key_groups_are_held_once", "records_can_be_decoded"}),
    ],
)
def test_their_checks_appear_and_succeed(deployment: Deployment, asset: str, checks: set[str]) -> None:
    found = deployment.list_checks(asset)
    assert {name: found.get(name) for name in checks} == dict.fromkeys(checks, "SUCCEEDED")
    # A check that does not apply has no result.
    assert set(found.values()) <= {"SUCCEEDED", "SKIPPED"}


def test_a_request_migrates_a_retained_checkpoint(deployment: Deployment) -> None:
    name = CHECKPOINTS["orders"].path.name
    result = deployment.request("orders", "migrate.yaml", f"{{operation: migrate, snapshot: {name}}}")
    path = Path(result["results"]["orders/migrated_savepoint"]["path"])
    assert (path / "_metadata").exists()


def test_the_fingerprint_of_a_requested_plan_applies_it(deployment: Deployment) -> None:
    savepoints = deployment.project.find("orders", "savepoints")
    orphan = savepoints / "savepoint-000000-000000000000" / "6f2f8a52-6a1b-4a0b-b9a3-5d5b0b6f0c11"
    orphan.parent.mkdir()
    orphan.write_bytes(b"left behind")
    old = time.time() - 30 * _DAY
    for path in (orphan, orphan.parent):
        os.utime(path, (old, old))
    plan = deployment.request("orders", "plan.yaml", "{operation: retain}")
    fingerprint = plan["results"]["orders/retention_plan"]["fingerprint"]
    assert orphan.exists()
    deployment.request("orders", "apply.yaml", f'{{operation: retain, apply: "{fingerprint}"}}')
    assert not orphan.exists()
    assert (savepoints / SAVEPOINTS["orders"].name / "_metadata").exists()


def test_no_run_has_failed(deployment: Deployment) -> None:
    assert set(deployment.list_runs().values()) <= {"SUCCESS", "QUEUED", "NOT_STARTED", "STARTING", "STARTED"}


@pytest.mark.parametrize(
    ("path", "text", "picture"),
    [
        ("/asset-groups", "upgrade", None),
        (
            "/assets/orders/flink_job?view=lineage&lineageScope=downstream&lineageDepth=5",
            "migrated_savepoint",
            "asset-graph",
        ),
        ("/assets/orders/snapshot_inventory", "newest snapshots", "inventory"),
        (f"/assets/orders/snapshot_profile?partition={KEY}&view=partitions", "largest keys", "profile"),
        (f"/assets/orders/compatibility_report?partition={KEY}&view=partitions", "fully compatible", None),
        (f"/assets/orders/migrated_savepoint?partition={KEY}&view=partitions", "revision", None),
        ("/assets/orders/migrated_savepoint?view=checks&checkDetail=round_trip", "rows compared", "checks"),
        ("/assets/orders/restore_audit?view=checks&checkDetail=files_exist", "Passed", "restore-audit"),
        ("/assets/orders/retention_plan", "fingerprint", "retention-plan"),
        ("/automation", "orders_requests", None),
        ("/runs", "orders_migrate_snapshot", None),
    ],
)
def test_the_pages_show_it(deployment: Deployment, page: Page, path: str, text: str, picture: str | None) -> None:
    show(deployment, page, path, text)
    if picture is not None:
        keep_picture(page, picture)


def test_the_inventory_of_many_snapshots_is_shown(deployment: Deployment, page: Page) -> None:
    show(deployment, page, f"/assets/{NAME}/snapshot_inventory", "newest snapshots", str(SNAPSHOTS))


def test_a_profile_among_many_is_shown(deployment: Deployment, page: Page) -> None:
    key = find_newest(deployment.project)
    show(
        deployment, page, f"/assets/{NAME}/snapshot_profile?partition={key}&view=partitions", "largest keys", "entries"
    )
