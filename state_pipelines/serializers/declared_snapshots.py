"""Snapshot classes that the user declares without a plug-in: layouts of the body of the snapshot and of the data.

A declaration is a text `CLASS=LAYOUT` or `CLASS(BODY)=LAYOUT`. `codecs.layout` reads LAYOUT; BODY is a list of
words: a number (`i8`, `i16`, `i32`, `i64`, `f32`, `f64`, `bool`), `utf`, `bytes(N)`, `snapshot` (a nested serializer
snapshot) or `composite` (the form of `CompositeTypeSerializerSnapshot` without outer data). Without BODY the body is
empty, or ends where that can be proven (`body_ends`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state_pipelines.errors import UsageError
from state_pipelines.serializers.snapshot_class_rules import check_name

if TYPE_CHECKING:
    from state_pipelines.binary.data_views import Reader

EXAMPLE = "com.acme.MoneySerializer$Snap=Struct(currency: utf, cents: i64)"

SNAPSHOT = "snapshot"
COMPOSITE = "composite"

_WIDTHS = {"bool": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "f32": 4, "f64": 8}
_BYTES = re.compile(r"bytes\((\d{1,9})\)")
_DECLARATION = re.compile(r"\s*([^=()\s]+)\s*(?:\((.*?)\)\s*)?=\s*(.+?)\s*", re.DOTALL)


@dataclass(frozen=True)
class DeclaredSerializer:
    """A declaration.

    Attributes:
        snapshot_class: binary name of the `TypeSerializerSnapshot` class.
        layout: text of the layout of the data.
        body: ordered words of the snapshot body; None if not declared.
    """

    snapshot_class: str
    layout: str
    body: tuple[str, ...] | None = None


def parse_declaration(text: str) -> DeclaredSerializer:
    """Read a declaration; its LAYOUT is not looked into here.

    Raises:
        UsageError: the text has another form, or BODY has an unknown word.
    """
    match = _DECLARATION.fullmatch(_unnest(text))
    if match is None:
        raise UsageError(f"{text!r} does not have the form CLASS=LAYOUT", hint=f"Such as {EXAMPLE}")
    name, body, _ = match.groups()
    layout = text[match.start(3) : match.end(3)]
    check_name(name)
    words = None
    if body is not None:
        inner = text[match.start(2) : match.end(2)]
        words = tuple(word for each in inner.split(",") if (word := each.strip()))
        for word in words:
            if word not in _WIDTHS and word not in ("utf", SNAPSHOT, COMPOSITE) and not _BYTES.fullmatch(word):
                raise UsageError(
                    f"{word!r} in the body of {name} is not known",
                    hint=f"The words are {', '.join(_WIDTHS)}, utf, bytes(N), {SNAPSHOT} and {COMPOSITE}",
                )
    return DeclaredSerializer(name, layout, words)


def _unnest(text: str) -> str:
    """`text` with the parentheses inside of others replaced, so that the outermost pair can be found."""
    depth, changed = 0, []
    for each in text:
        depth -= each == ")"
        changed.append(("<" if each == "(" else ">" if each == ")" else each) if depth > 0 else each)
        depth += each == "("
    return "".join(changed)


def skip_word(reader: Reader, word: str) -> None:
    """Skip a value in the body of a snapshot."""
    sized = _BYTES.fullmatch(word)
    if sized:
        reader.skip(int(sized[1]))
    elif word == "utf":
        reader.utf()
    else:
        reader.skip(_WIDTHS[word])
