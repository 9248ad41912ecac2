from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from state_pipelines.backends.entry_store import make_codec, make_head_measure
from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.scalar import read_value, write_value
from state_pipelines.errors import FormatError, ValueRangeError
from tests.codecs.strategies import cases

I64 = lay.Primitive(lay.PrimitiveKind.I64)
TTL = lay.Struct((("last_access", I64), ("value", lay.Text())))


def write(layout: lay.Layout, value: Any) -> bytes:
    writer = Writer()
    write_value(layout, writer, value)
    return writer.getvalue()


@pytest.mark.slow
@given(cases())
def test_bytes_and_values_are_those_of_the_scalar_codec(case: tuple[lay.Layout, list[Any]]) -> None:
    layout, values = case
    codec = make_codec(layout)
    for value in values:
        data = write(layout, value)
        assert codec.encode(value) == data
        assert codec.decode(data) == read_value(layout, Reader(data))
        assert codec.width in (None, len(data))


@pytest.mark.parametrize(
    ("layout", "value", "data"),
    [
        (I64, 5, b"\0\0\0\0\0\0\0\5"),
        (lay.Primitive(lay.PrimitiveKind.F64), 2, b"\x40\0\0\0\0\0\0\0"),
        (lay.Text(), "ab", b"\3ab"),
        (lay.Text(), "a" * 127, b"\x80\1" + b"a" * 127),
        (lay.Text(), None, b"\0"),
        (lay.Optional(I64), None, b"\1"),
        (lay.Logical(lay.LogicalKind.ORDERED_I64), -1, b"\x7f" + b"\xff" * 7),
        (TTL, {"last_access": 1, "value": "x"}, b"\0\0\0\0\0\0\0\1\2x"),
        (lay.Constant(b"\0"), None, b"\0"),
    ],
)
def test_known_bytes(layout: lay.Layout, value: Any, data: bytes) -> None:
    codec = make_codec(layout)
    assert codec.encode(value) == data
    assert codec.decode(data) == value


@pytest.mark.parametrize(
    ("layout", "value", "path"),
    [
        (I64, 1 << 63, "value"),
        (I64, "5", "value"),
        (lay.Primitive(lay.PrimitiveKind.I32), None, "value"),
        (lay.Primitive(lay.PrimitiveKind.F64), "x", "value"),
        (lay.Text(), 5, "value"),
        (lay.Optional(I64), "x", "value"),
        (TTL, {"last_access": 1, "value": 5}, "value.value"),
        (TTL, {"last_access": 1}, "value"),
        (TTL, {"last_access": 1, "value": "x", "other": 1}, "value"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_field(layout: lay.Layout, value: Any, path: str) -> None:
    with pytest.raises(ValueRangeError) as refused:
        make_codec(layout).encode(value)
    assert (refused.value.where.path or "value") == path


@pytest.mark.parametrize(
    ("layout", "data"),
    [
        (I64, b"\0" * 9),
        (I64, b"\0" * 7),
        (lay.Text(), b"\3abc"),
        (lay.Text(), b""),
        (lay.Constant(b"\0"), b"\0\0"),
        (TTL, b"\0" * 7),
        (TTL, b"\0" * 8 + b"\3abc"),
        (lay.Optional(I64), b"\0\0"),
    ],
)
def test_bytes_that_are_too_few_or_too_many_are_an_error(layout: lay.Layout, data: bytes) -> None:
    with pytest.raises(FormatError):
        make_codec(layout).decode(data)


@pytest.mark.parametrize("prefix", [1, 2])
@pytest.mark.parametrize("key", [lay.Text(), I64, lay.Sized()], ids=str)
@pytest.mark.parametrize("namespace", [lay.Constant(b"\0"), I64], ids=str)
def test_the_head_of_a_record_key_ends_before_the_map_key(prefix: int, key: lay.Layout, namespace: lay.Layout) -> None:
    head = lay.Struct((("state_key", key), ("state_namespace", namespace)))
    measure = make_head_measure(head, prefix)
    texts: list[Any] = ["", "a", "ä", "a" * 126, "a" * 127, "ab\U0001f600"]
    numbers: list[Any] = [0, -1]
    blobs: list[Any] = [b"", b"abc"]
    for value in texts if key == lay.Text() else numbers if key == I64 else blobs:
        data = bytes(prefix) + write(head, {"state_key": value, "state_namespace": None if namespace != I64 else 5})
        assert measure(data + b"map key") == len(data)
