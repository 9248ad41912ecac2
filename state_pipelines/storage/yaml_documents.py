"""YAML that people write: parsed with bounded depth, and with one kind of error for everything that is wrong."""

from __future__ import annotations

from typing import Any

import yaml

MAX_DEPTH = 64
"""Mappings and lists in each other."""


class _Bounded:
    """A composer that counts how deep it is; to be mixed into a loader of PyYAML."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self._depth == MAX_DEPTH:
            raise yaml.YAMLError(f"mappings and lists nest deeper than {MAX_DEPTH}")
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)  # type: ignore[misc]
        self._depth -= 1
        return node


class _SafeLoader(_Bounded, yaml.SafeLoader):
    """Values of YAML's own types."""


class _TextLoader(_Bounded, yaml.BaseLoader):
    """Texts only."""


def parse_yaml(text: str | bytes, *, as_texts: bool = False) -> Any:
    """Return the content of a YAML document.

    Args:
        text: the document.
        as_texts: scalars stay texts, so that `no` and `1.10` are what they look like.

    Raises:
        yaml.YAMLError: it is not YAML, nests deeper than `MAX_DEPTH`, or a date or number in it does not exist.
    """
    try:
        return yaml.load(text, Loader=_TextLoader if as_texts else _SafeLoader)
    except (ValueError, OverflowError) as error:
        raise yaml.YAMLError(str(error)) from None
