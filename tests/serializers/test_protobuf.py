"""Serializer of flink-datastream-protobuf: the descriptors in the snapshot give the layout of the data."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from google.protobuf import descriptor_pb2

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.java import MessageValue
from state_pipelines.codecs.json import to_json
from state_pipelines.codecs.scalar import read_value, write_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import FormatError, UnsupportedError, UnsupportedVersionError
from state_pipelines.serializers import build
from state_pipelines.serializers.compatibility import Outcome, resolve
from state_pipelines.serializers.java_types import SNAPSHOT_CLASS
from state_pipelines.serializers.registry import read_nested, write_nested
from state_pipelines.serializers.text import describe, parse, spell
from state_pipelines.serializers.tree import Protobuf

if TYPE_CHECKING:
    from pathlib import Path

FIELD = descriptor_pb2.FieldDescriptorProto


def describe_messages() -> bytes:
    """A message that contains itself, and one of another file."""
    files = descriptor_pb2.FileDescriptorSet()
    tag = files.file.add(name="tag.proto", package="acme", syntax="proto3")
    tag.message_type.add(name="Tag").field.add(name="text", number=1, type=FIELD.TYPE_STRING, label=1)
    file = files.file.add(name="node.proto", package="acme", syntax="proto3", dependency=["tag.proto"])
    node = file.message_type.add(name="Node")
    node.field.add(name="id", number=1, type=FIELD.TYPE_INT64, label=1)
    node.field.add(name="tag", number=2, type=FIELD.TYPE_MESSAGE, type_name=".acme.Tag", label=1)
    node.field.add(name="child", number=3, type=FIELD.TYPE_MESSAGE, type_name=".acme.Node", label=1)
    return bytes(files.SerializeToString(deterministic=True))


NODE = Protobuf(message_class="com.acme.Nodes$Node", message_name="acme.Node", descriptors=describe_messages())
# 42, a tag "a", a child 7; then field 9, which the descriptors do not have.
MESSAGE = bytes.fromhex("082a 1203 0a0161 1a02 0807 4863")
FRAME = len(MESSAGE).to_bytes(4, "big") + MESSAGE


def encode(node: Protobuf) -> bytes:
    writer = Writer()
    write_nested(writer, node)
    return writer.getvalue()


def test_snapshot_bytes() -> None:
    expected = Writer()
    expected.utf(SNAPSHOT_CLASS)
    for number in (1, 1, 1):
        expected.i32(number)
    expected.utf("com.acme.Nodes$Node")
    expected.utf("acme.Node")
    expected.take(b"\0")
    expected.i32(1 << 26)
    expected.i32(100)
    expected.bytes32(NODE.descriptors)
    expected.take(hashlib.sha256(NODE.descriptors).digest())
    assert encode(NODE) == expected.getvalue()
    assert read_nested(Reader(encode(NODE))) == NODE
    assert describe(NODE) == "Protobuf<com.acme.Nodes$Node>"
    assert parse(spell(NODE)) == NODE


def test_damaged_and_later_snapshots() -> None:
    with pytest.raises(FormatError, match="the SHA-256 after the descriptors does not match them"):
        read_nested(Reader(encode(NODE)[:-1] + b"\0"))
    start = len(SNAPSHOT_CLASS) + 2
    later = encode(NODE)
    with pytest.raises(UnsupportedVersionError):
        read_nested(Reader(later[:start] + b"\0\0\0\2" + later[start + 4 :]))
    with pytest.raises(FormatError, match="version 2 of the framing"):
        read_nested(Reader(later[: start + 4] + b"\0\0\0\2" + later[start + 8 :]))


def test_messages_have_their_fields_and_are_written_back_with_what_the_descriptors_lack() -> None:
    layout = derive_layout(NODE, LayoutContext())
    value = read_value(layout, Reader(FRAME))
    assert isinstance(value, MessageValue)
    assert value.fields == {"id": 42, "tag": {"text": "a"}, "child": {"id": 7, "tag": None, "child": None}}
    assert to_json(NODE, value)["@class"] == "com.acme.Nodes$Node"  # type: ignore[index, call-overload]
    writer = Writer()
    write_value(layout, writer, value)
    assert writer.getvalue() == FRAME


def test_messages_in_a_list_know_their_ends_and_are_text_in_tables() -> None:
    node = build.list_of(NODE)
    raw = b"\0\0\0\2" + FRAME + FRAME
    assert len(read_value(derive_layout(node, LayoutContext()), Reader(raw))) == 2
    columns = plan_columns(derive_layout(NODE, LayoutContext()))
    array = columns.decode(np.frombuffer(FRAME, np.uint8), np.array([0]), np.array([len(FRAME)])).array
    (text,) = array.to_pylist()
    assert text.startswith('{"@class":"com.acme.Nodes$Node"')
    assert '"child"' in text
    with pytest.raises(UnsupportedError, match="from which they cannot be written"):
        columns.encode(array)


def test_a_message_that_does_not_fit_or_is_not_described() -> None:
    with pytest.raises(FormatError, match=r"not a message acme\.Node"):
        read_value(derive_layout(NODE, LayoutContext()), Reader(b"\0\0\0\1\x0f"))
    other = build.list_of(replace(NODE, message_name="acme.Other"))
    with pytest.raises(UnsupportedError, match=r"no message acme\.Other"):
        read_value(derive_layout(other, LayoutContext()), Reader(b"\0\0\0\1" + FRAME))


@pytest.mark.parametrize(
    ("new", "outcome"),
    [
        (replace(NODE, deterministic=True, recursion_limit=200), Outcome.AS_IS),
        (replace(NODE, recursion_limit=50), Outcome.INCOMPATIBLE),
        (replace(NODE, message_class="com.acme.Node"), Outcome.INCOMPATIBLE),
        (replace(NODE, descriptors=NODE.descriptors + b"\0"), Outcome.INCOMPATIBLE),
    ],
)
def test_compatibility(new: Protobuf, outcome: Outcome) -> None:
    assert resolve(NODE, new).outcome is outcome


@pytest.mark.parametrize("case", ["protobuf3-default", "protobuf4-raised"])
def test_snapshots_and_values_that_the_library_wrote(wild2: Path, case: str) -> None:
    folder = wild2 / "flink-gcp+flink-datastream-protobuf/serializers" / case
    raw = (folder / "serializer-snapshot").read_bytes()
    reader = Reader(raw)
    node = read_nested(reader)
    reader.expect_end("the snapshot")
    writer = Writer()
    write_nested(writer, node)
    assert writer.getvalue() == raw
    data = Reader((folder / "test-data").read_bytes())
    value = read_value(derive_layout(node, LayoutContext()), data)
    data.expect_end("the value")
    assert isinstance(value, MessageValue)
    fields = dict(value.fields or {})
    assert (fields["id"], fields["detail"], fields["kind"], fields["nested"]) == (
        42,
        {"text": "saved"},
        "READY",
        {"text": "nested"},
    )
