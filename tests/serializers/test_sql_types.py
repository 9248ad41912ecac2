"""SQL types from text."""

from __future__ import annotations

import pytest

from state_pipelines.errors import UsageError
from state_pipelines.serializers.table_runtime import parse_sql_type
from state_pipelines.serializers.text import describe_type


@pytest.mark.parametrize(
    ("text", "described"),
    [
        ("INT", "INT"),
        ("integer not null", "INT NOT NULL"),
        ("STRING", "VARCHAR(2147483647)"),
        ("VARCHAR(20) NOT NULL", "VARCHAR(20) NOT NULL"),
        ("DECIMAL(10, 2)", "DECIMAL(10, 2)"),
        ("DEC", "DECIMAL(10, 0)"),
        ("TIMESTAMP(3)", "TIMESTAMP(3)"),
        ("TIMESTAMP(3) WITH LOCAL TIME ZONE NOT NULL", "TIMESTAMP_LTZ(3) NOT NULL"),
        ("TIMESTAMP_LTZ", "TIMESTAMP_LTZ(6)"),
        ("DOUBLE PRECISION", "DOUBLE"),
        ("ARRAY<INT NOT NULL>", "ARRAY<INT NOT NULL>"),
        ("MAP<STRING, BIGINT>", "MAP<VARCHAR(2147483647), BIGINT>"),
        ("ROW<`a b` INT, c ROW(d DATE)>", "ROW<`a b` INT, c ROW<d DATE>>"),
        ("INTERVAL DAY(3) TO SECOND(2)", "INTERVAL_DAY_TIME(3, 2)"),
        ("INT ARRAY NOT NULL", "ARRAY<INT> NOT NULL"),
        ("RAW('com.acme.Money', 'AA==')", "RAW(com.acme.Money)"),
    ],
)
def test_types(text: str, described: str) -> None:
    assert describe_type(parse_sql_type(text)) == described


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a type expected at character 1"),
        ("TEXT", "'TEXT' is not a SQL type at character 1"),
        ("DECIMAL(10,", "a number expected at character 12"),
        ("VARCHAR(1, 2)", "expected at character 11"),
        ("ROW<a>", "a type expected|is not a SQL type"),
        ("INT)", "the end expected at character 4"),
        ("ARRAY<" * 100, "nest deeper"),
    ],
)
def test_texts_that_are_no_types(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_sql_type(text)
