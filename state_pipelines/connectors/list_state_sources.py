"""Sources that keep their progress in list state of their operator: those before FLIP-27, and those of Apache Beam.

* `BeamSplit`, `BeamKafkaMark`: sources of Apache Beam's pipelines; each element is a source, and its position. Source:
  repository apache/beam, package `org.apache.beam.runners.flink.translation.wrappers.streaming.io`: list state
  `_default_` of `UnboundedSourceWrapper`, with `org.apache.beam.sdk.io.kafka.KafkaCheckpointMark`, which an `AvroCoder`
  writes; `source.FlinkSourceSplit` (version 0), a serialized Java object.
* `CheckpointedOffset`: sources of `ListCheckpointed`, with offsets that a function keeps as serialized Java objects.
  Supported are whole numbers, and tuples of two whose second field is one, such as the `Tuple2<InputSplit, Long>` of
  partitioned sources (RocketMQ, DataHub, SLS). Other objects stay plain values. Source:
  `org.apache.flink.streaming.api.checkpoint.ListCheckpointed` and `StreamingFunctionUtils`: list state `_default_` of
  Flink's `JavaSerializer`.
* `LegacyKafkaOffset`, `LegacyKinesisOffset`: `FlinkKafkaConsumer` and `FlinkKinesisConsumer`. Offsets of both are those
  of the last record that was read. Source: `org.apache.flink.streaming.connectors.kafka.FlinkKafkaConsumerBase` (state
  `topic-partition-offset-states`, a tuple of `internals.KafkaTopicPartition` by Kryo and a long),
  `internals.KafkaTopicPartitionStateSentinel`, and `org.apache.flink.streaming.connectors.kinesis.FlinkKinesisConsumer`
  (state `Kinesis-Stream-Shard-State`, a tuple of the POJO `model.StreamShardMetadata` and of `model.SequenceNumber` by
  Kryo).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from state_pipelines.binary.data_views import Reader
from state_pipelines.binary.java_stream import JavaArray, JavaObject, read_stream
from state_pipelines.codecs.avro import AvroRecord
from state_pipelines.codecs.java import ObjectValue
from state_pipelines.codecs.json import Json, dumps, to_json
from state_pipelines.codecs.scalar import read_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.connectors.kafka import check_topic_partition, choose_offset
from state_pipelines.connectors.registry import (
    ConnectorStateKind,
    Edit,
    Versioned,
    check_name,
    connector_state,
    require,
    source_splits,
    write_plain_element,
)
from state_pipelines.errors import FormatError, ValueRangeError
from state_pipelines.serializers import tree
from state_pipelines.serializers.beam import BeamSerializer
from state_pipelines.serializers.tree import BasicKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.binary.java_stream import JavaValue
    from state_pipelines.connectors.registry import Row
    from state_pipelines.serializers.tree import Serializer

_MARK = "KafkaCheckpointMark"
_SPLIT = "org.apache.beam.runners.flink.translation.wrappers.streaming.io.source.FlinkSourceSplit"

BEAM_COLUMNS = pa.schema(
    [
        pa.field("topic", pa.string(), False),
        pa.field("partition", pa.int32(), False),
        pa.field("next_offset", pa.int64(), False),
        pa.field("watermark", pa.int64()),
    ]
)
"""`watermark` is in epoch milliseconds: Beam's smallest and largest one exceed the range of timestamps."""

BEAM_SPLIT_COLUMNS = pa.schema(
    [
        pa.field("split_id", pa.int32(), False),
        pa.field("source", pa.string(), False),
        pa.field("checkpoint_mark", pa.binary()),
    ]
)
"""`source`: its class; `checkpoint_mark`: bytes that the coder of the source wrote; the split does not name it."""


@dataclass(frozen=True)
class BeamSplit:
    """A split of a Beam source on Flink's current `Source` interface; `stream` is the serialized `FlinkSourceSplit`."""

    stream: bytes


@dataclass(frozen=True)
class BeamKafkaMark:
    """Checkpoint of one Kafka source of Beam.

    Attributes:
        source: the source, as the scalar codec reads it.
        mark: its `KafkaCheckpointMark`.
    """

    source: object
    mark: AvroRecord

    @property
    def partitions(self) -> list[dict[str, object]]:
        """Fields of each partition in the checkpoint mark."""
        marks = cast("list[AvroRecord]", dict(self.mark.fields).get("partitions", []))
        return [dict(each.fields) for each in marks]


def beam_rows(mark: BeamKafkaMark) -> Iterator[Row]:
    """Yield a row of `BEAM_COLUMNS` per partition."""
    for each in mark.partitions:
        yield {
            "topic": each["topic"],
            "partition": each["partition"],
            "next_offset": each["nextOffset"],
            "watermark": each.get("watermarkMillis"),
        }


def is_beam_kafka(serializer: Serializer) -> bool:
    """Return whether the elements are pairs of a source and the checkpoint mark of Beam's Kafka source."""
    if not isinstance(serializer, BeamSerializer):
        return False
    mark = serializer.coder.component("valueCoder")
    return mark is not None and f'"{_MARK}"' in mark.detail and json.loads(mark.detail).get("name") == _MARK


def write_beam_kafka_mark(mark: BeamKafkaMark, serializer: Serializer, context: LayoutContext) -> bytes:
    """Encode a source of Beam and its checkpoint mark; the inverse of `read_beam_kafka_mark`."""
    return write_plain_element({"key": mark.source, "value": mark.mark}, serializer, context)


def _edit_mark(mark: BeamKafkaMark, edited: Sequence[Mapping[str, Any]]) -> BeamKafkaMark:
    fields = dict(mark.mark.fields)
    partitions = []
    for each, row in zip(cast("list[AvroRecord]", fields["partitions"]), edited, strict=True):
        if row["next_offset"] is None or row["next_offset"] < 0:
            raise ValueRangeError(
                f"the offset {row['next_offset']} is null or negative",
                hint="Give the number of a record: Beam has no words such as earliest",
            )
        new = {**dict(each.fields), "nextOffset": row["next_offset"]}
        if "watermarkMillis" in new:
            new["watermarkMillis"] = row["watermark"]
        partitions.append(replace(each, fields=tuple(new.items())))
    return replace(mark, mark=replace(mark.mark, fields=tuple({**fields, "partitions": partitions}.items())))


@connector_state(
    "beam-kafka",
    kind=ConnectorStateKind.SPLIT,
    operator_state_names=["_default_"],
    accepts=is_beam_kafka,
    write=write_beam_kafka_mark,
    rows=beam_rows,
    columns=BEAM_COLUMNS,
    edit=Edit(("next_offset", "watermark"), _edit_mark),
)
def read_beam_kafka_mark(element: bytes, serializer: Serializer, context: LayoutContext) -> BeamKafkaMark:
    """Read a source and its checkpoint mark.

    Raises:
        FormatError: Beam cannot have written the element.
        UnsupportedError: the coder of the source is not known.
    """
    reader = Reader(element)
    value = read_value(derive_layout(serializer, context), reader, tail=False)
    if not isinstance(value, dict) or not isinstance(value.get("value"), AvroRecord):
        raise FormatError("a source and its checkpoint mark are expected")
    mark = BeamKafkaMark(value["key"], value["value"])
    for each in mark.partitions:
        topic = check_name(cast("str | None", each.get("topic")), "a Kafka topic")
        check_topic_partition(reader, topic, cast("int", each.get("partition")))
        require(reader, cast("int", each.get("nextOffset")) >= 0, "an offset of Kafka is negative")
    return mark


def beam_split_rows(split: BeamSplit) -> Iterator[Row]:
    """Yield one table row, with the columns `BEAM_SPLIT_COLUMNS`."""
    fields = _read_split_object(split.stream)
    source, mark = fields["beamSplitSource"], fields["splitState"]
    yield {
        "split_id": fields["splitIndex"],
        "source": source.class_name if isinstance(source, JavaObject) else "",
        "checkpoint_mark": mark.values if isinstance(mark, JavaArray) else None,
    }


def write_beam_split(split: BeamSplit) -> Versioned:
    """Encode a Beam split; the inverse of `read_beam_split`."""
    return Versioned(0, split.stream)


@source_splits("beam", write=write_beam_split, rows=beam_split_rows, columns=BEAM_SPLIT_COLUMNS)
def read_beam_split(versioned: Versioned) -> BeamSplit:
    """Read a split: the Java stream of a `FlinkSourceSplit`.

    Raises:
        FormatError: Beam cannot have written the bytes.
        UnsupportedError: an unknown version.
    """
    versioned.expect("a split of Beam", 0)
    _read_split_object(versioned.data)
    return BeamSplit(versioned.data)


def _read_split_object(stream: bytes) -> dict[str, JavaValue]:
    reader = Reader(stream)
    content = read_stream(reader)
    reader.expect_end("a split of Beam")
    fields = content.fields if isinstance(content, JavaObject) and content.class_name == _SPLIT else {}
    if not {"splitIndex", "beamSplitSource", "splitState"} <= fields.keys():
        raise FormatError("a Java object of Beam's FlinkSourceSplit is expected")
    return fields


LIST_CHECKPOINTED_COLUMNS = pa.schema([pa.field("element", pa.string()), pa.field("offset", pa.int64(), False)])
"""`element`: the owner of the offset, as JSON of `codecs.json`; null for plain numbers."""


@dataclass(frozen=True)
class CheckpointedOffset:
    """An element of the list state of a `ListCheckpointed` function: a number, or a tuple with a number.

    Attributes:
        content: the element, as the scalar codec reads it.
        offset: the number.
        element: JSON of the first field of the tuple; None for a plain number.
    """

    content: object
    offset: int
    element: str | None = None


def list_checkpointed_rows(offset: CheckpointedOffset) -> Iterator[Row]:
    """Yield one table row, with the columns `LIST_CHECKPOINTED_COLUMNS`."""
    yield {"element": offset.element, "offset": offset.offset}


def is_java_object(serializer: tree.Serializer) -> bool:
    """Return whether a state holds serialized Java objects."""
    return isinstance(serializer, tree.Basic) and serializer.kind == BasicKind.JAVA_OBJECT


def write_checkpointed_offset(offset: CheckpointedOffset, serializer: tree.Serializer, context: LayoutContext) -> bytes:
    """Encode an element of a `ListCheckpointed` function; the inverse of `read_checkpointed_offset`."""
    return write_plain_element(offset.content, serializer, context)


@connector_state(
    "list-checkpointed",
    kind=ConnectorStateKind.SPLIT,
    operator_state_names=["_default_"],
    accepts=is_java_object,
    write=write_checkpointed_offset,
    rows=list_checkpointed_rows,
    columns=LIST_CHECKPOINTED_COLUMNS,
)
def read_checkpointed_offset(element: bytes, serializer: tree.Serializer, context: LayoutContext) -> CheckpointedOffset:
    """Read a whole number, or a tuple of two whose second field is a whole number.

    Raises:
        FormatError: the object is something else.
    """
    content = read_value(derive_layout(serializer, context), Reader(element), tail=False)
    match to_json(serializer, content):
        case bool():
            pass
        case int() as number:
            return CheckpointedOffset(content, number)
        case {"@tuple": [first, int() as number]} if not isinstance(number, bool):
            return CheckpointedOffset(content, number, _text(first))
    raise FormatError("the element is neither a whole number nor a tuple whose second field is a whole number")


def _text(value: Json) -> str:
    return dumps({"": value})[4:-1]


OFFSET_WORDS = {
    -915623761776: "not set",
    -915623761775: "earliest",
    -915623761774: "latest",
    -915623761773: "committed",
}
"""Placeholders of partitions from which nothing has been read."""

_KAFKA = "org.apache.flink.streaming.connectors.kafka.internals.KafkaTopicPartition"
_KINESIS = ".kinesis.model."

KAFKA_COLUMNS = pa.schema(
    [
        pa.field("topic", pa.string(), False),
        pa.field("partition", pa.int32(), False),
        pa.field("last_offset", pa.int64()),
        pa.field("offset_word", pa.string()),
    ]
)
KINESIS_COLUMNS = pa.schema(
    [
        pa.field("stream_name", pa.string(), False),
        pa.field("shard_id", pa.string(), False),
        pa.field("sequence_number", pa.string()),
        pa.field("sub_sequence_number", pa.int64()),
    ]
)


@dataclass(frozen=True)
class LegacyKafkaOffset:
    """A partition and the offset of the last record read from it, or one of `OFFSET_WORDS`.

    Attributes:
        topic: the topic.
        partition: the partition.
        last_offset: the offset, or the number that stands for a word.
        cached_hash: hash code of topic and partition, as stored.
    """

    topic: str
    partition: int
    last_offset: int
    cached_hash: int


@dataclass(frozen=True)
class LegacyKinesisOffset:
    """A shard and the sequence number of the last record read from it.

    Attributes:
        shard: fields of `StreamShardMetadata` by name.
        sequence_number: the number, or a word such as `SHARD_ENDING_SEQUENCE_NUM`.
        sub_sequence_number: position in an aggregated record, or -1.
        cached_hash: hash code of the two numbers, as stored.
        class_name: class of the sequence number.
    """

    shard: Mapping[str, object]
    sequence_number: str
    sub_sequence_number: int
    cached_hash: int
    class_name: str


def kafka_rows(offset: LegacyKafkaOffset) -> Iterator[Row]:
    """Yield one table row, with the columns `KAFKA_COLUMNS`."""
    word = OFFSET_WORDS.get(offset.last_offset)
    yield {
        "topic": offset.topic,
        "partition": offset.partition,
        "last_offset": None if word else offset.last_offset,
        "offset_word": word,
    }


def is_legacy_kafka(serializer: tree.Serializer) -> bool:
    """Return whether the elements are tuples of a Kafka partition and a long."""
    match serializer:
        case tree.Tuple(fields=(tree.Kryo(type_class=name), tree.Basic(kind=BasicKind.LONG))):
            return name == _KAFKA
    return False


def write_legacy_kafka_offset(offset: LegacyKafkaOffset, serializer: tree.Serializer, context: LayoutContext) -> bytes:
    """Encode an element of the state of `FlinkKafkaConsumer`; the inverse of `read_legacy_kafka_offset`."""
    fields = (("cachedHash", offset.cached_hash), ("partition", offset.partition), ("topic", offset.topic))
    return write_plain_element({"f0": ObjectValue(_KAFKA, fields), "f1": offset.last_offset}, serializer, context)


def _edit_kafka(offset: LegacyKafkaOffset, rows: Sequence[Mapping[str, Any]]) -> LegacyKafkaOffset:
    (row,) = rows
    return replace(
        offset,
        last_offset=choose_offset(offset.last_offset, row["last_offset"], row["offset_word"], OFFSET_WORDS),
    )


@connector_state(
    "legacy-kafka",
    kind=ConnectorStateKind.SPLIT,
    operator_state_names=["topic-partition-offset-states"],
    accepts=is_legacy_kafka,
    write=write_legacy_kafka_offset,
    rows=kafka_rows,
    columns=KAFKA_COLUMNS,
    edit=Edit(("last_offset", "offset_word"), _edit_kafka),
)
def read_legacy_kafka_offset(element: bytes, serializer: tree.Serializer, context: LayoutContext) -> LegacyKafkaOffset:
    """Read an element of the state of `FlinkKafkaConsumer`.

    Raises:
        FormatError: the connector cannot have written the element.
    """
    first, offset, reader = _read(element, serializer, context)
    fields = _fields(first, _KAFKA)
    topic = check_name(cast("str | None", fields["topic"]), "a Kafka topic")
    found = LegacyKafkaOffset(topic, cast("int", fields["partition"]), offset, cast("int", fields["cachedHash"]))
    check_topic_partition(reader, found.topic, found.partition)
    require(reader, offset >= -1 or offset in OFFSET_WORDS, f"{offset} is no offset of Kafka")
    return found


def kinesis_rows(offset: LegacyKinesisOffset) -> Iterator[Row]:
    """Yield one table row, with the columns `KINESIS_COLUMNS`."""
    yield {
        "stream_name": offset.shard["streamName"],
        "shard_id": offset.shard["shardId"],
        "sequence_number": offset.sequence_number,
        "sub_sequence_number": offset.sub_sequence_number,
    }


def is_legacy_kinesis(serializer: tree.Serializer) -> bool:
    """Return whether the elements are tuples of a Kinesis shard and a sequence number."""
    match serializer:
        case tree.Tuple(fields=(tree.Pojo(pojo_class=shard), tree.Kryo(type_class=number))):
            return shard.endswith(f"{_KINESIS}StreamShardMetadata") and number.endswith(f"{_KINESIS}SequenceNumber")
    return False


def write_legacy_kinesis_offset(
    offset: LegacyKinesisOffset, serializer: tree.Serializer, context: LayoutContext
) -> bytes:
    """Encode an element of the state of `FlinkKinesisConsumer`; the inverse of `read_legacy_kinesis_offset`."""
    fields = (
        ("cachedHash", offset.cached_hash),
        ("sequenceNumber", offset.sequence_number),
        ("subSequenceNumber", offset.sub_sequence_number),
    )
    number = ObjectValue(offset.class_name, fields)
    return write_plain_element({"f0": dict(offset.shard), "f1": number}, serializer, context)


@connector_state(
    "legacy-kinesis",
    kind=ConnectorStateKind.SPLIT,
    operator_state_names=["Kinesis-Stream-Shard-State"],
    accepts=is_legacy_kinesis,
    write=write_legacy_kinesis_offset,
    rows=kinesis_rows,
    columns=KINESIS_COLUMNS,
)
def read_legacy_kinesis_offset(
    element: bytes, serializer: tree.Serializer, context: LayoutContext
) -> LegacyKinesisOffset:
    """Read an element of the state of `FlinkKinesisConsumer`.

    Raises:
        FormatError: the connector cannot have written the element.
    """
    shard, number, _ = _read(element, serializer, context)
    if not isinstance(shard, dict):
        raise FormatError("a Kinesis shard is null")
    for name in ("streamName", "shardId"):
        check_name(shard.get(name), f"the {name} of a shard")
    class_name = number.class_name if isinstance(number, ObjectValue) else ""
    fields = _fields(number, class_name)
    return LegacyKinesisOffset(
        shard,
        check_name(cast("str", fields["sequenceNumber"]), "a sequence number"),
        cast("int", fields["subSequenceNumber"]),
        cast("int", fields["cachedHash"]),
        class_name,
    )


def _read(element: bytes, serializer: tree.Serializer, context: LayoutContext) -> tuple[object, int, Reader]:
    reader = Reader(element)
    value = read_value(derive_layout(serializer, context), reader, tail=False)
    assert isinstance(value, dict)
    return value["f0"], value["f1"], reader


def _fields(value: object, class_name: str) -> dict[str, object]:
    if not isinstance(value, ObjectValue) or value.class_name != class_name:
        raise FormatError(f"an object of {class_name} is expected, not {type(value).__name__}")
    return dict(value.fields)
