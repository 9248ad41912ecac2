"""Serializers without parameters: a table of snapshot class names, and the one pair that reads and writes them all.

Source: `SimpleTypeSerializerSnapshot` and its subclasses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.serializers.registry import register
from state_pipelines.serializers.tree import Basic

if TYPE_CHECKING:
    from state_pipelines.binary.reader import Reader
    from state_pipelines.binary.writer import Writer
    from state_pipelines.serializers.snapshot_frames import Head

_BASE = "org.apache.flink.api.common.typeutils.base."
_STREAMING_WINDOWS = "org.apache.flink.streaming.api.windowing.windows."
_TABLE_WINDOWS = "org.apache.flink.table.runtime.operators.window."
_GELLY = "org.apache.flink.graph.types.valuearray."
_CEP = "org.apache.flink.cep.nfa."
_PYTHON = "org.apache.flink.table.runtime.typeutils.serializers.python."
_KAFKA = "org.apache.flink.streaming.connectors.kafka."

_PRIMITIVES = ("Boolean", "Byte", "Short", "Char", "Int", "Long", "Float", "Double")
_BASE_KINDS = (
    *_PRIMITIVES,
    *(f"{name}Value" for name in _PRIMITIVES),
    *("String", "StringValue", "NullValue", "Void", "BigInt", "BigDec", "Variant", "Uuid", "Bitmap"),
    *("Date", "SqlDate", "SqlTime", "SqlTimestamp", "Instant", "LocalDate", "LocalTime", "LocalDateTime"),
)
_ARRAY_KINDS = (*(f"{name}PrimitiveArray" for name in _PRIMITIVES), "StringArray")
_GELLY_KINDS = tuple(
    f"{name}ValueArray" for name in ("Byte", "Char", "Double", "Float", "Int", "Long", "Null", "Short", "String")
)

# State of the exactly-once sinks of 1.x: kind -> serializer class inside that of the producer.
_KAFKA_SERIALIZERS = {
    "KafkaTransactionState": "TransactionStateSerializer",
    "KafkaTransactionContext": "ContextStateSerializer",
    "KafkaNextTransactionalIdHint": "NextTransactionalIdHintSerializer",
}
_KAFKA_KINDS = {
    producer: {kind: f"{_KAFKA}{producer}${name}${name}Snapshot" for kind, name in _KAFKA_SERIALIZERS.items()}
    for producer in ("FlinkKafkaProducer", "FlinkKafkaProducer011")
}

SNAPSHOT_CLASSES: dict[str, str] = {
    **{kind: f"{_BASE}{kind}Serializer${kind}SerializerSnapshot" for kind in _BASE_KINDS},
    **{kind: f"{_BASE}array.{kind}Serializer${kind}SerializerSnapshot" for kind in _ARRAY_KINDS},
    **{kind: f"{_GELLY}{kind}Serializer${kind}SerializerSnapshot" for kind in _GELLY_KINDS},
    "Tuple0": "org.apache.flink.api.java.typeutils.runtime.Tuple0SerializerSnapshot",
    "VoidNamespace": "org.apache.flink.runtime.state.VoidNamespaceSerializer$VoidNamespaceSerializerSnapshot",
    "TimeWindow": f"{_STREAMING_WINDOWS}TimeWindow$Serializer$TimeWindowSerializerSnapshot",
    "GlobalWindow": f"{_STREAMING_WINDOWS}GlobalWindow$Serializer$GlobalWindowSerializerSnapshot",
    "TableTimeWindow": f"{_TABLE_WINDOWS}TimeWindow$Serializer$TimeWindowSerializerSnapshot",
    "TableGlobalWindow": f"{_TABLE_WINDOWS}GlobalWindow$Serializer$GlobalWindowSerializerSnapshot",
    "CountWindow": f"{_TABLE_WINDOWS}CountWindow$Serializer$CountWindowSerializerSnapshot",
    "StringData": "org.apache.flink.table.runtime.typeutils.StringDataSerializer$StringDataSerializerSnapshot",
    "SortedLong": "org.apache.flink.table.runtime.operators.sink.SortedLongSerializer$SortedLongSerializerSnapshot",
    "Null": "org.apache.flink.table.dataview.NullSerializer$NullSerializerSnapshot",
    "Unit": "org.apache.flink.api.scala.typeutils.UnitSerializer$UnitSerializerSnapshot",
    "Nothing": "org.apache.flink.api.scala.typeutils.NothingSerializerSnapshot",
    "ByteArrayWrapper": "org.apache.flink.streaming.api.utils.ByteArrayWrapperSerializer"
    "$ByteArrayWrapperSerializerSnapshot",
    "DeweyNumber": f"{_CEP}DeweyNumber$DeweyNumberSerializer$DeweyNumberSerializerSnapshot",
    "EventId": f"{_CEP}sharedbuffer.EventId$EventIdSerializer$EventIdSerializerSnapshot",
    **{
        f"Python{kind}": f"{_PYTHON}{kind}Serializer${kind}SerializerSnapshot"
        for kind in ("String", "BigDec", "Date", "Time")
    },
    "LongValueWithProperHashCode": "org.apache.flink.graph.drivers.transform.LongValueWithProperHashCode"
    "$LongValueWithProperHashCodeSerializer$LongValueWithProperHashCodeSerializerSnapshot",
    "JavaObject": "org.apache.flink.runtime.state.JavaSerializer$JavaSerializerSnapshot",
    **_KAFKA_KINDS["FlinkKafkaProducer"],
}
"""Kind of a `Basic` node -> snapshot class."""

# Names that a class had in other releases or packages; the first name of a kind is the one that is written.
_OTHER_NAMES = {
    "org.apache.flink.table.api.typeutils.UnitSerializer$UnitSerializerSnapshot": "Unit",
    "org.apache.flink.table.api.typeutils.NothingSerializerSnapshot": "Nothing",
    "org.apache.flink.queryablestate.client.VoidNamespaceSerializer$VoidNamespaceSerializerSnapshot": "VoidNamespace",
    **{snapshot_class: kind for kind, snapshot_class in _KAFKA_KINDS["FlinkKafkaProducer011"].items()},
}

_KINDS = {snapshot_class: kind for kind, snapshot_class in SNAPSHOT_CLASSES.items()} | _OTHER_NAMES

# Until 1.7 a simple snapshot named its serializer class in the body; since 1.8 the body is empty.
NAMED_VERSION = 2
CURRENT_VERSION = 3


def write_basic(writer: Writer, node: Basic) -> None:
    """Write what `read_basic` reads."""
    if node.snapshot_version == NAMED_VERSION:
        writer.utf(node.serializer_class)


@register(*_KINDS, write=write_basic)
def read_basic(reader: Reader, head: Head) -> Basic:
    """Read the body of a simple snapshot."""
    head.expect(NAMED_VERSION, CURRENT_VERSION)
    serializer_class = reader.utf() if head.version == NAMED_VERSION else ""
    return Basic(**head.marks, kind=_KINDS[head.snapshot_class], serializer_class=serializer_class)
