"""Class paths: jars, directories of class files, single class files, and files of field lists."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol

from state_pipelines.codecs.kryo.field_lists import FieldLists, load_classes
from state_pipelines.errors import StateError, UsageError, Where
from state_pipelines.javaclasses.classfile import parse_class, read_super_classes
from state_pipelines.javaclasses.javaclass import JavaClass, declare
from state_pipelines.storage import Location, exists, is_directory, join, list_files, open_file, read_file, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
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
