"""Class paths: jars, directories and class files, and the field lists that are read from them or written.

Field lists out of class files: the fields that Kryo and the POJO serializer write, class by class. Only the requested
classes of a jar are read. Tasks of Spark get the paths and open them themselves.

Source: `com.esotericsoftware.kryo.serializers.FieldSerializer` (fields of the class and its super classes, neither
static, transient nor synthetic), `Kryo.getDefaultSerializer`.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from state_pipelines.codecs.kryo.classes import (
    COLLECTION_KINDS,
    MAX_SUPER_CLASSES,
    OBJECT_NAME,
    ClassDeclaration,
    ClassKind,
    FieldLists,
    load_classes,
)
from state_pipelines.errors import StateError, UsageError, Where
from state_pipelines.javaclasses.classfile import (
    ENUM_NAME,
    RECORD_NAME,
    JavaClass,
    declare,
    parse_class,
    read_super_classes,
)
from state_pipelines.storage import Location, exists, is_directory, join, list_files, open_file, read_file, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from os import PathLike

_DAMAGED = (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError)
"""Errors of `zipfile` about jars that are damaged or in forms that it does not read."""

MAX_JAR_CLASSES = 1 << 30
"""Bytes of all classes of a jar, which are read for the names of their super classes."""

MAX_CLASS_SIZE = 16 << 20
"""Bytes of a class file or a field list; class files of compilers have some KiB, seldom a MiB."""

MAX_JAR_SIZE = 1 << 30
"""Bytes of a jar, which is held whole."""

_CLASS_FILE, _JAR = b"\xca\xfe\xba\xbe", b"PK\x03\x04"
_SUFFIX = ".class"


class ClassPathEntry(Protocol):
    """One entry of a class path."""

    def find(self, name: str) -> JavaClass | None:
        """Return the class of a name, or None."""

    def super_classes(self) -> Iterator[tuple[str, str]]:
        """Each class with its super class, then with each of its interfaces, by name."""


@dataclass(frozen=True, eq=False)
class ClassPath:
    """Entries in which classes are looked up; the first one that has a class wins.

    Attributes:
        entries: in order.
        names: of the entries, for messages.
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
        """Whether the class path has jars, directories or class files, and not only field lists."""
        return any(not isinstance(entry, _DeclaredClasses) for entry in self.entries)

    @cached_property
    def direct_subclasses(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the classes that extend a class directly, by the name of that; reads all class files once."""
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
        paths: local paths or URLs. Field lists come before class files, in any order of the paths.
        declared: a field list that comes first.

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
        """Return the class, if it has the name."""
        return self.content if self.content.name == name else None

    def super_classes(self) -> Iterator[tuple[str, str]]:
        """Yield the name of the class with that of its super class, if any, then with those of its interfaces."""
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
        return parse_class(_read_class(file), str(file)) if exists(file) else None

    def super_classes(self) -> Iterator[tuple[str, str]]:
        for entry in list_files(self.root):
            if entry.location.name.endswith(_SUFFIX):
                yield from read_super_classes(_read_class(entry.location), str(entry.location))


def _read_class(file: Location) -> bytes:
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
                # What the directory of a jar says of its sizes need not be true.
                content = file.read(MAX_CLASS_SIZE + 1)
        except _DAMAGED as error:
            raise UsageError(f"{entry} of the jar cannot be read: {error}", where=where) from None
        if len(content) > MAX_CLASS_SIZE:
            raise UsageError(f"{entry} of the jar has more than {MAX_CLASS_SIZE >> 20} MiB", where=where)
        return content


def _split_name(name: str) -> tuple[str, ...]:
    """Return the path of a class file below the root of a class path; empty where the name is not that of a class."""
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
        paths: local paths or URLs; field lists come before class files, in any order of the paths.

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
    """Load as `_load` does, once per process: many tasks of Spark read the same snapshot."""
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
    """Field lists over a class path; pickled as its paths."""

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
