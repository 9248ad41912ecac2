"""Binary rows of the table runtime: bytes that Flink wrote, every type, and bytes that are no row."""

from __future__ import annotations

import contextlib
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.codecs.binary_rows import (
    BinaryRowValue,
    TimestampValue,
    read_array,
    read_map,
    read_row,
    write_array,
    write_map,
    write_row,
)
from state_pipelines.errors import FormatError, StateError, UnsupportedError, ValueRangeError
from state_pipelines.serializers.tree import LogicalType


def sql(root: str, length: int | None = None, scale: int | None = None, *children: LogicalType) -> LogicalType:
    return LogicalType(root=root, length=length, scale=scale, children=children)


def nested(root: str, *children: LogicalType) -> LogicalType:
    return LogicalType(root=root, children=children)


INT, BIGINT, DOUBLE, BOOLEAN = sql("INTEGER"), sql("BIGINT"), sql("DOUBLE"), sql("BOOLEAN")
STRING, BYTES = sql("VARCHAR", 2**31 - 1), sql("VARBINARY", 2**31 - 1)
TS3, TS9, LTZ3 = (
    sql("TIMESTAMP_WITHOUT_TIME_ZONE", 3),
    sql("TIMESTAMP_WITHOUT_TIME_ZONE", 9),
    sql("TIMESTAMP_WITH_LOCAL_TIME_ZONE", 3),
)
ROW = nested("ROW", STRING, BIGINT)
ARRAY, MAP, MULTISET = nested("ARRAY", INT), nested("MAP", STRING, BIGINT), nested("MULTISET", STRING)

# Types, bytes and value of rows that state of Flink SQL holds.
FLINK_ROWS = [
    pytest.param(
        (BIGINT, INT, STRING, LTZ3),
        "02040000000000003600000000000000040000000000000000000000000000006be5e7cf8b010000",
        BinaryRowValue("+U", (54, 4, None, TimestampValue(1700000163179, 0))),
        id="update",
    ),
    pytest.param(
        (BIGINT, BIGINT, STRING, DOUBLE, BIGINT, BIGINT, sql("RAW")),
        "0000000000000000"
        "0300000000000000"
        "f32dffffffffffff"
        "0000000000000080"
        "00000000a041bac0"
        "0300000000000000"
        "0200000000000000"
        "0100000040000000"
        "0000000000000000",
        BinaryRowValue("+I", (3, -53773, "", -6721.625, 3, 2, b"\0")),
        id="raw",
    ),
    pytest.param(
        (BIGINT, INT, ARRAY, MAP, ROW),
        "0000000000000000"
        "2700000000000000"
        "0200000000000000"
        "1800000030000000"
        "3400000048000000"
        "1800000080000000"
        "0300000002000000"
        "1e739bb600000000"
        "0200000000000000"
        "18000000"
        "0200000000000000"
        "6232000000000082"
        "6100000000000081"
        "0200000001000000"
        "0000000000000000"
        "1e739bb6c5c99c2f"
        "00000000"
        "0000000000000000"
        "6e32000000000082"
        "1e739bb6c5c99c2f",
        BinaryRowValue(
            "+I",
            (
                39,
                2,
                [-1231326434, None, 2],
                [("b2", None), ("a", 3430838867158856478)],
                BinaryRowValue("+I", ("n2", 3430838867158856478)),
            ),
        ),
        id="nested",
    ),
    pytest.param(
        (nested("ROW", sql("DECIMAL", 10, 2), BIGINT), sql("DECIMAL", 38, 5), TS3, sql("DATE")),
        "0000000000000000"
        "1800000028000000"
        "0b00000040000000"
        "7537e7cf8b010000"
        "4602000000000000"
        "0000000000000000"
        "f2bf3d0100000000"
        "0000000000000080"
        "05476db9973ea3cc"
        "5a83720000000000",
        BinaryRowValue(
            "+I",
            (
                BinaryRowValue("+I", (Decimal("208240.50"), -(2**63))),
                Decimal("63819411866874167538.81970"),
                TimestampValue(1700000118645, 0),
                582,
            ),
        ),
        id="decimals",
    ),
]


@pytest.mark.parametrize(("types", "raw", "value"), FLINK_ROWS)
def test_rows_of_flink_are_read(types: tuple[LogicalType, ...], raw: str, value: BinaryRowValue) -> None:
    assert read_row(bytes.fromhex(raw), types) == value


@pytest.mark.parametrize(("types", "raw", "value"), FLINK_ROWS)
def test_rows_of_flink_are_written_again(types: tuple[LogicalType, ...], raw: str, value: BinaryRowValue) -> None:
    assert write_row(value, types).hex() == raw


@pytest.mark.parametrize(
    ("of", "slot", "value"),
    [
        (BOOLEAN, "0100000000000000", True),
        (sql("TINYINT"), "fe00000000000000", -2),
        (sql("SMALLINT"), "feff000000000000", -2),
        (INT, "feffffff00000000", -2),
        (BIGINT, "feffffffffffffff", -2),
        (sql("FLOAT"), "0000c03f00000000", 1.5),
        (DOUBLE, "000000000000f83f", 1.5),
        (sql("DATE"), "0500000000000000", 5),
        (sql("TIME_WITHOUT_TIME_ZONE", 0), "e803000000000000", 1000),
        (sql("INTERVAL_YEAR_MONTH"), "0500000000000000", 5),
        (sql("INTERVAL_DAY_TIME"), "0500000000000000", 5),
        (STRING, "6162630000000083", "abc"),
        (BYTES, "0102000000000082", b"\x01\x02"),
        (sql("DECIMAL", 18, 2), "f9ffffffffffffff", Decimal("-0.07")),
        (TS3, "feffffffffffffff", TimestampValue(-2, 0)),
        (STRING, "08000000100000006162636465666768", "abcdefgh"),
        (TS9, "0700000010000000feffffffffffffff", TimestampValue(-2, 7)),
        (sql("DECIMAL", 20, 1), "010000001000000005000000000000000000000000000000", Decimal("0.5")),
        (nested("DISTINCT_TYPE", INT), "0500000000000000", 5),
        (
            MULTISET,
            "2400000010000000100000000100000000000000610000000000008101000000000000000200000000000000",
            [("a", 2)],
        ),
    ],
)
def test_every_type_is_read(of: LogicalType, slot: str, value: object) -> None:
    assert read_row(bytes.fromhex("0000000000000000" + slot), (of,)).fields == (value,)


def test_row_kind_stands_in_the_first_byte() -> None:
    assert [read_row(bytes([kind]) + bytes(7), ()).kind for kind in range(4)] == ["+I", "-U", "+U", "-D"]


def test_null_bits_begin_behind_the_row_kind() -> None:
    assert read_row(bytes.fromhex("0002000000000000" + "00" * 16), (INT, INT)).fields == (0, None)


def test_bit_set_grows_by_eight_bytes() -> None:
    row = BinaryRowValue("+I", (None,) * 57)
    assert (len(write_row(row, (INT,) * 57)), read_row(write_row(row, (INT,) * 57), (INT,) * 57)) == (16 + 57 * 8, row)


@pytest.mark.parametrize(
    ("raw", "types", "message"),
    [
        ("00" * 8, (INT,), "16 bytes expected in a block of 8 bytes"),
        ("04" + "00" * 7, (), "4 is no row kind"),
        ("00" * 8 + "0800000018000000", (STRING,), "8 bytes expected in a block of 16 bytes"),
        ("00" * 8 + "ffffffff10000000", (STRING,), "4294967295 bytes expected"),
        (
            "00" * 8 + "0000000000000088",
            (STRING,),
            "a slot of 8 bytes states 8 bytes of data, more than the 7 that fit",
        ),
        ("00" * 8 + "ff00000000000081", (STRING,), "not UTF-8"),
        ("00" * 8 + "0400000010000000" + "ffffffff" + "00" * 4, (ARRAY,), "a count of -1 is negative"),
        ("00" * 8 + "0400000010000000" + "ffffff7f" + "00" * 4, (ARRAY,), "bytes expected in a block of 4 bytes"),
        ("00" * 8 + "0400000010000000" + "ffffff7f" + "00" * 4, (MAP,), "bytes expected in a block of 4 bytes"),
        ("00" * 8 + "0000000010000000", (TS9,), "8 bytes expected in a block of 16 bytes"),
    ],
)
def test_bytes_that_are_no_row_are_refused(raw: str, types: tuple[LogicalType, ...], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_row(bytes.fromhex(raw), types)


def slots(*variable: tuple[int, int]) -> bytes:
    return b"".join(size.to_bytes(4, "little") + start.to_bytes(4, "little") for start, size in variable)


OVERLAPPING = [
    pytest.param(bytes(8) + slots(*[(32, 24)] * 3) + b"a" * 24, (STRING,) * 3, id="text"),
    pytest.param(bytes(8) + slots(*[(32, 24)] * 3) + b"a" * 24, (sql("RAW"), BYTES, BYTES), id="bytes"),
    pytest.param(bytes(8) + slots(*[(8, 16)] * 3), (sql("DECIMAL", 38, 2),) * 3, id="decimals"),
    pytest.param(bytes(8) + slots((0, 24), (0, 8), (5, 8)), (STRING, TS9, TS9), id="timestamps"),
    pytest.param(bytes(8) + slots((0, 24), (0, 24)), (nested("ROW", BIGINT), nested("ROW", BIGINT)), id="rows"),
    pytest.param(
        bytes(8) + slots((16, 24)) + b"\2\0\0\0" + bytes(4) + slots((8, 16), (8, 16)), (nested("ARRAY", STRING),),
        id="elements",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "types"), OVERLAPPING)
def test_variable_length_data_that_overlap_are_refused(raw: bytes, types: tuple[LogicalType, ...]) -> None:
    with pytest.raises(FormatError, match="overlap"):
        read_row(raw, types)


def test_a_decimal_of_more_bytes_than_digits_is_refused() -> None:
    for size in (0, 17):
        with pytest.raises(FormatError, match=f"has {size} bytes, not 1 to 16"):
            read_row(bytes(8) + slots((16, size)) + bytes(24), (sql("DECIMAL", 38, 2),))


def test_type_without_known_form_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="TIMESTAMP_WITH_TIME_ZONE"):
        read_row(bytes(16), (sql("TIMESTAMP_WITH_TIME_ZONE", 3),))


@given(data=st.binary(max_size=120))
def test_any_bytes_give_a_row_or_a_state_error(data: bytes) -> None:
    with contextlib.suppress(StateError):
        read_row(data, (STRING, MAP, nested("ROW", ARRAY, sql("DECIMAL", 38, 2)), TS9))


@pytest.mark.parametrize(
    ("of", "value", "message"),
    [
        (INT, 2**31, "does not fit in 4 bytes"),
        (STRING, 5, "5 is not text, as VARCHAR wants it"),
        (sql("DECIMAL", 3, 1), Decimal("100.0"), r"does not fit in DECIMAL\(3, 1\)"),
        (sql("DECIMAL", 3, 1), Decimal("0.55"), "more than 1 decimals"),
        (sql("DECIMAL", 3, 1), Decimal("NaN"), "not a finite number"),
        (sql("DECIMAL", 3, 1), Decimal("1E+1000000"), "does not fit a SQL decimal"),
        (TS3, TimestampValue(0, 1), r"more digits than TIMESTAMP\(3\)"),
    ],
)
def test_values_that_do_not_fit_are_refused(of: LogicalType, value: object, message: str) -> None:
    with pytest.raises(ValueRangeError, match=message):
        write_row(BinaryRowValue("+I", (value,)), (of,))


def test_wrong_number_of_fields_is_refused() -> None:
    with pytest.raises(ValueRangeError, match="a row of 1 fields does not fit 2 types"):
        write_row(BinaryRowValue("+I", (1,)), (INT, INT))


TIMESTAMPS = st.builds(TimestampValue, st.integers(-(2**63), 2**63 - 1), st.integers(0, 999_999))
DECIMALS = (
    st.integers(-(10**38) + 1, 10**38 - 1)
    .map(lambda unscaled: Decimal(unscaled).as_tuple())
    .map(lambda parts: Decimal((parts.sign, parts.digits, -5)))
)
LONGS = st.integers(-(2**63), 2**63 - 1)
ROWS = st.builds(
    BinaryRowValue,
    st.sampled_from(["+I", "-U", "+U", "-D"]),
    st.tuples(
        st.none() | st.text(max_size=20),
        st.none() | st.binary(max_size=20),
        st.none() | DECIMALS,
        st.none() | TIMESTAMPS,
        st.none() | st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=70),
        st.none() | st.lists(st.tuples(st.text(max_size=9), st.none() | LONGS), max_size=5),
        st.none() | st.builds(BinaryRowValue, st.just("+I"), st.tuples(st.none() | st.text(), st.none() | LONGS)),
        st.none() | st.booleans(),
    ),
)
ROW_TYPES = (STRING, BYTES, sql("DECIMAL", 38, 5), TS9, ARRAY, MAP, ROW, BOOLEAN)


@pytest.mark.slow
@given(row=ROWS)
def test_rows_survive_the_round_trip(row: BinaryRowValue) -> None:
    assert read_row(write_row(row, ROW_TYPES), ROW_TYPES) == row


@pytest.mark.slow
@given(row=ROWS)
def test_rows_are_whole_words(row: BinaryRowValue) -> None:
    parts = BinaryRowValue(row.kind, (*row.fields[:4], None, None, None, row.fields[7]))
    assert len(write_row(parts, ROW_TYPES)) % 8 == 0


@pytest.mark.slow
@given(items=st.lists(st.none() | st.text(max_size=12), max_size=40))
def test_arrays_survive_the_round_trip(items: list[str | None]) -> None:
    assert read_array(write_array(items, STRING), STRING) == items


@pytest.mark.slow
@given(entries=st.lists(st.tuples(st.text(max_size=12), st.none() | LONGS), max_size=10))
def test_maps_survive_the_round_trip(entries: list[tuple[str, int | None]]) -> None:
    assert read_map(write_map(entries, STRING, BIGINT), STRING, BIGINT) == entries
