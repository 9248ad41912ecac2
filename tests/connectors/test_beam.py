"""Sources of Beam's pipelines."""

from __future__ import annotations

import pytest

from state_pipelines.binary.java_stream import (
    SERIALIZABLE,
    JavaArray,
    JavaClassData,
    JavaClassDesc,
    JavaFieldDesc,
    JavaObject,
    JavaString,
    write_stream,
)
from state_pipelines.codecs.serializer_layouts import LayoutContext
from state_pipelines.connectors import ConnectorState, decode_splits, detect, encode_elements
from state_pipelines.serializers.beam import LEGACY, BeamSerializer, Coder
from tests.connectors.vectors import BYTES, element
from tests.serializers.javacoders import CODERS, java_object

MARK = """{"type": "record", "name": "KafkaCheckpointMark", "namespace": "org.apache.beam.sdk.io.kafka", "fields": [
  {"name": "partitions", "type": {"type": "array", "items": {"type": "record", "name": "PartitionMark", "fields": [
    {"name": "topic", "type": "string"}, {"name": "partition", "type": "int"},
    {"name": "nextOffset", "type": "long"}, {"name": "watermarkMillis", "type": "long"}]}}}]}"""
# A block of two partitions: topic, partition, offset and watermark as zigzag numbers; the end of the blocks.
PARTITIONS = bytes.fromhex("04 0c6f7264657273 00 4c d0e4cac5e55f 0c6f7264657273 02 00 01 00")
SOURCE = write_stream(java_object("org.apache.beam.sdk.io.kafka.KafkaUnboundedSource"))


def serializer(schema: str) -> BeamSerializer:
    avro = Coder(f"{CODERS}AvroCoder", (), schema)
    pair = Coder(f"{CODERS}KvCoder", (("keyCoder", Coder(f"{CODERS}SerializableCoder")), ("valueCoder", avro)))
    return BeamSerializer(snapshot_class=LEGACY, snapshot_version=1, coder=pair, java=b"")


def test_partitions_of_a_source_are_rows() -> None:
    batch = decode_splits("_default_", serializer(MARK), [SOURCE + PARTITIONS], LayoutContext(2))
    assert batch is not None
    head = {"connector": "beam-kafka", "list_index": 0, "topic": "orders"}
    assert batch.to_pylist() == [
        {**head, "partition": 0, "next_offset": 38, "watermark": 1645716527400},
        {**head, "partition": 1, "next_offset": 0, "watermark": -1},
    ]


def test_elements_are_written_as_they_were() -> None:
    element = SOURCE + PARTITIONS
    state = detect("_default_", serializer(MARK), [element])
    assert isinstance(state, ConnectorState)
    assert encode_elements(state, serializer(MARK)) == (element,)


def test_a_negative_offset_is_none_of_kafka() -> None:
    assert detect("_default_", serializer(MARK), [SOURCE + PARTITIONS.replace(b"\x4c", b"\x4d")]) is None


def test_other_marks_are_not_those_of_kafka() -> None:
    assert detect("_default_", serializer(MARK.replace("KafkaCheckpointMark", "OtherMark")), [SOURCE]) is None


SPLIT = "org.apache.beam.runners.flink.translation.wrappers.streaming.io.source.FlinkSourceSplit"


def split_stream(name: str = SPLIT) -> bytes:
    members = (
        JavaFieldDesc("I", "splitIndex"),
        JavaFieldDesc("L", "beamSplitSource", JavaString("Lorg/apache/beam/sdk/io/Source;")),
        JavaFieldDesc("[", "splitState", JavaString("[B")),
    )
    desc = JavaClassDesc(name, 1, SERIALIZABLE, members)
    mark = JavaArray(JavaClassDesc("[B", 2, SERIALIZABLE), b"\1\2")
    return write_stream(JavaObject(desc, (JavaClassData((3, java_object("shop.OrderSource"), mark)),)))


def test_splits_of_the_current_interface_are_rows_and_written_as_they_were() -> None:
    raw = element(0, split_stream())
    state = detect("SourceReaderState", BYTES, [raw])
    assert isinstance(state, ConnectorState)
    assert state.connector == "beam"
    assert state.rows == (({"split_id": 3, "source": "shop.OrderSource", "checkpoint_mark": b"\1\2"},),)
    assert encode_elements(state, BYTES) == (raw,)


@pytest.mark.parametrize("data", [split_stream("shop.Split"), split_stream() + b"\0"])
def test_other_objects_are_no_splits_of_beam(data: bytes) -> None:
    assert detect("SourceReaderState", BYTES, [element(0, data)]) is None
