"""Byte layouts: the one declaration of how the data of a serializer look on the wire.

A layout is a small tree of frozen values. `scalar` interprets it one value at a time; `program` compiles it for the
kernels that turn millions of records into Arrow columns and back. `serializer_layouts` derives it from a serializer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from state_pipelines.codecs.kryo.field_lists import FieldLists
    from state_pipelines.codecs.messages.chill_messages import MessageTypes
    from state_pipelines.serializers import tree


@dataclass(frozen=True)
class Layout:
    """Base of all layouts."""


class PrimitiveKind(StrEnum):
    """Type of a fixed-width value; the number is its width in bits."""

    BOOL = "bool"
    I8 = "i8"
    I16 = "i16"
    U16 = "u16"
    I32 = "i32"
    I64 = "i64"
    F32 = "f32"
    F64 = "f64"

    @property
    def width(self) -> int:
        """Bytes of a value."""
        return 1 if self is PrimitiveKind.BOOL else int(self[1:]) // 8


@dataclass(frozen=True)
class Primitive(Layout):
    """A fixed-width big-endian value; the kind may be given by its name, such as `"i64"`."""

    kind: PrimitiveKind

    def __post_init__(self) -> None:
        # Layouts of other people's serializers name it.
        object.__setattr__(self, "kind", PrimitiveKind(self.kind))


class LogicalKind(StrEnum):
    """Type of a value that is written as several fixed-width components."""

    CHAR = "char"
    DATE_MILLIS = "date_millis"
    LOCAL_DATE = "local_date"
    LOCAL_TIME = "local_time"
    LOCAL_DATE_TIME = "local_date_time"
    SQL_TIMESTAMP = "sql_timestamp"
    INSTANT = "instant"
    ORDERED_I64 = "ordered_i64"
    EPOCH_DAY = "epoch_day"
    MILLI_OF_DAY = "milli_of_day"


@dataclass(frozen=True)
class Logical(Layout):
    """A value of several fixed-width components, in some cases with a reserved encoding of null."""

    name: LogicalKind


@dataclass(frozen=True)
class Text(Layout):
    """A Flink string: varint count, then UTF-16 units as varints (`StringValue`).

    Attributes:
        nullable: the stored number is the length + 1, and 0 is null.
    """

    nullable: bool = True


@dataclass(frozen=True)
class Sized(Layout):
    """An i32 length, then bytes (UTF-8 with `text`)."""

    text: bool = False


@dataclass(frozen=True)
class JavaText(Layout):
    """`DataOutput.writeUTF`, as classes that write themselves use it: u16 length, modified UTF-8."""


@dataclass(frozen=True)
class BigInteger(Layout):
    """`BigIntSerializer`: i32 length + 4, short forms for null, 0, 1 and 10, two's complement bytes."""


@dataclass(frozen=True)
class BigDecimal(Layout):
    """`BigDecSerializer`: the unscaled `BigInteger`, then an i32 scale unless null."""


@dataclass(frozen=True)
class Constant(Layout):
    """Constant bytes without a value (void namespaces, `Tuple0`).

    Attributes:
        raw: the bytes.
        empty: the value is an object without content (global window), not null.
    """

    raw: bytes
    empty: bool = False


@dataclass(frozen=True)
class Struct(Layout):
    """Consecutive fields."""

    fields: tuple[tuple[str, Layout], ...]


@dataclass(frozen=True)
class Optional(Layout):
    """A flag byte, then the value unless null.

    Attributes:
        null_flag: flag of null; the other one of 0 and 1 marks a value.
        padding: zero bytes after the flag of a null.
        rest_is_null: bytes after a null flag up to the end of the span belong to the null (MAP state values).
    """

    inner: Layout
    null_flag: int = 1
    padding: int = 0
    rest_is_null: bool = False


@dataclass(frozen=True)
class Marked(Layout):
    """An i32 with one of two values, then the value unless null (unions of Avro with null, Scala case classes).

    Attributes:
        null: the i32 of null.
        present: the i32 in front of a value.
    """

    inner: Layout
    null: int
    present: int


@dataclass(frozen=True)
class Sequence(Layout):
    """An i32 count, then the elements."""

    element: Layout


@dataclass(frozen=True)
class Delimited(Layout):
    """Elements up to the end of the span with one delimiter byte between them (`ListDelimitedSerializer`).

    Attributes:
        delimiter: the byte; None when nothing is between them.
    """

    element: Layout
    delimiter: int | None = 0x2C


@dataclass(frozen=True)
class Runs(Layout):
    """A list that is stored in several arrays of bytes, each with some elements: a list state of a Python function.

    PyFlink appends what a bundle has added as one `byte[]`, and Java joins the arrays by a delimiter byte. It is
    written with one array per element, which PyFlink reads as well.

    Attributes:
        element: layout of an element.
        ttl: each array has a prefix: the time of the last access of its elements.
    """

    element: Layout
    ttl: bool = False

    @property
    def stored(self) -> Delimited:
        """Layout of the bytes."""
        return self._join(Delimited(self.element, delimiter=None))

    @property
    def written(self) -> Delimited:
        """Layout of the bytes with one array per element."""
        return self._join(self.element)

    def _join(self, content: Layout) -> Delimited:
        array = Framed(content)
        return Delimited(
            Struct((("last_access", Primitive(PrimitiveKind.I64)), ("value", array))) if self.ttl else array
        )


@dataclass(frozen=True)
class Mapping(Layout):
    """An i32 count, then alternating keys and values."""

    key: Layout
    value: Layout


ROW_KINDS = ("+I", "-U", "+U", "-D")
"""Short strings of `RowKind` in the order of their byte values."""


@dataclass(frozen=True)
class Masked(Layout):
    """`RowSerializer`: a bit mask (row kind in two bits if `kind`, then a null bit per field), then non-null fields."""

    fields: tuple[tuple[str, Layout], ...]
    kind: bool


@dataclass(frozen=True)
class Choice(Layout):
    """`EitherSerializer`: a flag byte (1 is left), then that side."""

    left: Layout
    right: Layout


@dataclass(frozen=True)
class Constants(Layout):
    """`EnumSerializer`: an i32 index into names."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class PojoVariant:
    """A subclass whose objects may occur in a field of a POJO class.

    Attributes:
        tag: registration tag; None for a non-registered subclass, which is stored by name.
        layout: the complete data of the subclass serializer.
    """

    class_name: str
    tag: int | None
    layout: Layout


@dataclass(frozen=True)
class PojoObject(Layout):
    """`PojoSerializer`: a flag byte (null, exact, non-registered, registered subclass), then fields with null flags."""

    class_name: str
    fields: tuple[tuple[str, Layout], ...]
    variants: tuple[PojoVariant, ...] = ()


@dataclass(frozen=True)
class MeasuredKey(Layout):
    """A value followed by its own length in little-endian base-256 bytes (ambiguous composite keys).

    Source: `CompositeKeySerializationUtils.writeLengthFrom`.
    """

    inner: Layout


@dataclass(frozen=True)
class Rest(Layout):
    """All bytes up to the end of the span."""


@dataclass(frozen=True)
class Span(Layout):
    """The start and stop offset of `inner` instead of its value, for formats that do not store the size of a value.

    It is read-only; the bytes of a span are written as bytes.
    """

    inner: Layout


@dataclass(frozen=True)
class Framed(Layout):
    """An i32 length, then a value that uses exactly that many bytes (`RawValueDataSerializer`)."""

    inner: Layout


@dataclass(frozen=True)
class NullMasked(Layout):
    """`LinkedListSerializer`: an i32 count, a null bit per element, the elements that are not null.

    Attributes:
        mask: whether there are null bits.
    """

    element: Layout
    mask: bool = True


@dataclass(frozen=True)
class Tagged(Layout):
    """A tag and the value that it selects (union, stream element).

    Attributes:
        cases: number, name and layout of each.
        width: bytes of the number, 1 or 4.
    """

    cases: tuple[tuple[int, str, Layout], ...]
    width: int = 1


OPAQUE_FIELD = "@bytes"
"""The only field of the structs that `Carried` values are."""


@dataclass(frozen=True)
class Opaque(Layout):
    """A value that is passed on undecoded: a struct with its bytes in the only field, `@bytes`."""

    inner: Layout


@dataclass(frozen=True)
class Dynamic(Layout):
    """Data whose shape is not fixed by the serializer (Kryo, Avro, binary rows, Java objects).

    `program` compiles those whose shape follows from the serializer (Avro, the table runtime); `columns` says what
    becomes of the others.

    Attributes:
        kryo_version: 2 up to Flink 1.20, 5 from 2.0.
        classes: field lists of the user's classes, for Kryo; None when there are none.
        messages: declared messages of Protobuf and Thrift, for Kryo; None when there are none.
    """

    serializer: tree.Serializer
    kryo_version: int = 5
    classes: FieldLists | None = None
    messages: MessageTypes | None = None


def fixed_width(layout: Layout) -> int | None:
    """Return the bytes of every value of `layout`, or None when they vary.

    Flink's `TypeSerializer.getLength`, by which composite keys are found ambiguous, follows the same rule.
    """
    match layout:
        case Primitive(kind=kind):
            return kind.width
        case Logical(name=name):
            return sum(each.width for each in LOGICAL_COMPONENTS[name])
        case Constant(raw=raw):
            return len(raw)
        case Constants():
            return 4
        case Span(inner=inner):
            return fixed_width(inner)
        case Optional(inner=inner, padding=padding):
            width = fixed_width(inner)
            return 1 + width if padding and width == padding else None
        case Struct(fields=fields):
            widths = [fixed_width(field) for _, field in fields]
            return None if None in widths else sum(width or 0 for width in widths)
        case _:
            return None


_I8, _U16, _I32, _I64 = PrimitiveKind.I8, PrimitiveKind.U16, PrimitiveKind.I32, PrimitiveKind.I64

LOGICAL_COMPONENTS: dict[LogicalKind, tuple[PrimitiveKind, ...]] = {
    LogicalKind.CHAR: (_U16,),
    LogicalKind.DATE_MILLIS: (_I64,),
    LogicalKind.LOCAL_DATE: (_I32, _I8, _I8),
    LogicalKind.LOCAL_TIME: (_I8, _I8, _I8, _I32),
    LogicalKind.LOCAL_DATE_TIME: (
        _I32,
        _I8,
        _I8,
        _I8,
        _I8,
        _I8,
        _I32,
    ),
    LogicalKind.SQL_TIMESTAMP: (_I64, _I32),
    LogicalKind.INSTANT: (_I64, _I32),
    LogicalKind.ORDERED_I64: (_I64,),
    LogicalKind.EPOCH_DAY: (_I32,),
    LogicalKind.MILLI_OF_DAY: (_I32,),
}
"""Encoded components of each logical value. `ordered_i64` has its sign bit flipped (`TimerSerializer`)."""
