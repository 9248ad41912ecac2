"""Serializers without parameters: a table of snapshot class names, and the one pair that reads and writes them all.

Source: `SimpleTypeSerializerSnapshot` and its subclasses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.serializers.registry import register
from state_pipelines.serializers.tree import Basic, BasicKind
from state_pipelines.serializers.tree.basic import COMPONENTS, PRIMITIVES

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader, Writer
    from state_pipelines.serializers.snapshot_frames import Head

_BASE = "org.apache.flink.api.common.typeutils.base."
_STREAMING_WINDOWS = "org.apache.flink.streaming.api.windowing.windows."
_TABLE_WINDOWS = "org.apache.flink.table.runtime.operators.window."
_GELLY = "org.apache.flink.graph.types.valuearray."
_CEP = "org.apache.flink.cep.nfa."
_PYTHON = "org.apache.flink.table.runtime.typeutils.serializers.python."
_KAFKA = "org.apache.flink.streaming.connectors.kafka."

_BASE_KINDS = (
    *PRIMITIVES,
    *(BasicKind(f"{kind}Value") for kind in PRIMITIVES),
    *(BasicKind.STRING, BasicKind.STRING_VALUE, BasicKind.NULL_VALUE, BasicKind.VOID, BasicKind.BIG_INT),
    *(BasicKind.BIG_DEC, BasicKind.VARIANT, BasicKind.UUID, BasicKind.BITMAP),
    *(BasicKind.DATE, BasicKind.SQL_DATE, BasicKind.SQL_TIME, BasicKind.SQL_TIMESTAMP, BasicKind.INSTANT),
    *(BasicKind.LOCAL_DATE, BasicKind.LOCAL_TIME, BasicKind.LOCAL_DATE_TIME),
)
_ARRAY_KINDS = (*COMPONENTS, BasicKind.STRING_ARRAY)
_GELLY_KINDS = tuple(kind for kind in BasicKind if kind.endswith("ValueArray"))

# State of the exactly-once sinks of 1.x: kind -> serializer class inside that of the producer.
_KAFKA_SERIALIZERS = {
    BasicKind.KAFKA_TRANSACTION_STATE: "TransactionStateSerializer",
    BasicKind.KAFKA_TRANSACTION_CONTEXT: "ContextStateSerializer",
    BasicKind.KAFKA_NEXT_TRANSACTIONAL_ID_HINT: "NextTransactionalIdHintSerializer",
}
_KAFKA_KINDS = {
    producer: {kind: f"{_KAFKA}{producer}${name}${name}Snapshot" for kind, name in _KAFKA_SERIALIZERS.items()}
    for producer in ("FlinkKafkaProducer", "FlinkKafkaProducer011")
}

SNAPSHOT_CLASSES: dict[BasicKind, str] = {
    **{kind: f"{_BASE}{kind}Serializer${kind}SerializerSnapshot" for kind in _BASE_KINDS},
    **{kind: f"{_BASE}array.{kind}Serializer${kind}SerializerSnapshot" for kind in _ARRAY_KINDS},
    **{kind: f"{_GELLY}{kind}Serializer${kind}SerializerSnapshot" for kind in _GELLY_KINDS},
    BasicKind.TUPLE_0: "org.apache.flink.api.java.typeutils.runtime.Tuple0SerializerSnapshot",
    BasicKind.VOID_NAMESPACE: "org.apache.flink.runtime.state.VoidNamespaceSerializer$VoidNamespaceSerializerSnapshot",
    BasicKind.TIME_WINDOW: f"{_STREAMING_WINDOWS}TimeWindow$Serializer$TimeWindowSerializerSnapshot",
    BasicKind.GLOBAL_WINDOW: f"{_STREAMING_WINDOWS}GlobalWindow$Serializer$GlobalWindowSerializerSnapshot",
    BasicKind.TABLE_TIME_WINDOW: f"{_TABLE_WINDOWS}TimeWindow$Serializer$TimeWindowSerializerSnapshot",
    BasicKind.TABLE_GLOBAL_WINDOW: f"{_TABLE_WINDOWS}GlobalWindow$Serializer$GlobalWindowSerializerSnapshot",
    BasicKind.COUNT_WINDOW: f"{_TABLE_WINDOWS}CountWindow$Serializer$CountWindowSerializerSnapshot",
    BasicKind.STRING_DATA: "org.apache.flink.table.runtime.typeutils.StringDataSerializer$StringDataSerializerSnapshot",
    BasicKind.SORTED_LONG: "org.apache.flink.table.runtime.operators.sink.SortedLongSerializer"
    "$SortedLongSerializerSnapshot",
    BasicKind.NULL: "org.apache.flink.table.dataview.NullSerializer$NullSerializerSnapshot",
    BasicKind.UNIT: "org.apache.flink.api.scala.typeutils.UnitSerializer$UnitSerializerSnapshot",
    BasicKind.NOTHING: "org.apache.flink.api.scala.typeutils.NothingSerializerSnapshot",
    BasicKind.BYTE_ARRAY_WRAPPER: "org.apache.flink.streaming.api.utils.ByteArrayWrapperSerializer"
    "$ByteArrayWrapperSerializerSnapshot",
    BasicKind.DEWEY_NUMBER: f"{_CEP}DeweyNumber$DeweyNumberSerializer$DeweyNumberSerializerSnapshot",
    BasicKind.EVENT_ID: f"{_CEP}sharedbuffer.EventId$EventIdSerializer$EventIdSerializerSnapshot",
    **{
        BasicKind(f"Python{name}"): f"{_PYTHON}{name}Serializer${name}SerializerSnapshot"
        for name in ("String", "BigDec", "Date", "Time")
    },
    BasicKind.LONG_VALUE_WITH_PROPER_HASH_CODE: "org.apache.flink.graph.drivers.transform.LongValueWithProperHashCode"
    "$LongValueWithProperHashCodeSerializer$LongValueWithProperHashCodeSerializerSnapshot",
    BasicKind.JAVA_OBJECT: "org.apache.flink.runtime.state.JavaSerializer$JavaSerializerSnapshot",
    **_KAFKA_KINDS["FlinkKafkaProducer"],
}
"""Kind of a `Basic` node -> snapshot class."""

# Names that a class had in other releases or packages; the first name of a kind is the one that is written.
_OTHER_NAMES = {
    "org.apache.flink.table.api.typeutils.UnitSerializer$UnitSerializerSnapshot": BasicKind.UNIT,
    "org.apache.flink.table.api.typeutils.NothingSerializerSnapshot": BasicKind.NOTHING,
    "org.apache.flink.queryablestate.client.VoidNamespaceSerializer"
    "$VoidNamespaceSerializerSnapshot": BasicKind.VOID_NAMESPACE,
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
