"""Documents of users: YAML and JSON with limits and positions, and Python files that define one variable."""

from __future__ import annotations

import re
import runpy
import sys
from typing import TYPE_CHECKING, Any

import yaml
from fsspec.implementations.local import LocalFileSystem

from state_pipelines.binary.data_views import join_surrogates
from state_pipelines.errors import StateError, UsageError, Where
from state_pipelines.storage.files import read_file
from state_pipelines.storage.locations import Location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

MAX_DEPTH = 64
"""Maximum nesting depth of mappings and lists."""

MOST_BYTES = 8 << 20
"""Maximum bytes or characters of a document; the parser takes seconds for that many."""

MOST_REPEATED = 100_000
"""Maximum number of values that the aliases of a document repeat."""

_MOST_DIGITS = 1000
# From this number on, different integers can have the same hash. Many keys with one hash would take quadratic time in a
# dict.
_FIRST_LARGE_KEY = sys.hash_info.modulus
_LONG_KEY = 60
# Keys with these tags (`<<` and `=`) are instructions for the loader, not values.
_INSTRUCTIONS = ("tag:yaml.org,2002:merge", "tag:yaml.org,2002:value")
_IMPOSSIBLE = re.compile("[\0\ud800-\udfff]")


class RepeatedKeyError(yaml.YAMLError):
    """Error for a YAML mapping that has the same key twice; PyYAML would silently take the last value.

    Attributes:
        lines: numbers of the two lines that have the key.
    """

    def __init__(self, key: str, first: int, second: int) -> None:
        super().__init__(f"the key {_shorten(key)} is there twice, in lines {first} and {second}")
        self.lines = (first, second)


class _Bounded:
    """Mixin for loaders of PyYAML that limits the depth of nesting and the number of values that aliases repeat.

    It also checks each mapping for repeated keys, before keys of merged mappings (`<<`) are added. An alias counts as
    deep as the node that it names; that node must not contain the alias.
    """

    _depth = 0
    _deepest = 0
    _values = 0
    _repeated = 0
    allows_repeated_keys = False

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[attr-defined]
        # Depth of the node that each anchor names; 0 until the node is complete.
        heights: dict[str | None, int] = self.__dict__.setdefault("_heights", {})
        # Number of values in the node that each anchor names, including values that aliases repeat.
        sizes: dict[str | None, int] = self.__dict__.setdefault("_sizes", {})
        height = 1
        before = self._values
        self._values += 1
        if isinstance(event, yaml.AliasEvent):
            height = heights.get(event.anchor, 1)
            if height == 0:
                raise yaml.YAMLError(f"the alias *{event.anchor} refers to a value that contains it")
            self._values += sizes.get(event.anchor, 0)
            self._repeated += sizes.get(event.anchor, 0)
            if self._repeated > MOST_REPEATED:
                raise yaml.YAMLError(f"aliases repeat more than {MOST_REPEATED:,} values")
        elif event.anchor is not None:
            heights[event.anchor] = 0
        if self._depth + height > MAX_DEPTH:
            raise yaml.YAMLError(f"mappings and lists nest deeper than {MAX_DEPTH}")
        around, self._deepest = self._deepest, self._depth + height
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)  # type: ignore[misc]
        if isinstance(node, yaml.ScalarNode) and _IMPOSSIBLE.search(node.value):
            # JSON can escape a character beyond U+FFFF as two surrogates.
            node.value = join_surrogates(node.value)
            if _IMPOSSIBLE.search(node.value):
                raise yaml.YAMLError(f"a text contains a NUL or surrogate character: {node.value!a}")
        self._depth -= 1
        if event.anchor is not None and not isinstance(event, yaml.AliasEvent):
            heights[event.anchor] = self._deepest - self._depth
            sizes[event.anchor] = self._values - before
        self._deepest = max(around, self._deepest)
        if isinstance(node, yaml.MappingNode) and not isinstance(event, yaml.AliasEvent):
            self._check_keys(node)
        return node

    def _check_keys(self, node: yaml.MappingNode) -> None:
        lines: dict[object, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                # Keys that are lists or mappings are not checked here: the loaders themselves raise an error for them.
                continue
            value = self._construct_key(key)
            if isinstance(value, int) and abs(value) >= _FIRST_LARGE_KEY:
                raise yaml.YAMLError(f"line {key.start_mark.line + 1}: a key is a number of more than 18 digits")
            line = key.start_mark.line + 1
            if value in lines and not self.allows_repeated_keys:
                raise RepeatedKeyError(key.value, lines[value], line)
            lines[value] = line

    def _construct_key(self, key: yaml.ScalarNode) -> object:
        return key.value


class _SafeLoader(_Bounded, yaml.SafeLoader):
    """Loader that converts scalars to YAML's own types."""

    def _construct_key(self, key: yaml.ScalarNode) -> object:
        return key.value if key.tag in _INSTRUCTIONS else self.construct_object(key)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Return an integer; YAMLError if it has more digits than Python can write."""
        if len(node.value) > _MOST_DIGITS:
            raise yaml.YAMLError(f"a number has {len(node.value):,} digits, more than {_MOST_DIGITS:,}")
        return int(super().construct_yaml_int(node))


_SafeLoader.add_constructor("tag:yaml.org,2002:int", _SafeLoader.construct_yaml_int)


class _TextLoader(_Bounded, yaml.BaseLoader):
    """Loader that leaves all scalars as texts."""


class _RepeatingLoader(_SafeLoader):
    """Loader that converts scalars to YAML's own types, and keeps the last value of a repeated key."""

    allows_repeated_keys = True


class _NodeLoader(_SafeLoader):
    """Loader that returns nodes, which have line numbers, instead of values."""

    def get_single_data(self) -> yaml.Node | None:
        """Return the root node of the document."""
        node: yaml.Node | None = self.get_single_node()
        return node


def parse_yaml(text: str | bytes, *, as_texts: bool = False, allow_repeated_keys: bool = False) -> Any:
    """Return the content of a YAML document.

    Args:
        text: the document.
        as_texts: keep scalars as texts, so that `no` is not a boolean and `1.10` not a number.
        allow_repeated_keys: take the last value of a repeated key; only for files of programs that do so too.

    Raises:
        RepeatedKeyError: a mapping has a key twice.
        yaml.YAMLError: the document has more than `MOST_BYTES`, is not YAML, nests deeper than `MAX_DEPTH`, has an
            alias inside the node that the alias names, more than `MOST_REPEATED` values repeated by aliases, a number
            of more than 18 digits as a key, or a value that does not fit its tag, such as a date that does not exist.
    """
    return _load(text, _TextLoader if as_texts else _RepeatingLoader if allow_repeated_keys else _SafeLoader)


def find_entry_lines(text: str | bytes, name: str) -> list[int]:
    """Return the line number of each entry of the list under a top-level key; none if there is no such list.

    Raises:
        yaml.YAMLError: see `parse_yaml`.
    """
    node = compose_yaml(text)
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value == name and isinstance(value, yaml.SequenceNode):
            return [each.start_mark.line + 1 for each in value.value]
    return []


def find_equal_names(names: Iterable[str], unify: Callable[[str], str]) -> tuple[str, str] | None:
    """Return two different names with the same meaning, such as `min-age` and `min_age`; None if there are none.

    Args:
        names: the names.
        unify: returns the same spelling for all names that mean the same.
    """
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(unify(name), name)
        if other != name:
            return other, name
    return None


def _shorten(text: str) -> str:
    return repr(text if len(text) <= _LONG_KEY else f"{text[:_LONG_KEY]}…")


def _load(text: str | bytes, loader: type[_SafeLoader | _TextLoader]) -> Any:
    if len(text) > MOST_BYTES:
        raise yaml.YAMLError(f"the document has {len(text):,} bytes, more than {MOST_BYTES:,}")
    try:
        return yaml.load(text, Loader=loader)
    except (ValueError, OverflowError) as error:
        raise yaml.YAMLError(str(error)) from None
    except (AttributeError, LookupError, TypeError) as error:
        # `SafeConstructor` does not check tagged values: `!!bool x` raises a KeyError, `!!int ""` an IndexError.
        raise yaml.YAMLError(f"a value does not fit its YAML tag ({type(error).__name__}: {error})") from None


def compose_yaml(text: str | bytes) -> yaml.Node | None:
    """Return the root node of a YAML document; its nodes have line numbers. None if the document is empty.

    Raises:
        yaml.YAMLError: see `parse_yaml`.
    """
    node: yaml.Node | None = _load(text, _NodeLoader)
    return node


MOST_TEXT = 8 << 20
"""Maximum bytes of a text file that people write."""

MOST_LINES = 1 << 30
"""Maximum bytes of a file with a line per key or path."""


def read_given_file(
    path: str | Path, what: str, *, most: int = MOST_TEXT, kind: type[StateError] = UsageError
) -> bytes:
    """Read a local file whole.

    Args:
        path: the file.
        what: name of the file in errors, such as `the policy`.
        most: largest accepted size in bytes.
        kind: class of the error.

    Raises:
        StateError: of `kind`: the file cannot be read, is a device or a pipe, or is too large.
    """
    if "\0" in str(path):
        raise kind(f"{what} cannot be read: its name contains a NUL character", where=Where(file=str(path)))
    try:
        return read_file(Location(LocalFileSystem(), str(path)), most=most)
    except StateError as error:
        cause = error.__cause__
        reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else error.what
        raise kind(f"{what} cannot be read: {reason}", where=Where(file=str(path))) from None


def read_given_text(path: str | Path, what: str, *, most: int = MOST_TEXT, kind: type[StateError] = UsageError) -> str:
    """Read a local UTF-8 file; arguments and errors as for `read_given_file`, also an error if it is not UTF-8."""
    try:
        return read_given_file(path, what, most=most, kind=kind).decode()
    except UnicodeDecodeError as error:
        raise kind(f"{what} is not UTF-8: {error}", where=Where(file=str(path))) from None


def run_python_file(path: Path | str, name: str, *, kind: type[StateError] = UsageError, hint: str = "") -> object:
    """Run a file and return a variable that it defines.

    Args:
        path: the file.
        name: name of the variable.
        kind: class of the error.
        hint: hint for the error, such as an example of the variable.

    Raises:
        StateError: of `kind`; the file cannot be run, or does not define the variable.
    """
    where = Where(file=str(path))
    try:
        found = runpy.run_path(str(path))
    except Exception as error:
        # The file is code of the user, which may raise anything.
        raise kind(f"the file cannot be run: {type(error).__name__}: {error}", where=where) from error
    if name not in found:
        raise kind(f"the file does not define {name}", where=where, hint=hint)
    return found[name]
