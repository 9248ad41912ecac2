from __future__ import annotations

import pytest

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.errors import FormatError, UnsupportedError, UnsupportedVersionError
from state_pipelines.serializers.snapshot_classes import (
    Head,
    read_composite_header,
    read_head,
    read_nested_count,
    read_optional_map,
    read_outer_version,
    write_composite_header,
    write_head,
    write_nested_count,
    write_optional_map,
    write_outer_version,
)
from tests.serializers.literals import LONG_CLASS, OPTIONAL_MAP


def test_outer_version_is_2() -> None:
    reader = Reader(bytes.fromhex("00000002"))
    read_outer_version(reader)
    assert reader.remaining == 0


def test_outer_version_is_written() -> None:
    writer = Writer()
    write_outer_version(writer)
    assert writer.getvalue() == bytes.fromhex("00000002")


def test_config_snapshots_are_refused_with_a_way_out() -> None:
    with pytest.raises(UnsupportedError, match=r"config snapshot: .* older than 1\.8, .*Flink 1\.8 to 1\.16"):
        read_outer_version(Reader(bytes.fromhex("00000001"), "file"))


def test_another_outer_version_is_refused() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"a serializer snapshot has version 7, .* reads 2"):
        read_outer_version(Reader(bytes.fromhex("00000007")))


def test_head_is_class_name_and_version() -> None:
    head = read_head(Reader(b"\x00\x50" + LONG_CLASS.encode() + bytes.fromhex("00000003")))
    assert (head.snapshot_class, head.version) == (LONG_CLASS, 3)


def test_head_is_written() -> None:
    writer = Writer()
    write_head(writer, "a.B", 3)
    assert writer.getvalue() == b"\x00\x03a.B\x00\x00\x00\x03"


def test_head_refuses_a_version_and_names_the_offset() -> None:
    with pytest.raises(UnsupportedError, match=r"version 9 of a\.B .*known: 2, 3.*offset 17"):
        Head("a.B", 9, "file", 17).expect(2, 3)


def test_composite_header_holds_the_outer_version() -> None:
    assert read_composite_header(Reader(bytes.fromhex("000de704 00000004")), Head("a.B", 3)) == 4


def test_legacy_composite_has_no_header() -> None:
    reader = Reader(b"\xff")
    assert (read_composite_header(reader, Head("a.B", 2)), reader.position) == (2, 0)


def test_composite_header_is_written() -> None:
    writer = Writer()
    write_composite_header(writer, 3, 4)
    assert writer.getvalue() == bytes.fromhex("000de704 00000004")


def test_legacy_composite_header_writes_nothing() -> None:
    writer = Writer()
    write_composite_header(writer, 2, 2)
    assert writer.getvalue() == b""


def test_wrong_composite_magic_is_named() -> None:
    with pytest.raises(FormatError, match=r"0x000de704 expected, 0x00000005 found"):
        read_composite_header(Reader(bytes.fromhex("00000005 00000001")), Head("a.B", 3))


def test_nested_count_round_trip() -> None:
    writer = Writer()
    write_nested_count(writer, 0)
    assert writer.getvalue() == bytes.fromhex("001457fd 00000001 00000000")
    assert read_nested_count(Reader(writer.getvalue())) == 0


def test_a_nested_count_that_cannot_fit_is_refused() -> None:
    with pytest.raises(FormatError, match="count of 2147483647 does not fit"):
        read_nested_count(Reader(bytes.fromhex("001457fd 00000001 7fffffff")))


def test_another_version_of_nested_is_refused() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"nested serializers has version 2, .* reads 1"):
        read_nested_count(Reader(bytes.fromhex("001457fd 00000002 00000000")))


ENTRIES = OPTIONAL_MAP + bytes.fromhex("00000002 000161 01 00000002 0102 00 000162 00 01 00000000")


def test_optional_map_has_optional_keys_and_values() -> None:
    entries = read_optional_map(Reader(ENTRIES))
    found = [
        (name, key and key.take(key.remaining), value and value.take(value.remaining)) for name, key, value in entries
    ]
    assert found == [("a", b"\1\2", None), ("b", None, b"")]


def test_optional_map_is_written() -> None:
    writer = Writer()
    write_optional_map(writer, [("a", b"\1\2", None), ("b", None, b"")])
    assert writer.getvalue() == ENTRIES


def test_frames_know_their_offset_in_the_file() -> None:
    ((_, key, _), _) = read_optional_map(Reader(ENTRIES))
    assert key is not None
    assert (key.position, key.end) == (20, 22)


def test_wrong_optional_map_magic_is_refused() -> None:
    with pytest.raises(FormatError, match="0x000004f2c69a3d70"):
        read_optional_map(Reader(bytes(12)))


def test_a_frame_longer_than_the_data_is_refused() -> None:
    with pytest.raises(FormatError, match="255 bytes expected"):
        read_optional_map(Reader(OPTIONAL_MAP + bytes.fromhex("00000001 000161 01 000000ff 00")))
