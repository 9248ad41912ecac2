from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.errors import FormatError, ValueRangeError

UNITS = st.text(st.characters(codec=None), max_size=40)

ENCODINGS = [
    ("u8", 0xFE, "fe"),
    ("i8", -2, "fe"),
    ("bool", True, "01"),
    ("i16", -2, "fffe"),
    ("u16", 0xFFFE, "fffe"),
    ("i32", -2, "fffffffe"),
    ("i64", -2, "fffffffffffffffe"),
    ("f32", 1.5, "3fc00000"),
    ("f64", 1.5, "3ff8000000000000"),
    ("bytes32", b"ab", "00000002 6162"),
    ("varint", 300, "ac02"),
    ("varint", 0xFFFFFFFF, "ffffffff0f"),
    ("utf", "a\0é", "0005 61 c080 c3a9"),
    ("utf", "😀", "0006 eda0bd edb880"),
    ("long_utf", "a", "0000000000000001 61"),
    ("vstr", None, "00"),
    ("vstr", "", "01"),
    ("vstr", "ab", "03 6162"),
    ("vstr", "é", "02 e901"),
    ("vstr", "😀", "03 bdb003 80bc03"),
    ("vstr_plain", "ab", "02 6162"),
]


@pytest.mark.parametrize(("encoding", "value", "written"), ENCODINGS)
def test_bytes_are_read_as_value(encoding: str, value: object, written: str) -> None:
    reader = Reader(bytes.fromhex(written))
    assert getattr(reader, encoding)() == value
    reader.expect_end("the value")


@pytest.mark.parametrize(("encoding", "value", "written"), ENCODINGS)
def test_value_is_written_as_bytes(encoding: str, value: object, written: str) -> None:
    writer = Writer()
    getattr(writer, encoding)(value)
    assert writer.getvalue() == bytes.fromhex(written)


@pytest.mark.parametrize(("encoding", "value", "written"), ENCODINGS)
def test_truncated_bytes_are_an_error(encoding: str, value: object, written: str) -> None:
    with pytest.raises(FormatError):
        getattr(Reader(bytes.fromhex(written)[:-1]), encoding)()


@pytest.mark.parametrize("encoding", ["utf", "vstr", "vstr_plain"])
@given(text=UNITS)
def test_any_text_comes_back(encoding: str, text: str) -> None:
    writer = Writer()
    getattr(writer, encoding)(text)
    expected = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    assert getattr(Reader(writer.getvalue()), encoding)() == expected


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("u8", 256),
        ("i8", 128),
        ("i32", 1 << 31),
        ("i64", 1 << 63),
        ("varint", -1),
        ("utf", "x" * 65536),
        ("f32", 1e300),
    ],
)
def test_value_out_of_range_is_refused(encoding: str, value: Any) -> None:
    with pytest.raises(ValueRangeError):
        getattr(Writer(), encoding)(value)


def test_error_names_file_and_offset() -> None:
    reader = Reader(bytes(6), "part-0")
    reader.i32()
    with pytest.raises(FormatError, match=r"\[file part-0, offset 4\]"):
        reader.i32()


def test_negative_length_is_an_error() -> None:
    with pytest.raises(FormatError, match="negative"):
        Reader(bytes.fromhex("ffffffff")).bytes32()


def test_count_that_cannot_fit_is_an_error() -> None:
    with pytest.raises(FormatError, match="does not fit"):
        Reader(bytes.fromhex("00000003 0000")).count()


def test_left_over_bytes_are_an_error() -> None:
    with pytest.raises(FormatError, match="1 bytes are left over after the header"):
        Reader(b"x").expect_end("the header")


def test_reader_stops_at_its_end() -> None:
    with pytest.raises(FormatError):
        Reader(bytes(8), position=0, end=4).i64()
