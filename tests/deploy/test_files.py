"""The files of `deploy/`: they parse, agree with each other and with the code, and name what exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click import Option
from dagster._core.instance.config import dagster_instance_config_schema
from dagster._core.workspace.config_schema import process_workspace_config

from state_pipelines.cli import check
from tests.deploy.services import ROOT

if TYPE_CHECKING:
    from pathlib import Path

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
VALUES: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes" / "values.yaml").read_text())
WORKFLOW: dict[str, Any] = yaml.safe_load((DEPLOY / "github" / "state-verdict.yaml").read_text())
APPLICATION = ("code-location", "webserver", "daemon", "spark-master", "spark-worker")


def known_variables() -> set[str]:
    """Variables that the deployment of this repository reads."""
    files = [*(ROOT / "resources").rglob("*.py"), *(ROOT / "assets").rglob("*.yaml"), *(ROOT / "assets").rglob("*.py")]
    files += (ROOT / "state_pipelines").rglob("*.py")
    return {name for file in files for name in re.findall(r"STATE_PIPELINES_[A-Z_]+", file.read_text())}


@pytest.mark.parametrize("file", sorted(DEPLOY.rglob("*.yaml")), ids=lambda file: file.name)
def test_files_are_yaml(file: Path) -> None:
    assert all(isinstance(each, dict) for each in yaml.safe_load_all(file.read_text()))


def test_the_instance_is_one_that_dagster_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    from dagster._config import process_config

    for name, value in COMPOSE["services"]["daemon"]["environment"].items():
        monkeypatch.setenv(name, value)
    config = yaml.safe_load((DEPLOY / "dagster.yaml").read_text())
    result = process_config(dagster_instance_config_schema(), config)
    assert result.success, result.errors


def test_the_workspace_is_one_that_dagster_takes() -> None:
    result = process_workspace_config(yaml.safe_load((DEPLOY / "workspace.yaml").read_text()))
    assert result.success, result.errors


def test_the_workspace_names_the_service_of_the_code() -> None:
    (location,) = yaml.safe_load((DEPLOY / "workspace.yaml").read_text())["load_from"]
    assert location["grpc_server"]["host"] in COMPOSE["services"]
    assert f"--port {location['grpc_server']['port']}" in " ".join(
        COMPOSE["services"]["code-location"]["healthcheck"]["test"]
    )


@pytest.mark.parametrize("service", APPLICATION)
def test_services_set_variables_that_exist(service: str) -> None:
    names = {each for each in COMPOSE["services"][service]["environment"] if each.startswith("STATE_PIPELINES_")}
    assert names
    assert names <= known_variables()


def test_the_chart_sets_variables_that_exist() -> None:
    (deployment,) = VALUES["dagster-user-deployments"]["deployments"]
    assert {each["name"] for each in deployment["env"]} <= known_variables()


def test_the_instance_reads_variables_that_the_services_set() -> None:
    wanted = set(re.findall(r"env: (\w+)", (DEPLOY / "dagster.yaml").read_text()))
    for service in ("code-location", "webserver", "daemon"):
        assert wanted <= COMPOSE["services"][service]["environment"].keys()


def test_storage_options_and_options_of_spark_can_be_read() -> None:
    environment = COMPOSE["services"]["code-location"]["environment"]
    options = json.loads(environment["STATE_PIPELINES_STORAGE_OPTIONS"].replace("$$", "$"))
    assert options["s3://flink"]["key"] == "${S3_KEY}"
    assert yaml.safe_load(environment["STATE_PIPELINES_SPARK_CONF"])["spark.driver.host"] == "code-location"
    (deployment,) = VALUES["dagster-user-deployments"]["deployments"]
    values = {each["name"]: each["value"] for each in deployment["env"]}
    assert json.loads(values["STATE_PIPELINES_STORAGE_OPTIONS"])
    assert all(each.startswith("spark.") for each in yaml.safe_load(values["STATE_PIPELINES_SPARK_CONF"]))


def test_there_are_two_workers() -> None:
    assert COMPOSE["services"]["spark-worker"]["deploy"]["replicas"] == 2


def test_dependencies_of_services_exist() -> None:
    for service in COMPOSE["services"].values():
        assert set(service.get("depends_on", ())) <= COMPOSE["services"].keys()


def test_variables_of_the_compose_file_are_in_the_example() -> None:
    wanted = set(re.findall(r"(?<!\$)\$\{(\w+)\}", (DEPLOY / "compose.yaml").read_text()))
    given = {line.partition("=")[0] for line in (DEPLOY / "example.env").read_text().splitlines() if "=" in line}
    assert wanted == given


def test_the_image_copies_files_that_exist() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY") and "--from" not in line]
    sources = [name for names in copied for name in names if not name.startswith("--")]
    assert sources
    assert [name for name in sources if not (ROOT / name).exists()] == []


def test_the_workflow_calls_check_with_options_that_exist() -> None:
    (script,) = [each["run"] for each in WORKFLOW["jobs"]["verdict"]["steps"] if "check" in each.get("run", "")][:1]
    options = {text for each in check.command.params if isinstance(each, Option) for text in each.opts}
    call = next(line for line in script.splitlines() if "state-pipelines check" in line)
    used = set(re.findall(r"--[a-z-]+", call))
    assert used
    assert used <= options


def test_scripts_of_the_shell_are_valid() -> None:
    scripts = [(DEPLOY / "spark-node.sh").read_text()]
    scripts += [each["run"] for each in WORKFLOW["jobs"]["verdict"]["steps"] if "run" in each]
    for script in scripts:
        # Expressions of GitHub are replaced before the shell sees them.
        text = re.sub(r"\$\{\{.*?\}\}", "value", script)
        assert subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True, check=False).stderr == ""


def test_docker_accepts_the_compose_file() -> None:
    if shutil.which("docker") is None:
        pytest.skip("docker is not installed")
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker has no compose")
    command = ["docker", "compose", "--env-file", str(DEPLOY / "example.env"), "-f", str(DEPLOY / "compose.yaml")]
    done = subprocess.run([*command, "config", "--quiet"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
