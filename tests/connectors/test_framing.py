from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.connectors.registry import (
    Versioned,
    read_flag,
    read_versioned,
    read_versioned_array,
    read_versioned_list,
    write_versioned,
    write_versioned_array,
    write_versioned_list,
)
from state_pipelines.errors import FormatError, UnsupportedError

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)


def test_a_stream_holds_version_length_and_bytes() -> None:
    assert read_versioned(Reader(bytes.fromhex("00000002 00000003 616263 ff"))) == Versioned(2, b"abc")


def test_an_array_holds_version_length_and_bytes() -> None:
    assert read_versioned_array(bytes.fromhex("00000002 00000003 616263")) == Versioned(2, b"abc")


def test_an_old_array_holds_version_and_bytes() -> None:
    assert read_versioned_array(bytes.fromhex("00000002 6162636465")) == Versioned(2, b"abcde", has_length=False)


def test_an_array_without_room_for_a_version_is_an_error() -> None:
    with pytest.raises(FormatError):
        read_versioned_array(b"abc")


def test_a_list_holds_one_version_for_all() -> None:
    data = bytes.fromhex("00000001 00000002 00000001 61 00000000")
    assert read_versioned_list(Reader(data)) == (1, (Versioned(1, b"a"), Versioned(1, b"")))


def test_another_version_is_unsupported_and_named() -> None:
    with pytest.raises(UnsupportedError, match=r"version 7 of a split is not supported \(supported: 0, 1\)"):
        Versioned(7, b"").expect("a split", 0, 1)


def test_a_boolean_is_0_or_1() -> None:
    with pytest.raises(FormatError, match="2 is not a boolean"):
        read_flag(Reader(b"\2"))


def test_little_endian_text_must_be_utf_8() -> None:
    with pytest.raises(FormatError, match="not UTF-8"):
        Reader(bytes.fromhex("01000000 ff")).little_text()


@given(I32, st.binary(max_size=9), st.booleans())
def test_frames_survive_writing_and_reading(version: int, data: bytes, has_length: bool) -> None:
    writer = Writer()
    write_versioned(writer, Versioned(version, data))
    assert read_versioned(Reader(writer.getvalue())) == Versioned(version, data)
    array = write_versioned_array(Versioned(version, data, has_length=has_length))
    assert write_versioned_array(read_versioned_array(array)) == array


@pytest.mark.slow
@given(I32, st.lists(st.binary(max_size=5), max_size=4))
def test_lists_survive_writing_and_reading(version: int, elements: list[bytes]) -> None:
    writer = Writer()
    write_versioned_list(writer, version, elements)
    found, frames = read_versioned_list(Reader(writer.getvalue()))
    assert (found, [frame.data for frame in frames]) == (version, elements)


@given(I32, I64, st.text(max_size=5))
def test_little_endian_values_survive_writing_and_reading(short: int, long: int, text: str) -> None:
    writer = Writer()
    writer.little_i32(short)
    writer.little_i64(long)
    writer.little_text(text.encode("utf-8", "ignore").decode())
    reader = Reader(writer.getvalue())
    assert (reader.little_i32(), reader.little_i64()) == (short, long)
    assert reader.little_text() == text.encode("utf-8", "ignore").decode()
