"""The jobs `rescale_snapshot` and `rescale_path`, and the sensor that takes requests, on real Spark."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from assets.definitions import defs
from assets.requests import rescale_requests
from assets.rescaling import KEY, PROOF, RescaleConfig
from resources import SparkResource, StorageResource
from state_pipelines.operations.dump import dump
from state_pipelines.operations.publishing import FileMode
from state_pipelines.operations.rescaling import KeyChoice
from state_pipelines.snapshot import open_snapshot
from tests.deployment.conftest import SAVEPOINTS
from tests.operations.rescaling.test_rescaling import gather

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.deployment.conftest import Deployment


def run(deployment: Deployment, key: str, **config: Any) -> dg.ExecuteInProcessResult:
    return defs.resolve_job_def("rescale_snapshot").execute_in_process(
        partition_key=key,
        instance=deployment.instance,
        raise_on_error=False,
        resources={"storage": deployment.storage, "spark": SparkResource()},
        run_config={"ops": {KEY.to_python_identifier(): {"config": config}}},
    )


@pytest.fixture(scope="module")
def key(deployment: Deployment) -> str:
    return deployment.add("2.2")


@pytest.fixture(scope="module")
def rescaled(deployment: Deployment, key: str, spark: SparkSession) -> dg.ExecuteInProcessResult:
    return run(deployment, key, parallelism=3, request="{max_parallelism: 512, operators: {orders: {uid: orders-v2}}}")


def read_metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = result.asset_materializations_for_node(KEY.to_python_identifier())
    return {name: value.value for name, value in event.metadata.items()}


def test_the_new_snapshot_has_the_state_elsewhere(rescaled: dg.ExecuteInProcessResult) -> None:
    assert rescaled.success
    new = open_snapshot(read_metadata(rescaled)["path"])
    assert {(each.parallelism, each.max_parallelism) for each in new.operators} == {(3, 512)}
    old = [
        line | ({"op": "orders-v2"} if line["op"] == "orders" else {})
        for line in dump(open_snapshot(str(SAVEPOINTS["2.2"])))
    ]
    assert gather(dump(new)) == gather(old)


def test_the_metadata_tell_what_became_of_each_operator(rescaled: dg.ExecuteInProcessResult) -> None:
    metadata = read_metadata(rescaled)
    rows = {each.data["operator"]: each.data for each in metadata["operators"].records}
    assert rows["orders → orders-v2"]["parallelism"] == "2 → 3"
    assert rows["orders → orders-v2"]["keyed state"] == "records (other key groups)"
    assert rows["pricing"]["operator state"] == "ranges of bytes"
    assert metadata["dagster/row_count"] == 1398


def test_every_check_passes(rescaled: dg.ExecuteInProcessResult, key: str) -> None:
    checks = rescaled.get_asset_check_evaluations()
    assert {(check.check_name, check.passed, check.partition) for check in checks} == {
        (name, True, key) for name in PROOF
    }


def test_what_is_impossible_writes_nothing(
    deployment: Deployment, key: str, rescaled: dg.ExecuteInProcessResult
) -> None:
    before = deployment.results
    result = run(deployment, key, parallelism=200)
    assert not result.success
    assert deployment.results == before


def test_any_snapshot_is_rescaled_by_its_path(deployment: Deployment, spark: SparkSession, tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "snapshot": str(SAVEPOINTS["1.20"]),
        "target": str(tmp_path / "new"),
        "max_parallelism": 256,
    }
    result = defs.resolve_job_def("rescale_path").execute_in_process(
        instance=deployment.instance,
        resources={"storage": deployment.storage, "spark": SparkResource()},
        run_config={"ops": {"rescale": {"config": config}}},
    )
    assert result.output_for_node("rescale") == str(tmp_path / "new")
    uids = deployment.storage.declarations["uids"]
    old, new = (open_snapshot(path, uids=uids) for path in (config["snapshot"], config["target"]))
    assert gather(dump(new)) == gather(dump(old))


class Requests:
    """The sensor, tick by tick."""

    def __init__(self, deployment: Deployment, directory: Path) -> None:
        self.directory = directory
        self.cursor: str | None = None
        self.skipped = ""
        self.instance = deployment.instance
        self.storage = StorageResource(**{**deployment.storage.model_dump(), "requests": str(directory)})

    def write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.write_text(text)
        os.utime(path, (len(text), len(text)))

    def tick(self) -> list[dg.RunRequest]:
        with dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, resources={"storage": self.storage}
        ) as context:
            result = rescale_requests(context)
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor
        self.skipped = str(result.skip_reason.skip_message) if result.skip_reason else ""
        return list(result.run_requests or ())


@pytest.fixture
def requests(deployment: Deployment, key: str, tmp_path: Path) -> Requests:
    return Requests(deployment, tmp_path)


def test_a_request_becomes_one_run(requests: Requests, key: str) -> None:
    requests.write("more.yaml", f"snapshot: {key}\nparallelism: 4\nfiles: link\n")
    (request,) = requests.tick()
    assert request.partition_key == key
    assert request.run_config["ops"][KEY.to_python_identifier()]["config"] == {
        "request": "parallelism: 4\n",
        "files": "link",
    }
    assert requests.tick() == []
    requests.write("more.yaml", f"snapshot: {key}\nparallelism: 40\n")
    (again,) = requests.tick()
    assert again.run_key != request.run_key


@pytest.mark.parametrize("name", ["latest", SAVEPOINTS["2.2"].name])
def test_a_snapshot_is_named_by_its_directory_or_is_the_latest(requests: Requests, key: str, name: str) -> None:
    requests.write("request.yml", f"snapshot: {name}\nmax_parallelism: 256\n")
    (request,) = requests.tick()
    assert request.partition_key == key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parallelism: 3", "names no snapshot"),
        ("snapshot: latest", "nothing is asked for"),
        ("snapshot: latest\nparalelism: 3", "does not know 'paralelism'"),
        ("snapshot: [", "not YAML"),
        ("snapshot: latest\nparallelism: 3\nfiles: move", "files is 'move'. Choose from copy, link, reference"),
        (
            "snapshot: latest\noperators: {orders: {keep_keys: {file: keys.jsonl}}}",
            "keep_keys of operators.orders names a file, which a run does not look for. Write the keys",
        ),
        ("snapshot: latest\noperators: {orders: {drop_keys: {}}}", "drop_keys of operators.orders names a file"),
        ("snapshot: latest\noperators: [orders]", "operators is not a mapping"),
        ("snapshot: latest\noperators: {orders: 3}", "operators.orders is not a mapping"),
    ],
)
def test_a_wrong_request_is_told_once(requests: Requests, text: str, message: str) -> None:
    requests.write("wrong.yaml", text)
    assert requests.tick() == []
    assert message in requests.skipped
    assert requests.tick() == []
    assert message not in requests.skipped


def test_keys_stand_in_the_request(requests: Requests, key: str) -> None:
    requests.write("keys.yaml", f"snapshot: {key}\noperators: {{orders: {{keep_keys: [a, b]}}}}\n")
    (request,) = requests.tick()
    config = request.run_config["ops"][KEY.to_python_identifier()]["config"]
    (orders,) = RescaleConfig(**config).parse().operators
    assert orders.keys == KeyChoice(keys=("a", "b"))


@pytest.mark.parametrize("files", list(FileMode))
def test_the_configuration_takes_every_word_for_files(files: FileMode) -> None:
    config = RescaleConfig(parallelism=3, files=files.value)
    assert (config.file_mode, config.parse().parallelism) == (files, 3)


def test_a_request_for_a_snapshot_that_is_not_there_waits(requests: Requests) -> None:
    requests.write("early.yaml", "snapshot: savepoint-to-come\nparallelism: 3\n")
    for _ in range(2):
        assert requests.tick() == []
        assert "there is no snapshot savepoint-to-come" in requests.skipped


def test_without_a_directory_nothing_is_asked_for(requests: Requests) -> None:
    requests.storage = StorageResource(**{**requests.storage.model_dump(), "requests": ""})
    assert requests.tick() == []
