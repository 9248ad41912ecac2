"""The scalar codec: forms that are not in the data of one serializer alone, and its errors."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs import layout as lay
from state_pipelines.codecs.scalar import read_value, write_value
from state_pipelines.errors import FormatError, StateError, UnsupportedError, ValueRangeError

I32, I64, TEXT = lay.Primitive(lay.PrimitiveKind.I32), lay.Primitive(lay.PrimitiveKind.I64), lay.Text()
ADDRESS = lay.PojoObject("Address", (("zip", I32), ("city", TEXT)))
PERSON = lay.PojoObject("Person", (("name", TEXT), ("address", ADDRESS), ("tags", lay.Sequence(lay.Text(False)))))


def read(layout: lay.Layout, data: str) -> Any:
    reader = Reader(bytes.fromhex(data), "chk-1/state")
    value = read_value(layout, reader)
    reader.expect_end("the value")
    return value


def write(layout: lay.Layout, value: Any) -> str:
    writer = Writer()
    write_value(layout, writer, value)
    return writer.getvalue().hex()


def error_of(layout: lay.Layout, data: str) -> StateError:
    with pytest.raises((FormatError, UnsupportedError)) as caught:
        read(layout, data)
    return caught.value


@pytest.mark.parametrize(
    ("layout", "value", "data"),
    [
        # From Flink's CompositeKeySerializationUtils: the length of the value in little-endian base 256.
        (lay.MeasuredKey(TEXT), "key", "046b657904"),
        (lay.MeasuredKey(TEXT), "x" * 300, "ad02" + "78" * 300 + "2e01"),
        (lay.MeasuredKey(TEXT), None, "0001"),
        (lay.MeasuredKey(lay.Constant(b"")), None, "00"),
        # LIST state: a comma between elements, which may hold commas themselves.
        (lay.Delimited(I32), [], ""),
        (lay.Delimited(I32), [44], "0000002c"),
        (lay.Delimited(I32), [1, 0x2C2C2C2C], "000000012c2c2c2c2c"),
        # MAP state: a null flag in front of the value.
        (lay.Optional(I32, rest_is_null=True), 7, "0000000007"),
        (lay.Optional(I32, rest_is_null=True), None, "01"),
        (lay.Optional(TEXT, null_flag=0), "a", "010261"),
        (lay.Optional(TEXT, null_flag=0), None, "00"),
        (lay.Optional(I64, padding=8), None, "010000000000000000"),
        (lay.Tagged(((1, "one", I32), (2, "two", TEXT))), {"case": "two", "value": "a"}, "020261"),
        (lay.Framed(lay.Delimited(I32)), [1], "0000000400000001"),
        (lay.NullMasked(I32), [None] * 8 + [1], "00000009ff0000000001"),
        (lay.Rest(), b"\1\2", "0102"),
        (lay.Sequence(lay.Constant(b"")), [None, None], "00000002"),
        (lay.BigDecimal(), Decimal("1E+2147483647"), "0000000280000001"),
        (lay.Text(False), "", "00"),
        (TEXT, "\ud83d", "02bdb003"),
    ],
)
def test_value_and_bytes_mean_each_other(layout: lay.Layout, value: Any, data: str) -> None:
    assert read(layout, data) == value
    assert write(layout, value) == data


def test_what_follows_a_null_map_value_belongs_to_it() -> None:
    assert read(lay.Optional(TEXT, rest_is_null=True), "0100") is None


def test_long_forms_of_the_small_numbers_are_read() -> None:
    assert [read(lay.BigInteger(), f"00000005{byte}") for byte in ("00", "01", "0a")] == [0, 1, 10]


@pytest.mark.parametrize("days", [-365243219162, 365241780471, 0, -719529, 11016])
def test_dates_have_all_years_of_java(days: int) -> None:
    layout = lay.Logical(lay.LogicalKind.LOCAL_DATE)
    assert read(layout, write(layout, days)) == days


@pytest.mark.parametrize(
    ("layout", "data", "path", "offset"),
    [
        (PERSON, "02000261000200000004", "value.address.zip", 7),
        (PERSON, "0201010000000002016101", "value.tags[]", 10),
        (lay.Mapping(TEXT, lay.Optional(I32)), "0000000102610000", "value{value}", 7),
        (lay.Mapping(I32, TEXT), "0000000100", "value{key}", 4),
        (lay.Delimited(ADDRESS), "05", "value[]", 0),
        (lay.Masked((("f0", I32),), kind=True), "0000", "value.f0", 1),
        (lay.Choice(I32, TEXT), "01000000", "value.left", 1),
        (I32, "000000", "value", 0),
    ],
)
def test_error_names_the_place(layout: lay.Layout, data: str, path: str, offset: int) -> None:
    where = error_of(layout, data).where
    assert (where.file, where.path, where.offset) == ("chk-1/state", path, offset)


@pytest.mark.parametrize(
    ("layout", "data", "message"),
    [
        (PERSON, "07", "7 is not a flag of a POJO"),
        (PERSON, "0400045065746102", "an object is of class Peta, which the serializer of Person does not list"),
        (PERSON, "0801", "an object is of registered subclass 1, which the serializer of Person does not list"),
        (lay.Constants(("A",)), "00000001", "index 1 is outside the 1 constants of the enum"),
        (lay.Constants(("A",)), "ffffffff", "index -1 is outside the 1 constants"),
        (lay.Constant(b"\x2a"), "2b", "the bytes are not 2a, the only ones that"),
        (lay.MeasuredKey(TEXT), "026103", "the length stored after a key is not its size of 2 bytes"),
        (lay.Sequence(I32), "7fffffff", "a count of 2147483647 does not fit in the 0 bytes left"),
        (lay.Sequence(lay.Constant(b"")), "7fffffff", "a count of 2147483647 does not fit"),
        (lay.Sequence(lay.Sequence(lay.Constant(b""))), "00000003" + "00000fff" * 3, "more than 8192 elements"),
        (lay.Mapping(lay.Constant(b""), lay.Constant(b"")), "00002001", "does not fit"),
        (lay.Sequence(I32), "ffffffff", "a count of -1 does not fit"),
        (lay.Delimited(I32), "000000012b00000002", "bytes are left over after an element"),
        (lay.Delimited(I32), "000000012c", "bytes are left over after an element"),
        (lay.BigInteger(), "00000004", "4 is no length of a BigInteger"),
        (lay.BigInteger(), "ffffffff", "-1 is no length of a BigInteger"),
        (lay.Sized(text=True), "00000001ff", "a string is not UTF-8"),
        (lay.Logical(lay.LogicalKind.LOCAL_DATE), "000007e3021d", "2019-2-29 is no date"),
        (lay.Logical(lay.LogicalKind.LOCAL_DATE), "7fffffff0101", "is no date"),
        (lay.Logical(lay.LogicalKind.LOCAL_TIME), "18000000000000", "24:0:0 and 0 nanoseconds is no time of day"),
        (
            lay.Logical(lay.LogicalKind.LOCAL_DATE_TIME),
            "80000000800000000000000000",
            "only one of date and time is null",
        ),
        (lay.Tagged(((1, "one", I32),)), "03", "3 is not a known tag"),
        (lay.Framed(I32), "0000000500000001ff", "1 bytes are left over"),
        (lay.Framed(I32), "0000000300000001", "4 bytes expected but only 3 are left"),
    ],
)
def test_wrong_bytes_are_an_error(layout: lay.Layout, data: str, message: str) -> None:
    assert message in error_of(layout, data).what


@pytest.mark.parametrize(
    ("layout", "value", "path"),
    [
        (I32, 1 << 31, "value"),
        (I32, "1", "value"),
        (I32, None, "value"),
        (lay.Primitive(lay.PrimitiveKind.BOOL), 1, "value"),
        (lay.Primitive(lay.PrimitiveKind.F32), 1e300, "value"),
        (lay.Text(False), None, "value"),
        (TEXT, b"a", "value"),
        (lay.Sized(), "a", "value"),
        (lay.Sized(text=True), "\ud83d", "value"),
        (lay.Logical(lay.LogicalKind.CHAR), "ab", "value"),
        (lay.Logical(lay.LogicalKind.CHAR), "\U0001f600", "value"),
        (lay.Logical(lay.LogicalKind.LOCAL_TIME), 86_400_000_000_000, "value"),
        (lay.Logical(lay.LogicalKind.LOCAL_DATE), 1 << 40, "value"),
        (lay.Logical(lay.LogicalKind.INSTANT), {"epoch_second": 1}, "value"),
        (lay.BigInteger(), 1.0, "value"),
        (lay.BigDecimal(), Decimal("NaN"), "value"),
        (lay.BigDecimal(), Decimal("1E-2147483648"), "value"),
        (lay.Constant(b"\0"), 0, "value"),
        (lay.Constants(("A",)), "B", "value"),
        (lay.Struct((("f0", I32),)), {}, "value"),
        (lay.Struct((("f0", I32),)), {"f0": 1, "f1": 2}, "value"),
        (lay.Struct((("f0", I32),)), [1], "value"),
        (lay.Sequence(I32), [1, None], "value[]"),
        (lay.Sequence(I32), 1, "value"),
        (lay.Mapping(I32, TEXT), [(1, 2)], "value{value}"),
        (lay.Mapping(I32, TEXT), [("1", "2")], "value{key}"),
        (lay.Mapping(I32, TEXT), [1], "value"),
        (lay.Masked((("f0", I32),), kind=True), {"row_kind": "?", "f0": 1}, "value"),
        (lay.Masked((("f0", I32),), kind=False), {"row_kind": "-D", "f0": 1}, "value"),
        (lay.Choice(I32, TEXT), {"is_left": True, "left": 1, "right": "a"}, "value"),
        (lay.Choice(I32, TEXT), {"is_left": None, "left": 1, "right": None}, "value"),
        (PERSON, {"class": "Peta"}, "value"),
        (PERSON, {"class": "Person", "name": "a"}, "value"),
        (
            PERSON,
            {"name": "a", "address": {"class": "Address", "zip": "x", "city": None}, "tags": None},
            "value.address.zip",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_an_error(layout: lay.Layout, value: Any, path: str) -> None:
    with pytest.raises(ValueRangeError) as caught:
        write(layout, value)
    assert caught.value.where.path == path


def test_a_layout_without_scalar_form_is_named() -> None:
    with pytest.raises(UnsupportedError, match="the layout Layout has no scalar form"):
        read(lay.Layout(), "")


def test_a_primitive_is_of_the_kind_that_is_named() -> None:
    named = lay.Primitive("i64")  # type: ignore[arg-type]
    assert named == lay.Primitive(lay.PrimitiveKind.I64)
    assert read_value(named, Reader(bytes.fromhex("000000000000002a"))) == 42
    with pytest.raises(ValueError, match="'i65' is not a valid PrimitiveKind"):
        lay.Primitive("i65")  # type: ignore[arg-type]
