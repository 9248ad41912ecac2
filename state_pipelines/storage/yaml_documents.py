"""YAML that people write: parsed with bounded depth, and with one kind of error for everything that is wrong."""

from __future__ import annotations

import re
from typing import Any

import yaml

from state_pipelines.binary.strings import join_surrogates

MAX_DEPTH = 64
"""Mappings and lists in each other."""

MOST_BYTES = 8 << 20
"""Bytes, or characters, of a document; the parser takes seconds for it."""

MOST_REPEATED = 100_000
"""Values that the aliases of a document repeat."""

_MOST_DIGITS = 1000
_IMPOSSIBLE = re.compile("[\0\ud800-\udfff]")


class _Bounded:
    """A composer that counts how deep it is, and how much aliases repeat; to be mixed into a loader of PyYAML.

    An alias is as deep as what it names, and cannot name what it is in.
    """

    _depth = 0
    _deepest = 0
    _values = 0
    _repeated = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[attr-defined]
        # Of every anchor the depth of what it names; 0 until that is complete.
        heights: dict[str | None, int] = self.__dict__.setdefault("_heights", {})
        # And how many values it holds, those that aliases repeat included.
        sizes: dict[str | None, int] = self.__dict__.setdefault("_sizes", {})
        height = 1
        before = self._values
        self._values += 1
        if isinstance(event, yaml.AliasEvent):
            height = heights.get(event.anchor, 1)
            if height == 0:
                raise yaml.YAMLError(f"the alias *{event.anchor} is inside of what it names")
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
            # JSON writes a character beyond U+FFFF as two halves.
            node.value = join_surrogates(node.value)
            if _IMPOSSIBLE.search(node.value):
                raise yaml.YAMLError(f"a text has a character that names and UTF-8 cannot have: {node.value!a}")
        self._depth -= 1
        if event.anchor is not None and not isinstance(event, yaml.AliasEvent):
            heights[event.anchor] = self._deepest - self._depth
            sizes[event.anchor] = self._values - before
        self._deepest = max(around, self._deepest)
        return node


class _SafeLoader(_Bounded, yaml.SafeLoader):
    """Values of YAML's own types."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """An integer that Python can also write in decimal digits, which has a limit for longer ones."""
        if len(node.value) > _MOST_DIGITS:
            raise yaml.YAMLError(f"a number has {len(node.value):,} digits, more than {_MOST_DIGITS:,}")
        return int(super().construct_yaml_int(node))


_SafeLoader.add_constructor("tag:yaml.org,2002:int", _SafeLoader.construct_yaml_int)


class _TextLoader(_Bounded, yaml.BaseLoader):
    """Texts only."""


def parse_yaml(text: str | bytes, *, as_texts: bool = False) -> Any:
    """Return the content of a YAML document.

    Args:
        text: the document.
        as_texts: scalars stay texts, so that `no` and `1.10` are what they look like.

    Raises:
        yaml.YAMLError: it has more than `MOST_BYTES`, is not YAML, nests deeper than `MAX_DEPTH`, an alias is inside of
            what it names, aliases repeat more than `MOST_REPEATED` values, or a value is not one of its tag, such as a
            date that does not exist.
    """
    if len(text) > MOST_BYTES:
        raise yaml.YAMLError(f"the document has {len(text):,} bytes, more than {MOST_BYTES:,}")
    try:
        return yaml.load(text, Loader=_TextLoader if as_texts else _SafeLoader)
    except (ValueError, OverflowError) as error:
        raise yaml.YAMLError(str(error)) from None
    except (AttributeError, LookupError, TypeError) as error:
        # `SafeConstructor` looks values up and takes them apart without a check: `!!bool x`, `!!int ""`.
        raise yaml.YAMLError(f"a value is not one of its tag ({type(error).__name__}: {error})") from None
