"""Offsets that functions keep by `ListCheckpointed`, as serialized Java objects."""

from __future__ import annotations

import pytest

from state_pipelines.binary.java_stream import (
    SERIALIZABLE,
    JavaClassData,
    JavaClassDesc,
    JavaFieldDesc,
    JavaObject,
    write_stream,
)
from state_pipelines.connectors import ConnectorState, detect, encode_elements
from state_pipelines.serializers.build import basic
from tests.serializers.javacoders import java_object

SERIALIZER = basic("JavaObject")


def number(of: str, typecode: str, value: object) -> JavaObject:
    desc = JavaClassDesc(of, 4, SERIALIZABLE, (JavaFieldDesc(typecode, "value"),))
    return JavaObject(desc, (JavaClassData((value,)),))  # type: ignore[arg-type]


def split(index: int) -> JavaObject:
    desc = JavaClassDesc("shop.Split", 5, SERIALIZABLE, (JavaFieldDesc("I", "number"),))
    return JavaObject(desc, (JavaClassData((index,)),))


LONG = number("java.lang.Long", "J", 42)
TUPLE = java_object("org.apache.flink.api.java.tuple.Tuple2", f0=split(3), f1=LONG)


@pytest.mark.parametrize(
    ("content", "row"),
    [
        (LONG, {"element": None, "offset": 42}),
        (number("java.lang.Integer", "I", 7), {"element": None, "offset": 7}),
        (TUPLE, {"element": '{"@class":"shop.Split","number":3}', "offset": 42}),
    ],
)
def test_numbers_are_offsets(content: JavaObject, row: dict[str, object]) -> None:
    state = detect("_default_", SERIALIZER, [write_stream(content)])
    assert isinstance(state, ConnectorState)
    assert state.connector == "list-checkpointed"
    assert state.rows == ((row,),)


def test_elements_are_written_as_they_were() -> None:
    element = write_stream(TUPLE)
    state = detect("_default_", SERIALIZER, [element])
    assert isinstance(state, ConnectorState)
    assert encode_elements(state, SERIALIZER) == (element,)


@pytest.mark.parametrize("content", [split(3), number("java.lang.Boolean", "Z", True)])
def test_other_objects_are_no_offsets(content: JavaObject) -> None:
    assert detect("_default_", SERIALIZER, [write_stream(content)]) is None
