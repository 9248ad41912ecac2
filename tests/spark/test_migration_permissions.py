"""A migration file computes over rows; to do more, its user must allow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from state_pipelines.errors import MigrationError
from state_pipelines.operations.migration import load_migration, parse_migration
from state_pipelines.operations.migration.history import RevisionDirectory
from state_pipelines.spark import migrate
from state_pipelines.spark.analysis import require_row_level
from tests.snapshot.savepoints import orders

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from state_pipelines.operations.migration import Migration

pytestmark = pytest.mark.spark

SECRET = "the secret of this machine"


def add(sql: str, **entries: Any) -> Migration:
    step = {"add": {"field": "stolen", "type": "String", "expression": sql, "nondeterministic": True}}
    content = {"revision": "1", "operator": "orders", "state": "order", "upgrade": [step]}
    return parse_migration({**content, "downgrade": [{"drop": {"field": "stolen"}}], **entries})


@pytest.mark.parametrize(
    "sql",
    [
        "upper(note)",
        "CASE WHEN quantity > 1 THEN 'many' ELSE note END",
        "transform(split(note, ','), x -> trim(x))",
        "date '2024-01-01' + interval 1 day",
        "named_struct('a', 1, 'b', array(quantity)[0])",
        "coalesce(try_cast(note AS int), 0)",
        "sum(value)",
        "note LIKE 'a%' OR note RLIKE 'b' OR quantity BETWEEN 1 AND 2 OR id IN ('a', 'b')",
        "from_json(note, 'a int').a",
        "extract(YEAR FROM updatedAt)",
        "raise_error('no')",
        "uuid()",
        "value.customer",
    ],
)
def test_functions_over_the_row_are_allowed(spark: SparkSession, sql: str) -> None:
    require_row_level(spark, sql)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("(SELECT max(value) FROM text.`/etc/passwd`)", "has a subquery"),
        ("coalesce(note, (SELECT max(value) FROM text.`/etc/passwd`))", "has a subquery"),
        ("exists(SELECT 1 FROM range(3))", "has a subquery"),
        ("note IN (SELECT id FROM range(3))", "has a subquery"),
        ("transform(array(1), x -> (SELECT max(id) FROM range(3)))", "has a subquery"),
        ("struct((SELECT 1))", "has a subquery"),
        ("reflect('java.lang.System', 'getenv', 'PATH')", "calls the function reflect"),
        ("`REFLECT`('java.lang.System', 'getenv', 'PATH')", "calls the function reflect"),
        ("upper(try_reflect('java.lang.System', 'getenv', 'PATH'))", "calls the function try_reflect"),
        ("java_method('java.lang.System', 'getenv', 'PATH')", "calls the function java_method"),
        ("system.builtin.reflect('java.lang.System', 'getenv', 'PATH')", "calls the function system, builtin, reflect"),
        ("IDENTIFIER('reflect')('java.lang.System', 'getenv')", "is not an expression over a row"),
        ("input_file_name()", "calls the function input_file_name"),
        ("from_protobuf(value, 'A', '/etc/passwd')", "calls the function from_protobuf"),
        ("xpath_string(note, 'a')", "calls the function xpath_string"),
        ("mine(note)", "calls the function mine"),
        ("explode(array(1, 2))", "calls the function explode"),
        ("count(*) OVER ()", r"looks at other rows \(OVER\)"),
        ("sum(value) FILTER (WHERE EXISTS (SELECT 1))", "has a subquery"),
    ],
)
def test_everything_else_is_refused_by_its_parsed_form(spark: SparkSession, sql: str, why: str) -> None:
    with pytest.raises(MigrationError, match=f"{why}.*--allow-sql"):
        require_row_level(spark, sql)


def test_a_function_of_the_session_is_not_one_of_sparks(spark: SparkSession) -> None:
    spark.udf.register("mine", lambda text: text)
    with pytest.raises(MigrationError, match="calls the function mine"):
        require_row_level(spark, "mine(note)")


def test_what_spark_cannot_parse_is_an_error_of_one_line(spark: SparkSession) -> None:
    with pytest.raises(MigrationError, match="PARSE_SYNTAX_ERROR"):
        require_row_level(spark, "upper(note")


def test_a_migration_that_reads_a_file_is_refused_before_the_file_is_opened(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    migration = add(f"(SELECT max(value) FROM text.`{tmp_path}/secret`)")
    with pytest.raises(MigrationError, match="has a subquery") as caught:
        migrate(orders().open(), migration, str(tmp_path / "new"))
    assert (caught.value.where.operator, caught.value.where.state, caught.value.where.path) == (
        "orders",
        "order",
        "upgrade 1",
    )
    assert not (tmp_path / "new").exists()


def test_it_is_applied_where_sql_is_allowed(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(SECRET)
    migration = add(f"(SELECT max(value) FROM text.`{tmp_path}/text`)")
    new = migrate(orders().open(), migration, str(tmp_path / "new"), allow_sql=True, prove=False).snapshot
    values = new.operator("orders").state("order").to_arrow()["value"].combine_chunks()
    assert set(values.field("stolen").to_pylist()) == {SECRET}


@pytest.mark.parametrize("place", ["downgrade", "rule"])
def test_every_expression_is_looked_at(spark: SparkSession, tmp_path: Path, place: str) -> None:
    if place == "downgrade":
        sql = "reflect('java.lang.System', 'getenv', 'HOME')"
        step = {"set": {"field": "note", "expression": sql, "nondeterministic": True}}
        upgrade = [{"set": {"field": "note", "expression": "upper(note)"}}]
        content: dict[str, Any] = {
            "state": "order",
            "upgrade": upgrade,
            "downgrade": [step],
        }
    else:
        rule = "max((SELECT max(id) FROM range(3)))"
        rules = {"order": "last", "last-seen": "first", "quantities": rule}
        key = {"type": "String", "expression": "left(state_key, 7)", "on_equal": rules}
        content = {"upgrade": [{"key": key}], "downgrade": {"impossible": "it is not needed"}}
    migration = parse_migration({"revision": "1", "operator": "orders", **content})
    with pytest.raises(MigrationError, match=r"--allow-sql"):
        migrate(orders().open(), migration, str(tmp_path / "new"))


def keep_all(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def call(function: object) -> Migration:
    step = {"python": {"function": function, "deterministic": True}}
    content = {"revision": "1", "operator": "orders", "state": "quantities", "upgrade": [step], "downgrade": [step]}
    return parse_migration(content)


def test_a_python_function_that_a_file_names_needs_permission(spark: SparkSession, tmp_path: Path) -> None:
    named = call(f"{__name__}:keep_all")
    with pytest.raises(MigrationError, match=r"calls the Python function .*:keep_all.*--allow-python"):
        migrate(orders().open(), named, str(tmp_path / "new"))
    assert migrate(orders().open(), named, str(tmp_path / "new"), allow_python=True, prove=False).rows > 0
    assert migrate(orders().open(), call(keep_all), str(tmp_path / "object"), prove=False).rows > 0


def test_a_python_file_is_not_run_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "0001_add.py"
    file.write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\nMIGRATION = {{}}\n")
    with pytest.raises(MigrationError, match=r"is Python, which is not run .*--allow-python"):
        load_migration(file)
    with pytest.raises(MigrationError, match=r"is Python, which is not run .*--allow-python"):
        RevisionDirectory(tmp_path)
    with pytest.raises(MigrationError, match=r"is Python, which is not run .*--allow-python"):
        migrate(orders().open(), str(file), str(tmp_path / "new"))
    assert not (tmp_path / "ran").exists()
    with pytest.raises(MigrationError):
        load_migration(file, allow_python=True)
    assert (tmp_path / "ran").exists()


def test_an_expectation_with_sql_needs_permission(spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("great_expectations")
    condition = {"row_condition": "(SELECT count(*) FROM text.`/etc/passwd`) > 0", "condition_parser": "spark"}
    query = {"type": "expect_column_values_to_not_be_null", "column": "id", **condition}
    migration = add("upper(note)", expect=[query])
    with pytest.raises(MigrationError, match=r"has SQL, .*--allow-sql"):
        migrate(orders().open(), migration, str(tmp_path / "new"))


@pytest.mark.parametrize(
    "sql", ["current_user", "concat(note, USER)", "`session_user`", "session.x", "system.session.x"]
)
def test_names_of_the_session_are_refused(spark: SparkSession, sql: str) -> None:
    with pytest.raises(MigrationError, match=r"which is of the session and no column of the row,.*--allow-sql"):
        require_row_level(spark, sql)
    require_row_level(spark, sql, lambda: ["note", "User", "current_user", "session_user", "Session", "system"])


def test_variables_of_the_session_are_refused(spark: SparkSession) -> None:
    require_row_level(spark, "secret")
    spark.sql("DECLARE VARIABLE secret STRING DEFAULT 'hidden'")
    try:
        with pytest.raises(MigrationError, match="names secret, which is of the session"):
            require_row_level(spark, "concat(note, secret)", lambda: ["note"])
        require_row_level(spark, "concat(note, secret, current_date)", lambda: ["note", "secret"])
    finally:
        spark.sql("DROP TEMPORARY VARIABLE secret")


def test_the_user_of_the_session_does_not_get_into_state(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(MigrationError, match="names current_user, which is of the session"):
        migrate(orders().open(), add("current_user"), str(tmp_path / "new"))


def test_a_field_may_have_a_name_of_the_session(spark: SparkSession, tmp_path: Path) -> None:
    first = {"add": {"field": "user", "type": "String", "expression": "upper(id)"}}
    second = {"add": {"field": "session", "type": "String", "expression": "concat(user, value.user)"}}
    back = [{"drop": {"field": "session"}}, {"drop": {"field": "user"}}]
    content = {"revision": "1", "operator": "orders", "state": "order", "upgrade": [first, second], "downgrade": back}
    new = migrate(orders().open(), parse_migration(content), str(tmp_path / "new")).snapshot
    values = new.operator("orders").state("order").to_arrow()["value"].combine_chunks()
    assert values.field("session").to_pylist() == [each * 2 for each in values.field("user").to_pylist()]
