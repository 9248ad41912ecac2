"""The text of PyFlink's types."""

from __future__ import annotations

import pytest

from state_pipelines.binary.data_views import Writer
from state_pipelines.errors import UsageError
from state_pipelines.serializers.build import basic
from state_pipelines.serializers.python_types import (
    PythonValue,
    carry_pickles,
    parse_python_declaration,
    parse_python_type,
)
from state_pipelines.serializers.registry import write_snapshot
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import StateKind


@pytest.mark.parametrize(
    ("text", "described"),
    [
        ("ROW<n BIGINT, s STRING>", "ROW<n BIGINT, s STRING>"),
        ("Types.ROW_NAMED(['n', 's'], [Types.LONG(), Types.STRING()])", "ROW<n BIGINT, s STRING>"),
        ("Types.ROW([Types.INT(), Types.BYTE()])", "ROW<INT, TINYINT>"),
        ("row<`a b` int not null, c varchar(20)>", "ROW<`a b` INT, c STRING>"),
        ("ROW<date DATE, map MAP<STRING, INT>>", "ROW<date DATE, map MAP<STRING, INT>>"),
        ("Types.TUPLE([Types.LONG(), Types.TUPLE([])])", "TUPLE<BIGINT, TUPLE<>>"),
        ("Types.LIST(Types.STRING())", "ARRAY<STRING>"),
        ("Types.BASIC_ARRAY(Types.INT())", "ARRAY<INT>"),
        ("Types.PRIMITIVE_ARRAY(Types.BYTE())", "BYTES"),
        ("Types.PRIMITIVE_ARRAY(Types.DOUBLE())", "PRIMITIVE_ARRAY<DOUBLE>"),
        ("Types.MAP(Types.STRING(), Types.PICKLED_BYTE_ARRAY())", "MAP<STRING, PICKLED_BYTE_ARRAY>"),
        ("Types.SQL_TIMESTAMP()", "TIMESTAMP"),
        ("TIMESTAMP(6)", "TIMESTAMP(6)"),
        ("DECIMAL(10, 2)", "DECIMAL"),
        ("Types.BIG_INT()", "BIGINT"),
    ],
)
def test_types_in_words_of_sql_and_of_pyflink(text: str, described: str) -> None:
    found = parse_python_type(text)

    assert describe(found) == described
    assert parse_python_type(described) == found


@pytest.mark.parametrize(
    ("text", "kind", "described"),
    [
        ("BIGINT", None, "BIGINT"),
        ("ValueState<BIGINT>", "VALUE", "BIGINT"),
        ("ListState<STRING>", "LIST", "STRING"),
        ("mapstate<STRING, BIGINT>", "MAP", "MAP<STRING, BIGINT>"),
        ("ReducingState(Types.LONG())", "REDUCING", "BIGINT"),
        ("AggregatingState<TUPLE<BIGINT, BIGINT>>", "AGGREGATING", "TUPLE<BIGINT, BIGINT>"),
        ("ListStateDescriptor('list', Types.STRING())", "LIST", "STRING"),
    ],
)
def test_kinds_of_state(text: str, kind: str | None, described: str) -> None:
    declared = parse_python_declaration(text)

    assert (declared.kind, describe(declared.type)) == (kind, described)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "a type is expected"),
        ("FOO", "not a type of PyFlink"),
        ("__import__('os').system('x')", "not a type of PyFlink"),
        ("ROW<n BIGINT", "`,` is expected"),
        ("STRING STRING", "ends before this"),
        ("MAP<STRING>", "takes 2 types"),
        ("ListState<STRING, INT>", "takes one type"),
        ("ROW<a INT, a INT>", "different names"),
        ("ROW<a INT, STRING>", "2 types and 1 names"),
        ("ARRAY<" * 40 + "INT" + ">" * 40, "levels deep"),
    ],
)
def test_what_is_no_type_is_refused_with_the_place(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        parse_python_declaration(text)


def test_pickles_are_carried_as_bytes_of_the_same_framing() -> None:
    of = parse_python_type("ROW<a PICKLED_BYTE_ARRAY, b ARRAY<PICKLED>>")

    assert describe(carry_pickles(of)) == "ROW<a BYTES, b ARRAY<BYTES>>"


def test_a_declared_type_writes_the_snapshot_of_the_bytes() -> None:
    stored = basic("BytePrimitiveArray")
    typed = PythonValue(
        snapshot_class=stored.snapshot_class, stored=stored, type=parse_python_type("BIGINT"), kind=StateKind.VALUE
    )
    written, plain = Writer(), Writer()
    write_snapshot(written, typed)
    write_snapshot(plain, stored)

    assert written.getvalue() == plain.getvalue()
