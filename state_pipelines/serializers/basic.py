"""Serializers without nested serializers: basic types, enums, classes that write their own bytes, and JDBC's sink.

One table of snapshot class names and one pair of functions serve all basic types. Snapshots of enums hold the class and
its constants, in the order that the data refer to; those of Value, CopyableValue and Writable name the class alone;
those of the exactly-once sink of JDBC are simple ones with one more version.
Source: `SimpleTypeSerializerSnapshot`, `GenericTypeSerializerSnapshot` and their subclasses,
`EnumSerializer.EnumSerializerSnapshot`, `ScalaEnumSerializerSnapshot`; repository apache/flink-connector-jdbc, package
`org.apache.flink.connector.jdbc.xa`: `XaSinkStateSerializer`, `CheckpointAndXidSerializer`, `XidSerializer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_pipelines.errors import UnsupportedVersionError
from state_pipelines.serializers.registry import register
from state_pipelines.serializers.tree import (
    COMPONENTS,
    PRIMITIVES,
    Basic,
    BasicKind,
    ClassBound,
    ClassBoundKind,
    Enum,
    ScalaEnum,
)

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


CLASS_BOUND_VERSION = 2
_RUNTIME = "org.apache.flink.api.java.typeutils.runtime."
_CLASS_BOUND_KINDS = {
    f"{_RUNTIME}{kind}Serializer${kind}SerializerSnapshot": kind
    for kind in (ClassBoundKind.VALUE, ClassBoundKind.COPYABLE_VALUE, ClassBoundKind.WRITABLE)
}


def write_class_bound(writer: Writer, node: ClassBound) -> None:
    """Write what `read_class_bound` reads."""
    writer.utf(node.type_class)


@register(*_CLASS_BOUND_KINDS, write=write_class_bound)
def read_class_bound(reader: Reader, head: Head) -> ClassBound:
    """Read the type class."""
    head.expect(CLASS_BOUND_VERSION)
    return ClassBound(**head.marks, kind=_CLASS_BOUND_KINDS[head.snapshot_class], type_class=reader.utf())


ENUM = "org.apache.flink.api.common.typeutils.base.EnumSerializer$EnumSerializerSnapshot"
ENUM_VERSION = 3


def write_enum(writer: Writer, node: Enum) -> None:
    """Write what `read_enum` reads."""
    writer.utf(node.enum_class)
    writer.i32(len(node.constants))
    for constant in node.constants:
        writer.utf(constant)


@register(ENUM, write=write_enum)
def read_enum(reader: Reader, head: Head) -> Enum:
    """Read the class and the names of the constants."""
    head.expect(ENUM_VERSION)
    enum_class = reader.utf()
    constants = tuple(reader.utf() for _ in range(reader.count(2)))
    return Enum(**head.marks, enum_class=enum_class, constants=constants)


def write_scala_enum(writer: Writer, node: ScalaEnum) -> None:
    """Write what `read_scala_enum` reads."""
    writer.utf(node.enum_class)
    writer.i32(len(node.constants))
    for name, number in node.constants:
        writer.utf(name)
        writer.i32(number)


@register(
    "org.apache.flink.api.scala.typeutils.ScalaEnumSerializerSnapshot",
    "org.apache.flink.table.api.typeutils.ScalaEnumSerializerSnapshot",
    write=write_scala_enum,
)
def read_scala_enum(reader: Reader, head: Head) -> ScalaEnum:
    """Read the class and the constants with their ids."""
    head.expect(ENUM_VERSION)
    enum_class = reader.utf()
    constants = tuple((reader.utf(), reader.i32()) for _ in range(reader.count(6)))
    return ScalaEnum(**head.marks, enum_class=enum_class, constants=constants)


_XA = "org.apache.flink.connector.jdbc.xa."
_JDBC_KINDS = {
    f"{_XA}XaSinkStateSerializer$XaSinkStateSimpleXaTypeSerializerSnapshot": BasicKind.JDBC_XA_SINK_STATE,
    f"{_XA}CheckpointAndXidSerializer$CheckpointAndXidSimpleTypeSerializerSnapshot": BasicKind.JDBC_CHECKPOINT_AND_XID,
    f"{_XA}XidSerializer$XidSimpleTypeSerializerSnapshot": BasicKind.JDBC_XID,
}
OWN_VERSION = 1


def write_xa(writer: Writer, node: Basic) -> None:
    """Write what `read_xa` reads."""
    writer.i32(OWN_VERSION)


@register(*_JDBC_KINDS, write=write_xa)
def read_xa(reader: Reader, head: Head) -> Basic:
    """Read the version that these snapshots write after the empty body of a simple one."""
    head.expect(CURRENT_VERSION)
    version = reader.i32()
    if version != OWN_VERSION:
        raise UnsupportedVersionError(
            f"version {version} of {head.snapshot_class} is not supported (known: {OWN_VERSION})"
        )
    return Basic(**head.marks, kind=_JDBC_KINDS[head.snapshot_class])
