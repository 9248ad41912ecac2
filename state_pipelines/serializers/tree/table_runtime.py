"""Serializers of the SQL runtime and their logical types."""

from __future__ import annotations

from dataclasses import dataclass, field

from state_pipelines.serializers.tree.base import Composite, Serializer


@dataclass(frozen=True, kw_only=True)
class LogicalType:
    """A SQL type (`org.apache.flink.table.types.logical.LogicalType`).

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
        labels: names that a plan of the job gives the fields, which are never written; None without a plan.
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
        """Names of the columns: those of the fields, or f0, f1, … where one is missing, repeated or `row_kind`."""
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
