"""Avro in Flink's own encoding: bytes that Flink wrote, every type, and bytes that do not follow the schema."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs.avro import (
    AvroBranch,
    AvroEnum,
    AvroMap,
    AvroRecord,
    parse_avro_schema,
    read_avro,
    write_avro,
)
from state_pipelines.errors import FormatError, UnsupportedError, ValueRangeError
from state_pipelines.serializers import tree
from state_pipelines.serializers.registry import read_snapshot

FIXTURES = os.environ.get("FLINK_STATE_FIXTURES")
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop.avro",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "price", "type": "double"},
        {"name": "qty", "type": "int"},
        {"name": "open", "type": "boolean"},
        {"name": "raw", "type": "bytes"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "attrs", "type": {"type": "map", "values": "long"}},
        {
            "name": "line",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Line",
                    "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": "float"}],
                },
            ],
        },
    ],
}
ORDER_BYTES = (
    "0000000000000077"
    "00000000"
    "c0c45b8000000000"
    "04664c28"
    "01"
    "000000032802ff"
    "00000001"
    "00"
    "0200000001"
    "61"
    "fa02269604664c28"
    "00000002"
    "7332"
    "0000000000000002"
    "00"
    "00000001"
    "00000006"
    "736b75313139"
    "c2c00000"
)
ORDER_VALUE = AvroRecord(
    "shop.avro.Order",
    (
        ("id", 119),
        ("note", None),
        ("price", -10423.0),
        ("qty", 73813032),
        ("open", True),
        ("raw", b"\x28\x02\xff"),
        ("kind", AvroEnum("shop.avro.Kind", "B")),
        ("tags", []),
        ("attrs", AvroMap((("a", -431740188513383384), ("s2", 2)))),
        ("line", AvroRecord("shop.avro.Line", (("sku", "sku119"), ("n", -96.0)))),
    ),
)


def read(schema: object, raw: str) -> object:
    reader = Reader(bytes.fromhex(raw))
    value = read_avro(reader, parse_avro_schema(json.dumps(schema)))
    reader.expect_end("the value")
    return value


def write(schema: object, value: object) -> str:
    writer = Writer()
    write_avro(writer, parse_avro_schema(json.dumps(schema)), value)
    return writer.getvalue().hex()


def test_record_of_flink_is_read() -> None:
    assert read(ORDER, ORDER_BYTES) == ORDER_VALUE


def test_record_of_flink_is_written_again() -> None:
    assert write(ORDER, ORDER_VALUE) == ORDER_BYTES


@pytest.mark.parametrize(
    ("schema", "raw", "value"),
    [
        ("null", "", None),
        ("boolean", "01", True),
        ("int", "fffffffe", -2),
        ("long", "fffffffffffffffe", -2),
        ("float", "3fc00000", 1.5),
        ("double", "3ff8000000000000", 1.5),
        ("bytes", "000000020102", b"\x01\x02"),
        ("string", "00000003c3bc61", "üa"),
        ({"type": "fixed", "name": "F", "size": 2}, "0102", b"\x01\x02"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "00000001", AvroEnum("E", "B")),
        ({"type": "array", "items": "int"}, "02000000010000000200", [1, 2]),
        ({"type": "map", "values": "null"}, "01000000016100", AvroMap((("a", None),))),
        (["null", "string"], "000000010000000161", "a"),
        (["int", "long"], "000000010000000000000005", AvroBranch(1, 5)),
        (["null", {"type": "array", "items": "int"}], "0000000100", []),
        ({"type": "int", "logicalType": "date"}, "00000005", 5),
    ],
)
def test_every_type_is_read_and_written(schema: object, raw: str, value: object) -> None:
    assert (read(schema, raw), write(schema, value)) == (value, raw)


def test_long_outside_int_needs_no_branch() -> None:
    assert read(["int", "long"], "000000010000000100000000") == 1 << 32


def test_array_may_come_in_blocks() -> None:
    assert read({"type": "array", "items": "int"}, "0100000001010000000200") == [1, 2]


def test_record_may_contain_itself() -> None:
    schema = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
    assert read(schema, "0000000100000000") == AvroRecord("N", (("next", AvroRecord("N", (("next", None),))),))


@pytest.mark.parametrize(
    ("schema", "raw", "message"),
    [
        ("int", "0000", "4 bytes expected but only 2 are left"),
        ("string", "7fffffff", "bytes expected"),
        ("string", "00000001ff", "an Avro string is not UTF-8"),
        (["null", "int"], "00000002", "index 2 is outside a schema with 2 choices"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "ffffffff", "index -1 is outside"),
        ({"type": "array", "items": "null"}, "ffffffff0f", "a block of 4294967295 items"),
        ({"type": "array", "items": "null"}, "ffff03" * 40, "a block of 65535 items does not fit"),
    ],
)
def test_bytes_that_do_not_follow_the_schema_are_refused(schema: object, raw: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read(schema, raw)


NOTHING = {"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}}


@pytest.mark.parametrize(
    ("schema", "raw"),
    [
        pytest.param(NOTHING, "e807" * 40, id="blocks"),
        pytest.param({"type": "array", "items": NOTHING}, "e807" + "ff0f00" * 1_000 + "00", id="arrays"),
        pytest.param(
            {"type": "array", "items": {"type": "record", "name": "R", "fields": [
                {"name": f"f{number}", "type": "null"} for number in range(1_000)
            ]}},
            "e80700",
            id="fields",
        ),
    ],
)  # fmt: skip
def test_values_without_bytes_are_limited_by_the_bytes_of_the_record(schema: object, raw: str) -> None:
    with pytest.raises((FormatError, UnsupportedError), match=r"unfolds to more than|a block of 1000 items"):
        read(schema, raw)


def test_thousands_of_items_without_bytes_are_read() -> None:
    assert read({"type": "array", "items": "null"}, "a01f00") == [None] * 4_000


def test_depth_is_bounded() -> None:
    schema = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
    with pytest.raises(FormatError, match="more than 100 levels deep"):
        read(schema, "00000001" * 1000)


@pytest.mark.parametrize("schema", ["{", '{"type": "record"}', '"nothing"', "5"])
def test_what_is_no_schema_is_refused(schema: str) -> None:
    with pytest.raises(FormatError, match="the Avro schema of the snapshot cannot be parsed"):
        parse_avro_schema(schema)


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        ("int", "a", "'a' does not fit the Avro type int"),
        ("int", 1 << 31, "does not fit the Avro type int"),
        (["null", "int"], "a", "fits no branch"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, AvroEnum("E", "B"), "'B' is no constant"),
        ({"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}, AvroRecord("R", ()), "no field x"),
    ],
)
def test_values_that_do_not_fit_are_refused(schema: object, value: object, message: str) -> None:
    with pytest.raises(ValueRangeError, match=message):
        write(schema, value)


@pytest.mark.slow
@given(
    note=st.none() | st.text(),
    price=st.floats(allow_nan=False),
    tags=st.lists(st.text(max_size=5), max_size=5),
    attrs=st.dictionaries(st.text(max_size=5), st.integers(-(2**63), 2**63 - 1), max_size=4),
)
def test_records_survive_the_round_trip(note: str | None, price: float, tags: list[str], attrs: dict[str, int]) -> None:
    changed = {"note": note, "price": price, "tags": tags, "attrs": AvroMap(tuple(attrs.items()))}
    value = AvroRecord(ORDER_VALUE.name, tuple((name, changed.get(name, old)) for name, old in ORDER_VALUE.fields))
    assert read(ORDER, write(ORDER, value)) == value


@pytest.mark.skipif(not FIXTURES, reason="FLINK_STATE_FIXTURES is unset: it names the directory with files of Flink")
@pytest.mark.parametrize("release", ["1.11", "1.17", "1.20"])
@pytest.mark.parametrize("kind", ["generic", "specific"])
def test_data_of_flinks_own_tests_are_read(kind: str, release: str) -> None:
    directory = Path(FIXTURES or "", f"flink/serializers/flink-avro/{kind}-avro-serializer-{release}")
    snapshot = read_snapshot(Reader((directory / "serializer-snapshot").read_bytes()))
    assert isinstance(snapshot, tree.Avro)
    value = read(json.loads(snapshot.schema_json), (directory / "test-data").read_bytes().hex())
    fields = (("num", 239), ("street", "Baker Street"), ("city", "London"), ("state", "London"), ("zip", "NW1 6XE"))
    assert value == AvroRecord("org.apache.flink.formats.avro.generated.Address", fields)
