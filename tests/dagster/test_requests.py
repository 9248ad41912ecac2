"""The sensor `requests`: files that ask for operations, the runs that they get, and the results beside them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import dagster as dg
import pytest

from state_pipelines.dagster import sensors
from state_pipelines.dagster.assets.savepoints import RescaleConfig
from state_pipelines.dagster.sensors import REQUEST_TAG, plan_run
from state_pipelines.errors import StorageError
from state_pipelines.operations.inventory import update_inventory
from state_pipelines.operations.requests import list_requests
from state_pipelines.operations.rescale.rescale_request import KeyChoice
from state_pipelines.operations.retention.own_directory import read_pins
from state_pipelines.storage import Location, resolve
from tests.dagster.conftest import SAVEPOINTS, build

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from state_pipelines.dagster import FlinkJob
    from state_pipelines.dagster.sensors import Plan
    from state_pipelines.operations.requests import Request, RequestFile
    from tests.dagster.conftest import Deployment

VERIFY = "{operation: verify, snapshot: latest}"


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
        ("snapshot: latest\noperators: {orders: {drop_keys: {}}}", "operators.orders.drop_keys names a file"),
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
    orders = RescaleConfig(**config).parse().operators["orders"]
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
    assert requests.result("pin.yaml")["results"]["shop_pin"]["pinned"] is True
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
    blocked.rmdir()
    requests.tick()
    assert requests.result("wrong.yaml")["status"] == "refused"


# One file that stops the others, runs twice or is lost


@pytest.mark.parametrize("text", ["bad: 1", VERIFY])
@pytest.mark.parametrize("name", [b"x\xff.yaml", b"x\n.yaml", b"x" * 220 + b".yaml"])
def test_a_name_that_no_run_can_have_is_refused(requests: Requests, name: bytes, text: str) -> None:
    path = requests.directory / os.fsdecode(name)
    path.write_text(text)
    requests.write("z.yaml", VERIFY)
    (run,) = requests.tick()
    assert run.run_key is not None
    assert "z.yaml" in run.run_key
    if len(name) < 200:
        assert "the name" in requests.result(path.name)["error"]
    requests.tick()
    requests.skipped.encode()


def test_a_large_file_in_the_place_of_a_result_is_not_read(requests: Requests) -> None:
    requests.write("a.yaml", VERIFY)
    (file,) = list_requests(resolve(str(requests.directory)))
    content = {"mark": file.mark, "more": "x" * (2 << 20)}
    (requests.directory / "a.yaml.result.json").write_text(json.dumps(content))
    assert len(requests.tick()) == 1


def change_after_listing(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Let something happen once, between the first listing and the reading of the files."""
    changes = [change]

    def list_and_change(directory: Location) -> list[RequestFile]:
        files = list_requests(directory)
        if changes:
            changes.pop()()
        return files

    monkeypatch.setattr(sensors, "list_requests", list_and_change)


@pytest.mark.parametrize("before", [VERIFY, "wrong: 1"])
def test_a_request_that_is_replaced_while_it_is_read_runs_once(
    requests: Requests, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    requests.write("a.yaml", before)
    change_after_listing(monkeypatch, lambda: requests.write("a.yaml", "{snapshot: latest, parallelism: 88}"))
    assert requests.tick() == []
    (run,) = requests.tick()
    assert run.job_name == "shop_rescale_snapshot"
    assert requests.tick() == []
    assert not (requests.directory / "a.yaml.result.json").exists()


def test_a_request_that_is_removed_while_it_is_read_has_no_result(
    requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests.write("a.yaml", VERIFY)
    requests.write("b.yaml", VERIFY)
    change_after_listing(monkeypatch, (requests.directory / "a.yaml").unlink)
    assert len(requests.tick()) == 1
    assert [each.name for each in requests.directory.iterdir()] == ["b.yaml"]


def test_a_request_waits_while_the_storage_fails(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    fail = Mock(side_effect=StorageError("no connection", transient=True))
    requests.write("a.yaml", VERIFY)
    requests.write("b.yaml", VERIFY)
    with monkeypatch.context() as patch:
        patch.setattr("state_pipelines.dagster.storage.update_inventory", fail)
        assert requests.tick() == []
        assert "no connection" in requests.skipped
        assert fail.call_count == 1
        patch.setattr("state_pipelines.operations.requests.read_file", fail)
        assert requests.tick() == []
    assert not (requests.directory / "a.yaml.result.json").exists()
    assert len(requests.tick()) == 2


def test_an_unexpected_error_concerns_one_request(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(job: FlinkJob, request: Request) -> Plan:
        if request.operation == "pin":
            raise ZeroDivisionError
        return plan_run(job, request)

    monkeypatch.setattr(sensors, "plan_run", plan)
    requests.write("a.yaml", "{operation: pin, snapshot: latest}")
    requests.write("b.yaml", VERIFY)
    assert len(requests.tick()) == 1
    assert requests.tick() == []
    assert "a.yaml: waits: ZeroDivisionError" in requests.skipped


def test_waiting_requests_do_not_stop_others(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensors, "MOST_REQUESTS_PER_TICK", 1)
    for name in ("a", "b"):
        requests.write(f"{name}.yaml", f"{{operation: verify, snapshot: to-come-{name}}}")
    requests.tick()
    requests.tick()
    requests.write("c.yaml", VERIFY)
    assert len(requests.tick()) == 1
    # They take turns.
    for name in ("a", "b", "a"):
        requests.tick()
        assert f"no snapshot to-come-{name}" in requests.skipped
        assert "1 requests wait for the next tick" in requests.skipped


def test_a_tick_ends_before_dagster_ends_it(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    requests.write("a.yaml", VERIFY)
    assert len(requests.tick()) == 1
    monkeypatch.setattr(sensors, "SECONDS", -1)
    requests.write("b.yaml", VERIFY)
    requests.write("c.yaml", VERIFY)
    assert [len(requests.tick()) for _ in range(3)] == [1, 1, 0]


def test_the_roots_are_listed_once_per_tick(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    update = Mock(wraps=update_inventory)
    monkeypatch.setattr("state_pipelines.dagster.storage.update_inventory", update)
    for name in ("a", "b", "c"):
        requests.write(f"{name}.yaml", VERIFY)
    assert len(requests.tick()) == 3
    assert update.call_count == 1


def test_a_request_of_another_job_is_another_one(requests: Requests, deployment: Deployment, key: str) -> None:
    requests.write("shared.yaml", VERIFY)
    (run,) = requests.tick()
    requests.execute(run)
    directory = requests.directory / "other"
    directory.mkdir()
    other = Requests(deployment, directory)
    other.job = other.job.model_copy(update={"name": "other"})
    other.write("shared.yaml", VERIFY)
    (request,) = other.tick()
    assert request.run_key != run.run_key
    assert other.tick() == []
    assert not (directory / "shared.yaml.result.json").exists()


def test_a_request_whose_run_does_not_exist_fails(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    requests.write("lost.yaml", VERIFY)
    requests.tick()
    monkeypatch.setattr(sensors, "LOST_AFTER", -1)
    requests.tick()
    assert requests.result("lost.yaml")["status"] == "failed"
    assert "the run does not exist" in requests.result("lost.yaml")["error"]


# Secrets, and files elsewhere


@pytest.mark.parametrize(
    "text",
    [
        "operation: copy, target: 's3://user:secretpw1@bucket/x'",
        "operation: copy, target: 'https://host/x?sig=secretpw1'",
        "take: {a: {from: 's3://user:secretpw1@bucket/x'}}",
        "take: 's3://user-with-a-long-name-that-is-cut-after-60:secretpw1-and-so-on@bucket/x'",
        "merge: {with: ['gs://secretpw1@bucket/x']}",
        "operation: pin, reason: ['s3://user-with-a-long-name-that-is-cut-after:secretpw1-and-so-on@bucket']",
        "operation: pin, 's3://user-with-a-long-name-that-is-cut-after:secretpw1-and-so-on@bucket': 1",
        "] s3://u:secretpw1-and-so-on-and-so-on-and-so-on-and-so-on@bucket",
    ],
)
def test_a_request_with_a_secret_is_refused_without_it(requests: Requests, text: str) -> None:
    requests.write("a.yaml", f"{{snapshot: latest, {text}}}")
    assert requests.tick() == []
    assert requests.result("a.yaml")["status"] == "refused"
    assert "secretpw1" not in f"{requests.skipped} {requests.result('a.yaml')}"


def test_a_link_to_a_file_elsewhere_is_refused(requests: Requests, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "file"
    elsewhere.write_text(VERIFY)
    (requests.directory / "a.yaml").symlink_to(elsewhere)
    requests.write("target", VERIFY)
    (requests.directory / "b.yaml").symlink_to("target")
    (run,) = requests.tick()
    assert run.run_key is not None
    assert "b.yaml" in run.run_key
    assert "a link to a file outside" in requests.result("a.yaml")["error"]
