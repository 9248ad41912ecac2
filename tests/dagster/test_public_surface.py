"""What the UI shows of every definition, and what is imported of Dagster."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from assets.definitions import defs
from state_pipelines.dagster.metadata_values import make_table
from tests.dagster.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXCEPTIONS = ROOT / "state_pipelines" / "dagster" / "unexported_names.py"


def describe_definitions() -> Iterator[tuple[str, str | None]]:
    """Name and description of everything that the UI shows of the deployment."""
    repository = defs.get_repository_def()
    for sensor in repository.sensor_defs:
        yield f"sensor {sensor.name}", sensor.description
    for schedule in repository.schedule_defs:
        yield f"schedule {schedule.name}", schedule.description
    graph = repository.asset_graph
    for key in graph.get_all_asset_keys():
        yield f"asset {key.to_user_string()}", graph.get(key).description
    for check in graph.asset_check_keys:
        yield f"check {check.to_user_string()}", graph.get(check).description
    for job in repository.get_all_jobs():
        if not job.name.startswith("__"):
            yield f"job {job.name}", job.description
        for node in job.nodes:
            yield f"op {node.name}", node.definition.description
            schema = getattr(node.definition, "config_schema", None)
            for name, field in getattr(getattr(schema, "config_type", None), "fields", {}).items():
                yield f"config {node.name}.{name}", field.description


def test_every_definition_has_a_description() -> None:
    described = dict(describe_definitions())
    kinds = {name.split(" ")[0] for name in described}
    assert kinds == {"sensor", "schedule", "asset", "check", "job", "op", "config"}
    assert [name for name, text in described.items() if not text] == []
    # The docstring of the decorated function.
    assert str(described["schedule orders_daily_audit"]).startswith("Requests an audit of the newest snapshots")


def list_modules() -> list[Path]:
    found = [
        file for name in ("state_pipelines", "resources", "assets") for file in sorted((ROOT / name).rglob("*.py"))
    ]
    return [file for file in found if file != EXCEPTIONS]


def find_imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{each.name}" for each in node.names)


def test_only_public_names_of_dagster_are_imported_but_in_one_module() -> None:
    used = {(name, file.name) for file in list_modules() for name in find_imports(file) if name.startswith("dagster")}
    assert ("dagster", "builder.py") in used
    assert {each for each in used if each[0] != "dagster"} == set()
    text = EXCEPTIONS.read_text(encoding="utf-8")
    names = [name.rpartition(".")[2] for name in find_imports(EXCEPTIONS) if name.startswith("dagster")]
    assert len(names) == 4
    # Each with the reason why there is no other way.
    assert all(f"`{name}` is" in text or f"`{name}` has" in text for name in names)


@pytest.mark.parametrize(
    ("types", "shown"),
    [
        (("string", "int", "string"), "abc"),
        (("string", "string", "string", "int", "string", "float", "string"), "abdfceg"),
    ],
)
def test_wide_tables_show_numbers_before_texts(types: tuple[str, ...], shown: str) -> None:
    columns = [dg.TableColumn("abcdefg"[index], kind) for index, kind in enumerate(types)]
    table = make_table(columns, [range(len(types))])
    assert "".join(column.name for column in table.schema.columns) == shown
    assert table.records[0].data == {name: index for index, name in enumerate("abcdefg"[: len(types)])}
