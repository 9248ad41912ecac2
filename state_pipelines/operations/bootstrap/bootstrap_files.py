"""Descriptions of a bootstrap in YAML: operators, their states, and the Parquet files with the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from state_pipelines.errors import UsageError, Where, at
from state_pipelines.operations.bootstrap.new_states import NewOperator, NewState
from state_pipelines.operations.bootstrap.parquet_rows import ParquetFiles
from state_pipelines.operations.write.new_layouts import make_layouts
from state_pipelines.storage import join, parent, read_file, resolve
from state_pipelines.storage.documents import MOST_TEXT, parse_yaml
from state_pipelines.storage.locations import is_local
from state_pipelines.storage.resolution import normalize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from state_pipelines.codecs.kryo import FieldLists
    from state_pipelines.codecs.layout import LayoutContext
    from state_pipelines.snapshot import Snapshot

_DESCRIPTION = {"operators": list, "classes": list, "flink_version": str}
_OPERATOR = {"uid": str, "states": list, "key": str, "parallelism": int, "max_parallelism": int, "hashes": dict}
_STATE = {
    "name": str,
    "rows": str,
    "kind": str,
    "type": str,
    "key_type": str,
    "namespace": str,
    "ttl": bool,
    "columns": dict,
}


@dataclass(frozen=True)
class BootstrapDescription:
    """Operators of a new savepoint, and what the layouts of their states depend on.

    Attributes:
        operators: with their states.
        classes: jars, directories, class files and field lists of the classes that Kryo writes.
        flink_version: release that starts from the savepoint, such as 1.20.
    """

    operators: list[NewOperator]
    classes: tuple[str, ...] = ()
    flink_version: str | None = None

    def make_layouts(
        self,
        base: Snapshot | None = None,
        classes: FieldLists | Sequence[str] | None = None,
        flink_version: str | None = None,
    ) -> LayoutContext:
        """Return what the layouts of the new states depend on (`make_layouts`).

        Args:
            base: snapshot that all other state is taken from.
            classes: fields of classes, or their paths, where the description names none.
            flink_version: release that starts from the savepoint.

        Raises:
            UsageError: the description names another release, or the base is of another line.
            MissingFileError: a file does not exist.
        """
        if None not in (self.flink_version, flink_version) and self.flink_version != flink_version:
            raise UsageError(
                f"flink_version of the description is {self.flink_version}, and {flink_version} is asked for",
                hint="Leave one of them out",
            )
        return make_layouts(self.classes or classes or None, self.flink_version or flink_version, base)


def load_bootstrap(path: str) -> BootstrapDescription:
    """Read a description; relative paths of Parquet files and classes are relative to it.

    Raises:
        UsageError: it is no YAML, has an unknown word, or lacks one.
    """
    with at(file=path):
        try:
            content = parse_yaml(read_file(resolve(path), most=MOST_TEXT))
        except yaml.YAMLError as error:
            raise UsageError(f"the file is no YAML: {' '.join(str(error).split())}") from None
        _check(content, _DESCRIPTION, ("operators",), "the description")
        classes = content.get("classes", [])
        if not all(isinstance(each, str) for each in classes):
            raise UsageError(
                f"classes of the description are {classes!r:.80}, not a list of paths", hint="Such as [classes.yaml]"
            )
        return BootstrapDescription(
            [_read_operator(each, path) for each in content["operators"]],
            tuple(_find_path(each, path) for each in classes),
            content.get("flink_version"),
        )


def _read_operator(content: Any, path: str) -> NewOperator:
    _check(content, _OPERATOR, ("uid", "states"), "an operator")
    with at(operator=content["uid"]):
        for name, expression in content.get("hashes", {}).items():
            if not isinstance(name, str) or not isinstance(expression, str):
                raise UsageError(f"the hash of {name} is {expression!r:.80}, not text", hint="Such as objects(a, b)")
        given = {name: value for name, value in content.items() if name != "states"}
        return NewOperator(states=[_read_state(each, path) for each in content["states"]], **given)


def _read_state(content: Any, path: str) -> NewState:
    _check(content, _STATE, ("name", "rows"), "a state")
    with at(state=content["name"]):
        for name, given in content.get("columns", {}).items():
            paths = given.values() if isinstance(given, dict) else given if isinstance(given, list) else [given]
            if not isinstance(name, str) or not all(isinstance(each, str) for each in paths):
                raise UsageError(f"the column {name} is {given!r}, not a name, a list of names or names by field")
        return NewState(**(content | {"rows": ParquetFiles(_find_path(content["rows"], path))}))


def _find_path(given: str, path: str) -> str:
    """The path or URL of a file; relative ones are relative to the directory of the description."""
    if given.startswith("/") or "://" in normalize(given):
        return given
    found = join(parent(resolve(path)), given)
    return found.path if is_local(found) else found.url


def _check(content: Any, known: Mapping[str, type], needed: tuple[str, ...], what: str) -> None:
    """Refuse what is not a mapping of known words to values of their types."""
    if not isinstance(content, dict):
        raise UsageError(f"{what} is {content!r:.80}, not a mapping of {', '.join(known)}")
    where = Where(operator=str(content["uid"])) if "uid" in content else Where()
    for name, value in content.items():
        if name not in known:
            raise UsageError(f"{what} has no {name!r}", where=where, hint=f"It has {', '.join(known)}")
        if not isinstance(value, known[name]) or (known[name] is int and isinstance(value, bool)):
            raise UsageError(f"{name} of {what} is {value!r:.80}, not of type {known[name].__name__}", where=where)
    for name in needed:
        if not content.get(name):
            raise UsageError(f"{what} lacks {name!r}", where=where)
