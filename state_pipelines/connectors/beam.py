"""Sources of Apache Beam's pipelines: each element is a source, and how far it has read.

Facts from repository apache/beam, package `org.apache.beam.runners.flink.translation.wrappers.streaming.io`: list state
`_default_` of `UnboundedSourceWrapper`, with `org.apache.beam.sdk.io.kafka.KafkaCheckpointMark`, which an `AvroCoder`
writes; `source.FlinkSourceSplit` (version 0), a serialized Java object.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from state_pipelines.binary.data_views import Reader
from state_pipelines.binary.java_stream import JavaArray, JavaObject, read_stream
from state_pipelines.codecs.avro import AvroRecord
from state_pipelines.codecs.scalar.codec import read_value
from state_pipelines.codecs.serializer_layouts import LayoutContext, derive_layout
from state_pipelines.connectors.kafka import check_topic_partition
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
from state_pipelines.serializers.beam import BeamSerializer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from state_pipelines.binary.java_stream import JavaValue
    from state_pipelines.connectors.registry import Row
    from state_pipelines.serializers.tree import Serializer

_MARK = "KafkaCheckpointMark"
_SPLIT = "org.apache.beam.runners.flink.translation.wrappers.streaming.io.source.FlinkSourceSplit"

COLUMNS = pa.schema(
    [
        pa.field("topic", pa.string(), False),
        pa.field("partition", pa.int32(), False),
        pa.field("next_offset", pa.int64(), False),
        pa.field("watermark", pa.int64()),
    ]
)
"""`watermark` is in epoch milliseconds: Beam's smallest and largest one exceed the range of timestamps."""

SPLIT_COLUMNS = pa.schema(
    [
        pa.field("split_id", pa.int32(), False),
        pa.field("source", pa.string(), False),
        pa.field("checkpoint_mark", pa.binary()),
    ]
)
"""`source`: its class; `checkpoint_mark`: bytes that the coder of the source wrote; the split does not name it."""


@dataclass(frozen=True)
class BeamSplit:
    """A split of a source of the current interface; `stream` is the serialized `FlinkSourceSplit`."""

    stream: bytes


@dataclass(frozen=True)
class BeamKafkaMark:
    """Checkpoint of one source.

    Attributes:
        source: the source, as the scalar codec gives it.
        mark: its `KafkaCheckpointMark`.
    """

    source: object
    mark: AvroRecord

    @property
    def partitions(self) -> list[dict[str, object]]:
        """Fields of each partition."""
        marks = cast("list[AvroRecord]", dict(self.mark.fields).get("partitions", []))
        return [dict(each.fields) for each in marks]


def rows(mark: BeamKafkaMark) -> Iterator[Row]:
    """Yield a row of `COLUMNS` per partition."""
    for each in mark.partitions:
        yield {
            "topic": each["topic"],
            "partition": each["partition"],
            "next_offset": each["nextOffset"],
            "watermark": each.get("watermarkMillis"),
        }


def is_beam_kafka(serializer: Serializer) -> bool:
    """Return whether the elements are sources with the checkpoint mark of Beam's Kafka source."""
    if not isinstance(serializer, BeamSerializer):
        return False
    mark = serializer.coder.component("valueCoder")
    return mark is not None and f'"{_MARK}"' in mark.detail and json.loads(mark.detail).get("name") == _MARK


def write_beam_kafka_mark(mark: BeamKafkaMark, serializer: Serializer, context: LayoutContext) -> bytes:
    """Write what `read_beam_kafka_mark` reads."""
    return write_plain_element({"key": mark.source, "value": mark.mark}, serializer, context)


def _edit_mark(mark: BeamKafkaMark, edited: Sequence[Mapping[str, Any]]) -> BeamKafkaMark:
    fields = dict(mark.mark.fields)
    partitions = []
    for each, row in zip(cast("list[AvroRecord]", fields["partitions"]), edited, strict=True):
        if row["next_offset"] is None or row["next_offset"] < 0:
            raise ValueRangeError(
                f"the offset {row['next_offset']} is null or negative", hint="Beam has no words for it"
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
    rows=rows,
    columns=COLUMNS,
    edit=Edit(("next_offset", "watermark"), _edit_mark),
)
def read_beam_kafka_mark(element: bytes, serializer: Serializer, context: LayoutContext) -> BeamKafkaMark:
    """Read a source and its checkpoint mark.

    Raises:
        FormatError: it could not be one.
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


def split_rows(split: BeamSplit) -> Iterator[Row]:
    """Yield one row of `SPLIT_COLUMNS`."""
    fields = _read_split_object(split.stream)
    source, mark = fields["beamSplitSource"], fields["splitState"]
    yield {
        "split_id": fields["splitIndex"],
        "source": source.class_name if isinstance(source, JavaObject) else "",
        "checkpoint_mark": mark.values if isinstance(mark, JavaArray) else None,
    }


def write_beam_split(split: BeamSplit) -> Versioned:
    """Write what `read_beam_split` reads."""
    return Versioned(0, split.stream)


@source_splits("beam", write=write_beam_split, rows=split_rows, columns=SPLIT_COLUMNS)
def read_beam_split(versioned: Versioned) -> BeamSplit:
    """Read a split: the Java stream of a `FlinkSourceSplit`.

    Raises:
        FormatError: it could not be one of Beam.
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
