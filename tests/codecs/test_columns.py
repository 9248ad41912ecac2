"""Columns of every layout, by whichever codec: types, values, records that cannot be decoded, and the way back."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from state_pipelines.binary.data_views import Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import Decoded, KernelCodec, ScalarColumns, column_type, plan_columns
from state_pipelines.codecs.java import (
    CollectionKind,
    CollectionValue,
    EnumValue,
    MapValue,
    ObjectValue,
    TypedValue,
)
from state_pipelines.codecs.json import dumps, to_json
from state_pipelines.codecs.kryo import load_classes
from state_pipelines.codecs.layout import PojoObject, PojoVariant, Primitive, PrimitiveKind
from state_pipelines.codecs.scalar import write_value
from state_pipelines.errors import FormatError, UnsupportedError
from state_pipelines.serializers import tree

I32, I64, TEXT = Primitive(PrimitiveKind.I32), Primitive(PrimitiveKind.I64), lay.Text()
CLASSES = load_classes(
    """
shop.Order: [id: long, lines: ArrayList<shop.Line>, status: "shop.Status(OPEN, DONE)", note: String, when: LocalDate]
final shop.Line: [sku: String, price: BigDecimal, count: Integer]
shop.Cart: [items: List<String>]
shop.Any: [content: Object]
shop.Node: [next: shop.Node]
shop.Gift extends shop.Order: [card: String]
"""
)


def kryo(type_class: str) -> lay.Dynamic:
    return lay.Dynamic(tree.Kryo(type_class=type_class), 5, CLASSES)


def written(layout: lay.Layout, value: Any) -> bytes:
    writer = Writer()
    write_value(layout, writer, value)
    return writer.getvalue()


def decoded(layout: lay.Layout, records: list[bytes], *, lenient: bool = False) -> Decoded:
    stops = np.cumsum([len(each) for each in records], dtype=np.int64)
    starts = stops - np.array([len(each) for each in records], np.int64)
    data = np.frombuffer(b"".join(records), np.uint8)
    found = plan_columns(layout).decode(data, starts, stops, lenient=lenient)
    found.array.validate(full=True)
    assert found.array.type == column_type(layout)
    return found


def order(**changes: Any) -> ObjectValue:
    line = ObjectValue(
        "shop.Line",
        (("count", None), ("price", TypedValue("java.math.BigDecimal", Decimal("1.50"))), ("sku", "a1")),
    )
    fields = {
        "id": 7,
        "lines": CollectionValue("java.util.ArrayList", CollectionKind.LIST, (line,)),
        "note": None,
        "status": EnumValue("shop.Status", "DONE"),
        "when": TypedValue("java.time.LocalDate", 20_000),
    }
    return ObjectValue("shop.Order", tuple(sorted((fields | changes).items())))


def test_kernels_make_the_columns_where_they_can() -> None:
    assert isinstance(plan_columns(lay.Struct((("a", I32),))), KernelCodec)
    assert isinstance(plan_columns(lay.Struct((("a", kryo("shop.Order")),))), ScalarColumns)


def test_objects_of_declared_classes_are_structs() -> None:
    layout = kryo("shop.Order")
    record = written(layout, order())
    array = decoded(layout, [record, b"\0"]).array
    line = {"count": None, "price": "1.50", "sku": "a1"}
    day = date(2024, 10, 4)
    assert array.to_pylist() == [{"id": 7, "lines": [line], "note": None, "status": "DONE", "when": day}, None]
    assert plan_columns(layout).encode(array).data.tobytes() == record + b"\0"


@pytest.mark.parametrize(
    ("type_class", "value", "expected"),
    [
        (
            "java.util.UUID",
            TypedValue("java.util.UUID", {"mostSigBits": 1, "leastSigBits": -1}),
            "00000000-0000-0001-ffff-ffffffffffff",
        ),
        ("java.math.BigInteger", TypedValue("java.math.BigInteger", 12), "12"),
        ("java.lang.Long", TypedValue("java.lang.Long", 5), 5),
        ("java.lang.Integer", 5, 5),
        ("java.lang.String", "x", "x"),
        ("java.net.URI", TypedValue("java.net.URI", {"string": "a:b"}), "a:b"),
        ("java.time.Year", TypedValue("java.time.Year", {"year": 2024}), 2024),
        (
            "java.time.Duration",
            TypedValue("java.time.Duration", {"seconds": 1, "nanos": 2}),
            {"seconds": 1, "nanos": 2},
        ),
        (
            "java.time.Instant",
            TypedValue("java.time.Instant", {"epoch_second": 1, "nano": 2}),
            {"epoch_second": 1, "nano": 2},
        ),
    ],
)
def test_classes_of_the_jdk_have_natural_types(type_class: str, value: object, expected: object) -> None:
    layout = kryo(type_class)
    record = written(layout, value)
    array = decoded(layout, [record]).array
    assert array.to_pylist() == [expected]
    assert plan_columns(layout).encode(array).data.tobytes() == record


@pytest.mark.parametrize(
    ("type_class", "value"),
    [
        ("java.lang.Object", order()),
        ("java.util.Map", MapValue("java.util.HashMap", (("k", 1),))),
        ("java.util.BitSet", TypedValue("java.util.BitSet", (5,))),
        ("shop.Node", ObjectValue("shop.Node", (("next", ObjectValue("shop.Node", (("next", None),))),))),
    ],
)
def test_what_has_no_shape_of_its_own_is_the_json_of_dump(type_class: str, value: object) -> None:
    layout = kryo(type_class)
    found = json.dumps(decoded(layout, [written(layout, value)]).array.to_pylist())
    if type_class == "shop.Node":
        assert json.loads(found) == [{"next": dumps(to_json(layout.serializer, dict(value.fields)["next"]))}]  # type: ignore[attr-defined, arg-type]
    else:
        assert json.loads(found) == [dumps(to_json(layout.serializer, value))]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("type_class", "value", "message"),
    [
        (
            "shop.Any",
            ObjectValue("shop.Any", (("content", "x"),)),
            "row 1: values of java.lang.Object are shown as JSON text",
        ),
        (
            "shop.Cart",
            ObjectValue(
                "shop.Cart", (("items", CollectionValue("java.util.LinkedList", CollectionKind.LIST, ("a",))),)
            ),
            "row 1: a value that is declared as java.util.List cannot be written",
        ),
    ],
)
def test_what_has_lost_its_class_is_not_written(type_class: str, value: object, message: str) -> None:
    layout = kryo(type_class)
    array = decoded(layout, [b"\0", written(layout, value)]).array
    with pytest.raises(UnsupportedError, match=message):
        plan_columns(layout).encode(array)


def test_records_that_cannot_be_decoded_are_null_and_tell_why() -> None:
    layout = kryo("shop.Order")
    gift = ObjectValue("shop.Gift", tuple(sorted([*order().fields, ("card", "x")])))
    unknown = written(kryo("java.lang.Object"), order()).replace(b"shop.Orde", b"shop.Xrde")
    found = decoded(layout, [written(layout, order()), written(layout, gift), unknown], lenient=True)
    assert [each is None for each in found.array.to_pylist()] == [False, True, True]
    assert [row for row, _ in found.failures] == [1, 2]
    reasons = found.reasons().to_pylist()
    assert reasons[0] is None
    assert "class shop.Gift does not fit the column, which has the fields of shop.Order" in reasons[1]
    assert "class shop.Xrder inside a Kryo value cannot be decoded" in reasons[2]


def test_records_that_cannot_be_decoded_are_an_error_unless_somebody_keeps_them() -> None:
    layout = kryo("shop.Order")
    gift = ObjectValue("shop.Gift", tuple(sorted([*order().fields, ("card", "x")])))
    with pytest.raises(UnsupportedError, match=r"record 1: .*shop.Gift"):
        decoded(layout, [written(layout, order()), written(layout, gift)])


def test_a_subclass_that_the_serializer_does_not_list_spoils_its_row_alone() -> None:
    base = PojoObject("A", (("x", I32),))
    wide = PojoObject("A", (("x", I32),), (PojoVariant("B", None, PojoObject("B", (("x", I32),))),))
    records = [written(wide, {"class": name, "x": row}) for row, name in enumerate("AABABB")]
    found = decoded(base, records, lenient=True)
    assert found.array.to_pylist() == [{"x": 0}, {"x": 1}, None, {"x": 3}, None, None]
    assert [row for row, _ in found.failures] == [2, 4, 5]
    with pytest.raises(UnsupportedError, match="does not list"):
        decoded(base, records)


def test_fields_of_one_name_and_several_types_have_columns_of_their_own() -> None:
    sub = PojoVariant("a.Sub", 0, PojoObject("a.Sub", (("x", TEXT), ("y", I64))))
    layout = PojoObject("a.Base", (("x", I32),), (sub,))
    values = [{"class": "a.Base", "x": 1}, {"class": "a.Sub", "x": "one", "y": 2}, None]
    records = [written(layout, each) for each in values]
    array = decoded(layout, records).array
    assert array.to_pylist() == [
        {"class": "a.Base", "x": 1, "x_Sub": None, "y": None},
        {"class": "a.Sub", "x": None, "x_Sub": "one", "y": 2},
        None,
    ]
    assert plan_columns(layout).encode(array).data.tobytes() == b"".join(records)


def test_a_subclass_that_is_no_pojo_has_a_column_of_its_class() -> None:
    layout = PojoObject("a.Base", (("x", I32),), (PojoVariant("shop.Order", None, kryo("shop.Order")),))
    records = [written(layout, {"class": "a.Base", "x": 1}), written(layout, order())]
    array = decoded(layout, records).array
    assert [each["class"] for each in array.to_pylist()] == ["a.Base", "shop.Order"]
    assert array.to_pylist()[1]["Order"]["id"] == 7
    assert plan_columns(layout).encode(array).data.tobytes() == b"".join(records)


@pytest.mark.parametrize(
    ("wrap", "value"),
    [
        (lambda inner: lay.Struct((("last_access", I64), ("value", inner))), {"last_access": 1, "value": order()}),
        (lambda inner: lay.Delimited(inner), [order(), order(id=8)]),
        (lambda inner: lay.Optional(inner, rest_is_null=True), order()),
        (lambda inner: lay.Mapping(TEXT, lay.Optional(inner)), [("a", order()), ("b", None)]),
        (lambda inner: lay.Mapping(inner, TEXT), [(order(), "a")]),
        (lambda inner: lay.Choice(TEXT, inner), {"is_left": False, "left": None, "right": order()}),
        (lambda inner: lay.Masked((("f0", inner), ("f1", I32)), True), {"row_kind": "-U", "f0": order(), "f1": None}),
        (lambda inner: lay.Tagged(((0, "a", I32), (1, "b", inner))), {"case": "b", "value": order()}),
        (lambda inner: lay.NullMasked(inner), [None, order()]),
        (lambda inner: lay.Framed(inner), order()),
        (lambda inner: lay.MeasuredKey(inner), order()),
        (lambda inner: PojoObject("A", (("x", inner),)), {"class": "A", "x": order()}),
    ],
)
def test_values_inside_other_layouts_go_there_and_back(wrap: Any, value: Any) -> None:
    layout = wrap(kryo("shop.Order"))
    record = written(layout, value)
    array = decoded(layout, [record, record]).array
    assert array.null_count == 0
    assert plan_columns(layout).encode(array).data.tobytes() == record * 2


def test_values_follow_each_other_without_known_ends() -> None:
    layout = lay.Struct((("key", TEXT), ("value", kryo("shop.Order"))))
    data = b"".join(written(layout, {"key": key, "value": order()}) for key in "ab")
    columns = plan_columns(layout)
    array, stops = columns.decode_sequence(np.frombuffer(b"xx" + data, np.uint8), 2, 2 + len(data), 2)
    assert array.field("key").to_pylist() == ["a", "b"]
    assert list(stops) == [2 + len(data) // 2, 2 + len(data)]


def test_broken_bytes_are_errors_even_for_the_lenient() -> None:
    record = written(kryo("shop.Order"), order())
    with pytest.raises(FormatError):
        decoded(kryo("shop.Order"), [record, record[:-1]], lenient=True)


def test_only_the_wanted_fields_come() -> None:
    layout = lay.Struct((("a", kryo("shop.Order")), ("b", I32)))
    record = written(layout, {"a": order(), "b": 5})
    spans = (np.zeros(1, np.int64), np.array([len(record)]))
    found = plan_columns(layout, frozenset({"a.id"})).decode(np.frombuffer(record, np.uint8), *spans)
    assert found.array.to_pylist() == [{"a": {"id": 7}}]


def test_an_avro_record_inside_itself_is_json() -> None:
    schema = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
    layout = lay.Dynamic(
        tree.Avro(snapshot_class="A", snapshot_version=3, runtime_class="N", schema_json=json.dumps(schema))
    )
    assert decoded(layout, [bytes(4)]).array.to_pylist() == ['{"@avro":"N","next":null}']


def test_values_that_only_their_program_reads_have_no_columns() -> None:
    layout = lay.Dynamic(tree.Opaque(snapshot_class="S", snapshot_version=1, unknown_class="a.B", raw=b""))
    with pytest.raises(UnsupportedError, match="no reader is registered"):
        plan_columns(layout)
    assert pa.types.is_binary(column_type(lay.Rest()))
