"""Bytes that the coders of PyFlink write, and lists that are stored in several arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.scalar import read_value, write_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import FormatError, UnsupportedError, ValueRangeError
from state_pipelines.serializers.python_types import parse_python_type


@pytest.mark.parametrize(
    ("text", "raw", "value"),
    [
        ("BOOLEAN", "01", True),
        ("TINYINT", "ff", -1),
        ("SMALLINT", "0102", 258),
        ("INT", "00000005", 5),
        ("BIGINT", "00000000000f47cd", 1_001_421),
        ("FLOAT", "3fc00000", 1.5),
        ("DOUBLE", "3ff8000000000000", 1.5),
        ("STRING", "00000003c3a978", "éx"),
        ("BYTES", "0000000200ff", b"\x00\xff"),
        ("DECIMAL", "00000004312e3530", "1.50"),
        ("DATE", "00004d5e", 19_806),
        ("TIME", "02af5398", 45_044_632 * 1_000_000),
        ("TIMESTAMP", "000001902f3a5b00", 1_718_779_271_936),
        ("INSTANT", "000000000000000100000002", {"epoch_second": 1, "nano": 2}),
        ("TUPLE<BIGINT, INT>", "000000000000000100000002", {"f0": 1, "f1": 2}),
        ("ARRAY<TINYINT>", "00000002010500", [5, None]),
        ("PRIMITIVE_ARRAY<SMALLINT>", "0000000200050006", [5, 6]),
        ("MAP<TINYINT, TINYINT>", "0000000201000a0201", [(1, 10), (2, None)]),
        ("ROW<n TINYINT, s TINYINT>", "0005" + "06", {"row_kind": "+I", "n": 5, "s": 6}),
        ("ROW<n TINYINT, s TINYINT>", "a006", {"row_kind": "-U", "n": None, "s": 6}),
    ],
)
def test_values_of_every_type(text: str, raw: str, value: Any) -> None:
    layout = derive_layout(parse_python_type(text), LayoutContext())
    reader, writer = Reader(bytes.fromhex(raw)), Writer()

    assert read_value(layout, reader) == value
    reader.expect_end("the value")
    write_value(layout, writer, value)
    assert writer.getvalue().hex() == raw


@pytest.mark.parametrize("name", ["epoch_day", "milli_of_day"])
def test_columns_of_days_and_times_are_written_as_they_were_read(name: str) -> None:
    columns = plan_columns(lay.Optional(lay.Logical(lay.LogicalKind(name))))
    raw = bytes.fromhex("000000000101000001234500052658ff")
    starts, stops = np.array([0, 5, 6, 11], np.int64), np.array([5, 6, 11, 16], np.int64)
    array = columns.decode(np.frombuffer(raw, np.uint8), starts, stops).array

    assert array.is_null().to_pylist() == [False, True, False, False]
    assert columns.encode(array).data.tobytes()[: len(raw)] == raw


def test_the_mask_of_a_wide_row_takes_two_bytes() -> None:
    of = parse_python_type(f"ROW<{', '.join(['TINYINT'] * 7)}>")
    layout = derive_layout(of, LayoutContext())
    # Two bits of the row kind, then fields 0 to 5; field 6 is the first bit of the second byte.
    value = read_value(layout, Reader(bytes.fromhex("3f8000".replace("8000", "00") + "07")))

    assert [value[f"f{index}"] for index in range(7)] == [None] * 6 + [7]


def decode(layout: lay.Layout, *records: bytes) -> list[Any]:
    stops = np.cumsum([len(each) for each in records], dtype=np.int64)
    starts = np.array([0, *stops[:-1]], np.int64)
    data = np.frombuffer(b"".join(records), np.uint8)
    return plan_columns(layout).decode(data, starts, stops).array.to_pylist()  # type: ignore[no-any-return]


RUNS = lay.Runs(lay.Sized(text=True))
# Two bundles: "x" and "y" in one array, "z" in the next, with the delimiter of list state between them.
TWO_BUNDLES = bytes.fromhex("0000000a000000017800000001792c00000005000000017a")


def test_arrays_of_several_bundles_are_one_list() -> None:
    assert read_value(RUNS, Reader(TWO_BUNDLES)) == ["x", "y", "z"]
    assert decode(RUNS, TWO_BUNDLES, b"", TWO_BUNDLES[:14]) == [["x", "y", "z"], [], ["x", "y"]]


def test_lists_are_written_with_an_array_per_element() -> None:
    writer = Writer()
    write_value(RUNS, writer, ["x", "y"])
    columns = plan_columns(RUNS)
    (array,) = [plan_columns(RUNS).decode(np.frombuffer(TWO_BUNDLES, np.uint8), *_span(TWO_BUNDLES)).array]

    assert writer.getvalue().hex() == "0000000500000001782c000000050000000179"
    encoded = columns.encode(array)
    assert encoded.data.tobytes()[: len(writer.getvalue())] == writer.getvalue()
    assert decode(RUNS, encoded.data.tobytes()) == [["x", "y", "z"]]


def test_elements_of_one_array_share_the_time_of_their_last_access() -> None:
    runs = lay.Runs(lay.Primitive(lay.PrimitiveKind.I8), ttl=True)
    raw = bytes.fromhex("00000000000000640000000201022c00000000000000c80000000103")
    expected = [(100, 1), (100, 2), (200, 3)]

    assert [(each["last_access"], each["value"]) for each in read_value(runs, Reader(raw))] == expected
    assert [(each["last_access"], each["value"]) for each in decode(runs, raw)[0]] == expected


def test_half_an_element_at_the_end_of_an_array_is_an_error() -> None:
    raw = bytes.fromhex("0000000700000001780000")

    with pytest.raises(FormatError):
        read_value(RUNS, Reader(raw))
    with pytest.raises(FormatError):
        decode(RUNS, raw)


def test_elements_without_bytes_have_no_number() -> None:
    empty = lay.Runs(derive_layout(parse_python_type("TUPLE<>"), LayoutContext()))

    with pytest.raises(UnsupportedError, match="without bytes"):
        plan_columns(empty)
    with pytest.raises(FormatError, match="no bytes"):
        read_value(lay.Delimited(lay.Struct(()), delimiter=None), Reader(b"x"))


@pytest.mark.parametrize("raw", ["ffffffff", "05265c00"])
def test_a_time_outside_a_day_is_an_error(raw: str) -> None:
    with pytest.raises(FormatError, match="within a day"):
        read_value(lay.Logical(lay.LogicalKind.MILLI_OF_DAY), Reader(bytes.fromhex(raw)))
    with pytest.raises(FormatError, match="within a day"):
        decode(lay.Logical(lay.LogicalKind.MILLI_OF_DAY), bytes.fromhex(raw))


def test_a_part_of_a_millisecond_is_not_written() -> None:
    with pytest.raises(ValueRangeError, match="milliseconds"):
        write_value(lay.Logical(lay.LogicalKind.MILLI_OF_DAY), Writer(), 1)


def _span(raw: bytes) -> tuple[np.ndarray, np.ndarray]:
    return np.array([0], np.int64), np.array([len(raw)], np.int64)
