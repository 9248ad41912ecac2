"""Serializer trees: what a serializer snapshot says, as frozen values.

One node per family of Flink serializers. A node carries what the snapshot stores and nothing else; bytes of the
snapshot are read and written beside it in this package, bytes of the data in `state_pipelines.codecs`.
Source: `org.apache.flink.api.common.typeutils.TypeSerializerSnapshot` and its implementations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Serializer:
    """A node; the base of all families.

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


@dataclass(frozen=True, kw_only=True)
class Composite(Serializer):
    """Base of the families that `CompositeTypeSerializerSnapshot` stores: outer data, then nested snapshots.

    Attributes:
        outer_version: version of the outer data (`getCurrentOuterSnapshotVersion`); for legacy snapshots without
            the composite header (version <= 2) equal to `snapshot_version`.
    """

    outer_version: int = 1


@dataclass(frozen=True, kw_only=True)
class Basic(Serializer):
    """A serializer without parameters over one basic type.

    Attributes:
        kind: the word in front of `Serializer` in the class name: Boolean, Byte, Short, Char, Int, Long, Float, Double,
            String, BigInt, BigDec, Date, SqlDate, SqlTime, SqlTimestamp, Instant, LocalDate, LocalTime,
            LocalDateTime, Void, the Value types (BooleanValue … StringValue, NullValue), the primitive arrays
            (`BooleanPrimitiveArray` … ), `StringArray`, `Tuple0`, and the namespaces `VoidNamespace`, `TimeWindow`,
            `GlobalWindow`, `TableTimeWindow`, `CountWindow`; `StringData`, `Null`, `Unit`, `ByteArrayWrapper`,
            `DeweyNumber`, `EventId`, `JavaObject` (Java serialization); `Variant`, `TableGlobalWindow`, `Nothing`,
            and the value arrays of Gelly (`LongValueArray` …); `Uuid`, `Bitmap` (newer 2.x); `PythonString`,
            `PythonBigDec`, `PythonDate`, `PythonTime`.
        serializer_class: serializer class that snapshots of version 2 (1.6 and 1.7) name; empty in later ones.
    """

    kind: str
    serializer_class: str = ""


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
        null_keys: keys carry a null flag too (`NullAwareMapSerializer`).
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
class Row(Composite):
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
    """`NullableSerializer`: a null flag, padded or not."""

    inner: Serializer
    padding: int = 0

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The wrapped serializer."""
        return (self.inner,)


@dataclass(frozen=True, kw_only=True)
class Enum(Serializer):
    """`EnumSerializer`: data are indices into `constants`."""

    enum_class: str
    constants: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PojoField:
    """One field of a POJO.

    Attributes:
        name: field name (the key of the map in the snapshot).
        declaring_class: class that declares the field; None when it could not be resolved at write time.
        serializer: None when it could not be resolved at write time.
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
    """`PojoSerializer`; also Java records. Fields and subclasses in the order of the snapshot."""

    snapshot_class: str = "org.apache.flink.api.java.typeutils.runtime.PojoSerializerSnapshot"
    snapshot_version: int = 2
    pojo_class: str
    fields: tuple[PojoField, ...]
    registered: tuple[PojoSubclass, ...] = ()
    non_registered: tuple[PojoSubclass, ...] = ()

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """Serializers of the fields, then of the registered and the non-registered subclasses."""
        parts = (
            *(each.serializer for each in self.fields),
            *(each.serializer for each in self.registered),
            *(each.serializer for each in self.non_registered),
        )
        return tuple(part for part in parts if part is not None)


@dataclass(frozen=True, kw_only=True)
class KryoRegistration:
    """An entry of the Kryo registrations.

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
class Avro(Serializer):
    """`AvroSerializer`: generic, specific or reflect records.

    Attributes:
        schema_json: the writer schema, as stored.
    """

    snapshot_class: str = "org.apache.flink.formats.avro.typeutils.AvroSerializerSnapshot"
    runtime_class: str
    schema_json: str


@dataclass(frozen=True, kw_only=True)
class ClassBound(Serializer):
    """A serializer that only names its type class, which writes the data itself.

    Attributes:
        kind: Value, CopyableValue or Writable.
        type_class: the class.
    """

    kind: str
    type_class: str


@dataclass(frozen=True, kw_only=True)
class LogicalType:
    """A SQL type of the table family (`org.apache.flink.table.types.logical.LogicalType`).

    Attributes:
        root: `LogicalTypeRoot` constant, such as BIGINT, VARCHAR, DECIMAL, TIMESTAMP_WITHOUT_TIME_ZONE, ROW.
        nullable: whether the type allows null.
        length: of CHAR, VARCHAR, BINARY, VARBINARY; also precision of DECIMAL, TIME, TIMESTAMP; None elsewhere.
        scale: of DECIMAL.
        children: element, key and value, or field types.
        names: field names of ROW.
        class_name: of RAW, DISTINCT and STRUCTURED types and legacy types.
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
    """`RowDataSerializer`: rows in the binary form of the table runtime.

    Attributes:
        types: one logical type per field.
        fields: one serializer per field (nested snapshots).
        java_types: the Java streams of the types as written, kept so that they rewrite byte for byte.
        names: names of the fields, which snapshots of version 4 may hold; None where they do not.
    """

    types: tuple[LogicalType, ...]
    fields: tuple[Serializer, ...]
    java_types: tuple[bytes, ...] = field(repr=False, default=())
    names: tuple[str, ...] | None = None

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The field serializers."""
        return self.fields

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns: those of the fields, or f0, f1, … where one is missing, repeated or `row_kind`."""
        names = self.names
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
    """`DecimalDataSerializer`."""

    precision: int
    scale: int


@dataclass(frozen=True, kw_only=True)
class TimestampData(Serializer):
    """`TimestampDataSerializer`."""

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
    """`TtlAwareSerializer`: says whether TTL is on; data as the wrapped serializer writes them."""

    snapshot_version: int = 1
    ttl_enabled: bool
    inner: Serializer

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The wrapped serializer."""
        return (self.inner,)


@dataclass(frozen=True, kw_only=True)
class Variants(Composite):
    """Composite families of the streaming, CEP and sink runtime whose data layout is one of a kind.

    Attributes:
        kind: Union, BufferEntry, StreamElement, NodeId, SharedBufferEdge, SharedBufferNode,
            SharedBufferEdges (before reference counts), Lockable, NFAState,
            SingleThreadAccessChecking, TwoPhaseCommit, ScalaOption, ScalaTry, Traversable; MetaSqnInfo, RowSqnInfo,
            SequencedNode (sequenced multiset state of SQL in 2.2).
        parts: nested serializers.
        flag: the one boolean some of them store (supportsNullTransaction, supportsPreviousTimestamp).
        text: the one string some of them store (Traversable's builder code).
    """

    FLAGGED: ClassVar[frozenset[str]] = frozenset({"NFAState", "TwoPhaseCommit"})

    kind: str
    parts: tuple[Serializer, ...]
    flag: bool | None = None
    text: str | None = None

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The nested serializers."""
        return self.parts


@dataclass(frozen=True, kw_only=True)
class ScalaEnum(Serializer):
    """`ScalaEnumSerializer`: data are ids of `constants` (name, id)."""

    enum_class: str
    constants: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class PythonRow(Serializer):
    """`RowDataSerializer` of PyFlink: row kind and null bits in a mask, then the fields one behind the other.

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
    """`MapDataSerializer` of PyFlink; as `PythonArray`."""

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


@dataclass(frozen=True, kw_only=True)
class Opaque(Serializer):
    """A snapshot without reader: it is preserved as far as its span is known, its data cannot be decoded.

    Attributes:
        unknown_class: the snapshot class without a reader: `snapshot_class` itself or one nested in it.
        raw: the body of the snapshot, as written; None where its end is not known.
        reason: why it cannot be read, where that is another reason than that nothing reads the class.
    """

    unknown_class: str
    raw: bytes | None = field(repr=False)
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, kw_only=True)
class Declared(Opaque):
    """A snapshot of a class that the user declares (`serializers.declared`).

    Attributes:
        layout: text of the layout of the data.
        parts: nested serializers that the declaration names.
    """

    layout: str
    parts: tuple[Serializer, ...] = ()

    @property
    def nested(self) -> tuple[Serializer, ...]:
        """The nested serializers."""
        return self.parts
