from __future__ import annotations

import datetime  # noqa: TC003 - the types of fields are evaluated
from dataclasses import dataclass
from typing import Annotated, ClassVar

import pyarrow as pa
import pytest

from state_pipelines.errors import UsageError
from state_pipelines.operations.bootstrap.new_states import infer_type, resolve_type
from state_pipelines.serializers.text import describe, parse


@dataclass
class City:
    java_class: ClassVar[str] = "com.acme.City"
    name: str
    founded: datetime.date | None


@dataclass
class Person:
    java_class: ClassVar[str] = "com.acme.Person"
    city: City
    age: Annotated[int, "Int"]
    visits: int
    score: float
    active: bool
    photo: bytes


@dataclass
class Unnamed:
    name: str


@dataclass
class Listed:
    java_class: ClassVar[str] = "com.acme.Listed"
    names: list[str]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.string(), "String"),
        (pa.int64(), "Long"),
        (pa.int32(), "Int"),
        (pa.int16(), "Short"),
        (pa.int8(), "Byte"),
        (pa.float64(), "Double"),
        (pa.float32(), "Float"),
        (pa.bool_(), "Boolean"),
        (pa.binary(), "BytePrimitiveArray"),
        (pa.date32(), "LocalDate"),
        (pa.list_(pa.string()), "List<String>"),
        (pa.map_(pa.string(), pa.int64()), "Map<String, Long>"),
        (pa.struct([("a", pa.int32()), ("b", pa.list_(pa.int64()))]), "Row(f0: Int, f1: List<Long>)"),
    ],
)
def test_types_follow_from_columns(column: pa.DataType, text: str) -> None:
    assert describe(infer_type(column, "value")) == text


@pytest.mark.parametrize("column", [pa.timestamp("us", "UTC"), pa.decimal128(9, 2), pa.time64("ns"), pa.null()])
def test_what_java_has_several_types_for_must_be_given(column: pa.DataType) -> None:
    with pytest.raises(UsageError, match=r"no serializer follows from the type .* of value\.f"):
        infer_type(pa.struct([("f", column)]), "value")


def test_a_dataclass_is_a_pojo() -> None:
    assert describe(resolve_type(Person, None, "value")) == (
        "Pojo<com.acme.Person>(active: Boolean, age: Int, city: Pojo<com.acme.City>(founded: LocalDate, name: String), "
        "photo: BytePrimitiveArray, score: Double, visits: Long)"
    )


def test_text_and_serializers_are_taken_as_they_are() -> None:
    assert resolve_type("Map<String, Long>", pa.int64(), "value") == parse("Map<String, Long>")
    assert resolve_type(parse("Int"), pa.int64(), "value") == parse("Int")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Unnamed, "java_class"),
        (int, "java_class"),
        (Listed, r"com\.acme\.Listed\.names"),
        (None, "the type of value is not known"),
    ],
)
def test_what_is_no_type_is_refused(given: type | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_type(given, None, "value")
