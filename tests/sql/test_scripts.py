"""Scripts are split into statements, and define one job."""

from __future__ import annotations

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.sql.scripts import (
    find_options,
    find_table_name,
    parse_script,
    replace_options,
    split_statements,
)

INSERT = "INSERT INTO t SELECT 1"


def test_statements_end_at_semicolons_outside_of_quotes_and_comments() -> None:
    text = (
        "-- a; b\nSET 'a' = ';';\n/* ; */ CREATE VIEW `x;y` AS SELECT 'it''s; ok';\n\nINSERT INTO t SELECT 1 -- end;\n"
    )
    assert [(each.text, each.line) for each in split_statements(text)] == [
        ("SET 'a' = ';'", 2),
        ("CREATE VIEW `x;y` AS SELECT 'it''s; ok'", 3),
        ("INSERT INTO t SELECT 1", 5),
    ]


def test_hints_are_kept() -> None:
    text = "INSERT INTO t SELECT /*+ STATE_TTL('a' = '1 d') */ * FROM a"
    (statement,) = split_statements(text)
    assert "STATE_TTL" in statement.text


def test_a_script_of_one_insert() -> None:
    script = parse_script(
        f"SET 'a.b' = 'c';\nSET 'a.b' = 'it''s';\nADD JAR 'x.jar';\nCREATE TABLE t (a INT);\n{INSERT};"
    )
    assert script.settings == {"a.b": "it's"}
    assert script.jars == ("x.jar",)
    assert [each.text for each in script.definitions] == ["CREATE TABLE t (a INT)"]
    assert [(each.text, each.line) for each in script.inserts] == [(INSERT, 5)]


@pytest.mark.parametrize(
    "text",
    [
        f"EXECUTE STATEMENT SET BEGIN {INSERT}; {INSERT}; END;",
        f"EXECUTE STATEMENT SET\nBEGIN\n{INSERT};\n{INSERT};\nEND",
        f"BEGIN STATEMENT SET;\n{INSERT};\n{INSERT};\nEND;",
        f"COMPILE PLAN 'file:///p.json' FOR STATEMENT SET BEGIN {INSERT}; {INSERT}; END;",
    ],
)
def test_a_statement_set_is_one_job(text: str) -> None:
    assert [each.text for each in parse_script(text).inserts] == [INSERT, INSERT]


@pytest.mark.parametrize("start", ["EXECUTE ", "COMPILE PLAN 'p.json' FOR ", "COMPILE AND EXECUTE PLAN 'p' FOR "])
def test_an_insert_may_be_executed_or_compiled(start: str) -> None:
    assert [each.text for each in parse_script(start + INSERT).inserts] == [INSERT]


def test_reset_takes_settings_back() -> None:
    assert parse_script(f"SET 'a' = '1'; SET 'b' = '2'; RESET 'a'; {INSERT}").settings == {"b": "2"}
    assert parse_script(f"SET 'a' = '1'; RESET; {INSERT}").settings == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE TABLE t (a INT);", "the script has no INSERT"),
        (f"{INSERT};\n{INSERT};", "the script starts 2 jobs"),
        (f"{INSERT};\nSELECT 1;", "line 2 of the script: SELECT is no part of a job"),
        (f"EXECUTE STATEMENT SET BEGIN\n{INSERT};", "has no END"),
        (
            f"EXECUTE STATEMENT SET BEGIN\nSELECT 1;\n{INSERT}; END",
            "line 2 of the script: a statement set holds INSERT",
        ),
        (
            f"CREATE TABLE t (a AS 1) WITH ('k' = 'v') AS SELECT 1;\n{INSERT}",
            "line 1 of the script: a table .* job of its",
        ),
        (f"CREATE OR REPLACE TABLE t AS SELECT 1;\n{INSERT}", "starts a job of its own"),
        (
            f"CREATE MATERIALIZED TABLE t FRESHNESS = INTERVAL '1' HOUR AS SELECT 1;\n{INSERT}",
            "starts a job of its own",
        ),
        ("SET 'a' = 'b;\nINSERT", "line 1 of the script begins a quote"),
        (f"{INSERT};\n/* {INSERT}", "line 2 of the script begins a quote or a comment"),
    ],
)
def test_scripts_that_define_no_job(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_script(text)


def test_options_of_a_table() -> None:
    text = "CREATE TABLE `a`.b.`c d` (x STRING COMMENT 'WITH (', y AS CAST(x AS INT)) WITH ('k' = 'v', 'q' = 'it''s')"
    assert find_table_name(text) == "c d"
    assert find_table_name("CREATE TEMPORARY TABLE IF NOT EXISTS t (a INT)") == "t"
    assert find_table_name("CREATE VIEW v AS SELECT 1") is None
    assert find_options(text) == {"k": "v", "q": "it's"}
    assert replace_options(text, {"connector": "datagen"}) == text.replace(
        "'k' = 'v', 'q' = 'it''s'", "'connector' = 'datagen'"
    )
    assert find_options("CREATE TABLE t (a INT)") == {}
    assert replace_options("CREATE TABLE t (a INT)", {"a": "b"}) == "CREATE TABLE t (a INT) WITH ('a' = 'b')"
