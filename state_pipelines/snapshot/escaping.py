"""Texts of snapshots where people read them: terminals, Markdown and HTML.

Uids, names of states and classes, keys and paths are whatever somebody has written into `_metadata`. None of them may
move the cursor of a terminal, end a cell or a line, or become a tag.
"""

from __future__ import annotations

import html
import re

# A backslash helps where every kind of Markdown knows it; the others differ about tags, tables and strikethrough.
_MARKDOWN = {each: f"\\{each}" for each in "\\`*_{}[]#!"} | {
    "<": "&lt;",
    ">": "&gt;",
    "&": "&amp;",
    "|": "&#124;",
    "~": "&#126;",
}

# Control characters but for tab and line feed, those that turn the direction of what follows, and halves of characters,
# which Java's texts can have and UTF-8 cannot.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_terminal(text: str) -> str:
    r"""Return a text with its control characters visible, such as `\x1b`; tabs and line feeds stay."""
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def escape_markdown(text: str) -> str:
    """Return a text of one line that Markdown shows as it is."""
    return "".join(_MARKDOWN.get(each, each) for each in _join_lines(text))


def quote_markdown(text: str) -> str:
    """Return a text of one line as code in Markdown; backticks in it become apostrophes."""
    return f"`{_join_lines(text).replace('`', chr(39))}`"


def escape_html(text: str) -> str:
    """Return a text of one line for the content of an HTML element, also inside Markdown."""
    return html.escape(_join_lines(text))


def _join_lines(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)
