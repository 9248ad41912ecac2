"""Classes of Kryo: primitive encodings, field lists, and registrations that need no declaration.

* `read_varlong` to `write_string`: Kryo's primitive encodings: varints, zig-zag numbers, strings, fixed-width numbers
  of either byte order. Source: `com.esotericsoftware.kryo.io.Input` and `Output`, of Kryo 2.24 (Flink 1.x) and Kryo 5
  (Flink 2.x).
* `FieldLists`, `load_classes`, `dump_classes`: field lists, the declarations of the classes whose fields Kryo does not
  store.
* `first_ids`, `Shape`, `known_classes`: the registrations and built-in field lists of a release line. Source:
  `com.esotericsoftware.kryo.Kryo`, `com.twitter.chill.java`, `FlinkChillPackageRegistrar` of Flink 1.x and its
  successor in `flink-core` 2.x.

Kryo's `FieldSerializer` writes the values of the fields sorted by name, without names, and without the class of a value
whose declared type is final. A field list gives both, in the syntax of Java source, as YAML:

    shop.Order:                         # class, in full as `Class.getName` has it (nested ones with `$`)
      - id: long
      - lines: List<shop.Line>
      - price: BigDecimal
      - status: shop.Status(OPEN, DONE) # an enum with its constants, in their order
    final shop.Line:                    # `final` as in the source: its values have no class before them
      - sku: String
      - sizes: int[]
    record shop.Point: [x: int, y: int]
    enum shop.Color: [RED, GREEN]
    abstract enum shop.Shape: [A, B]    # constants with bodies
    interface shop.Rule:                # an interface or abstract class that fields name
    list shop.Names:                    # subclasses of collections are declared by their elements: list, set or map
    shop.Box<T>: [content: T]
    shop.Gift extends shop.Order: [card: String]    # also a subclass of a POJO that a snapshot does not list

Fields may have any order. Fields of super classes belong into the list too, after the own ones where names repeat,
unless `extends` names a class that is itself declared (or, for a POJO, one that the snapshot describes).
Static and transient fields are left out. Well-known classes of the JDK need no package (`String`, `List`, `Instant`).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum, auto
from functools import cache, cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

from state_pipelines.binary.data_views import join_surrogates, split_units
from state_pipelines.codecs.java import CollectionKind
from state_pipelines.errors import UsageError, ValueRangeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from state_pipelines.binary.data_views import Reader, Writer

Version: TypeAlias = Literal[2, 5]
"""Release line of Kryo: 2 (2.24, up to Flink 1.20) or 5 (from Flink 2.0)."""

_SHORT_ASCII = {2: 63, 5: 32}
"""Longest string that is written as plain ASCII with a mark on its last byte."""
_FIXED = {kind: (struct.Struct(">" + kind), struct.Struct("<" + kind)) for kind in "hHiqfdQ"}
_LONG = 1 << 64


def read_varlong(reader: Reader) -> int:
    """Read unsigned 64 bits in at most nine bytes: eight groups of 7 bits, low group first, then a whole byte."""
    value = 0
    for shift in range(0, 56, 7):
        byte = reader.u8()
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
    return value | reader.u8() << 56


def write_varlong(writer: Writer, value: int) -> None:
    """Write a number as `read_varlong` reads it; a negative number is written as its two's complement."""
    value &= _LONG - 1
    for _ in range(8):
        if value < 0x80:
            break
        writer.u8(value & 0x7F | 0x80)
        value >>= 7
    writer.u8(value)


def read_positive_long(reader: Reader) -> int:
    """Read a signed 64-bit number whose encoding favours positive ones (`readLong(true)`)."""
    return signed(read_varlong(reader), 64)


def read_positive_int(reader: Reader) -> int:
    """Read a signed 32-bit number whose encoding favours positive ones (`readInt(true)`)."""
    return signed(reader.varint(), 32)


def write_positive_int(writer: Writer, value: int) -> None:
    """Write a number as `read_positive_int` reads it."""
    _check(value, 32)
    writer.varint(value & 0xFFFFFFFF)


def read_int(reader: Reader) -> int:
    """Read a signed 32-bit number as a zig-zag varint."""
    return _unzigzag(reader.varint())


def write_int(writer: Writer, value: int) -> None:
    """Write a number as `read_int` reads it."""
    _check(value, 32)
    writer.varint((value << 1 ^ value >> 31) & 0xFFFFFFFF)


def read_long(reader: Reader) -> int:
    """Read a signed 64-bit number as a zig-zag varint."""
    return _unzigzag(read_varlong(reader))


def write_long(writer: Writer, value: int) -> None:
    """Write a number as `read_long` reads it."""
    _check(value, 64)
    write_varlong(writer, value << 1 ^ value >> 63)


def write_positive_long(writer: Writer, value: int) -> None:
    """Write a number as `read_positive_long` reads it."""
    _check(value, 64)
    write_varlong(writer, value)


def read_fixed(reader: Reader, kind: str, version: Version) -> int | float:
    """Read a fixed-width number (`struct` code): big-endian in Kryo 2, little-endian in Kryo 5."""
    layout = _FIXED[kind][version == 5]
    value: int | float = layout.unpack(reader.take(layout.size))[0]
    return value


def write_fixed(writer: Writer, kind: str, value: object, version: Version) -> None:
    """Write a number as `read_fixed` reads it."""
    layout = _FIXED[kind][version == 5]
    try:
        writer.take(layout.pack(value))
    except (struct.error, OverflowError):
        raise ValueRangeError(f"{value!r} does not fit in {layout.size} bytes") from None


def read_flagged(reader: Reader) -> tuple[bool, int]:
    """Read a flag in bit 7, then an unsigned number: 6 bits and a mark for more, then a varint (`readVarIntFlag`)."""
    first = reader.u8()
    value = first & 0x3F
    if first & 0x40:
        value |= reader.varint() << 6
    return first > 0x7F, value & 0xFFFFFFFF


def write_flagged(writer: Writer, flag: bool, value: int) -> None:
    """Write a flag and a number as `read_flagged` reads them."""
    first = value & 0x3F | flag << 7
    if value > 0x3F:
        writer.u8(first | 0x40)
        writer.varint(value >> 6)
    else:
        writer.u8(first)


def read_string(reader: Reader) -> str | None:
    """Read a string or null: a marked length and UTF-16 units of 1 to 3 bytes, or ASCII with a marked last byte."""
    start = reader.position
    if reader.peek() < 0x80:
        end = start
        while end < reader.end and reader.data[end] < 0x80:
            end += 1
        raw = reader.take(end + 1 - start)
        return raw[:-1].decode("ascii") + chr(raw[-1] & 0x7F)
    _, size = read_flagged(reader)
    if size == 0:
        return None
    if size - 1 > reader.remaining:
        raise reader.error(f"a string of {size - 1} characters does not fit in {reader.remaining} bytes", start)
    return _read_units(reader, size - 1)


def _read_units(reader: Reader, size: int) -> str:
    head = bytes(reader.data[reader.position : reader.position + size])
    if head.isascii():
        reader.skip(size)
        return head.decode("ascii")
    units = []
    for _ in range(size):
        start = reader.position
        first = reader.u8()
        if first < 0x80:
            unit = first
        elif first >> 5 == 0b110:
            unit = (first & 0x1F) << 6 | reader.u8() & 0x3F
        elif first >> 4 == 0b1110:
            unit = (first & 0x0F) << 12 | (reader.u8() & 0x3F) << 6 | reader.u8() & 0x3F
        else:
            raise reader.error(f"{first:#04x} does not begin a character of a Kryo string", start)
        units.append(chr(unit))
    return join_surrogates("".join(units))


def write_string(
    writer: Writer, text: str | None, version: Version, *, short: bool = True, any_length: bool = False
) -> None:
    """Write a string as `read_string` reads it.

    Args:
        writer: the target.
        text: the string.
        version: the release of Kryo.
        short: write short ASCII texts without a length, with the high bit set in their last byte.
        any_length: with `short`, write long ASCII texts so, too.
    """
    if text is None:
        writer.u8(0x80)
        return
    if short and len(text) > 1 and (any_length or len(text) <= _SHORT_ASCII[version]) and text.isascii():
        writer.take(text[:-1].encode("ascii"))
        writer.u8(ord(text[-1]) | 0x80)
        return
    units = split_units(text)
    write_flagged(writer, True, len(units) + 1)
    split = "".join(map(chr, units))
    writer.take(split.encode("utf-8", "surrogatepass"))


def signed(value: int, bits: int) -> int:
    """Return an unsigned number of `bits` bits read as two's complement."""
    return value - (1 << bits) if value >> (bits - 1) else value


def _unzigzag(value: int) -> int:
    return value >> 1 ^ -(value & 1)


def _check(value: int, bits: int) -> None:
    sign = value >> (bits - 1)
    if sign not in (0, -1):
        raise ValueRangeError(f"{value!r} does not fit in {bits} bits")


_SHORT_NAMES = {
    "java.lang": "Object String Integer Long Short Byte Character Boolean Float Double Number CharSequence Comparable "
    "Iterable Class Enum Void StringBuilder StringBuffer Throwable Exception Cloneable Record",
    "java.util": "List Map Set Collection Queue Deque SortedSet SortedMap NavigableMap NavigableSet ArrayList "
    "LinkedList HashMap LinkedHashMap TreeMap HashSet LinkedHashSet TreeSet ArrayDeque PriorityQueue Vector Stack "
    "Hashtable EnumSet EnumMap BitSet UUID Date Locale Currency Optional OptionalInt OptionalLong OptionalDouble "
    "Calendar TimeZone Comparator Iterator",
    "java.math": "BigDecimal BigInteger RoundingMode",
    "java.time": "LocalDate LocalTime LocalDateTime Instant Duration Period ZonedDateTime OffsetDateTime OffsetTime "
    "Year YearMonth MonthDay ZoneId ZoneOffset DayOfWeek Month",
    "java.io": "Serializable",
    "java.net": "URI URL InetSocketAddress",
}
_FULL_NAMES = {name: f"{package}.{name}" for package, names in _SHORT_NAMES.items() for name in names.split()}
_FULL_NAMES["Map.Entry"] = _FULL_NAMES["Entry"] = "java.util.Map$Entry"
PRIMITIVES = {
    "boolean": "Z",
    "byte": "B",
    "char": "C",
    "short": "S",
    "int": "I",
    "long": "J",
    "float": "F",
    "double": "D",
}
"""Primitive types and their letters in the names of array classes."""


class ClassKind(StrEnum):
    """Kind of a declared class, as written before its name in a field list."""

    ABSTRACT_ENUM = "abstract enum"
    """An enum whose constants have bodies."""
    CLASS = "class"
    FINAL = "final"
    RECORD = "record"
    ENUM = "enum"
    INTERFACE = "interface"
    """An interface or an abstract class."""
    LIST = "list"
    SET = "set"
    MAP = "map"


FIELD_KINDS = (ClassKind.CLASS, ClassKind.FINAL, ClassKind.RECORD)
"""Classes that Kryo writes field by field."""

FINAL_KINDS = (ClassKind.FINAL, ClassKind.RECORD, ClassKind.ENUM)
"""Kinds of final classes: the class of a value is not stored if the declared type is one of them."""

COLLECTION_KINDS = (ClassKind.LIST, ClassKind.SET, ClassKind.MAP)
"""Kinds of declared subclasses of collections."""

_ENUMS = (ClassKind.ENUM, ClassKind.ABSTRACT_ENUM)
# Longer kinds first, since a shorter kind may be their prefix.
_KINDS = {
    "abstract enum": ClassKind.ABSTRACT_ENUM,
    "final class": ClassKind.FINAL,
    **{str(each): each for each in ClassKind},
}
_TOKEN = re.compile(r"\s*([\w.$]+|\[\s*\]|[<>,?()])")
ARRAY = "[]"
OBJECT_NAME = "java.lang.Object"


MAX_TYPE_DEPTH = 64
"""Maximum nesting depth of type arguments and arrays."""

MAX_SUPER_CLASSES = 256
"""Maximum number of super classes of a class."""


@dataclass(frozen=True)
class JavaType:
    """Declared Java type of a field, such as `List<String>`.

    Attributes:
        name: a primitive, a full class name, a type parameter, or `[]` for an array of its only argument.
        arguments: type arguments.
        wildcard: a type argument of the form `? extends X`.
    """

    name: str
    arguments: tuple[JavaType, ...] = ()
    wildcard: bool = False


OBJECT = JavaType(OBJECT_NAME)


@dataclass(frozen=True)
class ClassDeclaration:
    """The declaration of one class in a field list.

    Attributes:
        name: full class name.
        kind: kind of the class.
        parameters: type parameters.
        base: the class after `extends`; empty if not declared.
        fields: name and declared type, sorted by name as Kryo writes them.
        constants: constants of an enum, in their order.
    """

    name: str
    kind: ClassKind = ClassKind.CLASS
    parameters: tuple[str, ...] = ()
    fields: tuple[tuple[str, JavaType], ...] = ()
    constants: tuple[str, ...] = ()
    base: str = ""


@dataclass(frozen=True, eq=False)
class FieldLists:
    """Declared classes by name; compared by identity, so that lookups can be cached."""

    classes: Mapping[str, ClassDeclaration] = field(default_factory=dict)

    def find(self, name: str) -> ClassDeclaration | None:
        """Return the declaration of a class, with the fields of its declared super classes; or None."""
        if name not in self._complete:
            declared = self.classes.get(name)
            self._complete[name] = None if declared is None else self._inherit(declared)
        return self._complete[name]

    def explain(self, name: str) -> str:
        """Return the reason why `find` has no declaration of a class; empty if no reason is known."""
        return ""

    def list_subclasses(self, name: str) -> tuple[str, ...]:
        """Return the names of the declared classes that extend a class, directly or not, sorted."""
        return tuple(each for each in sorted(self.classes) if name in self._list_bases(each))

    def _list_bases(self, name: str) -> Iterator[str]:
        declared = self.classes.get(name)
        while declared is not None and declared.base:
            yield declared.base
            declared = self.classes.get(declared.base)

    @cached_property
    def _complete(self) -> dict[str, ClassDeclaration | None]:
        return {}

    def _inherit(self, declared: ClassDeclaration) -> ClassDeclaration:
        fields, line = list(declared.fields), [declared.name]
        above = self.classes.get(declared.base)
        while above is not None:
            if above.name in line:
                raise UsageError(f"class {declared.name} extends itself: {', '.join((*line, above.name))}")
            if len(line) > MAX_SUPER_CLASSES:
                raise UsageError(f"class {declared.name} has more than {MAX_SUPER_CLASSES} super classes")
            if above.parameters:
                raise UsageError(
                    f"class {declared.name} extends {above.name}, which has type parameters",
                    hint="List the inherited fields with their types, and leave out `extends`",
                )
            line.append(above.name)
            fields += above.fields
            above = self.classes.get(above.base)
        # The sort is stable: of fields with the same name, that of the subclass stays first.
        return replace(declared, fields=tuple(sorted(fields, key=lambda item: item[0])))


def load_classes(text: str) -> FieldLists:
    """Parse a YAML file of field lists (the docstring of the module describes its format).

    Raises:
        UsageError: not such a file; names the class and the field.
    """
    import yaml  # a large package; few give field lists

    from state_pipelines.storage.documents import parse_yaml

    try:
        # Every scalar stays text: a field may be called `on` or `null`.
        document = parse_yaml(text, as_texts=True)
    except yaml.YAMLError as error:
        raise UsageError(f"the field lists are not YAML: {error}") from None
    if not isinstance(document, dict):
        raise UsageError("the field lists are not a mapping of class names", hint="Write `class.Name:` and its fields")
    inline: dict[str, ClassDeclaration] = {}
    classes = [_declaration(str(key), body, inline) for key, body in document.items()]
    lists = FieldLists({**inline, **{declared.name: declared for declared in classes}})
    for declared in classes:
        lists.find(declared.name)
    return lists


def dump_classes(lists: FieldLists) -> str:
    """Return the YAML text of field lists, which `load_classes` reads."""
    document: dict[str, list[str] | list[dict[str, str]]] = {}
    for declared in lists.classes.values():
        parameters = f"<{', '.join(declared.parameters)}>" if declared.parameters else ""
        prefix = "" if declared.kind is ClassKind.CLASS else f"{declared.kind} "
        body: list[str] | list[dict[str, str]] = list(declared.constants)
        if not declared.constants:
            body = [{name: format_type(of)} for name, of in declared.fields]
        base = f" extends {declared.base}" if declared.base else ""
        document[f"{prefix}{declared.name}{parameters}{base}"] = body
    import yaml

    return yaml.safe_dump(document, sort_keys=False, width=120)


def format_type(declared: JavaType) -> str:
    """Return a type as Java source spells it, with full class names."""
    if declared.name == ARRAY:
        return f"{format_type(declared.arguments[0])}[]"
    arguments = f"<{', '.join(map(format_type, declared.arguments))}>" if declared.arguments else ""
    return f"{'? extends ' if declared.wildcard else ''}{declared.name}{arguments}"


def _declaration(key: str, body: object, inline: dict[str, ClassDeclaration]) -> ClassDeclaration:
    word = next((word for word in _KINDS if key.startswith(f"{word} ")), "class")
    head, kind = key.removeprefix(f"{word} ").strip(), _KINDS[word]
    named = re.fullmatch(r"([\w.$]+)\s*(?:<([\w\s,]+)>)?(?:\s+extends\s+([\w.$]+))?", head)
    if named is None:
        raise UsageError(f"{key!r} is not a class name", hint=f"Kinds before a name are: {', '.join(_KINDS)}")
    name = _FULL_NAMES.get(named[1], named[1])
    parameters = tuple(each.strip() for each in named[2].split(",")) if named[2] else ()
    if kind in _ENUMS:
        constants = _split(body)
        if not constants:
            raise UsageError(f"enum {name} has no constants", hint="List them in the order of the source")
        return ClassDeclaration(name, kind, constants=constants)
    fields = [
        (member, _parse_type(declared, f"{name}.{member}", parameters, inline))
        for member, declared in _members(name, body)
    ]
    base = _FULL_NAMES.get(named[3] or "", named[3] or "")
    return ClassDeclaration(name, kind, parameters, tuple(sorted(fields, key=lambda item: item[0])), base=base)


def _split(body: object) -> tuple[str, ...]:
    names: Iterable[object] = body if isinstance(body, list) else str(body or "").strip("()").split(",")
    return tuple(str(name).strip() for name in names if str(name).strip())


def _members(name: str, body: object) -> list[tuple[str, str]]:
    """Return the fields from a list of `name: type` (as text or one-entry mappings) or from a mapping."""
    if isinstance(body, dict):
        return [(str(key), str(value)) for key, value in body.items()]
    if body in (None, ""):
        return []
    members: list[tuple[str, str]] = []
    for item in body if isinstance(body, list) else [body]:
        if isinstance(item, dict):
            members += [(str(key), str(value)) for key, value in item.items()]
            continue
        member, colon, declared = str(item).partition(":")
        if not colon:
            raise UsageError(f"{item!r} in class {name} is not a field", hint="Write `name: type`")
        members.append((member.strip(), declared.strip()))
    return members


def parse_type(text: str) -> JavaType:
    """Parse a type that is written as in Java source.

    Raises:
        UsageError: not a type.
    """
    return _parse_type(text, text, (), {})


def _parse_type(text: str, where: str, parameters: tuple[str, ...], inline: dict[str, ClassDeclaration]) -> JavaType:
    tokens = _TOKEN.findall(text)
    complete = "".join(re.sub(r"\s", "", token) for token in tokens) == re.sub(r"\s", "", text)
    parser = _TypeParser(tokens, parameters, inline)
    try:
        declared = parser.type()
    except IndexError:
        complete = False
    if not complete or parser.tokens:
        raise UsageError(f"{text!r} of {where} is not a Java type", hint="Such as int, String, List<String>, long[]")
    return declared


class _TypeParser:
    def __init__(self, tokens: list[str], parameters: tuple[str, ...], inline: dict[str, ClassDeclaration]) -> None:
        self.tokens = tokens
        self.parameters = parameters
        self.inline = inline
        self.depth = 0

    def type(self) -> JavaType:
        self.depth += 1
        declared = self._type()
        self.depth -= 1
        return declared

    def _enter(self, depth: int) -> None:
        if depth > MAX_TYPE_DEPTH:
            raise UsageError(f"a Java type nests deeper than {MAX_TYPE_DEPTH}")

    def _type(self) -> JavaType:
        self._enter(self.depth)
        name = self.tokens.pop(0)
        if name == "?":
            return self._wildcard()
        if not re.fullmatch(r"[\w.$]+", name):
            raise IndexError
        if name not in self.parameters:
            name = _FULL_NAMES.get(name, name)
        if self._next("("):
            self.inline[name] = ClassDeclaration(name, ClassKind.ENUM, constants=tuple(self._list(")")))
        arguments = tuple(self._types()) if self._next("<") else ()
        declared = JavaType(name, arguments)
        arrays = 0
        while self.tokens and self.tokens[0].startswith("["):
            self.tokens.pop(0)
            arrays += 1
            self._enter(self.depth + arrays)
            declared = JavaType(ARRAY, (declared,))
        return declared

    def _wildcard(self) -> JavaType:
        if self.tokens[0] not in ("extends", "super"):
            return JavaType(OBJECT_NAME, wildcard=True)
        bound, of = self.tokens.pop(0), self.type()
        if bound == "super":
            return JavaType(OBJECT_NAME, wildcard=True)
        return JavaType(of.name, of.arguments, wildcard=True)

    def _next(self, token: str) -> bool:
        if self.tokens and self.tokens[0] == token:
            self.tokens.pop(0)
            return True
        return False

    def _types(self) -> Iterable[JavaType]:
        yield self.type()
        while self._next(","):
            yield self.type()
        if not self._next(">"):
            raise IndexError

    def _list(self, end: str) -> Iterable[str]:
        while not self._next(end):
            token = self.tokens.pop(0)
            if token != ",":
                yield token


FIRST_IDS = (
    "java.lang.Integer",
    "java.lang.String",
    "java.lang.Float",
    "java.lang.Boolean",
    "java.lang.Byte",
    "java.lang.Character",
    "java.lang.Short",
    "java.lang.Long",
    "java.lang.Double",
    "java.lang.Void",
)
"""Classes of the ids 0 to 9; a primitive type shares the id of its wrapper. Kryo 5 does not register the last one."""

FLINK_BASE = 73
FLINK_IDS = (
    "java.util.Arrays$ArrayList",
    "java.util.BitSet",
    "java.util.PriorityQueue",
    "java.util.regex.Pattern",
    "java.sql.Date",
    "java.sql.Time",
    "java.sql.Timestamp",
    "java.net.URI",
    "java.net.InetSocketAddress",
    "java.util.UUID",
    "java.util.Locale",
    "java.text.SimpleDateFormat",
)
"""Classes of the ids 73 to 84, which Flink's streaming runtime registers."""

USER_BASE = FLINK_BASE + len(FLINK_IDS)


def first_ids(version: Version) -> tuple[str, ...]:
    """Return the classes that Kryo registers itself, in the order of their ids.

    Flink's own registrations follow, then those of the user. Without Flink's streaming runtime (tests of flink-core),
    the user's registrations follow directly.
    """
    return FIRST_IDS if version == 2 else FIRST_IDS[:-1]


WRAPPERS = {
    "java.lang.Boolean": "boolean",
    "java.lang.Byte": "byte",
    "java.lang.Character": "char",
    "java.lang.Short": "short",
    "java.lang.Integer": "int",
    "java.lang.Long": "long",
    "java.lang.Float": "float",
    "java.lang.Double": "double",
}


class CollectionVariant(Enum):
    """Layout of the elements of a collection class."""

    PLAIN = auto()
    SORTED = auto()
    """A comparator is stored next to the size."""
    IMMUTABLE = auto()
    """The elements are never null."""
    SINGLE = auto()
    EMPTY = auto()
    ENUMS = auto()
    """`EnumSet`: enum class, then ordinals."""
    ARRAY = auto()
    """`Arrays.asList`: Kryo 2 stores the element class, too."""


@dataclass(frozen=True)
class Shape:
    """Way in which Kryo writes a collection class.

    Attributes:
        kind: list, set or map.
        variant: layout of the elements.
    """

    kind: CollectionKind
    variant: CollectionVariant = CollectionVariant.PLAIN


_LISTS = (
    "ArrayList LinkedList Vector Stack ArrayDeque ArrayList$SubList AbstractList$SubList "
    "AbstractList$RandomAccessSubList Collections$UnmodifiableList Collections$UnmodifiableRandomAccessList "
    "Collections$UnmodifiableCollection Collections$SynchronizedList Collections$SynchronizedRandomAccessList "
    "Collections$SynchronizedCollection "
    "Collections$CopiesList concurrent.CopyOnWriteArrayList concurrent.ConcurrentLinkedQueue "
    "concurrent.ConcurrentLinkedDeque concurrent.LinkedBlockingQueue concurrent.LinkedBlockingDeque "
    "concurrent.ArrayBlockingQueue"
)
_SETS = (
    "HashSet LinkedHashSet Collections$UnmodifiableSet Collections$SynchronizedSet concurrent.CopyOnWriteArraySet "
    "concurrent.ConcurrentSkipListSet concurrent.ConcurrentHashMap$KeySetView Collections$SetFromMap"
)
_MAPS = (
    "HashMap LinkedHashMap Hashtable Properties IdentityHashMap WeakHashMap EnumMap concurrent.ConcurrentHashMap "
    "Collections$UnmodifiableMap Collections$SynchronizedMap"
)
SHAPES: dict[str, Shape] = {
    **{f"java.util.{name}": Shape(CollectionKind.LIST) for name in _LISTS.split()},
    **{f"java.util.{name}": Shape(CollectionKind.SET) for name in _SETS.split()},
    **{f"java.util.{name}": Shape(CollectionKind.MAP) for name in _MAPS.split()},
    **{
        f"java.util.ImmutableCollections${name}": Shape(CollectionKind.LIST, CollectionVariant.IMMUTABLE)
        for name in ("List12", "ListN", "SubList")
    },
    **{
        f"java.util.ImmutableCollections${name}": Shape(CollectionKind.SET, CollectionVariant.IMMUTABLE)
        for name in ("Set12", "SetN")
    },
    **{
        f"java.util.ImmutableCollections${name}": Shape(CollectionKind.MAP, CollectionVariant.IMMUTABLE)
        for name in ("Map1", "MapN")
    },
    "java.util.Collections$EmptyList": Shape(CollectionKind.LIST, CollectionVariant.EMPTY),
    "java.util.Collections$EmptySet": Shape(CollectionKind.SET, CollectionVariant.EMPTY),
    "java.util.Collections$EmptyMap": Shape(CollectionKind.MAP, CollectionVariant.EMPTY),
    "java.util.Collections$SingletonList": Shape(CollectionKind.LIST, CollectionVariant.SINGLE),
    "java.util.Collections$SingletonSet": Shape(CollectionKind.SET, CollectionVariant.SINGLE),
    "java.util.Collections$SingletonMap": Shape(CollectionKind.MAP, CollectionVariant.SINGLE),
    "java.util.PriorityQueue": Shape(CollectionKind.LIST, CollectionVariant.SORTED),
    "java.util.TreeSet": Shape(CollectionKind.SET, CollectionVariant.SORTED),
    "java.util.TreeMap": Shape(CollectionKind.MAP, CollectionVariant.SORTED),
    "java.util.RegularEnumSet": Shape(CollectionKind.SET, CollectionVariant.ENUMS),
    "java.util.JumboEnumSet": Shape(CollectionKind.SET, CollectionVariant.ENUMS),
    "java.util.Arrays$ArrayList": Shape(CollectionKind.LIST, CollectionVariant.ARRAY),
}

_FINAL_TIMES = (
    "LocalDate LocalTime LocalDateTime Instant Duration Period ZonedDateTime OffsetDateTime OffsetTime Year YearMonth "
    "MonthDay ZoneOffset"
)
_FINAL_UTILITIES = "UUID Locale Currency Optional OptionalInt OptionalLong OptionalDouble regex.Pattern"
FINAL_CLASSES = frozenset(
    {"java.lang.String", "java.lang.Void", "java.lang.StringBuilder", "java.lang.StringBuffer", "java.lang.Class"}
    | WRAPPERS.keys()
    | {f"java.time.{name}" for name in _FINAL_TIMES.split()}
    | {f"java.util.{name}" for name in _FINAL_UTILITIES.split()}
    | {"java.net.URI", "java.net.URL"}
)
"""Final classes of the JDK: a field of such a type stores no class before its value."""

_BOTH = """
java.lang.Object: []
java.util.AbstractMap$SimpleEntry<K, V>: [key: K, value: V]
java.util.AbstractMap$SimpleImmutableEntry<K, V>: [key: K, value: V]
final java.util.KeyValueHolder<K, V>: [key: K, value: V]
java.util.concurrent.atomic.AtomicReference<V>: [value: V]
java.util.concurrent.atomic.AtomicIntegerArray: [array: "int[]"]
java.util.concurrent.atomic.AtomicLongArray: [array: "long[]"]
java.util.Collections$ReverseComparator: []
java.util.Collections$ReverseComparator2<T>: [cmp: java.util.Comparator]
java.lang.String$CaseInsensitiveComparator: []
enum java.util.Comparators$NaturalOrderComparator: [INSTANCE]
enum java.time.DayOfWeek: [MONDAY, TUESDAY, WEDNESDAY, THURSDAY, FRIDAY, SATURDAY, SUNDAY]
enum java.time.Month: [JANUARY, FEBRUARY, MARCH, APRIL, MAY, JUNE, JULY, AUGUST, SEPTEMBER, OCTOBER, NOVEMBER, DECEMBER]
enum java.util.concurrent.TimeUnit: [NANOSECONDS, MICROSECONDS, MILLISECONDS, SECONDS, MINUTES, HOURS, DAYS]
enum java.math.RoundingMode: [UP, DOWN, CEILING, FLOOR, HALF_UP, HALF_DOWN, HALF_EVEN, UNNECESSARY]
enum java.time.temporal.ChronoUnit: [NANOS, MICROS, MILLIS, SECONDS, MINUTES, HOURS, HALF_DAYS, DAYS, WEEKS, MONTHS,
  YEARS, DECADES, CENTURIES, MILLENNIA, ERAS, FOREVER]
enum org.apache.flink.types.RowKind: [INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE]
org.apache.flink.types.Row:
  - fieldByName: Map<String, Object>
  - fieldByPosition: Object[]
  - kind: org.apache.flink.types.RowKind
  - positionByName: LinkedHashMap<String, Integer>
interface org.apache.avro.Schema:
org.apache.avro.generic.GenericData$Record: [schema: org.apache.avro.Schema, values: "Object[]"]
final org.apache.flink.streaming.connectors.kafka.internals.KafkaTopicPartition:
  [topic: String, partition: int, cachedHash: int]
org.apache.rocketmq.common.message.MessageQueue: [topic: String, brokerName: String, queueId: int]
org.apache.flink.streaming.connectors.kinesis.model.SequenceNumber:
  [sequenceNumber: String, subSequenceNumber: long, cachedHash: int]
"""
_KRYO_2 = """
final java.time.LocalDateTime: [date: LocalDate, time: LocalTime]
final java.time.OffsetDateTime: [dateTime: LocalDateTime, offset: ZoneOffset]
final java.time.OffsetTime: [time: LocalTime, offset: ZoneOffset]
final java.time.ZonedDateTime: [dateTime: LocalDateTime, offset: ZoneOffset, zone: ZoneId]
final java.time.ZoneRegion: [id: String]
final java.util.Optional<T>: [value: T]
"""
# Kryo 5 writes the value of an Optional with its class, regardless of the declared type.
_KRYO_5 = """
final java.util.Optional: [value: Object]
"""


@cache
def known_classes(version: Version) -> FieldLists:
    """Return the built-in field lists, for one release line of Kryo."""
    tuples = "\n".join(
        f"org.apache.flink.api.java.tuple.Tuple{arity}{_parameters(arity)}: "
        f"[{', '.join(f'f{i}: T{i}' for i in range(arity))}]"
        for arity in range(26)
    )
    return load_classes(_BOTH + (_KRYO_2 if version == 2 else _KRYO_5) + tuples)


def _parameters(arity: int) -> str:
    return f"<{', '.join(f'T{i}' for i in range(arity))}>" if arity else ""
