"""Avro's schema resolution on values; fastavro, which does it on bytes, is held against it."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from state_pipelines.backends.entry_store import make_codec
from state_pipelines.codecs.avro import AvroBranch, AvroEnum, AvroMap, AvroRecord, make_resolution
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.codecs.value_conversion import ValueConversion
from state_pipelines.errors import ValueRangeError
from state_pipelines.serializers.build import avro

LAYOUTS = LayoutContext()


def record(*fields: dict[str, Any], name: str = "com.acme.R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **others: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **others}


def enum(*symbols: str, **others: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "com.acme.E", "symbols": list(symbols), **others}


INNER_OLD = record(field("x", "int"), name="com.acme.I")
INNER_NEW = record(field("x", "long"), field("y", ["null", "string"], default=None), name="com.acme.I")
DEFAULTS = [
    field("text", "string", default="t"),
    field("raw", "bytes", default="\u00ff"),
    field("number", "double", default=1),
    field("list", {"type": "array", "items": "int"}, default=[1, 2]),
    field("map", {"type": "map", "values": "long"}, default={"k": 3}),
    field("color", enum("RED"), default="RED"),
    field("inner", INNER_NEW, default={"x": 4}),
    field("choice", ["long", "null"], default=5),
]


def one(kind: Any, **others: Any) -> dict[str, Any]:
    """A record of one field."""
    return record(field("a", kind, **others))


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def mapping(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


CASES: list[tuple[str, dict[str, Any], dict[str, Any], Any]] = [
    ("added and dropped", record(field("b", "int")), one("long", default=3), None),
    ("int to long", one("int"), one("long"), 1),
    ("long to double", one("long"), one("double"), 2),
    ("text to bytes", one("string"), one("bytes"), "ä"),
    ("bytes to text", one("bytes"), one("string"), b"b"),
    ("alias", one("int"), record(field("z", "int", aliases=["a"])), 1),
    ("into a union", one("int"), one(["null", "string", "long"]), 7),
    ("out of a union", one(["null", "int"]), one("long"), 7),
    ("null", one(["null", "int"]), one(["int", "null"]), None),
    ("nested", one(INNER_OLD), one(INNER_NEW), {"x": 1}),
    ("list", one(array(INNER_OLD)), one(array(INNER_NEW)), [{"x": 1}]),
    ("map", one(mapping(INNER_OLD)), one(mapping(INNER_NEW)), {"k": {"x": 1}}),
    ("enum", one(enum("RED", "BLUE")), one(enum("RED", default="RED")), "BLUE"),
    ("record in a union", one(["null", INNER_OLD]), one([INNER_NEW, "null"]), {"x": 3}),
]


def plain(value: Any) -> Any:
    """As fastavro has values."""
    match value:
        case AvroRecord():
            return {name: plain(each) for name, each in value.fields}
        case AvroMap():
            return {name: plain(each) for name, each in value.entries}
        case AvroEnum():
            return value.symbol
        case AvroBranch():
            return plain(value.value)
        case list():
            return [plain(each) for each in value]
        case _:
            return value


def as_value(schema: Any, value: Any) -> Any:
    """A value of the scalar codec; types are written out in the schemas here."""
    if isinstance(schema, list):
        return None if value is None else as_value(next(each for each in schema if each != "null"), value)
    match schema["type"] if isinstance(schema, dict) else schema:
        case "record":
            return AvroRecord(
                schema["name"],
                tuple((each["name"], as_value(each["type"], value[each["name"]])) for each in schema["fields"]),
            )
        case "enum":
            return AvroEnum(schema["name"], value)
        case "map":
            return AvroMap(tuple((key, as_value(schema["values"], each)) for key, each in value.items()))
        case "array":
            return [as_value(schema["items"], each) for each in value]
        case _:
            return value


@pytest.mark.parametrize(("old", "new", "value"), [each[1:] for each in CASES], ids=[each[0] for each in CASES])
def test_values_are_those_that_fastavro_resolves(old: Any, new: Any, value: Any) -> None:
    value = {old["fields"][0]["name"]: 5 if old["fields"][0]["name"] == "b" else value}
    output = io.BytesIO()
    fastavro.schemaless_writer(output, fastavro.parse_schema(old), value)
    output.seek(0)
    expected = fastavro.schemaless_reader(output, fastavro.parse_schema(old), fastavro.parse_schema(new))
    before, after = avro("com.acme.R", json.dumps(old)), avro("com.acme.R", json.dumps(new))
    stored = as_value(old, value)
    assert make_codec(derive_layout(before, LAYOUTS)).encode(stored)
    converted = ValueConversion(LAYOUTS, lambda: 0).find(before, after)(stored)
    assert plain(converted) == expected
    codec = make_codec(derive_layout(after, LAYOUTS))
    assert codec.decode(codec.encode(converted)) == converted


def test_new_fields_have_their_defaults() -> None:
    resolution = make_resolution(json.dumps(record()), json.dumps(record(*DEFAULTS)))
    converted = resolution.convert(AvroRecord("com.acme.R", ()))
    assert plain(converted) == {
        "text": "t",
        "raw": b"\xff",
        "number": 1.0,
        "list": [1, 2],
        "map": {"k": 3},
        "color": "RED",
        "inner": {"x": 4, "y": None},
        "choice": 5,
    }
    codec = make_codec(derive_layout(avro("com.acme.R", json.dumps(record(*DEFAULTS))), LAYOUTS))
    assert codec.decode(codec.encode(converted)) == converted


def test_a_constant_that_is_gone_is_refused() -> None:
    resolution = make_resolution(json.dumps(enum("RED", "BLUE")), json.dumps(enum("RED")))
    with pytest.raises(ValueRangeError, match="'BLUE' is no constant"):
        resolution.convert(AvroEnum("com.acme.E", "BLUE"))


def test_a_union_without_the_type_is_refused() -> None:
    resolution = make_resolution('"string"', '["null", "int"]')
    with pytest.raises(ValueRangeError, match="no branch"):
        resolution.convert("x")


def test_a_new_field_needs_a_default() -> None:
    resolution = make_resolution(json.dumps(record()), json.dumps(record(field("a", "int"))))
    with pytest.raises(ValueRangeError, match="no default"):
        resolution.convert(AvroRecord("com.acme.R", ()))
