"""Compiled layouts: Arrow types, the fields that are wanted, and what has no columnar form."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.kernels import opcodes as op
from state_pipelines.codecs.programs import arrow_type, compile_layout, decode_sequence, smallest_size
from state_pipelines.errors import UnsupportedError, UsageError
from state_pipelines.serializers import build, tree

I32, TEXT = lay.Primitive(lay.PrimitiveKind.I32), lay.Text()
ADDRESS = lay.PojoObject("Address", (("zip", I32), ("city", TEXT)))
PERSON = lay.PojoObject("Person", (("name", TEXT), ("address", ADDRESS), ("tags", lay.Sequence(ADDRESS))))
ADDRESS_TYPE = pa.struct([("zip", pa.int32()), ("city", pa.string())])


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (lay.Primitive(lay.PrimitiveKind.BOOL), pa.bool_()),
        (lay.Primitive(lay.PrimitiveKind.U16), pa.int32()),
        (lay.Logical(lay.LogicalKind.CHAR), pa.string()),
        (lay.Logical(lay.LogicalKind.DATE_MILLIS), pa.timestamp("ms", tz="UTC")),
        (lay.Sized(), pa.binary()),
        (lay.Sized(text=True), pa.string()),
        (lay.Rest(), pa.binary()),
        (lay.BigDecimal(), pa.string()),
        (lay.Constants(("A",)), pa.string()),
        (lay.Constant(b"\0"), pa.null()),
        (lay.Constant(b"\0", empty=True), pa.struct([])),
        (lay.Optional(I32), pa.int32()),
        (lay.MeasuredKey(I32), pa.int32()),
        (lay.Delimited(I32), pa.list_(pa.int32())),
        (lay.Mapping(TEXT, I32), pa.map_(pa.string(), pa.int32())),
        (lay.Masked((("f0", I32),), kind=True), pa.struct([("row_kind", pa.string()), ("f0", pa.int32())])),
        (lay.Masked((("f0", I32),), kind=False), pa.struct([("f0", pa.int32())])),
        (
            lay.Choice(I32, TEXT),
            pa.struct([("is_left", pa.bool_()), ("left", pa.int32()), ("right", pa.string())]),
        ),
        (PERSON, pa.struct([("name", pa.string()), ("address", ADDRESS_TYPE), ("tags", pa.list_(ADDRESS_TYPE))])),
    ],
)
def test_layout_has_an_arrow_type(layout: lay.Layout, expected: pa.DataType) -> None:
    assert arrow_type(layout) == expected


def test_subclasses_add_their_fields_and_the_class() -> None:
    sub = lay.PojoObject("Sub", (("zip", I32), ("box", TEXT)))
    base = lay.PojoObject("Address", ADDRESS.fields, (lay.PojoVariant("Sub", 0, sub),))
    names = [("class", pa.string()), ("zip", pa.int32()), ("city", pa.string()), ("box", pa.string())]
    assert arrow_type(base) == pa.struct(names)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"name"}, pa.struct([("name", pa.string())])),
        ({"address.zip"}, pa.struct([("address", pa.struct([("zip", pa.int32())]))])),
        ({"address", "address.zip"}, pa.struct([("address", ADDRESS_TYPE)])),
        ({"tags"}, pa.struct([("tags", pa.list_(ADDRESS_TYPE))])),
    ],
)
def test_only_wanted_fields_have_a_type(wanted: set[str], expected: pa.DataType) -> None:
    assert compile_layout(PERSON, frozenset(wanted)).type == expected


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"phone"}, "there is no field phone"),
        ({"address.phone"}, "there is no field phone"),
        (set(), "no field is wanted"),
    ],
)
def test_wanting_what_is_not_there_is_an_error(wanted: set[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compile_layout(PERSON, frozenset(wanted))


def test_every_instruction_knows_its_field() -> None:
    paths = compile_layout(lay.Mapping(TEXT, PERSON)).paths
    assert {"value", "value{key}", "value{value}.address.zip", "value{value}.tags[].city"} <= set(paths)


def test_every_program_ends() -> None:
    assert compile_layout(PERSON).instructions[-1, 0] == op.END


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (lay.Dynamic(build.basic("JavaObject")), "Basic data cannot be read by the kernels"),
        (lay.Struct((("f0", lay.Dynamic(tree.Kryo(type_class="a.B"))),)), "Kryo data cannot be read by the kernels"),
        (
            lay.Dynamic(tree.Decimal(snapshot_class="D", snapshot_version=3, precision=39, scale=0)),
            r"DECIMAL\(39, 0\) has no Arrow type",
        ),
    ],
)
def test_what_the_kernels_do_not_run_is_named(layout: lay.Layout, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        compile_layout(layout)


def test_nesting_is_bounded() -> None:
    layout: lay.Layout = I32
    for _ in range(70):
        layout = lay.Optional(layout)
    with pytest.raises(UnsupportedError, match="values are nested more than 64 levels deep"):
        compile_layout(layout)


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        (lay.Logical(lay.LogicalKind.LOCAL_DATE_TIME), 13),
        (TEXT, 1),
        (lay.Sized(), 4),
        (lay.Optional(I32, padding=4), 1),
        (lay.Masked((("f0", I32),) * 7, kind=True), 2),
        (lay.Choice(I32, TEXT), 2),
        (lay.MeasuredKey(I32), 5),
        (lay.Struct((("a", I32), ("b", TEXT))), 5),
        (lay.Constant(b""), 0),
        (lay.Delimited(I32), 0),
        (PERSON, 1),
    ],
)
def test_smallest_size_is_that_of_the_shortest_value(layout: lay.Layout, size: int) -> None:
    assert smallest_size(layout) == size


def test_a_span_is_where_a_value_lies() -> None:
    layout = lay.Struct((("name", lay.Span(lay.Text())), ("tags", lay.Sequence(lay.Span(lay.Optional(lay.Text()))))))
    data = np.frombuffer(b"\x03ab" + b"\0\0\0\x02" + b"\x01" + b"\0\x02x" + b"\x01" + b"\0\0\0\0", np.uint8)
    found, stops = decode_sequence(compile_layout(layout), data, 0, len(data), 2)
    assert stops.tolist() == [11, len(data)]
    assert found.to_pylist() == [
        {"name": {"start": 0, "stop": 3}, "tags": [{"start": 7, "stop": 8}, {"start": 8, "stop": 11}]},
        {"name": {"start": 11, "stop": 12}, "tags": []},
    ]
