"""Objects of classes with a Kryo serializer of their own: JavaSerializer, chill's serializers of messages.

`kryo_own_serializers.tsv` holds what `KryoSerializer` of Flink 1.20.5 (Kryo 2) and 2.3.0 (Kryo 5) wrote, and its own
snapshot. `shop.Legacy` is registered with Flink's JavaSerializer, `shop.Older` with Kryo's, `Timestamp` of Protobuf
with a ProtobufSerializer as that of chill writes, which is also the default serializer of `Message`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2

from state_pipelines.binary.data_views import Reader, Writer
from state_pipelines.codecs.columns import plan_columns
from state_pipelines.codecs.java import CollectionValue, MessageValue, ObjectValue, TypedValue, Undecoded
from state_pipelines.codecs.json import value_json
from state_pipelines.codecs.kryo import read_kryo, read_kryo_span, write_kryo
from state_pipelines.codecs.layout import JavaText, register_class_layout
from state_pipelines.codecs.messages import MessageTypes
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.errors import UnsupportedError
from state_pipelines.operations.convert import ConversionRequest, convert, plan_conversion
from state_pipelines.operations.dump import dump
from state_pipelines.operations.write.keyed_rewrite import Format
from state_pipelines.serializers.registry import read_nested
from state_pipelines.serializers.tree import Kryo, KryoRegistration
from state_pipelines.snapshot import declare, open_snapshot
from state_pipelines.storage import resolve

if TYPE_CHECKING:
    from state_pipelines.codecs.kryo import Version

LINES = (Path(__file__).parent / "kryo_own_serializers.tsv").read_text(encoding="utf-8").splitlines()[1:]
VERSIONS: tuple[Version, ...] = (2, 5)


def descriptor_set() -> bytes:
    """Descriptors of `Timestamp` and `Duration`."""
    files = descriptor_pb2.FileDescriptorSet()
    for module in (timestamp_pb2, duration_pb2):
        module.DESCRIPTOR.CopyToProto(files.file.add())
    return bytes(files.SerializeToString())


DECLARED = MessageTypes(protobuf=(descriptor_set(),))


def vector(version: Version, name: str) -> tuple[bytes, Kryo]:
    for line in LINES:
        kryo, value, raw, snapshot = line.split("\t")
        if (kryo, value) == (str(version), name):
            serializer = read_nested(Reader(bytes.fromhex(snapshot)))
            assert isinstance(serializer, Kryo)
            return bytes.fromhex(raw), serializer
    raise LookupError(name)


def read(version: Version, name: str, messages: MessageTypes | None = DECLARED) -> Any:
    raw, serializer = vector(version, name)
    reader = Reader(raw)
    value = read_kryo(reader, serializer, version, messages=messages)
    reader.expect_end("the value")
    return value


@pytest.mark.parametrize("version", VERSIONS)
def test_an_object_of_java_serialization_is_read_by_structure(version: Version) -> None:
    value = read(version, "one")
    assert isinstance(value, TypedValue)
    assert value_json(value) == {"@class": "shop.Legacy", "a": 7, "b": "x"}


@pytest.mark.parametrize("version", VERSIONS)
def test_later_objects_of_a_graph_go_on_in_the_stream_of_their_class(version: Version) -> None:
    value = read(version, "list")
    assert isinstance(value, CollectionValue)
    assert [value_json(each) for each in value.items] == [
        {"@class": "shop.Legacy", "a": 7, "b": "x"},
        {"@class": "shop.Legacy", "a": 8, "b": "y"},
        {"@class": "shop.Legacy", "a": 7, "b": "x"},
        {"@class": "shop.Older", "a": 1, "b": "x"},
        {"@class": "shop.Older", "a": 2, "b": None},
    ]
    assert value.items[0] is value.items[2]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["one", "list", "message", "empty", "messages"])
def test_values_are_written_byte_for_byte(version: Version, name: str) -> None:
    raw, serializer = vector(version, name)
    writer = Writer()
    write_kryo(writer, serializer, read(version, name), version, messages=DECLARED)
    assert writer.getvalue() == raw


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "fields"), [("message", {"seconds": 5, "nanos": -1}), ("empty", {"seconds": 0, "nanos": 0})]
)
def test_a_declared_message_has_fields(version: Version, name: str, fields: dict[str, int]) -> None:
    value = read(version, name)
    assert isinstance(value, MessageValue)
    assert value_json(value) == {"@class": "com.google.protobuf.Timestamp", **fields}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_message_without_a_declaration_is_framed(version: Version) -> None:
    value = read(version, "message", None)
    assert value_json(value) == {"@class": "com.google.protobuf.Timestamp", "@bytes": "080510ffffffffffffffffff01"}


@pytest.mark.parametrize("version", VERSIONS)
def test_declared_messages_have_the_default_serializer_of_their_super_class(version: Version) -> None:
    assert [value_json(each) for each in read(version, "messages").items] == [
        {"@class": "com.google.protobuf.Timestamp", "seconds": 1, "nanos": 0},
        {"@class": "com.google.protobuf.Duration", "seconds": 2, "nanos": 0},
    ]
    with pytest.raises(UnsupportedError, match=r"com\.google\.protobuf\.Duration"):
        read(version, "messages", None)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("one", '{"@class":"shop.Legacy","a":7,"b":"x"}'),
        ("message", '{"@class":"com.google.protobuf.Timestamp","nanos":-1,"seconds":5}'),
    ],
)
def test_in_columns_they_are_the_json_of_dump(version: Version, name: str, text: str) -> None:
    raw, serializer = vector(version, name)
    layout = derive_layout(serializer, LayoutContext(kryo_version=version, messages=DECLARED))
    starts, ends = np.array([0]), np.array([len(raw)])
    found = plan_columns(layout).decode(np.frombuffer(raw, np.uint8), starts, ends)
    assert found.array.to_pylist() == [text]


def test_a_message_that_does_not_fit_its_declaration_keeps_its_bytes() -> None:
    _, serializer = vector(5, "message")
    value = read_kryo_span(Reader(bytes.fromhex("57010108")), serializer, 5, messages=DECLARED)
    assert isinstance(value, Undecoded)
    assert "does not fit its declaration" in value.reason
    assert value.raw.hex() == "57010108"


def test_an_object_without_the_header_of_a_stream_is_refused() -> None:
    _, serializer = vector(5, "one")
    with pytest.raises(Exception, match="is no Java stream"):
        read_kryo(Reader(bytes.fromhex("570102030405")), serializer, 5)


def registered(name: str, serializer: str) -> Kryo:
    """Kryo with a class that is registered with a serializer (`KryoRegistration` of kind CLASS)."""
    writer = Writer()
    writer.utf(name)
    writer.i32(1)
    writer.utf(serializer)
    return Kryo(
        type_class=name, registrations=(KryoRegistration(class_name=name, resolved=True, value=writer.getvalue()),)
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_serializer_of_ones_own_writes_can_be_declared(version: Version) -> None:
    serializer = registered("shop.Own", "shop.OwnSerializer")
    with pytest.raises(UnsupportedError, match=r"written by shop.OwnSerializer.*--serializer 'shop.Own=LAYOUT'"):
        read_kryo(Reader(b"\x57\x01" + bytes(12)), serializer, version)
    declared = MessageTypes(layouts=(("shop.Own", "Struct(marker: i64, number: i32)"),))
    value = ObjectValue("shop.Own", (("marker", 7), ("number", -1)))
    writer = Writer()
    write_kryo(writer, serializer, value, version, messages=declared)
    assert writer.getvalue().endswith((7).to_bytes(8, "big") + b"\xff" * 4)
    reader = Reader(writer.getvalue())
    assert read_kryo(reader, serializer, version, messages=declared) == value
    assert reader.remaining == 0
    assert value_json(value) == {"@class": "shop.Own", "marker": 7, "number": -1}


def test_a_package_registers_what_a_serializer_of_ones_own_writes() -> None:
    serializer = registered("shop.Packaged", "shop.PackagedSerializer")
    register_class_layout("shop.Packaged", JavaText())
    writer = Writer()
    write_kryo(writer, serializer, TypedValue("shop.Packaged", "a"), 5)
    assert read_kryo(Reader(writer.getvalue()), serializer, 5) == TypedValue("shop.Packaged", "a")


def test_a_savepoint_is_converted_once_the_serializer_of_its_objects_is_declared(wild2: Path, tmp_path: Path) -> None:
    (metadata,) = (wild2 / "kurtostfeld+flink-kryo-upgrade-demo").glob("savepoint-0bed3c*/*/_metadata")
    layout = "demo.data.IntOpaqueWrapper=Struct(marker: i64, value: i32)"
    snapshots = [open_snapshot(str(metadata.parent), declare({"serializers": texts})) for texts in ([], [layout])]
    with pytest.raises(UnsupportedError, match="--serializer"):
        plan_conversion(snapshots[0], resolve(str(tmp_path / "new")), ConversionRequest(format=Format.ROCKSDB))
    convert(snapshots[1], str(tmp_path / "new"), "rocksdb")
    again = open_snapshot(str(tmp_path / "new"), declare({"serializers": [layout]}))
    lines = [sorted(str(line) for line in dump(each) if line["kind"] == "keyed") for each in (snapshots[1], again)]
    assert lines[0] == lines[1]
    assert len(lines[0]) > 10
