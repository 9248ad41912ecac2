"""Serializers of SQL types from text."""

from __future__ import annotations

import base64

import pytest

from state_pipelines.binary.data_views import Writer
from state_pipelines.errors import UsageError
from state_pipelines.serializers.build import basic, list_of, map_of
from state_pipelines.serializers.registry import write_nested
from state_pipelines.serializers.table_runtime import MAP_VIEW, RECORDED_FILE, make_column, make_row, parse_sql_type
from state_pipelines.serializers.text import describe, parse
from state_pipelines.serializers.tree import BasicKind, LogicalType, RowData
from tests.flink.make_sql_types import OTHERS_FILE


def read_lines(path: object) -> list[tuple[str, bytes]]:
    lines = [line.split("\t") for line in str(path.read_text()).splitlines()]  # type: ignore[attr-defined]
    return [(text, base64.b64decode(raw)) for text, raw in lines]


def write_made(text: str) -> bytes:
    """Snapshot of the serializer of a row with one column of a type."""
    of = LogicalType(root="RAW", class_name=MAP_VIEW) if text.startswith("RAW") else parse_sql_type(text)
    writer = Writer()
    write_nested(writer, make_row([of]))
    return writer.getvalue()


@pytest.mark.parametrize(
    ("text", "expected"), [each for file in (RECORDED_FILE, OTHERS_FILE) for each in read_lines(file)]
)
def test_snapshots_from_text_are_those_of_flink(text: str, expected: bytes) -> None:
    assert write_made(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "RowData(BIGINT, INT NOT NULL, DECIMAL(10, 2))",
        "RowData(a: BIGINT, `b c`: VARCHAR(20) NOT NULL)",
        "Map<RowData(BIGINT), List<RowData(ROW<a INT>, ARRAY<BIGINT>)>>",
    ],
)
def test_rows_from_text_read_back_as_their_text(text: str) -> None:
    assert describe(parse(text)) == text


def test_names_of_columns_take_a_colon_or_none() -> None:
    row = parse("RowData(id BIGINT, date DATE NOT NULL, tags INT ARRAY, `all` ARRAY<INT>)")
    assert isinstance(row, RowData)
    assert row.columns == ("id", "date", "tags", "all")
    assert row.names is None
    unnamed = parse("RowData(INT ARRAY, DOUBLE PRECISION, TIMESTAMP WITH LOCAL TIME ZONE, INT NULL)")
    assert isinstance(unnamed, RowData)
    assert unnamed.columns == ("f0", "f1", "f2", "f3")


def test_a_bare_type_is_the_serializer_of_its_values() -> None:
    assert parse("List<BIGINT NOT NULL>") == list_of(basic(BasicKind.LONG))
    assert parse("Map<INT, RowData(BIGINT)>") == map_of(basic(BasicKind.INT), make_row([parse_sql_type("BIGINT")]))
    assert describe(parse("DECIMAL(10, 2)")) == "DecimalData(10, 2)"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("RowData(a BIGINT, INT)", "some columns of the row have names"),
        ("RowData(a BIGINT, a INT)", "two columns of the row have one name"),
        ("RowData(BIGNT)", "'BIGNT' is not a SQL type"),
        ("RowData(ARRAY<ROW<a INT>>)", "cannot be built from text"),
        ("RowData(BIGINT", "','"),
    ],
)
def test_errors_of_rows_name_the_character(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=what) as error:
        parse(text)
    assert "at character" in error.value.what


def test_structured_types_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot be built from text"):
        make_column(LogicalType(root="STRUCTURED_TYPE", class_name="com.acme.Money"))
