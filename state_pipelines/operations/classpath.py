"""Where classes are looked up: jars, directories, single class files, and declarations.

Nothing of a class is ever run.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError, Where
from state_pipelines.operations.classfile import parse_class
from state_pipelines.operations.javaclass import JavaClass, declare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from state_pipelines.codecs.kryo.fieldlists import FieldLists


@dataclass(frozen=True, eq=False)
class ClassPath:
    """Where classes are looked up; the first place that has a class wins.

    Attributes:
        finders: each gives a class by its name, or None.
        names: of the places, for messages.
    """

    finders: tuple[Callable[[str], JavaClass | None], ...] = ()
    names: tuple[str, ...] = ()
    _known: dict[str, JavaClass | None] = field(default_factory=dict)

    def find(self, name: str) -> JavaClass | None:
        """The class of a name, or None.

        Raises:
            FormatError: the class file is damaged.
        """
        if name not in self._known:
            found = (finder(name) for finder in self.finders)
            self._known[name] = next((each for each in found if each is not None), None)
        return self._known[name]


def open_class_path(paths: Iterable[str | Path], declared: FieldLists | None = None) -> ClassPath:
    """A class path of jars, directories and single `.class` files, behind the classes that a field list declares.

    Raises:
        UsageError: there is no such file, or it is none of these.
    """
    finders: list[Callable[[str], JavaClass | None]] = []
    names: list[str] = []
    if declared is not None:
        finders.append(lambda name: _find_declared(declared, name))
        names.append("the declared classes")
    for path in map(Path, paths):
        finders.append(_open_place(path))
        names.append(str(path))
    return ClassPath(tuple(finders), tuple(names))


def _find_declared(declared: FieldLists, name: str) -> JavaClass | None:
    found = declared.classes.get(name)
    return None if found is None else declare(found)


def _open_place(path: Path) -> Callable[[str], JavaClass | None]:
    if path.is_dir():

        def find_in_directory(name: str) -> JavaClass | None:
            file = path / f"{name.replace('.', '/')}.class"
            return parse_class(file.read_bytes(), str(file)) if file.is_file() else None

        return find_in_directory
    try:
        raw = path.read_bytes()
        if raw[:4] == b"\xca\xfe\xba\xbe":
            alone = parse_class(raw, str(path))
            return lambda name: alone if alone.name == name else None
        with zipfile.ZipFile(path) as jar:
            entries = set(jar.namelist())
    except OSError as error:
        raise UsageError(f"the classes cannot be read: {error.strerror}", where=Where(file=str(path))) from None
    except zipfile.BadZipFile:
        raise UsageError(
            "neither a jar, a directory of classes nor a class file", where=Where(file=str(path))
        ) from None

    def find_in_jar(name: str) -> JavaClass | None:
        entry = f"{name.replace('.', '/')}.class"
        if entry not in entries:
            return None
        with zipfile.ZipFile(path) as jar:
            return parse_class(jar.read(entry), f"{path}!{entry}")

    return find_in_jar
