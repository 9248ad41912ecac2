"""Real Flink: scripts are compiled off line, and the states of the running plan are those that the plan says."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest

from state_pipelines import sql
from state_pipelines.errors import UnsupportedError, UsageError
from state_pipelines.sql.comparison import compare_plans
from state_pipelines.sql.planner import compile_scripts, find_flink
from tests.flink.harness import compile_folders, install_formats
from tests.flink.planned_states import link_home, list_planned, list_stored, read_script, run_plan

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.flink

KAFKA = "'connector' = 'kafka', 'topic' = 'orders', 'format' = 'json'"
ORDERS = f"CREATE TABLE orders (id BIGINT, amount BIGINT) WITH ({KAFKA});\n"
TOTALS = (
    "CREATE TABLE totals (id BIGINT, c BIGINT, s BIGINT, PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = 'jdbc');\n"
)
INSERT = "INSERT INTO totals SELECT id, COUNT(*), SUM(amount) FROM orders GROUP BY id;\n"


def write(directory: Path, text: str) -> str:
    path = directory / "script.sql"
    path.write_text(text)
    return str(path)


def test_the_states_of_a_running_plan_are_those_of_the_plan(version: str, tmp_path: Path) -> None:
    home = str(link_home(version, tmp_path))
    compiled = sql.plan(write(tmp_path, read_script(version)), flink_home=home)
    assert compiled.plan.flink_version == version.rpartition(".")[0]
    assert compiled.notes == ()
    stored = list_stored(run_plan(find_flink(home), compiled.json, tmp_path / "savepoints"))
    assert len(stored) == 85
    assert list_planned(compiled.plan) == stored


def test_missing_connectors_have_stubs_and_keep_their_options(version: str, tmp_path: Path) -> None:
    home = str(link_home(version, tmp_path))
    compiled = sql.plan(write(tmp_path, ORDERS + TOTALS + INSERT), flink_home=home, flink=version[:4].rstrip("."))
    assert [each.partition(":")[0] for each in compiled.notes] == ["table orders", "table totals"]
    assert '"kafka"' in compiled.json
    assert "datagen" not in compiled.json
    assert compiled.plan.nodes[0].id == 1
    (state,) = (each for one in sql.list_operators(compiled.plan) for each in one.states)
    assert state.rows[0].names == ("count", "sum_amount")
    upsert = ORDERS.replace("'kafka'", "'upsert-kafka'")
    with pytest.raises(UnsupportedError, match="table orders needs the connector or format upsert-kafka"):
        sql.plan(write(tmp_path, upsert + TOTALS + INSERT), flink_home=home)
    changes = ORDERS.replace("'json'", "'debezium-json'")
    with pytest.raises(UnsupportedError, match="table orders needs the connector or format kafka"):
        sql.plan(write(tmp_path, changes + TOTALS + INSERT), flink_home=home)


def test_errors_of_the_planner_name_the_line_and_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = str(link_home("2.2.1", tmp_path))
    with pytest.raises(UsageError, match=r"line 3 of the script.*Column 'nope' not found"):
        sql.plan(write(tmp_path, ORDERS + TOTALS + INSERT.replace("amount", "nope")), flink_home=home)
    function = "CREATE FUNCTION f AS 'com.acme.F';\n"
    with pytest.raises(UsageError, match=r"com\.acme\.F") as error:
        sql.plan(write(tmp_path, ORDERS + TOTALS + function + INSERT.replace("amount", "f(amount)")), flink_home=home)
    assert "--jars" in error.value.hint
    function = "ADD JAR 'functions.jar';\nCREATE FUNCTION f AS 'com.acme.functions.Fee';\n"
    script = write(tmp_path, ORDERS + TOTALS + function + INSERT.replace("amount", "f(amount)"))
    classes = compile_folders(install_formats("2.2.1"), ["tests/flink/java/sqlfunctions"])
    with zipfile.ZipFile(tmp_path / "functions.jar", "w") as archive:
        archive.write(classes / "com/acme/functions/Fee.class", "com/acme/functions/Fee.class")
    monkeypatch.chdir(tmp_path)
    assert "com.acme.functions.Fee" in sql.plan(script, flink_home=home).json
    with zipfile.ZipFile(tmp_path / "functions.jar", "w") as archive:
        content = (classes / "com/acme/functions/Fee.class").read_bytes()
        # The version of the class file, of a Java that does not exist yet.
        archive.writestr("com/acme/functions/Fee.class", content[:6] + b"\x01\x00" + content[8:])
    with pytest.raises(UsageError, match="more recent version of the Java Runtime") as error:
        sql.plan(script, flink_home=home)
    assert "JAVA_HOME" in error.value.hint
    metadata = ORDERS.replace("amount BIGINT", "amount BIGINT METADATA FROM 'offset'")
    with pytest.raises(UsageError, match="metadata") as error:
        sql.plan(write(tmp_path, metadata + TOTALS + INSERT), flink_home=home)
    assert "stub replaces the connector of orders" in error.value.hint


@pytest.mark.slow
def test_scripts_compiled_together_have_the_numbers_of_each_alone(version: str, tmp_path: Path) -> None:
    home = str(link_home(version, tmp_path))
    old, new = tmp_path / "old.sql", tmp_path / "new.sql"
    old.write_text(ORDERS + TOTALS + INSERT)
    new.write_text(ORDERS + TOTALS + INSERT.replace("COUNT(*), SUM(amount)", "SUM(amount), COUNT(*)"))
    together = compile_scripts([str(old), str(new)], flink_home=home)
    assert [each.json for each in together] == [sql.plan(str(path), flink_home=home).json for path in (old, new)]
    assert together[1].plan.nodes[0].id == 1
    old_plan, new_plan = (each.plan for each in together)
    (found,) = (each for each in compare_plans(old_plan, new_plan).operators if each.states)
    assert "COUNT(*) would be taken for SUM(orders.amount)" in found.states[0].swap


@pytest.mark.slow
def test_definitions_change_no_catalog_that_outlives_the_planner(version: str, tmp_path: Path) -> None:
    home, jar = str(link_home(version, tmp_path)), tmp_path / "catalog.jar"
    classes = compile_folders(install_formats(version), ["tests/flink/java/sqlcatalog"])
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr(
            "META-INF/services/org.apache.flink.table.factories.Factory", "com.acme.catalogs.KeptCatalogFactory"
        )
        for each in classes.rglob("*.class"):
            archive.write(each, each.relative_to(classes))
    kept = "CREATE CATALOG company WITH ('type' = 'kept');\n"
    tables = ORDERS + TOTALS
    allowed = (
        # It is there already.
        "CREATE TABLE IF NOT EXISTS company.`default`.kept_orders (id BIGINT) WITH ('connector' = 'datagen');\n"
        "CREATE TEMPORARY TABLE company.`default`.t (a INT) WITH ('connector' = 'datagen');\n"
        "CREATE CATALOG mine WITH ('type' = 'generic_in_memory');\nUSE CATALOG mine;\n"
        "CREATE VIEW v AS SELECT * FROM company.`default`.kept_orders;\nDROP VIEW v;\n"
    )
    sql.plan(write(tmp_path, kept + allowed + tables + INSERT), flink_home=home, jars=[str(jar)])
    for refused in (
        "USE CATALOG company;\nCREATE TABLE t (a INT);\n",
        "DROP TABLE company.`default`.kept_orders;\n",
        "CREATE DATABASE company.d;\n",
    ):
        with pytest.raises(UsageError, match="changes the catalog company, which outlives this command"):
            sql.plan(write(tmp_path, kept + tables + refused + INSERT), flink_home=home, jars=[str(jar)])
