"""The directories `assets` and `resources`: the deployment, for readers who see it for the first time."""

from __future__ import annotations

import ast
import re
import shutil
from functools import cache
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from dagster._core.execution.api import create_execution_plan

from resources import RESOURCES
from state_pipelines.operations.inventory import make_partition_key
from state_pipelines.snapshot import open_snapshot
from tests.dagster.conftest import ROOT, SAVEPOINTS

if TYPE_CHECKING:
    from pathlib import Path

FILES = sorted(
    each for name in ("assets", "resources") for each in (ROOT / name).rglob("*") if each.suffix in (".py", ".yaml")
)
_PATH = re.compile(r"(?:state_pipelines|resources|assets|defs)/[\w/]*(?:\.py)?")


def read_first_lines(file: Path) -> str:
    """The comment or docstring with which a file begins."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".yaml":
        return "".join(line for line in text.splitlines() if line.startswith("#"))
    return ast.get_docstring(ast.parse(text)) or ""


@pytest.mark.parametrize("file", FILES, ids=lambda each: str(each.relative_to(ROOT)))
def test_each_file_begins_with_where_its_machinery_is(file: Path) -> None:
    text = read_first_lines(file)
    assert _PATH.findall(text) or "Dagster" in text or file.parent.name == "defs" or file.name == "__init__.py"
    for path in _PATH.findall(text):
        assert any((base / path).exists() for base in (ROOT, ROOT / "assets")), path


def test_each_resource_has_a_module() -> None:
    modules = {each.stem for each in FILES if each.parent.name == "resources"} - {"__init__"}
    assert modules == {"spark", "expectations", "storage", "executor"}
    assert set(RESOURCES) == {"spark", "expectations"}


@cache
def load(roots: str) -> dg.RepositoryDefinition:
    """The code location, with the snapshots of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STATE_PIPELINES_SNAPSHOTS", f"{roots}/snapshots")
        patch.setenv("STATE_PIPELINES_RESULTS", f"{roots}/results")
        return dg.load_from_defs_folder(path_within_project=ROOT / "assets").get_repository_def()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> dg.RepositoryDefinition:
    root = tmp_path_factory.mktemp("location")
    shutil.copytree(SAVEPOINTS["2.2"], root / "snapshots" / SAVEPOINTS["2.2"].name)
    return load(str(root))


def test_the_composed_job_can_be_launched_as_it_is(repository: dg.RepositoryDefinition) -> None:
    job = repository.get_job("release_orders")
    plan = create_execution_plan(job, job.run_config)
    assert [step.key for step in plan.get_all_steps_in_topo_order()] == [
        *("verify", "check", "migrate", "rescale", "register")
    ]
    assert {node.name: node.definition.pools for node in job.nodes}["migrate"] == {"spark"}


def test_the_asset_of_a_team_shows_the_orders_of_a_snapshot(repository: dg.RepositoryDefinition) -> None:
    asset = repository.assets_defs_by_key[dg.AssetKey(["orders", "largest_orders"])]
    key = make_partition_key(open_snapshot(str(SAVEPOINTS["2.2"])))
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("orders_snapshots", [key])
        result = dg.materialize([asset], partition_key=key, instance=instance)
    (event,) = result.get_asset_materialization_events()
    metadata: dict[str, Any] = {name: each.value for name, each in event.materialization.metadata.items()}
    assert metadata["dagster/row_count"] == 200
    assert metadata["largest orders"].records[0].data == {
        "id": "order-0000",
        "customer": "ada",
        "amount": 9007199254740991,
    }
