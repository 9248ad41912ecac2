"""The sensor `failed_runs`: the log and the webhook."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from state_pipelines.dagster.run_outcomes import read_outcome
from state_pipelines.dagster.sensors.failed_runs import describe_failure, post
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


def test_the_message_names_job_snapshot_and_reason(deployment: Deployment) -> None:
    key = deployment.add("2.2")
    result = deployment.run("convert_snapshot", key, converted_savepoint={"target": str(deployment.root)})
    assert not result.success
    run = deployment.instance.get_run_by_id(result.run_id)
    assert run is not None
    context = dg.build_run_status_sensor_context(
        sensor_name="failed",
        dagster_instance=deployment.instance,
        dagster_run=run,
        dagster_event=result.get_run_failure_event(),
    ).for_run_failure()
    message = describe_failure(deployment.job, context)
    assert message["snapshot"] == key
    assert str(message["text"]).startswith(f"shop_convert_snapshot failed for {key}: shop__converted_savepoint: ")
    assert str(deployment.root) in str(message["error"])
    json.dumps(message)


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


def test_a_webhook_that_refuses_fails_the_tick_without_showing_its_address() -> None:
    with listen(500) as (url, _), pytest.raises(dg.Failure, match="500") as caught:
        post(url, {"text": ""})
    assert "secret-token" not in str(caught.value)


def test_every_job_has_the_sensor(deployment: Deployment) -> None:
    assert "shop_failed_runs" in [sensor.name for sensor in build(deployment.job).sensors or ()]
