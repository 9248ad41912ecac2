"""Serializers of Java's and Scala's types: basic ones, composites of others, objects of classes, case classes.

* `read_basic`, `read_class_bound`, `read_enum`, `read_xa` and others: serializers without nested serializers: basic
  types, enums, classes that write their own bytes, and JDBC's sink. One table of snapshot class names and one pair of
  functions serve all basic types. Snapshots of enums hold the class and its constants, in the order that the data refer
  to; those of Value, CopyableValue and Writable name the class alone; those of the exactly-once sink of JDBC are simple
  ones with one more version. Source: `SimpleTypeSerializerSnapshot`, `GenericTypeSerializerSnapshot` and their
  subclasses, `EnumSerializer.EnumSerializerSnapshot`, `ScalaEnumSerializerSnapshot`; repository
  apache/flink-connector-jdbc, package `org.apache.flink.connector.jdbc.xa`: `XaSinkStateSerializer`,
  `CheckpointAndXidSerializer`, `XidSerializer`.
* `build_list` to `read_nfa_state`: composite snapshots over any nested serializers: containers, tuples, wrappers,
  timers, TTL, streaming and CEP. Source: `CompositeTypeSerializerSnapshot` and its subclasses in flink-core,
  flink-runtime and flink-table-api-java; `TimerSerializerSnapshot`, `TtlStateFactory`, `TtlAwareSerializerSnapshot`,
  `CoGroupedStreams`, `IntervalJoinOperator`, `StreamElementSerializer`, `TwoPhaseCommitSinkFunction`;
  `org.apache.flink.cep.nfa` and its package `sharedbuffer`.
* `read_avro`, `read_kryo`, `read_pojo`, `read_protobuf`: snapshots of Java objects. A POJO snapshot frames its fields
  and its subclasses one by one, so that an unknown snapshot class among them becomes an `Opaque`. A Kryo snapshot holds
  the type class and the registrations that fix Kryo's class ids; its bytes do not identify the release of Kryo (2.24 in
  Flink 1.x, 5 in Flink 2.x) that wrote the data. Avro snapshots hold the runtime class and the writer schema, those of
  flink-datastream-protobuf the descriptors of the messages. Source: `PojoSerializerSnapshot`,
  `PojoSerializerSnapshotData`, `PojoFieldUtils`, `KryoSerializerSnapshot`, `KryoSerializerSnapshotData`,
  `KryoRegistrationUtil`, `org.apache.flink.formats.avro.typeutils.AvroSerializerSnapshot`,
  `io.github.flink.gcp.protobuf.ProtobufTypeSerializerSnapshot`.
* `build_scala_either` to `read_case_object`: snapshots of Flink's Scala API and of flink-scala-api: case classes,
  options, collections, sealed traits, mappings. Flink's classes are in `org.apache.flink.api.scala.typeutils` up to
  1.20, in `org.apache.flink.table.api.typeutils` in 2.x. Those of flink-scala-api are in
  `org.apache.flinkx.api.serializer` (repository flink-extended/flink-scala-api). Up to version 1 of its snapshots that
  are no composites, nested snapshots are stored without their versions. The library reads those as the versions that
  the classes had then, and of a mapped type the class of the nested serializer is stored instead of its snapshot.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Writer, read_string, write_string
from state_pipelines.errors import UnknownSerializerError, UnsupportedError, UnsupportedVersionError, Where
from state_pipelines.serializers.registry import (
    read_nested,
    read_nested_list,
    read_unversioned,
    register,
    register_composite,
    register_composite_with_outer,
    write_nested,
    write_nested_list,
    write_unversioned,
)
from state_pipelines.serializers.snapshot_classes import (
    CompositeMarks,
    Head,
    current_reading,
    read_composite_header,
    read_head,
    read_optional_map,
    read_settled,
    write_composite_header,
    write_optional_map,
)
from state_pipelines.serializers.tree import (
    COMPONENTS,
    PRIMITIVES,
    Avro,
    Basic,
    BasicKind,
    CaseClass,
    CaseObject,
    ClassBound,
    ClassBoundKind,
    Coproduct,
    Either,
    Enum,
    GenericArray,
    Kryo,
    KryoRegistration,
    ListOf,
    ListView,
    MapOf,
    Mapped,
    MapView,
    Nullable,
    Opaque,
    Pojo,
    PojoField,
    PojoSubclass,
    PositionalRow,
    Protobuf,
    ScalaCollection,
    ScalaEnum,
    ScalaMap,
    Serializer,
    SetOf,
    Timer,
    Ttl,
    TtlAware,
    Tuple,
    VariantKind,
    Variants,
)
from state_pipelines.serializers.tree import Kryo as KryoNode

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader

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

# State of the exactly-once Kafka sinks of 1.x: kind -> serializer, a nested class of the producer class.
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

# Names of the same snapshot classes in other releases or packages, for reading. `SNAPSHOT_CLASSES` has those to write.
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
    """Write the body of a serializer snapshot as `read_basic` reads it."""
    if node.snapshot_version == NAMED_VERSION:
        writer.utf(node.serializer_class)


@register(*_KINDS, write=write_basic)
def read_basic(reader: Reader, head: Head) -> Basic:
    """Read the body of a serializer snapshot without parameters (`SimpleTypeSerializerSnapshot`)."""
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
    """Write the body of a serializer snapshot as `read_class_bound` reads it."""
    writer.utf(node.type_class)


@register(*_CLASS_BOUND_KINDS, write=write_class_bound)
def read_class_bound(reader: Reader, head: Head) -> ClassBound:
    """Read the body of a serializer snapshot: the type class."""
    head.expect(CLASS_BOUND_VERSION)
    return ClassBound(**head.marks, kind=_CLASS_BOUND_KINDS[head.snapshot_class], type_class=reader.utf())


ENUM = "org.apache.flink.api.common.typeutils.base.EnumSerializer$EnumSerializerSnapshot"
ENUM_VERSION = 3


def write_enum(writer: Writer, node: Enum) -> None:
    """Write the body of a serializer snapshot as `read_enum` reads it."""
    writer.utf(node.enum_class)
    writer.i32(len(node.constants))
    for constant in node.constants:
        writer.utf(constant)


@register(ENUM, write=write_enum)
def read_enum(reader: Reader, head: Head) -> Enum:
    """Read the body of a serializer snapshot: the class and the names of the constants."""
    head.expect(ENUM_VERSION)
    enum_class = reader.utf()
    constants = tuple(reader.utf() for _ in range(reader.count(2)))
    return Enum(**head.marks, enum_class=enum_class, constants=constants)


def write_scala_enum(writer: Writer, node: ScalaEnum) -> None:
    """Write the body of a serializer snapshot as `read_scala_enum` reads it."""
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
    """Read the body of a serializer snapshot: the class and the constants with their ids."""
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
    """Write the body of a serializer snapshot as `read_xa` reads it."""
    writer.i32(OWN_VERSION)


@register(*_JDBC_KINDS, write=write_xa)
def read_xa(reader: Reader, head: Head) -> Basic:
    """Read the version that these snapshots write after the empty body of a simple snapshot."""
    head.expect(CURRENT_VERSION)
    version = reader.i32()
    if version != OWN_VERSION:
        raise UnsupportedVersionError(
            f"version {version} of {head.snapshot_class} is not supported (known: {OWN_VERSION})"
        )
    return Basic(**head.marks, kind=_JDBC_KINDS[head.snapshot_class])


_DATAVIEW = "org.apache.flink.table.dataview."

LIST = f"{_BASE}ListSerializerSnapshot"
ARRAY_LIST = "org.apache.flink.runtime.state.ArrayListSerializerSnapshot"
SET = f"{_BASE}SetSerializerSnapshot"
MAP = f"{_BASE}MapSerializerSnapshot"
NULL_AWARE_MAP = f"{_DATAVIEW}NullAwareMapSerializerSnapshot"
GENERIC_ARRAY = f"{_BASE}GenericArraySerializerSnapshot"
TUPLE = f"{_RUNTIME}TupleSerializerSnapshot"
EITHER = f"{_RUNTIME}JavaEitherSerializerSnapshot"
NULLABLE = f"{_RUNTIME}NullableSerializer$NullableSerializerSnapshot"
ROW = f"{_RUNTIME}RowSerializer$RowSerializerSnapshot"

# Rows always have a kind in outer version 3, which stores no flag; from 4 on a flag stores whether they do.
FIRST_ROW_WITH_KIND = 3


@register_composite(LIST, ARRAY_LIST, arity=1)
def build_list(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> ListOf:
    """Return the node of a list serializer, given its element serializer."""
    return ListOf(**marks, element=nested[0])


@register_composite(SET, arity=1)
def build_set(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> SetOf:
    """Return the node of a set serializer, given its element serializer."""
    return SetOf(**marks, element=nested[0])


@register_composite(MAP, arity=2)
def build_map(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> MapOf:
    """Return the node of a map serializer, given its key and value serializers."""
    return MapOf(**marks, key=nested[0], value=nested[1])


@register_composite(NULL_AWARE_MAP, arity=2)
def build_null_aware_map(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> MapOf:
    """Return the node of a serializer of maps whose keys may be null, given its key and value serializers."""
    return MapOf(**marks, key=nested[0], value=nested[1], null_keys=True)


# EitherSerializerSnapshot is the class before 1.8: version 2, no composite header.
@register_composite(EITHER, f"{_RUNTIME}EitherSerializerSnapshot", arity=2)
def build_either(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Either:
    """Return the node of an Either serializer, given the serializers of left and right."""
    return Either(**marks, left=nested[0], right=nested[1])


@register_composite(f"{_DATAVIEW}ListViewSerializerSnapshot", arity=1)
def build_list_view(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> ListView:
    """Return the node of a list view serializer, given its list serializer."""
    return ListView(**marks, inner=nested[0])


@register_composite(f"{_DATAVIEW}MapViewSerializerSnapshot", arity=1)
def build_map_view(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> MapView:
    """Return the node of a map view serializer, given its map serializer."""
    return MapView(**marks, inner=nested[0])


def write_generic_array(writer: Writer, node: GenericArray) -> None:
    """Write the body of a serializer snapshot as `read_generic_array` reads it."""
    write_composite_header(writer, node.snapshot_version, node.outer_version)
    writer.utf(node.component_class)
    write_nested_list(writer, node.nested)


# GenericArraySerializerConfigSnapshot is the class before 1.8: version 2, no composite header, otherwise the same.
@register(GENERIC_ARRAY, f"{_BASE}GenericArraySerializerConfigSnapshot", write=write_generic_array)
def read_generic_array(reader: Reader, head: Head) -> GenericArray:
    """Read the body of a serializer snapshot: the component class and the element serializer."""
    outer_version = read_composite_header(reader, head)
    component_class = reader.utf()
    (element,) = read_nested_list(reader, 1)
    return GenericArray(**head.composite_marks(outer_version), component_class=component_class, element=element)


def write_tuple(writer: Writer, node: Tuple) -> None:
    """Write the body of a serializer snapshot as `read_tuple` reads it."""
    write_composite_header(writer, node.snapshot_version, node.outer_version)
    writer.utf(node.tuple_class)
    write_nested_list(writer, node.fields)


@register(TUPLE, write=write_tuple)
def read_tuple(reader: Reader, head: Head) -> Tuple:
    """Read the tuple class and the field serializers; also case classes of Scala, whose bodies are the same."""
    outer_version = read_composite_header(reader, head)
    tuple_class = reader.utf()
    return Tuple(**head.composite_marks(outer_version), tuple_class=tuple_class, fields=read_nested_list(reader))


def write_nullable(writer: Writer, node: Nullable) -> None:
    """Write the body of a serializer snapshot as `read_nullable` reads it."""
    write_composite_header(writer, node.snapshot_version, node.outer_version)
    writer.i32(node.padding)
    write_nested_list(writer, node.nested)


@register(NULLABLE, write=write_nullable)
def read_nullable(reader: Reader, head: Head) -> Nullable:
    """Read the body of a serializer snapshot: the length of the padding after a null, and the wrapped serializer."""
    outer_version = read_composite_header(reader, head)
    start = reader.position
    padding = reader.i32()
    if padding < 0:
        raise reader.error(f"a padding of {padding} bytes is negative", start)
    (inner,) = read_nested_list(reader, 1)
    return Nullable(**head.composite_marks(outer_version), inner=inner, padding=padding)


def write_row(writer: Writer, node: PositionalRow) -> None:
    """Write the body of a serializer snapshot as `read_row` reads it."""
    write_composite_header(writer, node.snapshot_version, node.outer_version)
    if node.outer_version > FIRST_ROW_WITH_KIND:
        writer.bool(node.supports_row_kind)
    write_nested_list(writer, node.fields)


@register(ROW, write=write_row)
def read_row(reader: Reader, head: Head) -> PositionalRow:
    """Read the body of a serializer snapshot: whether rows have a kind, and the field serializers."""
    outer_version = read_composite_header(reader, head)
    stored = outer_version > FIRST_ROW_WITH_KIND
    supports_row_kind = reader.bool() if stored else outer_version == FIRST_ROW_WITH_KIND
    return PositionalRow(
        **head.composite_marks(outer_version), fields=read_nested_list(reader), supports_row_kind=supports_row_kind
    )


_STREAMING = "org.apache.flink.streaming."
_TWO_PHASE_COMMIT = "TwoPhaseCommitSinkFunction$StateSerializerSnapshot"

# Sink state may always hold a null transaction in outer version 3, which stores no flag; from 4 on a flag stores it.
FIRST_WITH_NULL_TRANSACTION = 3
TTL_AWARE_VERSION = 1


@register_composite(f"{_STREAMING}api.operators.TimerSerializerSnapshot", arity=2)
def build_timer(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Timer:
    """Return the node of a timer serializer, given its key and namespace serializers."""
    return Timer(**marks, key=nested[0], namespace=nested[1])


@register_composite(
    "org.apache.flink.runtime.state.ttl.TtlStateFactory$TtlSerializerSnapshot",
    "org.apache.flink.runtime.state.v2.ttl.TtlStateFactory$TtlSerializerSnapshot",
    arity=2,
)
def build_ttl(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Ttl:
    """Return the node of a TTL serializer, given the serializers of timestamp and user value."""
    return Ttl(**marks, timestamp=nested[0], inner=nested[1])


def write_ttl_aware(writer: Writer, node: TtlAware) -> None:
    """Write the body of a serializer snapshot as `read_ttl_aware` reads it."""
    writer.bool(node.ttl_enabled)
    write_nested(writer, node.inner)


@register("org.apache.flink.runtime.state.ttl.TtlAwareSerializerSnapshot", write=write_ttl_aware)
def read_ttl_aware(reader: Reader, head: Head) -> TtlAware:
    """Read the body of a serializer snapshot: whether TTL is on, and the wrapped serializer."""
    head.expect(TTL_AWARE_VERSION)
    return TtlAware(**head.marks, ttl_enabled=reader.bool(), inner=read_nested(reader))


@register_composite(
    "org.apache.flink.api.common.typeutils.SingleThreadAccessCheckingTypeSerializer"
    "$SingleThreadAccessCheckingTypeSerializerSnapshot",
    arity=1,
)
def build_single_thread_access_checking(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return the node of an access checking serializer, given the wrapped serializer, which writes the data."""
    return Variants(**marks, kind=VariantKind.SINGLE_THREAD_ACCESS_CHECKING, serializers=nested)


@register_composite(f"{_STREAMING}api.datastream.CoGroupedStreams$UnionSerializerSnapshot", arity=2)
def build_union(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return the node of the serializer of elements of one of two inputs, given those of both inputs."""
    return Variants(**marks, kind=VariantKind.UNION, serializers=nested)


@register_composite(f"{_STREAMING}api.operators.co.IntervalJoinOperator$BufferEntrySerializerSnapshot", arity=1)
def build_buffer_entry(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return the node of the serializer of buffered elements and their joined flag, given that of the elements."""
    return Variants(**marks, kind=VariantKind.BUFFER_ENTRY, serializers=nested)


@register_composite(
    f"{_STREAMING}runtime.streamrecord.StreamElementSerializer$StreamElementSerializerSnapshot", arity=1
)
def build_stream_element(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return the node of the serializer of records, watermarks, latency markers and statuses, given that of values."""
    return Variants(**marks, kind=VariantKind.STREAM_ELEMENT, serializers=nested)


def write_two_phase_commit(writer: Writer, node: Variants) -> None:
    """Write the body of a serializer snapshot as `read_two_phase_commit` reads it."""
    write_composite_header(writer, node.snapshot_version, node.outer_version)
    if node.outer_version > FIRST_WITH_NULL_TRANSACTION:
        writer.bool(bool(node.flag))
    write_nested_list(writer, node.serializers)


@register(
    f"{_STREAMING}api.functions.sink.{_TWO_PHASE_COMMIT}",
    f"{_STREAMING}api.functions.sink.legacy.{_TWO_PHASE_COMMIT}",
    write=write_two_phase_commit,
)
def read_two_phase_commit(reader: Reader, head: Head) -> Variants:
    """Read whether a transaction may be null, then the serializers of transaction and context."""
    outer_version = read_composite_header(reader, head)
    stored = outer_version > FIRST_WITH_NULL_TRANSACTION
    flag = reader.bool() if stored else outer_version == FIRST_WITH_NULL_TRANSACTION
    marks = head.composite_marks(outer_version)
    return Variants(**marks, kind=VariantKind.TWO_PHASE_COMMIT, serializers=read_nested_list(reader, 2), flag=flag)


_NFA = "org.apache.flink.cep.nfa."
_BUFFER = f"{_NFA}sharedbuffer."

# Since outer version 2, the NFA state may hold the previous timestamp.
FIRST_WITH_PREVIOUS_TIMESTAMP = 2


@register_composite(f"{_BUFFER}NodeId$NodeIdSerializer$NodeIdSerializerSnapshot", arity=1)
def build_node_id(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return the node of the serializer of node ids (event id and page), given that of event ids."""
    return Variants(**marks, kind=VariantKind.NODE_ID, serializers=nested)


@register_composite(f"{_BUFFER}SharedBufferEdge$SharedBufferEdgeSerializer$SharedBufferEdgeSerializerSnapshot", arity=2)
def build_shared_buffer_edge(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return the node of the serializer of edges, given those of the target node id and the Dewey number."""
    return Variants(**marks, kind=VariantKind.SHARED_BUFFER_EDGE, serializers=nested)


@register_composite(f"{_BUFFER}SharedBufferNodeSerializerSnapshotV2", arity=1)
def build_shared_buffer_node(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return the node of the serializer of shared buffer nodes, given that of edges with their reference counts."""
    return Variants(**marks, kind=VariantKind.SHARED_BUFFER_NODE, serializers=nested)


@register_composite(f"{_BUFFER}SharedBufferNode$SharedBufferNodeSerializer$SharedBufferNodeSerializerSnapshot", arity=1)
def build_shared_buffer_edges(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return the node of the serializer of shared buffer nodes before 1.16: lists of edges without reference counts."""
    return Variants(**marks, kind=VariantKind.SHARED_BUFFER_EDGES, serializers=nested)


@register_composite(f"{_BUFFER}LockableTypeSerializerSnapshot", arity=1)
def build_lockable(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return the node of the serializer of elements with a reference count, given that of the elements."""
    return Variants(**marks, kind=VariantKind.LOCKABLE, serializers=nested)


def write_nfa_state(writer: Writer, node: Variants) -> None:
    """Write the body of a serializer snapshot as `read_nfa_state` reads it."""
    write_composite_header(writer, node.snapshot_version, node.outer_version)
    if node.outer_version >= FIRST_WITH_PREVIOUS_TIMESTAMP:
        writer.bool(bool(node.flag))
    write_nested_list(writer, node.serializers)


@register(f"{_NFA}NFAStateSerializerSnapshot", write=write_nfa_state)
def read_nfa_state(reader: Reader, head: Head) -> Variants:
    """Read whether previous timestamps are kept, then the serializers of Dewey number, node id and event id."""
    outer_version = read_composite_header(reader, head)
    flag = reader.bool() if outer_version >= FIRST_WITH_PREVIOUS_TIMESTAMP else False
    marks = head.composite_marks(outer_version)
    return Variants(**marks, kind=VariantKind.NFA_STATE, serializers=read_nested_list(reader, 3), flag=flag)


# Versions of Avro's serializer snapshot: 1 has the schema only, 2 also the class, 3 both as Flink strings, which may
# exceed 65535 bytes.
SCHEMA_ONLY, SHORT_STRINGS, CURRENT = 1, 2, 3


def write_avro(writer: Writer, node: Avro) -> None:
    """Write the body of a serializer snapshot as `read_avro` reads it."""
    if node.snapshot_version == SCHEMA_ONLY:
        writer.utf(node.schema_json)
    elif node.snapshot_version == SHORT_STRINGS:
        writer.utf(node.runtime_class)
        writer.utf(node.schema_json)
    else:
        writer.vstr(node.runtime_class)
        writer.vstr(node.schema_json)


@register("org.apache.flink.formats.avro.typeutils.AvroSerializerSnapshot", write=write_avro)
def read_avro(reader: Reader, head: Head) -> Avro:
    """Read the body of a serializer snapshot: class and schema; version 1 stores no class, so it is empty."""
    head.expect(SCHEMA_ONLY, SHORT_STRINGS, CURRENT)
    if head.version == SCHEMA_ONLY:
        return Avro(**head.marks, runtime_class="", schema_json=reader.utf())
    if head.version == SHORT_STRINGS:
        return Avro(**head.marks, runtime_class=reader.utf(), schema_json=reader.utf())
    return Avro(**head.marks, runtime_class=_text(reader), schema_json=_text(reader))


def _text(reader: Reader) -> str:
    start = reader.position
    text = reader.vstr()
    if text is None:
        raise reader.error("the class or schema in the snapshot of an Avro serializer is null", start)
    return text


VERSION = 2
_AVRO_ARRAY = "org.apache.avro.generic.GenericData$Array"
_AVRO_SCHEMA = "org.apache.avro.Schema"
_SERIALIZERS = "org.apache.flink.api.java.typeutils.runtime.kryo.Serializers$"
_UNSPECIFIED, _CLASS = 0, 1


@dataclass(frozen=True)
class KryoConfig:
    """Kryo entries of `pipeline.serialization-config`, each kind in the order of the configuration.

    Attributes:
        types: registered classes.
        serializers: registered classes with the class of their Kryo serializer.
        defaults: classes with the class of their default Kryo serializer, which also applies to subclasses.
    """

    types: tuple[str, ...] = ()
    serializers: tuple[tuple[str, str], ...] = ()
    defaults: tuple[tuple[str, str], ...] = ()

    def configure(self, type_class: str, like: Kryo | None = None) -> Kryo:
        """Return the Kryo serializer that a job with this configuration makes for a class.

        Source: `KryoSerializer.buildKryoRegistrations`, `AvroUtils.addAvroGenericDataArrayRegistration`.

        Args:
            type_class: the class.
            like: a Kryo serializer of the old job, whose Avro entries are taken over: they depend on whether flink-avro
                is on the class path. Without one, the entries for a job without flink-avro are used.
        """
        entries: dict[str, KryoRegistration] = {}
        for name, serializer in ((type_class, ""), *((name, "") for name in self.types), *self.serializers):
            # As in a `LinkedHashMap`, a class that is registered again keeps its position.
            entries[name] = KryoRegistration(class_name=name, resolved=True, value=_write_value(name, serializer))
        defaults = [
            KryoRegistration(class_name=name, resolved=True, value=_write_name(serializer))
            for name, serializer in self.defaults
        ]
        known = () if like is None else like.registrations
        dummy = _write_value(f"{_SERIALIZERS}DummyAvroRegisteredClass", f"{_SERIALIZERS}DummyAvroKryoSerializerClass")
        array = KryoRegistration(class_name=_AVRO_ARRAY, resolved=True, value=dummy)
        entries[_AVRO_ARRAY] = next((each for each in known if each.class_name == _AVRO_ARRAY), array)
        schemas = () if like is None else like.default_serializer_classes
        names = [name for name, _ in self.defaults]
        defaults += [each for each in schemas if each.class_name == _AVRO_SCHEMA and _AVRO_SCHEMA not in names]
        return Kryo(
            type_class=type_class, registrations=tuple(entries.values()), default_serializer_classes=tuple(defaults)
        )


def _write_value(name: str, serializer: str) -> bytes:
    """Encode a `KryoRegistration`: the class, and the class of its Kryo serializer unless that is empty."""
    writer = Writer()
    writer.utf(name)
    writer.i32(_CLASS if serializer else _UNSPECIFIED)
    if serializer:
        writer.utf(serializer)
    return writer.getvalue()


def _write_name(name: str) -> bytes:
    writer = Writer()
    writer.utf(name)
    return writer.getvalue()


def write_kryo(writer: Writer, node: Kryo) -> None:
    """Write the body of a serializer snapshot as `read_kryo` reads it."""
    writer.utf(node.type_class)
    for registrations in (node.registrations, node.default_serializers, node.default_serializer_classes):
        write_optional_map(writer, map(_entry, registrations))


@register("org.apache.flink.api.java.typeutils.runtime.kryo.KryoSerializerSnapshot", write=write_kryo)
def read_kryo(reader: Reader, head: Head) -> Kryo:
    """Read the body of a serializer snapshot: type class, registrations, and two maps of default serializers."""
    head.expect(VERSION)
    return Kryo(
        **head.marks,
        type_class=reader.utf(),
        registrations=_read_registrations(reader),
        default_serializers=_read_registrations(reader),
        default_serializer_classes=_read_registrations(reader),
    )


def _read_registrations(reader: Reader) -> tuple[KryoRegistration, ...]:
    return tuple(_read_registration(*entry) for entry in read_optional_map(reader))


def _read_registration(name: str, key: Reader | None, value: Reader | None) -> KryoRegistration:
    if key is not None:
        start = key.position
        class_name = key.utf()
        if class_name != name:
            raise key.error(f"the entry for class {name!r} names the class {class_name!r}", start)
        key.expect_end(f"the class {name}")
    return KryoRegistration(
        class_name=name,
        resolved=key is not None,
        value=None if value is None else value.take(value.remaining),
    )


def _entry(registration: KryoRegistration) -> tuple[str, bytes | None, bytes | None]:
    key = _write_name(registration.class_name) if registration.resolved else None
    return registration.class_name, key, registration.value


def write_pojo(writer: Writer, node: Pojo) -> None:
    """Write the body of a serializer snapshot as `read_pojo` reads it."""
    writer.utf(node.pojo_class)
    write_optional_map(writer, map(_field_entry, node.fields))
    write_optional_map(writer, map(_subclass_entry, node.registered))
    write_optional_map(writer, map(_subclass_entry, node.non_registered))


@register("org.apache.flink.api.java.typeutils.runtime.PojoSerializerSnapshot", write=write_pojo)
def read_pojo(reader: Reader, head: Head) -> Pojo:
    """Read the body of a serializer snapshot: class name, fields, registered and non-registered subclasses."""
    head.expect(VERSION)
    return Pojo(
        **head.marks,
        pojo_class=reader.utf(),
        fields=tuple(_read_field(*entry) for entry in read_optional_map(reader)),
        registered=tuple(_read_subclass(*entry) for entry in read_optional_map(reader)),
        non_registered=tuple(_read_subclass(*entry) for entry in read_optional_map(reader)),
    )


def _read_field(name: str, key: Reader | None, value: Reader | None) -> PojoField:
    declaring_class = None
    if key is not None:
        declaring_class = key.utf()
        start = key.position
        field_name = key.utf()
        if field_name != name:
            raise key.error(f"the entry for field {name!r} names the field {field_name!r}", start)
        key.expect_end(f"the field {name}")
    return PojoField(name=name, declaring_class=declaring_class, serializer=_read_framed(value))


def _field_entry(field: PojoField) -> tuple[str, bytes | None, bytes | None]:
    key = None
    if field.declaring_class is not None:
        writer = Writer()
        writer.utf(field.declaring_class)
        writer.utf(field.name)
        key = writer.getvalue()
    return field.name, key, _framed(field.serializer)


def _read_subclass(name: str, key: Reader | None, value: Reader | None) -> PojoSubclass:
    if key is not None:
        key.expect_end(f"the empty key frame of the subclass {name}")
    return PojoSubclass(class_name=name, serializer=_read_framed(value), resolved=key is not None)


def _subclass_entry(subclass: PojoSubclass) -> tuple[str, bytes | None, bytes | None]:
    return subclass.class_name, b"" if subclass.resolved else None, _framed(subclass.serializer)


def _read_framed(frame: Reader | None) -> Serializer | None:
    if frame is None:
        return None
    start = frame.position
    state = current_reading()

    def read(framed: Reader) -> Serializer:
        serializer = read_nested(framed)
        framed.expect_end(f"the snapshot {serializer.snapshot_class}")
        return serializer

    try:
        declared = () if state is None else tuple(state.declared.values())
        return read_settled(read, frame.data, frame.name, start=start, end=frame.end, declared=declared)[0]
    except UnknownSerializerError as error:
        return _read_opaque(frame, start, error.where.offset)


def _read_opaque(frame: Reader, start: int, unknown_at: int | None) -> Opaque:
    frame.position = start if unknown_at is None else unknown_at
    unknown_class = read_head(frame).snapshot_class
    frame.position = start
    head = read_head(frame)
    return Opaque(**head.marks, unknown_class=unknown_class, raw=frame.take(frame.remaining))


def _framed(serializer: Serializer | None) -> bytes | None:
    if serializer is None:
        return None
    writer = Writer()
    write_nested(writer, serializer)
    return writer.getvalue()


SNAPSHOT_CLASS = "io.github.flink.gcp.protobuf.ProtobufTypeSerializerSnapshot"
_VERSION = _FRAMING = _NORMALIZATION = 1
_DIGEST_SIZE = 32


def write_protobuf(writer: Writer, node: Protobuf) -> None:
    """Write the body of a serializer snapshot as `read_protobuf` reads it."""
    writer.i32(_FRAMING)
    writer.i32(_NORMALIZATION)
    writer.utf(node.message_class)
    writer.utf(node.message_name)
    writer.bool(node.deterministic)
    writer.i32(node.max_message_size)
    writer.i32(node.recursion_limit)
    writer.bytes32(node.descriptors)
    writer.take(hashlib.sha256(node.descriptors).digest())


@register(SNAPSHOT_CLASS, write=write_protobuf)
def read_protobuf(reader: Reader, head: Head) -> Protobuf:
    """Read names, settings and descriptors, and the digest, which must be that of the descriptors."""
    head.expect(_VERSION)
    for what, known in (("framing", _FRAMING), ("normalization", _NORMALIZATION)):
        start, version = reader.position, reader.i32()
        if version != known:
            raise reader.error(f"version {version} of the {what} of messages is not known (known: {known})", start)
    node = Protobuf(
        **head.marks,
        message_class=reader.utf(),
        message_name=reader.utf(),
        deterministic=reader.bool(),
        max_message_size=reader.i32(),
        recursion_limit=reader.i32(),
        descriptors=reader.bytes32(),
    )
    start = reader.position
    if reader.take(_DIGEST_SIZE) != hashlib.sha256(node.descriptors).digest():
        raise reader.error("the SHA-256 after the descriptors does not match them", start)
    return node


_PACKAGES = ("org.apache.flink.api.scala.typeutils.", "org.apache.flink.table.api.typeutils.")


def _names(*simple_names: str) -> tuple[str, ...]:
    return tuple(package + name for name in simple_names for package in _PACKAGES)


CASE_CLASSES = _names("ScalaCaseClassSerializerSnapshot", "Tuple2CaseClassSerializerSnapshot")

# The snapshot of a case class has the format of a tuple's: the class, then the field serializers.
register(*CASE_CLASSES, write=write_tuple)(read_tuple)


@register_composite(*_names("ScalaEitherSerializerSnapshot"), arity=2)
def build_scala_either(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Either:
    """Return the node of a Scala Either serializer, given the serializers of left and right."""
    return Either(**marks, left=nested[0], right=nested[1])


@register_composite(*_names("ScalaOptionSerializerSnapshot"), arity=1)
def build_option(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return the node of a Scala Option serializer, given the serializer of its content."""
    return Variants(**marks, kind=VariantKind.SCALA_OPTION, serializers=nested)


@register_composite(*_names("ScalaTrySerializerSnapshot"), arity=2)
def build_try(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return the node of a Scala Try serializer, given the serializers of a success and of a failure's throwable."""
    return Variants(**marks, kind=VariantKind.SCALA_TRY, serializers=nested)


def write_traversable(writer: Writer, node: Variants) -> None:
    """Write the body of a serializer snapshot as `read_traversable` reads it."""
    write_composite_header(writer, node.snapshot_version, node.outer_version)
    writer.utf(node.text or "")
    write_nested_list(writer, node.serializers)


@register(*_names("TraversableSerializerSnapshot"), write=write_traversable)
def read_traversable(reader: Reader, head: Head) -> Variants:
    """Read the body of a serializer snapshot: source text of the builder (never run), element serializer."""
    outer_version = read_composite_header(reader, head)
    text = reader.utf()
    marks = head.composite_marks(outer_version)
    return Variants(**marks, kind=VariantKind.TRAVERSABLE, serializers=read_nested_list(reader, 1), text=text)


PACKAGE = "org.apache.flinkx.api.serializer."
CASE_CLASS = f"{PACKAGE}ScalaCaseClassSerializerSnapshot"
COPRODUCT = f"{PACKAGE}CoproductSerializer$CoproductSerializerSnapshot"
COLLECTION = f"{PACKAGE}CollectionSerializerSnapshot"
SCALA_MAP = f"{PACKAGE}MapSerializer$MapSerializerSnapshot"
MUTABLE_MAP = f"{PACKAGE}MutableMapSerializerSnapshot"
MAPPED = f"{PACKAGE}MappedSerializer$MappedSerializerSnapshot"

_UNVERSIONED, _VERSIONED, _COMPOSITE = 1, 2, 3
FIRST_WITH_IMMUTABILITY = 3
_VERSIONS = {
    **dict.fromkeys((COPRODUCT, COLLECTION, SCALA_MAP, MAPPED), _UNVERSIONED),
    f"{PACKAGE}ScalaCaseObjectSerializer$ScalaCaseObjectSerializerSnapshot": 1,
    **{each.snapshot_class: each.snapshot_version for each in (Pojo, KryoNode)},
}
"""Version of each snapshot class whose snapshots are stored without a version; all other classes have version 3."""


def _read_outer(reader: Reader, version: int) -> tuple[str, bool | None]:
    return reader.utf(), reader.bool() if version >= FIRST_WITH_IMMUTABILITY else None


def _write_outer(writer: Writer, node: CaseClass) -> None:
    writer.utf(node.case_class)
    if node.outer_version >= FIRST_WITH_IMMUTABILITY:
        writer.bool(bool(node.immutable))


@register_composite_with_outer(CASE_CLASS, read_outer=_read_outer, write_outer=_write_outer)
def build_case_class(
    marks: CompositeMarks, nested: tuple[Serializer, ...], outer: tuple[str, bool | None]
) -> CaseClass:
    """Return the node of a case class serializer, given the field serializers and the outer data."""
    return CaseClass(**marks, case_class=outer[0], fields=nested, immutable=outer[1])


@register_composite(f"{PACKAGE}ScalaEitherSerializerSnapshot", arity=2)
def build_scala_api_either(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Either:
    """Return the node of flink-scala-api's Either serializer, given the serializers of left and right."""
    return Either(**marks, left=nested[0], right=nested[1])


@register_composite(f"{PACKAGE}ScalaOptionSerializerSnapshot", arity=1)
def build_scala_api_option(marks: CompositeMarks, nested: tuple[Serializer, ...]) -> Variants:
    """Return the node of flink-scala-api's Option serializer, given the serializer of its content."""
    return Variants(**marks, kind=VariantKind.SCALA_OPTION, serializers=nested)


def write_coproduct(writer: Writer, node: Coproduct) -> None:
    """Write the body of a serializer snapshot as `read_coproduct` reads it."""
    if node.snapshot_version == _COMPOSITE:
        write_composite_header(writer, node.snapshot_version, node.outer_version)
        writer.i32(len(node.classes))
        for name in node.classes:
            write_string(writer, name)
        write_nested_list(writer, node.serializers)
        return
    writer.i32(len(node.classes))
    for name in node.classes:
        writer.utf(name)
    for each in node.serializers:
        _write_inner(writer, node, each)


@register(COPRODUCT, write=write_coproduct)
def read_coproduct(reader: Reader, head: Head) -> Coproduct:
    """Read the body of a serializer snapshot: the names of the subtypes and their serializers."""
    head.expect(_UNVERSIONED, _VERSIONED, _COMPOSITE)
    if head.version == _COMPOSITE:
        outer_version = read_composite_header(reader, head)
        classes = tuple(read_string(reader) or "" for _ in range(reader.count()))
        nested = read_nested_list(reader, len(classes))
        return Coproduct(**head.composite_marks(outer_version), classes=classes, serializers=nested)
    classes = tuple(reader.utf() for _ in range(reader.count()))
    nested = tuple(_read_inner(reader, head) for _ in classes)
    return Coproduct(**head.composite_marks(head.version), classes=classes, serializers=nested)


def write_collection(writer: Writer, node: ScalaCollection) -> None:
    """Write the body of a serializer snapshot as `read_collection` reads it."""
    writer.utf(node.serializer_class)
    writer.utf(node.element_class)
    _write_inner(writer, node, node.element)


@register(COLLECTION, write=write_collection)
def read_collection(reader: Reader, head: Head) -> ScalaCollection:
    """Read the body of a serializer snapshot: class of the serializer, class of the elements, element serializer."""
    head.expect(_UNVERSIONED, _VERSIONED)
    names = reader.utf(), reader.utf()
    element = _read_inner(reader, head)
    return ScalaCollection(**head.marks, serializer_class=names[0], element_class=names[1], element=element)


def write_map(writer: Writer, node: ScalaMap) -> None:
    """Write the body of a serializer snapshot as `read_map` and `read_mutable_map` read it."""
    for each in node.nested:
        if node.snapshot_class == MUTABLE_MAP:
            write_nested(writer, each)
        else:
            _write_inner(writer, node, each)


@register(SCALA_MAP, write=write_map)
def read_map(reader: Reader, head: Head) -> ScalaMap:
    """Read the body of a serializer snapshot: key and value serializer."""
    head.expect(_UNVERSIONED, _VERSIONED)
    return ScalaMap(**head.marks, key=_read_inner(reader, head), value=_read_inner(reader, head))


@register(MUTABLE_MAP, write=write_map)
def read_mutable_map(reader: Reader, head: Head) -> ScalaMap:
    """Read the body of a serializer snapshot: key and value serializer, which always have their versions."""
    head.expect(1)
    return ScalaMap(**head.marks, key=read_nested(reader), value=read_nested(reader))


def write_mapped(writer: Writer, node: Mapped) -> None:
    """Write the body of a serializer snapshot as `read_mapped` reads it."""
    writer.utf(node.mapper)
    if node.snapshot_version == _VERSIONED:
        write_nested(writer, node.inner)
    else:
        writer.utf(node.inner.snapshot_class.partition("$")[0])


@register(MAPPED, write=write_mapped)
def read_mapped(reader: Reader, head: Head) -> Mapped:
    """Read the body of a serializer snapshot: the class of the mapper and the nested serializer."""
    head.expect(_UNVERSIONED, _VERSIONED)
    mapper = reader.utf()
    inner = read_nested(reader) if head.version == _VERSIONED else _find_simple(reader.utf(), head)
    return Mapped(**head.marks, mapper=mapper, inner=inner)


def write_case_object(writer: Writer, node: CaseObject) -> None:
    """Write the body of a serializer snapshot as `read_case_object` reads it."""
    writer.utf(node.object_class)


@register(f"{PACKAGE}ScalaCaseObjectSerializer$ScalaCaseObjectSerializerSnapshot", write=write_case_object)
def read_case_object(reader: Reader, head: Head) -> CaseObject:
    """Read the body of a serializer snapshot: the class of the object."""
    head.expect(1)
    return CaseObject(**head.marks, object_class=reader.utf())


def _read_inner(reader: Reader, head: Head) -> Serializer:
    return read_nested(reader) if head.version == _VERSIONED else read_unversioned(reader, _find_version)


def _write_inner(writer: Writer, outer: Serializer, node: Serializer) -> None:
    if outer.snapshot_version == _VERSIONED:
        write_nested(writer, node)
    else:
        write_unversioned(writer, node)


def _find_version(snapshot_class: str) -> int:
    return _VERSIONS.get(snapshot_class, 3)


def _find_simple(serializer_class: str, head: Head) -> Basic:
    """Return the node of a serializer without parameters, given the class of the serializer.

    Raises:
        UnsupportedError: the class is none of Flink's.
    """
    for kind, snapshot_class in SNAPSHOT_CLASSES.items():
        if snapshot_class.partition("$")[0] == serializer_class:
            return Basic(snapshot_class=snapshot_class, kind=kind)
    raise UnsupportedError(
        f"{head.snapshot_class} names the serializer {serializer_class} without its snapshot",
        where=Where(file=head.file, offset=head.offset),
        hint="Take a savepoint with a later release of flink-scala-api",
    )
