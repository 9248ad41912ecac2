"""The sensor `failed_runs`: the log and the webhook."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from state_pipelines.dagster import FlinkJob
from state_pipelines.dagster.failures import read_outcome
from state_pipelines.dagster.sensors import JOB_TAG, REPORTED_TAG, build_failed_runs, post
from tests.dagster.conftest import build
from tests.dagster.failing_jobs import execute_failing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.dagster.conftest import Deployment


@contextmanager
def listen(status: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A webhook that keeps what is posted to it."""
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/secret-token", received
        finally:
            server.shutdown()
            thread.join()


def test_the_reason_of_a_failure_has_no_secrets() -> None:
    def fails() -> None:
        raise OSError("cannot connect to s3://user:secretpw1@bucket/x" + "y" * 20_000)

    with execute_failing(fails) as (instance, run, _):
        error = read_outcome(instance, run).error
    assert "cannot connect to s3://" in error
    assert "secretpw1" not in error
    assert len(error) < 11_000


def test_the_webhook_gets_json() -> None:
    with listen(200) as (url, received):
        post(url, {"text": "shop_convert_snapshot failed"})
    assert received == [{"text": "shop_convert_snapshot failed"}]


def test_a_webhook_that_refuses_does_not_show_its_address() -> None:
    with listen(500) as (url, _), pytest.raises(dg.Failure, match="500") as caught:
        post(url, {"text": ""})
    assert "secret-token" not in str(caught.value)


def test_every_job_has_the_sensor(deployment: Deployment) -> None:
    assert "shop_failed_runs" in [sensor.name for sensor in build(deployment.job).sensors or ()]


def fail_asset(job: str, name: str) -> dg.AssetsDefinition:
    @dg.asset(key=[job, name])
    def asset() -> None:
        raise dg.Failure(f"{job}/{name} cannot be read")

    return asset


def make_asset(job: str, name: str) -> dg.AssetsDefinition:
    @dg.asset(key=[job, name])
    def asset() -> None:
        pass

    return asset


AUDIT = dg.AssetKey(["shop", "restore_audit"])
OTHER = dg.AssetKey(["bank", "restore_audit"])


@dataclass
class Watched:
    """The failures of one instance, and the sensors of two Flink jobs that watch them."""

    instance: dg.DagsterInstance
    webhook: str | None = None
    cursors: dict[str, str | None] = field(default_factory=dict)

    def evaluate(self, name: str, key: dg.AssetKey) -> str:
        """Evaluate the sensor of a Flink job; return what its tick says."""
        job = FlinkJob(name=name, roots=("/none",), results="/none", webhook=self.webhook)
        sensor = build_failed_runs(job, jobs=[f"{name}_audit_snapshot"], assets=[key])
        sensors = [build_failed_runs(job.model_copy(update={"name": each}), jobs=[], assets=[]) for each in JOBS]
        with dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursors.get(name),
            repository_def=dg.Definitions(sensors=sensors).get_repository_def(),
        ) as context:
            found = sensor(context)
            self.cursors[name] = context.cursor
        assert isinstance(found, dg.SkipReason)
        return found.skip_message or ""

    def evaluate_both(self) -> dict[str, str]:
        return {name: self.evaluate(name, key) for name, key in JOBS.items()}


JOBS = {"shop": AUDIT, "bank": OTHER}


@pytest.fixture
def watched() -> Iterator[Watched]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Watched(instance)


def materialize(instance: dg.DagsterInstance, *assets: dg.AssetsDefinition, **tags: str) -> str:
    """Run assets as the button *Materialize*, automation and backfills do; return the id of the run."""
    job = dg.Definitions(assets=assets).resolve_implicit_global_asset_job_def()
    result = job.execute_in_process(
        instance=instance, raise_on_error=False, tags={name.replace("_", "/"): text for name, text in tags.items()}
    )
    assert result.job_def.name == "__ASSET_JOB"
    return result.run_id


def test_failed_materialisations_are_reported_once_with_their_assets(watched: Watched) -> None:
    materialize(watched.instance, fail_asset("shop", "restore_audit"))
    assert watched.evaluate_both() == {
        "shop": "No failed runs",
        "bank": "No failed runs",
    }
    materialize(watched.instance, make_asset("shop", "restore_audit"))
    materialize(watched.instance, fail_asset("team", "report"))
    run_id = materialize(
        watched.instance,
        fail_asset("shop", "restore_audit"),
        make_asset("team", "report"),
        dagster_partition="chk-7-1a2b3c@0c41d2aa",
        dagster_backfill="nightly",
    )
    with listen(200) as (watched.webhook, received):
        said = watched.evaluate_both()
        assert watched.evaluate_both() == {"shop": "No failed runs", "bank": "No failed runs"}
    assert said["bank"] == "No failed runs"
    assert said["shop"].startswith("shop/restore_audit failed for chk-7-1a2b3c@0c41d2aa: shop__restore_audit: shop/")
    (message,) = received
    text = "shop__restore_audit: shop/restore_audit cannot be read"
    assert message == {
        "text": f"shop/restore_audit failed for chk-7-1a2b3c@0c41d2aa: {text}",
        "flink_job": "shop",
        "job": "__ASSET_JOB",
        "run": run_id,
        "backfill": "nightly",
        "snapshot": "chk-7-1a2b3c@0c41d2aa",
        "failed_assets": ["shop/restore_audit"],
        "error": text,
        "failed_checks": {},
    }


def test_a_run_with_assets_of_two_jobs_is_reported_once_by_the_one_that_failed(watched: Watched) -> None:
    watched.evaluate_both()
    materialize(watched.instance, make_asset("shop", "restore_audit"), fail_asset("bank", "restore_audit"))
    both = materialize(watched.instance, fail_asset("shop", "restore_audit"), fail_asset("bank", "restore_audit"))
    with listen(200) as (watched.webhook, received):
        watched.evaluate_both()
    assert sorted((each["flink_job"], *each["failed_assets"]) for each in received) == [
        ("bank", "bank/restore_audit"),
        ("shop", "bank/restore_audit", "shop/restore_audit"),
    ]
    run = watched.instance.get_run_by_id(both)
    assert run is not None
    assert REPORTED_TAG in run.tags


def test_the_sensors_of_jobs_with_other_webhooks_each_report_a_run_of_both(watched: Watched) -> None:
    watched.evaluate_both()
    materialize(watched.instance, fail_asset("shop", "restore_audit"), fail_asset("bank", "restore_audit"))
    with listen(200) as (first, at_the_first), listen(200) as (other, at_the_other):
        watched.webhook = first
        watched.evaluate("shop", AUDIT)
        watched.webhook = other
        watched.evaluate("bank", OTHER)
    assert [each["flink_job"] for each in (*at_the_first, *at_the_other)] == ["shop", "bank"]


def test_runs_of_own_jobs_are_reported_by_their_tag(watched: Watched) -> None:
    watched.evaluate_both()

    @dg.op
    def fails() -> None:
        raise dg.Failure("no")

    @dg.job(tags={JOB_TAG: "bank"})
    def nightly() -> None:
        fails()

    nightly.execute_in_process(instance=watched.instance, raise_on_error=False)
    assert watched.evaluate_both() == {"shop": "No failed runs", "bank": "nightly failed: fails: no"}


def test_a_message_that_the_webhook_refuses_is_sent_again(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.evaluate_both()
    materialize(watched.instance, fail_asset("shop", "restore_audit"))
    with listen(500) as (watched.webhook, refused):
        assert "is not reported: the webhook did not accept the message: 500" in watched.evaluate("shop", AUDIT)
        # Nothing has changed, so that the tick may fail: it has no cursor to keep.
        with pytest.raises(dg.Failure, match="500") as caught:
            watched.evaluate("shop", AUDIT)
    assert "secret-token" not in str(caught.value)
    assert len(refused) == 2
    kept = watched.cursors["shop"]
    with listen(200) as (watched.webhook, received):
        assert watched.evaluate("shop", AUDIT).startswith("shop/restore_audit failed: ")
        assert watched.evaluate("shop", AUDIT) == "No failed runs"
    assert len(received) == 1
    materialize(watched.instance, fail_asset("shop", "restore_audit"))
    monkeypatch.setattr("state_pipelines.dagster.sensors._REPEATED_FOR", -1)
    with listen(500) as (watched.webhook, _):
        assert "is not tried again" in watched.evaluate("shop", AUDIT)
        assert watched.evaluate("shop", AUDIT) == "No failed runs"
    assert json.loads(kept or "")["undelivered"]


def test_the_cursor_of_dagsters_own_sensor_of_failures_is_continued(watched: Watched) -> None:
    materialize(watched.instance, fail_asset("shop", "restore_audit"))
    watched.cursors["shop"] = '{"__class__": "RunStatusSensorCursor", "record_id": 0, "update_timestamp": null}'
    assert watched.evaluate("shop", AUDIT).startswith("shop/restore_audit failed: ")
