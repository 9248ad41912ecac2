"""The sensor `requests`: files that ask for operations, the runs that they get, and the results beside them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from state_pipelines.dagster.assets.rescaled_savepoint import RescaleConfig
from state_pipelines.dagster.sensors.requests import REQUEST_TAG
from state_pipelines.operations.rescale import KeyChoice
from state_pipelines.operations.retention.pins import read_pins
from state_pipelines.storage import resolve
from tests.dagster.conftest import SAVEPOINTS, build

if TYPE_CHECKING:
    from pathlib import Path

    from tests.dagster.conftest import Deployment


class Requests:
    """The sensor, tick by tick, as the daemon would call it."""

    def __init__(self, deployment: Deployment, directory: Path) -> None:
        self.directory = directory
        self.cursor: str | None = None
        self.skipped = ""
        self.instance = deployment.instance
        self.job = deployment.change(requests=str(directory)).job

    def write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.write_text(text)
        os.utime(path, (len(text), len(text)))

    def result(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.directory / f"{name}.result.json").read_text())
        return content

    def tick(self) -> list[dg.RunRequest]:
        name = self.job.prefix("requests")
        sensor = next(each for each in build(self.job).sensors or () if each.name == name)
        with dg.build_sensor_context(instance=self.instance, cursor=self.cursor) as context:
            result = sensor(context)
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor
        self.skipped = str(result.skip_reason.skip_message) if result.skip_reason else ""
        for added in result.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(added.partitions_def_name, list(added.partition_keys))
        return list(result.run_requests or ())

    def execute(self, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
        assert request.job_name is not None
        job = build(self.job).resolve_job_def(request.job_name)
        return job.execute_in_process(
            instance=self.instance,
            partition_key=request.partition_key,
            run_config=request.run_config,
            tags=dict(request.tags),
            raise_on_error=False,
        )


@pytest.fixture(scope="module")
def key(deployment: Deployment) -> str:
    return deployment.add("2.2")


@pytest.fixture
def requests(deployment: Deployment, key: str, tmp_path: Path) -> Requests:
    return Requests(deployment, tmp_path)


def test_a_request_becomes_one_run(requests: Requests, key: str) -> None:
    requests.write("more.yaml", f"snapshot: {key}\nparallelism: 4\nfiles: link\n")
    (request,) = requests.tick()
    assert (request.job_name, request.partition_key) == ("shop_rescale_snapshot", key)
    assert request.run_config["ops"]["shop__rescaled_savepoint"]["config"] == {
        "request": "parallelism: 4\n",
        "files": "link",
    }
    assert requests.tick() == []
    requests.write("more.yaml", f"snapshot: {key}\nparallelism: 40\n")
    (again,) = requests.tick()
    assert again.run_key != request.run_key


@pytest.mark.parametrize(
    ("text", "job", "config"),
    [
        ("operation: migrate, to: base", "migrate_snapshot", {"to": "base"}),
        ("operation: convert, format: heap", "convert_snapshot", {"format": "heap"}),
        ("operation: copy, target: /new", "convert_snapshot", {"format": "keep", "target": "/new"}),
        ("parallelism: 3", "rescale_snapshot", {"request": "parallelism: 3\n"}),
    ],
)
def test_every_operation_has_its_job(requests: Requests, text: str, job: str, config: dict[str, Any]) -> None:
    requests.write("a.yaml", f"{{snapshot: latest, {text}}}")
    (request,) = requests.tick()
    assert request.job_name == requests.job.prefix(job)
    assert all(each["config"] == config for each in request.run_config["ops"].values())


@pytest.mark.parametrize("name", ["latest", SAVEPOINTS["2.2"].name])
def test_a_snapshot_is_named_by_its_directory_or_is_the_latest(requests: Requests, key: str, name: str) -> None:
    requests.write("request.yml", f"snapshot: {name}\nmax_parallelism: 256\n")
    (request,) = requests.tick()
    assert request.partition_key == key


def test_a_snapshot_is_named_by_its_path(requests: Requests, key: str) -> None:
    path = f"{requests.job.roots[0]}/flink-2.2/{SAVEPOINTS['2.2'].name}"
    requests.write("request.yml", f"snapshot: {path}\nmax_parallelism: 256\n")
    (request,) = requests.tick()
    assert request.partition_key == key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parallelism: 3", "names no snapshot"),
        ("snapshot: latest", "asks for nothing"),
        ("snapshot: latest\nparalelism: 3", "does not know 'paralelism'"),
        ("snapshot: [", "not YAML"),
        ("snapshot: latest\nparallelism: 3\nfiles: move", "Choose from copy, link, reference"),
        ("snapshot: latest\noperators: {orders: {drop_keys: {}}}", "drop_keys of operators.orders names a file"),
        ("snapshot: latest\noperators: [orders]", "operators is not a mapping"),
        ("snapshot: latest\noperators: {orders: 3}", "operators.orders is not a mapping"),
    ],
)
def test_a_wrong_request_is_refused_once(requests: Requests, text: str, message: str) -> None:
    requests.write("wrong.yaml", text)
    assert requests.tick() == []
    assert message in requests.skipped
    assert message in requests.result("wrong.yaml")["error"]
    assert requests.result("wrong.yaml")["status"] == "refused"
    assert requests.tick() == []
    assert message not in requests.skipped


def test_a_migration_of_a_job_without_migrations_is_refused(requests: Requests) -> None:
    requests.job = requests.job.model_copy(update={"migrations": None})
    requests.write("a.yaml", "{operation: migrate, snapshot: latest}")
    assert requests.tick() == []
    assert "the job has no migrations" in requests.result("a.yaml")["error"]


def test_keys_stand_in_the_request(requests: Requests, key: str) -> None:
    requests.write("keys.yaml", f"snapshot: {key}\noperators: {{orders: {{keep_keys: [a, b]}}}}\n")
    (request,) = requests.tick()
    config = request.run_config["ops"]["shop__rescaled_savepoint"]["config"]
    (orders,) = RescaleConfig(**config).parse().operators
    assert orders.keys == KeyChoice(keys=("a", "b"))


def test_a_request_for_a_snapshot_that_is_not_there_waits(requests: Requests) -> None:
    requests.write("early.yaml", "snapshot: savepoint-to-come\nparallelism: 3\n")
    for _ in range(2):
        assert requests.tick() == []
        assert "there is no snapshot savepoint-to-come" in requests.skipped
    assert not (requests.directory / "early.yaml.result.json").exists()


def test_a_job_without_a_directory_has_no_such_sensor(deployment: Deployment) -> None:
    names = [sensor.name for sensor in build(deployment.job).sensors or ()]
    assert "shop_requests" not in names
    assert "shop_new_snapshots" in names


def test_the_result_of_a_run_is_written_beside_the_request(requests: Requests) -> None:
    requests.write("copy.yaml", "{operation: copy, snapshot: latest}")
    (request,) = requests.tick()
    assert requests.tick() == []
    assert not (requests.directory / "copy.yaml.result.json").exists()
    run = requests.execute(request)
    assert run.success
    requests.tick()
    result = requests.result("copy.yaml")
    assert (result["status"], result["run"], result["error"]) == ("succeeded", run.run_id, None)
    path = result["results"]["shop/converted_savepoint"]["path"]
    assert path.startswith(requests.job.results)
    assert requests.execute(request).success
    before = requests.result("copy.yaml")
    requests.tick()
    assert requests.result("copy.yaml") == before


def test_the_reason_of_a_failed_run_is_written(requests: Requests, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("")
    requests.write("copy.yaml", f"{{operation: copy, snapshot: latest, target: {tmp_path / 'there'}}}")
    (request,) = requests.tick()
    assert not requests.execute(request).success
    requests.tick()
    result = requests.result("copy.yaml")
    assert result["status"] == "failed"
    assert str(tmp_path / "there") in result["error"]


def test_a_snapshot_is_pinned_and_unpinned_by_request(requests: Requests) -> None:
    (root,) = requests.job.roots
    requests.write("pin.yaml", "{operation: pin, snapshot: latest, reason: before the release}")
    requests.write("unpin.yaml", "{operation: unpin, snapshot: latest}")
    pin, unpin = requests.tick()
    assert (pin.job_name, pin.partition_key) == ("shop_pin_snapshot", None)
    assert requests.execute(pin).success
    (pinned,) = read_pins(resolve(root))
    assert (pinned.path, pinned.reason) == (f"flink-2.2/{SAVEPOINTS['2.2'].name}", "before the release")
    requests.tick()
    assert requests.result("pin.yaml")["results"]["shop__pin_snapshot"]["pinned"] is True
    assert requests.execute(unpin).success
    assert read_pins(resolve(root)) == ()


def test_a_cleared_cursor_runs_nothing_twice(requests: Requests) -> None:
    requests.write("copy.yaml", "{operation: copy, snapshot: latest}")
    (request,) = requests.tick()
    requests.cursor = None
    (same,) = requests.tick()
    # The daemon starts one run per key.
    assert same.run_key == request.run_key == request.tags[REQUEST_TAG]
    requests.execute(request)
    requests.tick()
    requests.cursor = None
    assert requests.tick() == []


def test_a_result_that_cannot_be_written_is_tried_again(requests: Requests) -> None:
    blocked = requests.directory / "wrong.yaml.result.json"
    blocked.mkdir()
    requests.write("wrong.yaml", "snapshot: latest")
    requests.tick()
    assert str(blocked) in requests.skipped
