"""Trees of serializers as frozen values, and the registered states that they belong to (`StateMetaInfo`).

One node class per family of Flink serializers. A node holds what the snapshot stores and nothing else.
`state_pipelines.serializers` reads and writes the bytes of snapshots, `state_pipelines.codecs` those of the data.
Source: `org.apache.flink.api.common.typeutils.TypeSerializerSnapshot` and its implementations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from state_pipelines.errors import NotFoundError, UsageError, Where

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, kw_only=True)
class Serializer:
    """A node of a serializer tree: what a serializer snapshot stores about one serializer.

    Attributes:
        snapshot_class: binary name of the `TypeSerializerSnapshot` class, as written.
        snapshot_version: version that the snapshot class wrote for itself (`getCurrentVersion`).
    """

    snapshot_class: str
    snapshot_version: int = 3

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """Nested serializers in the order of the snapshot."""
        return ()


def walk(serializer: Serializer) -> Iterator[Serializer]:
    """Yield the serializer and all that are nested in it, outermost first."""
    yield serializer
    for nested in serializer.nested:
        yield from walk(nested)


@dataclass(frozen=True, kw_only=True)
class Composite(Serializer):
    """A serializer stored by `CompositeTypeSerializerSnapshot`: outer data, then nested snapshots.

    Attributes:
        outer_version: version of the outer data (`getCurrentOuterSnapshotVersion`); for legacy snapshots without
            the composite header (version <= 2) equal to `snapshot_version`.
    """

    outer_version: int = 1


def is_built_in(node_class: type) -> bool:
    """Return whether a node class is defined in this module, so that it is not of a custom serializer."""
    return node_class.__module__ == __name__


class BasicKind(StrEnum):
    """Serializer of a `Basic` node, as the word before `Serializer` in its class name, unless that is ambiguous.

    `…ValueArray` are serializers of Gelly, `Table…` those of the planner; `JAVA_OBJECT` is Java serialization.
    """

    BOOLEAN = "Boolean"
    BYTE = "Byte"
    SHORT = "Short"
    CHAR = "Char"
    INT = "Int"
    LONG = "Long"
    FLOAT = "Float"
    DOUBLE = "Double"
    BOOLEAN_VALUE = "BooleanValue"
    BYTE_VALUE = "ByteValue"
    SHORT_VALUE = "ShortValue"
    CHAR_VALUE = "CharValue"
    INT_VALUE = "IntValue"
    LONG_VALUE = "LongValue"
    FLOAT_VALUE = "FloatValue"
    DOUBLE_VALUE = "DoubleValue"
    STRING = "String"
    STRING_VALUE = "StringValue"
    NULL_VALUE = "NullValue"
    VOID = "Void"
    BIG_INT = "BigInt"
    BIG_DEC = "BigDec"
    VARIANT = "Variant"
    UUID = "Uuid"
    BITMAP = "Bitmap"
    DATE = "Date"
    SQL_DATE = "SqlDate"
    SQL_TIME = "SqlTime"
    SQL_TIMESTAMP = "SqlTimestamp"
    INSTANT = "Instant"
    LOCAL_DATE = "LocalDate"
    LOCAL_TIME = "LocalTime"
    LOCAL_DATE_TIME = "LocalDateTime"
    BOOLEAN_PRIMITIVE_ARRAY = "BooleanPrimitiveArray"
    BYTE_PRIMITIVE_ARRAY = "BytePrimitiveArray"
    SHORT_PRIMITIVE_ARRAY = "ShortPrimitiveArray"
    CHAR_PRIMITIVE_ARRAY = "CharPrimitiveArray"
    INT_PRIMITIVE_ARRAY = "IntPrimitiveArray"
    LONG_PRIMITIVE_ARRAY = "LongPrimitiveArray"
    FLOAT_PRIMITIVE_ARRAY = "FloatPrimitiveArray"
    DOUBLE_PRIMITIVE_ARRAY = "DoublePrimitiveArray"
    STRING_ARRAY = "StringArray"
    BYTE_VALUE_ARRAY = "ByteValueArray"
    CHAR_VALUE_ARRAY = "CharValueArray"
    DOUBLE_VALUE_ARRAY = "DoubleValueArray"
    FLOAT_VALUE_ARRAY = "FloatValueArray"
    INT_VALUE_ARRAY = "IntValueArray"
    LONG_VALUE_ARRAY = "LongValueArray"
    NULL_VALUE_ARRAY = "NullValueArray"
    SHORT_VALUE_ARRAY = "ShortValueArray"
    STRING_VALUE_ARRAY = "StringValueArray"
    TUPLE_0 = "Tuple0"
    VOID_NAMESPACE = "VoidNamespace"
    TIME_WINDOW = "TimeWindow"
    GLOBAL_WINDOW = "GlobalWindow"
    TABLE_TIME_WINDOW = "TableTimeWindow"
    TABLE_GLOBAL_WINDOW = "TableGlobalWindow"
    COUNT_WINDOW = "CountWindow"
    STRING_DATA = "StringData"
    SORTED_LONG = "SortedLong"
    NULL = "Null"
    UNIT = "Unit"
    NOTHING = "Nothing"
    BYTE_ARRAY_WRAPPER = "ByteArrayWrapper"
    DEWEY_NUMBER = "DeweyNumber"
    EVENT_ID = "EventId"
    PYTHON_STRING = "PythonString"
    PYTHON_BIG_DEC = "PythonBigDec"
    PYTHON_DATE = "PythonDate"
    PYTHON_TIME = "PythonTime"
    LONG_VALUE_WITH_PROPER_HASH_CODE = "LongValueWithProperHashCode"
    JAVA_OBJECT = "JavaObject"
    KAFKA_TRANSACTION_STATE = "KafkaTransactionState"
    KAFKA_TRANSACTION_CONTEXT = "KafkaTransactionContext"
    KAFKA_NEXT_TRANSACTIONAL_ID_HINT = "KafkaNextTransactionalIdHint"
    JDBC_XA_SINK_STATE = "JdbcXaSinkState"
    JDBC_CHECKPOINT_AND_XID = "JdbcCheckpointAndXid"
    JDBC_XID = "JdbcXid"


COMPONENTS = {
    BasicKind.BOOLEAN_PRIMITIVE_ARRAY: BasicKind.BOOLEAN,
    BasicKind.BYTE_PRIMITIVE_ARRAY: BasicKind.BYTE,
    BasicKind.SHORT_PRIMITIVE_ARRAY: BasicKind.SHORT,
    BasicKind.CHAR_PRIMITIVE_ARRAY: BasicKind.CHAR,
    BasicKind.INT_PRIMITIVE_ARRAY: BasicKind.INT,
    BasicKind.LONG_PRIMITIVE_ARRAY: BasicKind.LONG,
    BasicKind.FLOAT_PRIMITIVE_ARRAY: BasicKind.FLOAT,
    BasicKind.DOUBLE_PRIMITIVE_ARRAY: BasicKind.DOUBLE,
}
"""Kind of an array of primitive values -> kind of one value."""

PRIMITIVES = tuple(COMPONENTS.values())
"""Kinds of the primitive types of Java."""

ARRAYS = tuple(kind for kind in BasicKind if kind.endswith("Array"))
"""Kinds of arrays. Java arrays have no hash that is the same in every JVM."""


@dataclass(frozen=True, kw_only=True)
class Basic(Serializer):
    """A serializer without parameters over one basic type.

    Attributes:
        kind: which serializer it is.
        serializer_class: serializer class in snapshots of version 2 (1.6 and 1.7); empty for later versions.
    """

    kind: BasicKind
    serializer_class: str = ""


@dataclass(frozen=True, kw_only=True)
class Enum(Serializer):
    """`EnumSerializer`: data are indices into `constants`."""

    enum_class: str
    constants: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ScalaEnum(Serializer):
    """`ScalaEnumSerializer`: data are ids of `constants` (name, id)."""

    enum_class: str
    constants: tuple[tuple[str, int], ...]


class ClassBoundKind(StrEnum):
    """Serializer of a `ClassBound` node: the word before `Serializer` in its class name."""

    VALUE = "Value"
    COPYABLE_VALUE = "CopyableValue"
    WRITABLE = "Writable"
    CODER = "Coder"
    """A coder of Beam that is bound to a class."""


@dataclass(frozen=True, kw_only=True)
class ClassBound(Serializer):
    """A serializer that stores only the class of its values; that class writes the data itself.

    Attributes:
        kind: which serializer it is.
        type_class: class of the values.
    """

    kind: ClassBoundKind
    type_class: str


@dataclass(frozen=True, kw_only=True)
class ListOf(Composite):
    """`ListSerializer` and `ArrayListSerializer`; also the value serializer of LIST state."""

    element: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The element serializer."""
        return (self.element,)


@dataclass(frozen=True, kw_only=True)
class SetOf(Composite):
    """`SetSerializer` (2.x)."""

    element: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The element serializer."""
        return (self.element,)


@dataclass(frozen=True, kw_only=True)
class MapOf(Composite):
    """`MapSerializer`; also the value serializer of MAP state.

    Attributes:
        null_keys: keys have a null flag too (`NullAwareMapSerializer`).
    """

    key: Serializer
    value: Serializer
    null_keys: bool = False

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """Key and value serializer."""
        return (self.key, self.value)


@dataclass(frozen=True, kw_only=True)
class GenericArray(Composite):
    """`GenericArraySerializer`: objects of one component class, each with a present flag."""

    component_class: str
    element: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The element serializer."""
        return (self.element,)


@dataclass(frozen=True, kw_only=True)
class Tuple(Composite):
    """`TupleSerializer` (Tuple1 … Tuple25) and the Scala case classes and tuples."""

    tuple_class: str
    fields: tuple[Serializer, ...]

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The field serializers."""
        return self.fields


@dataclass(frozen=True, kw_only=True)
class PositionalRow(Composite):
    """`RowSerializer`; positional, field names are not in the snapshot."""

    fields: tuple[Serializer, ...]
    supports_row_kind: bool = True

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The field serializers."""
        return self.fields


@dataclass(frozen=True, kw_only=True)
class Either(Composite):
    """`JavaEitherSerializer` and the Scala `EitherSerializer`."""

    left: Serializer
    right: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """Left and right serializer."""
        return (self.left, self.right)


@dataclass(frozen=True, kw_only=True)
class Nullable(Composite):
    """`NullableSerializer`: a null flag, then the value; zero bytes may follow the flag of a null."""

    inner: Serializer
    padding: int = 0

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The wrapped serializer."""
        return (self.inner,)


@dataclass(frozen=True, kw_only=True)
class PojoField:
    """A field of a POJO.

    Attributes:
        name: field name (the key of the map in the snapshot).
        declaring_class: class that declares the field; None when it could not be resolved at write time.
        serializer: serializer of the field; None when it could not be resolved at write time.
    """

    name: str
    declaring_class: str | None
    serializer: Serializer | None


@dataclass(frozen=True, kw_only=True)
class PojoSubclass:
    """A subclass of a POJO class with its own serializer (None when unresolved at write time).

    Attributes:
        resolved: whether the class itself could be resolved when the snapshot was written (`hasKey`).
    """

    class_name: str
    serializer: Serializer | None
    resolved: bool = True


@dataclass(frozen=True, kw_only=True)
class Pojo(Serializer):
    """`PojoSerializer`, also for Java records; fields and subclasses have the order of the snapshot."""

    snapshot_class: str = "org.apache.flink.api.java.typeutils.runtime.PojoSerializerSnapshot"
    snapshot_version: int = 2
    pojo_class: str
    fields: tuple[PojoField, ...]
    registered: tuple[PojoSubclass, ...] = ()
    non_registered: tuple[PojoSubclass, ...] = ()

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """Serializers of the fields, then of the registered and the non-registered subclasses."""
        serializers = (
            *(each.serializer for each in self.fields),
            *(each.serializer for each in self.registered),
            *(each.serializer for each in self.non_registered),
        )
        return tuple(each for each in serializers if each is not None)


@dataclass(frozen=True, kw_only=True)
class KryoRegistration:
    """An entry of the Kryo registrations, or of the default serializers of Kryo, in a serializer snapshot.

    Attributes:
        class_name: the registered class (key of the map).
        resolved: False when the class could not be resolved at write time.
        value: the encoded `KryoRegistration` (None when unresolved), kept as bytes.
    """

    class_name: str
    resolved: bool
    value: bytes | None


@dataclass(frozen=True, kw_only=True)
class Kryo(Serializer):
    """`KryoSerializer`: any class that Flink knows no better serializer for."""

    snapshot_class: str = "org.apache.flink.api.java.typeutils.runtime.kryo.KryoSerializerSnapshot"
    snapshot_version: int = 2
    type_class: str
    registrations: tuple[KryoRegistration, ...] = ()
    default_serializers: tuple[KryoRegistration, ...] = ()
    default_serializer_classes: tuple[KryoRegistration, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Protobuf(Serializer):
    """`ProtobufTypeSerializer` of flink-datastream-protobuf: a length, then a message of Protobuf.

    Attributes:
        message_class: the generated Java class.
        message_name: full name of the message.
        deterministic: whether maps are written in the order of their keys.
        max_message_size: maximum size in bytes of a message that is read.
        recursion_limit: maximum nesting depth of a message that is read.
        descriptors: the `FileDescriptorSet` of the message and its imports, as stored.
    """

    snapshot_class: str = "io.github.flink.gcp.protobuf.ProtobufTypeSerializerSnapshot"
    snapshot_version: int = 1
    message_class: str
    message_name: str
    deterministic: bool = False
    max_message_size: int = 64 << 20
    recursion_limit: int = 100
    descriptors: bytes


@dataclass(frozen=True, kw_only=True)
class Avro(Serializer):
    """`AvroSerializer`: generic, specific or reflect records.

    Attributes:
        schema_json: the writer schema, as stored.
    """

    snapshot_class: str = "org.apache.flink.formats.avro.typeutils.AvroSerializerSnapshot"
    runtime_class: str
    schema_json: str


@dataclass(frozen=True, kw_only=True)
class Opaque(Serializer):
    """A snapshot whose class has no reader: its bytes are kept if their end is known, values cannot be decoded.

    Attributes:
        unknown_class: the snapshot class without a reader: `snapshot_class` itself or one nested in it.
        raw: the body of the snapshot, as written; None where its end is not known.
        reason: reason why it cannot be read; empty if the only reason is that the class has no reader.
    """

    unknown_class: str
    raw: bytes | None = field(repr=False)
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, kw_only=True)
class Declared(Opaque):
    """A snapshot of a class that the user declares (`serializers.snapshot_classes`).

    Attributes:
        layout: text of the layout of the data.
        serializers: nested serializers, as far as the declaration says where they are in the body.
    """

    layout: str
    serializers: tuple[Serializer, ...] = ()

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The nested serializers."""
        return self.serializers


@dataclass(frozen=True, kw_only=True)
class PythonRow(Serializer):
    """`RowDataSerializer` of PyFlink: row kind and null bits in a mask, then the fields.

    Attributes:
        types: one logical type per field.
        fields: one serializer per field (nested snapshots).
        java_types: the Java streams of the types as written.
    """

    types: tuple[LogicalType, ...]
    fields: tuple[Serializer, ...]
    java_types: tuple[bytes, ...] = field(repr=False, default=())

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The field serializers."""
        return self.fields


@dataclass(frozen=True, kw_only=True)
class PythonArray(Serializer):
    """`ArrayDataSerializer` of PyFlink; `java` holds the Java streams as written, `element` follows from the type."""

    element_type: LogicalType
    element: Serializer
    java: tuple[bytes, ...] = field(repr=False, default=())


@dataclass(frozen=True, kw_only=True)
class PythonMap(Serializer):
    """`MapDataSerializer` of PyFlink; `java` holds the Java streams as written, key and value follow from the types."""

    key_type: LogicalType
    value_type: LogicalType
    key: Serializer
    value: Serializer
    java: tuple[bytes, ...] = field(repr=False, default=())


@dataclass(frozen=True, kw_only=True)
class PythonDecimal(Serializer):
    """`DecimalDataSerializer` of PyFlink: decimal numbers as text."""

    precision: int
    scale: int


@dataclass(frozen=True, kw_only=True)
class CaseClass(Composite):
    """`CaseClassSerializer`: the number of fields, then the fields.

    Attributes:
        case_class: name of the class.
        immutable: whether all fields are immutable; None in snapshots that do not say.
    """

    case_class: str
    fields: tuple[Serializer, ...]
    immutable: bool | None = None

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The field serializers."""
        return self.fields


@dataclass(frozen=True, kw_only=True)
class Coproduct(Composite):
    """`CoproductSerializer`: the index of a subtype of a sealed trait, then a value of it.

    Attributes:
        classes: names of the subtypes.
        serializers: one for each of them.
    """

    classes: tuple[str, ...]
    serializers: tuple[Serializer, ...]

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The serializers of the subtypes."""
        return self.serializers

    @property
    def cases(self) -> tuple[str, ...]:
        """Names of the subtypes, without package and enclosing classes where that leaves them distinct."""
        short = tuple(each.rstrip("$").replace("$", ".").rpartition(".")[2] for each in self.classes)
        return short if len(set(short)) == len(short) else self.classes


@dataclass(frozen=True, kw_only=True)
class ScalaCollection(Serializer):
    """Serializers of lists, sets, vectors and arrays: a count, then the elements.

    Attributes:
        serializer_class: serializer of the collection, such as `org.apache.flinkx.api.serializer.ListSerializer`.
        element_class: class of the elements.
        element: serializer of the elements.
    """

    serializer_class: str
    element_class: str
    element: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The element serializer."""
        return (self.element,)


@dataclass(frozen=True, kw_only=True)
class ScalaMap(Serializer):
    """`MapSerializer` and `MutableMapSerializer`: a count, then keys and values."""

    key: Serializer
    value: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """Key and value serializer."""
        return (self.key, self.value)


@dataclass(frozen=True, kw_only=True)
class Mapped(Serializer):
    """`MappedSerializer`: a mapper of the job converts values to another type, whose serializer writes them.

    Attributes:
        mapper: class of the mapper.
        inner: serializer of the other type.
    """

    mapper: str
    inner: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The serializer of the other type."""
        return (self.inner,)


@dataclass(frozen=True, kw_only=True)
class CaseObject(Serializer):
    """`ScalaCaseObjectSerializer` of flink-scala-api: a Scala object, which has no bytes in the data."""

    object_class: str


@dataclass(frozen=True, kw_only=True)
class Timer(Composite):
    """`TimerSerializer`: timestamp with its sign flipped, key, namespace."""

    snapshot_class: str = "org.apache.flink.streaming.api.operators.TimerSerializerSnapshot"
    outer_version: int = 2
    key: Serializer
    namespace: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """Key and namespace serializer."""
        return (self.key, self.namespace)


@dataclass(frozen=True, kw_only=True)
class Ttl(Composite):
    """`TtlStateFactory.TtlSerializer`: last access in epoch milliseconds, then the user's value."""

    snapshot_class: str = "org.apache.flink.runtime.state.ttl.TtlStateFactory$TtlSerializerSnapshot"
    outer_version: int = 2
    timestamp: Serializer
    inner: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """Timestamp and user serializer."""
        return (self.timestamp, self.inner)


@dataclass(frozen=True, kw_only=True)
class TtlAware(Serializer):
    """`TtlAwareSerializer`: stores whether TTL is enabled; data as the wrapped serializer writes them."""

    snapshot_version: int = 1
    ttl_enabled: bool
    inner: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The wrapped serializer."""
        return (self.inner,)


class VariantKind(StrEnum):
    """Serializer of a `Variants` node: the word before `Serializer` in its class name."""

    UNION = "Union"
    BUFFER_ENTRY = "BufferEntry"
    STREAM_ELEMENT = "StreamElement"
    NODE_ID = "NodeId"
    SHARED_BUFFER_EDGE = "SharedBufferEdge"
    SHARED_BUFFER_NODE = "SharedBufferNode"
    SHARED_BUFFER_EDGES = "SharedBufferEdges"
    """Nodes of the shared buffer before 1.16, without reference counts."""
    LOCKABLE = "Lockable"
    NFA_STATE = "NFAState"
    SINGLE_THREAD_ACCESS_CHECKING = "SingleThreadAccessChecking"
    TWO_PHASE_COMMIT = "TwoPhaseCommit"
    SCALA_OPTION = "ScalaOption"
    SCALA_TRY = "ScalaTry"
    TRAVERSABLE = "Traversable"
    META_SQN_INFO = "MetaSqnInfo"
    ROW_SQN_INFO = "RowSqnInfo"
    SEQUENCED_NODE = "SequencedNode"
    """This and the two before: sequenced multiset state of SQL in 2.2."""


@dataclass(frozen=True, kw_only=True)
class Variants(Composite):
    """Composite serializers of the streaming, CEP and sink runtime with individual data layouts.

    Attributes:
        kind: which serializer it is.
        serializers: nested serializers.
        flag: the one boolean some of them store (supportsNullTransaction, supportsPreviousTimestamp).
        text: the one string some of them store (Traversable's builder code).
    """

    FLAGGED: ClassVar[frozenset[VariantKind]] = frozenset({VariantKind.NFA_STATE, VariantKind.TWO_PHASE_COMMIT})

    kind: VariantKind
    serializers: tuple[Serializer, ...]
    flag: bool | None = None
    text: str | None = None

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The nested serializers."""
        return self.serializers


@dataclass(frozen=True, kw_only=True)
class LogicalType:
    """A SQL type (`org.apache.flink.table.types.logical.LogicalType`).

    Attributes:
        root: `LogicalTypeRoot` constant, such as BIGINT, VARCHAR, DECIMAL, TIMESTAMP_WITHOUT_TIME_ZONE, ROW.
        nullable: whether the type allows null.
        length: length of CHAR, VARCHAR, BINARY, VARBINARY; precision of DECIMAL, TIME, TIMESTAMP; None for other types.
        scale: scale of DECIMAL.
        children: element, key and value, or field types.
        names: field names of ROW.
        class_name: class of a RAW, DISTINCT, STRUCTURED or legacy type.
    """

    root: str
    nullable: bool = True
    length: int | None = None
    scale: int | None = None
    children: tuple[LogicalType, ...] = ()
    names: tuple[str, ...] = ()
    class_name: str | None = None


@dataclass(frozen=True, kw_only=True)
class RowData(Serializer):
    """`RowDataSerializer`: rows in the binary format of the table runtime.

    Attributes:
        types: one logical type per field.
        fields: one serializer per field (nested snapshots).
        java_types: the Java streams of the types as written, kept so that they rewrite byte for byte.
        names: names of the fields in the snapshot; None unless it is of version 4 and has names.
        labels: names of the fields in a plan of the job; they are never written. None without a plan.
    """

    types: tuple[LogicalType, ...]
    fields: tuple[Serializer, ...]
    java_types: tuple[bytes, ...] = field(repr=False, default=())
    names: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The field serializers."""
        return self.fields

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the fields, or f0, f1, … for all columns if there are none, or if one is repeated or `row_kind`."""
        names = self.names if self.labels is None else self.labels
        if names is None or len({*names, "row_kind"}) <= len(names):
            return tuple(f"f{index}" for index in range(len(self.types)))
        return names


@dataclass(frozen=True, kw_only=True)
class BinaryRow(Serializer):
    """`BinaryRowDataSerializer`: binary rows of which only the number of fields is known."""

    num_fields: int


@dataclass(frozen=True, kw_only=True)
class ArrayData(Serializer):
    """`ArrayDataSerializer`; `java` holds the Java streams as written (element type, element serializer)."""

    element_type: LogicalType
    java: tuple[bytes, ...] = field(repr=False, default=())


@dataclass(frozen=True, kw_only=True)
class MapData(Serializer):
    """`MapDataSerializer`; `java` holds the Java streams as written (two types, two serializers)."""

    key_type: LogicalType
    value_type: LogicalType
    java: tuple[bytes, ...] = field(repr=False, default=())


@dataclass(frozen=True, kw_only=True)
class Decimal(Serializer):
    """`DecimalDataSerializer`: SQL decimals of the table runtime."""

    precision: int
    scale: int


@dataclass(frozen=True, kw_only=True)
class TimestampData(Serializer):
    """`TimestampDataSerializer`: SQL timestamps of the table runtime."""

    precision: int


@dataclass(frozen=True, kw_only=True)
class RawValue(Composite):
    """`RawValueDataSerializer`: a length and the bytes of the nested serializer."""

    inner: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The wrapped serializer."""
        return (self.inner,)


@dataclass(frozen=True, kw_only=True)
class External(Composite):
    """`ExternalSerializer`: an external data structure stored in its internal form.

    Attributes:
        java_type: the Java stream of the `DataType`, as written.
    """

    inner: Serializer
    is_internal_input: bool
    java_type: bytes = field(repr=False, default=b"")

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The internal serializer."""
        return (self.inner,)


@dataclass(frozen=True, kw_only=True)
class LinkedListOf(Composite):
    """`LinkedListSerializer` of the table runtime."""

    element: Serializer
    has_null_mask: bool = True

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The element serializer."""
        return (self.element,)


@dataclass(frozen=True, kw_only=True)
class SortedMapOf(Serializer):
    """`SortedMapSerializer`; `comparator` is the Java stream of the comparator, as written."""

    key: Serializer
    value: Serializer
    comparator: bytes = field(repr=False, default=b"")

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """Key and value serializer."""
        return (self.key, self.value)


@dataclass(frozen=True, kw_only=True)
class ListView(Composite):
    """`ListViewSerializer`: data as the nested list serializer writes them."""

    inner: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The list serializer."""
        return (self.inner,)


@dataclass(frozen=True, kw_only=True)
class MapView(Composite):
    """`MapViewSerializer`: data as the nested map serializer writes them."""

    inner: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The map serializer."""
        return (self.inner,)


@dataclass(frozen=True, kw_only=True)
class WindowKey(Composite):
    """`WindowKeySerializer`: a window (i64) and a key row."""

    key: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The key serializer."""
        return (self.key,)


@dataclass(frozen=True, kw_only=True)
class RowDataKey(Serializer):
    """`RowDataKeySerializer` (2.2): rows as the wrapped serializer writes them.

    Attributes:
        java: the Java streams of the generated equaliser and hash function, as written.
    """

    inner: Serializer
    java: tuple[bytes, ...] = field(repr=False, default=())

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The row serializer."""
        return (self.inner,)


KEYED_STATE_TYPE = "KEYED_STATE_TYPE"
DISTRIBUTION_MODE = "OPERATOR_STATE_DISTRIBUTION_MODE"
KEY_SERIALIZER = "KEY_SERIALIZER"
NAMESPACE_SERIALIZER = "NAMESPACE_SERIALIZER"
USER_KEY_SERIALIZER = "USER_KEY_SERIALIZER"
VALUE_SERIALIZER = "VALUE_SERIALIZER"


class BackendStateType(StrEnum):
    """`StateMetaInfoSnapshot.BackendStateType`: kind of a state in meta infos, which store the index in this order."""

    KEY_VALUE = "KEY_VALUE"
    OPERATOR = "OPERATOR"
    BROADCAST = "BROADCAST"
    PRIORITY_QUEUE = "PRIORITY_QUEUE"
    KEY_VALUE_V2 = "KEY_VALUE_V2"


class StateKind(StrEnum):
    """Kind of a state, such as VALUE, LIST, TIMER or BROADCAST.

    Keyed state has the names of Flink's `StateDescriptor.Type`, operator state those of `OperatorStateHandle.Mode`.
    The names for timers, for state that only its operator can read, and for network buffers are not Flink's.
    """

    VALUE = "VALUE"
    LIST = "LIST"
    MAP = "MAP"
    REDUCING = "REDUCING"
    AGGREGATING = "AGGREGATING"
    FOLDING = "FOLDING"
    UNKNOWN = "UNKNOWN"
    TIMER = "TIMER"
    SPLIT_DISTRIBUTE = "SPLIT_DISTRIBUTE"
    UNION = "UNION"
    BROADCAST = "BROADCAST"
    RAW = "RAW"
    IN_FLIGHT = "IN_FLIGHT"


KEYED_KINDS = (StateKind.VALUE, StateKind.LIST, StateKind.MAP, StateKind.REDUCING, StateKind.AGGREGATING)
"""Kinds of keyed state that every release of Flink has."""

LIST_KINDS = (StateKind.SPLIT_DISTRIBUTE, StateKind.UNION)
"""Kinds of operator list state."""

OPERATOR_KINDS = (*LIST_KINDS, StateKind.BROADCAST)
"""Kinds of operator state."""


@dataclass(frozen=True, kw_only=True)
class StateMetaInfo:
    """Flink's meta information of one registered state (`StateMetaInfoSnapshot`): name, kind, options, serializers.

    Attributes:
        name: state name, unique in its backend.
        backend_type: kind of state in Flink's meta infos.
        options: pairs of key and value in the order of the file.
        serializers: pairs of key and serializer in the order of the file.
    """

    name: str
    backend_type: BackendStateType
    options: tuple[tuple[str, str], ...]
    serializers: tuple[tuple[str, Serializer], ...]

    @property
    def state_type(self) -> StateKind | None:
        """Kind of a keyed state (such as VALUE, LIST or MAP); None for timers and operator state."""
        return _find_kind(self.options, KEYED_STATE_TYPE, (*KEYED_KINDS, StateKind.FOLDING))

    @property
    def distribution_mode(self) -> StateKind | None:
        """SPLIT_DISTRIBUTE, UNION or BROADCAST for operator state; None for keyed state."""
        return _find_kind(self.options, DISTRIBUTION_MODE, OPERATOR_KINDS)

    @property
    def value_serializer(self) -> Serializer:
        """Serializer of the value: the whole list or map of keyed state, an element of timers or operator state."""
        return self._serializer(VALUE_SERIALIZER)

    @property
    def namespace_serializer(self) -> Serializer:
        """Serializer of the namespace; keyed state only."""
        return self._serializer(NAMESPACE_SERIALIZER)

    @property
    def key_serializer(self) -> Serializer:
        """Serializer of the keys of a broadcast state. That of keyed state is in the header of the file."""
        return self._serializer(KEY_SERIALIZER)

    @property
    def element(self) -> Serializer:
        """Serializer of one element of a list state, a priority queue or an operator list.

        Raises:
            UsageError: the state has no elements (value, map, broadcast).
        """
        value = self.value_serializer
        if self.backend_type in (BackendStateType.PRIORITY_QUEUE, BackendStateType.OPERATOR):
            return value
        if self.state_type == StateKind.LIST:
            return value.element if isinstance(value, ListOf) else value
        raise UsageError(
            f"a {self.state_type or self.backend_type} state has no elements",
            where=Where(state=self.name),
            hint="Use its value_serializer",
        )

    def _serializer(self, key: str) -> Serializer:
        for name, serializer in self.serializers:
            if name == key:
                return serializer
        present = ", ".join(name for name, _ in self.serializers) or "none"
        raise NotFoundError(
            f"the {self.backend_type} state stores no {key} (stored: {present})", where=Where(state=self.name)
        )


def _find_kind(options: tuple[tuple[str, str], ...], name: str, known: tuple[StateKind, ...]) -> StateKind | None:
    word = dict(options).get(name)
    return None if word is None else next((kind for kind in known if kind == word), StateKind.UNKNOWN)
