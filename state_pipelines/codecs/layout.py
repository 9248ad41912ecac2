"""Byte layouts: the one declaration of how the data of a serializer look on the wire.

* `Layout`, `Primitive`, `Struct`, `Sequence` and others: a layout is a small tree of frozen values. `scalar` interprets
  it one value at a time; `programs` compiles it for the kernels that turn millions of records into Arrow columns and
  back. `serializer_layouts` derives it from a serializer.
* `register_layout`, `register_class_layout`: layouts of serializers that are not Flink's own, by node class or by type
  class. A custom serializer consists of two halves. `serializers.registry.register` reads and writes its snapshot as a
  custom node; `register_layout` gives the data layout of such a node, in the public layouts of this module. From then
  on scalar codec, columns, tables, `dump` and migrations know them. `register_class_layout` does the second half for
  classes that write themselves under a serializer of Flink's (`Value`, `CopyableValue`, Hadoop `Writable`).
  `codecs.json.register_json` adds a representation for `dump` where that of the value itself does not do.
* `parse_layout`: layouts as text, for serializers that the user declares: `Struct(currency: utf, cents: i64)`. layout
  := word | `List(layout)` | `Map(layout, layout)` | `Nullable(layout)` | `Sized(layout)` | `Struct(name: layout, …)` |
  `nested0`, `nested1`, … (a nested snapshot that the declaration names). The words are `WORDS`. A list and a map begin
  with an i32 count, `Nullable` with a flag byte (1 is null), `Sized` with an i32 length.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from state_pipelines.errors import UsageError
from state_pipelines.plugins import load_plugins
from state_pipelines.serializers import tree
from state_pipelines.serializers.registry import ENTRY_POINT_GROUP

if TYPE_CHECKING:
    from state_pipelines.codecs.kryo.classes import FieldLists
    from state_pipelines.codecs.messages import MessageTypes
    from state_pipelines.serializers.snapshot_classes import DeclaredSerializer


@dataclass(frozen=True)
class Layout:
    """Base class of all layouts, which describe the bytes that serializers write."""


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
        # Layouts that users register may give the kind by its name.
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
        null_flag: the flag of a null, 0 or 1; the other number marks a value.
        padding: zero bytes after the flag of a null.
        rest_is_null: bytes after a null flag up to the end of the span belong to the null (MAP state values).
    """

    inner: Layout
    null_flag: int = 1
    padding: int = 0
    rest_is_null: bool = False


@dataclass(frozen=True)
class Marked(Layout):
    """An i32 that says null or not null, then the value unless null (unions of Avro with null, Scala case classes).

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
        delimiter: the delimiter byte; None if the elements follow each other directly.
    """

    element: Layout
    delimiter: int | None = 0x2C


@dataclass(frozen=True)
class Runs(Layout):
    """A list that is stored in several arrays of bytes, each with some elements: a list state of a Python function.

    PyFlink appends the elements that a bundle has added as one `byte[]`, and Java joins the arrays by a delimiter byte.
    This package writes one array per element, which PyFlink reads as well.

    Attributes:
        element: layout of an element.
        ttl: before each array, the time of the last access of its elements is stored.
    """

    element: Layout
    ttl: bool = False

    @property
    def stored(self) -> Delimited:
        """Layout for reading: arrays with any number of elements."""
        return self._join(Delimited(self.element, delimiter=None))

    @property
    def written(self) -> Delimited:
        """Layout for writing: arrays with one element each."""
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
    """`EitherSerializer`: a flag byte (1 is left), then the left or the right value."""

    left: Layout
    right: Layout


@dataclass(frozen=True)
class Constants(Layout):
    """`EnumSerializer`: an i32 index into `names`, the constants in the order of the serializer snapshot."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class PojoVariant:
    """A subclass whose objects may occur in a field of a POJO class.

    Attributes:
        tag: registration tag; None for a non-registered subclass, which is stored by name.
        layout: layout of the data that the serializer of the subclass writes.
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
    """A value of layout `inner` that is decoded to its start and stop offset, to find the end of values without a size.

    It can only be decoded, not encoded.
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
        mask: the null bits are stored; otherwise no element is null.
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
"""Name of the only field of the structs that represent `OpaqueBytes` values."""


@dataclass(frozen=True)
class OpaqueBytes(Layout):
    """A value of layout `inner` that is not decoded: a struct whose only field, `@bytes`, holds its bytes."""

    inner: Layout


@dataclass(frozen=True)
class Dynamic(Layout):
    """Data whose shape is not fixed by the serializer (Kryo, Avro, binary rows, Java objects).

    The module `programs` compiles those whose shape follows from the schema or types of the serializer (Avro, the
    table runtime). The module `columns` converts the others, if it can, to a layout that has a fixed shape.

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

    Flink's `TypeSerializer.getLength`, which decides whether composite keys are ambiguous, follows the same rule.
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


class OpaqueValues(Enum):
    """Values that are kept as bytes (`OpaqueBytes`) instead of being decoded."""

    NONE = 0
    UNDECODABLE = 1
    """Values that no codec decodes."""
    ALL = 2
    """Values whose shape does not follow from their serializer: Kryo, Java objects, custom serializers."""


@dataclass(frozen=True)
class LayoutContext:
    """Everything but the serializer that the layout of its data depends on.

    Attributes:
        kryo_version: 2 for snapshots of Flink 1.x, 5 from 2.0 (the serializer snapshot does not store it).
        opaque_values: the values that are kept as bytes.
        subclasses: non-registered POJO subclasses by POJO class, collected from all serializers of the snapshot:
            the heap backend writes objects of such classes without listing the class in the state's own serializer.
        classes: declarations of classes that the snapshot does not describe: fields of classes that Kryo writes, and
            subclasses of POJOs.
        messages: declared messages of Protobuf and Thrift inside Kryo.
    """

    kryo_version: int = 5
    subclasses: tuple[tuple[str, tuple[tree.PojoSubclass, ...]], ...] = field(default=())
    classes: FieldLists | None = None
    messages: MessageTypes | None = None
    opaque_values: OpaqueValues = OpaqueValues.NONE


def keep_all_opaque(context: LayoutContext) -> LayoutContext:
    """Return `context` with all opaque values kept as bytes, for values that are only copied."""
    return replace(context, opaque_values=OpaqueValues.ALL)


def keep_undecodable(context: LayoutContext) -> LayoutContext:
    """Return `context` with only undecodable values kept as bytes, for values that are read."""
    return replace(context, opaque_values=OpaqueValues.UNDECODABLE)


Node = TypeVar("Node", bound=tree.Serializer)
Derive: TypeAlias = Callable[[tree.Serializer], Layout]
"""Function that returns the layout of a nested serializer."""
LayoutOf: TypeAlias = Callable[[Node, Derive], Layout]
Convert: TypeAlias = Callable[[Any], Any]
"""Function that converts a value of an old serializer to one of a new serializer."""
FindConversion: TypeAlias = Callable[[tree.Serializer, tree.Serializer], Convert]
"""Function that returns the conversion between two nested serializers."""
ConversionOf: TypeAlias = Callable[[Any, Any, FindConversion], Convert]


@dataclass(frozen=True)
class _Extension:
    layout_of: LayoutOf[Any]
    fixed_length: bool


_extensions: dict[type[tree.Serializer], _Extension] = {}
_classes: dict[str, Layout] = {}
_conversions: dict[tuple[type[tree.Serializer], type[tree.Serializer]], ConversionOf] = {}
_caches: list[Callable[[], None]] = []


def register_layout(node_class: type[Node], *, fixed_length: bool = True) -> Callable[[LayoutOf[Node]], LayoutOf[Node]]:
    """Register the data layout of a custom serializer; decorates the function that derives it from a node.

    Example::

        @register_layout(Money)
        def lay_money(node, derive):
            return Struct((("amount", Primitive(PrimitiveKind.I64)), ("currency", Text())))

    Args:
        node_class: class of the nodes: a frozen dataclass, subclass of `tree.Serializer`.
        fixed_length: False when `TypeSerializer.getLength` returns -1 although the size is constant; it matters for
            keys and namespaces (`CompositeKeySerializationUtils.isAmbiguousKeyPossible`).

    Raises:
        UsageError: the class is one of Flink's serializers, is no serializer, or has a layout already.
    """
    if not issubclass(node_class, tree.Serializer) or tree.is_built_in(node_class):
        raise UsageError(
            f"{node_class.__name__} is not the node class of a custom serializer",
            hint="Derive a frozen dataclass from state_pipelines.serializers.tree.Serializer",
        )

    def decorate(layout_of: LayoutOf[Node]) -> LayoutOf[Node]:
        if node_class in _extensions and _extensions[node_class].layout_of is not layout_of:
            raise UsageError(f"a layout of {node_class.__name__} is registered already")
        _extensions[node_class] = _Extension(layout_of, fixed_length)
        _forget()
        return layout_of

    return decorate


def register_class_layout(type_class: str, layout: Layout) -> None:
    """Register the layout of a class that writes its own bytes, or that has its own Kryo serializer.

    Args:
        type_class: its binary name, such as `com.acme.Job$Name`.
        layout: layout of the bytes that its `write` method writes (`Value`, `CopyableValue`, Hadoop `Writable`), or its
            Kryo serializer.

    Raises:
        UsageError: the class has another layout already.
    """
    if _classes.setdefault(type_class, layout) != layout:
        raise UsageError(f"a layout of {type_class} is registered already")
    _forget()


def register_conversion(
    old_class: type[tree.Serializer], new_class: type[tree.Serializer]
) -> Callable[[ConversionOf], ConversionOf]:
    """Register the conversion of values between two serializers that are *compatible after migration*.

    It decorates a function that returns the conversion. The conversion does what Flink does when it reads a value with
    the restored serializer and writes it with the new one. Without a registered conversion, values stay as they are.
    This works only if both layouts hold the same kinds of values: numbers may become wider, nested serializers may
    change as their own rules allow.

    Example::

        @register_conversion(Cents, Amount)
        def convert_cents(old, new, find):
            return lambda value: {"amount": value, "currency": new.currency}

    The function gets the old node, the new node, and a function that returns the conversion between two nested nodes.
    The conversion takes a value of the old node's layout and returns one of the new node's layout, both as the scalar
    codec represents them.

    Args:
        old_class: class of the nodes in snapshots.
        new_class: class of the nodes of the new job; may be the same.

    Raises:
        UsageError: both are serializers of Flink, or the pair has a conversion already.
    """
    if tree.is_built_in(old_class) and tree.is_built_in(new_class):
        raise UsageError(
            f"{old_class.__name__} and {new_class.__name__} are both serializers of Flink, whose conversion is fixed"
        )

    def decorate(conversion_of: ConversionOf) -> ConversionOf:
        if _conversions.setdefault((old_class, new_class), conversion_of) is not conversion_of:
            names = f"{old_class.__name__} to {new_class.__name__}"
            raise UsageError(f"a conversion from {names} is registered already")
        return conversion_of

    return decorate


def find_conversion(old: tree.Serializer, new: tree.Serializer, find: FindConversion) -> Convert | None:
    """Return the registered conversion between two serializers, or None."""
    conversion_of = _conversions.get((type(old), type(new)))
    return None if conversion_of is None else conversion_of(old, new, find)


def find_class_layout(type_class: str) -> Layout | None:
    """Return the layout registered by `register_class_layout` for a class, or None."""
    load_plugins(ENTRY_POINT_GROUP, "serializer")
    return _classes.get(type_class)


def find_layout(serializer: tree.Serializer, derive: Derive) -> Layout | None:
    """Return the registered layout of a serializer, or None."""
    if isinstance(serializer, tree.ClassBound):
        # The snapshot class of such a serializer is Flink's own, so reading the snapshot may not have loaded the
        # plug-ins. `find_class_layout` loads them.
        return find_class_layout(serializer.type_class)
    extension = _extensions.get(type(serializer))
    return None if extension is None else extension.layout_of(serializer, derive)


def has_fixed_length(serializer: tree.Serializer) -> bool:
    """Return whether `TypeSerializer.getLength` may return a fixed size. If so, the layout decides (`fixed_width`)."""
    if isinstance(serializer, tree.ClassBound):
        return serializer.kind is tree.ClassBoundKind.COPYABLE_VALUE
    extension = _extensions.get(type(serializer))
    return extension is None or extension.fixed_length


def on_registration(forget: Callable[[], None]) -> None:
    """Register a function that clears a cache of derived layouts whenever a layout is registered."""
    _caches.append(forget)


def _forget() -> None:
    for forget in _caches:
        forget()


WORDS: dict[str, Layout] = {
    **{kind.value: Primitive(kind) for kind in PrimitiveKind},
    **{kind.value: Logical(kind) for kind in LogicalKind},
    "utf": JavaText(),
    "text": Text(),
    "sized_text": Sized(text=True),
    "bytes": Sized(),
    "big_integer": BigInteger(),
    "big_decimal": BigDecimal(),
    "void": Constant(b""),
}
"""Layout of each word in the text of a layout.

Numbers have their width, `utf` is `writeUTF`, `text` Flink's `StringValue`, and `bytes` follow an i32 length.
"""

MAX_DEPTH = 32

_TOKEN = re.compile(r"\s*([\w.$]+|[(),:])")
_NESTED = re.compile(r"nested(\d{1,2})")


def check_layout(declared: DeclaredSerializer) -> None:
    """Check that the layout in a declaration can be parsed.

    Raises:
        UsageError: the layout is not valid, or names a nested serializer that the declared snapshot does not have.
    """
    known = (declared.body or ()).count("snapshot")
    if "composite" in (declared.body or ()):
        known = 1 << 7
    parse_layout(declared.layout, (Rest(),) * known)


def names_nested(text: str) -> bool:
    """Return whether the text of a layout names nested serializers."""
    return any(_NESTED.fullmatch(token) for token in _TOKEN.findall(text))


@lru_cache(maxsize=256)
def parse_layout(text: str, nested: tuple[Layout, ...] = ()) -> Layout:
    """Parse a layout that is given as text.

    Args:
        text: the text.
        nested: layouts of the nested serializers; `nested0` in the text is the first of them.

    Raises:
        UsageError: the text is not a layout; the message gives the position.
    """
    parser = _Parser(text, nested)
    layout = parser.layout()
    parser.expect("")
    return layout


class _Parser:
    def __init__(self, text: str, nested: tuple[Layout, ...]) -> None:
        self._text = text
        self._nested = nested
        self._position = 0
        self._depth = 0

    def layout(self) -> Layout:
        start, word = self._position, self._take()
        if self._depth >= MAX_DEPTH:
            raise self._error(f"layouts nest deeper than {MAX_DEPTH}", start)
        self._depth += 1
        try:
            return self._layout(word, start)
        finally:
            self._depth -= 1

    def _layout(self, word: str, start: int) -> Layout:
        match word:
            case "List":
                return Sequence(self._arguments(1)[0])
            case "Map":
                return Mapping(*self._arguments(2))
            case "Nullable":
                return Optional(self._arguments(1)[0])
            case "Sized":
                return Framed(self._arguments(1)[0])
            case "Struct":
                return self._struct()
        nested = _NESTED.fullmatch(word)
        if nested:
            if int(nested[1]) >= len(self._nested):
                raise self._error(f"{word}: the declaration names {len(self._nested)} nested snapshots", start)
            return self._nested[int(nested[1])]
        if word not in WORDS:
            words = ", ".join(WORDS)
            raise self._error(
                f"{word or 'the end'!r} is not a layout", start, f"The words are {words}, List, Map, Nullable, Struct"
            )
        return WORDS[word]

    def _arguments(self, count: int) -> list[Layout]:
        self.expect("(")
        found = [self.layout()]
        for _ in range(count - 1):
            self.expect(",")
            found.append(self.layout())
        self.expect(")")
        return found

    def _struct(self) -> Struct:
        self.expect("(")
        fields: dict[str, Layout] = {}
        while True:
            start, name = self._position, self._take()
            if not name or name in "(),:" or name in fields:
                raise self._error(f"{name or 'the end'!r} is not the name of a new field", start)
            self.expect(":")
            fields[name] = self.layout()
            start, symbol = self._position, self._take()
            if symbol == ")":
                return Struct(tuple(fields.items()))
            if symbol != ",":
                raise self._error(f"',' or ')' expected, {symbol or 'the end'!r} found", start)

    def expect(self, symbol: str) -> None:
        """Consume a symbol; the empty symbol stands for the end of the text."""
        start, found = self._position, self._take()
        if found != symbol:
            raise self._error(f"{symbol or 'the end'!r} expected, {found or 'the end'!r} found", start)

    def _take(self) -> str:
        match = _TOKEN.match(self._text, self._position)
        if match is None:
            if self._text[self._position :].strip():
                raise self._error(f"{self._text[self._position :].strip()[0]!r} is not expected", self._position)
            return ""
        self._position = match.end()
        return match[1]

    def _error(self, what: str, position: int, hint: str = "") -> UsageError:
        return UsageError(f"{what}, at character {position + 1} of the layout {self._text!r}", hint=hint)
