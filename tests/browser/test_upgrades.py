"""Upgrades of a job that runs on a real Flink, as somebody requests, approves and reads them in the Dagster UI.

The tests are one walk: rehearsed by the schedule, requested by the sensor, approved in the Launchpad, upgraded by the
sensor alone, and back from a program that fails.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from state_pipelines.flink.cluster import JobStatus
from tests.browser.pictures import keep_picture
from tests.browser.test_ui import show
from tests.browser.upgraded_job import JOB, running_job
from tests.flink.harness import missing_jdk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from tests.browser.upgraded_job import UpgradedJob

pytestmark = pytest.mark.browser

UPGRADE, REHEARSE, SENSOR = f"{JOB}_upgrade", f"{JOB}_rehearse", f"{JOB}_new_program"
HISTORY = f"/assets/{JOB}/flink_job?view=events"
TIMEOUT = 120_000


@pytest.fixture(scope="module")
def job(chromium: str) -> Iterator[UpgradedJob]:
    if reason := missing_jdk():
        pytest.skip(reason)
    # Not `tmp_path_factory`: pages show paths, and pictures of them are in the docs.
    with (
        tempfile.TemporaryDirectory(prefix="flink-", ignore_cleanup_errors=True) as directory,
        running_job(Path(directory)) as running,
    ):
        yield running


def locate(job: UpgradedJob, path: str) -> str:
    """The address of a page of the code location."""
    where = "{repositoryName}@{repositoryLocationName}".format(**job.deployment.location)
    return f"/locations/{where}/{path}"


def test_the_schedule_rehearses_the_upgrade_while_the_job_runs_on(job: UpgradedJob, page: Page) -> None:
    before = job.running
    show(
        job.deployment,
        page,
        locate(job, f"schedules/{JOB}_nightly_rehearsal"),
        "At 02:00 AM UTC",
        "Requests a rehearsal",
    )
    # As at two o'clock.
    page.get_by_text("Preview tick result").click()
    page.get_by_role("button", name="Continue").click()
    page.get_by_text("1 run requests").wait_for(timeout=TIMEOUT)
    page.get_by_role("button", name="Launch all").click()
    run, status = job.deployment.wait_for_runs(REHEARSE, 1)
    assert status == "SUCCESS"
    show(job.deployment, page, f"/runs/{run}", "the upgrade of orders would succeed; the job runs on")
    show(job.deployment, page, HISTORY, "the upgrade of orders would succeed", "predicted down time s", "migrate s")
    keep_picture(page, "rehearsal")
    assert job.running == before


def test_a_new_jar_is_requested_by_the_sensor_and_waits_for_an_approval(job: UpgradedJob, page: Page) -> None:
    before = job.running
    show(job.deployment, page, locate(job, f"sensors/{SENSOR}"), "Sensor has never run")
    # The box itself is not shown, but a switch.
    page.get_by_role("checkbox").first.dispatch_event("click")
    page.get_by_text("1 run requested").filter(visible=True).first.wait_for(timeout=TIMEOUT)
    keep_picture(page, "new-program")
    run, status = job.deployment.wait_for_runs(UPGRADE, 1)
    assert status == "SUCCESS"
    assert job.running == before
    show(job.deployment, page, f"/runs/{run}", "Launched by", "launch the job with approve: ")
    page.get_by_role("link", name="playground/setup").first.scroll_into_view_if_needed()
    keep_picture(page, "upgrade-waits")
    show(job.deployment, page, HISTORY, "an upgrade waits for an approval (migrated); nothing was stopped")


def test_the_launchpad_with_the_fingerprint_approves_it(job: UpgradedJob, page: Page) -> None:
    before = job.running
    show(job.deployment, page, HISTORY, "waits for the approval of", "migrate the state, and prove the result")
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="playground/setup").first.click()
    launchpad = opened.value
    launchpad.get_by_text("approve:").first.wait_for(timeout=TIMEOUT)
    keep_picture(launchpad, "upgrade-approval")
    launchpad.get_by_role("button", name="Launch Run").click()
    run, status = job.deployment.wait_for_runs(UPGRADE, 2)
    launchpad.close()
    assert status == "SUCCESS"
    assert job.running != before
    assert job.cluster.read_status(before) is JobStatus.FINISHED
    show(job.deployment, page, f"/runs/{run}", f"{JOB}_decide_upgrade", "RUN_SUCCESS", "savepoint for the new program")
    keep_picture(page, "upgrade-run")
    show(job.deployment, page, HISTORY, f"orders runs the new program, job {job.running}", "predicted down time s")
    keep_picture(page, "upgrade-done")


def test_a_program_that_needs_no_approval_is_upgraded_by_the_sensor_alone(job: UpgradedJob, page: Page) -> None:
    before = job.running
    job.release("v2-again", "v2")
    run, status = job.deployment.wait_for_runs(UPGRADE, 3)
    assert status == "SUCCESS"
    assert job.running != before
    show(job.deployment, page, f"/runs/{run}", "Launched by", f"orders runs the new program, job {job.running}")


def test_a_program_that_fails_brings_the_old_one_back_and_its_run_says_why(job: UpgradedJob, page: Page) -> None:
    before = job.running
    job.release("broken", "v2-again")
    run, status = job.deployment.wait_for_runs(UPGRADE, 4)
    assert status == "FAILURE"
    assert job.running != before
    reason = "IllegalStateException: no price service is configured"
    show(job.deployment, page, f"/runs/{run}", f"Failure: orders runs the old program again, job {job.running}", reason)
    show(job.deployment, page, HISTORY, "the upgrade has ended: went back", reason, "to start the old program")
    keep_picture(page, "upgrade-went-back")
