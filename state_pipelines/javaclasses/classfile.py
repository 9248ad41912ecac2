"""Java classes, and the `.class` files that they are read from: names, flags, fields, methods, types; no code.

Java classes as far as Flink's type extraction asks for them. A class comes from a `.class` file (`classfile`), or is
declared by hand in a field list (`codecs.kryo.classes`).

Reading `.class` files: names, flags, fields, methods, generic types, annotations; no code. Source: The Java Virtual
Machine Specification, chapter 4 (the class file format).
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.kryo.classes import (
    ARRAY,
    COLLECTION_KINDS,
    OBJECT,
    OBJECT_NAME,
    PRIMITIVES,
    ClassKind,
    JavaType,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from state_pipelines.codecs.kryo.classes import ClassDeclaration

ENUM_NAME = "java.lang.Enum"
RECORD_NAME = "java.lang.Record"
BOXES = {
    "boolean": "java.lang.Boolean",
    "byte": "java.lang.Byte",
    "char": "java.lang.Character",
    "short": "java.lang.Short",
    "int": "java.lang.Integer",
    "long": "java.lang.Long",
    "float": "java.lang.Float",
    "double": "java.lang.Double",
}
"""The class of the objects of each primitive type."""


@dataclass(frozen=True)
class JavaField:
    """A field that a class declares.

    Attributes:
        type: with its type arguments.
        raw: the type without them, as `erase` writes it.
        is_kept: neither static nor transient.
        is_final: it cannot be set after the constructor.
        is_synthetic: the compiler added it, such as `this$0` of inner classes; Kryo leaves it out.
        has_factory: `@TypeInfo` names a factory that makes its serializer.
    """

    name: str
    type: JavaType
    raw: str
    is_public: bool = True
    is_kept: bool = True
    is_final: bool = False
    is_synthetic: bool = False
    has_factory: bool = False


@dataclass(frozen=True)
class JavaMethod:
    """A method that a class declares; constructors are called `<init>`.

    Attributes:
        parameters: raw types.
        returns: raw type, or `void`.
        generic_parameters: with type arguments.
        generic_returns: with type arguments.
    """

    name: str
    parameters: tuple[str, ...]
    returns: str
    is_public: bool
    generic_parameters: tuple[JavaType, ...] = ()
    generic_returns: JavaType | None = None


class Nesting(Enum):
    """Declaration of a class inside of another one."""

    TOP_LEVEL = auto()
    STATIC = auto()
    INNER = auto()
    LOCAL = auto()
    ANONYMOUS = auto()


@dataclass(frozen=True)
class JavaClass:
    """A class.

    Attributes:
        name: as `Class.getName` has it.
        parent: super class with its type arguments; None of `java.lang.Object` and of interfaces.
        interfaces: names.
        parameters: type parameters.
        fields: in the order of the source.
        methods: those that the class itself declares.
        constants: of an enum, in order.
        has_factory: `@TypeInfo` names a factory that makes its serializer.
        writes_itself: `KryoSerializable` or `@DefaultSerializer` replaces Kryo's serializer of fields.
        nesting: where the class is declared.
        references: classes that the code names.
        creates: classes of which the code calls a constructor, those of super classes included.
        schema_json: schema of a class that Avro generated; empty if there is none.
    """

    name: str
    parent: JavaType | None = OBJECT
    interfaces: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    fields: tuple[JavaField, ...] = ()
    methods: tuple[JavaMethod, ...] = ()
    constants: tuple[str, ...] = ()
    is_public: bool = True
    is_final: bool = False
    is_abstract: bool = False
    is_interface: bool = False
    has_factory: bool = False
    writes_itself: bool = False
    nesting: Nesting = Nesting.TOP_LEVEL
    references: frozenset[str] = frozenset()
    creates: frozenset[str] = frozenset()
    schema_json: str = ""

    @property
    def is_enum(self) -> bool:
        """Whether it is an enum (constants with bodies have classes of their own, which are not)."""
        return self.parent is not None and self.parent.name == ENUM_NAME

    @property
    def is_record(self) -> bool:
        """Whether it is a record (`TypeExtractor.isRecord`)."""
        return self.parent is not None and self.parent.name == RECORD_NAME and self.is_final


_PARENTS = {ClassKind.ENUM: ENUM_NAME, ClassKind.ABSTRACT_ENUM: ENUM_NAME, ClassKind.RECORD: RECORD_NAME}


def declare(declaration: ClassDeclaration) -> JavaClass:
    """The class of an entry of a field list: public, with public fields and a default constructor."""
    kind = declaration.kind
    parent = _PARENTS.get(kind, OBJECT_NAME)
    return JavaClass(
        name=declaration.name,
        parent=JavaType(declaration.base or parent),
        parameters=declaration.parameters,
        fields=tuple(JavaField(name, of, erase(of, declaration.parameters)) for name, of in declaration.fields),
        methods=(JavaMethod("<init>", (), "void", is_public=True),)
        if kind in (ClassKind.CLASS, ClassKind.FINAL)
        else (),
        constants=declaration.constants,
        is_final=kind in (ClassKind.FINAL, ClassKind.RECORD),
        # Subclasses of collections have private fields and so are no POJOs.
        is_interface=kind in (ClassKind.INTERFACE, *COLLECTION_KINDS),
    )


def erase(of: JavaType, parameters: Iterable[str] = ()) -> str:
    """Return the raw type as text: `long`, `java.util.List`, `java.lang.String[]`; a type parameter becomes Object."""
    if of.name == ARRAY:
        return f"{erase(of.arguments[0], parameters)}[]"
    return OBJECT_NAME if of.name in parameters else of.name


def name_class(of: JavaType) -> str:
    """Return the name of a raw type as `Class.getName` has it: `[J`, `[Ljava.lang.String;`, `java.util.List`."""
    if of.name != ARRAY:
        return of.name
    element = of.arguments[0]
    if element.name == ARRAY:
        return f"[{name_class(element)}"
    return f"[{PRIMITIVES[element.name]}" if element.name in PRIMITIVES else f"[L{element.name};"


_MAGIC = 0xCAFEBABE
_PUBLIC, _STATIC, _FINAL, _TRANSIENT, _INTERFACE, _ABSTRACT, _ENUM = 0x1, 0x8, 0x10, 0x80, 0x200, 0x400, 0x4000
_UTF8, _CLASS, _STRING, _METHOD, _NAME_AND_TYPE = 1, 7, 8, 10, 12
# Bytes after the tag of the other constants; long and double take two entries.
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 9: 4, 11: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
_WIDE = frozenset({5, 6})
_SYNTHETIC = 0x1000
_TYPE_INFO = "Lorg/apache/flink/api/common/typeinfo/TypeInfo;"
_KRYO_DEFAULT = "Lcom/esotericsoftware/kryo/DefaultSerializer;"
_KRYO_SERIALIZABLE = "com.esotericsoftware.kryo.KryoSerializable"
_AVRO_BASE = "org.apache.avro.specific.SpecificRecordBase"
_PRIMITIVES = {
    "Z": "boolean",
    "B": "byte",
    "C": "char",
    "S": "short",
    "I": "int",
    "J": "long",
    "F": "float",
    "D": "double",
    "V": "void",
}


@dataclass(frozen=True)
class _Pool:
    """The constant pool: texts by index, the names of class and string constants, methods and their names by index."""

    texts: dict[int, str]
    references: dict[int, tuple[int, int]]
    pairs: dict[int, tuple[int, int, int]]

    def class_name(self, index: int) -> str:
        """Return the name of a class constant; empty for index 0."""
        return self.texts[self.references[index][1]].replace("/", ".") if index else ""

    def classes(self) -> Iterator[str]:
        return (self.class_name(index) for index, (tag, _) in self.references.items() if tag == _CLASS)

    def created(self) -> Iterator[str]:
        """Yield the classes of the constructors among the methods."""
        for tag, owner, name in self.pairs.values():
            if tag == _METHOD and self.texts[self.pairs[name][1]] == "<init>":
                yield self.class_name(owner)

    def strings(self) -> Iterator[str]:
        return (self.texts[text] for tag, text in self.references.values() if tag == _STRING)


@dataclass(frozen=True)
class _Member:
    flags: int
    name: str
    descriptor: str
    attributes: dict[str, Reader]


def parse_class(data: bytes, name: str | None = None) -> JavaClass:
    """Return the class in a `.class` file.

    Args:
        data: bytes of the file.
        name: of the file, for errors.

    Raises:
        FormatError: the bytes are not a class file.
    """
    with _open_class(data, name, 4) as reader:
        return _read_class(reader)


def read_super_classes(data: bytes, name: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield the class of a class file with its super class, then with each of its interfaces.

    Nothing for interfaces, modules and `java.lang.Object`.

    Only constants and the header are read, since an index of a large jar needs thousands of classes.

    Raises:
        FormatError: the bytes are not a class file.
    """
    with _open_class(data, name, 10) as reader:
        pool = _read_pool(reader)
        flags, own, parent = reader.u16(), pool.class_name(reader.u16()), pool.class_name(reader.u16())
        interfaces = [pool.class_name(reader.u16()) for _ in range(reader.u16())] if parent else []
    if parent and not flags & _INTERFACE:
        yield from ((own, above) for above in (parent, *interfaces))


@contextmanager
def _open_class(data: bytes, name: str | None, smallest: int) -> Iterator[Reader]:
    """Give a cursor after the magic number and the version of a class file, which has at least some bytes."""
    reader = Reader(data, name)
    if reader.remaining < smallest or reader.i32() & 0xFFFFFFFF != _MAGIC:
        raise reader.error("not a class file", 0)
    reader.skip(4)
    try:
        yield reader
    except (KeyError, IndexError):
        raise reader.error("the constants of the class file do not fit each other") from None


def _read_class(reader: Reader) -> JavaClass:
    pool = _read_pool(reader)
    flags, own, parent = reader.u16(), pool.class_name(reader.u16()), pool.class_name(reader.u16())
    interfaces = tuple(pool.class_name(reader.u16()) for _ in range(reader.u16()))
    fields = [_read_member(reader, pool) for _ in range(reader.u16())]
    methods = [_read_member(reader, pool) for _ in range(reader.u16())]
    attributes = _read_attributes(reader, pool)
    reader.expect_end("the class file")
    flags, nesting = _find_nesting(attributes, pool, own, flags)
    parameters: tuple[str, ...] = ()
    parent_type = JavaType(parent) if parent else None
    if "Signature" in attributes:
        signature = _Signature(pool.texts[attributes["Signature"].u16()], reader)
        parameters = signature.parameters()
        parent_type = signature.type()
    if flags & _INTERFACE:
        parent_type = None
    return JavaClass(
        name=own,
        parent=parent_type,
        interfaces=interfaces,
        parameters=parameters,
        fields=tuple(_make_field(each, pool, parameters, reader) for each in fields),
        methods=tuple(_make_method(each, pool, reader) for each in methods),
        constants=tuple(each.name for each in fields if each.flags & _ENUM) if parent == ENUM_NAME else (),
        is_public=bool(flags & _PUBLIC),
        is_final=bool(flags & _FINAL),
        is_abstract=bool(flags & _ABSTRACT),
        is_interface=bool(flags & _INTERFACE),
        has_factory=_has_annotation(attributes, pool, _TYPE_INFO),
        writes_itself=_KRYO_SERIALIZABLE in interfaces or _has_annotation(attributes, pool, _KRYO_DEFAULT),
        nesting=nesting,
        references=frozenset(pool.classes()) - {own},
        creates=frozenset(pool.created()) - {own},
        schema_json=_find_schema(pool, own) if parent == _AVRO_BASE else "",
    )


def _read_pool(reader: Reader) -> _Pool:
    texts: dict[int, str] = {}
    references: dict[int, tuple[int, int]] = {}
    pairs: dict[int, tuple[int, int, int]] = {}
    count, index = reader.u16(), 1
    while index < count:
        start, tag = reader.position, reader.u8()
        if tag == _UTF8:
            texts[index] = reader.utf()
        elif tag in (_CLASS, _STRING):
            references[index] = tag, reader.u16()
        elif tag in (_METHOD, _NAME_AND_TYPE):
            pairs[index] = tag, reader.u16(), reader.u16()
        elif tag in _SIZES:
            reader.skip(_SIZES[tag])
        else:
            raise reader.error(f"{tag} is not the tag of a constant", start)
        index += 2 if tag in _WIDE else 1
    return _Pool(texts, references, pairs)


def _read_member(reader: Reader, pool: _Pool) -> _Member:
    flags, name, descriptor = reader.u16(), pool.texts[reader.u16()], pool.texts[reader.u16()]
    return _Member(flags, name, descriptor, _read_attributes(reader, pool))


def _read_attributes(reader: Reader, pool: _Pool) -> dict[str, Reader]:
    attributes = {}
    for _ in range(reader.u16()):
        name, size, start = pool.texts[reader.u16()], reader.i32() & 0xFFFFFFFF, reader.position
        reader.skip(size)
        attributes[name] = Reader(reader.data, reader.name, start, start + size)
    return attributes


def _find_nesting(attributes: dict[str, Reader], pool: _Pool, own: str, flags: int) -> tuple[int, Nesting]:
    """Return the flags of the source, which a nested class has in a table, and how it is nested (see `JavaClass`)."""
    if "InnerClasses" not in attributes:
        return flags, Nesting.TOP_LEVEL
    table = attributes["InnerClasses"]
    for _ in range(table.u16()):
        inner, outer, name, inner_flags = table.u16(), table.u16(), table.u16(), table.u16()
        if pool.class_name(inner) == own:
            if not name:
                return inner_flags, Nesting.ANONYMOUS
            if not outer:
                return inner_flags, Nesting.LOCAL
            return inner_flags, Nesting.STATIC if inner_flags & _STATIC else Nesting.INNER
    return flags, Nesting.TOP_LEVEL


def _has_annotation(attributes: dict[str, Reader], pool: _Pool, kind: str) -> bool:
    """Return whether the attributes hold an annotation of a kind that is visible at run time."""
    # Values of annotations nest; a class that does not refer to the annotation cannot have it.
    if "RuntimeVisibleAnnotations" not in attributes or kind not in pool.texts.values():
        return False
    whole = attributes["RuntimeVisibleAnnotations"]
    table = Reader(whole.data, whole.name, whole.position, whole.end)
    return any(_read_annotation(table, pool) == kind for _ in range(table.u16()))


def _read_annotation(table: Reader, pool: _Pool) -> str:
    kind = pool.texts[table.u16()]
    for _ in range(table.u16()):
        table.skip(2)
        _skip_value(table, pool)
    return kind


def _skip_value(table: Reader, pool: _Pool) -> None:
    match chr(table.u8()):
        case "e":
            table.skip(4)
        case "@":
            _read_annotation(table, pool)
        case "[":
            for _ in range(table.u16()):
                _skip_value(table, pool)
        case _:
            table.skip(2)


def _find_schema(pool: _Pool, own: str) -> str:
    """Return the schema that the initializer of a class of Avro parses: a string constant (long ones are split)."""
    for text in pool.strings():
        if text.startswith("{"):
            try:
                schema = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(schema, dict) and schema.get("name") == own.rpartition(".")[2].rpartition("$")[2]:
                return text
    return ""


def _make_field(member: _Member, pool: _Pool, parameters: tuple[str, ...], reader: Reader) -> JavaField:
    raw = _Signature(member.descriptor, reader).type()
    generic = raw
    if "Signature" in member.attributes:
        generic = _Signature(pool.texts[member.attributes["Signature"].u16()], reader).type()
    return JavaField(
        name=member.name,
        type=generic,
        raw=erase(raw),
        is_public=bool(member.flags & _PUBLIC),
        is_kept=not member.flags & (_STATIC | _TRANSIENT),
        is_final=bool(member.flags & _FINAL),
        is_synthetic=bool(member.flags & _SYNTHETIC),
        has_factory=_has_annotation(member.attributes, pool, _TYPE_INFO),
    )


def _make_method(member: _Member, pool: _Pool, reader: Reader) -> JavaMethod:
    raw, returns = _Signature(member.descriptor, reader).method()
    generic, generic_returns = raw, returns
    if "Signature" in member.attributes:
        generic, generic_returns = _Signature(pool.texts[member.attributes["Signature"].u16()], reader).method()
    return JavaMethod(
        name=member.name,
        parameters=tuple(map(erase, raw)),
        returns=erase(returns),
        is_public=bool(member.flags & _PUBLIC),
        generic_parameters=generic,
        generic_returns=generic_returns,
    )


class _Signature:
    """A cursor over a descriptor or a signature (4.3 and 4.7.9.1 of the specification)."""

    def __init__(self, text: str, reader: Reader) -> None:
        self.text = text
        self.position = 0
        self.reader = reader

    def next(self) -> str:
        self.position += 1
        return self.text[self.position - 1]

    def sees(self, symbol: str) -> bool:
        return self.text.startswith(symbol, self.position)

    def until(self, symbols: str) -> str:
        start = self.position
        while self.text[self.position] not in symbols:
            self.position += 1
        return self.text[start : self.position]

    def parameters(self) -> tuple[str, ...]:
        names: list[str] = []
        if not self.sees("<"):
            return ()
        self.next()
        while not self.sees(">"):
            names.append(self.until(":"))
            while self.sees(":"):
                self.next()
                if not self.sees(":"):
                    self.type()
        self.next()
        return tuple(names)

    def method(self) -> tuple[tuple[JavaType, ...], JavaType]:
        self.parameters()
        if self.next() != "(":
            raise self.reader.error(f"{self.text!r} is not the type of a method")
        parameters = []
        while not self.sees(")"):
            parameters.append(self.type())
        self.next()
        return tuple(parameters), self.type()

    def type(self) -> JavaType:
        symbol = self.next()
        if symbol in _PRIMITIVES:
            return JavaType(_PRIMITIVES[symbol])
        if symbol == "[":
            return JavaType(ARRAY, (self.type(),))
        if symbol == "T":
            name = self.until(";")
            self.next()
            return JavaType(name)
        if symbol == "L":
            return self.class_type()
        raise self.reader.error(f"{self.text!r} is not a type")

    def class_type(self) -> JavaType:
        name = self.until("<;").replace("/", ".")
        arguments: tuple[JavaType, ...] = ()
        while True:
            if self.sees("<"):
                arguments = self.arguments()
            if self.next() == ";":
                return JavaType(name, arguments)
            # A dot: a class inside a class with type arguments.
            name = f"{name}${self.until('<;.')}"

    def arguments(self) -> tuple[JavaType, ...]:
        self.next()
        found = []
        while not self.sees(">"):
            found.append(self.argument())
        self.next()
        return tuple(found)

    def argument(self) -> JavaType:
        if self.sees("*"):
            self.next()
            return JavaType(OBJECT_NAME, wildcard=True)
        if self.sees("+") or self.sees("-"):
            bound, of = self.next(), self.type()
            return JavaType(of.name, of.arguments, wildcard=True) if bound == "+" else JavaType(OBJECT_NAME, (), True)
        return self.type()
