from __future__ import annotations

import pytest

from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.layout import check_layout, parse_layout
from state_pipelines.errors import UsageError
from state_pipelines.serializers.snapshot_classes import parse_declaration

I32, UTF = lay.Primitive(lay.PrimitiveKind.I32), lay.JavaText()


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("i32", I32),
        ("utf", UTF),
        ("text", lay.Text()),
        ("bytes", lay.Sized()),
        ("instant", lay.Logical(lay.LogicalKind.INSTANT)),
        ("Struct(f0: utf, f1: i32)", lay.Struct((("f0", UTF), ("f1", I32)))),
        ("List(Nullable(utf))", lay.Sequence(lay.Optional(UTF))),
        ("Map(utf, Sized(i32))", lay.Mapping(UTF, lay.Framed(I32))),
        ("Struct(a:nested0,b:nested1)", lay.Struct((("a", lay.Rest()), ("b", I32)))),
    ],
)
def test_layouts(text: str, layout: lay.Layout) -> None:
    assert parse_layout(text, (lay.Rest(), I32)) == layout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the end"),
        ("int", "'int' is not a layout, at character 1"),
        ("Struct(f0 utf)", "':' expected, 'utf' found"),
        ("Struct(a: i8, a: i8)", "name of a new field"),
        ("Struct(a: i8", "',' or ')' expected"),
        ("List(i8, i8)", "')' expected"),
        ("i8 i8", "the end' expected"),
        ("i8 ?", "'?' is not expected"),
        ("nested2", "names 2 nested snapshots"),
        ("List(" * 40 + "i8" + ")" * 40, "nest deeper"),
    ],
)
def test_a_text_that_is_no_layout_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_layout(text, (lay.Rest(), I32))
    assert message in caught.value.what


def test_a_nested_layout_needs_a_nested_snapshot() -> None:
    check_layout(parse_declaration("a.B(snapshot)=nested0"))
    check_layout(parse_declaration("a.B(composite)=Struct(x: nested0, y: nested1)"))
    with pytest.raises(UsageError):
        check_layout(parse_declaration("a.B=nested0"))
