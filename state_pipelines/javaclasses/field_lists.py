"""Field lists out of class files: the fields that Kryo and the POJO serializer write, class by class.

Only the requested classes of a jar are read. Tasks of Spark get the paths and open them themselves.

Source: `com.esotericsoftware.kryo.serializers.FieldSerializer` (fields of the class and its super classes, neither
static, transient nor synthetic), `Kryo.getDefaultSerializer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from typing_extensions import override

from state_pipelines.codecs.kryo.field_lists import (
    COLLECTION_KINDS,
    MAX_SUPER_CLASSES,
    OBJECT_NAME,
    ClassDeclaration,
    ClassKind,
    FieldLists,
)
from state_pipelines.javaclasses.classpath import ClassPath, open_class_path
from state_pipelines.javaclasses.javaclass import ENUM_NAME, RECORD_NAME, JavaClass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from os import PathLike

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
