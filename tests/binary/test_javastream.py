from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_pipelines.binary.data_views import Reader
from state_pipelines.binary.java_stream import (
    HEADER,
    SERIALIZABLE,
    JavaArray,
    JavaBlock,
    JavaClassData,
    JavaClassDesc,
    JavaContent,
    JavaEnum,
    JavaFieldDesc,
    JavaObject,
    JavaProxyDesc,
    JavaReference,
    JavaString,
    read_stream,
    write_stream,
)
from state_pipelines.errors import FormatError, UnsupportedError, ValueRangeError

FIXTURES = os.environ.get("FLINK_STATE_FIXTURES")

# new Integer(26)
INTEGER = (
    HEADER
    + bytes.fromhex("73 72 0011")
    + b"java.lang.Integer"
    + bytes.fromhex("12e2a0a4f7818738 02 0001 49 0005")
    + b"value"
    + bytes.fromhex("78 72 0010")
    + b"java.lang.Number"
    + bytes.fromhex("86ac951d0b94e08b 02 0000 78 70 0000001a")
)
# An enum constant, and the array {constant, constant}.
BIGINT = (
    HEADER
    + bytes.fromhex("7e 72 0003 542e45 0000000000000000 12 0000 78 72 000e")
    + b"java.lang.Enum"
    + bytes.fromhex("0000000000000000 12 0000 78 70 74 0006")
    + b"BIGINT"
)
# class Loop { int a; Loop self; char c; } whose self is itself
LOOP = HEADER + bytes.fromhex(
    "73 72 0004 4c6f6f70 0000000000000007 02 0003 43 0001 63 49 0001 61 4c 0004 73656c66 74 0006 4c4c6f6f703b 78 70"
    "d83d 00000001 71 007e0002"
)
# Object[]{"x", the same "x"}
SHARED = HEADER + bytes.fromhex("75 72 0002 5b4c 0000000000000001 02 0000 78 70 00000002 74 0001 78 71 007e0002")
# class W with a writeObject that writes one int field, an int and a string
WRITER = HEADER + bytes.fromhex(
    "73 72 0001 57 0000000000000001 03 0001 49 0001 61 78 70 00000005 77 04 00000009 74 0001 78 78"
)
# an externalizable class that wrote 300 bytes
EXTERNAL = HEADER + bytes.fromhex("73 72 0001 58 0000000000000001 0c 0000 78 70 7a 0000012c") + bytes(300) + b"\x78"
PROXY = HEADER + bytes.fromhex("73 7d 00000001 0003 612e42 78 70")
LONG_STRING = HEADER + bytes.fromhex("7c 0000000000011170") + b"x" * 70000
STREAMS = [INTEGER, BIGINT, LOOP, SHARED, WRITER, EXTERNAL, PROXY, LONG_STRING, HEADER + b"\x70"]


def read(data: bytes) -> JavaContent:
    reader = Reader(data, "stream")
    content = read_stream(reader)
    reader.expect_end("the stream")
    return content


@pytest.mark.parametrize("stream", STREAMS)
def test_stream_is_written_with_the_same_bytes(stream: bytes) -> None:
    assert write_stream(read(stream)) == stream


@pytest.mark.parametrize("stream", STREAMS)
def test_reading_stops_at_the_end_of_the_stream(stream: bytes) -> None:
    reader = Reader(stream + b"next")
    read_stream(reader)
    assert reader.remaining == 4


@pytest.mark.parametrize("stream", STREAMS)
def test_every_truncation_is_an_error(stream: bytes) -> None:
    for size in range(0, len(stream), max(1, len(stream) // 200)):
        with pytest.raises(FormatError):
            read(stream[:size])


def test_object_gives_its_fields_by_name() -> None:
    value = read(INTEGER)
    assert isinstance(value, JavaObject)
    assert (value.class_name, value.fields) == ("java.lang.Integer", {"value": 26})


def test_enum_gives_its_constant() -> None:
    value = read(BIGINT)
    assert isinstance(value, JavaEnum)
    assert (value.class_name, value.constant) == ("T.E", "BIGINT")


def test_back_reference_gives_the_same_object() -> None:
    value = read(SHARED)
    assert isinstance(value, JavaArray)
    assert value.values[0] is value.values[1]


def test_reference_to_an_enclosing_object_stays_a_reference() -> None:
    value = read(LOOP)
    assert isinstance(value, JavaObject)
    assert value.fields == {"c": "\ud83d", "a": 1, "self": JavaReference(2)}


def test_data_of_write_object_is_kept() -> None:
    value = read(WRITER)
    assert isinstance(value, JavaObject)
    assert value.class_data == (JavaClassData((5,), (JavaBlock(bytes.fromhex("00000009")), JavaString("x"))),)


def test_proxy_gives_its_interfaces() -> None:
    value = read(PROXY)
    assert isinstance(value, JavaObject)
    assert value.class_desc == JavaProxyDesc(("a.B",))


def test_byte_array_is_bytes() -> None:
    assert read(HEADER + bytes.fromhex("75 72 0002 5b42 0000000000000001 02 0000 78 70 00000002 fffe")) == JavaArray(
        JavaClassDesc("[B", 1, SERIALIZABLE), b"\xff\xfe"
    )


def test_equal_strings_that_are_two_objects_are_written_twice() -> None:
    desc = JavaClassDesc("[Ljava.lang.String;", 1, SERIALIZABLE)
    stream = write_stream(JavaArray(desc, (JavaString("x"), JavaString("x"))))
    assert stream.count(bytes.fromhex("74 0001 78")) == 2


@pytest.mark.slow
@given(st.recursive(st.none() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=4), max_leaves=20))
def test_nested_arrays_come_back(tree: object) -> None:
    desc = JavaClassDesc("[Ljava.lang.Object;", 1, SERIALIZABLE)

    def build(node: object) -> JavaContent:
        if isinstance(node, list):
            return JavaArray(desc, tuple(build(part) for part in node))
        return JavaString(node) if isinstance(node, str) else None

    value = build(tree)
    assert read(write_stream(value)) == value


def test_wrong_header_is_an_error() -> None:
    with pytest.raises(FormatError, match=r"AC ED 00 05 \[file stream, offset 0\]"):
        read(b"\xac\xed\x00\x04\x70")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("71 007e0000", "is outside the 0 values"),
        ("79", "0x79 does not begin a value"),
        ("73 74 0001 78", "a class descriptor is expected"),
        ("75 72 0001 58 0000000000000001 02 0000 78 70 00000000", "not an array class"),
        ("75 72 0002 5b49 0000000000000001 02 0000 78 70 00000002 00000001", "does not fit"),
        ("72 0001 58 0000000000000001 02 0001 4c 0001 61 70 78 70", "has no type signature"),
        ("72 0001 58 0000000000000001 02 0002 4c 0001 61 74 0001 78 49 0001 62 78 70", "begin with the primitive ones"),
    ],
)
def test_malformed_content_is_an_error(content: str, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        read(HEADER + bytes.fromhex(content))


def test_objects_too_deep_are_an_error() -> None:
    desc = bytes.fromhex("72 0002 5b4c 0000000000000001 02 0000 78 70")
    nested = b"\x75" + desc + bytes.fromhex("00000001") + bytes.fromhex("75 71 007e0000 00000001") * 200 + b"\x70"
    with pytest.raises(FormatError, match="more than 100 levels deep"):
        read(HEADER + nested)


def test_class_that_marks_no_end_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="only the class knows their end"):
        read(HEADER + bytes.fromhex("73 72 0001 58 0000000000000001 04 0000 78 70 00"))


def test_value_that_does_not_fit_its_field_is_refused() -> None:
    desc = JavaClassDesc("X", 1, SERIALIZABLE, (JavaFieldDesc("I", "a"),))
    with pytest.raises(ValueRangeError):
        write_stream(JavaObject(desc, (JavaClassData((1 << 31,)),)))


@pytest.mark.slow
@pytest.mark.skipif(not FIXTURES, reason="FLINK_STATE_FIXTURES is unset: it names the directory with files of Flink")
def test_every_stream_that_flink_wrote_is_written_with_the_same_bytes() -> None:
    streams = 0
    for path in Path(FIXTURES or "").rglob("*"):
        data = path.read_bytes() if path.is_file() and path.suffix != ".gz" else b""
        position = data.find(HEADER)
        while position >= 0:
            reader = Reader(data, str(path), position)
            content = read_stream(reader)
            assert write_stream(content) == data[position : reader.position]
            streams += 1
            position = data.find(HEADER, position + len(HEADER))
    assert streams > 1000
