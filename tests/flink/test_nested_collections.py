"""A savepoint of Flink 1.20 whose POJOs hold generic collections in inner POJOs and arrays, drafted for Flink 2.x."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.flink import harness, jobs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.flink

OLD = "1.20.5"
JOB = jobs.Job(
    "com.acme.shop.HouseholdJob",
    ("tests/flink/java/nested-collections", "examples/orders/java/v1", "examples/orders/java/job"),
    settings={"pipeline.generic-types": "true"},
)


def call(command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    texts = [sys.executable, "-m", "state_pipelines", command, *map(str, arguments)]
    return subprocess.run(texts, capture_output=True, text=True, check=False, cwd=harness.ROOT)


def values(entries: list[dict[str, Any]]) -> set[str]:
    """Key, state and value of the entries of `households`, as text."""
    wanted = [each for each in entries if each.get("op") == "households" and each["kind"] == "keyed"]
    return {json.dumps([each["key"], each["state"], each["value"]], sort_keys=True) for each in wanted}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[harness.Entry]]:
    """The savepoint, and its entries as the running job saw them."""
    return harness.make_snapshot(OLD, JOB, tmp_path_factory.mktemp("nested"), backend="rocksdb")


@pytest.fixture(scope="module")
def migrated(made: tuple[Path, list[harness.Entry]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The savepoint after the migration that `check --draft` writes; nothing in it is left to be filled in."""
    folder = tmp_path_factory.mktemp("drafted")
    classes = harness.compile_job(harness.install(OLD), JOB)
    options = ("--uid", "households", "--uid", "numbers", "--classes", classes)
    savepoint, _ = made
    # Nothing but the job says what the elements of a whole state are.
    types = (
        "--type",
        "households/names=Nullable<List<Nullable<String>>>",
        "--type",
        "households/counts=Nullable<Map<Nullable<String>, Long>>",
    )
    checked = call("check", savepoint, *options, *types, "--job-classes", classes, "--target", "2.3", "--draft", folder)
    assert checked.returncode == 1, checked.stdout + checked.stderr
    (draft,) = folder.glob("*.yaml")
    steps = [step for change in yaml.safe_load(draft.read_text())["changes"] for step in change["upgrade"]]
    assert [str(step["convert"]["to"]) for step in steps if "convert" in step] == [
        "Nullable<List<Nullable<String>>>",
        "Nullable<Map<Nullable<String>, Long>>",
    ]
    paths = {path for step in steps for path in step.get("collections", ())}
    assert paths == {"members", "home.tags", "home.visits", "others[].tags", "others[].visits"}
    done = call("migrate", savepoint, *options, "--migration", draft, "--out", folder / "new")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "new"


@pytest.mark.parametrize("version", ["2.2.1", "2.3.0"])
def test_flink_2_restores_every_entry(made: tuple[Path, list[harness.Entry]], migrated: Path, version: str) -> None:
    result = harness.restore(version, migrated, JOB)
    assert result.ok, result.error
    assert len(values(made[1])) == 40
    assert values(result.entries) == values(made[1])
