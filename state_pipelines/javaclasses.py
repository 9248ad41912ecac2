"""Java classes as far as Flink's type extraction asks for them: class files, class paths, field lists; no code is run.

* `JavaClass`: names, flags, fields, methods, generic types and annotations of a class. It comes from a `.class` file,
  or is declared by hand in a field list (`codecs.kryo.classes`).
* `parse_class`: reads a `.class` file. Source: The Java Virtual Machine Specification, chapter 4 (the class file
  format).
* `ClassPath`, `open_class_path`: jars, directories and class files, and the field lists that are read from them. Only
  the requested classes of a jar are read. Tasks of Spark get the paths and open them themselves.
* `load_field_lists`, `list_fields`, `ClassFieldLists`: field lists from class files: the fields that Kryo and the POJO
  serializer write, class by class. Source: `com.esotericsoftware.kryo.serializers.FieldSerializer` (fields of the class
  and its super classes, neither static, transient nor synthetic), `Kryo.getDefaultSerializer`.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property, lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from state_pipelines.binary.data_views import Reader
from state_pipelines.codecs.kryo.classes import (
    ARRAY,
    COLLECTION_KINDS,
    MAX_SUPER_CLASSES,
    OBJECT,
    OBJECT_NAME,
    PRIMITIVES,
    ClassDeclaration,
    ClassKind,
    FieldLists,
    JavaType,
    load_classes,
)
from state_pipelines.errors import StateError, UsageError, Where
from state_pipelines.storage import Location, exists, is_directory, join, list_files, open_file, read_file, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from os import PathLike

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
        type: type of the field, with its type arguments.
        raw: type of the field without type arguments, as `erase` writes it.
        is_kept: whether it is neither static nor transient, so that serializers write it.
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
        parameters: raw types of the parameters.
        returns: raw type of the result, or `void`.
        generic_parameters: types of the parameters, with type arguments.
        generic_returns: type of the result, with type arguments.
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
    """A Java class, as its class file or a field list describes it.

    Attributes:
        name: name of the class, as `Class.getName` has it.
        parent: super class with its type arguments; None for `java.lang.Object` and interfaces.
        interfaces: names of the interfaces.
        parameters: type parameters.
        fields: the declared fields, in the order of the source.
        methods: the methods that the class itself declares.
        constants: constants of an enum, in order.
        has_factory: `@TypeInfo` names a factory that makes its serializer.
        writes_itself: `KryoSerializable` or `@DefaultSerializer` replaces Kryo's serializer of fields.
        nesting: where the class is declared.
        references: classes that the code names.
        creates: classes of which the code calls a constructor, including the constructors of super classes.
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
        """Return whether the class is an enum; the class of an enum constant with a body is not."""
        return self.parent is not None and self.parent.name == ENUM_NAME

    @property
    def is_record(self) -> bool:
        """Return whether the class is a record (`TypeExtractor.isRecord`)."""
        return self.parent is not None and self.parent.name == RECORD_NAME and self.is_final


_PARENTS = {ClassKind.ENUM: ENUM_NAME, ClassKind.ABSTRACT_ENUM: ENUM_NAME, ClassKind.RECORD: RECORD_NAME}


def declare(declaration: ClassDeclaration) -> JavaClass:
    """Make a class from an entry of a field list: public, with public fields and a default constructor."""
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
        # Subclasses of collections inherit private fields, so they are no POJOs. They count as interfaces here, which
        # are no POJOs either.
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
# Bytes after the tag of constants that are skipped, by tag; long and double (`_WIDE`) take two entries of the pool.
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
    """The constant pool of a class file, by index in the pool.

    Attributes:
        texts: UTF-8 constants.
        references: class and string constants: tag, and index of the text.
        pairs: methods: tag, and indexes of the class and of name and type; names and types: tag, and indexes of texts.
    """

    texts: dict[int, str]
    references: dict[int, tuple[int, int]]
    pairs: dict[int, tuple[int, int, int]]

    def class_name(self, index: int) -> str:
        """Return the name of a class constant; empty for index 0."""
        return self.texts[self.references[index][1]].replace("/", ".") if index else ""

    def classes(self) -> Iterator[str]:
        return (self.class_name(index) for index, (tag, _) in self.references.items() if tag == _CLASS)

    def created(self) -> Iterator[str]:
        """Yield the classes of which the class file calls a constructor, from its method constants."""
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
        name: name of the file, for errors.

    Raises:
        FormatError: the bytes are not a class file.
    """
    with _open_class(data, name, 4) as reader:
        return _read_class(reader)


def read_super_classes(data: bytes, name: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield pairs of names: the class with its super class, then the class with each of its interfaces.

    Interfaces, modules and `java.lang.Object` yield nothing.

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
    """Open a cursor after the magic number and the version of a class file of at least `smallest` bytes."""
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
    """Return the flags of a class as in its source, and its nesting; `InnerClasses` has both for a nested class."""
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
    # Most classes do not have the annotation in their constant pool, and need no search through nested values.
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
    """Return the schema of a class that Avro generated; empty if it is several string constants, as long ones are."""
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
    """A cursor over a descriptor or a signature (4.3 and 4.7.9.1 of the JVM specification)."""

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
            # After a dot comes the name of a class inside a class with type arguments.
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


_DAMAGED = (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError)
"""Errors of `zipfile` about jars that are damaged or in forms that it does not read."""

MAX_JAR_CLASSES = 1 << 30
"""Maximum bytes of all classes of a jar, which are read for the names of their super classes."""

MAX_CLASS_SIZE = 16 << 20
"""Maximum bytes of a class file or a field list; class files of compilers have some KiB, seldom a MiB."""

MAX_JAR_SIZE = 1 << 30
"""Maximum bytes of a jar, which is held in memory as a whole."""

_CLASS_FILE, _JAR = b"\xca\xfe\xba\xbe", b"PK\x03\x04"
_SUFFIX = ".class"


class ClassPathEntry(Protocol):
    """An entry of a class path: a jar, a directory, or given classes."""

    def find(self, name: str) -> JavaClass | None:
        """Return the class with a name; None if there is none."""

    def super_classes(self) -> Iterator[tuple[str, str]]:
        """Yield pairs of names: each class with its super class, then the class with each of its interfaces."""


@dataclass(frozen=True, eq=False)
class ClassPath:
    """Entries in which classes are looked up; the first one that has a class wins.

    Attributes:
        entries: the entries, in order.
        names: names of the entries, for messages.
        declared: the field lists among them.
    """

    entries: tuple[ClassPathEntry, ...] = ()
    names: tuple[str, ...] = ()
    declared: FieldLists = field(default_factory=FieldLists)
    _known: dict[str, JavaClass | None] = field(default_factory=dict)

    def find(self, name: str) -> JavaClass | None:
        """Return the class of a name, or None.

        Raises:
            FormatError: the class file is damaged.
        """
        if name not in self._known:
            found = (entry.find(name) for entry in self.entries)
            self._known[name] = next((each for each in found if each is not None), None)
        return self._known[name]

    @property
    def has_class_files(self) -> bool:
        """Return whether the class path has jars, directories or class files, and not only field lists."""
        return any(not isinstance(entry, _DeclaredClasses) for entry in self.entries)

    @cached_property
    def direct_subclasses(self) -> Mapping[str, tuple[str, ...]]:
        """Names of direct subclasses, by the name of their super class; reads all class files once."""
        parents: dict[str, str] = {}
        for entry in self.entries:
            for name, parent in entry.super_classes():
                parents.setdefault(name, parent)
        children = defaultdict(list)
        for name in sorted(parents):
            children[parents[name]].append(name)
        return {name: tuple(each) for name, each in children.items()}


def open_class_path(paths: Iterable[str | PathLike[str]], declared: FieldLists | None = None) -> ClassPath:
    """Return a class path of jars, directories, class files and field lists.

    Args:
        paths: local paths or URLs. Field lists override class files, whatever the order of the paths.
        declared: a field list that overrides all paths.

    Raises:
        MissingFileError: a file does not exist.
        UsageError: a file has none of these formats.
    """
    names = [str(path) for path in paths]
    opened = [(name, _open(name)) for name in names]
    lists = [] if declared is None else [declared]
    lists += [each for _, each in opened if isinstance(each, FieldLists)]
    together = FieldLists({name: each for some in reversed(lists) for name, each in some.classes.items()})
    entries: list[ClassPathEntry] = [_DeclaredClasses(together)] if lists else []
    entries += [each for _, each in opened if not isinstance(each, FieldLists)]
    return ClassPath(tuple(entries), tuple(names), together)


def _open(path: str) -> ClassPathEntry | FieldLists:
    where = Where(file=path)
    location = resolve(path)
    if is_directory(location):
        return _Directory(location)
    with open_file(location) as file:
        most = MAX_JAR_SIZE if file.read(len(_JAR)) == _JAR else MAX_CLASS_SIZE
    raw = read_file(location, most=most)
    if raw.startswith(_CLASS_FILE):
        return GivenClass(parse_class(raw, path))
    if raw.startswith(_JAR):
        return _Jar.open(raw, path)
    try:
        return load_classes(raw.decode())
    except UnicodeDecodeError:
        problem = "neither a jar, a directory of classes, a class file nor a file of field lists"
        raise UsageError(problem, where=where) from None
    except StateError as error:
        raise UsageError(error.what, where=where, hint=error.hint) from None


@dataclass(frozen=True, eq=False)
class _DeclaredClasses:
    lists: FieldLists

    def find(self, name: str) -> JavaClass | None:
        found = self.lists.classes.get(name)
        return None if found is None else declare(found)

    def super_classes(self) -> Iterator[tuple[str, str]]:
        return ((each.name, each.base) for each in self.lists.classes.values() if each.base)


@dataclass(frozen=True, eq=False)
class GivenClass:
    """A single class, such as that of a class file."""

    content: JavaClass

    def find(self, name: str) -> JavaClass | None:
        """Return the class if it has this name, else None."""
        return self.content if self.content.name == name else None

    def super_classes(self) -> Iterator[tuple[str, str]]:
        """Yield pairs of names: the class with its super class, if any, then the class with each of its interfaces."""
        if self.content.parent is not None:
            yield from ((self.content.name, above) for above in (self.content.parent.name, *self.content.interfaces))


@dataclass(frozen=True, eq=False)
class _Directory:
    root: Location

    def find(self, name: str) -> JavaClass | None:
        names = _split_name(name)
        if not names:
            return None
        file = join(self.root, *names)
        return parse_class(_read_class_file(file), str(file)) if exists(file) else None

    def super_classes(self) -> Iterator[tuple[str, str]]:
        for entry in list_files(self.root):
            if entry.location.name.endswith(_SUFFIX):
                yield from read_super_classes(_read_class_file(entry.location), str(entry.location))


def _read_class_file(file: Location) -> bytes:
    return read_file(file, most=MAX_CLASS_SIZE)


@dataclass(frozen=True, eq=False)
class _Jar:
    archive: zipfile.ZipFile
    path: str
    entries: frozenset[str]

    @classmethod
    def open(cls, raw: bytes, path: str) -> _Jar:
        try:
            archive = zipfile.ZipFile(io.BytesIO(raw))
        except _DAMAGED as error:
            raise UsageError(f"the jar is damaged: {error}", where=Where(file=path)) from None
        return cls(archive, path, frozenset(archive.namelist()))

    def find(self, name: str) -> JavaClass | None:
        entry = "/".join(_split_name(name))
        return parse_class(self._read(entry), f"{self.path}!{entry}") if entry in self.entries else None

    def super_classes(self) -> Iterator[tuple[str, str]]:
        size = 0
        for entry in sorted(self.entries):
            # Classes for newer JVMs (`META-INF/versions`) repeat those of the jar itself.
            if entry.endswith(_SUFFIX) and not entry.startswith("META-INF/"):
                content = self._read(entry)
                size += len(content)
                if size > MAX_JAR_CLASSES:
                    what = f"the classes of the jar have more than {MAX_JAR_CLASSES >> 20} MiB"
                    raise UsageError(what, where=Where(file=self.path))
                yield from read_super_classes(content, f"{self.path}!{entry}")

    def _read(self, entry: str) -> bytes:
        where = Where(file=self.path)
        try:
            with self.archive.open(entry) as file:
                # Sizes in the directory of a jar may be wrong.
                content = file.read(MAX_CLASS_SIZE + 1)
        except _DAMAGED as error:
            raise UsageError(f"{entry} of the jar cannot be read: {error}", where=where) from None
        if len(content) > MAX_CLASS_SIZE:
            raise UsageError(f"{entry} of the jar has more than {MAX_CLASS_SIZE >> 20} MiB", where=where)
        return content


def _split_name(name: str) -> tuple[str, ...]:
    """Return the path of a class file below the root of a class path; empty if `name` is no class name."""
    path = PurePosixPath(f"{name.replace('.', '/')}{_SUFFIX}")
    return () if path.is_absolute() or ".." in path.parts or "//" in str(path) else path.parts


_JDK, _UTIL = ("java.", "javax.", "jdk."), "java.util."
_ROOTS = frozenset({OBJECT_NAME, ENUM_NAME, RECORD_NAME})
_COLLECTIONS = {
    **dict.fromkeys(("Collection", "List", "Queue", "Deque", "AbstractCollection", "AbstractList"), ClassKind.LIST),
    **dict.fromkeys(("AbstractQueue", "ArrayList", "LinkedList", "ArrayDeque", "Vector", "Stack"), ClassKind.LIST),
    **dict.fromkeys(("Set", "AbstractSet", "HashSet", "LinkedHashSet"), ClassKind.SET),
    **dict.fromkeys(("Map", "AbstractMap", "HashMap", "LinkedHashMap"), ClassKind.MAP),
}
"""Classes of `java.util` whose subclasses Kryo writes as collections, by the kind of a field list."""


def load_field_lists(paths: Iterable[str | PathLike[str]]) -> FieldLists:
    """Return the classes of jars, directories, class files and files of field lists.

    Args:
        paths: local paths or URLs; field lists override class files, whatever the order of the paths.

    Raises:
        MissingFileError: a file does not exist.
        UsageError: a file has none of these formats.
    """
    return _load(tuple(str(path) for path in paths))


def list_fields(opened: ClassPath) -> FieldLists:
    """Return the classes of a class path as field lists."""
    return ClassFieldLists(ClassDeclarations(opened)) if opened.has_class_files else opened.declared


def _load(paths: tuple[str, ...]) -> FieldLists:
    return list_fields(open_class_path(paths))


@lru_cache(maxsize=16)
def _load_once(paths: tuple[str, ...]) -> FieldLists:
    """Load the field lists of paths, once per process: many tasks of Spark read the same snapshot."""
    return _load(paths)


@dataclass(frozen=True, eq=False)
class ClassDeclarations(Mapping[str, ClassDeclaration]):
    """The classes of a class path as entries of a field list, made on demand.

    Attributes:
        opened: the class path.
    """

    opened: ClassPath

    def __getitem__(self, name: str) -> ClassDeclaration:
        found = self.opened.declared.classes.get(name) or self._describe(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({name for entry in self.opened.entries for name, _ in entry.super_classes()}))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _describe(self, name: str) -> ClassDeclaration | None:
        found = None if name.startswith((*_JDK, "scala.")) else self.opened.find(name)
        return None if found is None else describe_class(found, self.opened)


@dataclass(frozen=True, eq=False)
class ClassFieldLists(FieldLists):
    """Field lists made from a class path; pickled as the paths in it."""

    def __reduce__(self) -> tuple[object, ...]:
        return _load_once, (self._declarations.opened.names,)

    @property
    def class_path(self) -> ClassPath:
        """The class path."""
        return self._declarations.opened

    @property
    def _declarations(self) -> ClassDeclarations:
        assert isinstance(self.classes, ClassDeclarations)
        return self.classes

    @override
    def find(self, name: str) -> ClassDeclaration | None:
        return None if self.explain(name) else super().find(name)

    @override
    def explain(self, name: str) -> str:
        if name not in self._reasons:
            self._reasons[name] = self._find_reason(name)
        return self._reasons[name]

    @cached_property
    def _reasons(self) -> dict[str, str]:
        return {}

    def _find_reason(self, name: str) -> str:
        """Explain why the class files do not determine the Kryo layout of a class; empty if they do."""
        declared = self.classes.get(name)
        if declared is None or name in self._declarations.opened.declared.classes:
            return ""
        line = [declared]
        while (base := line[-1].base) and line[0].kind not in COLLECTION_KINDS:
            above = self.classes.get(base)
            if above is None:
                return f"its super class {base} is not among the given classes"
            if above.parameters:
                return f"its super class {base} has type parameters"
            if len(line) > MAX_SUPER_CLASSES:
                return f"it has more than {MAX_SUPER_CLASSES} super classes"
            if above in line:
                return f"its super class {base} extends itself"
            line.append(above)
        for each in line:
            found = self._declarations.opened.find(each.name)
            if found is not None and found.writes_itself:
                return f"{each.name} names a Kryo serializer of its own"
        return ""

    @override
    def list_subclasses(self, name: str) -> tuple[str, ...]:
        children = self._declarations.opened.direct_subclasses
        found: set[str] = set()
        pending = [name]
        while pending:
            direct = set(children.get(pending.pop(), ())) - found
            found |= direct
            pending += direct
        return tuple(sorted(found - {name}))


def describe_class(found: JavaClass, classes: ClassPath) -> ClassDeclaration:
    """Return the entry of a field list for a class; `classes` has its super classes."""
    parent = "" if found.parent is None or found.parent.name in _ROOTS else found.parent.name
    kept = ((each.name, each.type) for each in found.fields if each.is_kept and not each.is_synthetic)
    return ClassDeclaration(
        name=found.name,
        kind=_find_kind(found, classes),
        parameters=found.parameters,
        fields=() if found.is_enum else tuple(sorted(kept, key=lambda item: item[0])),
        constants=found.constants,
        base=parent,
    )


def _find_kind(found: JavaClass, classes: ClassPath) -> ClassKind:
    if found.is_enum:
        return ClassKind.ENUM if found.is_final else ClassKind.ABSTRACT_ENUM
    if found.is_record:
        return ClassKind.RECORD
    collection = _find_collection(found, classes)
    if collection is not None:
        return collection
    if found.is_interface or found.is_abstract:
        return ClassKind.INTERFACE
    return ClassKind.FINAL if found.is_final else ClassKind.CLASS


def _find_collection(found: JavaClass, classes: ClassPath) -> ClassKind | None:
    """Return the kind of collection as which Kryo writes a class; None for other classes."""
    pending, seen = [found], set()
    while pending:
        current = pending.pop()
        seen.add(current.name)
        names = [*current.interfaces, *([current.parent.name] if current.parent is not None else [])]
        for name in names:
            if name.startswith(_UTIL) and name.removeprefix(_UTIL) in _COLLECTIONS:
                return _COLLECTIONS[name.removeprefix(_UTIL)]
            above = None if name in seen or name.startswith(_JDK) else classes.find(name)
            if above is not None:
                pending.append(above)
    return None
