"""Subclasses of POJOs that a serializer does not list: from other serializers of the snapshot, or from declarations."""

from __future__ import annotations

import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs.kryo import dump_classes, load_classes
from state_pipelines.codecs.scalar import read_value, write_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, complete, declare_subclasses, derive_layout
from state_pipelines.errors import StateError, UsageError
from state_pipelines.serializers.build import basic, enum, pojo
from state_pipelines.serializers.text import describe
from state_pipelines.serializers.tree import Pojo, PojoSubclass

COLOR = enum("shop.Color", "RED", "GREEN")
ORDER = pojo("shop.Order", {"id": basic("Long"), "color": COLOR})
GIFT = load_classes("shop.Gift extends shop.Order: [card: String]")

# By name: the class, then its own flag and the fields card, color and id, each behind a flag for null.
GIFT_BYTES = (
    "04"
    + "0009"
    + b"shop.Gift".hex()
    + "02"
    + "00"
    + "03"
    + b"hi".hex()
    + "00"
    + "00000001"
    + "00"
    + "0000000000000007"
)
GIFT_VALUE = {"class": "shop.Gift", "card": "hi", "color": "GREEN", "id": 7}


def fields_of(text: str, kryo_version: int = 5, of: Pojo = ORDER) -> dict[str, str]:
    (subclass,) = declare_subclasses(of, load_classes(text), kryo_version)
    assert isinstance(subclass.serializer, Pojo)
    return {each.name: describe(each.serializer) for each in subclass.serializer.fields if each.serializer is not None}


def test_an_object_of_a_declared_subclass_is_read() -> None:
    reader = Reader(bytes.fromhex(GIFT_BYTES))
    assert read_value(derive_layout(ORDER, LayoutContext(classes=GIFT)), reader) == GIFT_VALUE
    reader.expect_end("the value")


def test_an_object_of_a_declared_subclass_is_written() -> None:
    writer = Writer()
    write_value(derive_layout(ORDER, LayoutContext(classes=GIFT)), writer, GIFT_VALUE)
    assert writer.getvalue().hex() == GIFT_BYTES


def test_without_declaration_it_cannot_be_read() -> None:
    with pytest.raises(StateError, match=r"shop\.Gift"):
        read_value(derive_layout(ORDER, LayoutContext()), Reader(bytes.fromhex(GIFT_BYTES)))


def test_a_subclass_that_another_serializer_lists_is_read() -> None:
    gift = PojoSubclass(
        class_name="shop.Gift",
        serializer=pojo("shop.Gift", {"card": basic("String"), "color": COLOR, "id": basic("Long")}),
    )
    context = LayoutContext(subclasses=(("shop.Order", (gift,)),))
    assert read_value(derive_layout(ORDER, context), Reader(bytes.fromhex(GIFT_BYTES))) == GIFT_VALUE


def test_completing_lists_the_subclasses_of_nested_pojos() -> None:
    basket = pojo("shop.Basket", {"order": ORDER})
    text = describe(complete(basket, LayoutContext(classes=GIFT)))
    assert text == (
        "Pojo<shop.Basket>(order: Pojo<shop.Order>(color: Enum<shop.Color>(RED, GREEN), id: Long, subclass shop.Gift: "
        "Pojo<shop.Gift>(shop.Gift#card: String, shop.Order#color: Enum<shop.Color>(RED, GREEN), shop.Order#id: Long)))"
    ).replace("shop.Gift#", "")


def test_completing_changes_nothing_without_subclasses() -> None:
    assert complete(ORDER, LayoutContext()) == ORDER


def test_a_listed_subclass_is_not_declared_again() -> None:
    listed = pojo("shop.Order", {"id": basic("Long")}, non_registered={"shop.Gift": basic("Long")})
    assert declare_subclasses(listed, GIFT, 5) == ()


def test_subclasses_of_subclasses_have_the_fields_of_all() -> None:
    text = "shop.Gift extends shop.Order: [card: String]\nshop.Big extends shop.Gift: [size: int]"
    names = {
        each.class_name: [field.name for field in each.serializer.fields]
        for each in declare_subclasses(ORDER, load_classes(text), 5)
        if isinstance(each.serializer, Pojo)
    }
    assert names == {"shop.Gift": ["card", "color", "id"], "shop.Big": ["card", "color", "id", "size"]}


@pytest.mark.parametrize(
    ("declared", "serializer"),
    [
        ("int", "Int"),
        ("Integer", "Int"),
        ("char", "Char"),
        ("String", "String"),
        ("BigDecimal", "BigDec"),
        ("Instant", "Instant"),
        ("LocalDateTime", "LocalDateTime"),
        ("java.sql.Timestamp", "SqlTimestamp"),
        ("long[]", "LongPrimitiveArray"),
        ("String[]", "StringArray"),
        ("Integer[]", "Array<java.lang.Integer>(Int)"),
        ("shop.Color", "Enum<shop.Color>(RED, GREEN)"),
        ("shop.Size(S, L)", "Enum<shop.Size>(S, L)"),
        ("shop.Order", "Pojo<shop.Order>(color: Enum<shop.Color>(RED, GREEN), id: Long)"),
        ("List<String>", "Nullable<List<Nullable<String>>>"),
        ("Set<Long>", "Nullable<Set<Long>>"),
        ("Map<String, Long>", "Nullable<Map<Nullable<String>, Long>>"),
        ("shop.Unheard", "Kryo<shop.Unheard>"),
    ],
)
def test_java_types_have_the_serializers_of_flink_2(declared: str, serializer: str) -> None:
    assert fields_of(f'shop.Gift extends shop.Order: ["field: {declared}"]')["field"] == serializer


@pytest.mark.parametrize("declared", ["List<String>", "Set<Long>", "Map<String, Long>"])
def test_collections_go_through_kryo_before_flink_2(declared: str) -> None:
    text = f'shop.Gift extends shop.Order: ["field: {declared}"]'
    assert fields_of(text, kryo_version=2)["field"] == f"Kryo<java.util.{declared.partition('<')[0]}>"


def test_fields_of_the_base_are_those_of_the_snapshot() -> None:
    text = "shop.Order: [id: String, gone: long]\nshop.Gift extends shop.Order: [card: String]"
    assert fields_of(text) == {"card": "String", "color": "Enum<shop.Color>(RED, GREEN)", "id": "Long"}


def test_kryo_takes_the_fields_of_declared_super_classes() -> None:
    text = "shop.Base: [a: int, z: int]\nshop.Sub extends shop.Base: [m: int, a: long]"
    declared = load_classes(text).find("shop.Sub")
    assert declared is not None
    assert [(name, of.name) for name, of in declared.fields] == [
        ("a", "long"),
        ("a", "int"),
        ("m", "int"),
        ("z", "int"),
    ]


def test_declarations_with_a_base_are_written_as_they_are_read() -> None:
    text = "shop.Base: [a: int]\nshop.Sub extends shop.Base: [m: int]"
    lists = load_classes(text)
    assert load_classes(dump_classes(lists)).classes == lists.classes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shop.A extends shop.A: []", "extends itself"),
        ("shop.A extends shop.B: []\nshop.B extends shop.A: []", "extends itself"),
        ("shop.A<T>: [a: T]\nshop.B extends shop.A: []", "type parameters"),
        ("shop.A extends: []", "is not a class name"),
    ],
)
def test_wrong_bases(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_classes(text)
