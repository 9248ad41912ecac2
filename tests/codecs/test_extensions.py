"""Layouts and JSON forms of families that are not Flink's own. How a package brings them: `tests/conformance`."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest

from state_pipelines.codecs.json import register_json, to_json
from state_pipelines.codecs.layout import (
    JavaText,
    Layout,
    Primitive,
    PrimitiveKind,
    register_class_layout,
    register_conversion,
    register_layout,
)
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout, fixed_length
from state_pipelines.codecs.value_conversion import ValueConversion, convert_column
from state_pipelines.errors import UnsupportedError, UsageError
from state_pipelines.serializers import build, tree
from tests.serializers.migrating_families import Counter, Crate, Price

CONTEXT = LayoutContext()


@dataclass(frozen=True, kw_only=True)
class Weight(tree.Serializer):
    snapshot_class: str = "com.acme.WeightSnapshot"


@dataclass(frozen=True, kw_only=True)
class Height(tree.Serializer):
    snapshot_class: str = "com.acme.HeightSnapshot"


@register_layout(Weight)
def lay_weight(node: Weight, derive: object) -> Layout:
    return Primitive(PrimitiveKind.I32)


@register_layout(Height, fixed_length=False)
def lay_height(node: Height, derive: object) -> Layout:
    return Primitive(PrimitiveKind.I32)


def test_a_registered_layout_is_derived() -> None:
    assert derive_layout(Weight(), CONTEXT) == Primitive(PrimitiveKind.I32)


def test_a_layout_counts_even_when_it_is_registered_late() -> None:
    station = tree.ClassBound(snapshot_class="", kind=tree.ClassBoundKind.VALUE, type_class="com.acme.Late")
    assert derive_layout(station, CONTEXT) != JavaText()
    register_class_layout("com.acme.Late", JavaText())
    assert derive_layout(station, CONTEXT) == JavaText()


def test_the_length_is_fixed_unless_the_serializer_says_otherwise() -> None:
    assert [fixed_length(node, CONTEXT) for node in (Weight(), Height(), build.list_of(Weight()))] == [4, None, None]


def test_a_family_has_one_layout() -> None:
    with pytest.raises(UsageError, match="a layout of Weight is registered already"):
        register_layout(Weight)(lambda node, derive: JavaText())


def test_a_class_has_one_layout() -> None:
    register_class_layout("com.acme.Once", JavaText())
    register_class_layout("com.acme.Once", JavaText())
    with pytest.raises(UsageError, match=r"a layout of com\.acme\.Once is registered already"):
        register_class_layout("com.acme.Once", Primitive(PrimitiveKind.I8))


def test_families_of_flink_keep_their_layouts() -> None:
    with pytest.raises(UsageError, match="Basic is not the node class of a custom serializer"):
        register_layout(tree.Basic)


def test_families_of_flink_keep_their_json() -> None:
    with pytest.raises(UsageError, match="Basic is not the node class of a custom serializer"):
        register_json(tree.Basic)


def test_without_a_form_of_its_own_the_value_is_shown() -> None:
    assert to_json(Height(), {"metres": 2}) == {"metres": 2}


def test_a_form_of_its_own_is_used_inside_flinks_families() -> None:
    register_json(Weight)(lambda node, value: {"@kg": int(str(value))})
    assert to_json(build.list_of(Weight()), [7]) == [{"@kg": 7}]


def convert(old: tree.Serializer, new: tree.Serializer, value: object) -> object:
    return ValueConversion(CONTEXT, lambda: 0).find(old, new)(value)


def test_values_are_carried_over_where_both_layouts_hold_their_kind() -> None:
    narrow, wide = Counter(width=4), Counter(width=8)
    assert convert(narrow, wide, -7) == -7
    old, new = (Crate(label="box", content=build.list_of(each)) for each in (narrow, wide))
    assert convert(old, new, {"number": 1, "content": [2, 3]}) == {"number": 1, "content": [2, 3]}


def test_a_registered_conversion_goes_first_also_inside_of_others() -> None:
    old, new = Price(snapshot_version=1), Price(snapshot_version=2)
    euro = {"cents": 5, "currency": "EUR"}
    assert convert(build.map_of(build.basic("String"), old), build.map_of(build.basic("String"), new), [("a", 5)]) == [
        ("a", euro)
    ]
    boxed = convert(Crate(label="box", content=old), Crate(label="box", content=new), {"number": 1, "content": 5})
    assert boxed == {"number": 1, "content": euro}


def test_values_of_another_kind_need_a_conversion() -> None:
    with pytest.raises(UnsupportedError, match=r"no conversion is known from Weight to Tuple2.*register_conversion"):
        convert(Weight(), build.tuple_of(build.basic("Int"), build.basic("Int")), 5)


def test_a_pair_has_one_conversion() -> None:
    with pytest.raises(UsageError, match="a conversion from Price to Price is registered already"):
        register_conversion(Price, Price)(lambda old, new, find: lambda value: value)


def test_families_of_flink_have_their_own_conversions() -> None:
    with pytest.raises(UsageError, match="Basic and Pojo are both serializers of Flink"):
        register_conversion(tree.Basic, tree.Pojo)


def test_columns_are_converted_value_by_value_and_null_stays_null() -> None:
    found = convert_column(pa.array([5, None]), Price(snapshot_version=1), Price(snapshot_version=2), CONTEXT)
    assert found.to_pylist() == [{"cents": 5, "currency": "EUR"}, None]
    assert convert_column(pa.array([], pa.int32()), Counter(width=4), Counter(width=8), CONTEXT).type == pa.int64()
