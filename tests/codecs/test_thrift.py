"""Structs of Thrift in the binary protocol, by the text of their file; bytes made from the protocol's definition."""

from __future__ import annotations

import pytest

from state_pipelines.codecs.java import MapValue
from state_pipelines.codecs.json import value_json
from state_pipelines.codecs.messages import MessageFormat, MessageTypes, ThriftFiles
from state_pipelines.errors import FormatError, UsageError

FILE = """
namespace java com.acme.thrift
namespace py acme  // another language
include "shared.thrift"
typedef i64 Cents
enum Status { OPEN = 1, PAID, /* two */ LOST = 0x10 }
const i32 LIMIT = 5
struct Item { 1: required string sku, 2: i32 count = 1 }
struct Order {
  1: i64 id;
  2: optional Status status (deprecated = "1"),
  3: list<Item> items
  4: map<string, Cents> totals = {"a": 1}
  # no comma before this one
  5: binary raw
  6: set<bool> flags,
  7: double rate,
  8: shared.Item other
}
union Choice { 1: string text; 2: i16 number }
"""
ITEM = "0b00010000000278310800020000000300"
ORDER = (
    "0a0001" "0000000000000007"
    "080002" "00000002"
    "0f0003" "0c" "00000001" + ITEM +
    "0d0004" "0b0a" "00000001" "00000001" "61" "0000000000000005"
    "0b0005" "00000002" "00ff"
    "0e0006" "02" "00000001" "01"
    "040007" "3ff8000000000000"
    "0c0008" + ITEM + "00"
)  # fmt: skip


def decode(name: str, raw: str) -> dict[str, object]:
    return dict(ThriftFiles([FILE]).decode(name, bytes.fromhex(raw)))


def test_a_struct_has_its_fields_by_name() -> None:
    item = {"sku": "x1", "count": 3}
    assert decode("com.acme.thrift.Order", ORDER) == {
        "id": 7,
        "status": "PAID",
        "items": [item],
        "totals": MapValue("java.util.Map", (("a", 5),)),
        "raw": b"\0\xff",
        "flags": [True],
        "rate": 1.5,
        "other": item,
    }


def test_fields_that_were_not_written_are_null() -> None:
    assert decode("com.acme.thrift.Item", "00") == {"sku": None, "count": None}


def test_fields_that_the_file_does_not_have_go_by_their_number() -> None:
    assert decode("com.acme.thrift.Choice", "06000200050a0009000000000000000100") == {
        "text": None,
        "number": 5,
        "9": 1,
    }


def test_the_class_follows_from_the_namespace() -> None:
    types = MessageTypes(thrift=(FILE,))
    assert types.knows(MessageFormat.THRIFT, "com.acme.thrift.Order")
    assert not types.knows(MessageFormat.THRIFT, "Order")
    assert not types.knows(MessageFormat.PROTOBUF, "com.acme.thrift.Order")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("0a0001", "8 bytes expected"),
        ("05000100", "5 is no type"),
        ("0b0001ffffffff", "negative"),
        ("00ff", "left over|bytes"),
        ("0f00030b7fffffff", "does not fit|count"),
    ],
)
def test_bytes_that_are_no_struct_are_refused(raw: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decode("com.acme.thrift.Order", raw)


def test_values_do_not_lie_without_end_in_each_other() -> None:
    with pytest.raises(FormatError, match="more than 64 levels deep"):
        decode("com.acme.thrift.Order", "0c0009" * 100 + "00" * 101)


def test_a_field_without_a_number_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="'string' is not the number of a field"):
        ThriftFiles(["struct A { string name }"])


def test_a_value_is_shown_with_its_class() -> None:
    fields = MessageTypes(thrift=(FILE,)).decode(MessageFormat.THRIFT, "com.acme.thrift.Item", bytes.fromhex(ITEM))
    assert value_json(fields) == {"sku": "x1", "count": 3}


@pytest.mark.parametrize("space", [" ", "\n", "\t", " \n"])
def test_a_file_may_have_any_number_of_blanks_between_its_words(space: str) -> None:
    # Expressions that can match them in several ways would take days.
    gap = space * 50_000
    words = ["typedef", "i64", "Cents;", "struct", "Order", "{", "1: Cents cents", "}"]
    files = ThriftFiles([gap.join((f"namespace{' ' * 50_000}java a.b;\n", *words))])
    assert files.decode("a.b.Order", bytes.fromhex("0a0001 0000000000000007 00")) == {"cents": 7}
    assert ThriftFiles(["typedef" + gap, "/*" * 50_000]).classes == {}


def test_numbers_of_constants_may_begin_with_zeros() -> None:
    files = ThriftFiles(["enum Status { PAID = 010 } struct Order { 1: Status status }"])
    assert files.decode("Order", bytes.fromhex("080001 0000000a 00")) == {"status": "PAID"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("struct Order { 1: " + "list<" * 2000 + "i32" + ">" * 2000 + " a }", "nested more than 64 levels"),
        ("enum Status { PAID = " + "9" * 5000 + " }", "is not a number"),
        ("struct Order { \u00b2: i32 a }", "is not a number"),
    ],
)
def test_thrift_files_beyond_all_limits_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ThriftFiles([text])
