"""Real Flink: queries that change and keep their state go on as if the new query had seen everything."""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING

import pytest

from state_pipelines.errors import MissingFileError, StateError, UsageError
from state_pipelines.operations.proofs import TEMPLATE
from state_pipelines.operations.sql_recomputation import compare_with_template
from state_pipelines.snapshot import open_snapshot
from state_pipelines.spark.sql_migration import migrate_query
from state_pipelines.sql.templates import open_cluster
from tests.flink.harness import ROOT, compile_folders, install_formats
from tests.flink.migrated_queries import PAIRS, Pair, choose_options, compare, open_flink, take_savepoint, write_data
from tests.flink.planned_states import link_home
from tests.sql.recorded_pairs import unpack

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.flink, pytest.mark.spark]

ROUTES = {
    "1.20 to 1.20": ("1.20.5", "1.20.5"),
    "1.20 to 2.2": ("1.20.5", "2.2.1"),
    "2.2 to 2.2": ("2.2.1", "2.2.1"),
    "2.2 to 2.3": ("2.2.1", "2.3.0"),
}
EXAMPLE = ROOT / "examples/totals"


def run_route(
    old: str, new: str, pairs: dict[str, dict[str, str]], directory: Path, spark: SparkSession
) -> dict[str, str]:
    """Differences by name of the pair: empty where the new query goes on in the right way.

    Args:
        old: release of the old job.
        new: release of the new one.
        pairs: options of both jobs, by name of the pair.
        directory: of all files.
        spark: the session.
    """
    found: dict[str, str] = {}
    migrated: list[tuple[Pair, Path, str]] = []
    plans: dict[str, str] = {}
    with open_flink(old, directory / "old") as flink:
        taken = []
        for pair in (each for each in PAIRS if each.name in pairs):
            folder = directory / pair.name
            write_data(folder)
            plan, savepoint = take_savepoint(flink, pair, folder, pairs[pair.name])
            (folder / "old.json").write_text(plan)
            taken.append((pair, folder, savepoint))
    with open_flink(new, directory / "new") as flink:
        for pair, folder, savepoint in taken:
            plan = flink.compile(pair.new, {**pair.settings, **pair.new_settings})
            (folder / "new.json").write_text(plan)
            plans[pair.name] = plan
            try:
                arguments = (str(folder / "old.json"), str(folder / "new.json"), savepoint, str(folder / "migrated"))
                result = migrate_query(*arguments, spark=spark)
            except StateError as error:
                found[pair.name] = f"refused: {error}"
                continue
            if pair.untouched and result.rows:
                found[pair.name] = f"{result.rows} records were rewritten"
                continue
            migrated.append((pair, folder, result.path or savepoint))
        for pair, folder, savepoint in migrated:
            try:
                found[pair.name] = compare(flink, pair, plans[pair.name], savepoint, folder, pairs[pair.name])
            except RuntimeError as error:
                found[pair.name] = str(error)
    return found


_FEW = ("add-sum", "fold-distinct-nullable", "join-swap")
"""A call that begins now, calls that change their order and fold values of `DISTINCT`, and rows of a join.

All pairs go on in `test_migrated_queries_go_on`, and are migrated from recorded savepoints in `tests/sql`.
"""


def test_some_migrated_queries_go_on(tmp_path: Path, spark: SparkSession) -> None:
    pairs: dict[str, dict[str, str]] = {each: {} for each in _FEW}
    assert run_route("1.20.5", "2.2.1", pairs, tmp_path, spark) == dict.fromkeys(_FEW, "")


def test_scripts_are_migrated_and_equal_the_template_of_their_plan(tmp_path: Path, spark: SparkSession) -> None:
    home = str(link_home("2.2.1", tmp_path))
    old, new = (str(EXAMPLE / f"{name}.sql") for name in ("totals", "counted"))
    savepoint, target = str(EXAMPLE / "savepoint"), str(tmp_path / "migrated")
    result = migrate_query(old, new, savepoint, target, flink_home=home, template=True, spark=spark)
    assert result.proof is not None
    assert {each.name: each.observed for each in result.proof.checks}[
        TEMPLATE
    ] == "1 states have the serializers of the plan"
    assert json.loads((tmp_path / "migrated/plan.json").read_text())["flinkVersion"] == "2.2"
    with pytest.raises(MissingFileError, match="there is no such jar"):
        migrate_query(old, new, savepoint, target + "2", flink_home=home, jars=[str(tmp_path / "functions.jar")])


@pytest.mark.slow
def test_functions_need_their_jar_for_the_template_of_their_plan(tmp_path: Path, spark: SparkSession) -> None:
    home, pair = str(link_home("2.2.1", tmp_path)), unpack("function-view", tmp_path)
    classes, jar = compile_folders(install_formats("2.2.1"), ["tests/flink/java/sqlfunctions"]), tmp_path / "f.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for each in classes.rglob("*.class"):
            archive.write(each, each.relative_to(classes))
    arguments = (pair.old, pair.new, pair.savepoint)
    with pytest.raises(UsageError, match=r"com\.acme\.functions\.Seen"):
        migrate_query(*arguments, str(tmp_path / "one"), flink_home=home, template=True, spark=spark)
    result = migrate_query(
        *arguments, str(tmp_path / "two"), flink_home=home, jars=[str(jar)], template=True, spark=spark
    )
    assert result.proof is not None
    observed = {each.name: each.observed for each in result.proof.checks}
    assert observed[TEMPLATE] == "2 states have the serializers of the plan"


NEW_EXTREMES = ("retract-extremes", "retract-other-extreme", "retract-extremes-of-distinct")
"""Pairs with a new MAX or MIN that takes back rows, whose accumulator Flink 1.20 writes in its own way."""

NO_TEMPLATE = 7
"""Plans with functions whose classes they do not name, or a column of a type that JSON does not have."""


@pytest.mark.slow
def test_savepoints_of_flink_equal_the_templates_of_their_plans(fixtures: Path, tmp_path: Path) -> None:
    none, equal = [], 0
    with open_cluster(str(link_home("2.2.1", tmp_path))) as take:
        for folder in sorted((fixtures / "flink/sql").iterdir()):
            (path,) = (folder / "plan").glob("*.json")
            try:
                template = take(path.read_text(), str(tmp_path / folder.name))
            except StateError:
                none.append(folder.name)
                continue
            for one, other in ((str(folder / "savepoint"), template), (template, str(folder / "savepoint"))):
                (found,) = compare_with_template(open_snapshot(one), open_snapshot(other))
                assert found.ok, (folder.name, found.observed)
            equal += 1
    assert len(none) <= NO_TEMPLATE, none
    assert equal >= 52


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
def test_migrated_queries_go_on(route: str, tmp_path: Path, spark: SparkSession) -> None:
    old, new = ROUTES[route]
    # The source of a job from SQL text has no name in metadata of 1.20: its offsets are not matched, which is refused.
    pairs = {
        each.name: choose_options(each, number + [*ROUTES].index(route))
        for number, each in enumerate(PAIRS)
        if not (each.plain and old.startswith("1.20"))
    }
    found = run_route(old, new, pairs, tmp_path, spark)
    refused = [each for each in NEW_EXTREMES if new.startswith("1.")]
    assert all(found[each].startswith("refused: ") for each in refused)
    assert {name: text for name, text in found.items() if text and name not in refused} == {}
    assert len(found) == len(pairs)
