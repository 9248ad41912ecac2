"""The pages of a running job, whose cluster is a server that answers as Flink's REST endpoint does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.browser.pictures import keep_picture
from tests.browser.project import PAYMENTS
from tests.browser.test_ui import show
from tests.clusters import recorded_job
from tests.clusters.recorded_job import EXPIRED, arrange, complete, fail

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.project import Deployment
    from tests.clusters.servers import Server

pytestmark = pytest.mark.browser


def test_a_running_job_is_watched(
    deployment: Deployment, flink: Server, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_job, "MILLIS", int(time.time() * 1000))
    failed = fail(17, 25, EXPIRED)
    arrange(flink, *(complete(number, 10 * (20 - number)) for number in (19, 18)), failed, *_complete_older())
    deployment.start_sensor(f"{PAYMENTS}_job_health")
    deployment.wait_for({f"{PAYMENTS}/job_health": 1})
    checks = deployment.list_checks(f"{PAYMENTS}/job_health")
    assert checks == {
        "job_runs": "SUCCEEDED",
        "recent_checkpoint": "SUCCEEDED",
        "checkpoints_succeed": "SUCCEEDED",
        "checkpoints_are_fast": "SUCCEEDED",
        "recent_savepoint": "FAILED",
        "state_has_room": "SUCCEEDED",
    }
    show(deployment, page, f"/assets/{PAYMENTS}/job_health?view=overview", "RUNNING", "CHECKPOINT_EXPIRED")
    keep_picture(page, "job-health")
    show(
        deployment,
        page,
        f"/assets/{PAYMENTS}/job_health?view=checks&checkDetail=recent_savepoint",
        "no savepoint was taken",
    )
    keep_picture(page, "job-health-checks")


def _complete_older() -> list[dict[str, object]]:
    return [complete(number, 10 * (20 - number)) for number in range(16, 5, -1)]
