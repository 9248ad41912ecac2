"""Avro in the kernels, against the scalar codec."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from state_pipelines.binary.data_views import Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.avro import AvroBranch, AvroEnum, AvroMap, AvroRecord
from state_pipelines.codecs.programs import arrow_type, compile_layout, decode_spans, encode_array
from state_pipelines.codecs.scalar import write_value
from state_pipelines.errors import FormatError, UnsupportedError, ValueRangeError
from state_pipelines.serializers import tree
from tests.codecs.guarded import guarded

random_cases = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=9),
    "bytes": st.binary(max_size=9),
}
FIXED = {"type": "fixed", "name": "F", "size": 3}
COLOR = {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}
EMPTY = {"type": "record", "name": "Empty", "fields": []}


def dynamic(schema: object) -> lay.Dynamic:
    text = json.dumps(schema)
    return lay.Dynamic(
        tree.Avro(snapshot_class="A", snapshot_version=3, runtime_class="GenericRecord", schema_json=text)
    )


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3) -> Any:
    """A schema without names that occur twice."""
    names = iter(range(1000))

    def one(depth: int, *, union: bool = True) -> Any:
        kinds = [*SCALARS, "fixed", "enum"]
        if depth:
            kinds += ["array", "map", "record"] + (["null-first", "null-last", "union"] if union else [])
        kind = draw(st.sampled_from(kinds))
        match kind:
            case "fixed":
                return {**FIXED, "name": f"F{next(names)}"}
            case "enum":
                return {**COLOR, "name": f"E{next(names)}"}
            case "array":
                return {"type": "array", "items": one(depth - 1)}
            case "map":
                return {"type": "map", "values": one(depth - 1)}
            case "record":
                count = draw(st.integers(0, 3))
                fields = [{"name": f"f{index}", "type": one(depth - 1)} for index in range(count)]
                return {"type": "record", "name": f"R{next(names)}", "fields": fields}
            case "null-first":
                return ["null", one(depth - 1, union=False)]
            case "null-last":
                return [one(depth - 1, union=False), "null"]
            case "union":
                record = {"type": "record", "name": f"U{next(names)}", "fields": [{"name": "x", "type": "int"}]}
                return ["null", "string", "long", record]
        return kind

    return one(depth)


def draw_avro(draw: st.DrawFn, schema: Any) -> tuple[Any, Any]:
    """A value as the scalar codec has it, and as `pyarrow.array` takes it."""
    if isinstance(schema, str):
        value = draw(SCALARS[schema])
        return value, value
    if isinstance(schema, list):
        index = draw(st.integers(0, len(schema) - 1))
        value, arrow = (None, None) if schema[index] == "null" else draw_avro(draw, schema[index])
        if len(schema) == 2:
            return AvroBranch(index, value), arrow
        names = ["null", "string", "long", schema[3]["name"]]
        return AvroBranch(index, value), {
            "case": names[index],
            **{name: arrow if name == names[index] else None for name in names[1:]},
        }
    match schema["type"]:
        case "fixed":
            value = draw(st.binary(min_size=3, max_size=3))
            return value, value
        case "enum":
            symbol = draw(st.sampled_from(schema["symbols"]))
            return AvroEnum(schema["name"], symbol), symbol
        case "array":
            pairs = [draw_avro(draw, schema["items"]) for _ in range(draw(st.integers(0, 3)))]
            return [value for value, _ in pairs], [arrow for _, arrow in pairs]
        case "map":
            entries = [(f"k{index}", *draw_avro(draw, schema["values"])) for index in range(draw(st.integers(0, 3)))]
            return AvroMap(tuple((key, value) for key, value, _ in entries)), [(key, item) for key, _, item in entries]
    parts = {each["name"]: draw_avro(draw, each["type"]) for each in schema["fields"]}
    record = AvroRecord(schema["name"], tuple((name, value) for name, (value, _) in parts.items()))
    return record, {name: arrow for name, (_, arrow) in parts.items()}


def written(layout: lay.Layout, value: Any) -> bytes:
    writer = Writer()
    write_value(layout, writer, value)
    return writer.getvalue()


def decoded(layout: lay.Layout, records: list[bytes]) -> pa.Array:
    ends = np.cumsum([len(each) for each in records], dtype=np.int64)
    starts = ends - np.array([len(each) for each in records])
    array = decode_spans(compile_layout(layout), guarded(b"".join(records)), starts, ends)
    array.validate(full=True)
    return array


@pytest.mark.slow
@given(st.data())
@random_cases
def test_values_go_through_columns_as_the_scalar_codec_writes_them(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    layout = dynamic(schema)
    draw: Any = data.draw
    pairs = [draw_avro(draw, schema) for _ in range(3)]
    records = [written(layout, value) for value, _ in pairs]
    array = decoded(layout, records)
    assert array.equals(pa.array([arrow for _, arrow in pairs], arrow_type(layout)))
    assert encode_array(compile_layout(layout), array).data.tobytes() == b"".join(records)


def test_an_array_may_come_in_several_blocks() -> None:
    layout = dynamic({"type": "array", "items": "int"})
    raw = bytes.fromhex("02" "00000001" "00000002" "01" "00000003" "00")  # fmt: skip
    array = decoded(layout, [raw, b"\0"])
    assert array.to_pylist() == [[1, 2, 3], []]
    assert encode_array(compile_layout(layout), array[:1]).data.tobytes().hex() == "0300000001000000020000000300"


def test_a_union_of_null_and_another_type_is_nullable() -> None:
    layout = dynamic(["null", "string"])
    array = decoded(layout, [bytes(4), bytes.fromhex("00000001" "00000002" "6869")])  # fmt: skip
    assert array.to_pylist() == [None, "hi"]


def test_other_unions_say_which_branch_they_have() -> None:
    layout = dynamic(["null", "int", "string"])
    array = decoded(layout, [bytes(4), bytes.fromhex("0000000100000007")])
    assert array.to_pylist() == [
        {"case": "null", "int": None, "string": None},
        {"case": "int", "int": 7, "string": None},
    ]


@pytest.mark.parametrize(
    ("schema", "raw", "message"),
    [
        (["null", "int"], "00000002", "a flag byte"),
        (["null", "int", "long"], "00000003", "a flag byte"),
        ({"type": "array", "items": "int"}, "7f00", "does not fit"),
        ({"type": "array", "items": "int"}, "0100000001", "end before"),
        ({"type": "array", "items": EMPTY}, "ffff7f00", "does not fit"),
        (COLOR, "00000002", "outside the 2 constants"),
    ],
)
def test_broken_bytes_are_errors(schema: Any, raw: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decoded(dynamic(schema), [bytes.fromhex(raw)])


def test_fixed_bytes_have_their_length() -> None:
    with pytest.raises(ValueRangeError, match="does not fit the type"):
        encode_array(compile_layout(dynamic(FIXED)), pa.array([b"1234"]))


def test_a_record_inside_itself_is_not_for_the_kernels() -> None:
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    with pytest.raises(UnsupportedError, match="Node contains itself"):
        compile_layout(dynamic(node))
