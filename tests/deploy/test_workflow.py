"""The workflow for pull requests: its steps run in a shell, on a repository that compiles the class of the example."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.services import ROOT

ORDERS = ROOT / "examples" / "orders"
JOB: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "github" / "state-verdict.yaml").read_text())
STEPS: list[dict[str, Any]] = JOB["jobs"]["verdict"]["steps"]

# What the machines of GitHub have, or would fetch: the build of the repository, packages, and GitHub's own program.
PROGRAMS = {
    "mvn": "mkdir -p target/classes && javac -d target/classes -sourcepath src Order.java && "
    'jar cf "$JAR" -C target/classes .',
    "pip": ":",
    "gh": 'printf "%s\\n" "$@" > comment-arguments && cp verdict.md comment.md',
}


def prepare(repository: Path, release: str) -> None:
    """A repository with the classes of a release of the example, and the programs in `bin`."""
    shutil.copytree(ORDERS / "java" / "job", repository / "src")
    shutil.copytree(ORDERS / "java" / release, repository / "src", dirs_exist_ok=True)
    shutil.copy(ORDERS / "java" / release / "com/acme/orders/Order.java", repository)
    (repository / "bin").mkdir()
    for name, script in PROGRAMS.items():
        program = repository / "bin" / name
        program.write_text(f"#!/bin/sh\nset -e\n{script}\n")
        program.chmod(0o755)


def run_steps(repository: Path) -> int:
    """Run the `run:` steps in their order as GitHub does; returns the exit code of the first one that fails, else 0."""
    outputs, summary = repository / "outputs", repository / "summary"
    environment = {
        **os.environ,
        **{name: str(value) for name, value in JOB["env"].items()},
        "PATH": os.pathsep.join([str(repository / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "SNAPSHOT": str(ORDERS / "savepoints" / "flink-2.2" / "savepoint-df4606-efe91b44c091"),
        "GITHUB_OUTPUT": str(outputs),
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    values = {"github.event.pull_request.number": "7"}
    for step in STEPS:
        if "run" not in step:
            continue
        script = re.sub(r"\$\{\{ (.*?) \}\}", lambda found: values[found[1]], step["run"])
        done = subprocess.run(
            ["bash", "-e", "-c", script], cwd=repository, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            return done.returncode
        if "id" in step:
            for line in outputs.read_text().splitlines():
                name, _, value = line.partition("=")
                values[f"steps.{step['id']}.outputs.{name}"] = value
    return 0


@pytest.fixture(autouse=True)
def compiler() -> None:
    if shutil.which("javac") is None:
        pytest.skip("there is no javac on the PATH")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "code", "verdict"),
    [("v1", 0, "## State compatibility: fully compatible"), ("v2", 1, "## State compatibility: incompatible")],
)
def test_a_pull_request_fails_when_the_state_does_not_fit(
    tmp_path: Path, release: str, code: int, verdict: str
) -> None:
    prepare(tmp_path, release)
    assert run_steps(tmp_path) == code
    assert (tmp_path / "summary").read_text().startswith(verdict)
    assert (tmp_path / "comment.md").read_text() == (tmp_path / "summary").read_text()
    assert (tmp_path / "comment-arguments").read_text().splitlines()[:3] == ["pr", "comment", "7"]
